//! Parses a schedule of faults.
