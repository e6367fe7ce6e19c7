//! Guests: machines emulated by QEMU, in which memferry's code runs on hardware models by other authors and under Linux.
//!
//! ```text
//! machine ──► Debian's packages, unpacked below target/ ──► modules, programs ──► initramfs ──► QEMU ──► verdict line
//! ```
//!
//! Nothing of another architecture is installed, and the system's package state is not changed. The guest's output decides.

pub(crate) mod archive;
pub(crate) mod backport;
pub(crate) mod dsa;
pub(crate) mod ioat;
pub(crate) mod machine;
pub(crate) mod module;
pub(crate) mod n810;
pub(crate) mod newer;
pub(crate) mod packages;
pub(crate) mod roce;
pub(crate) mod served;
pub(crate) mod v9fs;
pub(crate) mod watch;

/// The names of all guests, and of `newer`, in the order of the help.
pub(crate) fn names() -> Vec<&'static str> {
    let machines = machine::MACHINES.iter().map(|machine| machine.name);
    ["n810", "v9fs", "systemd", "ioat", "dsa", "roce"].into_iter().chain(machines).chain(["newer"]).collect()
}
