//! The answers of a service that keeps the protocol, for targets that need one to begin with.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;

use memferry_service::protocol::{
    Answer, Command, Envelope, Refusal, RefusalKind, Reply, VERSIONS, Welcome, encode,
};
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::queue_pair::{Layout, ParkedWord};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Handle, Rights, SessionId};
use rustix::event::EventfdFlags;

use crate::played_service::{Answered, Asked, Halves, Script};

/// The session of every client of a played service.
pub(crate) const SESSION: SessionId = SessionId(7);

/// Answers as a service does, and gives the memory of queues to the target.
pub(crate) struct Honest {
    /// In the names of the memory that it gives.
    pub(crate) name: &'static str,
    pub(crate) queues: Sender<Halves>,
    pub(crate) made: u32,
}

impl Honest {
    pub(crate) fn new(name: &'static str, queues: Sender<Halves>) -> Self {
        Self { name, queues, made: 0 }
    }

    /// The answer to a command with its descriptors.
    pub(crate) fn reply(&mut self, serial: u32, command: &Command, memory: &[OwnedFd]) -> Answered {
        self.made += 1;
        let handle = Handle::new(self.made, 1);
        let mut descriptors = Vec::new();
        if let (Command::Register { length, .. }, [memory]) = (command, memory) {
            // Admitting it seals it, which the client looks at.
            let user = rustix::fs::fstat(memory).map_or(0, |about| about.st_uid);
            let _ = frame::admit(memory.as_fd(), *length, user);
        }
        let body = match command {
            Command::Register { .. } | Command::Derive { .. } | Command::Grant { .. } => {
                Ok(Answer::Handle(handle))
            }
            Command::Accept { .. } => {
                Ok(Answer::Accepted { handle, length: 4096, rights: Rights::all(), grantor: SessionId(9) })
            }
            Command::Revoke { .. } => Ok(Answer::Revoked),
            Command::CloseQueue { .. } => Ok(Answer::Closed),
            Command::OpenQueue { capacity } => {
                descriptors = self.open(*capacity, memory);
                Ok(Answer::Queue { queue: self.made, capacity: *capacity })
            }
            _ => Err(Refusal { kind: RefusalKind::Argument, message: "not played".to_owned() }),
        };
        let announced = descriptors.len() as u8;
        Answered { bytes: encode::<Reply>(&Envelope { serial, descriptors: announced, body }), descriptors }
    }

    /// The service's half of a queue, its doorbell and the workers' words.
    pub(crate) fn open(&self, capacity: u32, memory: &[OwnedFd]) -> Vec<OwnedFd> {
        let Ok(layout) = Layout::new(capacity) else { return Vec::new() };
        let [client] = memory else { return Vec::new() };
        let bytes = layout.client_bytes() as usize;
        let client = Mapping::shared(client.as_fd(), bytes, Access::ReadWrite, 4096);
        let own = frame::allocate_sealed_named(self.name, layout.service_words() as u64 * 8, false);
        let parked_bytes = ParkedWord::<MappedWords>::BYTES as u64;
        let parked = frame::allocate_sealed_named(self.name, parked_bytes, false);
        let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let (Ok(client), Ok((service, mapping)), Ok((parked, _)), Ok(bell)) = (client, own, parked, bell)
        else {
            return Vec::new();
        };
        let _ = self.queues.send(Halves { client, service: mapping });
        vec![service, bell, parked]
    }
}

/// The answer to a greeting.
pub(crate) fn welcome() -> Answered {
    let welcome = Welcome { version: VERSIONS.1, features: 0, session: SESSION };
    Answered { bytes: welcome.encode(), descriptors: Vec::new() }
}

impl Script for Honest {
    fn answer(&mut self, asked: Asked) -> Option<Vec<Answered>> {
        match asked {
            Asked::Hello => Some(vec![welcome()]),
            Asked::Command { serial, command, memory } => Some(vec![self.reply(serial, &command, &memory)]),
            Asked::Nonsense => None,
        }
    }
}
