//! Programs that know nothing of memferry, with the library preloaded: the same output as without, in every situation that breaks
//! libraries of this kind.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// What takes longer hangs: on a slow machine that is busy too, each takes less than a minute.
const LIMIT: Duration = Duration::from_secs(300);

/// The library of this build, which cargo does not make for tests by itself.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().expect("it runs");
        let directory = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "memferry-preload", "--target-dir"]);
        build.arg(directory.parent().expect("target"));
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the library is not built");
        directory.join("libmemferry_preload.so")
    })
}

/// What `MEMFERRY_PRELOAD` may say, nothing among it. The output has to be the same in all of them.
const MODES: [&str; 4] = ["off", "", "split", "async"];
/// What is said where copies must not be made after the call returned.
const NOT_ASYNCHRONOUS: &str = "memferry: no copy is asynchronous here";

/// Names the seconds that the stress takes, and its seed.
const STRESS: [(&str, &str); 2] = [("MEMFERRY_STRESS_SECONDS", "2"), ("MEMFERRY_STRESS_SEED", "20061")];

/// A C program of this directory, compiled.
fn hardships() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("hardships"))
}

fn unseen() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("unseen"))
}

fn compiled(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread", "-o"]);
    let status = compiler.args([program.as_path(), &source]).arg("-ldl").status().expect("a C compiler");
    assert!(status.success(), "{name}.c does not compile");
    program
}

/// A program, to be run with the library in a mode or without it.
fn program(path: impl AsRef<OsStr>, arguments: &[&str], mode: Option<&str>) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).env("LC_ALL", "C").env_remove("MEMFERRY_PRELOAD");
    if let Some(mode) = mode {
        command.env("LD_PRELOAD", library()).env("MEMFERRY_PRELOAD", mode);
    }
    command
}

fn run(path: impl AsRef<OsStr>, arguments: &[&str], mode: Option<&str>) -> Output {
    run_within(LIMIT, &mut program(path, arguments, mode))
}

/// Runs a command; one that takes longer than the limit is killed with all that it started, and fails.
fn run_within(limit: Duration, command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().expect("it starts");
    let (group, (sender, ended)) = (child.id(), mpsc::channel());
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(limit).unwrap_or_else(|_| {
        let killed = Command::new("sh").args(["-c", &format!("kill -KILL -{group}")]).status();
        let wrote = ended.recv_timeout(LIMIT);
        panic!("{command:?} did not end within {limit:?} (killed: {killed:?}): {wrote:?}");
    });
    output.expect("what it writes can be read")
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Whether a program is installed; says so when it is not.
fn is_there(name: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {name} >/dev/null")]).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        println!("{name} is not installed: not run");
    }
    there
}

/// Runs a script of the shell with the library in each mode and without, and gives what all wrote.
fn same_in_all(needs: &str, script: &str) {
    if !is_there(needs) {
        return;
    }
    let plain = run("sh", &["-c", script], None);
    assert!(plain.status.success(), "{needs} without the library: {}", text(&plain.stderr));
    assert!(!plain.stdout.is_empty(), "{needs} wrote nothing, which proves nothing");
    for mode in MODES {
        let preloaded = run("sh", &["-c", script], Some(mode));
        assert_eq!(preloaded.status, plain.status, "{needs}, {mode}: {}", text(&preloaded.stderr));
        assert!(preloaded.stdout == plain.stdout, "{needs}, {mode}, writes something else");
    }
}

#[test]
fn hardships_are_survived_and_every_byte_is_right() {
    let program = hardships();
    for mode in [None].into_iter().chain(MODES.map(Some)) {
        let output = run(program, &[], mode);
        let said = text(&output.stderr);
        assert!(output.status.success() && output.stdout == b"ok\n", "{mode:?}: {said}");
    }
}

/// Longer by hand: `MEMFERRY_STRESS_SECONDS=600 cargo test --release -p memferry-preload --test programs forking`.
#[test]
fn forking_threading_and_copying_at_once_goes_well() {
    let [seconds, seed] =
        STRESS.map(|(name, usual)| std::env::var(name).unwrap_or_else(|_| usual.to_owned()));
    let stress = compiled("stress");
    let limit = LIMIT + Duration::from_secs(seconds.parse().expect("a number of seconds"));
    for mode in MODES {
        println!("{seconds} s, seed {seed}, {mode}");
        let output = run_within(limit, &mut program(&stress, &[&seconds, &seed], Some(mode)));
        let said = text(&output.stderr);
        assert!(output.status.success() && output.stdout.starts_with(b"ok"), "{mode}: {said}");
        println!("{}", text(&output.stdout));
    }
}

#[test]
fn nobody_sees_a_byte_from_before_a_copy_or_from_after_it() {
    let program = unseen();
    for (mode, rounds) in
        [(None, "1"), (Some(""), "1"), (Some("split"), "1"), (Some("async"), "3"), (Some("async"), "3")]
    {
        let output = run(program, &[rounds], mode);
        let wrote = text(&output.stdout);
        let said = text(&output.stderr);
        assert!(output.status.success() && wrote.ends_with("ok\n"), "{mode:?}: {said}");
        let later = mode == Some("async") && !said.contains(NOT_ASYNCHRONOUS);
        println!("{mode:?}: {wrote}");
        // A loaded machine makes many copies before the program runs again, and never all of them.
        assert_eq!(!wrote.starts_with("pending 0 "), later, "{mode:?}: {wrote}{said}");
    }
}

#[test]
fn nothing_that_is_done_to_either_range_loses_a_page() {
    let program = compiled("disturbed");
    for (mode, rounds) in [(None, "20"), (Some("async"), "120")] {
        let output = run(&program, &[rounds], mode);
        let wrote = text(&output.stdout);
        let said = text(&output.stderr);
        assert!(output.status.success() && wrote.ends_with("ok\n"), "{mode:?}: {said}");
        println!("{mode:?}: {wrote}");
    }
}

#[test]
fn without_the_right_to_it_no_copy_is_asynchronous_and_this_is_said_once() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const NOBODY: u32 = 65534;
    let place = std::env::temp_dir().join(format!("memferry-preload-{}", std::process::id()));
    // A run that crashed may have had the same number.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a directory");
    let library_there = place.join("library.so");
    let program = place.join("unseen");
    for (from, to) in [(library(), &library_there), (unseen(), &program)] {
        // By another process: what this one has open to write, a child forked by another test has too for a moment,
        // and the program cannot be started then.
        let mut install = Command::new("install");
        let status = install.args(["-m", "755"]).args([from, to]).status().expect("install runs");
        assert!(status.success(), "{} is not copied", from.display());
    }
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).expect("for all");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{0} 1; {0} 1", program.display())]);
    command.env("LD_PRELOAD", &library_there).env("MEMFERRY_PRELOAD", "async");
    if std::fs::metadata(&place).expect("it is there").uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = run_within(LIMIT, &mut command);
    std::fs::remove_dir_all(&place).expect("it can be removed");
    let wrote = text(&output.stdout);
    let said = text(&output.stderr);
    assert!(output.status.success() && wrote.matches("ok\n").count() == 2, "{wrote}{said}");
    if Path::new("/proc/sys/vm/unprivileged_userfaultfd").exists() {
        let open = std::fs::read("/proc/sys/vm/unprivileged_userfaultfd").expect("it can be read");
        assert!(open != b"0\n" || said.matches(NOT_ASYNCHRONOUS).count() == 1, "{said}");
    }
}

#[test]
fn compressors_write_the_same() {
    let noise = "head -c 24000000 /dev/zero | tr '\\0' 'm'; seq 1 1500000";
    for (name, through) in [
        ("gzip", "gzip -n1 | tee /dev/stderr 2>/dev/null | gzip -d"),
        ("xz", "xz -0 -T2 | xz -d"),
        ("zstd", "zstd -q -3 --long=27 | zstd -q -d --long=27"),
    ] {
        same_in_all(name, &format!("({noise}) | {through} | sha256sum"));
    }
}

#[test]
fn a_database_answers_the_same() {
    let script = "sqlite3 :memory: \"create table t(a integer primary key, b blob); \
                  with recursive n(i) as (select 1 union all select i+1 from n where i<40) \
                  insert into t select i, zeroblob(700000) || i from n; \
                  select count(*), sum(length(b)), hex(substr(group_concat(b), 28000000, 20)) from t;\"";
    same_in_all("sqlite3", script);
}

#[test]
fn an_interpreter_computes_the_same() {
    let script = "python3 -c 'import hashlib, threading, subprocess\n\
                  data = bytes(range(256)) * 120000\n\
                  parts = []\n\
                  def work(n):\n    part = bytearray(data); part[n::7] = bytes(len(part[n::7])); parts.append((n, hashlib.sha256(part).hexdigest()))\n\
                  threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n\
                  [t.start() for t in threads]; [t.join() for t in threads]\n\
                  print(sorted(parts), subprocess.run([\"echo\", \"child\"], capture_output=True).stdout)'";
    same_in_all("python3", script);
}

#[test]
fn a_compiler_and_a_version_control_system_do_the_same() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hardships.c");
    let script = format!("cc -O2 -S -o - {}", source.display());
    same_in_all("cc", &script);
    same_in_all("git", "head -c 9000000 /dev/zero | git hash-object --stdin");
    let history = "set -e; d=$(mktemp -d); trap 'rm -rf $d' EXIT; cd $d; export HOME=$d GIT_CONFIG_NOSYSTEM=1\n\
                   export GIT_AUTHOR_DATE='1996-01-01T00:00:00Z' GIT_COMMITTER_DATE='1996-01-01T00:00:00Z'\n\
                   git init -q -b main .; git config user.name n; git config user.email e\n\
                   for i in 1 2 3; do seq $i 150000 >long; seq $i 20 >short; git add .; git commit -q -m $i; done\n\
                   git gc -q; git clone -q . copy; git -C copy rev-parse HEAD; git -C copy diff HEAD~2 | sha256sum\n\
                   git fsck; sha256sum copy/long | cut -c-64";
    same_in_all("git", history);
}

#[test]
fn a_store_under_its_own_benchmark_gives_back_what_was_stored() {
    let script = "d=$(mktemp -d); s=$d/socket; trap 'redis-cli -s $s shutdown nosave; wait; rm -rf $d' EXIT\n\
                  redis-server --port 0 --unixsocket $s --save '' --dir $d >/dev/null & server=$!\n\
                  until redis-cli -s $s ping >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.05; done\n\
                  redis-benchmark -s $s -n 400 -c 8 -d 150000 -t set,get,lpush,lrange_100 -q >/dev/null || exit 1\n\
                  seq 1 700000 | redis-cli -s $s -x set long; redis-cli -s $s get long | sha256sum\n\
                  redis-cli -s $s append long tail; redis-cli -s $s setrange long 3000000 middle\n\
                  redis-cli -s $s getrange long 2999990 -1 | sha256sum; redis-cli -s $s copy long other\n\
                  redis-cli -s $s get other | sha256sum; redis-cli -s $s strlen key:__rand_int__";
    if is_there("redis-benchmark") {
        same_in_all("redis-server", script);
    }
}

#[test]
fn pictures_are_the_same() {
    let convert = Command::new("convert").arg("-version").output();
    if !convert.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("ImageMagick")) {
        println!("ImageMagick's convert is not installed: not run");
        return;
    }
    let script = "convert -size 1400x1000 gradient:red-blue -swirl 70 -rotate 90 -resize 70% -blur 0x2 -flip ppm:- | sha256sum";
    same_in_all("convert", script);
}

#[test]
fn hundreds_of_children_of_nested_shells_do_the_same() {
    let script = "for i in $(seq 60); do bash -c 'for j in 1 2 3; do echo $((j * '$i')) | (read x; echo $x | cat); done'; done";
    same_in_all("bash", script);
}

#[test]
fn a_mode_that_there_is_not_is_said_once_and_passed_over() {
    for word in ["of", "Async", "split "] {
        let output = run("sh", &["-c", "sh -c 'echo \"[$MEMFERRY_PRELOAD]\"'"], Some(word));
        assert!(output.status.success() && output.stdout == b"[]\n", "{word}: {}", text(&output.stdout));
        let said = "memferry: MEMFERRY_PRELOAD is passed over: it has to be off, split or async\n";
        assert_eq!(text(&output.stderr), said, "{word}");
    }
    let output = run("true", &[], Some(""));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn it_can_be_switched_off() {
    let output = run(hardships(), &[], Some("off"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
