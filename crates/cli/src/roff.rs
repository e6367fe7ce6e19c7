//! Text in the markup of manual pages, man(7).

/// Section with links to pages, each as `name(section)`.
pub(crate) fn see_also(links: impl Iterator<Item = String>) -> String {
    let lines = links.map(|link| match link.split_once('(') {
        Some((name, section)) => format!(".BR {} ({section}", escaped(name)),
        None => link,
    });
    match lines.collect::<Vec<_>>().join(",\n") {
        lines if lines.is_empty() => lines,
        lines => format!(".SH SEE ALSO\n{lines}\n"),
    }
}

/// Plain text for a page.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
