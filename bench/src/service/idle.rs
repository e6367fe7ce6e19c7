//! Cost of a service without requests.
//!
//! ```text
//! a client with a queue and frames copies a little, then sleeps ─ 1 s ─► sample ─ 30 s ─► sample
//!     sample: /proc/PID/task/*/status and stat of every thread: switches and CPU ticks; /proc/PID/status: resident size
//! ```
//!
//! A thread that was never scheduled has an unchanged count of switches. Registered frames of clients count as resident,
//! as in the kernel's figure.

use std::time::Duration;

use memferry::Client;

use crate::BenchError;
use crate::children::Service;
use crate::pair::Pair;
use crate::placement::Class;
use crate::rows::{Row, Target};
use crate::run::Run;

const SECONDS: usize = 30;
const QUICK_SECONDS: usize = 5;

/// Total activity of a process's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Activity {
    threads: u64,
    switches: u64,
    ticks: u64,
}

/// The number after a name in a `status` file.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Voluntary and involuntary context switches of a thread.
fn switches(status: &str) -> Option<u64> {
    Some(field(status, "voluntary_ctxt_switches")? + field(status, "nonvoluntary_ctxt_switches")?)
}

/// Ticks of CPU time in user and kernel mode. The name before the fields may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    // `state` is the third field of the file, `utime` the fourteenth.
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn activity_of(process: u32) -> Result<Activity, BenchError> {
    let mut activity = Activity::default();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let path = task?.path();
        let read = |name: &str| std::fs::read_to_string(path.join(name));
        // The thread may have ended meanwhile.
        let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else { continue };
        activity.threads += 1;
        activity.switches += switches(&status).ok_or("a thread's status lacks its switches")?;
        activity.ticks += ticks(&stat).ok_or("a thread's stat lacks its times")?;
    }
    Ok(activity)
}

fn resident_mib(process: u32) -> Result<f64, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let kib = field(&status, "VmRSS").ok_or("a process's status lacks its resident size")?;
    Ok(kib as f64 / 1024.0)
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let service = Service::start(run)?;
    let mut pair = Pair::new(Client::connect(service.socket())?, 1 << 16)?;
    pair.copy(1 << 16)?;
    std::thread::sleep(Duration::from_secs(1));
    let seconds = if run.quick() { QUICK_SECONDS } else { SECONDS };
    run.part("idle", seconds);
    let before = activity_of(service.process())?;
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        run.round_done();
    }
    let after = activity_of(service.process())?;
    let resident = resident_mib(service.process())?;
    Ok(rows(seconds, before, after, resident))
}

fn rows(seconds: usize, before: Activity, after: Activity, resident: f64) -> Vec<Row> {
    // A thread that started or ended is activity too.
    let count = |of: fn(&Activity) -> u64| [of(&after).abs_diff(of(&before)) as f64];
    let none = Target::AtMost(0.0);
    let title =
        format!("idle service, times any of its {} threads was switched in {seconds} s", after.threads);
    vec![
        Row::new(title, "switches", none, &count(|activity| activity.switches)),
        Row::new(
            format!("idle service, CPU ticks in {seconds} s"),
            "ticks",
            none,
            &count(|activity| activity.ticks),
        ),
        Row::new("idle service, resident", "MiB", Target::AtMost(20.0), &[resident]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tmemferry-worker-0\nVmRSS:\t    5120 kB\nThreads:\t3\nvoluntary_ctxt_switches:\t41\n\
                          nonvoluntary_ctxt_switches:\t2\n";
    const STAT: &str = "812 (worker (0) x) S 1 812 812 0 -1 4194304 120 0 0 0 7 3 0 0 20 0 3 0 4170 1 2";

    #[test]
    fn status_files_are_parsed() {
        assert_eq!(switches(STATUS), Some(43));
        assert_eq!(field(STATUS, "VmRSS"), Some(5120));
        assert_eq!(field(STATUS, "Thread"), None);
        assert_eq!(switches("Name:\tx\n"), None);
    }

    #[test]
    fn ticks_are_found_after_any_thread_name() {
        assert_eq!(ticks(STAT), Some(10));
        assert_eq!(ticks("812 (x) S 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn this_process_can_be_sampled() {
        assert!(activity_of(std::process::id()).unwrap().threads >= 1);
        assert!(resident_mib(std::process::id()).unwrap() > 0.1);
    }

    #[test]
    fn one_switch_fails_the_row() {
        let before = Activity { threads: 3, switches: 10, ticks: 4 };
        let after = Activity { switches: 11, ..before };
        let rows = serde_json::to_value(rows(30, before, after, 4.5)).unwrap();
        assert_eq!((&rows[0]["value"], &rows[0]["holds"]), (&1.0.into(), &false.into()));
        assert_eq!((&rows[1]["value"], &rows[1]["holds"]), (&0.0.into(), &true.into()));
        assert_eq!(rows[2]["holds"], serde_json::Value::Bool(true));
    }
}
