//! Replays the committed corpus through every target's body, without a fuzzer and on stable.
//!
//! A find of the fuzzer stays fixed because its input lies here as a seed. New inputs are not looked for.

use std::path::Path;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
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

#[test]
fn request_slot_keeps_its_promises_on_every_seed() {
    replay("request_slot", memferry_fuzz::request_slot);
}

#[test]
fn ring_reader_keeps_its_promises_on_every_seed() {
    replay("ring_reader", memferry_fuzz::ring_reader);
}

#[test]
fn geometry_keeps_its_promises_on_every_seed() {
    replay("geometry", memferry_fuzz::geometry);
}

#[test]
fn control_message_keeps_its_promises_on_every_seed() {
    replay("control_message", memferry_fuzz::control_message);
}

#[test]
fn ninep_message_keeps_its_promises_on_every_seed() {
    replay("ninep_message", memferry_fuzz::ninep_message);
}
