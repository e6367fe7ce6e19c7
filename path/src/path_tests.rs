//! Tests of the stages joined, in virtual time.
