//! Where Cargo puts the static library of a binding beside its tests.

use std::path::PathBuf;

/// The library of this build whose name begins so. Cargo chose the rest of the name. It is the last one made before the running test; newer
/// ones belong to builds with other options.
pub(crate) fn beside_this_test(prefix: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = std::fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let of_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(prefix) && name.ends_with(".a")
    };
    let made = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    let before = made(&test);
    let libraries = beside.filter(of_ours).filter(|path| made(path) <= before);
    libraries.max_by_key(made).expect("cargo builds the static library with the tests")
}
