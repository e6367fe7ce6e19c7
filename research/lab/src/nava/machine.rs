//! The Magnum 3000 with its network and disk, from the parameters.
//!
//! ```text
//! Parameters ──► Machine { processor times, packets, Ethernet, procedure }, Disk
//! ```
//!
//! Times are in nanoseconds. The time of a packet in the stream code is derived here from the throughput and the latency that
//! Plan 9's authors measured on the same processor (Presotto and Winterbottom, "The Organization of Networks in Plan 9",
//! table 1). `parameters/nava.toml` explains the values.

use crate::parameters::{Parameters, ParametersError};

use super::disk::{Disk, Geometry};

/// Nanoseconds of a millisecond and of a microsecond.
const MS: f64 = 1e6;
const US: f64 = 1e3;

/// Bytes of a block of the file servers.
pub(super) const BLOCK: u64 = 64 << 10;

/// Times of the machine in nanoseconds, and the paper's procedure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    /// A kernel entry and return.
    pub(super) entry: f64,
    pub(super) copy: f64,
    /// Bytes of data of a message.
    pub(super) message: u64,
    /// The processor's part of a message through the streams at one end, without data.
    pub(super) stream: f64,
    /// The processor's part of a packet through the streams at one end.
    pub(super) packet: f64,
    /// The same for the code of the standalone server.
    pub(super) minimal: f64,
    /// A message through a pipe, without data.
    pub(super) pipe: f64,
    /// Packets of a data message.
    pub(super) packets: u64,
    /// A data packet on the wire, and a request on the wire.
    pub(super) wire: [f64; 2],
    /// Blocks of the file, reads of the whole file, and number of blocks for the mean delay.
    pub(super) procedure: [u64; 3],
}

impl Machine {
    /// # Errors
    /// [`ParametersError::Missing`].
    pub(super) fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let get = |name: &str| parameters.get(name);
        let per_byte = get("ethernet-byte")? * US;
        let framing = get("ethernet-framing")?;
        let message = get("message")? as u64;
        let headers = get("message-headers")?;
        let fragment = get("fragment")?;
        let packets = ((message as f64 + headers) / fragment).ceil();
        let wire = (message as f64 + headers + packets * framing) / packets * per_byte;
        let request = (get("request")? + framing) * per_byte;
        let copy = get("copy-block")? * MS / BLOCK as f64;
        // A round trip of a byte is two messages; each is sent at one end, transmitted, and received at the other.
        let stream = (get("il-round-trip")? * MS / 2.0 - request) / 2.0;
        // 16 KiB in each write: the slower end makes a message, copies it, and handles each of its packets.
        let measured = get("il-write")?;
        let whole = measured * get("il-byte")? * US;
        let packet = (whole - stream - measured * copy) / ((measured + headers) / fragment).ceil();
        let procedure = [get("file-blocks")? as u64, get("passes")? as u64, get("delay-blocks")? as u64];
        Ok(Self {
            entry: get("kernel-entry")? * US,
            copy,
            message,
            stream,
            packet: packet.max(0.0),
            minimal: get("minimal-packet")? * MS,
            pipe: get("pipe-round-trip")? * MS / 2.0,
            packets: packets as u64,
            wire: [wire, request],
            procedure,
        })
    }
}

/// Changes of an experiment's disk from the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Other {
    /// Bytes of a segment of its buffer; zero for a disk without a buffer.
    pub(super) segment: Option<u64>,
    /// Whether it finishes reading ahead for one reader before it starts for another.
    pub(super) finishes: bool,
}

/// The disk; `phase` is the platter's position as a fraction of a rotation.
///
/// # Errors
/// [`ParametersError::Missing`].
pub(super) fn disk(parameters: &Parameters, other: Other, phase: f64) -> Result<Disk, ParametersError> {
    let get = |name: &str| parameters.get(name);
    let track = (get("disk-sectors")? * get("disk-sector")?) as u64;
    let turn = get("disk-turn")? * MS;
    Ok(Disk::new(Geometry {
        turn,
        track,
        skew: get("disk-skew")? * MS,
        seek_track: get("disk-seek-track")? * MS,
        seek_average: get("disk-seek-average")? * MS,
        bytes: get("disk-size")?,
        command: get("disk-command")? * MS,
        bus: get("scsi-byte")? * US,
        segment: other.segment.unwrap_or(get("disk-segment")? as u64),
        segments: (get("disk-buffer")? / get("disk-segment")?.max(1.0)) as usize,
        finishes: other.finishes || get("disk-finishes")? > 0.0,
        phase: phase * turn,
    }))
}
