//! The command line of `./x`: commands, their options, and the help of each.
//!
//! ```text
//! ./x CMD ARGS ──► Arguments ──► commands
//! ```
//!
//! This module only parses. Wrong use exits with status 2, which is clap's status.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The entry point of memferry's working tree: builds, tests, measures and checks.
///
/// A command installs what it needs and is missing, and says so: a C compiler, rustup, the pinned
/// toolchain; for some commands Debian packages, a nightly toolchain, Python packages.
///
/// Exit status: 0 success; 2 wrong use, or an unknown name; 3 the set-up failed; otherwise the
/// status of the stage that failed.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment, name = "x", bin_name = "./x", arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the demonstration: a service, two clients, files, pictures, refusals and a revocation.
    ///
    /// Builds the memferry command in release mode and runs `memferry demo ARGS`: a service and two
    /// clients, as different unprivileged users if possible; a file, a picture, and refused requests.
    /// `target/release/memferry demo --help` lists ARGS. With --engines, it builds engine processes
    /// and shows those instead: memory of an accelerator (over a fake of its driver) is granted,
    /// copied, revoked in mid-flight, and lost when its engine is killed. With --nodes 2, a file goes
    /// between two nodes, each with a service and a link, in networks of their own if possible.
    #[command(verbatim_doc_comment)]
    Demo(Passed),
    /// Measure whether a program gains by handing its copies over on this machine, and from which size.
    ///
    /// Runs `memferry advise ARGS`, which measures for some seconds; --json prints the figures as
    /// JSON.
    #[command(verbatim_doc_comment)]
    Advise(Passed),
    /// Run the tests: the workspaces, the fuzz corpus, the Python package; --full for everything.
    ///
    /// Stops at the first failure. Runs every test of the workspaces, with C programs under each of gcc,
    /// clang, the sanitizers and valgrind that is installed; the fuzz targets over their committed
    /// corpus; the Python package, if Python 3.11 and PyPI's maturin and NumPy are available; a few
    /// seconds of soak. The last line lists what was left out. Property tests draw equal inputs in
    /// each run; PROPTEST_RNG_SEED=N draws others.
    #[command(verbatim_doc_comment)]
    Test(Test),
    /// Build the C library and install it below a prefix.
    ///
    /// Builds in release mode and installs header, libraries, pkg-config file and man pages.
    #[command(verbatim_doc_comment)]
    C(C),
    /// Build Debian packages of everything, and check them with lintian.
    ///
    /// Builds them below target/package/debian. Needs no root. `apt install ./memferry_*.deb` installs the
    /// service and the command; docs/install.md lists the packages.
    #[command(verbatim_doc_comment)]
    Package,
    /// Build and install the command, the C libraries, engines, manual pages and units below a prefix.
    ///
    /// Installs nothing elsewhere, and enables no unit. systemd finds the units below /usr/local and
    /// /usr.
    #[command(verbatim_doc_comment)]
    Install(Install),
    /// Build the Python wheel, install it in a virtual environment, and run its Python.
    ///
    /// Builds the wheel of the Python package in release mode (target/wheels/release), installs it with
    /// NumPy in a virtual environment (target/python), and runs that environment's Python with ARGS.
    /// Without ARGS it prints the path of the wheel.
    #[command(verbatim_doc_comment)]
    Python(Passed),
    /// Measure one group of benchmarks on this machine.
    ///
    /// Measures in release mode. Without GROUP it lists the groups. Comparisons with UCX (groups service,
    /// bulk and remote) install Debian's packages ucx-utils and libucx-dev, group twod installs OpenCV
    /// from PyPI below target/, group remote unpacks there a newer UCX, rsync, sshd and an NFS server,
    /// group peers newer releases of what it compares with; where that is not possible, a message says
    /// so and these rows are not measured.
    ///
    ///   --quick        few rounds, to check that everything works
    ///   --only PARTS   only these parts, with commas between them:
    ///                  service      start, embedded, moved, ucx, overlap, mapping, turns, idle
    ///                  scale        idle, wake, clients, frames, depth, outstanding, policies, waits,
    ///                               ending
    ///                  engine       cold, again, sizes, fills, pages, others, two
    ///                  pollution    copies, pieces
    ///                  twod         rotate, keyed, flips
    ///                  bulk         modes, messages
    ///                  policy       latencies, shares, limits
    ///                  preload      calls, programs
    ///                  fileserver   cold, hot, discarding
    ///                  gpu          long, pieces, first, tenants, manners, detours
    ///                  hostile      an attack's name, one-worker, two-workers
    ///                  remote       reads, latency, channels, engines, files
    ///                  peers        libc, kernel, ucx, iceoryx2, engines, own, absent
    ///   --json FILE    also writes the figures to FILE
    ///   --page FILE    also puts them into the group's tables in FILE, between <!-- rows of TABLE --> and
    ///                  <!-- end of TABLE -->; not with --quick or --only; group peers writes the
    ///                  whole page of comparisons
    ///   --from FILE    with --page: takes the figures from FILE, which --json wrote, and measures nothing
    ///   --plots DIR    also draws the sweeps as SVG into DIR
    #[command(
        verbatim_doc_comment,
        override_usage = "./x bench [GROUP] [--quick] [--only PARTS] [--json FILE] [--page FILE [--from FILE]] [--plots DIR]"
    )]
    Bench(Passed),
    /// Run random clients against services that are killed, starved and stopped; check every byte.
    ///
    /// Random clients of every binding and tool (Rust, C, Python, bulk connections, files over 9P, a
    /// program with the preloaded library) against real services, for TIME (90s, 10m, 1h; default one
    /// minute): clients and services are killed, stopped for a moment, short of descriptors and memory,
    /// and the time of day jumps. Every byte and every completion is checked, and so are the resources
    /// of a service after its clients are gone. Fails if there is a finding; Ctrl-C ends it early, with
    /// the report. Built with assertions, not for speed.
    ///
    ///   --time TIME   duration
    ///   --seed N      repeats the random choices of a run; effects of how processes interleave may
    ///                 not repeat
    ///   --json FILE   also writes the report to FILE
    #[command(verbatim_doc_comment, override_usage = "./x soak [--time TIME] [--seed N] [--json FILE]")]
    Soak(Passed),
    /// Give every claim of the papers a verdict.
    ///
    /// Runs the experiments and prints a verdict for every claim; a claim that no experiment decides is
    /// "not-run". The results are also written as one page, target/lab/report.html; the last line names
    /// it. Finished work is kept in target/lab/results for this build, so that an interrupted run
    /// continues; live rows are measured each time, by memferry-bench, which is built too.
    ///
    ///   --html FILE     writes the page to FILE instead; with --only, no page without this option
    ///   --json FILE     also writes the verdicts to FILE, as a JSON array
    ///   --out DIR       also writes the figures to DIR/figures, as CSV and SVG
    ///   --only ID,...   runs only what these claims and figures need
    ///   --sensitivity   instead computes how figures and verdicts of predicted claims vary within the
    ///                   ranges of all parameters together (DIR/bands.csv); takes half an hour or more,
    ///                   and can be interrupted too
    ///   --deep          also explores the initiation protocols with three processes in larger scenes
    ///   --fresh         repeats what is kept
    ///   initiation      shows step by step how a protocol that starts transfers from user level fails
    ///                   (docs/initiation.md)
    #[command(
        verbatim_doc_comment,
        override_usage = "./x lab [--html FILE] [--json FILE] [--out DIR] [--only ID,...] [--sensitivity] [--deep] [--fresh]\n       \
                          ./x lab initiation [PROTOCOL] [--processes N] [--attack] [--two-cpus] [--step] [--diagram FILE]"
    )]
    Lab(Passed),
    /// Run the kernel module, the firmware, the file server or links in a QEMU guest.
    ///
    /// Boots MACHINE under QEMU and runs memferry's code in it, on a model of the hardware by other
    /// authors.
    ///
    ///   n810      builds the firmware for bare metal and runs the SDMA driver on the machine's DMA
    ///             engine; passes if it prints the expected lines, in which known gaps of QEMU's model
    ///             are skipped by name. Releases of QEMU after Debian 12's lack this machine.
    ///   v9fs      boots Debian's kernel, mounts a directory that `memferry 9p serve` serves with
    ///             Linux's own 9P client, and works on it: reads, copies, archives, compiles, sqlite3
    ///   systemd   builds the Debian packages, boots Debian 12, installs and uses them there: socket
    ///             activation, restarts, metrics, a file server, the module by DKMS, upgrade, purge;
    ///             needs root
    ///   zcu102, x86, raspi3b, raspi2b, smdkc210
    ///             build the kernel module for Debian's kernel, boot that kernel, and run the module's
    ///             tests and misuse on the machine's DMA engine; on 64-bit machines also the engine
    ///             tests and the service, on zcu102 a fuzzer (its seed: MEMFERRY_FUZZ_SEED). x86 has no
    ///             engine: there the CPU copies, and a software engine fails on request.
    ///   zcu102-debug
    ///             the same on a kernel with KASAN, lockdep and DMA-API debugging, which is built from
    ///             Debian's source first
    ///   ioat      serves the I/OAT model as a PCI device (memferry-device) to guests in which Linux's own
    ///             driver takes it: the driver's self-tests, dmatest, the module's tests, policies and
    ///             copy_to_user by DMA; then behind IOMMUs, on a newer kernel, with 5 GiB of memory, with
    ///             injected faults, and when the device is lost under load; and by the engine process
    ///             memferry-engine-ioat through VFIO. amd64 only; it runs QEMU 11.1 of Debian's
    ///             trixie-backports unpacked below target/. About five minutes; a part:
    ///             MEMFERRY_IOAT_SCENES=ioat,ioat-faults (a wrong name lists all)
    ///   dsa       serves the DSA model as a PCI device to guests in which Linux's own driver, idxd, takes it:
    ///             work queues of type kernel, dmatest, the module's tests, behind an IOMMU, on a newer
    ///             kernel, and how far type user gets. A module gives the emulated processor MOVDIR64B.
    ///             amd64 only; QEMU as for ioat. A part: MEMFERRY_DSA_SCENES=dsa (a wrong name lists all)
    ///   roce      two guests, each with a service and a link, joined by a network of QEMU's: files go, come
    ///             and are refused over soft RoCE (rdma_rxe), by UCX's verbs; amd64 only. A minute.
    ///   newer     no guest: builds the module for the newest kernel in Debian's backports
    ///
    /// Debian's packages of other architectures are downloaded and unpacked below target/, and not
    /// installed.
    #[command(verbatim_doc_comment)]
    Guest(Guest),
    /// Build the documentation as a site: the guide, the pages, the lab's report; check its links.
    ///
    /// Builds target/site/book with mdBook, which it installs, and checks each link within. The lab's
    /// report is a part of it if ./x lab has made one.
    #[command(verbatim_doc_comment)]
    Site(Site),
    /// Check formatting, clippy, documentation, house rules, 64-bit Arm, shellcheck.
    ///
    /// Formatting, clippy and rustdoc with warnings as errors, the house rules (`cargo xtask check`), a
    /// check for 64-bit Arm, and shellcheck where it is installed.
    #[command(verbatim_doc_comment)]
    Lint,
    /// Fuzz one target, or each.
    ///
    /// Fuzzes TARGET on a nightly toolchain. Without TARGET it lists the targets. Time and number of inputs
    /// are added to tests/fuzz/HOURS.toml, and up to 64 files of what was found to the committed corpus.
    #[command(verbatim_doc_comment)]
    Fuzz(Fuzz),
    /// Check the dependencies: licences, sources, and whether each is used.
    ///
    /// Licences, sources and bans (cargo deny, deny.toml), and unused dependencies (cargo machete).
    /// Known vulnerabilities are looked up if their list can be downloaded; else the last line says that
    /// they were not.
    #[command(verbatim_doc_comment)]
    Audit,
    /// Show which lines the tests execute.
    ///
    /// Runs the workspaces' tests with counters and prints the share of lines and functions that each
    /// file's tests execute (cargo llvm-cov). Other processes are counted if they exit normally and may
    /// write files: not a service that confined itself, nor a killed one. A test that compares all
    /// output of a program fails here, because of the warning about that.
    #[command(verbatim_doc_comment)]
    Coverage,
    /// Install everything that the other commands may need.
    ///
    /// Debian packages (as root, or with sudo), toolchains and commands of cargo, and Python virtual
    /// environments. Debian packages for guests are downloaded when a guest first runs, and are not
    /// installed.
    #[command(verbatim_doc_comment)]
    Setup(Setup),
    /// Check the sources against the house rules; a part of lint.
    Check,
}

/// Arguments passed on unchanged.
#[derive(Args, Debug)]
pub(crate) struct Passed {
    /// Arguments of the program, which runs in the caller's directory.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Run only the workspaces and the fuzz corpus.
    #[arg(long, conflicts_with_all = ["arm", "full"])]
    pub(crate) quick: bool,
    /// Run only the engine's tests for 64-bit Arm under qemu-user; installs what they need.
    #[arg(long, conflicts_with = "full")]
    pub(crate) arm: bool,
    /// Run everything: the tests, loom, Miri, 64-bit Arm, another Debian, ten minutes of soak, guests,
    /// the lab; or the named parts. An interrupted run continues with what has not passed yet, for the
    /// same sources.
    #[arg(verbatim_doc_comment, long)]
    pub(crate) full: bool,
    /// Parts of the full tests, as shown by --list.
    #[arg(requires = "full", value_name = "PART")]
    pub(crate) parts: Vec<String>,
    /// List the parts of the full tests with their usual duration, and run none.
    #[arg(long, conflicts_with_all = ["quick", "arm", "parts", "fresh", "rotate"])]
    pub(crate) list: bool,
    /// Repeat parts that passed for the same sources.
    #[arg(long, requires = "full", conflicts_with = "rotate")]
    pub(crate) fresh: bool,
    /// Run one part that fits into SECONDS, chosen by the number of commits. For continuous
    /// integration.
    #[arg(verbatim_doc_comment, long, requires = "full", value_name = "SECONDS", conflicts_with = "parts")]
    pub(crate) rotate: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct C {
    /// Directory to install below; by default target/c.
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Install {
    /// Directory to install below.
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(crate) prefix: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Guest {
    /// n810, v9fs, systemd, ioat, dsa, roce, zcu102, zcu102-debug, x86, raspi3b, raspi2b, smdkc210 or newer.
    #[arg(value_name = "MACHINE")]
    pub(crate) machine: String,
}

#[derive(Args, Debug)]
pub(crate) struct Fuzz {
    /// The target to fuzz.
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Fuzz each target for so many seconds. An interrupted run continues with the targets that are left.
    #[arg(long, value_name = "SECONDS", conflicts_with = "target", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) all: Option<u32>,
    /// Seconds to fuzz.
    #[arg(value_name = "DURATION", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: u32,
}

#[derive(Args, Debug)]
pub(crate) struct Site {
    /// Make the pictures in docs/pictures anew before: the dashboard, the lab's report and a plot, in
    /// headless Chromium, which it installs.
    #[arg(verbatim_doc_comment, long)]
    pub(crate) pictures: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Setup {
    /// Only list what would be installed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Command, ErrorKind> {
        let words = ["x"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| arguments.command).map_err(|error| error.kind())
    }

    fn passed(line: &str) -> Vec<OsString> {
        match parse(line) {
            Ok(
                Command::Demo(passed) | Command::Soak(passed) | Command::Bench(passed) | Command::Lab(passed),
            ) => passed.arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_its_help() {
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            assert_eq!(parse(&format!("{name} --help")).unwrap_err(), ErrorKind::DisplayHelp, "{name}");
        }
    }

    #[test]
    fn command_lines_of_pages_parse() {
        let mut mistakes = memferry_pages::mistakes::<Arguments>("x");
        // The changelog names what is gone.
        mistakes.retain(|mistake| !mistake.contains("`./x test --long`"));
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }

    #[test]
    fn wrong_use_is_status_2() {
        for line in [
            "",
            "nonsense",
            "lint now",
            "test --nonsense",
            "test soak",
            "test --quick --full",
            "test --quick --arm",
            "test --list soak",
            "test --quick --list",
            "test --full --rotate soon",
            "c a b",
            "guest",
            "guest x86 zcu102",
            "fuzz geometry 0",
            "fuzz geometry ten",
            "fuzz geometry 10 20",
            "audit all",
            "coverage all",
            "setup --nonsense",
            "site docs",
        ] {
            let words = ["x"].into_iter().chain(line.split_whitespace());
            let error = Arguments::try_parse_from(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn options_are_passed_on_unchanged() {
        assert_eq!(passed("soak --time 5s --seed 1"), ["--time", "5s", "--seed", "1"]);
        assert_eq!(passed("bench engine --only cold,again"), ["engine", "--only", "cold,again"]);
        assert_eq!(passed("lab initiation repeated-3 --attack"), ["initiation", "repeated-3", "--attack"]);
        assert_eq!(passed("bench engine --help"), ["engine", "--help"]);
        assert!(passed("demo").is_empty());
    }

    #[test]
    fn parts_are_those_of_the_full_tests() {
        let Ok(Command::Test(test)) = parse("test --full soak loom") else { panic!("does not parse") };
        assert_eq!(test.parts, ["soak", "loom"]);
        let Ok(Command::Test(test)) = parse("test --full --fresh") else { panic!("does not parse") };
        assert!(test.fresh && test.parts.is_empty());
        let Ok(Command::Test(test)) = parse("test --full --rotate 300") else { panic!("does not parse") };
        assert_eq!(test.rotate, Some(300));
    }

    #[test]
    fn fuzzing_takes_a_minute_by_default() {
        let Ok(Command::Fuzz(fuzz)) = parse("fuzz geometry") else { panic!("does not parse") };
        assert_eq!((fuzz.target.as_deref(), fuzz.seconds), (Some("geometry"), 60));
        let Ok(Command::Fuzz(fuzz)) = parse("fuzz --all 10") else { panic!("does not parse") };
        assert_eq!((fuzz.target, fuzz.all), (None, Some(10)));
        assert!(parse("fuzz --all 10 geometry").is_err() && parse("fuzz --all 0").is_err());
        let Ok(Command::Fuzz(fuzz)) = parse("fuzz geometry 10") else { panic!("does not parse") };
        assert_eq!(fuzz.seconds, 10);
    }
}
