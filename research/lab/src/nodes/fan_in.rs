//! Many readers of one node's frames: accesses, the owner's thread, its slots and service, the wire, time limits.
//!
//! ```text
//! reader: ahead accesses ─ latency ─► inbox ─ turn: receive, start, poll ─► slots ─► service (one worker)
//!    ▲ late? cut off, connects again                       └─ copies ─► wire, in order ─ latency ─┐
//!    └──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Not modelled: pings, what readers do to each other, and bytes of short messages. A service refuses a revoked access without a slot here.
//! The times are nanoseconds.

use std::collections::{BTreeSet, VecDeque};

use memferry_clock::{EventQueue, Instant};

use crate::parameters::{Parameters, ParametersError};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) chunk: u64,
    /// Accesses of one request that are under way, and of one side of a link.
    pub(super) ahead: usize,
    pub(super) window: usize,
    pub(super) slots: usize,
    /// Frames that are given back in a turn.
    drops: usize,
    /// What an access may take.
    pub(super) timeout: u64,
    /// Pause before a reader connects again, with the handshake.
    reconnect: u64,
    /// Each turn begins with the first peer, in the order of names, as it did before this study. Now it begins behind the peer that was
    /// served last.
    pub(super) by_name: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) answer: u64,
    message: u64,
    /// A look at one peer, in loops over all of them. The link has none for a message, but had before this study.
    pub(super) look: u64,
    start: u64,
    pub(super) call: u64,
    service: u64,
    /// A chunk on the wire.
    pub(super) wire: u64,
    latency: u64,
}

impl Rules {
    pub(super) fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let count = |name| parameters.get(name).map(|value| value as usize);
        let time = |name| parameters.get(name).map(|milliseconds| (milliseconds * 1e6) as u64);
        Ok(Self {
            chunk: parameters.get("chunk")? as u64,
            ahead: count("ahead")?,
            window: count("window")?,
            slots: count("slots")?,
            drops: count("drops")?,
            timeout: time("timeout")?,
            reconnect: time("first-pause")? + time("handshake")?,
            by_name: false,
        })
    }
}

impl Costs {
    /// The costs with a wire of so many Gbit/s.
    pub(super) fn new(parameters: &Parameters, gigabits: f64) -> Result<Self, ParametersError> {
        let time = |name| parameters.get(name).map(|value| value as u64);
        let chunk = parameters.get("chunk")?;
        Ok(Self {
            answer: time("answer")? + time("transport")?,
            message: time("message")?,
            look: 0,
            start: time("start")?,
            call: (parameters.get("call")? * 1e3) as u64,
            service: time("service-request")? + (chunk / parameters.get("service-rate")?) as u64,
            wire: (chunk * 8.0 / gigabits) as u64,
            latency: (parameters.get("latency")? * 1e3) as u64,
        })
    }
}

/// What the readers want.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) readers: usize,
    /// Requests of each reader at a time.
    pub(super) requests: usize,
    /// Chunks of the frame.
    pub(super) chunks: u64,
    /// When the frame's grants are revoked. Readers then go on for ever, with a new grant; the last one reads another frame.
    pub(super) revoked: Option<u64>,
    /// Virtual time after which the run ends.
    pub(super) until: u64,
    pub(super) seed: u64,
}

/// What a run showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Readers that lost the owner at least once.
    pub(super) cut_off: usize,
    /// Readers that have the whole frame.
    pub(super) finished: usize,
    /// When the last of them had, or the end.
    pub(super) took: u64,
    /// Chunks that came while their request was wanted.
    pub(super) useful: u64,
    /// Most bytes of answers that waited for the wire.
    pub(super) memory: u64,
    /// The longest time of an access, and of one of the last reader's after the revocation.
    pub(super) longest: u64,
    pub(super) innocent: u64,
    /// After the revocation: its answer, when the last reader knew, had a new grant, and when all was given back.
    pub(super) answered: u64,
    pub(super) known: u64,
    pub(super) renewed: u64,
    pub(super) given_back: u64,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Attach,
    /// With the serial of its grant: an earlier one may be revoked.
    Access {
        grant: u32,
    },
    Detach,
    Down,
}

#[derive(Clone, Copy, Debug)]
enum Answered {
    Attached,
    Bytes,
    Revoked,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    ToOwner {
        reader: usize,
        connection: u32,
        asked: Asked,
    },
    ToReader {
        reader: usize,
        connection: u32,
        answered: Answered,
    },
    Turn,
    /// The first answer has left.
    Sent,
    /// The oldest access of a reader may be late.
    Late {
        reader: usize,
        connection: u32,
    },
    Connect {
        reader: usize,
    },
    Revoke,
}

#[derive(Clone, Debug, Default)]
struct Reader {
    connection: u32,
    is_connected: bool,
    is_attached: bool,
    grant: u32,
    /// When each access under way was sent.
    under_way: VecDeque<u64>,
    /// Chunks that are asked for, and that came.
    asked: u64,
    came: u64,
    was_cut_off: bool,
    is_done: bool,
    has_timer: bool,
    /// It knows of the revocation, and it has a new grant.
    knows: bool,
    is_renewed: bool,
}

/// What the owner knows of a reader.
#[derive(Clone, Debug, Default)]
struct Served {
    connection: u32,
    waiting: VecDeque<Asked>,
    /// Answers of this connection that wait for the wire.
    unsent: u64,
}

/// An access that the service does.
#[derive(Clone, Copy, Debug)]
struct Job {
    reader: usize,
    connection: u32,
    ends: u64,
    is_refused: bool,
}

struct Run {
    rules: Rules,
    costs: Costs,
    load: Load,
    events: EventQueue<Event>,
    now: u64,
    readers: Vec<Reader>,
    served: Vec<Served>,
    inbox: VecDeque<(usize, u32, Asked)>,
    /// Readers with something that waits, and how many of them want to attach next.
    ready: BTreeSet<usize>,
    attaching: usize,
    /// The reader that was served last.
    last: usize,
    jobs: VecDeque<Job>,
    free: usize,
    unused: usize,
    revoked: bool,
    thread_free: u64,
    has_turn: bool,
    worker_free: u64,
    /// Answers that wait for the wire, the first one on it: reader, connection, and when it was handed over.
    wire: VecDeque<(usize, u32, u64)>,
    waiting_bytes: u64,
    found: Found,
    unfinished: usize,
    renewing: usize,
}

pub(super) fn run(rules: Rules, costs: Costs, load: Load) -> Found {
    Run::new(rules, costs, load).run()
}

impl Run {
    fn new(rules: Rules, costs: Costs, load: Load) -> Self {
        let mut run = Self {
            rules,
            costs,
            load,
            events: EventQueue::new(),
            now: 0,
            readers: vec![Reader::default(); load.readers],
            served: vec![Served::default(); load.readers],
            inbox: VecDeque::new(),
            ready: BTreeSet::new(),
            attaching: 0,
            last: 0,
            jobs: VecDeque::new(),
            free: rules.slots,
            unused: 0,
            revoked: false,
            thread_free: 0,
            has_turn: false,
            worker_free: 0,
            wire: VecDeque::new(),
            waiting_bytes: 0,
            found: Found::default(),
            unfinished: load.readers,
            renewing: 0,
        };
        // Within a millisecond, in an order that the seed draws.
        let mut rng = Rng::new(load.seed);
        for reader in 0..load.readers {
            run.at(rng.below(1_000_000), Event::Connect { reader });
        }
        if let Some(at) = load.revoked {
            run.at(at, Event::Revoke);
        }
        run
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.push(Instant::from_nanoseconds(time), event);
    }

    fn run(mut self) -> Found {
        while let Some((now, event)) = self.events.pop() {
            self.now = now.nanoseconds();
            if self.now >= self.load.until || self.is_over() {
                break;
            }
            match event {
                Event::ToOwner { reader, connection, asked } => {
                    self.inbox.push_back((reader, connection, asked));
                    self.need_turn(self.now);
                }
                Event::ToReader { reader, connection, answered } => {
                    self.answered(reader, connection, answered)
                }
                Event::Turn => self.turn(),
                Event::Sent => self.sent(),
                Event::Late { reader, connection } => self.check_late(reader, connection),
                Event::Connect { reader } => self.connect(reader),
                Event::Revoke => self.revoke(),
            }
        }
        if self.unfinished > 0 {
            self.found.took = self.load.until;
        }
        self.found.cut_off = self.readers.iter().filter(|reader| reader.was_cut_off).count();
        self.found.finished = self.load.readers - self.unfinished;
        self.found
    }

    fn is_over(&self) -> bool {
        match self.load.revoked {
            None => self.unfinished == 0,
            Some(_) => self.revoked && self.renewing == 0 && self.unused == 0 && self.found.given_back > 0,
        }
    }

    /// The last reader of a load with a revocation reads another frame.
    fn is_innocent(&self, reader: usize) -> bool {
        self.load.revoked.is_some() && reader + 1 == self.load.readers
    }

    fn send(&mut self, reader: usize, asked: Asked) {
        let connection = self.readers[reader].connection;
        self.at(self.now + self.costs.latency, Event::ToOwner { reader, connection, asked });
    }

    fn connect(&mut self, reader: usize) {
        self.readers[reader].is_connected = true;
        self.send(reader, Asked::Attach);
        self.readers[reader].under_way.push_back(self.now);
        self.watch(reader);
    }

    /// Asks for as many chunks as may be under way.
    fn ask(&mut self, reader: usize) {
        let most = self.rules.window.min(self.rules.ahead * self.load.requests);
        let endless = self.load.revoked.is_some();
        while self.readers[reader].is_attached
            && self.readers[reader].under_way.len() < most
            && (endless || self.readers[reader].asked < self.load.chunks * self.load.requests as u64)
        {
            let grant = self.readers[reader].grant;
            self.send(reader, Asked::Access { grant });
            let one = &mut self.readers[reader];
            one.under_way.push_back(self.now);
            one.asked += 1;
        }
        self.watch(reader);
    }

    fn watch(&mut self, reader: usize) {
        let one = &mut self.readers[reader];
        if one.has_timer {
            return;
        }
        let Some(since) = one.under_way.front().copied() else { return };
        one.has_timer = true;
        let connection = one.connection;
        self.at(since + self.rules.timeout + 1, Event::Late { reader, connection });
    }

    fn check_late(&mut self, reader: usize, connection: u32) {
        if self.readers[reader].connection != connection {
            return;
        }
        self.readers[reader].has_timer = false;
        let is_late =
            self.readers[reader].under_way.front().is_some_and(|since| since + self.rules.timeout < self.now);
        if is_late { self.cut_off(reader) } else { self.watch(reader) }
    }

    /// The reader takes the owner for lost: its request fails, and it asks again from the beginning on a new connection.
    fn cut_off(&mut self, reader: usize) {
        self.send(reader, Asked::Down);
        let one = &mut self.readers[reader];
        *one = Reader {
            connection: one.connection + 1,
            grant: one.grant,
            knows: one.knows,
            is_renewed: one.is_renewed,
            was_cut_off: true,
            ..Reader::default()
        };
        self.at(self.now + self.rules.reconnect, Event::Connect { reader });
    }

    fn answered(&mut self, reader: usize, connection: u32, answered: Answered) {
        let is_innocent = self.is_innocent(reader);
        let one = &mut self.readers[reader];
        if one.connection != connection {
            return;
        }
        let since = one.under_way.pop_front().unwrap_or(self.now);
        self.found.longest = self.found.longest.max(self.now - since);
        if is_innocent && self.revoked {
            self.found.innocent = self.found.innocent.max(self.now - since);
        }
        match answered {
            Answered::Attached => {
                one.is_attached = true;
                if one.knows && !std::mem::replace(&mut one.is_renewed, true) {
                    self.renewing -= 1;
                    self.found.renewed = self.since_revocation();
                }
                self.ask(reader);
            }
            Answered::Bytes => {
                one.came += 1;
                self.found.useful += 1;
                let whole = self.load.chunks * self.load.requests as u64;
                if self.load.revoked.is_none() && one.came == whole && !one.is_done {
                    one.is_done = true;
                    self.unfinished -= 1;
                    self.found.took = self.now;
                }
                self.ask(reader);
            }
            Answered::Revoked => {
                if !one.knows {
                    one.knows = true;
                    one.is_attached = false;
                    one.grant += 1;
                    self.found.known = self.since_revocation();
                    self.send(reader, Asked::Detach);
                    self.send(reader, Asked::Attach);
                    self.readers[reader].under_way.push_back(self.now);
                }
            }
        }
    }

    fn since_revocation(&self) -> u64 {
        self.now - self.load.revoked.unwrap_or(self.now)
    }

    fn need_turn(&mut self, from: u64) {
        if !self.has_turn {
            self.has_turn = true;
            let time = self.thread_free.max(from).max(self.now);
            self.at(time, Event::Turn);
        }
    }

    /// One turn of the link's thread, which takes `spent` from now.
    fn turn(&mut self) {
        self.has_turn = false;
        let peers = self.load.readers as u64;
        let mut spent = self.receive();
        spent += self.start(spent);
        let drops = self.unused.min(self.rules.drops);
        self.unused -= drops;
        spent += drops as u64 * self.costs.call;
        if drops > 0 && self.unused == 0 && self.revoked {
            self.found.given_back = self.since_revocation() + spent;
        }
        // Answers of what the service has done meanwhile.
        while let Some(job) = self.jobs.front().copied().filter(|job| job.ends <= self.now + spent) {
            self.jobs.pop_front();
            self.free += 1;
            // Twice: for the connection's requests, and for its name.
            spent += self.costs.message + self.costs.look * peers;
            if self.served[job.reader].connection != job.connection {
                continue;
            }
            if job.is_refused {
                self.reply(job.reader, job.connection, self.now + spent, Answered::Revoked);
                continue;
            }
            spent += self.costs.answer;
            self.transmit(job.reader, job.connection, self.now + spent);
        }
        self.thread_free = self.now + spent;
        if !self.inbox.is_empty() || self.unused > 0 || self.attaching > 0 || self.has_startable() {
            self.need_turn(self.thread_free);
        } else if let Some(job) = self.jobs.front() {
            self.need_turn(job.ends);
        }
    }

    fn has_startable(&self) -> bool {
        self.free > 0 && !self.ready.is_empty()
    }

    /// Takes all messages. Returns the time of that.
    fn receive(&mut self) -> u64 {
        // It looks for the connection among all, half of them on average.
        let each = self.costs.message + self.costs.look * self.load.readers as u64 / 2;
        let mut spent = 0;
        for (reader, connection, asked) in std::mem::take(&mut self.inbox) {
            spent += each;
            let was_attaching = self.is_attaching(reader);
            let served = &mut self.served[reader];
            match asked {
                Asked::Down => {
                    // Its answers are dropped with its endpoint.
                    self.waiting_bytes -= self.rules.chunk * std::mem::take(&mut served.unsent);
                    served.waiting.clear();
                    served.connection = connection + 1;
                    self.unused += 1;
                }
                Asked::Detach => self.unused += 1,
                Asked::Attach | Asked::Access { .. } => {
                    served.connection = served.connection.max(connection);
                    if served.connection == connection {
                        served.waiting.push_back(asked);
                    }
                }
            }
            self.note(reader, was_attaching);
        }
        spent
    }

    fn is_attaching(&self, reader: usize) -> bool {
        matches!(self.served[reader].waiting.front(), Some(Asked::Attach))
    }

    /// Updates what is known of a reader whose queue changed.
    fn note(&mut self, reader: usize, was_attaching: bool) {
        self.attaching += usize::from(self.is_attaching(reader));
        self.attaching -= usize::from(was_attaching);
        if self.served[reader].waiting.is_empty() {
            self.ready.remove(&reader);
        } else {
            self.ready.insert(reader);
        }
    }

    /// Starts what waits, one of each peer in a pass. Returns the time of that.
    fn start(&mut self, begun: u64) -> u64 {
        let mut spent = 0;
        let mut attached = BTreeSet::new();
        let mut any = true;
        while std::mem::take(&mut any) {
            spent += self.costs.look * self.load.readers as u64;
            let first = if self.rules.by_name { 0 } else { self.last + 1 };
            let order: Vec<usize> =
                self.ready.range(first..).chain(self.ready.range(..first)).copied().collect();
            for reader in order {
                if self.free == 0 && self.attaching == 0 {
                    break;
                }
                let was_attaching = self.is_attaching(reader);
                if was_attaching && !attached.insert(reader) || !was_attaching && self.free == 0 {
                    continue;
                }
                any = true;
                let Some(asked) = self.served[reader].waiting.pop_front() else { continue };
                self.note(reader, was_attaching);
                spent += self.begin(reader, asked, self.now + begun + spent);
            }
        }
        spent
    }

    /// Begins one thing of a reader. Returns the time of that.
    fn begin(&mut self, reader: usize, asked: Asked, time: u64) -> u64 {
        let connection = self.served[reader].connection;
        match asked {
            Asked::Attach => {
                self.reply(reader, connection, time + self.costs.call, Answered::Attached);
                self.costs.call
            }
            Asked::Access { grant: 0 } if self.revoked && !self.is_innocent(reader) => {
                self.reply(reader, connection, time + self.costs.start, Answered::Revoked);
                self.costs.start
            }
            Asked::Access { .. } => {
                self.free -= 1;
                self.last = reader;
                self.worker_free = self.worker_free.max(time) + self.costs.service;
                let ends = self.worker_free;
                self.jobs.push_back(Job { reader, connection, ends, is_refused: false });
                self.costs.start
            }
            Asked::Detach | Asked::Down => 0,
        }
    }

    fn reply(&mut self, reader: usize, connection: u32, time: u64, answered: Answered) {
        self.at(time + self.costs.latency, Event::ToReader { reader, connection, answered });
    }

    /// Sends bytes behind all that wait for the wire.
    fn transmit(&mut self, reader: usize, connection: u32, time: u64) {
        self.waiting_bytes += self.rules.chunk;
        self.served[reader].unsent += 1;
        self.found.memory = self.found.memory.max(self.waiting_bytes);
        self.wire.push_back((reader, connection, time));
        if self.wire.len() == 1 {
            self.at(time + self.costs.wire, Event::Sent);
        }
    }

    /// The first answer has left; the next one of a connection that still is goes on the wire.
    fn sent(&mut self) {
        if let Some((reader, connection, _)) = self.wire.pop_front()
            && self.served[reader].connection == connection
        {
            self.served[reader].unsent -= 1;
            self.waiting_bytes -= self.rules.chunk;
            self.reply(reader, connection, self.now, Answered::Bytes);
        }
        while let Some((reader, connection, time)) = self.wire.front().copied() {
            if self.served[reader].connection == connection {
                let begins = self.now.max(time);
                return self.at(begins + self.costs.wire, Event::Sent);
            }
            self.wire.pop_front();
        }
    }

    /// Revokes the grants of all readers but the last: the service refuses what it has not begun, and ends what it has.
    fn revoke(&mut self) {
        self.revoked = true;
        self.renewing = self.load.readers.saturating_sub(1);
        let under_way = self.jobs.iter().find(|job| job.ends > self.now).map_or(self.now, |job| job.ends);
        self.found.answered = under_way - self.now + self.costs.call;
        let now = self.now;
        let innocent = self.load.readers - 1;
        for job in self.jobs.iter_mut().filter(|job| job.ends > under_way && job.reader != innocent) {
            (job.ends, job.is_refused) = (now, true);
        }
        // What is left of the innocent reader comes after them; the order of the ends stays.
        self.jobs.make_contiguous().sort_by_key(|job| job.ends);
    }
}

#[cfg(test)]
mod tests;
