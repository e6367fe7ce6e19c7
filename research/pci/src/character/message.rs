//! The messages of FUSE that a character device needs (linux/fuse.h, version 7.38): requests of the kernel, and replies.
//!
//! ```text
//! request   length, operation | unique | node | uid, gid | pid, extensions | body
//! reply     length, error     | unique | body
//! ```
//!
//! Numbers are in the machine's byte order. Each read of `/dev/cuse` gives one request. Its lengths are checked although the kernel wrote it.

use rustix::io::Errno;
use thiserror::Error;

/// Bytes of a request's header.
pub(crate) const HEADER: usize = 40;
/// Bytes of the body of a write before its data.
pub(crate) const WRITE_BODY: usize = 40;
const RELEASE_BODY: usize = 24;
const OPEN_BODY: usize = 8;
const INIT_BODY: usize = 16;
const REPLY_HEADER: usize = 16;

/// A process opens the device.
pub const OPEN: u32 = 14;
/// Bytes for an open device.
pub const WRITE: u32 = 16;
/// The last descriptor of a file is closed.
pub const RELEASE: u32 = 18;
const READ: u32 = 15;
const INTERRUPT: u32 = 36;
const IOCTL: u32 = 39;
/// The first message, which asks for the device's name.
pub const INIT: u32 = 4096;

/// Version of the protocol; the kernel's minor version may be larger.
const MAJOR: u32 = 7;
const MINOR: u32 = 38;
/// Before it, the structures had other lengths.
const OLDEST_MINOR: u32 = 11;

/// A request that is not as the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("a request of {bytes} bytes, which is shorter than its header")]
    Header { bytes: usize },
    #[error("a request of {bytes} bytes says that it has {said}")]
    Length { unique: u64, bytes: usize, said: u32 },
    #[error("operation {operation} has a body of {bytes} bytes, which is too short")]
    Body { unique: u64, operation: u32, bytes: usize },
    #[error("a write of {said} bytes has {bytes}")]
    Data { unique: u64, bytes: usize, said: u32 },
}

impl Malformed {
    /// The request to answer, if that is known.
    pub(crate) fn unique(&self) -> Option<u64> {
        match *self {
            Self::Header { .. } => None,
            Self::Length { unique, .. } | Self::Body { unique, .. } | Self::Data { unique, .. } => {
                Some(unique)
            }
        }
    }
}

/// What the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Init {
        major: u32,
        minor: u32,
    },
    Open,
    Write {
        file: u64,
        bytes: &'a [u8],
    },
    Release {
        file: u64,
    },
    Read,
    Ioctl,
    /// A caller has got a signal. Requests are answered at once, so this has nothing to do.
    Interrupt,
    Other,
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) unique: u64,
    /// The calling thread, or 0 if it is in a foreign namespace of processes.
    pub(crate) thread: u32,
    pub(crate) body: Body<'a>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(core::array::from_fn(|byte| bytes.get(at + byte).copied().unwrap_or(0)))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(core::array::from_fn(|byte| bytes.get(at + byte).copied().unwrap_or(0)))
}

pub(crate) fn parse(message: &[u8]) -> Result<Request<'_>, Malformed> {
    let bytes = message.len();
    let Some((header, rest)) = message.split_at_checked(HEADER) else {
        return Err(Malformed::Header { bytes });
    };
    let said = u32_at(header, 0);
    let operation = u32_at(header, 4);
    let unique = u64_at(header, 8);
    if said as usize != bytes {
        return Err(Malformed::Length { unique, bytes, said });
    }
    let long = |needed: usize| match rest.len() < needed {
        true => Err(Malformed::Body { unique, operation, bytes: rest.len() }),
        false => Ok(()),
    };
    let body = match operation {
        INIT => {
            long(INIT_BODY)?;
            Body::Init { major: u32_at(rest, 0), minor: u32_at(rest, 4) }
        }
        OPEN => {
            long(OPEN_BODY)?;
            Body::Open
        }
        WRITE => {
            long(WRITE_BODY)?;
            let said = u32_at(rest, 16);
            let data = &rest[WRITE_BODY..];
            if data.len() != said as usize {
                return Err(Malformed::Data { unique, bytes: data.len(), said });
            }
            Body::Write { file: u64_at(rest, 0), bytes: data }
        }
        RELEASE => {
            long(RELEASE_BODY)?;
            Body::Release { file: u64_at(rest, 0) }
        }
        READ => Body::Read,
        IOCTL => Body::Ioctl,
        INTERRUPT => Body::Interrupt,
        _ => Body::Other,
    };
    Ok(Request { unique, thread: u32_at(header, 32), body })
}

/// A reply: a body, or an error.
pub(crate) fn reply(unique: u64, answer: Result<&[u8], Errno>) -> Vec<u8> {
    let (error, body) = match answer {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), &[][..]),
    };
    let mut bytes = Vec::with_capacity(REPLY_HEADER + body.len());
    bytes.extend(((REPLY_HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// The answer to [`INIT`]: a device of this name below `/dev`, with a number that the kernel chooses.
pub(crate) fn init_body(major: u32, minor: u32, most_written: u32, name: &str) -> Result<Vec<u8>, Errno> {
    if major != MAJOR || minor < OLDEST_MINOR {
        return Err(Errno::PROTO);
    }
    let mut body = Vec::new();
    // Two zeros: no flags. Two at the end: the numbers of the device.
    for number in [MAJOR, minor.min(MINOR), 0, 0, 4096, most_written, 0, 0] {
        body.extend(number.to_ne_bytes());
    }
    body.resize(body.len() + 40, 0);
    body.extend(b"DEVNAME=");
    body.extend(name.as_bytes());
    body.push(0);
    Ok(body)
}

/// The answer to [`OPEN`]: the number by which later requests name the file.
pub(crate) fn open_body(file: u64) -> Vec<u8> {
    let mut body = file.to_ne_bytes().to_vec();
    body.resize(16, 0);
    body
}

/// The answer to [`WRITE`]: the bytes that were taken.
pub(crate) fn write_body(taken: u32) -> Vec<u8> {
    let mut body = taken.to_ne_bytes().to_vec();
    body.resize(8, 0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(operation: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        bytes.extend(operation.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(1234_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    fn written(said: u32, data: &[u8]) -> Vec<u8> {
        let mut body = 5_u64.to_ne_bytes().to_vec();
        body.extend([0; 8]);
        body.extend(said.to_ne_bytes());
        body.resize(WRITE_BODY, 0);
        body.extend(data);
        message(WRITE, &body)
    }

    #[test]
    fn requests_are_read() {
        let bytes = written(3, b"abc");
        let request = parse(&bytes).unwrap();
        assert_eq!((request.unique, request.thread), (77, 1234));
        assert_eq!(request.body, Body::Write { file: 5, bytes: b"abc" });
        let release =
            message(RELEASE, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse(&release).unwrap().body, Body::Release { file: 9 });
        assert_eq!(parse(&message(999, &[])).unwrap().body, Body::Other);
        assert_eq!(parse(&message(INTERRUPT, &[0; 8])).unwrap().body, Body::Interrupt);
    }

    #[test]
    fn short_requests_are_refused() {
        for (operation, body) in
            [(INIT, INIT_BODY), (OPEN, OPEN_BODY), (WRITE, WRITE_BODY), (RELEASE, RELEASE_BODY)]
        {
            let whole = message(operation, &vec![0; body]);
            assert!(parse(&whole).is_ok());
            // Cut off: the length does not fit. With a length that fits: the body is too short.
            for length in 0..whole.len() {
                assert!(parse(&whole[..length]).is_err(), "{operation} of {length}");
            }
            for shorter in 0..body {
                let malformed = parse(&message(operation, &vec![0; shorter])).unwrap_err();
                assert_eq!(malformed, Malformed::Body { unique: 77, operation, bytes: shorter });
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for said in [0, 39, 41, u32::MAX] {
            let mut bytes = message(OPEN, &[0; 8]);
            bytes[..4].copy_from_slice(&said.to_ne_bytes());
            assert_eq!(parse(&bytes), Err(Malformed::Length { unique: 77, bytes: 48, said }));
        }
        for said in [0, 2, 4, u32::MAX] {
            let malformed = parse(&written(said, b"abc")).unwrap_err();
            assert_eq!(malformed, Malformed::Data { unique: 77, bytes: 3, said });
            assert_eq!(malformed.unique(), Some(77));
        }
        assert_eq!(parse(&[1; 39]).unwrap_err().unique(), None);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for _ in 0..20_000 {
            let length = random() % 200;
            let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            if length >= 8 && random() % 2 == 0 {
                bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                let operation = [INIT, OPEN, WRITE, RELEASE, READ, IOCTL, INTERRUPT][random() % 7];
                bytes[4..8].copy_from_slice(&operation.to_ne_bytes());
            }
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn replies_have_their_length_and_error() {
        assert_eq!(reply(3, Ok(&[1, 2]))[..4], 18_u32.to_ne_bytes());
        let refused = reply(3, Err(Errno::BUSY));
        assert_eq!(refused.len(), 16);
        assert_eq!(refused[4..8], (-16_i32).to_ne_bytes());
        assert_eq!(refused[8..], 3_u64.to_ne_bytes());
    }

    #[test]
    fn the_first_answer_names_the_device() {
        let body = init_body(7, 99, 65536, "dsa/wq0.0").unwrap();
        assert_eq!(u32_at(&body, 4), MINOR, "the smaller minor version");
        assert_eq!(u32_at(&body, 20), 65536);
        assert_eq!(&body[72..], b"DEVNAME=dsa/wq0.0\0");
        assert_eq!(init_body(8, 0, 1, "x"), Err(Errno::PROTO));
        assert_eq!(init_body(7, 10, 1, "x"), Err(Errno::PROTO));
    }
}
