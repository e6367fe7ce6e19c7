//! Replays the committed corpus through every target's body, on stable Rust without a fuzzer.
//!
//! Inputs that the fuzzer found stay here as regression tests. No new inputs are generated.

use std::path::{Path, PathBuf};

use memferry_fuzz as fuzz;

mod targets;

fn seeds_of(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn replay(target: &str, body: fn(&[u8])) {
    let folder = seeds_of(target);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        body(&data);
        seeds += 1;
    }
    assert!(seeds > 0, "{} is empty", folder.display());
    body(&[]);
}

macro_rules! targets {
    ($($(#[$attribute:meta])? $target:ident)*) => {
        $(
            #[test]
            $(#[$attribute])?
            fn $target() {
                replay(stringify!($target), fuzz::$target);
            }
        )*

        #[test]
        fn every_target_is_listed() {
            targets::check(&[$(stringify!($target)),*]);
        }
    };
}

targets! {
    bulk_receiver bulk_relay bulk_request client_answer client_completion control_message doctor_files doctor_report dsa_device
    engine_process fault_schedule geometry link_channel link_config link_message link_secure link_status ninep_message pci_device
    pci_socket
    #[cfg_attr(not(has_libfabric), ignore = "the headers of libfabric are not installed")]
    provider_wire
    request_slot ring_reader sdma_device service_config
}

/// A target of a parser that refuses everything would find nothing.
fn check_taken(target: &str, is_taken: fn(&[u8]) -> bool, taken: &[&str], refused: &[&str]) {
    for (seeds, expected) in [(taken, true), (refused, false)] {
        for seed in seeds {
            let data = std::fs::read(seeds_of(target).join(seed)).unwrap();
            assert_eq!(is_taken(&data), expected, "{target}/{seed}");
        }
    }
}

#[test]
fn good_configurations_of_links_are_taken() {
    let refused = ["seed-no-listen", "seed-own-name", "seed-timeout", "seed-unknown-key", "seed-keys"];
    check_taken("link_config", fuzz::is_link_config, &["seed-full"], &refused);
}

#[test]
fn good_configurations_of_the_service_are_taken() {
    let refused = ["seed-bounds", "seed-engine-name", "seed-engine-twice", "seed-key-with-escape"];
    check_taken("service_config", fuzz::is_service_config, &["seed-several"], &refused);
}

#[test]
fn good_reports_are_taken() {
    let taken = ["seed-nothing", "seed-dsa-ready", "seed-dsa-closed", "seed-ptdma", "seed-ioat-unbound"];
    check_taken("doctor_report", fuzz::is_doctor_report, &taken, &[]);
}
