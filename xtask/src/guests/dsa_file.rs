//! The scene of a work queue's file: a character device of ours, and what the product's DSA engine says of it.
//!
//! ```text
//! queue_file ─ write() ─► /dev/dsa/wq0.4 ◄─ CUSE ─ memferry-device char dsa: the model
//! memferry-engine-dsa ────────┘└─ sysfs of Linux's idxd, which has the queue configured; two files of it are covered
//! ```
//!
//! Linux's driver enables no queue of type user in a guest, for lack of shared virtual memory. Its sysfs describes the queue all the same; the guest mounts
//! other files over `state` and `pasid_enabled`, and the character device stands for the queue (`kernel/guest/init`, `dsa_file`).

use super::machine::{Boot, DSA_FILE};
use super::module::Guest;
use crate::failure::Failure;
use crate::work::Work;

/// Words that select the scene in the guest.
pub(super) const WORDS: &[&str] = &["dsa", "dsa-file"];

/// Builds what the guest boots. The modules are built already.
pub(super) fn boot(work: &Work) -> Result<Boot, Failure> {
    if let Some(target) = DSA_FILE.architecture.rust {
        work.setup.target(target)?;
    }
    let guest = Guest::new(work, &DSA_FILE)?;
    work.stages.step("programs for the guest", "cargo, strip", || guest.build_programs())?;
    guest.initramfs()
}
