//! Texts of the report: figures with units, expected figures, marks around live parts.
//!
//! ```text
//! Claim ──► "915 MiB/s within 5 %"      Verdict ──► "911.2 MiB/s"      524288 bytes ──► "524288 bytes (512 KiB)"
//! ```
//!
//! The only computation here is the conversion of units.

use maud::{Markup, PreEscaped, html};

use crate::claims::{Claim, Kind, Place};
use crate::verdict::{End, Figures, Verdict, split_unit};

/// Largest number of figures in a table cell; more are listed below.
pub(super) const FEW: usize = 4;

/// Marks around parts that may differ between two runs, so that the rest can be compared.
pub(super) const LIVE: [&str; 2] = ["<!--live-->", "<!--/live-->"];

/// Puts marks around live content; simulated content is unchanged.
pub(super) fn marked(place: Place, content: Markup) -> Markup {
    let [begin, end] = LIVE.map(PreEscaped);
    match place {
        Place::Live => html! { (begin) (content) (end) },
        Place::Simulated => content,
    }
}

/// A figure with its unit; bytes also in KiB, MiB or GiB.
pub(super) fn figure(value: f64, unit: Option<&str>) -> String {
    let unit = unit.unwrap_or_default();
    let plain = format!("{value} {unit}").trim_end().to_owned();
    let larger =
        [("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, power)| value >= f64::from(1 << power));
    match larger {
        Some((name, power)) if unit == "bytes" => {
            format!("{plain} ({} {name})", rounded(value / f64::from(1 << power)))
        }
        _ => plain,
    }
}

/// Rounded to two decimals.
pub(super) fn rounded(value: f64) -> f64 {
    // Adding zero turns a negative zero into zero.
    (value * 100.0).round() / 100.0 + 0.0
}

/// The expected figure of the claim, if it has one.
pub(super) fn expected(claim: &Claim) -> Option<String> {
    let unit = claim.unit.as_deref();
    let mut words = Vec::new();
    words.extend(claim.expect.map(|value| figure(value, unit)));
    if let Some(values) = &claim.values {
        let named = values.iter().map(|(name, value)| {
            let (name, unit) = split_unit(name, unit);
            format!("{name} {}", figure(*value, unit))
        });
        words.push(named.collect::<Vec<_>>().join(", "));
    }
    match (claim.range, &claim.values) {
        (Some([low, high]), Some(_)) => words.push(format!("give or take {low} to {high} points")),
        (Some([low, high]), None) => {
            words.push(format!("{} to {}", figure(low, unit), figure(high, unit)));
        }
        (None, _) => {}
    }
    words.extend(claim.tolerance.map(|fraction| format!("within {} %", rounded(fraction * 100.0))));
    (!words.is_empty()).then(|| words.join(", "))
}

/// The figures of a row, for a table cell.
pub(super) fn found(row: &Verdict) -> String {
    match &row.figures {
        Figures::One(None) => "-".to_owned(),
        Figures::One(Some(value)) => figure(*value, row.unit.as_deref()),
        Figures::Named(values) if values.len() > FEW => format!("{} figures", values.len()),
        Figures::Named(values) => {
            let named = values.iter().map(|(name, value)| {
                let (name, unit) = split_unit(name, row.unit.as_deref());
                format!("{name}: {}", figure(*value, unit))
            });
            named.collect::<Vec<_>>().join(", ")
        }
    }
}

/// The ends of a row's only figure.
pub(super) fn band(row: &Verdict) -> String {
    match (&row.low, &row.high) {
        (Some(End::One(low)), Some(End::One(high))) => format!("{} to {}", rounded(*low), rounded(*high)),
        (Some(End::Named(_)), _) => "below".to_owned(),
        _ => String::new(),
    }
}

/// The statements of a part of `why`, which judges join by semicolons; semicolons within brackets do not part them.
pub(super) fn statements(part: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut depth = 0;
    let mut from = 0;
    for (at, letter) in part.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ';' if depth <= 0 && part[at..].starts_with("; ") => {
                all.push(&part[from..at]);
                from = at + 2;
            }
            _ => {}
        }
    }
    all.push(&part[from..]);
    all.retain(|words| !words.trim().is_empty());
    all
}

/// How a claim is judged.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "number",
        Kind::Order => "comparison",
        Kind::Shape => "shape of a curve",
        Kind::Safety => "safety property",
    }
}

/// Splits `why` into what broke, the reason if the judge gave one, and what holds.
pub(super) fn parts(why: &str) -> (Option<&str>, Option<&str>, Option<&str>) {
    // An undecided row says first on how many machines it holds.
    let own = why.split_once("; with the parameters' own values: ").map_or(why, |(_, own)| own);
    let Some(rest) = own.strip_prefix("does not hold: ") else { return (None, None, Some(why)) };
    let (broken, holds) = match rest.split_once("; what holds: ") {
        Some((broken, holds)) => (broken, Some(holds)),
        None => (rest, None),
    };
    match broken.strip_suffix(')').and_then(|all| all.split_once(" (because ")) {
        Some((broken, reason)) => (Some(broken), Some(reason), holds),
        None => (Some(broken), None, holds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;

    #[test]
    fn bytes_are_also_shown_in_larger_units() {
        assert_eq!(figure(524_288.0, Some("bytes")), "524288 bytes (512 KiB)");
        assert_eq!(figure(524_288.0, Some("us")), "524288 us");
        assert_eq!(figure(12.0, Some("bytes")), "12 bytes");
        assert_eq!(figure(7.5, None), "7.5");
    }

    #[test]
    fn the_whole_criterion_is_shown() {
        let claim = |criterion: &str| {
            let text = format!(
                "[[claim]]\nid = 'a'\npaper = 'p'\nsection = '1'\nwhere = ['live']\nkind = 'number'\nunit = 'us'\n\
                 says = 's'\n{criterion}"
            );
            expected(&Claims::parse(&text).expect("well formed").list()[0])
        };
        assert_eq!(claim("expect = 9\ntolerance = 0.05").as_deref(), Some("9 us, within 5 %"));
        assert_eq!(claim("range = [1, 2]").as_deref(), Some("1 us to 2 us"));
        assert_eq!(
            claim("tolerance = 0.1\nvalues = { b = 1, c = 2 }").as_deref(),
            Some("b 1 us, c 2 us, within 10 %")
        );
        assert_eq!(claim(""), None);
    }

    #[test]
    fn parts_are_split_into_statements() {
        assert_eq!(statements("a is 1 (b; c); d"), ["a is 1 (b; c)", "d"]);
        assert_eq!(statements("a); b;c"), ["a)", "b;c"]);
        assert!(statements("").is_empty());
    }

    #[test]
    fn why_is_split_into_parts() {
        let why = "does not hold: a is 1 (of 2); b (because c (d) e); what holds: f; g";
        assert_eq!(parts(why), (Some("a is 1 (of 2); b"), Some("c (d) e"), Some("f; g")));
        assert_eq!(parts("does not hold: a (1)"), (Some("a (1)"), None, None));
        assert_eq!(parts("all is well"), (None, None, Some("all is well")));
    }
}
