//! Bare-metal firmware that checks the SDMA driver on QEMU's n810, an independent model of the device.
//!
//! ```text
//! each check ──► PASS name, or FAIL name: reason      each known gap of the model ──► SKIP name: reason
//!                            ──► END of checks ──► exit status 0 if no check failed
//! ```
//!
//! `./x guest n810` compares the output with expected.txt. Checks of behaviour that QEMU's model lacks or gets wrong are
//! skipped by name. The firmware does not check the device's timing.

#![no_std]
#![no_main]

mod checks;
mod hardware;

use core::fmt::Write;

use hardware::Serial;

/// Behaviour in which QEMU 7.2's model deviates from the manual: the skipped check, and the deviation.
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

/// Runs all checks. Returns whether all passed.
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
        line.expect("writes to the serial line never fail");
    }
    for (name, reason) in GAPS {
        writeln!(Serial, "SKIP {name}: {reason}").expect("writes to the serial line never fail");
    }
    writeln!(Serial, "END of checks").expect("writes to the serial line never fail");
    failed == 0
}
