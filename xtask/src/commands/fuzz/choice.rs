//! Chooses the files of a corpus that reach the most, from what libFuzzer's merge notes.
//!
//! ```text
//! COUNT, COUNT OF THE FIRST FOLDER, a path for each file, then for each file:
//! STARTED file bytes ─ FT file feature feature ... ─ COV file place place ...
//! ```

use std::collections::BTreeSet;

/// Files of a target's corpus at most, with its seeds.
pub(super) const MOST_FILES: usize = 64;
/// Bytes of a chosen file at most.
pub(super) const LONGEST_BYTES: usize = 4096;

#[derive(Default)]
struct Entry<'a> {
    path: &'a str,
    bytes: usize,
    features: Vec<u32>,
}

/// The paths of files that together reach the most, best first. What the files reach that `is_kept` keeps in any case is not counted.
pub(super) fn chosen(control: &str, is_kept: impl Fn(&str) -> bool) -> Vec<String> {
    let (kept, mut left): (Vec<Entry<'_>>, Vec<Entry<'_>>) =
        entries(control).into_iter().partition(|entry| is_kept(entry.path));
    let mut reached: BTreeSet<u32> = kept.iter().flat_map(|entry| entry.features.clone()).collect();
    left.retain(|entry| entry.bytes <= LONGEST_BYTES);
    let mut chosen = Vec::new();
    while kept.len() + chosen.len() < MOST_FILES {
        let gain = |entry: &Entry<'_>| entry.features.iter().filter(|one| !reached.contains(one)).count();
        // Of equal ones the shortest.
        let best = left.iter().max_by_key(|entry| (gain(entry), std::cmp::Reverse(entry.bytes)));
        let Some(best) = best.filter(|best| gain(best) > 0) else { break };
        chosen.push(best.path.to_owned());
        reached.extend(best.features.clone());
    }
    chosen
}

fn entries(control: &str) -> Vec<Entry<'_>> {
    let mut lines = control.lines();
    let mut number = || lines.next().and_then(|line| line.trim().parse::<usize>().ok()).unwrap_or(0);
    let count = number();
    number();
    let mut entries: Vec<Entry<'_>> =
        lines.by_ref().take(count).map(|path| Entry { path, ..Entry::default() }).collect();
    for line in lines {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let mut numbers = words.filter_map(|word| word.parse::<u32>().ok());
        let file = numbers.next().and_then(|file| entries.get_mut(file as usize));
        match (what, file) {
            ("STARTED", Some(entry)) => entry.bytes = numbers.next().unwrap_or(0) as usize,
            ("FT", Some(entry)) => entry.features = numbers.collect(),
            _ => {}
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: &str = "5\n1\nc/seed-a\nw/b\nw/c\nw/d\nw/e\nSTARTED 0 10\nFT 0 1 2\nCOV 0 9\nSTARTED 1 7\nFT 1 1 2 3\nSTARTED 2 20\n\
                           FT 2 3 4 5\nSTARTED 3 9000\nFT 3 6 7 8 9\nSTARTED 4 5\nFT 4 3 4 5\n";

    #[test]
    fn those_that_reach_more_are_chosen() {
        let seed = |path: &str| path.contains("seed-");
        // c and e reach the same; b nothing more then; d is too long.
        assert_eq!(chosen(CONTROL, seed), ["w/e"]);
        assert_eq!(chosen(CONTROL, |_| false), ["w/e", "w/b"], "no seeds, and b is shorter than the first");
        assert!(chosen("", seed).is_empty() && chosen("x\n\nFT 0 1\n", seed).is_empty());
    }

    #[test]
    fn there_are_never_too_many() {
        let paths: String = (0..100).map(|file| format!("w/{file}\n")).collect();
        let notes: String = (0..100).map(|file| format!("STARTED {file} 1\nFT {file} {file}\n")).collect();
        assert_eq!(chosen(&format!("100\n0\n{paths}{notes}"), |path| path == "w/7").len(), MOST_FILES - 1);
    }
}
