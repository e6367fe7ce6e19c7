//! Encodes and decodes the messages of 9P2000.L.
//!
//! ```text
//! size[4] kind[1] tag[2] body ─ Header ─► Request::decode(kind, body) ─► a value that borrows from the bytes
//! Reply ─ encode(tag) ─► size[4] kind[1] tag[2] body
//! ```
//!
//! The tables below are the protocol (diod's protocol.md; Linux include/net/9p/9p.h): each line has a message's number and its
//! fields in order. Integers are little-endian, strings have two bytes of length. Names are bytes; `export` checks
//! them. This module reads no socket and does not handle the data of a Twrite, which goes to a buffer of the pool.

mod field;

use std::borrow::Cow;

pub use field::Malformed;
use field::{Field, Input};

/// Bytes of a message before its body.
pub const HEADER: usize = 7;
/// Bytes of a Twrite before its data.
pub const WRITE_HEAD: usize = HEADER + 16;
/// Bytes of an Rread or Rreaddir before its data.
pub const READ_HEAD: usize = HEADER + 4;
/// The only supported version.
pub const VERSION: &[u8] = b"9P2000.L";
/// The tag of Tversion, which has none.
pub const NO_TAG: u16 = u16::MAX;
pub const NO_FID: u32 = u32::MAX;
pub const NO_USER: u32 = u32::MAX;
/// Maximum number of names in a Twalk.
pub const MAX_NAMES: usize = 16;

/// Message numbers checked before decoding.
pub const TVERSION: u8 = 100;
pub const TWRITE: u8 = 118;

/// A string of bytes.
pub type Text<'a> = Cow<'a, [u8]>;

/// Identity of a file: 13 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Qid {
    pub kind: u8,
    /// Changes with the file if the server supports it.
    pub version: u32,
    /// Unique among all files.
    pub path: u64,
}

pub mod qid_kind {
    pub const DIRECTORY: u8 = 0x80;
    pub const SYMLINK: u8 = 0x02;
}

/// The first bytes of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the whole message.
    pub size: u32,
    pub kind: u8,
    /// Tag, repeated by the reply.
    pub tag: u16,
}

impl Header {
    /// The header at the start of `bytes`; `None` if incomplete.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let [a, b, c, d, kind, low, high] = *bytes;
        Some(Self { size: u32::from_le_bytes([a, b, c, d]), kind, tag: u16::from_le_bytes([low, high]) })
    }
}

/// The fields of a Twrite before its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteHead {
    pub fid: u32,
    pub offset: u64,
    /// Bytes of data that follow.
    pub count: u32,
}

impl WriteHead {
    /// Decodes the bytes after a Twrite's header; `size` is that of the whole message.
    ///
    /// # Errors
    /// [`Malformed`] if the count differs from the bytes that follow.
    pub fn decode(body: &[u8], size: u32) -> Result<Self, Malformed> {
        let mut input = Input::new(body);
        let head = Self {
            fid: u32::take(&mut input)?,
            offset: u64::take(&mut input)?,
            count: u32::take(&mut input)?,
        };
        let follow = size.checked_sub(WRITE_HEAD as u32);
        let count = head.count;
        if follow == Some(count) {
            Ok(head)
        } else {
            Err(Malformed::Count { count, follow: follow.unwrap_or(0) })
        }
    }
}

/// The head of an Rread with `count` bytes of data.
pub fn read_head(tag: u16, count: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(READ_HEAD);
    (READ_HEAD as u32 + count).put(&mut head);
    117_u8.put(&mut head);
    tag.put(&mut head);
    count.put(&mut head);
    head
}

macro_rules! messages {
    ($(#[$about:meta])* $Enum:ident { $($number:literal $Name:ident { $($field:ident: $Type:ty),* })* }) => {
        $(#[$about])*
        #[allow(missing_docs, reason = "the names of messages and fields are the protocol's")]
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $Enum<'a> { $($Name { $($field: $Type),* },)* }

        impl<'a> $Enum<'a> {
            /// Decodes the body of message number `kind`.
            ///
            /// # Errors
            /// [`Malformed`].
            pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
                let mut input = Input::new(body);
                let message = match kind {
                    $($number => Self::$Name { $($field: Field::take(&mut input)?),* },)*
                    _ => return Err(Malformed::Kind { kind }),
                };
                input.end()?;
                Ok(message)
            }

            pub fn encode(&self, tag: u16) -> Vec<u8> {
                let mut bytes = vec![0; 4];
                match self {
                    $(Self::$Name { $($field),* } => {
                        Field::put(&($number as u8), &mut bytes);
                        tag.put(&mut bytes);
                        $($field.put(&mut bytes);)*
                    })*
                }
                let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                bytes[..4].copy_from_slice(&size.to_le_bytes());
                bytes
            }

            /// The numbers of all messages.
            pub const NUMBERS: &'static [u8] = &[$($number),*];
        }
    };
}

messages! {
    Request {
        8 Statfs { fid: u32 }
        12 Lopen { fid: u32, flags: u32 }
        14 Lcreate { fid: u32, name: Text<'a>, flags: u32, mode: u32, gid: u32 }
        16 Symlink { dfid: u32, name: Text<'a>, target: Text<'a>, gid: u32 }
        18 Mknod { dfid: u32, name: Text<'a>, mode: u32, major: u32, minor: u32, gid: u32 }
        20 Rename { fid: u32, dfid: u32, name: Text<'a> }
        22 Readlink { fid: u32 }
        24 Getattr { fid: u32, mask: u64 }
        26 Setattr { fid: u32, change: Change }
        30 Xattrwalk { fid: u32, newfid: u32, name: Text<'a> }
        32 Xattrcreate { fid: u32, name: Text<'a>, size: u64, flags: u32 }
        40 Readdir { fid: u32, offset: u64, count: u32 }
        50 Fsync { fid: u32, datasync: u32 }
        52 Lock { fid: u32, kind: u8, flags: u32, start: u64, length: u64, process: u32, client: Text<'a> }
        54 Getlock { fid: u32, kind: u8, start: u64, length: u64, process: u32, client: Text<'a> }
        70 Link { dfid: u32, fid: u32, name: Text<'a> }
        72 Mkdir { dfid: u32, name: Text<'a>, mode: u32, gid: u32 }
        74 Renameat { dfid: u32, name: Text<'a>, newdfid: u32, newname: Text<'a> }
        76 Unlinkat { dfid: u32, name: Text<'a>, flags: u32 }
        100 Version { msize: u32, version: Text<'a> }
        102 Auth { afid: u32, uname: Text<'a>, aname: Text<'a>, user: u32 }
        104 Attach { fid: u32, afid: u32, uname: Text<'a>, aname: Text<'a>, user: u32 }
        108 Flush { oldtag: u16 }
        110 Walk { fid: u32, newfid: u32, names: Vec<Text<'a>> }
        116 Read { fid: u32, offset: u64, count: u32 }
        118 Write { fid: u32, offset: u64, data: Data<'a> }
        120 Clunk { fid: u32 }
        122 Remove { fid: u32 }
    }
}

messages! {
    /// A server's answer; its number is its request's plus one.
    Reply {
        7 Error { code: u32 }
        9 Statfs { kind: u32, block: u32, blocks: u64, free: u64, available: u64, files: u64, free_files: u64, fsid: u64, name_length: u32 }
        13 Lopen { qid: Qid, iounit: u32 }
        15 Lcreate { qid: Qid, iounit: u32 }
        17 Symlink { qid: Qid }
        19 Mknod { qid: Qid }
        21 Rename { }
        23 Readlink { target: Text<'a> }
        25 Getattr { attributes: Attributes }
        27 Setattr { }
        31 Xattrwalk { size: u64 }
        33 Xattrcreate { }
        41 Readdir { data: Data<'a> }
        51 Fsync { }
        53 Lock { status: u8 }
        55 Getlock { kind: u8, start: u64, length: u64, process: u32, client: Text<'a> }
        71 Link { }
        73 Mkdir { qid: Qid }
        75 Renameat { }
        77 Unlinkat { }
        101 Version { msize: u32, version: Text<'a> }
        103 Auth { qid: Qid }
        105 Attach { qid: Qid }
        109 Flush { }
        111 Walk { qids: Vec<Qid> }
        117 Read { data: Data<'a> }
        119 Write { count: u32 }
        121 Clunk { }
        123 Remove { }
    }
}

/// Bytes with four bytes of length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data<'a>(pub Cow<'a, [u8]>);

macro_rules! fields {
    ($(#[$about:meta])* $Name:ident { $($(#[$doc:meta])* $field:ident: $Type:ty),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $Name { $($(#[$doc])* pub $field: $Type),* }

        impl<'a> Field<'a> for $Name {
            fn take(input: &mut Input<'a>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Field::take(input)?),* })
            }

            fn put(&self, to: &mut Vec<u8>) {
                $(self.$field.put(to);)*
            }
        }
    };
}

fields! {
    /// Changes of a Tsetattr; `valid` says which fields apply.
    Change {
        valid: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        size: u64,
        /// Access time in seconds.
        atime: u64,
        atime_nanos: u64,
        /// Modification time in seconds.
        mtime: u64,
        mtime_nanos: u64,
    }
}

#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod change {
    pub const MODE: u32 = 0x1;
    pub const UID: u32 = 0x2;
    pub const GID: u32 = 0x4;
    pub const SIZE: u32 = 0x8;
    pub const ATIME: u32 = 0x10;
    pub const MTIME: u32 = 0x20;
    pub const CTIME: u32 = 0x40;
    pub const ATIME_SET: u32 = 0x80;
    pub const MTIME_SET: u32 = 0x100;
}

/// Bits of [`Attributes::valid`]: all fields up to `ctime`.
pub const BASIC_ATTRIBUTES: u64 = 0x7ff;

fields! {
    /// A file's attributes in an Rgetattr.
    Attributes {
        valid: u64,
        /// Identity of the file.
        qid: Qid,
        /// File type and permission bits.
        mode: u32,
        uid: u32,
        gid: u32,
        links: u64,
        /// Device number of a device file.
        rdev: u64,
        size: u64,
        /// Preferred bytes per read or write.
        block: u64,
        /// 512-byte blocks allocated.
        blocks: u64,
        /// Access time in seconds.
        atime: u64,
        atime_nanos: u64,
        /// Modification time in seconds.
        mtime: u64,
        mtime_nanos: u64,
        /// Change time in seconds.
        ctime: u64,
        ctime_nanos: u64,
        btime: u64,
        btime_nanos: u64,
        generation: u64,
        data_version: u64,
    }
}

/// A directory entry in the data of an Rreaddir.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Identity of the file.
    pub qid: Qid,
    /// Offset of the next entry.
    pub next: u64,
    /// File type as in `d_type`.
    pub kind: u8,
    pub name: Text<'a>,
}

impl<'a> Entry<'a> {
    /// Bytes of an entry besides its name.
    pub const FIXED: usize = 13 + 8 + 1 + 2;

    /// Appends the encoded entry.
    pub fn put(&self, to: &mut Vec<u8>) {
        self.qid.put(to);
        self.next.put(to);
        self.kind.put(to);
        self.name.put(to);
    }

    /// Decodes all entries of an Rreaddir's data.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn all(data: &'a [u8]) -> Result<Vec<Self>, Malformed> {
        let mut input = Input::new(data);
        let mut entries = Vec::new();
        while !input.is_empty() {
            entries.push(Self {
                qid: Field::take(&mut input)?,
                next: Field::take(&mut input)?,
                kind: Field::take(&mut input)?,
                name: Field::take(&mut input)?,
            });
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests;
