//! Random interleavings of all events on a path: each request completes exactly once, and no claim or queue leaks.
//!
//! ```text
//! Step (open, submit, cancel, close, revoke, run, settle, take, consume, fail, reset) ─► World: rings as the clients see them
//! ```

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use memferry_transfer::Task;

const CAPACITY: u32 = 4;
const CHANNELS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Open { session: usize },
    Submit { queue: Index, bytes: u64, deadline_ps: Option<u128>, waits: bool, foreign: bool, order: u8 },
    Refuse { queue: Index, linked: bool },
    Stop { queue: Index },
    GiveBack { queue: Index },
    Cancel { tag: Index },
    Close { queue: Index },
    Revoke { session: usize },
    Doorbell,
    Run,
    Settle,
    Take,
    Consume { queue: Index },
    Advance { picoseconds: u128 },
    Fail { channel: u32, fault: Fault },
    Reset { channel: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<Index>;
    let fault = prop_oneof![
        Just(Fault::Hangs),
        Just(Fault::Fails { failure: Failure::ChannelFaulted, after_bytes: 3 }),
        Just(Fault::Fails { failure: Failure::MemoryFault, after_bytes: 3 }),
    ];
    let submit =
        (any(), 0..60_u64, proptest::option::of(0..4000_u128), proptest::bool::ANY, 0..10_u8, 0..12_u8);
    prop_oneof![
        2 => (0..3_usize).prop_map(|session| Step::Open { session }),
        16 => submit.prop_map(|(queue, bytes, deadline_ps, waits, foreign, order)| {
            Step::Submit { queue, bytes, deadline_ps, waits, foreign: foreign == 0, order }
        }),
        1 => (any(), proptest::bool::ANY).prop_map(|(queue, linked)| Step::Refuse { queue, linked }),
        1 => any().prop_map(|queue| Step::Stop { queue }),
        1 => any().prop_map(|queue| Step::GiveBack { queue }),
        4 => any().prop_map(|tag| Step::Cancel { tag }),
        2 => any().prop_map(|queue| Step::Close { queue }),
        1 => (0..3_usize).prop_map(|session| Step::Revoke { session }),
        6 => Just(Step::Doorbell),
        8 => Just(Step::Run),
        8 => Just(Step::Settle),
        6 => Just(Step::Take),
        4 => any().prop_map(|queue| Step::Consume { queue }),
        8 => (0..1500_u128).prop_map(|picoseconds| Step::Advance { picoseconds }),
        1 => (0..CHANNELS, fault).prop_map(|(channel, fault)| Step::Fail { channel, fault }),
        2 => (0..CHANNELS).prop_map(|channel| Step::Reset { channel }),
    ]
}

/// A queue as its client sees it.
struct Ring {
    key: QueueKey,
    session: usize,
    open: bool,
    unread: u32,
}

struct World {
    bed: Bed,
    rings: Vec<Ring>,
    /// Each request's ring, and how often it was completed.
    requests: Vec<(usize, u32)>,
    frames: [Handle; 3],
    revocations: usize,
}

const SESSIONS: [SessionId; 3] = [A, B, C];

impl World {
    fn new(policy: PolicyKind) -> Self {
        let mut bed = Bed::over(FakeEngine::new(CHANNELS, TIMING), policy.build(), 3);
        let frames = SESSIONS.map(|session| bed.frame(session, 60).0);
        Self { bed, rings: Vec::new(), requests: Vec::new(), frames, revocations: 0 }
    }

    fn do_step(&mut self, step: Step) {
        let now = self.bed.clock.now();
        match step {
            Step::Open { session } => self.open(session),
            Step::Submit { queue, bytes, deadline_ps, waits, foreign, order } => {
                let Some((ring, reservation, tag)) = self.reserve(queue) else { return };
                let owner = (self.rings[ring].session + usize::from(foreign)) % 3;
                let mut request = fill(self.frames[owner], bytes);
                request.terms.deadline = deadline_ps.map(|deadline| now.after_picoseconds(deadline));
                request = if waits { request } else { request.refuse_when_busy() };
                if order == 4 {
                    request.task = Task::Repeat { rounds: bytes as u32 % 4 };
                }
                request.terms.linked = matches!(order, 1 | 3 | 4);
                request.terms.fenced = matches!(order, 2 | 3);
                self.bed.path.submit(now, reservation, tag, &request, &mut self.bed.capabilities);
            }
            Step::Refuse { queue, linked } => {
                let Some((_, reservation, tag)) = self.reserve(queue) else { return };
                self.bed.path.refuse(reservation, tag, linked, Failure::Unsupported);
            }
            Step::GiveBack { queue } => {
                let Some((_, reservation, _)) = self.reserve(queue) else { return };
                self.requests.pop();
                self.bed.path.give_back(reservation);
            }
            Step::Cancel { tag } => {
                if !self.requests.is_empty() {
                    let tag = tag.index(self.requests.len());
                    let key = self.rings[self.requests[tag].0].key;
                    self.bed.path.cancel(key, tag as u64, &mut self.bed.capabilities);
                }
            }
            Step::Stop { queue } => {
                if !self.rings.is_empty() {
                    let key = self.rings[queue.index(self.rings.len())].key;
                    self.bed.path.stop_loops(key, |_| true);
                }
            }
            Step::Close { queue } => self.close(queue),
            Step::Revoke { session } => self.revoke(session),
            Step::Doorbell => self.bed.path.ring_doorbell(),
            Step::Run => _ = self.bed.path.run(now),
            Step::Settle => _ = self.bed.path.settle(now, &mut self.bed.capabilities),
            Step::Take => self.receive(),
            Step::Consume { queue } => {
                if !self.rings.is_empty() {
                    let ring = queue.index(self.rings.len());
                    self.rings[ring].unread = 0;
                }
            }
            Step::Advance { picoseconds } => self.bed.clock.advance_to(now.after_picoseconds(picoseconds)),
            Step::Fail { channel, fault } => self.bed.path.engine_mut().inject(channel, fault),
            Step::Reset { channel } => self.reset(channel),
        }
    }

    fn open(&mut self, session: usize) {
        let key = self.bed.path.open_queue(SESSIONS[session], 0);
        let taken = self.rings.iter().any(|ring| ring.open && ring.key == key);
        assert!(!taken, "{key:?} was assigned while its queue is open");
        self.rings.push(Ring { key, session, open: true, unread: 0 });
    }

    fn close(&mut self, queue: Index) {
        if !self.rings.is_empty() {
            let ring = queue.index(self.rings.len());
            if std::mem::replace(&mut self.rings[ring].open, false) {
                self.bed.path.close_queue(self.rings[ring].key, &mut self.bed.capabilities);
            }
        }
    }

    /// Revokes a session's frame and registers another for later requests.
    fn revoke(&mut self, session: usize) {
        let capabilities = &mut self.bed.capabilities;
        capabilities.revoke(SESSIONS[session], self.frames[session]).unwrap();
        self.bed.path.cancel_revoked(capabilities);
        self.revocations += 1;
        self.frames[session] = self.bed.frame(SESSIONS[session], 60).0;
    }

    fn reset(&mut self, channel: u32) {
        self.bed.path.engine_mut().reset(channel);
        self.bed.path.channel_was_reset(channel, &mut self.bed.capabilities);
    }

    /// Reserves a completion of an open queue, if its ring has room.
    fn reserve(&mut self, queue: Index) -> Option<(usize, crate::Reservation, u64)> {
        let open: Vec<_> = (0..self.rings.len()).filter(|ring| self.rings[*ring].open).collect();
        if open.is_empty() {
            return None;
        }
        let ring = *queue.get(&open);
        let reservation = self.bed.path.reserve(self.rings[ring].key, CAPACITY - self.rings[ring].unread)?;
        self.requests.push((ring, 0));
        Some((ring, reservation, self.requests.len() as u64 - 1))
    }

    fn receive(&mut self) {
        let delivered: Vec<_> = self.bed.path.take_completions().collect();
        for QueueCompletion { queue, completion, .. } in delivered {
            let (ring, completions) = &mut self.requests[completion.tag as usize];
            *completions += 1;
            let ring = &mut self.rings[*ring];
            assert!(
                ring.open && ring.key == queue,
                "{completion:?} was delivered to {queue:?}, not to its own queue"
            );
            ring.unread += 1;
            assert!(ring.unread <= CAPACITY, "a ring overflowed");
            assert!(*completions == 1, "{completion:?} was delivered twice");
        }
    }

    /// Resets all channels, lets everything complete, closes everything, and checks that nothing is left.
    fn finish(mut self) {
        for _ in 0..2 {
            for channel in 0..CHANNELS {
                self.bed.path.engine_mut().reset(channel);
                self.run_out();
                self.bed.path.channel_was_reset(channel, &mut self.bed.capabilities);
            }
        }
        self.run_out();
        // Endless loops continue, and a loop still waits for members that were never submitted: cancel them.
        for ring in self.rings.iter().filter(|ring| ring.open) {
            self.bed.path.cancel_where(ring.key, |_| true, &mut self.bed.capabilities);
        }
        self.run_out();
        let mut owed = BTreeMap::new();
        for (tag, (ring, completions)) in self.requests.iter().enumerate() {
            if self.rings[*ring].open && *completions != 1 {
                owed.insert(tag, completions);
            }
        }
        assert!(owed.is_empty() && self.bed.path.waiting() == 0, "not completed exactly once: {owed:?}");
        for ring in self.rings.iter_mut().filter(|ring| ring.open) {
            self.bed.path.close_queue(ring.key, &mut self.bed.capabilities);
        }
        assert!(self.bed.path.idle());
        assert!(self.rings.iter().all(|ring| self.bed.path.queue_gone(ring.key)));
        for session in SESSIONS {
            self.bed.capabilities.close(session);
        }
        let over = self.bed.capabilities.take_finished().len();
        assert_eq!(over, self.revocations + SESSIONS.len());
        assert_eq!(self.bed.capabilities.take_dropped().len(), self.revocations + SESSIONS.len());
    }

    fn run_out(&mut self) {
        for _ in 0..100 {
            let now = self.bed.clock.now();
            self.bed.path.ring_doorbell();
            self.bed.path.run(now);
            self.bed.path.settle(now, &mut self.bed.capabilities);
            self.receive();
            self.rings.iter_mut().for_each(|ring| ring.unread = 0);
            self.bed.clock.advance_to(now.after_picoseconds(2000));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_completes_exactly_once(
        exclusive in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..250),
    ) {
        let mut world = World::new(if exclusive { PolicyKind::Exclusive } else { PolicyKind::Shared });
        for step in steps {
            world.do_step(step);
        }
        world.finish();
    }
}
