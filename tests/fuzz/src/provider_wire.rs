//! Processes that say anything to one with the provider for libfabric: greetings, rings, records and answers, also of another user.
//!
//! ```text
//! bytes ──► provider/attack.c ──► sources of bindings/libfabric     messages as a second reading has them, each once; no byte of a
//!                 ▲                       │                         region or a buffer that was not named; frames, grants and
//!                 └─ provider/played.c ◄──┘                         descriptors given back
//! ```
//!
//! The service, the engine and the clock are played. `memory.c` is not compiled: it moves pages of the program, and no peer has a part in it.

#[cfg(has_libfabric)]
use std::sync::{Mutex, PoisonError};

/// Input: a byte that says whether the peers are of another user, then steps of one byte and its operands (see `step` in attack.c).
#[cfg(has_libfabric)]
pub fn provider_wire(data: &[u8]) {
    // The provider has one session for the process, and descriptors are counted.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    #[allow(unsafe_code, reason = "the code under test is in C")]
    // SAFETY: it reads the bytes of the slice during the call, and no other thread is in it.
    unsafe {
        attack_provider(data.as_ptr(), data.len());
    }
}

/// Without libfabric's headers the provider cannot be compiled. `./x fuzz` installs them, and tests leave this target out.
#[cfg(not(has_libfabric))]
pub fn provider_wire(_: &[u8]) {
    panic!("the headers of libfabric are not installed");
}

#[cfg(has_libfabric)]
#[allow(unsafe_code, reason = "the code under test is in C")]
// SAFETY: as attack.c defines it.
unsafe extern "C" {
    fn attack_provider(bytes: *const u8, length: usize);
}
