//! The other process of a bulk measurement: puts frames, sends and echoes on order.
//!
//! ```text
//! this process ─ orders: kind, three numbers ─► partner ─┬─ put frames of a set, in a mode
//!              ◄─ frames, messages, echoes ────────────── ┼─ send messages, echo them
//!                                                         └─ the same by a Unix socket and by its standard streams (pipes)
//! ```
//!
//! Orders are messages themselves, so that a batch begins without another kind of wake-up. Moved data is random.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};

use memferry::Client;
use memferry_bulk::{Content, Listener, Mode, Options, Producer, ReceiveError, Receiver, Sender, connect};
use rustix::pipe::fcntl_setpipe_size;

use crate::BenchError;
use crate::children::{self, ChildGuard, Service};
use crate::placement::pin_threads;
use crate::timing::random_bytes;

/// Orders; messages of other kinds are echoed.
const OPEN: u32 = 1;
const PUT: u32 = 2;
const SEND: u32 = 3;
const SOCKET_ECHO: u32 = 4;
const SOCKET_SEND: u32 = 5;
const PIPE_ECHO: u32 = 6;
const PIPE_SEND: u32 = 7;
const PUT_BYTES: u32 = 8;
/// Message kind that is echoed.
pub(crate) const ECHO: u32 = 100;
/// Maximum size of messages and frames.
pub(crate) const LONGEST: u64 = 32 << 20;
/// Exports that fill a sender's cache except one entry.
const OTHERS: u64 = 63;
/// Capacity of a pipe, if it may be changed.
const PIPE_BYTES: usize = 1 << 20;

fn options() -> Options {
    Options { longest: LONGEST, ..Options::default() }
}

fn mode_of(number: u64) -> Mode {
    [Mode::MappedEachRequest, Mode::PreMapped, Mode::Offloaded][number as usize % 3]
}

/// A set of frames that the partner puts.
struct Set {
    producer: Producer,
    frames: usize,
    _receiver: Receiver,
}

impl Set {
    fn open(directory: &Path, client: &Client, [mode, frames, bytes]: [u64; 3]) -> Result<Self, BenchError> {
        let (mut sender, receiver) = connect(directory.join("meeting"), client, options())?;
        // The set that tests a full cache must be found last in it.
        let crowded = mode >= 3;
        let crowd = client.frame((OTHERS + 1) * 4096).alloc()?;
        for index in 0..OTHERS * u64::from(crowded) {
            sender.export(crowd.slice(index * 4096..index * 4096 + 4096), None)?;
        }
        let mode = if crowded { Mode::Offloaded } else { mode_of(mode) };
        let frames = usize::try_from(frames)?;
        let mut producer = Producer::new(sender, client, (frames, bytes), mode)?;
        let content = random_bytes(usize::try_from(bytes)?, frames as u64 + 77);
        (0..frames).try_for_each(|index| -> Result<(), BenchError> {
            Ok(producer.frame(index, None)?.write(0, &content)?)
        })?;
        Ok(Self { producer, frames, _receiver: receiver })
    }

    /// Puts frames, after writing `content` to each if given.
    fn put(&mut self, count: u64, bytes: u64, content: Option<&[u8]>) -> Result<(), BenchError> {
        for index in 0..usize::try_from(count)? {
            let frame = self.producer.frame(index % self.frames, None)?;
            content.map_or(Ok(()), |content| frame.write(0, content))?;
            self.producer.put(index % self.frames, bytes, None)?;
        }
        Ok(self.producer.drain(None)?)
    }
}

fn echo(stream: &mut (impl Read + Write), buffer: &mut [u8], count: u64) -> std::io::Result<()> {
    (0..count).try_for_each(|_| {
        stream.read_exact(buffer)?;
        stream.write_all(buffer)
    })
}

/// The standard streams as one pipe stream.
struct Pipes;

impl Read for Pipes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(std::io::stdin(), buffer)?)
    }
}

impl Write for Pipes {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(std::io::stdout(), buffer)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs the partner until the other end closes.
pub(crate) fn partner(directory: &Path) -> Result<(), BenchError> {
    children::end_with_parent()?;
    let client = Client::connect(directory.join("service.sock"))?;
    let mut socket = UnixStream::connect(directory.join("stream"))?;
    let (mut sender, mut receiver) = connect(directory.join("meeting"), &client, options())?;
    let mut buffer = random_bytes(usize::try_from(LONGEST)?, 99);
    let mut sets = Vec::new();
    loop {
        let message = match receiver.receive(None) {
            Ok(message) => message,
            Err(ReceiveError::Closed | ReceiveError::PeerLost) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (kind, Content::Bytes(bytes)) = (message.kind, message.content) else {
            return Err("received an order without bytes".into());
        };
        if kind >= ECHO {
            sender.send(kind, bytes, None)?;
            continue;
        }
        let words = <[u8; 24]>::try_from(bytes)?;
        let word = |index: usize| u64::from_le_bytes(words.as_chunks().0[index]);
        let [one, count, length] = [0, 1, 2].map(word);
        let part = &mut buffer[..usize::try_from(length.min(LONGEST))?];
        match kind {
            OPEN => sets.push(Set::open(directory, &client, [one, count, length])?),
            PUT | PUT_BYTES => {
                let content = (kind == PUT_BYTES).then_some(&*part);
                sets.get_mut(usize::try_from(one)?)
                    .ok_or("received an order for an unknown set")?
                    .put(count, length, content)?;
            }
            SEND => (0..count).try_for_each(|_| sender.send(ECHO, part, None))?,
            SOCKET_ECHO => echo(&mut socket, part, count)?,
            SOCKET_SEND => (0..count).try_for_each(|_| socket.write_all(part))?,
            PIPE_ECHO => echo(&mut Pipes, part, count)?,
            PIPE_SEND => (0..count).try_for_each(|_| Pipes.write_all(part))?,
            other => return Err(format!("received unknown order {other}").into()),
        }
    }
}

/// The partner process, ended on drop.
pub(crate) struct Partner {
    listener: Listener,
    pub(crate) client: Client,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) socket: UnixStream,
    input: ChildStdin,
    output: ChildStdout,
    child: ChildGuard,
    sets: u64,
}

impl Partner {
    /// Starts a partner of a service in `directory`. Start it before pinning the thread.
    pub(crate) fn start(directory: &Path, service: &Service) -> Result<Self, BenchError> {
        let client = Client::connect(service.socket())?;
        let listener = Listener::bind(directory.join("meeting"))?;
        let stream: PathBuf = directory.join("stream");
        // May be left over from an earlier run.
        let _ = std::fs::remove_file(&stream);
        let streams = UnixListener::bind(&stream)?;
        let path =
            directory.to_str().ok_or("the path of the temporary directory is not UTF-8; set TMPDIR")?;
        let (child, input, output) = children::start_piped(&["--partner", path])?;
        // Larger pipes are faster; without permission they keep their size.
        let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
        let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
        let socket = streams.accept()?.0;
        let (sender, receiver) = listener.accept(&client, options(), None)?;
        Ok(Self { listener, client, sender, receiver, socket, input, output, child, sets: 0 })
    }

    /// Pins the process to CPU `index`.
    pub(crate) fn pin(&self, index: usize) -> Result<(), BenchError> {
        pin_threads(self.child.process(), "memferry-bench", index)
    }

    fn order(&mut self, kind: u32, numbers: [u64; 3]) -> Result<(), BenchError> {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(self.sender.send(kind, &bytes, None)?)
    }

    /// Orders a set of `frames`, put in `mode` (3: offloaded, in a full cache); returns its number and receiver.
    pub(crate) fn open(&mut self, mode: u64, frames: u64, bytes: u64) -> Result<(u64, Receiver), BenchError> {
        self.order(OPEN, [mode, frames, bytes])?;
        // The sending half of a set is unused; the other end never receives from it.
        let (_, receiver) = self.listener.accept(&self.client, options(), None)?;
        self.sets += 1;
        Ok((self.sets - 1, receiver))
    }

    /// Orders `count` frames of a set to be put.
    pub(crate) fn put(&mut self, set: u64, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(PUT, [set, count, bytes])
    }

    /// Orders `count` frames of a set to be written and put.
    pub(crate) fn put_bytes(&mut self, set: u64, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(PUT_BYTES, [set, count, bytes])
    }

    /// Orders `count` messages to be sent.
    pub(crate) fn send(&mut self, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(SEND, [0, count, bytes])
    }

    /// Orders echoes or sends by the socket.
    pub(crate) fn by_socket(&mut self, echoes: bool, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(if echoes { SOCKET_ECHO } else { SOCKET_SEND }, [0, count, bytes])
    }

    /// Orders echoes or sends by the pipes.
    pub(crate) fn by_pipe(&mut self, echoes: bool, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(if echoes { PIPE_ECHO } else { PIPE_SEND }, [0, count, bytes])
    }

    /// The pipes, for writing and for reading.
    pub(crate) fn pipes(&mut self) -> (&mut ChildStdin, &mut ChildStdout) {
        (&mut self.input, &mut self.output)
    }
}
