//! What the demo and its clients say to each other: one JSON value a line, an order and then its report.

use std::path::PathBuf;
use std::time::Duration;

use memferry::{GrantToken, Handle, SessionId};
use serde::{Deserialize, Serialize};

use crate::measure::Comparison;

/// What the demo tells a client to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Say who you are.
    Introduce,
    /// Put a file into a frame.
    Register { file: PathBuf },
    /// Grant the file's bytes to a session, to read only.
    Grant { to: SessionId },
    /// Take up a grant and copy it into a frame of your own; measure that and compute meanwhile.
    Fetch { token: GrantToken },
    /// Turn one picture by a quarter, lay another over it, write the result.
    Paint { base: PathBuf, badge: PathBuf, at: (u32, u32), key: String, output: PathBuf },
    /// Write to the memory that was granted for reading.
    Write,
    /// Use a handle that was never given to you.
    Forge { handle: Handle },
    /// Say the checksum of the memory you registered.
    Checksum,
    /// Take back what you granted.
    Revoke,
    /// Copy what was granted once more.
    FetchAgain,
}

/// What a client says when it did as ordered, or could not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Introduced {
        session: SessionId,
        user: u32,
        process: u32,
    },
    Registered {
        handle: Handle,
        length: u64,
        checksum: String,
    },
    Granted {
        token: GrantToken,
    },
    Fetched(Box<Fetched>),
    Painted {
        turned: Comparison,
        overlaid: Comparison,
    },
    Checksum(String),
    Revoked,
    /// The service refused, as it should.
    Refused {
        message: String,
    },
    /// Something else happened than was ordered.
    Failed {
        message: String,
    },
}

/// How a copy through a grant went.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fetched {
    /// The first copy, which also touches all pages for the first time.
    pub(crate) first: Duration,
    pub(crate) comparison: Comparison,
    pub(crate) overlap: Overlap,
    pub(crate) checksum: String,
}

/// Computing beside transfers: medians of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Overlap {
    /// Transfers of a round, one after another.
    pub(crate) transfers: u32,
    /// How long a round took.
    pub(crate) took: Duration,
    /// Bytes this thread hashed in that time.
    pub(crate) hashed: u64,
    /// That as a share of what it hashes in the same time when nothing is moved, per mille.
    pub(crate) share_per_mille: u64,
    /// The share of that time in which this thread had a CPU, per mille.
    pub(crate) running_per_mille: u64,
}
