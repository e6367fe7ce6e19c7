//! `memferry serve`: the service in front of a socket.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use memferry_broker::config::{Quotas, ServiceConfig};
use memferry_broker::daemon::{DaemonOptions, serve};
use tracing_subscriber::EnvFilter;

use crate::{CommandError, socket};

/// Arguments of `serve`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket to listen on.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::default_path())]
    socket: PathBuf,
    /// Permissions of the socket, octal: who may connect.
    #[arg(long, default_value = "666", value_parser = octal)]
    mode: u32,
    /// CPU copy lanes; one for each CPU but one unless given.
    #[arg(long)]
    lanes: Option<u32>,
    /// Engine channels of each lane.
    #[arg(long, default_value_t = ServiceConfig::default().channels_per_lane)]
    channels: u32,
    /// Bytes a lane moves for one request before it looks at the next.
    #[arg(long, default_value_t = ServiceConfig::default().chunk_bytes)]
    chunk: u64,
    /// Which client gets which engine channel: shared or exclusive.
    #[arg(long, default_value = "shared", value_parser = policy)]
    policy: memferry_broker::PolicyKind,
    /// Sessions a user may hold.
    #[arg(long, default_value_t = Quotas::default().sessions)]
    quota_sessions: u32,
    /// Frames a user may register.
    #[arg(long, default_value_t = Quotas::default().frames)]
    quota_frames: u32,
    /// Bytes of frames a user may register.
    #[arg(long, default_value_t = Quotas::default().bytes)]
    quota_bytes: u64,
    /// Client channels a user may open.
    #[arg(long, default_value_t = Quotas::default().channels)]
    quota_channels: u32,
    /// Capabilities a session may hold.
    #[arg(long, default_value_t = Quotas::default().capabilities)]
    quota_capabilities: u32,
    /// Requests of a session that may wait for an engine channel.
    #[arg(long, default_value_t = Quotas::default().waiting)]
    quota_waiting: u32,
    /// Milliseconds running requests may go on when the service stops.
    #[arg(long, default_value_t = 2000)]
    grace_ms: u64,
    /// Do not confine the process with seccomp.
    #[arg(long)]
    no_sandbox: bool,
    /// Stop when the process that started this one ends.
    #[arg(long, hide = true)]
    stop_with_parent: bool,
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|_| format!("'{text}' is no octal number"))?;
    if mode <= 0o777 { Ok(mode) } else { Err(format!("{text} is no file permission; the largest is 777")) }
}

fn policy(text: &str) -> Result<memferry_broker::PolicyKind, String> {
    memferry_broker::PolicyKind::from_name(text).ok_or_else(|| {
        let names: Vec<_> = memferry_broker::PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("there is no policy '{text}'; choose one of {}", names.join(", "))
    })
}

/// Serves until a signal.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let filter = EnvFilter::try_from_env("MEMFERRY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if arguments.stop_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let defaults = ServiceConfig::default();
    let options = DaemonOptions {
        socket: arguments.socket.clone(),
        mode: arguments.mode,
        service: ServiceConfig {
            lanes: arguments.lanes.unwrap_or(defaults.lanes),
            channels_per_lane: arguments.channels,
            chunk_bytes: arguments.chunk,
            policy: arguments.policy,
            quotas: Quotas {
                sessions: arguments.quota_sessions,
                frames: arguments.quota_frames,
                bytes: arguments.quota_bytes,
                channels: arguments.quota_channels,
                capabilities: arguments.quota_capabilities,
                waiting: arguments.quota_waiting,
            },
        },
        grace: Duration::from_millis(arguments.grace_ms),
        sandbox: !arguments.no_sandbox,
    };
    // Nobody has to be listening for this.
    serve(&options, || drop(writeln!(std::io::stdout(), "listening on {}", options.socket.display())))?;
    Ok(())
}
