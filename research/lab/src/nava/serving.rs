//! The file servers and their clients as a discrete-event simulation in virtual time.
//!
//! ```text
//! client: read(8 KiB) ─ streams ─► wire ─► server: its single process takes the request
//!                                            │  block not in its cache? reads the disk and waits
//!                                            ├─ answer: copy, message, packet after packet ─► wire ─► client: packets, copy
//!                                            └─ first access to a block: reads the next one from the disk and waits
//! ```
//!
//! Each machine has one processor; network work runs between two pieces of other work. The wire transmits one packet at a time.
//! A packet is made, transmitted and handled at the client as in a pipeline; disk and wire work while the server's process waits.
//! A server has one process (section 2), and both servers read ahead in the same way, so reading ahead blocks either. A local
//! client uses a pipe and shares the server's processor. Not modelled: collisions, lost packets, acknowledgements, opening of
//! files.

use std::collections::VecDeque;

use memferry_clock::{EventQueue, Instant};

use super::disk::Disk;
use super::machine::{BLOCK, Machine};
use crate::rng::Rng;

/// Clients start within a tenth of a second, in nanoseconds.
const SPREAD: f64 = 1e8;

/// The steps of a server for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Kernel entries, as for a user-mode server.
    pub(super) entries: bool,
    /// A copy of the disk's data to the process.
    pub(super) disk_copy: bool,
    /// A copy of the answer to the network's buffers.
    pub(super) network_copy: bool,
    /// Messages through the streams instead of the standalone server's own code.
    pub(super) streams: bool,
}

impl Server {
    /// The conventional user-mode server.
    pub(super) const UMFS: Self = Self { entries: true, disk_copy: true, network_copy: true, streams: true };
    /// The server with user-mode DMA.
    pub(super) const DMAFS: Self = Self { disk_copy: false, ..Self::UMFS };
    pub(super) const MFS: Self =
        Self { entries: false, disk_copy: false, network_copy: false, streams: false };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Mean over the clients, in Mbit/s.
    pub(super) bandwidth: f64,
    /// Time to read a block, the mean over the first blocks and the clients, in ms.
    pub(super) delay: f64,
    /// Time of the server's processor for a block, in ms; includes the client's part for a local client.
    pub(super) processor: f64,
}

/// A piece of work of a processor, named by its result.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// The client has sent a request.
    Asked(usize),
    /// The server's interrupt has taken a request.
    Arrived(usize),
    /// The server's process has a request.
    Taken(usize),
    /// The server's process has a block from the disk; `ahead` if it was read ahead.
    Copied { client: usize, ahead: bool },
    /// The message of an answer is made; its packets are next.
    Answered(usize),
    /// A packet of an answer is made.
    Made { client: usize, left: u64 },
    /// A packet of an answer is in the client's kernel.
    Received { client: usize, left: u64 },
    /// The client's process has its data.
    Read(usize),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Worked(usize),
    Carried,
    Brought { client: usize, ahead: bool },
}

#[derive(Debug, Default)]
struct Processor {
    doing: Option<Work>,
    urgent: VecDeque<(f64, Work)>,
    waiting: VecDeque<(f64, Work)>,
    spent: f64,
}

/// The content of a packet on the wire.
#[derive(Clone, Copy, Debug)]
enum Packet {
    Request(usize),
    Data { client: usize, left: u64 },
}

#[derive(Debug)]
struct Reader {
    /// Start of its file on the disk.
    file: u64,
    /// Bytes read in this pass, and number of finished passes.
    read: u64,
    passes: u64,
    /// Blocks of this pass in the server's cache.
    cached: u64,
    started: Option<f64>,
    block_began: f64,
    delays: Vec<f64>,
    ended: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Room<'a> {
    machine: &'a Machine,
    server: Server,
    local: bool,
    events: EventQueue<Event>,
    now: f64,
    processors: Vec<Processor>,
    wire: VecDeque<(f64, Packet)>,
    disk: Disk,
    readers: Vec<Reader>,
    inbox: VecDeque<usize>,
    occupied: bool,
}

impl<'a> Room<'a> {
    /// A server with `clients` remote clients, or one local client for zero. The distance between files is twice their length;
    /// clients start within [`SPREAD`].
    pub(super) fn new(
        machine: &'a Machine,
        server: Server,
        clients: usize,
        disk: Disk,
        rng: &mut Rng,
    ) -> Self {
        let local = clients == 0;
        let apart = 2 * machine.procedure[0] * BLOCK;
        let mut events = EventQueue::new();
        let readers: Vec<Reader> = (0..clients.max(1))
            .map(|client| Reader {
                file: client as u64 * apart,
                read: 0,
                passes: 0,
                cached: 0,
                started: None,
                block_began: 0.0,
                delays: Vec::new(),
                ended: None,
            })
            .collect();
        let mut processors: Vec<Processor> = (0..=clients).map(|_| Processor::default()).collect();
        for client in 0..readers.len() {
            // The processor is reserved until the client starts; it has no other work before.
            let processor = if local { 0 } else { client + 1 };
            processors[processor].doing = Some(Work::Read(client));
            events.push(instant(rng.part() * SPREAD), Event::Worked(processor));
        }
        Self {
            machine,
            server,
            local,
            events,
            now: 0.0,
            processors,
            wire: VecDeque::new(),
            disk,
            readers,
            inbox: VecDeque::new(),
            occupied: false,
        }
    }

    /// Runs the procedure: each client reads its file several times.
    pub(super) fn run(mut self) -> Measured {
        while let Some((at, event)) = self.events.pop() {
            self.now = at.picoseconds() as f64 / 1e3;
            match event {
                Event::Worked(processor) => {
                    if let Some(work) = self.processors[processor].doing.take() {
                        self.done(work);
                    }
                    self.next_work(processor);
                }
                Event::Carried => {
                    if let Some((_, packet)) = self.wire.pop_front() {
                        self.arrived(packet);
                    }
                    self.next_packet();
                }
                Event::Brought { client, ahead } => self.disk_read_done(client, ahead),
            }
        }
        self.measured()
    }

    fn measured(&self) -> Measured {
        let [blocks, passes, _] = self.machine.procedure;
        let bits = (passes * blocks * BLOCK * 8) as f64;
        let mean = |of: &dyn Fn(&Reader) -> f64| {
            self.readers.iter().map(of).sum::<f64>() / self.readers.len().max(1) as f64
        };
        let all = (passes * blocks) as f64 * self.readers.len() as f64;
        Measured {
            bandwidth: mean(&|reader| {
                reader
                    .ended
                    .zip(reader.started)
                    .map_or(f64::NAN, |(ended, started)| bits / (ended - started) * 1e3)
            }),
            delay: mean(&|reader| reader.delays.iter().sum::<f64>() / reader.delays.len().max(1) as f64)
                / 1e6,
            processor: self.processors[0].spent / all / 1e6,
        }
    }

    /// The processor of a client.
    fn processor_of(&self, client: usize) -> usize {
        if self.local { 0 } else { client + 1 }
    }

    /// Queues work for a processor; `urgent` work goes first.
    fn work(&mut self, processor: usize, urgent: bool, takes: f64, then: Work) {
        let at = &mut self.processors[processor];
        at.spent += takes;
        let queue = if urgent { &mut at.urgent } else { &mut at.waiting };
        queue.push_back((takes, then));
        self.next_work(processor);
    }

    fn next_work(&mut self, processor: usize) {
        let at = &mut self.processors[processor];
        if at.doing.is_some() {
            return;
        }
        if let Some((takes, work)) = at.urgent.pop_front().or_else(|| at.waiting.pop_front()) {
            at.doing = Some(work);
            self.events.push(instant(self.now + takes), Event::Worked(processor));
        }
    }

    fn send(&mut self, takes: f64, packet: Packet) {
        self.wire.push_back((takes, packet));
        if self.wire.len() == 1 {
            self.next_packet();
        }
    }

    fn next_packet(&mut self) {
        if let Some((takes, _)) = self.wire.front() {
            self.events.push(instant(self.now + takes), Event::Carried);
        }
    }

    /// Handles the arrival of a packet.
    fn arrived(&mut self, packet: Packet) {
        match packet {
            Packet::Request(client) => {
                let takes = if self.server.streams { self.machine.stream } else { self.machine.minimal };
                self.work(0, true, takes, Work::Arrived(client));
            }
            Packet::Data { client, left } => {
                let processor = self.processor_of(client);
                self.work(processor, true, self.machine.packet, Work::Received { client, left });
            }
        }
    }

    fn done(&mut self, work: Work) {
        match work {
            Work::Asked(client) if self.local => {
                self.inbox.push_back(client);
                self.take_request();
            }
            Work::Asked(client) => self.send(self.machine.wire[1], Packet::Request(client)),
            Work::Arrived(client) => {
                self.inbox.push_back(client);
                self.take_request();
            }
            Work::Taken(client) => self.look_up(client),
            Work::Copied { client, ahead } => {
                self.readers[client].cached += 1;
                if ahead { self.end_request() } else { self.answer(client) }
            }
            Work::Answered(client) if self.local => {
                self.take_answer(client);
                self.read_ahead(client);
            }
            Work::Answered(client) => self.make_packet(client, self.machine.packets),
            Work::Made { client, left } => {
                self.send(self.machine.wire[0], Packet::Data { client, left });
                if left > 0 { self.make_packet(client, left) } else { self.read_ahead(client) }
            }
            Work::Received { client, left: 0 } => self.take_answer(client),
            Work::Received { .. } => {}
            Work::Read(client) => self.next_read(client),
        }
    }

    fn entry(&self) -> f64 {
        if self.server.entries { self.machine.entry } else { 0.0 }
    }

    /// Lets the server's process take the next request if it is idle.
    fn take_request(&mut self) {
        if self.occupied {
            return;
        }
        if let Some(client) = self.inbox.pop_front() {
            self.occupied = true;
            let takes = self.entry();
            self.work(0, false, takes, Work::Taken(client));
        }
    }

    /// Ends the request of the server's process.
    fn end_request(&mut self) {
        self.occupied = false;
        self.take_request();
    }

    fn look_up(&mut self, client: usize) {
        let reader = &self.readers[client];
        if reader.read / BLOCK < reader.cached { self.answer(client) } else { self.fetch(client, false) }
    }

    /// Lets the server's process read a block from the disk and wait for it.
    fn fetch(&mut self, client: usize, ahead: bool) {
        let reader = &self.readers[client];
        let start = reader.file + reader.cached * BLOCK;
        let brought = self.disk.read(start, BLOCK, self.now + self.entry());
        self.events.push(instant(brought), Event::Brought { client, ahead });
    }

    fn disk_read_done(&mut self, client: usize, ahead: bool) {
        let takes = if self.server.disk_copy { BLOCK as f64 * self.machine.copy } else { 0.0 };
        self.work(0, false, takes, Work::Copied { client, ahead });
    }

    fn answer(&mut self, client: usize) {
        let machine = self.machine;
        let copy = if self.server.network_copy { machine.message as f64 * machine.copy } else { 0.0 };
        let message = match (self.local, self.server.streams) {
            (true, _) => machine.pipe,
            (false, true) => machine.stream,
            (false, false) => 0.0,
        };
        let takes = self.entry() + copy + message;
        self.work(0, false, takes, Work::Answered(client));
    }

    fn make_packet(&mut self, client: usize, left: u64) {
        let takes = if self.server.streams { self.machine.packet } else { self.machine.minimal };
        self.work(0, false, takes, Work::Made { client, left: left - 1 });
    }

    /// Runs after the answer: the first access to a block reads the next one.
    fn read_ahead(&mut self, client: usize) {
        // The answer is still on its way, so the client's position is that of its request.
        let reader = &self.readers[client];
        let next = reader.read / BLOCK + 1;
        if next == reader.cached && next < self.machine.procedure[0] {
            self.fetch(client, true)
        } else {
            self.end_request()
        }
    }

    /// The client's kernel has the whole answer.
    fn take_answer(&mut self, client: usize) {
        let machine = self.machine;
        let message = if self.local { 0.0 } else { machine.stream };
        let takes = message + machine.message as f64 * machine.copy;
        let processor = self.processor_of(client);
        self.work(processor, false, takes, Work::Read(client));
    }

    /// The client's process has its data, or starts, and makes the next request.
    fn next_read(&mut self, client: usize) {
        let now = self.now;
        let machine = self.machine;
        let [blocks, passes, delayed] = machine.procedure;
        let reader = &mut self.readers[client];
        match reader.started {
            None => reader.started = Some(now),
            Some(_) => reader.read += machine.message,
        }
        let asked = reader.read > 0 && reader.read.is_multiple_of(BLOCK);
        if asked && (reader.delays.len() as u64) < delayed {
            reader.delays.push(now - reader.block_began);
        }
        if reader.read == blocks * BLOCK {
            // The cache is empty at the start of each pass.
            (reader.read, reader.cached, reader.passes) = (0, 0, reader.passes + 1);
        }
        if reader.passes == passes {
            reader.ended = Some(now);
            return;
        }
        if reader.read.is_multiple_of(BLOCK) {
            reader.block_began = now;
        }
        let message = if self.local { machine.pipe } else { machine.stream };
        let processor = self.processor_of(client);
        self.work(processor, false, machine.entry + message, Work::Asked(client));
    }
}

fn instant(nanoseconds: f64) -> Instant {
    Instant::from_picoseconds((nanoseconds * 1e3).round() as u128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nava::machine::{Other, disk};
    use crate::parameters::Parameters;

    /// A short procedure on the machine of the parameters, changed.
    fn served(server: Server, clients: usize, change: impl Fn(&mut Machine)) -> Measured {
        let parameters = Parameters::parse(include_str!("../../parameters/nava.toml")).expect("checked");
        let mut machine = Machine::new(&parameters).expect("all there");
        machine.procedure = [12, 2, 5];
        change(&mut machine);
        let mut rng = Rng::new(7);
        let disk = disk(&parameters, Other::default(), rng.part()).expect("all there");
        Room::new(&machine, server, clients, disk, &mut rng).run()
    }

    #[test]
    fn two_clients_share_the_wire() {
        for server in [Server::UMFS, Server::DMAFS, Server::MFS] {
            let one = served(server, 1, |_| ());
            let two = served(server, 2, |_| ());
            assert!(one.bandwidth < 9.3 && 2.0 * two.bandwidth < 9.3, "{server:?}: {one:?} {two:?}");
            assert!(two.bandwidth < one.bandwidth && two.delay > one.delay, "{server:?}: {one:?} {two:?}");
        }
    }

    #[test]
    fn user_mode_dma_saves_only_the_copy() {
        for clients in [0, 1, 2] {
            let umfs = served(Server::UMFS, clients, |_| ());
            let dmafs = served(Server::DMAFS, clients, |_| ());
            assert!((umfs.processor - dmafs.processor - 4.4).abs() < 0.01, "{clients}: {umfs:?} {dmafs:?}");
            let free = |machine: &mut Machine| machine.copy = 0.0;
            assert_eq!(served(Server::UMFS, clients, free), served(Server::DMAFS, clients, free));
        }
    }

    #[test]
    fn processor_time_is_the_work_of_messages() {
        let machine_only = served(Server::MFS, 1, |machine| machine.minimal = 1e6);
        // Eight requests and 48 packets for a block, at a millisecond each.
        assert!((machine_only.processor - 56.0).abs() < 1e-6, "{machine_only:?}");
    }
}
