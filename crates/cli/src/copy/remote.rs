//! Copies between a file and memory that another node granted to this user.
//!
//! ```text
//! fetch   remote frame ─ request ─► service ─ link ─► slot of a local frame ─► file       up to four pieces at a time
//! send    file ─► slot of a local frame ─ request ─► service ─ link ─► remote frame
//! ```
//!
//! The other node checks each request. The file that is written is opened when the first piece has come, so that a refusal leaves it as it
//! was.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{BadRemoteToken, Failure, Frame, NodeName, RemoteToken, Rights, Ticket, Transfer, copy};

use super::source::Source;
use super::{Arguments, Bar, Destination};
use crate::measure::Rate;
use crate::mover::Mover;
use crate::output::say;
use crate::{CommandError, files, socket};

/// Bytes of a piece: four accesses of the link. Short, so that slow networks move those under way within the link's time limit.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that may be under way: enough for the link's window.
const SLOTS: u64 = 4;
/// How long the link may take to have the memory of this process.
const LATE: Duration = Duration::from_secs(5);
/// The link connects again within a multiple of this.
const PAUSE: Duration = Duration::from_millis(50);

/// The token that an argument is; `None` for a file.
///
/// # Errors
/// If it seems to be meant as a token, and is none.
pub(super) fn token(argument: &Path) -> Result<Option<RemoteToken>, CommandError> {
    let Some(text) = argument.to_str() else { return Ok(None) };
    if let Ok(token) = text.parse() {
        return Ok(Some(token));
    }
    let Some((node, _)) = text.split_once(':') else { return Ok(None) };
    let directory = argument.parent().filter(|directory| !directory.as_os_str().is_empty());
    let is_file = argument.exists() || directory.is_some_and(Path::exists);
    if is_file || node.parse::<NodeName>().is_err() {
        return Ok(None);
    }
    Err(format!("{text} is no token: {BadRemoteToken}; for a file of this name, write ./{text}").into())
}

/// Copies what another node granted to a file.
pub(super) fn fetch(arguments: &Arguments, token: RemoteToken) -> Result<(), CommandError> {
    let started = Instant::now();
    let mut far = Far::open(arguments, token, Rights::READ)?;
    let length = far.remote.length();
    let mut buffer = vec![0; PIECE_BYTES as usize];
    far.start(0, PIECE_BYTES.min(length), &[])?;
    let path = &arguments.destination;
    let file = files::open_destination(path, None)?;
    let mut destination = Destination::new(file, path)?;
    let incomplete = |error: CommandError| format!("{error}; {} is incomplete", path.display());
    let mut next = PIECE_BYTES.min(length);
    while !far.in_flight.is_empty() {
        while next < length && far.has_room() {
            let bytes = PIECE_BYTES.min(length - next);
            far.start(next, bytes, &[]).map_err(incomplete)?;
            next += bytes;
        }
        let Some(piece) = far.finish_oldest().map_err(incomplete)? else { break };
        let bytes = &mut buffer[..piece.length as usize];
        far.local.read(piece.slot, bytes)?;
        destination.write(bytes, piece.offset)?;
        far.bar.advance(destination.length);
    }
    far.bar.end();
    let elapsed = started.elapsed();
    let from = token.node;
    say!(
        "copied {length} bytes in {:.3} s, {}, from node {from}",
        elapsed.as_secs_f64(),
        Rate(length, elapsed)
    );
    Ok(())
}

/// Copies a file to what another node granted. What of that is longer than the file stays as it is.
pub(super) fn send(arguments: &Arguments, token: RemoteToken) -> Result<(), CommandError> {
    let started = Instant::now();
    let path = &arguments.source;
    let mut source = Source::open(path, arguments.copy_contents)?;
    if let Some(length) = source.expected().filter(|length| *length > token.length) {
        let name = path.display();
        let room = token.length;
        return Err(format!("{name} has {length} bytes, and {room} were granted; nothing was written").into());
    }
    let mut far = Far::open(arguments, token, Rights::WRITE)?;
    let mut buffer = vec![0; PIECE_BYTES as usize];
    let zeros = vec![0; PIECE_BYTES as usize];
    let mut position = 0;
    let failed = |error| format!("cannot read {}: {error}", path.display());
    while let Some((offset, length)) = source.read_piece(&mut buffer).map_err(failed)? {
        // Memory has no holes.
        far.put_zeros(position, offset, &zeros)?;
        far.put(offset, &buffer[..length])?;
        position = offset + length as u64;
    }
    let length = source.length();
    far.put_zeros(position, length, &zeros)?;
    while let Some(piece) = far.finish_oldest()? {
        far.bar.advance(piece.offset + piece.length);
    }
    far.bar.end();
    let elapsed = started.elapsed();
    let seconds = elapsed.as_secs_f64();
    say!("copied {length} bytes in {seconds:.3} s, {}, to node {}", Rate(length, elapsed), token.node);
    if source.was_interrupted() {
        return Err("interrupted; the other node has what was read until then".into());
    }
    Ok(())
}

/// A piece under way.
struct Piece {
    /// `None` if it is done.
    ticket: Option<Ticket>,
    /// Its place in the local frame.
    slot: u64,
    /// Its place in the remote frame.
    offset: u64,
    length: u64,
}

/// A frame of another node, and memory of this one for its pieces.
struct Far {
    mover: Mover,
    node: NodeName,
    remote: Frame,
    local: Frame,
    writes: bool,
    /// For so long a piece is asked for again when the connection broke.
    retry: Duration,
    /// In the order in which they were started, as their slots are.
    in_flight: VecDeque<Piece>,
    started: u64,
    bar: Bar,
}

impl Far {
    fn open(arguments: &Arguments, token: RemoteToken, needed: Rights) -> Result<Self, CommandError> {
        if arguments.through_engine {
            return Err(
                "--through-engine is for two files; bytes of another node always go through the service"
                    .into(),
            );
        }
        let writes = needed == Rights::WRITE;
        if !token.rights.contains(needed) {
            let what = if writes { "written" } else { "read" };
            return Err(format!("what the token names cannot be {what}: its owner did not grant that").into());
        }
        let path = arguments.socket.clone().unwrap_or_else(socket::service_path);
        let mover = Mover::open(Some(&path))?;
        let node = token.node;
        let remote = mover.client().accept_remote(token);
        let remote = remote.map_err(|error| format!("cannot use memory of node {node}: {error}"))?;
        let local = Self::allocate(&mover, token.length)?;
        let retry = Duration::from_secs(u64::from(arguments.retry));
        let bar = Bar::new(Some(token.length));
        Ok(Self { mover, node, remote, local, writes, retry, in_flight: VecDeque::new(), started: 0, bar })
    }

    fn allocate(mover: &Mover, length: u64) -> Result<Frame, CommandError> {
        Ok(mover.client().frame(SLOTS * length.min(PIECE_BYTES)).alloc()?)
    }

    fn has_room(&self) -> bool {
        (self.in_flight.len() as u64) < SLOTS
    }

    fn transfer(&self, slot: u64, offset: u64, length: u64) -> Transfer {
        let near = self.local.slice(slot..slot + length);
        let far = self.remote.slice(offset..offset + length);
        if self.writes { copy(near, far) } else { copy(far, near) }
    }

    /// Starts a piece, whose bytes are these if it is written. There is room for it. The first one is done when this returns.
    fn start(&mut self, offset: u64, length: u64, bytes: &[u8]) -> Result<(), CommandError> {
        let slot = self.started % SLOTS * self.remote.length().min(PIECE_BYTES);
        self.local.write(slot, bytes)?;
        let mut piece = Piece { ticket: None, slot, offset, length };
        let ticket = self.mover.submit(self.transfer(slot, offset, length))?;
        if self.started == 0 {
            self.meet(ticket, &piece, bytes)?;
        } else {
            piece.ticket = Some(ticket);
        }
        self.started += 1;
        self.in_flight.push_back(piece);
        Ok(())
    }

    /// Does the first piece. The link may be late for memory that was just registered, and never has it then: other memory takes its place.
    fn meet(&mut self, ticket: Ticket, piece: &Piece, bytes: &[u8]) -> Result<(), CommandError> {
        let since = Instant::now();
        let mut outcome = self.mover.outcome(ticket)?.map(drop);
        loop {
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if error.failure == Failure::Unsupported && since.elapsed() < LATE => {
                    self.local = Self::allocate(&self.mover, self.remote.length())?;
                    self.local.write(piece.slot, bytes)?;
                }
                Err(error) if error.failure == Failure::PeerLost && since.elapsed() < self.retry => {}
                Err(error) => return Err(self.explain(&error.failure)),
            }
            std::thread::sleep(PAUSE);
            outcome = self.again(piece)?;
        }
    }

    fn again(&mut self, piece: &Piece) -> Result<Result<(), memferry::TransferError>, CommandError> {
        let ticket = self.mover.submit(self.transfer(piece.slot, piece.offset, piece.length))?;
        Ok(self.mover.outcome(ticket)?.map(drop))
    }

    /// Waits for the oldest piece under way. Whole pieces may be repeated: they have the same bytes.
    fn finish_oldest(&mut self) -> Result<Option<Piece>, CommandError> {
        let Some(piece) = self.in_flight.pop_front() else { return Ok(None) };
        let Some(ticket) = piece.ticket else { return Ok(Some(piece)) };
        let mut outcome = self.mover.outcome(ticket)?.map(drop);
        let since = Instant::now();
        while let Err(error) = outcome {
            if error.failure != Failure::PeerLost || since.elapsed() >= self.retry {
                return Err(self.explain(&error.failure));
            }
            std::thread::sleep(PAUSE);
            outcome = self.again(&piece)?;
        }
        Ok(Some(piece))
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CommandError> {
        let length = bytes.len() as u64;
        if offset + length > self.remote.length() {
            let room = self.remote.length();
            return Err(format!("the source is longer than the {room} bytes that were granted; these were written up to byte {offset}").into());
        }
        if !self.has_room() {
            let done = self.finish_oldest()?;
            done.into_iter().for_each(|piece| self.bar.advance(piece.offset + piece.length));
        }
        self.start(offset, length, bytes)
    }

    fn put_zeros(&mut self, from: u64, to: u64, zeros: &[u8]) -> Result<(), CommandError> {
        let mut at = from;
        while at < to {
            let length = (to - at).min(PIECE_BYTES);
            self.put(at, &zeros[..length as usize])?;
            at += length;
        }
        Ok(())
    }

    /// What failed, and what to do.
    fn explain(&self, failure: &Failure) -> CommandError {
        let remedy = match failure {
            Failure::PeerLost => "; `memferry-link status` says why, and --retry waits for it",
            Failure::Unsupported => {
                "; the link of this node cannot reach memory of this process: its engine's frames= has to name this user"
            }
            Failure::Revoked { .. } | Failure::StaleHandle { .. } => {
                "; the link of this node ended: try again when it runs"
            }
            Failure::EngineTimedOut => {
                "; a higher timeout-ms in the links' configurations allows slower networks"
            }
            _ => "",
        };
        format!("node {}: {failure}{remedy}", self.node).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_files_are_told_apart() {
        let text = "alpha:0000000000000000000000000000000f/4294967303/4096/r";
        let parsed = |text: &str| token(Path::new(text));
        assert_eq!(parsed(text).unwrap().map(|token| token.to_string()).as_deref(), Some(text));
        for file in ["a", "./alpha:1", "/dev/null", "/tmp/a:b", "A:b", ":", "a b:c"] {
            assert!(parsed(file).unwrap().is_none(), "{file}");
        }
        for bad in ["alpha:", "alpha:1", &text[..text.len() - 1], &format!("{text}x"), "alpha:/nowhere/1"] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains("NODE:SERVICE/NUMBER/BYTES/RIGHTS") && error.contains("./"), "{error}");
        }
    }
}
