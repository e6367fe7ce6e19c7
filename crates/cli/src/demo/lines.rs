//! The demo's protocol with its clients: one JSON value per line, an order and then its report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memferry::{GrantToken, Handle, SessionId};
use serde::{Deserialize, Serialize};

use crate::measure::Comparison;

/// An order for a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Report session, user and process.
    Introduce,
    /// Copy a file into a frame.
    Register { file: PathBuf },
    /// Grant a session the right to read the file's bytes.
    Grant { to: SessionId },
    /// Accept a grant, copy it into an own frame, measure that, and compute meanwhile.
    Fetch { token: GrantToken },
    /// Rotate a picture by 90 degrees, lay another over it, write the result.
    Paint { base: PathBuf, badge: PathBuf, at: (u32, u32), key: String, output: PathBuf },
    /// Write to memory that was granted for reading.
    Write,
    /// Use a handle of another client.
    Forge { handle: Handle },
    /// Report the checksum of the registered memory.
    Checksum,
    /// Revoke the grant of the file.
    Revoke,
    /// Copy the granted memory once more.
    FetchAgain,
    /// Copy a file into a frame, in memory of an engine process if one is named.
    Place { file: PathBuf, home: Option<String> },
    /// Accept a grant and copy it into an own frame of the host.
    Take { token: GrantToken },
    /// Submit so many copies of the granted memory.
    Begin { copies: u32 },
    /// Wait for these copies.
    Finish,
}

/// A client's report on an order.
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
    Taken {
        /// The kind of engine that moved the bytes.
        engine: String,
        checksum: String,
    },
    Begun,
    /// How many copies were done, and how many failed in each way.
    Finished {
        done: u32,
        failed: BTreeMap<String, u32>,
    },
    /// The service refused, as expected.
    Refused {
        message: String,
    },
    /// The order had an unexpected result.
    Failed {
        message: String,
    },
}

/// Results of a copy through a grant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fetched {
    /// Duration of the first copy, which also touches all pages for the first time.
    pub(crate) first: Duration,
    pub(crate) comparison: Comparison,
    pub(crate) overlap: Overlap,
    pub(crate) checksum: String,
}

/// Computation during transfers: medians of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Overlap {
    /// Transfers per round, one after another.
    pub(crate) transfers: u32,
    /// Duration of a round.
    pub(crate) took: Duration,
    /// Bytes hashed in that time.
    pub(crate) hashed: u64,
    /// Share of the bytes hashed in the same time without transfers, per mille.
    pub(crate) share_per_mille: u64,
    /// Share of that time in which this thread had a CPU, per mille.
    pub(crate) running_per_mille: u64,
}
