//! `memferry profile` as users run it: counts for programs whose copies are known, exit status, and messages about programs
//! that cannot be counted or that forge the recording.
//!
//! ```text
//! tools/recorder/tests/known.c ─ cc ─► program ─ memferry profile ─► JSON ─► compared with the program's source
//! ```
//!
//! No test depends on a time.

mod harness;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use harness::{copy_program, fresh_directory};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The recorder of this build.
fn library() -> PathBuf {
    harness::libraries().join("libmemferry_recorder.so")
}

/// Compiles the C program under a name, with an additional option.
fn compiled(name: &str, option: Option<&str>) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/recorder/tests/known.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-fno-builtin", "-pthread"]).args(option).arg("-o");
    let output = compiler.args([&program, &source]).arg("-ldl").output().expect("a C compiler");
    output.status.success().then_some(program)
}

fn known() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("known", None).expect("known.c compiles"))
}

fn profile(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command.arg("profile").args(options).stdin(Stdio::null()).env("MEMFERRY_RECORDER", library());
    command.env_remove("LD_PRELOAD").env("MEMFERRY_PROFILE", "");
    command
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Profiles a part of the known program, which must exit with `code`.
fn count(what: &str, code: i32) -> Value {
    let output = profile(&["--json", "--callers", "1000", "--"]).arg(known()).arg(what).output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{printed}");
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Calls and bytes of one function of the known program.
fn of(report: &Value, function: &str) -> (u64, u64) {
    let callers = report["callers"].as_array().unwrap();
    let is_it = |caller: &&Value| {
        let name = caller["function"].as_str().unwrap_or("");
        caller["object"].as_str().is_some_and(|object| object.ends_with("/known"))
            && name.split('+').next() == Some(function)
    };
    let sum = |field: &str| callers.iter().filter(is_it).map(|caller| caller[field].as_u64().unwrap()).sum();
    (sum("calls"), sum("bytes"))
}

#[test]
fn every_copy_of_a_program_is_counted_with_its_caller() {
    let report = count("all", 0);
    let found = [
        "by_memcpy",
        "by_memmove",
        "by_mempcpy",
        "by_memset",
        "by_zeroing",
        "by_nothing",
        "by_checked",
        "main",
    ];
    let expected = [
        (1000, 100_000),
        (7, 35_000),
        (3, 30),
        (5, 320),
        (11, 770_000),
        (2, 0),
        (4 * 13, 13 * (20 + 30 + 40 + 50)),
        (1, 1 << 20),
    ];
    assert_eq!(found.map(|function| of(&report, function)), expected);
    assert_eq!(report["programs_seen"], 1);
    assert_eq!((&report["left_out_calls"], &report["nonsense_rows"]), (&0.into(), &0.into()));
    assert_eq!(report["program"][1], "all");
    let parts = |trait_: &str, name: &str, field: &str| {
        let parts = report[trait_].as_array().unwrap();
        parts.iter().find(|part| part["name"] == name).map_or(0, |part| part[field].as_u64().unwrap())
    };
    // The loader and the C library may copy too, in other ways.
    assert!(parts("operations", "memset to zero", "bytes") >= 770_000);
    assert!(parts("operations", "memmove", "calls") >= 7 + 13);
    assert!(parts("alignments", "equally misaligned", "calls") >= 7);
    assert!(parts("alignments", "64-byte aligned", "calls") >= 1000);
    let sizes = report["sizes"].as_array().unwrap();
    let of_size = |from: u64| sizes.iter().find(|size| size["from_bytes"] == from).unwrap();
    assert!(of_size(64)["calls"].as_u64().unwrap() >= 1005);
    assert!(of_size(65536)["calls"].as_u64().unwrap() >= 11 && of_size(4096)["calls"].as_u64().unwrap() >= 7);
    let total: u64 = sizes.iter().map(|size| size["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["all"]["bytes"], total);
}

#[test]
fn children_threads_and_execs_are_counted() {
    let report = count("children", 0);
    assert_eq!(of(&report, "by_memcpy"), (20 * 50 + 4 * 100 + 5 * 10, 145_000));
    assert_eq!(report["programs_seen"], 6);
}

#[test]
fn a_confined_program_is_counted_without_clock() {
    let report = count("confined", 42);
    assert_eq!((of(&report, "by_memmove"), of(&report, "by_zeroing")), ((7, 35_000), (11, 770_000)));
    let timed: f64 = report["callers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|caller| caller["function"].as_str().is_some_and(|name| name.starts_with("by_")))
        .map(|caller| caller["seconds"].as_f64().unwrap())
        .sum();
    assert_eq!(timed, 0.0);
}

#[test]
fn a_forged_recording_is_reported() {
    let report = count("scribble", 0);
    assert!(report["nonsense_rows"].as_u64().unwrap() > 0);
    let output = profile(&["--"]).arg(known()).arg("scribble").output().unwrap();
    let printed = text(&output.stderr);
    assert!(
        output.status.success() && printed.contains("are invalid: the program wrote into the recording"),
        "{printed}"
    );
    assert!(!printed.chars().any(|c| c.is_control() && c != '\n'), "{printed:?}");
    let output = profile(&["--"]).arg(known()).arg("overwrite").output().unwrap();
    let printed = text(&output.stderr);
    assert!(output.status.code() == Some(1) && printed.contains("the program wrote into it"), "{printed}");
}

#[test]
fn the_report_is_separate_from_the_output() {
    let place = fresh_directory();
    let report = place.join("report.json");
    let mut command = profile(&["--json", "--to"]);
    command.arg(&report);
    let output = command.args(["sh", "-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out\n", "err\n"));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!((&report["exit_code"], &report["programs_seen"]), (&7.into(), &1.into()));
    assert!(report["estimate"]["hand_over_seconds"].as_f64().unwrap() > 0.0);
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn without_a_report_files_stay_as_they_were() {
    let place = fresh_directory();
    let new = place.join("new");
    let earlier = place.join("earlier");
    std::fs::write(&earlier, "an earlier report").unwrap();
    let known = known().to_str().unwrap();
    for (words, code) in [(&["no-such-program"][..], 127), (&[known, "overwrite"], 1)] {
        for to in [&new, &earlier] {
            let output = profile(&["--to"]).arg(to).args(words).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        }
        assert!(!new.exists(), "{words:?}");
        assert_eq!(std::fs::read(&earlier).unwrap(), b"an earlier report", "{words:?}");
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn the_table_has_all_parts() {
    let output = profile(&["--callers", "2", "--"]).arg(known()).output().unwrap();
    let printed = text(&output.stderr);
    for words in [
        "calls",
        "size, bytes",
        "64 to 127",
        "memmove",
        "64-byte aligned",
        "not measured",
        "caller",
        "known by_",
        "more callers",
        "estimate:",
        "The estimate assumes",
    ] {
        assert!(printed.contains(words), "'{words}' is missing in: {printed}");
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    let run = |words: &[&str]| -> Output { profile(&["--"]).args(words).output().unwrap() };
    assert_eq!(run(&["true"]).status.code(), Some(0));
    assert_eq!(run(&["sh", "-c", "kill -KILL $$"]).status.code(), Some(128 + 9));
    let missing = run(&["no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("cannot start no-such-program"));
    let place = fresh_directory();
    std::fs::write(place.join("file"), "text").unwrap();
    let not_executable = run(&[place.join("file").to_str().unwrap()]);
    assert_eq!(not_executable.status.code(), Some(126));
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_signal_is_passed_on_and_reported() {
    let mut command = profile(&["--"]);
    command.arg(known()).arg("wait").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!((output.status.code(), output.status.signal()), (Some(9), None), "{printed}");
    assert!(printed.contains("ended with 9") && printed.contains("estimate:"), "{printed}");
}

#[test]
fn uncounted_programs_are_explained() {
    let why = |program: &Path| {
        let output = profile(&["--"]).arg(program).arg("leaf").output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    match compiled("known-static", Some("-static")) {
        Some(program) => {
            let (code, printed) = why(&program);
            assert!(
                code == Some(0) && printed.contains("nothing was counted: it is a static program"),
                "{printed}"
            );
        }
        None => println!("skipped for static programs: no static C library is installed"),
    }
    let place = fresh_directory();
    let program = place.join("known");
    copy_program(known(), &program);
    std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
    // A setuid program has other rights only if it belongs to another user.
    if std::os::unix::fs::chown(&program, Some(65534), None).is_ok() {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let (code, printed) = why(&program);
        if printed.contains("1 program(s) counted") {
            println!("skipped for setuid programs: setuid has no effect here");
        } else {
            assert!(code == Some(0) && printed.contains("nothing was counted: it is setuid"), "{printed}");
        }
    } else {
        println!("skipped for setuid programs: only root can make one of another user");
    }
    let output = profile(&["--"]).args(["env", "-i"]).arg(known()).output().unwrap();
    assert!(
        text(&output.stderr).contains("1 program(s) counted"),
        "env is counted, the program that it starts is not"
    );
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_missing_library_has_a_remedy() {
    let place = fresh_directory();
    let alone = place.join("memferry");
    copy_program(Path::new(env!("CARGO_BIN_EXE_memferry")), &alone);
    let odd = place.join("odd place");
    std::fs::create_dir(&odd).unwrap();
    copy_program(&library(), &odd.join("libmemferry_recorder.so"));
    let fails = |command: &mut Command, words: &str| {
        let output = command.output().unwrap();
        let printed = text(&output.stderr);
        assert!(output.status.code() == Some(1) && printed.contains(words), "{printed}");
    };
    let mut missing = Command::new(&alone);
    missing.args(["profile", "true"]).env_remove("MEMFERRY_RECORDER");
    fails(&mut missing, "libmemferry_recorder.so is missing; it was looked for at");
    fails(profile(&["true"]).env("MEMFERRY_RECORDER", "/nowhere"), "names /nowhere, which is not a file");
    fails(
        profile(&["true"]).env("MEMFERRY_RECORDER", odd.join("libmemferry_recorder.so")),
        "has a space or a colon",
    );
    fails(profile(&["--to"]).arg(place.join("no/file")).arg("true"), "cannot write");
    copy_program(&library(), &place.join("libmemferry_recorder.so"));
    let beside = missing.output().unwrap();
    assert!(
        text(&beside.stderr).contains("1 program(s) counted"),
        "the library beside the command is not found"
    );
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_full_disk_is_named() {
    let output = profile(&["--to", "/dev/full", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write /dev/full: "), "{}", text(&output.stderr));
}

#[test]
fn bad_arguments_are_refused() {
    for arguments in
        [&[][..], &["--callers", "many", "true"], &["--callers", "-1", "true"], &["--nothing", "true"]]
    {
        let output = profile(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("Usage") || text(&output.stderr).contains("error:"));
    }
}

#[test]
fn other_preloaded_libraries_stay() {
    let output =
        profile(&["--", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "/nowhere.so").output().unwrap();
    let expected = format!("{}:/nowhere.so\n", library().canonicalize().unwrap().display());
    assert_eq!(text(&output.stdout), expected);
}
