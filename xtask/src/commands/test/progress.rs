//! Which parts of the full tests have passed, for which sources: kept in a file, so that an interrupted run can continue.
//!
//! ```text
//! target/full/passed:    sources 0095fa6...+1f2e3d4c5b6a7988
//!                        loom 96
//!                        miri-shm 301
//! ```
//!
//! The sources are the commit and, if the tree differs from it, a hash of the difference. Other sources start from nothing.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use crate::line::Line;
use crate::place::Place;
use crate::stages::output;

const SOURCES: &str = "sources ";

/// The parts that passed for these sources, with the seconds that each took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    sources: String,
    passed: Vec<(String, u64)>,
}

impl Progress {
    pub(crate) fn none(sources: &str) -> Self {
        Self { sources: sources.to_owned(), passed: Vec::new() }
    }

    /// The parts noted in the file for these sources.
    pub(crate) fn load(path: &Path, sources: &str) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        Self::read(&text)
            .filter(|progress| progress.sources == sources)
            .unwrap_or_else(|| Self::none(sources))
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let sources = lines.next()?.strip_prefix(SOURCES)?.to_owned();
        let passed = lines.map(|line| {
            let (name, seconds) = line.split_once(' ')?;
            Some((name.to_owned(), seconds.parse().ok()?))
        });
        Some(Self { sources, passed: passed.collect::<Option<_>>()? })
    }

    fn text(&self) -> String {
        let lines = self.passed.iter().map(|(name, seconds)| format!("{name} {seconds}\n"));
        [format!("{SOURCES}{}\n", self.sources)].into_iter().chain(lines).collect()
    }

    /// The seconds that a passed part took.
    pub(crate) fn seconds(&self, name: &str) -> Option<u64> {
        self.passed.iter().find(|(passed, _)| passed == name).map(|(_, seconds)| *seconds)
    }

    /// Adds a part to these and to those of the file, where a run beside this one may have noted others meanwhile.
    pub(crate) fn note(&mut self, path: &Path, name: &str, seconds: u64) -> io::Result<()> {
        *self = Self::load(path, &self.sources);
        self.add(name, seconds);
        self.save(path)
    }

    pub(crate) fn add(&mut self, name: &str, seconds: u64) {
        self.passed.retain(|(passed, _)| passed != name);
        self.passed.push((name.to_owned(), seconds));
    }

    /// Replaces the file; if interrupted, the old one remains.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, self.text())?;
        fs::rename(&new, path)
    }
}

pub(crate) fn path(place: &Place) -> PathBuf {
    place.built("full/passed")
}

/// Identifies the sources; `None` if git fails.
pub(crate) fn sources(place: &Place) -> Option<String> {
    let git = |arguments: &[&str]| output(&Line::new("git").args(arguments).within(&place.root));
    let commit = git(&["rev-parse", "HEAD"])?;
    let difference = git(&["diff", "HEAD"])?;
    let others = git(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    let others: Vec<(&str, Vec<u8>)> = others
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| (name, fs::read(place.at(name)).unwrap_or_default()))
        .collect();
    Some(key(commit.trim(), &difference, &others))
}

fn key(commit: &str, difference: &str, others: &[(&str, Vec<u8>)]) -> String {
    if difference.is_empty() && others.is_empty() {
        return commit.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    (difference, others).hash(&mut hasher);
    format!("{commit}+{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id())).join("passed")
    }

    #[test]
    fn passed_parts_are_found_again() {
        let path = file("again");
        let mut progress = Progress::none("abc");
        progress.add("loom", 96);
        progress.add("soak", 600);
        progress.add("loom", 97);
        progress.save(&path).unwrap();
        let found = Progress::load(&path, "abc");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(found, progress);
        assert_eq!((found.seconds("loom"), found.seconds("lab")), (Some(97), None));
    }

    #[test]
    fn runs_side_by_side_keep_each_others_parts() {
        let path = file("beside");
        let [mut one, mut other] = [(); 2].map(|()| Progress::load(&path, "abc"));
        one.note(&path, "loom", 96).unwrap();
        other.note(&path, "soak", 600).unwrap();
        let found = Progress::load(&path, "abc");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!((found.seconds("loom"), found.seconds("soak")), (Some(96), Some(600)));
    }

    #[test]
    fn other_sources_start_from_nothing() {
        let path = file("other");
        let mut progress = Progress::none("abc");
        progress.add("loom", 96);
        progress.save(&path).unwrap();
        let found = Progress::load(&path, "abd");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(found, Progress::none("abd"));
    }

    #[test]
    fn an_invalid_file_is_ignored() {
        for text in ["", "loom 96\n", "sources abc\nloom\n", "sources abc\nloom soon\n"] {
            assert_eq!(Progress::read(text), None, "{text:?}");
        }
        assert_eq!(Progress::read("sources abc\n"), Some(Progress::none("abc")));
        assert_eq!(Progress::load(Path::new("/no/such/file"), "abc"), Progress::none("abc"));
    }

    #[test]
    fn every_change_of_the_tree_is_another_key() {
        let clean = key("abc", "", &[]);
        let changed = key("abc", "+line", &[]);
        let added = key("abc", "", &[("new.rs", b"1".to_vec())]);
        let added_other = key("abc", "", &[("new.rs", b"2".to_vec())]);
        assert_eq!(clean, "abc");
        for (one, other) in [(&clean, &changed), (&changed, &added), (&added, &added_other)] {
            assert_ne!(one, other);
        }
        assert_eq!(changed, key("abc", "+line", &[]));
    }
}
