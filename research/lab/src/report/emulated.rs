//! Copies by Papa's system on Linux's own driver, in a guest: a table of its own, since no claim's verdict uses an emulator's times.
//!
//! ```text
//! ./x guest ioat ──► target/guest-ioat/copies.txt ──► Emulated ──► section, between the marks of live parts
//! ```

use std::path::Path;

use maud::{Markup, html};

use super::words::marked;
use crate::claims::Place;

/// Columns: policy, channels, bytes, and four times in microseconds.
const COLUMNS: [&str; 7] =
    ["policy", "channels", "bytes", "read, CPU", "read, DMA", "write, CPU", "write, DMA"];

/// The rows that the last run of the guest left, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emulated {
    rows: Vec<[String; 7]>,
}

impl Emulated {
    /// Reads the guest's table. A file that is missing, and lines that are no rows, give no rows.
    pub fn read(path: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        Self { rows: text.lines().filter_map(row).collect() }
    }

    pub(super) fn section(&self) -> Markup {
        let content = html! {
            @if self.rows.is_empty() {
                p.note { "Not run. " code { "./x guest ioat" } " makes this table." }
            } @else {
                div.wide tabindex="0" role="region" aria-label="Emulated copies" { table {
                    thead { tr { @for name in COLUMNS { th scope="col" { (name) } } } }
                    tbody { @for row in &self.rows { tr {
                        @for cell in row { td { (cell) } }
                    } } }
                } }
            }
        };
        html! {
            section id="emulated" {
                h2 { "Emulated: Papa's system on Linux's own driver" }
                p {
                    "Reads and writes of a driver whose copies go by the CPU or by I/OAT: Linux's driver ioatdma on the project's model, with \
                     the Linux module and its policies, in a guest of QEMU. Processor and engine are emulated. "
                    strong { "The times, in microseconds, say nothing about hardware, and no verdict here uses them." }
                }
                (marked(Place::Live, content))
            }
        }
    }
}

/// A policy and six numbers.
fn row(line: &str) -> Option<[String; 7]> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let row: [String; 7] = words.try_into().ok()?;
    row[1..].iter().all(|word| word.parse::<u64>().is_ok()).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_are_taken_from_the_file() {
        let text = "EMULATED: a heading\npolicy, channels, bytes\nshared 4 4096 12 1917 12 1954\nshared 4 4096 12\n\
                    shared 4 4096 12 1917 12 -3\n<b> 4 4096 1 2 3 4\n";
        let html = Emulated::parse(text).section().into_string();
        assert_eq!(html.matches("<tr>").count(), 3, "{html}");
        assert!(html.contains("<td>1917</td>") && html.contains("<td>&lt;b&gt;</td>"), "{html}");
        assert_eq!(Emulated::read(Path::new("/nowhere")), Emulated::default());
        assert!(Emulated::default().section().into_string().contains("Not run"));
    }
}
