//! Runs one guest by its name.

use crate::failure::Failure;
use crate::guests::machine::Machine;
use crate::guests::{self, dsa, ioat, module, n810, newer, roce, v9fs};
use crate::packaging;
use crate::work::Work;

/// How long a guest with a fuzzer fuzzes.
pub(super) const FUZZ_SECONDS: u32 = 60;

pub(super) fn run(work: &Work, name: &str) -> Result<(), Failure> {
    match name {
        "n810" => n810::run(work),
        "v9fs" => v9fs::run(work),
        "systemd" => packaging::guest::run(work),
        "ioat" => ioat::run(work),
        "dsa" => dsa::run(work),
        "roce" => roce::run(work),
        "newer" => newer::run(work),
        _ => {
            let machine = Machine::named(name).ok_or_else(|| unknown(name))?;
            module::run(work, machine, FUZZ_SECONDS)
        }
    }
}

fn unknown(name: &str) -> Failure {
    let names = guests::names().join(", ");
    Failure::WrongUse(format!(
        "guest: unknown machine '{name}'; the machines are {names}; see ./x guest --help"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_machine_is_wrong_use() {
        let failure = unknown("pdp11");
        assert_eq!(failure.exit_status(), 2);
        for name in ["n810", "v9fs", "systemd", "ioat", "dsa", "roce", "zcu102-debug", "smdkc210", "newer"] {
            assert!(failure.to_string().contains(name), "{failure}");
        }
    }
}
