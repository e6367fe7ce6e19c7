//! The messages of vfio-user, as bytes.
//!
//! ```text
//! 16 bytes: id (2) command (2) size of the whole (4) flags (4) errno (4) ── Header
//! payload ── Request::decode ──► a command with its operands, or a Refusal (errno and reason)
//! result  ── reply, refuse ────► the bytes of the answer
//! ```
//!
//! Layouts: QEMU's `docs/interop/vfio-user.rst`. Numbers have the byte order of the host. A payload has exactly the length of its command;
//! `argsz` is read where it limits an answer. Commands that QEMU does not need of a device (region descriptors, several writes at
//! once, migration) are refused with an errno. Flags of an unmap are those of `linux/vfio.h`: bit 1 stands for all windows.

use rustix::io::Errno;
use thiserror::Error;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// The longest data of a read or write of a region: the protocol's default.
pub const MAXIMUM_DATA: usize = 1 << 20;
/// Bytes of the longest message that is accepted.
pub const MAXIMUM: usize = HEADER + 16 + MAXIMUM_DATA;
/// Limit of descriptors in one message.
pub const MAXIMUM_DESCRIPTORS: usize = 16;

const REPLY: u32 = 1;
const TYPE: u32 = 0xF;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Numbers of the commands that clients send.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_INFO: u16 = 4;
    pub const REGION_INFO: u16 = 5;
    pub const IRQ_INFO: u16 = 7;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
}

/// Why a stream of messages cannot go on: its borders are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StreamError {
    #[error("a message of {size} bytes; a header alone has {HEADER}")]
    TooShort { size: u32 },
    #[error("a message of {size} bytes; {MAXIMUM} is the limit")]
    TooLong { size: u32 },
    #[error("message {id} has type {kind}; clients send commands, type 0")]
    NoCommand { id: u16, kind: u32 },
}

/// The first bytes of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Bytes of the message, this header included.
    pub size: u32,
    pub flags: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|part| part.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, StreamError> {
        let header = Self {
            id: u16_at(bytes, 0),
            command: u16_at(bytes, 2),
            size: u32_at(bytes, 4),
            flags: u32_at(bytes, 8),
        };
        let kind = header.flags & TYPE;
        match header.size as usize {
            0..HEADER => Err(StreamError::TooShort { size: header.size }),
            HEADER..=MAXIMUM if kind == 0 => Ok(header),
            HEADER..=MAXIMUM => Err(StreamError::NoCommand { id: header.id, kind }),
            _ => Err(StreamError::TooLong { size: header.size }),
        }
    }

    /// Whether the client waits for an answer.
    pub const fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    fn answer(&self, flags: u32, errno: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.command.to_ne_bytes());
        bytes.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(errno.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    /// The answer of a command that succeeded.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        self.answer(REPLY, 0, payload)
    }

    /// The answer of a command that failed.
    pub fn refuse(&self, errno: Errno) -> Vec<u8> {
        self.answer(REPLY | ERROR, errno.raw_os_error().unsigned_abs(), &[])
    }
}

/// A command that is not carried out: the reply's errno, and the mistake.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{why} ({errno})")]
pub struct Refusal {
    pub errno: Errno,
    pub why: String,
}

impl Refusal {
    pub fn new(errno: Errno, why: String) -> Self {
        Self { errno, why }
    }

    pub fn invalid(why: String) -> Self {
        Self::new(Errno::INVAL, why)
    }
}

/// The data of a command about interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'a> {
    None,
    /// A byte for each interrupt.
    Bool(&'a [u8]),
    /// Descriptors beside the message.
    Eventfd,
}

impl IrqData<'_> {
    /// Whether the command is about the interrupt at this place.
    pub fn names(&self, at: usize) -> bool {
        match self {
            Self::Bool(bytes) => bytes.get(at).is_some_and(|byte| *byte != 0),
            Self::None | Self::Eventfd => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    Mask,
    Unmask,
    Trigger,
}

/// A command about interrupts `start` to `start + count` of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    pub index: u32,
    pub start: u32,
    pub count: u32,
    pub data: IrqData<'a>,
    pub action: IrqAction,
}

/// A window of guest memory: `size` bytes of a file, from `offset`, at `address`; and the device's rights there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    pub read: bool,
    pub write: bool,
    pub offset: u64,
    pub address: u64,
    pub size: u64,
}

/// A command with its operands, as a client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Version { major: u16, minor: u16, data: &'a [u8] },
    Map(DmaMap),
    Unmap { all: bool, address: u64, size: u64 },
    DeviceInfo,
    RegionInfo { index: u32 },
    IrqInfo { index: u32 },
    SetIrqs(SetIrqs<'a>),
    Read { region: u32, offset: u64, count: u32 },
    Write { region: u32, offset: u64, data: &'a [u8] },
    Reset,
}

fn exactly(payload: &[u8], bytes: usize, name: &str) -> Result<(), Refusal> {
    match payload.len() {
        length if length == bytes => Ok(()),
        length => Err(Refusal::invalid(format!("{name} with {length} bytes; it has {bytes}"))),
    }
}

/// Checks that the client has room for an answer of `bytes`.
fn room(payload: &[u8], bytes: u32, name: &str) -> Result<(), Refusal> {
    match u32_at(payload, 0) {
        argsz if argsz >= bytes => Ok(()),
        argsz => Err(Refusal::invalid(format!("{name} with room for {argsz} bytes; the answer has {bytes}"))),
    }
}

impl<'a> Request<'a> {
    /// Decodes the payload of a command.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn decode(number: u16, payload: &'a [u8]) -> Result<Self, Refusal> {
        match number {
            command::VERSION if payload.len() >= 4 => Ok(Self::Version {
                major: u16_at(payload, 0),
                minor: u16_at(payload, 2),
                data: &payload[4..],
            }),
            command::VERSION => Err(Refusal::invalid(format!("VERSION with {} bytes", payload.len()))),
            command::DMA_MAP => Self::decode_map(payload),
            command::DMA_UNMAP => Self::decode_unmap(payload),
            command::DEVICE_INFO => {
                exactly(payload, 16, "DEVICE_GET_INFO")?;
                room(payload, 16, "DEVICE_GET_INFO")?;
                Ok(Self::DeviceInfo)
            }
            command::REGION_INFO => {
                exactly(payload, 32, "DEVICE_GET_REGION_INFO")?;
                room(payload, 32, "DEVICE_GET_REGION_INFO")?;
                Ok(Self::RegionInfo { index: u32_at(payload, 8) })
            }
            command::IRQ_INFO => {
                exactly(payload, 16, "DEVICE_GET_IRQ_INFO")?;
                room(payload, 16, "DEVICE_GET_IRQ_INFO")?;
                Ok(Self::IrqInfo { index: u32_at(payload, 8) })
            }
            command::SET_IRQS => Self::decode_irqs(payload).map(Self::SetIrqs),
            command::REGION_READ => {
                exactly(payload, 16, "REGION_READ")?;
                Ok(Self::Read {
                    offset: u64_at(payload, 0),
                    region: u32_at(payload, 8),
                    count: u32_at(payload, 12),
                })
            }
            command::REGION_WRITE => {
                let count = u32_at(payload, 12) as usize;
                exactly(payload, 16_usize.saturating_add(count), "REGION_WRITE")?;
                Ok(Self::Write {
                    offset: u64_at(payload, 0),
                    region: u32_at(payload, 8),
                    data: payload.get(16..).unwrap_or_default(),
                })
            }
            command::RESET => exactly(payload, 0, "DEVICE_RESET").map(|()| Self::Reset),
            other => Err(Refusal::new(
                Errno::OPNOTSUPP,
                format!("command {other}, which this device does not have"),
            )),
        }
    }

    fn decode_map(payload: &'a [u8]) -> Result<Self, Refusal> {
        exactly(payload, 32, "DMA_MAP")?;
        match u32_at(payload, 4) {
            flags @ 1..=3 => Ok(Self::Map(DmaMap {
                read: flags & 1 != 0,
                write: flags & 2 != 0,
                offset: u64_at(payload, 8),
                address: u64_at(payload, 16),
                size: u64_at(payload, 24),
            })),
            flags => Err(Refusal::invalid(format!("DMA_MAP with flags {flags:#x}; 1 is read, 2 is write"))),
        }
    }

    fn decode_unmap(payload: &'a [u8]) -> Result<Self, Refusal> {
        exactly(payload, 24, "DMA_UNMAP")?;
        let address = u64_at(payload, 8);
        let size = u64_at(payload, 16);
        match u32_at(payload, 4) {
            0 => Ok(Self::Unmap { all: false, address, size }),
            2 if address == 0 && size == 0 => Ok(Self::Unmap { all: true, address, size }),
            2 => Err(Refusal::invalid(format!(
                "DMA_UNMAP of all windows with {size:#x} bytes at {address:#x}"
            ))),
            flags => {
                Err(Refusal::invalid(format!("DMA_UNMAP with flags {flags:#x}; 2 stands for all windows")))
            }
        }
    }

    fn decode_irqs(payload: &'a [u8]) -> Result<SetIrqs<'a>, Refusal> {
        let rest = payload.get(20..);
        let rest = rest.ok_or_else(|| Refusal::invalid(format!("SET_IRQS with {} bytes", payload.len())))?;
        let flags = u32_at(payload, 4);
        let count = u32_at(payload, 16);
        let (data, length) = match flags & 7 {
            1 => (IrqData::None, 0),
            2 => (IrqData::Bool(rest), count as usize),
            4 => (IrqData::Eventfd, 0),
            _ => {
                return Err(Refusal::invalid(format!(
                    "SET_IRQS with flags {flags:#x}: no kind of data, or several"
                )));
            }
        };
        exactly(rest, length, "the data of SET_IRQS")?;
        let action = match flags >> 3 {
            1 => IrqAction::Mask,
            2 => IrqAction::Unmask,
            4 => IrqAction::Trigger,
            _ => {
                return Err(Refusal::invalid(format!(
                    "SET_IRQS with flags {flags:#x}: no action, or several"
                )));
            }
        };
        Ok(SetIrqs { index: u32_at(payload, 8), start: u32_at(payload, 12), count, data, action })
    }
}
