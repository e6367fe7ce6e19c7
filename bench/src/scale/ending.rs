//! Part `ending`: what others wait while a session with many capabilities ends.
//!
//! ```text
//! another process derives so many frames ─ NOPs and commands of this client for a while ─ that process is killed ─ the same again
//! ```
//!
//! A scheduler can stop any of the processes for a millisecond, so the longest wait is compared with the longest before, or with a
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

const COUNTS: [usize; 3] = [1000, 100_000, 1_000_000];
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

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let counts: Vec<_> = COUNTS.into_iter().filter(|count| !run.quick() || *count <= QUICK_MOST).collect();
    run.part("ending", counts.len());
    let service = Service::start_roomy(run, "ending")?;
    let socket = service.socket().to_str().ok_or("the socket's path is not UTF-8; set TMPDIR")?;
    let mut rows = Vec::new();
    for count in counts {
        let mut owner = Role::start(None, &["--scale", "owns", socket, &count.to_string()])?;
        if owner.line()? != "ready" {
            return Err("the client with many capabilities failed".into());
        }
        let _pinned = Pinned::to(0)?;
        let mut probe = Probe::of(&service)?;
        probe.wake()?;
        let duration = AT_LEAST + FOR_EACH * u32::try_from(count)?;
        let before = observe(&mut probe, duration)?;
        owner.kill()?;
        let during = observe(&mut probe, duration)?;
        run.round_done();
        let what = [("NOP", before.nop, during.nop), ("command", before.command, during.command)];
        for (what, before, during) in what {
            let name = format!("longest {what} while a session with {} capabilities ends", grouped(count));
            let ratio = during / before.max(USUAL_US);
            rows.push(Row::new(name.as_str(), "us", Target::None, &[during]));
            rows.push(Row::new(
                format!("{name}, against the longest before or 1 ms"),
                "ratio",
                Target::AtMost(LIMIT),
                &[ratio],
            ));
        }
    }
    Ok(rows)
}
