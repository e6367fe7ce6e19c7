//! Operations on memory, generic over how the memory is named.
//!
//! ```text
//! Operation<Span>  ──try_map (admission)──►  Operation<Region>  ──► engine
//!        └─ visit: every operand with its side and reach
//! ```
//!
//! They are those of Wicki 2014, listings 1 and 4 (`mem_copy`, `mem_fill`, `mem_copy_2d`, `mem_fill_2d`), operations that newer
//! memory engines add (scatter-gather lists, xor, compare, CRC-32C, dual copy), and transfers driven by a device's request line,
//! which the thesis leaves out. Nothing here reads bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::geometry::{Copy2d, Count2d, Fill2d, Plane};
use crate::side::Side;
use crate::synchronized::Synchronized;

/// Maximum segments of one scatter-gather list, equal to the kernel's `IOV_MAX`.
pub const MAX_SEGMENTS: usize = 1024;
/// Maximum sources of one xor.
pub const MAX_SOURCES: usize = 64;

/// The value a fill repeats.
///
/// ```
/// use memferry_transfer::Pattern;
///
/// assert_eq!(Pattern::Half(0x1234).word_bytes(), [0x34, 0x12, 0x34, 0x12]);
/// assert_eq!(Pattern::Word(7).length_bytes(), 4);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One byte, as `memset` and `mem_fill` of Wicki 2014, listing 1.
    Byte(u8),
    /// 2 bytes, little-endian.
    Half(u16),
    /// A 24-bit colour in four bytes, little-endian, the upper eight bits zero (Wicki 2014, 2.3.2.2).
    Color(crate::geometry::Color24),
    /// 4 bytes, little-endian.
    Word(u32),
}

impl Pattern {
    /// Bytes after which the pattern repeats: 1, 2 or 4.
    pub const fn length_bytes(self) -> u64 {
        match self {
            Self::Byte(_) => 1,
            Self::Half(_) => 2,
            Self::Color(_) | Self::Word(_) => 4,
        }
    }

    /// The pattern repeated to four bytes, in memory order from the pattern's first byte.
    pub const fn word_bytes(self) -> [u8; 4] {
        match self {
            Self::Byte(value) => [value; 4],
            Self::Half(value) => {
                let [low, high] = value.to_le_bytes();
                [low, high, low, high]
            }
            Self::Color(color) => color.value().to_le_bytes(),
            Self::Word(value) => value.to_le_bytes(),
        }
    }
}

/// One piece of a scatter-gather list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<R> {
    /// Where its first byte is.
    pub place: R,
    /// Length in bytes; 0 is allowed.
    pub length: u64,
}

/// The two lists of a scatter-gather transfer. Source bytes go to destination bytes in order; the lists may be divided into
/// different segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lists<R> {
    /// Segments to read, at most [`MAX_SEGMENTS`].
    pub source: Box<[Segment<R>]>,
    /// Segments to write, with the same total of bytes.
    pub destination: Box<[Segment<R>]>,
}

impl<R> Lists<R> {
    /// Bytes of all segments of one side, saturating.
    #[inline]
    pub fn total_bytes(&self, side: Side) -> u64 {
        let list = match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        };
        list.iter().fold(0, |total, segment| total.saturating_add(segment.length))
    }
}

impl<R> Lists<R> {
    /// The same lists over memory named differently.
    fn try_map<Q, E>(&self, mut name: impl FnMut(Side, &R, u64) -> Result<Q, E>) -> Result<Lists<Q>, E> {
        let mut list = |side, segments: &[Segment<R>]| {
            // Collecting results would not know how many there are.
            let mut renamed = Vec::with_capacity(segments.len());
            for segment in segments {
                let place = name(side, &segment.place, segment.length)?;
                renamed.push(Segment { place, length: segment.length });
            }
            Ok(renamed.into_boxed_slice())
        };
        let source = list(Side::Source, &self.source)?;
        Ok(Lists { source, destination: list(Side::Destination, &self.destination)? })
    }
}

bitflags::bitflags! {
    /// A set of operation kinds, as engines announce it.
    ///
    /// ```
    /// use memferry_transfer::Operations;
    ///
    /// let announced = Operations::COPY | Operations::FILL;
    /// assert!(!announced.contains(Operations::XOR), "the engine leaves it to the CPU");
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
    #[serde(transparent)]
    pub struct Operations: u32 {
        /// [`Operation::Nop`].
        const NOP = 1;
        /// [`Operation::Copy`].
        const COPY = 1 << 1;
        /// [`Operation::Fill`].
        const FILL = 1 << 2;
        /// [`Operation::Copy2d`].
        const COPY_2D = 1 << 3;
        /// [`Operation::Fill2d`].
        const FILL_2D = 1 << 4;
        /// [`Operation::ScatterGather`].
        const SCATTER_GATHER = 1 << 5;
        /// [`Operation::Xor`].
        const XOR = 1 << 6;
        /// [`Operation::Compare`].
        const COMPARE = 1 << 7;
        /// [`Operation::Crc`].
        const CRC = 1 << 8;
        /// [`Operation::CopyCrc`].
        const COPY_CRC = 1 << 9;
        /// [`Operation::DualCopy`].
        const DUAL_COPY = 1 << 10;
        /// [`Operation::Synchronized`].
        const SYNCHRONIZED = 1 << 11;
    }
}

impl Operations {
    /// All kinds that need no device.
    pub const OF_MEMORY: Self = Self::all().difference(Self::SYNCHRONIZED);
}

/// One transfer over memory named as `R`.
///
/// Unless a variant says otherwise, a destination that overlaps a source in part gets unspecified bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<R> {
    /// Moves nothing and completes. Measures the path; with a fence, it marks the end of a batch.
    Nop,
    /// Copies `length` bytes; the ranges may overlap, as with `memmove`.
    Copy {
        /// The first byte to read.
        source: R,
        /// The first byte to write.
        destination: R,
        /// Bytes to copy; 0 is allowed.
        length: u64,
    },
    /// Repeats `pattern` over `length` bytes, a multiple of the pattern's length.
    Fill {
        /// The first byte to write.
        destination: R,
        /// Bytes to write; 0 is allowed.
        length: u64,
        /// The repeated value of 1, 2 or 4 bytes.
        pattern: Pattern,
    },
    /// Moves pixels one by one in the order of Wicki 2014, listing 3. Admission reverses the order where a picture is shifted within
    /// its memory and would overwrite what is read later, and refuses other walks that have bytes in common.
    Copy2d {
        /// The frame that is read; the shape's starts count from here.
        source: R,
        /// The frame that is written.
        destination: R,
        /// Counts, walks and the transparent colour.
        shape: Copy2d,
    },
    /// Writes one colour to pixels in the order of Wicki 2014, listing 3.
    Fill2d {
        /// The frame that is written.
        destination: R,
        /// Counts, walk and colour.
        shape: Fill2d,
    },
    /// Moves the bytes of one list of segments to another, piece by piece in order, each piece as with `memmove`. A piece ends
    /// where a segment of either side ends.
    ScatterGather {
        /// The segments of both sides, with equal totals.
        lists: Arc<Lists<R>>,
    },
    /// Byte by byte the exclusive or of all sources. The destination may be one of them; a source that overlaps it in part is
    /// refused by admission.
    Xor {
        /// From 1 to [`MAX_SOURCES`] places to read.
        sources: Box<[R]>,
        /// The first byte of the result.
        destination: R,
        /// Bytes of each source and of the result.
        length: u64,
    },
    /// Finds the first difference. The completion's value is its offset, or `length` if the ranges are equal.
    Compare {
        /// The first byte of one range.
        first: R,
        /// The first byte of the other range.
        second: R,
        /// Bytes of each range.
        length: u64,
    },
    /// Computes the CRC-32C (Castagnoli) of the source. It is the completion's value.
    Crc {
        /// The first byte to read.
        source: R,
        /// Bytes to read; 0 is allowed.
        length: u64,
        /// The CRC of the preceding bytes; 0 to begin.
        seed: u32,
    },
    /// Copies, and computes the CRC-32C of the bytes as written. It is the completion's value.
    CopyCrc {
        /// The first byte to read.
        source: R,
        /// The first byte to write; the ranges may overlap as with `Copy`.
        destination: R,
        /// Bytes to copy; 0 is allowed.
        length: u64,
        /// The CRC of the preceding bytes; 0 to begin.
        seed: u32,
    },
    /// Copies one source to two destinations. Admission refuses ranges that overlap in part.
    DualCopy {
        /// The first byte to read. The source is read once.
        source: R,
        /// The first byte to write, of each destination.
        destinations: [R; 2],
        /// Bytes of each range.
        length: u64,
    },
    /// Moves one part between a device's data register and memory for each request of the device (Wicki 2014, 2.3.2.2).
    Synchronized {
        /// The register, which is read repeatedly, or memory.
        source: R,
        /// Memory, or the register.
        destination: R,
        /// Total size, and the part moved at each request.
        shape: Synchronized,
    },
}

/// The extent of an operand from its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Consecutive bytes from the first.
    Bytes(u64),
    /// A 2-D walk that starts relative to the place.
    Walk(Plane, Count2d),
}

impl<R> Operation<R> {
    /// The operation's kind, as a set of one.
    #[inline]
    pub const fn kind(&self) -> Operations {
        match self {
            Self::Nop => Operations::NOP,
            Self::Copy { .. } => Operations::COPY,
            Self::Fill { .. } => Operations::FILL,
            Self::Copy2d { .. } => Operations::COPY_2D,
            Self::Fill2d { .. } => Operations::FILL_2D,
            Self::ScatterGather { .. } => Operations::SCATTER_GATHER,
            Self::Xor { .. } => Operations::XOR,
            Self::Compare { .. } => Operations::COMPARE,
            Self::Crc { .. } => Operations::CRC,
            Self::CopyCrc { .. } => Operations::COPY_CRC,
            Self::DualCopy { .. } => Operations::DUAL_COPY,
            Self::Synchronized { .. } => Operations::SYNCHRONIZED,
        }
    }

    /// The operation's name, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::Copy2d { .. } => "copy_2d",
            Self::Fill2d { .. } => "fill_2d",
            Self::ScatterGather { .. } => "scatter_gather",
            Self::Xor { .. } => "xor",
            Self::Compare { .. } => "compare",
            Self::Crc { .. } => "crc",
            Self::CopyCrc { .. } => "copy_crc",
            Self::DualCopy { .. } => "dual_copy",
            Self::Synchronized { .. } => "synchronized",
        }
    }

    /// Bytes the whole operation visits, saturating: of the destination, or of the source if it only reads.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Nop => 0,
            Self::Copy { length, .. }
            | Self::Fill { length, .. }
            | Self::Xor { length, .. }
            | Self::Compare { length, .. }
            | Self::Crc { length, .. }
            | Self::CopyCrc { length, .. }
            | Self::DualCopy { length, .. } => *length,
            Self::Copy2d { shape, .. } => shape.count.total_bytes(),
            Self::Fill2d { shape, .. } => shape.count.total_bytes(),
            Self::ScatterGather { lists } => lists.total_bytes(Side::Destination),
            Self::Synchronized { shape, .. } => shape.total_bytes(),
        }
    }

    /// Segments of both lists of a scatter-gather transfer; 0 of other operations.
    #[inline]
    pub fn segments(&self) -> usize {
        match self {
            Self::ScatterGather { lists } => lists.source.len() + lists.destination.len(),
            _ => 0,
        }
    }

    /// Whether any operand is as `wanted` says.
    #[inline]
    pub fn has_operand(&self, mut wanted: impl FnMut(&R) -> bool) -> bool {
        self.visit(|_, operand, _| if wanted(operand) { Err(()) } else { Ok(()) }).is_err()
    }

    /// Calls `see` for every operand with its side and reach, sources first. An operand that is read and written is seen twice,
    /// once on each side. Descriptors are checked by this.
    ///
    /// # Errors
    /// The first error of `see`.
    #[inline]
    pub fn visit<E>(&self, mut see: impl FnMut(Side, &R, Reach) -> Result<(), E>) -> Result<(), E> {
        use Side::{Destination, Source};
        match self {
            Self::Nop => Ok(()),
            Self::Copy { source, destination, length }
            | Self::CopyCrc { source, destination, length, .. } => {
                see(Source, source, Reach::Bytes(*length))?;
                see(Destination, destination, Reach::Bytes(*length))
            }
            Self::Fill { destination, length, .. } => see(Destination, destination, Reach::Bytes(*length)),
            Self::Copy2d { source, destination, shape } => {
                see(Source, source, Reach::Walk(shape.source, shape.count))?;
                see(Destination, destination, Reach::Walk(shape.destination, shape.count))
            }
            Self::Fill2d { destination, shape } => {
                see(Destination, destination, Reach::Walk(shape.destination, shape.count))
            }
            Self::ScatterGather { lists } => {
                for (side, list) in [(Source, &lists.source), (Destination, &lists.destination)] {
                    for segment in list {
                        see(side, &segment.place, Reach::Bytes(segment.length))?;
                    }
                }
                Ok(())
            }
            Self::Xor { sources, destination, length } => {
                for source in sources {
                    see(Source, source, Reach::Bytes(*length))?;
                }
                see(Destination, destination, Reach::Bytes(*length))
            }
            Self::Compare { first, second, length } => {
                see(Source, first, Reach::Bytes(*length))?;
                see(Source, second, Reach::Bytes(*length))
            }
            Self::Crc { source, length, .. } => see(Source, source, Reach::Bytes(*length)),
            Self::DualCopy { source, destinations: [one, other], length } => {
                see(Source, source, Reach::Bytes(*length))?;
                see(Destination, one, Reach::Bytes(*length))?;
                see(Destination, other, Reach::Bytes(*length))
            }
            Self::Synchronized { source, destination, shape } => {
                see(Source, source, Reach::Bytes(shape.side_bytes(Source)))?;
                see(Destination, destination, Reach::Bytes(shape.side_bytes(Destination)))
            }
        }
    }

    /// Renames the operands, in the order of [`visit`](Self::visit) and with the same sides and reaches. Admission checks rights and
    /// bounds by this. `name` returns the new name and, for a walk, its start
    /// relative to that; the number is ignored for other operands.
    ///
    /// # Errors
    /// The first error of `name`.
    #[inline]
    pub fn try_map<Q, E>(
        &self,
        mut name: impl FnMut(Side, &R, Reach) -> Result<(Q, u64), E>,
    ) -> Result<Operation<Q>, E> {
        use Side::{Destination, Source};
        let mut plain = |side, place: &R, length| Ok(name(side, place, Reach::Bytes(length))?.0);
        Ok(match self {
            Self::Nop => Operation::Nop,
            Self::Copy { source, destination, length } => Operation::Copy {
                source: plain(Source, source, *length)?,
                destination: plain(Destination, destination, *length)?,
                length: *length,
            },
            Self::Fill { destination, length, pattern } => {
                let destination = plain(Destination, destination, *length)?;
                Operation::Fill { destination, length: *length, pattern: *pattern }
            }
            Self::Copy2d { source, destination, shape } => {
                let walks = ((shape.source, shape.count), (shape.destination, shape.count));
                let (source, from) = walked(Source, source, walks.0, &mut name)?;
                let (destination, to) = walked(Destination, destination, walks.1, &mut name)?;
                let shape = Copy2d { source: from, destination: to, ..*shape };
                Operation::Copy2d { source, destination, shape }
            }
            Self::Fill2d { destination, shape } => {
                let walk = (shape.destination, shape.count);
                let (destination, to) = walked(Destination, destination, walk, &mut name)?;
                Operation::Fill2d { destination, shape: Fill2d { destination: to, ..*shape } }
            }
            Self::ScatterGather { lists } => Operation::ScatterGather { lists: lists.try_map(plain)?.into() },
            Self::Xor { sources, destination, length } => {
                let sources =
                    sources.iter().map(|source| plain(Source, source, *length)).collect::<Result<_, E>>()?;
                let destination = plain(Destination, destination, *length)?;
                Operation::Xor { sources, destination, length: *length }
            }
            Self::Compare { first, second, length } => {
                let first = plain(Source, first, *length)?;
                let second = plain(Source, second, *length)?;
                Operation::Compare { first, second, length: *length }
            }
            Self::Crc { source, length, seed } => {
                Operation::Crc { source: plain(Source, source, *length)?, length: *length, seed: *seed }
            }
            Self::CopyCrc { source, destination, length, seed } => {
                let source = plain(Source, source, *length)?;
                let destination = plain(Destination, destination, *length)?;
                Operation::CopyCrc { source, destination, length: *length, seed: *seed }
            }
            Self::DualCopy { source, destinations: [one, other], length } => {
                let source = plain(Source, source, *length)?;
                let destinations = [plain(Destination, one, *length)?, plain(Destination, other, *length)?];
                Operation::DualCopy { source, destinations, length: *length }
            }
            Self::Synchronized { source, destination, shape } => {
                let source = plain(Source, source, shape.side_bytes(Source))?;
                let destination = plain(Destination, destination, shape.side_bytes(Destination))?;
                Operation::Synchronized { source, destination, shape: *shape }
            }
        })
    }
}

/// Renames the operand of a walk, and moves the walk's start.
#[inline]
fn walked<R, Q, E>(
    side: Side,
    place: &R,
    (plane, count): (Plane, Count2d),
    name: &mut impl FnMut(Side, &R, Reach) -> Result<(Q, u64), E>,
) -> Result<(Q, Plane), E> {
    let (place, start) = name(side, place, Reach::Walk(plane, count))?;
    Ok((place, Plane { start, ..plane }))
}
