//! The committed header matches the code, and the version script and the manual page name exactly the functions.
//!
//! `MEMFERRY_WRITE_HEADER=1 cargo test -p memferry-engine-c --test header` rewrites the header.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use memferry_engine::EngineDescription;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(CRATE).join(name)).unwrap_or_default()
}

/// The header as the code makes it, written first if that was asked for.
static HEADER: LazyLock<String> = LazyLock::new(|| {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(CRATE).with_config(config).generate().unwrap();
    let mut written = Vec::new();
    bindings.write(&mut written);
    let written = String::from_utf8(written).unwrap();
    if std::env::var_os("MEMFERRY_WRITE_HEADER").is_some() {
        std::fs::write(Path::new(CRATE).join("memferry_engine.h"), &written).unwrap();
    }
    written
});

#[test]
fn the_header_matches_the_code() {
    let written = HEADER.as_str();
    let committed = read("memferry_engine.h");
    let differs = written.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        written == committed,
        "memferry_engine.h does not match the code; rewrite it with MEMFERRY_WRITE_HEADER=1. First difference: {differs:?}"
    );
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let names = HEADER.lines().filter_map(|line| {
        let name = line.strip_prefix("int32_t ").or_else(|| line.strip_prefix("int "))?.split('(').next()?;
        Some(name.to_owned())
    });
    let names: BTreeSet<String> = names.collect();
    assert!(names.contains("mf_engine_run"), "memferry_engine.h was not understood: {names:?}");
    names
}

#[test]
fn every_function_is_exported() {
    let script = read("memferry_engine.map");
    let exported = script.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let exported: BTreeSet<String> =
        exported.filter(|name| name.starts_with("mf_")).map(str::to_owned).collect();
    assert_eq!(declared(), exported);
}

#[test]
fn the_manual_page_names_every_function() {
    let page = read("man/memferry_engine.7");
    let named = page.lines().filter_map(|line| line.strip_prefix(".It Fn ")?.split(' ').next());
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    assert_eq!(declared(), named);
}

#[test]
fn the_default_options_are_those_in_rust() {
    let EngineDescription {
        operations,
        longest_bytes,
        shortest_bytes,
        alignment_bytes,
        channels,
        memory_bytes,
    } = EngineDescription::default();
    let all = operations.bits();
    let longest = longest_bytes.ilog2();
    assert!(longest_bytes.is_power_of_two());
    let numbers = format!(
        "{all}, 0, 0, (uint64_t)1 << {longest}, {shortest_bytes}, {alignment_bytes}, {channels}, {memory_bytes}"
    );
    let expected = format!("#define MF_ENGINE_OPTIONS_INIT {{ sizeof(mf_engine_options), {numbers} }}");
    assert!(HEADER.contains(&expected), "MF_ENGINE_OPTIONS_INIT is not {expected}");
}
