//! The committed header and manual pages match the code, and the version script exports exactly the functions.
//!
//! `MEMFERRY_WRITE_HEADER=1 cargo test -p memferry-c --test header` rewrites the header and the pages.

#![allow(unsafe_code, reason = "the C interface returns pointers")]

mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::path::Path;
use std::sync::LazyLock;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(CRATE).join(name)).unwrap_or_default()
}

/// The header as the code makes it, written first if that was asked for, so that no test reads an old one.
static HEADER: LazyLock<String> = LazyLock::new(|| {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(CRATE).with_config(config).generate().unwrap();
    let mut written = Vec::new();
    bindings.write(&mut written);
    let written = String::from_utf8(written).unwrap();
    if std::env::var_os("MEMFERRY_WRITE_HEADER").is_some() {
        std::fs::write(Path::new(CRATE).join("memferry.h"), &written).unwrap();
    }
    written
});

#[test]
fn the_header_matches_the_code() {
    let written = HEADER.as_str();
    let committed = read("memferry.h");
    let differs = written.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        written == committed,
        "memferry.h does not match the code; rewrite it with MEMFERRY_WRITE_HEADER=1. First difference: {differs:?}"
    );
}

/// The functions that the header declares.
fn declared() -> Vec<String> {
    let header = &*HEADER;
    let names = header.lines().filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let declares = !line.starts_with([' ', '/', '#']) && !line.starts_with("static");
        (declares && name.starts_with("mf_")).then(|| name.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    assert!(!names.is_empty(), "memferry.h declares no function");
    names.sort();
    names
}

/// File names and texts of the functions' pages.
fn written_pages() -> BTreeMap<String, String> {
    let functions = pages::functions(&HEADER);
    let meanings = pages::meanings(&HEADER);
    let page = |function: &pages::Function| {
        (format!("{}.3", function.name), pages::page(function, &functions, &meanings))
    };
    functions.iter().map(page).collect()
}

#[test]
fn every_function_has_its_page() {
    let folder = Path::new(CRATE).join("man");
    let written = written_pages();
    if std::env::var_os("MEMFERRY_WRITE_HEADER").is_some() {
        for (name, page) in &written {
            std::fs::write(folder.join(name), page).unwrap();
        }
    }
    for name in declared().iter().map(String::as_str).chain(["mf_all", "mf_part"]) {
        assert!(
            written.contains_key(&format!("{name}.3")),
            "memferry.h was not understood: {name} has no page"
        );
    }
    let files = std::fs::read_dir(&folder).unwrap();
    let files: BTreeSet<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".3"))
        .collect();
    assert_eq!(files, written.keys().cloned().collect(), "pages and functions differ");
    for (name, page) in &written {
        let is_current = *page == read(&format!("man/{name}"));
        assert!(is_current, "{name} does not match memferry.h; rewrite it with MEMFERRY_WRITE_HEADER=1");
    }
}

#[test]
fn every_page_names_errors() {
    let functions = pages::functions(&HEADER);
    let meanings = pages::meanings(&HEADER);
    for function in functions
        .iter()
        .filter(|function| written_pages()[&format!("{}.3", function.name)].contains(".Sh ERRORS"))
    {
        let errors = pages::errors(function, &functions);
        assert!(!errors.is_empty(), "{} names no error", function.name);
        for error in errors {
            assert!(meanings.contains_key(error), "{} names {error}, which does not exist", function.name);
        }
    }
}

#[test]
fn the_overview_links_every_function() {
    let overview = read("man/memferry.7");
    let linked: BTreeSet<&str> = overview
        .lines()
        .filter_map(|line| line.strip_prefix(".Xr ")?.split(' ').next())
        .filter(|name| name.starts_with("mf_"))
        .collect();
    let functions: Vec<String> =
        pages::functions(&HEADER).into_iter().map(|function| function.name).collect();
    assert_eq!(linked, functions.iter().map(String::as_str).collect());
}

#[test]
fn every_function_is_exported() {
    let script = read("memferry.map");
    let mut exported: Vec<_> = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("mf_"))
        .map(str::to_owned)
        .collect();
    exported.sort();
    assert_eq!(declared(), exported, "memferry.map does not export what memferry.h declares");
}

#[test]
fn every_function_states_its_threads() {
    let header = &*HEADER;
    for name in declared() {
        let at = header.find(&format!(" {name}(")).or_else(|| header.find(&format!("*{name}("))).unwrap();
        let above = header[..at].rsplit("\n\n").next().unwrap().replace("\n// ", " ");
        let states =
            ["Any thread", "One thread at a time", "Each thread"].iter().any(|word| above.contains(word));
        assert!(states, "{name} does not say which threads may call it:\n{above}");
    }
}

#[test]
fn every_error_has_a_text() {
    let header = &*HEADER;
    let numbers: Vec<i32> = header
        .lines()
        .filter_map(|line| line.trim().strip_prefix("MF_ERROR_")?.strip_suffix(',')?.split_once(" = "))
        .map(|(_, number)| number.parse().unwrap())
        .collect();
    assert!(!numbers.is_empty(), "memferry.h declares no error");
    for number in numbers {
        // SAFETY: a constant string.
        let text = unsafe { CStr::from_ptr(memferry_c::mf_error_text(number)) };
        assert_ne!(text, c"unknown error", "{number}");
    }
}
