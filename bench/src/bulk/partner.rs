//! The other process of a bulk measurement: it puts frames, sends and echoes as it is told.
//!
//! ```text
//! this process ─ orders: kind, three numbers ─► partner ─┬─ put frames of a set, in a mode
//!              ◄─ frames, messages, echoes ────────────── ┼─ send messages, echo them
//!                                                         └─ the same by a Unix socket and by its standard streams, which are pipes
//! ```
//!
//! Orders are messages themselves, so that a batch begins without a wake-up of another sort. What a batch moves is random.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};

use memferry::Client;
use memferry_bulk::{Content, Listener, Mode, Options, Producer, ReceiveError, Receiver, Sender, connect};
use rustix::pipe::fcntl_setpipe_size;

use crate::BenchError;
use crate::children::{self, Ended, Service};
use crate::placement::keep_threads_to;
use crate::timing::random_bytes;

/// Orders; a message of another kind is sent back.
const OPEN: u32 = 1;
const PUT: u32 = 2;
const SEND: u32 = 3;
const SOCKET_ECHO: u32 = 4;
const SOCKET_SEND: u32 = 5;
const PIPE_ECHO: u32 = 6;
const PIPE_SEND: u32 = 7;
const PUT_BYTES: u32 = 8;
/// The kind that is echoed.
pub(crate) const ECHO: u32 = 100;
/// The longest message and frame.
pub(crate) const LONGEST: u64 = 32 << 20;
/// Exports that fill a sender's cache but for one.
const OTHERS: u64 = 63;
/// What a pipe may hold, where it may be changed.
const PIPE_BYTES: usize = 1 << 20;

fn options() -> Options {
    Options { longest: LONGEST, ..Options::default() }
}

fn mode_of(number: u64) -> Mode {
    [Mode::MappedEachRequest, Mode::PreMapped, Mode::Offloaded][number as usize % 3]
}

/// A set of frames the partner puts.
struct Set {
    producer: Producer,
    frames: usize,
    _receiver: Receiver,
}

impl Set {
    fn open(directory: &Path, client: &Client, [mode, frames, bytes]: [u64; 3]) -> Result<Self, BenchError> {
        let (mut sender, receiver) = connect(directory.join("meeting"), client, options())?;
        // The set that stands for a full cache is found last in it.
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

    /// Puts frames, with these bytes in them where there are any.
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

/// The standard streams, which are pipes.
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

/// Is the partner until the other end closes.
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
            return Err("an order is bytes".into());
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
                sets.get_mut(usize::try_from(one)?).ok_or("no such set")?.put(count, length, content)?;
            }
            SEND => (0..count).try_for_each(|_| sender.send(ECHO, part, None))?,
            SOCKET_ECHO => echo(&mut socket, part, count)?,
            SOCKET_SEND => (0..count).try_for_each(|_| socket.write_all(part))?,
            PIPE_ECHO => echo(&mut Pipes, part, count)?,
            PIPE_SEND => (0..count).try_for_each(|_| Pipes.write_all(part))?,
            other => return Err(format!("no order {other}").into()),
        }
    }
}

/// The partner as its parent holds it, ended on drop.
pub(crate) struct Partner {
    listener: Listener,
    pub(crate) client: Client,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) socket: UnixStream,
    input: ChildStdin,
    output: ChildStdout,
    child: Ended,
    sets: u64,
}

impl Partner {
    /// Starts one beside the service of a directory. Start it before the thread is kept on a CPU.
    pub(crate) fn start(directory: &Path, service: &Service) -> Result<Self, BenchError> {
        let client = Client::connect(service.socket())?;
        let listener = Listener::bind(directory.join("meeting"))?;
        let stream: PathBuf = directory.join("stream");
        // What a run before this one left.
        let _ = std::fs::remove_file(&stream);
        let streams = UnixListener::bind(&stream)?;
        let path = directory.to_str().ok_or("the directory for temporary files has an odd name")?;
        let (child, input, output) = children::start_piped(&["--partner", path])?;
        // A pipe of the default size is slower; one that may not grow is what it is.
        let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
        let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
        let socket = streams.accept()?.0;
        let (sender, receiver) = listener.accept(&client, options(), None)?;
        Ok(Self { listener, client, sender, receiver, socket, input, output, child, sets: 0 })
    }

    /// Keeps it on CPU `index`.
    pub(crate) fn keep_to(&self, index: usize) -> Result<(), BenchError> {
        keep_threads_to(self.child.process(), "memferry-bench", index)
    }

    fn order(&mut self, kind: u32, numbers: [u64; 3]) -> Result<(), BenchError> {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(self.sender.send(kind, &bytes, None)?)
    }

    /// Has it make a set of `frames`, put in `mode` (3: offloaded, in a full cache); its number, and the end to take them from.
    pub(crate) fn open(&mut self, mode: u64, frames: u64, bytes: u64) -> Result<(u64, Receiver), BenchError> {
        self.order(OPEN, [mode, frames, bytes])?;
        // The sending half of a set is of no use here; the other end does not listen to it.
        let (_, receiver) = self.listener.accept(&self.client, options(), None)?;
        self.sets += 1;
        Ok((self.sets - 1, receiver))
    }

    /// Has it put so many frames of a set.
    pub(crate) fn put(&mut self, set: u64, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(PUT, [set, count, bytes])
    }

    /// Has it copy bytes of its own to so many frames of a set, and put them.
    pub(crate) fn put_bytes(&mut self, set: u64, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(PUT_BYTES, [set, count, bytes])
    }

    /// Has it send so many messages.
    pub(crate) fn send(&mut self, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(SEND, [0, count, bytes])
    }

    /// Has it echo, or send, by its socket.
    pub(crate) fn by_socket(&mut self, echoes: bool, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(if echoes { SOCKET_ECHO } else { SOCKET_SEND }, [0, count, bytes])
    }

    /// Has it echo, or send, by its pipes.
    pub(crate) fn by_pipe(&mut self, echoes: bool, count: u64, bytes: u64) -> Result<(), BenchError> {
        self.order(if echoes { PIPE_ECHO } else { PIPE_SEND }, [0, count, bytes])
    }

    /// Its pipes: to be written, and to be read.
    pub(crate) fn pipes(&mut self) -> (&mut ChildStdin, &mut ChildStdout) {
        (&mut self.input, &mut self.output)
    }
}
