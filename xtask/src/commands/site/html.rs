//! The links of the finished site: each `href` and `src` of its pages names a file of the site, and a part of it that exists.
//!
//! Links to other sites, and data in the page, are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::links::resolve;

/// What leads nowhere, one line each.
pub(super) fn broken_links(book: &Path) -> Vec<String> {
    let mut names = BTreeSet::new();
    collect(book, &mut names);
    let relative = |path: &PathBuf| path.strip_prefix(book).unwrap_or(path).to_string_lossy().into_owned();
    let pages = names.iter().filter(|path| path.extension().is_some_and(|extension| extension == "html"));
    let texts: BTreeMap<String, String> =
        pages.map(|path| (relative(path), fs::read_to_string(path).unwrap_or_default())).collect();
    let files: BTreeSet<String> = names.iter().map(relative).collect();
    broken(&files, &texts)
}

fn collect(folder: &Path, names: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, names);
        } else {
            names.insert(path);
        }
    }
}

fn broken(files: &BTreeSet<String>, texts: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    if texts.is_empty() {
        found.push("the site has no page".to_owned());
    }
    for (page, text) in texts {
        for target in attributes(text, "href").chain(attributes(text, "src")) {
            let is_local =
                !target.is_empty() && !target.starts_with("data:") && !target.starts_with("javascript:");
            let Some(place) = resolve(page, target).filter(|_| is_local) else { continue };
            let path = place.path.split('?').next().unwrap_or_default();
            let is_part = |anchor: &str| {
                // The report's own script makes parts of it.
                anchor.is_empty() || texts.get(path).is_some_and(|text| has_part(text, anchor))
            };
            if !files.contains(path) || !place.anchor.is_none_or(is_part) {
                found.push(format!("{page}: {target} leads nowhere"));
            }
        }
    }
    found
}

fn has_part(text: &str, anchor: &str) -> bool {
    attributes(text, "id").chain(attributes(text, "name")).any(|id| id == anchor)
}

/// The values of an attribute, wherever it is.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let found: Vec<usize> = text.match_indices(&start).map(|(at, found)| at + found.len()).collect();
    found.into_iter().filter_map(|at| text[at..].split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(link: &str) -> usize {
        let page = format!("<a href=\"{link}\">x</a> <h2 id=\"own\">x</h2>");
        let pages = [("a/b.html", page.as_str()), ("c.html", "<p id=\"d\">")];
        let texts = pages.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let files = ["a/b.html", "c.html", "e.css"].map(str::to_owned);
        broken(&BTreeSet::from(files), &BTreeMap::from(texts)).len()
    }

    #[test]
    fn links_to_files_parts_and_other_sites_pass() {
        for good in
            ["../c.html", "../c.html#d", "#own", "#", "../e.css", "https://a.b/c", "data:text/plain,x"]
        {
            assert_eq!(count(good), 0, "{good}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for bad in ["c.html", "../c.html#e", "#other", "../e.css#f", "/x"] {
            assert_eq!(count(bad), 1, "{bad}");
        }
        assert_eq!(broken(&BTreeSet::new(), &BTreeMap::new()).len(), 1);
    }
}
