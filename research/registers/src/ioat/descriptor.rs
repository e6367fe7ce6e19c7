//! Descriptors: 64 bytes each, in a chain that the device follows by itself.
//!
//! ```text
//! word 0   size in bytes, and in the upper half the control word         of an extension   source 6
//! word 1   source, or a fill's pattern                                                     source 7
//! word 2   destination                                                                     source 8
//! word 3   next descriptor                                                                 next descriptor
//! word 4-7 unused, or an XOR's sources 2 to 5
//! ```
//!
//! Words are of 64 bits, little-endian. An XOR of more than five sources takes a second descriptor, its extension, which follows it
//! in the chain and counts as one more. CRC, P+Q and page breaks are left out. Layouts: Linux's definitions of the
//! hardware's structures.

use bitfield_struct::bitfield;
use core::fmt;

use super::general::words;

/// Words of a descriptor.
pub const WORDS: usize = 8;
/// Sources that an XOR has without an extension.
pub const PLAIN_SOURCES: usize = 5;
/// Sources that an XOR has at most.
pub const MOST_SOURCES: usize = 8;
/// Sources that an XOR has at least.
pub const LEAST_SOURCES: usize = 2;

const _: () = assert!(WORDS as u64 * 8 == super::DESCRIPTOR_BYTES);

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Interrupt when it is done.
    pub interrupt: bool,
    /// The source's cache lines are not snooped for.
    pub source_no_snoop: bool,
    /// The destination's cache lines are not snooped for.
    pub destination_no_snoop: bool,
    /// Write the status to the completion address when it is done.
    pub completion_write: bool,
    /// The next descriptor begins after this one's bytes are in memory.
    pub fence: bool,
    /// Of a copy: bit 0 makes it move nothing, bits 1 and 2 are page breaks. Of an XOR: its sources less two.
    #[bits(3)]
    pub variant: u8,
    /// Completions are put together; unsure how.
    pub bundle: bool,
    /// The destination goes to a CPU's cache.
    pub destination_dca: bool,
    /// A hint for that.
    pub hint: bool,
    #[bits(13)]
    __: u16,
    /// What is done; see [`opcode`].
    pub opcode: u8,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opcode {:#04x}", self.opcode())?;
        words(
            f,
            &[
                (self.interrupt(), ", interrupts"),
                (self.completion_write(), ", writes its completion"),
                (self.fence(), ", fence"),
                (self.source_no_snoop(), ", source not snooped"),
                (self.destination_no_snoop(), ", destination not snooped"),
                (self.bundle(), ", bundled"),
                (self.destination_dca(), ", into a cache"),
                (self.hint(), ", hint"),
            ],
        )
    }
}

/// Values of the control word's opcode.
pub mod opcode {
    /// A copy, or nothing.
    pub const COPY: u8 = 0x00;
    pub const FILL: u8 = 0x01;
    pub const XOR: u8 = 0x87;
}

/// Bit of the variant that makes a copy move nothing.
const NULL: u8 = 1;

/// Where an XOR's sources are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    addresses: [u64; MOST_SOURCES],
    count: u8,
}

impl Sources {
    /// These, when an XOR may have so many.
    pub fn new(addresses: &[u64]) -> Option<Self> {
        let count = addresses.len();
        if !(LEAST_SOURCES..=MOST_SOURCES).contains(&count) {
            return None;
        }
        let mut all = [0; MOST_SOURCES];
        all.iter_mut().zip(addresses).for_each(|(to, from)| *to = *from);
        Some(Self { addresses: all, count: count as u8 })
    }

    pub fn addresses(&self) -> &[u64] {
        &self.addresses[..usize::from(self.count)]
    }

    /// Whether they need an extension.
    pub fn is_extended(&self) -> bool {
        usize::from(self.count) > PLAIN_SOURCES
    }
}

/// What a descriptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing but to complete.
    Null,
    Copy {
        source: u64,
        destination: u64,
    },
    /// Writes a pattern again and again.
    Fill {
        /// Eight bytes, the first in the lowest bits. Whether the first byte written is the pattern's first, or the one that the
        /// address says, is unsure: they agree where the destination is a multiple of eight.
        pattern: u64,
        destination: u64,
    },
    /// Writes the exclusive or of its sources.
    Xor {
        sources: Sources,
        destination: u64,
    },
}

/// A descriptor, without its extension's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub size: u32,
    /// Flags; opcode and variant are the body's and ignored when it is encoded.
    pub control: Control,
    /// Address of the next one.
    pub next: u64,
    pub body: Body,
}

/// Why words are no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// The opcode is none of these.
    Opcode(u8),
    /// A copy with page breaks.
    PageBreak,
    /// An XOR of nine sources.
    TooManySources,
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(code) => write!(f, "opcode {code:#04x} is not a copy, fill or XOR"),
            Self::PageBreak => f.write_str("page breaks are left out"),
            Self::TooManySources => write!(f, "an XOR has at most {MOST_SOURCES} sources"),
        }
    }
}

impl core::error::Error for Undecodable {}

impl Descriptor {
    /// Descriptors that it takes in the chain.
    pub fn slots(&self) -> u16 {
        match &self.body {
            Body::Xor { sources, .. } if sources.is_extended() => 2,
            _ => 1,
        }
    }

    /// Its words. `next` of a descriptor with an extension is the extension's address.
    pub fn encode(&self) -> [u64; WORDS] {
        let (code, variant) = match &self.body {
            Body::Null => (opcode::COPY, NULL),
            Body::Copy { .. } => (opcode::COPY, 0),
            Body::Fill { .. } => (opcode::FILL, 0),
            Body::Xor { sources, .. } => (opcode::XOR, sources.count - LEAST_SOURCES as u8),
        };
        let control = self.control.with_opcode(code).with_variant(variant);
        let mut words = [0; WORDS];
        words[0] = u64::from(self.size) | u64::from(control.into_bits()) << 32;
        words[3] = self.next;
        match &self.body {
            Body::Null => {}
            Body::Copy { source, destination } => (words[1], words[2]) = (*source, *destination),
            Body::Fill { pattern, destination } => (words[1], words[2]) = (*pattern, *destination),
            Body::Xor { sources, destination } => {
                words[1] = sources.addresses[0];
                words[2] = *destination;
                words[4..].copy_from_slice(&sources.addresses[1..PLAIN_SOURCES]);
            }
        }
        words
    }

    /// The words of its extension, whose next descriptor is at `next`; `None` when it has none.
    pub fn encode_extension(&self, next: u64) -> Option<[u64; WORDS]> {
        let Body::Xor { sources, .. } = &self.body else { return None };
        let rest = &sources.addresses[PLAIN_SOURCES..];
        sources.is_extended().then(|| [rest[0], rest[1], rest[2], next, 0, 0, 0, 0])
    }

    /// What words say, without the extension that [`slots`](Self::slots) may ask for.
    ///
    /// # Errors
    /// [`Undecodable`].
    pub fn decode(words: &[u64; WORDS]) -> Result<Self, Undecodable> {
        let size = words[0] as u32;
        let control = Control::from_bits((words[0] >> 32) as u32);
        let first = words[1];
        let destination = words[2];
        let body = match (control.opcode(), control.variant()) {
            (opcode::COPY, 0) => Body::Copy { source: first, destination },
            (opcode::COPY, NULL) => Body::Null,
            (opcode::COPY, _) => return Err(Undecodable::PageBreak),
            (opcode::FILL, 0) => Body::Fill { pattern: first, destination },
            (opcode::FILL, _) => return Err(Undecodable::PageBreak),
            (opcode::XOR, variant) => {
                let all = [first, words[4], words[5], words[6], words[7], 0, 0, 0];
                let count = usize::from(variant) + LEAST_SOURCES;
                let addresses = all.get(..count).ok_or(Undecodable::TooManySources)?;
                let sources = Sources::new(addresses).ok_or(Undecodable::TooManySources)?;
                Body::Xor { sources, destination }
            }
            (other, _) => return Err(Undecodable::Opcode(other)),
        };
        Ok(Self { size, control, next: words[3], body })
    }

    /// Takes the sources that an extension's words hold, and the address of what follows it. Nothing where none is expected.
    pub fn extend(&mut self, words: &[u64; WORDS]) {
        if let Body::Xor { sources, .. } = &mut self.body
            && sources.is_extended()
        {
            sources.addresses[PLAIN_SOURCES..].copy_from_slice(&words[..3]);
            for unused in &mut sources.addresses[usize::from(sources.count)..] {
                *unused = 0;
            }
            self.next = words[3];
        }
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size;
        match &self.body {
            Body::Null => f.write_str("nothing")?,
            Body::Copy { source, destination } => {
                write!(f, "copy {size} bytes from {source:#x} to {destination:#x}")?;
            }
            Body::Fill { pattern, destination } => {
                write!(f, "fill {size} bytes at {destination:#x} with {pattern:#018x}")?;
            }
            Body::Xor { sources, destination } => {
                write!(f, "xor {size} bytes of")?;
                sources.addresses().iter().try_for_each(|source| write!(f, " {source:#x}"))?;
                write!(f, " to {destination:#x}")?;
            }
        }
        let control = self.control;
        words(
            f,
            &[
                (control.interrupt(), ", interrupts"),
                (control.completion_write(), ", writes its completion"),
                (control.fence(), ", fence"),
            ],
        )?;
        write!(f, ", next {:#x}", self.next)
    }
}
