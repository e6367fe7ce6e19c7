//! The pictures of the pages, made by headless Chromium: the dashboard with load, the lab's report, and a plot of it.
//!
//! ```text
//! the dashboard's test ─► target/site-pictures/light-1280.png ─┐
//! target/lab/report.html ─► tests/browser/pictures.py ─────────┴─► docs/pictures/dashboard.png, report.png, plot.png
//! ```

use std::fs;

use crate::commands::dashboard::dashboard_line;
use crate::failure::Failure;
use crate::files::{make, make_anew};
use crate::layout::site;
use crate::line::Line;
use crate::setup::debian;
use crate::work::Work;

/// Bytes of a picture at most: pages with large pictures are slow to open.
const MOST: u64 = 150_000;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.tools(&[debian::BROWSER])?;
    let taken = work.place.built("site-pictures");
    make_anew(&taken)?;
    let report = work.place.built(site::REPORT);
    if !report.is_file() {
        return Err(Failure::setup(format!("{} is missing: run ./x lab before", report.display())));
    }
    let line = dashboard_line().env("MEMFERRY_TEST_PICTURES", &taken);
    work.stages.run("the dashboard", &line)?;
    let out = work.place.at(site::PICTURES);
    make(&out)?;
    let line = Line::new("python3").arg(site::PHOTOGRAPHER).arg("chromium");
    let line = line.arg(taken.join("light-1280.png")).arg(&report).arg(&out);
    work.stages.run("pictures", &line)?;
    work.stages.step("sizes of the pictures", out.display(), || u8::from(!are_small(&out)))
}

fn are_small(folder: &std::path::Path) -> bool {
    let sizes =
        fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
    let sizes: Vec<u64> = sizes.map(|data| data.len()).collect();
    !sizes.is_empty() && sizes.iter().all(|size| *size <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_the_pages_are_small() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert!(are_small(&root.join(site::PICTURES)));
        assert!(root.join(site::PHOTOGRAPHER).is_file());
    }
}
