//! The product's I/OAT engine as a process beside a service, with the model of the device in it instead of one behind VFIO.
//!
//! ```text
//! clients (this process) ─► service ─► memferry_engine_ioat::run_on(Fake) ─► driver ─► model ─► what is mapped
//! ```
//!
//! `./x guest ioat` runs the same scenes on the model as a PCI device of a guest, behind Linux's VFIO.

mod fake;
mod stage;

#[path = "../../../../engines/ioat/tests/brokered/scenes.rs"]
mod scenes;
#[path = "../../../../crates/memferry/tests/end_to_end/served.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod served;
#[path = "../../../../crates/memferry/tests/end_to_end/shared.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod shared;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fake::{Behaviour, Fake};
use memferry::{Client, EngineKind, Failure, copy};
use memferry_engine_ioat::{Options, run_on};
use rustix::process::{Pid, Signal, kill_process};
use scenes::{state, wait_until};
use shared::*;
use stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
/// What the service's configuration calls the engine.
const NAME: &str = "ioat";
const CHANNELS: u8 = 4;

/// Runs the engine with what the files of a stage say; whether it ended well.
fn play_engine(folder: &Path, socket: PathBuf) -> bool {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let schedule = read("schedule").unwrap_or_default();
    let behaviour = Behaviour {
        planned: memferry_pci::schedule::parse(&schedule, CHANNELS).expect("a schedule"),
        strays: read("strays").is_some(),
        wanted_back: Some(folder.join("wanted-back")),
        mappings: read("mappings").map(|number| number.parse().expect("a number")),
        left_behind: read("left-behind").is_some(),
        windows: Some(folder.join("windows")),
    };
    let vfio = "0000:00:04.0".parse().expect("an address");
    let options = Options { socket, name: NAME.to_owned(), vfio, channels: None };
    run_on(&options, || Fake(behaviour.clone())).is_ok()
}

thread_local! {
    /// The stage of the test on this thread, for tests that get only a client.
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// The client of the suite's own test.
fn client() -> Client {
    let stage = Stage::new(&[]);
    let client = stage.client();
    STAGE.set(Some(stage));
    client
}

#[test]
fn the_conformance_suite_passes() {
    let stage = Stage::new(&[]);
    scenes::conformance(&|| stage.client(), 150);
}

#[test]
fn the_suite_passes_while_channels_fail() {
    let schedule = "channel any descriptor 7.. every 9 halt read-data\n\
                    channel 1 descriptor 5.. every 11 halt descriptor\n\
                    channel 2 descriptor 20.. every 50 lose completion\n\
                    channel 3 descriptor 30.. every 70 stick until reset\n";
    let stage = Stage::new(&[("schedule", schedule)]);
    let process = state(&stage.client()).process;
    scenes::conformance(&|| stage.client(), 60);
    assert!(state(&stage.client()).redone > 10);
    assert_eq!(state(&stage.client()).process, process, "each channel was reset by itself");
    let said = stage.said();
    assert!(said.contains("failed") && said.contains("source could not be read"), "{said}");
}

#[test]
fn operations_are_done_by_the_device() {
    let stage = Stage::new(&[]);
    scenes::operations(&stage.client());
}

#[test]
fn a_released_frame_is_unmapped() {
    let stage = Stage::new(&[]);
    scenes::release(&|| stage.client());
    wait_until("only the rings to be mapped", || stage.windows() == 1);
}

#[test]
fn a_stray_descriptor_fails_its_channel_only() {
    let stage = Stage::new(&[("strays", "")]);
    scenes::straying(&stage.client());
}

#[test]
fn a_killed_engine_loses_nothing() {
    let stage = Stage::new(&[]).may_end(&["by signal 9"]);
    let mut kills = 0;
    let mut transfers = 0;
    scenes::load_until(&stage.client(), |client| {
        let now = state(client);
        // Each one has worked before it is killed.
        if let Some(process) = now.process
            && now.transfers >= transfers + 20
        {
            transfers = now.transfers;
            kills += 1;
            let _ = kill_process(Pid::from_raw(process as i32).expect("a process"), Signal::KILL);
        }
        kills > 4
    });
}

#[test]
fn a_channel_that_cannot_be_reset_ends_the_process() {
    let stage = Stage::new(&[("schedule", "channel 1 descriptor 30 stick forever")])
        .may_end(&["does not end its reset", "with status 1"]);
    let process = state(&stage.client()).process;
    scenes::load_until(&stage.client(), |client| {
        state(client).process.is_some_and(|now| Some(now) != process)
    });
    let said = stage.said();
    assert!(said.contains("channel 1 of 0000:00:04.0 does not end its reset"), "{said}");
}

#[test]
fn a_device_that_is_wanted_back_is_given_back() {
    let stage = Stage::new(&[]).may_end(&["wanted back by the kernel", "with status 1"]);
    let client = stage.client();
    let process = state(&client).process;
    let mut is_begun = false;
    scenes::load_until(&client, |client| {
        if !is_begun && state(client).transfers > 20 {
            is_begun = true;
            stage.write("wanted-back", "");
        }
        let is_gone = stage.said().contains("wanted back by the kernel");
        if is_gone {
            stage.remove("wanted-back");
            wait_until("another engine", || state(client).process.is_some_and(|now| Some(now) != process));
        }
        is_gone
    });
}

#[test]
fn frames_beyond_the_lock_limit_are_left_to_the_cpu() {
    // The rings, and one frame.
    let stage = Stage::new(&[("mappings", "2")]);
    let client = stage.client();
    let pair = [client.frame(MIB).alloc().unwrap(), client.frame(MIB).alloc().unwrap()];
    let mut queue = client.queue(4).unwrap();
    wait_until("the failure", || {
        let done = queue.run(copy(&pair[0], &pair[1])).unwrap();
        assert_eq!(done.engine, EngineKind::Cpu);
        stage.said().contains("raise LimitMEMLOCK")
    });
    for _ in 0..3 {
        let done = queue.run(copy(&pair[0], &pair[1])).unwrap();
        assert_eq!(done.engine, EngineKind::Cpu);
    }
    let mut own = |frame: &memferry::Frame| {
        queue.run(copy(frame.slice(..4096), frame.slice(8192..12288))).unwrap().engine
    };
    assert_eq!(own(&pair[0]), EngineKind::External, "the first one is mapped");
    assert_eq!(own(&pair[1]), EngineKind::Cpu);
}

#[test]
fn channels_that_another_driver_left_are_taken() {
    let stage = Stage::new(&[("left-behind", "")]);
    scenes::operations(&stage.client());
}

#[test]
fn a_long_copy_is_cancelled_between_descriptors() {
    let stage = Stage::new(&[("schedule", "channel any descriptor 1.. slow 3ms")]);
    let client = stage.client();
    let pair = [client.frame(16 * MIB).alloc().unwrap(), client.frame(16 * MIB).alloc().unwrap()];
    let mut queue = client.queue(4).unwrap();
    // Until it is mapped for the device, the CPU copies.
    wait_until("a cancelled copy on the device", || {
        let before = state(&client);
        let ticket = queue.submit(copy(&pair[0], &pair[1])).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        queue.cancel(ticket.id()).unwrap();
        match end_of(&mut queue, ticket) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.failure, Failure::Cancelled);
                assert_eq!(state(&client).process, before.process);
                error.bytes_done > 0 && error.bytes_done < 16 * MIB && error.bytes_done % (64 << 10) == 0
            }
        }
    });
}
