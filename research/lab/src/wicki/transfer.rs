//! Transfers measured as in the thesis from the kernel (section 4.1): one at a time, and several at once.
//!
//! ```text
//! settings + size ──► ChannelConfig ──► Machine::run ──► time ──► MiB/s
//! ```
//!
//! The thesis does not say where its frames lie, nor at which point of the memory's refresh a transfer starts, and both
//! matter: streams in the same bank close each other's rows. A point is the mean over several placements drawn at random:
//! each frame begins at any page, the first transfer at any time, the others within a microsecond of each other. A line
//! with `spread` also gives the lowest and the highest placement.
//!
//! The image of a rotation has 2^⌈b/2⌉ by 2^⌊b/2⌋ one-byte pixels for 2^b bytes; the source is read in order and the
//! destination is indexed, as in the thesis.

use memferry_drivers::sdma::{
    Addressing, ChannelConfig, Element, Operation, Piece, Side, TransferSize, split,
};
use memferry_registers::sdma::{BurstSize, WriteMode};
use serde::Deserialize;

use super::machine::{self, MEMORY, Machine, MachineError, Start};
use crate::once::Once;
use crate::paper::{Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::rng::Rng;
use crate::table::Series;

/// One transfer of each size of the sweep.
pub(super) const ONE: Runner = Runner { name: "transfer", run: one };

/// Several transfers at once, by their number: total throughput and mean throughput of each.
pub(super) const SEVERAL: Runner = Runner { name: "several", run: several };

/// Colour of fills, and of the pixels that a transparent copy leaves out.
const COLOUR: u32 = 0x0012_3456;

/// Placements of a point, at most, and accesses for which there may be several.
const PLACEMENTS: u64 = 8;
const ACCESSES: u64 = 1 << 19;

/// Pages in which a frame may begin; more than the memory's rows before they repeat.
const PAGES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// Picoseconds in which the first transfer starts, a refresh interval, and in which the others do.
const FIRST_WITHIN: u64 = 3_900_000;
const OTHERS_WITHIN: u64 = 1_000_000;

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
    /// Defaults to what the thesis's driver sets.
    fifo_depth: Option<u8>,
    /// Whether the line also gives the lowest and the highest placement.
    spread: bool,
    /// Bytes of each of several transfers.
    bytes: Option<u32>,
    /// The only placement that is measured, as when the same frames are used throughout.
    placement: Option<u64>,
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
            spread: false,
            bytes: None,
            placement: None,
        }
    }
}

/// Why a line cannot be computed.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// Bytes of an access, for elements of `element` bytes.
    const fn bytes(self, element: u32) -> u32 {
        match self {
            Self::Plain => element,
            Self::Packed => 8,
            Self::Burst16 => 16,
            Self::Burst32 => 32,
            Self::Burst64 => 64,
        }
    }

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

    fn fifo_depth(&self, parameters: &Parameters) -> Result<u8, TransferError> {
        match self.fifo_depth {
            Some(depth) => Ok(depth),
            None => Ok(machine::fifo_depth(parameters).map_err(MachineError::from)?),
        }
    }

    /// Placements over which transfers of `bytes` bytes in all are averaged: fewer of what takes many accesses.
    fn placements(&self, bytes: u64) -> u64 {
        let element = self.element / 8;
        let turned = matches!(self.operation, What::Rotate90 | What::Rotate180 | What::Rotate270);
        let written = if turned { 1 } else { self.destination.bytes(element) };
        let read = if self.operation == What::Fill { written } else { self.source.bytes(element) };
        (ACCESSES * u64::from(read.min(written)) / bytes.max(1)).clamp(1, PLACEMENTS)
    }

    /// The transfer of `bytes` bytes between two addresses.
    fn config(&self, bytes: u32, from: u64, to: u64) -> Result<ChannelConfig, TransferError> {
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

    /// The time of each of several transfers that run at once, placed by `draw`.
    fn run(
        &self,
        parameters: &Parameters,
        bytes: u32,
        transfers: u32,
        draw: &mut Rng,
    ) -> Result<Vec<u128>, TransferError> {
        let mut machine = Machine::new(parameters, self.fifo_depth(parameters)?)?;
        machine.memory(|memory| self.paint(memory));
        let room = u64::from(bytes) + PAGES * PAGE_BYTES;
        let mut frame = |place: u64| MEMORY + place * room + draw.below(PAGES) * PAGE_BYTES;
        let places: Vec<_> = (0..u64::from(transfers)).map(|at| (frame(2 * at), frame(2 * at + 1))).collect();
        let mut start = |(at, (from, to)): (usize, (u64, u64))| {
            let pause = draw.below(if at == 0 { FIRST_WITHIN } else { OTHERS_WITHIN });
            Ok::<_, TransferError>(Start { config: self.config(bytes, from, to)?, pause })
        };
        let starts: Result<Vec<_>, _> = places.into_iter().enumerate().map(&mut start).collect();
        Ok(machine.run(&starts?)?)
    }

    /// The total throughput, and the mean of each transfer, in each placement. Figures share many points, and each runs once.
    fn measured(
        &self,
        parameters: &Parameters,
        bytes: u32,
        transfers: u32,
        seed: u64,
    ) -> Result<Vec<(f64, f64)>, TransferError> {
        static KNOWN: Once<Result<Vec<(f64, f64)>, TransferError>> = Once::new();
        // What a line shows and how its sizes are given does not matter to a point.
        let point = Self { spread: false, bytes: None, ..*self };
        let what = format!("{point:?} {bytes} {transfers} {seed}");
        KNOWN.get(&what, parameters, |parameters| self.simulated(parameters, bytes, transfers, seed))
    }

    fn simulated(
        &self,
        parameters: &Parameters,
        bytes: u32,
        transfers: u32,
        seed: u64,
    ) -> Result<Vec<(f64, f64)>, TransferError> {
        let all = u64::from(bytes) * u64::from(transfers);
        let of = |placement: u64| {
            let mut draw = Rng::of_neighbour(seed.wrapping_mul(1 << 16) + placement);
            let ends = self.run(parameters, bytes, transfers, &mut draw)?;
            let together = throughput(all as f64, ends.iter().copied().max().unwrap_or(1));
            let each = ends.iter().map(|end| throughput(f64::from(bytes), *end)).sum::<f64>();
            Ok((together, each / f64::from(transfers.max(1))))
        };
        let all = self.placement.map_or(0..self.placements(all), |only| only..only + 1);
        all.map(of).collect()
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

/// A copy with 64-byte bursts between two addresses.
///
/// # Errors
/// A message, if the bytes do not fit one block.
pub(super) fn burst_copy(bytes: u32, from: u64, to: u64) -> Result<ChannelConfig, String> {
    Settings::default().config(bytes, from, to).map_err(|error| error.to_string())
}

/// Mean, lowest and highest.
fn spread(values: impl Iterator<Item = f64> + Clone) -> [f64; 3] {
    let count = values.clone().count().max(1) as f64;
    let lowest = values.clone().fold(f64::INFINITY, f64::min);
    let highest = values.clone().fold(0.0, f64::max);
    [values.sum::<f64>() / count, lowest, highest]
}

/// The line of the means and, if asked for, those of the lowest and the highest placements.
fn with_spread(label: &str, points: &[(f64, [f64; 3])], asked: bool) -> Vec<Series> {
    let series = |name: &str, of: usize| Series {
        label: format!("{label}{name}"),
        points: points.iter().map(|(x, values)| (*x, values[of])).collect(),
    };
    let mut lines = vec![series("", 0)];
    if asked {
        lines.push(series(", lowest", 1));
        lines.push(series(", highest", 2));
    }
    lines
}

fn one(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let point = |x: f64| -> Result<(f64, [f64; 3]), TransferError> {
        let measured = settings.measured(line.parameters, x as u32, 1, line.plan.seed)?;
        Ok((x, spread(measured.iter().map(|(together, _)| *together))))
    };
    let points: Result<Vec<_>, TransferError> = line.plan.points().into_iter().map(point).collect();
    let points = points.map_err(|error| line.failed(error))?;
    Ok(with_spread(&line.series.label, &points, settings.spread))
}

/// Total throughput in MiB/s of several copies with 64-byte bursts at once, the mean over placements.
///
/// # Errors
/// A message, if they could not run.
pub(super) fn together(parameters: &Parameters, bytes: u32, channels: u32, seed: u64) -> Result<f64, String> {
    let measured = Settings::default().measured(parameters, bytes, channels, seed);
    let measured = measured.map_err(|error| error.to_string())?;
    Ok(spread(measured.iter().map(|(together, _)| *together))[0])
}

fn several(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let point = |x: f64| -> Result<[(f64, [f64; 3]); 2], TransferError> {
        let bytes = settings.bytes.ok_or(TransferError::NoBytes)?;
        let measured = settings.measured(line.parameters, bytes, x as u32, line.plan.seed)?;
        let all = spread(measured.iter().map(|(together, _)| *together));
        let each = spread(measured.iter().map(|(_, each)| *each));
        Ok([(x, all), (x, each)])
    };
    let points: Result<Vec<_>, TransferError> = line.plan.points().into_iter().map(point).collect();
    let points = points.map_err(|error| line.failed(error))?;
    let label = &line.series.label;
    let of = |which: usize| points.iter().map(|both| both[which]).collect::<Vec<_>>();
    let mut lines = with_spread(&format!("{label}, aggregate"), &of(0), settings.spread);
    lines.extend(with_spread(&format!("{label}, per channel"), &of(1), false));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wicki::PAPER;

    fn moved(settings: Settings, bytes: u32) -> (Vec<u8>, Vec<u8>) {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let depth = settings.fifo_depth(&parameters).expect("listed");
        let mut machine = Machine::new(&parameters, depth).expect("comes up");
        let source: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        machine.memory(|memory| memory[..source.len()].copy_from_slice(&source));
        let config = settings.config(bytes, MEMORY, MEMORY + u64::from(bytes)).expect("fits");
        machine.run(&[Start { config, pause: 0 }]).expect("runs");
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
    fn placements_differ_and_are_repeatable() {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let of = |seed| Settings::default().measured(&parameters, 65536, 2, seed).expect("runs");
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let [mean, lowest, highest] = spread(of(1).iter().map(|(together, _)| *together));
        assert_eq!(of(1).len() as u64, PLACEMENTS);
        assert!(lowest < mean && mean < highest, "{lowest} {mean} {highest}");
    }

    #[test]
    fn what_takes_many_accesses_has_fewer_placements() {
        let of = |source, destination, bytes| {
            let settings = Settings { element: 8, source, destination, ..Settings::default() };
            settings.placements(bytes)
        };
        assert_eq!(of(Port::Burst64, Port::Burst64, 1 << 20), PLACEMENTS);
        assert_eq!(of(Port::Burst64, Port::Plain, 1 << 18), 2);
        assert_eq!(of(Port::Burst64, Port::Plain, 1 << 24), 1);
        let turned = Settings { operation: What::Rotate90, ..Settings::default() };
        assert_eq!(turned.placements(1 << 18), 2);
    }

    #[test]
    fn bad_settings_are_refused() {
        assert!(toml::from_str::<Settings>("sauce = 'burst-64'").is_err());
        let odd: Settings = toml::from_str("element = 24").expect("a number");
        assert!(matches!(odd.config(4096, MEMORY, MEMORY + 4096), Err(TransferError::Element { bits: 24 })));
    }
}
