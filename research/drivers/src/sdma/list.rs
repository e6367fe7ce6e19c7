//! Scatter-gather transfers: builds linked lists of descriptors, which the device loads block by block.
//!
//! ```text
//! Segment, Segment, ... ── LinkedList::build ──► words in the caller's memory, which the device must be able to read
//!        LinkedList ── Sdma::configure_list ──► Sdma::enable ──► block, block, ... ──► end of super block
//! ```
//!
//! Descriptors omit values that the device already has: an address that continues the previous block (types 2b and 3b),
//! and unchanged frames and indexes (type 3). The device starts by loading the first descriptor. Unlike linked channels,
//! a list uses only one channel (paper, 2.3.2.2). The module allocates no memory and does not check the client's rights
//! to the segments.

use core::iter::Peekable;

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::descriptor::{Body, Descriptor, Form, Header, MAX_BYTES, Next, Shape, Whole};
use memferry_registers::sdma::{AddressSource, Cdp, Cfn, Cndp, DescriptorType, Register, TransferMode};
use thiserror::Error;

use super::cache::CacheMaintenance;
use super::cause::{Cause, Interrupts};
use super::channels::Channel;
use super::config::{ChannelConfig, Element, Piece, Port, Side, TransferSize, Trusted};
use super::device::{ConfigureError, Sdma, color, control, indexes, link_control, parameters};
use super::linear::split;
use super::validate::ConfigError;

/// A contiguous part of a scatter-gather transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Physical address to read; a fill ignores it.
    pub source: u64,
    /// Physical address to write.
    pub destination: u64,
    /// Size of the segment; a multiple of the element size.
    pub length_bytes: u64,
}

impl Segment {
    /// The largest element size that divides the addresses and lengths of all segments.
    pub fn element_for(segments: &[Self]) -> Element {
        let all = segments.iter().map(|segment| segment.source | segment.destination | segment.length_bytes);
        Element::largest_dividing(all.fold(0, |bits, more| bits | more))
    }
}

/// Format of a list and the events it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Every descriptor holds all registers of the channel (type 1), not only changed values.
    pub whole: bool,
    /// Reports the end of each block, besides the end of the list.
    pub block_ends: bool,
    /// Number of the block before which the list pauses until it is resumed.
    pub pause_at: Option<u32>,
}

/// Reason why a list was not built. The contents of the buffer are undefined then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    #[error("the list has no segments: give it at least one")]
    Empty,
    /// A segment has no bytes, or ends within an element.
    #[error(
        "segment {segment} has {length_bytes} bytes: use a positive multiple of the element size of {bytes} bytes"
    )]
    Length {
        /// Index of the segment.
        segment: usize,
        length_bytes: u64,
        /// Element size in bytes.
        bytes: u32,
    },
    /// The configuration of a segment breaks a rule.
    #[error("segment {segment}: {error}")]
    Segment {
        /// Index of the segment.
        segment: usize,
        error: ConfigError,
    },
    #[error(
        "the buffer of {given} words is full after {written}, before the end of the list: use a longer buffer"
    )]
    BufferTooShort {
        /// Size of the buffer in words.
        given: usize,
        /// Number of words written before the descriptor that did not fit.
        written: usize,
    },
    /// The buffer's device address is misaligned, or its end exceeds 32 bits.
    #[error(
        "the list's address {address:#x} is unusable: use a multiple of 4, with the whole list within 32 bits"
    )]
    BufferAddress { address: u64 },
}

/// A complete list, the input of [`Sdma::configure_list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedList {
    config: ChannelConfig,
    first: Form,
    address: u32,
    descriptors: u32,
    words: usize,
}

impl LinkedList {
    /// Writes the descriptors of a list to `words`, which the device reads at `address`.
    ///
    /// `config` holds the settings common to all blocks: operation, element size, priorities, write mode,
    /// synchronization. The segments replace its sides and counts, and `options` changes its interrupts.
    ///
    /// # Errors
    /// [`ListError`]: the first segment that breaks a rule, or the problem with the buffer.
    pub fn build(
        config: &ChannelConfig,
        segments: &[Segment],
        (words, address): (&mut [u32], u64),
        options: ListOptions,
        trusted: Option<&Trusted>,
    ) -> Result<Self, ListError> {
        let bytes = config.size.element.bytes();
        for (segment, Segment { length_bytes, .. }) in segments.iter().enumerate() {
            if *length_bytes == 0 || !length_bytes.is_multiple_of(u64::from(bytes)) {
                return Err(ListError::Length { segment, length_bytes: *length_bytes, bytes });
            }
        }
        let buffer_end = address.checked_add(4 * words.len() as u64);
        if !address.is_multiple_of(4) || buffer_end.is_none_or(|end| end > Cndp::END.address().into()) {
            return Err(ListError::BufferAddress { address });
        }
        let config = ChannelConfig { interrupts: list_interrupts(config.interrupts, options), ..*config };
        let mut blocks = blocks(segments, config.size.element).peekable();
        let first = *blocks.peek().ok_or(ListError::Empty)?;
        let mut writer = Writer { config, options, words, address: address as u32, at: 0, previous: None };
        let mut descriptors = 0;
        while let Some(block) = blocks.next() {
            config
                .with_piece(block.piece)
                .validate(trusted)
                .map_err(|error| ListError::Segment { segment: block.segment, error })?;
            writer.write(descriptors, block, &mut blocks)?;
            descriptors += 1;
        }
        let config = config.with_piece(first.piece);
        let form = form_of(&config, options, None, &first);
        let words = writer.at;
        Ok(Self { config, first: form, address: address as u32, descriptors, words })
    }

    /// Number of blocks; a segment that is too long for one block has several.
    pub const fn descriptors(&self) -> u32 {
        self.descriptors
    }

    /// Size of the list in words of the buffer.
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Maintains the caches before the channel is enabled: cleans descriptors and sources, cleans and invalidates
    /// destinations. `segments` are the segments of the list.
    pub fn prepare_caches(&self, segments: &[Segment], caches: &mut impl CacheMaintenance) {
        caches.clean(self.address.into(), 4 * self.words as u64);
        for segment in segments {
            if self.config.operation.reads() && !self.config.source.is_device {
                caches.clean(segment.source, segment.length_bytes);
            }
            caches.clean_and_invalidate(segment.destination, segment.length_bytes);
        }
    }

    /// Maintains the caches after the end of the list: invalidates the destinations.
    pub fn finish_caches(&self, segments: &[Segment], caches: &mut impl CacheMaintenance) {
        for segment in segments {
            caches.invalidate(segment.destination, segment.length_bytes);
        }
    }
}

/// Adds the end of the list to a set of interrupts, and adds or removes the end of a block.
fn list_interrupts(interrupts: Interrupts, options: ListOptions) -> Interrupts {
    let interrupts = interrupts.with(Cause::EndOfSuperBlock);
    if options.block_ends {
        interrupts.with(Cause::EndOfBlock)
    } else {
        interrupts.without(Cause::EndOfBlock)
    }
}

/// Part of a segment that one descriptor moves.
#[derive(Clone, Copy)]
struct ListBlock {
    segment: usize,
    piece: Piece,
}

fn blocks(segments: &[Segment], element: Element) -> impl Iterator<Item = ListBlock> {
    let bytes = u64::from(element.bytes());
    segments.iter().enumerate().flat_map(move |(segment, part)| {
        split(part.length_bytes / bytes).map(move |block| {
            let offset = block.first_element * bytes;
            let size = TransferSize { element, elements: block.elements, frames: block.frames };
            let source = Side::memory(part.source.saturating_add(offset));
            let destination = Side::memory(part.destination.saturating_add(offset));
            ListBlock { segment, piece: Piece { size, source, destination } }
        })
    })
}

/// Form of the descriptor that a block needs after the previous block.
fn form_of(
    config: &ChannelConfig,
    options: ListOptions,
    previous: Option<&Piece>,
    block: &ListBlock,
) -> Form {
    let piece = &block.piece;
    if options.whole {
        return Form { kind: DescriptorType::Type1, source: true, destination: true };
    }
    let reads = config.operation.reads();
    let Some(previous) = previous else {
        return Form { kind: DescriptorType::Type2, source: reads, destination: true };
    };
    let bytes = previous.size.bytes();
    let source = reads && previous.source.address + bytes != piece.source.address;
    // A descriptor holds at least one address: the destination when both addresses continue the previous block.
    let destination = !source || previous.destination.address + bytes != piece.destination.address;
    let same_frames = previous.size.frames == piece.size.frames;
    let kind = if same_frames { DescriptorType::Type3 } else { DescriptorType::Type2 };
    Form { kind, source, destination }
}

const fn address_source(is_held: bool) -> AddressSource {
    if is_held { AddressSource::Reload } else { AddressSource::Continue }
}

/// Writes descriptors in sequence. Each holds the form of the next one.
struct Writer<'a> {
    config: ChannelConfig,
    options: ListOptions,
    words: &'a mut [u32],
    address: u32,
    at: usize,
    previous: Option<Piece>,
}

impl Writer<'_> {
    fn write(
        &mut self,
        number: u32,
        block: ListBlock,
        rest: &mut Peekable<impl Iterator<Item = ListBlock>>,
    ) -> Result<(), ListError> {
        let form = form_of(&self.config, self.options, self.previous.as_ref(), &block);
        let next = rest.peek().map(|next| form_of(&self.config, self.options, Some(&block.piece), next));
        let end = self.at + form.words();
        let pointer = match next {
            Some(_) => Next::new().with_address(self.address + 4 * end as u32),
            None => Next::END,
        };
        // The last descriptor has no next one. It repeats its own form, because the fields must hold a defined value.
        let announced = next.unwrap_or(form);
        let header = Header::new()
            .with_elements(block.piece.size.elements)
            .with_next_source(address_source(announced.source))
            .with_next_destination(address_source(announced.destination))
            .with_block_interrupt(form.kind == DescriptorType::Type3 && self.options.block_ends)
            .with_next_type(announced.kind);
        let config = self.config.with_piece(block.piece);
        let descriptor = Descriptor {
            next: pointer.with_pause(self.options.pause_at == Some(number)),
            header,
            source: form.source.then_some(block.piece.source.address as u32),
            destination: form.destination.then_some(block.piece.destination.address as u32),
            body: body(&config, form.kind, next.is_none()),
        };
        self.put(&descriptor, end)?;
        self.previous = Some(block.piece);
        Ok(())
    }

    /// Appends a descriptor to the buffer as bytes, because the device reads little-endian words on any processor.
    fn put(&mut self, descriptor: &Descriptor, end: usize) -> Result<(), ListError> {
        let short = ListError::BufferTooShort { given: self.words.len(), written: self.at };
        let room = self.words.get_mut(self.at..end).ok_or(short)?;
        let mut bytes = [0; MAX_BYTES];
        descriptor.encode(&mut bytes).ok_or(short)?;
        for (word, encoded) in room.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*encoded);
        }
        self.at = end;
        Ok(())
    }
}

fn body(config: &ChannelConfig, kind: DescriptorType, is_last: bool) -> Body {
    let (source_element_index, source_frame_index) = indexes(config, Port::Source);
    let (destination_element_index, destination_frame_index) = indexes(config, Port::Destination);
    let shape = Shape {
        cicr: config.interrupts.cicr(),
        cfn: Cfn::new().with_frames(config.size.frames as u16),
        source_element_index,
        destination_element_index,
        source_frame_index,
        destination_frame_index,
    };
    match kind {
        DescriptorType::Type1 => {
            // A link in an earlier block would leave the list (manual, 16.4.19), so only the last block has it.
            let link = if is_last { config.link } else { None };
            let whole = Whole {
                color: color(config),
                csdp: parameters(config),
                clnk_ctrl: link_control(link),
                ccr: control(config).with_enable(true),
            };
            Body::Type1(shape, whole)
        }
        DescriptorType::Type3 => Body::Type3,
        _ => Body::Type2(shape),
    }
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Writes a list's common configuration and the address of its first descriptor to a channel, which stays disabled.
    /// Each run needs a new configuration.
    ///
    /// # Errors
    /// [`ConfigureError`]; no register was written then.
    pub fn configure_list(
        &mut self,
        channel: &Channel,
        list: &LinkedList,
        trusted: Option<&Trusted>,
    ) -> Result<(), ConfigureError> {
        self.check_configurable(channel)?;
        if !self.has_linked_lists() {
            return Err(ConfigureError::NoLinkedLists);
        }
        list.config.validate(trusted)?;
        self.write_config(channel, &list.config);
        let parameters = Cdp::new()
            .with_transfer_mode(TransferMode::LinkedList)
            .with_fast_start(true)
            .with_next_descriptor_type(list.first.kind)
            .with_source_valid(address_source(list.first.source))
            .with_destination_valid(address_source(list.first.destination));
        // Initial values of the progress registers by the manual (16.4.19).
        self.write(channel, Register::Ccdn, 0);
        self.write(channel, Register::Ccfn, 0xffff);
        self.write(channel, Register::Ccen, 0x00ff_ffff);
        self.write(channel, Register::Cndp, Cndp::new().with_address(list.address).into_bits());
        self.write(channel, Register::Cdp, parameters.into_bits());
        self.configured |= channel.bit();
        self.lists |= channel.bit();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
