//! `memferry tune --engine`: from which length on an engine process copies faster than the service's workers.
//!
//! ```text
//! a service without it  ◄─ copies ─┐
//! a service ◄─ PROGRAM  ◄─ copies ─┴─► medians ─► length, three to seven times ─► agreement ─► shortest= in the configuration
//! ```
//!
//! Both services are processes of this command, as `memferry serve` starts them. Copies run one at a time, in memory that is in no
//! cache; their time is the client's wait.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memferry::{Client, EngineKind, Frame, Queue, copy};
use memferry_service::profile::measure::NEVER;
use memferry_service::protocol::engine_name_is_valid;
use serde::Serialize;

use super::agreement::{self, Threshold};
use super::{Arguments, disagreement};
use crate::child::Group;
use crate::config::EngineLine;
use crate::measure::{Bytes, median, random_bytes};
use crate::output::say;
use crate::{CommandError, interrupt};

/// Measured lengths: shorter copies are done by a worker at once.
const SIZES: std::ops::RangeInclusive<u32> = 15..=26;
/// Bytes of each frame.
const POOL: u64 = 1 << *SIZES.end();
/// Bytes that one side copies in a round, unless a single copy is longer.
const ROUND_BYTES: u64 = 1 << 20;
const ROUNDS: usize = 5;
/// How long the engine may take to connect.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    engine: &'a str,
    /// `null` if the engine never pays.
    shortest_bytes: Option<u64>,
    measurements: &'a Threshold,
}

/// Measures the engine, and writes the length to the configuration file.
pub(super) fn run(arguments: &Arguments, name: &str) -> Result<(), CommandError> {
    if !engine_name_is_valid(name) {
        let wanted = "an engine's name has 1 to 32 lower-case letters, digits and hyphens";
        return Err(format!("'{name}' is not the name of an engine process; {wanted}").into());
    }
    let line = match arguments.dry_run {
        true => None,
        false => Some(EngineLine::find(arguments.config.as_deref(), name)?),
    };
    let workers = line.as_ref().map(|line| line.settings.daemon.service.workers);
    let mut contest = Contest::start(name, &arguments.program, workers)?;
    let mut lengths = Vec::new();
    let length = loop {
        lengths.push(contest.pays_from()?);
        let length = Threshold::over("shortest", lengths.clone());
        if length.is_certain() || lengths.len() == agreement::MOST {
            break length;
        }
    };
    drop(contest);
    let shortest_bytes = (length.median < NEVER).then_some(length.median);
    if arguments.json {
        let report = Report { engine: name, shortest_bytes, measurements: &length };
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let from =
            shortest_bytes.map_or("from no length on".to_owned(), |bytes| format!("from {}", Bytes(bytes)));
        let agreement = format!("{} of {} measurements agree", length.agreeing, length.measured.len());
        say!("engine {name}: faster than the service's workers {from} ({agreement})");
    }
    let Some(line) = line else {
        if !arguments.json {
            say!("nothing was written");
        }
        return Ok(());
    };
    if !length.is_certain() && !arguments.force {
        return Err(disagreement(&[&length], length.measured.len()).into());
    }
    let Some(bytes) = shortest_bytes else {
        return Err(format!(
            "engine '{name}' is slower than the service's workers with the longest copies that it performs, so nothing was written; \
             to use it all the same, set shortest= in its line"
        )
        .into());
    };
    let written = line.write_shortest(bytes)?;
    if !arguments.json {
        say!("written: \"{written}\"; a service that is started from now on uses it");
    }
    Ok(())
}

/// The folder of both sockets, removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, CommandError> {
        let path = std::env::temp_dir().join(format!("memferry-tune-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The engine against the workers. Fields are dropped in this order: the engine first, which would miss its service.
struct Contest<'a> {
    name: &'a str,
    engine: Group,
    with: Side,
    without: Side,
    interrupted: Arc<AtomicBool>,
    _folder: Folder,
}

impl<'a> Contest<'a> {
    fn start(name: &'a str, program: &[OsString], workers: Option<u32>) -> Result<Self, CommandError> {
        let interrupted = interrupt::flag()?;
        let folder = Folder::make()?;
        let user = rustix::process::geteuid().as_raw();
        let known = format!("{name} user={user} shortest=1");
        let without = Side::start(folder.0.join("without.sock"), workers, &[])?;
        let with = Side::start(folder.0.join("with.sock"), workers, &["--engine", &known])?;
        let (program, arguments) = program.split_first().ok_or("no program is named")?;
        let mut command = Command::new(program);
        command.args(arguments).arg("--socket").arg(&with.socket).args(["--name", name]);
        let engine = Group::start(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let engine =
            engine.map_err(|error| format!("cannot start {}: {error}", Path::new(program).display()))?;
        let mut contest = Self { name, engine, with, without, interrupted, _folder: folder };
        contest.wait_for_engine()?;
        for side in [&mut contest.with, &mut contest.without] {
            side.allocate()?;
        }
        Ok(contest)
    }

    fn wait_for_engine(&mut self) -> Result<(), CommandError> {
        let started = Instant::now();
        while !self.with.client.status()?.engines.iter().any(|engine| engine.is_connected) {
            self.check_interrupted()?;
            let name = self.name;
            if let Some(status) = self.engine.status()? {
                return Err(format!(
                    "nothing to measure: the program of engine '{name}' ended ({status}) before it connected"
                )
                .into());
            }
            if started.elapsed() > PATIENCE {
                return Err(format!(
                    "nothing to measure: engine '{name}' did not connect within {} s; its program gets --socket PATH --name {name}",
                    PATIENCE.as_secs()
                )
                .into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn check_interrupted(&self) -> Result<(), CommandError> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }

    /// The length from which on the engine is no slower with any that it takes. [`NEVER`] if it is slower with the longest.
    fn pays_from(&mut self) -> Result<u64, CommandError> {
        let mut found = NEVER;
        let mut is_used = false;
        for bytes in SIZES.rev().map(|power| 1 << power) {
            self.check_interrupted()?;
            let mut times = [Vec::new(), Vec::new()];
            let mut all_by_engine = true;
            for round in 0..=ROUNDS {
                let (by_engine, engine) = self.with.time(bytes)?;
                let (by_worker, _) = self.without.time(bytes)?;
                // The first round warms up caches, clocks and workers.
                if round > 0 {
                    times[0].push(by_engine);
                    times[1].push(by_worker);
                    all_by_engine &= engine == EngineKind::External;
                }
            }
            // It does not take all lengths.
            if !all_by_engine {
                continue;
            }
            is_used = true;
            let [by_engine, by_worker] = times.each_mut().map(|times| median(times));
            if by_engine > by_worker {
                break;
            }
            found = bytes;
        }
        if is_used {
            return Ok(found);
        }
        Err(format!(
            "nothing to measure: engine '{}' left all copies to the CPU; it has to perform copies of {} to {}",
            self.name,
            Bytes(1 << SIZES.start()),
            Bytes(POOL)
        )
        .into())
    }
}

/// A service, and a client of it with two frames.
struct Side {
    client: Client,
    queue: Queue,
    frames: Option<[Frame; 2]>,
    /// Offset of the next copy.
    at: u64,
    socket: PathBuf,
    _service: Group,
}

impl Side {
    fn start(socket: PathBuf, workers: Option<u32>, further: &[&str]) -> Result<Self, CommandError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--no-config", "--stop-with-parent", "--socket"]).arg(&socket);
        if let Some(workers) = workers {
            command.args(["--workers", &workers.to_string()]);
        }
        command.args(further).env("MEMFERRY_LOG", "error").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut service =
            Group::start(&mut command).map_err(|error| format!("cannot start a service: {error}"))?;
        let mut line = String::new();
        if let Some(output) = service.take_output() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if !line.starts_with("listening on ") {
            return Err("the service ended before it listened; its message is above".into());
        }
        let client = Client::connect(&socket)?;
        let queue = client.queue(16)?;
        Ok(Self { client, queue, frames: None, at: 0, socket, _service: service })
    }

    fn allocate(&mut self) -> Result<(), CommandError> {
        let frames = [self.client.frame(POOL).alloc()?, self.client.frame(POOL).alloc()?];
        let bytes = random_bytes(usize::try_from(POOL)?, 11);
        for frame in &frames {
            frame.write(0, &bytes)?;
        }
        self.frames = Some(frames);
        Ok(())
    }

    /// Mean time of copies made one after the other; and `External` if the engine made all of them, else the kind of another engine that
    /// made one.
    fn time(&mut self, bytes: u64) -> Result<(Duration, EngineKind), CommandError> {
        let Some([source, destination]) = &self.frames else { return Err("no frames".into()) };
        let count = (ROUND_BYTES / bytes).max(1);
        let mut engine = EngineKind::External;
        let started = Instant::now();
        for _ in 0..count {
            self.at = if self.at + 2 * bytes > POOL { 0 } else { self.at + bytes };
            let range = self.at..self.at + bytes;
            let ticket = self.queue.submit(copy(source.slice(range.clone()), destination.slice(range)))?;
            let done = self.queue.wait(ticket)?;
            if done.engine != EngineKind::External {
                engine = done.engine;
            }
        }
        Ok((started.elapsed() / u32::try_from(count)?, engine))
    }
}
