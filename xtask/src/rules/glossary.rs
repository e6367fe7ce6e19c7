//! One word for one thing: identifiers in the product's code follow the glossary of ARCHITECTURE.md.
//!
//! ```text
//! identifiers of a Rust file ──► their parts (`LaneEngine` ──► lane, engine) ──► RETIRED ──► the word to use
//! ```
//!
//! Only identifiers are checked, not prose. The laboratory uses the papers' words and is not checked.

use crate::tree::SourceFile;
use crate::violation::Violation;

/// A retired word, its replacement, and the only places where it may be used.
struct Retired {
    word: &'static str,
    instead: &'static str,
    places: &'static [&'static str],
}

const RETIRED: &[Retired] = &[
    Retired {
        word: "lane",
        instead: "`worker` for a thread; a lane is an element of a vector register",
        places: &["crates/cpu/src/kernels"],
    },
    Retired { word: "lanes", instead: "`workers`", places: &["crates/cpu/src/kernels"] },
    Retired { word: "crew", instead: "`team`: threads that copy one transfer are a copy team", places: &[] },
    Retired { word: "offer", instead: "`grant`, or `lend` on a bulk channel", places: &[] },
    Retired { word: "offers", instead: "`grants`, or lent frames", places: &[] },
    Retired { word: "recipient", instead: "`Grantee`", places: &[] },
    Retired { word: "fate", instead: "`Outcome`", places: &[] },
    Retired { word: "fates", instead: "outcomes or completions", places: &[] },
    Retired { word: "obey", instead: "`handle_commands`", places: &[] },
    Retired { word: "hear", instead: "`receive`", places: &[] },
    Retired { word: "attend", instead: "`process_events`", places: &[] },
    Retired { word: "stir", instead: "`advance`", places: &[] },
];

/// Folders whose identifiers are checked.
const PRODUCT: [&str; 5] = ["crates/", "bindings/", "tools/", "tests/", "bench/"];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let held = files.iter().filter(|file| PRODUCT.iter().any(|folder| file.path.starts_with(folder)));
    held.flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Violation> {
    let Some(syntax) = file.rust() else { return Vec::new() };
    let mut violations = Vec::new();
    for (line, name) in &syntax.identifiers {
        let parts = parts(name);
        let retired = RETIRED.iter().filter(|retired| parts.iter().any(|part| part == retired.word));
        for retired in
            retired.filter(|retired| !retired.places.iter().any(|place| file.path.starts_with(place)))
        {
            let message = format!("`{name}` contains the retired word `{}`", retired.word);
            violations.push(Violation::new(&file.path, *line, message, format!("say {}", retired.instead)));
        }
    }
    violations
}

/// The words of a name in snake case or camel case, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && before.is_lowercase() {
            parts.push(String::new());
        }
        if letter != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(letter.to_lowercase());
        }
        before = letter;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[SourceFile::new(path, text)]).len()
    }

    #[test]
    fn refuses_retired_words_in_names() {
        for name in ["LaneEngine", "lane_of", "MAX_LANES", "crew", "NoSuchOffer", "meet_fates"] {
            assert_eq!(count("crates/a/src/b.rs", &format!("const {name}: u8 = 0;")), 1, "{name}");
        }
    }

    #[test]
    fn accepts_other_words_and_other_places() {
        assert_eq!(count("crates/a/src/b.rs", "fn plane(offered: u8) {} // lane"), 0);
        assert_eq!(count("crates/cpu/src/kernels/raw.rs", "fn lanes() {}"), 0);
        assert_eq!(count("research/lab/src/a.rs", "fn lanes() {}"), 0);
    }
}
