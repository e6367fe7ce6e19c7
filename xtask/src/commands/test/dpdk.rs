//! The driver for DPDK, judged by DPDK's own test program.
//!
//! ```text
//! libdpdk-dev, dpdk-dev (installed) ─┐
//! dpdk's source package ─► 3 headers ┴─► make ──► driver ──► dpdk-test dmadev_autotest, as Debian built it ──► judge
//! product, debug ─► memferry, libmemferry ┘          ├─────► bad_input ──► "all scenes passed"
//!                                                    └─────► examples/dpdk_copy
//! ```
//!
//! Everything runs with the service in the process and with one behind a socket; on ordinary pages, and on huge pages if enough are free.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::service::Service;
use crate::failure::Failure;
use crate::files::{make, make_anew};
use crate::guests::packages::{self, Packages};
use crate::guests::served::SocketFolder;
use crate::layout::{PRODUCT_WORKSPACE, binary, dpdk};
use crate::line::Line;
use crate::packaging::build::install_c;
use crate::setup::debian;
use crate::stages::{self, print, say};
use crate::work::Work;

/// How long one run of DPDK's test may take. It takes ten seconds.
const LIMIT: &str = "120";
/// Huge pages of 2 MiB that a run takes: its memory twice while it is moved into frames.
const HUGE_PAGES: u64 = 320;
/// Memory of a run, in MiB: enough for the buffers of the test, and less than the tests of memory that grows ask for.
const MEMORY: &str = "64";
/// The groups of tests that a device passes, in the order of the output.
const GROUPS: [&str; 4] = ["copy", "burst capacity", "error handling", "fill"];

/// Where the service is, and what the run's memory is.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// Of programs that run at the same time.
    number: u32,
    /// Without one the service is in the process.
    socket: Option<&'a Path>,
    memory: &'a [&'a str],
}

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::DPDK])?;
    let folder = work.place.built("dpdk");
    check_folder(&folder)?;
    let headers = headers(&folder)?;
    work.stages.run("build of the product", &PRODUCT_WORKSPACE.cargo(&["build", "--workspace"]))?;
    let built = work.place.built("debug");
    let library = folder.join("memferry");
    work.stages.run("C library", &install_c(&["--strip"], &built, &library))?;
    work.stages
        .run("driver for DPDK", &make_line(&work.place.at(dpdk::FOLDER), &headers, &library, &folder))?;
    let sockets = SocketFolder::new("dpdk")?;
    let command = built.join(binary::CLI);
    judge_all(work, &folder, &command, &sockets.socket())
}

fn judge_all(work: &Work, folder: &Path, command: &Path, socket: &Path) -> Result<(), Failure> {
    let ordinary: &[&str] = &["--no-huge"];
    let huge: &[&str] = &["--in-memory", "--iova-mode=va"];
    let has_huge_pages = free_huge_pages() >= HUGE_PAGES;
    if !has_huge_pages {
        work.leave_out(format!(
            "DPDK on huge pages was NOT RUN: {HUGE_PAGES} free ones are needed (/proc/sys/vm/nr_hugepages)"
        ));
    }
    let memories = [("ordinary pages", ordinary), ("huge pages", huge)];
    for (pages, memory) in memories.into_iter().take(if has_huge_pages { 2 } else { 1 }) {
        let service = Service::start(command, socket)?;
        for (place, socket) in [("in the process", None), ("behind a socket", Some(socket))] {
            let name = format!("service {place}, {pages}");
            let way = Way { number: 0, socket, memory };
            let line = autotest(folder, way);
            work.stages
                .step(&format!("dmadev_autotest, {name}"), &line, || judged(&line, verdict_of_autotest))?;
            let line = example(folder, way);
            work.stages.step(&format!("example, {name}"), &line, || judged(&line, verdict_of_example))?;
        }
        let ways = [1, 2].map(|number| Way { number, socket: Some(socket), memory });
        let lines = ways.map(|way| autotest(folder, way));
        let name = format!("dmadev_autotest, two programs at once, {pages}");
        work.stages.step(&name, &lines[1], || judged_at_once(&lines))?;
        drop(service);
        let line = bad_input(folder, memory, command, socket);
        work.stages.step(&format!("bad input, {pages}"), &line, || judged(&line, verdict_of_bad_input))?;
    }
    Ok(())
}

/// DPDK loads no driver from a folder that others could write, and so may any above it not be.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    make(folder)?;
    let open = folder.ancestors().find(|path| path.metadata().is_ok_and(|data| data.mode() & 0o002 != 0));
    open.map_or(Ok(()), |path| {
        Err(Failure::setup(format!(
            "DPDK loads no driver from below {}, which everybody may write: set CARGO_TARGET_DIR to another folder",
            path.display()
        )))
    })
}

/// The source of DPDK with the headers that drivers include; distributions do not install them.
fn headers(folder: &Path) -> Result<PathBuf, Failure> {
    let version = stages::output(&Line::new("pkg-config").args(["--modversion", "libdpdk"]))
        .ok_or_else(|| Failure::setup("pkg-config does not know libdpdk"))?;
    let source = folder.join(format!("source-{}", version.trim()));
    if dpdk::HEADERS.iter().all(|header| source.join(header).exists()) {
        return Ok(source);
    }
    let (release, _) = packages::mirror()?;
    say(format_args!("downloading the headers of DPDK's drivers from its source package in {release}"));
    let packages = Packages::new(folder.join("apt"), "amd64");
    packages.begin_with_sources(&[&release])?;
    let archive = packages.download_source("dpdk")?;
    check_series(&archive, version.trim())?;
    make_anew(&source)?;
    let wanted = dpdk::HEADERS.iter().map(|header| format!("*/{header}"));
    let line = Line::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source);
    if stages::run(&line.args(["--strip-components=1", "--wildcards"]).args(wanted)) != 0 {
        return Err(Failure::setup(format!("{} has no headers of drivers", archive.display())));
    }
    Ok(source)
}

/// Drivers' interfaces may change between releases of DPDK, not between updates of one.
fn check_series(archive: &Path, version: &str) -> Result<(), Failure> {
    let name = archive.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let series: Vec<&str> = version.split('.').take(2).collect();
    if name.starts_with(&format!("dpdk_{}.", series.join("."))) {
        return Ok(());
    }
    Err(Failure::setup(format!("the source package is {name}, the installed DPDK is {version}")))
}

fn make_line(sources: &Path, headers: &Path, library: &Path, folder: &Path) -> Line {
    let assigned = |name: &str, path: &Path| format!("{name}={}", path.display());
    let line = Line::new("make").arg("-C").arg(sources).arg(assigned("DPDK_SOURCE", headers));
    // Made by another DPDK or library, the driver would not be made anew.
    let line = line.arg(assigned("OUTPUT", folder)).arg("--always-make").arg("all");
    let line = line.args(["dpdk_copy", "bad_input", "turns"].map(|program| folder.join(program)));
    line.env("PKG_CONFIG_PATH", library.join("lib/pkgconfig"))
}

/// A program of DPDK with the driver and its memory.
fn program(program: impl AsRef<Path>, folder: &Path, memory: &[&str], number: u32) -> Line {
    let line = Line::new("timeout").arg(LIMIT).arg(program.as_ref()).args(["--no-pci", "-d"]);
    let line = line.arg(folder.join(dpdk::DRIVER)).args(memory).args(["-m", MEMORY]);
    // Beside other programs of DPDK.
    line.arg(format!("--file-prefix=memferry-{}-{number}", std::process::id()))
}

fn device(socket: Option<&Path>) -> String {
    socket
        .map_or_else(|| dpdk::DEVICE.to_owned(), |path| format!("{},socket={}", dpdk::DEVICE, path.display()))
}

fn autotest(folder: &Path, way: Way<'_>) -> Line {
    program("dpdk-test", folder, way.memory, way.number)
        .arg("--vdev")
        .arg(device(way.socket))
        .arg(dpdk::AUTOTEST)
}

fn example(folder: &Path, way: Way<'_>) -> Line {
    program(folder.join("dpdk_copy"), folder, way.memory, way.number).arg("--vdev").arg(device(way.socket))
}

fn bad_input(folder: &Path, memory: &[&str], command: &Path, socket: &Path) -> Line {
    // Two lcores, on any machine.
    let line = program(folder.join("bad_input"), folder, memory, 0).args(["--lcores", "0@0,1@0"]);
    line.arg("--").arg(command).arg(socket)
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
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    let status = stages::status_of(output.status);
    let verdict = verdict(&said);
    // Progress counts, thousands of them.
    let lines = said.lines().filter(|line| !line.is_empty() && !line.ends_with("Errors: 0"));
    lines.for_each(print);
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    if let Err(reason) = &verdict {
        say(reason);
    }
    status.max(u8::from(verdict.is_err()))
}

/// Runs lines at the same time. Gives the highest status.
fn judged_at_once(lines: &[Line]) -> u8 {
    std::thread::scope(|scope| {
        let start = |line| scope.spawn(move || judged(line, verdict_of_autotest));
        let running: Vec<_> = lines.iter().map(start).collect();
        running.into_iter().map(|one| one.join().unwrap_or(1)).max().unwrap_or(1)
    })
}

/// Whether DPDK's test tried the driver, all of it, and passed.
fn verdict_of_autotest(said: &str) -> Result<(), String> {
    let title = format!("[{}]", dpdk::DEVICE);
    let mut sections = said.split("### Test dmadev instance ");
    let section = sections.find(|section| section.lines().next().is_some_and(|line| line.ends_with(&title)));
    let section = section.ok_or_else(|| format!("no device {} was tested", dpdk::DEVICE))?;
    for group in GROUPS {
        if !section.contains(&format!("Running {group} Tests")) {
            return Err(format!("the tests of {group} were not run"));
        }
    }
    if section.contains("skipping") {
        return Err("tests of the driver were skipped".to_owned());
    }
    expect(said, "Test OK")
}

fn verdict_of_example(said: &str) -> Result<(), String> {
    expect(said, "moved without this lcore: 1048576 bytes, all equal")
}

fn verdict_of_bad_input(said: &str) -> Result<(), String> {
    expect(said, "all scenes passed")
}

fn expect(said: &str, line: &str) -> Result<(), String> {
    if said.lines().any(|one| one == line) { Ok(()) } else { Err(format!("it did not say: {line}")) }
}

/// Free huge pages of the default size, if that is 2 MiB.
fn free_huge_pages() -> u64 {
    free_huge_pages_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn free_huge_pages_of(meminfo: &str) -> u64 {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    if value("Hugepagesize:") == Some(2048) { value("HugePages_Free:").unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "### Test dmadev instance 0 [dma_memferry]\nDMA Dev 0: Running copy Tests  \n\
                        DMA Dev 0: Running burst capacity Tests  \n\
                        DMA Dev 0: Running error handling Tests (errors expected)\n\
                        DMA Dev 0: Running fill Tests  \n\
                        ### Test dmadev instance 1 [dma_skeleton]\nDMA Dev 1: No device fill support, skipping\n\
                        Test OK\n";

    #[test]
    fn a_device_that_passes_all_is_judged_so() {
        assert_eq!(verdict_of_autotest(GOOD), Ok(()));
    }

    #[test]
    fn absent_skipped_and_failed_tests_are_noticed() {
        let wrong = [
            GOOD.replace("[dma_memferry]", "[dma_other]"),
            GOOD.replace("DMA Dev 0: Running fill Tests  \n", ""),
            GOOD.replace(
                "Running fill Tests  \n",
                "Running fill Tests  \nDMA Dev 0: skipping error handling tests\n",
            ),
            GOOD.replace("Test OK", "Test Failed"),
            GOOD.replace("Test OK", "Test Skipped"),
            String::new(),
        ];
        for said in wrong {
            assert!(verdict_of_autotest(&said).is_err(), "{said}");
        }
    }

    #[test]
    fn status_and_verdict_both_count() {
        let line = |script: &str| Line::new("sh").arg("-c").arg(script);
        assert_eq!(judged(&line("echo all scenes passed"), verdict_of_bad_input), 0);
        assert_eq!(judged(&line("echo all scenes passed; exit 3"), verdict_of_bad_input), 3);
        assert_eq!(judged(&line("echo ok: one"), verdict_of_bad_input), 1);
    }

    #[test]
    fn the_socket_is_an_argument_of_the_device() {
        let way = Way { number: 7, socket: Some(Path::new("/s")), memory: &["--no-huge"] };
        let line = autotest(Path::new("/t/dpdk"), way).to_string();
        let expected =
            "timeout 120 dpdk-test --no-pci -d /t/dpdk/librte_dma_memferry.so --no-huge -m 64 --file-prefix=";
        assert!(line.starts_with(expected), "{line}");
        assert!(line.ends_with(" --vdev dma_memferry,socket=/s dmadev_autotest"), "{line}");
    }

    #[test]
    fn source_of_another_series_is_refused() {
        let check = |name: &str| check_series(Path::new(name), "22.11.7").is_ok();
        assert!(check("/a/dpdk_22.11.11.orig.tar.xz"));
        assert!(!check("/a/dpdk_24.11.8.orig.tar.xz") && !check("/a/dpdk_22.110.orig.tar.xz"));
    }

    #[test]
    fn only_pages_of_two_mebibytes_count() {
        let text = "HugePages_Free:      400\nHugepagesize:       2048 kB\n";
        assert_eq!(free_huge_pages_of(text), 400);
        assert_eq!(free_huge_pages_of(&text.replace("2048", "1048576")), 0);
        assert_eq!(free_huge_pages_of(""), 0);
    }
}
