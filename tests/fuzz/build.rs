//! Compiles the provider for libfabric with what plays its surroundings, for the target `provider_wire`.
//!
//! ```text
//! headers of libfabric? ── no ──► cfg has_libfabric is not set: the target fails, and its tests are ignored
//!        └ yes ──► sources of the provider, calls of the system renamed ─┐
//!                  provider/: attack, reading, played ───────────────────┴─► static library, with the sanitizer if the fuzzer has it
//! ```

use std::path::{Path, PathBuf};

const PROVIDER: &str = "../../bindings/libfabric";
const C_INTERFACE: &str = "../../bindings/c";
/// All but `memory.c` and `provider.c`, which `provider/played.c` stands in for.
const SOURCES: [&str; 9] =
    ["closer", "completion", "domain", "endpoint", "message", "rma", "unoffered", "users", "wire"];
/// Calls of the system that `provider/played.c` answers.
const PLAYED: [&str; 4] = ["geteuid", "clock_gettime", "connect", "pthread_create"];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(has_libfabric)");
    for folder in [PROVIDER, "provider", "../../bindings/c/memferry.h", "../../bindings/pages.h"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    println!("cargo:rerun-if-changed=/usr/include/rdma/providers/fi_prov.h");
    let headers = base().file("provider/headers.c").cargo_warnings(false).try_expand();
    if headers.is_err() {
        println!("cargo:warning=no headers of libfabric, which the target provider_wire needs");
        return;
    }
    let mut provider = base();
    for call in PLAYED {
        provider.define(call, format!("played_{call}").as_str());
    }
    let sources = SOURCES.iter().map(|name| source(PROVIDER, name));
    let provider = provider.files(sources);
    let is_fuzzed = std::env::var_os("CARGO_CFG_FUZZING").is_some();
    let mut own = base();
    own.files(["attack", "played", "reading"].map(|name| source("provider", name)));
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.split(',').any(|name| name == "address") {
        for build in [&mut *provider, &mut own] {
            build.flag("-fsanitize=address");
        }
    }
    if is_fuzzed {
        // What is undefined ends the program, without a library that says more.
        provider.flag("-fsanitize=undefined").flag("-fsanitize-undefined-trap-on-error");
        provider.flag("-fsanitize-coverage=trace-pc,trace-cmp");
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap=__sanitizer_cov_trace_pc");
        own.define("IS_FUZZED", None);
    }
    provider.compile("provider_under_test");
    if is_fuzzed {
        base().file(source("provider", "coverage")).compile("provider_coverage");
    }
    own.compile("provider_attack");
    println!("cargo:rustc-cfg=has_libfabric");
}

fn base() -> cc::Build {
    let mut build = cc::Build::new();
    build.std("gnu11").opt_level(1).debug(true).flag("-fno-omit-frame-pointer");
    build.include(PROVIDER).include(C_INTERFACE);
    build
}

fn source(folder: &str, name: &str) -> PathBuf {
    Path::new(folder).join(name).with_extension("c")
}
