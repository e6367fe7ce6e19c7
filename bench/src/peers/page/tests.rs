//! The page and README.md against the committed JSON, and rows of every kind. Nothing is measured.

use std::path::{Path, PathBuf};

use super::*;

const WRITE: &str = "MEMFERRY_WRITE_COMPARISON";

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(tree(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file with what it has to be, or writes it.
fn hold(path: &str, expected: &str) {
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(tree(path), expected).expect(path);
    }
    assert!(
        read(path) == expected,
        "{path} differs from docs/guide/comparison.json: set {WRITE}=1 to write it"
    );
}

#[test]
fn comparison_page_is_made_from_its_json() {
    hold("docs/guide/comparison.md", &render(&read("docs/guide/comparison.json")).unwrap());
}

#[test]
fn comparison_page_gives_the_readme_its_table() {
    let text = read("README.md");
    let (before, rest) = text.split_once("| what | measured |\n").expect("README.md has a table of gains");
    let (_, after) = rest.split_once("\n\n").expect("the table ends with an empty line");
    // From a machine that was busy, README.md takes nothing.
    if let Some(table) = readme(&read("docs/guide/comparison.json")).unwrap() {
        hold("README.md", &format!("{before}{table}\n{after}"));
    }
}

/// The text of a file with these rows.
fn document(rows: &[serde_json::Value]) -> String {
    serde_json::json!({ "measured": "d", "machine": "m", "rows": rows }).to_string()
}

fn entry(section: &str, name: &str, value: Option<f64>) -> serde_json::Value {
    serde_json::json!({
        "name": name, "value": value, "unit": "x", "target": ">= 1.2", "holds": value.map(|value| value >= 1.2),
        "min": value, "max": value, "reason": value.is_none().then_some("NOT RUN: no network"),
        "comparison": {
            "section": section, "peer": "P 2", "ours": value, "theirs": 1.0, "side_unit": "GB/s", "place": "one CPU",
            "said": null
        }
    })
}

#[test]
fn rows_say_who_wins() {
    let rows = [
        entry("libc", "a copy, against P 2", Some(1.5)),
        entry("libc", "a fill, against P 2", Some(0.5)),
        entry("libc", "a look, against P 2", Some(1.02)),
        entry("libc", "nothing, against P 2", None),
    ];
    let page = render(&document(&rows)).unwrap();
    for line in [
        "| a copy | P 2 | 1.50 GB/s | 1.00 GB/s | 1.50 (1.50 to 1.50) | >= 1.2 | memferry |",
        "| a fill | P 2 | 0.50 GB/s | 1.00 GB/s | 0.50 (0.50 to 0.50) | >= 1.2, missed | P 2 |",
        "| a look | P 2 | 1.02 GB/s | 1.00 GB/s | 1.02 (1.02 to 1.02) | >= 1.2, missed | nobody |",
        "* P 2, nothing: NOT RUN: no network.",
        "Measured on d, m. **Other programs ran on the same CPUs: these figures show that the comparison works, and not who is faster.**",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert!(!page.contains("{{") && !page.contains("The two CPUs"), "{page}");
    let rows = [entry("ucx", "a message, against P 2", Some(1.5))];
    let page = render(&document(&rows)).unwrap();
    assert!(page.lines().any(|found| found == "The two CPUs: one CPU."), "{page}");
}

#[test]
fn other_text_and_missing_rows_are_errors() {
    assert!(render("[]").is_err());
    let error = readme(&document(&[alone()])).unwrap_err().to_string();
    assert!(error.contains("cold copy, 64 KiB"), "{error}");
}

/// The row of a machine without other programs.
fn alone() -> serde_json::Value {
    let mut row = entry(own::SECTION, OTHERS, Some(1.0));
    row["holds"] = true.into();
    row
}

#[test]
fn readme_takes_the_newest_of_each_peer() {
    let mut rows = vec![alone()];
    let sizes = ["cold copy, 64 KiB", "cold copy, 2 MiB", "cold copy, 32 MiB"].into_iter();
    let zeros = ["zeroing cold memory, 64 KiB", "zeroing cold memory, 1 MiB", "zeroing cold memory, 16 MiB"];
    let names: Vec<_> = sizes.chain(zeros).collect();
    for (peer, gain) in [("glibc 1", 9.0), ("glibc 2", 1.5)] {
        for what in &names {
            let mut row = entry(libc::SECTION, &format!("{what}, against {peer}"), Some(gain));
            row["comparison"]["peer"] = peer.into();
            if *what == "cold copy, 32 MiB" && peer == "glibc 2" {
                row["value"] = 1.1.into();
                row["holds"] = false.into();
            }
            rows.push(row);
        }
    }
    rows.push(entry(ucx::SECTION, "1 MiB, bandwidth as its tag_bw, against P 2", Some(2.04)));
    for ((_, name), value) in own::NAMES.iter().zip([97.2, 99.9, 1.08, 0.0, 5.2]) {
        let mut row = entry(own::SECTION, name, Some(value));
        row["comparison"]["peer"] = "".into();
        rows.push(row);
    }
    let table = readme(&document(&rows)).unwrap().unwrap();
    for line in [
        "| cold copy of 64 KiB, 2 MiB, 32 MiB by one CPU, against glibc 2 | 1.50, 1.50, 1.10 (1.2) times as fast |",
        "| zeroing cold memory, 64 KiB to 16 MiB, likewise | 1.50 to 1.50 times as fast |",
        "| 1 MiB between two processes, against P 2 | 2.0 times the bandwidth |",
        "| computing hidden behind a copy of 64 KiB, of 4 MiB | 97 %, 100 % |",
        "| an empty transfer, submitted and waited for, against the C function `getpid` | 1.08 (1.2) times as long |",
        "| an idle service | no thread scheduled in 30 s, 5 MiB |",
    ] {
        assert!(table.lines().any(|found| found == line), "{line}\n{table}");
    }
    rows[0]["holds"] = false.into();
    assert!(readme(&document(&rows)).unwrap().is_none());
}

#[test]
fn numbers_have_three_digits_or_whole_ones() {
    assert_eq!([0.5, 12.34, 1234.5].map(number), ["0.50", "12.3", "1234"]);
    assert_eq!(model("processor\t: 0\nmodel name\t: AMD X 1\n"), "AMD X 1");
    assert!(machine().contains("Linux "));
}
