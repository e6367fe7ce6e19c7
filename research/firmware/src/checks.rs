//! The checks: each fills the buffers, makes a transfer, and compares every byte of the destination.
//!
//! ```text
//! fill both buffers ──► Bench: initialize, configure, enable, poll until the end ──► compare with expected bytes
//! ```
//!
//! A check computes the expected bytes from its own parameters, not from the driver's plan. Bytes outside the transfer
//! must be unchanged.

mod device;
mod planes;
mod rows;

use core::fmt;
use core::time::Duration;

use memferry_clock::Clock;
use memferry_drivers::sdma::{
    Channel, ChannelConfig, ConfigureError, EnableError, Event, InitError, LinearError, Operation, Piece,
    PlaneError, RotationError, Sdma, Settings,
};

use crate::hardware::{Buffer, Counter, Registers};

/// Name and function of a check.
pub(crate) type Check = (&'static str, fn() -> Result<(), Failure>);

/// Every check, in order of execution.
pub(crate) const ALL: [Check; 19] = [
    ("linear copy, 8-bit elements", rows::copy_8),
    ("linear copy, 16-bit elements", rows::copy_16),
    ("linear copy, 32-bit elements", rows::copy_32),
    ("copy of 60000 bytes as planned", rows::copy_60000),
    ("copy on odd addresses", rows::copy_odd),
    ("fill, 8-bit elements", rows::fill_8),
    ("fill, 16-bit elements", rows::fill_16),
    ("fill, 32-bit elements with a zero upper byte", rows::fill_32),
    ("transparent copy, 16-bit elements", rows::transparent_16),
    ("transparent copy, 32-bit elements", rows::transparent_32),
    ("single index on the source", planes::single_index),
    ("rows apart on the source", planes::rows_apart),
    ("rotation by 90 degrees", planes::quarter_turn),
    ("rotation by 180 degrees", planes::half_turn),
    ("rotation by 270 degrees", planes::three_quarter_turn),
    ("channel 31", device::last_channel),
    ("block interrupt on line L0", device::block_interrupt),
    ("linked lists refused by a revision without them", device::no_linked_lists),
    ("soft reset", device::soft_reset),
];

/// Reason why a check failed.
pub(crate) enum Failure {
    Init(InitError),
    Configure(ConfigureError),
    Enable(EnableError),
    Linear(LinearError),
    Plane(PlaneError),
    Rotation(RotationError),
    NotEnded,
    Reported(Event),
    Byte { offset: u32, expected: u8, found: u8 },
    Other(&'static str),
}

macro_rules! from {
    ($($variant:ident($error:ty)),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from!(
    Init(InitError),
    Configure(ConfigureError),
    Enable(EnableError),
    Linear(LinearError),
    Plane(PlaneError),
    Rotation(RotationError)
);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init(error) => error.fmt(f),
            Self::Configure(error) => error.fmt(f),
            Self::Enable(error) => error.fmt(f),
            Self::Linear(error) => error.fmt(f),
            Self::Plane(error) => error.fmt(f),
            Self::Rotation(error) => error.fmt(f),
            Self::NotEnded => f.write_str("the channel did not end in two seconds"),
            Self::Reported(event) => write!(f, "unexpected event: {}", event.status),
            Self::Byte { offset, expected, found } => {
                write!(f, "byte {offset} of the destination is {found:#04x}, expected {expected:#04x}")
            }
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

/// Maximum duration of a transfer, by the machine's counter.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A driver of a device after a reset, and one channel.
pub(crate) struct Bench {
    pub(crate) sdma: Sdma<Registers, Counter>,
    pub(crate) channel: Channel,
}

impl Bench {
    pub(crate) fn new(channel: u8) -> Result<Self, Failure> {
        let (mut sdma, _trusted) = Sdma::new(Registers, Counter);
        sdma.initialize(&Settings::default())?;
        let channel = sdma
            .take(channel)
            .map_err(|_| Failure::Other("a channel is taken right after initialization"))?;
        Ok(Self { sdma, channel })
    }

    /// Makes one transfer and waits for its end by polling.
    pub(crate) fn transfer(&mut self, config: &ChannelConfig) -> Result<(), Failure> {
        self.sdma.configure(&self.channel, config, None)?;
        self.sdma.enable(&self.channel)?;
        let deadline = Counter.now().after(TIMEOUT);
        while Counter.now() < deadline {
            match self.sdma.poll(&self.channel) {
                Some(event) if event.error().is_some() => return Err(Failure::Reported(event)),
                Some(event) if event.is_end() && !self.sdma.is_running(&self.channel) => return Ok(()),
                _ => {}
            }
        }
        Err(Failure::NotEnded)
    }

    /// Makes all transfers of a plan.
    pub(crate) fn transfer_all(
        &mut self,
        operation: Operation,
        pieces: impl Iterator<Item = Piece>,
    ) -> Result<(), Failure> {
        for piece in pieces {
            self.transfer(&ChannelConfig::new(operation, piece))?;
        }
        Ok(())
    }
}

/// Byte of the destination before a transfer; different from the source's at almost every offset.
pub(crate) fn initial_byte(offset: u32) -> u8 {
    (offset.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Fills source and destination with different bytes.
pub(crate) fn fill_buffers() {
    for offset in 0..Buffer::LENGTH {
        Buffer::SOURCE.set(offset, (offset.wrapping_mul(0x85eb_ca6b) >> 23) as u8);
        Buffer::DESTINATION.set(offset, initial_byte(offset));
    }
}

/// Compares the whole destination. `expected` returns the byte at an offset that the transfer writes, otherwise `None`.
pub(crate) fn compare(expected: impl Fn(u32) -> Option<u8>) -> Result<(), Failure> {
    for offset in 0..Buffer::LENGTH {
        let expected = expected(offset).unwrap_or_else(|| initial_byte(offset));
        let found = Buffer::DESTINATION.get(offset);
        if found != expected {
            return Err(Failure::Byte { offset, expected, found });
        }
    }
    Ok(())
}
