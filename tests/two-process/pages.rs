//! Console blocks of README.md, the guide and the other pages, run as an ordinary user would.
//!
//! ```text
//! blocks without a marker ─► packaging/tests/follow.py ─► a fresh folder for each page, this build's programs, a private socket
//! ```
//!
//! Without Python nothing is tested. `tests/pages` checks that every other example is run, or says why not.

mod harness;

use std::path::PathBuf;
use std::process::Command;

use harness::fresh_directory;
use memferry_pages::Page;

/// What the follower prints of pages; `None`, with a message, without Python.
fn follow(pages: impl Iterator<Item = PathBuf>) -> Option<(bool, String)> {
    let root = memferry_pages::root();
    let mut command = Command::new("python3");
    command.arg(root.join("packaging/tests/follow.py")).arg("--tree").arg(&root);
    command.arg(env!("CARGO_BIN_EXE_memferry")).arg(harness::libraries()).args(pages);
    let output = command.output().inspect_err(|error| println!("not tested: no python3 ({error})")).ok()?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.success(), printed.concat()))
}

#[test]
fn commands_of_pages_do_what_pages_say() {
    let has_commands = |page: &Page| page.blocks.iter().any(|block| block.language == "console");
    let is_for_users = |page: &Page| page.path == "README.md" || page.path.starts_with("docs/");
    let pages = memferry_pages::pages().into_iter().filter(|page| is_for_users(page) && has_commands(page));
    let Some((is_right, printed)) = follow(pages.map(|page| memferry_pages::root().join(page.path))) else {
        return;
    };
    assert!(is_right, "{printed}");
    // A broken reader would find nothing to run.
    assert!(printed.contains("PASS memferry config check memferry.toml"), "{printed}");
}

#[test]
fn wrong_pages_are_found() {
    let folder = fresh_directory();
    // A marker is of one block: the one between two that are marked is run.
    let left_out = "```\n<!-- not run: a test of the reader of pages -->\n```console\n";
    let between = format!(
        "$ memferry config default\n{left_out}$ memferry nonsense\n```\n\n```console\n$ memferry wrong\n{left_out}$ memferry false\n"
    );
    for (block, passed, failed) in [
        (&between[..], 2, 1),
        ("$ memferry config default\n", 2, 0),
        ("$ memferry config default\nother output\n", 1, 1),
        ("$ memferry nonsense\n$ memferry --version\n", 2, 1),
        ("$ memferry status --nonsense --watch\n", 1, 1),
        ("$ memferry config check missing.toml\n", 1, 1),
        ("$ LD_PRELOAD=/nowhere.so memferry --version\n", 0, 1),
    ] {
        let page = folder.join("page.md");
        std::fs::write(&page, format!("Text\n\n```console\n{block}```\n")).unwrap();
        let Some((is_right, printed)) = follow([page].into_iter()) else { break };
        assert_eq!(is_right, failed == 0, "{printed}");
        // A service is started first if a line begins with memferry.
        assert!(printed.contains(&format!("pages: {passed} passed, {failed} failed")), "{printed}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
