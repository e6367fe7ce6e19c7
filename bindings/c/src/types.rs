//! The structures and enumerations of the C interface, and what they are in Rust.
//!
//! ```text
//! mf_range, mf_terms, mf_shape_2d, mf_image ─► Fault or FrameRange, Transfer's terms, Copy2d, Image
//! Completion ─► mf_completion
//! ```
//!
//! Plain data only. Layouts are part of the interface: `tests/layouts.rs` has C compilers compare them with the header's.

use std::time::Duration;

use memferry::{
    CacheHint, Color24, Completion, Copy2d, Count2d, EngineKind, Failure, Image, PixelSize, Plane,
    PriorityClass, Queue, Side, Ticket, Transfer, Turn,
};

use crate::error::{Fault, mf_error};

/// The version of this interface, as MF_MAKE_VERSION(major, minor). A library serves programs that were compiled with the same
/// major and a minor that is not later.
pub const MF_VERSION: u32 = 1;

/// As the length of a range: to the end of its frame.
pub const MF_TO_END: u64 = u64::MAX;

/// As a limit: wait for as long as it takes. Any other negative limit is 0: a look, without waiting.
pub const MF_FOREVER: i64 = -1;

/// A session with a service. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_client {
    /// Not an address. Means nothing to a program.
    pub id: u64,
}

/// Memory that the service may move bytes in. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_frame {
    /// Not an address. Means nothing to a program.
    pub id: u64,
}

/// An ordered stream of transfers. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_queue {
    /// Not an address. Means nothing to a program.
    pub id: u64,
}

/// An order of asynchronous copies between plain pointers. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_copier {
    /// Not an address. Means nothing to a program.
    pub id: u64,
}

/// Names one submitted transfer of one queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_ticket {
    /// Means nothing to a program.
    pub tag: u64,
    /// Means nothing to a program.
    pub queue: u64,
}

/// A range of a frame.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_range {
    /// The frame.
    pub frame: mf_frame,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes, or MF_TO_END.
    pub length: u64,
}

/// What may be done with a frame; bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_rights {
    /// Name it as a source.
    Read = 1,
    /// Name it as a destination.
    Write = 2,
    /// Grant it to others.
    Grant = 4,
}

/// How a transfer is to be served; bits of mf_terms.flags.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_flag {
    /// The next transfer of the queue starts when this one has succeeded, and fails as it did if it fails.
    Linked = 1,
    /// It starts when everything submitted to the queue before it has ended.
    Fenced = 2,
    /// It ends with MF_ERROR_CHANNELS_BUSY when it would have to wait for an engine channel.
    RefuseWhenBusy = 4,
    /// It is written into the ring but not started: mf_publish, the next mf_submit_* without this flag, or a wait does that.
    Staged = 8,
}

/// What is to become of the CPU caches.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_hint {
    /// The engine decides.
    Auto = 0,
    /// The destination will be read soon.
    Keep = 1,
    /// Neither side will be read soon.
    Stream = 2,
}

/// Who goes first when transfers wait for an engine channel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_priority {
    /// What everyone has.
    Normal = 0,
    /// After all others.
    Low = 1,
    /// Before all others; needs the right to it.
    High = 2,
}

/// The terms of a transfer. Begin with MF_TERMS_INIT, which sets size. A null pointer to terms means MF_TERMS_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_terms {
    /// sizeof(mf_terms).
    pub size: u32,
    /// Bits of mf_flag.
    pub flags: u32,
    /// One of mf_hint.
    pub hint: u32,
    /// One of mf_priority.
    pub priority: u32,
    /// Nanoseconds from now after which it is given up; 0 is never.
    pub within_ns: u64,
}

/// One side's walk over its frame, in bytes (after Wicki 2014, section 3.3.2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mf_plane {
    /// Offset of the first pixel's first byte, from the start of the range.
    pub start: u64,
    /// Added after each pixel but the last of a row.
    pub x_step: i64,
    /// Added after the last pixel of a row.
    pub y_step: i64,
}

/// A two-dimensional move or fill.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mf_shape_2d {
    /// Bytes of a pixel: 1, 2 or 4.
    pub pixel_bytes: u32,
    /// Pixels of a row.
    pub x_count: u32,
    /// Rows.
    pub y_count: u32,
    /// Not 0: source pixels of the colour are left out. A fill does not look at it.
    pub transparent: u32,
    /// The transparent colour, or what a fill writes: at most 24 bits.
    pub color: u32,
    /// 0; anything else is MF_ERROR_ARGUMENT.
    pub reserved: u32,
    /// How the source is walked. A fill does not look at it.
    pub source: mf_plane,
    /// How the destination is walked.
    pub destination: mf_plane,
}

/// A rectangle of pixels in a range.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mf_image {
    /// Offset of the top left pixel from the start of the range, bytes.
    pub origin: u64,
    /// Bytes from one row to the next.
    pub pitch_bytes: u64,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes of a pixel: 1, 2 or 4.
    pub pixel_bytes: u32,
    /// 0; anything else is MF_ERROR_ARGUMENT.
    pub reserved: u32,
}

/// How a picture is turned on its way.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_turn {
    /// Not at all.
    Upright = 0,
    /// Left and right exchanged.
    FlipHorizontal = 1,
    /// Top and bottom exchanged.
    FlipVertical = 2,
    /// A quarter clockwise.
    Rotate90 = 3,
    /// Half.
    Rotate180 = 4,
    /// A quarter counter-clockwise.
    Rotate270 = 5,
    /// Rows become columns.
    Transpose = 6,
}

/// Which operand a failure is about.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_side {
    /// None, or both.
    None = 0,
    /// The memory read.
    Source = 1,
    /// The memory written.
    Destination = 2,
}

/// What moved the bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine {
    /// Nothing did.
    None = 0,
    /// A CPU worker.
    Cpu = 1,
    /// A model in virtual time.
    Simulated = 2,
    /// The Linux module: a DMA engine, or the kernel's own copy where none would take it.
    Module = 3,
}

/// The end of one transfer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_completion {
    /// What it was submitted under.
    pub ticket: mf_ticket,
    /// MF_ERROR_NONE, or why it did not do all it asked for.
    pub error: mf_error,
    /// Which operand the error is about.
    pub side: mf_side,
    /// What moved the bytes.
    pub engine: mf_engine,
    /// Not 0: the failure is that of an earlier transfer this one was linked to.
    pub inherited: u32,
    /// Bytes visited; those of a transfer in a loop in all rounds.
    pub bytes_done: u64,
    /// What was found: the CRC, the offset of the first difference (the length when there is none), the whole rounds of a loop.
    pub value: u64,
    /// The failure's number: the limit, the bytes there are, the handle, as mf_last_message says in words; else 0.
    pub detail: u64,
}

impl mf_completion {
    /// A completion of that queue.
    pub(crate) fn of(queue: mf_queue, completion: Completion) -> Self {
        let (error, side, detail) = match completion.outcome {
            Ok(()) => (mf_error::None, None, 0),
            Err(failure) => (mf_error::from(failure), side_of(failure), detail_of(failure)),
        };
        let side = match side {
            None => mf_side::None,
            Some(Side::Source) => mf_side::Source,
            Some(Side::Destination) => mf_side::Destination,
        };
        let engine = match completion.engine {
            EngineKind::None => mf_engine::None,
            EngineKind::Cpu => mf_engine::Cpu,
            EngineKind::Simulated => mf_engine::Simulated,
            EngineKind::Module => mf_engine::Module,
        };
        let Completion { ticket, inherited, bytes_done, value, .. } = completion;
        Self {
            ticket: mf_ticket::of(queue, ticket),
            error,
            side,
            engine,
            inherited: inherited.into(),
            bytes_done,
            value,
            detail,
        }
    }
}

fn side_of(failure: Failure) -> Option<Side> {
    match failure {
        Failure::UnknownHandle { side, .. }
        | Failure::StaleHandle { side, .. }
        | Failure::Revoked { side, .. }
        | Failure::MissingRight { side, .. }
        | Failure::OutOfBounds { side, .. } => Some(side),
        _ => None,
    }
}

fn detail_of(failure: Failure) -> u64 {
    match failure {
        Failure::UnknownHandle { handle, .. }
        | Failure::StaleHandle { handle, .. }
        | Failure::Revoked { handle, .. }
        | Failure::MissingRight { handle, .. } => handle.bits(),
        Failure::OutOfBounds { available, .. } => available,
        Failure::TooLong { limit } | Failure::WaitingQuota { limit } => limit,
        Failure::FillLength { pattern_bytes } => pattern_bytes,
        Failure::SegmentTotals { source_bytes } => source_bytes,
        Failure::ChannelsBusy { channels } => channels,
        _ => 0,
    }
}

impl mf_ticket {
    /// A ticket of that queue. It names the queue's handle, which no other client's queue has.
    pub(crate) fn of(queue: mf_queue, ticket: Ticket) -> Self {
        Self { tag: ticket.tag(), queue: queue.id }
    }

    /// The ticket as the queue knows it, if it is one of that handle's.
    pub(crate) fn known(self, id: mf_queue, queue: &Queue) -> Result<Ticket, Fault> {
        if self.queue != id.id {
            return Err(Fault::new(mf_error::UnknownTicket, "the ticket is another queue's"));
        }
        Ok(queue.ticket(self.tag))
    }
}

/// A number that no enumeration has.
fn strange(what: &str, number: impl std::fmt::Display) -> Fault {
    Fault::new(mf_error::Argument, format!("there is no {what} {number}"))
}

/// What a later version may give a meaning to has none yet, so nobody may count on its being ignored.
fn unused(structure: &str, reserved: u32) -> Result<(), Fault> {
    if reserved == 0 {
        return Ok(());
    }
    let message = format!("{structure}.reserved is {reserved:#x} and has to be 0");
    Err(Fault::new(mf_error::Argument, message))
}

impl mf_terms {
    /// What a null pointer stands for.
    pub(crate) const PLAIN: Self =
        Self { size: size_of::<Self>() as u32, flags: 0, hint: 0, priority: 0, within_ns: 0 };

    pub(crate) fn staged(&self) -> bool {
        self.flags & mf_flag::Staged as u32 != 0
    }

    pub(crate) fn apply(&self, mut transfer: Transfer) -> Result<Transfer, Fault> {
        if self.size != Self::PLAIN.size {
            let message = format!(
                "mf_terms.size is {} and this library's mf_terms has {} bytes; begin with MF_TERMS_INIT",
                self.size,
                Self::PLAIN.size
            );
            return Err(Fault::new(mf_error::Version, message));
        }
        if self.flags & !15 != 0 {
            return Err(strange("mf_flag in", format_args!("{:#x}", self.flags)));
        }
        let has = |flag: mf_flag| self.flags & flag as u32 != 0;
        if has(mf_flag::Linked) {
            transfer = transfer.linked();
        }
        if has(mf_flag::Fenced) {
            transfer = transfer.fenced();
        }
        if has(mf_flag::RefuseWhenBusy) {
            transfer = transfer.refuse_when_busy();
        }
        let hint = [CacheHint::Auto, CacheHint::Keep, CacheHint::Stream];
        let class = [PriorityClass::Normal, PriorityClass::Low, PriorityClass::High];
        let hint = hint.get(self.hint as usize).ok_or_else(|| strange("mf_hint", self.hint))?;
        let class = class.get(self.priority as usize).ok_or_else(|| strange("mf_priority", self.priority))?;
        transfer = transfer.with_hint(*hint).with_class(*class);
        Ok(match self.within_ns {
            0 => transfer,
            limit => transfer.within(Duration::from_nanos(limit)),
        })
    }
}

pub(crate) fn pixel(bytes: u32) -> Result<PixelSize, Fault> {
    PixelSize::from_bytes(bytes.into()).ok_or_else(|| strange("pixel of bytes", bytes))
}

pub(crate) fn color(value: u32) -> Result<Color24, Fault> {
    Color24::new(value).ok_or_else(|| strange("colour of 24 bits", format_args!("{value:#x}")))
}

pub(crate) fn turn(number: u32) -> Result<Turn, Fault> {
    let turns = [
        Turn::Upright,
        Turn::FlipHorizontal,
        Turn::FlipVertical,
        Turn::Rotate90,
        Turn::Rotate180,
        Turn::Rotate270,
        Turn::Transpose,
    ];
    turns.get(number as usize).copied().ok_or_else(|| strange("mf_turn", number))
}

impl mf_plane {
    pub(crate) fn plane(self) -> Plane {
        Plane { start: self.start, x_step: self.x_step, y_step: self.y_step }
    }
}

impl mf_shape_2d {
    pub(crate) fn count(&self) -> Result<Count2d, Fault> {
        unused("mf_shape_2d", self.reserved)?;
        Ok(Count2d { pixel: pixel(self.pixel_bytes)?, x_count: self.x_count, y_count: self.y_count })
    }

    pub(crate) fn copy(&self) -> Result<Copy2d, Fault> {
        let transparent = if self.transparent == 0 { None } else { Some(color(self.color)?) };
        let source = self.source.plane();
        let destination = self.destination.plane();
        Ok(Copy2d { count: self.count()?, source, destination, transparent })
    }
}

impl mf_image {
    pub(crate) fn image(&self) -> Result<Image, Fault> {
        let &Self { origin, pitch_bytes, width, height, pixel_bytes, reserved } = self;
        unused("mf_image", reserved)?;
        Ok(Image { origin, width, height, pitch_bytes, pixel: pixel(pixel_bytes)? })
    }
}
