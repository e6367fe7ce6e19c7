//! The documentation as a site, by mdBook.
//!
//! ```text
//! docs/site/SUMMARY.md ─► its pages, and the files they link to ─┬─► target/site/source ─► mdBook ─► target/site/book
//! target/lab/report.html, if there is one ───────────────────────┘                 each link in it leads somewhere ◄┘
//! ```
//!
//! Pages lie in the site as in the tree, so that their links stay; but mdBook makes a folder's `index.md`, not its `README.md`, the page of
//! the folder.

mod html;
mod pictures;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::arguments;
use crate::failure::Failure;
use crate::files::{copy, make, make_anew, read, write};
use crate::layout::site;
use crate::line::Line;
use crate::links::{links, resolve};
use crate::stages::{print, say};
use crate::work::Work;

/// The report, beside the page that names it.
const REPORT_FILE: &str = "lab-report.html";

pub(super) fn run(work: &Work, options: &arguments::Site) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    if options.pictures {
        pictures::run(work)?;
    }
    build(work)?;
    print(format_args!("\nx site: {}{}", work.place.built(site::BOOK).display(), work.left_out()));
    Ok(())
}

/// Builds and checks the site.
pub(super) fn build(work: &Work) -> Result<(), Failure> {
    work.setup.cargo_tool("mdbook")?;
    let folder = work.place.built(site::BUILT);
    make_anew(&folder)?;
    copy(&work.place.at(site::CONFIGURATION), &folder.join("book.toml"))?;
    let report = work.place.built(site::REPORT);
    let report = report.is_file().then_some(report);
    if report.is_none() {
        work.leave_out("the lab's report was left out: ./x lab makes it");
    }
    let staged = stage(&work.place.root, &folder.join("source"), report.as_deref())?;
    work.stages.step("pages", site::SUMMARY, || faults_of(&staged))?;
    work.stages.run("mdBook", &Line::new("mdbook").arg("build").arg(&folder))?;
    let book = work.place.built(site::BOOK);
    work.stages.step("links of the site", book.display(), || faults_of(&html::broken_links(&book)))
}

fn faults_of(faults: &[String]) -> u8 {
    faults.iter().for_each(say);
    u8::from(!faults.is_empty())
}

/// The name of a page in the site.
fn staged_name(path: &str) -> String {
    path.strip_suffix("README.md").map_or_else(|| path.to_owned(), |folder| format!("{folder}index.md"))
}

/// Writes the pages that the summary names, and the files that these link to. Returns links that lead out of the site.
fn stage(root: &Path, source: &Path, report: Option<&Path>) -> Result<Vec<String>, Failure> {
    let summary = read(&root.join(site::SUMMARY))?;
    let pages: BTreeSet<String> =
        links(&summary).iter().filter_map(|link| resolve("", link.target)).map(|place| place.path).collect();
    make(source)?;
    write(&source.join("SUMMARY.md"), relinked(&summary))?;
    let mut faults = Vec::new();
    for page in &pages {
        let text = if page == site::REPORT_PAGE { report_page(report) } else { read(&root.join(page))? };
        for link in links(&text) {
            let Some(place) = resolve(page, link.target) else { continue };
            let is_own = page == site::REPORT_PAGE || pages.contains(&place.path);
            if is_own {
                continue;
            }
            let file = root.join(&place.path);
            if file.is_file() && !place.path.ends_with(".md") {
                put(&source.join(&place.path), &fs::read(&file).unwrap_or_default())?;
            } else {
                faults.push(format!(
                    "{page}:{}: {} is in the tree, not in {}",
                    link.line,
                    link.target,
                    site::SUMMARY
                ));
            }
        }
        put(&source.join(staged_name(page)), relinked(&text).as_bytes())?;
    }
    if let Some(report) = report {
        copy(report, &source.join(REPORT_FILE))?;
    }
    Ok(faults)
}

fn put(path: &Path, content: &[u8]) -> Result<(), Failure> {
    make(path.parent().unwrap_or(path))?;
    write(path, content)
}

/// The page with its links to names in the site.
fn relinked(text: &str) -> String {
    let mut whole = String::new();
    let mut done = 0;
    for link in links(text) {
        let Some(at) = link.target.find("README.md").filter(|_| !link.target.contains("://")) else {
            continue;
        };
        whole.push_str(&text[done..link.at + at]);
        whole.push_str("index.md");
        done = link.at + at + "README.md".len();
    }
    whole + &text[done..]
}

fn report_page(report: Option<&Path>) -> String {
    let head = "# The laboratory's report\n\n";
    let text = if report.is_some() {
        format!(
            "[The report]({REPORT_FILE}) has the papers' tables and figures, and a verdict on each claim. `./x lab` made it."
        )
    } else {
        "This build of the site has no report: run `./x lab`, then `./x site`.".to_owned()
    };
    format!("{head}{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn folders_have_pages() {
        assert_eq!(staged_name("docs/guide/README.md"), "docs/guide/index.md");
        assert_eq!(staged_name("docs/a.md"), "docs/a.md");
        let text = "[a](../README.md#b) [c](d.md)\n`README.md` https://x/README.md";
        assert_eq!(relinked(text), "[a](../index.md#b) [c](d.md)\n`README.md` https://x/README.md");
    }

    #[test]
    fn every_page_of_docs_is_in_the_summary() {
        let summary = read(&root().join(site::SUMMARY)).unwrap();
        let pages: Vec<&str> = links(&summary).iter().map(|link| link.target).collect();
        for folder in ["docs", "docs/guide"] {
            for entry in fs::read_dir(root().join(folder)).unwrap().flatten() {
                let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
                assert!(!name.ends_with(".md") || pages.contains(&name.as_str()), "{name}");
            }
        }
    }

    #[test]
    fn links_stay_within_the_site() {
        let folder = std::env::temp_dir().join(format!("xtask-site-{}", std::process::id()));
        let staged = stage(&root(), &folder, None);
        let has = ["index.md", "docs/guide/index.md", "SUMMARY.md", "docs/lab.md"]
            .map(|name| folder.join(name).is_file());
        let _ = fs::remove_dir_all(&folder);
        assert_eq!((staged, has), (Ok(Vec::new()), [true; 4]));
    }
}
