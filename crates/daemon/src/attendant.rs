//! The attendant of one user: a process that does for its clients what may block.
//!
//! ```text
//! clients' sockets ─ packets ─► serial, decoding, descriptors ─► commands ─► control thread
//!                               memory: examine ─ mapped there ─ seal (jobs) ┘
//! control thread ─ answers, farewells ─► clients        worker ─ eventfd ─► the client's eventfd
//! ```
//!
//! A client can make many system calls on what is its own take any time: closing what it sent, sealing its memory, writing to
//! an eventfd that it watches. They happen here, so they delay this user only. The jobs that can block for good run in threads
//! of their own and have a deadline. The attendant holds no socket but its own channel and those of its user's clients. It ends
//! with its channel, and nobody waits for that: even if it is stuck in the kernel, the service and the clients of others are not.
//!
//! It decides nothing about rights, quotas or queues.

mod client;
mod exports;
mod jobs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use memferry_service::protocol::{self, Refusal, RefusalKind, Violation};
use memferry_service::times_slept;
use memferry_shm::conduit;
use memferry_shm::frame::Candidate;
use memferry_shm::mapping::Access;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::messages::{self, ClientId, FromAttendant, IN_FLIGHT, Received, ToAttendant};
use client::{Client, Incoming, State};
use jobs::{Jobs, Sealing};

/// Time for the memory of one command to be sealed. Far above what it takes, unless somebody holds its inode.
const SEALING_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of descriptors that are not closed yet. Above it, no client of this user is read.
const PENDING_LIMIT: usize = 256;

/// Ended connections whose clients have not read their answers. Above it, no client of this user is adopted: the answers are the
/// service's memory, and their descriptors count against its limit, for as long as the client keeps its end.
const MAX_UNREAD: usize = 16;
/// Interval at which unread connections are looked at.
const UNREAD_INTERVAL: Duration = Duration::from_millis(500);

/// Mapping memory that takes longer is slow: the kernel visits its other mappings, of which its owner can make hundreds of thousands.
const SLOW_MAP: Duration = Duration::from_millis(2);

/// A write to an eventfd that takes longer is slow: its client has thousands of watches on it. The kernel goes through them without
/// a pause, and nothing else runs on this CPU meanwhile.
const SLOW_SIGNAL: Duration = Duration::from_micros(500);
/// After a slow write, the user's next one waits for so many times its duration. Signals add up meanwhile.
const REST: u32 = 200;

const OUT_OF_DESCRIPTORS: &str = "the service is out of descriptors for this user; try again later";

/// How often an answer to an engine process is sent again while Linux allows no more descriptors in flight.
const IN_FLIGHT_TRIES: u32 = 100;
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(10);

/// Tokens of epoll: these two, then a number for each watched descriptor.
const CHANNEL: u64 = 0;
const FINISHED: u64 = 1;
const FIRST: u64 = 2;

/// What a watched descriptor is.
#[derive(Clone, Copy)]
enum Watched {
    Socket(ClientId),
    Process(ClientId),
    Relay(ClientId, u32),
    /// The pair of sockets over which the descriptor of an engine's memory comes.
    Export(ClientId),
}

/// A socket that the control thread may still have.
enum Arriving {
    Client(ClientId, Vec<OwnedFd>),
    TurnedAway(Vec<OwnedFd>, Vec<u8>),
}

/// A worker's signals for a client, which are passed on to the client's eventfd.
struct Relay {
    token: u64,
    from: OwnedFd,
    to: OwnedFd,
    /// A signal came while the user's signals rest.
    held: bool,
}

/// The loop has to end: the control thread is gone, or a system call failed that cannot.
struct Ended;

pub(crate) struct Attendant {
    user: u32,
    channel: OwnedFd,
    epoll: OwnedFd,
    jobs: Jobs,
    arriving: Vec<Arriving>,
    clients: BTreeMap<ClientId, Client>,
    /// Processes of clients whose connection the service ended.
    leaving: BTreeMap<ClientId, (u64, OwnedFd)>,
    relays: BTreeMap<(ClientId, u32), Relay>,
    /// A client made a signal take long. Until then the user's signals wait.
    signals_rest_until: Option<Instant>,
    /// Doorbells of open queues. While they are held here, the service is never the last to close one.
    doorbells: BTreeMap<(ClientId, u32), OwnedFd>,
    watched: BTreeMap<u64, Watched>,
    /// Sockets of ended connections whose clients have not read what they were sent.
    unread: Vec<OwnedFd>,
    next: u64,
    muted: bool,
    sealing_limit: Duration,
}

impl Attendant {
    /// Starts the threads for what blocks.
    ///
    /// # Errors
    /// Those of epoll, eventfd and clone.
    pub(crate) fn new(channel: OwnedFd, user: u32) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let jobs = Jobs::start()?;
        epoll::add(&epoll, &channel, EventData::new_u64(CHANNEL), EventFlags::IN)?;
        epoll::add(&epoll, jobs.finished(), EventData::new_u64(FINISHED), EventFlags::IN)?;
        Ok(Self {
            user,
            channel,
            epoll,
            jobs,
            arriving: Vec::new(),
            clients: BTreeMap::new(),
            leaving: BTreeMap::new(),
            relays: BTreeMap::new(),
            signals_rest_until: None,
            doorbells: BTreeMap::new(),
            watched: BTreeMap::new(),
            unread: Vec::new(),
            next: FIRST,
            muted: false,
            sealing_limit: SEALING_LIMIT,
        })
    }

    /// Serves until the control thread is gone, and lives on while answers are unread: so they count for the user's attendants.
    pub(crate) fn run(mut self) {
        while self.turn().is_ok() {}
        while !self.unread.is_empty() {
            std::thread::sleep(UNREAD_INTERVAL);
            self.close_read();
        }
    }

    /// Closes ended connections whose clients have read everything, or are gone.
    fn close_read(&mut self) {
        let is_read =
            |socket: &mut OwnedFd| conduit::unread_bytes(socket.as_fd()).is_ok_and(|bytes| bytes == 0);
        self.unread.extract_if(.., is_read).for_each(|socket| self.jobs.close_connection(socket));
    }

    fn turn(&mut self) -> Result<(), Ended> {
        let mut space = [std::mem::MaybeUninit::uninit(); 64];
        let limit = self.time_left().map(|left| Timespec::try_from(left).unwrap_or_default());
        let events = match epoll::wait(&self.epoll, &mut space, limit.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(_) => return Err(Ended),
        };
        for event in events {
            match event.data.u64() {
                CHANNEL => self.receive()?,
                FINISHED => self.finish_jobs()?,
                token => match self.watched.get(&token).copied() {
                    Some(Watched::Socket(client)) => self.read_client(client)?,
                    Some(Watched::Process(client)) => self.process_exited(client)?,
                    Some(Watched::Relay(client, queue)) => self.relay(client, queue),
                    Some(Watched::Export(client)) => self.exported(client)?,
                    None => {}
                },
            }
        }
        self.end_overdue()?;
        self.end_overdue_exports()?;
        self.wake_relays();
        self.close_read();
        self.mute_or_unmute();
        Ok(())
    }

    /// Time until the next deadline of a sealing or an export, the end of the signals' rest, or until unread connections are looked at.
    fn time_left(&self) -> Option<Duration> {
        let exports = self.clients.values().filter_map(Client::export_deadline);
        let deadlines = self.clients.values().filter_map(Client::deadline).chain(exports);
        let left = deadlines
            .chain(self.signals_rest_until)
            .min()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // One more millisecond, so that the deadline has passed then.
        let left = left.map(|left| left.saturating_add(Duration::from_millis(1)));
        let unread = (!self.unread.is_empty()).then_some(UNREAD_INTERVAL);
        [left, unread].into_iter().flatten().min()
    }

    fn report(&self, message: &FromAttendant, descriptors: &[&OwnedFd]) -> Result<(), Ended> {
        // It may wait: the control thread never waits for an attendant.
        messages::send(self.channel.as_fd(), message, descriptors, true).map_err(|_| Ended)
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, what: Watched, events: EventFlags) -> Option<u64> {
        let token = self.next;
        self.next += 1;
        epoll::add(&self.epoll, descriptor, EventData::new_u64(token), events).ok()?;
        self.watched.insert(token, what);
        Some(token)
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>, token: u64) {
        let _ = epoll::delete(&self.epoll, descriptor);
        self.watched.remove(&token);
    }

    /// Handles one message of the control thread.
    fn receive(&mut self) -> Result<(), Ended> {
        let (message, descriptors) = match messages::receive(self.channel.as_fd()) {
            Received::Message(message, descriptors) => (message, descriptors),
            Received::Nothing => return Ok(()),
            Received::Lost => return Err(Ended),
        };
        match message {
            ToAttendant::Adopt { client } => {
                self.arriving.push(Arriving::Client(client, descriptors));
                Ok(())
            }
            ToAttendant::TurnAway { farewell } => {
                self.arriving.push(Arriving::TurnedAway(descriptors, farewell));
                Ok(())
            }
            ToAttendant::HandedOver => {
                std::mem::take(&mut self.arriving).into_iter().try_for_each(|arriving| match arriving {
                    Arriving::Client(client, descriptors) => self.adopt(client, descriptors),
                    Arriving::TurnedAway(sockets, farewell) => {
                        sockets.into_iter().for_each(|socket| self.turn_away(socket, &farewell));
                        Ok(())
                    }
                })
            }
            ToAttendant::Answer { client, bytes } => {
                let given: Vec<_> = descriptors.iter().collect();
                let answered = self.answer(client, &bytes, &given);
                descriptors.into_iter().for_each(|descriptor| self.jobs.close(descriptor));
                answered
            }
            ToAttendant::Revoked { client, bytes } => self.revoked(client, &bytes),
            ToAttendant::Opened { client, serial, queue, bytes } => {
                self.opened(client, (serial, queue), &bytes, descriptors)
            }
            ToAttendant::Notified { client, serial, queue, bytes } => {
                self.notified(client, (serial, queue), &bytes, descriptors)
            }
            ToAttendant::Engine { client } => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.is_engine = true;
                }
                Ok(())
            }
            ToAttendant::Mapped { client } => {
                self.seal(client);
                Ok(())
            }
            ToAttendant::Export { client, frame, bytes } => self.export(client, frame, &bytes, descriptors),
            ToAttendant::Exporting { client, serial, milliseconds } => {
                self.exporting(client, (serial, Duration::from_millis(milliseconds)), descriptors)
            }
            ToAttendant::End { client, farewell, watch } => {
                let is_over = !self.clients.contains_key(&client) && !self.leaving.contains_key(&client);
                self.end(client, Some(&farewell), watch);
                // It had closed its connection or exited before this order came, so nothing is left to watch.
                if watch && is_over { self.report(&FromAttendant::Left { client }, &[]) } else { Ok(()) }
            }
            ToAttendant::Release { client, queues } => {
                queues.into_iter().for_each(|queue| self.release(client, queue));
                Ok(())
            }
        }
    }

    fn adopt(&mut self, id: ClientId, descriptors: Vec<OwnedFd>) -> Result<(), Ended> {
        let Ok([socket, process]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            // This process had no room for them, so they are closed.
            return self.report(&FromAttendant::Ended { client: id, violation: None }, &[]);
        };
        if self.muted {
            let pending = self.jobs.pending();
            let user = self.user;
            let why = format!("{pending} descriptors of user {user} are still being closed; try again later");
            return self.not_adopted(id, socket, why);
        }
        self.close_read();
        if self.unread.len() >= MAX_UNREAD {
            let why = format!(
                "{MAX_UNREAD} ended connections of user {} have unread answers; read or close them",
                self.user
            );
            return self.not_adopted(id, socket, why);
        }
        let socket_token = self.watch(socket.as_fd(), Watched::Socket(id), EventFlags::IN);
        let process_token = self.watch(process.as_fd(), Watched::Process(id), EventFlags::IN);
        if let (Some(socket_token), Some(process_token)) = (socket_token, process_token) {
            self.clients.insert(id, Client::new((socket, socket_token), (process, process_token)));
            return Ok(());
        }
        let why = "the service cannot watch another connection of this user; try again later";
        self.not_adopted(id, socket, why.to_owned())
    }

    fn not_adopted(&self, id: ClientId, socket: OwnedFd, why: String) -> Result<(), Ended> {
        let violation = Violation::Unwelcome(why);
        self.turn_away(socket, &protocol::encode_violation(&violation));
        self.report(&FromAttendant::Ended { client: id, violation: Some(violation) }, &[])
    }

    /// Sends a farewell and closes the socket, at once if nothing is left in it: so that repeated connections do not pile up behind
    /// closes that are blocked.
    fn turn_away(&self, socket: OwnedFd, farewell: &[u8]) {
        client::say_farewell(&socket, farewell);
        let shut = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).is_ok();
        if !(shut && conduit::is_drained(socket.as_fd())) {
            self.jobs.close_connection(socket);
        }
    }

    /// Reads one message of a client.
    fn read_client(&mut self, id: ClientId) -> Result<(), Ended> {
        let mut descriptors = Vec::new();
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let incoming = client.receive(&mut descriptors);
        let done = match incoming {
            Ok(Incoming::Nothing) => Ok(()),
            Ok(Incoming::Gone) => self.client_gone(id),
            Ok(Incoming::Hello(hello)) => {
                self.set_reading(id, false);
                self.report(&FromAttendant::hello(id, &hello), &[])
            }
            Ok(Incoming::Command(serial, command)) => {
                // Only a revocation lets it be read before the answer.
                self.set_reading(id, !self.muted);
                match (command.memory_bytes(), descriptors.len()) {
                    (Some(length), 1) => {
                        let descriptor = descriptors.remove(0);
                        self.examine(id, (serial, command), length, descriptor)
                    }
                    _ => {
                        self.pass_on(id, &command, &descriptors);
                        self.report(&FromAttendant::Command { client: id, serial, command }, &[])
                    }
                }
            }
            Err(violation) => self.violated(id, violation),
        };
        descriptors.into_iter().for_each(|descriptor| self.jobs.close(descriptor));
        done
    }

    /// Begins to admit the memory of a command.
    fn examine(
        &mut self,
        id: ClientId,
        (serial, command): (u32, protocol::Command),
        length: u64,
        descriptor: OwnedFd,
    ) -> Result<(), Ended> {
        match Candidate::examine(descriptor.as_fd(), length, self.user) {
            Ok(candidate) if is_slow_to_map(&candidate, &descriptor) => {
                self.jobs.close(descriptor);
                let why =
                    "the memory takes long to map; map it less often, and punch no holes into it meanwhile";
                self.refuse(id, serial, RefusalKind::Frame, &why)
            }
            Ok(candidate) => {
                let message = FromAttendant::Memory { client: id, serial, command };
                match messages::send(self.channel.as_fd(), &message, &[&descriptor], true) {
                    Ok(()) => {}
                    // Not this user's fault, and the sessions of its clients continue.
                    Err(Errno::TOOMANYREFS) => {
                        self.jobs.close(descriptor);
                        return self.refuse(id, serial, RefusalKind::System, &IN_FLIGHT);
                    }
                    Err(_) => return Err(Ended),
                }
                if let Some(client) = self.clients.get_mut(&id) {
                    client.state = State::Mapping(Sealing { client: id, serial, candidate, descriptor });
                }
                Ok(())
            }
            Err(refused) => {
                self.jobs.close(descriptor);
                self.refuse(id, serial, RefusalKind::Frame, &refused)
            }
        }
    }

    fn refuse(
        &mut self,
        id: ClientId,
        serial: u32,
        kind: RefusalKind,
        why: &dyn std::fmt::Display,
    ) -> Result<(), Ended> {
        let refusal = Refusal { kind, message: why.to_string() };
        let reply: protocol::Reply = protocol::Envelope { serial, descriptors: 0, body: Err(refusal) };
        self.answer(id, &protocol::encode(&reply), &[])
    }

    /// The control thread has mapped the memory of a client's command.
    fn seal(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let State::Mapping(sealing) = std::mem::replace(&mut client.state, State::Waiting) {
            client.state =
                State::Sealing { serial: sealing.serial, deadline: Instant::now() + self.sealing_limit };
            self.jobs.seal(sealing);
        }
    }

    fn finish_jobs(&mut self) -> Result<(), Ended> {
        self.jobs.acknowledge();
        for sealed in self.jobs.take_sealed() {
            let id = sealed.client;
            let Some(client) = self.clients.get_mut(&id) else { continue };
            // A job that outlived its deadline belongs to a client that is gone.
            if !matches!(client.state, State::Sealing { serial, .. } if serial == sealed.serial) {
                continue;
            }
            client.state = State::Waiting;
            match sealed.result {
                Ok(()) => self.report(&FromAttendant::Sealed { client: id }, &[])?,
                Err(refused) => {
                    self.report(&FromAttendant::Refused { client: id }, &[])?;
                    self.refuse(id, sealed.serial, RefusalKind::Frame, &refused)?;
                }
            }
        }
        Ok(())
    }

    /// Ends connections whose memory could not be sealed in time.
    fn end_overdue(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let overdue = |client: &Client| client.deadline().is_some_and(|deadline| deadline <= now);
        let overdue: Vec<_> =
            self.clients.iter().filter(|(_, client)| overdue(client)).map(|(id, _)| *id).collect();
        for id in overdue {
            let milliseconds = self.sealing_limit.as_millis() as u64;
            self.violated(id, Violation::Admission { milliseconds })?;
        }
        Ok(())
    }

    /// Sends an answer, after which the client may send its next message.
    fn answer(&mut self, id: ClientId, bytes: &[u8], descriptors: &[&OwnedFd]) -> Result<(), Ended> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        match std::mem::replace(&mut client.state, State::Idle) {
            // The control thread has refused the command before it mapped the memory.
            State::Mapping(sealing) => self.jobs.close(sealing.descriptor),
            State::Exporting(export) => self.stop_export(export),
            _ => {}
        }
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let mut result = client.send(bytes, descriptors);
        // Too many descriptors of this service are in flight to others. Only engine processes are answered with descriptors here, and
        // only their user waits.
        for _ in 0..IN_FLIGHT_TRIES {
            if result != Err(Errno::TOOMANYREFS) {
                break;
            }
            std::thread::sleep(IN_FLIGHT_PAUSE);
            result = client.send(bytes, descriptors);
        }
        self.sent(id, result)
    }

    /// After an answer: reads the client again, or ends its connection if the answer could not be sent.
    fn sent(&mut self, id: ClientId, result: rustix::io::Result<()>) -> Result<(), Ended> {
        match result {
            Ok(()) => {
                self.set_reading(id, !self.muted);
                Ok(())
            }
            Err(Errno::AGAIN) => self.violated(id, Violation::NotReading),
            Err(_) => self.client_gone(id),
        }
    }

    /// Sends the answer to a revocation. Another command may be in progress.
    fn revoked(&mut self, id: ClientId, bytes: &[u8]) -> Result<(), Ended> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.revoked();
        let result = client.send(bytes, &[]);
        self.sent(id, result)
    }

    /// Delivers a new queue and keeps its doorbell.
    fn opened(
        &mut self,
        id: ClientId,
        (serial, queue): (u32, u32),
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Ended> {
        let Ok([half, doorbell, parked]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            self.report(&FromAttendant::Undelivered { client: id, queue }, &[])?;
            return self.refuse(id, serial, RefusalKind::System, &OUT_OF_DESCRIPTORS);
        };
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let result = client.send(bytes, &[&half, &doorbell, &parked]);
        // Linux limits the descriptors that this system user has sent and nobody has received, which is not this client's fault.
        if result == Err(Errno::TOOMANYREFS) {
            self.report(&FromAttendant::Undelivered { client: id, queue }, &[])?;
            return self.refuse(id, serial, RefusalKind::System, &IN_FLIGHT);
        }
        if result.is_ok() {
            client.state = State::Idle;
            self.doorbells.insert((id, queue), doorbell);
        }
        self.sent(id, result)
    }

    /// Delivers a new signal, and begins to pass it on.
    fn notified(
        &mut self,
        id: ClientId,
        (serial, queue): (u32, u32),
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Ended> {
        let Ok([to, from]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return self.refuse(id, serial, RefusalKind::System, &OUT_OF_DESCRIPTORS);
        };
        self.answer(id, bytes, &[&to])?;
        if self.clients.contains_key(&id)
            && let Some(token) = self.watch(from.as_fd(), Watched::Relay(id, queue), EventFlags::IN)
        {
            self.relays.insert((id, queue), Relay { token, from, to, held: false });
        }
        Ok(())
    }

    /// Passes a worker's signal on. The client pays for its watches: they delay this process only, and after a slow write the
    /// user's signals rest.
    fn relay(&mut self, id: ClientId, queue: u32) {
        let Some(relay) = self.relays.get_mut(&(id, queue)) else { return };
        if self.signals_rest_until.is_some() {
            relay.held = true;
            let data = EventData::new_u64(relay.token);
            let _ = epoll::modify(&self.epoll, &relay.from, data, EventFlags::empty());
            return;
        }
        let started = cpu_time();
        let _ = rustix::io::read(&relay.from, &mut [0; 8]);
        // If the client filled the counter and made it blocking, this blocks its user's signals.
        let _ = rustix::io::write(&relay.to, &1u64.to_ne_bytes());
        let elapsed = cpu_time().saturating_sub(started);
        if elapsed > SLOW_SIGNAL {
            self.signals_rest_until = Some(Instant::now() + elapsed * REST);
        }
    }

    /// Ends the rest of the user's signals when it is over.
    fn wake_relays(&mut self) {
        let now = Instant::now();
        if self.signals_rest_until.take_if(|until| *until <= now).is_none() {
            return;
        }
        for relay in self.relays.values_mut().filter(|relay| relay.held) {
            relay.held = false;
            let data = EventData::new_u64(relay.token);
            let _ = epoll::modify(&self.epoll, &relay.from, data, EventFlags::IN);
        }
    }

    fn release(&mut self, id: ClientId, queue: u32) {
        if let Some(doorbell) = self.doorbells.remove(&(id, queue)) {
            self.jobs.close(doorbell);
        }
        if let Some(relay) = self.relays.remove(&(id, queue)) {
            self.relay_last(relay);
        }
    }

    /// Passes a closing queue's last signal on and ends the relay.
    fn relay_last(&mut self, relay: Relay) {
        if rustix::io::read(&relay.from, &mut [0; 8]).is_ok() {
            let _ = rustix::io::write(&relay.to, &1u64.to_ne_bytes());
        }
        self.unwatch(relay.from.as_fd(), relay.token);
        self.jobs.close(relay.to);
    }

    fn process_exited(&mut self, id: ClientId) -> Result<(), Ended> {
        if let Some(process) = self.leaving.remove(&id) {
            self.close_process(process);
            return self.report(&FromAttendant::Left { client: id }, &[]);
        }
        self.client_gone(id)
    }

    fn close_process(&mut self, (token, process): (u64, OwnedFd)) {
        self.unwatch(process.as_fd(), token);
        self.jobs.close(process);
    }

    /// The client closed its socket or exited.
    fn client_gone(&mut self, id: ClientId) -> Result<(), Ended> {
        let is_engine = self.clients.get(&id).is_some_and(Client::may_be_engine);
        self.end(id, None, is_engine);
        self.report(&FromAttendant::Ended { client: id, violation: None }, &[])
    }

    /// Ends the connection of a client that violated the protocol.
    fn violated(&mut self, id: ClientId, violation: Violation) -> Result<(), Ended> {
        // Its process is watched until the control thread answers with the same order.
        self.end(id, Some(&protocol::encode_violation(&violation)), true);
        self.report(&FromAttendant::Ended { client: id, violation: Some(violation) }, &[])
    }

    /// Closes a connection, with a farewell. If `watch`, reports when the client's process has exited.
    fn end(&mut self, id: ClientId, farewell: Option<&[u8]>, watch: bool) {
        let queues: Vec<_> = self.queues_of(id);
        let Some(client) = self.clients.remove(&id) else {
            // It is over already. The control thread says whether the end of its process matters.
            if !watch && let Some(process) = self.leaving.remove(&id) {
                self.close_process(process);
            }
            return;
        };
        let is_unread = client.has_unread();
        let Client { socket, socket_token, process, process_token, state, .. } = client;
        if let Some(farewell) = farewell {
            client::say_farewell(&socket, farewell);
        }
        match state {
            State::Mapping(sealing) => self.jobs.close(sealing.descriptor),
            State::Exporting(export) => self.stop_export(export),
            _ => {}
        }
        self.unwatch(socket.as_fd(), socket_token);
        if is_unread {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            self.unread.push(socket);
        } else {
            self.jobs.close_connection(socket);
        }
        if watch {
            self.leaving.insert(id, (process_token, process));
        } else {
            self.close_process((process_token, process));
        }
        queues.into_iter().for_each(|queue| self.release(id, queue));
    }

    /// Queues with a doorbell or a signal.
    fn queues_of(&self, id: ClientId) -> Vec<u32> {
        let range = (id, 0)..=(id, u32::MAX);
        let doorbells = self.doorbells.range(range.clone()).map(|((_, queue), _)| *queue);
        doorbells.chain(self.relays.range(range).map(|((_, queue), _)| *queue)).collect()
    }

    /// Starts or stops reading a client. Its end is seen in both cases.
    fn set_reading(&self, id: ClientId, reading: bool) {
        let Some(client) = self.clients.get(&id) else { return };
        let reading = reading && matches!(client.state, State::Idle);
        let events = if reading { EventFlags::IN } else { EventFlags::empty() };
        let data = EventData::new_u64(client.socket_token);
        let _ = epoll::modify(&self.epoll, &client.socket, data, events);
    }

    /// Stops reading all clients while too many descriptors are not closed: they would pile up behind a blocked close.
    fn mute_or_unmute(&mut self) {
        let pending = self.jobs.pending();
        let mute = if self.muted { pending > PENDING_LIMIT / 2 } else { pending > PENDING_LIMIT };
        if mute != self.muted {
            self.muted = mute;
            let ids: Vec<_> = self.clients.keys().copied().collect();
            ids.into_iter().for_each(|id| self.set_reading(id, !mute));
        }
    }
}

/// Whether mapping the memory takes long, twice, and not because this process was preempted. The control thread maps it next, and all
/// users would wait for that.
fn is_slow_to_map(candidate: &Candidate, descriptor: &OwnedFd) -> bool {
    (0..2).all(|_| {
        let started = Instant::now();
        let slept_before = times_slept();
        drop(candidate.map(descriptor.as_fd(), Access::ReadOnly));
        started.elapsed() > SLOW_MAP && times_slept() > slept_before
    })
}

/// CPU time of this thread: a write that other programs interrupt is not slow.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
