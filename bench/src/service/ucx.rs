//! Copies through the service against UCX's own benchmark, over shared memory and cross-memory attach (posix, cma).
//!
//! ```text
//! round, for each test: ucx_perftest, server on CPU 1 and client on CPU 0 ─ its last line ─► microseconds, MiB/s
//!                       the same size through the service, worker on CPU 1 and client on CPU 0
//! ```
//!
//! `tag_lat` is the one-way time of a message, received but not read; ours is a whole request: submitted, moved,
//! completed, every byte read. Bandwidths are of a stream with two transfers in flight, the same buffers every time, not
//! read. UCX sends buffers that it never filled; ours are random.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, Ticket, copy};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::BenchError;
use crate::children::{Program, Service, loader};
use crate::pair::{Pair, Reader};
use crate::placement::{Class, Pinned, cpu};
use crate::rows::{Better, Row, Target};
use crate::run::Run;
use crate::timing::{each_ns, since_ns};

const ROUNDS: usize = 5;
const PROGRAM: &str = "ucx_perftest";
pub(crate) const NOT_INSTALLED: &str =
    "ucx_perftest is missing; ./x bench installs it where it can (Debian: ucx-utils)";
const ENVIRONMENT: [(&str, &str); 3] =
    [("UCX_TLS", "posix,cma,tcp"), ("UCX_NET_DEVICES", "lo"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
/// Maximum duration of a test.
const LIMIT: Duration = Duration::from_secs(20);
/// Interval of attempts to reach the server, which does not report when it listens.
const RETRY: Duration = Duration::from_millis(50);
/// Transfers in flight in a stream.
const WINDOW: usize = 2;

#[derive(Clone, Copy)]
enum Kind {
    /// Time of one request: ours over theirs.
    Latency,
    /// Rate of a stream: ours over theirs.
    Bandwidth,
}

pub(crate) struct Test {
    title: &'static str,
    pub(crate) ucx: &'static str,
    kind: Kind,
    pub(crate) bytes: u64,
    count: usize,
    target: Target,
}

pub(crate) const TESTS: [Test; 4] = [
    Test {
        title: "4 KiB moved and every byte read, against UCX's tag_lat",
        ucx: "tag_lat",
        kind: Kind::Latency,
        bytes: 4 << 10,
        count: 20_000,
        target: Target::AtMost(1.0),
    },
    Test {
        title: "1 MiB, bandwidth against UCX's tag_bw",
        ucx: "tag_bw",
        kind: Kind::Bandwidth,
        bytes: 1 << 20,
        count: 1000,
        target: Target::AtLeast(1.0),
    },
    Test {
        title: "16 MiB, bandwidth against UCX's put_bw",
        ucx: "ucp_put_bw",
        kind: Kind::Bandwidth,
        bytes: 16 << 20,
        count: 60,
        target: Target::AtLeast(1.4),
    },
    Test {
        title: "64 MiB, bandwidth against UCX's put_bw",
        ucx: "ucp_put_bw",
        kind: Kind::Bandwidth,
        bytes: 64 << 20,
        count: 16,
        target: Target::AtLeast(1.4),
    },
];

/// The last line of UCX's report.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Report {
    pub(crate) median_us: f64,
    pub(crate) average_us: f64,
    pub(crate) mib_per_s: f64,
}

/// Parses the last line with all figures: iterations, then median, average and overall time, average and
/// overall bandwidth, average and overall rate.
fn parse(output: &str) -> Option<Report> {
    output.lines().rev().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().skip_while(|word| *word == "Final:").collect();
        let numbers: Vec<f64> = words.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [_, median_us, _, average_us, _, mib_per_s, _, _] => {
                Some(Report { median_us, average_us, mib_per_s })
            }
            _ => None,
        }
    })
}

/// Whether UCX's benchmark is installed.
pub(crate) fn installed() -> bool {
    Ucx::of_the_system().works()
}

/// Runs one of the tests of the installed UCX, both ends pinned.
pub(crate) fn report(test: &str, bytes: u64, count: usize) -> Result<Report, BenchError> {
    Ucx::of_the_system().report(test, bytes, count)
}

/// A UCX: the installed one, or one unpacked beside it.
pub(crate) struct Ucx {
    /// What starts one of its programs: nothing, or its own loader with its own libraries.
    loader: Vec<String>,
    /// The folder of its programs, with a slash, or nothing.
    programs: String,
    environment: Vec<(String, String)>,
}

impl Ucx {
    pub(crate) fn of_the_system() -> Self {
        let environment =
            ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { loader: Vec::new(), programs: String::new(), environment }
    }

    /// One of another release, from its packages unpacked in this folder.
    pub(crate) fn unpacked(root: &Path) -> Self {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut ucx = Self::of_the_system();
        ucx.loader = loader(&libraries);
        ucx.programs = format!("{}/", root.join("usr/bin").display());
        // Else it would look for its transports where an installed one has some.
        ucx.environment.push(("UCX_MODULE_DIR".to_owned(), libraries.join("ucx").display().to_string()));
        ucx
    }

    fn start(&self, program: &str, arguments: &[&str]) -> Result<Program, BenchError> {
        let program = self.program(program);
        let words: Vec<&str> = program.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Program::start(&words, &self.environment())
    }

    /// The words that start one of its programs.
    fn program(&self, name: &str) -> Vec<String> {
        self.loader.iter().cloned().chain([format!("{}{name}", self.programs)]).collect()
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    pub(crate) fn works(&self) -> bool {
        self.start(PROGRAM, &["-h"])
            .and_then(|mut program| program.output(Instant::now() + LIMIT))
            .is_ok_and(|output| output.is_some_and(|text| text.contains("tag_lat")))
    }

    /// Its version, as its own program says it.
    pub(crate) fn version(&self) -> Option<String> {
        let output = self.start("ucx_info", &["-v"]).ok()?.output(Instant::now() + LIMIT).ok()??;
        version_in(&output).map(str::to_owned)
    }

    /// Runs one of its tests, both ends pinned.
    pub(crate) fn report(&self, test: &str, bytes: u64, count: usize) -> Result<Report, BenchError> {
        let program = self.program(PROGRAM);
        let words: Vec<&str> = program.iter().map(String::as_str).collect();
        let perftest = Perftest { limit: LIMIT, words: &words, environment: &self.environment() };
        Ok(perftest.run(test, bytes, count)?.0)
    }
}

/// UCX's benchmark: the words that start it, its environment, and how long a test may take.
pub(crate) struct Perftest<'a> {
    pub(crate) limit: Duration,
    pub(crate) words: &'a [&'a str],
    pub(crate) environment: &'a [(&'a str, &'a str)],
}

impl Perftest<'_> {
    /// Runs one of its tests, both ends pinned. Also returns the seconds of processor time of the end that asks, with its start and
    /// warm-up.
    pub(crate) fn run(&self, test: &str, bytes: u64, count: usize) -> Result<(Report, f64), BenchError> {
        // Another process may take the port before the server does; then the test fails.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let client_cpu = cpu(0)?.to_string();
        let server_cpu = cpu(1)?.to_string();
        let both = [self.words, &["-p", &port]].concat();
        let mut server = Program::start(&[&both[..], &["-c", &server_cpu]].concat(), self.environment)?;
        let warm_up = warm_up(count).to_string();
        let size = bytes.to_string();
        let count = count.to_string();
        let words = [&*both, &["127.0.0.1", "-c", &client_cpu, "-t", test, "-s", &size]].concat();
        let words = [&*words, &["-n", &count, "-w", &warm_up, "-f"]].concat();
        let until = Instant::now() + self.limit;
        loop {
            std::thread::sleep(RETRY);
            let before = children_seconds()?;
            if let Some(output) = Program::start(&words, self.environment)?.output(until)? {
                let spent = children_seconds()? - before;
                let report = parse(&output)
                    .ok_or_else(|| format!("{PROGRAM} printed no report that can be parsed"))?;
                return Ok((report, spent));
            }
            if !server.runs()? || Instant::now() >= until {
                return Err(format!("{PROGRAM} failed").into());
            }
        }
    }
}

/// Rounds of a test before those that are measured.
pub(crate) fn warm_up(count: usize) -> usize {
    (count / 10).max(1)
}

/// Processor time of children that have ended, in seconds.
fn children_seconds() -> Result<f64, BenchError> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The version in the output of `ucx_info -v`.
pub(crate) fn version_in(output: &str) -> Option<&str> {
    let after =
        |line| ["# Library version: ", "# Version "].iter().find_map(|start| str::strip_prefix(line, *start));
    output.lines().find_map(after)
}

/// Nanoseconds of one request: submitted, moved and read.
fn our_latency(pair: &mut Pair, test: &Test) -> Result<f64, BenchError> {
    let mut reader = Reader::new();
    pair.wake()?;
    each_ns(test.count, || {
        pair.copy(test.bytes)?;
        reader.frame(&pair.destination, test.bytes)
    })
}

/// Rate of a stream, MiB/s.
fn our_bandwidth(pair: &mut Pair, test: &Test) -> Result<f64, BenchError> {
    let (source, destination) = pair.ranges(test.bytes);
    let mut in_flight: VecDeque<Ticket> = VecDeque::with_capacity(WINDOW);
    pair.copy(test.bytes)?;
    pair.wake()?;
    let started = Instant::now();
    let mut submitted = 0;
    while submitted < test.count || !in_flight.is_empty() {
        if submitted < test.count && in_flight.len() < WINDOW {
            in_flight.push_back(pair.queue.submit(copy(&source, &destination))?);
            submitted += 1;
        } else if let Some(completion) = pair.queue.poll() {
            let id = completion?.id;
            in_flight.retain(|ticket| ticket.id() != id);
        } else {
            std::hint::spin_loop();
        }
    }
    let seconds = since_ns(started) / 1e9;
    Ok((test.count as u64 * test.bytes) as f64 / (1 << 20) as f64 / seconds)
}

/// Results of the rounds of a test: ours and theirs.
type Sides = Vec<(f64, f64)>;

fn one_round(pair: &mut Pair, test: &Test) -> Result<(f64, f64), BenchError> {
    let theirs = test.theirs(&Ucx::of_the_system())?;
    Ok((test.ours(pair)?, theirs))
}

impl Test {
    /// Microseconds or MiB/s of UCX.
    pub(crate) fn theirs(&self, ucx: &Ucx) -> Result<f64, BenchError> {
        let report = ucx.report(self.ucx, self.bytes, self.count)?;
        Ok(match self.kind {
            Kind::Latency => report.average_us,
            Kind::Bandwidth => report.mib_per_s,
        })
    }

    /// Microseconds or MiB/s of the service.
    pub(crate) fn ours(&self, pair: &mut Pair) -> Result<f64, BenchError> {
        let _pinned = Pinned::to(0)?;
        Ok(match self.kind {
            Kind::Latency => our_latency(pair, self)? / 1000.0,
            Kind::Bandwidth => our_bandwidth(pair, self)?,
        })
    }

    /// The test without the peer's name.
    pub(crate) fn what(&self) -> String {
        self.title.replace("against UCX's", "as its")
    }

    /// The target as a gain, whatever the unit.
    pub(crate) fn least_gain(&self) -> f64 {
        match self.target {
            Target::AtMost(limit) => 1.0 / limit,
            Target::AtLeast(limit) | Target::Always(limit) => limit,
            Target::None => 0.0,
        }
    }

    /// The unit of both, and which is the better one.
    pub(crate) fn unit(&self) -> (&'static str, Better) {
        match self.kind {
            Kind::Latency => ("us", Better::Lower),
            Kind::Bandwidth => ("MiB/s", Better::Higher),
        }
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    if !installed() {
        return Ok(TESTS.iter().map(|test| Row::not_measured(test.title, NOT_INSTALLED)).collect());
    }
    let rounds = run.part("ucx", ROUNDS);
    let service = Service::start(run)?;
    let most = TESTS.iter().map(|test| test.bytes).max().unwrap_or(0);
    let mut pair = Pair::new(Client::connect(service.socket())?, most)?;
    let mut measured: [Result<Sides, String>; TESTS.len()] = [const { Ok(Vec::new()) }; TESTS.len()];
    for _ in 0..rounds {
        for (test, measured) in TESTS.iter().zip(&mut measured) {
            let Ok(sides) = measured else { continue };
            match one_round(&mut pair, test) {
                Ok(round) => sides.push(round),
                Err(error) => *measured = Err(error.to_string()),
            }
        }
        run.round_done();
    }
    Ok(TESTS.iter().zip(&measured).flat_map(|(test, measured)| rows(test, measured)).collect())
}

fn rows(test: &Test, measured: &Result<Sides, String>) -> Vec<Row> {
    let sides = match measured {
        Ok(sides) => sides,
        Err(reason) => return vec![Row::not_measured(test.title, reason)],
    };
    let theirs: Vec<f64> = sides.iter().map(|(_, theirs)| *theirs).collect();
    let ratios: Vec<f64> = sides.iter().map(|(ours, theirs)| ours / theirs).collect();
    let unit = match test.kind {
        Kind::Latency => "us",
        Kind::Bandwidth => "MiB/s",
    };
    vec![
        Row::new(format!("UCX {}, {} KiB", test.ucx, test.bytes >> 10), unit, Target::None, &theirs),
        Row::new(test.title, "ratio", test.target, &ratios),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
";

    #[test]
    fn the_final_line_is_parsed() {
        let line = "                       20000      0.699     0.710     0.713     5471.00    5477.63     1402273     1402273\n";
        let expected = Some(Report { median_us: 0.699, average_us: 0.713, mib_per_s: 5477.63 });
        assert_eq!(parse(&format!("{HEAD}{line}")), expected);
        assert_eq!(parse(&format!("{HEAD}Final: {}", line.trim_start())), expected);
    }

    #[test]
    fn the_version_is_what_its_program_says() {
        assert_eq!(version_in("# Library version: 1.23.0\n# Library path: /a\n"), Some("1.23.0"));
        assert_eq!(version_in("# Version 1.13.1\n"), Some("1.13.1"));
        assert_eq!(version_in("# Git branch\n"), None);
    }

    #[test]
    fn an_unpacked_one_is_run_by_its_own_loader() {
        let ucx = Ucx::unpacked(Path::new("/u"));
        assert_eq!(ucx.loader[0], "/u/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        assert_eq!(ucx.programs, "/u/usr/bin/");
        assert!(
            ucx.environment.iter().any(|(name, value)| name == "UCX_MODULE_DIR" && value.starts_with("/u/"))
        );
        assert!(!Ucx::unpacked(Path::new("/no-such-folder")).works());
    }

    #[test]
    fn the_last_line_counts() {
        let lines = "1 2 3 4 5 6 7 8\n10 20 30 40 50 60 70 80\n\n";
        assert_eq!(parse(lines), Some(Report { median_us: 20.0, average_us: 40.0, mib_per_s: 60.0 }));
    }

    #[test]
    fn a_report_without_figures_is_none() {
        assert_eq!(parse(HEAD), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("[1700000000.1] host:1:0 perftest.c:900  UCX  ERROR  connect failed\n"), None);
        assert_eq!(parse("10 20 30\n"), None);
    }

    #[test]
    fn rows_are_ratios_or_reasons() {
        let json = |rows: Vec<Row>| serde_json::to_value(rows).unwrap();
        let measured = Ok(vec![(1.0, 2.0), (3.0, 2.0), (1.6, 2.0)]);
        let value = json(rows(&TESTS[0], &measured));
        assert_eq!((&value[0]["value"], &value[1]["value"]), (&2.0.into(), &0.8.into()));
        assert_eq!(value[1]["holds"], serde_json::Value::Bool(true));
        let value = json(rows(&TESTS[0], &Err(NOT_INSTALLED.to_owned())));
        assert!(value[0]["value"].is_null());
        assert!(value[0]["reason"].as_str().unwrap().ends_with("(Debian: ucx-utils)"));
    }
}
