//! Copies the arithmetic of 2-D walks, without documentation and tests, for `tests/walks.rs`, which compiles it with integers of 8 bits.

use std::path::PathBuf;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/transfer/src/geometry.rs");

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let text = std::fs::read_to_string(SOURCE).expect("the source of the walks");
    let (shipped, _) = text.split_once("#[cfg(test)]").expect("the source of the walks ends with its tests");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = shipped.lines().filter(is_code).collect();
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a folder for the output"));
    std::fs::write(folder.join("walks.rs"), code.join("\n")).expect("the output can be written");
}
