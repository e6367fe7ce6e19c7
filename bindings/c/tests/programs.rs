//! C programs against the installed library: the examples, one that makes every mistake, and one that copies at random. Each
//! installed compiler compiles them; they run directly, under valgrind and under sanitizers.
//!
//! ```text
//! libmemferry_c.a ─ install ─► a prefix under target/ ─ pkg-config ─► gcc, clang -Wall -Wextra -Werror ─► programs ─► run
//! ```
//!
//! Tools that are not installed are reported and left out.

mod harness;
mod static_library;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use harness::{Service, socket};
use memferry_service::protocol::{Violation, encode_violation};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const EXAMPLES: [(&str, &str); 4] = [
    ("examples/copy.c", "moved without this thread: 1048576 bytes, and 499500\n"),
    ("examples/picture.c", "turned and marked\n"),
    ("examples/share.c", "read through the grant: only to be read\n"),
    ("examples/amemcpy.c", "a header, its last byte b, and 499500\n"),
];
/// Programs that check themselves.
const CHECKS: [&str; 2] = ["tests/bad_input.c", "tests/copier.c"];
/// Programs that take longer hang: under valgrind on a slow, busy machine each takes a minute or two.
const LIMIT: Duration = Duration::from_secs(600);

fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: {tool} is not installed");
    }
    found
}

/// A command's output; past the limit the command is killed with all its children.
fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap();
    let group = child.id();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(LIMIT).unwrap_or_else(|_| {
        let killed = Command::new("sh").args(["-c", &format!("kill -KILL -{group}")]).status();
        let wrote = ended.recv_timeout(LIMIT);
        panic!("{command:?} did not end within {LIMIT:?} (killed: {killed:?}): {wrote:?}");
    });
    output.unwrap()
}

fn run(command: &mut Command) -> Output {
    let output = output_of(command);
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{}{}", output.status, texts[0], texts[1]);
    output
}

/// The static library of this build.
fn library() -> PathBuf {
    static_library::beside_this_test("libmemferry_c-")
}

/// Where `install` put the library.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        run(Command::new(Path::new(CRATE).join("install")).arg(library()).arg(&prefix));
        prefix
    })
}

/// A program's compiler flags, from pkg-config.
fn flags() -> Vec<String> {
    let libraries = prefix().join("lib");
    if !is_installed("pkg-config") {
        let rpath = format!("-Wl,-rpath,{}", libraries.display());
        return vec![
            format!("-I{}", prefix().join("include").display()),
            format!("-L{}", libraries.display()),
            rpath,
            "-lmemferry".to_owned(),
        ];
    }
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "memferry"]).env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let listed = stdout_of(&mut command);
    let rpath = format!("-Wl,-rpath,{}", libraries.display());
    listed.split_whitespace().map(str::to_owned).chain([rpath]).collect()
}

fn compile(compiler: &str, source: &str, extra: &[&str]) -> PathBuf {
    let name = format!("{compiler}-{}{}", source.replace(['/', '.'], "-"), extra.join(""));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let strict = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"];
    let mut command = Command::new(compiler);
    command.args(strict).args(extra).arg("-o").arg(&program).arg(Path::new(CRATE).join(source)).args(flags());
    run(&mut command);
    program
}

fn stdout_of(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

fn check_programs(compiler: &str) {
    if !is_installed(compiler) {
        return;
    }
    for (source, expected) in EXAMPLES {
        let text = stdout_of(&mut Command::new(compile(compiler, source, &[])));
        assert!(text.contains(expected), "{source} printed: {text}");
    }
    for source in CHECKS {
        run(&mut Command::new(compile(compiler, source, &[])));
    }
}

#[test]
fn programs_run_without_gcc_warnings() {
    check_programs("gcc");
}

#[test]
fn programs_run_without_clang_warnings() {
    check_programs("clang");
}

#[test]
fn the_readme_example_runs() {
    let readme = std::fs::read_to_string(Path::new(CRATE).join("../../README.md")).unwrap();
    let (_, rest) = readme.split_once("```c\n").unwrap();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme.c");
    std::fs::write(&source, rest.split("```").next().unwrap()).unwrap();
    let program = compile("cc", source.to_str().unwrap(), &["-Os"]);
    assert_eq!(stdout_of(&mut Command::new(program)), "1048576 bytes\n");
}

/// Around the fragment of docs/asynchronous-copy.md.
const BEFORE: &str = r#"#include <memferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void check(mf_error error) {
    if (error != MF_ERROR_NONE) { fprintf(stderr, "%s\n", mf_last_message()); exit(1); }
}
int main(void) {
    const size_t n = 4 << 20;
    unsigned char *received = malloc(n), *between = malloc(n), *kept = malloc(n);
    mf_client client;
    mf_copier copier;
    memset(received, 7, n);
    check(mf_embed(&client));
"#;
const AFTER: &str = r#"
    check(mf_csync(copier, kept, n));
    printf("%d %d\n", kept[0], kept[n - 1]);
    return 0;
}
"#;

#[test]
fn the_asynchronous_copies_of_the_page_run() {
    let page = std::fs::read_to_string(Path::new(CRATE).join("../../docs/asynchronous-copy.md")).unwrap();
    let (_, rest) = page.split_once("```c\n").unwrap();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("asynchronous-copy.c");
    std::fs::write(&source, [BEFORE, rest.split("```").next().unwrap(), AFTER].concat()).unwrap();
    let program = compile("cc", source.to_str().unwrap(), &["-Os"]);
    assert_eq!(stdout_of(&mut Command::new(program)), "7 7\n");
}

#[test]
fn the_header_compiles_as_cpp() {
    if is_installed("g++") {
        let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.cpp");
        let text = "#include <memferry.h>\n#include <memferry.h>\nint main() { return mf_version() != MF_VERSION; }\n";
        std::fs::write(&source, text).unwrap();
        let strict = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
        run(Command::new("g++").args(strict).arg(source).args(flags()));
    }
}

#[test]
fn a_program_links_statically() {
    if !is_installed("gcc") {
        return;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static-copy");
    let mut command = Command::new("gcc");
    command.arg("-I").arg(prefix().join("include")).arg(Path::new(CRATE).join("examples/copy.c"));
    command
        .arg(prefix().join("lib/libmemferry.a"))
        .args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program);
    run(&mut command);
    assert!(stdout_of(&mut Command::new(program)).contains("moved"));
}

#[test]
fn sanitizers_find_nothing() {
    for compiler in ["gcc", "clang"] {
        let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let probe = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{compiler}"));
        let source = probe.with_extension("c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let has = Command::new(compiler).args(sanitizers).arg(source).arg("-o").arg(probe).output();
        if !has.is_ok_and(|output| output.status.success()) {
            println!("left out: {compiler} has no sanitizers here");
            continue;
        }
        for source in EXAMPLES.into_iter().map(|(source, _)| source).chain(CHECKS) {
            run(&mut Command::new(compile(compiler, source, &sanitizers)));
        }
    }
}

#[test]
fn valgrind_finds_nothing() {
    if !is_installed("valgrind") || !is_installed("gcc") {
        return;
    }
    // Workers spin; without fair scheduling no other thread would run.
    let valgrind = |source, options: &[&str]| {
        let program = compile("gcc", source, &["-O1"]);
        let always = ["-q", "--error-exitcode=9", "--fair-sched=yes"];
        let suppressions = format!("--suppressions={CRATE}/tests/valgrind.supp");
        run(Command::new("valgrind").args(always).arg(suppressions).args(options).arg(program));
    };
    for (source, _) in EXAMPLES {
        valgrind(source, &["--leak-check=full", "--errors-for-leak-kinds=definite"]);
    }
    // No leak check: they fork, and the child loses the memory of the parent's threads.
    CHECKS.iter().for_each(|source| valgrind(source, &[]));
}

#[test]
fn the_library_exports_only_the_interface() {
    if !is_installed("readelf") {
        return;
    }
    let library = prefix().join("lib/libmemferry.so");
    let symbols = stdout_of(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(&library));
    let exported = symbols.lines().filter(|line| line.contains(" GLOBAL ") || line.contains(" WEAK "));
    let exported = exported.filter(|line| !line.contains(" UND ") && !line.contains(" ABS "));
    let strays: Vec<&str> = exported.clone().filter(|line| !line.ends_with("@@MEMFERRY_0.2")).collect();
    assert!(strays.is_empty(), "{strays:?}");
    assert_eq!(
        exported.count(),
        std::fs::read_to_string(Path::new(CRATE).join("memferry.map")).unwrap().matches("    mf_").count()
    );
    let dynamic = stdout_of(Command::new("readelf").args(["-W", "--dynamic"]).arg(&library));
    assert!(dynamic.contains("libmemferry.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn examples_run_against_a_service() {
    let service = Service::start("service");
    let programs = [EXAMPLES[0], EXAMPLES[2], (CHECKS[1], "0 failures\n")];
    for (source, expected) in programs {
        let text = stdout_of(Command::new(compile("cc", source, &["-O2"])).arg(&service.socket));
        // A whole line, so that "10 failures" does not count.
        assert!(text.split_inclusive('\n').any(|line| line == expected), "{source} printed: {text}");
    }
}

#[test]
fn a_service_of_other_versions_is_a_numbered_error() {
    let path = socket("versions");
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let answers = std::thread::spawn(move || {
        let peer = rustix::net::accept(&listener).unwrap();
        let farewell = encode_violation(&Violation::Version { client: (2, 2), service: (7, 9) });
        rustix::net::send(&peer, &farewell, SendFlags::empty()).unwrap();
    });
    let program = compile("cc", "examples/copy.c", &["-O1", "-DOF_VERSIONS"]);
    let output = output_of(Command::new(program).arg(&path));
    answers.join().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(": 9: ") && error.contains("the service 7 to 9"), "{error}");
    let _ = std::fs::remove_file(&path);
}
