//! `memferry policy`: shows or changes the policy of a running service.
//!
//! ```text
//! Client::policy ─ changed by the given flags ─► Client::set_policy ─► lines of text, or JSON
//! ```
//!
//! Settings without a flag stay as the service has them. The service decides whether the change is allowed.

use std::path::PathBuf;

use clap::Args;
use memferry::{Client, PolicyKind, PolicySettings, PriorityClass};

use crate::config::{Flags, Policies, policy};
use crate::output::say;
use crate::{CommandError, socket};

/// Arguments of `policy`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[arg(value_parser = policy, help = format!("New policy: {}", PolicyKind::ALL.map(PolicyKind::name).join(", ")))]
    kind: Option<PolicyKind>,
    #[command(flatten)]
    flags: Flags<Policies>,
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `memferry policy`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let client = Client::connect(&arguments.socket)?;
    let mut settings = client.policy()?;
    if arguments.kind.is_some() || !arguments.flags.is_empty() {
        settings.kind = arguments.kind.unwrap_or(settings.kind);
        settings = client.set_policy(arguments.flags.apply_to(settings)?)?;
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&json(&settings)?)?);
    } else {
        say!("{}", lines(&settings).join("\n"));
    }
    Ok(())
}

/// The settings with times as numbers, under the names of their flags.
fn json(settings: &PolicySettings) -> serde_json::Result<serde_json::Value> {
    let mut value = serde_json::to_value(settings)?;
    if let Some(fields) = value.as_object_mut() {
        for (name, time) in [("period", settings.period), ("slice", settings.slice)] {
            fields.remove(name);
            let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            fields.insert(format!("{name}_us"), microseconds.into());
        }
    }
    Ok(value)
}

/// One line for the policy with its parameters, and one for each class that has its own.
fn lines(settings: &PolicySettings) -> Vec<String> {
    let mut lines = vec![numbers(settings, settings.kind)];
    let classes = [PriorityClass::Low, PriorityClass::Normal, PriorityClass::High];
    for (class, kind) in classes.into_iter().zip(settings.classes) {
        lines.extend(kind.map(|kind| format!("class {class}: {}", numbers(settings, kind))));
    }
    lines
}

fn numbers(settings: &PolicySettings, kind: PolicyKind) -> String {
    let name = kind.name();
    match kind {
        PolicyKind::Shared | PolicyKind::Exclusive => name.to_owned(),
        PolicyKind::Priority => {
            format!("{name}, only the high class for {:?} of every {:?}", settings.slice, settings.period)
        }
        PolicyKind::Deadline => {
            format!("{name}, a worker can promise {} bytes per second", settings.capacity_bytes_per_second)
        }
        PolicyKind::Weighted => {
            let [low, normal, high] = settings.class_weights;
            let users: Vec<_> = settings
                .user_weights
                .iter()
                .map(|(user, weight)| format!(", user {user}: {weight}"))
                .collect();
            format!("{name}, low {low}, normal {normal}, high {high}{}", users.concat())
        }
        PolicyKind::RateLimit => format!(
            "{name}, {} bytes per second for each user, {} at once",
            settings.rate_bytes_per_second, settings.burst_bytes
        ),
    }
}
