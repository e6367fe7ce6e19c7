//! The product's DSA engine as a process beside a service, with the model of the device in it instead of one behind Linux's idxd.
//!
//! ```text
//! clients (this process) ─► service ─► memferry_engine_dsa::run_on(Fake) ─► driver ─► portal ─► model, a thread ─► memory of that process
//! ```

mod fake;

#[path = "../engine/stage.rs"]
#[allow(dead_code, reason = "shared with the tests of the other engine")]
mod stage;

#[path = "../../../../engines/ioat/tests/brokered/scenes.rs"]
#[allow(dead_code, reason = "shared with the tests of the other engine")]
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

use fake::Fake;
use memferry::{Client, EngineKind, compare, copy, copy_crc32c, crc32c, dual_copy};
use memferry_engine_dsa::{Options, run_on};
use rustix::process::{Pid, Signal, kill_process};
use scenes::{load_until, state, wait_until};
use shared::*;
use stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);
/// What the service's configuration calls the engine.
const NAME: &str = "dsa";

/// Runs the engine with what the files of a stage say; whether it ended well.
fn play_engine(folder: &Path, socket: PathBuf) -> bool {
    let queues = std::fs::read_to_string(folder.join("queues")).unwrap_or_else(|_| "wq0.0 wq0.1".to_owned());
    let queues = queues.split_whitespace().map(|name| name.parse().expect("a queue")).collect();
    let options = Options { socket, name: NAME.to_owned(), queues };
    match run_on(&options, || Fake::new(folder)) {
        Ok(()) => true,
        Err(error) => {
            println!("{error}");
            false
        }
    }
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
fn the_suite_passes_on_two_dedicated_queues() {
    let stage = Stage::new(&[]);
    scenes::conformance(&|| stage.client(), 150);
    assert!(stage.said().contains("wq0.1 (dedicated, group 0): by its portal"), "{}", stage.said());
    assert!(stage.has("batched"), "small requests went in batches");
}

#[test]
fn the_suite_passes_on_a_full_shared_queue() {
    let stage = Stage::new(&[("queues", "wq0.0"), ("shared", ""), ("entries", "2")]);
    scenes::conformance(&|| stage.client(), 80);
}

#[test]
fn the_suite_passes_by_write() {
    let stage = Stage::new(&[("unmapped", "")]);
    scenes::conformance(&|| stage.client(), 80);
    let said = stage.said();
    assert!(said.contains("by write()") && said.contains("CAP_SYS_RAWIO"), "{said}");
    assert!(!stage.has("batched"));
}

#[test]
fn the_suite_passes_while_pages_are_absent() {
    let stage = Stage::new(&[("absent", "5")]);
    let process = state(&stage.client()).process;
    scenes::conformance(&|| stage.client(), 100);
    assert_eq!(state(&stage.client()).process, process);
    assert!(stage.has("faulted"));
}

#[test]
fn operations_are_done_by_the_device() {
    let stage = Stage::new(&[]);
    let client = stage.client();
    scenes::operations(&client);
    let frames: Vec<_> = (0..3).map(|_| client.frame(1 << 16).alloc().unwrap()).collect();
    let bytes: Vec<u8> = (0..1 << 16).map(|at| (at * 7 % 251) as u8).collect();
    frames[0].write(0, &bytes).unwrap();
    let mut queue = client.queue(4).unwrap();
    let dual = queue.run(dual_copy(&frames[0], [&frames[1], &frames[2]])).unwrap();
    assert_eq!(dual.engine, EngineKind::External);
    assert!(contents(&frames[1]) == bytes && contents(&frames[2]) == bytes);
    let crc = queue.run(crc32c(frames[0].slice(..50_000))).unwrap();
    let copied = queue.run(copy_crc32c(frames[0].slice(..50_000), frames[1].slice(..50_000))).unwrap();
    assert_eq!((crc.engine, copied.engine), (EngineKind::External, EngineKind::External));
    assert_eq!(crc.output, copied.output);
    frames[2].write(40_000, &[255]).unwrap();
    let compared = queue.run(compare(&frames[0], &frames[2])).unwrap();
    assert_eq!((compared.engine, compared.output), (EngineKind::External, Some(40_000)));
}

#[test]
fn a_page_that_stays_absent_fails_its_request_only() {
    let stage = Stage::new(&[("queues", "wq0.0")]);
    let client = stage.client();
    let process = state(&client).process;
    let frames = [client.frame(1 << 16).alloc().unwrap(), client.frame(1 << 16).alloc().unwrap()];
    let mut queue = client.queue(4).unwrap();
    wait_until("a copy by the engine", || {
        queue.run(copy(&frames[0], &frames[1])).unwrap().engine == EngineKind::External
    });
    stage.write("gone", "");
    frames[0].write(0, &[7; 1 << 16]).unwrap();
    let done = queue.run(copy(&frames[0], &frames[1])).unwrap();
    assert_eq!((done.engine, done.bytes_done), (EngineKind::Cpu, 1 << 16));
    assert!(contents(&frames[1]) == [7; 1 << 16]);
    stage.remove("gone");
    assert_eq!(queue.run(copy(&frames[0], &frames[1])).unwrap().engine, EngineKind::External);
    assert_eq!(state(&client).process, process);
    assert!(stage.said().contains("a request on wq0.0 failed"), "{}", stage.said());
}

#[test]
fn a_queue_that_others_fill_leaves_requests_to_the_cpu() {
    let stage = Stage::new(&[("queues", "wq0.0"), ("shared", "")]);
    let client = stage.client();
    let process = state(&client).process;
    let frames = [client.frame(1 << 16).alloc().unwrap(), client.frame(1 << 16).alloc().unwrap()];
    let mut queue = client.queue(4).unwrap();
    let mut by = |engine: EngineKind| {
        wait_until("a copy", || queue.run(copy(&frames[0], &frames[1])).unwrap().engine == engine);
    };
    by(EngineKind::External);
    stage.write("full", "");
    by(EngineKind::Cpu);
    stage.remove("full");
    by(EngineKind::External);
    assert_eq!(state(&client).process, process);
}

#[test]
fn a_killed_engine_loses_nothing() {
    let stage = Stage::new(&[]).may_end(&["by signal 9"]);
    let mut kills = 0;
    let mut transfers = 0;
    load_until(&stage.client(), |client| {
        let now = state(client);
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
fn a_queue_that_completes_nothing_ends_the_process() {
    let stage = Stage::new(&[("queues", "wq0.0")])
        .may_end(&["did not complete a descriptor in time", "with status 1"]);
    let client = stage.client();
    let process = state(&client).process;
    let mut is_begun = false;
    load_until(&client, |client| {
        if !is_begun && state(client).transfers > 20 {
            is_begun = true;
            stage.write("stuck", "");
        }
        let is_over = stage.said().contains("wq0.0 did not complete a descriptor in time");
        if is_over && stage.has("stuck") {
            stage.remove("stuck");
        }
        is_over && state(client).process.is_some_and(|now| Some(now) != process)
    });
}

#[test]
fn a_disabled_queue_is_used_again_once_enabled() {
    let stage = Stage::new(&[("queues", "wq0.0"), ("unmapped", "")]).may_end(&[
        "takes no descriptors any more",
        "is disabled",
        "with status 1",
    ]);
    let client = stage.client();
    let mut is_begun = false;
    let is_said = || stage.said().contains("wq0.0 takes no descriptors any more");
    load_until(&client, |_| {
        if !is_begun && state(&client).transfers > 20 {
            is_begun = true;
            stage.write("disabled", "");
        }
        let is_over =
            is_said() && stage.said().contains("wq0.0 is disabled: accel-config enable-wq dsa0/wq0.0");
        if is_over {
            stage.remove("disabled");
        }
        is_over
    });
}

#[test]
fn a_queue_that_is_taken_is_refused_at_once() {
    let stage = Stage::without_engine(&[("queues", "wq0.0"), ("taken", "")])
        .may_end(&["another process has this dedicated queue", "with status 1"]);
    wait_until("the refusal", || stage.said().contains("another process has this dedicated queue"));
}
