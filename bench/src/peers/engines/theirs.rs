//! Their side: two processes of transfer_engines.py, and Mooncake's own benchmark.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Deserialize;

use super::{MEMORY, OUTCOME_LIMIT, Outcome, Reads, Taken, Users, cpu_ns};
use crate::BenchError;
use crate::peers::other::{Other, Silence};
use crate::peers::unpacked;
use crate::run::Run;

/// The Python of the environment with the engines, below the folder of peers.
const PYTHON: &str = "python/bin/python3";
/// Users of the two processes, if they are two.
const USERS: [u32; 2] = [60001, 60002];
/// How long Mooncake's benchmark measures, and how long it may take.
const SECONDS: &str = "3";
const LIMIT: &str = "30";
const STEP: Duration = Duration::from_millis(50);

/// A line of transfer_engines.py.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Line {
    error: Option<String>,
    ready: bool,
    equal: bool,
    ns: f64,
    each: Vec<f64>,
}

impl Line {
    fn of(text: &str) -> Result<Self, BenchError> {
        let line: Self = serde_json::from_str(text).map_err(|error| format!("it said {text}: {error}"))?;
        match line.error {
            Some(error) => Err(error.into()),
            None => Ok(line),
        }
    }
}

/// The Python with the engines, if there is one.
pub(crate) fn python() -> Option<String> {
    Some(unpacked(PYTHON)?.display().to_string())
}

pub(crate) struct Theirs {
    target: Other,
    initiator: Other,
}

impl Theirs {
    /// Starts both processes of an engine, for these users, with these transports for UCX.
    pub(crate) fn start(
        python: &str,
        engine: &str,
        (users, transports): (Users, &str),
    ) -> Result<Self, BenchError> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/transfer_engines.py");
        let start = |role: &str, user: u32| -> Result<Other, BenchError> {
            let mut words: Vec<String> = Vec::new();
            if users == Users::Two {
                let user = user.to_string();
                let drop =
                    ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--pdeathsig", "KILL"];
                words.extend(drop.map(str::to_owned));
            }
            words.extend(
                [python, &program.display().to_string(), role, engine, &MEMORY.to_string()]
                    .map(str::to_owned),
            );
            // NIXL looks for settings in the home folder, which another user may not read.
            Other::start(&words, &[("HOME", "/tmp"), ("UCX_TLS", transports), ("UCX_NET_DEVICES", "lo")])
        };
        let target = start("target", USERS[0])?;
        let place = target.answer()?;
        Line::of(&place)?;
        let mut initiator = start("initiator", USERS[1])?;
        let line = Line::of(&initiator.ask(&place)?)?;
        if !line.ready || !line.equal {
            return Err("the bytes that were read are not those of the other side".into());
        }
        Ok(Self { target, initiator })
    }

    fn cpu_ns(&self) -> Result<f64, BenchError> {
        [self.target.process(), self.initiator.process()].into_iter().map(cpu_ns).sum()
    }

    /// Stops both processes while the other side of a comparison is measured: NIXL's poll, and would take its CPUs.
    pub(crate) fn pause(&self) -> Result<(), BenchError> {
        self.target.signal(Signal::STOP)?;
        self.initiator.signal(Signal::STOP)
    }

    pub(crate) fn go_on(&self) -> Result<(), BenchError> {
        self.target.signal(Signal::CONT)?;
        self.initiator.signal(Signal::CONT)
    }

    pub(crate) fn take(&mut self, reads: Reads) -> Result<Taken, BenchError> {
        let before = self.cpu_ns()?;
        let line = Line::of(&self.initiator.ask(&question(reads))?)?;
        Ok(Taken { ns: line.ns, each: line.each, cpu_ns: self.cpu_ns()? - before })
    }

    /// What becomes of a read once the other side is stopped, and once it is killed.
    pub(super) fn outcomes(mut self) -> Result<[Outcome; 2], BenchError> {
        self.target.signal(Signal::STOP)?;
        let stopped = self.outcome()?;
        self.target.signal(Signal::KILL)?;
        self.target.ended()?;
        if matches!(stopped, Outcome::NoEnd) {
            // The answer about the stopped one comes now, or never.
            let started = Instant::now();
            let late = self
                .initiator
                .line(OUTCOME_LIMIT)
                .map(|line| Line::of(&line).map(drop).map_err(|e| e.to_string()));
            if late == Err(Silence::Late) {
                return Ok([stopped, Outcome::of(late, started.elapsed())]);
            }
        }
        Ok([stopped, self.outcome()?])
    }

    /// Of a read of 1 MiB; one before it is part of every question.
    fn outcome(&mut self) -> Result<Outcome, BenchError> {
        let started = Instant::now();
        if self.initiator.say(&question(Reads { bytes: 1 << 20, depth: 1, count: 1 })).is_err() {
            return Ok(Outcome::of(Err(Silence::Ended), started.elapsed()));
        }
        let result = self.initiator.line(OUTCOME_LIMIT);
        Ok(Outcome::of(
            result.map(|line| Line::of(&line).map(drop).map_err(|error| error.to_string())),
            started.elapsed(),
        ))
    }
}

fn question(reads: Reads) -> String {
    let Reads { bytes, depth, count } = reads;
    serde_json::json!({ "bytes": bytes, "depth": depth, "count": count }).to_string()
}

/// MiB/s by Mooncake's transfer_engine_bench, one thread, over TCP on the loopback device.
pub(super) fn own_benchmark(run: &Run, python: &str, bytes: u64, depth: u64) -> Result<f64, BenchError> {
    let program = PathBuf::from(python).with_file_name("transfer_engine_bench").display().to_string();
    let log = run.directory().join("mooncake.log");
    let common = format!(
        "--metadata_server=P2PHANDSHAKE --protocol=tcp --buffer_size={MEMORY} --block_size={bytes} --batch_size={depth} \
         --threads=1 --report_unit=MiB"
    );
    let script = format!(
        "exec timeout {LIMIT} {program} --mode=target --local_server_name=127.0.0.1:12345 {common} 2>{}",
        log.display()
    );
    let words = ["sh", "-c", &script].map(str::to_owned);
    let environment = [("GLOG_logtostderr", "1")];
    let mut target = Other::start(&words, &environment)?;
    let started = Instant::now();
    let segment = loop {
        if let Some(segment) = listens(&std::fs::read_to_string(&log).unwrap_or_default()) {
            break segment;
        }
        if started.elapsed() > OUTCOME_LIMIT {
            return Err("transfer_engine_bench does not listen".into());
        }
        std::thread::sleep(STEP);
    };
    let measured = loop {
        let mut initiator = Command::new("timeout");
        initiator.args([LIMIT, &program, "--mode=initiator", "--local_server_name=127.0.0.1:12346"]);
        initiator
            .args(common.split(' '))
            .arg(format!("--segment_id={segment}"))
            .args(["--duration", SECONDS]);
        let output = initiator.envs(environment).stdin(Stdio::null()).output()?;
        let measured = throughput(&String::from_utf8_lossy(&output.stderr));
        // It listens before its memory is registered, and does not say when that is done.
        if measured.is_some() || started.elapsed() > OUTCOME_LIMIT {
            break measured;
        }
        std::thread::sleep(STEP);
    };
    // It passes the signal on to all of its group.
    target.signal(Signal::TERM)?;
    target.ended()?;
    measured.ok_or_else(|| "transfer_engine_bench printed no throughput".into())
}

/// Where the target can be reached.
fn listens(log: &str) -> Option<String> {
    let (_, rest) = log.split_once("listening on ")?;
    let (line, _) = rest.split_once('\n')?;
    Some(line.trim().to_owned())
}

fn throughput(log: &str) -> Option<f64> {
    let (_, rest) = log.rsplit_once("throughput ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_answers_or_errors() {
        assert_eq!(Line::of(r#"{"ns": 5, "each": [1, 2], "cpu_ns": 3}"#).unwrap().each, [1.0, 2.0]);
        assert_eq!(
            Line::of(r#"{"error": "RuntimeError: status -1"}"#).err().unwrap().to_string(),
            "RuntimeError: status -1"
        );
        assert!(Line::of("Segmentation fault").is_err());
    }

    #[test]
    fn mooncakes_log_is_parsed() {
        let log = "I1126 a.cpp:183] Transfer Engine RPC using P2P handshake, listening on 127.0.0.1:15554\nE1126 x\n";
        assert_eq!(listens(log).as_deref(), Some("127.0.0.1:15554"));
        assert_eq!(listens("I1126 listening on 127"), None);
        assert_eq!(
            throughput("Test completed: duration 3.48, batch count 5, throughput 1.44 MiB/s\n"),
            Some(1.44)
        );
        assert_eq!(throughput("failed\n"), None);
    }
}
