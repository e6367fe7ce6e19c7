//! What clients do beside an I/OAT engine, wherever it runs: in a guest on a device behind an IOMMU, or on the model in this machine.
//!
//! The including file has `PATIENCE`, the client's test helpers `shared`, and `served`.

use std::time::{Duration, Instant};

use memferry::{Client, EngineKind, ExternalStatus, Frame, copy, fill, scatter_gather};
use memferry_conformance::{noise, requests};

use super::served::{User, run_request_suite};
use super::{PATIENCE, contents, frame};

/// Frames of this length are missing in the IOMMU of an engine that strays (`straying.rs`).
pub(crate) const STRAY_BYTES: u64 = 3 << 12;
/// How long frames are waited for before others are taken.
const SOON: Duration = Duration::from_secs(2);
/// The length of all other frames, which the engine has.
const BYTES: u64 = 64 << 10;

pub(crate) fn state(client: &Client) -> ExternalStatus {
    client.status().expect("a service").engines.remove(0)
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn noisy(client: &Client, bytes: u64, seed: u64) -> Frame {
    let frame = client.frame(bytes).alloc().expect("a frame");
    frame.write(0, &noise(bytes as usize, seed)).expect("access");
    frame
}

/// Whether the condition holds soon: frames are mapped for the device after they are registered.
fn soon(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() >= SOON {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pair of frames that the engine has. One that it does not map in time stays with the CPU for good, and its user's next ones for a
/// while, which happens on a slow machine with much to do; then others are taken.
fn pair(client: &Client, seed: u64) -> [Frame; 2] {
    let started = Instant::now();
    let mut queue = client.queue(4).expect("a queue");
    loop {
        let pair = [noisy(client, BYTES, seed), noisy(client, BYTES, seed + 1)];
        let mut is_copied =
            || queue.run(copy(&pair[0], &pair[1])).expect("a copy").engine == EngineKind::External;
        if soon(&mut is_copied) {
            assert!(contents(&pair[0]) == contents(&pair[1]));
            return pair;
        }
        assert!(started.elapsed() < PATIENCE, "no copy by the engine: {:?}", state(client));
    }
}

/// Two users of the suite, whose frames the engine has.
fn users(connect: &dyn Fn() -> Client) -> [User; 2] {
    let client = connect();
    let before = state(&client).frames;
    let started = Instant::now();
    loop {
        let users = [connect(), connect()].map(|client| User::new(client, requests::FRAMES / 2, frame));
        // Each has a frame for staging, too.
        if soon(|| state(&client).frames == before + requests::FRAMES as u32 + 2) {
            return users;
        }
        assert!(started.elapsed() < PATIENCE, "the engine does not map all frames: {:?}", state(&client));
        drop(users);
        wait_until("the frames' release", || state(&client).frames == before);
    }
}

/// All requests of the suite, by two clients that use each other's frames by grants; the engine does many of them.
pub(crate) fn conformance(connect: &dyn Fn() -> Client, cases: u32) {
    let client = connect();
    wait_until("the engine", || state(&client).is_connected);
    let _ = pair(&client, 1);
    let users = users(connect);
    let before = state(&client);
    run_request_suite(users.into(), cases);
    let after = state(&client);
    let done = after.transfers - before.transfers;
    let redone = after.redone - before.redone;
    println!("the engine did {done} requests of the suite; {redone} more were left to the CPU");
    assert!(done >= u64::from(cases) / 4, "{before:?} {after:?}");
}

/// Operations whose bytes come from the device: a copy downward over itself goes to the CPU, which can repeat nothing.
pub(crate) fn operations(client: &Client) {
    let [one, two] = pair(client, 3);
    let mut queue = client.queue(8).expect("a queue");
    let filled =
        queue.run(fill(two.slice(3..BYTES - 5), memferry::Pattern::Word(0x0403_0201))).expect("a fill");
    assert_eq!(filled.engine, EngineKind::External);
    let bytes = contents(&two);
    assert!(
        bytes[3..BYTES as usize - 5].iter().zip([1, 2, 3, 4].iter().cycle()).all(|(one, other)| one == other)
    );
    let pieces = |step: u64, length: u64| (0..16).map(move |at| at * step..at * step + length);
    let from: Vec<_> = pieces(4096, 1000).map(|range| one.slice(range)).collect();
    let to: Vec<_> = pieces(1000, 1000).map(|range| two.slice(range)).collect();
    let gathered = queue.run(scatter_gather(from, to)).expect("a list");
    assert_eq!((gathered.engine, gathered.bytes_done), (EngineKind::External, 16_000));
    let expected: Vec<u8> = contents(&one).chunks(4096).flat_map(|chunk| chunk[..1000].to_vec()).collect();
    assert!(contents(&two)[..16_000] == expected);
}

/// A released frame is unmapped before its release is answered; others stay.
pub(crate) fn release(connect: &dyn Fn() -> Client) {
    let [client, other] = [connect(), connect()];
    let kept = pair(&other, 5);
    let before = state(&other).frames;
    let released = pair(&client, 7);
    assert!(state(&other).frames >= before + 2);
    drop(released);
    drop(client);
    wait_until("the engine to unmap", || state(&other).frames == before);
    let mut queue = other.queue(4).expect("a queue");
    assert_eq!(queue.run(copy(&kept[0], &kept[1])).expect("a copy").engine, EngineKind::External);
}

/// Rounds of copies, all verified. Returns how many the engine did, and how many others.
pub(crate) fn load(client: &Client, pairs: &[[Frame; 2]], copies: usize) -> (u32, u32) {
    let mut queues = [client.queue(32).expect("a queue"), client.queue(32).expect("a queue")];
    let mut counts = (0, 0);
    for [source, destination] in pairs {
        destination.write(0, &vec![0; destination.length() as usize]).expect("access");
        source.write(0, &noise(source.length() as usize, u64::from(fastrand()))).expect("access");
    }
    for number in 0..copies {
        let [source, destination] = &pairs[number % pairs.len()];
        let _ = queues[number % 2].submit(copy(source, destination)).expect("room");
    }
    for queue in &mut queues {
        for done in queue.completions() {
            match done.expect("no failure reaches a client").engine {
                EngineKind::External => counts.0 += 1,
                _ => counts.1 += 1,
            }
        }
    }
    assert_eq!(counts.0 + counts.1, copies as u32, "each ends once");
    for [source, destination] in pairs {
        assert!(contents(source) == contents(destination));
    }
    counts
}

/// Seeds of contents, another one for each call.
fn fastrand() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(100);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Load until `is_over`, which is asked after each round; the engine, which is killed meanwhile, must have worked, and work at the end.
pub(crate) fn load_until(client: &Client, mut is_over: impl FnMut(&Client) -> bool) {
    let pairs = [pair(client, 11), pair(client, 13), pair(client, 15)];
    let mut all = (0, 0);
    let started = Instant::now();
    while !is_over(client) {
        assert!(started.elapsed() < PATIENCE, "what the load waits for does not happen");
        let (engine, others) = load(client, &pairs, 60);
        all = (all.0 + engine, all.1 + others);
    }
    println!("{} copies by the engine, {} by the CPU", all.0, all.1);
    assert!(all.0 > 0, "the engine has worked");
    wait_until("the engine to work again", || load(client, &pairs, 4).0 > 0);
}

/// Descriptors with some frames stray. Each fails its channel only: their requests are repeated by the CPU, others go on by the engine.
pub(crate) fn straying(client: &Client) {
    let good = [pair(client, 21), pair(client, 23)];
    let stray = [noisy(client, STRAY_BYTES, 31), noisy(client, STRAY_BYTES, 32)];
    let mut queue = client.queue(16).expect("a queue");
    let before = state(client);
    // As soon as the engine believes that the device has them.
    wait_until("a stray descriptor", || {
        let done = queue.run(copy(&stray[0], &stray[1])).expect("a copy");
        assert_eq!(done.engine, EngineKind::Cpu);
        state(client).redone >= before.redone + 3
    });
    let process = state(client).process;
    let mut by_engine = 0;
    for round in 0..20 {
        stray[0].write(0, &noise(STRAY_BYTES as usize, 40 + round)).expect("access");
        // In between, others are on all channels: to a stray frame, from one, and between good ones.
        let _ = queue.submit(copy(&stray[0], &stray[1])).expect("room");
        let _ = queue.submit(copy(good[1][0].slice(..STRAY_BYTES), &stray[0])).expect("room");
        for [source, destination] in &good {
            let _ = queue.submit(copy(source, destination)).expect("room");
        }
        let done: Vec<_> =
            queue.completions().map(|done| done.expect("no failure reaches a client").engine).collect();
        assert_eq!(done.len(), 4, "each ends once");
        by_engine += done.iter().filter(|engine| **engine == EngineKind::External).count();
        assert!(contents(&stray[0]) == contents(&good[1][0])[..STRAY_BYTES as usize]);
        assert!(good.iter().all(|[source, destination]| contents(source) == contents(destination)));
    }
    assert!(by_engine >= 20, "{by_engine} of 40 good copies by the engine");
    let after = state(client);
    assert_eq!(after.process, process, "the engine has not ended");
    let failed = after.redone - before.redone;
    println!(
        "{failed} requests with stray descriptors were repeated by the CPU; {by_engine} of 40 others by the engine"
    );
    assert!(failed >= 30, "{failed}");
}
