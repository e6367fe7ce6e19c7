//! The policy and its numbers, as they are said on the command line, in a file, or to a running service.
//!
//! ```text
//! PolicyOptions ─ over ─► those of the file ─ resolve over ─► settings (the defaults, or a running service's)
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use memferry_service::{PolicyKind, PolicySettings};
use toml::Value;

use super::entries::{Entry, expected, number, quoted, said, set, text};
use super::options::named;

/// What was said of the policy; what is `None` was not.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PolicyOptions {
    /// Policy of the low class alone: shared, exclusive or rate-limit; "none" for that of the service [default: none]
    #[arg(long, value_parser = own_policy)]
    pub(crate) low_policy: Option<OwnPolicy>,
    /// Policy of the normal class alone [default: none]
    #[arg(long, value_parser = own_policy)]
    pub(crate) normal_policy: Option<OwnPolicy>,
    /// Policy of the high class alone [default: none]
    #[arg(long, value_parser = own_policy)]
    pub(crate) high_policy: Option<OwnPolicy>,
    /// Microseconds from one slice to the next, under the policy "priority" [default: 12000]
    #[arg(long)]
    pub(crate) period_us: Option<u64>,
    /// Microseconds of a slice [default: 9000]
    #[arg(long)]
    pub(crate) slice_us: Option<u64>,
    /// Bytes that a worker can promise for a second, under the policy "deadline" [default: 1000000000]
    #[arg(long)]
    pub(crate) capacity: Option<u64>,
    /// Weights of the classes low,normal,high under the policy "weighted" [default: 1,2,4]
    #[arg(long, value_parser = class_weights)]
    pub(crate) class_weights: Option<[u32; 3]>,
    /// Weight of a user, as UID=WEIGHT, under the policy "weighted"; may be given again [default: none]
    #[arg(long = "user-weight", value_name = "UID=WEIGHT", value_parser = user_weight)]
    pub(crate) user_weights: Option<Vec<(u32, u32)>>,
    /// Bytes a user may move in a second on each worker, under the policy "rate-limit" [default: 1000000000]
    #[arg(long)]
    pub(crate) rate: Option<u64>,
    /// Bytes a user may move at once after a rest [default: 16777216]
    #[arg(long)]
    pub(crate) burst: Option<u64>,
}

/// A class's own policy, or that it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnPolicy(Option<PolicyKind>);

impl PolicyOptions {
    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These, and where they say nothing, those of `file`.
    pub(crate) fn over(self, file: Self) -> Self {
        Self {
            low_policy: self.low_policy.or(file.low_policy),
            normal_policy: self.normal_policy.or(file.normal_policy),
            high_policy: self.high_policy.or(file.high_policy),
            period_us: self.period_us.or(file.period_us),
            slice_us: self.slice_us.or(file.slice_us),
            capacity: self.capacity.or(file.capacity),
            class_weights: self.class_weights.or(file.class_weights),
            user_weights: self.user_weights.or(file.user_weights),
            rate: self.rate.or(file.rate),
            burst: self.burst.or(file.burst),
        }
    }

    /// These, and where they say nothing, `settings`.
    pub(crate) fn resolve(self, kind: Option<PolicyKind>, settings: PolicySettings) -> PolicySettings {
        let [low, normal, high] = settings.classes;
        let own = |said: Option<OwnPolicy>, present| said.map_or(present, |own| own.0);
        let weights = self.user_weights.map(|weights| weights.into_iter().collect::<BTreeMap<_, _>>());
        PolicySettings {
            kind: kind.unwrap_or(settings.kind),
            classes: [
                own(self.low_policy, low),
                own(self.normal_policy, normal),
                own(self.high_policy, high),
            ],
            period: self.period_us.map_or(settings.period, Duration::from_micros),
            slice: self.slice_us.map_or(settings.slice, Duration::from_micros),
            capacity_bytes_per_second: self.capacity.unwrap_or(settings.capacity_bytes_per_second),
            class_weights: self.class_weights.unwrap_or(settings.class_weights),
            user_weights: weights.unwrap_or(settings.user_weights),
            rate_bytes_per_second: self.rate.unwrap_or(settings.rate_bytes_per_second),
            burst_bytes: self.burst.unwrap_or(settings.burst_bytes),
        }
    }
}

/// The options of the file.
pub(super) const POLICY: &[Entry] = &[
    Entry {
        key: "low-policy",
        about: "Policy of the low class alone: \"shared\", \"exclusive\", \"rate-limit\" or \"none\" for that of the service.",
        limit: None,
        set: |options, value| set(&mut options.numbers.low_policy, own(value)),
        shown: |settings| shown_own(settings.service.policy.classes[0]),
    },
    Entry {
        key: "normal-policy",
        about: "Policy of the normal class alone.",
        limit: None,
        set: |options, value| set(&mut options.numbers.normal_policy, own(value)),
        shown: |settings| shown_own(settings.service.policy.classes[1]),
    },
    Entry {
        key: "high-policy",
        about: "Policy of the high class alone.",
        limit: None,
        set: |options, value| set(&mut options.numbers.high_policy, own(value)),
        shown: |settings| shown_own(settings.service.policy.classes[2]),
    },
    Entry {
        key: "period-us",
        about: "\"priority\": microseconds from one slice to the next, in which the high class has the engines alone.",
        limit: None,
        set: |options, value| set(&mut options.numbers.period_us, number(value)),
        shown: |settings| settings.service.policy.period.as_micros().to_string(),
    },
    Entry {
        key: "slice-us",
        about: "\"priority\": microseconds of a slice, less than a period.",
        limit: None,
        set: |options, value| set(&mut options.numbers.slice_us, number(value)),
        shown: |settings| settings.service.policy.slice.as_micros().to_string(),
    },
    Entry {
        key: "capacity",
        about: "\"deadline\": bytes that a worker can promise for a second.",
        limit: None,
        set: |options, value| set(&mut options.numbers.capacity, number(value)),
        shown: |settings| settings.service.policy.capacity_bytes_per_second.to_string(),
    },
    Entry {
        key: "class-weights",
        about: "\"weighted\": weights of the classes low, normal and high.",
        limit: None,
        set: |options, value| set(&mut options.numbers.class_weights, weights(value)),
        shown: |settings| format!("{:?}", settings.service.policy.class_weights),
    },
    Entry {
        key: "user-weights",
        about: "\"weighted\": weights of single users, as [\"1000=3\"]. Others have 1.",
        limit: None,
        set: |options, value| set(&mut options.numbers.user_weights, users(value)),
        shown: |settings| {
            let told = |(user, weight): (&u32, &u32)| quoted(&format!("{user}={weight}"));
            let all: Vec<_> = settings.service.policy.user_weights.iter().map(told).collect();
            format!("[{}]", all.join(", "))
        },
    },
    Entry {
        key: "rate",
        about: "\"rate-limit\": bytes a user may move in a second on each worker.",
        limit: None,
        set: |options, value| set(&mut options.numbers.rate, number(value)),
        shown: |settings| settings.service.policy.rate_bytes_per_second.to_string(),
    },
    Entry {
        key: "burst",
        about: "\"rate-limit\": bytes a user may move at once after a rest.",
        limit: None,
        set: |options, value| set(&mut options.numbers.burst, number(value)),
        shown: |settings| settings.service.policy.burst_bytes.to_string(),
    },
];

/// The policy of that name.
pub(crate) fn policy(text: &str) -> Result<PolicyKind, String> {
    named("policy", text, &PolicyKind::ALL.map(|kind| (kind, kind.name())))
}

fn own_policy(text: &str) -> Result<OwnPolicy, String> {
    if text == "none" { Ok(OwnPolicy(None)) } else { policy(text).map(|kind| OwnPolicy(Some(kind))) }
}

fn class_weights(text: &str) -> Result<[u32; 3], String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let three = numbers.and_then(|numbers| numbers.try_into().ok());
    three.ok_or_else(|| format!("'{text}' is no three weights, such as 1,2,4"))
}

fn user_weight(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('=').and_then(|(user, weight)| Some((user.parse().ok()?, weight.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is no user and weight, such as 1000=3"))
}

fn own(value: &Value) -> Result<OwnPolicy, String> {
    text(value).and_then(|name| said(own_policy(name)))
}

fn shown_own(kind: Option<PolicyKind>) -> String {
    quoted(kind.map_or("none", PolicyKind::name))
}

fn weights(value: &Value) -> Result<[u32; 3], String> {
    let wanted = "a list of three whole numbers, such as [1, 2, 4]";
    let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
    let numbers = list.iter().map(number).collect::<Result<Vec<u32>, _>>();
    let numbers = numbers.map_err(|reason| format!("holds a value that {reason}"))?;
    let count = numbers.len();
    numbers.try_into().map_err(|_| format!("has {count} values, it has to be {wanted}"))
}

fn users(value: &Value) -> Result<Vec<(u32, u32)>, String> {
    let wanted = "a list of texts, such as [\"1000=3\"]";
    let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
    list.iter().map(|one| text(one).and_then(|one| said(user_weight(one)))).collect()
}
