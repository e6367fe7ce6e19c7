//! Installs everything that the commands may need, or only lists it.

use crate::failure::Failure;
use crate::place::Place;
use crate::setup::environments::{AUDIT, MPI, OPENCV, PACKAGE};
use crate::setup::{ARM, Setup, debian};
use crate::stages::{print, say};

/// Rust targets that commands build for.
const TARGETS: [&str; 3] = [ARM, "aarch64-unknown-linux-musl", "x86_64-unknown-linux-musl"];
const CARGO_TOOLS: [&str; 5] = ["cargo-fuzz", "cargo-deny", "cargo-machete", "cargo-llvm-cov", "mdbook"];

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
        debian::UCX,
        debian::DPDK,
        debian::LIBFABRIC,
        debian::OPEN_MPI,
        debian::PACKAGING,
        debian::BROWSER,
        debian::CHROOTS,
        debian::SOLVER,
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
    let has_audit = setup.environment(&AUDIT);
    let has_mpi = setup.environment(&MPI);
    say("Debian packages for guests are downloaded when a guest first runs, and are not installed");
    if !has_python || !has_opencv || !has_audit || !has_mpi {
        return Err(Failure::setup("a Python environment could not be made"));
    }
    print(match (is_dry, setup.has_gaps()) {
        (_, false) => "x setup: nothing was missing",
        (true, true) => "x setup: nothing was installed (--dry-run)",
        (false, true) => "x setup: everything is installed now",
    });
    Ok(())
}
