//! The clients, each in a process of its own: what they do is drawn from their seed, what comes of it is held to what
//! they know.
//!
//! ```text
//! Role ─► run ─► connect ─► session of this role ─┬─ done                        ─► exit 0
//!                   ▲                             ├─ lost, ended, refused: said ─┐
//!                   └─────────────────────────────┴──────────────────────────────┘
//!                                                 └─ finding: said               ─► exit 1
//! ```

mod borrower;
mod bulk;
mod cells;
mod files;
mod judge;
mod lender;
mod mover;
mod plain;
mod transfers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use memferry::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::random::Random;
use crate::saying::{Stop, Teller, say};

/// Where the file server listens, where clients meet.
pub(crate) const FILES: &str = files::SOCKET;
/// How long anything may take on a machine that is busy and on which processes are stopped now and then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between tries to reach a service that restarts.
const PAUSE: Duration = Duration::from_millis(20);

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Requests of every kind through a service.
    Mover,
    /// The same with the service inside.
    Embedded,
    /// Grants memory, takes it back, and sees that it is its own again.
    Lender,
    /// Uses what others grant.
    Borrower,
    /// Sends messages and lends frames.
    Producer,
    /// Takes them.
    Consumer,
    /// Reads and writes files of the file server.
    Files,
    /// Copies its own memory, knowing nothing of memferry.
    Plain,
    /// Holds memory.
    Ballast,
}

/// One client.
#[derive(Args, Clone, Debug)]
pub(crate) struct Part {
    /// What to do.
    #[arg(long)]
    role: Role,
    /// The service's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Where clients meet.
    #[arg(long)]
    meeting: PathBuf,
    /// What to draw from.
    #[arg(long)]
    seed: u64,
    /// Descriptors this process may have, beyond those it has.
    #[arg(long)]
    descriptors: Option<u64>,
    /// Bytes of address space it may have, beyond those it has.
    #[arg(long)]
    memory: Option<u64>,
}

/// Plays a part to its end.
pub(crate) fn run(part: &Part) -> ExitCode {
    let mut random = Random::new(part.seed);
    let mut teller = Teller::new();
    if let Err(error) = limit(part) {
        say(&format!("finding cannot limit this process: {error}"));
        return ExitCode::FAILURE;
    }
    let rounds = random.between(20, 2000);
    for _ in 0..1000 {
        let mut process = 0;
        match play(part, &mut random, &mut teller, rounds, &mut process) {
            Ok(()) => {
                teller.say();
                return ExitCode::SUCCESS;
            }
            Err(Stop::Finding(what)) => {
                say(&format!("finding {what}"));
                return ExitCode::FAILURE;
            }
            Err(Stop::Lost) if process == 0 => {}
            Err(Stop::Lost) => say(&format!("lost {process}")),
            Err(Stop::Ended(why)) => say(&format!("ended {process} {why}")),
            Err(Stop::Refused(kind, why)) => say(&format!("refused {process} {kind} {why}")),
        }
        teller.say();
        std::thread::sleep(PAUSE);
    }
    ExitCode::SUCCESS
}

fn play(
    part: &Part,
    random: &mut Random,
    teller: &mut Teller,
    rounds: u64,
    process: &mut u32,
) -> Result<(), Stop> {
    match part.role {
        Role::Plain => return plain::copy(random, teller, rounds),
        Role::Ballast => return plain::hold(random, teller),
        Role::Files => return files::session(part, random, teller, rounds),
        Role::Embedded => {
            return mover::session(&Client::embedded()?, random, teller, rounds.min(400));
        }
        _ => {}
    }
    let client = Client::connect(&part.socket)?;
    *process = client.status()?.process;
    say(&format!("hello {process}"));
    match part.role {
        Role::Lender => lender::session(&client, &part.meeting, random, teller, rounds),
        Role::Borrower => borrower::session(&client, &part.meeting, random, teller, rounds),
        Role::Producer => bulk::produce(&client, &part.meeting, random, teller, rounds),
        Role::Consumer => bulk::consume(&client, &part.meeting, teller),
        _ => {
            let hungry = part.memory.is_some().then_some(HUNGER);
            mover::beyond_limits(&client, hungry)?;
            mover::session(&client, random, teller, rounds)
        }
    }
}

/// What a client that may have little memory asks for all the same.
const HUNGER: u64 = 1 << 30;

/// Lowers this process's limits.
fn limit(part: &Part) -> std::io::Result<()> {
    let lower = |resource, most| {
        let limit = Rlimit { current: Some(most), ..getrlimit(resource) };
        setrlimit(resource, limit).map_err(std::io::Error::from)
    };
    if let Some(more) = part.descriptors {
        let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        lower(Resource::Nofile, open + more)?;
    }
    if let Some(more) = part.memory {
        let pages = std::fs::read_to_string("/proc/self/statm")?;
        let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
        lower(Resource::As, pages * rustix::param::page_size() as u64 + more)?;
    }
    Ok(())
}
