//! What benchmarks compare with in newer releases than the installed ones: unpacked or built below target/peers, never installed.
//!
//! ```text
//! Debian trixie: libc6 ──► glibc/unpacking       Debian sid: ucx-utils and its libraries ──► ucx/unpacking
//! crates: bench/peers/iceoryx2 ────► iceoryx2/      PyPI: Mooncake's and NIXL's wheels ──────► python/
//! ```
//!
//! What cannot be had is said, and its rows are not measured.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::guests::packages::Packages;
use crate::line::Line;
use crate::setup::environments::TRANSFER_ENGINES;
use crate::stages::{run, say};
use crate::work::Work;

/// The workspace of the program on iceoryx2.
const ICEORYX2: &str = "bench/peers/iceoryx2";
const FOLDER: &str = "peers";

/// Gets what the chosen parts compare with; gives the folder.
pub(super) fn prepare(work: &Work, wants: impl Fn(&str) -> bool) -> PathBuf {
    let steps: [(&str, Step); 4] =
        [("libc", glibc), ("ucx", ucx), ("iceoryx2", iceoryx2), ("engines", transfer_engines)];
    for (part, step) in steps.into_iter().filter(|(part, _)| wants(part)) {
        if let Err(failure) = step(work) {
            say(failure);
            say(format_args!("going on without peers of part {part}: their rows are not measured"));
        }
    }
    work.place.built(FOLDER)
}

/// Gets what one part compares with.
type Step = fn(&Work) -> Result<(), Failure>;

fn packages(work: &Work, name: &str) -> Result<Packages, Failure> {
    Packages::to_compare_with(work.place.built(FOLDER).join(name))
}

fn glibc(work: &Work) -> Result<(), Failure> {
    let packages = packages(work, "glibc")?;
    if packages.finished().is_some() {
        return Ok(());
    }
    say("downloading the C library of Debian trixie: lists of packages and 3 MB, once");
    packages.begin_with(&["trixie"])?;
    packages.download(&["libc6".to_owned()])?;
    packages.finish("libc6 of trixie")
}

fn ucx(work: &Work) -> Result<(), Failure> {
    let packages = packages(work, "ucx")?;
    if packages.finished().is_some() {
        return Ok(());
    }
    say("downloading UCX of Debian sid with its libraries: lists of packages and 70 MB, once");
    packages.begin_with(&["sid"])?;
    packages.download_with_dependencies("sid", "ucx-utils")?;
    packages.finish("ucx-utils of sid")
}

fn iceoryx2(work: &Work) -> Result<(), Failure> {
    work.setup.crates_of(ICEORYX2)?;
    let line = iceoryx2_line(work);
    if run(&line) == 0 { Ok(()) } else { Err(Failure::setup(format!("{line} failed"))) }
}

fn iceoryx2_line(work: &Work) -> Line {
    let line = Line::new("cargo").args(["build", "--release", "--locked", "--target-dir"]);
    line.arg(work.place.built(FOLDER).join("iceoryx2")).within(ICEORYX2)
}

fn transfer_engines(work: &Work) -> Result<(), Failure> {
    if work.setup.environment(&TRANSFER_ENGINES) {
        return Ok(());
    }
    Err(Failure::setup("the transfer engines could not be installed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn iceoryx2_is_built_apart() {
        let place = Place { root: "/tree".into(), caller: "/tree".into(), target: "/t".into() };
        let line = iceoryx2_line(&Work::new(&place)).to_string();
        let expected =
            "cd bench/peers/iceoryx2 && cargo build --release --locked --target-dir /t/peers/iceoryx2";
        assert_eq!(line, expected);
    }

    #[test]
    fn its_environment_is_below_the_folder_of_peers() {
        assert!(TRANSFER_ENGINES.name.starts_with(&format!("{FOLDER}/")));
    }
}
