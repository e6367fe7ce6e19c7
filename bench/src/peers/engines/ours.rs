//! Our side: a service, a process that owns a frame and grants it, and this process, which reads it.
//!
//! ```text
//! memferry-bench --serve-as SOCKET ─ worker on CPU 1        memferry-bench --lend SOCKET BYTES USER GRANTEE ─ prints the token
//!                              └──── this process: accept, copies into a frame of its own ────┘
//! ```

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, Frame, GrantToken, Grantee, Queue, Rights, Ticket, copy};
use rustix::process::Signal;

use super::{MEMORY, OUTCOME_LIMIT, Outcome, Reads, Taken, Users, cpu_ns};
use crate::BenchError;
use crate::children::{WORKER, wait_for_end_of_input};
use crate::peers::other::{Other, Silence};
use crate::placement::{Pinned, pin_threads};
use crate::run::Run;
use crate::timing::{random_bytes, since_ns};

/// The user of the owner, if it is another one.
const OWNER: u32 = 60001;
/// Transfers of a queue at a time.
const DEPTH: u32 = 64;

/// Runs the process that owns the memory: socket, bytes, its user, the reader's user.
pub(crate) fn lend(words: &[String]) -> Result<(), BenchError> {
    let [socket, bytes, user, grantee] = words else { return Err("four words are needed".into()) };
    memferry_attackers::drop_to(user).map_err(|error| error as BenchError)?;
    let client = Client::connect(Path::new(socket))?;
    let bytes = bytes.parse()?;
    let frame = client.frame(bytes).alloc()?;
    frame.write(0, &random_bytes(usize::try_from(bytes)?, 17))?;
    let grant = client.grant(&frame, Rights::READ, Grantee::User(grantee.parse()?))?;
    println!("{}", grant.token().to_raw());
    wait_for_end_of_input()
}

pub(super) struct Ours {
    // Ends first, so that nothing asks the service when it is gone.
    owner: Other,
    queue: Queue,
    granted: Frame,
    own: Frame,
    service: Other,
}

impl Ours {
    pub(super) fn start(run: &Run, users: Users) -> Result<Self, BenchError> {
        // Another user has to reach the socket.
        std::fs::set_permissions(run.directory(), PermissionsExt::from_mode(0o711))?;
        let socket =
            run.directory().join(format!("engines-{}.sock", if users == Users::One { 1 } else { 2 }));
        let program = std::env::current_exe()?.display().to_string();
        let socket_name = socket.display().to_string();
        let start = |words: &[&str]| -> Result<Other, BenchError> {
            let words: Vec<String> =
                [program.as_str()].iter().chain(words).map(|word| (*word).to_owned()).collect();
            Other::start(&words, &[])
        };
        let service = start(&["--serve-as", &socket_name, "1", ""])?;
        let said = service.answer()?;
        if !said.ends_with("ready") {
            return Err(format!("the service does not start: {said}").into());
        }
        pin_threads(service.process(), WORKER, 1)?;
        let reader = rustix::process::geteuid().as_raw().to_string();
        let user = if users == Users::Two { OWNER.to_string() } else { String::new() };
        let owner = start(&["--lend", &socket_name, &MEMORY.to_string(), &user, &reader])?;
        let token = GrantToken::from_raw(owner.answer()?.parse()?);
        let client = Client::connect(&socket)?;
        let granted = client.accept(token)?;
        let own = client.frame(MEMORY).alloc()?;
        own.write(0, &random_bytes(usize::try_from(MEMORY)?, 19))?;
        let queue = client.queue(DEPTH)?;
        Ok(Self { owner, queue, granted, own, service })
    }

    /// Reads `depth` blocks, and waits until all have arrived.
    fn read(&mut self, reads: Reads) -> Result<(), BenchError> {
        let mut outstanding: VecDeque<Ticket> = VecDeque::new();
        for index in 0..reads.depth {
            let range = index * reads.bytes..(index + 1) * reads.bytes;
            let transfer = copy(self.granted.slice(range.clone()), self.own.slice(range));
            outstanding.push_back(self.queue.submit(transfer)?);
        }
        while let Some(ticket) = outstanding.pop_front() {
            self.queue.wait(ticket)?;
        }
        Ok(())
    }

    fn cpu_ns(&self) -> Result<f64, BenchError> {
        let processes = [std::process::id(), self.service.process(), self.owner.process()];
        processes.into_iter().map(cpu_ns).sum()
    }

    pub(super) fn take(&mut self, reads: Reads) -> Result<Taken, BenchError> {
        let _pinned = Pinned::to(0)?;
        self.read(reads)?;
        let before = self.cpu_ns()?;
        let started = Instant::now();
        let mut each = Vec::new();
        for _ in 0..reads.count {
            let one = Instant::now();
            self.read(reads)?;
            each.push(since_ns(one));
        }
        Ok(Taken { ns: since_ns(started), each, cpu_ns: self.cpu_ns()? - before })
    }

    /// What becomes of a read once the owner is stopped, and once it is killed.
    pub(super) fn outcomes(mut self) -> Result<[Outcome; 2], BenchError> {
        self.owner.signal(Signal::STOP)?;
        let stopped = self.outcome();
        self.owner.signal(Signal::KILL)?;
        self.owner.ended()?;
        // The service hears of it by the closed socket.
        std::thread::sleep(Duration::from_millis(50));
        Ok([stopped, self.outcome()])
    }

    fn outcome(&mut self) -> Outcome {
        let started = Instant::now();
        let transfer = copy(self.granted.slice(..1 << 20), self.own.slice(..1 << 20));
        let result = match self.queue.submit(transfer) {
            Err(error) => Ok(Err(error.to_string())),
            Ok(ticket) => match self.queue.wait_for(ticket, OUTCOME_LIMIT) {
                Ok(None) => Err(Silence::Late),
                Ok(Some(_)) => Ok(Ok(())),
                Err(error) => Ok(Err(error.to_string())),
            },
        };
        Outcome::of(result, started.elapsed())
    }
}
