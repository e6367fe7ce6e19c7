//! A receiver: reads a file block by block, and copies the bytes to memory or lets the kernel discard them.
//!
//! ```text
//! connect, attach, open ─ "ready" ─ "go" ─► (request a block, receive it) ... ─ "done BYTES SECONDS" ─ waits for end of input
//! ```
//!
//! It keeps one request outstanding, like `diodcat`. Discarding is `recv` with `MSG_TRUNC`: the bytes pass through TCP but are
//! never copied. It stays connected until its input ends, because a server's threads may end with their connection.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use memferry_ninep::codec::{HEADER, Header, NO_FID, NO_TAG, Reply, Request, VERSION};
use rustix::net::{RecvFlags, recv};

use super::{BLOCK, name};
use crate::BenchError;
use crate::children::Role;

/// Bytes of an Rread before its data: header and count.
const READ_HEAD: usize = HEADER + 4;
/// The fid of the file.
const FILE: u32 = 1;

pub(super) struct Receiver(Role);

impl Receiver {
    /// Starts a receiver, in the network namespace of process `namespace` if given.
    pub(super) fn start(
        namespace: Option<u32>,
        protocol: &str,
        address: &str,
        attach: &str,
        index: usize,
        receives: &str,
    ) -> Result<Self, BenchError> {
        let file = index.to_string();
        let mut role =
            Role::start(namespace, &["--files", "receive", protocol, address, attach, &file, receives])?;
        match role.line()?.as_str() {
            "ready" => Ok(Self(role)),
            other => Err(format!("a receiver did not start: {other}").into()),
        }
    }

    pub(super) fn go(&mut self) -> Result<(), BenchError> {
        self.0.say("go")
    }

    /// Waits for completion; returns bytes and seconds.
    pub(super) fn done(&mut self) -> Result<(u64, f64), BenchError> {
        let line = self.0.line()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["done", bytes, seconds] => Ok((bytes.parse()?, seconds.parse()?)),
            _ => Err(format!("a receiver failed: {line}").into()),
        }
    }
}

pub(super) fn receive(
    protocol: &str,
    address: &str,
    attach: &str,
    file: &str,
    receives: &str,
) -> Result<(), BenchError> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let index: u64 = file.parse()?;
    let mut taker = Taker { socket, buffer: vec![0; BLOCK], discards: receives == "discarding" };
    let is_9p = protocol == "9p";
    let count = if is_9p { taker.open(attach, &name(index as usize))? } else { BLOCK as u32 };
    println!("ready");
    let mut input = std::io::stdin().lock();
    input.read_line(&mut String::new())?;
    let started = Instant::now();
    let mut at = 0;
    loop {
        let received = if is_9p { taker.read(at, count)? } else { taker.read_plain(index, at, count)? };
        if received == 0 {
            break;
        }
        at += received;
    }
    println!("done {at} {}", started.elapsed().as_secs_f64());
    input.read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Taker {
    socket: TcpStream,
    buffer: Vec<u8>,
    discards: bool,
}

impl Taker {
    /// Opens a file over 9P; returns the maximum bytes per read.
    fn open(&mut self, attach: &str, file: &str) -> Result<u32, BenchError> {
        let msize = BLOCK as u32 + 24;
        let body = self.ask(&Request::Version { msize, version: VERSION.into() }, NO_TAG)?;
        let Reply::Version { msize: agreed, .. } = Reply::decode(body.0, &body.1)? else {
            return Err("the server does not support 9P2000.L".into());
        };
        let root = rustix::process::geteuid().as_raw();
        let requests = [
            Request::Attach {
                fid: 0,
                afid: NO_FID,
                uname: b"".into(),
                aname: attach.as_bytes().into(),
                user: root,
            },
            Request::Walk { fid: 0, newfid: FILE, names: vec![file.as_bytes().into()] },
            Request::Lopen { fid: FILE, flags: 0 },
        ];
        for request in requests {
            let (kind, body) = self.ask(&request, 1)?;
            if let Reply::Error { code } = Reply::decode(kind, &body)? {
                return Err(format!("the server refused a request: error {code}").into());
            }
        }
        Ok((agreed - 24).min(BLOCK as u32))
    }

    /// Sends a request and receives a short answer: its kind and body.
    fn ask(&mut self, request: &Request<'_>, tag: u16) -> Result<(u8, Vec<u8>), BenchError> {
        self.socket.write_all(&request.encode(tag))?;
        let mut head = [0; HEADER];
        self.socket.read_exact(&mut head)?;
        let header = Header::of(&head).ok_or("an answer without a head")?;
        let length = (header.size as usize).checked_sub(HEADER).ok_or("an answer shorter than its head")?;
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body)?;
        Ok((header.kind, body))
    }

    /// Reads a part of the file over 9P; returns the bytes received.
    fn read(&mut self, offset: u64, count: u32) -> Result<u64, BenchError> {
        self.socket.write_all(&Request::Read { fid: FILE, offset, count }.encode(1))?;
        let mut head = [0; READ_HEAD];
        self.socket.read_exact(&mut head)?;
        let header = Header::of(&head[..HEADER]).ok_or("an answer without a head")?;
        let received =
            u32::from_le_bytes([head[HEADER], head[HEADER + 1], head[HEADER + 2], head[HEADER + 3]]);
        if header.size as usize != READ_HEAD + received as usize || received > count {
            return Err("the server refused a read".into());
        }
        self.take(received as usize)
    }

    /// Reads a part of a file from the `sendfile` server.
    fn read_plain(&mut self, index: u64, offset: u64, count: u32) -> Result<u64, BenchError> {
        let words = [index, offset, u64::from(count)];
        let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.socket.write_all(&request)?;
        let mut head = [0; 8];
        self.socket.read_exact(&mut head)?;
        self.take(usize::try_from(u64::from_le_bytes(head))?)
    }

    /// Receives bytes, into memory or discarding them.
    fn take(&mut self, length: usize) -> Result<u64, BenchError> {
        let buffer = self.buffer.get_mut(..length).ok_or("the server sent more bytes than requested")?;
        if self.discards {
            let mut left = length;
            while left > 0 {
                let (_, received) = recv(&self.socket, &mut buffer[..left], RecvFlags::TRUNC)?;
                if received == 0 {
                    return Err("the server closed the connection".into());
                }
                left -= received.min(left);
            }
        } else {
            self.socket.read_exact(buffer)?;
        }
        Ok(length as u64)
    }
}
