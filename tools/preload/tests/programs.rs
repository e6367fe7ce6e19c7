//! Runs unmodified programs with the preloaded library: their output must be the same as without it, even in situations that
//! break libraries of this kind.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// Time after which a program counts as hanging; each takes less than a minute on a slow, busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The library of this build: `./x test` builds it and names its folder, otherwise this test has Cargo build it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(folder) = std::env::var_os("MEMFERRY_TEST_BUILT") {
            return Path::new(&folder).join("libmemferry_preload.so");
        }
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

/// Values of `MEMFERRY_PRELOAD`; the output must be the same with each.
const VALUES: [&str; 2] = ["off", ""];

/// Variables for the duration of the stress test in seconds and for its seed, with defaults.
const STRESS: [(&str, &str); 2] = [("MEMFERRY_STRESS_SECONDS", "2"), ("MEMFERRY_STRESS_SEED", "20061")];

/// The compiled program `hardships.c`.
fn hardships() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("hardships"))
}

fn compiled(name: &str) -> PathBuf {
    compiled_with(name, &[])
}

fn compiled_with(name: &str, options: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread"]);
    compiler.args(options).arg("-o");
    let status = compiler.args([program.as_path(), &source]).arg("-ldl").status().expect("a C compiler");
    assert!(status.success(), "{name}.c does not compile");
    program
}

/// A command that runs without the library, or with it and a value of `MEMFERRY_PRELOAD`.
fn program(path: impl AsRef<OsStr>, arguments: &[&str], value: Option<&str>) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).env("LC_ALL", "C").env_remove("MEMFERRY_PRELOAD");
    if let Some(value) = value {
        command.env("LD_PRELOAD", library()).env("MEMFERRY_PRELOAD", value);
    }
    command
}

fn run(path: impl AsRef<OsStr>, arguments: &[&str], value: Option<&str>) -> Output {
    run_within(LIMIT, &mut program(path, arguments, value))
}

/// Runs a command; if it exceeds the limit, kills it with all its children and panics.
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
    output.expect("its output can be read")
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Whether a program is installed; prints a line if not.
fn is_installed(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name} >/dev/null")]).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!("{name} is not installed: not run");
    }
    found
}

/// Runs a shell script without the library, then with it on and off, and compares the outputs.
fn same_in_all(needs: &str, script: &str) {
    if !is_installed(needs) {
        return;
    }
    let plain = run("sh", &["-c", script], None);
    assert!(plain.status.success(), "{needs} without the library: {}", text(&plain.stderr));
    assert!(!plain.stdout.is_empty(), "{needs} wrote nothing, which proves nothing");
    for value in VALUES {
        let preloaded = run("sh", &["-c", script], Some(value));
        assert_eq!(preloaded.status, plain.status, "{needs}, {value:?}: {}", text(&preloaded.stderr));
        assert!(preloaded.stdout == plain.stdout, "{needs}, {value:?}, output differs");
    }
}

/// Whether the compiler has the static unwinder, as `build.rs` asks.
fn has_static_unwinder() -> bool {
    let found = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    found.is_ok_and(|output| Path::new(text(&output.stdout).trim()).is_absolute())
}

#[test]
fn the_library_loads_no_other() {
    if !has_static_unwinder() {
        println!("the compiler has no libgcc_eh.a: left out");
        return;
    }
    let bytes = std::fs::read(library()).unwrap();
    let needs = |name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(needs("libc.so.6") && !needs("libgcc_s.so"), "programs would load the unwinder as well");
}

#[test]
fn hardships_leave_every_byte_correct() {
    let program = hardships();
    for value in [None].into_iter().chain(VALUES.map(Some)) {
        let output = run(program, &[], value);
        let said = text(&output.stderr);
        assert!(output.status.success() && output.stdout == b"ok\n", "{value:?}: {said}");
    }
}

/// Run it longer by hand: `MEMFERRY_STRESS_SECONDS=600 cargo test --release -p memferry-preload --test programs forking`.
#[test]
fn forking_threading_and_copying_together() {
    let [seconds, seed] =
        STRESS.map(|(name, usual)| std::env::var(name).unwrap_or_else(|_| usual.to_owned()));
    let stress = compiled("stress");
    let limit = LIMIT + Duration::from_secs(seconds.parse().expect("a number of seconds"));
    for value in VALUES {
        println!("{seconds} s, seed {seed}, {value:?}");
        let output = run_within(limit, &mut program(&stress, &[&seconds, &seed], Some(value)));
        let said = text(&output.stderr);
        assert!(output.status.success() && output.stdout.starts_with(b"ok"), "{value:?}: {said}");
        println!("{}", text(&output.stdout));
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
fn a_database_returns_the_same() {
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
fn a_compiler_and_git_do_the_same() {
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
fn a_benchmarked_store_keeps_its_data() {
    let script = "d=$(mktemp -d); s=$d/socket; trap 'redis-cli -s $s shutdown nosave; wait; rm -rf $d' EXIT\n\
                  redis-server --port 0 --unixsocket $s --save '' --dir $d >/dev/null & server=$!\n\
                  until redis-cli -s $s ping >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.05; done\n\
                  redis-benchmark -s $s -n 400 -c 8 -d 150000 -t set,get,lpush,lrange_100 -q >/dev/null || exit 1\n\
                  seq 1 700000 | redis-cli -s $s -x set long; redis-cli -s $s get long | sha256sum\n\
                  redis-cli -s $s append long tail; redis-cli -s $s setrange long 3000000 middle\n\
                  redis-cli -s $s getrange long 2999990 -1 | sha256sum; redis-cli -s $s copy long other\n\
                  redis-cli -s $s get other | sha256sum; redis-cli -s $s strlen key:__rand_int__";
    if is_installed("redis-benchmark") {
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
fn nested_shells_do_the_same() {
    let script = "for i in $(seq 60); do bash -c 'for j in 1 2 3; do echo $((j * '$i')) | (read x; echo $x | cat); done'; done";
    same_in_all("bash", script);
}

#[test]
fn an_invalid_value_is_reported_once() {
    let advice = "unset it, or set it to off\n";
    for (value, message) in [
        ("split", "memferry: MEMFERRY_PRELOAD=split is ignored: copies are no longer split; "),
        ("async", "memferry: MEMFERRY_PRELOAD=async is ignored: copies are no longer asynchronous; "),
        ("of", "memferry: MEMFERRY_PRELOAD is ignored: its only value is off; "),
        ("Async", "memferry: MEMFERRY_PRELOAD is ignored: its only value is off; "),
        ("off ", "memferry: MEMFERRY_PRELOAD is ignored: its only value is off; "),
    ] {
        let output = run("sh", &["-c", "sh -c 'echo \"[$MEMFERRY_PRELOAD]\"'"], Some(value));
        assert!(output.status.success() && output.stdout == b"[]\n", "{value}: {}", text(&output.stdout));
        assert_eq!(text(&output.stderr), format!("{message}{advice}"), "{value}");
    }
    let output = run("true", &[], Some(""));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn copies_are_correct_with_an_obsolete_value() {
    for value in ["split", "async"] {
        let output = run(hardships(), &[], Some(value));
        let said = text(&output.stderr);
        assert!(output.status.success() && output.stdout == b"ok\n", "{value}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn calls_before_start_up_work() {
    let early = compiled_with("early", &["-shared", "-fPIC"]);
    let mut command = program("true", &[], None);
    let libraries = format!("{}:{}", library().display(), early.display());
    let output = run_within(LIMIT, command.env("LD_PRELOAD", libraries));
    assert!(output.status.success() && output.stdout == b"early\n", "{}", text(&output.stderr));
}

#[test]
fn the_first_long_copy_reads_no_environment() {
    let late = compiled_with("late", &["-rdynamic"]);
    for value in [None].into_iter().chain(VALUES.map(Some)) {
        let output = run(&late, &[], value);
        assert!(output.status.success() && output.stdout == b"ok\n", "{value:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_closed_stderr_is_harmless() {
    let output = run("sh", &["-c", "exec 2>&-; MEMFERRY_PRELOAD=async sh -c 'echo works'"], Some(""));
    assert!(output.status.success() && output.stdout == b"works\n", "{}", text(&output.stdout));
}

#[test]
fn off_switches_the_library_off() {
    let output = run(hardships(), &[], Some("off"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
