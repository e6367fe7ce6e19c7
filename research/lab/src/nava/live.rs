//! The project's file server at hand: what it spends on a GiB when it copies, and when it serves from the pool.
//!
//! ```text
//! a file, dropped from the page cache ─► server (copying | pool) ─► one local client, one and two over TCP
//!                                          └► processor time of the server's threads, by GiB
//! ```
//!
//! A short measurement for one reported row, in one process; `./x bench fileserver` measures with care, and between processes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use memferry_ninep::{Client, Engine, Listener, Options, Server};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::claims::Place;
use crate::experiments::{Case, Judge, RunError};
use crate::verdict::{Basis, Figures, Status, Verdict};

/// What decides the claim.
pub(super) const JUDGES: [Judge; 1] = [Judge { claim: "nava-live", place: Place::Live, judge: reported }];

/// Bytes of the file.
const BYTES: usize = 32 << 20;
/// Rounds; the middle one counts.
const ROUNDS: usize = 5;
/// What is measured: its name, and clients over TCP, none for a local one.
const SCENES: [(&str, usize); 3] = [("local", 0), ("1 remote", 1), ("2 remote", 2)];

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn reported(case: &Case<'_>) -> Result<Verdict, RunError> {
    let not_run = Verdict::not_run(case.claim, Place::Live);
    Ok(match measured() {
        Ok(figures) => Verdict {
            status: Status::Reported,
            basis: Some(Basis::Measured),
            why: format!(
                "{}; processor time of the server's threads for a GiB, the middle of {ROUNDS} rounds, on a machine that does other \
                 things; clients of the same machine, over TCP where they are remote",
                expectation(&figures)
            ),
            figures: Figures::Named(
                figures.into_iter().map(|(name, value)| (name, (value * 1e3).round() / 1e3)).collect(),
            ),
            unit: Some("s/GiB".to_owned()),
            ..not_run
        },
        Err(error) => {
            Verdict { why: format!("the machine at hand could not be measured: {error}"), ..not_run }
        }
    })
}

/// What the ratio of the two ways is called, after its scene.
const RATIO: &str = "pool over copying";

/// Whether the claim's expectation holds on this machine, in words.
fn expectation(figures: &[(String, f64)]) -> String {
    let ratios = figures.iter().filter(|(name, _)| name.ends_with(RATIO));
    let (all, less) =
        ratios.fold((0, 0), |(all, less), (_, ratio)| (all + 1, less + u32::from(*ratio < 1.0)));
    let holds = if all > 0 && less == all { "holds" } else { "does not hold" };
    format!("the pool spent less in {less} of {all} scenes: the expectation {holds} here")
}

/// A directory that is gone when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn measured() -> Result<Vec<(String, f64)>, Failed> {
    let scratch = Scratch(std::env::temp_dir().join(format!("memferry-lab-files-{}", std::process::id())));
    std::fs::create_dir(&scratch.0)?;
    let path = scratch.0.join("file");
    let mut file = File::create(&path)?;
    let content: Vec<u8> = (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    file.write_all(&content)?;
    file.sync_all()?;
    let offered = memferry_pool::Direct::new(File::open(&path)?).alignments().is_some();
    if !offered {
        return Err("the file system of temporary files offers no O_DIRECT".into());
    }
    let mut all = Vec::new();
    for (name, remote) in SCENES {
        let mut spent = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (engine, spent) in [Engine::Copying, Engine::Pool].into_iter().zip(&mut spent) {
                posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
                spent.push(served(&scratch.0, engine, remote)?);
            }
        }
        let [copying, pool] = spent.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        });
        all.extend([(format!("{name}, copying"), copying), (format!("{name}, pool"), pool)]);
        all.push((format!("{name}, {RATIO}"), pool / copying));
    }
    Ok(all)
}

/// Seconds of the server's threads for a GiB.
fn served(directory: &Path, engine: Engine, remote: usize) -> Result<f64, Failed> {
    let socket = directory.join("socket");
    let listener = if remote == 0 { Listener::unix(&socket)? } else { Listener::tcp("127.0.0.1:0", false)? };
    let address = listener.address();
    let options = Options { engine, read_only: true, ..Options::new(directory) };
    let server = Server::start(options, vec![listener])?;
    let before = processor_time()?;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..remote.max(1)).map(|_| scope.spawn(|| read_all(&address))).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| Err("a client died".into())))
    })?;
    let spent = processor_time()? - before;
    drop(server);
    Ok(spent as f64 / 1e9 * (1u64 << 30) as f64 / (remote.max(1) * BYTES) as f64)
}

/// One client: the whole file, block by block.
fn read_all(address: &str) -> Result<(), Failed> {
    let client = match address.split_once(':') {
        Some(("unix", path)) => Client::unix(Path::new(path))?,
        Some((_, address)) => Client::tcp(address)?,
        None => return Err("the server has no address".into()),
    };
    let mut client = client.attach((64 << 10) + 24, "/")?;
    client.walk(1, "file")?;
    client.open(1, 0)?;
    let mut bytes = Vec::with_capacity(64 << 10);
    let mut at = 0;
    loop {
        bytes.clear();
        match client.read(1, at, 64 << 10, &mut bytes)? {
            0 if at == BYTES as u64 => return Ok(()),
            0 => return Err("the file ended early".into()),
            came => at += came as u64,
        }
    }
}

/// Nanoseconds that the server's threads and the kernel's workers of their rings have spent.
fn processor_time() -> Result<u64, Failed> {
    let mut tasks = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        // A thread may end meanwhile.
        let (Ok(name), Ok(times)) =
            (std::fs::read_to_string(path.join("comm")), std::fs::read_to_string(path.join("schedstat")))
        else {
            continue;
        };
        let id = path.file_name().map(|id| id.to_string_lossy().into_owned()).unwrap_or_default();
        let spent = times.split_whitespace().next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
        tasks.push((id, name.trim().to_owned(), spent));
    }
    let own = |name: &str| name.starts_with("9p-");
    let workers: Vec<String> =
        tasks.iter().filter(|(_, name, _)| own(name)).map(|(id, ..)| format!("iou-wrk-{id}")).collect();
    let counted = tasks.iter().filter(|(_, name, _)| own(name) || workers.contains(name));
    Ok(counted.map(|(.., spent)| spent).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expectation_holds_where_the_pool_spends_less_in_every_scene() {
        let of = |ratios: [f64; 2]| {
            let scenes = ratios.map(|ratio| (format!("a, {RATIO}"), ratio));
            expectation(&[&[("a, pool".to_owned(), 0.5)], scenes.as_slice()].concat())
        };
        assert_eq!(of([0.9, 0.8]), "the pool spent less in 2 of 2 scenes: the expectation holds here");
        assert_eq!(
            of([0.9, 1.0]),
            "the pool spent less in 1 of 2 scenes: the expectation does not hold here"
        );
        assert!(expectation(&[]).ends_with("does not hold here"));
    }
}
