//! A thousand random transfers of three sessions in virtual time: runs repeat exactly, and the oracle gets the same memory.
//!
//! ```text
//! seed ─► Events (submit, cancel, grant anew, fail, repair) ─► Bed ─► log ─┬─ a second run: byte-identical
//!                                                                        └─ replayed through the oracle: same memory
//! ```
//!
//! The engine moves bytes in the order in which it reports completions, so replaying the log reproduces the memory exactly,
//! including requests that ended early.

use std::collections::BTreeMap;

use memferry_clock::EventQueue;
use memferry_conformance::oracle::{self, Place};
use memferry_transfer::{Color24, Copy2d, Count2d, Fill2d, GrantToken, PixelSize, Plane};

use super::*;

const TRANSFERS: u64 = 1000;
const SESSIONS: [SessionId; 3] = [A, B, C];
const FRAME_BYTES: u64 = 512;
/// Short enough that the channels are busy most of the time.
const SPAN_PS: u64 = 300_000;

struct Noise(fastrand::Rng);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())]
    }
}

enum Event {
    Submit {
        tag: u64,
    },
    Cancel {
        queue: QueueKey,
        tag: u64,
    },
    /// A grant is revoked, and another range granted.
    GrantAnew {
        to: usize,
    },
    Fail {
        channel: u32,
        failure: Failure,
    },
    Repair {
        channel: u32,
    },
}

/// A capability and the bytes it covers.
#[derive(Clone, Copy)]
struct Named {
    handle: Handle,
    place: Place,
}

struct Simulation {
    noise: Noise,
    bed: Bed,
    events: EventQueue<Event>,
    queues: Vec<(usize, QueueKey)>,
    memories: Vec<SimMemory>,
    /// Capabilities of each session, including revoked ones.
    held: [Vec<Named>; 3],
    tokens: [Option<GrantToken>; 3],
    /// The submitted operations over places in memories, by tag.
    operations: BTreeMap<u64, Operation<Place>>,
}

/// The results of a run, to compare with those of another.
#[derive(PartialEq, Debug)]
struct Traces {
    log: String,
    contents: Vec<Vec<u8>>,
}

impl Simulation {
    fn new(seed: u64, policy: PolicyKind) -> Self {
        let mut simulation = Self {
            noise: Noise(fastrand::Rng::with_seed(seed)),
            bed: Bed::over(FakeEngine::new(4, TIMING), policy.build(), 5),
            events: EventQueue::new(),
            queues: Vec::new(),
            memories: Vec::new(),
            held: Default::default(),
            tokens: [None; 3],
            operations: BTreeMap::new(),
        };
        for (index, session) in SESSIONS.into_iter().enumerate() {
            let (handle, memory) = simulation.bed.frame(session, FRAME_BYTES as usize);
            memory.write(0, &(0..FRAME_BYTES).map(|_| simulation.noise.next() as u8).collect::<Vec<_>>());
            let place = Place { memory: index, offset: 0, length: FRAME_BYTES };
            simulation.held[index].push(Named { handle, place });
            simulation.memories.push(memory);
            for _ in 0..2 {
                simulation.queues.push((index, simulation.bed.path.open_queue(session, 0)));
            }
        }
        (0..3).for_each(|to| simulation.grant_anew(to));
        simulation.plan();
        simulation
    }

    fn plan(&mut self) {
        for tag in 0..TRANSFERS {
            let when = self.noise.below(SPAN_PS);
            self.push(when, Event::Submit { tag });
        }
        for _ in 0..12 {
            let when = self.noise.below(SPAN_PS);
            let to = self.noise.below(3) as usize;
            self.push(when, Event::GrantAnew { to });
        }
        for failure in [Failure::MemoryFault, Failure::ChannelFaulted, Failure::ChannelFaulted] {
            let when = self.noise.below(SPAN_PS);
            let channel = self.noise.below(4) as u32;
            self.push(when, Event::Fail { channel, failure });
            self.push(when + 30_000, Event::Repair { channel });
        }
    }

    fn push(&mut self, picoseconds: u64, event: Event) {
        self.events.push(at(picoseconds.into()), event);
    }

    fn run(mut self) -> (Self, Traces) {
        while let Some((when, event)) = self.events.pop() {
            self.bed.run_until(when);
            self.handle(event);
        }
        self.bed.run_for(10_000_000);
        assert!(self.bed.path.idle());
        let log = self.bed.log.iter().map(|entry| format!("{entry:?}\n")).collect();
        let contents = self.memories.iter().map(SimMemory::contents).collect();
        (self, Traces { log, contents })
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Submit { tag } => self.submit(tag),
            Event::Cancel { queue, tag } => self.bed.cancel(queue, tag),
            Event::GrantAnew { to } => self.grant_anew(to),
            Event::Fail { channel, failure } => {
                self.bed.path.engine_mut().inject(channel, Fault::Fails { failure, after_bytes: 20 });
            }
            Event::Repair { channel } => {
                self.bed.path.engine_mut().reset(channel);
                self.bed.turn();
                self.bed.path.channel_was_reset(channel, &mut self.bed.capabilities);
            }
        }
    }

    /// The session before `to` grants it half of its frame.
    fn grant_anew(&mut self, to: usize) {
        let from = (to + 2) % 3;
        let capabilities = &mut self.bed.capabilities;
        if let Some(token) = self.tokens[to].take() {
            capabilities.revoke(SESSIONS[from], token.handle()).unwrap();
            self.bed.path.cancel_revoked(capabilities);
        }
        let range = (self.noise.below(FRAME_BYTES / 2), FRAME_BYTES / 2);
        let root = self.held[from][0];
        let grantee = Grantee::Session(SESSIONS[to]);
        let token = capabilities.grant(SESSIONS[from], root.handle, range, Rights::all(), grantee).unwrap();
        let handle = capabilities.accept(SESSIONS[to], 0, token).unwrap().handle;
        self.tokens[to] = Some(token);
        let place = Place { memory: from, offset: range.0, length: range.1 };
        self.held[to].push(Named { handle, place });
    }

    fn submit(&mut self, tag: u64) {
        let (session, queue) = self.noise.pick(&self.queues);
        let (operation, places) = self.operation(session);
        self.operations.insert(tag, places);
        let mut request = Request::new(operation);
        let now = self.bed.clock.now();
        if self.noise.below(6) == 0 {
            request = request.with_deadline(now.after_picoseconds(self.noise.below(6000).into()));
        }
        if self.noise.below(5) == 0 {
            request = request.refuse_when_busy();
        }
        if self.noise.below(8) == 0 {
            let when = now.after_picoseconds(self.noise.below(5000).into());
            self.events.push(when, Event::Cancel { queue, tag });
        }
        self.bed.submit(queue, tag, &request);
    }

    /// A random operation of a session: as it is submitted, and over places for the oracle.
    fn operation(&mut self, session: usize) -> (Operation<Span>, Operation<Place>) {
        let held = self.held[session].clone();
        // Usually the newest capability, sometimes an older one.
        let recent = held.len() - 1;
        let mut choose = || {
            let choices = if self.noise.below(8) == 0 { &held[..] } else { &held[recent..] };
            let named = if self.noise.below(2) == 0 { held[0] } else { self.noise.pick(choices) };
            (named, self.noise.below(named.place.length / 2))
        };
        let from = choose();
        let to = choose();
        let spans = [from, to].map(|(named, offset)| Span::new(named.handle, offset));
        let noise = &mut self.noise;
        let kind = noise.below(10);
        let operation = match kind {
            0 => Operation::Nop,
            1 if noise.below(3) == 0 => {
                Operation::Compare { first: spans[0], second: spans[1], length: noise.below(200) }
            }
            2 if noise.below(3) == 0 => {
                let length = noise.below(200);
                let seed = noise.next() as u32;
                Operation::CopyCrc { source: spans[0], destination: spans[1], length, seed }
            }
            1..=3 => Operation::Copy { source: spans[0], destination: spans[1], length: noise.below(200) },
            4..=5 => {
                let value = noise.next() as u32;
                let patterns =
                    [Pattern::Byte(value as u8), Pattern::Half(value as u16), Pattern::Word(value)];
                let pattern = noise.pick(&patterns);
                let odd = u64::from(noise.below(12) == 0);
                let length = noise.below(50) * pattern.length_bytes() + odd;
                Operation::Fill { destination: spans[1], length, pattern }
            }
            6..=7 => {
                let count = count(noise);
                let transparent = Color24::new(noise.below(200) as u32);
                let source = plane(noise, &count);
                let destination = plane(noise, &count);
                let shape = Copy2d { count, source, destination, transparent };
                Operation::Copy2d { source: spans[0], destination: spans[1], shape }
            }
            _ => {
                let count = count(noise);
                let color = Color24::new(noise.below(1 << 24) as u32).unwrap();
                let shape = Fill2d { count, destination: plane(noise, &count), color };
                Operation::Fill2d { destination: spans[1], shape }
            }
        };
        let placed = placed(&operation, &[from, to]);
        (operation, placed)
    }

    /// The memories after the oracle did the operations of the log, one after the other.
    fn replay(&self, initial: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut memories = initial;
        for (_, QueueCompletion { completion, .. }) in &self.bed.log {
            let operation = &self.operations[&completion.tag];
            if completion.outcome.result.is_ok() {
                let value = oracle::value(operation, &memories);
                let whole =
                    if let Operation::Compare { .. } = operation { value } else { operation.total_bytes() };
                assert_eq!((completion.outcome.bytes_done, completion.outcome.value), (whole, value));
            }
            if completion.outcome.engine == EngineKind::None {
                assert_eq!(completion.outcome.bytes_done, 0);
                continue;
            }
            let visited = oracle::apply_part(operation, &mut memories, completion.outcome.bytes_done);
            assert_eq!(visited, Ok(completion.outcome.bytes_done), "{completion:?}");
        }
        memories
    }
}

fn count(noise: &mut Noise) -> Count2d {
    let pixel = noise.pick(&[PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32]);
    Count2d { pixel, x_count: noise.below(9) as u32, y_count: noise.below(7) as u32 }
}

fn plane(noise: &mut Noise, count: &Count2d) -> Plane {
    let size = count.pixel.bytes() as i64;
    let row = count.pixel.bytes() as i64 * i64::from(count.x_count);
    let x_step = noise.pick(&[size, size, -size, 2 * size, 0]);
    let y_step = noise.pick(&[size, size + 3, -size, -row, row, 0]);
    Plane { start: noise.below(100), x_step, y_step }
}

/// Translates an operation from spans to places, with the spans' offsets added.
fn placed(operation: &Operation<Span>, operands: &[(Named, u64); 2]) -> Operation<Place> {
    let [from, to] = operands.map(|(named, offset)| {
        let Place { memory, offset: base, length } = named.place;
        Place { memory, offset: base + offset, length: length - offset }
    });
    // A walk may touch bytes before its span's offset, within the capability.
    let [all_of_from, all_of_to] = operands.map(|(named, _)| named.place);
    let moved = |plane: &Plane, offset| Plane { start: plane.start + offset, ..*plane };
    match *operation {
        Operation::Nop => Operation::Nop,
        Operation::Compare { length, .. } => Operation::Compare { first: from, second: to, length },
        Operation::CopyCrc { length, seed, .. } => {
            Operation::CopyCrc { source: from, destination: to, length, seed }
        }
        Operation::Copy { length, .. } => Operation::Copy { source: from, destination: to, length },
        Operation::Fill { length, pattern, .. } => Operation::Fill { destination: to, length, pattern },
        Operation::Copy2d { shape, .. } => {
            let source = moved(&shape.source, operands[0].1);
            let destination = moved(&shape.destination, operands[1].1);
            let shape = Copy2d { source, destination, ..shape };
            Operation::Copy2d { source: all_of_from, destination: all_of_to, shape }
        }
        Operation::Fill2d { shape, .. } => {
            let shape = Fill2d { destination: moved(&shape.destination, operands[1].1), ..shape };
            Operation::Fill2d { destination: all_of_to, shape }
        }
        ref other => unreachable!("the simulation submitted a {}", other.name()),
    }
}

fn check(seed: u64, policy: PolicyKind) -> BTreeMap<String, usize> {
    println!("seed {seed}, policy {}", policy.name());
    let (simulation, traces) = Simulation::new(seed, policy).run();
    let (_, again) = Simulation::new(seed, policy).run();
    assert_eq!(traces, again);
    let initial = Simulation::new(seed, policy).memories.iter().map(SimMemory::contents).collect();
    assert_eq!(simulation.replay(initial), traces.contents);

    let mut tags: Vec<_> = simulation.bed.outcomes().into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..TRANSFERS).collect::<Vec<_>>());
    let mut seen = BTreeMap::new();
    for (_, outcome) in simulation.bed.outcomes() {
        let text = format!("{outcome:?}");
        let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
        *seen.entry(name).or_default() += 1;
    }
    seen
}

#[test]
fn a_thousand_transfers_repeat_and_match_oracle() {
    for policy in PolicyKind::ALL {
        let mut seen = BTreeMap::new();
        for seed in 1..=6 {
            for (outcome, times) in check(seed, policy) {
                *seen.entry(outcome).or_insert(0) += times;
            }
        }
        println!("{seen:?}");
        // Each kind of failure must occur, or the test does not cover it. The deadline policy refuses most requests that would
        // miss their deadline.
        let missed =
            if policy == PolicyKind::Deadline { "DeadlineUnreachable)" } else { "DeadlineExceeded)" };
        for outcome in ["Cancelled)", missed, "MemoryFault)", "ChannelFaulted)", "ChannelsBusy", "Revoked"] {
            assert!(
                seen.get(&format!("Err({outcome}")).is_some_and(|times| *times >= 3),
                "{outcome}: {seen:?}"
            );
        }
        for outcome in ["OutOfBounds", "FillLength", "WaitingQuota"] {
            assert!(seen.contains_key(&format!("Err({outcome}")), "{outcome}: {seen:?}");
        }
        assert!(seen["Ok(())"] > 2000, "{seen:?}");
    }
}
