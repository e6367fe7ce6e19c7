//! The loop: one thread that waits for clients, commands, signals and the device's next event.
//!
//! ```text
//! poll: signals, listener, client, timeout ──► accept or refuse a client ──► a command ──► the device's time
//! ```

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::connection::{Connection, ConnectionError, Received};
use crate::device::{Device, Fatal};
use crate::function::Function;
use crate::pace::{Next, Pace};

/// Lines about one client's mistakes that are printed; the rest is counted.
const PRINTED: u64 = 50;

/// Why serving ended badly.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("{}: another process listens there; choose another --socket, or end that process", socket.display())]
    InUse { socket: PathBuf },
    #[error("{}: exists, and whether a process listens there cannot be found out: {source}; remove it, or choose another --socket", socket.display())]
    Unknown { socket: PathBuf, source: Errno },
    #[error("{}: exists and is no socket; choose another --socket, or remove it", socket.display())]
    NoSocket { socket: PathBuf },
    #[error("{}: cannot listen: {source}; the folder must exist and be writable, and the path have at most 107 bytes", socket.display())]
    Listen { socket: PathBuf, source: io::Error },
    #[error("cannot wait for events: {0}")]
    Wait(#[from] Errno),
    #[error("cannot prepare for signals: {0}")]
    Signals(io::Error),
    #[error("the connection ended: {0}")]
    Connection(#[from] ConnectionError),
    #[error("the connection ended: {0}")]
    Client(#[from] Fatal),
}

/// Where to serve, and for how many clients.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub socket: PathBuf,
    /// Waits for the next client when one has gone, instead of ending.
    pub keep: bool,
}

/// Totals of all clients, when serving ends well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub clients: u64,
    pub commands: u64,
    pub interrupts: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub refused_accesses: u64,
}

/// Removes the socket when serving ends.
struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects to a socket, without waiting, and closes the connection. A server does not take that for a client.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn listen(path: &Path) -> Result<Listening, ServeError> {
    let failed = |source| ServeError::Listen { socket: path.to_owned(), source };
    if let Ok(found) = fs::symlink_metadata(path) {
        use std::os::unix::fs::FileTypeExt;
        if !found.file_type().is_socket() {
            return Err(ServeError::NoSocket { socket: path.to_owned() });
        }
        match probe(path) {
            // A full queue of connections has a listener, too.
            Ok(()) | Err(Errno::AGAIN) => return Err(ServeError::InUse { socket: path.to_owned() }),
            // A socket without a listener was left by a process that was killed.
            Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
            Err(Errno::NOENT) => {}
            Err(source) => return Err(ServeError::Unknown { socket: path.to_owned(), source }),
        }
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let listening = Listening { listener, path: path.to_owned() };
    listening.listener.set_nonblocking(true).map_err(failed)?;
    Ok(listening)
}

/// Serves a device until its client goes, or a signal asks to end. Writes lines for a person to `log`, the first once clients can
/// connect. A connection that ends before it has negotiated a version was no client.
///
/// # Errors
/// [`ServeError`].
pub fn serve<F: Function>(
    device: &mut Device<F>,
    options: &ServeOptions,
    log: &mut dyn Write,
) -> Result<Served, ServeError> {
    memferry_shm::bus_error::install().map_err(ServeError::Signals)?;
    let mut wanted = SigSet::empty();
    wanted.add(Signal::SIGINT);
    wanted.add(Signal::SIGTERM);
    let signals = wanted
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
    let signals = signals.map_err(|errno| ServeError::Signals(errno.into()))?;
    let listening = listen(&options.socket)?;
    let mut server =
        Server { device, log, served: Served::default(), client: None, printed: 0, has_refused: false };
    server.say(&format!("serving {} at {}", server.device.name(), options.socket.display()));
    let ended = server.run(&listening.listener, &signals, options.keep);
    server.count();
    ended.map(|()| server.served)
}

struct Client {
    connection: Connection,
    pace: Pace,
}

struct Server<'a, F: Function> {
    device: &'a mut Device<F>,
    log: &'a mut dyn Write,
    served: Served,
    client: Option<Client>,
    printed: u64,
    /// Whether a second client was refused, which is said once for each first one.
    has_refused: bool,
}

/// Why the loop stops.
enum Stop {
    Signal,
    ClientGone,
}

/// Which of the loop's descriptors can be used.
struct Ready {
    signals: bool,
    listener: bool,
    client: bool,
    /// The present client has closed its socket. It may have sent commands before.
    has_hung_up: bool,
}

impl<F: Function> Server<'_, F> {
    fn say(&mut self, text: &str) {
        let _ = writeln!(self.log, "memferry-device: {text}");
    }

    fn run(&mut self, listener: &UnixListener, signals: &SignalFd, keep: bool) -> Result<(), ServeError> {
        loop {
            let stop = self.turn(listener, signals);
            let gone = match stop {
                Ok(None) => continue,
                Ok(Some(Stop::Signal)) => return Ok(()),
                Ok(Some(Stop::ClientGone)) => Ok(()),
                Err(ServeError::Wait(errno)) => return Err(errno.into()),
                Err(error) => Err(error),
            };
            let was_client = self.device.has_version();
            self.client = None;
            self.count();
            self.device.disconnect();
            if gone.is_ok() && !was_client {
                continue;
            }
            if !keep {
                return gone;
            }
            match gone {
                Ok(()) => self.say("the client is gone; waiting for the next one"),
                Err(error) => self.say(&format!("{error}; waiting for the next client")),
            }
        }
    }

    /// Runs the device, waits once, and does one thing for the client.
    fn turn(&mut self, listener: &UnixListener, signals: &SignalFd) -> Result<Option<Stop>, ServeError> {
        let next = match &mut self.client {
            Some(client) => client.pace.run(self.device),
            None => Next::Idle,
        };
        self.report();
        let timeout = match next {
            Next::Idle => None,
            Next::Now => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            Next::After(time) => Some(Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: time.subsec_nanos().into(),
            }),
        };
        let ready = self.wait(listener, signals, timeout.as_ref())?;
        if ready.signals {
            return Ok(Some(Stop::Signal));
        }
        // The next client waits until the last commands of one that has gone are carried out, which ends with its own end.
        if ready.listener && !ready.has_hung_up {
            self.accept(listener)?;
        }
        if ready.client { self.command() } else { Ok(None) }
    }

    /// Waits until a descriptor can be used.
    fn wait(
        &self,
        listener: &UnixListener,
        signals: &SignalFd,
        timeout: Option<&Timespec>,
    ) -> Result<Ready, Errno> {
        let mut events = vec![
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        if let Some(client) = &self.client {
            let sending = client.connection.is_sending();
            let interest = if sending { PollFlags::OUT } else { PollFlags::IN };
            events.push(PollFd::from_borrowed_fd(client.connection.descriptor(), interest));
        }
        match rustix::event::poll(&mut events, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let events = |at: usize| events.get(at).map_or(PollFlags::empty(), PollFd::revents);
        let can_use = |at| !events(at).is_empty();
        Ok(Ready {
            signals: can_use(0),
            listener: can_use(1),
            client: can_use(2),
            has_hung_up: events(2).contains(PollFlags::HUP),
        })
    }

    fn accept(&mut self, listener: &UnixListener) -> Result<(), ServeError> {
        let Ok((socket, _)) = listener.accept() else { return Ok(()) };
        if self.client.is_some() {
            if !std::mem::replace(&mut self.has_refused, true) {
                self.say("refused a second client: a device has one at a time");
            }
            return Ok(());
        }
        let connection = Connection::new(socket)
            .map_err(|error| ConnectionError::System(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        self.printed = 0;
        self.has_refused = false;
        self.client = Some(Client { connection, pace: Pace::new(self.device) });
        Ok(())
    }

    /// Sends replies that wait, else carries out a command that has arrived.
    fn command(&mut self) -> Result<Option<Stop>, ServeError> {
        let Some(client) = &mut self.client else { return Ok(None) };
        if client.connection.is_sending() {
            return after_send(client.connection.flush());
        }
        let message = match client.connection.receive()? {
            Received::Nothing => return Ok(None),
            Received::End => return Ok(Some(Stop::ClientGone)),
            Received::Message(message) => message,
        };
        self.served.commands += 1;
        // The device's time is that of the command.
        client.pace.run(self.device);
        let was_client = self.device.has_version();
        let reply = self.device.handle(&message.header, &message.payload, message.descriptors)?;
        self.served.clients += u64::from(!was_client && self.device.has_version());
        let Some(reply) = reply else { return Ok(None) };
        after_send(client.connection.send(reply))
    }

    /// Prints the first lines of the device's report.
    fn report(&mut self) {
        for line in self.device.take_report() {
            self.printed += 1;
            match self.printed {
                0..=PRINTED => self.say(&line),
                count if count == PRINTED + 1 => self.say("further lines about this client are left out"),
                _ => {}
            }
        }
    }

    fn count(&mut self) {
        self.report();
        let traffic = self.device.memory().traffic();
        self.served.interrupts = self.device.interrupts_sent();
        self.served.bytes_read = traffic.bytes_read;
        self.served.bytes_written = traffic.bytes_written;
        self.served.refused_accesses = traffic.refused;
    }
}

/// Whether the loop stops after replies were sent. A client may go without reading them.
fn after_send(sent: Result<(), ConnectionError>) -> Result<Option<Stop>, ServeError> {
    match sent {
        Err(ConnectionError::System(Errno::PIPE | Errno::CONNRESET)) => Ok(Some(Stop::ClientGone)),
        sent => Ok(sent.map(|()| None)?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::ioat::{IoatFunction, IoatOptions};
    use crate::memory::Memory;
    use crate::message::{HEADER, command};

    fn message(number: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(1_u16.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn unread_replies_are_no_error() {
        let memory = Memory::new();
        let mut device = Device::new(IoatFunction::new(IoatOptions::default(), memory.clone()), memory);
        let (mut socket, served) = UnixStream::pair().unwrap();
        let pace = Pace::new(&device);
        let mut server = Server {
            device: &mut device,
            log: &mut Vec::new(),
            served: Served::default(),
            client: Some(Client { connection: Connection::new(served).unwrap(), pace }),
            printed: 0,
            has_refused: false,
        };
        socket.write_all(&message(command::VERSION, &[0, 0, 1, 0])).unwrap();
        assert!(matches!(server.command(), Ok(None)));
        // All of configuration space.
        let read = [&[0; 8][..], &7_u32.to_ne_bytes(), &4096_u32.to_ne_bytes()].concat();
        let read = message(command::REGION_READ, &read);
        while !server.client.as_ref().unwrap().connection.is_sending() {
            socket.write_all(&read).unwrap();
            assert!(matches!(server.command(), Ok(None)));
        }
        drop(socket);
        assert!(matches!(server.command(), Ok(Some(Stop::ClientGone))));
    }
}
