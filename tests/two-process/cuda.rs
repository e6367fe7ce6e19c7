//! The CUDA engine as a process on the fake driver, or a real one, beside a real service: memory of the device, and what becomes of it.
//!
//! ```text
//! service ◄─ Role: keeper ─ fork ─► engine ─ dlopen ─► the fake, which does what a file of the test orders
//!    ▲                                                  clients here, and a second user in another role
//! ```

mod harness;

#[path = "../../crates/memferry/tests/end_to_end/served.rs"]
mod served;
#[path = "../../crates/memferry/tests/end_to_end/shared.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod shared;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use harness::{
    Role, Service, connect_as_told, in_child, next_order, report, role_socket, start_as_another_user,
    wait_until,
};
use memferry::{
    CallError, Client, Copy2d, Count2d, EngineKind, ExternalStatus, Failure, Fill2d, Frame, FrameError,
    GrantToken, Grantee, Pattern, PixelSize, Plane, Queue, RefusalKind, Rights, copy, copy_2d, fill, fill_2d,
    scatter_gather,
};
use memferry_conformance::noise;
use memferry_conformance::requests::{self, Draft, RequestFixture, request_suite};
use memferry_engine_cuda::Options;
use rustix::process::{Pid, Signal, kill_process};
use served::{Served, User};
use shared::*;

const PATIENCE: Duration = harness::SOON;
const MIB: u64 = 1 << 20;
/// What the engine's users can have, of `DEVICE_BYTES` of the fake.
const MEMORY: u64 = 240 * MIB;
/// A frame's memory is rounded up to this.
const GRANULARITY: u64 = 2 * MIB;
/// Options of the role's engine, one each line.
const OPTIONS: &str = "MEMFERRY_TEST_CUDA";
const FAULTS: &str = "MEMFERRY_FAKE_CUDA";
/// Names the library of a real driver, on a machine with a GPU. What needs the fake's faults is passed over then.
const REAL: &str = "MEMFERRY_TEST_CUDA_LIBRARY";

thread_local! {
    /// The stage of the test on this thread, for tests that get only a client.
    static STAGE: RefCell<Vec<Stage>> = const { RefCell::new(Vec::new()) };
}

/// A service with an engine on a fake.
struct Stage {
    // In the order in which they end.
    _engine: Role,
    service: Service,
    /// Words that the fake obeys, and lines of the engine to the administrator.
    orders: PathBuf,
    lines: PathBuf,
}

/// Runs the engine.
#[test]
fn cuda_engine() {
    let Some(socket) = role_socket() else { return };
    let options = std::env::var(OPTIONS).unwrap();
    let socket = socket.to_str().unwrap();
    let words = ["engine", "--socket", socket, "--name", "cuda"].into_iter().chain(options.lines());
    let options = Options::parse_from(words);
    in_child(|| memferry_engine_cuda::run(&options).is_ok());
}

/// The real driver, or the fake that Cargo built for this test.
fn driver() -> PathBuf {
    let fake = || std::env::current_exe().unwrap().with_file_name("libmemferry_fake_cuda.so");
    std::env::var_os(REAL).map_or_else(fake, PathBuf::from)
}

fn is_real() -> bool {
    std::env::var_os(REAL).is_some()
}

/// Those faults that the driver under test can be given.
fn possible<const N: usize>(faults: [&'static str; N]) -> impl Iterator<Item = &'static str> {
    faults.into_iter().filter(|faults| faults.is_empty() || !is_real())
}

fn configuration(rest: &str) -> String {
    format!("cuda user={} {rest}", rustix::process::geteuid().as_raw())
}

impl Stage {
    /// With words for the fake, and more in the engine's configuration.
    fn new(faults: &str, rest: &str) -> Self {
        let library = format!("--library={}", driver().display());
        Self::with(&[&library, &format!("--memory={MEMORY}")], faults, rest)
    }

    fn with(options: &[&str], faults: &str, rest: &str) -> Self {
        let engine = configuration(rest);
        let service = Service::start(&["--workers=2", "--channels=8", "--mode=666", "--engine", &engine]);
        let beside = |name| service.socket.with_file_name(name);
        let orders = beside("orders");
        let lines = beside("lines");
        std::fs::write(&orders, "").unwrap();
        let engine = Role::start_by(
            Command::new(std::env::current_exe().unwrap())
                .env(OPTIONS, options.join("\n"))
                .env(FAULTS, format!("{faults} orders={}", orders.display()))
                .stderr(File::create(&lines).unwrap()),
            "cuda_engine",
            &service.socket,
        );
        Self { _engine: engine, service, orders, lines }
    }

    /// With an engine that gives memory.
    fn ready(faults: &str, rest: &str) -> (Self, Client) {
        let stage = Self::new(faults, rest);
        let client = stage.service.client();
        drop(far(&client, 1));
        (stage, client)
    }

    fn order(&self, words: &str) {
        let next = self.orders.with_extension("next");
        std::fs::write(&next, words).unwrap();
        std::fs::rename(next, &self.orders).unwrap();
    }

    fn lines(&self) -> String {
        std::fs::read_to_string(&self.lines).unwrap()
    }
}

/// The client of the request suite: also requests between places in host memory go to the engine, which detours.
fn client() -> Client {
    let (stage, client) = Stage::ready("", "shortest=1");
    STAGE.with_borrow_mut(|stages| stages.push(stage));
    client
}

fn state(client: &Client) -> ExternalStatus {
    client.status().unwrap().engines.remove(0)
}

fn home(client: &Client, length: u64) -> Result<Frame, FrameError> {
    client.frame(length).home("cuda").alloc()
}

/// A frame in VRAM.
fn far(client: &Client, length: u64) -> Frame {
    harness::far(client, "cuda", length)
}

/// A frame in host memory that the engine has, too.
fn host(client: &Client, length: u64) -> Frame {
    harness::near(client, length, &far(client, 1))
}

/// A frame in host memory, of random bytes.
fn near(client: &Client, length: u64, seed: u64) -> Frame {
    let frame = host(client, length);
    frame.write(0, &noise(length as usize, seed)).unwrap();
    frame
}

/// The bytes of a frame in VRAM.
fn fetched(client: &Client, queue: &mut Queue, far: &Frame) -> Vec<u8> {
    let host = harness::near(client, far.length(), far);
    queue.run(copy(far, host.slice(..far.length()))).unwrap();
    let mut bytes = vec![0; far.length() as usize];
    host.read(0, &mut bytes).unwrap();
    bytes
}

fn refusal(allocated: Result<Frame, FrameError>) -> (RefusalKind, String) {
    match allocated {
        Err(FrameError::Call(CallError::Refused(refusal))) => (refusal.kind, refusal.to_string()),
        other => panic!("{other:?}"),
    }
}

fn kill_engine(client: &Client) {
    if let Some(process) = state(client).process {
        let _ = kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL);
    }
}

#[test]
fn bytes_go_to_vram_and_back() {
    let (_stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let bytes = 3 * MIB + 77;
    let source = near(&client, bytes, 1);
    let destination = near(&client, bytes, 2);
    let devices = [1, 2].map(|_| far(&client, bytes));
    let mut expected = [contents(&source), contents(&destination)];
    let mut on_device = [vec![0; bytes as usize], vec![0; bytes as usize]];
    let mut random = fastrand::Rng::with_seed(27);
    for round in 0..60 {
        let length = if round % 2 == 0 { random.u64(0..=100) } else { random.u64(0..=bytes) };
        let mut place = || {
            let at = random.u64(0..=bytes - length);
            (at as usize..(at + length) as usize, at..at + length)
        };
        let [from, first, second, to] = [(); 4].map(|()| place());
        let there = queue.submit(copy(source.slice(from.1), devices[0].slice(first.1))).unwrap();
        let done = queue.wait(there).unwrap();
        assert_eq!((done.engine, done.bytes_done), (EngineKind::External, length));
        on_device[0][first.0].copy_from_slice(&expected[0][from.0]);
        // Within one memory they may lie on each other.
        let inside = usize::from(round % 3 != 0);
        let third = place();
        queue.run(copy(devices[0].slice(third.1.clone()), devices[inside].slice(second.1))).unwrap();
        let moved = on_device[0][third.0].to_vec();
        on_device[inside][second.0.clone()].copy_from_slice(&moved);
        queue
            .run(copy(
                devices[inside].slice(second.0.start as u64..second.0.end as u64),
                destination.slice(to.1),
            ))
            .unwrap();
        let moved = on_device[inside][second.0].to_vec();
        expected[1][to.0].copy_from_slice(&moved);
        assert!(contents(&destination) == expected[1], "round {round}, {length} bytes");
    }
    for (device, bytes) in devices.iter().zip(&on_device) {
        assert!(fetched(&client, &mut queue, device) == *bytes);
    }
    let state = state(&client);
    assert_eq!((state.memory_bytes, state.memory_used, state.redone), (MEMORY, 2 * bytes, 0));
}

/// They are divided into parts, and some of them go through the buffer backward.
#[test]
fn long_requests_are_whole() {
    let (_stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let bytes = 70 * MIB + 5;
    let source = near(&client, bytes, 3);
    let device = far(&client, bytes);
    let mut expected = contents(&source)[..bytes as usize].to_vec();
    let whole = expected.len();
    queue.run(copy(source.slice(..bytes), &device)).unwrap();
    queue.run(copy(device.slice(..bytes - 1000), device.slice(1000..))).unwrap();
    expected.copy_within(..whole - 1000, 1000);
    queue.run(copy(device.slice(MIB..), device.slice(3..bytes - MIB + 3))).unwrap();
    expected.copy_within(MIB as usize.., 3);
    assert!(fetched(&client, &mut queue, &device) == expected);
    queue.run(fill(device.slice(1..bytes), Pattern::Word(0x0403_0201))).unwrap();
    let filled = fetched(&client, &mut queue, &device);
    assert_eq!(filled[0], expected[0]);
    assert!((1..).zip(&filled[1..]).all(|(at, byte)| *byte == ((at - 1) % 4) as u8 + 1));
}

#[test]
fn small_pieces_are_scattered_and_gathered() {
    const PIECE: u64 = 8 << 10;
    const PIECES: u64 = 1000;
    for faults in possible(["", "driver=12000", "register=refused", "without=cuMemcpyBatchAsync"]) {
        let (_stage, client) = Stage::ready(faults, "");
        let mut queue = client.queue(8).unwrap();
        let bytes = PIECE * PIECES;
        let source = near(&client, bytes, 4);
        let destination = near(&client, bytes, 5);
        let device = far(&client, bytes);
        let mut order: Vec<u64> = (0..PIECES).collect();
        fastrand::Rng::with_seed(9).shuffle(&mut order);
        let pieces = |frame: &Frame| -> Vec<_> {
            order.iter().map(|number| frame.slice(number * PIECE..(number + 1) * PIECE)).collect()
        };
        let there = queue.submit(scatter_gather([source.slice(..bytes)], pieces(&device))).unwrap();
        assert_eq!(queue.wait(there).unwrap().engine, EngineKind::External);
        let back = queue.submit(scatter_gather(pieces(&device), pieces(&destination))).unwrap();
        assert_eq!(queue.wait(back).unwrap().bytes_done, bytes);
        queue.run(scatter_gather(pieces(&device), [destination.slice(..bytes)])).unwrap();
        assert!(contents(&source) == contents(&destination), "{faults}");
    }
}

/// It takes longer than `stall-ms`, and each of its parts much less.
#[test]
fn a_long_list_on_itself_is_not_stalled() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let part = 32 * MIB;
    let source = near(&client, part, 11);
    let device = far(&client, part);
    let mut from = vec![device.slice(..2)];
    let mut to = vec![device.slice(1..3)];
    from.extend((0..8).map(|_| source.slice(..part)));
    to.extend((0..8).map(|_| device.slice(..part)));
    stage.order("slow=250000");
    queue.run(scatter_gather(from, to)).unwrap();
}

#[test]
fn pictures_are_cut_out_and_filled() {
    let (_stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let width = 3001_u64;
    let height = 3500_u64;
    let pitch = 4096 * 4_u64;
    let bytes = pitch * height;
    let picture = near(&client, bytes, 6);
    let device = far(&client, bytes);
    queue.run(copy(&picture, &device)).unwrap();
    let count = Count2d { pixel: PixelSize::Bits32, x_count: width as u32, y_count: height as u32 };
    let rows = |start, pitch| Plane { start, x_step: 4, y_step: (pitch - (width - 1) * 4) as i64 };
    let color = memferry::Color24::new(0x12_3456).unwrap();
    let other = count.pixels() * 4;
    let packed = far(&client, other);
    let cut = Copy2d { count, source: rows(40, pitch), destination: rows(0, width * 4), transparent: None };
    let ticket = queue.submit(copy_2d(&device, &packed, cut)).unwrap();
    assert_eq!(queue.wait(ticket).unwrap().engine, EngineKind::External);
    let frame = Fill2d {
        count: Count2d { x_count: 17, ..count },
        destination: Plane { start: 8, x_step: 4, y_step: (pitch - 64) as i64 },
        color,
    };
    queue.run(fill_2d(&device, frame)).unwrap();
    let mut expected = contents(&picture);
    let rows_of = |bytes: &[u8], start: u64, length: u64, pitch: u64| -> Vec<u8> {
        let row = |row: u64| (start + row * pitch) as usize..(start + row * pitch + length) as usize;
        (0..height).flat_map(|number| bytes[row(number)].to_vec()).collect()
    };
    assert!(fetched(&client, &mut queue, &packed) == rows_of(&expected, 40, width * 4, pitch));
    for row in 0..height {
        let at = (8 + row * pitch) as usize;
        expected[at..at + 17 * 4].copy_from_slice(&[0x56, 0x34, 0x12, 0].repeat(17));
    }
    assert!(fetched(&client, &mut queue, &device) == expected);
}

/// Runs the suite's requests on VRAM. What the engine does not do must have changed nothing; the suite's frames then go through host
/// memory, as a client would do it.
struct OnDevice {
    far: Served,
    near: Served,
    /// How many of each kind were done, and not done.
    counts: BTreeMap<&'static str, [u32; 2]>,
}

impl RequestFixture for &mut OnDevice {
    fn run(&mut self, draft: &Draft) -> requests::Served {
        let served = self.far.run(draft);
        let is_refused = served.outcome == Err(Failure::Unsupported);
        self.counts.entry(draft.name()).or_default()[usize::from(is_refused)] += 1;
        if !is_refused {
            return served;
        }
        assert_eq!(served.bytes_done, 0, "{draft:?}");
        for frame in 0..requests::FRAMES {
            let bytes = self.far.contents(frame);
            self.near.fill(frame, &bytes);
        }
        let served = self.near.run(draft);
        for frame in 0..requests::FRAMES {
            let bytes = self.near.contents(frame);
            self.far.fill(frame, &bytes);
        }
        served
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        self.far.fill(frame, bytes);
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        self.far.contents(frame)
    }
}

/// Runs so many cases by two clients, each with half of the frames and grants of the others.
fn suite_on_device(stage: &Stage, place: impl Fn(&Client) -> Frame, cases: u32) {
    let user = |place: &dyn Fn(&Client) -> Frame| {
        let client = stage.service.client();
        let staging = host(&client, FRAME_BYTES);
        User::new(client, requests::FRAMES / 2, place).staged_by(staging)
    };
    let near = |client: &Client| host(client, FRAME_BYTES);
    let mut fixture = OnDevice {
        far: Served::new(vec![user(&place), user(&place)]),
        near: Served::new(vec![user(&near), user(&near)]),
        counts: BTreeMap::new(),
    };
    request_suite(&mut fixture, cases);
    println!("done, not done: {:?}", fixture.counts);
    for kind in ["copy", "scatter_gather"] {
        let [done, not_done] = fixture.counts[kind];
        assert!(done > 0 && not_done == 0, "{kind}");
    }
    for kind in ["copy_2d", "fill_2d", "fill"] {
        assert!(fixture.counts[kind][0] > 0, "{kind}");
    }
}

#[test]
fn requests_in_vram_match_the_oracle() {
    let (stage, _client) = Stage::ready("", "");
    suite_on_device(&stage, |client| far(client, FRAME_BYTES), 120);
}

#[test]
fn requests_between_vram_and_host_memory_match_the_oracle() {
    for faults in possible(["", "register=refused", "driver=12000 fail=cuModuleLoadData:200:1"]) {
        let (stage, _client) = Stage::ready(faults, "");
        let number = Cell::new(0_usize);
        let place = |client: &Client| {
            number.set(number.get() + 1);
            if number.get().is_multiple_of(3) { host(client, FRAME_BYTES) } else { far(client, FRAME_BYTES) }
        };
        suite_on_device(&stage, place, 60);
    }
}

/// Accepts a range of VRAM, reads it, and reads on until that is revoked.
#[test]
fn role_reads() {
    let Some(socket) = role_socket() else { return };
    let client = connect_as_told(&socket);
    let granted = client.accept(next_order().parse::<GrantToken>().unwrap()).unwrap();
    let mut queue = client.queue(64).unwrap();
    let host = harness::near(&client, granted.length(), &granted);
    queue.run(copy(&granted, host.slice(..granted.length()))).unwrap();
    let is_right = contents(&host)[..granted.length() as usize] == noise(4 * MIB as usize, 7)[4096..];
    report(if is_right { "right" } else { "wrong" });
    assert_eq!(next_order(), "on");
    assert!(queue.run(copy(host.slice(..1), granted.slice(..1))).is_err(), "it may only read");
    let tickets: Vec<_> =
        (0..40).map(|_| queue.submit(copy(&granted, host.slice(..granted.length()))).unwrap()).collect();
    report("submitted");
    let mut ends = BTreeMap::<String, u32>::new();
    for ticket in tickets {
        let end = match queue.wait(ticket) {
            Ok(_) => "done",
            Err(error) if error.failure == Failure::Cancelled => "cancelled",
            Err(error) if matches!(error.failure, Failure::Revoked { .. }) => "revoked",
            Err(error) => panic!("{error}"),
        };
        *ends.entry(end.to_owned()).or_default() += 1;
    }
    report(ends.get("done").copied().unwrap_or(0));
    assert_eq!(next_order(), "on");
    let refused = queue.run(copy(granted.slice(..1), host.slice(..1)));
    report(format_args!("{refused:?}"));
}

#[test]
fn a_range_of_vram_is_granted_to_another_user_and_revoked_in_flight() {
    let (stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let device = far(&client, 4 * MIB);
    queue.run(copy(near(&client, 4 * MIB, 7), &device)).unwrap();
    let (mut peer, user) = start_as_another_user("role_reads", &stage.service.socket);
    let grant = client.grant(device.slice(4096..), Rights::READ, Grantee::User(user)).unwrap();
    peer.send_line(&grant.token().to_string());
    assert_eq!(peer.receive_line(), "right");
    stage.order("slow=50000");
    peer.send_line("on");
    assert_eq!(peer.receive_line(), "submitted");
    wait_until("requests on the device", || {
        client.status().unwrap().workers.iter().map(|worker| worker.busy).sum::<u64>() > 0
    });
    grant.revoke().unwrap();
    let done: u32 = peer.receive_line().parse().unwrap();
    // A real device may have been faster than the revocation.
    assert!(done < 40 || is_real(), "none was revoked in flight");
    peer.send_line("on");
    let refused = peer.receive_line();
    assert!(refused.contains("Revoked"), "{refused}");
    stage.order("slow=0");
    assert!(fetched(&client, &mut queue, &device) == noise(4 * MIB as usize, 7), "its owner still has it");
}

#[test]
fn a_cancelled_request_ends_between_its_parts() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "stall-ms=20000");
    let mut queue = client.queue(8).unwrap();
    let bytes = 150 * MIB;
    let device = far(&client, bytes);
    stage.order("hold");
    let ticket = queue.submit(fill(&device, Pattern::Byte(3))).unwrap();
    wait_until("it to be on the device", || {
        client.status().unwrap().workers.iter().map(|worker| worker.busy).sum::<u64>() > 0
    });
    queue.cancel(ticket.id()).unwrap();
    stage.order("go");
    let error = queue.wait(ticket).unwrap_err();
    assert_eq!(error.failure, Failure::Cancelled);
    assert!(error.bytes_done < bytes, "{} bytes", error.bytes_done);
}

#[test]
fn vram_is_given_until_none_is_left_and_again() {
    // The device has less than the engine was told, by what its buffers and their rounding take.
    let (stage, client) = Stage::ready("", "");
    let mut queue = client.queue(8).unwrap();
    let half = far(&client, MEMORY / 2);
    let (kind, why) = refusal(home(&client, MEMORY / 2 + 1));
    assert_eq!(kind, RefusalKind::Quota);
    assert!(why.contains(&format!("{} of {MEMORY} bytes left", MEMORY / 2)), "{why}");
    // A frame of one byte takes a whole granule, so the pool is empty before the service says so.
    let small: Vec<_> = (0..MEMORY / 2 / GRANULARITY).map(|_| home(&client, 1).unwrap()).collect();
    let (kind, why) = refusal(home(&client, 1));
    assert_eq!(kind, RefusalKind::System);
    assert!(why.contains("engine cuda could not allocate the memory"), "{why}");
    wait_until("the line", || {
        stage.lines().contains("no frame of 1 bytes: 2097152 bytes of VRAM, with 0 of")
    });
    for (number, frame) in small.iter().enumerate() {
        queue.run(fill(frame, Pattern::Byte(number as u8))).unwrap();
    }
    queue.run(fill(&half, Pattern::Byte(0x77))).unwrap();
    drop((small, half));
    let again = far(&client, MEMORY / 2);
    let others = far(&client, MEMORY / 2);
    for frame in [again, others] {
        let bytes = fetched(&client, &mut queue, &frame);
        assert!(bytes.iter().all(|byte| *byte == 0), "it shows something of its last user");
    }
}

#[test]
fn a_device_that_is_full_refuses() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "");
    stage.order("fail=cuMemCreate:2:3");
    let (kind, why) = refusal(home(&client, MIB));
    assert_eq!(kind, RefusalKind::System);
    assert!(why.contains("could not allocate the memory"), "{why}");
    wait_until("the line", || stage.lines().contains("the device has not 2097152 bytes of VRAM left"));
    let frame = far(&client, MIB);
    assert_eq!(state(&client).memory_used, frame.length());
}

#[test]
fn a_failed_call_ends_its_request_alone() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "");
    let mut queue = client.queue(4).unwrap();
    let device = far(&client, MIB);
    let unsupported = Failure::Unsupported;
    for (code, expected) in [(1, Failure::EngineReset), (800, unsupported), (801, unsupported)] {
        stage.order(&format!("fail=cuMemsetD8Async:{code}:1"));
        let ticket = queue.submit(fill(&device, Pattern::Byte(3))).unwrap();
        let error = queue.wait(ticket).unwrap_err();
        assert_eq!((error.failure, error.bytes_done), (expected, 0), "code {code}");
        queue.run(fill(&device, Pattern::Byte(3))).unwrap();
    }
    let lines = stage.lines();
    assert_eq!(lines.matches("a request failed: cuMemsetD8Async(").count(), 3, "{lines}");
}

/// Two host frames that the driver registers for as long as the test orders, once a request for the first has waited for `longest`.
fn held(stage: &Stage, client: &Client, device: &Frame, longest: Duration) -> [Frame; 2] {
    let mut queue = client.queue(2).unwrap();
    let start = Instant::now();
    while start.elapsed() < 4 * PATIENCE {
        stage.order("register=held");
        if let Ok(first) = client.frame(device.length()).alloc() {
            let since = Instant::now();
            let ticket = queue.submit(copy(device, &first)).unwrap();
            let error = queue.wait(ticket).unwrap_err();
            assert_eq!((error.failure, error.bytes_done), (Failure::Unsupported, 0));
            let frames = state(client).frames;
            let second = client.frame(device.length()).alloc();
            if let (Ok(second), true) = (second, since.elapsed() >= longest && state(client).frames > frames)
            {
                return [first, second];
            }
        }
        // On a busy machine the engine was late with one, so the service has not offered it.
        stage.order("register=go");
    }
    panic!("timed out: no request waited for its frame, or no frame was offered meanwhile");
}

#[test]
fn a_request_waits_for_its_frame_and_no_other_frame_does() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "stall-ms=1000");
    let device = far(&client, MIB);
    let before = state(&client).process;
    let [first, second] = held(&stage, &client, &device, Duration::from_secs(2));
    assert_eq!(state(&client).process, before, "the engine was not cut off");
    let mut queue = client.queue(2).unwrap();
    first.write(0, &noise(MIB as usize, 9)).unwrap();
    let there = queue.submit(copy(&first, &device)).unwrap();
    let back = queue.submit(copy(&device, &second).fenced()).unwrap();
    stage.order("register=go");
    queue.wait(there).unwrap();
    queue.wait(back).unwrap();
    assert!(contents(&second) == contents(&first));
}

/// Submits 1000 requests, lets `end` do something to the engine, and asserts that each ends once. Returns how many failed.
fn a_thousand_end_once(client: &Client, (near, device): (&Frame, &Frame), end: impl FnOnce()) -> usize {
    let mut queue = client.queue(1024).unwrap();
    let mut open = BTreeSet::new();
    for number in 0..1000 {
        let transfer = if number % 2 == 0 { copy(near, device) } else { copy(device, near) };
        let ticket = queue.submit(transfer).unwrap();
        open.insert(ticket.id());
    }
    end();
    let mut failed = 0;
    for ended in queue.completions() {
        let ticket = match ended {
            Ok(done) => done.id,
            Err(error) => {
                let is_right = matches!(
                    error.failure,
                    Failure::EngineReset
                        | Failure::Unsupported
                        | Failure::Revoked { .. }
                        | Failure::Cancelled
                );
                assert!(is_right, "{}", error.failure);
                failed += 1;
                error.id
            }
        };
        assert!(open.remove(&ticket), "{ticket:?} has ended twice");
    }
    assert!(open.is_empty(), "{} have not ended", open.len());
    failed
}

/// Asserts that a frame and what was granted of it are of no use any more.
fn assert_lost(client: &Client, frame: &Frame, granted: &Frame, peer: &Client) {
    let mut queue = client.queue(4).unwrap();
    let host = client.frame(1).alloc().unwrap();
    wait_until("the frame to be revoked", || {
        let ended = queue.run(copy(frame.slice(..1), host.slice(..1)));
        let Err(memferry::RunError::Transfer(error)) = ended else { return false };
        matches!(error.failure, Failure::Revoked { .. })
    });
    let own = peer.frame(1).alloc().unwrap();
    let refused = peer.queue(4).unwrap().run(copy(granted.slice(..1), own.slice(..1)));
    assert!(refused.is_err(), "its grants are revoked, too");
}

#[test]
fn a_lost_context_ends_every_request_once_and_the_engine_comes_back() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (stage, client) = Stage::ready("", "stall-ms=20000");
    let peer = stage.service.client();
    for code in [700, 719, 214] {
        let near = near(&client, 64 << 10, 8);
        let device = far(&client, 64 << 10);
        let grant = client.grant(&device, Rights::READ, Grantee::Session(peer.session())).unwrap();
        let granted = peer.accept(grant.token()).unwrap();
        let before = state(&client).process;
        stage.order("hold");
        let failed = a_thousand_end_once(&client, (&near, &device), || {
            stage.order(&format!("go lost=20:{code}"));
        });
        assert!(failed > 900, "{failed}");
        assert_lost(&client, &device, &granted, &peer);
        assert!(stage.lines().contains("the context of the device is lost"), "{}", stage.lines());
        stage.order("");
        wait_until("another engine", || {
            let state = state(&client);
            state.is_connected && state.process != before
        });
        // The host frame was sealed before this process existed; the keeper had mapped it.
        let device = far(&client, near.length());
        let mut queue = client.queue(4).unwrap();
        queue.run(copy(&near, &device)).unwrap();
        assert!(fetched(&client, &mut queue, &device) == contents(&near));
    }
}

#[test]
fn a_killed_engine_loses_its_memory_and_comes_back() {
    let (stage, client) = Stage::ready(if is_real() { "" } else { "slow=200" }, "");
    let peer = stage.service.client();
    for _ in 0..3 {
        let near = near(&client, 64 << 10, 9);
        let device = far(&client, 64 << 10);
        let grant = client.grant(&device, Rights::READ, Grantee::Session(peer.session())).unwrap();
        let granted = peer.accept(grant.token()).unwrap();
        let failed = a_thousand_end_once(&client, (&near, &device), || kill_engine(&client));
        assert!(failed > 0 || is_real());
        assert_lost(&client, &device, &granted, &peer);
        let after = far(&client, MEMORY);
        drop(after);
    }
}

#[test]
fn a_service_that_comes_back_has_its_engine_again() {
    let (mut stage, client) = Stage::ready("", "");
    let device = far(&client, MIB);
    drop((device, client));
    let engine = configuration("");
    stage.service.replace(&["--workers=2", "--channels=8", "--engine", &engine]);
    let client = stage.service.client();
    let device = far(&client, MEMORY);
    let source = harness::near(&client, MIB, &device);
    source.write(0, &noise(MIB as usize, 10)).unwrap();
    let mut queue = client.queue(8).unwrap();
    let whole = fetched(&client, &mut queue, &device);
    assert!(whole.iter().all(|byte| *byte == 0));
    queue.run(copy(&source, device.slice(..MIB))).unwrap();
    assert!(fetched(&client, &mut queue, &device)[..MIB as usize] == contents(&source));
}

#[test]
fn an_engine_without_a_device_says_why() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let library = format!("--library={}", driver().display());
    let memory = format!("--memory={MEMORY}");
    for (options, faults, line) in [
        (&["--library=/nonexistent/libcuda.so.1", &memory][..], "", "cannot load /nonexistent/libcuda.so.1"),
        (
            &["--device=3", &library, &memory],
            "",
            "device 3: cuDeviceGet(3) failed with CUDA_ERROR_INVALID_DEVICE",
        ),
        (&[&library, "--memory=1099511627776"], "", "bytes of VRAM, fewer than the 1099511627776 for frames"),
        (&[&library, &memory], "driver=11080", "the driver supports CUDA 11.8, but 12.0 is needed"),
        (&[&library, &memory], "fail=cuInit:100:1000", "CUDA_ERROR_NO_DEVICE"),
    ] {
        let stage = Stage::with(options, faults, "");
        wait_until(line, || stage.lines().contains(line));
        let client = stage.service.client();
        let (kind, why) = refusal(home(&client, 1));
        assert!(matches!(kind, RefusalKind::System | RefusalKind::Quota), "{why}");
        stage.service.assert_serves();
    }
}

/// Of a user who is not in the configuration.
#[test]
fn memory_is_given_only_to_the_users_of_the_configuration() {
    let stage = Stage::new("", "frames=12345");
    let client = stage.service.client();
    wait_until("the engine", || state(&client).is_connected);
    assert_eq!(refusal(home(&client, 1)).0, RefusalKind::Argument);
}
