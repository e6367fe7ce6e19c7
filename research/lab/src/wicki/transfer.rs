//! Transfers measured as in the thesis from the kernel (section 4.1): one at a time, and several at once.
//!
//! ```text
//! settings + size ──► ChannelConfig ──► Machine::run ──► time ──► MiB/s
//! ```
//!
//! Frames lie one after the other, source before destination, each as long as the transfer. The image of a rotation has
//! 2^⌈b/2⌉ by 2^⌊b/2⌋ one-byte pixels for 2^b bytes; the source is read in order and the destination is indexed, as in
//! the thesis.

use memferry_drivers::sdma::{
    Addressing, ChannelConfig, Element, Operation, Piece, Settings as Global, Side, TransferSize, split,
};
use memferry_registers::sdma::{BurstSize, WriteMode};
use serde::Deserialize;

use super::machine::{MEMORY, Machine, MachineError};
use crate::paper::{Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;

/// One transfer of each size of the sweep.
pub(super) const ONE: Runner = Runner { name: "transfer", run: one };

/// Several transfers at once, by their number: total throughput and mean throughput of each.
pub(super) const SEVERAL: Runner = Runner { name: "several", run: several };

/// Colour of fills, and of the pixels that a transparent copy leaves out.
const COLOUR: u32 = 0x0012_3456;

const PICOSECONDS_OF_A_SECOND: f64 = 1e12;
const MIB: f64 = 1_048_576.0;

/// Access mode of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Port {
    /// One element at a time.
    Plain,
    /// As many elements as fit the port's width.
    Packed,
    #[serde(rename = "burst-16")]
    Burst16,
    #[serde(rename = "burst-32")]
    Burst32,
    #[default]
    #[serde(rename = "burst-64")]
    Burst64,
}

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

/// Which writes are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Writes {
    Posted,
    #[default]
    LastNonPosted,
    NonPosted,
}

/// Settings of a line in a plan.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    operation: What,
    /// Bits of an element.
    element: u32,
    source: Port,
    destination: Port,
    writes: Writes,
    /// Percentage of the source's pixels that a transparent copy leaves out.
    matching: u32,
    /// Defaults to the driver's own depth.
    fifo_depth: Option<u8>,
    /// Bytes of each of several transfers.
    bytes: Option<u32>,
}

impl Default for Settings {
    /// A copy of 32-bit elements with 64-byte bursts, the driver's default.
    fn default() -> Self {
        Self {
            operation: What::default(),
            element: 32,
            source: Port::default(),
            destination: Port::default(),
            writes: Writes::default(),
            matching: 0,
            fifo_depth: None,
            bytes: None,
        }
    }
}

/// Why a line cannot be computed.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("an element has 8, 16 or 32 bits, not {bits}")]
    Element { bits: u32 },
    #[error("{bytes} bytes are not a number of elements that fits one block")]
    Size { bytes: u32 },
    #[error("set `bytes`, the size of each transfer")]
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

    /// The transfer of `bytes` bytes between the frames of pair `pair`.
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

    /// The rotation of a picture with one-byte pixels: reads row by row, writes each pixel to its rotated position.
    fn turned(&self, bytes: u32, from: u64, to: u64) -> Piece {
        let power = bytes.ilog2();
        let width = 1i64 << power.div_ceil(2);
        let height = 1i64 << (power / 2);
        // Offset of the first pixel, step to the next pixel of a row, step from the end of a row to the start of the next.
        let (first, step, row) = match self.operation {
            What::Rotate90 => (height - 1, height, -(width - 1) * height - 1),
            What::Rotate270 => ((width - 1) * height, -height, (width - 1) * height + 1),
            _ => (width * height - 1, -1, -1),
        };
        // Steps count from an element's last byte; elements have one byte, so steps are indexes.
        let addressing = Addressing::DoubleIndex { element_index: step, frame_index: row };
        let start = to.saturating_add_signed(first);
        Piece {
            size: TransferSize { element: Element::Bits8, elements: width as u32, frames: height as u32 },
            source: self.source.side(from),
            destination: Side::indexed(start, addressing),
        }
    }

    /// The time of each of several transfers that run at once.
    fn run(&self, parameters: &Parameters, bytes: u32, transfers: u32) -> Result<Vec<u128>, TransferError> {
        let mut machine = Machine::new(parameters, self.fifo_depth())?;
        machine.memory(|memory| self.paint(memory));
        let configs: Result<Vec<_>, _> = (0..transfers).map(|pair| self.config(bytes, pair)).collect();
        Ok(machine.run(&configs?)?)
    }

    /// Puts matching pixels into the memory, spread evenly.
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
        let ends = settings.run(line.parameters, x as u32, 1)?;
        Ok((x, throughput(x, ends.into_iter().max().unwrap_or(1))))
    };
    let points: Result<Vec<_>, TransferError> = line.plan.points().into_iter().map(point).collect();
    let points = points.map_err(|error| line.failed(error))?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// Total throughput in MiB/s of several copies with 64-byte bursts at once.
///
/// # Errors
/// A message, if they could not run.
pub(super) fn together(parameters: &Parameters, bytes: u32, channels: u32) -> Result<f64, String> {
    let settings = Settings::default();
    let ends = settings.run(parameters, bytes, channels).map_err(|error| error.to_string())?;
    Ok(throughput(f64::from(bytes) * f64::from(channels), ends.into_iter().max().unwrap_or(1)))
}

fn several(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let point = |x: f64| -> Result<(f64, f64, f64), TransferError> {
        let bytes = settings.bytes.ok_or(TransferError::NoBytes)?;
        let ends = settings.run(line.parameters, bytes, x as u32)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wicki::PAPER;

    fn moved(settings: Settings, bytes: u32) -> (Vec<u8>, Vec<u8>) {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let mut machine = Machine::new(&parameters, settings.fifo_depth()).expect("comes up");
        let source: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        machine.memory(|memory| memory[..source.len()].copy_from_slice(&source));
        machine.run(&[settings.config(bytes, 0).expect("fits")]).expect("runs");
        let destination = machine.memory(|memory| memory[source.len()..2 * source.len()].to_vec());
        (source, destination)
    }

    #[test]
    fn copies_are_right_with_every_access() {
        for port in [Port::Plain, Port::Packed, Port::Burst16, Port::Burst32, Port::Burst64] {
            for (element, fifo_depth) in [(8, None), (16, Some(16)), (32, Some(255))] {
                let settings =
                    Settings { element, source: port, destination: port, fifo_depth, ..Settings::default() };
                let (source, destination) = moved(settings, 4096);
                assert_eq!(source, destination, "{settings:?}");
            }
        }
    }

    #[test]
    fn rotations_are_clockwise() {
        let width = 64;
        let height = 32;
        for (operation, to) in [
            (What::Rotate90, (|x, y, _, h| x * h + (h - 1 - y)) as fn(usize, usize, usize, usize) -> usize),
            (What::Rotate180, |x, y, w, h| (h - 1 - y) * w + (w - 1 - x)),
            (What::Rotate270, |x, y, w, h| (w - 1 - x) * h + y),
        ] {
            let (source, destination) = moved(Settings { operation, ..Settings::default() }, 2048);
            let right = (0..height)
                .all(|y| (0..width).all(|x| source[y * width + x] == destination[to(x, y, width, height)]));
            assert!(right, "{operation:?}");
        }
    }

    #[test]
    fn bad_settings_are_refused() {
        assert!(toml::from_str::<Settings>("sauce = 'burst-64'").is_err());
        let odd: Settings = toml::from_str("element = 24").expect("a number");
        assert!(matches!(odd.config(4096, 0), Err(TransferError::Element { bits: 24 })));
    }
}
