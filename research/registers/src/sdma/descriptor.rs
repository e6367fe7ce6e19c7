//! Descriptors of a linked list, which the device loads into a channel's registers between two blocks.
//!
//! ```text
//! word  type 1        type 2a       type 2b       type 3a   type 3b
//! 0     next descriptor's address [31:2], pause [0] (every type)
//! 1     type[31:29] block_ie[28] next destination[27:26] next source[25:24] CEN[23:0] (every type)
//! 2     CDSA          CDSA          CSSA or CDSA  CDSA      CSSA or CDSA
//! 3     CSSA          CSSA          CICR | CFN    CSSA
//! 4     CICR | CFN    CICR | CFN    CSEI | CDEI
//! 5     CSEI | CDEI   CSEI | CDEI   CDFI
//! 6     CDFI          CDFI          CSFI
//! 7     CSFI          CSFI
//! 8-11  COLOR, CSDP, CLNK_CTRL, CCR (type 1 only)
//! ```
//!
//! Words have 32 bits, are little-endian and aligned. Word 1 gives the type of the next descriptor and the addresses it
//! holds; for the first descriptor of a list, the channel's CDP gives both.
//!
//! Source: section 16.4 of the manual in the form of Barrelfish's register description. The positions of the two validity
//! fields of word 1 are those of the Linux driver, which runs on the device. The module does not access memory.

use super::fields::{AddressSource, DescriptorType};
use super::{Ccr, Cdp, Cen, Cfn, Cicr, ClnkCtrl, Cndp, Color, Csdp};
use bitfield_struct::bitfield;

/// Words of the longest descriptor, type 1.
pub const MAX_WORDS: usize = 12;

/// Bytes of the longest descriptor.
pub const MAX_BYTES: usize = 4 * MAX_WORDS;

/// Second word of every descriptor.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Header {
    /// Elements of a frame.
    #[bits(24)]
    pub elements: u32,
    /// Origin of the next block's source address.
    #[bits(2)]
    pub next_source: AddressSource,
    /// Origin of the next block's destination address.
    #[bits(2)]
    pub next_destination: AddressSource,
    /// Enables the end-of-block event. Only type 3 uses it; the other types hold CICR.
    pub block_interrupt: bool,
    /// Layout of the next descriptor.
    #[bits(3)]
    pub next_type: DescriptorType,
}

/// First word of every descriptor.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Next {
    /// The channel pauses once this descriptor is loaded.
    pub pause: bool,
    #[bits(1)]
    __: u8,
    /// Address of the next descriptor in words of four bytes.
    #[bits(30)]
    pub words: u32,
}

impl Next {
    /// End of the list: no descriptor follows.
    pub const END: Self = Self::from_bits(Cndp::END.into_bits());

    /// Sets the byte address of the next descriptor; drops its lower two bits.
    pub const fn with_address(self, address: u32) -> Self {
        self.with_words(address >> 2)
    }

    /// The address in the format of the channel's CNDP register.
    pub const fn pointer(self) -> Cndp {
        Cndp::new().with_words(self.words())
    }
}

/// Events, frames and indexes, which types 1 and 2 hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Events to report during the block.
    pub cicr: Cicr,
    /// Frames of the block.
    pub cfn: Cfn,
    pub source_element_index: i16,
    pub destination_element_index: i16,
    pub source_frame_index: i32,
    pub destination_frame_index: i32,
}

/// The remaining registers of the channel, which only type 1 holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub color: Color,
    /// Element size, bursts, write mode.
    pub csdp: Csdp,
    pub clnk_ctrl: ClnkCtrl,
    pub ccr: Ccr,
}

/// Part of a descriptor after the addresses, by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Type1(Shape, Whole),
    Type2(Shape),
    Type3,
}

/// A descriptor of a linked list.
///
/// When an address is absent, the validity field of the previous descriptor selects it: see [`AddressSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the next descriptor, and whether the list pauses here.
    pub next: Next,
    /// Elements of a frame, and the form of the next descriptor.
    pub header: Header,
    /// Source start address, if this descriptor holds one.
    pub source: Option<u32>,
    /// Destination start address, if this descriptor holds one.
    pub destination: Option<u32>,
    pub body: Body,
}

/// Layout of a descriptor: its type and the addresses it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Type 1, 2 or 3.
    pub kind: DescriptorType,
    /// Whether it holds a source address.
    pub source: bool,
    /// Whether it holds a destination address.
    pub destination: bool,
}

impl Form {
    /// The form of the next descriptor by the channel's CDP.
    ///
    /// `None` when the type or a validity field is undefined, and when the type does not allow the form: type 1 always
    /// holds both addresses, types 2 and 3 hold at least one.
    pub fn announced(cdp: Cdp) -> Option<Self> {
        let kind = cdp.next_descriptor_type();
        let source = cdp.source_valid();
        let destination = cdp.destination_valid();
        if source == AddressSource::Undefined || destination == AddressSource::Undefined {
            return None;
        }
        let source = source == AddressSource::Reload;
        let destination = destination == AddressSource::Reload;
        match kind {
            DescriptorType::Type1 => Some(Self { kind, source: true, destination: true }),
            DescriptorType::Type2 | DescriptorType::Type3 if source || destination => {
                Some(Self { kind, source, destination })
            }
            _ => None,
        }
    }

    /// Size of the descriptor in 32-bit words.
    pub const fn words(self) -> usize {
        let addresses = self.source as usize + self.destination as usize;
        match self.kind {
            DescriptorType::Type1 => MAX_WORDS,
            DescriptorType::Type2 => 6 + addresses,
            _ => 2 + addresses,
        }
    }

    /// Size of the descriptor in bytes.
    pub const fn bytes(self) -> usize {
        4 * self.words()
    }
}

/// Reads 32-bit words in sequence; returns zeros past the end.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take(&mut self) -> u32 {
        match self.0.split_first_chunk::<4>() {
            Some((word, rest)) => {
                self.0 = rest;
                u32::from_le_bytes(*word)
            }
            None => 0,
        }
    }
}

impl Descriptor {
    pub const fn form(&self) -> Form {
        let kind = match self.body {
            Body::Type1(..) => DescriptorType::Type1,
            Body::Type2(_) => DescriptorType::Type2,
            Body::Type3 => DescriptorType::Type3,
        };
        Form { kind, source: self.source.is_some(), destination: self.destination.is_some() }
    }

    /// Writes the descriptor to the beginning of `bytes` and returns its size in bytes.
    ///
    /// Returns `None` and writes nothing when `bytes` is too short, or when a type 1 lacks an address.
    pub fn encode(&self, bytes: &mut [u8]) -> Option<usize> {
        let both = self.source.is_some() && self.destination.is_some();
        if matches!(self.body, Body::Type1(..)) && !both {
            return None;
        }
        let length = self.form().bytes();
        let room = bytes.get_mut(..length)?;
        let mut at = 0;
        let mut put = |word: u32| {
            room[at..at + 4].copy_from_slice(&word.to_le_bytes());
            at += 4;
        };
        put(self.next.into_bits());
        put(self.header.into_bits());
        self.destination.into_iter().chain(self.source).for_each(&mut put);
        if let Body::Type1(shape, _) | Body::Type2(shape) = self.body {
            shape.words().into_iter().for_each(&mut put);
        }
        if let Body::Type1(_, whole) = self.body {
            whole.words().into_iter().for_each(&mut put);
        }
        Some(length)
    }

    /// Reads a descriptor of form `form` from the beginning of `bytes`; `None` when `bytes` is too short.
    pub fn decode(form: Form, bytes: &[u8]) -> Option<Self> {
        let mut words = Words(bytes.get(..form.bytes())?);
        let next = Next::from_bits(words.take());
        let header = Header::from_bits(words.take());
        let destination = form.destination.then(|| words.take());
        let source = form.source.then(|| words.take());
        let body = match form.kind {
            DescriptorType::Type1 => Body::Type1(Shape::take(&mut words), Whole::take(&mut words)),
            DescriptorType::Type2 => Body::Type2(Shape::take(&mut words)),
            _ => Body::Type3,
        };
        Some(Self { next, header, source, destination, body })
    }
}

impl Shape {
    fn words(&self) -> [u32; 4] {
        let element_indexes = u32::from(self.source_element_index as u16) << 16
            | u32::from(self.destination_element_index as u16);
        [
            self.cicr.into_bits() << 16 | u32::from(self.cfn.frames()),
            element_indexes,
            self.destination_frame_index as u32,
            self.source_frame_index as u32,
        ]
    }

    fn take(words: &mut Words<'_>) -> Self {
        let events = words.take();
        let indexes = words.take();
        let destination_frame_index = words.take() as i32;
        Self {
            cicr: Cicr::from_bits(events >> 16),
            cfn: Cfn::new().with_frames(events as u16),
            source_element_index: (indexes >> 16) as u16 as i16,
            destination_element_index: indexes as u16 as i16,
            source_frame_index: words.take() as i32,
            destination_frame_index,
        }
    }
}

impl Whole {
    fn words(&self) -> [u32; 4] {
        [self.color.into_bits(), self.csdp.into_bits(), self.clnk_ctrl.into_bits(), self.ccr.into_bits()]
    }

    fn take(words: &mut Words<'_>) -> Self {
        Self {
            color: Color::from_bits(words.take()),
            csdp: Csdp::from_bits(words.take()),
            clnk_ctrl: ClnkCtrl::from_bits(words.take()),
            ccr: Ccr::from_bits(words.take()),
        }
    }
}

impl Header {
    /// The number of elements in the format of the channel's CEN register.
    pub const fn cen(self) -> Cen {
        Cen::new().with_elements(self.elements())
    }
}
