//! The current policy of a running service, and its replacement in every worker.
//!
//! ```text
//! PolicySettings ── check ──► a policy for each worker ── WorkerCommand::Policy ──► the worker's path
//!                          └► slices, shared by the policies of all workers
//! ```
//!
//! Only root and the user that the service runs as may change it. Running requests keep their engine channels.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry_path::{Policy, PolicySettings, SliceCounts, Slices};

use crate::protocol::{Refusal, RefusalKind};
use crate::session::refusal;

pub(crate) struct Policies {
    current: Mutex<Current>,
    /// The user this process runs as.
    own_user: u32,
}

struct Current {
    settings: PolicySettings,
    slices: Slices,
    /// Counts of replaced policies.
    past: SliceCounts,
}

impl Current {
    fn counts(&self) -> SliceCounts {
        let past = self.past;
        let now = self.slices.counts();
        SliceCounts {
            slices: past.slices + now.slices,
            strayed_bytes: past.strayed_bytes + now.strayed_bytes,
        }
    }
}

impl Policies {
    /// The initial state, and a policy for each worker.
    pub(crate) fn new(settings: &PolicySettings, workers: usize) -> (Self, Vec<Box<dyn Policy>>) {
        let (policies, slices) = settings.for_workers(workers);
        let current = Current { settings: settings.clone(), slices, past: SliceCounts::default() };
        let own_user = rustix::process::geteuid().as_raw();
        (Self { current: Mutex::new(current), own_user }, policies)
    }

    pub(crate) fn settings(&self) -> PolicySettings {
        self.current().settings.clone()
    }

    pub(crate) fn counts(&self) -> SliceCounts {
        self.current().counts()
    }

    /// Changes the settings on behalf of `user`; `send` sends the new policy to the worker with the given number.
    ///
    /// # Errors
    /// [`RefusalKind::Argument`] if the user may not change them or the settings are invalid.
    pub(crate) fn change(
        &self,
        user: u32,
        settings: PolicySettings,
        workers: usize,
        mut send: impl FnMut(usize, Box<dyn Policy>),
    ) -> Result<(), Refusal> {
        if user != self.own_user && user != 0 {
            let own = self.own_user;
            let why = format!("user {user} may not change the policy; user {own} and root may");
            return Err(refusal(RefusalKind::Argument, why));
        }
        settings.check().map_err(|error| refusal(RefusalKind::Argument, error))?;
        // Held until all workers have it, so that concurrent changes reach all workers in the same order.
        let mut current = self.current();
        let past = current.counts();
        let (policies, slices) = settings.for_workers(workers);
        policies.into_iter().enumerate().for_each(|(worker, policy)| send(worker, policy));
        *current = Current { settings, slices, past };
        Ok(())
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use memferry_path::PolicyKind;

    use super::*;

    #[test]
    fn change_refuses_strangers_and_zero_rates() {
        let (policies, for_workers) = Policies::new(&PolicySettings::default(), 2);
        assert_eq!(for_workers.len(), 2);
        let no_worker = |_, _| panic!("a worker received a policy");
        let stranger = policies.own_user + 1;
        let refused = policies.change(stranger, PolicySettings::of(PolicyKind::Weighted), 2, no_worker);
        assert!(refused.expect_err("a stranger").message.contains("may not change the policy"));
        let zero_rate = PolicySettings { rate_bytes_per_second: 0, ..PolicySettings::default() };
        let refused = policies.change(policies.own_user, zero_rate, 2, no_worker);
        assert!(refused.expect_err("a rate of zero").message.contains("the rate is zero"));
        assert_eq!(policies.settings(), PolicySettings::default());
        let mut sent = Vec::new();
        let weighted = PolicySettings::of(PolicyKind::Weighted);
        policies.change(0, weighted.clone(), 2, |worker, policy| sent.push((worker, policy.name()))).unwrap();
        assert_eq!((sent, policies.settings()), (vec![(0, "weighted"), (1, "weighted")], weighted));
    }
}
