//! Part `ending`: what others wait while a session with many capabilities ends.
//!
//! ```text
//! another process derives so many frames ─ NOPs and commands of this client for a while ─ SIGKILL ─ the same again
//!                            its session is in the service's status ─┘                               not any more ─┘
//! ```
//!
//! Nothing waits between the signal and the first request. A scheduler can stop any of the processes for a millisecond, so the longest wait is compared with the longest before, or with a
//! millisecond if that is longer.

use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, Rights};

use super::{Probe, grouped, round_trip};
use crate::BenchError;
use crate::children::{Role, Service, wait_for_end_of_input};
use crate::pair::ask_over_socket;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

/// Numbers of capabilities, and rounds of each.
const COUNTS: [(usize, usize); 3] = [(1000, 7), (100_000, 5), (1_000_000, 3)];
const QUICK_MOST: usize = 1000;
/// Observed before and after: at least this long, and longer for more capabilities.
const AT_LEAST: Duration = Duration::from_millis(300);
const FOR_EACH: Duration = Duration::from_micros(3);
/// NOPs between two commands.
const NOPS: usize = 200;
/// Waits up to this are the scheduler's, us.
const USUAL_US: f64 = 1000.0;
const LIMIT: f64 = 2.0;

/// Runs as the client with the capabilities.
pub(super) fn owns(socket: &Path, count: usize) -> Result<(), BenchError> {
    let client = Client::connect(socket)?;
    let root = client.frame(4096).alloc()?;
    let frames =
        (0..count).map(|_| client.derive(root.slice(..64), Rights::READ)).collect::<Result<Vec<_>, _>>()?;
    wait_for_end_of_input()?;
    drop(frames);
    Ok(())
}

/// The longest NOP and the longest command, us.
struct Longest {
    nop: f64,
    command: f64,
}

type Kind = (&'static str, fn(&Longest) -> f64);

const KINDS: [Kind; 2] = [("NOP", |longest| longest.nop), ("command", |longest| longest.command)];

fn observe(probe: &mut Probe, duration: Duration) -> Result<Longest, BenchError> {
    let mut longest = Longest { nop: 0.0, command: 0.0 };
    let until = Instant::now() + duration;
    while Instant::now() < until {
        // The worker may have fallen asleep during the command.
        round_trip(&mut probe.queue)?;
        for _ in 0..NOPS {
            let started = Instant::now();
            round_trip(&mut probe.queue)?;
            longest.nop = longest.nop.max(since_ns(started) / 1000.0);
        }
        let started = Instant::now();
        ask_over_socket(&probe.client)?;
        longest.command = longest.command.max(since_ns(started) / 1000.0);
    }
    Ok(longest)
}

/// Whether a process has a session.
fn has_session(probe: &Probe, process: u32) -> Result<bool, BenchError> {
    Ok(probe.client.status()?.sessions.iter().any(|session| session.process == process))
}

/// What was observed before a session with so many capabilities ended, and meanwhile.
fn end(service: &Service, count: usize) -> Result<(Longest, Longest), BenchError> {
    let socket = service.socket().to_str().ok_or("the socket's path is not UTF-8; set TMPDIR")?;
    let mut owner = Role::start(None, &["--scale", "owns", socket, &count.to_string()])?;
    if owner.line()? != "ready" {
        return Err("the client with many capabilities failed".into());
    }
    let _pinned = Pinned::to(0)?;
    let mut probe = Probe::of(service)?;
    probe.wake()?;
    let duration = AT_LEAST + FOR_EACH * u32::try_from(count)?;
    let before = observe(&mut probe, duration)?;
    if !has_session(&probe, owner.process())? {
        return Err("the session ended before its process was killed".into());
    }
    owner.kill()?;
    let during = observe(&mut probe, duration)?;
    if has_session(&probe, owner.process())? {
        return Err("the session did not end while the others were observed".into());
    }
    Ok((before, during))
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let service = Service::start_roomy(run, "ending")?;
    let mut rows = Vec::new();
    for (count, rounds) in COUNTS.into_iter().filter(|(count, _)| !run.quick() || *count <= QUICK_MOST) {
        let rounds = run.part("ending", rounds);
        let ended = (0..rounds).map(|_| {
            let ended = end(&service, count);
            run.round_done();
            ended
        });
        let ended = match ended.collect::<Result<Vec<_>, _>>() {
            Ok(ended) => ended,
            Err(error) => {
                let name = format!("a session with {} capabilities ends", grouped(count));
                rows.push(Row::broken(&name, &error.to_string()));
                continue;
            }
        };
        for (what, of) in KINDS {
            let name = format!("longest {what} while a session with {} capabilities ends", grouped(count));
            let times: Vec<f64> = ended.iter().map(|(_, during)| of(during)).collect();
            let ratios: Vec<f64> =
                ended.iter().map(|(before, during)| of(during) / of(before).max(USUAL_US)).collect();
            rows.push(Row::new(name.as_str(), "us", Target::None, &times));
            let against = format!("{name}, against the longest before or 1 ms");
            rows.push(Row::new(against, "ratio", Target::AtMost(LIMIT), &ratios));
        }
    }
    Ok(rows)
}
