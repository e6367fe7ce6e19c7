//! The firmware on QEMU's n810: the SDMA driver on a DMA engine modelled by other authors.
//!
//! ```text
//! firmware for bare metal ──► QEMU ── third serial line ──► target/n810.txt ──► the same as the expected lines?
//! ```
//!
//! QEMU's exit status is not reliable: the firmware's output is compared.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::watch;
use crate::failure::Failure;
use crate::layout::firmware;
use crate::line::Line;
use crate::setup::debian;
use crate::stages::{self, output, print, say};
use crate::work::Work;

const QEMU: &str = "qemu-system-arm";
/// The checks take about a second.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.component("rust-src")?;
    work.setup.tools(&[debian::QEMU_ARM])?;
    let machines = output(&Line::new(QEMU).args(["-M", "help"])).unwrap_or_default();
    if !has_machine(&machines, "n810") {
        return Err(Failure::setup("this QEMU has no machine n810; install the one of Debian 12 (7.2)"));
    }
    let version = output(&Line::new(QEMU).arg("--version")).unwrap_or_default();
    say(format_args!(
        "{}; the skipped gaps are those of QEMU 7.2",
        version.lines().next().unwrap_or_default()
    ));
    if stages::run(&cargo("fetch")) != 0 {
        return Err(Failure::setup(
            "could not download the crates of the firmware or of the standard library",
        ));
    }
    let build = cargo("build").args(["--release", "-Zbuild-std-features=compiler-builtins-mem"]);
    work.stages.run("firmware for n810", &build)?;
    let program = work.place.built(&format!("{}/release/{}", firmware::TARGET, firmware::BINARY));
    let line = qemu(&program);
    let said = work.place.built("n810.txt");
    work.stages.step("firmware on n810", &line, || boot(&line, &said))?;
    let expected = work.place.at(firmware::EXPECTED_LINES);
    let compare = Line::new("diff").args(["-u", "--strip-trailing-cr"]).arg(expected).arg(&said);
    work.stages.run("lines of the firmware", &compare)?;
    let said = std::fs::read_to_string(&said).unwrap_or_default();
    let skipped: Vec<&str> = said.lines().filter(|line| line.contains("SKIP")).collect();
    print(format_args!("\n{}", skipped.join("\n")));
    let passed = said.lines().filter(|line| line.starts_with("PASS")).count();
    print(format_args!(
        "\nx guest n810: {passed} checks passed, {} known gaps of the model were skipped",
        skipped.len()
    ));
    Ok(())
}

/// The processor has no prebuilt standard library: the pinned toolchain builds one, with unstable flags.
fn cargo(command: &str) -> Line {
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", firmware::TARGET.to_uppercase().replace('-', "_"));
    Line::new("cargo")
        .args([command, "--locked", "--target", firmware::TARGET, "-Zbuild-std=core,compiler_builtins"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env(&variable, format!("-C target-cpu={}", firmware::CPU))
        .args(["--manifest-path", &format!("{}/Cargo.toml", firmware::FOLDER)])
}

/// Only the third serial port belongs to the firmware.
fn qemu(program: &Path) -> Line {
    let line = Line::new(QEMU).args(["-M", "n810", "-kernel"]).arg(program);
    let line =
        line.args(["-display", "none", "-audiodev", "none,id=none", "-serial", "null", "-serial", "null"]);
    line.args(["-serial", "file:/dev/stdout", "-monitor", "none", "-semihosting"])
}

/// Whether `qemu -M help` lists the machine.
fn has_machine(machines: &str, name: &str) -> bool {
    machines.lines().any(|line| line.split_whitespace().next() == Some(name))
}

/// Runs QEMU with its output in a file. Status 1 means failed checks, which the lines show in detail.
fn boot(line: &Line, said: &Path) -> u8 {
    let boot = || -> std::io::Result<u8> {
        let mut command = line.command();
        command.stdin(Stdio::null()).stdout(std::fs::File::create(said)?);
        let mut child = command.spawn()?;
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Some(status) = child.try_wait()? {
                let status = stages::status_of(status);
                return Ok(if status <= 1 { 0 } else { status });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        watch::end(&mut child);
        say(format_args!("killed after {} s", LIMIT.as_secs()));
        Ok(137)
    };
    boot().unwrap_or_else(|error| {
        say(format_args!("cannot run the firmware: {error}"));
        1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_library_is_built_for_the_processor() {
        assert_eq!(
            cargo("fetch").to_string(),
            "env RUSTC_BOOTSTRAP=1 CARGO_TARGET_ARMV6_NONE_EABI_RUSTFLAGS='-C target-cpu=arm1136j-s' cargo fetch \
             --locked --target armv6-none-eabi -Zbuild-std=core,compiler_builtins --manifest-path research/firmware/Cargo.toml"
        );
    }

    #[test]
    fn firmware_prints_on_the_third_serial_line() {
        let line = qemu(Path::new("/f")).to_string();
        assert!(line.contains("-serial null -serial null -serial file:/dev/stdout"), "{line}");
        assert!(line.starts_with("qemu-system-arm -M n810 -kernel /f "), "{line}");
    }

    #[test]
    fn machine_is_looked_for_by_its_whole_name() {
        let machines = "Supported machines are:\nn800   Nokia N800\nn810   Nokia N810\n";
        assert!(has_machine(machines, "n810"));
        assert!(!has_machine(machines, "n81"));
    }

    #[test]
    fn failed_checks_are_seen_in_the_lines() {
        let said = std::env::temp_dir().join(format!("xtask-n810-{}", std::process::id()));
        let shell = |script| Line::new("sh").args(["-c", script]);
        assert_eq!(boot(&shell("echo FAIL; exit 1"), &said), 0);
        assert_eq!(std::fs::read_to_string(&said).unwrap(), "FAIL\n");
        assert_eq!(boot(&shell("exit 2"), &said), 2);
        std::fs::remove_file(&said).unwrap();
    }
}
