//! The policy of a running service: what it is, and how another one takes over in every worker.
//!
//! ```text
//! PolicySettings ── check ──► a policy for each worker ── WorkerCommand::Policy ──► the worker's path
//!                          └► slices, which the policies of all workers share
//! ```
//!
//! The user that the service runs as may change it, and root. Requests that run keep their channels.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry_path::{Policy, PolicySettings, SliceCounts, Slices};

use crate::protocol::{Refusal, RefusalKind};
use crate::session::refusal;

pub(crate) struct Policies {
    present: Mutex<Present>,
    /// The user this process runs as.
    own_user: u32,
}

struct Present {
    settings: PolicySettings,
    slices: Slices,
    /// Counted under policies that were replaced.
    past: SliceCounts,
}

impl Present {
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
    /// Those of a service that starts, and a policy for each of its workers.
    pub(crate) fn new(settings: &PolicySettings, workers: usize) -> (Self, Vec<Box<dyn Policy>>) {
        let (policies, slices) = settings.for_workers(workers);
        let present = Present { settings: settings.clone(), slices, past: SliceCounts::default() };
        let own_user = rustix::process::geteuid().as_raw();
        (Self { present: Mutex::new(present), own_user }, policies)
    }

    pub(crate) fn settings(&self) -> PolicySettings {
        self.present().settings.clone()
    }

    pub(crate) fn counts(&self) -> SliceCounts {
        self.present().counts()
    }

    /// Takes other settings, as `user` wants; `tell` gives each worker, by number, its new policy.
    ///
    /// # Errors
    /// [`RefusalKind::Argument`] when they are not to be had.
    pub(crate) fn change(
        &self,
        user: u32,
        settings: PolicySettings,
        workers: usize,
        mut tell: impl FnMut(usize, Box<dyn Policy>),
    ) -> Result<(), Refusal> {
        if user != self.own_user && user != 0 {
            let own = self.own_user;
            let why = format!("user {user} may not change the policy; user {own} and root may");
            return Err(refusal(RefusalKind::Argument, why));
        }
        settings.check().map_err(|error| refusal(RefusalKind::Argument, error))?;
        // Two who change it at once: the workers hear both in the order in which the settings are kept.
        let mut present = self.present();
        let past = present.counts();
        let (policies, slices) = settings.for_workers(workers);
        policies.into_iter().enumerate().for_each(|(worker, policy)| tell(worker, policy));
        *present = Present { settings, slices, past };
        Ok(())
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use memferry_path::PolicyKind;

    use super::*;

    #[test]
    fn strangers_and_numbers_that_stop_everything_change_nothing() {
        let (policies, for_workers) = Policies::new(&PolicySettings::default(), 2);
        assert_eq!(for_workers.len(), 2);
        let untold = |_, _| panic!("a worker was told");
        let stranger = policies.own_user + 1;
        let refused = policies.change(stranger, PolicySettings::of(PolicyKind::Weighted), 2, untold);
        assert!(refused.expect_err("may not").message.contains("may not change the policy"));
        let still = PolicySettings { rate_bytes_per_second: 0, ..PolicySettings::default() };
        let refused = policies.change(policies.own_user, still, 2, untold);
        assert!(refused.expect_err("moves nothing").message.contains("the rate is zero"));
        assert_eq!(policies.settings(), PolicySettings::default());
        let mut told = Vec::new();
        let weighted = PolicySettings::of(PolicyKind::Weighted);
        policies.change(0, weighted.clone(), 2, |worker, policy| told.push((worker, policy.name()))).unwrap();
        assert_eq!((told, policies.settings()), (vec![(0, "weighted"), (1, "weighted")], weighted));
    }
}
