//! Descriptors of engines' memory through an attendant, on either side.

use memferry_service::protocol::{ExportKind, FrameDone, FrameResult};
use memferry_transfer::Handle;
use rustix::net::Shutdown;

use super::*;
use crate::messages::Passed;

const FRAME: Handle = Handle::new(7, 1);
const MEMORY: Passed = Passed::Exported { kind: ExportKind::Memory, length: LENGTH };
/// Far longer than what must happen at once takes.
const LONG: u64 = 60_000;

/// The ends for the attendants of an engine and of a client.
fn one_way() -> (OwnedFd, OwnedFd) {
    let (engine, client) = pair();
    rustix::net::shutdown(&engine, Shutdown::Read).unwrap();
    (engine, client)
}

/// A client whose command is an export.
fn exporting(control: &Control, milliseconds: u64, pair: &[&OwnedFd]) -> Player {
    let mut player = control.connect(1);
    let command = Command::Export { handle: FRAME };
    player.command(command.clone(), &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 1, command });
    control.send(&ToAttendant::Exporting { client: player.id, serial: 1, milliseconds }, pair);
    player
}

/// Asserts that the client has its refusal, that it is counted, and that the session goes on.
fn assert_refused(control: &Control, player: &mut Player, kind: RefusalKind) {
    control.expect(&FromAttendant::NotExported { client: player.id });
    assert_eq!(player.refusal(), kind);
    player.command(Command::Status, &[]);
    let serial = player.serial;
    control.expect(&FromAttendant::Command { client: player.id, serial, command: Command::Status });
}

#[test]
fn a_client_gets_what_is_passed() {
    let control = Control::start();
    let (engine, client) = one_way();
    let mut player = exporting(&control, LONG, &[&client]);
    drop(client);
    control.settle();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    messages::send(engine.as_fd(), &MEMORY, &[&writer], false).unwrap();
    drop(writer);
    let (bytes, descriptors) = player.receive();
    let body = Ok(Answer::Exported { kind: ExportKind::Memory, length: LENGTH });
    assert_eq!(protocol::decode::<Reply>(&bytes), Ok(Envelope { serial: 1, descriptors: 1, body }));
    assert_eq!(descriptors.len(), 1);
    player.command(Command::Status, &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 2, command: Command::Status });
    // The attendant keeps nothing: neither the descriptor nor the pair.
    drop(descriptors);
    wait_readable(&reader);
    while messages::send(engine.as_fd(), &Passed::Failed, &[], false) != Err(Errno::PIPE) {
        std::thread::yield_now();
    }
}

#[test]
fn what_is_not_passed_is_refused() {
    for (passed, kind) in [
        (Some(Passed::Unsupported), RefusalKind::Argument),
        (Some(Passed::Failed), RefusalKind::System),
        (Some(Passed::InFlight), RefusalKind::System),
        // The descriptor found no room in this process.
        (Some(MEMORY), RefusalKind::System),
        (None, RefusalKind::System),
    ] {
        let control = Control::start();
        let (engine, client) = one_way();
        let mut player = exporting(&control, LONG, &[&client]);
        if let Some(passed) = passed {
            messages::send(engine.as_fd(), &passed, &[], false).unwrap();
        }
        drop(engine);
        assert_refused(&control, &mut player, kind);
    }
}

/// A compromised attendant of an engine might send such things.
#[test]
fn nonsense_is_refused_and_its_descriptors_closed() {
    for (bytes, count) in [(b"nonsense".to_vec(), 1), (Vec::new(), 2), (protocol::encode(&MEMORY), 2)] {
        let control = Control::start();
        let (engine, client) = one_way();
        let mut player = exporting(&control, LONG, &[&client]);
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        conduit::send(engine.as_fd(), &bytes, &vec![writer.as_fd(); count], false).unwrap();
        drop(writer);
        assert_refused(&control, &mut player, RefusalKind::System);
        wait_readable(&reader);
    }
}

#[test]
fn an_export_that_takes_too_long_is_refused() {
    let control = Control::start();
    let (engine, client) = one_way();
    let mut player = exporting(&control, 1, &[&client]);
    drop(client);
    assert_refused(&control, &mut player, RefusalKind::System);
    // What comes later reaches nobody.
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let _ = messages::send(engine.as_fd(), &MEMORY, &[&writer], false);
    drop((writer, engine));
    wait_readable(&reader);
}

#[test]
fn an_export_without_its_pair_is_refused() {
    let control = Control::start();
    let mut player = exporting(&control, LONG, &[]);
    assert_refused(&control, &mut player, RefusalKind::System);
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let control = Control::start();
    let (engine, client) = one_way();
    let mut player = exporting(&control, LONG, &[&client]);
    drop(client);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    control.settle();
    player.exit();
    control.expect(&FromAttendant::Ended { client: player.id, violation: None });
    let _ = messages::send(engine.as_fd(), &MEMORY, &[&writer], false);
    drop((writer, engine));
    wait_readable(&reader);
    // For a client that is gone already.
    let (engine, client) = one_way();
    let late = ToAttendant::Exporting { client: player.id, serial: 1, milliseconds: LONG };
    control.send(&late, &[&client]);
    drop(client);
    while messages::send(engine.as_fd(), &Passed::Failed, &[], false) != Err(Errno::PIPE) {
        std::thread::yield_now();
    }
    control.settle();
}

/// An engine that was asked to export a frame, and the end where its report arrives.
fn engine(control: &Control) -> (Player, OwnedFd) {
    let mut player = control.connect(1);
    let next = Command::NextFrame { done: None };
    player.command(next.clone(), &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 1, command: next });
    let (engine, client) = one_way();
    let export = ToAttendant::Export { client: player.id, frame: FRAME, bytes: b"export".to_vec() };
    control.send(&export, &[&engine]);
    assert_eq!(player.receive().0, b"export");
    (player, client)
}

fn done(frame: Handle, result: FrameResult) -> Command {
    Command::NextFrame { done: Some(FrameDone { frame, result }) }
}

#[test]
fn an_engines_descriptor_is_passed_on() {
    let control = Control::start();
    let (mut player, client) = engine(&control);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // Other commands do not matter.
    player.command(Command::Status, &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 2, command: Command::Status });
    control.answer(player.id, b"status");
    player.receive();
    let exported = done(FRAME, FrameResult::Exported { kind: ExportKind::Memory, length: LENGTH });
    player.command(exported.clone(), &[&writer]);
    drop(writer);
    let (message, descriptors) = control.receive();
    assert_eq!(message, FromAttendant::Command { client: player.id, serial: 3, command: exported });
    assert!(descriptors.is_empty(), "the control thread must not have it");
    let Received::Message(passed, descriptors) = messages::receive::<Passed>(client.as_fd()) else {
        panic!("nothing was passed")
    };
    assert_eq!((passed, descriptors.len()), (MEMORY, 1));
    assert!(matches!(messages::receive::<Passed>(client.as_fd()), Received::Lost), "the end is closed");
    assert!(!is_readable(&reader));
    drop(descriptors);
    wait_readable(&reader);
}

#[test]
fn other_reports_are_passed_on_or_end_the_pair() {
    let other = Handle::new(7, 2);
    let exported = FrameResult::Exported { kind: ExportKind::Memory, length: LENGTH };
    for (frame, result, expected) in [
        (FRAME, FrameResult::NotExported, Some(Passed::Unsupported)),
        (FRAME, FrameResult::Failed, Some(Passed::Failed)),
        (FRAME, FrameResult::Unmapped, None),
        (FRAME, FrameResult::Mapped { is_writable: true }, None),
        (other, FrameResult::NotExported, None),
        (other, exported, None),
    ] {
        let control = Control::start();
        let (mut player, client) = engine(&control);
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let command = done(frame, result);
        let attached: &[&OwnedFd] = if result == exported { &[&writer] } else { &[] };
        player.command(command.clone(), attached);
        drop(writer);
        control.expect(&FromAttendant::Command { client: player.id, serial: 2, command });
        if let Some(expected) = expected {
            let Received::Message(passed, _) = messages::receive::<Passed>(client.as_fd()) else {
                panic!("nothing was passed")
            };
            assert_eq!(passed, expected);
        }
        assert!(matches!(messages::receive::<Passed>(client.as_fd()), Received::Lost));
        wait_readable(&reader);
    }
}

#[test]
fn the_end_of_an_engine_ends_the_pair() {
    let control = Control::start();
    let (mut player, client) = engine(&control);
    player.exit();
    control.expect(&FromAttendant::Ended { client: player.id, violation: None });
    wait_readable(&client);
    assert!(matches!(messages::receive::<Passed>(client.as_fd()), Received::Lost));
    // Nobody waits, for an engine that is gone as well as for one that is there.
    let (other, none) = one_way();
    let export = ToAttendant::Export { client: player.id, frame: FRAME, bytes: b"export".to_vec() };
    control.send(&export, &[&other]);
    drop(other);
    wait_readable(&none);
    let mut next = control.connect(2);
    control.send(&ToAttendant::Export { client: next.id, frame: FRAME, bytes: b"export".to_vec() }, &[]);
    assert_eq!(next.receive().0, b"export");
    next.command(done(FRAME, FrameResult::Failed), &[]);
    control.expect(&FromAttendant::Command {
        client: next.id,
        serial: 1,
        command: done(FRAME, FrameResult::Failed),
    });
}
