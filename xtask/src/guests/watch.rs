//! Runs a guest until it prints its verdict, ends, or the time is up.
//!
//! ```text
//! QEMU ── output ──► log file
//!                └─► lines ──► lines to show ──► standard output
//!                          └─► "guest: 12 passed, 0 failed" ──► Verdict ──► QEMU is killed
//! ```
//!
//! QEMU's exit status is ignored: some machines do not power off. The guest's output decides.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::line::Line;
use crate::stages::{print, say};

/// Numbers of passed and failed checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
}

impl Verdict {
    /// Parses `MARK: N passed, M failed`, with or without a carriage return.
    fn read(line: &str, mark: &str) -> Option<Self> {
        let (passed, failed) = line.strip_prefix(mark)?.trim().split_once(" passed, ")?;
        Some(Self { passed: passed.parse().ok()?, failed: failed.strip_suffix(" failed")?.parse().ok()? })
    }
}

/// What to look for in a guest's output.
pub(crate) struct Watch<'a> {
    pub(crate) log: &'a Path,
    pub(crate) limit: Duration,
    /// The prefix of the verdict's line.
    pub(crate) mark: &'a str,
    /// Prefixes of the lines to show; "" shows all.
    pub(crate) shown: &'a [&'a str],
}

impl Watch<'_> {
    /// Runs the guest and returns the exit status of its stage.
    pub(crate) fn run(&self, line: &Line) -> u8 {
        self.run_with(line, &mut |_| ())
    }

    /// The same, and calls the function with each line of output.
    pub(crate) fn run_with(&self, line: &Line, on_line: &mut dyn FnMut(&str)) -> u8 {
        match self.verdict(line, on_line) {
            Ok(Some(verdict)) => u8::from(verdict.failed != 0),
            Ok(None) => {
                say(format_args!("the guest ended without a verdict; the end of {}:", self.log.display()));
                print(end_of(&fs::read(self.log).unwrap_or_default(), 20));
                1
            }
            Err(error) => {
                say(format_args!("the guest cannot be run: {error}"));
                1
            }
        }
    }

    fn verdict(&self, line: &Line, on_line: &mut dyn FnMut(&str)) -> io::Result<Option<Verdict>> {
        let log = File::create(self.log)?;
        let mut command = line.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        let mut child = command.spawn()?;
        let lines = lines_of(child.stdout.take().expect("standard output is piped"), log);
        let verdict = self.wait(&lines, on_line);
        end(&mut child);
        Ok(verdict)
    }

    fn wait(&self, lines: &Receiver<String>, on_line: &mut dyn FnMut(&str)) -> Option<Verdict> {
        let start = Instant::now();
        loop {
            let left = self.limit.saturating_sub(start.elapsed());
            let line = if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { lines.recv_timeout(left) };
            match line {
                Ok(line) => {
                    on_line(&line);
                    if self.shown.iter().any(|beginning| line.starts_with(beginning)) {
                        print(&line);
                    }
                    if let Some(verdict) = Verdict::read(&line, self.mark) {
                        return Some(verdict);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    say(format_args!("the guest was killed after {} s", self.limit.as_secs()));
                    return None;
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// Kills a child that has not ended, and waits for it.
pub(crate) fn end(child: &mut Child) {
    // The child may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The lines of the output, without carriage returns. All output also goes to the log.
fn lines_of(output: ChildStdout, mut log: File) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let _ = log.write_all(&line);
            let text = String::from_utf8_lossy(&line).replace(['\r', '\n'], "");
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

fn end_of(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(script: &str, limit: Duration) -> (Option<Verdict>, String) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = std::env::temp_dir().join(format!("xtask-watch-{number}-{}", std::process::id()));
        let watch = Watch { log: &log, limit, mark: "guest: ", shown: &[] };
        let mut lines = Vec::new();
        let verdict = watch
            .verdict(&Line::new("sh").args(["-c", script]), &mut |line| lines.push(line.to_owned()))
            .unwrap();
        assert_eq!(
            lines.last().is_some_and(|line| line.starts_with("guest: ")),
            verdict.is_some(),
            "{lines:?}"
        );
        let said = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        (verdict, said)
    }

    #[test]
    fn verdict_is_read_from_its_line_only() {
        let read = |line| Verdict::read(line, "guest: ");
        assert_eq!(read("guest: 12 passed, 3 failed\r"), Some(Verdict { passed: 12, failed: 3 }));
        assert_eq!(read("guest: PASS engine (3.2 s)"), None);
        assert_eq!(read("v9fs: 12 passed, 0 failed"), None);
        assert_eq!(read("guest: 12 passed, some failed"), None);
    }

    #[test]
    fn guest_is_killed_when_it_gave_its_verdict() {
        let start = Instant::now();
        let (verdict, said) =
            watch("echo booting; echo 'guest: 2 passed, 0 failed'; exec sleep 60", Duration::from_secs(50));
        assert_eq!(verdict, Some(Verdict { passed: 2, failed: 0 }));
        assert!(said.starts_with("booting\n"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn guest_without_a_verdict_has_failed() {
        let (verdict, said) = watch("echo panic; echo oops >&2", Duration::from_secs(50));
        assert_eq!(verdict, None);
        assert!(said.contains("panic") && said.contains("oops"), "{said}");
        assert_eq!(watch("exec sleep 60", Duration::from_millis(50)).0, None);
        assert_eq!(watch("while :; do echo again; done", Duration::from_millis(50)).0, None);
    }

    #[test]
    fn only_the_end_of_a_log_is_shown() {
        assert_eq!(end_of(b"a\nb\nc\n", 2), "b\nc");
        assert_eq!(end_of(b"", 2), "");
    }
}
