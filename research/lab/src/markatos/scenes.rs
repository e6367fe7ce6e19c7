//! The scenes that protocols are explored in: who is there, what they may touch, on how many CPUs.
//!
//! ```text
//! pages A B C D E F; the first process moves A to B, the second C to D, the third E to F
//! scene ──► who is malicious, what is shared, whether sizes are cut, one CPU or two
//! ```
//!
//! Each process has both rights on its own pages. What a scene shares it says in its name.

use super::machine::{PageTable, Rights, Transfer};
use super::world::{Process, Role, Scene};

/// What each process asks for; sizes differ, so that a mixed-up one shows.
pub const WANTS: [Transfer; 3] = [Transfer::new(0, 1, 2), Transfer::new(2, 3, 3), Transfer::new(4, 5, 1)];

/// A size in a page, and one that runs past it.
const SIZES: [u8; 2] = [1, 5];

/// The pages of a process, and what it may do beside.
fn table(who: u8, shared: &[(u8, Rights)]) -> PageTable {
    let mut rights = vec![(2 * who, Rights::BOTH), (2 * who + 1, Rights::BOTH)];
    rights.extend_from_slice(shared);
    PageTable::of(&rights)
}

fn honest(who: u8) -> Process {
    Process { role: Role::Honest(vec![WANTS[usize::from(who)]]), table: table(who, &[]) }
}

fn malicious(who: u8, shared: &[(u8, Rights)]) -> Process {
    Process { role: Role::Malicious, table: table(who, shared) }
}

fn scene(name: &'static str, processes: Vec<Process>) -> Scene {
    Scene { name, processes, cpus: 1, buffered: false, clamp: true, sizes: SIZES.to_vec() }
}

/// One process, nobody else.
pub fn alone() -> Scene {
    scene("one process", vec![honest(0)])
}

/// Two honest processes that share nothing.
pub fn two_honest() -> Scene {
    scene("two processes that share nothing", vec![honest(0), honest(1)])
}

/// Three honest processes that share nothing.
pub fn three_honest() -> Scene {
    scene("three processes that share nothing", vec![honest(0), honest(1), honest(2)])
}

/// A malicious process beside an honest one.
pub fn attacked() -> Scene {
    scene("an attacker that shares nothing", vec![honest(0), malicious(1, &[])])
}

/// Figure 6: the malicious process may read the source.
pub fn readable_source() -> Scene {
    scene("an attacker that may read the source", vec![honest(0), malicious(1, &[(0, Rights::READ)])])
}

/// Beyond the paper: the malicious process may read the destination.
pub fn readable_destination() -> Scene {
    scene("an attacker that may read the destination", vec![honest(0), malicious(1, &[(1, Rights::READ)])])
}

/// Two honest processes and a malicious one that may read the first one's source.
pub fn three_attacked() -> Scene {
    let third = malicious(2, &[(0, Rights::READ)]);
    scene("two processes and an attacker that may read the first's source", vec![honest(0), honest(1), third])
}

/// Footnote 8: two honest processes write to one page without a lock.
pub fn shared_destination() -> Scene {
    let second =
        Process { role: Role::Honest(vec![Transfer::new(2, 1, 3)]), table: table(1, &[(1, Rights::BOTH)]) };
    scene("two processes that share the destination", vec![honest(0), second])
}

/// The malicious process passes sizes that run past its pages, and the engine does not stop there.
pub fn without_clamp() -> Scene {
    Scene { clamp: false, name: "an attacker, and an engine that takes any size", ..attacked() }
}

/// One process whose stores go through a write buffer.
///
/// Its size is the word that tells of success (4.1), so that a load which the buffer answers reads like one.
pub fn buffered() -> Scene {
    let process = Process { role: Role::Honest(vec![Transfer::new(0, 1, 3)]), table: table(0, &[]) };
    Scene { buffered: true, ..scene("one process with a write buffer", vec![process]) }
}

/// Two processes whose stores go through write buffers.
pub fn buffered_attacked() -> Scene {
    let process = Process { role: Role::Honest(vec![Transfer::new(0, 1, 3)]), table: table(0, &[]) };
    let processes = vec![process, malicious(1, &[(0, Rights::READ)])];
    Scene { buffered: true, ..scene("a write buffer and an attacker that may read the source", processes) }
}

/// The same processes, dealt out to two CPUs.
#[must_use]
pub fn on_two_cpus(scene: Scene) -> Scene {
    Scene { cpus: 2, ..scene }
}

/// The same with two transfers that each honest process asks for in turn, there and back.
#[must_use]
pub fn there_and_back(mut scene: Scene) -> Scene {
    for process in &mut scene.processes {
        if let Role::Honest(wants) = &mut process.role {
            let back: Vec<Transfer> = wants.iter().map(|there| back(*there)).collect();
            wants.extend(back);
        }
    }
    scene
}

fn back(there: Transfer) -> Transfer {
    Transfer { source: there.destination, destination: there.source, size: 4 }
}
