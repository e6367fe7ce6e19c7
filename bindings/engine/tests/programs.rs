//! C programs against the library: bad input, layouts, and that the example engine compiles.
//!
//! Compilers that are not installed are reported and left out.

#[path = "../../c/tests/static_library/mod.rs"]
mod static_library;

use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use memferry_engine_c::*;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const STRICT: [&str; 6] = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g"];

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{}{}", output.status, texts[0], texts[1]);
    output
}

fn compilers() -> Vec<&'static str> {
    let is_installed = |compiler: &&str| {
        let found = Command::new(compiler).arg("--version").output().is_ok();
        if !found {
            println!("left out: {compiler} is not installed");
        }
        found
    };
    ["gcc", "clang"].into_iter().filter(is_installed).collect()
}

/// The static library of this build.
fn library() -> PathBuf {
    static_library::beside_this_test("libmemferry_engine_c-")
}

/// Where `install` put the library.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed-engine");
        run(Command::new(Path::new(CRATE).join("install")).arg(library()).arg(&prefix));
        prefix
    })
}

fn compile(compiler: &str, source: &Path, extra: &[&str]) -> PathBuf {
    let stem = source.file_stem().unwrap().to_string_lossy();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{compiler}-{stem}{}", extra.join("")));
    let libraries = prefix().join("lib");
    let mut command = Command::new(compiler);
    command.args(STRICT).args(extra).arg("-o").arg(&program).arg(source);
    command.arg("-I").arg(prefix().join("include")).arg("-L").arg(&libraries);
    command.arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-lmemferry_engine");
    run(&mut command);
    program
}

#[test]
fn bad_input_is_an_error() {
    for compiler in compilers() {
        run(&mut Command::new(compile(compiler, &Path::new(CRATE).join("tests/bad_input.c"), &[])));
    }
}

#[test]
fn the_example_compiles_and_wants_a_service() {
    let source = Path::new(CRATE).join("../../engines/example/memferry-engine-example.c");
    for compiler in compilers() {
        let program = compile(compiler, &source, &["-O2"]);
        let complete = ["--socket", "/nonexistent/memferry.sock", "--name", "copies"];
        for wrong in [
            &["--socket"][..],
            &["--other", "1"],
            &["--shortest", "abc"],
            &["--shortest", "-1"],
            &["--shortest", ""],
        ] {
            let usage = Command::new(&program).args(complete).args(wrong).output().unwrap();
            assert_eq!(usage.status.code(), Some(2), "{wrong:?}");
        }
        let refused = Command::new(&program).args(complete).args(["--shortest", "0"]).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.contains("cannot connect to the service at /nonexistent/memferry.sock"), "{error}");
    }
}

#[test]
fn the_program_in_the_documentation_compiles() {
    let page = std::fs::read_to_string(Path::new(CRATE).join("../../docs/engines.md")).unwrap();
    let program = page.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documented-engine.c");
    std::fs::write(&source, program).unwrap();
    for compiler in compilers() {
        compile(compiler, &source, &[]);
    }
}

#[test]
fn the_example_is_a_short_template() {
    let source = Path::new(CRATE).join("../../engines/example/memferry-engine-example.c");
    let lines = std::fs::read_to_string(source).unwrap().lines().count();
    assert!(lines < 300, "{lines} lines");
}

fn assertion(expression: &str, value: usize) -> String {
    format!("_Static_assert({expression} == {value}, \"{expression} is not {value}\");\n")
}

macro_rules! assertions {
    ($($structure:ident: $($field:ident),+;)+) => {
        [$(
            // No `..`: a field that is missing here does not compile.
            {
                let _ = |$structure { $($field: _),+ }: $structure| ();
                assertion(concat!("sizeof(", stringify!($structure), ")"), size_of::<$structure>())
            },
            $(assertion(
                concat!("offsetof(", stringify!($structure), ", ", stringify!($field), ")"),
                offset_of!($structure, $field),
            ),)+
        )+]
        .concat()
    };
}

#[test]
fn layouts_agree_in_c_and_rust() {
    let structures = assertions! {
        mf_engine_options: size, operations, socket, name, longest_bytes, shortest_bytes, alignment_bytes, channels,
            memory_bytes;
        mf_engine_exported: descriptor, kind, length, device;
        mf_engine_segment: address, length;
        mf_engine_request: id, operation, hint, length, source, destination, second, source_segments,
            destination_segments, source_count, destination_count, pattern, pattern_bytes, seed, pixel_bytes, x_count,
            y_count, transparent, color, source_x_step, source_y_step, destination_x_step, destination_y_step;
    };
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine-layouts.c");
    std::fs::write(&source, format!("#include \"memferry_engine.h\"\n{structures}")).unwrap();
    for compiler in compilers() {
        run(Command::new(compiler).args(STRICT).args(["-fsyntax-only", "-I", CRATE]).arg(&source));
    }
}
