//! Attacks by commands on the socket.

use std::os::fd::{AsFd, OwnedFd};

use memferry::{Grantee, PolicySettings};
use memferry_service::protocol::{Answer, Command};
use memferry_shm::frame::{self, Pages};
use memferry_transfer::{Handle, Rights};

use crate::Failed;
use crate::connection::Connection;
use crate::stage::{self, Stage, repeat_on};

/// Commands of one burst: below what the answers of a socket's buffer hold.
const BURST: usize = 64;

fn handle_of(answer: &Answer) -> Result<Handle, Failed> {
    match answer {
        Answer::Handle(handle) => Ok(*handle),
        other => Err(format!("no handle: {other:?}").into()),
    }
}

pub(super) fn grant_trees(stage: &Stage) -> Result<(), Failed> {
    const LENGTH: u64 = 64 << 10;
    let depth = stage.size(1000, 100);
    repeat_on(stage, 4, || {
        let mut connection = stage.connect()?;
        let to = Grantee::Session(connection.session());
        let derive = |handle| Command::Derive { handle, offset: 0, length: LENGTH, rights: Rights::READ };
        for _ in 0..10 {
            let root = stage::frame(&mut connection, LENGTH)?.handle;
            let mut deepest = root;
            for _ in 0..depth {
                deepest = handle_of(&connection.call(derive(deepest), &[])?.0)?;
            }
            // Wide: all of the deepest one.
            for _ in 0..depth / BURST {
                for index in 0..BURST {
                    let rights = Rights::READ;
                    let grant =
                        Command::Grant { handle: deepest, offset: 0, length: 64, rights, to, lasts: None };
                    connection.send(if index % 2 == 0 { grant } else { derive(deepest) }, &[])?;
                }
                for _ in 0..BURST {
                    connection.answer(true)?;
                }
            }
            connection.call(Command::Revoke { handle: root }, &[])?;
        }
        Ok(())
    })
}

pub(super) fn register_storm(stage: &Stage) -> Result<(), Failed> {
    const LENGTH: u64 = 4096;
    let memory = || -> Result<OwnedFd, Failed> { Ok(frame::allocate(LENGTH, Pages::Ordinary)?.0) };
    repeat_on(stage, 2, || {
        let mut connection = stage.connect()?;
        loop {
            let memfds = (0..BURST).map(|_| memory()).collect::<Result<Vec<_>, _>>()?;
            for memfd in &memfds {
                let register = Command::Register { length: LENGTH, rights: Rights::all() };
                connection.send(register, &[memfd.as_fd()])?;
            }
            let mut handles = Vec::new();
            for _ in &memfds {
                if let Some((Ok(answer), _)) = connection.answer(true)? {
                    handles.push(handle_of(&answer)?);
                }
            }
            for handle in &handles {
                connection.send(Command::Revoke { handle: *handle }, &[])?;
            }
            for _ in &handles {
                connection.answer(true)?;
            }
            stage.running();
        }
    })
}

/// Sends bursts of commands and takes their answers after each.
fn bursts(
    connection: &mut Connection,
    bursts: usize,
    command: impl Fn(usize) -> Command,
) -> Result<(), Failed> {
    for _ in 0..bursts {
        // As many as there is room for.
        let mut sent = 0;
        while sent < BURST && connection.try_send(command(sent), &[])? {
            sent += 1;
        }
        for _ in 0..sent {
            connection.answer(true)?;
        }
    }
    Ok(())
}

fn question(connection: &Connection, index: usize) -> Command {
    match index % 4 {
        0 => Command::Status,
        1 => Command::Engines,
        2 => Command::Policy { change: None },
        _ => Command::Identify { session: connection.session() },
    }
}

pub(super) fn status_flood(stage: &Stage) -> Result<(), Failed> {
    repeat_on(stage, 8, || {
        let mut connection = stage.connect()?;
        for index in 0..1000 {
            let command = question(&connection, index);
            connection.call(command, &[])?;
        }
        Ok(())
    })
}

pub(super) fn pipelined(stage: &Stage) -> Result<(), Failed> {
    repeat_on(stage, 4, || {
        let mut connection = stage.connect()?;
        let session = connection.session();
        bursts(&mut connection, 100, |index| match index % 3 {
            0 => Command::Engines,
            1 => Command::CloseQueue { queue: 7 },
            _ => Command::Identify { session },
        })
    })
}

pub(super) fn policy_flood(stage: &Stage) -> Result<(), Failed> {
    repeat_on(stage, 2, || {
        let mut connection = stage.connect()?;
        bursts(&mut connection, 100, |_| Command::Policy {
            change: Some(Box::new(PolicySettings::default())),
        })
    })
}

pub(super) fn no_reads(stage: &Stage) -> Result<(), Failed> {
    repeat_on(stage, 2, || {
        let mut connection = stage.connect()?;
        while connection.send(Command::Status, &[]).is_ok() {}
        Ok(())
    })
}
