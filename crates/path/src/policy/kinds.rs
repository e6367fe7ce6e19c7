//! The policies that configuration can name, their settings, and the policy objects made for each worker.
//!
//! ```text
//! PolicySettings ── check ──► for_workers(n) ──► n policies, which share one `Slices`
//! ```
//!
//! A new policy adds a variant, a name and an arm here. The command line reads the configuration files.

use std::collections::BTreeMap;
use std::time::Duration;

use memferry_transfer::PriorityClass;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ByClass, Deadline, Exclusive, Policy, Priority, RateLimit, Shared, Slices, Weighted};

/// The policies that can be named in configuration. The numbers are those of the protocol between client and service, which
/// sends positions: keep the variants in this order.
///
/// ```
/// use memferry_path::PolicyKind;
///
/// let named = PolicyKind::ALL.into_iter().find(|kind| kind.name() == "rate-limit");
/// assert_eq!(named, Some(PolicyKind::RateLimit));
/// assert_eq!(PolicyKind::default().name(), "shared");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum PolicyKind {
    #[default]
    Shared = 0,
    Exclusive = 1,
    Priority = 2,
    Deadline = 3,
    Weighted = 4,
    RateLimit = 5,
}

impl PolicyKind {
    pub const ALL: [Self; 6] =
        [Self::Shared, Self::Exclusive, Self::Priority, Self::Deadline, Self::Weighted, Self::RateLimit];

    /// The name in configuration and status.
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

    /// A policy of this kind with default settings, for one worker.
    pub fn build(self) -> Box<dyn Policy> {
        let settings = PolicySettings { kind: self, ..PolicySettings::default() };
        settings.build(self, 0, &settings.slices(1))
    }
}

/// The policies of a service, with their settings.
///
/// ```
/// use memferry_path::{PolicyKind, PolicySettings};
///
/// let mut settings = PolicySettings { kind: PolicyKind::Weighted, ..PolicySettings::default() };
/// settings.user_weights.insert(1000, 3);
/// assert!(settings.check().is_ok());
/// settings.class_weights = [0, 1, 1];
/// assert!(settings.check().is_err(), "a class of weight 0 would never move");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicySettings {
    /// The general policy of the service.
    pub kind: PolicyKind,
    /// Separate policies for the classes low, normal and high.
    pub classes: [Option<PolicyKind>; 3],
    /// Priority: time from the start of one slice to the next.
    pub period: Duration,
    /// Priority: length of a slice.
    pub slice: Duration,
    /// Deadline: what a worker is assumed to move, of which nine tenths may be promised.
    pub capacity_bytes_per_second: u64,
    /// Weighted: weights of the classes low, normal and high.
    pub class_weights: [u32; 3],
    /// Weighted: weights of single users, by user id. Others have 1.
    pub user_weights: BTreeMap<u32, u32>,
    /// Rate limit: bytes a user may move in a second on each worker.
    pub rate_bytes_per_second: u64,
    /// Rate limit: bytes a user may move at once after a pause.
    pub burst_bytes: u64,
}

impl Default for PolicySettings {
    /// Slices of 9 ms in every 12 ms: a wake-up cost about 35 microseconds where this was measured, so Papa 2014's 30 of every 90
    /// microseconds are for hardware only. A worker there copies several GB/s; the default capacity is 1 GB/s.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PolicyError {
    /// The slice is empty, or leaves no time between slices.
    #[error("a slice of {slice:?} in every {period:?}: make it longer than zero and shorter than the period")]
    Slice { slice: Duration, period: Duration },
    #[error("{name} is zero, so no request could progress: set it to at least 1")]
    Zero { name: &'static str },
    /// A policy that covers all classes was set for one class, or a class has a policy under `deadline`.
    #[error(
        "class {class} cannot have the separate policy {}: priority, deadline and weighted cover all classes, \
         and deadline allows no policy beside it",
        .kind.name()
    )]
    OfClass { class: PriorityClass, kind: PolicyKind },
}

impl PolicySettings {
    /// Default settings with this general policy.
    pub fn of(kind: PolicyKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Checks all settings, also those of policies that are not used.
    ///
    /// # Errors
    /// The first [`PolicyError`] found.
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
            // Slices suspend all other classes, weights divide a whole worker, and deadlines are promised from its whole capacity.
            let for_all = [PolicyKind::Priority, PolicyKind::Deadline, PolicyKind::Weighted];
            if let Some(kind) = kind
                && (for_all.contains(&kind) || self.kind == PolicyKind::Deadline)
            {
                return Err(PolicyError::OfClass { class, kind });
            }
        }
        Ok(())
    }

    /// One policy for each worker, and the slices they share.
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
    fn each_kind_is_built_under_its_name() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.build().name(), kind.name());
        }
        assert_eq!(PolicySettings::default().check(), Ok(()));
        let (policies, _) = PolicySettings::default().for_workers(3);
        assert_eq!(policies.len(), 3);
    }

    #[test]
    fn settings_that_stop_all_requests_are_refused() {
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
