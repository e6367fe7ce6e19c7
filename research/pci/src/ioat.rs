//! Intel's I/OAT engine behind the PCI shell.
//!
//! ```text
//! BAR 0: registers at 0x0 and 0x80 for each channel; with MSI-X the table at 0x1000 and pending bits at 0x1800
//! ```
//!
//! The model is [`memferry_models::ioat`], the bus the guest's memory. It holds interrupts that come unarmed, because Linux's driver stalls
//! without (see [`Unarmed`]). Identities and the registers of configuration space are those that Linux's driver looks for; the
//! place of the MSI-X table, too. Version 3.3 stands in for an Atom S1200's engine, the only one of that version whose XOR Linux uses.

use memferry_clock::Instant;
use memferry_models::ioat::{Config, Ioat, Planned, Unarmed};
use memferry_registers::ioat::{Cbver, DmaCapability};
use memferry_registers::{NarrowIo, RegisterIo};
use thiserror::Error;

use crate::function::{Bar, ConfigRegister, Description, Function, Signalling, pieces};
use crate::memory::Memory;

const INTEL: u16 = 0x8086;
const BAR_BYTES: u64 = 0x4000;
const TABLE: u32 = 0x1000;
const PENDING: u32 = 0x1800;
/// Errors of a channel, and their mask, as Linux's driver reads and clears them below version 3.3.
const CHANERR_INT: u16 = 0x180;
/// Parity errors of configuration space, which Linux's driver clears in version 3.0.
const DMAUNCERRSTS: u16 = 0x148;

/// A version of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The 5500 chipset's.
    V3_0,
    /// The Xeon C5500's. Linux uses no XOR on it.
    #[default]
    V3_2,
    /// The Atom S1200's.
    V3_3,
}

/// A version that the model does not have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("there is no version {0}; choose 3.0, 3.2 or 3.3")]
pub struct NoVersion(String);

impl std::str::FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        match text {
            "3.0" => Ok(Self::V3_0),
            "3.2" => Ok(Self::V3_2),
            "3.3" => Ok(Self::V3_3),
            other => Err(NoVersion(other.to_owned())),
        }
    }
}

impl Version {
    const fn device(self) -> u16 {
        match self {
            Self::V3_0 => 0x3430,
            Self::V3_2 => 0x3710,
            Self::V3_3 => 0x0C50,
        }
    }

    const fn minor(self) -> u8 {
        match self {
            Self::V3_0 => 0,
            Self::V3_2 => 2,
            Self::V3_3 => 3,
        }
    }
}

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct IoatOptions {
    /// 1 to 4.
    pub channels: u8,
    pub version: Version,
    /// Another device number than the version's.
    pub device: Option<u16>,
    pub signalling: Interrupting,
    pub faults: Vec<Planned>,
}

/// The best way of interrupting that the device offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupting {
    Intx,
    #[default]
    Msi,
    /// A vector for each channel.
    MsiX,
}

impl Default for IoatOptions {
    fn default() -> Self {
        Self {
            channels: 4,
            version: Version::default(),
            device: None,
            signalling: Interrupting::default(),
            faults: Vec::new(),
        }
    }
}

/// An I/OAT engine in front of a guest's memory.
#[derive(Debug)]
pub struct IoatFunction {
    model: Ioat<Memory>,
    options: IoatOptions,
    config: Config,
    memory: Memory,
}

impl IoatFunction {
    pub fn new(options: IoatOptions, memory: Memory) -> Self {
        let channels = options.channels.clamp(1, 4);
        let config = Config {
            version: Cbver::new().with_major(3).with_minor(options.version.minor()),
            capability: DmaCapability::new().with_block_fill(true).with_xor(true),
            channels,
            unarmed: Unarmed::Held,
            ..Config::default()
        };
        let options = IoatOptions { channels, ..options };
        let model = made(config, &options, &memory);
        Self { model, options, config, memory }
    }
}

fn made(config: Config, options: &IoatOptions, memory: &Memory) -> Ioat<Memory> {
    let mut model = Ioat::new(config, memory.clone());
    options.faults.iter().for_each(|planned| model.faults().plan(*planned));
    model
}

impl Function for IoatFunction {
    fn describe(&self) -> Description {
        let signalling = match self.options.signalling {
            Interrupting::Intx => Signalling::Intx,
            Interrupting::Msi => Signalling::Msi,
            Interrupting::MsiX => {
                let vectors = self.options.channels.into();
                Signalling::MsiX { vectors, bar: 0, table: TABLE, pending: PENDING }
            }
        };
        let clears = |offset| ConfigRegister { offset, value: 0, clears: u32::MAX };
        Description {
            name: "I/OAT",
            vendor: INTEL,
            device: self.options.device.unwrap_or(self.options.version.device()),
            revision: 0,
            // A system peripheral that has no class of its own.
            class: [0x08, 0x80, 0x00],
            bars: vec![Bar { index: 0, bytes: BAR_BYTES }],
            signalling,
            registers: vec![clears(DMAUNCERRSTS), clears(CHANERR_INT)],
        }
    }

    fn read(&mut self, _bar: usize, offset: u64, bytes: &mut [u8]) {
        for (at, length) in pieces(offset, bytes.len(), 4) {
            let from = (offset + at as u64) as u32;
            let value = match length {
                1 => u32::from(self.model.read8(from)),
                2 => u32::from(self.model.read16(from)),
                _ => RegisterIo::read(&mut self.model, from),
            };
            bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
        }
    }

    fn write(&mut self, _bar: usize, offset: u64, bytes: &[u8]) {
        for (at, length) in pieces(offset, bytes.len(), 4) {
            let to = (offset + at as u64) as u32;
            match &bytes[at..at + length] {
                [a] => self.model.write8(to, *a),
                [a, b] => self.model.write16(to, u16::from_le_bytes([*a, *b])),
                [a, b, c, d] => RegisterIo::write(&mut self.model, to, u32::from_le_bytes([*a, *b, *c, *d])),
                _ => {}
            }
        }
    }

    fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.model.step(now)
    }

    fn now(&self) -> Instant {
        self.model.now()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.model.next_wake()
    }

    fn level(&self) -> bool {
        self.model.line(0)
    }

    fn take_messages(&mut self) -> u64 {
        self.model.take_messages().into()
    }

    fn reset(&mut self) {
        // The device's time goes on.
        let now = self.model.now();
        self.model = made(self.config, &self.options, &self.memory);
        self.model.step(now);
    }

    fn take_report(&mut self) -> Vec<String> {
        let left_out = self.model.complaints_left_out();
        let mut report: Vec<String> =
            self.model.take_complaints().iter().map(|complaint| format!("complaint: {complaint}")).collect();
        if left_out > 0 {
            report.push(format!("{left_out} further complaints"));
        }
        report
    }
}
