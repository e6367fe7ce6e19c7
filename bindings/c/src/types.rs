//! The structures and enumerations of the C interface, and their conversions.
//!
//! ```text
//! mf_terms, mf_shape_2d, mf_image ─► Fault, or a Transfer's terms, Copy2d, Image
//! Done, TransferError ─► mf_completion
//! ```
//!
//! Plain data only. Layouts are part of the interface: in `tests/layouts.rs` C compilers compare them with the header's.

use std::ffi::c_int;
use std::time::Duration;

use memferry::{
    CacheHint, Color24, Copy2d, Count2d, Done, EngineKind, Failure, Image, PixelSize, Plane, PriorityClass,
    Queue, Side, TicketId, Transfer, TransferError, Turn,
};

use crate::error::{Fault, mf_error};

/// The version of this interface, as MF_MAKE_VERSION(major, minor). A library serves programs that were compiled with the same
/// major version and the same or an earlier minor version.
pub const MF_VERSION: u32 = 2;

/// The length of a range that reaches to the end of its frame.
pub const MF_TO_END: u64 = u64::MAX;

/// The limit of a wait that has none. Any other negative limit counts as 0: check without waiting.
pub const MF_FOREVER: i64 = -1;
/// Bytes for the longest text of mf_remote_token, with its end.
pub const MF_REMOTE_TOKEN_BYTES: usize = 96;

/// A session with a service. All zeros is never valid.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_client {
    /// Opaque; not an address.
    pub id: u64,
}

/// Memory that the service may move bytes in. All zeros is never valid.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_frame {
    /// Opaque; not an address.
    pub id: u64,
}

/// What the descriptor of an engine's memory is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_export_kind {
    /// A memfd, to be mapped with mmap, shared, from offset 0 on. It cannot shrink.
    Memory = 1,
    /// Memory of an NVIDIA GPU, for cuMemImportFromShareableHandle as CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
    Cuda = 2,
}

/// Memory of a frame at an engine, for this process to map.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct mf_exported {
    /// The caller's to close.
    pub descriptor: c_int,
    /// One value of mf_export_kind.
    pub kind: u32,
    /// Bytes of the memory, rounded up as the engine or its device does. The frame begins with the first one.
    pub length: u64,
    /// With MF_EXPORT_KIND_CUDA the GPU's UUID, as cuDeviceGetUuid_v2 gives it, else zeros.
    pub device: [u8; 16],
}

/// An ordered stream of transfers. All zeros is never valid.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_queue {
    /// Opaque; not an address.
    pub id: u64,
}

/// A sequence of asynchronous copies between plain pointers. All zeros is never valid.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_copier {
    /// Opaque; not an address.
    pub id: u64,
}

/// Names one submitted transfer of one queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_ticket {
    /// Opaque; identifies the transfer within its queue.
    pub tag: u64,
    /// Opaque; identifies the queue.
    pub queue: u64,
}

/// Names a grant: the grantor passes it to the grantee, which accepts it. It is of no use to others.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_grant_token {
    /// The number to pass on.
    pub value: u64,
}

/// A range of a frame.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct mf_range {
    /// The frame that contains the range.
    pub frame: mf_frame,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes in the range, or MF_TO_END.
    pub length: u64,
}

/// The allowed uses of a frame; bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_rights {
    /// As a source of transfers.
    Read = 1,
    /// As a destination of transfers.
    Write = 2,
    /// For grants to others.
    Grant = 4,
    /// For grants to users of other nodes, so that the link uses the memory in place where its administrator allows that.
    Direct = 8,
}

/// Conditions of a transfer; bits of mf_terms.flags.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_flag {
    /// The next transfer of the queue starts when this one has succeeded. If this one fails, the next one fails with its error.
    Linked = 1,
    /// It starts when all earlier transfers of the queue have ended.
    Fenced = 2,
    /// It fails with MF_ERROR_CHANNELS_BUSY when it would have to wait for an engine channel.
    RefuseWhenBusy = 4,
    /// It is written into the ring but not started: mf_publish, the next mf_submit_* without this flag, or a wait starts it.
    Staged = 8,
}

/// How a transfer uses the CPU caches.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_hint {
    /// The engine decides between MF_HINT_KEEP and MF_HINT_STREAM.
    Auto = 0,
    /// The destination will be read soon.
    Keep = 1,
    /// Neither side will be read soon.
    Stream = 2,
}

/// The order of transfers that wait for an engine channel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_priority {
    /// The default: before low, after high.
    Normal = 0,
    /// After normal and high transfers.
    Low = 1,
    /// Before normal and low transfers; the service must allow it to this client.
    High = 2,
}

/// The terms of a transfer. Initialise with MF_TERMS_INIT, which sets size. A null pointer to terms means MF_TERMS_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_terms {
    /// sizeof(mf_terms), which MF_TERMS_INIT sets.
    pub size: u32,
    /// Bits of mf_flag, or 0.
    pub flags: u32,
    /// One value of mf_hint.
    pub hint: u32,
    /// One value of mf_priority.
    pub priority: u32,
    /// Nanoseconds from now after which it fails with MF_ERROR_DEADLINE_EXCEEDED; 0 for no limit.
    pub within_ns: u64,
}

/// The walk over one operand, in bytes (after Wicki 2014, section 3.3.2).
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
    /// Rows of the shape.
    pub y_count: u32,
    /// Not 0: source pixels of the colour are left out. Ignored by a fill.
    pub transparent: u32,
    /// The transparent colour, or the colour that a fill writes: at most 24 bits.
    pub color: u32,
    /// 0; anything else is MF_ERROR_ARGUMENT.
    pub reserved: u32,
    /// The walk over the source. Ignored by a fill.
    pub source: mf_plane,
    /// The walk over the destination.
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
    /// Rows of the image.
    pub height: u32,
    /// Bytes of a pixel: 1, 2 or 4.
    pub pixel_bytes: u32,
    /// 0; anything else is MF_ERROR_ARGUMENT.
    pub reserved: u32,
}

/// How a copy turns a picture.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_turn {
    /// The picture is not turned.
    Upright = 0,
    /// Mirrored left to right.
    FlipHorizontal = 1,
    /// Mirrored top to bottom.
    FlipVertical = 2,
    /// A quarter turn clockwise.
    Rotate90 = 3,
    /// A turn by 180 degrees.
    Rotate180 = 4,
    /// A quarter turn counter-clockwise.
    Rotate270 = 5,
    /// Rows and columns exchanged.
    Transpose = 6,
}

/// The operand at fault.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_side {
    /// Neither operand, or both.
    None = 0,
    /// Memory that is read.
    Source = 1,
    /// Memory that is written.
    Destination = 2,
}

/// The engine that moved the bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine {
    /// No engine started it.
    None = 0,
    /// A CPU of this machine.
    Cpu = 1,
    /// A model in virtual time.
    Simulated = 2,
    /// The Linux module: a DMA engine, or the kernel's own copy where no engine accepts the transfer.
    Module = 3,
    /// An engine process that the administrator connected to the service.
    External = 4,
}

/// The end of one transfer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_completion {
    /// The ticket of the completed transfer.
    pub ticket: mf_ticket,
    /// MF_ERROR_NONE, or how the transfer failed.
    pub error: mf_error,
    /// The operand at fault.
    pub side: mf_side,
    /// The engine that moved the bytes.
    pub engine: mf_engine,
    /// Not 0: an earlier transfer that this one is linked to failed, with this error.
    pub inherited: u32,
    /// Bytes visited, also by a transfer that failed; in a loop the sum of all rounds. An engine process that failed may have visited
    /// more.
    pub bytes_done: u64,
    /// The result: the CRC, the offset of the first difference (the length when there is none), the whole rounds of a loop. 0 if
    /// the transfer failed.
    pub value: u64,
    /// The number in the failure's message: the limit, the available bytes or the handle; else 0.
    pub detail: u64,
}

impl mf_completion {
    /// The completion of a transfer of that queue.
    pub(crate) fn of(queue: mf_queue, ended: Result<Done<u64>, TransferError>) -> Self {
        match ended {
            Ok(Done { id, bytes_done, output, engine }) => Self {
                ticket: mf_ticket::of(queue, id),
                error: mf_error::None,
                side: mf_side::None,
                engine: engine.into(),
                inherited: 0,
                bytes_done,
                value: output,
                detail: 0,
            },
            Err(TransferError { id, failure, bytes_done, inherited, engine }) => Self {
                ticket: mf_ticket::of(queue, id),
                error: failure.into(),
                side: side_of(failure),
                engine: engine.into(),
                inherited: inherited.into(),
                bytes_done,
                value: 0,
                detail: detail_of(failure),
            },
        }
    }
}

impl From<EngineKind> for mf_engine {
    fn from(kind: EngineKind) -> Self {
        match kind {
            EngineKind::None => Self::None,
            EngineKind::Cpu => Self::Cpu,
            EngineKind::Simulated => Self::Simulated,
            EngineKind::Module => Self::Module,
            EngineKind::External => Self::External,
        }
    }
}

fn side_of(failure: Failure) -> mf_side {
    match failure {
        Failure::UnknownHandle { side, .. }
        | Failure::StaleHandle { side, .. }
        | Failure::Revoked { side, .. }
        | Failure::Expired { side, .. }
        | Failure::MissingRight { side, .. }
        | Failure::OutOfBounds { side, .. } => match side {
            Side::Source => mf_side::Source,
            Side::Destination => mf_side::Destination,
        },
        _ => mf_side::None,
    }
}

fn detail_of(failure: Failure) -> u64 {
    match failure {
        Failure::UnknownHandle { handle, .. }
        | Failure::StaleHandle { handle, .. }
        | Failure::Revoked { handle, .. }
        | Failure::Expired { handle, .. }
        | Failure::MissingRight { handle, .. } => handle.bits(),
        Failure::OutOfBounds { available, .. } => available,
        Failure::TooLong { limit } | Failure::WaitingQuota { limit } => limit,
        Failure::FillLength { pattern_bytes } => pattern_bytes,
        Failure::SegmentTotals { source_bytes } => source_bytes,
        Failure::Overlap { operand } => operand,
        Failure::ChannelsBusy { channels } => channels,
        Failure::PeerRefused { reason } => reason.code(),
        _ => 0,
    }
}

impl mf_ticket {
    /// A ticket of that queue. It holds the queue's handle, which is unique in this process.
    pub(crate) fn of(queue: mf_queue, id: TicketId) -> Self {
        Self { tag: id.tag(), queue: queue.id }
    }

    /// The queue's own name for the transfer; an error when the ticket is of another handle.
    pub(crate) fn resolve(self, handle: mf_queue, queue: &Queue) -> Result<TicketId, Fault> {
        if self.queue != handle.id {
            return Err(Fault::new(mf_error::UnknownTicket, "the ticket belongs to another queue"));
        }
        Ok(queue.ticket(self.tag))
    }
}

fn undefined(what: &str, number: impl std::fmt::Display) -> Fault {
    Fault::new(mf_error::Argument, format!("there is no {what} {number}"))
}

/// Refuses a reserved field that is not 0, so that a later version can give it a meaning.
fn check_reserved(structure: &str, reserved: u32) -> Result<(), Fault> {
    if reserved == 0 {
        return Ok(());
    }
    let message = format!("{structure}.reserved is {reserved:#x}; it must be 0");
    Err(Fault::new(mf_error::Argument, message))
}

impl mf_terms {
    /// The terms of a null pointer.
    pub(crate) const PLAIN: Self =
        Self { size: size_of::<Self>() as u32, flags: 0, hint: 0, priority: 0, within_ns: 0 };

    pub(crate) fn staged(&self) -> bool {
        self.flags & mf_flag::Staged as u32 != 0
    }

    pub(crate) fn apply<T>(&self, mut transfer: Transfer<T>) -> Result<Transfer<T>, Fault> {
        if self.size != Self::PLAIN.size {
            let message = format!(
                "mf_terms.size is {} and this library's mf_terms has {} bytes; initialise it with MF_TERMS_INIT",
                self.size,
                Self::PLAIN.size
            );
            return Err(Fault::new(mf_error::Version, message));
        }
        if self.flags & !15 != 0 {
            return Err(undefined("mf_flag in", format_args!("{:#x}", self.flags)));
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
        let hint = hint.get(self.hint as usize).ok_or_else(|| undefined("mf_hint", self.hint))?;
        let class =
            class.get(self.priority as usize).ok_or_else(|| undefined("mf_priority", self.priority))?;
        transfer = transfer.with_hint(*hint).with_class(*class);
        Ok(match self.within_ns {
            0 => transfer,
            limit => transfer.within(Duration::from_nanos(limit)),
        })
    }
}

pub(crate) fn pixel(bytes: u32) -> Result<PixelSize, Fault> {
    PixelSize::from_bytes(bytes.into()).ok_or_else(|| undefined("pixel size in bytes", bytes))
}

pub(crate) fn color(value: u32) -> Result<Color24, Fault> {
    Color24::new(value).ok_or_else(|| undefined("colour of 24 bits", format_args!("{value:#x}")))
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
    turns.get(number as usize).copied().ok_or_else(|| undefined("mf_turn", number))
}

impl mf_plane {
    pub(crate) fn plane(self) -> Plane {
        Plane { start: self.start, x_step: self.x_step, y_step: self.y_step }
    }
}

impl mf_shape_2d {
    pub(crate) fn count(&self) -> Result<Count2d, Fault> {
        check_reserved("mf_shape_2d", self.reserved)?;
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
        check_reserved("mf_image", reserved)?;
        Ok(Image { origin, width, height, pitch_bytes, pixel: pixel(pixel_bytes)? })
    }
}
