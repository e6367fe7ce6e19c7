//! Replays the committed corpus through every target's body, on stable Rust without a fuzzer.
//!
//! Inputs that the fuzzer found stay here as regression tests. No new inputs are generated.

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
fn request_slot_accepts_every_seed() {
    replay("request_slot", memferry_fuzz::request_slot);
}

#[test]
fn ring_reader_accepts_every_seed() {
    replay("ring_reader", memferry_fuzz::ring_reader);
}

#[test]
fn geometry_accepts_every_seed() {
    replay("geometry", memferry_fuzz::geometry);
}

#[test]
fn control_message_accepts_every_seed() {
    replay("control_message", memferry_fuzz::control_message);
}

#[test]
fn link_message_accepts_every_seed() {
    replay("link_message", memferry_fuzz::link_message);
}

#[test]
fn ninep_message_accepts_every_seed() {
    replay("ninep_message", memferry_fuzz::ninep_message);
}

#[test]
fn engine_process_accepts_every_seed() {
    replay("engine_process", memferry_fuzz::engine_process);
}

#[test]
fn pci_device_accepts_every_seed() {
    replay("pci_device", memferry_fuzz::pci_device);
}

#[test]
fn dsa_device_accepts_every_seed() {
    replay("dsa_device", memferry_fuzz::dsa_device);
}

#[test]
fn fault_schedule_accepts_every_seed() {
    replay("fault_schedule", memferry_fuzz::fault_schedule);
}

#[test]
fn pci_socket_accepts_every_seed() {
    replay("pci_socket", memferry_fuzz::pci_socket);
}

#[test]
fn bulk_receiver_accepts_every_seed() {
    replay("bulk_receiver", memferry_fuzz::bulk_receiver);
}

#[test]
fn bulk_relay_accepts_every_seed() {
    replay("bulk_relay", memferry_fuzz::bulk_relay);
}

#[test]
fn bulk_request_accepts_every_seed() {
    replay("bulk_request", memferry_fuzz::bulk_request);
}

#[test]
fn client_answer_accepts_every_seed() {
    replay("client_answer", memferry_fuzz::client_answer);
}

#[test]
fn client_completion_accepts_every_seed() {
    replay("client_completion", memferry_fuzz::client_completion);
}

#[test]
fn doctor_files_accepts_every_seed() {
    replay("doctor_files", memferry_fuzz::doctor_files);
}

#[test]
fn doctor_report_accepts_every_seed() {
    replay("doctor_report", memferry_fuzz::doctor_report);
}

#[test]
fn link_config_accepts_every_seed() {
    replay("link_config", memferry_fuzz::link_config);
}

#[test]
fn link_secure_accepts_every_seed() {
    replay("link_secure", memferry_fuzz::link_secure);
}

#[test]
fn link_status_accepts_every_seed() {
    replay("link_status", memferry_fuzz::link_status);
}

#[test]
fn sdma_device_accepts_every_seed() {
    replay("sdma_device", memferry_fuzz::sdma_device);
}

#[test]
fn service_config_accepts_every_seed() {
    replay("service_config", memferry_fuzz::service_config);
}
