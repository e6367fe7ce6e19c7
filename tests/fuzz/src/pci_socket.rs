//! The socket of a PCI device, against a client that sends its messages in any pieces and reads replies when it likes.
//!
//! ```text
//! bytes ──► messages, good and bad, and descriptors ──► pieces ──► Connection ──► the same messages as of the whole stream
//!                                                  replies ◄──── Device ◄─┘   ──► the replies in order, no descriptor kept
//! ```
//!
//! The descriptors are copies of one end of a pipe. When the device and the connection are gone, the other end must see that nobody has
//! it any more.

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use memferry_pci::ioat::{IoatFunction, IoatOptions};
use memferry_pci::message::{HEADER, Header, MAXIMUM_DESCRIPTORS};
use memferry_pci::{Connection, ConnectionError, Device, Memory, Received};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::PipeFlags;

use crate::input::Input;

/// Descriptors that one piece can carry.
const MOST: usize = 20;

/// Input: steps of one byte and its operands (see `step`).
pub fn pci_socket(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new();
    while !input.is_empty() && rig.broken.is_none() {
        rig.step(&mut input);
    }
    rig.finish();
}

struct Rig {
    device: Device<IoatFunction>,
    connection: Connection,
    client: UnixStream,
    /// The pipe's end that is passed on, and the one that learns when all copies are closed.
    passed: OwnedFd,
    watched: OwnedFd,
    /// Written by the client and not sent.
    pending: Vec<u8>,
    /// All bytes that were sent.
    stream: Vec<u8>,
    /// Descriptors that were sent, with the place of the byte that carried them.
    carried: Vec<(usize, usize)>,
    /// Messages that the connection made of the stream, and the number of descriptors of each.
    received: Vec<(Header, Vec<u8>)>,
    descriptors: Vec<usize>,
    /// Replies of the device, and those the client has read.
    replies: Vec<u8>,
    read: Vec<u8>,
    broken: Option<ConnectionError>,
}

impl Rig {
    fn new() -> Self {
        memferry_shm::bus_error::install().expect("a signal handler");
        let memory = Memory::new();
        let device = Device::new(IoatFunction::new(IoatOptions::default(), memory.clone()), memory);
        let (client, served) = UnixStream::pair().expect("sockets");
        client.set_nonblocking(true).expect("a flag");
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (watched, passed) = rustix::pipe::pipe_with(flags).expect("a pipe");
        Self {
            device,
            connection: Connection::new(served).expect("a connection"),
            client,
            passed,
            watched,
            pending: Vec::new(),
            stream: Vec::new(),
            carried: Vec::new(),
            received: Vec::new(),
            descriptors: Vec::new(),
            replies: Vec::new(),
            read: Vec::new(),
            broken: None,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            // A message with the right size.
            0 | 1 => {
                let payload: Vec<u8> = (0..input.u8() % 64).map(|_| input.u8()).collect();
                let size = (HEADER + payload.len()) as u32;
                self.write(u16::from(input.u8() % 16), size, 0);
                self.pending.extend(payload);
            }
            // The start of a version, after which the device listens.
            2 => {
                self.write(1, HEADER as u32 + 4, 0);
                self.pending.extend([0, 0, 1, 0]);
            }
            // A header that says anything.
            3 => self.write(input.u8().into(), input.u32() >> (input.u8() % 32), input.u8().into()),
            4 | 5 => {
                let length = usize::from(input.u8()).min(self.pending.len());
                self.send(length, usize::from(input.u8()) % (MOST + 1));
            }
            6 => self.receive(),
            _ => self.read_replies(),
        }
    }

    fn write(&mut self, number: u16, size: u32, flags: u32) {
        self.pending.extend(7_u16.to_ne_bytes());
        self.pending.extend(number.to_ne_bytes());
        self.pending.extend(size.to_ne_bytes());
        self.pending.extend(flags.to_ne_bytes());
        self.pending.extend([0; 4]);
    }

    /// Sends the first pending bytes in one piece.
    fn send(&mut self, length: usize, descriptors: usize) {
        let piece: Vec<u8> = self.pending.drain(..length).collect();
        if piece.is_empty() {
            return;
        }
        let copies: [BorrowedFd<'_>; MOST] = [self.passed.as_fd(); MOST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptors > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&copies[..descriptors])));
        }
        let parts = [IoSlice::new(&piece)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.client, &parts, &mut control, flags) {
            Ok(sent) => {
                self.carried.push((self.stream.len(), descriptors));
                self.stream.extend(&piece[..sent]);
                self.pending.splice(0..0, piece[sent..].iter().copied());
            }
            // The device does not read while replies wait for the client.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => drop(self.pending.splice(0..0, piece)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Has the device read one message, as its loop does.
    fn receive(&mut self) {
        if self.connection.is_sending() {
            return self.connection.flush().expect("the client is there");
        }
        match self.connection.receive() {
            Ok(Received::Message(message)) => {
                self.descriptors.push(message.descriptors.len());
                let reply = self.device.handle(&message.header, &message.payload, message.descriptors);
                self.received.push((message.header, message.payload));
                match reply {
                    Ok(Some(reply)) => {
                        self.replies.extend(&reply);
                        self.connection.send(reply).expect("the client is there");
                    }
                    Ok(None) => {}
                    Err(_) => self.device.disconnect(),
                }
                let _ = self.device.take_report();
            }
            Ok(Received::Nothing) => {}
            Ok(Received::End) => panic!("the client is there"),
            Err(error) => self.broken = Some(error),
        }
    }

    fn read_replies(&mut self) {
        let mut bytes = [0; 999];
        match self.client.read(&mut bytes) {
            Ok(count) => self.read.extend(&bytes[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// The client sends the rest, reads all replies and goes.
    fn finish(mut self) {
        // Each turn makes some progress, and the limit is far above what any input needs.
        for _ in 0..100_000 {
            if self.broken.is_some() || self.pending.is_empty() && self.is_quiet() {
                break;
            }
            self.send(self.pending.len(), 0);
            self.receive();
            self.read_replies();
        }
        if self.broken.is_none() {
            assert!(self.pending.is_empty() && self.is_quiet(), "the device does not go on");
        }
        self.check();
        let Self { device, connection, passed, watched, .. } = self;
        drop((device, connection, passed, self.client));
        let closed = rustix::io::read(&watched, &mut [0; 1]);
        assert_eq!(closed, Ok(0), "a descriptor is still open");
    }

    /// Whether all that can be received was, and all replies read.
    fn is_quiet(&self) -> bool {
        let (messages, rest) = whole_messages(&self.stream);
        let is_incomplete = matches!(rest, Rest::Incomplete);
        is_incomplete && self.received.len() == messages.len() && self.read.len() == self.replies.len()
    }

    fn check(&mut self) {
        let (messages, rest) = whole_messages(&self.stream);
        let descriptors = self.expected_descriptors(&messages);
        let count = self.received.len();
        assert_eq!(self.received, messages[..count]);
        assert_eq!(self.descriptors, descriptors[..count]);
        assert!(self.descriptors.iter().all(|count| *count <= MAXIMUM_DESCRIPTORS));
        match (self.broken, rest) {
            (Some(ConnectionError::TooManyDescriptors), _) => {
                assert!(descriptors[count] > MAXIMUM_DESCRIPTORS, "{descriptors:?}");
            }
            (Some(ConnectionError::Stream(error)), Rest::Broken(expected)) => {
                assert_eq!(error, expected);
                assert_eq!(count, messages.len());
            }
            (None, Rest::Incomplete) => assert_eq!(count, messages.len()),
            (broken, rest) => panic!("the connection ended with {broken:?}, and the stream with {rest:?}"),
        }
        assert!(self.replies.starts_with(&self.read), "replies in another order");
    }

    /// The number of descriptors of each message, and of what follows the last: those whose byte belongs to it.
    fn expected_descriptors(&self, messages: &[(Header, Vec<u8>)]) -> Vec<usize> {
        let mut counts = vec![0; messages.len() + 1];
        for (place, descriptors) in &self.carried {
            let mut end = 0;
            let owner = messages.iter().position(|(header, _)| {
                end += header.size as usize;
                *place < end
            });
            counts[owner.unwrap_or(messages.len())] += descriptors;
        }
        counts
    }
}

/// What follows the last whole message of a stream.
#[derive(Debug)]
enum Rest {
    Incomplete,
    Broken(memferry_pci::message::StreamError),
}

/// The messages of a stream, without regard to its pieces.
fn whole_messages(mut stream: &[u8]) -> (Vec<(Header, Vec<u8>)>, Rest) {
    let mut messages = Vec::new();
    while let Some((first, rest)) = stream.split_first_chunk::<HEADER>() {
        let header = match Header::decode(first) {
            Ok(header) => header,
            Err(error) => return (messages, Rest::Broken(error)),
        };
        let length = header.size as usize - HEADER;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        messages.push((header, payload.to_vec()));
        stream = rest;
    }
    (messages, Rest::Incomplete)
}
