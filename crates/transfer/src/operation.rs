//! Operations: what is to be done with memory, whatever names it.
//!
//! ```text
//! Operation<Span>  ──try_map (admission)──►  Operation<Region>  ──► engine
//!        └─ visit: every operand with its side and how far it reaches
//! ```
//!
//! Those of Wicki 2014, listings 1 and 4 (`mem_copy`, `mem_fill`, `mem_copy_2d`, `mem_fill_2d`), and what memory engines
//! of later years add: scatter-gather lists, xor, compare, CRC-32C, dual copy; and what the thesis left to others,
//! transfers that a device's request line drives. Nothing here looks at bytes.

use alloc::boxed::Box;

use crate::geometry::{Copy2d, Count2d, Fill2d, Plane};
use crate::side::Side;
use crate::synchronized::Synchronized;

/// Segments of one scatter-gather list at most, as the kernel's `IOV_MAX`.
pub const MAX_SEGMENTS: usize = 1024;
/// Sources of one xor at most.
pub const MAX_SOURCES: usize = 64;

/// The value a fill repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One byte, as `memset` and `mem_fill` of Wicki 2014, listing 1.
    Byte(u8),
    /// Two bytes, little-endian.
    Half(u16),
    /// A 24-bit colour in four bytes, little-endian, the upper eight bits zero (Wicki 2014, 2.3.2.2).
    Color(crate::geometry::Color24),
    /// Four bytes, little-endian.
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

    /// The pattern repeated to four bytes, as they lie in memory from an address where the pattern begins.
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
    /// Where it begins.
    pub place: R,
    /// Its bytes; none is allowed.
    pub length: u64,
}

/// The two lists of a scatter-gather transfer: the bytes of one, in order, go to those of the other, in order. They may
/// be cut differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lists<R> {
    /// What is read.
    pub source: Box<[Segment<R>]>,
    /// What is written; as many bytes in all.
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
            let renamed = segments.iter().map(|segment| {
                let place = name(side, &segment.place, segment.length)?;
                Ok(Segment { place, length: segment.length })
            });
            renamed.collect::<Result<Box<[_]>, E>>()
        };
        let source = list(Side::Source, &self.source)?;
        Ok(Lists { source, destination: list(Side::Destination, &self.destination)? })
    }
}

bitflags::bitflags! {
    /// Kinds of operations, as engines announce them.
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
        /// All that need nothing but memory.
        const OF_MEMORY = Self::SYNCHRONIZED.bits() - 1;
    }
}

/// One transfer over memory named as `R`.
///
/// Where nothing else is said, a destination that overlaps a source in part gets unspecified bytes within itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<R> {
    /// Moves nothing; completes. Measures the path, and with a fence ends a batch.
    Nop,
    /// Copies `length` bytes; the ranges may overlap, as with `memmove`.
    Copy {
        /// Where bytes are read.
        source: R,
        /// Where they go.
        destination: R,
        /// How many.
        length: u64,
    },
    /// Repeats `pattern` over `length` bytes, a multiple of the pattern's length.
    Fill {
        /// Where the first byte goes.
        destination: R,
        /// How many bytes.
        length: u64,
        /// What is repeated.
        pattern: Pattern,
    },
    /// Moves pixels one by one in the order of Wicki 2014, listing 3.
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
    /// Moves the bytes of one list of segments to those of another, piece by piece in order, each piece as with
    /// `memmove`: a piece is as long as the segment of either side that ends first.
    ScatterGather {
        /// The lists.
        lists: Box<Lists<R>>,
    },
    /// Byte by byte the exclusive or of all sources. The destination may be one of them; a source that overlaps it in part is
    /// refused by admission.
    Xor {
        /// What is read, from 1 to [`MAX_SOURCES`] places of `length` bytes.
        sources: Box<[R]>,
        /// Where the result goes.
        destination: R,
        /// Bytes of each.
        length: u64,
    },
    /// Finds the first difference. The completion's value is its offset, or `length` when there is none.
    Compare {
        /// What is read.
        first: R,
        /// And what it is compared with.
        second: R,
        /// How many bytes.
        length: u64,
    },
    /// Computes the CRC-32C (Castagnoli) of the source; the completion's value.
    Crc {
        /// What is read.
        source: R,
        /// How many bytes.
        length: u64,
        /// The CRC of what came before, 0 to begin.
        seed: u32,
    },
    /// Copies, and computes the CRC-32C of the bytes as they were written; the completion's value.
    CopyCrc {
        /// Where bytes are read.
        source: R,
        /// Where they go; may overlap as with `Copy`.
        destination: R,
        /// How many.
        length: u64,
        /// The CRC of what came before, 0 to begin.
        seed: u32,
    },
    /// Copies one source to two destinations.
    DualCopy {
        /// Where bytes are read, once.
        source: R,
        /// Where they go.
        destinations: [R; 2],
        /// How many.
        length: u64,
    },
    /// Moves a part between a device's data register and memory each time the device asks (Wicki 2014, 2.3.2.2).
    Synchronized {
        /// Where elements are read: the register, again and again, or memory.
        source: R,
        /// Where they go: memory, or the register.
        destination: R,
        /// How much, and how much at each request.
        shape: Synchronized,
    },
}

/// How far an operand reaches from its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// That many bytes from its first.
    Bytes(u64),
    /// A walk.
    Walk(Plane, Count2d),
}

impl<R> Operation<R> {
    /// Its kind.
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

    /// Bytes the whole operation visits, saturating: of destination memory, or of source memory where it only reads.
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

    /// Shows every operand with its side and reach, sources first.
    ///
    /// # Errors
    /// The first that `see` gives.
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

    /// The same operation over memory named differently, operands in the order of [`visit`](Self::visit). `name` gives the
    /// new name and, for a walk, where it starts from there; the number is ignored for others.
    ///
    /// # Errors
    /// The first that `name` gives.
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

/// The new name of an operand that is walked, and its walk from there.
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
