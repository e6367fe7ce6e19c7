//! A figure's files inside the page, to be saved without a network: numbers as CSV, lines as SVG.
//!
//! ```text
//! Table ──► the bytes of figures/FIGURE.csv, FIGURE.svg ── base64 ──► <a download href="data:...">
//! ```

use maud::{Markup, html};

use crate::figures::{csv, svg};
use crate::table::Table;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Links that save both files of a figure, and the command that makes them again.
pub(super) fn downloads(table: &Table) -> Markup {
    let figure = table.plan.figure.as_str();
    html! {
        p.again {
            "Save: " (link(&format!("{figure}.csv"), "text/csv", &csv(table)))
            @if let Ok(text) = svg(table) { ", " (link(&format!("{figure}.svg"), "image/svg+xml", &text)) }
            ". Reproduce both, below " code { "figures" } ": " code.command { (command(figure)) }
        }
    }
}

/// The command that computes a figure and writes its files.
pub fn command(figure: &str) -> String {
    format!("./x lab --only {figure} --out .")
}

fn link(name: &str, kind: &str, text: &str) -> Markup {
    html! { a download=(name) href=(format!("data:{kind};base64,{}", base64(text.as_bytes()))) { (name) } }
}

/// Base64 as in RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |place: usize| u32::from(group.get(place).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (text, encoded) in vectors {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfb, 0xf0]), "//778A==");
    }
}
