//! `memferry policy`: shows the policy of a running service, or gives it another.
//!
//! ```text
//! Client::policy ─ what was said goes over it ─► Client::set_policy ─► lines for people, or JSON
//! ```
//!
//! What is not said stays as the service has it. Whether it may be changed is the service's to decide.

use std::path::PathBuf;

use clap::Args;
use memferry::{Client, PolicyKind, PolicySettings, PriorityClass};

use crate::config::{Flags, Policies, policy};
use crate::output::say;
use crate::{CommandError, socket};

/// Arguments of `policy`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The policy that is to take over: shared, exclusive, priority, deadline, weighted or rate-limit.
    #[arg(value_parser = policy)]
    kind: Option<PolicyKind>,
    #[command(flatten)]
    flags: Flags<Policies>,
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::default_path())]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Shows or changes it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let client = Client::connect(&arguments.socket)?;
    let mut settings = client.policy()?;
    if arguments.kind.is_some() || !arguments.flags.is_empty() {
        settings.kind = arguments.kind.unwrap_or(settings.kind);
        settings = client.set_policy(arguments.flags.apply_to(settings)?)?;
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&settings)?);
    } else {
        say!("{}", lines(&settings).join("\n"));
    }
    Ok(())
}

/// The policy with the numbers it goes by.
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
            format!("{name}, the high class alone for {:?} of every {:?}", settings.slice, settings.period)
        }
        PolicyKind::Deadline => {
            format!(
                "{name}, {} bytes a second can be promised by a worker",
                settings.capacity_bytes_per_second
            )
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
            "{name}, {} bytes a second for each user, {} at once",
            settings.rate_bytes_per_second, settings.burst_bytes
        ),
    }
}
