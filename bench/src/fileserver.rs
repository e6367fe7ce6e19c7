//! Compares file servers: processor time of the server per GiB, and throughput.
//!
//! ```text
//! round ─ scene (local, 1 remote, 2 remote) × cold or hot × copying or discarding receiver ─ each server in turn:
//!     pages dropped or filled ─► server process ─► receiver processes, remote ones in network namespaces
//!                                   └ processor time of all its threads, before and after ◄─┘
//! ```
//!
//! Every receiver requests blocks of 64 KiB over TCP, one after the other. Servers: ours with each compared
//! engine, diod if Debian's package is installed, and a server in this program that calls `sendfile` without 9P. Processor
//! time covers the server's threads, including the kernel's work on their behalf, but not kernel threads and
//! interrupts. It is robust against other load on the machine; throughput is not. Every round also measures
//! raw `O_DIRECT` reads.

mod namespaces;
mod receiver;
mod sendfile;
mod servers;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memferry_charts::{Group, Scale};
use memferry_pool::{Direct, Pool, Way};
use rustix::fs::{Advice, fadvise};

use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;
use crate::{BenchError, plots};
use namespaces::Namespaces;
use servers::{KINDS, Kind};

/// Runs as another process of a measurement (`--files`).
pub(crate) fn role(words: &[String]) -> Result<(), BenchError> {
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", engine, directory, addresses @ ..] => {
            servers::serve(engine, Path::new(directory), addresses)
        }
        ["sendfile", directory, addresses @ ..] => sendfile::serve(Path::new(directory), addresses),
        ["receive", protocol, address, attach, file, receives] => {
            receiver::receive(protocol, address, attach, file, receives)
        }
        _ => Err("unknown role after --files".into()),
    }
}

const ROUNDS: usize = 5;
/// Bytes per file; each receiver reads its own file.
const BYTES: u64 = 96 << 20;
const QUICK_BYTES: u64 = 32 << 20;
pub(super) const BLOCK: usize = 64 << 10;
/// How long a file may take to leave the page cache.
const TIMEOUT: Duration = Duration::from_millis(500);
/// A fraction of 1/FEW of the pages may stay cached: a huge page still referenced elsewhere.
const FEW: u64 = 8;
const GIB: f64 = (1u64 << 30) as f64;
/// Maximum cost of the pool relative to copying: cold, with a copying receiver.
const POOL_OVER_COPYING: f64 = 0.95;
/// Minimum rate relative to raw reads in that case.
const RATE_OVER_RAW: f64 = 0.85;

/// Number of remote clients; zero means a local one.
const SCENES: [(&str, usize); 3] = [("local", 0), ("1 remote", 1), ("2 remote", 2)];
const HEATS: [&str; 2] = ["cold", "hot"];
const RECEIVES: [&str; 2] = ["copying", "discarding"];
/// Parts: cold and hot files for copying receivers, and all files for discarding ones.
const PARTS: [&str; 3] = ["cold", "hot", "discarding"];

/// Heats and receivers of the selected parts.
fn wanted(run: &Run) -> Vec<(usize, usize)> {
    let part = |(heat, receives): &(usize, usize)| if *receives == 0 { PARTS[*heat] } else { PARTS[2] };
    let all = (0..HEATS.len()).flat_map(|heat| (0..RECEIVES.len()).map(move |receives| (heat, receives)));
    all.filter(|at| run.wants(part(at))).collect()
}

/// Result of one server in one round: seconds of processor time per GiB, and GB/s.
#[derive(Clone, Copy)]
struct Served {
    processor: f64,
    rate: f64,
}

/// Results by scene, heat, receiver and server.
#[derive(Default)]
struct Figures {
    served: BTreeMap<(usize, usize, usize, Kind), Vec<Served>>,
    raw: Vec<f64>,
}

struct Files {
    directory: PathBuf,
    bytes: u64,
}

impl Files {
    fn new(run: &Run) -> Result<Self, BenchError> {
        let bytes = if run.quick() { QUICK_BYTES } else { BYTES };
        let files = Self { directory: run.directory().join("files"), bytes };
        std::fs::create_dir(&files.directory)?;
        for index in 0..2 {
            let mut file = File::create(files.path(index))?;
            let part = random_bytes(1 << 20, 0x5eed + index as u64);
            for _ in 0..bytes >> 20 {
                file.write_all(&part)?;
            }
            file.sync_all()?;
        }
        Ok(files)
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(name(index))
    }

    /// Drops the files from the page cache, or fills it.
    fn set(&self, heat: &str, files: usize) -> Result<(), BenchError> {
        for index in 0..files {
            let mut file = File::open(self.path(index))?;
            if heat == "cold" {
                self.drop_pages(&file)?;
            } else {
                let mut block = vec![0; 1 << 20];
                while file.read(&mut block)? > 0 {}
            }
        }
        Ok(())
    }

    /// Drops a file's pages. Pages in another CPU's temporary lists stay, so it retries; a few may
    /// stay for good.
    fn drop_pages(&self, file: &File) -> Result<(), BenchError> {
        let few = self.bytes / 4096 / FEW;
        let until = Instant::now() + TIMEOUT;
        loop {
            fadvise(file, 0, None, Advice::DontNeed)?;
            // Kernels before 6.5 cannot report cached pages; assume none.
            let left = memferry_pool::cached_pages(file.as_fd(), 0, self.bytes).unwrap_or(0);
            if left == 0 || Instant::now() >= until && left <= few {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(format!("{left} pages of a file did not leave the page cache").into());
            }
            std::thread::yield_now();
        }
    }

    /// GB/s of raw sequential reads that bypass the page cache.
    fn raw_rate(&self) -> Result<f64, BenchError> {
        self.set("cold", 1)?;
        let file = Direct::new(File::open(self.path(0))?);
        let pool =
            Pool::new(memferry_pool::Options { buffer_bytes: BLOCK, ..memferry_pool::Options::default() })?;
        let mut buffer = pool.take()?;
        let started = Instant::now();
        for offset in (0..self.bytes).step_by(BLOCK) {
            let moved = file.read_buffer(&mut buffer, 0, BLOCK, offset)?;
            if moved.way != Way::Direct {
                return Err("the file system of temporary files does not support O_DIRECT; set TMPDIR".into());
            }
        }
        Ok(self.bytes as f64 / started.elapsed().as_secs_f64() / 1e9)
    }
}

/// Name of a receiver's file.
fn name(index: usize) -> String {
    format!("file{index}")
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS)?;
    let wanted = wanted(run);
    let files = Files::new(run)?;
    let namespaces = Namespaces::new(2);
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|kind| kind.is_there()).collect();
    let mut figures = Figures::default();
    let rounds = run.part("fileserver", ROUNDS);
    for round in 0..rounds {
        figures.raw.push(files.raw_rate()?);
        for (scene, (_, remote)) in SCENES.iter().enumerate() {
            let Ok(hosts) = addresses(&namespaces, *remote) else { continue };
            for (heat, receives) in &wanted {
                for turn in 0..kinds.len() {
                    let kind = kinds[(turn + round) % kinds.len()];
                    files.set(HEATS[*heat], hosts.len())?;
                    let served = serve_once(kind, &files, &hosts, RECEIVES[*receives])?;
                    figures.served.entry((scene, *heat, *receives, kind)).or_default().push(served);
                }
            }
        }
        run.round_done();
    }
    let title = "Processor time of the server for a GiB (bar: median, stroke: minimum to maximum)";
    let names = KINDS.map(Kind::name);
    run.picture("fileserver", || plots::bars(title, ("s/GiB", Scale::Linear), &names, &bars(&figures)))?;
    Ok(rows(&figures, &namespaces, &wanted))
}

/// A receiver's location: process of its namespace, and the server's address as seen from there.
type Host = (Option<u32>, String);

fn addresses(namespaces: &Result<Namespaces, BenchError>, remote: usize) -> Result<Vec<Host>, String> {
    if remote == 0 {
        return Ok(vec![(None, "127.0.0.1".to_owned())]);
    }
    let namespaces = namespaces.as_ref().map_err(ToString::to_string)?;
    Ok(namespaces
        .hosts()
        .into_iter()
        .take(remote)
        .map(|(process, address)| (Some(process), address))
        .collect())
}

/// Starts a server, lets its receivers read their files, and measures its processor time.
fn serve_once(kind: Kind, files: &Files, hosts: &[Host], receives: &str) -> Result<Served, BenchError> {
    let names: Vec<&str> = hosts.iter().map(|(_, host)| host.as_str()).collect();
    let server = servers::Server::start(kind, &files.directory, &names)?;
    let mut receivers = Vec::new();
    for (index, (namespace, host)) in hosts.iter().enumerate() {
        let address = format!("{host}:{}", server.port());
        let attach = server.attach();
        receivers.push(receiver::Receiver::start(
            *namespace,
            kind.protocol(),
            &address,
            attach,
            index,
            receives,
        )?);
    }
    let before = server.processor_seconds()?;
    for receiver in &mut receivers {
        receiver.go()?;
    }
    let mut longest = 0.0_f64;
    for receiver in &mut receivers {
        let (bytes, seconds) = receiver.done()?;
        if bytes != files.bytes {
            return Err(format!("{} sent {bytes} of {} bytes", kind.name(), files.bytes).into());
        }
        longest = longest.max(seconds);
    }
    let spent = server.processor_seconds()? - before;
    let bytes = files.bytes as f64 * hosts.len() as f64;
    Ok(Served { processor: spent / (bytes / GIB), rate: bytes / longest / 1e9 })
}

impl Figures {
    fn of(&self, at: (usize, usize, usize), kind: Kind, value: fn(&Served) -> f64) -> Vec<f64> {
        let found = self.served.get(&(at.0, at.1, at.2, kind));
        found.map_or_else(Vec::new, |all| all.iter().map(value).collect())
    }

    /// Ratios of two servers' processor times, by round.
    fn ratios(&self, at: (usize, usize, usize), over: [Kind; 2]) -> Vec<f64> {
        let [upper, lower] = over.map(|kind| self.of(at, kind, |served| served.processor));
        upper.iter().zip(&lower).map(|(upper, lower)| upper / lower).collect()
    }
}

fn words(at: (usize, usize, usize)) -> String {
    format!("{}, {}, {} receiver", HEATS[at.1], SCENES[at.0].0, RECEIVES[at.2])
}

fn ratio_name(at: (usize, usize, usize)) -> String {
    format!("{}: pool over copying", words(at))
}

fn rows(
    figures: &Figures,
    namespaces: &Result<Namespaces, BenchError>,
    wanted: &[(usize, usize)],
) -> Vec<Row> {
    let mut rows = vec![Row::new("raw O_DIRECT reads of 64 KiB", "GB/s", Target::None, &figures.raw)];
    for (scene, (_, remote)) in SCENES.iter().enumerate() {
        for at in wanted.iter().map(|(heat, receives)| (scene, *heat, *receives)) {
            match addresses(namespaces, *remote) {
                Ok(_) => rows.extend(rows_at(figures, at)),
                Err(reason) => rows.push(Row::not_measured(&ratio_name(at), &reason)),
            }
        }
    }
    if !Kind::Diod.is_there() {
        rows.push(Row::not_measured("diod", "diod is not installed (Debian's package diod)"));
    }
    rows
}

fn rows_at(figures: &Figures, at: (usize, usize, usize)) -> Vec<Row> {
    let words = words(at);
    let kinds = KINDS.into_iter().filter(|kind| kind.is_there());
    let mut rows = Vec::new();
    for kind in kinds {
        let processor = figures.of(at, kind, |served| served.processor);
        let rate = figures.of(at, kind, |served| served.rate);
        rows.push(Row::new(format!("{words}: {}", kind.name()), "s/GiB", Target::None, &processor));
        rows.push(Row::new(format!("{words}: {}, rate", kind.name()), "GB/s", Target::None, &rate));
    }
    let is_judged = HEATS[at.1] == "cold" && RECEIVES[at.2] == "copying";
    let over = figures.ratios(at, [Kind::Pool, Kind::Copying]);
    let target = if is_judged { Target::AtMost(POOL_OVER_COPYING) } else { Target::None };
    rows.push(Row::new(ratio_name(at), "times", target, &over));
    if is_judged {
        let rates = figures.of(at, Kind::Pool, |served| served.rate);
        let reached: Vec<f64> = rates.iter().zip(&figures.raw).map(|(rate, raw)| rate / raw).collect();
        let target = if at.0 == 0 { Target::AtLeast(RATE_OVER_RAW) } else { Target::None };
        rows.push(Row::new(format!("{words}: pool's rate over raw"), "times", target, &reached));
    }
    if Kind::Diod.is_there() {
        let over = figures.ratios(at, [Kind::Auto, Kind::Diod]);
        rows.push(Row::new(format!("{words}: auto over diod"), "times", Target::AtMost(1.0), &over));
    }
    rows
}

/// A group of bars per table row, a bar per server.
fn bars(figures: &Figures) -> Vec<Group> {
    let mut groups = Vec::new();
    for (scene, (name, _)) in SCENES.iter().enumerate() {
        for (heat, temperature) in HEATS.iter().enumerate() {
            for (receives, receiver) in RECEIVES.iter().enumerate() {
                let of = |kind: Kind| figures.of((scene, heat, receives), kind, |served| served.processor);
                let bars: Vec<_> = KINDS.into_iter().map(|kind| plots::range(&of(kind))).collect();
                if bars.iter().any(Option::is_some) {
                    groups.push(Group { name: format!("{temperature}, {name}, {receiver}"), bars });
                }
            }
        }
    }
    groups
}
