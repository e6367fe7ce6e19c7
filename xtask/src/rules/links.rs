//! Every link of a page leads to a file of the tree, and to a heading that exists. Links to other sites are not checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::{FRAGMENTS, site};
use crate::links::{anchors, links, resolve};
use crate::tree::SourceFile;
use crate::violation::Violation;

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let is_page = |file: &&SourceFile| file.path.ends_with(".md") && !FRAGMENTS.contains(&file.path.as_str());
    let headings: BTreeMap<&str, BTreeSet<String>> =
        files.iter().filter(is_page).map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    let mut violations = Vec::new();
    for page in files.iter().filter(is_page) {
        for link in links(&page.text) {
            // The site's summary names pages from the root.
            let from = if page.path == site::SUMMARY { "" } else { &page.path };
            let Some(place) = resolve(from, link.target).filter(|place| place.path != site::REPORT_PAGE)
            else {
                continue;
            };
            let folder = format!("{}/", place.path);
            // Pictures are no text, so the tree does not have them.
            let is_there = place.path.ends_with(".png")
                || files.iter().any(|file| file.path == place.path || file.path.starts_with(&folder));
            let is_heading = place.anchor.is_none_or(|anchor| {
                headings.get(place.path.as_str()).is_some_and(|headings| headings.contains(anchor))
            });
            if !is_there || !is_heading {
                let what = if is_there { "heading" } else { "file" };
                let message = format!("the link `{}` names no {what}", link.target);
                let remedy = "name a file of the tree, and a heading by its letters with hyphens for spaces";
                violations.push(Violation::new(&page.path, link.line, message, remedy));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let other = SourceFile::new("docs/guide/b.md", "# A heading\n");
        check(&[SourceFile::new("docs/a.md", text), other, SourceFile::new("x", "")]).len()
    }

    #[test]
    fn accepts_files_folders_headings_and_other_sites() {
        let good = "# Own\n[a](guide/b.md) [b](guide/b.md#a-heading) [c](#own) [d](../x) [e](guide) \
                    [f](https://a.b/c)\n";
        assert_eq!(count(good), 0);
    }

    #[test]
    fn refuses_links_that_lead_nowhere() {
        for bad in ["[a](b.md)", "[a](guide/b.md#heading)", "[a](#own)", "[a](../y)", "[a](x)"] {
            assert_eq!(count(bad), 1, "{bad}");
        }
    }
}
