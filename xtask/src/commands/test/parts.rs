//! The parts of the full tests: their stages, their durations, and whether continuous integration may run them.
//!
//! ```text
//! PARTS ──► full run: those by default, in order
//!       └─► choose(commits, seconds): one of those that fit ──► continuous integration
//! ```

use std::time::Duration;

use super::{dpdk, examples, libfabric, matrix, newer_ucx, proof, publish, verdicts};
use crate::commands::dashboard::dashboard_line;
use crate::commands::programs::lab_builds;
use crate::commands::{fuzz, guest, site};
use crate::failure::Failure;
use crate::guests::machine::Machine;
use crate::guests::{ioat, module};
use crate::layout::{PRODUCT_WORKSPACE, RESEARCH_WORKSPACE, package, test};
use crate::line::Line;
use crate::packaging::chroot;
use crate::setup::{ARM, debian};
use crate::work::Work;

/// A part of the full tests.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Usual duration on two CPUs, with nothing built or downloaded before.
    pub(crate) minutes: u32,
    /// Whether a full run without named parts includes it.
    pub(crate) is_default: bool,
    /// Seconds it needs at most after `./x lint` and `./x test`, if continuous integration may run it.
    rotation: Option<u64>,
    /// Runs the part. With a limit, parts of adjustable length end within it.
    pub(crate) run: fn(&Work, Option<Duration>) -> Result<(), Failure>,
}

/// The part that `./x test` runs as well.
const ORDINARY: &str = "tests";
/// Durations and counts without a limit: the soak, random messages, kills, each fuzz target.
const SOAK: Duration = Duration::from_secs(600);
const RANDOM_MESSAGES: Duration = Duration::from_secs(240);
const ENGINE_KILLS: u32 = 1000;
const REMOTE_REVOCATIONS: u32 = 10_000;
const FUZZ_SECONDS: u32 = 30;

pub(crate) const PARTS: &[Part] = &[
    Part {
        name: ORDINARY,
        about: "what ./x test runs",
        minutes: 10,
        is_default: true,
        rotation: None,
        run: |work, _| super::ordinary(work),
    },
    Part {
        name: "loom",
        about: "every interleaving of the shared rings' models",
        minutes: 2,
        is_default: true,
        rotation: Some(240),
        run: |work, _| loom(work),
    },
    Part {
        name: "proof",
        about: "bounded proofs: arithmetic at all values of narrow integers, theorems by z3, which it installs",
        minutes: 4,
        is_default: true,
        rotation: Some(480),
        run: |work, _| proof::run(work),
    },
    Part {
        name: "miri-shm",
        about: "undefined behaviour in shared memory, under Miri",
        minutes: 5,
        is_default: true,
        rotation: Some(540),
        run: |work, _| {
            // Not the examples of the documentation, which make system calls that Miri does not know.
            let packages = package::MEMORY.iter().flat_map(|name| ["-p", name]);
            let selection: Vec<&str> = packages.chain(["--lib", "--tests"]).collect();
            miri(work, "shared memory", &selection)
        },
    },
    Part {
        name: "miri-cpu",
        about: "undefined behaviour in the copy kernels, under Miri",
        minutes: 5,
        is_default: true,
        rotation: Some(540),
        // Only the kernels' own tests: the whole suite would take an hour.
        run: |work, _| miri(work, "copy kernels", &["-p", package::CPU, "--lib"]),
    },
    Part {
        name: "arm",
        about: "the CPU engine for 64-bit Arm, under qemu-user",
        minutes: 3,
        is_default: true,
        rotation: Some(420),
        run: arm,
    },
    Part {
        name: "arm-product",
        about: "the product built for 64-bit Arm, the tests of its libraries under qemu-user",
        minutes: 12,
        is_default: true,
        rotation: None,
        run: |work, _| arm_product(work),
    },
    Part {
        name: "c-sanitizers",
        about: "C programs under gcc, clang, the sanitizers and valgrind, which it installs",
        minutes: 4,
        is_default: true,
        rotation: Some(420),
        run: |work, _| c_programs(work),
    },
    Part {
        name: "soak",
        about: "ten minutes of random clients against services that are killed and starved, four of random 9P messages, 1,000 \
                kills of an engine process, 10,000 revocations of grants to another node",
        minutes: 30,
        is_default: true,
        rotation: Some(150),
        run: |work, limit| {
            super::long_soak(work, bounded(SOAK, limit, Duration::from_secs(90)))?;
            // With a limit the few seconds of the ordinary tests suffice.
            if limit.is_some() {
                return Ok(());
            }
            super::random_messages(work, RANDOM_MESSAGES)?;
            super::engine_kills(work, ENGINE_KILLS)?;
            super::remote_revocations(work, REMOTE_REVOCATIONS)
        },
    },
    Part {
        name: "fuzz",
        about: "each fuzz target for half a minute",
        minutes: 15,
        is_default: true,
        rotation: None,
        run: |work, _| fuzz::run_all(work, FUZZ_SECONDS),
    },
    Part {
        name: "guest-x86",
        about: "the module, the engine's suite and the service in an x86 guest",
        minutes: 6,
        is_default: true,
        rotation: Some(480),
        run: |work, limit| machine(work, "x86", limit),
    },
    Part {
        name: "guest-zcu102",
        about: "the same on zynqmp-dma, with a fuzzer",
        minutes: 9,
        is_default: true,
        rotation: None,
        run: |work, limit| machine(work, "zcu102", limit),
    },
    Part {
        name: "guest-raspi3b",
        about: "the same on bcm2835-dma",
        minutes: 15,
        is_default: false,
        rotation: None,
        run: |work, limit| machine(work, "raspi3b", limit),
    },
    Part {
        name: "guest-raspi2b",
        about: "the module on bcm2835-dma, 32-bit Arm",
        minutes: 10,
        is_default: false,
        rotation: None,
        run: |work, limit| machine(work, "raspi2b", limit),
    },
    Part {
        name: "guest-smdkc210",
        about: "the module on dma-pl330, 32-bit Arm",
        minutes: 10,
        is_default: false,
        rotation: None,
        run: |work, limit| machine(work, "smdkc210", limit),
    },
    Part {
        name: "guest-zcu102-debug",
        about: "the module on a kernel with KASAN and lockdep, which is built first",
        minutes: 60,
        is_default: false,
        rotation: None,
        run: |work, limit| machine(work, "zcu102-debug", limit),
    },
    Part {
        name: "guest-n810",
        about: "the SDMA driver on bare metal",
        minutes: 2,
        is_default: true,
        rotation: Some(240),
        run: |work, _| guest::run(work, "n810"),
    },
    Part {
        name: "guest-ioat",
        about: "the module and the I/OAT model under Linux's own driver, behind IOMMUs, with faults, without the device, and under the engine process",
        minutes: 7,
        is_default: true,
        rotation: Some(540),
        // Continuous integration runs the rest by the next part.
        run: |work, limit| if limit.is_some() { ioat::run_of_linux(work) } else { ioat::run(work) },
    },
    Part {
        name: "guest-ioat-vfio",
        about: "the I/OAT engine process on the model, through VFIO behind an IOMMU",
        minutes: 4,
        // The one before includes it.
        is_default: false,
        // Most of it builds the product for the guest.
        rotation: Some(480),
        run: |work, _| ioat::run_at_user_level(work),
    },
    Part {
        name: "guest-dsa",
        about: "the module and the DSA model under Linux's own driver, behind an IOMMU, and without the device",
        minutes: 5,
        is_default: false,
        rotation: Some(480),
        run: |work, _| guest::run(work, "dsa"),
    },
    Part {
        name: "guest-v9fs",
        about: "the file server under Linux's own 9P client",
        minutes: 6,
        is_default: true,
        rotation: Some(480),
        run: |work, _| guest::run(work, "v9fs"),
    },
    Part {
        name: "guest-roce",
        about: "two links over soft RoCE, in two guests, by UCX's verbs",
        minutes: 3,
        is_default: true,
        rotation: None,
        run: |work, _| guest::run(work, "roce"),
    },
    Part {
        name: "packages",
        about: "the Debian packages in fresh Debian 12 and 13, README.md and the guide followed word by word there",
        minutes: 12,
        is_default: true,
        rotation: None,
        run: |work, _| chroot::run(work),
    },
    Part {
        name: "matrix",
        about: "the product in other releases of Debian, as an ordinary user; the wheel under their Pythons",
        minutes: 15,
        is_default: true,
        rotation: None,
        run: |work, _| matrix::run(work),
    },
    Part {
        name: "guest-systemd",
        about: "the Debian packages under a booted systemd",
        minutes: 12,
        is_default: true,
        rotation: None,
        run: |work, _| guest::run(work, "systemd"),
    },
    Part {
        name: "dashboard",
        about: "the dashboard's page in headless Chromium, which it installs",
        minutes: 3,
        is_default: true,
        rotation: None,
        run: |work, _| dashboard(work),
    },
    Part {
        name: "site",
        about: "the documentation built by mdBook, which it installs, and its links",
        minutes: 5,
        is_default: true,
        rotation: None,
        run: |work, _| {
            work.setup.rust(&[])?;
            site::build(work)
        },
    },
    Part {
        name: "lab-page",
        about: "the lab's page in headless Chromium, which it installs, at two widths, light and dark",
        minutes: 3,
        is_default: true,
        rotation: None,
        run: |work, _| lab_page(work),
    },
    Part {
        name: "dpdk",
        about: "the driver for DPDK under DPDK's own test of such devices; installs DPDK",
        minutes: 4,
        is_default: true,
        rotation: Some(480),
        run: |work, _| dpdk::run(work),
    },
    Part {
        name: "link-ucx",
        about: "the link's tests over UCX of Debian 13, which it unpacks, with that release's C library",
        minutes: 3,
        is_default: true,
        rotation: Some(300),
        run: |work, _| newer_ucx::run(work),
    },
    Part {
        name: "libfabric",
        about: "the provider for libfabric under fi_pingpong, and under mpi4py's tests on Open MPI; installs both",
        minutes: 6,
        is_default: true,
        rotation: None,
        run: |work, _| libfabric::run(work),
    },
    Part {
        name: "examples",
        about: "the examples of whole programs: Redis, snapshots, frames, data loaders, KV caches; installs redis-tools",
        minutes: 4,
        is_default: true,
        rotation: Some(480),
        run: |work, _| examples::run(work),
    },
    Part {
        name: "publish",
        about: "the crates packed and built as cargo would upload them, their interfaces compared with the last release",
        minutes: 5,
        is_default: true,
        rotation: Some(420),
        run: |work, _| publish::run(work),
    },
    Part {
        name: "newer",
        about: "the module built for the newest kernel in Debian's backports",
        minutes: 2,
        is_default: true,
        rotation: Some(240),
        run: |work, _| guest::run(work, "newer"),
    },
    Part {
        name: "lab",
        about: "every claim of the papers, with its full sweep, compared with the expected verdicts",
        minutes: 10,
        is_default: true,
        rotation: None,
        run: |work, _| lab(work),
    },
];

/// The parts that `./x test` does not run.
pub(crate) fn further() -> impl Iterator<Item = &'static Part> {
    PARTS.iter().filter(|part| part.name != ORDINARY)
}

/// The parts of these names, in the order of the names.
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Part>, Failure> {
    let find = |name: &String| PARTS.iter().find(|part| part.name == name);
    let unknown =
        |name: &String| Failure::WrongUse(format!("test: unknown part '{name}'; ./x test --list lists them"));
    names.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect()
}

/// The part for a number of commits, among those that fit into the seconds.
pub(crate) fn choose(commits: u64, seconds: u64) -> Option<&'static Part> {
    let fits = |part: &&Part| part.rotation.is_some_and(|needed| needed <= seconds);
    let fitting: Vec<&Part> = PARTS.iter().filter(fits).collect();
    let count = u64::try_from(fitting.len()).ok().filter(|count| *count > 0)?;
    let index = usize::try_from(commits % count).ok()?;
    fitting.get(index).copied()
}

/// A duration, shortened if needed to end within a limit; `kept_back` is reserved for other work.
fn bounded(time: Duration, limit: Option<Duration>, kept_back: Duration) -> Duration {
    limit.map_or(time, |limit| limit.saturating_sub(kept_back).min(time))
}

fn loom(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    work.stages.run("loom", &loom_line(&flags, work))
}

fn loom_line(flags: &str, work: &Work) -> Line {
    // What pays for a program that is installed only takes time here.
    Line::new("cargo")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .args(["test", "-p", package::SHM, "--release", "--test", test::LOOM, "--target-dir"])
        .arg(work.place.built("loom"))
        .env("RUSTFLAGS", format!("{flags} --cfg loom").trim_start())
}

/// Runs the tests of a crate with unsafe code under Miri.
fn miri(work: &Work, name: &str, selection: &[&str]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    let nightly = work.setup.nightly(&["miri", "rust-src"])?;
    let setup = Line::new("cargo").args([&format!("+{nightly}"), "miri", "setup"]);
    if crate::stages::run(&setup) != 0 {
        return Err(Failure::setup("could not download or build Miri's standard library"));
    }
    let flags = std::env::var("MIRIFLAGS").unwrap_or_default();
    work.stages.run(&format!("Miri, {name}"), &miri_line(&nightly, &flags, selection, work))
}

fn miri_line(nightly: &str, flags: &str, selection: &[&str], work: &Work) -> Line {
    // Miri isolates the tests from files and is slow: property tests record no failures and run fewer cases.
    let own = "-Zmiri-env-set=PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 -Zmiri-env-set=PROPTEST_CASES=16";
    Line::new("cargo")
        .args([&format!("+{nightly}"), "miri", "test", "--target-dir"])
        .arg(work.place.built("miri"))
        .args(selection)
        .env("MIRIFLAGS", format!("{flags} {own}").trim_start())
}

/// Runs the CPU engine's tests at both levels of that CPU.
pub(crate) fn arm(work: &Work, _: Option<Duration>) -> Result<(), Failure> {
    work.setup.rust(&[ARM])?;
    work.setup.tools(&[debian::ARM_EMULATION])?;
    for level in ["neon", "portable"] {
        work.stages.run(&format!("64-bit Arm, {level} kernels"), &arm_line(level))?;
    }
    Ok(())
}

/// A test that forces levels by starting itself again cannot run without binfmt.
fn arm_line(level: &str) -> Line {
    emulated(Line::new("cargo").args(["test", "-p", package::CPU, "--target", ARM, "--lib", "--tests"]))
        .args(["--", "--skip", test::FORCES_KERNELS])
        .env("MEMFERRY_KERNELS", level)
}

/// Builds everything for that CPU, and runs the tests of the libraries that need no second program.
fn arm_product(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[ARM])?;
    work.setup.tools(&[debian::ARM_EMULATION])?;
    let build = emulated(PRODUCT_WORKSPACE.cargo(&["build", "--workspace", "--target", ARM]));
    work.stages.run("64-bit Arm, build of the product", &build)?;
    work.stages.run("64-bit Arm, libraries", &arm_libraries_line())?;
    work.leave_out(
        "for 64-bit Arm, tests that start programs were NOT RUN, nor the file server's, for qemu-user has no openat2",
    );
    Ok(())
}

/// Property tests run fewer cases: emulated, the path's would take ten minutes.
fn arm_libraries_line() -> Line {
    let packages = package::EMULATED.iter().flat_map(|name| ["-p", name]);
    let line = PRODUCT_WORKSPACE.cargo(&["test", "--target", ARM, "--lib", "--tests"]).args(packages);
    let skipped = test::UNEMULATED.iter().flat_map(|name| ["--skip", name]);
    emulated(line).arg("--").args(skipped).env("PROPTEST_CASES", "16")
}

fn emulated(line: Line) -> Line {
    line.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu")
}

fn c_programs(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::C_CHECKERS])?;
    let name = PRODUCT_WORKSPACE.name;
    work.stages.run(&format!("build of {name}"), &super::build())?;
    // Built as part of the whole workspace, so that its tests find everything built.
    let line = super::workspace_tests(&PRODUCT_WORKSPACE, &work.place.target, &super::seed());
    work.stages.run("C programs", &line.args(["--test", test::C_PROGRAMS]))
}

/// Runs a guest of the module; a short limit shortens its fuzzer.
fn machine(work: &Work, name: &str, limit: Option<Duration>) -> Result<(), Failure> {
    let fuzz_seconds = if limit.is_some() { 10 } else { guest::FUZZ_SECONDS };
    let machine = Machine::named(name).expect("every part names an existing machine");
    module::run(work, machine, fuzz_seconds)
}

fn dashboard(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::BROWSER])?;
    work.stages.run("dashboard", &dashboard_line())
}

fn lab_page(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::BROWSER])?;
    work.stages.run("lab-page", &lab_page_line())
}

fn lab_page_line() -> Line {
    let (file, name) = test::LAB_PAGE;
    RESEARCH_WORKSPACE.cargo(&[
        "test",
        "-p",
        package::LAB,
        "--test",
        file,
        "--",
        "--ignored",
        "--exact",
        name,
    ])
}

/// Runs the whole lab without earlier results.
fn lab(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    for line in lab_builds() {
        work.stages.run("lab", &line)?;
    }
    work.stages.run("lab", &short_sweep_line())?;
    verdicts::run(work)
}

/// In the release profile: the lab is built in it already, and the test takes minutes in the other.
fn short_sweep_line() -> Line {
    let (file, name) = test::SHORT_SWEEP;
    let test = ["test", "--release", "-p", package::LAB, "--test", file, "--", "--ignored", "--exact", name];
    RESEARCH_WORKSPACE.cargo(&test)
}

/// A part for the tests of this module's users.
#[cfg(test)]
pub(crate) const fn for_tests(
    name: &'static str,
    run: fn(&Work, Option<Duration>) -> Result<(), Failure>,
) -> Part {
    Part { name, about: "a test", minutes: 1, is_default: true, rotation: None, run }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests;
    use crate::place::Place;

    fn place() -> Place {
        Place { root: "/tree".into(), caller: "/tree".into(), target: "/t".into() }
    }

    #[test]
    fn default_parts_end_in_three_and_a_half_hours() {
        let minutes: u32 = PARTS.iter().filter(|part| part.is_default).map(|part| part.minutes).sum();
        assert!(minutes <= 210, "{minutes}");
    }

    #[test]
    fn names_are_unique_and_every_guest_has_a_part() {
        for part in PARTS {
            assert_eq!(PARTS.iter().filter(|other| other.name == part.name).count(), 1, "{}", part.name);
        }
        for guest in guests::names() {
            let has = PARTS.iter().any(|part| part.name.trim_start_matches("guest-") == guest);
            assert!(has, "{guest}");
        }
    }

    #[test]
    fn unknown_part_is_wrong_use() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = named(&names(&["soak", "loom"])).unwrap();
        assert_eq!(found.iter().map(|part| part.name).collect::<Vec<_>>(), ["soak", "loom"]);
        assert_eq!(named(&names(&["soak", "lunch"])).err().unwrap().exit_status(), 2);
    }

    #[test]
    fn commits_go_through_all_parts_that_fit() {
        let fitting = PARTS.iter().filter(|part| part.rotation.is_some()).count();
        let mut chosen: Vec<&str> = (100..).take(fitting).map(|n| choose(n, 600).unwrap().name).collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen.len(), fitting);
        assert!(!chosen.contains(&ORDINARY));
    }

    #[test]
    fn part_that_does_not_fit_is_not_chosen() {
        for commits in 0..50 {
            assert!(choose(commits, 240).unwrap().rotation.unwrap() <= 240);
        }
        assert!(choose(0, 10).is_none());
        let at_most_ten_minutes = |part: &Part| part.rotation.is_none_or(|needed| needed <= 600);
        assert!(PARTS.iter().all(at_most_ten_minutes));
    }

    #[test]
    fn soak_keeps_time_for_its_build() {
        let minute = Duration::from_secs(60);
        assert_eq!(bounded(SOAK, None, minute), SOAK);
        assert_eq!(bounded(SOAK, Some(Duration::from_secs(200)), minute), Duration::from_secs(140));
        assert_eq!(bounded(SOAK, Some(Duration::from_secs(3600)), minute), SOAK);
    }

    #[test]
    fn loom_is_built_apart() {
        let place = place();
        let line = loom_line("", &Work::new(&place)).to_string();
        assert_eq!(
            line,
            format!(
                "env CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_LTO=off RUSTFLAGS='--cfg loom' \
                 cargo test -p {} --release --test loom --target-dir /t/loom",
                package::SHM
            )
        );
        assert!(loom_line("-C a", &Work::new(&place)).to_string().contains("RUSTFLAGS='-C a --cfg loom'"));
    }

    #[test]
    fn miri_tries_fewer_cases() {
        let place = place();
        let line = miri_line("nightly", "", &["-p", "a"], &Work::new(&place)).to_string();
        assert!(line.contains("-Zmiri-env-set=PROPTEST_CASES=16"), "{line}");
        assert!(line.ends_with("cargo +nightly miri test --target-dir /t/miri -p a"), "{line}");
    }

    #[test]
    fn arm_is_emulated_at_a_level() {
        let line = arm_line("neon").to_string();
        assert!(line.contains(" MEMFERRY_KERNELS=neon "), "{line}");
        assert!(line.contains("RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'"), "{line}");
        assert!(line.contains("--target aarch64-unknown-linux-gnu --lib --tests -- --skip "), "{line}");
    }

    #[test]
    fn what_cannot_be_emulated_is_skipped() {
        let line = arm_libraries_line().to_string();
        assert!(line.contains(" --lib --tests -p memferry-clock "), "{line}");
        assert!(line.contains(" -- --skip ") && !line.contains("memferry-ninep"), "{line}");
    }

    #[test]
    fn the_tests_of_the_lab_that_are_named_exist() {
        for ((file, name), line) in
            [(test::LAB_PAGE, lab_page_line()), (test::SHORT_SWEEP, short_sweep_line())]
        {
            let path = format!("{}/../research/lab/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            assert!(std::fs::read_to_string(path).unwrap().contains(&format!("fn {name}()")));
            assert!(line.to_string().ends_with(&format!("-- --ignored --exact {name}")));
        }
    }

    #[test]
    fn skipped_tests_are_those_that_start_processes() {
        for file in ["conformance", "pictures"] {
            let path = format!("{}/../crates/cpu/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let (before, _) = text.split_once("current_exe()").expect(file);
            let name = before.rsplit("fn ").next().unwrap_or_default();
            assert!(
                name.split('(').next().is_some_and(|name| name.ends_with(test::FORCES_KERNELS)),
                "{name}"
            );
        }
    }
}
