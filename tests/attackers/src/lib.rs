//! Hostile clients of the service, and the victim beside them, for the two-process tests and `./x bench hostile`.
//!
//! ```text
//! parent ─ Player::start ─► this program again: attack NAME    drops to user 60002, attacks until it is killed
//!                                               victim         user 60001: copies and allocates, reports latencies
//!                                               honest         user 60002: endless copies of 1 MiB
//!                                               fuse-server    serves the file that is never read
//! ```
//!
//! A parent never waits for a child without a deadline. Each child leads a process group, which the parent kills as a whole. Children
//! also end with the parent.

#![expect(unsafe_code, reason = "system.rs forks and changes users")]

mod attacker;
mod attacks;
mod connection;
mod fuse;
mod player;
mod raw_queue;
mod roles;
mod stage;
mod system;
mod victim;

pub use attacker::{Started, start_attack, start_honest};
pub use attacks::{ATTACKS, Attack, CONTROLS, Needs};
pub use connection::Connection;
pub use player::{Player, Silence};
pub use roles::{Users, drop_to, play_role, report, role};
pub use victim::{Figures, Task, Victim};

/// Errors of an attack end one attempt. Their texts are for people.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;
