//! Links of Markdown pages: where they are, what they name, and the headings that they may name.
//!
//! ```text
//! text ─► links (not those in code) ─► resolve(page) ─► a path in the tree, an anchor; or nothing, for another site
//! text ─► anchors: the headings, as mdBook and GitHub name them
//! ```
//!
//! Links by reference (`[text][name]`) are not known; the pages have none.

use std::collections::BTreeSet;

/// The target of a link, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// Lines are counted from one.
    pub(crate) line: usize,
    /// Offset in the text.
    pub(crate) at: usize,
    pub(crate) target: &'a str,
}

/// Where a link leads in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// From the root of the tree.
    pub(crate) path: String,
    pub(crate) anchor: Option<&'a str>,
}

/// Lines with their offsets, and whether they are code.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut at = 0;
    let mut is_code = false;
    text.split_inclusive('\n').map(move |line| {
        let start = at;
        at += line.len();
        let is_fence = line.trim_start().starts_with("```");
        let was_code = is_code || is_fence;
        is_code ^= is_fence;
        (start, line, was_code)
    })
}

/// The links of a page, and its pictures.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (number, (start, line, _)) in (1..).zip(lines(text)).filter(|(_, (_, _, is_code))| !is_code) {
        for (at, _) in line.match_indices("](") {
            // A code span ends on its line in these pages.
            let is_in_code = line[..at].matches('`').count() % 2 == 1;
            let rest = &line[at + 2..];
            let Some(end) = rest.find([')', ' ']).filter(|_| !is_in_code) else { continue };
            found.push(Link { line: number, at: start + at + 2, target: &rest[..end] });
        }
    }
    found
}

/// Where a link of a page leads; `None` for another site.
pub(crate) fn resolve<'a>(page: &str, target: &'a str) -> Option<Place<'a>> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    if file.is_empty() {
        return Some(Place { path: page.to_owned(), anchor });
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    Some(Place { path: parts.join("/"), anchor })
}

/// The anchors of a page's headings.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line, _) in lines(text).filter(|(_, _, is_code)| !is_code) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let further = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(further).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_outside_of_code_are_found() {
        let text = "[a](b.md) `[x](y)` ![c](d.png)\n```text\n[x](y)\n```\n[e](f.md \"title\")\n";
        let found: Vec<_> = links(text).iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(1, "b.md"), (1, "d.png"), (5, "f.md")]);
        assert!(links(text).iter().all(|link| text[link.at..].starts_with(link.target)));
    }

    #[test]
    fn links_lead_from_their_page() {
        let path = |page, target| resolve(page, target).map(|place| (place.path, place.anchor));
        assert_eq!(path("docs/guide/a.md", "../b.md#c"), Some(("docs/b.md".to_owned(), Some("c"))));
        assert_eq!(path("a.md", "#c"), Some(("a.md".to_owned(), Some("c"))));
        assert_eq!(path("docs/a.md", "../kernel/"), Some(("kernel".to_owned(), None)));
        assert_eq!(path("a.md", "https://example.com/b.md"), None);
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# One: `two`, three!\n## Part\n## Part\n#no\n```text\n# code\n```\n";
        let expected = ["one-two-three", "part", "part-1"].map(str::to_owned);
        assert_eq!(anchors(text), BTreeSet::from(expected));
    }
}
