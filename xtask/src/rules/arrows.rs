//! Dependencies between the crates of the workspaces point in one direction.
//!
//! ```text
//! clock ◄── transfer ◄─┬─ path ◄──────────────┐
//!                      └─ shm ◄── cpu, kmod ◄─┴─ service ◄─┬─ memferry ◄── c, python, bulk, cli
//!                          ▲      ▲                        ├─ daemon ◄──── cli
//!                          │      │                        └─ engine ◄──── engine-c, engine-cuda, link (and memferry)   external is between shm and service
//!                          │      └─ preload, recorder
//!                          └─ pool ◄── ninep ◄── cli           bench and soak may use any of these
//! clock ◄── ioat-registers ◄── driver-ioat, dsa-registers ◄── dsa (no_std) ◄── driven-engines ◄── engine-ioat, engine-dsa, which also use engine
//! shm ◄── driven-engines, for words that a device shares; shm ◄── vfio ◄── engine-ioat
//! research, a workspace of its own:  registers ◄── drivers, models;  drivers ◄── driven, which adds to driven-engines;
//!                                     models, shm, dsa ◄── pci;  lab uses any, nothing uses lab
//! ```
//!
//! Normal and build dependencies must follow the table [`ALLOWED`]. Development dependencies may name any crate except the
//! lab and the command line. Crates from outside the workspaces are not checked.

use cargo_metadata::DependencyKind;

use crate::tree::Package;
use crate::violation::Violation;

/// What a crate may depend on.
enum Arrows {
    /// These crates of the workspaces only.
    Only(&'static [&'static str]),
    /// Any crate of the product.
    Product,
    /// Any crate but the lab.
    Any,
}

const LAB: &str = "memferry-lab";
const CLI: &str = "memferry-cli";
const DAEMON: &str = "memferry-daemon";
/// Crates of the laboratory's workspace. No crate of the product may name one, even in tests.
const RESEARCH: [&str; 6] =
    ["memferry-registers", "memferry-drivers", "memferry-models", "memferry-driven", "memferry-pci", LAB];

/// Every crate of the workspaces, and its allowed dependencies.
const ALLOWED: &[(&str, Arrows)] = &[
    ("memferry-clock", Arrows::Only(&[])),
    ("memferry-transfer", Arrows::Only(&["memferry-clock"])),
    ("memferry-path", Arrows::Only(&["memferry-transfer", "memferry-clock"])),
    ("memferry-shm", Arrows::Only(&["memferry-transfer"])),
    ("memferry-pool", Arrows::Only(&["memferry-shm"])),
    ("memferry-cpu", Arrows::Only(&["memferry-transfer", "memferry-clock", "memferry-shm"])),
    ("memferry-kmod", Arrows::Only(&["memferry-transfer", "memferry-clock", "memferry-shm"])),
    ("memferry-external", Arrows::Only(&["memferry-transfer", "memferry-clock", "memferry-shm"])),
    (
        "memferry-service",
        Arrows::Only(&[
            "memferry-transfer",
            "memferry-clock",
            "memferry-shm",
            "memferry-path",
            "memferry-cpu",
            "memferry-external",
            "memferry-kmod",
        ]),
    ),
    (
        DAEMON,
        Arrows::Only(&[
            "memferry-transfer",
            "memferry-shm",
            "memferry-path",
            "memferry-kmod",
            "memferry-service",
        ]),
    ),
    (
        "memferry",
        Arrows::Only(&[
            "memferry-transfer",
            "memferry-clock",
            "memferry-shm",
            "memferry-pool",
            "memferry-service",
        ]),
    ),
    (
        "memferry-engine",
        Arrows::Only(&[
            "memferry-transfer",
            "memferry-clock",
            "memferry-shm",
            "memferry-external",
            "memferry-service",
        ]),
    ),
    ("memferry-bulk", Arrows::Only(&["memferry", "memferry-shm"])),
    ("memferry-ninep", Arrows::Only(&["memferry-shm", "memferry-pool"])),
    (
        CLI,
        Arrows::Only(&[
            "memferry",
            DAEMON,
            "memferry-service",
            "memferry-ninep",
            "memferry-pool",
            "memferry-recording",
            "memferry-shm",
            "memferry-transfer",
        ]),
    ),
    ("memferry-charts", Arrows::Only(&[])),
    ("memferry-c", Arrows::Only(&["memferry", "memferry-transfer"])),
    ("memferry-engine-c", Arrows::Only(&["memferry-engine", "memferry-transfer"])),
    ("memferry-python", Arrows::Only(&["memferry", "memferry-transfer"])),
    ("memferry-preload", Arrows::Only(&["memferry-cpu"])),
    ("memferry-recording", Arrows::Only(&["memferry-shm"])),
    ("memferry-recorder", Arrows::Only(&["memferry-cpu", "memferry-shm", "memferry-recording"])),
    ("memferry-engine-cuda", Arrows::Only(&["memferry-engine", "memferry-shm", "memferry-transfer"])),
    ("memferry-ioat-registers", Arrows::Only(&["memferry-clock"])),
    ("memferry-driver-ioat", Arrows::Only(&["memferry-clock", "memferry-ioat-registers"])),
    (
        "memferry-driven-engines",
        Arrows::Only(&[
            "memferry-clock",
            "memferry-driver-ioat",
            "memferry-dsa",
            "memferry-ioat-registers",
            "memferry-shm",
            "memferry-transfer",
        ]),
    ),
    ("memferry-vfio", Arrows::Only(&["memferry-clock", "memferry-shm"])),
    (
        "memferry-engine-ioat",
        Arrows::Only(&[
            "memferry-clock",
            "memferry-driven-engines",
            "memferry-driver-ioat",
            "memferry-engine",
            "memferry-ioat-registers",
            "memferry-shm",
            "memferry-transfer",
            "memferry-vfio",
        ]),
    ),
    // An engine of its service and a client of it at once.
    ("memferry-link", Arrows::Only(&["memferry", "memferry-bulk", "memferry-engine"])),
    (
        "memferry-engine-dsa",
        Arrows::Only(&[
            "memferry-clock",
            "memferry-driven-engines",
            "memferry-dsa",
            "memferry-engine",
            "memferry-shm",
            "memferry-transfer",
        ]),
    ),
    ("memferry-dsa-registers", Arrows::Only(&[])),
    ("memferry-dsa", Arrows::Only(&["memferry-clock", "memferry-dsa-registers"])),
    ("memferry-fake-cuda", Arrows::Only(&[])),
    ("memferry-conformance", Arrows::Only(&["memferry-transfer", "memferry-clock", "memferry-path"])),
    (
        "memferry-attackers",
        Arrows::Only(&["memferry", "memferry-service", "memferry-shm", "memferry-transfer"]),
    ),
    ("memferry-pages", Arrows::Only(&[])),
    ("memferry-proof", Arrows::Only(&[])),
    ("memferry-soak", Arrows::Product),
    ("memferry-bench", Arrows::Product),
    ("xtask", Arrows::Only(&[])),
    ("memferry-registers", Arrows::Only(&["memferry-clock", "memferry-ioat-registers"])),
    ("memferry-drivers", Arrows::Only(&["memferry-registers", "memferry-clock", "memferry-driver-ioat"])),
    ("memferry-models", Arrows::Only(&["memferry-clock", "memferry-registers", "memferry-dsa-registers"])),
    (
        "memferry-driven",
        Arrows::Only(&[
            "memferry-transfer",
            "memferry-clock",
            "memferry-registers",
            "memferry-drivers",
            "memferry-driven-engines",
            "memferry-dsa",
        ]),
    ),
    (
        "memferry-pci",
        Arrows::Only(&[
            "memferry-clock",
            "memferry-shm",
            "memferry-registers",
            "memferry-dsa-registers",
            "memferry-dsa",
            "memferry-models",
        ]),
    ),
    (LAB, Arrows::Any),
];

pub(crate) fn check(packages: &[Package]) -> Vec<Violation> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Violation> {
    let breach = |message: String, remedy: &str| Violation::new(&package.manifest, 1, message, remedy);
    let Some((_, arrows)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
        return vec![breach(
            format!("crate `{}` is not in the table of allowed dependencies", package.name),
            "add a row with its allowed dependencies to xtask/src/rules/arrows.rs",
        )];
    };
    package
        .edges
        .iter()
        .filter(|(target, kind)| !allowed(package, arrows, target, *kind))
        .map(|(target, kind)| {
            breach(
                format!("crate `{}` must not have `{target}` as a {kind} dependency", package.name),
                "move the code to a crate that may depend on both, or pass it in as a trait",
            )
        })
        .collect()
}

fn allowed(package: &Package, arrows: &Arrows, target: &str, kind: DependencyKind) -> bool {
    if RESEARCH.contains(&target) && !RESEARCH.contains(&package.name.as_str()) {
        return false;
    }
    match (kind, arrows) {
        (DependencyKind::Development, _) => target != LAB && target != CLI,
        (_, Arrows::Product) => !RESEARCH.contains(&target),
        (_, Arrows::Any) => target != LAB,
        (_, Arrows::Only(targets)) => targets.contains(&target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DependencyKind::{Build, Development, Normal};

    fn edge(from: &str, to: &str, kind: DependencyKind) -> Vec<Violation> {
        let manifest = format!("{from}/Cargo.toml");
        check(&[Package { name: from.to_owned(), manifest, edges: vec![(to.to_owned(), kind)] }])
    }

    #[test]
    fn accepts_arrows_of_the_table() {
        assert_eq!(edge("memferry-path", "memferry-clock", Normal), []);
        assert_eq!(edge("memferry-lab", "memferry-service", Normal), []);
    }

    #[test]
    fn refuses_an_arrow_against_the_table_and_names_both_crates() {
        for kind in [Normal, Build] {
            let found = edge("memferry-clock", "memferry-service", kind);
            assert_eq!(found.len(), 1);
            assert!(
                found[0].message.contains("`memferry-clock`")
                    && found[0].message.contains("`memferry-service`")
            );
        }
    }

    #[test]
    fn refuses_every_use_of_the_lab() {
        assert_eq!(edge("memferry-bench", "memferry-lab", Normal).len(), 1);
        assert_eq!(edge("memferry-clock", "memferry-lab", Development).len(), 1);
    }

    #[test]
    fn tests_may_use_other_crates_but_not_the_command_line() {
        assert_eq!(edge("memferry-transfer", "memferry-conformance", Development), []);
        assert_eq!(edge("memferry-service", "memferry-cli", Development).len(), 1);
    }

    #[test]
    fn the_product_never_names_the_laboratory() {
        for kind in [Normal, Build, Development] {
            assert_eq!(edge("memferry-bench", "memferry-models", kind).len(), 1);
            assert_eq!(edge("memferry-service", "memferry-drivers", kind).len(), 1);
        }
        assert_eq!(edge("memferry-driven", "memferry-models", Development), []);
    }

    #[test]
    fn refuses_a_crate_without_a_row() {
        let found = check(&[Package {
            name: "new".to_owned(),
            manifest: "new/Cargo.toml".to_owned(),
            edges: vec![],
        }]);
        assert!(found[0].message.contains("`new` is not in the table"));
    }
}
