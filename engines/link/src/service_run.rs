//! Which run of the own service this is: tokens name other grants after the next start.
//!
//! ```text
//! Status: process, seconds ─► /proc/PID/stat: since when ─► number, the same for each process of the link
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How far the service's count of seconds may be from what `/proc` says of its process: it starts some time after that, and does not count
/// suspends.
const TOLERANCE: Duration = Duration::from_secs(60);

/// A number for the run of the service that is `process` and has run for `uptime`. If `/proc` does not show that process, as from within another
/// container, the number is a new one: then frames are good until this process of the link ends, too.
pub(crate) fn of(process: u32, uptime: Duration) -> rustix::io::Result<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let known = || {
        let boot = read("/proc/sys/kernel/random/boot_id")?;
        let now = read("/proc/uptime")?;
        let stat = read(&format!("/proc/{process}/stat"))?;
        let begin = begin(&stat, &now, rustix::param::clock_ticks_per_second(), uptime)?;
        let mut hasher = DefaultHasher::new();
        // The boot is a random number, so nobody learns the others from the hash.
        (boot, process, begin).hash(&mut hasher);
        Some(hasher.finish())
    };
    if let Some(number) = known() {
        return Ok(number);
    }
    let mut bytes = [0; 8];
    // getrandom returns all bytes of requests as short as this.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

/// When a process has begun, in ticks since the boot; `None` if it is another one than the service that has run for `uptime`.
fn begin(stat: &str, now: &str, ticks_per_second: u64, uptime: Duration) -> Option<u64> {
    // The name in parentheses may have spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let begin: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let now: u64 = now.split('.').next()?.parse().ok()?;
    let age = now.checked_sub(begin.checked_div(ticks_per_second)?)?;
    (age.abs_diff(uptime.as_secs()) <= TOLERANCE.as_secs()).then_some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_begin_and_another_one_is_not_taken_for_it() {
        let stat =
            |begin: &str| format!("7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 {begin} 20 21");
        let read = |begin: &str, now: &str, uptime| begin_of(&stat(begin), now, uptime);
        fn begin_of(stat: &str, now: &str, uptime: u64) -> Option<u64> {
            begin(stat, now, 100, Duration::from_secs(uptime))
        }
        assert_eq!(read("250000", "2600.77 9.00\n", 100), Some(250_000));
        assert_eq!(read("250000", "2600.77 9.00\n", 41), Some(250_000));
        assert_eq!(read("250000", "2600.77 9.00\n", 39), None, "another process has this number here");
        assert_eq!(read("250000", "2400.00 9.00\n", 0), None);
        assert_eq!(read("x", "2600.77 9.00\n", 100), None);
        assert_eq!(begin_of("7 a S 1", "2600.77", 100), None);
        assert_eq!(begin_of("", "", 100), None);
    }

    #[test]
    fn a_run_has_one_number_and_an_unknown_process_a_new_one_each_time() {
        let own = std::process::id();
        let one = of(own, Duration::ZERO).unwrap();
        assert_eq!(one, of(own, Duration::ZERO).unwrap());
        assert_ne!(one, of(own, Duration::from_secs(1 << 40)).unwrap());
        assert_ne!(of(0, Duration::ZERO).unwrap(), of(0, Duration::ZERO).unwrap());
    }
}
