//! Numbered errors, their texts, and each thread's last message.
//!
//! ```text
//! ConnectError, FrameError, TransferError, ... ─► Fault { number, message } ─► the number is returned
//!                                                                           └► the thread keeps the message
//! ```
//!
//! Numbers never change their meaning. From 100 a transfer failed and its completion was taken; below 100 the call itself failed.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use memferry::{
    AccessError, AllocateError, CallError, ConnectError, CopierError, ExportError, Failure, FrameError,
    ImageError, InvalidTransfer, OpenError, RefusalKind, SubmitReason, TransferError, Violation,
};

/// The result of a call. MF_ERROR_NONE is 0; from 100 a transfer failed, below 100 the call itself.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_error {
    /// The call or the transfer succeeded.
    None = 0,
    /// A required pointer is null.
    NullPointer = 1,
    /// A pointer is not aligned for its type.
    Unaligned = 2,
    /// The handle was freed or never valid.
    BadHandle = 3,
    /// A value is outside its range.
    Argument = 4,
    /// Lengths or sizes do not match.
    Length = 5,
    /// The bytes are not inside the frame.
    OutOfRange = 6,
    /// The memory may not be written.
    ReadOnly = 7,
    /// The memory is not mapped in this process.
    NotMapped = 8,
    /// Program, library and service have incompatible versions.
    Version = 9,
    /// A string is not UTF-8.
    Text = 10,
    /// No service listens at the path, or this user may not connect.
    NoService = 20,
    /// The service is gone; connect again.
    ServiceLost = 21,
    /// The service ended this session.
    SessionEnded = 22,
    /// The service broke the protocol.
    Protocol = 23,
    /// The service refused: the memory cannot be a frame.
    RefusedFrame = 24,
    /// The service refused: the capability does not exist or does not allow that.
    RefusedCapability = 25,
    /// The service refused: a quota is reached.
    RefusedQuota = 26,
    /// The service refused: an argument is outside its range.
    RefusedArgument = 27,
    /// The service refused: it is stopping.
    RefusedStopping = 28,
    /// The service refused: its system lacks a resource.
    RefusedSystem = 29,
    /// This process's system lacks a resource.
    System = 30,
    /// Only a client of mf_embed can do that.
    NotEmbedded = 31,
    /// The service did not answer within the client's time limit.
    NoAnswer = 32,
    /// A revocation was not complete within the client's time limit: a transfer may still use the memory. Revoke again to wait.
    RevocationPending = 33,
    /// The handle belongs to the process that this one was forked from.
    Forked = 40,
    /// Another thread is using the queue.
    InUse = 41,
    /// A frame of the transfer belongs to another client than the queue.
    ForeignFrame = 42,
    /// The queue holds as many transfers as it can; take completions first.
    QueueFull = 43,
    /// The time limit was reached; the transfer continues.
    TimedOut = 44,
    /// The ticket is not outstanding on this queue: its completion was taken, or it belongs to another queue.
    UnknownTicket = 45,
    /// There is no completion now.
    Nothing = 46,
    /// The library panicked. The call may have been done in part.
    Panicked = 47,
    /// The request was malformed.
    Malformed = 100,
    /// The service does not know the frame.
    UnknownHandle = 101,
    /// The frame was freed.
    StaleHandle = 102,
    /// The frame was revoked.
    Revoked = 103,
    /// The frame lacks the right: a source needs MF_RIGHTS_READ, a destination MF_RIGHTS_WRITE.
    MissingRight = 104,
    /// The transfer reaches outside its frame.
    OutOfBounds = 105,
    /// The transfer is too long.
    TooLong = 106,
    /// The fill's length is not a multiple of its pattern's.
    FillLength = 107,
    /// The two lists hold different numbers of bytes.
    SegmentTotals = 108,
    /// This client may not use that priority.
    PriorityNotGranted = 109,
    /// A loop that repeats nothing, or is inside another loop.
    BadLoop = 110,
    /// All engine channels are busy, and the transfer asked not to wait.
    ChannelsBusy = 111,
    /// This user's quota of waiting requests is used up.
    WaitingQuota = 112,
    /// Cancelled, or its memory was revoked.
    Cancelled = 113,
    /// The transfer's deadline passed before its end.
    DeadlineExceeded = 114,
    /// The memory failed under the engine.
    MemoryFault = 115,
    /// The engine channel failed and may still write to the transfer's memory: do not reuse it. mf_frame_free of lent memory tells
    /// whether it may be reused.
    ChannelFaulted = 116,
    /// No engine of this service performs the operation.
    Unsupported = 117,
    /// The engine did not report the end in time.
    EngineTimedOut = 118,
    /// The device made a request before its previous one was served.
    RequestDropped = 119,
    /// The engine was reset during the transfer.
    EngineReset = 120,
    /// The service was stopping and did not start the transfer.
    ServiceStopping = 121,
    /// The service was lost; the outcome is unknown.
    OutcomeUnknown = 122,
    /// The deadline conflicts with earlier promises to other transfers; the transfer was not started.
    DeadlineUnreachable = 123,
    /// Two operands of an xor or dual copy overlap in part, or a picture would be turned in its own place.
    Overlap = 124,
    /// The frame comes from a grant for a limited time, which is over.
    Expired = 125,
    /// The link to the node that has the memory is broken.
    PeerLost = 126,
    /// The node that has the memory refused; mf_last_message says why.
    PeerRefused = 127,
}

const TEXTS: &[(mf_error, &CStr)] = &[
    (mf_error::None, c"no error"),
    (mf_error::NullPointer, c"a required pointer is null"),
    (mf_error::Unaligned, c"a pointer is not aligned for its type"),
    (mf_error::BadHandle, c"the handle was freed or never valid"),
    (mf_error::Argument, c"a value is outside its range"),
    (mf_error::Length, c"lengths or sizes do not match"),
    (mf_error::OutOfRange, c"the bytes are not inside the frame"),
    (mf_error::ReadOnly, c"the memory may not be written"),
    (mf_error::NotMapped, c"the memory is not mapped in this process"),
    (mf_error::Version, c"program, library and service have incompatible versions"),
    (mf_error::Text, c"a string is not UTF-8"),
    (
        mf_error::NoService,
        c"no service listens there, or this user may not connect; is `memferry serve` running?",
    ),
    (mf_error::ServiceLost, c"the service is gone; connect again"),
    (mf_error::SessionEnded, c"the service ended this session"),
    (mf_error::Protocol, c"the service broke the protocol"),
    (mf_error::RefusedFrame, c"refused: the memory cannot be a frame"),
    (mf_error::RefusedCapability, c"refused: the capability does not exist or does not allow that"),
    (mf_error::RefusedQuota, c"refused: a quota is reached"),
    (mf_error::RefusedArgument, c"refused: an argument is outside its range"),
    (mf_error::RefusedStopping, c"refused: the service is stopping"),
    (mf_error::RefusedSystem, c"refused: the service's system lacks a resource"),
    (mf_error::System, c"the system lacks a resource"),
    (mf_error::NotEmbedded, c"only a client of mf_embed can do that"),
    (mf_error::NoAnswer, c"the service did not answer in time; it is stopped or overloaded"),
    (
        mf_error::RevocationPending,
        c"the revocation is not complete: a transfer may still use the memory; revoke again to wait longer",
    ),
    (mf_error::Forked, c"the handle belongs to the process this one was forked from; open a client here"),
    (mf_error::InUse, c"another thread is using the queue"),
    (mf_error::ForeignFrame, c"a frame of the transfer belongs to another client than the queue; use a queue of that client"),
    (mf_error::QueueFull, c"the queue is full of requests, or of long lists; take completions first"),
    (mf_error::TimedOut, c"the time limit was reached; the transfer continues"),
    (mf_error::UnknownTicket, c"the ticket is not outstanding on this queue"),
    (mf_error::Nothing, c"there is no completion now"),
    (mf_error::Panicked, c"the library panicked; please report the message"),
    (mf_error::Malformed, c"the request was malformed"),
    (mf_error::UnknownHandle, c"the service does not know the frame"),
    (mf_error::StaleHandle, c"the frame was freed"),
    (mf_error::Revoked, c"the frame was revoked"),
    (mf_error::MissingRight, c"the frame lacks the right to be read or written"),
    (mf_error::OutOfBounds, c"the transfer reaches outside its frame"),
    (mf_error::TooLong, c"the transfer is too long; split it"),
    (mf_error::FillLength, c"the fill's length is not a multiple of its pattern's"),
    (mf_error::SegmentTotals, c"the two lists hold different numbers of bytes"),
    (mf_error::PriorityNotGranted, c"this client may not use that priority"),
    (
        mf_error::BadLoop,
        c"a loop repeats the linked transfers that follow it: at least one, and no other loop",
    ),
    (mf_error::ChannelsBusy, c"all engine channels are busy; retry, or let the transfer wait"),
    (mf_error::WaitingQuota, c"this user's quota of waiting requests is used up; wait for some to end"),
    (mf_error::Cancelled, c"cancelled"),
    (mf_error::DeadlineExceeded, c"the deadline passed"),
    (mf_error::MemoryFault, c"the memory failed under the engine"),
    (mf_error::ChannelFaulted, c"the engine channel failed and may still write to the transfer's memory"),
    (mf_error::Unsupported, c"no engine of this service performs the operation on this memory"),
    (mf_error::EngineTimedOut, c"the engine did not report the end in time and was stopped"),
    (mf_error::RequestDropped, c"the device made a request before its previous one was served"),
    (mf_error::EngineReset, c"the engine was reset during the transfer"),
    (mf_error::ServiceStopping, c"the service was stopping and did not start the transfer"),
    (mf_error::OutcomeUnknown, c"the service was lost; the outcome is unknown"),
    (mf_error::DeadlineUnreachable, c"the deadline conflicts with earlier promises to other transfers"),
    (mf_error::PeerLost, c"the link to the node that has the memory is broken; submit the transfer again"),
    (mf_error::PeerRefused, c"the node that has the memory refused"),
    (mf_error::Expired, c"the frame's grant was for a limited time, which is over"),
    (mf_error::Overlap, c"two operands overlap in part; use ranges that are equal or apart, and turn a picture to another place"),
];

/// Describes an error's number: a constant string, "unknown error" for an undefined number.
///
/// Any thread, any time, also in a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn mf_error_text(error: i32) -> *const c_char {
    let known = TEXTS.iter().find(|(number, _)| *number as i32 == error);
    known.map_or(c"unknown error", |(_, text)| text).as_ptr()
}

thread_local! {
    static MESSAGE: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

/// Describes the last call of this thread that failed, with operands and advice; taking the completion of a failed transfer counts
/// as one. Empty when no call failed.
///
/// Each thread has its own. The string is valid until the next call of this library on the thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_last_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A failed call: its result and its message.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) number: mf_error,
    message: Cow<'static, CStr>,
}

impl Fault {
    pub(crate) fn new(number: mf_error, message: impl Into<String>) -> Self {
        let mut text = message.into().into_bytes();
        text.retain(|byte| *byte != 0);
        Self { number, message: Cow::Owned(CString::new(text).unwrap_or_default()) }
    }

    /// Without a copy of the message: for a call that programs repeat until it has another result.
    pub(crate) const fn fixed(number: mf_error, message: &'static CStr) -> Self {
        Self { number, message: Cow::Borrowed(message) }
    }

    /// Makes this the thread's last message.
    pub(crate) fn remember(self) {
        // The message of an ending thread is gone already.
        let _ = MESSAGE.try_with(|message| *message.borrow_mut() = self.message);
    }
}

impl From<Failure> for mf_error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Malformed(_) => Self::Malformed,
            Failure::UnknownHandle { .. } => Self::UnknownHandle,
            Failure::StaleHandle { .. } => Self::StaleHandle,
            Failure::Revoked { .. } => Self::Revoked,
            Failure::Expired { .. } => Self::Expired,
            Failure::PeerLost => Self::PeerLost,
            Failure::PeerRefused { .. } => Self::PeerRefused,
            Failure::MissingRight { .. } => Self::MissingRight,
            Failure::OutOfBounds { .. } => Self::OutOfBounds,
            Failure::TooLong { .. } => Self::TooLong,
            Failure::FillLength { .. } => Self::FillLength,
            Failure::SegmentTotals { .. } => Self::SegmentTotals,
            Failure::Overlap { .. } => Self::Overlap,
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
            Failure::UnknownTicket => Self::UnknownTicket,
            Failure::Forked => Self::Forked,
        }
    }
}

/// Whether a wait failed for the call's sake and took no completion: its number is below 100.
pub(crate) fn is_call_error(failure: Failure) -> bool {
    matches!(failure, Failure::UnknownTicket | Failure::Forked)
}

impl From<TransferError> for Fault {
    fn from(error: TransferError) -> Self {
        Self::new(error.failure.into(), error.to_string())
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
        CallError::TimedOut { .. } => mf_error::NoAnswer,
        CallError::RevocationPending { .. } => mf_error::RevocationPending,
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
            ConnectError::TimedOut { .. } => mf_error::NoAnswer,
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
            FrameError::Allocate(AllocateError::Empty) => mf_error::Argument,
            FrameError::Allocate(_) | FrameError::Guard(_) => mf_error::System,
            FrameError::Memory(_) => mf_error::Protocol,
            FrameError::Call(call) => of_call(call),
            FrameError::NotEmbedded(_) | FrameError::LentToService => mf_error::NotEmbedded,
        };
        Self::new(number, error.to_string())
    }
}

impl From<ExportError> for Fault {
    fn from(error: ExportError) -> Self {
        let number = match &error {
            ExportError::Call(call) => of_call(call),
            ExportError::Memory(_) => mf_error::Protocol,
        };
        Self::new(number, error.to_string())
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        let number = match &error {
            OpenError::Call(call) => of_call(call),
            OpenError::Memory(_) => mf_error::Protocol,
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

fn of_invalid(invalid: &InvalidTransfer) -> mf_error {
    match invalid {
        InvalidTransfer::TooShort { .. } | InvalidTransfer::Unequal { .. } => mf_error::Length,
        InvalidTransfer::Segments { .. } | InvalidTransfer::Sources { .. } => mf_error::Argument,
        InvalidTransfer::Inverted { .. } | InvalidTransfer::Walk(_) => mf_error::OutOfRange,
    }
}

impl From<SubmitReason> for Fault {
    fn from(reason: SubmitReason) -> Self {
        let number = match &reason {
            SubmitReason::Full { .. } => mf_error::QueueFull,
            SubmitReason::Invalid(invalid) => of_invalid(invalid),
            SubmitReason::ForeignFrame => mf_error::ForeignFrame,
            SubmitReason::Loop => mf_error::Argument,
            SubmitReason::ServiceLost => mf_error::ServiceLost,
            SubmitReason::Forked(_) => mf_error::Forked,
        };
        Self::new(number, reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use memferry::Side;

    use super::*;

    #[test]
    fn failed_calls_are_below_100() {
        for failure in [Failure::UnknownTicket, Failure::Forked] {
            assert!(is_call_error(failure) && (mf_error::from(failure) as i32) < 100, "{failure}");
        }
        let out = Failure::OutOfBounds { side: Side::Source, available: 9 };
        for failure in [out, Failure::Cancelled, Failure::ServiceLost, Failure::DeadlineUnreachable] {
            assert!(!is_call_error(failure) && mf_error::from(failure) as i32 >= 100, "{failure}");
        }
    }

    #[test]
    fn invalid_transfers_have_their_numbers() {
        let pairs = [
            (InvalidTransfer::TooShort { source_bytes: 2, destination_bytes: 1 }, mf_error::Length),
            (InvalidTransfer::Unequal { one_bytes: 2, other_bytes: 1 }, mf_error::Length),
            (InvalidTransfer::Segments { side: Side::Source, count: 9999 }, mf_error::Argument),
            (InvalidTransfer::Sources { count: 0 }, mf_error::Argument),
            (InvalidTransfer::Inverted { side: Side::Source, start: 2, end: 1 }, mf_error::OutOfRange),
        ];
        for (invalid, number) in pairs {
            assert_eq!(Fault::from(SubmitReason::Invalid(invalid)).number, number, "{invalid}");
        }
    }
}
