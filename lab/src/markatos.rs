//! Experiments on Markatos and Katevenis (TR 182, 1997): starting a transfer from user level.
//!
//! ```text
//! protocols in scenes ──► every interleaving ──► judges of the safety claims
//! the prototype in virtual time ──► table 1, bus speeds, the verification of 4.4 ──► judges of the figures
//! ```
//!
//! The text of the topic is `docs/initiation.md`.

pub mod explore;
pub mod machine;
pub mod progress;
pub mod protocols;
pub mod scenes;
pub mod state_machine;
pub mod story;
pub mod world;
