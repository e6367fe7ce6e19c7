//! The command line of `./x`: commands, their options, and the help of each.
//!
//! ```text
//! ./x CMD ARGS ──► Arguments ──► commands
//! ```
//!
//! Nothing is decided here but what a command line means. Wrong use ends with status 2, as clap has it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The one entry point of memferry's working tree: it builds, tests, measures and checks.
///
/// What a command needs and is missing is installed first, and said: a C compiler, rustup, the
/// pinned toolchain, for some commands Debian packages, a nightly toolchain, Python packages.
///
/// Exit status: 0 done; 2 wrong use, or the thing asked for does not exist; 3 the set-up failed;
/// otherwise that of the stage that failed.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment, name = "x", bin_name = "./x", arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the demonstration: two processes, files, pictures, refusals, a revocation; results compared.
    ///
    /// Builds the memferry command in release mode and runs `memferry demo ARGS`: a service and two
    /// clients, under different unprivileged users when it may switch; a file, a picture, and what is
    /// refused. `target/release/memferry demo --help` lists ARGS.
    #[command(verbatim_doc_comment)]
    Demo(Passed),
    /// Say whether a program should hand its copies over on this machine, and from which size on.
    ///
    /// Runs `memferry advise ARGS`, which measures for some seconds; --json prints the figures for
    /// programs.
    #[command(verbatim_doc_comment)]
    Advise(Passed),
    /// Run the tests: the workspaces, the fuzz corpus, the Python package; --full for everything.
    ///
    /// Stops at the first that fails: every test of the workspaces, with C programs under each of gcc,
    /// clang, the sanitizers and valgrind that is installed; the fuzz targets over their committed
    /// corpus; the Python package, where Python 3.11 and PyPI's maturin and NumPy can be had; a few
    /// seconds of soak. The last line says what was left out.
    #[command(verbatim_doc_comment)]
    Test(Test),
    /// Build the C library and install it below a prefix.
    ///
    /// Builds in release mode and installs header, libraries, pkg-config file and man pages.
    #[command(verbatim_doc_comment)]
    C(C),
    /// Build the Python wheel, install it in an environment of its own, and run that.
    ///
    /// Builds the wheel of the Python package in release mode (target/wheels/release), installs it with
    /// NumPy in an environment of its own (target/python), and runs that environment's Python with
    /// ARGS. Without ARGS it says where the wheel is.
    #[command(verbatim_doc_comment)]
    Python(Passed),
    /// Measure one group of benchmarks on this machine.
    ///
    /// Measures in release mode. Without GROUP it lists the groups. Where one compares with UCX it takes
    /// Debian's package ucx-utils, and says so where that is not installed; group twod takes OpenCV from
    /// PyPI.
    ///
    ///   --quick        few rounds: whether everything works, not how well
    ///   --only PARTS   only these parts, with commas between them:
    ///                  service      start, embedded, moved, ucx, overlap, mapping, turns, idle
    ///                  engine       cold, again, sizes, fills, pages, others, two
    ///                  pollution    copies, pieces
    ///                  twod         rotate, keyed, flips
    ///                  bulk         modes, messages
    ///                  policy       latencies, shares, limits
    ///                  preload      calls, programs
    ///                  fileserver   cold, hot, discarding
    ///   --json FILE    also writes the figures to FILE
    ///   --plots DIR    also draws the sweeps as SVG into DIR
    #[command(
        verbatim_doc_comment,
        override_usage = "./x bench [GROUP] [--quick] [--only PARTS] [--json FILE] [--plots DIR]"
    )]
    Bench(Passed),
    /// Run random clients against services that are killed, starved and stopped; every byte is checked.
    ///
    /// Random clients of every binding and tool (Rust, C, Python, bulk channels, files over 9P, a
    /// program with the preloaded library) against real services, for TIME (90s, 10m, 1h; a minute if
    /// not given): clients and services are killed, stopped for a moment, short of descriptors and
    /// memory, and the time of day jumps. Every byte and every completion is checked, and what a
    /// service holds when its clients are gone. Fails when anything is found; Ctrl-C ends it early,
    /// with the report. Built with assertions, not for speed.
    ///
    ///   --time TIME   for how long
    ///   --seed N      draws the same again; what depends on how processes interleave may not come
    ///                 again at once
    ///   --json FILE   also writes the report to FILE
    #[command(verbatim_doc_comment, override_usage = "./x soak [--time TIME] [--seed N] [--json FILE]")]
    Soak(Passed),
    /// Give every claim of the papers a verdict.
    ///
    /// Runs the experiments and prints a verdict for every claim; a claim that no experiment decides is
    /// "not-run". All of it is written as one page, target/lab/report.html; the last line says where.
    /// What was done is kept in target/lab/results for this build, so that a run which was broken off
    /// goes on; live rows are measured each time, by memferry-bench, which is built too.
    ///
    ///   --html FILE     writes the page to FILE instead; with --only, to FILE or not at all
    ///   --json FILE     also writes the verdicts to FILE, as a JSON array
    ///   --out DIR       also writes the figures to DIR/figures, as CSV and SVG
    ///   --only ID,...   runs what these claims and figures need only
    ///   --sensitivity   also finds anew how the figures of predicted claims move with each timing
    ///                   parameter (DIR/sensitivity.csv); takes a quarter of an hour or more, and can
    ///                   be broken off too
    ///   --deep          also explores the initiation protocols with three processes in larger scenes
    ///   --fresh         runs anew what is kept
    ///   initiation      shows how a protocol that starts transfers from user level breaks, access by
    ///                   access (docs/initiation.md)
    #[command(
        verbatim_doc_comment,
        override_usage = "./x lab [--html FILE] [--json FILE] [--out DIR] [--only ID,...] [--sensitivity] [--deep] [--fresh]\n       \
                          ./x lab initiation [PROTOCOL] [--processes N] [--attack] [--two-cpus] [--step] [--diagram FILE]"
    )]
    Lab(Passed),
    /// Run the kernel module, the firmware or the file server in a QEMU guest.
    ///
    /// Boots MACHINE under QEMU and runs memferry's code in it, with a model of the hardware that
    /// others wrote.
    ///
    ///   n810      builds the firmware for bare metal and runs the SDMA driver on the machine's DMA
    ///             engine; passes when it prints the expected lines, where each gap of QEMU's model is
    ///             skipped by name. Newer releases of QEMU than Debian 12's lack it.
    ///   v9fs      boots Debian's kernel, mounts a directory that `memferry 9p serve` serves with
    ///             Linux's own 9P client, and works on it: reads, copies, archives, compiles, sqlite3
    ///   zcu102, x86, raspi3b, raspi2b, smdkc210
    ///             build the kernel module for Debian's kernel, boot that kernel, and run the module's
    ///             tests and misuse on the DMA engine that the machine has; in those of 64 bits also
    ///             the suite of engines and the service, in zcu102 a fuzzer (its seed:
    ///             MEMFERRY_FUZZ_SEED). x86 has no engine, so that the CPU falls in, and one in
    ///             software that fails on request.
    ///   zcu102-debug
    ///             the same on a kernel with KASAN, lockdep and DMA-API debugging, which is built from
    ///             Debian's source first
    ///   newer     no guest: builds the module for the newest kernel that Debian has backported
    ///
    /// Debian's packages of other architectures are downloaded and unpacked below target/, and not
    /// installed.
    #[command(verbatim_doc_comment)]
    Guest(Guest),
    /// Check formatting, clippy, documentation, house rules, 64-bit Arm, shellcheck.
    ///
    /// Formatting, clippy and rustdoc with warnings as errors, the house rules (`cargo xtask check`), a
    /// check for 64-bit Arm, and shellcheck where it is installed.
    #[command(verbatim_doc_comment)]
    Lint,
    /// Fuzz one target.
    ///
    /// Fuzzes TARGET on a nightly toolchain. Without TARGET it lists the targets.
    #[command(verbatim_doc_comment)]
    Fuzz(Fuzz),
    /// Check licences and sources of the dependencies, and look for those that nothing uses.
    ///
    /// Licences, sources and bans (cargo deny, deny.toml), and dependencies that nothing uses (cargo
    /// machete). Known vulnerabilities are looked up where the list of them can be downloaded; else it
    /// says that they were not.
    #[command(verbatim_doc_comment)]
    Audit,
    /// Show which lines the tests reach.
    ///
    /// Runs the workspaces' tests with counters and prints which share of lines and functions each
    /// file's tests reach (cargo llvm-cov). Of other processes those are counted that end in order and
    /// may write files: not a service that confined itself, nor one that was killed. A test that reads
    /// all that a program prints fails here, of its complaint about that.
    #[command(verbatim_doc_comment)]
    Coverage,
    /// Install everything that the other commands may need.
    ///
    /// Debian packages (as root, or with sudo), toolchains and commands of cargo, and environments of
    /// Python. What guests take from Debian's archive is downloaded when they are first run, and is not
    /// installed.
    #[command(verbatim_doc_comment)]
    Setup(Setup),
    /// Check the sources against the house rules; a part of lint.
    Check,
}

/// What is passed on as it is.
#[derive(Args, Debug)]
pub(crate) struct Passed {
    /// Passed on to the program, which runs in the directory of the caller.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Only the workspaces and the fuzz corpus.
    #[arg(long, conflicts_with_all = ["arm", "full"])]
    pub(crate) quick: bool,
    /// Only the engine's tests for 64-bit Arm under qemu-user; installs what they need.
    #[arg(long, conflicts_with = "full")]
    pub(crate) arm: bool,
    /// Everything: the tests, loom, Miri, 64-bit Arm, ten minutes of soak, guests, the lab; or the parts
    /// named. A run that was broken off goes on with what did not pass yet, for the same sources.
    #[arg(verbatim_doc_comment, long)]
    pub(crate) full: bool,
    /// Parts of the full tests, of those that --list shows.
    #[arg(requires = "full", value_name = "PART")]
    pub(crate) parts: Vec<String>,
    /// Show the parts with their usual duration, and run none.
    #[arg(long, requires = "full", conflicts_with_all = ["parts", "fresh", "rotate"])]
    pub(crate) list: bool,
    /// Run parts again that passed for the same sources.
    #[arg(long, requires = "full", conflicts_with = "rotate")]
    pub(crate) fresh: bool,
    /// Run one part that fits into so many seconds; which one, the number of commits says. For continuous
    /// integration.
    #[arg(verbatim_doc_comment, long, requires = "full", value_name = "SECONDS", conflicts_with = "parts")]
    pub(crate) rotate: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct C {
    /// Where to install; target/c if not given.
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Guest {
    /// n810, v9fs, zcu102, zcu102-debug, x86, raspi3b, raspi2b, smdkc210 or newer.
    #[arg(value_name = "MACHINE")]
    pub(crate) machine: String,
}

#[derive(Args, Debug)]
pub(crate) struct Fuzz {
    /// What to fuzz.
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// For how many seconds.
    #[arg(value_name = "DURATION", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: u32,
}

#[derive(Args, Debug)]
pub(crate) struct Setup {
    /// Only say what would be installed.
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
    fn wrong_use_is_status_2() {
        for line in [
            "",
            "nonsense",
            "lint now",
            "test --nonsense",
            "test soak",
            "test --quick --full",
            "test --quick --arm",
            "test --list",
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
        ] {
            let words = ["x"].into_iter().chain(line.split_whitespace());
            let error = Arguments::try_parse_from(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn programs_get_their_options_as_they_are() {
        assert_eq!(passed("soak --time 5s --seed 1"), ["--time", "5s", "--seed", "1"]);
        assert_eq!(passed("bench engine --only cold,again"), ["engine", "--only", "cold,again"]);
        assert_eq!(passed("lab initiation repeated-3 --attack"), ["initiation", "repeated-3", "--attack"]);
        assert_eq!(passed("bench engine --help"), ["engine", "--help"]);
        assert!(passed("demo").is_empty());
    }

    #[test]
    fn parts_are_those_of_the_full_tests() {
        let Ok(Command::Test(test)) = parse("test --full soak loom") else { panic!("it is right") };
        assert_eq!(test.parts, ["soak", "loom"]);
        let Ok(Command::Test(test)) = parse("test --full --fresh") else { panic!("it is right") };
        assert!(test.fresh && test.parts.is_empty());
        let Ok(Command::Test(test)) = parse("test --full --rotate 300") else { panic!("it is right") };
        assert_eq!(test.rotate, Some(300));
    }

    #[test]
    fn fuzzing_takes_a_minute_if_not_told() {
        let Ok(Command::Fuzz(fuzz)) = parse("fuzz geometry") else { panic!("it is right") };
        assert_eq!((fuzz.target.as_deref(), fuzz.seconds), (Some("geometry"), 60));
        let Ok(Command::Fuzz(fuzz)) = parse("fuzz geometry 10") else { panic!("it is right") };
        assert_eq!(fuzz.seconds, 10);
    }
}
