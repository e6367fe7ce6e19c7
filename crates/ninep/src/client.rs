//! A small 9P2000.L client: single requests, pipelined requests, or raw bytes.
//!
//! ```text
//! connect ─ version ─ attach ─► call(Request) ─► Reply           send, receive: several requests outstanding
//! ```
//!
//! For tests and measurements: it trusts the server beyond what its codec checks. The caller numbers fids; 0 is the
//! root.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::codec::{Data, HEADER, Header, Malformed, NO_FID, NO_TAG, NO_USER, Reply, Request, VERSION};

/// Read timeout, so that a missing answer fails a test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("the connection to the file server failed: {0}")]
    Connection(#[from] io::Error),
    /// The server answered with an error.
    #[error("the file server refused the request: {0}")]
    Refused(Errno),
    /// The answer cannot be decoded.
    #[error("cannot decode the file server's answer: {0}")]
    Nonsense(#[from] Malformed),
    /// The answer is of another kind or has another tag.
    #[error("the file server's answer does not match the request")]
    Unexpected,
}

/// A bidirectional byte stream.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

pub struct Client {
    stream: Box<dyn Stream>,
    msize: u32,
    message: Vec<u8>,
}

impl Client {
    /// Connects to a Unix socket without negotiating a version. Answers time out after a minute.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self::over(stream))
    }

    /// Connects to `HOST:PORT` without negotiating a version. Answers time out after a minute.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn tcp(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self::over(stream))
    }

    fn over(stream: impl Read + Write + Send + 'static) -> Self {
        Self { stream: Box::new(stream), msize: 4096, message: Vec::new() }
    }

    /// Negotiates the version and attaches `name` as fid 0.
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

    /// Maximum message size negotiated, in bytes.
    pub fn message_bytes(&self) -> u32 {
        self.msize
    }

    /// Sends a request and waits for its answer; an error answer becomes `Err`.
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
        let (received, reply) = self.receive()?;
        if received == tag { Ok(reply) } else { Err(ClientError::Unexpected) }
    }

    /// Sends a request with a tag, without waiting for the answer.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&mut self, request: &Request<'_>, tag: u16) -> io::Result<()> {
        self.stream.write_all(&request.encode(tag))
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives raw bytes until `bytes` is full.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// Receives the next answer and its tag.
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
    /// [`ClientError`]; `ENOENT` if only part of the path exists.
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

    /// Opens `fid`; `flags` are the protocol's (0 to read, 1 to write, 2 for both).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&mut self, fid: u32, flags: u32) -> Result<(), ClientError> {
        self.call(&Request::Lopen { fid, flags }).map(drop)
    }

    /// Reads up to `count` bytes of an open file, appends them to `bytes`, and returns their number.
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

    /// Writes bytes to an open file and returns the number written.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Result<u32, ClientError> {
        match self.call(&Request::Write { fid, offset, data: Data(bytes.into()) })? {
            Reply::Write { count } => Ok(count),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Reads the whole file at a path through `fid`, which is free again afterwards.
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
