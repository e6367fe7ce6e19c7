//! A client of the demo: a process that runs the orders it reads from standard input.
//!
//! ```text
//! Order, one line ─► Player ─► library ─► service        Report, one line ◄─ Player
//! ```
//!
//! It exits at the end of its input, so it does not outlive the demo.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use memferry::{
    Client, Failure, Frame, GrantToken, Grantee, Handle, Queue, Rights, SessionId, Side, Transfer, Turn, copy,
};
use sha2::{Digest, Sha256};

use super::lines::{Fetched, Order, Overlap, Report};
use crate::CommandError;
use crate::canvas::{Canvas, Key};
use crate::measure::{Comparison, compare, median, random_bytes, thread_cpu};
use crate::mover::Mover;
use crate::picture::Picture;

/// Bytes hashed between two polls for a completion: microseconds of work in the L1 cache.
const UNIT_BYTES: usize = 4096;
/// Rounds of computation during transfers.
const ROUNDS: usize = 5;
/// Approximate duration of a round.
const ROUND: Duration = Duration::from_millis(60);

/// Arguments of the hidden `demo-client`.
#[derive(Args)]
pub(crate) struct ClientArguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

/// Runs orders until the end of the input.
pub(crate) fn run(arguments: &ClientArguments) -> Result<(), CommandError> {
    let mut player = Player {
        mover: Mover::open(Some(&arguments.socket))?,
        own: None,
        theirs: None,
        token: None,
        running: None,
    };
    for line in std::io::stdin().lock().lines() {
        let report = serde_json::from_str(&line?)
            .map_err(CommandError::from)
            .and_then(|order| player.execute(order))
            .unwrap_or_else(|error| Report::Failed { message: error.to_string() });
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", serde_json::to_string(&report)?)?;
        output.flush()?;
    }
    Ok(())
}

struct Player {
    mover: Mover,
    /// A frame of this client, and the bytes used in it.
    own: Option<(Frame, u64)>,
    /// The frame granted to this client.
    theirs: Option<Frame>,
    /// The grant of this client.
    token: Option<GrantToken>,
    /// A queue with copies that were begun.
    running: Option<Queue>,
}

impl Player {
    fn client(&self) -> &Client {
        self.mover.client()
    }

    fn own(&self) -> Result<&(Frame, u64), CommandError> {
        self.own.as_ref().ok_or_else(|| "this client has no memory yet".into())
    }

    fn theirs(&self) -> Result<&Frame, CommandError> {
        self.theirs.as_ref().ok_or_else(|| "nothing was granted yet".into())
    }

    fn execute(&mut self, order: Order) -> Result<Report, CommandError> {
        match order {
            Order::Introduce => Ok(Report::Introduced {
                session: self.client().session(),
                user: rustix::process::geteuid().as_raw(),
                process: std::process::id(),
            }),
            Order::Register { file } => self.register(&file),
            Order::Grant { to } => self.grant(to),
            Order::Fetch { token } => self.fetch(token),
            Order::Paint { base, badge, at, key, output } => {
                self.paint((&base, &badge), at, Key::parse(&key)?, &output)
            }
            Order::Write => self.write(),
            Order::Forge { handle } => self.forge(handle),
            Order::Checksum => Ok(Report::Checksum(self.checksum()?)),
            Order::Revoke => {
                self.client().revoke(self.token.ok_or("nothing was granted yet")?)?;
                Ok(Report::Revoked)
            }
            Order::FetchAgain => self.fetch_again(),
            Order::Place { file, home } => self.place(&file, home.as_deref()),
            Order::Take { token } => self.take(token),
            Order::Begin { copies } => self.begin(copies),
            Order::Finish => self.finish(),
        }
    }

    fn register(&mut self, file: &Path) -> Result<Report, CommandError> {
        let bytes =
            std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let length = bytes.len() as u64;
        let frame = self.client().frame(length).alloc()?;
        frame.write(0, &bytes)?;
        let handle = frame.handle();
        self.own = Some((frame, length));
        Ok(Report::Registered { handle, length, checksum: hexadecimal(&Sha256::digest(&bytes)) })
    }

    fn grant(&mut self, to: SessionId) -> Result<Report, CommandError> {
        let (frame, length) = self.own()?;
        let grant = self.client().grant(frame.slice(..*length), Rights::READ, Grantee::Session(to))?;
        let token = grant.token();
        self.token = Some(token);
        Ok(Report::Granted { token })
    }

    fn fetch(&mut self, token: GrantToken) -> Result<Report, CommandError> {
        let theirs = self.client().accept(token)?;
        let length = theirs.length();
        let own = self.client().frame(length).alloc()?;
        let transfer = copy(&theirs, &own);
        (self.theirs, self.own) = (Some(theirs), Some((own, length)));
        let started = Instant::now();
        self.mover.run(transfer.clone())?;
        let first = started.elapsed();
        let checksum = self.checksum()?;
        let comparison = compare(length, || self.mover.run(transfer.clone()).map(|_| ()))?;
        let overlap = self.overlap(&transfer, comparison.transfer)?;
        if self.checksum()? != checksum {
            return Err("later copies differ from the first".into());
        }
        Ok(Report::Fetched(Box::new(Fetched { first, comparison, overlap, checksum })))
    }

    /// Hashes while transfers run, then for the same time without transfers.
    fn overlap(&mut self, transfer: &Transfer, single: Duration) -> Result<Overlap, CommandError> {
        let transfers = (ROUND.as_nanos() / single.as_nanos().max(1)).clamp(1, 2048) as u32;
        let unit = random_bytes(UNIT_BYTES, 7);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut hashed = 0;
            let cpu = thread_cpu();
            let started = Instant::now();
            for _ in 0..transfers {
                let ticket = self.mover.submit(transfer.clone())?;
                let completion = loop {
                    hashed += hash(&unit);
                    if let Some(completion) = self.mover.queue().poll() {
                        break completion;
                    }
                };
                if completion?.id != ticket.id() {
                    return Err("a completion of another transfer arrived".into());
                }
            }
            let elapsed = started.elapsed();
            let running = 1000 * thread_cpu().saturating_sub(cpu).as_nanos() / elapsed.as_nanos().max(1);
            let mut alone = 0;
            let started = Instant::now();
            while started.elapsed() < elapsed {
                alone += hash(&unit);
            }
            rounds.push((1000 * hashed / alone.max(1), hashed, elapsed, running as u64));
        }
        let (share_per_mille, hashed, elapsed, running_per_mille) = median(&mut rounds);
        Ok(Overlap { transfers, took: elapsed, hashed, share_per_mille, running_per_mille })
    }

    fn checksum(&self) -> Result<String, CommandError> {
        let (frame, length) = self.own()?;
        let mut bytes = vec![0; usize::try_from(*length)?];
        frame.read(0, &mut bytes)?;
        Ok(hexadecimal(&Sha256::digest(&bytes)))
    }

    fn paint(
        &mut self,
        (base, badge): (&Path, &Path),
        at: (u32, u32),
        key: Key,
        output: &Path,
    ) -> Result<Report, CommandError> {
        let source = Canvas::of(self.client(), &Picture::load(base)?)?;
        let badge = Canvas::of(self.client(), &Picture::load(badge)?)?;
        let (picture, turning) = source.turned(self.client(), Turn::Rotate90)?;
        let overlaying = picture.overlaid(&badge, at, Some(key))?;
        let turned = self.compare_with_memcpy(&turning)?;
        let overlaid = self.compare_with_memcpy(&overlaying)?;
        picture.picture()?.save(output)?;
        Ok(Report::Painted { turned, overlaid })
    }

    fn compare_with_memcpy(&mut self, transfer: &Transfer) -> Result<Comparison, CommandError> {
        let bytes = self.mover.run(transfer.clone())?.bytes_done;
        compare(bytes, || self.mover.run(transfer.clone()).map(|_| ()))
    }

    fn write(&mut self) -> Result<Report, CommandError> {
        let length = self.theirs()?.length();
        let own = &self.own()?.0;
        let transfer = copy(own.slice(..length), self.theirs()?.slice(..));
        self.refused(transfer, |failure| {
            matches!(failure, Failure::MissingRight { side: Side::Destination, .. })
        })
    }

    fn forge(&mut self, handle: Handle) -> Result<Report, CommandError> {
        match self.client().accept(GrantToken::from_raw(handle.bits())) {
            Err(memferry::CallError::Refused(refusal)) => {
                Ok(Report::Refused { message: refusal.to_string() })
            }
            Err(error) => Err(error.into()),
            Ok(frame) => Err(format!("the service accepted the forged token: {frame:?}").into()),
        }
    }

    fn fetch_again(&mut self) -> Result<Report, CommandError> {
        let transfer = copy(self.theirs()?.slice(..), self.own()?.0.slice(..));
        self.refused(transfer, |failure| matches!(failure, Failure::Revoked { side: Side::Source, .. }))
    }

    fn place(&mut self, file: &Path, home: Option<&str>) -> Result<Report, CommandError> {
        let report = self.register(file)?;
        if let Some(engine) = home
            && let Some((near, length)) = self.own.take()
        {
            let far = self.client().frame(length).home(engine).alloc()?;
            self.mover.run(copy(near.slice(..length), &far))?;
            self.own = Some((far, length));
        }
        Ok(report)
    }

    fn take(&mut self, token: GrantToken) -> Result<Report, CommandError> {
        let theirs = self.client().accept(token)?;
        let length = theirs.length();
        let own = self.client().frame(length).alloc()?;
        let done = self.mover.run(copy(&theirs, own.slice(..length)))?;
        (self.theirs, self.own) = (Some(theirs), Some((own, length)));
        let bytes = self.checksum()?;
        Ok(Report::Taken { engine: done.engine.to_string(), checksum: bytes })
    }

    fn begin(&mut self, copies: u32) -> Result<Report, CommandError> {
        let mut queue = self.client().queue(copies.next_power_of_two().max(2))?;
        let length = self.theirs()?.length();
        for _ in 0..copies {
            let transfer = copy(self.theirs()?, self.own()?.0.slice(..length));
            let _ticket = queue.submit(transfer).map_err(|error| error.untyped())?;
        }
        self.running = Some(queue);
        Ok(Report::Begun)
    }

    fn finish(&mut self) -> Result<Report, CommandError> {
        let mut queue = self.running.take().ok_or("no copies were begun")?;
        let mut done = 0;
        let mut failed = BTreeMap::new();
        for ended in queue.completions() {
            match ended {
                Ok(_) => done += 1,
                Err(error) => *failed.entry(error.failure.to_string()).or_default() += 1,
            }
        }
        Ok(Report::Finished { done, failed })
    }

    /// Submits a transfer that must fail as expected before any byte is moved.
    fn refused(
        &mut self,
        transfer: Transfer,
        expected: impl Fn(&Failure) -> bool,
    ) -> Result<Report, CommandError> {
        let ticket = self.mover.submit(transfer)?;
        match self.mover.outcome(ticket)? {
            Err(error) if expected(&error.failure) && error.bytes_done == 0 => {
                Ok(Report::Refused { message: error.failure.to_string() })
            }
            outcome => Err(format!("the transfer was not refused: {outcome:?}").into()),
        }
    }
}

/// Hashes a unit and returns its bytes.
fn hash(unit: &[u8]) -> u64 {
    std::hint::black_box(Sha256::digest(std::hint::black_box(unit)));
    unit.len() as u64
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_sha_256_in_hexadecimal() {
        let empty = hexadecimal(&Sha256::digest(b""));
        assert!(empty.starts_with("e3b0c44298fc1c14") && empty.len() == 64, "{empty}");
    }

    #[test]
    fn orders_round_trip_as_lines() {
        let order = Order::Fetch { token: GrantToken::from_raw(3) };
        let line = serde_json::to_string(&order).unwrap();
        assert!(!line.contains('\n'));
        assert!(
            matches!(serde_json::from_str(&line).unwrap(), Order::Fetch { token } if token == GrantToken::from_raw(3))
        );
    }
}
