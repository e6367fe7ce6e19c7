//! The provider for libfabric, judged by libfabric's own program and by Open MPI's users.
//!
//! ```text
//! libfabric-dev (installed) ─┐
//! product, debug ─► libmemferry ─┴─► make ──► libmemferry-fi.so ──► its own tests ──► "all scenes passed"
//!                                                  ├──► fi_pingpong, as Debian built it, two processes
//!                                                  └──► Open MPI ──► mpi4py's tests, 2 and 4 processes
//! ```
//!
//! mpi4py's tests come from its source on PyPI, of the version that Debian has installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::service::Service;
use crate::failure::Failure;
use crate::files::make;
use crate::guests::served::SocketFolder;
use crate::layout::{PRODUCT_WORKSPACE, binary, libfabric};
use crate::line::Line;
use crate::packaging::build::{install_c, provider};
use crate::setup::debian;
use crate::setup::environments::MPI;
use crate::stages::{self, print, say};
use crate::work::Work;

/// How long one program may take; mpi4py's tests take three minutes with four processes on two CPUs.
const LIMIT: &str = "1200";
/// How long `fi_pingpong` may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Debian's Python, which has mpi4py for Debian's Open MPI.
const PYTHON: &str = "/usr/bin/python3";
/// Whether mpi4py receives objects by `MPI_Mprobe` and `MPI_Mrecv`. Open MPI's layer over libfabric, on each provider, does not answer
/// a synchronous send that is received so, and the sender waits for ever.
const RECEIVES_BY_PROBE: &str = "MPI4PY_RC_RECV_MPROBE";

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::LIBFABRIC, debian::OPEN_MPI])?;
    let folder = work.place.built("libfabric");
    make(&folder)?;
    let suite = mpi4py(work, &folder)?;
    work.stages.run("build of the product", &PRODUCT_WORKSPACE.cargo(&["build", "--workspace"]))?;
    let built = work.place.built("debug");
    let library = folder.join("memferry");
    work.stages.run("C library", &install_c(&["--strip"], &built, &library))?;
    let sources = work.place.at(libfabric::FOLDER);
    let line =
        provider(&sources, &library, &folder).args(libfabric::TESTS.map(|program| folder.join(program)));
    work.stages.run("provider for libfabric", &line)?;
    let sockets = SocketFolder::new("libfabric")?;
    sockets.open_to_all()?;
    let command = built.join(binary::CLI);
    judge_all(work, &folder, &suite, &command, &sockets.socket())
}

fn judge_all(work: &Work, folder: &Path, suite: &Path, command: &Path, socket: &Path) -> Result<(), Failure> {
    for test in libfabric::TESTS {
        let line = own_test(folder, test, command, socket);
        work.stages.step(test, &line, || judged(&line, verdict_of_scenes))?;
    }
    let service = Service::start(command, socket)?;
    for more in [&[] as &[&str], &["-c", "-S", "all"]] {
        let lines = pingpong(folder, socket, more);
        let name = if more.is_empty() { "fi_pingpong" } else { "fi_pingpong, all sizes, data checked" };
        work.stages.step(name, &lines[1], || pinged(&lines))?;
    }
    for processes in [2, 4] {
        let runner = work.place.at(libfabric::MPI4PY_RUNNER);
        let line = mpi4py_line(folder, socket, &runner, suite, processes);
        let name = format!("mpi4py's tests, {processes} processes");
        work.stages.step(&name, &line, || judged(&line, |said| verdict_of_mpi4py(said, processes)))?;
    }
    drop(service);
    Ok(())
}

/// The source of mpi4py, of the installed version.
fn mpi4py(work: &Work, folder: &Path) -> Result<PathBuf, Failure> {
    let line = Line::new(PYTHON).args(["-c", "import mpi4py; print(mpi4py.__version__)"]);
    let version =
        stages::output(&line).ok_or_else(|| Failure::setup(format!("{PYTHON} does not know mpi4py")))?;
    let name = format!("mpi4py-{}", version.trim());
    let source = folder.join(&name);
    if source.join("test/runtests.py").exists() {
        return Ok(source);
    }
    if !work.setup.environment(&MPI) {
        return Err(Failure::setup("no environment that downloads the source of mpi4py"));
    }
    say(format_args!("downloading the source of {name}"));
    let download = Line::new(MPI.program(&work.place.target, "pip"))
        .args(["download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--no-binary", ":all:", "--no-build-isolation", "--dest"])
        .arg(folder)
        .arg(format!("mpi4py=={}", version.trim()));
    let unpack = Line::new("tar").arg("-xf").arg(folder.join(format!("{name}.tar.gz"))).arg("-C").arg(folder);
    if stages::run_all([&download, &unpack]) != 0 {
        return Err(Failure::setup(format!("no source of {name}")));
    }
    Ok(source)
}

/// A program that finds the provider.
fn program(program: impl AsRef<Path>, folder: &Path) -> Line {
    Line::new("timeout").arg(LIMIT).arg(program.as_ref()).env("FI_PROVIDER_PATH", folder)
}

fn own_test(folder: &Path, name: &str, command: &Path, socket: &Path) -> Line {
    program(folder.join(name), folder).arg(command).arg(socket)
}

/// The port of `fi_pingpong`'s own connection, different in programs that run at the same time.
fn port() -> u32 {
    20_000 + std::process::id() % 20_000
}

/// The server's line, then the client's: they meet on the port.
fn pingpong(folder: &Path, socket: &Path, more: &[&str]) -> [Line; 2] {
    let common = || {
        let line = program("fi_pingpong", folder).args(["-p", libfabric::PROVIDER, "-e", "rdm"]).args(more);
        line.env("FI_MEMFERRY_SOCKET", socket)
    };
    let port = port().to_string();
    [common().args(["-B", &port]), common().args(["-P", &port, "127.0.0.1"])]
}

fn mpi4py_line(folder: &Path, socket: &Path, runner: &Path, suite: &Path, processes: usize) -> Line {
    let line = program("mpirun.openmpi", folder)
        .args(["-np", &processes.to_string(), "--oversubscribe", "--tag-output"])
        .args(["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include"])
        .arg(libfabric::PROVIDER)
        .args(["-x", "FI_PROVIDER_PATH", "-x", "FI_MEMFERRY_SOCKET", "-x", "FI_MEMFERRY_CLAIM_REMOTE"])
        .args(["-x", RECEIVES_BY_PROBE]);
    line.arg(PYTHON)
        .arg(runner)
        .arg(suite)
        .args(["--quiet", "--no-builddir"])
        .env("FI_MEMFERRY_SOCKET", socket)
        .env("FI_MEMFERRY_CLAIM_REMOTE", "1")
        .env(RECEIVES_BY_PROBE, "0")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}

/// Runs a line and judges what it printed. Gives a status, after what was wrong.
fn judged(line: &Line, verdict: impl Fn(&str) -> Result<(), String>) -> u8 {
    let output = match line.command().stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            say(format_args!("cannot start {line}: {error}"));
            return 127;
        }
    };
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    said.lines().for_each(print);
    let status = stages::status_of(output.status);
    let verdict = verdict(&said);
    if let Err(reason) = &verdict {
        say(reason);
    }
    status.max(u8::from(verdict.is_err()))
}

/// Runs `fi_pingpong` on both sides.
fn pinged(lines: &[Line; 2]) -> u8 {
    std::thread::scope(|scope| {
        let server = scope.spawn(|| judged(&lines[0], verdict_of_pingpong));
        let start = Instant::now();
        while !listens(port()) && !server.is_finished() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        judged(&lines[1], verdict_of_pingpong).max(server.join().unwrap_or(1))
    })
}

/// Whether a program of this machine listens on a TCP port.
fn listens(port: u32) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|path| listens_in(&fs::read_to_string(path).unwrap_or_default(), port))
}

fn listens_in(table: &str, port: u32) -> bool {
    let ending = format!(":{port:04X}");
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&ending)) && fields.get(3) == Some(&"0A")
    })
}

fn verdict_of_scenes(said: &str) -> Result<(), String> {
    if said.contains("left out: ") {
        say("scenes were left out, as above");
    }
    if said.lines().any(|line| line == "all scenes passed") {
        Ok(())
    } else {
        Err("it did not say: all scenes passed".to_owned())
    }
}

/// Whether messages of the last size arrived. Its table has a line for each size, with how many came back.
fn verdict_of_pingpong(said: &str) -> Result<(), String> {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_complete = last.split_whitespace().nth(2).is_some_and(|back| back.starts_with('='));
    if is_complete { Ok(()) } else { Err("it did not say how many messages came back".to_owned()) }
}

/// What each process printed. mpirun's tags say whose text follows; the next tag may be in the middle of a line.
fn by_process(said: &str, processes: usize) -> Vec<String> {
    let mut texts = vec![String::new(); processes];
    for part in said.split("[1,").skip(1) {
        let Some((tag, text)) = part.split_once(">:") else { continue };
        let process = tag.split_once(']').and_then(|(number, _)| number.parse::<usize>().ok());
        if let Some(whole) = process.and_then(|process| texts.get_mut(process)) {
            whole.push_str(text);
        }
    }
    texts
}

/// Whether each process ran tests, and none failed.
fn verdict_of_mpi4py(said: &str, processes: usize) -> Result<(), String> {
    let texts = by_process(said, processes);
    let count = |is_it: fn(&str) -> bool| texts.iter().filter(|text| text.lines().any(is_it)).count();
    let passed = count(|line| line == "OK" || line.starts_with("OK ("));
    let ran = count(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "));
    if (passed, ran) == (processes, processes) {
        return Ok(());
    }
    Err(format!("{ran} of {processes} processes ran tests, and {passed} said OK"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_must_pass() {
        let good = "[1,0]<stderr>:Ran 9 tests in 1.0s\n[1,1]<stderr>:Ran 9 tests in 1.1s\n\
                    [1,0]<stderr>:\n[1,1]<stderr>:OK[1,1]<stderr>: (skipped=3)\n[1,0]<stderr>:OK\n";
        assert_eq!(verdict_of_mpi4py(good, 2), Ok(()));
        assert!(verdict_of_mpi4py(good, 4).is_err());
        for (part, other) in [("OK\n", "FAILED\n"), ("OK[1,1]", "FAILED[1,1]"), ("Ran 9", "Ran 0")] {
            assert!(verdict_of_mpi4py(&good.replacen(part, other, 1), 2).is_err(), "{part}");
        }
    }

    #[test]
    fn words_of_a_process_follow_those_of_another_on_one_line() {
        let good = "[1,2]<stderr>:---[1,0]<stderr>:Ran 9 tests in 1.0s\n[1,0]<stderr>:OK (skipped=4)\n\
                    [1,1]<stderr>:Ran 9 tests in 1.1s\n[1,3]<stderr>:---[1,2]<stderr>:\n\
                    [1,2]<stderr>:Ran 9 tests in 1.2s[1,2]<stderr>:\n[1,2]<stderr>:\n\
                    [1,2]<stderr>:OK[1,2]<stderr>: (skipped=4)[1,2]<stderr>:\n[1,3]<stderr>:\n\
                    [1,1]<stderr>:OK\n[1,3]<stderr>:Ran 9 tests in 1.3s\n[1,3]<stderr>:OK\n";
        assert_eq!(verdict_of_mpi4py(good, 4), Ok(()));
        let twice = good.replace("[1,3]<stderr>:OK", "[1,1]<stderr>:OK");
        assert_eq!(verdict_of_mpi4py(&twice, 4).unwrap_err(), "4 of 4 processes ran tests, and 3 said OK");
        assert!(verdict_of_mpi4py(&good.replace("OK[1,2]", "FAILED[1,2]"), 4).is_err());
    }

    #[test]
    fn pingpong_must_have_come_back() {
        let good = "bytes   #sent   #ack     total\n64      10      =10      1.2k        0.24s\n";
        assert_eq!(verdict_of_pingpong(good), Ok(()));
        assert!(verdict_of_pingpong("bytes   #sent   #ack     total\n").is_err());
        assert!(verdict_of_pingpong(&format!("{good}fi_domain(): error\n")).is_err());
        assert!(verdict_of_pingpong("").is_err());
    }

    #[test]
    fn listening_ports_are_known() {
        let table = "  sl  local_address rem_address   st\n   0: 00000000:5208 00000000:0000 0A 0:0\n   \
                     1: 0100007F:5209 0100007F:1F90 01 0:0\n";
        assert!(listens_in(table, 0x5208));
        assert!(!listens_in(table, 0x5209));
        assert!(!listens_in("", 0x5208));
    }

    #[test]
    fn open_mpi_gets_the_provider_alone() {
        let [folder, socket, runner, suite] = ["/t/fi", "/s", "/r.py", "/t/mpi4py-3"].map(Path::new);
        let line = mpi4py_line(folder, socket, runner, suite, 4);
        let line = line.to_string();
        assert!(line.contains(" -np 4 ") && line.contains(" mtl_ofi_provider_include memferry "), "{line}");
        assert!(line.ends_with(" /r.py /t/mpi4py-3 --quiet --no-builddir"), "{line}");
    }

    #[test]
    fn both_sides_of_pingpong_use_one_port() {
        let lines = pingpong(Path::new("/t/fi"), Path::new("/s"), &["-c"]).map(|line| line.to_string());
        let port = port();
        assert!(lines[0].ends_with(&format!(" fi_pingpong -p memferry -e rdm -c -B {port}")), "{}", lines[0]);
        assert!(lines[1].ends_with(&format!(" -c -P {port} 127.0.0.1")), "{}", lines[1]);
    }
}
