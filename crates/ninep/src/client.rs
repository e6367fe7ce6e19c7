//! A small 9P2000.L client: one request at a time, or bytes as they are.
//!
//! ```text
//! connect ─ version ─ attach ─► call(Request) ─► Reply           send, receive: several requests outstanding
//! ```
//!
//! It is for tests and measurements: it trusts the server to keep to the protocol as far as its codec goes, and checks nothing
//! else. Fids are the caller's to number; 0 is the root.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::codec::{Data, HEADER, Header, Malformed, NO_FID, NO_TAG, NO_USER, Reply, Request, VERSION};

/// How long an answer may take. It is for tests and measurements: one that never comes has to fail them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("the connection to the file server failed: {0}")]
    Connection(#[from] io::Error),
    /// The server's answer is an error.
    #[error("the file server says: {0}")]
    Refused(Errno),
    /// The server's answer is none.
    #[error("the file server sent nonsense: {0}")]
    Nonsense(#[from] Malformed),
    /// The server's answer is to another question.
    #[error("the file server answered something else")]
    Unexpected,
}

/// A stream of bytes both ways.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

pub struct Client {
    stream: Box<dyn Stream>,
    msize: u32,
    message: Vec<u8>,
}

impl Client {
    /// Connects to a Unix socket; nothing is agreed on yet. Answers are waited for a minute.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    /// Connects to `HOST:PORT`; nothing is agreed on yet. Answers are waited for a minute.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn tcp(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    fn over(stream: impl Read + Write + Send + 'static) -> Self {
        Self { stream: Box::new(stream), msize: 4096, message: Vec::new() }
    }

    /// Agrees on a version and attaches `name` as fid 0.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn attach(mut self, msize: u32, name: &str) -> Result<Self, ClientError> {
        match self.ask(&Request::Version { msize, version: VERSION.into() }, NO_TAG)? {
            Reply::Version { msize, version } if *version == *VERSION => self.msize = msize,
            _ => return Err(ClientError::Unexpected),
        }
        let aname = Cow::Borrowed(name.as_bytes());
        self.call(&Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname, user: NO_USER })?;
        Ok(self)
    }

    /// The longest message that was agreed on, in bytes.
    pub fn message_bytes(&self) -> u32 {
        self.msize
    }

    /// Asks, and waits for the answer; an error of the server's is one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(&mut self, request: &Request<'_>) -> Result<Reply<'_>, ClientError> {
        match self.ask(request, 1)? {
            Reply::Error { code } => Err(ClientError::Refused(Errno::from_raw_os_error(code.cast_signed()))),
            reply => Ok(reply),
        }
    }

    fn ask(&mut self, request: &Request<'_>, tag: u16) -> Result<Reply<'_>, ClientError> {
        self.send(request, tag)?;
        let (came, reply) = self.receive()?;
        if came == tag { Ok(reply) } else { Err(ClientError::Unexpected) }
    }

    /// Sends a request under a tag, without waiting.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&mut self, request: &Request<'_>, tag: u16) -> io::Result<()> {
        self.stream.write_all(&request.encode(tag))
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next bytes as they are, as many as there is room for.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// The next answer, with its tag.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn receive(&mut self) -> Result<(u16, Reply<'_>), ClientError> {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head)?;
        let header = Header::of(&head).ok_or(ClientError::Unexpected)?;
        let body = (header.size as usize).checked_sub(HEADER).ok_or(ClientError::Unexpected)?;
        self.message.resize(body, 0);
        self.stream.read_exact(&mut self.message)?;
        Ok((header.tag, Reply::decode(header.kind, &self.message)?))
    }

    /// Walks from the root to a path as `fid`.
    ///
    /// # Errors
    /// [`ClientError`]; `ENOENT` when only a part of the way is there.
    pub fn walk(&mut self, fid: u32, path: &str) -> Result<(), ClientError> {
        let names: Vec<_> =
            path.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().into()).collect();
        let wanted = names.len();
        match self.call(&Request::Walk { fid: 0, newfid: fid, names })? {
            Reply::Walk { qids } if qids.len() == wanted => Ok(()),
            Reply::Walk { .. } => Err(ClientError::Refused(Errno::NOENT)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Opens what `fid` was walked to; `flags` are the protocol's (0 to read, 1 to write, 2 for both).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&mut self, fid: u32, flags: u32) -> Result<(), ClientError> {
        self.call(&Request::Lopen { fid, flags }).map(drop)
    }

    /// Reads up to `count` bytes of an open file; what came is added to `bytes`, its length given back.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read(
        &mut self,
        fid: u32,
        offset: u64,
        count: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<usize, ClientError> {
        match self.call(&Request::Read { fid, offset, count })? {
            Reply::Read { data: Data(data) } => {
                bytes.extend_from_slice(&data);
                Ok(data.len())
            }
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Writes bytes to an open file; how many were written.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Result<u32, ClientError> {
        match self.call(&Request::Write { fid, offset, data: Data(bytes.into()) })? {
            Reply::Write { count } => Ok(count),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Everything in the file at a path, read in blocks through `fid`, which is free again afterwards.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read_file(&mut self, fid: u32, path: &str) -> Result<Vec<u8>, ClientError> {
        self.walk(fid, path)?;
        self.open(fid, 0)?;
        let mut bytes = Vec::new();
        while self.read(fid, bytes.len() as u64, u32::MAX, &mut bytes)? > 0 {}
        self.call(&Request::Clunk { fid })?;
        Ok(bytes)
    }
}
