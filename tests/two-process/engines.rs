//! Engine processes of every character beside a real service: what they are given, and what becomes of their requests.
//!
//! ```text
//! service ◄─ Role: keeper ─ fork ─► engine: copies, lies, stalls, or is killed          clients here count every completion
//! ```

mod harness;
mod own_memory;

#[path = "../../crates/memferry/tests/end_to_end/served.rs"]
mod served;
#[path = "../../crates/memferry/tests/end_to_end/shared.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod shared;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Role, Service, in_child, role_socket, wait_until};
use memferry::{CallError, Client, Frame, FrameError, Grantee, Queue, RefusalKind, Rights, copy, fill};
use memferry_conformance::requests;
use memferry_engine::{
    Engine, EngineDescription, EngineOptions, Failure, Job, Operation, Operations, Outcome, WorkId, run,
};
use memferry_transfer::{Confined, EngineKind};
use own_memory::OwnMemory;
use rustix::process::{Pid, Signal, kill_process};
use shared::*;

const PATIENCE: Duration = harness::SOON;
const BYTES: u64 = 1 << 20;
/// Bytes of memory of its own that an engine says it has.
const MEMORY: u64 = 4 << 20;

thread_local! {
    /// The services and engines of the test on this thread, stopped when it ends.
    static RUNNING: RefCell<Vec<(Service, Role)>> = const { RefCell::new(Vec::new()) };
}

/// Runs the engine "test" in a child of a role's process, if this is one.
fn as_engine(serve: impl FnMut(&mut Engine) -> Result<(), Infallible>) {
    as_engine_for(Operations::OF_MEMORY, serve);
}

fn as_engine_for(operations: Operations, serve: impl FnMut(&mut Engine) -> Result<(), Infallible>) {
    let Some(socket) = role_socket() else { return };
    let name = "test".to_owned();
    let description = EngineDescription {
        operations,
        shortest_bytes: 0,
        memory_bytes: MEMORY,
        ..EngineDescription::default()
    };
    in_child(|| run(EngineOptions { socket, name, description }, serve).is_ok());
}

/// Carries out a job as the CPU engine does.
fn perform(job: &Job) -> Outcome {
    let confined = Confined::new(job.operation(), job.hint()).unwrap();
    memferry_cpu::perform_whole(&confined, None).unwrap_or_else(|| job.failed(Failure::Unsupported, 0))
}

fn next(engine: &mut Engine) -> Job {
    loop {
        let job = engine.next(Duration::from_secs(1));
        engine.take_cancels();
        if let Some(job) = job {
            return job;
        }
    }
}

#[test]
fn engine_that_copies() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            engine.complete(job.id(), perform(&job));
        }
    });
}

/// Copies, also in memory of its own.
#[test]
fn engine_that_has_memory() {
    as_engine(|engine| {
        // A byte less than announced, so that the last one is refused by the engine and not by the service.
        let memory = OwnMemory::new(MEMORY - 1);
        engine.watch_frames(memory.clone());
        loop {
            let job = next(engine);
            engine.complete(job.id(), memory.perform(&job));
        }
    });
}

/// Faster than any: it moves nothing.
#[test]
fn engine_that_only_claims() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            engine.complete(job.id(), job.succeeded());
        }
    });
}

/// Has memory of its own, and completes nothing but cancelled requests and those of up to 64 KiB.
#[test]
fn engine_that_never_ends_long_ones() {
    as_engine(|engine| {
        let memory = OwnMemory::new(MEMORY);
        engine.watch_frames(memory.clone());
        let mut held: Vec<Job> = Vec::new();
        let mut tick = 0;
        loop {
            let job = engine.next(Duration::from_millis(10));
            engine.take_cancels();
            match job {
                Some(job) if job.operation().total_bytes() <= 64 << 10 => {
                    engine.complete(job.id(), memory.perform(&job));
                }
                job => held.extend(job),
            }
            let (cancelled, kept): (Vec<_>, Vec<_>) =
                held.drain(..).partition(|job| engine.is_cancelled(job.id()));
            cancelled.iter().for_each(|job| engine.complete(job.id(), job.failed(Failure::Cancelled, 0)));
            // Progress, so that nobody takes it for stalled.
            tick += 1;
            kept.iter().for_each(|job| engine.progress(job.id(), tick, false));
            held = kept;
        }
    });
}

#[test]
fn engine_that_only_fills() {
    as_engine_for(Operations::FILL, |engine| {
        loop {
            let job = next(engine);
            engine.complete(job.id(), perform(&job));
        }
    });
}

/// Completes every request but the first seven.
#[test]
fn engine_that_stalls() {
    as_engine(|engine| {
        let mut taken = 0;
        loop {
            let job = next(engine);
            taken += 1;
            if taken > 7 {
                engine.complete(job.id(), perform(&job));
            }
        }
    });
}

#[test]
fn engine_that_invents_requests() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            let id = WorkId { tag: job.id().tag ^ 0x5000, ..job.id() };
            engine.complete(id, job.succeeded());
        }
    });
}

#[test]
fn engine_that_claims_too_much() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            engine.complete(job.id(), Outcome { bytes_done: BYTES + 1, ..job.succeeded() });
        }
    });
}

#[test]
fn engine_that_claims_admission_failed() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            engine.complete(job.id(), job.failed(Failure::ServiceStopping, 0));
        }
    });
}

#[test]
fn engine_that_completes_twice() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            let outcome = perform(&job);
            engine.complete(job.id(), outcome);
            engine.complete(job.id(), outcome);
        }
    });
}

#[test]
fn engine_that_fails() {
    as_engine(|engine| {
        loop {
            let job = next(engine);
            let failure = match job.operation() {
                Operation::Fill { .. } => Failure::MemoryFault,
                _ => Failure::Cancelled,
            };
            engine.complete(job.id(), job.failed(failure, 0));
        }
    });
}

#[test]
fn engine_that_exits() {
    as_engine(|engine| {
        next(engine);
        Ok(())
    });
}

fn configuration(rest: &str) -> String {
    format!("test user={} {rest}", rustix::process::geteuid().as_raw())
}

/// A client of a new service with two workers and an engine process of that role, which is connected.
fn client_beside(role: &str, rest: &str) -> Client {
    let engine = configuration(rest);
    let service = Service::start(&["--workers", "2", "--channels", "8", "--engine", &engine]);
    let client = service.client();
    let role = Role::start(role, &service.socket);
    RUNNING.with_borrow_mut(|running| running.push((service, role)));
    wait_until("the engine to be connected", || state(&client).is_connected);
    client
}

/// The client of the request suite: every request that an engine may have goes to it.
fn client() -> Client {
    client_beside("engine_that_copies", "shortest=1")
}

fn state(client: &Client) -> memferry::ExternalStatus {
    client.status().unwrap().engines.remove(0)
}

/// Two frames of random bytes.
fn frames(client: &Client) -> [Frame; 2] {
    [1, 2].map(|seed| {
        let frame = client.frame(BYTES).alloc().unwrap();
        frame.write(0, &memferry_conformance::noise(BYTES as usize, seed)).unwrap();
        frame
    })
}

/// Copies one frame to the other, and returns what did it.
fn copied(queue: &mut Queue, [source, destination]: &[Frame; 2]) -> EngineKind {
    let ticket = queue.submit(copy(source, destination)).unwrap();
    let done = queue.wait(ticket).unwrap();
    assert_eq!(done.bytes_done, BYTES);
    assert!(contents(source) == contents(destination));
    done.engine
}

/// Kills the engine's process, but not its keeper.
fn kill_engine(client: &Client, signal: Signal) {
    if let Some(process) = state(client).process {
        let _ = kill_process(Pid::from_raw(process as i32).unwrap(), signal);
    }
}

/// Has 100 copies done by two queues, and asserts that each ends once and well. Returns what did them.
fn many_copies(client: &Client, meanwhile: impl FnOnce()) -> Vec<EngineKind> {
    let pairs: Vec<_> = (0..4).map(|_| frames(client)).collect();
    let mut queues = [client.queue(64).unwrap(), client.queue(64).unwrap()];
    for (number, queue) in queues.iter_mut().enumerate() {
        for round in 0..50 {
            let [source, destination] = &pairs[(number + 2 * round) % 4];
            let _ = queue.submit(copy(source, destination)).unwrap();
        }
    }
    meanwhile();
    let mut engines = Vec::new();
    for queue in &mut queues {
        engines.extend(queue.completions().map(|done| done.unwrap().engine));
    }
    assert_eq!(engines.len(), 100);
    for [source, destination] in &pairs {
        assert!(contents(source) == contents(destination));
    }
    engines
}

#[test]
fn an_engine_gets_transfers_that_pay() {
    let client = client_beside("engine_that_copies", "shortest=65536");
    let pair = frames(&client);
    let mut queue = client.queue(8).unwrap();
    assert_eq!(copied(&mut queue, &pair), EngineKind::External);
    let [source, destination] = &pair;
    let short = queue.submit(copy(source.slice(..40_000), destination.slice(..40_000))).unwrap();
    assert_eq!(queue.wait(short).unwrap().engine, EngineKind::Cpu);
    let overlapping = queue.submit(copy(source.slice(..BYTES - 8), source.slice(8..))).unwrap();
    assert_eq!(queue.wait(overlapping).unwrap().engine, EngineKind::Cpu, "it could not be repeated");
    wait_until("the counters", || state(&client).bytes == BYTES);
    let state = state(&client);
    assert_eq!((state.name.as_str(), state.transfers, state.redone), ("test", 1, 0));
    assert_eq!(state.frames, 2);
    drop(pair);
    drop(queue);
    wait_until("the engine to unmap", || self::state(&client).frames == 0);
}

#[test]
fn a_killed_engine_loses_nothing_and_comes_back() {
    let client = client_beside("engine_that_copies", "");
    let pair = frames(&client);
    let mut queue = client.queue(8).unwrap();
    for _ in 0..5 {
        let before = state(&client).process;
        many_copies(&client, || kill_engine(&client, Signal::KILL));
        wait_until("another engine", || {
            let state = state(&client);
            state.is_connected && state.process != before
        });
        // Its frames are sealed since before this process existed.
        assert_eq!(copied(&mut queue, &pair), EngineKind::External);
    }
}

/// Sets a flag when it is dropped, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes batches of copies until the flag is set, and asserts that each ends once with the right bytes.
fn copy_until(is_over: &AtomicBool, client: &Client) {
    let pairs = [frames(client), frames(client)];
    let mut queue = client.queue(16).unwrap();
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let mut tickets = BTreeSet::new();
        for [source, destination] in &pairs {
            source.write(0, &memferry_conformance::noise(BYTES as usize, round)).unwrap();
            for part in 0..8 {
                let range = part * BYTES / 8..(part + 1) * BYTES / 8;
                let copied = copy(source.slice(range.clone()), destination.slice(range));
                tickets.insert(queue.submit(copied).unwrap().id());
            }
        }
        while !tickets.is_empty() {
            let done = queue.wait_any_for(PATIENCE).unwrap().expect("a request did not end");
            assert!(tickets.remove(&done.id), "a request ended twice");
            assert_eq!(done.bytes_done, BYTES / 8);
        }
        assert!(queue.poll().is_none(), "a request ended twice");
        for [source, destination] in &pairs {
            assert!(contents(source) == contents(destination));
        }
    }
}

/// `./x test --full soak` sets the number of kills to 1,000.
#[test]
fn an_engine_killed_under_load_loses_nothing() {
    let kills = std::env::var("MEMFERRY_ENGINE_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
    let client = client_beside("engine_that_copies", "shortest=1");
    let socket = RUNNING.with_borrow(|running| running[0].0.socket.clone());
    let connect = || Client::connect(&socket).unwrap();
    let mut random = fastrand::Rng::with_seed(27);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _sets = Sets(&is_over);
        let oracle = || {
            while !is_over.load(Ordering::Relaxed) {
                served::run_request_suite(vec![served::User::new(connect(), requests::FRAMES, frame)], 200);
            }
        };
        let load = [scope.spawn(oracle), scope.spawn(|| copy_until(&is_over, &connect()))];
        let mut away = Duration::ZERO;
        for kill in 0..kills {
            // The pause stays short if an engine works for longer than it was away. Now and then it is killed as soon as it works.
            let work =
                if random.u8(..8) == 0 { Duration::ZERO } else { away.mul_f64(1.0 + random.f64() / 2.0) };
            std::thread::sleep(work);
            let before = state(&client);
            wait_until("work of the engine", || state(&client).transfers > before.transfers);
            let killed = Instant::now();
            kill_engine(&client, Signal::KILL);
            wait_until("another engine", || {
                let state = state(&client);
                state.is_connected && state.process != before.process
            });
            away = killed.elapsed();
            assert!(!load.iter().any(|thread| thread.is_finished()), "the load ended after {kill} kills");
        }
    });
    let state = state(&client);
    assert!(state.redone > kills / 4, "{state:?}: hardly a kill met a request");
}

#[test]
fn a_stopped_engine_is_ended_by_its_keeper() {
    let client = client_beside("engine_that_copies", "stall-ms=200");
    let pair = frames(&client);
    let mut queue = client.queue(8).unwrap();
    assert_eq!(copied(&mut queue, &pair), EngineKind::External);
    let before = state(&client).process;
    kill_engine(&client, Signal::STOP);
    assert_eq!(copied(&mut queue, &pair), EngineKind::Cpu);
    wait_until("another engine", || state(&client).is_connected && state(&client).process != before);
}

#[test]
fn a_stopped_engine_delays_a_registration_once() {
    let client = client_beside("engine_that_copies", "");
    kill_engine(&client, Signal::STOP);
    let began = Instant::now();
    let frames: Vec<_> = (0..200).map(|_| client.frame(4096).alloc().unwrap()).collect();
    // Each would take a tenth of a second if it waited for the engine.
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    drop(frames);
    kill_engine(&client, Signal::CONT);
    wait_until("the engine to unmap the one it was late with", || state(&client).frames == 0);
}

#[test]
fn a_stalling_engine_is_cut_off() {
    let client = client_beside("engine_that_stalls", "stall-ms=100");
    let engines = many_copies(&client, || {});
    assert!(engines.contains(&EngineKind::Cpu), "{engines:?}");
    wait_until("the counters", || state(&client).redone > 0);
}

#[test]
fn a_stop_does_not_wait_for_an_engine() {
    let engine = configuration("");
    let arguments = ["--workers", "1", "--grace-ms", "50", "--engine", engine.as_str()];
    let mut service = Service::start(&arguments);
    let client = service.client();
    let _role = Role::start("engine_that_stalls", &service.socket);
    wait_until("the engine to be connected", || state(&client).is_connected);
    let [source, destination] = frames(&client);
    let mut queue = client.queue(8).unwrap();
    let ticket = queue.submit(copy(&source, &destination)).unwrap();
    wait_until("the worker to take the request", || client.status().unwrap().workers[0].requests > 0);
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    let failure = queue.wait(ticket).unwrap_err().failure;
    assert!(matches!(failure, Failure::ChannelFaulted | Failure::ServiceLost), "{failure}");
}

#[test]
fn a_lying_engine_changes_no_completion() {
    for role in [
        "engine_that_invents_requests",
        "engine_that_claims_too_much",
        "engine_that_claims_admission_failed",
        "engine_that_completes_twice",
    ] {
        let client = client_beside(role, "");
        let before = client.status().unwrap().refused.violations;
        let engines = many_copies(&client, || {});
        assert!(engines.contains(&EngineKind::Cpu), "{role}: {engines:?}");
        wait_until(role, || client.status().unwrap().refused.violations > before);
        RUNNING.take();
    }
}

#[test]
fn the_cpu_repeats_what_an_engine_fails() {
    let client = client_beside("engine_that_fails", "");
    let pair = frames(&client);
    let mut queue = client.queue(8).unwrap();
    assert_eq!(copied(&mut queue, &pair), EngineKind::Cpu, "nobody cancelled it");
    let filled = queue.submit(fill(&pair[1], memferry::Pattern::Byte(7))).unwrap();
    assert_eq!(queue.wait(filled).unwrap().engine, EngineKind::Cpu);
    assert!(contents(&pair[1]).iter().all(|byte| *byte == 7));
    wait_until("the counters", || state(&client).redone == 2);
}

#[test]
fn an_engine_may_end_at_every_request() {
    let client = client_beside("engine_that_exits", "");
    let engines = many_copies(&client, || {});
    assert!(engines.contains(&EngineKind::Cpu), "{engines:?}");
}

#[test]
fn frames_of_other_users_are_not_mapped() {
    let client = client_beside("engine_that_copies", "frames=12345");
    let mut queue = client.queue(8).unwrap();
    assert_eq!(copied(&mut queue, &frames(&client)), EngineKind::Cpu);
    assert_eq!(state(&client).frames, 0);
}

#[test]
fn a_service_that_comes_back_has_its_engine_again() {
    let client = client_beside("engine_that_copies", "");
    let (mut service, role) = RUNNING.with_borrow_mut(|running| running.pop().unwrap());
    drop(client);
    let engine = configuration("");
    service.replace(&["--workers", "2", "--channels", "8", "--engine", &engine]);
    let client = service.client();
    wait_until("the engine to be connected", || state(&client).is_connected);
    assert_eq!(copied(&mut client.queue(8).unwrap(), &frames(&client)), EngineKind::External);
    drop((service, role));
}

#[test]
fn a_successor_waits_until_the_service_has_noticed_the_end() {
    let client = client_beside("engine_that_copies", "");
    let (service, mut role) = RUNNING.with_borrow_mut(|running| running.pop().unwrap());
    let lines = service.socket.with_file_name("lines");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.stderr(std::fs::File::create(&lines).unwrap());
    let successor = Role::start_by(&mut program, "engine_that_copies", &service.socket);
    let told = || std::fs::read_to_string(&lines).unwrap();
    wait_until("the successor to be refused", || told().contains("connected already"));
    let before = state(&client).process;
    role.kill();
    wait_until("the successor to be connected", || {
        let now = state(&client);
        now.is_connected && now.process != before
    });
    assert_eq!(copied(&mut client.queue(8).unwrap(), &frames(&client)), EngineKind::External, "{}", told());
    assert_eq!(told().matches("connected already").count(), 1, "{}", told());
    drop((service, successor));
}

#[test]
fn a_second_process_of_an_engine_ends() {
    let _client = client_beside("engine_that_copies", "");
    let (service, role) = RUNNING.with_borrow_mut(|running| running.pop().unwrap());
    let options = || EngineOptions {
        socket: service.socket.clone(),
        name: "test".to_owned(),
        description: EngineDescription::default(),
    };
    let is_refused = in_child(|| {
        let error = run(options(), |_| Ok::<(), Infallible>(())).unwrap_err().to_string();
        error.contains("engine test is connected already; stop its other process first")
    });
    assert!(is_refused);
    drop((service, role));
}

fn memferry(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memferry")).args(arguments).output().unwrap()
}

/// `memferry tune --engine` of a program that a shell starts, which has the socket as its second argument.
fn tune(options: &[&str], program: &str) -> Output {
    memferry(&[&["tune"], options, &["--", "sh", "-c", program, "sh"]].concat())
}

/// A program for it: this test's binary in a role.
fn program_of(role: &str) -> String {
    let own = std::env::current_exe().unwrap();
    format!("MEMFERRY_TEST_ROLE=\"$2\" exec '{}' {role} --exact --nocapture --test-threads=1", own.display())
}

fn errors(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn an_engine_is_measured() {
    let measured = tune(&["--engine", "test", "--dry-run", "--json"], &program_of("engine_that_copies"));
    assert!(measured.status.success(), "{measured:?}");
    let report: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    assert_eq!(report["engine"], "test");
    assert!(report["measurements"]["measured"].as_array().unwrap().len() >= 3, "{report}");
}

#[test]
fn the_length_from_which_an_engine_pays_is_written() {
    let folder = harness::fresh_directory();
    let file = folder.join("memferry.toml");
    let line = |rest: &str| format!("# ours\n[engines]\nprocesses = [\"test user=root{rest}\"] # one\n");
    std::fs::write(&file, line(" shortest=7")).unwrap();
    let config = file.to_str().unwrap();
    let options = ["--engine", "test", "--force", "--config", config];
    let written = tune(&options, &program_of("engine_that_only_claims"));
    assert!(written.status.success(), "{written:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let length = text.split("shortest=").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(text, line(&format!(" shortest={length}")));
    assert!((32 << 10..=64 << 20).contains(&length.parse::<u64>().unwrap()), "{length}");
    assert!(memferry(&["config", "check", config]).status.success());
    let other = errors(&tune(&["--engine", "other", "--config", config], "true"));
    assert!(other.contains("no engine process 'other' in [engines], but 'test'"), "{other}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn nothing_to_measure_is_an_error() {
    let tuned = |program: &str| errors(&tune(&["--engine", "test", "--dry-run"], program));
    let ended = tuned("exit 3");
    assert!(ended.contains("ended (exit status: 3) before it connected"), "{ended}");
    let silent = tuned("exec sleep 60");
    assert!(silent.contains("did not connect within 10 s"), "{silent}");
    let fills = tuned(&program_of("engine_that_only_fills"));
    assert!(fills.contains("left all copies to the CPU"), "{fills}");
    let name = errors(&tune(&["--engine", "No Name", "--dry-run"], "true"));
    assert!(name.contains("'No Name' is not the name of an engine process"), "{name}");
    let absent = memferry(&["tune", "--engine", "test", "--dry-run", "--", "/nonexistent"]);
    assert!(errors(&absent).contains("cannot start /nonexistent"), "{absent:?}");
    for wrong in [&["--engine", "test"][..], &["--", "true"], &["--config", "x", "--", "true"]] {
        assert_eq!(memferry(&[&["tune"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn advice_names_engine_processes() {
    let client = client_beside("engine_that_copies", "shortest=65536");
    let socket = RUNNING.with_borrow(|running| running[0].0.socket.display().to_string());
    let advised = memferry(&["advise", "--socket", &socket, "--json"]);
    assert!(advised.status.success(), "{advised:?}");
    let report: serde_json::Value = serde_json::from_slice(&advised.stdout).unwrap();
    let by = |row: &serde_json::Value| (row["bytes"].as_u64().unwrap(), row["engine"] == "engine process");
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().map(by).all(|(bytes, is_external)| is_external == (bytes >= 65536)), "{report}");
    assert_eq!(report["engines"][0]["name"], "test");
    let nobody = memferry(&["advise", "--socket", "/nonexistent/memferry.sock"]);
    assert!(errors(&nobody).contains("/nonexistent/memferry.sock"), "{nobody:?}");
    drop(client);
}

/// A frame in the engine's own memory.
fn far(client: &Client, length: u64) -> Frame {
    harness::far(client, "test", length)
}

fn refused(allocated: Result<Frame, FrameError>) -> RefusalKind {
    match allocated {
        Err(FrameError::Call(CallError::Refused(refusal))) => refusal.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_go_to_an_engines_memory_and_back() {
    let client = client_beside("engine_that_has_memory", "");
    let [source, destination] = frames(&client);
    let far = [BYTES, 12_345].map(|length| far(&client, length));
    let mut queue = client.queue(8).unwrap();
    assert!(far[0].read(0, &mut [0]).is_err(), "it is not mapped here");
    // Also short ones and ranges: nobody else can do them.
    for (length, offset) in [(BYTES, 0), (1, 7), (4096, 8191), (9, 12_336)] {
        let there =
            queue.submit(copy(source.slice(offset..offset + length), far[0].slice(..length))).unwrap();
        assert_eq!(queue.wait(there).unwrap().engine, EngineKind::External);
        let part = length.min(12_345);
        queue.run(copy(far[0].slice(..part), far[1].slice(..part))).unwrap();
        queue.run(copy(far[1].slice(..part), destination.slice(..part))).unwrap();
        let expected = contents(&source)[offset as usize..][..part as usize].to_vec();
        assert!(contents(&destination)[..part as usize] == expected, "{length} bytes");
    }
    queue.run(fill(&far[1], memferry::Pattern::Byte(9))).unwrap();
    queue.run(copy(&far[1], destination.slice(..12_345))).unwrap();
    assert!(contents(&destination)[..12_345].iter().all(|byte| *byte == 9));
    let state = state(&client);
    assert_eq!((state.memory_bytes, state.memory_used, state.redone), (MEMORY, BYTES + 12_345, 0));
}

#[test]
fn requests_in_an_engines_memory_match_the_oracle() {
    let client = client_beside("engine_that_has_memory", "");
    drop(far(&client, 1));
    let peer = || RUNNING.with_borrow(|running| running[0].0.client());
    let all_far = |client: &Client| far(client, FRAME_BYTES);
    served::run_request_suite(vec![served::User::new(client, requests::FRAMES, all_far)], 60);
    // Two clients, each with frames in both kinds of memory, and with grants of the other's.
    let number = std::cell::Cell::new(0_usize);
    let near_or_far = |client: &Client| {
        number.set(number.get() + 1);
        if number.get().is_multiple_of(3) { frame(client) } else { far(client, FRAME_BYTES) }
    };
    let users = [peer(), peer()].map(|client| served::User::new(client, requests::FRAMES / 2, near_or_far));
    served::run_request_suite(users.into(), 60);
}

#[test]
fn an_engines_memory_is_granted_and_revoked_in_flight() {
    let client = client_beside("engine_that_never_ends_long_ones", "");
    let peer = RUNNING.with_borrow(|running| running[0].0.client());
    let far = far(&client, BYTES);
    let near = peer.frame(BYTES).alloc().unwrap();
    let mut queue = peer.queue(32).unwrap();
    let to = Grantee::Session(peer.session());
    let grant = client.grant(far.slice(4096..), Rights::READ, to).unwrap();
    let granted = peer.accept(grant.token()).unwrap();
    queue.run(copy(granted.slice(..4096), near.slice(..4096))).unwrap();
    assert!(contents(&near)[..4096].iter().all(|byte| *byte == 0));
    let wrong_way = queue.run(copy(near.slice(..1), granted.slice(..1)));
    assert!(wrong_way.is_err(), "it may only read");
    // More than the engine takes at a time: the others wait for it, and no CPU does them.
    let tickets: Vec<_> = (0..24)
        .map(|_| queue.submit(copy(granted.slice(..BYTES - 4096), near.slice(4096..))).unwrap())
        .collect();
    wait_until("the requests to be taken", || {
        client.status().unwrap().workers.iter().map(|worker| worker.busy).sum::<u64>() > 0
    });
    grant.revoke().unwrap();
    for ticket in tickets {
        let failure = queue.wait(ticket).unwrap_err().failure;
        assert!(matches!(failure, Failure::Cancelled | Failure::Revoked { .. }), "{failure}");
    }
    assert!(queue.run(copy(granted.slice(..1), near.slice(..1))).is_err(), "revoked");
    let own = client.frame(4096).alloc().unwrap();
    client.queue(4).unwrap().run(copy(far.slice(..4096), &own)).expect("its owner still has it");
}

#[test]
fn requests_for_a_slow_engine_keep_no_others_waiting() {
    let client = client_beside("engine_that_never_ends_long_ones", "");
    let far = far(&client, BYTES);
    let near = client.frame(BYTES).alloc().unwrap();
    // More than there are channels, at each of the two workers.
    let mut slow = [(); 4].map(|()| client.queue(32).unwrap());
    let tickets: Vec<Vec<_>> = slow
        .iter_mut()
        .map(|queue| (0..24).map(|_| queue.submit(copy(&far, &near)).unwrap()).collect())
        .collect();
    wait_until("all to be taken", || {
        let status = client.status().unwrap();
        status.workers.iter().map(|worker| worker.busy + worker.waiting).sum::<u64>() == 96
    });
    let pair = frames(&client);
    for _ in 0..4 {
        assert_eq!(copied(&mut client.queue(4).unwrap(), &pair), EngineKind::Cpu);
    }
    assert!(state(&client).is_connected, "it was not cut off for them");
    for (queue, tickets) in slow.iter_mut().zip(tickets) {
        tickets.iter().for_each(|ticket| queue.cancel(*ticket).unwrap());
        for ticket in tickets {
            assert_eq!(queue.wait(ticket).unwrap_err().failure, Failure::Cancelled);
        }
    }
}

#[test]
fn an_engines_memory_is_given_once_and_again() {
    let client = client_beside("engine_that_has_memory", "");
    let one = far(&client, MEMORY / 2);
    let all = |length: u64| client.frame(length).home("test").alloc();
    assert_eq!(refused(all(MEMORY / 2)), RefusalKind::System, "the engine has a byte less than it says");
    assert_eq!(refused(all(MEMORY / 2 + 1)), RefusalKind::Quota);
    assert_eq!(refused(all(0)), RefusalKind::Argument);
    assert_eq!(refused(all(u64::MAX)), RefusalKind::Argument);
    assert_eq!(refused(client.frame(1).home("nobody").alloc()), RefusalKind::Argument);
    let mut queue = client.queue(8).unwrap();
    queue.run(fill(&one, memferry::Pattern::Byte(7))).unwrap();
    drop(one);
    let next = far(&client, MEMORY - 1);
    let near = client.frame(MEMORY).alloc().unwrap();
    near.write(0, &[1; 1000]).unwrap();
    queue.run(copy(&next, near.slice(..MEMORY - 1))).unwrap();
    assert!(contents(&near).iter().all(|byte| *byte == 0), "it shows nothing of its last user");
}

#[test]
fn an_engines_memory_ends_with_its_process() {
    let client = client_beside("engine_that_has_memory", "");
    let peer = RUNNING.with_borrow(|running| running[0].0.client());
    let [near, _] = frames(&client);
    let mut queue = client.queue(64).unwrap();
    for _ in 0..5 {
        let lost = far(&client, BYTES);
        let grant = client.grant(&lost, Rights::READ, Grantee::Session(peer.session())).unwrap();
        let granted = peer.accept(grant.token()).unwrap();
        let tickets: Vec<_> = (0..40).map(|_| queue.submit(copy(&near, &lost)).unwrap()).collect();
        kill_engine(&client, Signal::KILL);
        for ticket in tickets {
            if let Err(error) = queue.wait(ticket) {
                let ended = matches!(
                    error.failure,
                    Failure::EngineReset
                        | Failure::Unsupported
                        | Failure::Revoked { .. }
                        | Failure::Cancelled
                );
                assert!(ended, "{}", error.failure);
            }
        }
        wait_until("the frame to be revoked", || {
            let ended = queue.run(copy(&near, &lost));
            matches!(ended, Err(memferry::RunError::Transfer(error)) if matches!(error.failure, Failure::Revoked { .. }))
        });
        let own = peer.frame(BYTES).alloc().unwrap();
        assert!(peer.queue(4).unwrap().run(copy(&granted, &own)).is_err(), "its grants, too");
        wait_until("another engine", || state(&client).is_connected);
    }
    let after = far(&client, MEMORY - 1);
    queue.run(fill(&after, memferry::Pattern::Byte(1))).unwrap();
}

#[test]
fn an_engines_memory_is_for_configured_users() {
    let client = client_beside("engine_that_copies", "frames=12345");
    let refused = refused(client.frame(1).home("test").alloc());
    assert_eq!(refused, RefusalKind::Argument, "not for this user");
}
