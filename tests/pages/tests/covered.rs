//! Each example of the pages is run by a test, or says why not.
//!
//! ```text
//! console          ─► tests/two-process/pages.rs runs all of them
//! rust, c, python  ─► a test of that language names the page
//! ini              ─► stands in a file of packaging/examples
//! text             ─► nothing to run
//! any other one    ─► <!-- not run: REASON -->
//! ```

use std::fs;
use std::path::Path;

use memferry_pages::{Block, Code, Page, pages, root};

/// Files with the tests of each language that run examples of pages.
const RUNNERS: [(&str, &[&str]); 3] = [
    ("rust", &["crates/memferry/src/lib.rs", "crates/bulk/src/lib.rs"]),
    ("c", &["bindings/c/tests/programs.rs", "bindings/engine/tests/programs.rs"]),
    ("python", &["bindings/python/tests/test_memferry.py"]),
];
/// What stands in the examples where pages write NUMBER.
const GROUP: &str = "20";
/// A shorter reason says nothing.
const SHORTEST_REASON: usize = 10;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn examples() -> Vec<String> {
    let files = fs::read_dir(root().join("packaging/examples")).unwrap();
    files.map(|file| read(&file.unwrap().path())).collect()
}

/// Whether a test runs a block of a page, or there is nothing to run.
fn is_run(page: &Page, block: &Block) -> bool {
    if let Some((language, runners)) = RUNNERS.iter().find(|(language, _)| *language == block.language) {
        let first = page.blocks.iter().find(|first| first.language == *language);
        let is_first = first.is_some_and(|first| first.line == block.line);
        return runners.iter().map(|runner| read(&root().join(runner))).any(|runner| {
            // The runners of C take the first block of a page, and that of Python where it says so.
            let takes_first = *language == "c" || runner.contains(&format!("\"{}\")[0]", page.path));
            runner.contains(&page.path) && (is_first || !takes_first)
        });
    }
    let settings = || block.text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    match block.language.as_str() {
        "console" | "text" => true,
        "ini" => examples()
            .iter()
            .any(|example| settings().all(|line| example.contains(&line.replace("NUMBER", GROUP)))),
        _ => false,
    }
}

fn is_command(line: &str) -> bool {
    let name = line.split_whitespace().find(|word| !word.contains('=') && *word != "sudo").unwrap_or("");
    name == "./x"
        || name.rsplit('/').next().is_some_and(|name| name.starts_with("memferry") && !name.contains('.'))
}

#[test]
fn every_example_is_run_or_says_why_not() {
    let mut missed = Vec::new();
    for page in pages().iter().filter(|page| page.path == "README.md" || page.path.starts_with("docs/")) {
        let mut miss = |line: usize, why: &str| missed.push(format!("{}:{line}: {why}", page.path));
        for line in &page.stray {
            miss(*line, "the marker stands before no block");
        }
        for block in &page.blocks {
            match &block.reason {
                Some(reason) if reason.len() < SHORTEST_REASON => {
                    miss(block.line, "the marker gives no reason")
                }
                None if !is_run(page, block) => miss(block.line, "no test runs it, and no marker says why"),
                _ => {}
            }
        }
        for (line, code) in &page.codes {
            if matches!(code, Code::Indented(text) if is_command(text)) {
                miss(*line, "commands stand in a console block, where a test sees them");
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn blocks_without_a_test_are_seen() {
    let of = |path: &str, text: &str| {
        let page = Page::parse(path, text);
        is_run(&page, &page.blocks[0])
    };
    assert!(of("README.md", "```rust\n```\n") && !of("docs/nowhere.md", "```rust\n```\n"));
    assert!(!of("README.md", "```sh\n```\n"));
    let of_second = |language: &str| {
        let page = Page::parse("README.md", &format!("```{language}\n```\n").repeat(2));
        is_run(&page, &page.blocks[1])
    };
    assert!(of_second("rust") && !of_second("c") && !of_second("python"));
    assert!(!of("README.md", "```ini\nPrivateDevices=perhaps\n```\n"));
    assert!(is_command("LD_PRELOAD=x memferry status") && is_command("sudo ./target/memferry-link run"));
    assert!(!is_command("memferry.toml") && !is_command("member"));
}
