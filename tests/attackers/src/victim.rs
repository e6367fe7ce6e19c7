//! The victim: a client that works at a steady pace and measures how long it waits.
//!
//! ```text
//! parent ─ "copy 1200" ─► victim ─ an operation every 2 ms, for 1200 ms ─► "done COUNT P50 P99 MIN MAX", in ns
//! ```
//!
//! An operation that waits delays those behind it, and their latency counts from the time at which they were due. Without that, a
//! stall of a second would be a single sample. The victim's own late wake-ups do not count.

use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, Frame, Queue, copy};

use crate::player::Silence;
use crate::{Failed, Player, roles};

/// Longest wait of a single operation. A victim that waits longer gives up.
const LIMIT: Duration = Duration::from_secs(8);
/// Time for the report beyond that.
const SLACK: Duration = Duration::from_secs(4);

/// What the victim does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Copies 4 KiB from frame to frame.
    Copy,
    /// Allocates and frees a frame of 64 KiB.
    Allocate,
}

impl Task {
    const fn word(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Allocate => "allocate",
        }
    }

    const fn interval(self) -> Duration {
        match self {
            Self::Copy => Duration::from_millis(2),
            Self::Allocate => Duration::from_millis(5),
        }
    }
}

/// Latencies of the operations of one phase, in ms.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    pub count: usize,
    pub p50: f64,
    pub p99: f64,
    pub min: f64,
    pub max: f64,
}

impl Figures {
    /// Whether the victim waited without end.
    #[must_use]
    pub const fn hung(&self) -> bool {
        self.count == 0
    }

    /// The figures of a victim that waited without end.
    const fn of_a_hang(waited: Duration) -> Self {
        let ms = waited.as_millis() as f64;
        Self { count: 0, p50: ms, p99: ms, min: ms, max: ms }
    }

    fn parse(words: &[&str]) -> Option<Self> {
        let number = |at: usize| words.get(at)?.parse::<f64>().ok().map(|ns| ns / 1e6);
        let count = words.first()?.parse().ok()?;
        Some(Self { count, p50: number(1)?, p99: number(2)?, min: number(3)?, max: number(4)? })
    }
}

/// A victim in its own process.
pub struct Victim(Player);

impl Victim {
    /// Starts a victim and waits until it is connected.
    ///
    /// # Errors
    /// Its text, if it cannot work.
    pub fn start(arguments: &[String], socket: &Path, user: Option<u32>) -> Result<Self, Failed> {
        let socket = socket.to_str().ok_or("the path of the socket is not UTF-8")?;
        let user = user.map_or(String::new(), |user| user.to_string());
        let player = Player::start(roles::role(arguments, &["victim", socket, &user]))?;
        match player.line(LIMIT + SLACK) {
            Ok(line) if line == "running" => Ok(Self(player)),
            other => Err(format!("the victim cannot start: {other:?}").into()),
        }
    }

    /// Works for `time`. A victim that does not finish has the latency of a hang.
    ///
    /// # Errors
    /// The victim's text, if an operation failed.
    pub fn work(&mut self, task: Task, time: Duration) -> Result<Figures, Failed> {
        let started = Instant::now();
        self.0.say(&format!("{} {}", task.word(), time.as_millis()))?;
        match self.0.line(time + LIMIT + SLACK) {
            Ok(line) => match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["done", numbers @ ..] => {
                    Figures::parse(numbers).ok_or_else(|| "the victim reports nonsense".into())
                }
                ["stuck"] => Ok(Figures::of_a_hang(started.elapsed())),
                _ => Err(line.into()),
            },
            Err(Silence::Late) => Ok(Figures::of_a_hang(started.elapsed())),
            Err(Silence::Ended) => Err("the victim ended".into()),
        }
    }
}

/// Plays the victim: does what the parent's lines say.
pub(crate) fn play(socket: &Path) -> Result<(), Failed> {
    let client = Client::connect(socket)?;
    let mut copies = Copies::new(&client)?;
    copies.one()?;
    roles::report("running");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (task, time) = line.split_once(' ').ok_or("an order without a time")?;
        let time = Duration::from_millis(time.parse()?);
        let samples = if task == Task::Copy.word() {
            paced(time, Task::Copy.interval(), || copies.one())?
        } else {
            paced(time, Task::Allocate.interval(), || allocate(&client))?
        };
        report(samples);
    }
    Ok(())
}

/// Calls `operation` at a steady pace for `time`; returns the latencies, or `None` after a hang.
fn paced(
    time: Duration,
    interval: Duration,
    mut operation: impl FnMut() -> Result<bool, Failed>,
) -> Result<Option<Vec<u64>>, Failed> {
    let mut samples = Vec::new();
    let started = Instant::now();
    let mut due = started;
    while due < started + time {
        let now = Instant::now();
        let since = if now < due {
            std::thread::sleep(due - now);
            Instant::now()
        } else {
            due
        };
        if !operation()? || since.elapsed() > LIMIT {
            return Ok(None);
        }
        samples.push(since.elapsed().as_nanos() as u64);
        due += interval;
    }
    Ok(Some(samples))
}

fn allocate(client: &Client) -> Result<bool, Failed> {
    let frame = client.frame(64 << 10).alloc()?;
    frame.write(0, &[1; 64])?;
    Ok(true)
}

struct Copies {
    source: Frame,
    destination: Frame,
    queue: Queue,
    next: u64,
}

impl Copies {
    const LENGTH: u64 = 4096;

    fn new(client: &Client) -> Result<Self, Failed> {
        let source = client.frame(Self::LENGTH).alloc()?;
        let destination = client.frame(Self::LENGTH).alloc()?;
        let mut bytes = [0; Self::LENGTH as usize];
        fastrand::Rng::with_seed(7).fill(&mut bytes);
        source.write(0, &bytes)?;
        Ok(Self { source, destination, queue: client.queue(8)?, next: 0 })
    }

    /// Copies once and checks the bytes. False if the copy did not end in time.
    fn one(&mut self) -> Result<bool, Failed> {
        self.next += 1;
        let mark = self.next.to_ne_bytes();
        self.source.write(1024, &mark)?;
        let ticket =
            self.queue.submit(copy(&self.source, &self.destination)).map_err(|error| error.to_string())?;
        if self.queue.wait_for(ticket, LIMIT)?.is_none() {
            return Ok(false);
        }
        let mut found = [0; 8];
        self.destination.read(1024, &mut found)?;
        if found == mark { Ok(true) } else { Err("a copy lost bytes".into()) }
    }
}

fn report(samples: Option<Vec<u64>>) {
    let Some(mut samples) = samples else { return roles::report("stuck") };
    samples.sort_unstable();
    let at = |part: f64| samples[((samples.len() as f64 * part) as usize).min(samples.len() - 1)];
    let min = samples[0];
    let max = samples[samples.len() - 1];
    roles::report(format_args!("done {} {} {} {min} {max}", samples.len(), at(0.5), at(0.99)));
}
