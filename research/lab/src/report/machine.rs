//! The machine at hand, as the report describes it beside the live rows.
//!
//! ```text
//! /proc/cpuinfo, /proc/meminfo, /proc/sys/kernel, sysfs caches, the clock ──► Machine { time, facts }
//! ```
//!
//! Facts that the system does not provide are left out.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Facts about the machine, and the time of the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub time: String,
    pub facts: Vec<(&'static str, String)>,
}

impl Machine {
    pub fn at_hand() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let processor = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        let kernel = ["ostype", "osrelease"].map(|name| read(&format!("/proc/sys/kernel/{name}"))).join(" ");
        let count = std::thread::available_parallelism().map_or(String::new(), |count| count.to_string());
        let is_virtual = processor.split_whitespace().any(|word| word == "hypervisor");
        let facts = [
            (
                "processor",
                field(&processor, "model name").or(field(&processor, "CPU part")).unwrap_or_default(),
            ),
            ("CPUs for this run", count),
            (
                "virtual",
                if is_virtual { "yes: the processor reports a hypervisor".to_owned() } else { String::new() },
            ),
            ("caches", caches()),
            ("memory", field(&memory, "MemTotal").map_or(String::new(), |size| in_gibibytes(&size))),
            ("system", format!("{} on {}", kernel.trim(), std::env::consts::ARCH)),
            ("load at the start", read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()),
        ];
        let facts = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        Self { time: utc(since), facts }
    }

    pub fn processor(&self) -> &str {
        let named = self.facts.iter().find(|(name, _)| *name == "processor");
        named.map_or("an unnamed processor", |(_, value)| value)
    }
}

/// The value of the first line of that name.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Converts a size of the kernel: "kB" there means KiB.
fn in_gibibytes(size: &str) -> String {
    let kibibytes = size.strip_suffix(" kB").and_then(|number| number.trim().parse::<f64>().ok());
    kibibytes.map_or(size.to_owned(), |number| format!("{:.1} GiB", number / f64::from(1 << 20)))
}

/// The caches of the first CPU.
fn caches() -> String {
    let part = |index: usize, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let cache = |index| {
        let kind = part(index, "type").filter(|kind| kind != "Unified").unwrap_or_default();
        Some(format!("level {} {kind} {}", part(index, "level")?, part(index, "size")?).replace("  ", " "))
    };
    (0..8).map_while(cache).collect::<Vec<_>>().join(", ")
}

/// Seconds since 1970 as a date and a time.
fn utc(seconds: u64) -> String {
    let rest = seconds % 86_400;
    format!("{} {:02}:{:02} UTC", memferry_charts::day(seconds), rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_printed_as_a_date() {
        for (seconds, told) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), told);
        }
    }

    #[test]
    fn a_machine_has_a_time_and_no_empty_fact() {
        let machine = Machine::at_hand();
        assert!(machine.time.ends_with("UTC"));
        assert!(machine.facts.iter().all(|(_, value)| !value.is_empty()));
    }
}
