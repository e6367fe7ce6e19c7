//! The targets that the fuzzer runs, for tests that list them by hand.

use std::collections::BTreeSet;
use std::path::Path;

/// Compares a list with the files of `fuzz_targets`.
pub fn check(listed: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let files = std::fs::read_dir(folder).unwrap();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let targets: BTreeSet<String> = files.map(|file| name(&file.unwrap().path())).collect();
    let listed: BTreeSet<String> = listed.iter().map(|target| (*target).to_owned()).collect();
    assert_eq!(listed, targets);
}
