//! Keeps results in files, so that an interrupted run can be resumed.
//!
//! ```text
//! job: its name and the texts that it depends on ──sha-256, with the program's digest──► Key ──► DIR/KEY.json
//! recall: file ──first line: format, checksum of the rest──► lines of a figure, or a row, with the parameters requested;
//!                                                            a bad file gives a complaint, and the job runs again
//! ```
//!
//! A result depends only on its plan, its parameters and the program, so equal keys mean equal results. Numbers are stored as
//! their bits. Live rows are measured in each run; only a run that was interrupted less than an hour ago leaves its own to the next,
//! which a file of the run tells. Files of results are never removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::claims::Place;
use crate::table::Series;
use crate::verdict::{Basis, Figures, Status, Verdict};

/// Start of the first line of a file; the checksum follows.
const FORMAT: &str = "memferry-lab result 2";

/// In the directory while a run with live rows is under way.
const UNDER_WAY: &str = "under-way";
/// How long after its begin the live rows of an interrupted run count: the machine is the same, and so is its load, perhaps.
const FRESH: Duration = Duration::from_secs(3600);

/// A store of results for one program.
#[derive(Debug)]
pub struct Results {
    /// Absent: nothing is kept.
    directory: Option<PathBuf>,
    program: String,
    /// Whether results of earlier runs are recalled; those of this run always are.
    recalls: bool,
    /// When an interrupted run began whose live rows count.
    interrupted: Option<SystemTime>,
    /// Keys of results kept by this run.
    own: Mutex<BTreeSet<String>>,
    complaints: Mutex<Vec<String>>,
}

/// The name of a result: a digest of all that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

/// A result with the parameters that it depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Made<T> {
    pub result: T,
    /// Names of the parameters requested while it was computed.
    pub asked: BTreeSet<String>,
}

impl<T> Made<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Made<U> {
        Made { result: change(self.result), asked: self.asked }
    }
}

impl Results {
    pub fn none() -> Self {
        Self {
            directory: None,
            program: String::new(),
            recalls: false,
            interrupted: None,
            own: Mutex::default(),
            complaints: Mutex::default(),
        }
    }

    /// Keeps results of `program` in a directory, which is created if missing. `program` is a text unique to the build. Results
    /// of earlier runs are recalled only with `recalls`.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_directory(directory: &Path, program: String, recalls: bool) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let directory = Some(directory.to_owned());
        Ok(Self {
            directory,
            program,
            recalls,
            interrupted: None,
            own: Mutex::default(),
            complaints: Mutex::default(),
        })
    }

    /// Begins a run with live rows. Those of a run that was interrupted less than an hour ago are recalled.
    #[must_use]
    pub fn begun(mut self) -> Self {
        let Some(path) = self.under_way() else { return self };
        let began = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
        let is_fresh = |began: &SystemTime| began.elapsed().is_ok_and(|since| since < FRESH);
        self.interrupted = began.filter(is_fresh).filter(|_| self.recalls);
        if self.interrupted.is_none()
            && let Err(error) = std::fs::write(&path, "")
        {
            self.note(format!("{} cannot be written: {error}", path.display()));
        }
        self
    }

    /// Ends a run: the next one measures again.
    pub fn ended(&self) {
        if let Some(path) = self.under_way() {
            let _ = std::fs::remove_file(path);
        }
    }

    fn under_way(&self) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(UNDER_WAY))
    }

    /// A live row that an interrupted run measured.
    pub fn live_row(&self, key: &Key) -> Option<Made<Verdict>> {
        let path = self.path(key)?;
        let kept = std::fs::metadata(path).and_then(|about| about.modified()).ok()?;
        self.interrupted.filter(|began| kept >= *began)?;
        self.row(key)
    }

    /// The digest of the running program.
    ///
    /// # Errors
    /// The program's file cannot be read.
    pub fn this_program() -> io::Result<String> {
        Ok(hex(&Sha256::digest(std::fs::read(std::env::current_exe()?)?)))
    }

    /// The key of a job that depends on these texts.
    pub fn key(&self, parts: &[&str]) -> Key {
        let mut digest = Sha256::new();
        for part in [self.program.as_str()].iter().chain(parts) {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        Key(hex(&digest.finalize()))
    }

    /// The kept lines of a figure.
    pub fn lines(&self, key: &Key) -> Option<Made<Vec<Series>>> {
        let kept: Made<Vec<KeptSeries>> = self.recall(key)?;
        Some(kept.map(|lines| lines.into_iter().map(Series::from).collect()))
    }

    pub fn row(&self, key: &Key) -> Option<Made<Verdict>> {
        self.recall(key).map(|kept: Made<KeptRow>| kept.map(KeptRow::into_row))
    }

    pub fn keep_lines(&self, key: &Key, lines: &Made<Vec<Series>>) {
        self.keep(key, &lines.clone().map(|lines| lines.iter().map(KeptSeries::of).collect::<Vec<_>>()));
    }

    pub fn keep_row(&self, key: &Key, row: &Made<Verdict>) {
        self.keep(key, &row.clone().map(|row| KeptRow::of(&row)));
    }

    /// Problems with files, each once.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().map(|list| list.clone()).unwrap_or_default()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{}.json", key.0)))
    }

    fn recall<T: DeserializeOwned>(&self, key: &Key) -> Option<T> {
        let counts = self.recalls || self.own.lock().is_ok_and(|own| own.contains(&key.0));
        let path = self.path(key).filter(|_| counts)?;
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return self.complain(&path, &error.to_string()),
        };
        let Some((head, body)) = text.split_once('\n') else {
            return self.complain(&path, "it is truncated");
        };
        if head != heading(body) {
            return self.complain(&path, "its checksum does not match");
        }
        match serde_json::from_str(body) {
            Ok(kept) => Some(kept),
            Err(error) => self.complain(&path, &error.to_string()),
        }
    }

    /// A failure to keep a result is only a complaint: the result is computed again next time.
    fn keep<T: Serialize>(&self, key: &Key, kept: &T) {
        let Some(path) = self.path(key) else { return };
        let Ok(body) = serde_json::to_string(kept) else { return };
        // Written under another name and renamed, so that an interruption leaves no truncated file.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = std::fs::write(&part, format!("{}\n{body}", heading(&body)));
        match written.and_then(|()| std::fs::rename(&part, &path)) {
            Ok(()) => {
                if let Ok(mut own) = self.own.lock() {
                    own.insert(key.0.clone());
                }
            }
            Err(error) => {
                let _ = std::fs::remove_file(&part);
                self.note(format!("{} cannot be kept: {error}", path.display()));
            }
        }
    }

    fn complain<T>(&self, path: &Path, what: &str) -> Option<T> {
        self.note(format!("{} is ignored and its result computed again: {what}", path.display()));
        None
    }

    fn note(&self, what: String) {
        if let Ok(mut list) = self.complaints.lock()
            && !list.contains(&what)
        {
            list.push(what);
        }
    }
}

fn heading(body: &str) -> String {
    format!("{FORMAT} {}", hex(&Sha256::digest(body.as_bytes())))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Serialize, Deserialize)]
struct KeptSeries {
    label: String,
    points: Vec<(u64, u64)>,
}

impl KeptSeries {
    fn of(series: &Series) -> Self {
        let points = series.points.iter().map(|(x, y)| (x.to_bits(), y.to_bits())).collect();
        Self { label: series.label.clone(), points }
    }
}

impl From<KeptSeries> for Series {
    fn from(kept: KeptSeries) -> Self {
        let points = kept.points.into_iter().map(|(x, y)| (f64::from_bits(x), f64::from_bits(y))).collect();
        Self { label: kept.label, points }
    }
}

#[derive(Serialize, Deserialize)]
struct KeptRow {
    id: String,
    place: Place,
    status: Status,
    basis: Option<Basis>,
    one: Option<u64>,
    named: Option<BTreeMap<String, u64>>,
    unit: Option<String>,
    why: String,
}

impl KeptRow {
    fn of(row: &Verdict) -> Self {
        let (one, named) = match &row.figures {
            Figures::One(one) => (one.map(f64::to_bits), None),
            Figures::Named(named) => {
                (None, Some(named.iter().map(|(name, value)| (name.clone(), value.to_bits())).collect()))
            }
        };
        let Verdict { id, place, status, basis, unit, why, .. } = row.clone();
        Self { id, place, status, basis, one, named, unit, why }
    }

    fn into_row(self) -> Verdict {
        let figures = match self.named {
            Some(named) => {
                Figures::Named(named.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect())
            }
            None => Figures::One(self.one.map(f64::from_bits)),
        };
        let Self { id, place, status, basis, unit, why, .. } = self;
        // Bands come from all machines together, so a kept row of one has none.
        Verdict { id, place, status, basis, figures, low: None, high: None, unit, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("memferry-lab-{}-{name}", std::process::id()));
            Self(path)
        }

        fn results(&self, program: &str) -> Results {
            Results::in_directory(&self.0, program.to_owned(), true).expect("the directory is made")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn lines() -> Made<Vec<Series>> {
        let points = vec![(1.0, 0.1 + 0.2), (2.0, f64::INFINITY), (3.0, 1e-300)];
        let asked = ["turn", "word"].map(str::to_owned).into();
        Made { result: vec![Series { label: "a \"b\"".to_owned(), points }], asked }
    }

    fn row() -> Made<Verdict> {
        let result = Verdict {
            id: "a".to_owned(),
            place: Place::Simulated,
            status: Status::Fail,
            basis: Some(Basis::Predicted),
            figures: Figures::Named(BTreeMap::from([("x".to_owned(), 1.0 / 3.0)])),
            low: None,
            high: None,
            unit: None,
            why: "w".to_owned(),
        };
        Made { result, asked: ["turn".to_owned()].into() }
    }

    #[test]
    fn kept_numbers_are_exact() {
        let directory = Directory::new("bits");
        let results = directory.results("one");
        let figure = results.key(&["figure"]);
        let claim = results.key(&["claim"]);
        assert_eq!((results.lines(&figure), results.row(&claim)), (None, None));
        results.keep_lines(&figure, &lines());
        results.keep_row(&claim, &row());
        assert_eq!((results.lines(&figure), results.row(&claim)), (Some(lines()), Some(row())));
        assert_eq!(results.complaints(), Vec::<String>::new());
    }

    #[test]
    fn other_keys_and_fresh_runs_recall_nothing() {
        let directory = Directory::new("others");
        let results = directory.results("one");
        results.keep_row(&results.key(&["ab", "c"]), &row());
        assert_eq!(results.row(&results.key(&["a", "bc"])), None);
        let other = directory.results("two");
        assert_eq!(other.row(&other.key(&["ab", "c"])), None);
        let fresh = Results::in_directory(&directory.0, "one".to_owned(), false).expect("it is there");
        assert_eq!(fresh.row(&fresh.key(&["ab", "c"])), None);
        fresh.keep_row(&fresh.key(&["ab", "c"]), &row());
        assert_eq!(fresh.row(&fresh.key(&["ab", "c"])), Some(row()), "kept by this run");
    }

    #[test]
    fn only_an_interrupted_run_leaves_its_live_rows() {
        let directory = Directory::new("live");
        let first = directory.results("one").begun();
        let key = first.key(&["live"]);
        assert_eq!(first.live_row(&key), None);
        first.keep_row(&key, &row());
        // It did not end.
        let second = directory.results("one").begun();
        assert_eq!(second.live_row(&key), Some(row()));
        let fresh = Results::in_directory(&directory.0, "one".to_owned(), false).expect("it is there");
        assert_eq!(fresh.begun().live_row(&key), None, "a run that starts anew");
        second.ended();
        assert_eq!(directory.results("one").begun().live_row(&key), None, "the run before ended");
        // A run that was interrupted two hours ago says nothing of now.
        let began = SystemTime::now() - 2 * FRESH;
        let marker =
            std::fs::File::options().write(true).open(directory.0.join(UNDER_WAY)).expect("it is there");
        marker.set_modified(began).expect("the test owns it");
        assert_eq!(directory.results("one").begun().live_row(&key), None);
        assert_eq!(directory.results("one").complaints(), Vec::<String>::new());
    }

    #[test]
    fn damaged_files_give_a_complaint() {
        let directory = Directory::new("damaged");
        let results = directory.results("one");
        let key = results.key(&["figure"]);
        let path = results.path(&key).expect("it keeps");
        results.keep_lines(&key, &lines());
        let whole = std::fs::read(&path).expect("kept");
        let flipped: Vec<u8> = whole.iter().map(|byte| if *byte == b'3' { b'4' } else { *byte }).collect();
        let unknown = format!("{}\n[1]", heading("[1]")).into_bytes();
        let bad: [&[u8]; 6] =
            [b"", b"{}", &whole[..whole.len() / 2], &whole[..whole.len() - 1], &flipped, &unknown];
        for bytes in bad {
            std::fs::write(&path, bytes).expect("writable");
            let results = directory.results("one");
            assert_eq!(results.lines(&key), None, "{:?}", String::from_utf8_lossy(bytes));
            let complaints = results.complaints();
            assert!(complaints.len() == 1 && complaints[0].contains("computed again"), "{complaints:?}");
        }
        results.keep_lines(&key, &lines());
        assert_eq!(results.lines(&key), Some(lines()));
    }
}
