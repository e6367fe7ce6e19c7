//! `memferry doctor`: which DMA engines this machine has, what keeps memferry from using each, and the commands that mend it.
//!
//! ```text
//! sysfs, procfs, /dev ─► Machine ─► Host ─┬─► dsa, channels, gpu, service ─► findings ─► text or JSON
//! a report            ─┘                  └─► facts that were read ──────────────────► --report
//! ```
//!
//! It changes nothing, and needs no privileges.

mod channels;
mod dsa;
mod examination;
mod finding;
mod gpu;
mod host;
mod ioat;
mod machine;
mod program;
mod report;
mod service;
mod show;
mod unit;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use memferry_service::printable::printable;
use rustix::fs::OFlags;

use crate::output::{self, say};
use crate::{CommandError, socket};
use examination::diagnosed;
use machine::{Fact, Machine};

const INTEL: u32 = 0x8086;
const AMD: u32 = 0x1022;

/// Arguments of `doctor`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Also write what was read to FILE, for the developers of memferry; it must not exist.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "memferry-doctor.txt")]
    report: Option<PathBuf>,
    /// Look at the files below a folder instead, or at a report.
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
}

/// Runs `memferry doctor`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let machine = machine(&arguments.root)?;
    let diagnosis = diagnosed(&machine, &arguments.socket);
    // First, so that a reader of standard output who goes does not cost the report.
    if let Some(path) = &arguments.report {
        let text = report::written(&machine.facts(), &diagnosis.summary());
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let written = created.and_then(|mut file| {
            // A part of a report would be in the way of the next one.
            file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
        });
        let name = path.display();
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                format!("cannot write the report {name}: it exists; name another file with --report FILE")
            }
            _ => format!("cannot write the report {name}: {error}"),
        })?;
        // Standard output may be JSON.
        eprintln!(
            "memferry: the report is in {}. Read it, and attach it to an issue of the project.",
            printable(&path.display().to_string())
        );
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&diagnosis)?);
    } else {
        say!("{}", diagnosis.lines(output::has_colors()).join("\n"));
    }
    Ok(())
}

/// A folder, or the machine that a report describes.
fn machine(root: &Path) -> Result<Machine, CommandError> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot look at {}: {error}", root.display());
    if root.is_dir() {
        let machine = Machine::below(root).map_err(|error| failed(&error))?;
        if !machine.exists("/sys") && !machine.exists("/proc") {
            let facts = machine.facts();
            let unread = facts.values().find_map(|fact| match fact {
                Fact::Failed { failed } => Some(failed.as_str()),
                _ => None,
            });
            return Err(failed(&unread.unwrap_or("it has neither sys nor proc")).into());
        }
        return Ok(machine);
    }
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let file: File =
        OpenOptions::new().read(true).custom_flags(nonblocking).open(root).map_err(|error| failed(&error))?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"it is neither a folder nor a report").into());
    }
    let mut bytes = Vec::new();
    file.take(report::MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.len() as u64 > report::MAX_BYTES {
        return Err(failed(&"it is too long for a report").into());
    }
    let facts = report::parsed(&String::from_utf8_lossy(&bytes)).map_err(|error| failed(&error))?;
    Ok(Machine::recorded(facts))
}
