//! `memferry copy`: reads a file into a frame, has the engine copy it to a second frame, and writes it from there.
//!
//! ```text
//! read piece ─► source frame ─ submit ─► engine ─► destination frame ─► write piece
//!      up to three pieces are in flight: while one moves, the next is read
//! ```
//!
//! The engine only moves memory. This thread reads and writes the files and copies in and out of the frames. A measurement is
//! the transfer of one piece with nothing else in flight, compared with a memcpy of the same bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{EngineKind, Frame, Ticket, Transfer, copy};

use crate::measure::{Bytes, Rate, Samples, Time, rounds_for, thread_cpu};
use crate::mover::Mover;
use crate::output::say;
use crate::{CommandError, files};

/// Bytes of a piece.
const PIECE_BYTES: u64 = 8 << 20;
/// Pieces in flight.
const SLOTS: usize = 3;
/// One piece in so many is measured, if it is as long as the first.
const MEASURE_EVERY: u64 = 64;
/// Time after which a progress bar is shown.
const BAR_AFTER: Duration = Duration::from_secs(1);

/// Arguments of `copy`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// File to read.
    source: PathBuf,
    /// File to write; an existing file is overwritten.
    destination: PathBuf,
    /// Socket of the service to use; by default the engine is embedded.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs `memferry copy`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let started = Instant::now();
    let (source, about) = files::open_source(&arguments.source)?;
    // Connect before the destination is truncated.
    let mover = Mover::open(arguments.socket.as_deref())?;
    let destination = files::open_destination(&arguments.destination, &about)?;
    let mut copy = Copy::new(mover, about.len(), destination, &arguments.destination)?;
    copy.copy_all(source, &arguments.source)?;
    copy.report(started.elapsed())
}

struct Copy<'a> {
    mover: Mover,
    frames: (Frame, Frame),
    /// The piece read last, and a buffer for the piece to write and for the measured memcpy.
    buffers: (Vec<u8>, Vec<u8>),
    /// Tickets with the offset and length of each piece, oldest first.
    in_flight: VecDeque<(Ticket, u64, usize)>,
    destination: File,
    path: &'a Path,
    bar: Bar,
    samples: Samples,
    pieces: u64,
    written: u64,
    cpu: Duration,
    engine: EngineKind,
}

impl<'a> Copy<'a> {
    fn new(mover: Mover, expected: u64, destination: File, path: &'a Path) -> Result<Self, CommandError> {
        // A file may grow while it is read, or report length 0 and have contents, so no buffer is empty.
        let piece = expected.clamp(4096, PIECE_BYTES);
        let length = piece * SLOTS as u64;
        let frames = (mover.client().frame(length).alloc()?, mover.client().frame(length).alloc()?);
        let buffer = vec![0; usize::try_from(piece)?];
        Ok(Self {
            mover,
            frames,
            buffers: (buffer.clone(), buffer),
            in_flight: VecDeque::new(),
            destination,
            path,
            bar: Bar::new(expected),
            samples: Samples::default(),
            pieces: 0,
            written: 0,
            cpu: Duration::ZERO,
            engine: EngineKind::None,
        })
    }

    fn copy_all(&mut self, mut source: File, path: &Path) -> Result<(), CommandError> {
        loop {
            let length = read_piece(&mut source, &mut self.buffers.0)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            if length == 0 {
                break;
            }
            if self.in_flight.len() == SLOTS {
                self.finish_oldest()?;
            }
            self.start(length)?;
        }
        while !self.in_flight.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Submits the piece that was read.
    fn start(&mut self, length: usize) -> Result<(), CommandError> {
        let offset = (self.pieces % SLOTS as u64) * self.buffers.0.len() as u64;
        self.frames.0.write(offset, &self.buffers.0[..length])?;
        let range = |frame: &Frame| frame.slice(offset..offset + length as u64);
        let transfer = copy(range(&self.frames.0), range(&self.frames.1));
        // The shorter last piece is not measured.
        if self.pieces.is_multiple_of(MEASURE_EVERY) && self.samples.have_length(length as u64) {
            self.measure(&transfer, length)?;
        }
        self.pieces += 1;
        let cpu = thread_cpu();
        let ticket = self.mover.submit(transfer)?;
        self.cpu += thread_cpu().saturating_sub(cpu);
        self.in_flight.push_back((ticket, offset, length));
        Ok(())
    }

    /// Moves a piece several times and measures it, with nothing else in flight.
    fn measure(&mut self, transfer: &Transfer, length: usize) -> Result<(), CommandError> {
        while !self.in_flight.is_empty() {
            self.finish_oldest()?;
        }
        let mover = &mut self.mover;
        let buffers = &mut self.buffers;
        let memory = (&buffers.0[..length], &mut buffers.1[..length]);
        let rounds = rounds_for(length as u64).min(7);
        self.samples.take(rounds, memory, || mover.run(transfer.clone()).map(|_| ()))
    }

    /// Waits for the oldest piece in flight and writes it.
    fn finish_oldest(&mut self) -> Result<(), CommandError> {
        let Some((ticket, offset, length)) = self.in_flight.pop_front() else { return Ok(()) };
        let cpu = thread_cpu();
        let completion = self.mover.wait(ticket)?;
        self.cpu += thread_cpu().saturating_sub(cpu);
        self.engine = completion.engine;
        let piece = &mut self.buffers.1[..length];
        self.frames.1.read(offset, piece)?;
        self.destination.write_all(piece).map_err(|error| {
            format!("cannot write {}: {error}; the file is incomplete", self.path.display())
        })?;
        self.written += length as u64;
        self.bar.advance(self.written);
        Ok(())
    }

    fn report(self, elapsed: Duration) -> Result<(), CommandError> {
        self.bar.end();
        let written = self.written;
        let seconds = elapsed.as_secs_f64();
        if written == 0 {
            say!("copied 0 bytes in {seconds:.3} s: the source is empty");
            return Ok(());
        }
        say!(
            "copied {written} bytes in {seconds:.3} s, {} including reading and writing",
            Rate(written, elapsed)
        );
        say!("engine: {}", self.mover.describe(self.engine));
        say!("measured: {}", self.samples.comparison());
        say!(
            "this thread used {} of CPU time to submit {} transfers and wait for them",
            Time(self.cpu),
            self.pieces
        );
        Ok(())
    }
}

/// Reads until the piece is full or the file ends.
fn read_piece(source: &mut File, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match source.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A progress bar, shown on terminals only.
struct Bar {
    started: Instant,
    expected: u64,
    shown: Option<ProgressBar>,
}

impl Bar {
    fn new(expected: u64) -> Self {
        Self { started: Instant::now(), expected, shown: None }
    }

    fn advance(&mut self, done: u64) {
        if self.shown.is_none() && self.started.elapsed() > BAR_AFTER && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(self.expected), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {msg}");
            self.shown = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        if let Some(bar) = &self.shown {
            bar.set_message(format!(
                "{} of {}, {}",
                Bytes(done),
                Bytes(self.expected),
                Rate(done, self.started.elapsed())
            ));
            bar.set_position(done);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
