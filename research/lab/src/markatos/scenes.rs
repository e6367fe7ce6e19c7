//! The scenes in which protocols are explored: processes, their rights, and the number of CPUs.
//!
//! ```text
//! pages A B C D E F; the first process moves A to B, the second C to D, the third E to F
//! scene ──► malicious processes, shared pages, whether sizes are cut, one CPU or two
//! ```
//!
//! Each process has both rights on its own pages. The name of a scene states what is shared.

use super::machine::{PageTable, Rights, Transfer};
use super::world::{Process, Role, Scene};

/// The transfer of each process; sizes differ, so that a mix-up shows.
pub const WANTS: [Transfer; 3] = [Transfer::new(0, 1, 2), Transfer::new(2, 3, 3), Transfer::new(4, 5, 1)];

/// A size within a page, and one beyond it.
const SIZES: [u8; 2] = [1, 5];

/// The pages of a process, with further rights.
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

/// The malicious process passes sizes beyond its pages, and the engine does not stop at the end of a page.
pub fn without_clamp() -> Scene {
    Scene { clamp: false, name: "an attacker, and an engine that takes any size", ..attacked() }
}

/// One process whose stores go through a write buffer.
///
/// The size equals the word for success (4.1), so a load answered by the buffer looks like success.
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

/// The same processes on two CPUs by turns.
#[must_use]
pub fn on_two_cpus(scene: Scene) -> Scene {
    Scene { cpus: 2, ..scene }
}

/// The same scene with two transfers for each honest process by turns, there and back.
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
