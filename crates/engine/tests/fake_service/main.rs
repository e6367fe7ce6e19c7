//! The engine's side against a service that this test plays, message by message.

#![allow(unsafe_code, reason = "the role forks: a keeper has one thread")]

mod service;

use std::os::fd::AsFd;
use std::time::Duration;

use memferry_engine::{Engine, EngineDescription, EngineOptions, Failure, Operation, Outcome, RunError, run};
use memferry_service::protocol::{
    Answer, Command, EngineRole, FrameDone, FrameEvent, FrameResult, Refusal, RefusalKind, Violation,
};
use memferry_shm::frame;
use memferry_transfer::{Handle, Region};
use service::{Attached, FakeService, Peer};

/// Set in the role's process: the service's socket.
const ROLE: &str = "MEMFERRY_ENGINE_TEST";
const NAME: &str = "copies";
const PAGE: u64 = 4096;
/// The exit status of a role whose `run` has failed.
const FAILED: i32 = 9;

/// The role: the keeper of an engine that copies and fills. Passes at once in ordinary test runs.
#[test]
fn plays_engine() {
    let Some(socket) = std::env::var_os(ROLE) else { return };
    // SAFETY: the child has one thread, and the other one of this process only waits for this test.
    match unsafe { libc::fork() } {
        0 => {
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            let description = EngineDescription { shortest_bytes: 0, ..EngineDescription::default() };
            let options = EngineOptions { socket: socket.into(), name: NAME.to_owned(), description };
            let code = match run(options, serve) {
                Ok(()) => 0,
                Err(RunError::Connection(error)) => {
                    eprintln!("{error}");
                    FAILED
                }
                Err(error) => {
                    eprintln!("{error}");
                    FAILED + 1
                }
            };
            // SAFETY: ends the process without this test's end.
            unsafe { libc::_exit(code) }
        }
        keeper => {
            let keeper = rustix::process::Pid::from_raw(keeper).unwrap();
            let (_, status) = rustix::process::waitpid(Some(keeper), rustix::process::WaitOptions::empty())
                .unwrap()
                .unwrap();
            std::process::exit(status.exit_status().unwrap_or(FAILED + 2));
        }
    }
}

fn serve(engine: &mut Engine) -> Result<(), String> {
    // As a change of the user does. The engine must end with the keeper all the same.
    let _ = rustix::process::set_parent_process_death_signal(None);
    loop {
        let Some(job) = engine.next(Duration::from_millis(200)) else { continue };
        let outcome = match job.operation() {
            Operation::Nop => job.succeeded(),
            Operation::Copy { source, destination, length } => {
                let to = destination.memory();
                match source.memory().copy_to(source.offset(), *length as usize, to, destination.offset()) {
                    Ok(()) => job.succeeded(),
                    Err(error) => return Err(error.to_string()),
                }
            }
            Operation::Crc { seed: 1, .. } => return Err("asked to end".to_owned()),
            Operation::Crc { seed: 2, .. } => panic!("asked to panic"),
            _ => Outcome::refused(Failure::Unsupported),
        };
        engine.complete(job.id(), outcome);
    }
}

const ONE: Handle = Handle::new(0, 1);
const TWO: Handle = Handle::new(1, 1);

/// A service whose keeper and engine wait for an event.
fn attached(name: &str) -> (FakeService, Peer, Attached) {
    let service = FakeService::start(name);
    let mut keeper = service.keeper();
    let mut engine = service.engine();
    keeper.next_frame();
    engine.peer.next_frame();
    (service, keeper, engine)
}

/// Sends an event to a peer that waits for one, and gets its answer.
fn event(peer: &mut Peer, event: FrameEvent) -> FrameDone {
    peer.reply(Answer::Frame(event), &[]);
    peer.done()
}

/// Registers a frame as the service does: mapped by both, then sealed.
fn register(
    frame: Handle,
    keeper: &mut Peer,
    engine: Option<&mut Peer>,
    bytes: &[u8],
) -> memferry_engine::Mapping {
    let (descriptor, mapping) = frame::allocate(PAGE, Default::default()).unwrap();
    mapping.write(0, bytes).unwrap();
    let map = FrameEvent::Map { frame, length: PAGE, user: 1000 };
    for peer in [Some(keeper), engine].into_iter().flatten() {
        peer.reply(Answer::Frame(map), &[descriptor.as_fd()]);
        let done = FrameDone { frame, result: FrameResult::Mapped { is_writable: true } };
        assert_eq!(peer.done(), done);
    }
    let user = rustix::process::getuid().as_raw();
    frame::admit(descriptor.as_fd(), PAGE, user).unwrap();
    mapping
}

fn read(mapping: &memferry_engine::Mapping) -> [u8; 5] {
    let mut bytes = [0; 5];
    mapping.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_killed_engine_comes_back_with_its_frames() {
    let (service, mut keeper, mut engine) = attached("killed");
    let source = register(ONE, &mut keeper, Some(&mut engine.peer), b"first");
    let destination = register(TWO, &mut keeper, Some(&mut engine.peer), b"-----");
    assert_eq!(engine.copy(ONE, TWO, 5), Ok(()));
    assert_eq!(read(&destination), *b"first");

    for round in [b"round", b"twice"] {
        engine.kill();
        source.write(0, round).unwrap();
        // The frames have been sealed: only by inheritance can it write them.
        engine = service.engine();
        engine.peer.next_frame();
        assert_eq!(engine.copy(ONE, TWO, 5), Ok(()));
        assert_eq!(read(&destination), *round);
    }

    // A released frame is unknown to both; a request that names it is not for this engine.
    for peer in [&mut keeper, &mut engine.peer] {
        let done = event(peer, FrameEvent::Unmap { frame: TWO });
        assert_eq!(done, FrameDone { frame: TWO, result: FrameResult::Unmapped });
    }
    assert_eq!(engine.copy(ONE, TWO, 5), Err(Failure::Unsupported));
    assert_eq!(engine.copy(ONE, ONE, 5), Ok(()));

    // The service can ask for a new engine.
    keeper.reply(Answer::Frame(FrameEvent::Restart), &[]);
    assert_eq!(keeper.next_frame(), None);
    assert!(engine.peer.is_closed());
    let mut engine = service.engine();
    assert_eq!(engine.copy(ONE, ONE, 5), Ok(()));
    service.terminate(&keeper);
    assert!(keeper.is_closed() && engine.peer.is_closed());
    assert_eq!(service.exit_status(), Some(0));
}

#[test]
fn a_request_cancelled_early_is_not_begun() {
    let (_service, mut keeper, mut engine) = attached("cancelled");
    register(ONE, &mut keeper, Some(&mut engine.peer), b"first");
    let destination = register(TWO, &mut keeper, Some(&mut engine.peer), b"-----");
    assert_eq!(engine.copy(ONE, TWO, 1), Ok(()));
    assert_eq!(engine.cancelled_copy(ONE, TWO, 5), Err(Failure::Cancelled));
    assert_eq!(read(&destination), *b"f----");
    assert_eq!(engine.copy(ONE, TWO, 5), Ok(()));
}

#[test]
fn no_event_is_taken_between_fork_and_attaching() {
    let (service, mut keeper, mut engine) = attached("between");
    register(ONE, &mut keeper, Some(&mut engine.peer), b"first");
    engine.kill();
    let connected = service.accept();
    let (descriptor, _mapping) = frame::allocate(PAGE, Default::default()).unwrap();
    keeper.reply(
        Answer::Frame(FrameEvent::Map { frame: TWO, length: PAGE, user: 1000 }),
        &[descriptor.as_fd()],
    );
    assert!(!keeper.has_message(Duration::from_millis(150)), "the event was taken too early");
    let mut engine = service.attach(connected);
    assert!(matches!(keeper.done().result, FrameResult::Mapped { .. }));
    assert_eq!(engine.copy(ONE, ONE, 5), Ok(()));
    assert_eq!(engine.copy(ONE, TWO, 5), Err(Failure::Unsupported), "it came after the fork");
}

#[test]
fn frames_are_mapped_while_no_engine_runs() {
    let service = FakeService::start("pause");
    let mut keeper = service.keeper();
    let engine = service.engine();
    keeper.next_frame();
    engine.kill();
    // The first pause is 100 ms long.
    register(ONE, &mut keeper, None, b"first");
    register(TWO, &mut keeper, None, b"other");
    let mut engine = service.engine();
    assert_eq!(engine.copy(ONE, TWO, 5), Ok(()));
}

#[test]
fn an_engine_that_fails_is_started_again() {
    let service = FakeService::start("fails");
    let mut keeper = service.keeper();
    ends_by_request(&service, &mut keeper, 1);
    ends_by_request(&service, &mut keeper, 2);
    let mut engine = service.engine();
    assert_eq!(engine.copy(ONE, ONE, 5), Ok(()));
}

/// Lets an engine end by its own fault: a request that it fails on.
fn ends_by_request(service: &FakeService, keeper: &mut Peer, seed: u32) {
    let mut engine = service.engine();
    engine.peer.next_frame();
    if seed == 1 {
        keeper.next_frame();
        register(ONE, keeper, Some(&mut engine.peer), b"first");
    }
    engine.submit(|frame| Operation::Crc { source: Region::new(frame, 0, 5).unwrap(), length: 5, seed }, ONE);
    assert!(engine.peer.is_closed());
}

#[test]
fn after_a_lost_service_old_frames_are_unknown() {
    let (service, mut keeper, mut engine) = attached("lost");
    register(ONE, &mut keeper, Some(&mut engine.peer), b"first");
    drop(keeper);
    drop(engine);
    let mut keeper = service.keeper();
    let mut engine = service.engine();
    keeper.next_frame();
    assert_eq!(engine.copy(ONE, ONE, 5), Err(Failure::Unsupported));
    register(TWO, &mut keeper, None, b"other");
    engine.kill();
    let mut engine = service.engine();
    assert_eq!(engine.copy(TWO, TWO, 5), Ok(()));
}

#[test]
fn the_end_of_the_keeper_ends_the_engine() {
    let service = FakeService::start("orphan");
    let keeper = service.keeper();
    let mut engine = service.engine();
    // Once it has completed anything, `serve` has given up the signal of the keeper's end.
    assert_eq!(engine.copy(ONE, ONE, 5), Err(Failure::Unsupported));
    keeper.kill();
    assert!(keeper.is_closed() && engine.peer.is_closed());
}

#[test]
fn a_refused_engine_ends_with_the_reason() {
    let service = FakeService::start("refused");
    let mut keeper = service.accept();
    let (command, _) = keeper.command();
    assert_eq!(command, Command::AttachEngine { name: NAME.to_owned(), role: EngineRole::Keeper });
    let message = "no engine has this name\n\x1b[2J".to_owned();
    keeper.refuse(Refusal { kind: RefusalKind::Argument, message });
    assert!(keeper.is_closed());
    assert_eq!(service.exit_status(), Some(FAILED));
    assert!(!service.has_connection(), "it was tried again");
}

#[test]
fn a_keeper_that_is_refused_ends_when_asked() {
    let service = FakeService::start("taken");
    let mut keeper = service.accept();
    keeper.command();
    // The signal is there when the keeper begins to wait.
    service.terminate(&keeper);
    let message = "engine copies is connected already".to_owned();
    keeper.refuse(Refusal { kind: RefusalKind::System, message });
    assert_eq!(service.exit_status(), Some(0));
}

#[test]
fn nonsense_of_a_service_ends_the_session_only() {
    type Nonsense = fn(&mut Peer);
    let nonsense: [Nonsense; 7] = [
        |peer| peer.send(b"nonsense", &[]),
        |peer| peer.send(&[0xff; 200], &[]),
        |peer| peer.send(&memferry_service::protocol::encode_violation(&Violation::Malformed), &[]),
        |peer| peer.reply(Answer::Revoked, &[]),
        |peer| peer.reply(Answer::Frame(FrameEvent::Map { frame: ONE, length: PAGE, user: 1000 }), &[]),
        |peer| {
            peer.serial += 1;
            peer.reply(Answer::Frame(FrameEvent::Restart), &[]);
        },
        |peer| {
            let pipes = rustix::pipe::pipe().unwrap();
            let two = [pipes.0.as_fd(), pipes.1.as_fd()];
            peer.reply(Answer::Frame(FrameEvent::Map { frame: ONE, length: PAGE, user: 1000 }), &two);
        },
    ];
    for what in nonsense {
        let (service, mut keeper, mut engine) = attached("nonsense");
        // The engine's session ends, and another engine comes.
        what(&mut engine.peer);
        assert!(engine.peer.is_closed());
        let engine = service.engine();
        // The keeper's ends, and all begins anew.
        what(&mut keeper);
        assert!(keeper.is_closed() && engine.peer.is_closed());
        service.keeper();
    }
}
