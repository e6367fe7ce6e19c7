//! Encodes and decodes the field types of messages.
//!
//! ```text
//! u8 u16 u32 u64   little-endian        Text   length[2] bytes        Vec   count[2] items, at most 16
//! Qid              kind[1] version[4] path[8]                         Data  length[4] bytes
//! ```
//!
//! Decoding borrows strings and data, so an announced length allocates nothing. This module knows no messages.

use std::borrow::Cow;

use thiserror::Error;

use super::{Data, MAX_NAMES, Qid, Text};

/// Why a message cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// A field extends beyond the message.
    #[error("a field of {wanted} bytes exceeds the {left} bytes left in its message")]
    Short {
        /// Bytes of the field.
        wanted: usize,
        left: usize,
    },
    /// Bytes after the last field.
    #[error("{left} bytes follow the last field of a message")]
    Trailing { left: usize },
    #[error("9P2000.L has no message number {kind}")]
    Kind { kind: u8 },
    /// A list has too many items.
    #[error("a list has {count} items; at most {MAX_NAMES} are allowed")]
    List { count: usize },
    /// The count of a write differs from the bytes that follow.
    #[error("a write of {count} bytes is followed by {follow}")]
    Count { count: u32, follow: u32 },
}

/// The undecoded rest of a body.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, wanted: usize) -> Result<&'a [u8], Malformed> {
        let left = self.0.len();
        let (taken, rest) = self.0.split_at_checked(wanted).ok_or(Malformed::Short { wanted, left })?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        let left = self.0.len();
        if left == 0 { Ok(()) } else { Err(Malformed::Trailing { left }) }
    }
}

pub(super) trait Field<'a>: Sized {
    fn take(input: &mut Input<'a>) -> Result<Self, Malformed>;
    fn put(&self, to: &mut Vec<u8>);
}

macro_rules! integers {
    ($($Type:ty)*) => {$(
        impl<'a> Field<'a> for $Type {
            fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
                let mut bytes = [0; size_of::<$Type>()];
                bytes.copy_from_slice(input.bytes(size_of::<$Type>())?);
                Ok(Self::from_le_bytes(bytes))
            }

            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u8 u16 u32 u64);

impl<'a> Field<'a> for Text<'a> {
    fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let length = u16::take(input)?;
        Ok(Cow::Borrowed(input.bytes(usize::from(length))?))
    }

    fn put(&self, to: &mut Vec<u8>) {
        // Truncates longer strings; names from a file system are never that long.
        let length = u16::try_from(self.len()).unwrap_or(u16::MAX);
        length.put(to);
        to.extend_from_slice(&self[..usize::from(length)]);
    }
}

impl<'a> Field<'a> for Data<'a> {
    fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let length = u32::take(input)?;
        Ok(Self(Cow::Borrowed(input.bytes(length as usize)?)))
    }

    fn put(&self, to: &mut Vec<u8>) {
        (self.0.len() as u32).put(to);
        to.extend_from_slice(&self.0);
    }
}

impl<'a> Field<'a> for Qid {
    fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(Self { kind: u8::take(input)?, version: u32::take(input)?, path: u64::take(input)? })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.kind.put(to);
        self.version.put(to);
        self.path.put(to);
    }
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let count = usize::from(u16::take(input)?);
        if count > MAX_NAMES {
            return Err(Malformed::List { count });
        }
        (0..count).map(|_| T::take(input)).collect()
    }

    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u16).put(to);
        for item in self {
            item.put(to);
        }
    }
}
