//! `memferry copy`: copies between two files as `cp` does, by the kernel where it can; else reads the file into a frame, has the
//! engine copy it to a second frame, and writes it from there.
//!
//! ```text
//! two regular files ─► kernel: shared blocks, copy_file_range, or read and write
//! a pipe, --through-engine, --socket:
//! read piece ─► source frame ─ submit ─► engine ─► destination frame ─► write piece
//!      ▲ ◄─────────────────────────────────────────────────────────────────────────────────────────────────────┘
//!      up to three pieces are in flight: while one moves, the next is read
//! ```
//!
//! `NODE:...` for one of the files is memory that another node granted; see `remote`.
//!
//! The engine only moves memory. This thread reads and writes the files and copies in and out of the frames. A measurement is
//! the transfer of one piece with nothing else in flight, compared with a memcpy of the same bytes. Holes of the source are not
//! read; they become holes of the destination, or zeros if that is no regular file.

mod kernel;
mod remote;
mod source;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{EngineKind, Frame, Ticket, Transfer, copy};

use crate::measure::{Bytes, Rate, Samples, Time, rounds_for, thread_cpu};
use crate::mover::Mover;
use crate::output::say;
use crate::{CommandError, files};
use source::Source;

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
    /// File to read, or the token of memory that another node granted to this user (NODE:...).
    source: PathBuf,
    /// File to write, or such a token; an existing file is overwritten.
    destination: PathBuf,
    /// Copy what a pipe, a device or a file of /proc yields, until its end or until SIGINT or SIGTERM.
    ///
    /// Another signal, half a second later or more, ends the command at once.
    #[arg(long)]
    copy_contents: bool,
    /// Have the engine move the bytes, even between files that the kernel copies faster, and compare it with memcpy.
    ///
    /// The engine is inside the process.
    #[arg(long)]
    through_engine: bool,
    /// Have the engine of the service at this socket move the bytes, and compare it with memcpy.
    ///
    /// With a token, the service whose link reaches the other node; its usual socket if this is not given.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// With a token: ask again for so long after the connection to the other node broke.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    retry: u32,
}

/// Runs `memferry copy`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let started = Instant::now();
    match (remote::token(&arguments.source)?, remote::token(&arguments.destination)?) {
        (None, None) if arguments.retry > 0 => {
            return Err(
                "--retry is for memory of another node, and neither file is a token (NODE:...)".into()
            );
        }
        (None, None) => {}
        (Some(_), Some(_)) => return Err("both name memory of other nodes; copy to a file first".into()),
        (Some(from), None) => return remote::fetch(arguments, from),
        (None, Some(to)) => return remote::send(arguments, to),
    }
    let mut source = Source::open(&arguments.source, arguments.copy_contents)?;
    let by_engine = arguments.through_engine || arguments.socket.is_some();
    let between_files = arguments.destination.metadata().is_ok_and(|about| about.is_file())
        || !arguments.destination.exists();
    if let (Some(file), true, false) = (source.regular(), between_files, by_engine) {
        let destination = files::open_destination(&arguments.destination, Some(source.about()))?;
        let mut bar = Bar::new(source.expected());
        let copied = kernel::copy(file, &destination, |done| bar.advance(done));
        bar.end();
        let failed = |error| {
            format!("cannot copy to {}: {error}; the file is incomplete", arguments.destination.display())
        };
        return report_kernel(copied.map_err(failed)?, started.elapsed());
    }
    let mover = Mover::open(arguments.socket.as_deref())?;
    let about = source.about();
    let mut copy = Copy::new(mover, source.expected(), || {
        let file = files::open_destination(&arguments.destination, Some(about))?;
        Destination::new(file, &arguments.destination)
    })?;
    copy.copy_all(&mut source, &arguments.source)?;
    copy.report(started.elapsed())?;
    if source.was_interrupted() {
        return Err("interrupted; the destination has what was read until then".into());
    }
    Ok(())
}

fn report_kernel(copied: kernel::Copied, elapsed: Duration) -> Result<(), CommandError> {
    let kernel::Copied { how, data, length } = copied;
    let seconds = elapsed.as_secs_f64();
    match how {
        _ if data == 0 => {
            let why = if length == 0 { "the source is empty" } else { "all of them are a hole" };
            say!("copied {length} bytes in {seconds:.3} s: {why}");
        }
        kernel::How::Shared => say!("copied {length} bytes in {seconds:.3} s"),
        _ if data < length => {
            let rate = Rate(data, elapsed);
            say!("copied {length} bytes in {seconds:.3} s: {data} bytes of data, {rate}, and holes");
        }
        _ => say!("copied {length} bytes in {seconds:.3} s, {}", Rate(length, elapsed)),
    }
    match how {
        kernel::How::Shared => say!("the files share their blocks until one is changed; nothing was moved"),
        kernel::How::Moved => {
            say!("by the kernel (copy_file_range); --through-engine has the engine move the bytes")
        }
        kernel::How::Written => {
            say!("by reading and writing; --through-engine has the engine move the bytes")
        }
    }
    Ok(())
}

/// The file to write.
struct Destination<'a> {
    file: File,
    path: &'a Path,
    /// Whether it can have holes.
    is_regular: bool,
    /// Bytes so far, with holes.
    length: u64,
}

impl<'a> Destination<'a> {
    fn new(file: File, path: &'a Path) -> Result<Self, CommandError> {
        let is_regular = file.metadata()?.is_file();
        Ok(Self { file, path, is_regular, length: 0 })
    }

    /// Writes a piece at its offset, which is not before earlier ones.
    fn write(&mut self, piece: &[u8], offset: u64) -> Result<(), String> {
        let written = if self.is_regular {
            self.file.write_all_at(piece, offset)
        } else {
            self.write_zeros(offset).and_then(|()| self.file.write_all(piece))
        };
        self.length = offset + piece.len() as u64;
        written.map_err(|error| self.failed(&error))
    }

    /// Gives the file its length if the source ends with a hole.
    fn finish(&mut self, length: u64) -> Result<(), String> {
        let grown = match length > self.length {
            true if self.is_regular => self.file.set_len(length),
            true => self.write_zeros(length),
            false => Ok(()),
        };
        self.length = self.length.max(length);
        grown.map_err(|error| self.failed(&error))
    }

    /// Writes what has no holes up to `offset`.
    fn write_zeros(&mut self, offset: u64) -> io::Result<()> {
        let missing = offset.saturating_sub(self.length);
        io::copy(&mut io::repeat(0).take(missing), &mut self.file).map(drop)
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("cannot write {}: {error}; the file is incomplete", self.path.display())
    }
}

/// A piece in flight.
struct Piece {
    ticket: Ticket,
    /// Its place in the frames.
    slot: u64,
    /// Its place in the files.
    offset: u64,
    length: usize,
}

struct Copy<'a> {
    mover: Mover,
    frames: (Frame, Frame),
    /// The piece read last, and a buffer for the piece to write and for the measured memcpy.
    buffers: (Vec<u8>, Vec<u8>),
    /// Oldest first.
    in_flight: VecDeque<Piece>,
    destination: Destination<'a>,
    bar: Bar,
    samples: Samples,
    pieces: u64,
    written: u64,
    cpu: Duration,
    engine: EngineKind,
}

impl<'a> Copy<'a> {
    /// Opens the destination, which truncates it, when it has all that the service may refuse.
    fn new(
        mover: Mover,
        expected: Option<u64>,
        open: impl FnOnce() -> Result<Destination<'a>, CommandError>,
    ) -> Result<Self, CommandError> {
        // A file may grow while it is read, so no buffer is empty.
        let piece = expected.unwrap_or(PIECE_BYTES).clamp(4096, PIECE_BYTES);
        let length = piece * SLOTS as u64;
        let frames = (mover.client().frame(length).alloc()?, mover.client().frame(length).alloc()?);
        let buffer = vec![0; usize::try_from(piece)?];
        Ok(Self {
            mover,
            frames,
            buffers: (buffer.clone(), buffer),
            in_flight: VecDeque::new(),
            destination: open()?,
            bar: Bar::new(expected),
            samples: Samples::default(),
            pieces: 0,
            written: 0,
            cpu: Duration::ZERO,
            engine: EngineKind::None,
        })
    }

    fn copy_all(&mut self, source: &mut Source, path: &Path) -> Result<(), CommandError> {
        let failed = |error| format!("cannot read {}: {error}", path.display());
        while let Some((offset, length)) = source.read_piece(&mut self.buffers.0).map_err(failed)? {
            if self.in_flight.len() == SLOTS {
                self.finish_oldest()?;
            }
            self.start(offset, length)?;
        }
        while !self.in_flight.is_empty() {
            self.finish_oldest()?;
        }
        self.destination.finish(source.length())?;
        Ok(())
    }

    /// Submits the piece that was read.
    fn start(&mut self, offset: u64, length: usize) -> Result<(), CommandError> {
        let slot = (self.pieces % SLOTS as u64) * self.buffers.0.len() as u64;
        self.frames.0.write(slot, &self.buffers.0[..length])?;
        let range = |frame: &Frame| frame.slice(slot..slot + length as u64);
        let transfer = copy(range(&self.frames.0), range(&self.frames.1));
        // The shorter last piece is not measured.
        if self.pieces.is_multiple_of(MEASURE_EVERY) && self.samples.have_length(length as u64) {
            self.measure(&transfer, length)?;
        }
        self.pieces += 1;
        let cpu = thread_cpu();
        let ticket = self.mover.submit(transfer)?;
        self.cpu += thread_cpu().saturating_sub(cpu);
        self.in_flight.push_back(Piece { ticket, slot, offset, length });
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
        let Some(Piece { ticket, slot, offset, length }) = self.in_flight.pop_front() else { return Ok(()) };
        let cpu = thread_cpu();
        let completion = self.mover.wait(ticket)?;
        self.cpu += thread_cpu().saturating_sub(cpu);
        self.engine = completion.engine;
        let piece = &mut self.buffers.1[..length];
        self.frames.1.read(slot, piece)?;
        self.destination.write(piece, offset)?;
        self.written += length as u64;
        self.bar.advance(self.destination.length);
        Ok(())
    }

    fn report(self, elapsed: Duration) -> Result<(), CommandError> {
        self.bar.end();
        let written = self.written;
        let length = self.destination.length;
        let seconds = elapsed.as_secs_f64();
        if written == 0 {
            let why = if length == 0 { "the source is empty" } else { "all of them are a hole" };
            say!("copied {length} bytes in {seconds:.3} s: {why}");
            return Ok(());
        }
        let rate = Rate(written, elapsed);
        if written < length {
            say!("copied {length} bytes in {seconds:.3} s: {written} bytes of data, {rate}, and holes");
        } else {
            say!("copied {written} bytes in {seconds:.3} s, {rate} including reading and writing");
        }
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

/// A progress bar, shown on terminals only.
struct Bar {
    started: Instant,
    /// `None` for a stream.
    expected: Option<u64>,
    shown: Option<ProgressBar>,
}

impl Bar {
    fn new(expected: Option<u64>) -> Self {
        Self { started: Instant::now(), expected, shown: None }
    }

    fn advance(&mut self, done: u64) {
        if self.shown.is_none() && self.started.elapsed() > BAR_AFTER && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(self.expected, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {msg}");
            self.shown = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        if let Some(bar) = &self.shown {
            let of = self.expected.map_or(String::new(), |expected| format!(" of {}", Bytes(expected)));
            bar.set_message(format!("{}{of}, {}", Bytes(done), Rate(done, self.started.elapsed())));
            bar.set_position(done);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
