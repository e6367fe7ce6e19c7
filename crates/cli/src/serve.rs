//! `memferry serve`: runs the service on a socket.
//!
//! ```text
//! command line, configuration file ─► Settings ─► socket from systemd, or bound here ─► daemon, until a signal
//! ```

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use memferry_daemon::{Listener, serve_on};
use tracing_subscriber::EnvFilter;

use crate::CommandError;
use crate::config::{self, Everything, Flags, LogFormat, Settings};
use crate::output::AlreadyLogged;

/// Arguments of `serve`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Configuration file; by default /etc/memferry.toml, if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not read a configuration file.
    #[arg(long, conflicts_with = "config")]
    no_config: bool,
    #[command(flatten)]
    flags: Flags<Everything>,
    /// Do not confine the service's processes with seccomp and Landlock.
    #[arg(long, conflicts_with = "sandbox")]
    no_sandbox: bool,
    /// Stop when the process that started this one ends.
    #[arg(long, hide = true)]
    stop_with_parent: bool,
}

impl Arguments {
    fn settings(&self) -> Result<Settings, CommandError> {
        let mut settings =
            if self.no_config { Settings::default() } else { config::load(self.config.as_deref())? };
        self.flags.apply(&mut settings)?;
        if self.no_sandbox {
            settings.daemon.sandbox = false;
        }
        Ok(settings)
    }
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    // The sockets from systemd are found by number, before other descriptors are opened.
    let activated = Listener::activated()?;
    let settings = arguments.settings()?;
    let format = settings.log_format;
    start_log(format);
    start(arguments, settings, activated).map_err(|error| match format {
        LogFormat::Text => error,
        // The message must be JSON as well.
        LogFormat::Json => {
            tracing::error!(reason = %error, "failed");
            AlreadyLogged.into()
        }
    })
}

fn start(arguments: &Arguments, settings: Settings, activated: Option<Listener>) -> Result<(), CommandError> {
    if arguments.stop_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let options = settings.daemon;
    options.service.check()?;
    let listener = match activated {
        Some(listener) => listener,
        None => Listener::bind(&options.socket, options.mode)?,
    };
    let address = listener.address().to_owned();
    // A closed standard output is no error.
    serve_on(listener, &options, || drop(writeln!(std::io::stdout(), "listening on {address}")))?;
    Ok(())
}

/// Starts text log lines on standard error, filtered by `MEMFERRY_LOG`.
pub(crate) fn start_text_log() {
    start_log(LogFormat::Text);
}

fn start_log(format: LogFormat) {
    let asked = std::env::var("MEMFERRY_LOG").ok().map(EnvFilter::try_new).transpose();
    let mistake = asked.as_ref().err().map(ToString::to_string);
    let filter = asked.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => {
            lines.json().flatten_event(true).init();
            std::panic::set_hook(Box::new(|panic| tracing::error!(reason = %panic, "panic")));
        }
    }
    if let Some(mistake) = mistake {
        tracing::warn!(reason = %mistake, "MEMFERRY_LOG is ignored: it has to be a level such as debug, or MODULE=LEVEL");
    }
}
