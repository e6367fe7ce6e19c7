//! The policies that configuration can name, their numbers, and how workers get theirs.
//!
//! ```text
//! PolicySettings ── check ──► for_workers(n) ──► n policies, which share what they have to (slices)
//! ```
//!
//! A new policy is a variant, a name and an arm here. Reading files is the command line's.

use std::collections::BTreeMap;
use std::time::Duration;

use memferry_transfer::PriorityClass;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ByClass, Deadline, Exclusive, Policy, Priority, RateLimit, Shared, Slices, Weighted};

/// The policies that can be named in configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    #[default]
    Shared,
    Exclusive,
    Priority,
    Deadline,
    Weighted,
    RateLimit,
}

impl PolicyKind {
    pub const ALL: [Self; 6] =
        [Self::Shared, Self::Exclusive, Self::Priority, Self::Deadline, Self::Weighted, Self::RateLimit];

    /// Its name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
            Self::Priority => "priority",
            Self::Deadline => "deadline",
            Self::Weighted => "weighted",
            Self::RateLimit => "rate-limit",
        }
    }

    /// A policy of this kind with the default numbers, for one worker.
    pub fn build(self) -> Box<dyn Policy> {
        let settings = PolicySettings { kind: self, ..PolicySettings::default() };
        settings.build(self, 0, &settings.slices(1))
    }
}

/// A policy with its numbers, as a service is configured with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicySettings {
    /// The policy of the service.
    pub kind: PolicyKind,
    /// Policies of their own for the classes low, normal and high.
    pub classes: [Option<PolicyKind>; 3],
    /// Priority: how often slices begin.
    pub period: Duration,
    /// Priority: how long they are.
    pub slice: Duration,
    /// Deadline: bytes a worker can promise for a second.
    pub capacity_bytes_per_second: u64,
    /// Weighted: weights of the classes low, normal and high.
    pub class_weights: [u32; 3],
    /// Weighted: of single users, 1 for others.
    pub user_weights: BTreeMap<u32, u32>,
    /// Rate limit: bytes a user may move in a second on each worker.
    pub rate_bytes_per_second: u64,
    /// Rate limit: bytes a user may move at once after a rest.
    pub burst_bytes: u64,
}

impl Default for PolicySettings {
    /// Slices of 9 ms in every 12 ms: a wake-up costs some 35 microseconds on the machines this was measured on, so the 30 of
    /// every 90 microseconds of Papa 2014 are for hardware. A worker copies some GB/s there; one is promised.
    fn default() -> Self {
        Self {
            kind: PolicyKind::Shared,
            classes: [None; 3],
            period: Duration::from_millis(12),
            slice: Duration::from_millis(9),
            capacity_bytes_per_second: 1_000_000_000,
            class_weights: [1, 2, 4],
            user_weights: BTreeMap::new(),
            rate_bytes_per_second: 1_000_000_000,
            burst_bytes: 16 << 20,
        }
    }
}

/// Why settings are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PolicyError {
    /// No slice, or no time between two.
    #[error("a slice of {slice:?} in every {period:?}: it has to be above zero and shorter than the period")]
    Slice {
        /// How long slices are.
        slice: Duration,
        /// How often they begin.
        period: Duration,
    },
    #[error("{name} is zero, so nothing would ever move: give it at least 1")]
    Zero { name: &'static str },
    /// A class has a policy that is for all or none.
    #[error("class {class} cannot have the policy {} of its own: that, or deadline, is for all classes together", .kind.name())]
    OfClass { class: PriorityClass, kind: PolicyKind },
}

impl PolicySettings {
    /// Settings with the default numbers.
    pub fn of(kind: PolicyKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Checks every number, of policies that are not used too.
    ///
    /// # Errors
    /// The first of [`PolicyError`] that they break.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.slice.is_zero() || self.slice >= self.period {
            return Err(PolicyError::Slice { slice: self.slice, period: self.period });
        }
        let zero = [
            ("the capacity", self.capacity_bytes_per_second == 0),
            ("the rate", self.rate_bytes_per_second == 0),
            ("a class's weight", self.class_weights.contains(&0)),
            ("a user's weight", self.user_weights.values().any(|weight| *weight == 0)),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(PolicyError::Zero { name });
        }
        let classes = [PriorityClass::Low, PriorityClass::Normal, PriorityClass::High];
        for (class, kind) in classes.into_iter().zip(self.classes) {
            // Slices suspend all other classes, weights are of all who share a worker, and deadlines are promised of all of it.
            let of_all = [PolicyKind::Priority, PolicyKind::Deadline, PolicyKind::Weighted];
            if let Some(kind) = kind
                && (of_all.contains(&kind) || self.kind == PolicyKind::Deadline)
            {
                return Err(PolicyError::OfClass { class, kind });
            }
        }
        Ok(())
    }

    /// A policy for each of so many workers, and the slices of them all.
    pub fn for_workers(&self, workers: usize) -> (Vec<Box<dyn Policy>>, Slices) {
        let slices = self.slices(workers);
        let policies = (0..workers).map(|worker| {
            let general = self.build(self.kind, worker, &slices);
            if self.classes.iter().all(Option::is_none) {
                return general;
            }
            let own = self.classes.map(|kind| kind.map(|kind| self.build(kind, worker, &slices)));
            Box::new(ByClass::new(general, own)) as Box<dyn Policy>
        });
        (policies.collect(), slices)
    }

    fn slices(&self, workers: usize) -> Slices {
        Slices::new(self.period, self.slice, workers)
    }

    fn build(&self, kind: PolicyKind, worker: usize, slices: &Slices) -> Box<dyn Policy> {
        match kind {
            PolicyKind::Shared => Box::new(Shared::new()),
            PolicyKind::Exclusive => Box::new(Exclusive::new()),
            PolicyKind::Priority => Box::new(Priority::new(slices.clone(), worker)),
            PolicyKind::Deadline => Box::new(Deadline::new(self.capacity_bytes_per_second)),
            PolicyKind::Weighted => Box::new(Weighted::new(self.class_weights, self.user_weights.clone())),
            PolicyKind::RateLimit => Box::new(RateLimit::new(self.rate_bytes_per_second, self.burst_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_built_under_its_own_name() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.build().name(), kind.name());
        }
        assert_eq!(PolicySettings::default().check(), Ok(()));
        let (policies, _) = PolicySettings::default().for_workers(3);
        assert_eq!(policies.len(), 3);
    }

    #[test]
    fn numbers_under_which_nothing_would_move_are_refused() {
        let settings = PolicySettings::default;
        for (slice, period) in [(0, 5), (5, 5), (6, 5)] {
            let slice = Duration::from_millis(slice);
            let period = Duration::from_millis(period);
            let refused = PolicySettings { slice, period, ..settings() }.check();
            assert_eq!(refused, Err(PolicyError::Slice { slice, period }));
        }
        let user_weights = BTreeMap::from([(1000, 0)]);
        let zeros = [
            PolicySettings { capacity_bytes_per_second: 0, ..settings() },
            PolicySettings { rate_bytes_per_second: 0, ..settings() },
            PolicySettings { class_weights: [1, 0, 1], ..settings() },
            PolicySettings { user_weights, ..settings() },
        ];
        assert!(zeros.iter().all(|zero| matches!(zero.check(), Err(PolicyError::Zero { .. }))));
        let priority = PolicySettings { classes: [None, None, Some(PolicyKind::Priority)], ..settings() };
        assert!(matches!(priority.check(), Err(PolicyError::OfClass { class: PriorityClass::High, .. })));
    }
}
