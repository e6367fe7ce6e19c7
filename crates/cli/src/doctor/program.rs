//! The programs that are memferry's engines, and whether they are installed.

use crate::doctor::finding::Step;
use crate::doctor::host::Host;

/// An engine process's program.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Its link in the folder that `memferry-engine@.service` starts programs from.
    link: &'static str,
}

pub(super) const DSA: Program = Program { name: "memferry-engine-dsa", link: "dsa" };
pub(super) const IOAT: Program = Program { name: "memferry-engine-ioat", link: "ioat" };
pub(super) const CUDA: Program = Program { name: "memferry-engine-cuda", link: "cuda" };

/// The step for a program that is not installed.
pub(super) fn program_step(host: &Host<'_>, program: &Program) -> Option<Step> {
    let Program { name, link } = program;
    let places = [
        format!("/usr/bin/{name}"),
        format!("/usr/local/bin/{name}"),
        format!("/usr/lib/memferry/engines/{link}"),
    ];
    if places.iter().any(|place| host.machine.exists(place)) {
        return None;
    }
    let step = Step::new("no-program", format!("The engine process {name} is not installed."));
    Some(step.run(format!("sudo apt install ./{name}_*.deb")))
}
