//! Reads of the raw disk, as by `cat` and the paper's `ucat` (section 5.1): one process, one read after the other.
//!
//! ```text
//! kernel entry ─► command ─► disk ─► copy to the process, unless its memory is a DMA buffer ─► the next read
//! ```
//!
//! Blocks are read in sequence, in random order, or one block repeatedly; the result is the mean over many reads. The process
//! takes no time to use the bytes.

use serde::Deserialize;

use crate::paper::{Line, RunError, Runner};
use crate::rng::Rng;
use crate::table::Series;

use super::disk::Disk;
use super::machine::{BLOCK, Machine, Other, disk};
use crate::parameters::{Parameters, ParametersError};

pub(super) const RUNNER: Runner = Runner { name: "raw", run: raw };

/// Reads before the measurement, and measured reads.
const READS: [u64; 2] = [100, 2000];

/// The order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    Sequential,
    Random,
    Fixed,
}

/// The quantity on the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Varies {
    /// Bytes of a read.
    Read,
    /// Bytes of a segment of the disk's buffer.
    Buffer,
    /// Sectors of a track.
    Sectors,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Reader {
    varies: Varies,
    order: Order,
    #[serde(default)]
    user_mode_dma: bool,
    /// Whether to compute the saving if the copy were the only difference: the time of a read, less a copy.
    #[serde(default)]
    in_theory: bool,
}

fn raw(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let reader: Reader = line.settings()?;
    let mut points = Vec::new();
    for x in line.plan.points() {
        let mut parameters = line.parameters.clone();
        if reader.varies == Varies::Sectors {
            parameters = parameters.with("disk-sectors", x)?;
        }
        let machine = Machine::new(&parameters)?;
        let segment = (reader.varies == Varies::Buffer).then_some(x as u64);
        let bytes = if reader.varies == Varies::Read { x as u64 } else { BLOCK };
        let mut rng = Rng::new(line.plan.seed);
        let disk = disk(&parameters, Other { segment, finishes: false }, rng.part())?;
        let (each, _) = mean(disk, &machine, &reader, bytes, &mut rng);
        let saved = if reader.in_theory { BLOCK as f64 * machine.copy } else { 0.0 };
        points.push((x, (each * (BLOCK / bytes) as f64 - saved) / 1e6));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// Repeated reads of one block of 64 KiB: milliseconds of a read, and the share of reads whose first byte is in the disk's
/// buffer.
///
/// # Errors
/// [`ParametersError::Missing`].
pub(super) fn repeated_reads(
    parameters: &Parameters,
    user_mode_dma: bool,
) -> Result<(f64, f64), ParametersError> {
    let reader = Reader { varies: Varies::Read, order: Order::Fixed, user_mode_dma, in_theory: false };
    let machine = Machine::new(parameters)?;
    let mut rng = Rng::new(1);
    let disk = disk(parameters, Other::default(), rng.part())?;
    let (each, found) = mean(disk, &machine, &reader, BLOCK, &mut rng);
    Ok((each / 1e6, found))
}

/// Nanoseconds of a read, and the share of reads whose first byte is in the disk's buffer.
fn mean(mut disk: Disk, machine: &Machine, reader: &Reader, bytes: u64, rng: &mut Rng) -> (f64, f64) {
    let blocks = disk.bytes() / bytes - 1;
    let copy = if reader.user_mode_dma { 0.0 } else { bytes as f64 * machine.copy };
    let mut at = 0.0;
    let mut started = 0.0;
    let mut found = 0;
    for read in 0..READS[0] + READS[1] {
        if read == READS[0] {
            (started, found) = (at, disk.found());
        }
        let block = match reader.order {
            Order::Sequential => read,
            Order::Random => (rng.part() * blocks as f64) as u64,
            Order::Fixed => blocks / 2,
        };
        at = disk.read(block * bytes, bytes, at + machine.entry) + copy;
    }
    ((at - started) / READS[1] as f64, (disk.found() - found) as f64 / READS[1] as f64)
}
