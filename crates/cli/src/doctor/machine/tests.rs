//! Reads of files that nobody expects: links out of the root and in circles, pipes, long and binary files, odd names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A folder removed with its test.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memferry-doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn machine(&self) -> Machine {
        Machine::below(&self.0).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failure(machine: &Machine, path: &str, kind: Kind) -> String {
    match machine.facts().get(&(path.to_owned(), kind)) {
        Some(Fact::Failed { failed }) => failed.clone(),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn links_stay_inside_the_root() {
    let tree = Tree::new();
    fs::write(tree.0.join("inside"), "here\n").unwrap();
    symlink("/inside", tree.0.join("absolute")).unwrap();
    symlink("../../../../inside", tree.0.join("up")).unwrap();
    symlink("/etc/passwd", tree.0.join("outside")).unwrap();
    symlink("circle", tree.0.join("circle")).unwrap();
    let machine = tree.machine();
    assert_eq!(machine.text("/absolute").as_deref(), Some("here"));
    assert_eq!(machine.text("/up").as_deref(), Some("here"));
    assert_eq!(machine.text("/outside"), None);
    assert_eq!(machine.text("/circle"), None);
    assert!(failure(&machine, "/circle", Kind::Text).contains("circle"));
    assert_eq!(machine.node("/circle"), None);
    assert_eq!(machine.link("/circle").as_deref(), Some("circle"));
}

#[test]
fn odd_files_are_not_read() {
    let tree = Tree::new();
    rustix::fs::mknodat(CWD, tree.0.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::write(tree.0.join("long"), vec![b'x'; MAX_TEXT_BYTES + 1]).unwrap();
    fs::write(tree.0.join("longest"), vec![b'x'; MAX_TEXT_BYTES]).unwrap();
    fs::write(tree.0.join("binary"), b"\xff\0\x1b[2J\n").unwrap();
    fs::create_dir(tree.0.join("folder")).unwrap();
    let machine = tree.machine();
    assert_eq!(machine.text("/pipe"), None);
    assert_eq!(machine.text("/folder"), None);
    assert_eq!(machine.text("/long"), None);
    assert!(failure(&machine, "/long", Kind::Text).contains("longer"));
    assert!(failure(&machine, "/pipe", Kind::Text).contains("no file"));
    assert_eq!(machine.text("/longest").map(|text| text.len()), Some(MAX_TEXT_BYTES));
    assert_eq!(machine.text("/binary").as_deref(), Some("\u{fffd}\0\x1b[2J"));
    assert_eq!(machine.contains("/pipe", "x", 10), None);
    assert_eq!(machine.excerpt("/long", 1 << 20, |text| text.len().to_string()).as_deref(), Some("4097"));
}

#[test]
fn names_and_links_are_plain() {
    let tree = Tree::new();
    for name in [
        "dsa10",
        "dsa2",
        "dma1chan0",
        "dma0chan10",
        "dma0chan9",
        "$(reboot)",
        "a b",
        "-rf",
        "\u{1b}[2J",
        "dsa!wq0.0",
    ] {
        fs::write(tree.0.join(name), "").unwrap();
    }
    symlink("../drivers/id$xd", tree.0.join("driver")).unwrap();
    symlink("../drivers/idxd", tree.0.join("good")).unwrap();
    let machine = tree.machine();
    let names = machine.names("/", |name| name.starts_with("dsa"));
    assert_eq!(names, ["dsa2", "dsa10", "dsa!wq0.0"]);
    let channels = machine.names("/", |name| name.starts_with("dma"));
    assert_eq!(channels, ["dma0chan9", "dma0chan10", "dma1chan0"]);
    assert_eq!(machine.names("/", |_| true).len(), 8, "with the links that have plain names");
    assert_eq!(machine.link("/driver"), None);
    assert_eq!(machine.link("/good").as_deref(), Some("idxd"));
}

#[test]
fn finds_texts_across_chunks() {
    let tree = Tree::new();
    let mut bytes = vec![b'.'; CHUNK_BYTES - 3];
    bytes.extend(b"/idxd.ko");
    fs::write(tree.0.join("list"), &bytes).unwrap();
    let machine = tree.machine();
    assert_eq!(machine.contains("/list", "/idxd.ko", 1 << 20), Some(true));
    assert_eq!(machine.contains("/list", "/ioatdma.ko", 1 << 20), Some(false));
    assert_eq!(machine.contains("/none", "/idxd.ko", 1 << 20), None);
}

#[test]
fn a_recording_answers_as_the_files_did() {
    let tree = Tree::new();
    fs::write(tree.0.join("file"), "secret word\n").unwrap();
    symlink("../idxd", tree.0.join("driver")).unwrap();
    let look = |machine: &Machine| {
        let word =
            machine.excerpt("/file", 100, |text| text.trim().rsplit(' ').next().unwrap_or_default().into());
        (word, machine.link("/driver"), machine.names("/", |name| name == "file"), machine.node("/none"))
    };
    let live = tree.machine();
    let seen = look(&live);
    assert_eq!(seen.0.as_deref(), Some("word"));
    assert_eq!(seen.2, ["file"]);
    let facts = live.facts();
    assert!(!format!("{facts:?}").contains("secret"));
    let recorded = Machine::recorded(facts);
    assert_eq!(look(&recorded), seen);
    assert_eq!(recorded.facts(), live.facts());
}
