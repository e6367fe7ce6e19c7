//! A recording: counts of the copies that programs make, in one fixed-size table in shared memory.
//!
//! ```text
//! memferry profile ─ create ─► sealed memfd ─ its path in the environment ─► open, in each program that is started
//!   a copy ─► Kind: operation, size class, alignment, distance, caller ─► one word: the row's key
//!          ─► hash ─► row found or claimed by one exchange ─► add to calls, bytes, ticks     (no room: counted as left out)
//!   the caller's object ─► its name, stored once in a table of names
//! memferry profile ─ read ─► each word once, then checked ─► Recording
//! ```
//!
//! Counting takes no lock, allocates nothing and makes no system call; it uses atomic additions. Any recording process may
//! write anything at any time, so the reader trusts no word. Function names are not resolved here, and the counts are not
//! interpreted.

#![expect(unsafe_code, reason = "the processor's clock")]

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, SealFlags};
use thiserror::Error;

use memferry_shm::frame::{self, AllocateError};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::storage::{MappedWords, RingStorage};

/// Environment variable with the path of the recording.
pub const VARIABLE: &str = "MEMFERRY_RECORDING";

/// The memfd's name, visible in `/proc`; distinguishes it if a descriptor number was reused.
const NAME: &str = "memferry-recording";
/// First word; the last byte is the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"mfrecor\x01");
const PROCESSES: usize = 1;
const LEFT_OUT_CALLS: usize = 2;
const LEFT_OUT_BYTES: usize = 3;

/// Entries of the name table: a hash, the name's length, the name or its end.
const OBJECTS: usize = if cfg!(miri) { 1 << 5 } else { 1 << 10 };
const OBJECTS_AT: usize = 8;
const OBJECT_WORDS: usize = 32;
const NAME_AT: usize = 2;
/// Longest name that is stored completely.
pub const LONGEST_NAME: usize = (OBJECT_WORDS - NAME_AT) * 8;

/// Rows: key, calls, bytes, ticks. Fewer under Miri, which would take minutes.
const ROW_BITS: u32 = if cfg!(miri) { 6 } else { 17 };
const ROWS: usize = 1 << ROW_BITS;
const ROWS_AT: usize = OBJECTS_AT + OBJECTS * OBJECT_WORDS;
const ROW_WORDS: usize = 4;
const WORDS: usize = ROWS_AT + ROWS * ROW_WORDS;
/// Maximum slots probed before a call is counted as left out.
const PROBES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Operation {
    Memcpy,
    Memmove,
    Mempcpy,
    /// `memset` to a nonzero value.
    Memset,
    Zero,
}

/// Alignment of a call's addresses; `memset` has only one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Alignment {
    /// Multiples of a cache line.
    Lines,
    /// Multiples of eight bytes.
    Words,
    /// Unaligned, but congruent modulo eight.
    Alike,
    Apart,
}

impl Alignment {
    /// Alignment of two addresses; of one if both are the same.
    pub fn of(to: usize, from: usize) -> Self {
        match (to | from, to ^ from) {
            (both, _) if both.is_multiple_of(64) => Self::Lines,
            (both, _) if both.is_multiple_of(8) => Self::Words,
            (_, difference) if difference.is_multiple_of(8) && difference != 0 => Self::Alike,
            _ => Self::Apart,
        }
    }
}

/// Which side was uncached, estimated from the time of a few loads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// Too short to measure, or not measurable.
    Unknown,
    Near,
    /// Only the source was uncached.
    SourceFar,
    /// Only the destination was uncached.
    DestinationFar,
    Far,
}

impl Distance {
    /// Combines the results of both sides.
    pub fn of(source_far: bool, destination_far: bool) -> Self {
        match (source_far, destination_far) {
            (false, false) => Self::Near,
            (true, false) => Self::SourceFar,
            (false, true) => Self::DestinationFar,
            (true, true) => Self::Far,
        }
    }
}

const OPERATIONS: [Operation; 5] =
    [Operation::Memcpy, Operation::Memmove, Operation::Mempcpy, Operation::Memset, Operation::Zero];
const ALIGNMENTS: [Alignment; 4] = [Alignment::Lines, Alignment::Words, Alignment::Alike, Alignment::Apart];
const DISTANCES: [Distance; 5] =
    [Distance::Unknown, Distance::Near, Distance::SourceFar, Distance::DestinationFar, Distance::Far];

/// Index of a name in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(u16);

impl ObjectId {
    /// Index in [`Recording::objects`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Origin of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Caller {
    /// The file that contains the caller.
    pub object: ObjectId,
    /// The return address, relative to the file's load address.
    pub address: u64,
}

/// The key of a row: calls that differ in any of these are counted separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind {
    pub operation: Operation,
    /// Class of the length; see [`size_class`].
    pub size_class: u8,
    /// Alignment of the addresses.
    pub alignment: Alignment,
    /// Which sides were uncached.
    pub distance: Distance,
    /// The caller; `None` for code outside any file.
    pub caller: Option<Caller>,
}

/// The class of a length: zero for zero, else `k` for lengths from 2^(k-1) to 2^k - 1.
pub fn size_class(bytes: u64) -> u8 {
    (u64::BITS - bytes.leading_zeros()) as u8
}

/// The minimum length of a class; classes range from 0 to 64.
pub fn shortest_of(class: u8) -> u64 {
    if class == 0 { 0 } else { 1 << (class - 1).min(63) }
}

const ADDRESS_BITS: u32 = 37;

impl Kind {
    /// Encodes the kind in one nonzero word. A caller with an implausibly large address is dropped.
    fn key(self) -> u64 {
        let caller = self.caller.filter(|caller| caller.address >> ADDRESS_BITS == 0);
        let (object, address) =
            caller.map_or((0, 0), |caller| (u64::from(caller.object.0) + 1, caller.address));
        let parts = [
            (3, self.operation as u64),
            (7, u64::from(self.size_class)),
            (2, self.alignment as u64),
            (3, self.distance as u64),
            (11, object),
            (ADDRESS_BITS, address),
        ];
        parts.into_iter().fold(1, |key, (bits, value)| key << bits | value & ((1 << bits) - 1))
    }

    /// Decodes a key; `None` for a word that `key` never returns.
    fn of_key(mut key: u64) -> Option<Self> {
        let mut part = |bits: u32| {
            let value = key & ((1 << bits) - 1);
            key >>= bits;
            value
        };
        let address = part(ADDRESS_BITS);
        let object = part(11);
        let distance = part(3);
        let alignment = part(2);
        let size_class = part(7);
        let operation = part(3);
        let caller = match usize::try_from(object).ok()?.checked_sub(1) {
            None if address != 0 => return None,
            None => None,
            Some(index) if index >= OBJECTS => return None,
            Some(index) => Some(Caller { object: ObjectId(index as u16), address }),
        };
        let kind = Self {
            operation: *OPERATIONS.get(operation as usize)?,
            size_class: u8::try_from(size_class).ok().filter(|class| *class <= 64)?,
            alignment: *ALIGNMENTS.get(alignment as usize)?,
            distance: *DISTANCES.get(distance as usize)?,
            caller,
        };
        (key == 1).then_some(kind)
    }
}

/// The counting side of a recording.
#[derive(Debug)]
pub struct Recorder<S>(S);

impl<S: RingStorage> Recorder<S> {
    /// Counts in these words; `None` if they are not a recording.
    pub fn new(words: S) -> Option<Self> {
        let fits = words.words() >= WORDS && words.word(0).load(Ordering::Relaxed) == MAGIC;
        fits.then_some(Self(words))
    }

    /// Counts a started program.
    pub fn count_process(&self) {
        self.0.word(PROCESSES).fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self, kind: Kind, bytes: u64, ticks: u64) {
        let key = kind.key();
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ROW_BITS)) as usize;
        for _ in 0..PROBES {
            let row = self.0.slice(ROWS_AT + at * ROW_WORDS, ROW_WORDS);
            if is_or_becomes(&row[0], key) {
                row[1].fetch_add(1, Ordering::Relaxed);
                row[2].fetch_add(bytes, Ordering::Relaxed);
                if ticks != 0 {
                    row[3].fetch_add(ticks, Ordering::Relaxed);
                }
                return;
            }
            at = (at + 1) % ROWS;
        }
        self.0.word(LEFT_OUT_CALLS).fetch_add(1, Ordering::Relaxed);
        self.0.word(LEFT_OUT_BYTES).fetch_add(bytes, Ordering::Relaxed);
    }

    /// The number of a file name; `None` if the table is full.
    pub fn object(&self, name: &[u8]) -> Option<ObjectId> {
        let hash = hash_of(name);
        let mut at = hash as usize % OBJECTS;
        for _ in 0..PROBES {
            let slot = self.0.slice(OBJECTS_AT + at * OBJECT_WORDS, OBJECT_WORDS);
            let found = slot[0].load(Ordering::Relaxed);
            // The process that claims the slot writes the name; others use the slot even before the name is written.
            if found == hash {
                return Some(ObjectId(at as u16));
            }
            if found == 0 {
                match slot[0].compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => write_name(slot, name),
                    Err(other) if other == hash => {}
                    Err(_) => {
                        at = (at + 1) % OBJECTS;
                        continue;
                    }
                }
                return Some(ObjectId(at as u16));
            }
            at = (at + 1) % OBJECTS;
        }
        None
    }
}

#[inline]
fn is_or_becomes(word: &AtomicU64, key: u64) -> bool {
    let mut found = word.load(Ordering::Relaxed);
    if found == 0 {
        found =
            word.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|is| is, |_| key);
    }
    found == key
}

/// Hashes eight bytes at a time, since it runs at each call; never zero.
fn hash_of(name: &[u8]) -> u64 {
    let mut hash = name.len() as u64;
    for piece in name.chunks(8) {
        hash = (hash ^ word_of(piece)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash | 1
}

/// A word from up to eight bytes, without calling a function that might be recorded.
fn word_of(piece: &[u8]) -> u64 {
    piece.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn write_name(slot: &[AtomicU64], name: &[u8]) {
    let end = &name[name.len().saturating_sub(LONGEST_NAME)..];
    for (word, piece) in slot[NAME_AT..].iter().zip(end.chunks(8)) {
        word.store(word_of(piece), Ordering::Relaxed);
    }
    slot[1].store(name.len() as u64, Ordering::Release);
}

/// A row of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub kind: Kind,
    pub calls: u64,
    /// Total bytes of the calls.
    pub bytes: u64,
    /// Total ticks of the timed calls.
    pub ticks: u64,
}

/// A file name from the recording; its content is not trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// The name, or its last [`LONGEST_NAME`] bytes.
    pub name: Vec<u8>,
    /// Whether the name is complete.
    pub is_whole: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// Programs started with the recorder.
    pub processes: u64,
    /// Calls not counted for lack of room.
    pub left_out_calls: u64,
    pub left_out_bytes: u64,
    /// Rows that no correct recorder can have written.
    pub nonsense_rows: usize,
    /// The counted rows, unordered.
    pub rows: Vec<Row>,
    /// File names by number; `None` for unused numbers.
    pub objects: Vec<Option<Object>>,
}

impl Recording {
    /// The file of a number; `None` if it has no name.
    pub fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id.index())?.as_ref()
    }
}

/// Why words are not a valid recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    #[error("{words} words are too few for a recording, which has {WORDS}")]
    TooShort {
        /// Number of words found.
        words: usize,
    },
    /// The first word was overwritten.
    #[error("the recording starts with {found:#x} instead of {MAGIC:#x}: the program wrote into it")]
    Overwritten { found: u64 },
}

/// Reads a recording, each word once. Calls counted concurrently may be included in part.
///
/// # Errors
/// [`ReadError`].
pub fn read(words: &impl RingStorage) -> Result<Recording, ReadError> {
    if words.words() < WORDS {
        return Err(ReadError::TooShort { words: words.words() });
    }
    let load = |index: usize| words.word(index).load(Ordering::Acquire);
    let found = load(0);
    if found != MAGIC {
        return Err(ReadError::Overwritten { found });
    }
    let mut recording = Recording {
        processes: load(PROCESSES),
        left_out_calls: load(LEFT_OUT_CALLS),
        left_out_bytes: load(LEFT_OUT_BYTES),
        objects: (0..OBJECTS)
            .map(|at| read_object(words.slice(OBJECTS_AT + at * OBJECT_WORDS, OBJECT_WORDS)))
            .collect(),
        ..Recording::default()
    };
    for at in 0..ROWS {
        let row = words.slice(ROWS_AT + at * ROW_WORDS, ROW_WORDS);
        let [key, calls, bytes, ticks] = [0, 1, 2, 3].map(|word: usize| row[word].load(Ordering::Relaxed));
        match Kind::of_key(key) {
            Some(kind) => recording.rows.push(Row { kind, calls, bytes, ticks }),
            None => recording.nonsense_rows += usize::from(key != 0),
        }
    }
    Ok(recording)
}

fn read_object(slot: &[AtomicU64]) -> Option<Object> {
    let length = usize::try_from(slot[1].load(Ordering::Acquire)).unwrap_or(usize::MAX);
    let mut name: Vec<u8> =
        slot[NAME_AT..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    name.truncate(length);
    (length > 0).then_some(Object { name, is_whole: length <= LONGEST_NAME })
}

/// Creates an empty recording; returns its descriptor and its words.
///
/// # Errors
/// [`AllocateError`].
pub fn create() -> Result<(OwnedFd, MappedWords), AllocateError> {
    let length = (WORDS * size_of::<u64>()) as u64;
    let (descriptor, mapping) = frame::allocate_sealed_named(NAME, length, true)?;
    let words = MappedWords::new(mapping).ok_or(AllocateError::Empty)?;
    words.word(0).store(MAGIC, Ordering::Release);
    Ok((descriptor, words))
}

/// Path by which processes of the same user can open this recording while this process keeps the descriptor.
pub fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}

/// Opens the recording at a path from [`path_of`]. Checks that it is a recording, since the process id may have been
/// reused.
///
/// # Errors
/// File system errors; `InvalidData` if the file is not a recording.
pub fn open(path: &OsStr) -> io::Result<Recorder<MappedWords>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let is_ours =
        |target: &Path| target.as_os_str().as_bytes().starts_with(format!("/memfd:{NAME}").as_bytes());
    if !is_ours(&std::fs::read_link(path)?) {
        return Err(invalid());
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
    let sealed = rustix::fs::fcntl_get_seals(&descriptor)?.contains(SealFlags::SHRINK | SealFlags::SEAL);
    let size = usize::try_from(rustix::fs::fstat(&descriptor)?.st_size).unwrap_or(0);
    if !sealed || size < WORDS * size_of::<u64>() {
        return Err(invalid());
    }
    let mapping = Mapping::shared(descriptor.as_fd(), size, Access::ReadWrite, rustix::param::page_size())?;
    MappedWords::new(mapping).and_then(Recorder::new).ok_or_else(invalid)
}

/// The CPU's steady counter, the unit of time in rows; `None` without such a counter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub fn ticks() -> Option<u64> {
    // SAFETY: the counter is part of x86-64; a process in which it is forbidden must not call this.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// The CPU's steady counter, the unit of time in rows; `None` without such a counter.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
pub fn ticks() -> Option<u64> {
    let now: u64;
    // SAFETY: Linux lets every process read the virtual counter; no memory is accessed.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) now, options(nomem, nostack)) };
    Some(now)
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests;
