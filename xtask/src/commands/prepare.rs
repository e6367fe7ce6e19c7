//! Everything that the commands may need, installed at once; or only named.

use crate::failure::Failure;
use crate::place::Place;
use crate::setup::environments::{OPENCV, PACKAGE};
use crate::setup::{ARM, Setup, debian};
use crate::stages::{print, say};

/// Targets of Rust that commands build for.
const TARGETS: [&str; 3] = [ARM, "aarch64-unknown-linux-musl", "x86_64-unknown-linux-musl"];
const CARGO_TOOLS: [&str; 4] = ["cargo-fuzz", "cargo-deny", "cargo-machete", "cargo-llvm-cov"];

pub(super) fn run(place: &Place, is_dry: bool) -> Result<(), Failure> {
    let setup = if is_dry { Setup::dry(place) } else { Setup::new(place) };
    setup.tools(&[
        debian::C_COMPILER,
        debian::CPP_COMPILER,
        debian::C_CHECKERS,
        debian::ARM_EMULATION,
        debian::QEMU_ARM,
        debian::QEMU_X86,
        debian::ARMHF_COMPILER,
        debian::MODULE_BUILD,
        debian::KERNEL_BUILD,
        debian::WHERE_INSTALLED,
    ])?;
    setup.rust(&TARGETS)?;
    for component in ["rust-src", "llvm-tools"] {
        setup.component(component)?;
    }
    setup.nightly(&["miri", "rust-src"])?;
    for tool in CARGO_TOOLS {
        setup.cargo_tool(tool)?;
    }
    let has_python = setup.environment(&PACKAGE);
    let has_opencv = setup.environment(&OPENCV);
    say("what guests take from Debian's archive is downloaded when they are first run, and is not installed");
    if !has_python || !has_opencv {
        return Err(Failure::setup("no environment of Python"));
    }
    print(match (is_dry, setup.has_gaps()) {
        (_, false) => "x setup: everything is there",
        (true, true) => "x setup: nothing was installed (--dry-run)",
        (false, true) => "x setup: everything is there now",
    });
    Ok(())
}
