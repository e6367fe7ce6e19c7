//! Tests of the capability table.
