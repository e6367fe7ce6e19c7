//! An engine process: carries out requests for the service, and sometimes lies, stalls or ends.
//!
//! ```text
//! keeper ─ fork ─► engine of a random temper ─ a while ─► exit ─► another one        the runner kills both at any time
//! ```
//!
//! Nothing is judged here: the clients check that each request ends once, with the right bytes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use memferry_engine::{Engine, EngineDescription, EngineOptions, Failure, Job, WorkId, run};

use super::Part;
use super::own_memory::OwnMemory;
use crate::output::Progress;
use crate::random::Random;

/// The name in the service's configuration.
pub(crate) const NAME: &str = "soak";
/// Bytes of its own memory.
const MEMORY: u64 = 4 << 20;
/// How long a request is waited for, so that progress is reported.
const LIMIT: Duration = Duration::from_millis(200);

/// What one process does with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Temper {
    Honest,
    /// Fails some, and calls some cancelled.
    Failing,
    /// Keeps some for good.
    Stalling,
    /// Completes one twice, or one that nobody submitted.
    Lying,
}

pub(super) fn serve(part: &Part) -> ExitCode {
    let description =
        EngineDescription { shortest_bytes: 0, memory_bytes: MEMORY, ..EngineDescription::default() };
    let options = EngineOptions { socket: part.socket.clone(), name: NAME.to_owned(), description };
    let ended = run(options, |engine| {
        // Each process that the keeper forks has choices of its own.
        let mut random = Random::new(part.seed ^ u64::from(std::process::id()));
        live(engine, &mut random);
        Ok::<_, std::convert::Infallible>(())
    });
    // The service may be away, or the engine before this one not have exited yet: the runner starts another.
    drop(ended);
    std::thread::sleep(LIMIT);
    ExitCode::SUCCESS
}

fn live(engine: &mut Engine, random: &mut Random) {
    let tempers = [Temper::Honest, Temper::Honest, Temper::Failing, Temper::Stalling, Temper::Lying];
    let temper = random.one_of(&tempers);
    let until = Instant::now() + Duration::from_millis(random.between(100, 20_000));
    let mut progress = Progress::new();
    let memory = OwnMemory::new(MEMORY);
    engine.watch_frames(memory.clone());
    while Instant::now() < until {
        engine.take_cancels();
        match engine.next(LIMIT) {
            None => progress.report(),
            Some(job) => handle(engine, &memory, &job, (temper, random), &mut progress),
        }
    }
}

fn handle(
    engine: &mut Engine,
    memory: &OwnMemory,
    job: &Job,
    (temper, random): (Temper, &mut Random),
    progress: &mut Progress,
) {
    let id = job.id();
    let is_odd = random.once_in(20);
    let perform = || memory.perform(job);
    match temper {
        Temper::Failing if is_odd => {
            let failure = random.one_of(&[Failure::MemoryFault, Failure::Cancelled, Failure::Unsupported]);
            return engine.complete(id, job.failed(failure, 0));
        }
        Temper::Stalling if is_odd => return,
        Temper::Lying if is_odd => {
            // It is trusted with bytes, so they are right.
            let outcome = perform();
            let tag = if random.once_in(2) { id.tag } else { id.tag ^ 0x1_0000 };
            engine.complete(WorkId { tag, ..id }, outcome);
        }
        _ => {}
    }
    let outcome = perform();
    engine.complete(id, outcome);
    progress.add(1, outcome.bytes_done);
}
