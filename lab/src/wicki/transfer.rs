//! Transfers as the thesis measures them from the kernel (section 4.1): one at a time, and several at once.
//!
//! ```text
//! settings + size ──► ChannelConfig ──► Machine::run ──► time ──► MiB/s
//! ```
//!
//! Frames lie one after the other, source before destination, each as long as the transfer. The image of a rotation has
//! 2^⌈b/2⌉ by 2^⌊b/2⌋ pixels of a byte for 2^b bytes, and the destination is walked, as in the thesis.

use memferry_drivers::sdma::{
    Addressing, ChannelConfig, Element, Operation, Piece, Settings as Global, Side, TransferSize, split,
};
use memferry_registers::sdma::{BurstSize, WriteMode};
use serde::Deserialize;

use super::machine::{MEMORY, Machine, MachineError};
use crate::experiments::{RunError, Runner};
use crate::plan::Line;
use crate::table::Series;

/// One transfer of each size of the sweep.
pub(super) const ONE: Runner = Runner { name: "transfer", run: one };

/// As many transfers at once as the sweep says: throughput of all together and, on average, of each.
pub(super) const SEVERAL: Runner = Runner { name: "several", run: several };

/// Colour of fills, and of the pixels that a transparent copy leaves out.
const COLOUR: u32 = 0x0012_3456;

const PICOSECONDS_OF_A_SECOND: f64 = 1e12;
const MIB: f64 = 1_048_576.0;

/// How a port is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Port {
    /// One element at a time.
    Plain,
    /// As many as the port is wide.
    Packed,
    #[serde(rename = "burst-16")]
    Burst16,
    #[serde(rename = "burst-32")]
    Burst32,
    #[default]
    #[serde(rename = "burst-64")]
    Burst64,
}

/// What is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    #[default]
    Copy,
    Transparent,
    Fill,
    Rotate90,
    Rotate180,
    Rotate270,
}

/// How writes are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Writes {
    Posted,
    #[default]
    LastNonPosted,
    NonPosted,
}

/// What a plan says of a line.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    #[serde(default)]
    operation: What,
    /// Bits of an element.
    #[serde(default = "bits")]
    element: u32,
    #[serde(default)]
    source: Port,
    #[serde(default)]
    destination: Port,
    #[serde(default)]
    writes: Writes,
    /// Share of the source's pixels that a transparent copy leaves out, in percent.
    #[serde(default)]
    matching: u32,
    /// The driver's without it.
    fifo_depth: Option<u8>,
    /// Bytes of each of several transfers.
    bytes: Option<u32>,
}

const fn bits() -> u32 {
    32
}

/// Why a line cannot be run.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("an element has 8, 16 or 32 bits, not {bits}")]
    Element { bits: u32 },
    #[error("{bytes} bytes are no number of elements that one block holds")]
    Size { bytes: u32 },
    #[error("say how many bytes each transfer has")]
    NoBytes,
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl Port {
    const fn side(self, address: u64) -> Side {
        let burst = match self {
            Self::Plain | Self::Packed => BurstSize::Single,
            Self::Burst16 => BurstSize::Bytes16,
            Self::Burst32 => BurstSize::Bytes32,
            Self::Burst64 => BurstSize::Bytes64,
        };
        Side { packed: !matches!(self, Self::Plain), burst, ..Side::memory(address) }
    }
}

impl Settings {
    fn element(&self) -> Result<Element, TransferError> {
        let found = Element::ALL.into_iter().find(|element| element.bytes() * 8 == self.element);
        found.ok_or(TransferError::Element { bits: self.element })
    }

    fn fifo_depth(&self) -> u8 {
        self.fifo_depth.unwrap_or(Global::default().fifo_depth)
    }

    /// The transfer of `bytes` bytes whose frames are the pair with this number.
    fn config(&self, bytes: u32, pair: u32) -> Result<ChannelConfig, TransferError> {
        let from = MEMORY + u64::from(pair) * 2 * u64::from(bytes);
        let to = from + u64::from(bytes);
        let piece = match self.operation {
            What::Copy | What::Transparent | What::Fill => {
                let element = self.element()?;
                let mut blocks = split(u64::from(bytes / element.bytes()));
                let (Some(block), None) = (blocks.next(), blocks.next()) else {
                    return Err(TransferError::Size { bytes });
                };
                let size = TransferSize { element, elements: block.elements, frames: block.frames };
                Piece { size, source: self.source.side(from), destination: self.destination.side(to) }
            }
            What::Rotate90 | What::Rotate180 | What::Rotate270 => self.turned(bytes, from, to),
        };
        let operation = match self.operation {
            What::Fill => Operation::Fill { color: COLOUR },
            What::Transparent => Operation::TransparentCopy { color: COLOUR },
            _ => Operation::Copy,
        };
        let write_mode = match self.writes {
            Writes::Posted => WriteMode::Posted,
            Writes::LastNonPosted => WriteMode::LastNonPosted,
            Writes::NonPosted => WriteMode::NonPosted,
        };
        Ok(ChannelConfig { write_mode, ..ChannelConfig::new(operation, piece) })
    }

    /// The rotation of a picture of pixels of a byte: rows are read one after the other, pixels go where they belong.
    fn turned(&self, bytes: u32, from: u64, to: u64) -> Piece {
        let power = bytes.ilog2();
        let (width, height) = (1i64 << power.div_ceil(2), 1i64 << (power / 2));
        // Offset of the first pixel, step to the next of a row, step from one row's last to the next row's first.
        let (first, step, row) = match self.operation {
            What::Rotate90 => (height - 1, height, -(width - 1) * height - 1),
            What::Rotate270 => ((width - 1) * height, -height, (width - 1) * height + 1),
            _ => (width * height - 1, -1, -1),
        };
        // An element's last byte is its first, so that steps are indexes.
        let addressing = Addressing::DoubleIndex { element_index: step, frame_index: row };
        let start = to.saturating_add_signed(first);
        Piece {
            size: TransferSize { element: Element::Bits8, elements: width as u32, frames: height as u32 },
            source: self.source.side(from),
            destination: Side::indexed(start, addressing),
        }
    }

    /// Puts the share of matching pixels into the memory's bytes, spread evenly.
    fn paint(&self, memory: &mut [u8]) {
        if self.operation == What::Transparent {
            for (at, pixel) in memory.chunks_exact_mut(4).enumerate() {
                let matches = (at as u32).wrapping_mul(37) % 100 < self.matching;
                let value = if matches { COLOUR } else { !COLOUR };
                pixel.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn throughput(bytes: f64, picoseconds: u128) -> f64 {
    bytes / MIB * PICOSECONDS_OF_A_SECOND / picoseconds.max(1) as f64
}

fn one(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let point = |x: f64| -> Result<(f64, f64), TransferError> {
        let mut machine = Machine::new(line.parameters, settings.fifo_depth())?;
        machine.memory(|memory| settings.paint(memory));
        let ends = machine.run(&[settings.config(x as u32, 0)?])?;
        Ok((x, throughput(x, ends.into_iter().max().unwrap_or(1))))
    };
    let points: Result<Vec<_>, TransferError> = line.plan.points().into_iter().map(point).collect();
    let points = points.map_err(|error| line.failed(error))?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

fn several(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let point = |x: f64| -> Result<(f64, f64, f64), TransferError> {
        let bytes = settings.bytes.ok_or(TransferError::NoBytes)?;
        let mut machine = Machine::new(line.parameters, settings.fifo_depth())?;
        let configs: Result<Vec<_>, _> = (0..x as u32).map(|pair| settings.config(bytes, pair)).collect();
        let ends = machine.run(&configs?)?;
        let all = throughput(f64::from(bytes) * x, ends.iter().copied().max().unwrap_or(1));
        let each = ends.iter().map(|end| throughput(f64::from(bytes), *end)).sum::<f64>() / x;
        Ok((x, all, each))
    };
    let points: Result<Vec<_>, TransferError> = line.plan.points().into_iter().map(point).collect();
    let points = points.map_err(|error| line.failed(error))?;
    let label = &line.series.label;
    let series = |name: &str, of: fn(&(f64, f64, f64)) -> (f64, f64)| Series {
        label: format!("{label}, {name}"),
        points: points.iter().map(of).collect(),
    };
    Ok(vec![series("aggregate", |at| (at.0, at.1)), series("per channel", |at| (at.0, at.2))])
}
