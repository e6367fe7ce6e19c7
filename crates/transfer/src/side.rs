//! The two sides of an operation: source and destination.

/// A side of an operation. Displays as `source` or `destination`.
///
/// ```
/// use memferry_transfer::Side;
///
/// assert_eq!(format!("the {} is too short", Side::Destination), "the destination is too short");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The memory that the operation reads.
    Source,
    /// The memory that the operation writes.
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
