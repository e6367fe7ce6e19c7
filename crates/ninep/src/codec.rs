//! The messages of 9P2000.L, to and from bytes.
//!
//! ```text
//! size[4] kind[1] tag[2] body ─ Header ─► Request::decode(kind, body) ─► a value that borrows from the bytes
//! Reply ─ encode(tag) ─► size[4] kind[1] tag[2] body
//! ```
//!
//! The tables below are the protocol (diod's protocol.md; Linux include/net/9p/9p.h): each line gives a message's number and its
//! fields in order. Integers are little-endian, strings have two bytes of length. Names are bytes; what a name may be is
//! `export`'s to say. Nothing here reads a socket; the data of a Twrite, which lands in a pool's buffer, is not looked at.

mod field;

use std::borrow::Cow;

pub use field::Malformed;
use field::{Field, Input};

/// Bytes of a message before its body.
pub const HEADER: usize = 7;
/// Bytes of a Twrite before its data.
pub const WRITE_HEAD: usize = HEADER + 16;
/// Bytes of an Rread before its data; those of an Rreaddir are as many.
pub const READ_HEAD: usize = HEADER + 4;
/// The one version served.
pub const VERSION: &[u8] = b"9P2000.L";
/// The tag of a request that has none: Tversion.
pub const NO_TAG: u16 = u16::MAX;
/// The fid that is none.
pub const NO_FID: u32 = u32::MAX;
/// The user id that is none.
pub const NO_USER: u32 = u32::MAX;
/// The most names of one Twalk.
pub const MOST_NAMES: usize = 16;

/// Messages' numbers that requests are told apart by before they are decoded.
pub const TVERSION: u8 = 100;
pub const TWRITE: u8 = 118;

/// A string of bytes.
pub type Text<'a> = Cow<'a, [u8]>;

/// What a file is known by: 13 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Qid {
    pub kind: u8,
    /// Changes with the file, where the server can tell.
    pub version: u32,
    /// The same for no other file.
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
    /// The tag that a reply repeats.
    pub tag: u16,
}

impl Header {
    /// The header at the front of `bytes`, `None` when it is not all there.
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
    /// Decodes what follows a Twrite's header; `size` is the whole message's.
    ///
    /// # Errors
    /// [`Malformed`] when the count is not that of the bytes that follow.
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

/// An Rread's header, for `count` bytes that are sent after it.
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
    /// What a client asks for.
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
    /// What the server answers; each has the number of its request and one.
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
    /// What a Tsetattr changes; `valid` says which fields count.
    Change {
        valid: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        size: u64,
        /// Seconds of the time of access.
        atime: u64,
        atime_nanos: u64,
        /// Seconds of the time of change.
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

/// Bits of [`Attributes::valid`]: all up to the number of blocks.
pub const BASIC_ATTRIBUTES: u64 = 0x7ff;

fields! {
    /// What an Rgetattr tells of a file.
    Attributes {
        valid: u64,
        /// What it is known by.
        qid: Qid,
        /// Kind and permission bits.
        mode: u32,
        uid: u32,
        gid: u32,
        links: u64,
        /// The device, when it is one.
        rdev: u64,
        size: u64,
        /// Bytes to read or write at a time.
        block: u64,
        /// 512-byte blocks it takes.
        blocks: u64,
        /// Seconds of the time of access.
        atime: u64,
        atime_nanos: u64,
        /// Seconds of the time of change.
        mtime: u64,
        mtime_nanos: u64,
        /// Seconds of the time of change of anything.
        ctime: u64,
        ctime_nanos: u64,
        btime: u64,
        btime_nanos: u64,
        generation: u64,
        data_version: u64,
    }
}

/// One entry of a directory: what an Rreaddir's data is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// What the file is known by.
    pub qid: Qid,
    /// Where the entry after this one is read from.
    pub next: u64,
    /// The kind as `d_type` has it.
    pub kind: u8,
    pub name: Text<'a>,
}

impl<'a> Entry<'a> {
    /// Bytes of an entry without its name.
    pub const FIXED: usize = 13 + 8 + 1 + 2;

    /// Adds the entry's bytes.
    pub fn put(&self, to: &mut Vec<u8>) {
        self.qid.put(to);
        self.next.put(to);
        self.kind.put(to);
        self.name.put(to);
    }

    /// The entries of an Rreaddir's data.
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
