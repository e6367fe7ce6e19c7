//! The two sides of an operation: source and destination.

/// A side of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The memory read.
    Source,
    /// The memory written.
    Destination,
}

impl core::fmt::Display for Side {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}
