//! Part `programs`: what the library gains or costs whole programs.
//!
//! ```text
//! workload: a shell script ─ alternately ─► without the library, with it ─► ratios per round ─► rows
//! ```
//!
//! Files are in the run's directory, outputs go to /dev/null, and inputs are in the page cache. The rows have no
//! targets: they report gains and losses. Missing programs are reported.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

const ROUNDS: usize = 7;
/// Input of the compressors: text and random bytes.
const INPUT_BYTES: usize = 32 << 20;

/// A workload: required program, description, preparation, and timed script.
struct Workload {
    program: &'static str,
    about: &'static str,
    before: &'static str,
    script: &'static str,
}

const WORKLOADS: [Workload; 10] = [
    Workload { program: "gzip", about: "gzip -1 of 32 MiB", before: "", script: "gzip -1 <input" },
    Workload { program: "xz", about: "xz -0 of 32 MiB", before: "", script: "xz -0 -T1 <input" },
    Workload {
        program: "zstd",
        about: "zstd -1 of 32 MiB, and back",
        before: "",
        script: "zstd -q -1 --long=27 <input | zstd -q -d --long=27",
    },
    Workload {
        program: "sqlite3",
        about: "sqlite3, 400 blobs of 500 kB",
        before: "",
        script: "sqlite3 :memory: \"create table t(a integer primary key, b blob); \
                 with recursive n(i) as (select 1 union all select i+1 from n where i<400) \
                 insert into t select i, zeroblob(500000) || i from n; create table u as select * from t; \
                 select sum(length(b)) from u;\"",
    },
    Workload {
        program: "python3",
        about: "python3, bytes of 48 MB sliced and joined",
        before: "",
        script: "python3 -c 'b = bytearray(range(250)) * 192000\nfor n in range(12):\n    c = bytes(b); b[n:n + 9] = c[-9:]; \
                 d = c[:24000000] + c[24000000:]'",
    },
    Workload {
        program: "git",
        about: "git add and gc of 32 MiB",
        before: "rm -rf tree && mkdir tree && cp input tree/",
        script: "cd tree && git init -q . && git add input && git -c gc.pruneExpire=now gc -q && git fsck",
    },
    Workload {
        program: "gcc",
        about: "gcc -O2 of a C file",
        before: "",
        script: "gcc -O2 -pthread -c -o object.o source.c",
    },
    Workload {
        program: "redis-benchmark",
        about: "redis-server under redis-benchmark, 64 KiB",
        before: "",
        script: REDIS,
    },
    Workload {
        program: "convert",
        about: "ImageMagick, 12 megapixels turned and scaled",
        before: "",
        script: "convert -limit thread 1 -size 4000x3000 gradient:red-blue -rotate 90 -flip -resize 50% ppm:-",
    },
    Workload {
        program: "bash",
        about: "bash, 300 children",
        before: "",
        script: "bash -c 'for i in $(seq 100); do echo $i | (read x; echo $x | cat); done'",
    },
];

const REDIS: &str = "redis-server --port 0 --unixsocket \"$PWD/redis.sock\" --save '' >/dev/null & server=$!\n\
                     until redis-cli -s redis.sock ping >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.01; done\n\
                     redis-benchmark -s redis.sock -n 20000 -c 16 -d 65536 -t set,get -q\n\
                     redis-cli -s redis.sock shutdown nosave; wait";

pub(super) fn measure(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    write_input(run)?;
    let mut rows = Vec::new();
    for workload in &WORKLOADS {
        if workload.is_installed()? {
            rows.extend(workload.measure(run, library)?);
        } else {
            rows.push(Row::not_measured(workload.about, "not installed"));
        }
    }
    Ok(rows)
}

/// Writes the input, alternating numbers as text and random bytes.
fn write_input(run: &Run) -> Result<(), BenchError> {
    const PIECE: usize = 1 << 20;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut bytes = Vec::with_capacity(INPUT_BYTES + PIECE);
    while bytes.len() < INPUT_BYTES {
        let end = bytes.len() + PIECE;
        while bytes.len() < end - PIECE / 2 {
            bytes.extend_from_slice(format!("{} of {end}\n", bytes.len()).as_bytes());
        }
        while bytes.len() < end {
            bytes.extend_from_slice(&rng.u64(..).to_le_bytes());
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/preload/tests/stress.c");
    std::fs::copy(source, run.directory().join("source.c"))?;
    Ok(std::fs::write(run.directory().join("input"), bytes)?)
}

/// Elapsed and CPU time, seconds.
#[derive(Clone, Copy)]
struct Taken {
    time: f64,
    cpu: f64,
}

impl Workload {
    fn is_installed(&self) -> Result<bool, BenchError> {
        // Other programs use these names too.
        let check = match self.program {
            "convert" => "convert -version | grep -q ImageMagick".to_owned(),
            "redis-benchmark" => "command -v redis-server redis-cli redis-benchmark".to_owned(),
            program => format!("command -v {program}"),
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &check]).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(shell.status()?.success())
    }

    fn measure(&self, run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
        let rounds = run.part(self.program, ROUNDS);
        let mut plain = Vec::new();
        let mut times = Vec::new();
        let mut cpus = Vec::new();
        // The first round only fills the page cache.
        for round in 0..=rounds {
            let without = self.take(run, None)?;
            let with = self.take(run, Some(library))?;
            if round > 0 {
                times.push(without.time / with.time);
                cpus.push(without.cpu / with.cpu);
                plain.push(without.time * 1e3);
                run.round_done();
            }
        }
        let name = |what: &str| format!("{}: {what}", self.about);
        Ok(vec![
            Row::new(name("without the library"), "ms", Target::None, &plain),
            Row::new(name("preloaded"), "x", Target::None, &times),
            Row::new(name("preloaded, CPU time"), "x", Target::None, &cpus),
        ])
    }

    fn take(&self, run: &Run, with: Option<&Path>) -> Result<Taken, BenchError> {
        self.shell(run, self.before).status()?;
        let mut timed = self.shell(run, self.script);
        if let Some(library) = with {
            timed.env("LD_PRELOAD", library);
        }
        let cpu = cpu_of_children()?;
        let started = Instant::now();
        let output = timed.output()?;
        let time = since_ns(started) * 1e-9;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} failed: {errors}", self.about).into());
        }
        Ok(Taken { time, cpu: (cpu_of_children()? - cpu).as_secs_f64().max(1e-6) })
    }

    fn shell(&self, run: &Run, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(run.directory()).env("HOME", run.directory());
        shell
            .env_remove("LD_PRELOAD")
            .env_remove("MEMFERRY_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        shell
    }
}

fn cpu_of_children() -> Result<Duration, BenchError> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}
