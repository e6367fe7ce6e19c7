//! The firmware: runs the SDMA driver on QEMU's n810, an independent model of the device, and says what it found.
//!
//! ```text
//! each check ──► PASS name, or FAIL name: why      each known gap of the model ──► SKIP name: why
//!                            ──► END of checks ──► exit with 0 when nothing failed
//! ```
//!
//! The lines that are expected are in expected.txt, and `./x guest n810` compares. What QEMU's model does not do, or
//! does otherwise than the manual, is skipped by name; the timing of the device is not looked at.

#![no_std]
#![no_main]

mod checks;
mod hardware;

use core::fmt::Write;

use hardware::Serial;

/// What QEMU 7.2's model does otherwise than the manual, in six ways.
const GAPS: [(&str, &str); 6] = [
    ("indexes of the destination", "the model applies the source's indexes to both sides"),
    ("linked channels", "the model never starts the next channel"),
    ("transparent copy, 8-bit elements", "the model compares 32 bits of a partly uninitialised buffer"),
    ("transaction and misalignment errors", "the model never reports them"),
    ("end of frame", "the model does not raise it for transfers that software starts"),
    (
        "suspend and abort",
        "transfers of the model end before they can be stopped, and addresses read back 16 bits",
    ),
];

/// Runs everything; whether nothing failed.
pub(crate) fn run() -> bool {
    let mut failed = 0;
    for (name, check) in checks::ALL {
        let line = match check() {
            Ok(()) => writeln!(Serial, "PASS {name}"),
            Err(failure) => {
                failed += 1;
                writeln!(Serial, "FAIL {name}: {failure}")
            }
        };
        line.expect("the serial line takes everything");
    }
    for (name, reason) in GAPS {
        writeln!(Serial, "SKIP {name}: {reason}").expect("the serial line takes everything");
    }
    writeln!(Serial, "END of checks").expect("the serial line takes everything");
    failed == 0
}
