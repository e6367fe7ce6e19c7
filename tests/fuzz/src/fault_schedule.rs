//! The text of a schedule of faults, as a user or a program writes it.
//!
//! ```text
//! bytes ──► schedule::parse_bytes ──► faults in their limits, or a mistake whose place is in the text
//! ```

use memferry_pci::schedule::{self, MAXIMUM};

/// Input: the number of channels, then the text.
pub fn fault_schedule(data: &[u8]) {
    let (first, text) = data.split_first().unwrap_or((&0, &[]));
    let channels = 1 + first % 4;
    match schedule::parse_bytes(text, channels) {
        Ok(plan) => {
            assert!(plan.len() <= MAXIMUM);
            for planned in plan {
                assert!(planned.channel.is_none_or(|channel| channel < usize::from(channels)));
                assert!(1 <= planned.first && planned.first <= planned.last && planned.step >= 1);
            }
        }
        Err(mistake) => {
            let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            let line = lines.get(mistake.line - 1).expect("the line is in the text");
            assert!((1..=line.len() + 1).contains(&mistake.column), "{mistake}");
            assert!(!mistake.remedy.is_empty());
        }
    }
}
