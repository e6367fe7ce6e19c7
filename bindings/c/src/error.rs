//! Numbered errors, their texts, and the message of the last one on each thread.
//!
//! ```text
//! ConnectError, FrameError, CallError, ... ─► Fault { number, message } ─► returned: the number
//!                                                                       └► kept for this thread: the message
//! ```
//!
//! Numbers never change their meaning. Those from 100 are ends of transfers; below, a call did not do what it was asked.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use memferry::{
    AccessError, CallError, ConnectError, CopierError, Failure, FrameError, ImageError, OpenError,
    RefusalKind, SubmitReason, TransferError, Violation, WaitError,
};

/// What went wrong, by number. MF_ERROR_NONE is 0.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_error {
    /// Nothing.
    None = 0,
    /// A pointer that is needed is null.
    NullPointer = 1,
    /// A pointer is not aligned for what it points to.
    Unaligned = 2,
    /// The handle was freed, or no call gave it.
    BadHandle = 3,
    /// A value is outside its range.
    Argument = 4,
    /// Source and destination overlap where that has no defined result.
    Overlap = 5,
    /// The lengths or sizes do not fit each other.
    Length = 6,
    /// The bytes are not inside the frame.
    OutOfRange = 7,
    /// The memory may not be written.
    ReadOnly = 8,
    /// The memory is not mapped in this process.
    NotMapped = 9,
    /// Program, library and service are of versions that do not fit.
    Version = 10,
    /// A string is not UTF-8.
    Text = 11,
    /// Nobody listens at the path, or this user may not connect.
    NoService = 20,
    /// The service is gone; connect again.
    ServiceLost = 21,
    /// The service ended this session.
    SessionEnded = 22,
    /// The service broke the protocol.
    Protocol = 23,
    /// The service refused: the memory cannot be a frame.
    RefusedFrame = 24,
    /// The service refused: no such capability, or it does not allow that.
    RefusedCapability = 25,
    /// The service refused: a quota is reached.
    RefusedQuota = 26,
    /// The service refused: an argument is outside its range.
    RefusedArgument = 27,
    /// The service refused: it is stopping.
    RefusedStopping = 28,
    /// The service refused: its machine would not give what is needed.
    RefusedSystem = 29,
    /// The system would not give what is needed.
    System = 30,
    /// Only a client with its service embedded can do that.
    NotEmbedded = 31,
    /// This process was forked from the one that the handle belongs to.
    Forked = 40,
    /// Another thread is using the queue.
    InUse = 41,
    /// The frames of one transfer have to be of the queue's client.
    ForeignFrame = 42,
    /// The queue holds as many transfers as it can; take completions first.
    ChannelFull = 43,
    /// The time was up; the transfer goes on.
    TimedOut = 44,
    /// The ticket is none of this queue's outstanding ones.
    UnknownTicket = 45,
    /// There is no completion now.
    Nothing = 46,
    /// A mistake in the library. What was being done may be half done.
    Panicked = 47,
    /// The request was malformed.
    Malformed = 100,
    /// The service does not know the frame.
    UnknownHandle = 101,
    /// The frame was given back.
    StaleHandle = 102,
    /// The frame was revoked.
    Revoked = 103,
    /// The frame lacks the right: a source needs MF_RIGHTS_READ, a destination MF_RIGHTS_WRITE.
    MissingRight = 104,
    /// The transfer leaves its frame.
    OutOfBounds = 105,
    /// Longer than one transfer may be.
    TooLong = 106,
    /// The fill's length is no multiple of its pattern.
    FillLength = 107,
    /// The two lists hold different numbers of bytes.
    SegmentTotals = 108,
    /// This client may not use that priority.
    PriorityNotGranted = 109,
    /// A loop without anything to repeat, or within another.
    BadLoop = 110,
    /// All engine channels are busy, and the transfer would not wait.
    ChannelsBusy = 111,
    /// As many requests wait already as this user may have waiting.
    WaitingQuota = 112,
    /// Cancelled, or its memory was revoked.
    Cancelled = 113,
    /// Its time was up.
    DeadlineExceeded = 114,
    /// The memory failed under the engine.
    MemoryFault = 115,
    /// The engine channel failed, and may still write to the memory it had: do not use that for anything else. mf_frame_free of
    /// lent memory says whether it may be used again.
    ChannelFaulted = 116,
    /// No engine of this service can do it.
    Unsupported = 117,
    /// The engine did not report the end in time.
    EngineTimedOut = 118,
    /// The device asked again before its last request was served.
    RequestDropped = 119,
    /// The engine was reset meanwhile.
    EngineReset = 120,
    /// The deadline cannot be met beside those promised to others; it was not started.
    DeadlineUnreachable = 123,
    /// The service was stopping and did not start it.
    ServiceStopping = 121,
    /// The service was lost; the outcome is unknown.
    OutcomeUnknown = 122,
}

/// Every number with its text.
const TEXTS: &[(mf_error, &CStr)] = &[
    (mf_error::None, c"no error"),
    (mf_error::NullPointer, c"a pointer that is needed is null"),
    (mf_error::Unaligned, c"a pointer is not aligned for what it points to"),
    (mf_error::BadHandle, c"the handle was freed, or no call gave it"),
    (mf_error::Argument, c"a value is outside its range"),
    (mf_error::Overlap, c"source and destination overlap"),
    (mf_error::Length, c"lengths or sizes do not fit each other"),
    (mf_error::OutOfRange, c"the bytes are not inside the frame"),
    (mf_error::ReadOnly, c"the memory may not be written"),
    (mf_error::NotMapped, c"the memory is not mapped in this process"),
    (mf_error::Version, c"program, library and service are of versions that do not fit"),
    (mf_error::Text, c"a string is not UTF-8"),
    (
        mf_error::NoService,
        c"nobody listens there, or this user may not connect; is `memferry serve` running?",
    ),
    (mf_error::ServiceLost, c"the service is gone; connect again"),
    (mf_error::SessionEnded, c"the service ended this session"),
    (mf_error::Protocol, c"the service broke the protocol"),
    (mf_error::RefusedFrame, c"refused: the memory cannot be a frame"),
    (mf_error::RefusedCapability, c"refused: no such capability, or it does not allow that"),
    (mf_error::RefusedQuota, c"refused: a quota is reached"),
    (mf_error::RefusedArgument, c"refused: an argument is outside its range"),
    (mf_error::RefusedStopping, c"refused: the service is stopping"),
    (mf_error::RefusedSystem, c"refused: the service's machine would not give what is needed"),
    (mf_error::System, c"the system would not give what is needed"),
    (mf_error::NotEmbedded, c"only a client with its service embedded can do that"),
    (mf_error::Forked, c"this process was forked from the one the handle belongs to; open a client here"),
    (mf_error::InUse, c"another thread is using the queue"),
    (mf_error::ForeignFrame, c"a frame of the transfer belongs to another client than the queue"),
    (mf_error::ChannelFull, c"the queue holds as many transfers as it can; take completions first"),
    (mf_error::TimedOut, c"the time was up; the transfer goes on"),
    (mf_error::UnknownTicket, c"the ticket is none of this queue's outstanding ones"),
    (mf_error::Nothing, c"there is no completion now"),
    (mf_error::Panicked, c"a mistake in the library; please report the message"),
    (mf_error::Malformed, c"the request was malformed"),
    (mf_error::UnknownHandle, c"the service does not know the frame"),
    (mf_error::StaleHandle, c"the frame was given back"),
    (mf_error::Revoked, c"the frame was revoked"),
    (mf_error::MissingRight, c"the frame lacks the right to be read or written"),
    (mf_error::OutOfBounds, c"the transfer leaves its frame"),
    (mf_error::TooLong, c"longer than one transfer may be; split it"),
    (mf_error::FillLength, c"the fill's length is no multiple of its pattern"),
    (mf_error::SegmentTotals, c"the two lists hold different numbers of bytes"),
    (mf_error::PriorityNotGranted, c"this client may not use that priority"),
    (
        mf_error::BadLoop,
        c"a loop repeats the linked transfers that follow it: at least one, and no other loop",
    ),
    (mf_error::ChannelsBusy, c"all engine channels are busy; retry, or let the transfer wait"),
    (mf_error::WaitingQuota, c"as many requests wait already as this user may have waiting"),
    (mf_error::Cancelled, c"cancelled"),
    (mf_error::DeadlineExceeded, c"the deadline passed"),
    (mf_error::MemoryFault, c"the memory failed under the engine"),
    (mf_error::ChannelFaulted, c"the engine channel failed and may still write to the memory it had"),
    (mf_error::Unsupported, c"no engine of this service can do it"),
    (mf_error::EngineTimedOut, c"the engine did not report the end in time and was stopped"),
    (mf_error::RequestDropped, c"the device asked again before its last request was served"),
    (mf_error::EngineReset, c"the engine was reset meanwhile"),
    (mf_error::DeadlineUnreachable, c"the deadline cannot be met beside those promised to others"),
    (mf_error::ServiceStopping, c"the service was stopping and did not start it"),
    (mf_error::OutcomeUnknown, c"the service was lost; the outcome is unknown"),
];

/// What an error's number means: a constant string, "unknown error" for a number that has no meaning.
///
/// Any thread, any time; in a signal handler too.
#[unsafe(no_mangle)]
pub extern "C" fn mf_error_text(error: i32) -> *const c_char {
    let known = TEXTS.iter().find(|(number, _)| *number as i32 == error);
    known.map_or(c"unknown error", |(_, text)| text).as_ptr()
}

thread_local! {
    static MESSAGE: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// What the last failed call on this thread said, or the last failed completion it took: the operands, and what to do. Empty when
/// there was none.
///
/// Each thread has its own. The string is good until the next call of this library on the thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_last_message() -> *const c_char {
    let kept = MESSAGE.try_with(|message| message.borrow().as_ref().map(|text| text.as_ptr()));
    kept.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Why a call did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) number: mf_error,
    message: String,
}

impl Fault {
    pub(crate) fn new(number: mf_error, message: impl Into<String>) -> Self {
        Self { number, message: message.into() }
    }

    /// Keeps the message for this thread.
    pub(crate) fn remember(&self) {
        let text: Vec<u8> = self.message.bytes().filter(|byte| *byte != 0).collect();
        // A thread that is ending has no messages any more.
        let _ = MESSAGE.try_with(|message| *message.borrow_mut() = CString::new(text).ok());
    }
}

impl From<Failure> for mf_error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Malformed(_) => Self::Malformed,
            Failure::UnknownHandle { .. } => Self::UnknownHandle,
            Failure::StaleHandle { .. } => Self::StaleHandle,
            Failure::Revoked { .. } => Self::Revoked,
            Failure::MissingRight { .. } => Self::MissingRight,
            Failure::OutOfBounds { .. } => Self::OutOfBounds,
            Failure::TooLong { .. } => Self::TooLong,
            Failure::FillLength { .. } => Self::FillLength,
            Failure::SegmentTotals { .. } => Self::SegmentTotals,
            Failure::ClassNotGranted { .. } => Self::PriorityNotGranted,
            Failure::BadLoop => Self::BadLoop,
            Failure::ChannelsBusy { .. } => Self::ChannelsBusy,
            Failure::WaitingQuota { .. } => Self::WaitingQuota,
            Failure::Cancelled => Self::Cancelled,
            Failure::DeadlineExceeded => Self::DeadlineExceeded,
            Failure::MemoryFault => Self::MemoryFault,
            Failure::ChannelFaulted => Self::ChannelFaulted,
            Failure::Unsupported => Self::Unsupported,
            Failure::EngineTimedOut => Self::EngineTimedOut,
            Failure::RequestDropped => Self::RequestDropped,
            Failure::EngineReset => Self::EngineReset,
            Failure::DeadlineUnreachable => Self::DeadlineUnreachable,
            Failure::ServiceStopping => Self::ServiceStopping,
            Failure::ServiceLost => Self::OutcomeUnknown,
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::new(failure.into(), failure.to_string())
    }
}

fn refused(kind: RefusalKind) -> mf_error {
    match kind {
        RefusalKind::Frame => mf_error::RefusedFrame,
        RefusalKind::Capability => mf_error::RefusedCapability,
        RefusalKind::Quota => mf_error::RefusedQuota,
        RefusalKind::Argument => mf_error::RefusedArgument,
        RefusalKind::Stopping => mf_error::RefusedStopping,
        RefusalKind::System => mf_error::RefusedSystem,
    }
}

fn of_call(error: &CallError) -> mf_error {
    match error {
        CallError::Refused(refusal) => refused(refusal.kind),
        CallError::Ended(_) => mf_error::SessionEnded,
        CallError::ServiceLost => mf_error::ServiceLost,
        CallError::PartOfArena => mf_error::Argument,
        CallError::Send(_) => mf_error::System,
        CallError::Protocol(_) => mf_error::Protocol,
        CallError::Forked(_) => mf_error::Forked,
    }
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        Self::new(of_call(&error), error.to_string())
    }
}

impl From<ConnectError> for Fault {
    fn from(error: ConnectError) -> Self {
        let number = match &error {
            ConnectError::Socket { .. } => mf_error::NoService,
            ConnectError::Handshake {
                violation: Violation::Version { .. } | Violation::NotHello, ..
            } => mf_error::Version,
            ConnectError::Handshake { violation: Violation::Unwelcome(_), .. } => mf_error::RefusedQuota,
            ConnectError::Handshake { .. } => mf_error::Protocol,
            ConnectError::Refused(refusal) => refused(refusal.kind),
            ConnectError::Start(_) | ConnectError::Setup(_) => mf_error::System,
        };
        Self::new(number, error.to_string())
    }
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Self {
        let number = match &error {
            FrameError::Allocate(_) | FrameError::Guard(_) => mf_error::System,
            FrameError::Call(call) => of_call(call),
            FrameError::NotEmbedded(_) | FrameError::LentToService => mf_error::NotEmbedded,
        };
        Self::new(number, error.to_string())
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        let number = match &error {
            OpenError::Call(call) => of_call(call),
            OpenError::Map(_) => mf_error::System,
        };
        Self::new(number, error.to_string())
    }
}

impl From<AccessError> for Fault {
    fn from(error: AccessError) -> Self {
        let number = match &error {
            AccessError::OutOfRange { .. } => mf_error::OutOfRange,
            AccessError::ReadOnly => mf_error::ReadOnly,
            AccessError::NotMapped => mf_error::NotMapped,
            AccessError::Forked(_) => mf_error::Forked,
        };
        Self::new(number, error.to_string())
    }
}

impl From<CopierError> for Fault {
    fn from(error: CopierError) -> Self {
        let number = match &error {
            CopierError::NotEmbedded => mf_error::NotEmbedded,
            CopierError::Guard(_) | CopierError::Thread(_) => mf_error::System,
        };
        Self::new(number, error.to_string())
    }
}

impl From<TransferError> for Fault {
    fn from(error: TransferError) -> Self {
        let number = match &error {
            TransferError::TooShort { .. } | TransferError::Unequal { .. } => mf_error::Length,
            TransferError::Count { .. } => mf_error::Argument,
        };
        Self::new(number, error.to_string())
    }
}

impl From<ImageError> for Fault {
    fn from(error: ImageError) -> Self {
        let number = match &error {
            ImageError::PixelSizesDiffer | ImageError::SizesDiffer { .. } => mf_error::Length,
            ImageError::OutsideImage { .. } | ImageError::Geometry(_) => mf_error::OutOfRange,
            ImageError::PitchTooShort { .. } | ImageError::PitchTooLong { .. } => mf_error::Argument,
        };
        Self::new(number, error.to_string())
    }
}

impl From<SubmitReason> for Fault {
    fn from(reason: SubmitReason) -> Self {
        let number = match &reason {
            SubmitReason::Full { .. } => mf_error::ChannelFull,
            SubmitReason::ForeignFrame => mf_error::ForeignFrame,
            SubmitReason::Shape(_) => mf_error::OutOfRange,
            SubmitReason::Loop => mf_error::Argument,
            SubmitReason::ServiceLost => mf_error::ServiceLost,
            SubmitReason::Forked(_) => mf_error::Forked,
        };
        Self::new(number, reason.to_string())
    }
}

impl From<WaitError> for Fault {
    fn from(error: WaitError) -> Self {
        let number = match &error {
            WaitError::TimedOut => mf_error::TimedOut,
            WaitError::UnknownTicket => mf_error::UnknownTicket,
            WaitError::Forked(_) => mf_error::Forked,
        };
        Self::new(number, error.to_string())
    }
}
