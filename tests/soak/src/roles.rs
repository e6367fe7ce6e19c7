//! The clients, one process each. The seed determines what a client does; it checks the results against its own model.
//!
//! ```text
//! Role ─► run ─► connect ─► session of this role ─┬─ done                            ─► exit 0
//!                   ▲                             ├─ lost, ended, refused: printed ─┐
//!                   └─────────────────────────────┴─────────────────────────────────┘
//!                                                 └─ finding: printed                ─► exit 1
//! ```

mod borrower;
mod bulk;
mod cells;
mod engine;
mod far;
mod files;
mod judge;
mod lender;
mod mover;
#[path = "../../two-process/own_memory.rs"]
mod own_memory;
mod plain;
mod transfers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use memferry::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::output::{Progress, Stop, print_line};
use crate::random::Random;

/// The socket of the file server, in the directory of the clients.
pub(crate) const FILES: &str = files::SOCKET;
/// The engine process in the configuration of a service.
pub(crate) const ENGINE: &str = engine::NAME;
/// How long a call may take on a busy machine on which processes are stopped now and then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Requests of every kind through a service.
    Mover,
    /// Requests of every kind with an embedded service.
    Embedded,
    /// Grants memory, revokes the grant, and checks that nobody uses the memory any more.
    Lender,
    /// Uses memory that others grant.
    Borrower,
    /// Sends messages and lends frames.
    Producer,
    /// Receives them.
    Consumer,
    /// Reads and writes files of the file server.
    Files,
    /// Copies its own memory without using memferry.
    Plain,
    /// An engine process.
    Engine,
    /// Uses memory that only the engine process reaches.
    Far,
    /// Holds memory.
    Ballast,
}

/// Runs one client.
#[derive(Args, Clone, Debug)]
pub(crate) struct Part {
    /// What the client does.
    #[arg(long)]
    role: Role,
    /// The service's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The directory that clients share.
    #[arg(long)]
    meeting: PathBuf,
    /// Seed of the random choices.
    #[arg(long)]
    seed: u64,
    /// Descriptors that this process may open in addition.
    #[arg(long)]
    descriptors: Option<u64>,
    /// Bytes of address space that this process may use in addition.
    #[arg(long)]
    memory: Option<u64>,
}

/// Runs a client until it is done.
pub(crate) fn run(part: &Part) -> ExitCode {
    let mut random = Random::new(part.seed);
    let mut progress = Progress::new();
    if let Err(error) = limit(part) {
        print_line(&format!("finding cannot limit this process: {error}"));
        return ExitCode::FAILURE;
    }
    if part.role == Role::Engine {
        return engine::serve(part);
    }
    let rounds = random.between(20, 2000);
    for _ in 0..1000 {
        let mut process = 0;
        match play(part, &mut random, &mut progress, rounds, &mut process) {
            Ok(()) => {
                progress.report();
                return ExitCode::SUCCESS;
            }
            Err(Stop::Finding(what)) => {
                print_line(&format!("finding {what}"));
                return ExitCode::FAILURE;
            }
            Err(Stop::Lost) if process == 0 => {}
            Err(Stop::Lost) => print_line(&format!("lost {process}")),
            Err(Stop::Ended(why)) => print_line(&format!("ended {process} {why}")),
            Err(Stop::Refused(kind, why)) => print_line(&format!("refused {process} {kind} {why}")),
        }
        progress.report();
        std::thread::sleep(PAUSE);
    }
    ExitCode::SUCCESS
}

fn play(
    part: &Part,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
    process: &mut u32,
) -> Result<(), Stop> {
    match part.role {
        Role::Plain => return plain::copy(random, progress, rounds),
        Role::Ballast => return plain::hold(random, progress),
        Role::Files => return files::session(part, random, progress, rounds),
        Role::Embedded => {
            return mover::session(&Client::embedded()?, random, progress, rounds.min(400));
        }
        _ => {}
    }
    let client = Client::connect(&part.socket)?;
    *process = client.status()?.process;
    print_line(&format!("hello {process}"));
    match part.role {
        Role::Far => far::session(&client, random, progress, rounds.min(200)),
        Role::Lender => lender::session(&client, &part.meeting, random, progress, rounds),
        Role::Borrower => borrower::session(&client, &part.meeting, random, progress, rounds),
        Role::Producer => bulk::produce(&client, &part.meeting, random, progress, rounds),
        Role::Consumer => bulk::consume(&client, &part.meeting, progress),
        _ => {
            let hungry = part.memory.is_some().then_some(HUNGER);
            mover::beyond_limits(&client, hungry)?;
            mover::session(&client, random, progress, rounds)
        }
    }
}

/// Bytes that a client with limited memory tries to allocate.
const HUNGER: u64 = 1 << 30;

/// Lowers the limits of this process.
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
