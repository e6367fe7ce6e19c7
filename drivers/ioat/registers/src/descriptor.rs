//! Descriptors: 64 bytes each, linked into the chain that the device follows.
//!
//! ```text
//!          descriptor                                       extension
//! word 0   size in bytes; control word in the upper half    source 6
//! word 1   source, or the pattern of a fill                 source 7
//! word 2   destination                                      source 8
//! word 3   next descriptor                                  next descriptor
//! word 4-7 unused, or sources 2 to 5 of an XOR              unused
//! ```
//!
//! Words have 64 bits and are little-endian. An XOR of more than five sources needs a second descriptor, the extension. It
//! follows in the chain, and DMACOUNT counts it. CRC, P+Q and page breaks are not covered. Source of the layouts: Linux's
//! definitions of the hardware's structures.

use bitfield_struct::bitfield;
use core::fmt;

use crate::flags::write_set;

/// Words of 64 bits in a descriptor.
pub const WORDS: usize = 8;
/// Largest number of sources of an XOR without an extension.
pub const PLAIN_SOURCES: usize = 5;
/// Largest number of sources of an XOR.
pub const MAX_SOURCES: usize = 8;
/// Smallest number of sources of an XOR.
pub const MIN_SOURCES: usize = 2;

const _: () = assert!(WORDS as u64 * 8 == super::DESCRIPTOR_BYTES);

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Raises the interrupt when the descriptor completes.
    pub interrupt: bool,
    /// Reads of the source are not snooped.
    pub source_no_snoop: bool,
    /// Writes to the destination are not snooped.
    pub destination_no_snoop: bool,
    /// Writes the status to the completion address when the descriptor completes.
    pub completion_write: bool,
    /// The next descriptor begins only after this one's bytes are in memory.
    pub fence: bool,
    /// In a copy, bit 0 makes it move no bytes and bits 1 and 2 are page breaks. In an XOR, the number of sources minus two.
    #[bits(3)]
    pub variant: u8,
    /// Completions are bundled; unsure how.
    pub bundle: bool,
    /// Writes to the destination go into a CPU's cache.
    pub destination_dca: bool,
    /// Hint for `destination_dca`.
    pub hint: bool,
    #[bits(13)]
    __: u16,
    /// Operation; see [`opcode`].
    pub opcode: u8,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opcode {:#04x}", self.opcode())?;
        write_set(
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
    /// A copy, or a null descriptor when bit 0 of the variant is set.
    pub const COPY: u8 = 0x00;
    pub const FILL: u8 = 0x01;
    pub const XOR: u8 = 0x87;
    /// Compares an XOR with memory.
    pub const XOR_VAL: u8 = 0x88;
}

/// Bit of the variant that makes a copy a null descriptor.
const NULL: u8 = 1;

/// Addresses of the sources of an XOR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    addresses: [u64; MAX_SOURCES],
    count: u8,
}

impl Sources {
    /// Returns `None` unless there are [`MIN_SOURCES`] to [`MAX_SOURCES`] addresses.
    pub fn new(addresses: &[u64]) -> Option<Self> {
        let count = addresses.len();
        if !(MIN_SOURCES..=MAX_SOURCES).contains(&count) {
            return None;
        }
        let mut all = [0; MAX_SOURCES];
        all.iter_mut().zip(addresses).for_each(|(to, from)| *to = *from);
        Some(Self { addresses: all, count: count as u8 })
    }

    pub fn addresses(&self) -> &[u64] {
        &self.addresses[..usize::from(self.count)]
    }

    /// Whether the sources need an extension.
    pub fn is_extended(&self) -> bool {
        usize::from(self.count) > PLAIN_SOURCES
    }
}

/// Operation of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Moves no bytes and completes.
    Null,
    Copy {
        source: u64,
        destination: u64,
    },
    /// Writes a pattern repeatedly.
    Fill {
        /// Eight bytes, the first in the lowest bits. Unsure whether writing begins with the pattern's first byte or with byte
        /// `destination % 8`; the two agree when the destination is a multiple of eight.
        pattern: u64,
        destination: u64,
    },
    /// Writes the bitwise exclusive or of the sources.
    Xor {
        sources: Sources,
        destination: u64,
    },
    /// Compares the bitwise exclusive or of the sources with the bytes at `expected` and writes nothing. Where they differ, the
    /// channel reports an error of XOR ([`Chanerr`](super::Chanerr)).
    XorCheck {
        sources: Sources,
        expected: u64,
    },
}

/// A descriptor with its decoded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub size: u32,
    /// Flags. [`encode`](Self::encode) ignores opcode and variant, which follow from `body`.
    pub control: Control,
    /// Address of the next descriptor, which is the extension when there is one.
    pub next: u64,
    pub body: Body,
}

/// Reason why words cannot be decoded as a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// The opcode is not in [`opcode`].
    Opcode(u8),
    /// A copy or fill has page breaks.
    PageBreak,
    /// An XOR has nine sources.
    TooManySources,
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(code) => write!(f, "opcode {code:#04x} is not a copy, fill, XOR or check of an XOR"),
            Self::PageBreak => f.write_str("page breaks are not supported"),
            Self::TooManySources => write!(f, "an XOR has at most {MAX_SOURCES} sources"),
        }
    }
}

impl core::error::Error for Undecodable {}

impl Descriptor {
    /// Descriptors that it occupies in the chain: one, or two with an extension.
    pub fn slots(&self) -> u16 {
        match &self.body {
            Body::Xor { sources, .. } | Body::XorCheck { sources, .. } if sources.is_extended() => 2,
            _ => 1,
        }
    }

    /// Encodes the first descriptor. When an extension follows, `next` must be its address.
    pub fn encode(&self) -> [u64; WORDS] {
        let (code, variant) = match &self.body {
            Body::Null => (opcode::COPY, NULL),
            Body::Copy { .. } => (opcode::COPY, 0),
            Body::Fill { .. } => (opcode::FILL, 0),
            Body::Xor { sources, .. } => (opcode::XOR, sources.count - MIN_SOURCES as u8),
            Body::XorCheck { sources, .. } => (opcode::XOR_VAL, sources.count - MIN_SOURCES as u8),
        };
        let control = self.control.with_opcode(code).with_variant(variant);
        let mut words = [0; WORDS];
        words[0] = u64::from(self.size) | u64::from(control.into_bits()) << 32;
        words[3] = self.next;
        match &self.body {
            Body::Null => {}
            Body::Copy { source, destination } => (words[1], words[2]) = (*source, *destination),
            Body::Fill { pattern, destination } => (words[1], words[2]) = (*pattern, *destination),
            Body::Xor { sources, destination } | Body::XorCheck { sources, expected: destination } => {
                words[1] = sources.addresses[0];
                words[2] = *destination;
                words[4..].copy_from_slice(&sources.addresses[1..PLAIN_SOURCES]);
            }
        }
        words
    }

    /// Encodes the extension, with the address `next` of the descriptor after it. `None` when there is no extension.
    pub fn encode_extension(&self, next: u64) -> Option<[u64; WORDS]> {
        let (Body::Xor { sources, .. } | Body::XorCheck { sources, .. }) = &self.body else { return None };
        let rest = &sources.addresses[PLAIN_SOURCES..];
        sources.is_extended().then(|| [rest[0], rest[1], rest[2], next, 0, 0, 0, 0])
    }

    /// Decodes the first descriptor. When [`slots`](Self::slots) is 2, [`extend`](Self::extend) adds the extension.
    ///
    /// # Errors
    /// The reason why the words are not a supported descriptor.
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
            (operation @ (opcode::XOR | opcode::XOR_VAL), variant) => {
                let all = [first, words[4], words[5], words[6], words[7], 0, 0, 0];
                let count = usize::from(variant) + MIN_SOURCES;
                let addresses = all.get(..count).ok_or(Undecodable::TooManySources)?;
                let sources = Sources::new(addresses).ok_or(Undecodable::TooManySources)?;
                match operation {
                    opcode::XOR => Body::Xor { sources, destination },
                    _ => Body::XorCheck { sources, expected: destination },
                }
            }
            (other, _) => return Err(Undecodable::Opcode(other)),
        };
        Ok(Self { size, control, next: words[3], body })
    }

    /// Adds the sources of the extension and takes the next address from it. Does nothing for a descriptor without one.
    pub fn extend(&mut self, words: &[u64; WORDS]) {
        if let Body::Xor { sources, .. } | Body::XorCheck { sources, .. } = &mut self.body
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
            Body::Null => f.write_str("no operation")?,
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
            Body::XorCheck { sources, expected } => {
                write!(f, "check that {size} bytes at {expected:#x} are the xor of")?;
                sources.addresses().iter().try_for_each(|source| write!(f, " {source:#x}"))?;
            }
        }
        let control = self.control;
        write_set(
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
