//! Memory of engines by descriptor: owners map it in their own processes, and engines of every character are asked for it.
//!
//! ```text
//! service ◄─ Role: keeper ─ fork ─► engine: CUDA over the fake, or one with memfds ─ descriptor ─► attendants ─► client here
//! ```

mod harness;
mod own_memory;

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use harness::{
    Raw, Role, Service, connect_as_told, in_child, next_order, report, role_socket, start_as_another_user,
    wait_until,
};
use memferry::{
    CallError, Client, ExportError, ExportKind, Exported, Failure, Frame, GrantToken, Grantee, Handle,
    Mapping, Queue, RefusalKind, Rights, RunError, copy, fill,
};
use memferry_conformance::noise;
use memferry_engine::{
    Access, Engine, EngineDescription, EngineOptions, FrameWatcher, NotExported, Operations, run,
};
use memferry_engine_cuda::Options;
use memferry_service::protocol::{self, Answer, EngineRole, Envelope, FrameDone, FrameEvent, FrameResult};
use own_memory::OwnMemory;
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
/// A frame in VRAM is rounded up to this.
const GRANULARITY: u64 = 2 * MIB;
/// How the engine with memfds exports.
const MANNER: &str = "MEMFERRY_TEST_MANNER";

/// Runs the CUDA engine on the fake driver.
#[test]
fn cuda_engine() {
    let Some(socket) = role_socket() else { return };
    let library = std::env::current_exe().unwrap().with_file_name("libmemferry_fake_cuda.so");
    let library = format!("--library={}", library.display());
    let memory = format!("--memory={MEMORY}");
    let socket = socket.to_str().unwrap();
    let words = ["engine", "--socket", socket, "--name", "own", &library, &memory];
    let options = Options::parse_from(words);
    in_child(|| memferry_engine_cuda::run(&options).is_ok());
}

/// Memory of an engine that exports in its own manner.
struct Mannered {
    memory: OwnMemory,
    manner: String,
}

impl FrameWatcher for Mannered {
    fn mapped(&self, frame: memferry_engine::Handle, memory: &Mapping) {
        self.memory.mapped(frame, memory);
    }

    fn unmapping(&self, frame: memferry_engine::Handle, memory: &Mapping) {
        self.memory.unmapping(frame, memory);
    }

    fn allocate(&self, frame: memferry_engine::Handle, length: u64) -> Option<usize> {
        self.memory.allocate(frame, length)
    }

    fn export(
        &self,
        frame: memferry_engine::Handle,
        memory: &Mapping,
    ) -> Result<memferry_engine::Exported, NotExported> {
        let exported = self.memory.export(frame, memory)?;
        match self.manner.as_str() {
            "well" => Ok(exported),
            "unsupported" => Err(NotExported::Unsupported),
            "failed" => Err(NotExported::Failed),
            "short" => Ok(memferry_engine::Exported { length: exported.length - 1, ..exported }),
            "unsealed" => {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                let descriptor = rustix::fs::memfd_create("unsealed", flags).unwrap();
                rustix::fs::ftruncate(&descriptor, exported.length).unwrap();
                Ok(memferry_engine::Exported { descriptor, ..exported })
            }
            "never" => loop {
                std::thread::park();
            },
            other => panic!("{other}"),
        }
    }
}

/// Runs an engine with memfds.
#[test]
fn mannered_engine() {
    let Some(socket) = role_socket() else { return };
    let manner = std::env::var(MANNER).unwrap();
    let description = EngineDescription {
        operations: Operations::OF_MEMORY,
        shortest_bytes: 0,
        memory_bytes: MEMORY,
        ..EngineDescription::default()
    };
    let options = EngineOptions { socket, name: "own".to_owned(), description };
    let serve = |engine: &mut Engine| -> Result<(), Infallible> {
        let memory = OwnMemory::new(MEMORY);
        engine.watch_frames(Mannered { memory: memory.clone(), manner: manner.clone() });
        loop {
            let job = engine.next(Duration::from_secs(1));
            engine.take_cancels();
            if let Some(job) = job {
                engine.complete(job.id(), memory.perform(&job));
            }
        }
    };
    in_child(|| run(options, serve).is_ok());
}

/// A service with an engine that has memory.
struct Stage {
    _engine: Role,
    service: Service,
}

impl Stage {
    fn start(role: &str, manner: &str) -> (Self, Client) {
        let service = Self::service();
        let executable = std::env::current_exe().unwrap();
        let engine = Role::start_by(Command::new(executable).env(MANNER, manner), role, &service.socket);
        let client = service.client();
        drop(harness::far(&client, "own", 1));
        (Self { _engine: engine, service }, client)
    }

    fn service() -> Service {
        let engine =
            format!("own user={} frames=all exports=all stall-ms=20000", rustix::process::geteuid().as_raw());
        Service::start(&["--workers=2", "--mode=666", "--engine", &engine])
    }

    fn cuda() -> (Self, Client) {
        Self::start("cuda_engine", "")
    }

    fn mannered(manner: &str) -> (Self, Client) {
        Self::start("mannered_engine", manner)
    }
}

fn far(client: &Client, length: u64) -> Frame {
    client.frame(length).home("own").alloc().unwrap()
}

fn refusal(exported: Result<Exported, ExportError>) -> (RefusalKind, String) {
    match exported {
        Err(ExportError::Call(CallError::Refused(refusal))) => (refusal.kind, refusal.message),
        other => panic!("{other:?}"),
    }
}

/// Maps what the fake driver exports: its VRAM is a memfd.
fn map(exported: &Exported) -> Mapping {
    Mapping::shared(exported.descriptor.as_fd(), exported.length as usize, Access::ReadWrite, 4096).unwrap()
}

fn contents(memory: &Mapping, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Bytes go into the frame by a request and out by the mapping, and the other way round.
fn assert_shared(client: &Client, queue: &mut Queue, far: &Frame, memory: &Mapping) {
    let near = harness::near(client, far.length(), far);
    let bytes = noise(far.length() as usize, 31);
    near.write(0, &bytes).unwrap();
    queue.run(copy(near.slice(..far.length()), far)).unwrap();
    assert!(contents(memory, far.length()) == bytes);
    let bytes = noise(far.length() as usize, 32);
    memory.write(0, &bytes).unwrap();
    queue.run(copy(far, near.slice(..far.length()))).unwrap();
    let mut seen = vec![0; far.length() as usize];
    near.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
}

#[test]
fn vram_is_mapped_by_its_owner() {
    let (_stage, client) = Stage::cuda();
    let mut queue = client.queue(8).unwrap();
    let frame = far(&client, 3 * MIB + 5);
    let exported = frame.export().unwrap();
    assert_eq!(exported.length, (3 * MIB + 5).next_multiple_of(GRANULARITY));
    let ExportKind::Cuda { device } = exported.kind else { panic!("{:?}", exported.kind) };
    assert_ne!(device, [0; 16]);
    assert!(exported.map().is_err(), "it is no memory for mmap");
    let memory = map(&exported);
    assert!(contents(&memory, frame.length()).iter().all(|byte| *byte == 0));
    assert_shared(&client, &mut queue, &frame, &memory);
    // Again, and of a second frame: other memory.
    assert_shared(&client, &mut queue, &frame, &map(&frame.export().unwrap()));
    let other = far(&client, MIB);
    let second = map(&other.export().unwrap());
    queue.run(fill(&frame, memferry::Pattern::Byte(7))).unwrap();
    assert!(contents(&second, MIB).iter().all(|byte| *byte == 0));
}

#[test]
fn memory_of_the_kind_of_the_host_is_mapped_with_mmap() {
    let (_stage, client) = Stage::mannered("well");
    let mut queue = client.queue(8).unwrap();
    let frame = far(&client, 10_000);
    let exported = frame.export().unwrap();
    assert_eq!((exported.kind, exported.length), (ExportKind::Memory, 10_000));
    assert_shared(&client, &mut queue, &frame, &exported.map().unwrap());
}

/// By the functions for C.
#[test]
#[allow(unsafe_code, reason = "the C interface takes pointers")]
fn c_programs_get_descriptor_kind_and_device() {
    use memferry_c::*;
    for (role, kind, length, device) in [
        ("cuda_engine", mf_export_kind::Cuda, GRANULARITY, *b"memferry-fake-00"),
        ("mannered_engine", mf_export_kind::Memory, 4096, [0; 16]),
    ] {
        let (stage, _client) = Stage::start(role, "well");
        let path = CString::new(stage.service.socket.as_os_str().as_bytes()).unwrap();
        let mut client = mf_client::default();
        let mut frame = mf_frame::default();
        let mut exported = mf_exported { descriptor: -1, kind: 0, length: 0, device: [9; 16] };
        // SAFETY: results go to variables of these types, and the texts are terminated.
        let memory = unsafe {
            assert_eq!(mf_connect(path.as_ptr(), &mut client), mf_error::None);
            assert_eq!(mf_frame_allocate_at(client, c"own".as_ptr(), 4096, &mut frame), mf_error::None);
            assert_eq!(mf_frame_export(frame, &mut exported), mf_error::None);
            OwnedFd::from_raw_fd(exported.descriptor)
        };
        assert_eq!((exported.kind, exported.length, exported.device), (kind as u32, length, device));
        let flags = rustix::io::fcntl_getfd(&memory).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(mf_frame_free(frame), mf_error::None);
        // SAFETY: as above.
        let refused = unsafe { mf_frame_export(frame, &mut exported) };
        assert_eq!(refused, mf_error::BadHandle);
        let memory = Mapping::shared(memory.as_fd(), 4096, Access::ReadWrite, 4096).unwrap();
        assert!(contents(&memory, 4096).iter().all(|byte| *byte == 0));
        mf_disconnect(client);
    }
}

/// What is released while its owner has it by descriptor stays the owner's, and no other frame gets it.
#[test]
fn released_memory_stays_with_its_descriptor() {
    let (_stage, client) = Stage::cuda();
    let mut queue = client.queue(8).unwrap();
    let frame = far(&client, GRANULARITY);
    let memory = map(&frame.export().unwrap());
    memory.write(0, b"still here").unwrap();
    drop(frame);
    for _ in 0..MEMORY / GRANULARITY {
        let next = far(&client, GRANULARITY);
        queue.run(fill(&next, memferry::Pattern::Byte(9))).unwrap();
    }
    assert_eq!(contents(&memory, 10), b"still here");
    let again = far(&client, MEMORY);
    drop(again);
    assert_eq!(contents(&memory, 10), b"still here");
}

/// Of the host, derived, granted, of others, and revoked.
#[test]
fn only_whole_frames_at_an_engine_are_exported() {
    let (stage, client) = Stage::cuda();
    let (kind, why) = refusal(client.frame(4096).alloc().unwrap().export());
    assert_eq!(kind, RefusalKind::Argument);
    assert!(why.contains("memory of the host"), "{why}");
    let frame = far(&client, MIB);
    let derived = client.derive(&frame, Rights::all()).unwrap();
    let (kind, why) = refusal(derived.export());
    assert_eq!(kind, RefusalKind::Capability);
    assert!(why.contains("was derived or granted"), "{why}");
    let peer = stage.service.client();
    let grant = client.grant(&frame, Rights::all(), Grantee::Session(peer.session())).unwrap();
    let granted = peer.accept(grant.token()).unwrap();
    assert_eq!(refusal(granted.export()).0, RefusalKind::Capability);
    let mut raw = Raw::open(&stage.service.socket);
    for handle in [frame.handle(), grant.token().handle(), Handle::new(77, 1)] {
        let (answer, given) = raw.command(protocol::Command::Export { handle }, &[]);
        assert_eq!(answer.unwrap_err().kind, RefusalKind::Capability);
        assert!(given.is_empty());
    }
    frame.revoke().unwrap();
    let (kind, why) = refusal(frame.export());
    assert_eq!(kind, RefusalKind::Capability);
    assert!(why.contains("revoked") || why.contains("names nothing"), "{why}");
}

/// Accepts a grant of all rights, and tries to export it.
#[test]
fn role_exports_a_grant() {
    let Some(socket) = role_socket() else { return };
    let client = connect_as_told(&socket);
    let granted = client.accept(next_order().parse::<GrantToken>().unwrap()).unwrap();
    report(refusal(granted.export()).1);
    let mut queue = client.queue(4).unwrap();
    let near = harness::near(&client, 1, &granted);
    queue.run(copy(granted.slice(..1), near.slice(..1))).unwrap();
    report("read");
    assert_eq!(next_order(), "on");
    let refused = queue.run(copy(granted.slice(..1), near.slice(..1)));
    report(match refused {
        Err(RunError::Transfer(error)) if matches!(error.failure, Failure::Revoked { .. }) => "revoked",
        _ => "not revoked",
    });
}

/// The grant's requests go on beside the owner's mapping, and are revoked as ever.
#[test]
fn another_user_cannot_export_what_it_was_granted() {
    let (stage, client) = Stage::cuda();
    let frame = far(&client, MIB);
    let memory = map(&frame.export().unwrap());
    let (mut peer, user) = start_as_another_user("role_exports_a_grant", &stage.service.socket);
    let grant = client.grant(&frame, Rights::all(), Grantee::User(user)).unwrap();
    peer.send_line(&grant.token().to_string());
    let why = peer.receive_line();
    assert!(why.contains("was derived or granted"), "{why}");
    assert_eq!(peer.receive_line(), "read");
    grant.revoke().unwrap();
    peer.send_line("on");
    assert_eq!(peer.receive_line(), "revoked");
    memory.write(0, b"its owner has it").unwrap();
}

#[test]
fn an_engine_that_does_not_export_is_named() {
    for (manner, kind, part) in [
        ("unsupported", RefusalKind::Argument, "gives out no descriptors"),
        ("failed", RefusalKind::System, "could not export the frame"),
        // The engine's library finds that out.
        ("short", RefusalKind::System, "could not export the frame"),
    ] {
        let (_stage, client) = Stage::mannered(manner);
        let frame = far(&client, 8192);
        for _ in 0..3 {
            let (got, why) = refusal(frame.export());
            assert_eq!(got, kind, "{why}");
            assert!(why.contains(part), "{why}");
        }
        let mut queue = client.queue(4).unwrap();
        queue.run(fill(&frame, memferry::Pattern::Byte(1))).unwrap();
    }
}

#[test]
fn memory_that_can_shrink_is_not_mapped() {
    let (_stage, client) = Stage::mannered("unsealed");
    let exported = far(&client, 8192).export();
    assert!(matches!(exported, Err(ExportError::Memory(_))), "{exported:?}");
}

/// Its client gets an answer in time, later ones at once, and others notice nothing.
#[test]
fn an_engine_that_never_answers_is_not_waited_for() {
    let (stage, client) = Stage::mannered("never");
    let frame = far(&client, 8192);
    let other = stage.service.client();
    let started = Instant::now();
    let waiting = std::thread::spawn(move || (refusal(frame.export()), started.elapsed(), frame));
    let mut most = Duration::ZERO;
    while !waiting.is_finished() {
        let begun = Instant::now();
        other.identify(other.session()).unwrap();
        most = most.max(begun.elapsed());
    }
    let ((kind, why), time, frame) = waiting.join().unwrap();
    assert_eq!(kind, RefusalKind::System);
    assert!(why.contains("in time"), "{why}");
    assert!(Duration::from_secs(3) < time && time < Duration::from_secs(10), "{time:?}");
    assert!(most < Duration::from_secs(1), "others waited for {most:?}");
    let begun = Instant::now();
    let (kind, why) = refusal(frame.export());
    assert_eq!(kind, RefusalKind::System);
    assert!(why.contains("is busy"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    // The frame's requests do not need the thread that is stuck.
    client.queue(4).unwrap().run(fill(&frame, memferry::Pattern::Byte(1))).unwrap();
    harness::assert_moves_bytes(&other);
}

#[test]
fn a_killed_engine_ends_the_export() {
    let (_stage, client) = Stage::mannered("never");
    let frame = far(&client, 8192);
    let process = client.status().unwrap().engines.remove(0).process.unwrap();
    let started = Instant::now();
    // Before the engine has the event or after, or even before it is asked: each is answered once.
    let killing = std::thread::spawn(move || {
        kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    });
    let (kind, why) = refusal(frame.export());
    assert!(matches!(kind, RefusalKind::System | RefusalKind::Capability), "{why}");
    assert!(["ended", "gone", "revoked"].iter().any(|part| why.contains(part)), "{why}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    killing.join().unwrap();
    wait_until("the frame to be revoked", || refusal(frame.export()).0 == RefusalKind::Capability);
}

/// An engine that speaks the protocol itself, with its keeper.
struct RawEngine {
    engine: Raw,
    _keeper: Raw,
    _memory: Vec<OwnedFd>,
}

impl RawEngine {
    fn start(service: &Service) -> Self {
        let mut keeper = Raw::open(&service.socket);
        let attach = |role| protocol::Command::AttachEngine { name: "own".to_owned(), role };
        keeper.command(attach(EngineRole::Keeper), &[]).0.unwrap();
        let mut engine = Raw::open(&service.socket);
        let description = EngineDescription { memory_bytes: MEMORY, ..EngineDescription::default() };
        let Ok(Answer::EngineAttached { workers, capacity, .. }) =
            engine.command(attach(EngineRole::Engine(description)), &[]).0
        else {
            panic!("not attached")
        };
        let command = protocol::Command::OpenEngine { workers, capacity };
        let (memory, _) = memferry_shm::frame::allocate_half(command.memory_bytes().unwrap()).unwrap();
        let (answer, descriptors) = engine.command(command, &[memory.as_fd()]);
        assert_eq!(answer, Ok(Answer::EngineOpened));
        let next = keeper.encode(protocol::Command::NextFrame { done: None });
        keeper.send(&next, &[]);
        let next = engine.encode(protocol::Command::NextFrame { done: None });
        engine.send(&next, &[]);
        Self { engine, _keeper: keeper, _memory: descriptors }
    }

    fn event(&mut self) -> FrameEvent {
        let packet = self.engine.receive().expect("an event");
        let reply: protocol::Reply = protocol::decode(&packet.bytes).unwrap();
        let Ok(Answer::Frame(event)) = reply.body else { panic!("{:?}", reply.body) };
        event
    }

    /// Reports with any number of descriptors, announced or not.
    fn report(&mut self, frame: Handle, result: FrameResult, (announced, sent): (u8, usize)) {
        let (memory, _) = memferry_shm::frame::allocate_half(4096).unwrap();
        self.engine.serial += 1;
        let body = protocol::Command::NextFrame { done: Some(FrameDone { frame, result }) };
        let message = Envelope { serial: self.engine.serial, descriptors: announced, body };
        self.engine.send(&protocol::encode(&message), &vec![memory.as_fd(); sent]);
    }
}

/// Exports a frame of a hostile engine, which answers as `lie` says and then may be cut off. Returns the refusal.
fn lied_to(is_cut: bool, lie: impl FnOnce(&mut RawEngine, Handle)) -> (RefusalKind, String) {
    let service = Stage::service();
    let mut engine = RawEngine::start(&service);
    let other = service.client();
    let before = service.descriptors();
    let client = service.client();
    let exporting = std::thread::spawn(move || {
        let frame = client.frame(4096).home("own").alloc().unwrap();
        let refused = refusal(frame.export());
        // Exactly one answer: the session goes on with the next one.
        client.identify(client.session()).unwrap();
        refused
    });
    let FrameEvent::Allocate { frame, .. } = engine.event() else { panic!("another event") };
    engine.report(frame, FrameResult::Mapped { is_writable: true }, (0, 0));
    let event = engine.event();
    assert_eq!(event, FrameEvent::Export { frame });
    lie(&mut engine, frame);
    let refused = exporting.join().unwrap();
    other.identify(other.session()).unwrap();
    wait_until("descriptors to be closed", || service.descriptors() == before - usize::from(is_cut));
    refused
}

const MEMFD: FrameResult = FrameResult::Exported { kind: ExportKind::Memory, length: 4096 };

#[test]
fn a_hostile_engine_causes_one_answer() {
    for (announced, sent) in [(1, 0), (0, 0), (0, 1), (2, 2), (1, 2)] {
        let (kind, why) = lied_to(true, |engine, frame| {
            engine.report(frame, MEMFD, (announced, sent));
            let farewell = engine.engine.farewell();
            assert!(matches!(farewell, protocol::Violation::Descriptors { .. }), "{farewell:?}");
        });
        assert_eq!(kind, RefusalKind::System, "{announced}, {sent}: {why}");
        assert!(why.contains("broke the protocol"), "{why}");
    }
    let (_, why) = lied_to(true, |engine, frame| {
        engine.engine.serial += 5;
        engine.report(frame, MEMFD, (1, 1));
        assert!(matches!(engine.engine.farewell(), protocol::Violation::Serial { .. }));
    });
    assert!(why.contains("broke the protocol"), "{why}");
    // Of another frame, and results of other events.
    let (_, why) = lied_to(false, |engine, frame| {
        engine.report(Handle::new(frame.index() + 1, 1), MEMFD, (1, 1));
    });
    assert!(why.contains("broke the protocol"), "{why}");
    for result in [FrameResult::Mapped { is_writable: true }, FrameResult::Unmapped] {
        let (_, why) = lied_to(false, |engine, frame| engine.report(frame, result, (0, 0)));
        assert!(why.contains("broke the protocol"), "{result:?}: {why}");
    }
    let (kind, why) = lied_to(false, |engine, frame| engine.report(frame, FrameResult::NotExported, (0, 0)));
    assert_eq!(kind, RefusalKind::Argument, "{why}");
    let (_, why) = lied_to(true, |engine, _| {
        let _ = rustix::net::shutdown(&engine.engine.socket, rustix::net::Shutdown::Both);
    });
    assert!(why.contains("ended"), "{why}");
}

/// A client that leaves while its frame is exported: the engine's descriptor ends up nowhere.
#[test]
fn a_client_that_leaves_gets_nothing() {
    let service = Stage::service();
    let mut engine = RawEngine::start(&service);
    let other = service.client();
    let before = service.descriptors();
    let mut client = Raw::open(&service.socket);
    let bytes = client.encode(protocol::Command::Allocate { home: "own".to_owned(), length: 4096 });
    client.send(&bytes, &[]);
    let FrameEvent::Allocate { frame, .. } = engine.event() else { panic!("another event") };
    engine.report(frame, FrameResult::Mapped { is_writable: true }, (0, 0));
    let packet = client.receive().unwrap();
    let reply: protocol::Reply = protocol::decode(&packet.bytes).unwrap();
    let Ok(Answer::Handle(handle)) = reply.body else { panic!("{:?}", reply.body) };
    let bytes = client.encode(protocol::Command::Export { handle });
    client.send(&bytes, &[]);
    assert_eq!(engine.event(), FrameEvent::Export { frame });
    drop(client);
    service.wait_for_sessions(&other, 3);
    engine.report(frame, MEMFD, (1, 1));
    assert_eq!(engine.event(), FrameEvent::Unmap { frame });
    wait_until("descriptors to be closed", || service.descriptors() == before);
}

/// A command that comes while an answer is outstanding is not read, so a session has one export at most.
#[test]
fn exports_in_a_row_are_answered_in_order() {
    let (stage, client) = Stage::mannered("well");
    drop(client);
    let mut raw = Raw::open(&stage.service.socket);
    let allocate = protocol::Command::Allocate { home: "own".to_owned(), length: 4096 };
    let Ok(Answer::Handle(handle)) = raw.command(allocate, &[]).0 else { panic!("no frame") };
    for _ in 0..3 {
        let bytes = raw.encode(protocol::Command::Export { handle });
        raw.send(&bytes, &[]);
    }
    for serial in raw.serial - 2..=raw.serial {
        let packet = raw.receive().unwrap();
        let reply: protocol::Reply = protocol::decode(&packet.bytes).unwrap();
        assert_eq!((reply.serial, reply.descriptors), (serial, 1));
        assert_eq!(reply.body, Ok(Answer::Exported { kind: ExportKind::Memory, length: 4096 }));
        assert_eq!(packet.descriptors.len(), 1);
    }
    // Revoked before it is asked for, in one go.
    let revoke = raw.encode(protocol::Command::Revoke { handle });
    raw.send(&revoke, &[]);
    let export = raw.encode(protocol::Command::Export { handle });
    raw.send(&export, &[]);
    let answers = [raw.receive().unwrap(), raw.receive().unwrap()];
    for packet in answers {
        assert!(packet.descriptors.is_empty());
        let reply: protocol::Reply = protocol::decode(&packet.bytes).unwrap();
        let is_export = reply.serial == raw.serial;
        assert_eq!(reply.body.is_err(), is_export, "{:?}", reply.body);
    }
}
