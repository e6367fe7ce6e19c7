//! Reports: the facts that were read, a line each, in a text file that the doctor can also read again.
//!
//! ```text
//! memferry doctor report 1
//! # comment
//! text /proc/sys/kernel/osrelease "6.12.0"
//! node /dev/dsa/wq0.0 {"kind":"char","mode":"0600","uid":0,"gid":0,"open":false}
//! link /sys/bus/pci/devices/0000:6a:01.0/driver null
//! ```
//!
//! A value is JSON: what was there, `null` for nothing, or an object with `failed`. A path that a report does not name counts
//! as nothing, so that recordings for tests stay short.

use thiserror::Error;

use crate::doctor::machine::{Fact, Facts, Kind};

const FIRST_LINE: &str = "memferry doctor report 1";
/// A machine with hundreds of queues and channels has less.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// What a report says about itself.
const ABOUT: &str = "\
What memferry doctor looked at, for the developers of memferry: they can run it on this file.
It holds: ids and drivers of DMA engines and GPUs, their work queues and channels, IOMMU capabilities, the CPU's model and flags,
the kernel's release, IOMMU options of its command line, names of related modules' files, permissions of device nodes, and the
numbers and capabilities of the user who ran it. Read it before you send it.
It does not hold: names of hosts and users, serial numbers, network addresses, disks, and addresses of memory.
";

/// Why a file is no report.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum ReportError {
    #[error("its first line is not '{FIRST_LINE}'")]
    NoReport,
    #[error("line {line} is not a kind, a path and a value of that kind")]
    Line { line: usize },
}

/// The report's text. `summary` follows as comments.
pub(super) fn written(facts: &Facts, summary: &[String]) -> String {
    let mut text = format!("{FIRST_LINE}\n# memferry {}\n", env!("CARGO_PKG_VERSION"));
    let comments =
        ABOUT.lines().chain(["", "The doctor's verdict:"]).map(str::to_owned).chain(summary.iter().cloned());
    for comment in comments {
        text.push_str(format!("# {}", comment.replace('\n', " ")).trim_end());
        text.push('\n');
    }
    for ((path, kind), fact) in facts {
        let value = serde_json::to_string(fact).unwrap_or_else(|_| "null".to_owned());
        text.push_str(&format!("{} {path} {value}\n", kind.name()));
    }
    text
}

/// The facts of a report.
pub(super) fn parsed(text: &str) -> Result<Facts, ReportError> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line.trim_end() != FIRST_LINE) {
        return Err(ReportError::NoReport);
    }
    let is_fact = |(_, line): &(usize, &str)| !line.trim().is_empty() && !line.starts_with('#');
    let fact = |(at, line): (usize, &str)| parsed_line(line).ok_or(ReportError::Line { line: at + 1 });
    lines.filter(is_fact).map(fact).collect()
}

fn parsed_line(line: &str) -> Option<((String, Kind), Fact)> {
    let (kind, rest) = line.split_once(' ')?;
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
    let (path, value) = rest.split_once(' ')?;
    let fact: Fact = serde_json::from_str(value).ok()?;
    (path.starts_with('/') && kind.suits(&fact)).then(|| ((path.to_owned(), kind), fact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_as_it_was_written() {
        let text = "memferry doctor report 1\n\
                    # comment\n\n\
                    text /a \"line\\nline\"\n\
                    link /b null\n\
                    names /c [\"x\",\"y\"]\n\
                    node /d {\"kind\":\"char\",\"mode\":\"0600\",\"uid\":0,\"gid\":0,\"open\":null}\n\
                    has /e:word true\n\
                    text /f {\"failed\":\"permission denied\"}\n";
        let facts = parsed(text).unwrap();
        assert_eq!(facts.len(), 6);
        assert_eq!(facts[&("/a".to_owned(), Kind::Text)], Fact::Text("line\nline".to_owned()));
        // A line of the verdict cannot become a fact.
        let again = written(&facts, &["one\ntext /z \"injected\"".to_owned()]);
        assert_eq!(parsed(&again), Ok(facts));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(parsed(""), Err(ReportError::NoReport));
        assert_eq!(parsed("\u{7f}ELF"), Err(ReportError::NoReport));
        for line in
            ["text", "text /a", "text /a 3", "text /a [\"x\"]", "word /a null", "text a null", "has /a \"x\""]
        {
            let found = parsed(&format!("memferry doctor report 1\n# x\n{line}\n"));
            assert_eq!(found, Err(ReportError::Line { line: 3 }), "{line}");
        }
    }
}
