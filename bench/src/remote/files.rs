//! Part `files`: a file of 1 GiB from one node to the other, by programs as they are installed.
//!
//! ```text
//! file, random bytes, in memory ─ memferry share │ rsync --daemon │ sshd │ ganesha.nfsd      started once, not timed
//!                                 memferry copy  │ rsync          │ scp  │ nfs-cp ─► new file in memory      timed with its start
//! ```
//!
//! `memferry share` reads the file before: the others read it, from the page cache, for each copy. Over UCX, rsync's daemon and NFS bytes
//! travel in clear text, with scp and `require-encryption` encrypted. UCX is this machine's, by TCP.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::nodes::{Nodes, Way, program, user};
use super::servers::{self, Place, Server, Tools};
use super::ucx::{Transport, Ucx};
use crate::BenchError;
use crate::children::Program;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 5;
const MIB: u64 = 1 << 20;
const BYTES: u64 = 1 << 30;
const QUICK_BYTES: u64 = 128 << 20;

/// Two nodes, one of which shares the file.
struct Shared {
    token: String,
    socket: PathBuf,
    _share: Program,
    _nodes: Nodes,
}

/// What copies the file.
enum Copier {
    Memferry(Box<Shared>),
    Other(Server),
}

impl Copier {
    fn command(&self, destination: &Path) -> Result<Command, BenchError> {
        Ok(match self {
            Self::Memferry(shared) => {
                let mut command = Command::new(program("memferry")?);
                command.args(["copy", &shared.token]).arg(destination);
                command.arg("--socket").arg(&shared.socket).args(["--retry", "30"]);
                command
            }
            Self::Other(server) => server.command(destination),
        })
    }
}

/// A way to copy, what it is called, and its seconds in each round.
struct Candidate {
    name: &'static str,
    copier: Result<Copier, String>,
    seconds: Vec<f64>,
}

/// The candidates by their place in the list.
const OVER_UCX: usize = 0;
const ENCRYPTED: usize = 1;
/// Others, and the one of ours that sends bytes as they do.
const OTHERS: [(usize, usize); 3] = [(2, OVER_UCX), (3, ENCRYPTED), (4, OVER_UCX)];

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let bytes = if run.quick() { QUICK_BYTES } else { BYTES };
    let directory = run.directory_in_memory(3 * bytes)?;
    let served = directory.join("served");
    let own = directory.join("servers");
    std::fs::create_dir(&served)?;
    std::fs::create_dir(&own)?;
    let file = served.join("file");
    write_random(&file, bytes)?;
    let tools = Tools::find();
    let place = Place { file: &file, own: &own };
    let (found, _) = Ucx::all();
    let over_ucx = match found.iter().find(|ucx| ucx.is_installed()) {
        Some(ucx) => share(run, &file, Way::Ucx(ucx, Transport::Tcp), "over-ucx"),
        None => Err(crate::service::ucx::NOT_INSTALLED.into()),
    };
    let ours = |shared: Result<Shared, BenchError>| shared.map(|shared| Copier::Memferry(Box::new(shared)));
    let other = |server: Result<Server, BenchError>| server.map(Copier::Other);
    let mut candidates = [
        ("memferry copy over UCX by TCP", ours(over_ucx)),
        ("memferry copy, encrypted", ours(share(run, &file, Way::Encrypted, "encrypted"))),
        ("rsync from its daemon", other(servers::rsync(&tools, &place))),
        ("scp", other(servers::scp(&tools, &place))),
        ("nfs-cp from nfs-ganesha", other(servers::nfs(&tools, &place))),
    ]
    .map(|(name, copier)| {
        let copier = copier.map_err(|error| error.to_string());
        Candidate { name, copier, seconds: Vec::new() }
    });
    let rounds = run.part("remote files", ROUNDS);
    let destination = directory.join("copy");
    for round in 0..rounds {
        let count = candidates.len();
        for turn in 0..count {
            let candidate = &mut candidates[(turn + round) % count];
            let Ok(copier) = &candidate.copier else { continue };
            match once(copier, &file, &destination, round == 0) {
                Ok(seconds) => candidate.seconds.push(seconds),
                Err(error) => candidate.copier = Err(error.to_string()),
            }
        }
        run.round_done();
    }
    let _ = std::fs::remove_file(&destination);
    Ok(rows(&candidates, bytes))
}

/// Starts two nodes, one of which shares the file.
fn share(run: &Run, file: &Path, way: Way<'_>, name: &str) -> Result<Shared, BenchError> {
    let nodes = Nodes::start_in(run, way, name)?;
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path is not UTF-8");
    let program = text(&program("memferry")?)?;
    let file = text(file)?;
    let socket = text(&nodes.alpha.socket)?;
    let to = format!("beta:{}", user());
    let words = [&*program, "share", &file, "--to", &to, "--node", "alpha", "--socket", &socket];
    let mut share = Program::start(&words, &[])?;
    let token = share.line()?;
    if token.is_empty() {
        return Err("memferry share ended".into());
    }
    Ok(Shared { token, socket: nodes.beta.socket.clone(), _share: share, _nodes: nodes })
}

/// Seconds of one copy to a new file.
fn once(copier: &Copier, file: &Path, destination: &Path, compares: bool) -> Result<f64, BenchError> {
    let _ = std::fs::remove_file(destination);
    let mut command = copier.command(destination)?;
    let started = Instant::now();
    let output = command.output()?;
    let seconds = started.elapsed().as_secs_f64();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} ended with {}: {}", output.status, said.trim()).into());
    }
    if compares && !is_same(file, destination)? {
        return Err(format!("{command:?} wrote other bytes").into());
    }
    Ok(seconds)
}

fn write_random(path: &Path, bytes: u64) -> Result<(), BenchError> {
    use std::io::Write;
    let mut file = File::create(path)?;
    for number in 0..bytes / MIB {
        file.write_all(&random_bytes(MIB as usize, number))?;
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> Result<bool, BenchError> {
    let mut files = [File::open(one)?, File::open(other)?];
    let mut parts = [Vec::new(), Vec::new()];
    loop {
        for (file, part) in files.iter_mut().zip(&mut parts) {
            part.clear();
            file.by_ref().take(MIB).read_to_end(part)?;
        }
        if parts[0] != parts[1] {
            return Ok(false);
        }
        if parts[0].is_empty() {
            return Ok(true);
        }
    }
}

fn rows(candidates: &[Candidate], bytes: u64) -> Vec<Row> {
    let mib = (bytes / MIB) as f64;
    let title = |name: &str| format!("file of {mib} MiB: {name}");
    let mut rows: Vec<Row> = candidates
        .iter()
        .map(|candidate| match &candidate.copier {
            Ok(_) => {
                let rates: Vec<f64> = candidate.seconds.iter().map(|seconds| mib / seconds).collect();
                Row::new(title(candidate.name), "MiB/s", Target::None, &rates)
            }
            Err(why) => Row::not_measured(&title(candidate.name), why),
        })
        .collect();
    for (theirs, ours) in OTHERS {
        let [theirs, ours] = [theirs, ours].map(|place| &candidates[place]);
        if theirs.copier.is_ok() && ours.copier.is_ok() {
            let ratios = theirs.seconds.iter().zip(&ours.seconds).map(|(theirs, ours)| theirs / ours);
            let name = format!("time of {} against {}", theirs.name, ours.name);
            rows.push(Row::new(title(&name), "times", Target::None, &ratios.collect::<Vec<_>>()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_rates_reasons_and_ratios_of_those_that_were_measured() {
        let candidate = |name, copier: Option<&str>, seconds: &[f64]| Candidate {
            name,
            copier: match copier {
                Some(why) => Err(why.to_owned()),
                None => Ok(Copier::Other(Server::for_tests())),
            },
            seconds: seconds.to_vec(),
        };
        let candidates = [
            candidate("a", None, &[1.0, 2.0]),
            candidate("b", None, &[4.0, 4.0]),
            candidate("c", None, &[2.0, 8.0]),
            candidate("d", Some("it is missing"), &[]),
            candidate("e", None, &[0.5, 0.5]),
        ];
        let rows = serde_json::to_value(rows(&candidates, 64 << 20)).unwrap();
        assert_eq!(rows[0]["value"], 64.0);
        assert_eq!(rows[3]["reason"], "it is missing");
        assert_eq!(rows[5]["name"], "file of 64 MiB: time of c against a");
        assert_eq!((&rows[5]["min"], &rows[5]["max"]), (&2.0.into(), &4.0.into()));
        assert_eq!(rows[6]["name"], "file of 64 MiB: time of e against a");
        assert_eq!(rows.as_array().unwrap().len(), 7);
    }

    #[test]
    fn files_are_compared_to_their_ends() {
        let directory = std::env::temp_dir().join(format!("memferry-bench-files-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.join(name));
        write_random(&one, 2 * MIB).unwrap();
        write_random(&other, 2 * MIB).unwrap();
        assert!(is_same(&one, &other).unwrap());
        File::options().append(true).open(&other).unwrap().set_len(2 * MIB + 1).unwrap();
        assert!(!is_same(&one, &other).unwrap());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
