//! Frames of engines through all orders of events, and what a hostile peer can say.

mod exports;

use super::*;
use crate::protocol::{Envelope, Reply, ServiceId, encode};
use memferry_shm::conduit;
use memferry_transfer::{GrantToken, Operations};

const USER: u32 = 998;
const CLIENT: u32 = 1000;
const KEEPER: SessionId = SessionId(1);
const ENGINE: SessionId = SessionId(2);
/// Bytes of the engine's own memory.
const MEMORY: u64 = 1 << 20;

struct Bed {
    engines: Engines,
    now: Instant,
}

impl Bed {
    /// An engine for the frames of `CLIENT`, whose keeper is attached.
    fn new() -> Self {
        let frames_of = FramesOf::Users(vec![CLIENT]);
        let config =
            EngineConfig { exports_to: frames_of.clone(), frames_of, ..EngineConfig::new("example", USER) };
        let mut bed = Self { engines: Engines::new(&[config]), now: Instant::now() };
        bed.attach(KEEPER, &EngineRole::Keeper).unwrap();
        bed.ask(KEEPER);
        bed
    }

    fn with_engine() -> Self {
        let mut bed = Self::new();
        bed.attach_engine(ENGINE);
        bed.ask(ENGINE);
        bed
    }

    /// One that also gives memory.
    fn with_memory() -> Self {
        let mut bed = Self::with_engine();
        bed.open(ENGINE);
        bed
    }

    fn attach(&mut self, session: SessionId, role: &EngineRole) -> Result<(), Refusal> {
        self.engines.attach(session, USER, "example", role).map(drop)
    }

    fn attach_engine(&mut self, session: SessionId) {
        let description = EngineDescription { memory_bytes: MEMORY, ..EngineDescription::default() };
        self.attach(session, &EngineRole::Engine(description)).unwrap();
    }

    fn open(&mut self, session: SessionId) -> EngineId {
        let (id, ..) = self.engines.opening(session).unwrap();
        self.engines.opened(id);
        id
    }

    fn allocate(&mut self, length: u64) -> Result<FrameProposal, Refusal> {
        self.engines.allocate(CLIENT, "example", length)
    }

    /// Asks for a name of memory of another node.
    fn attach_remote(&mut self, length: u64) -> Result<FrameProposal, Refusal> {
        let node = "far".parse().unwrap();
        let token = GrantToken::from_raw(1);
        let event =
            |frame| FrameEvent::Attach { frame, length, node, service: ServiceId(1), token, user: CLIENT };
        self.engines.ask_for_frame(CLIENT, "example", (length, Rights::READ), event)
    }

    /// A frame of the engine's own memory that it has allocated.
    fn allocated(&mut self, length: u64) -> (FrameProposal, Mapping) {
        let proposal = self.allocate(length).unwrap();
        let event = FrameEvent::Allocate { frame: proposal.frame, length };
        assert_eq!(self.delivered(), [(ENGINE, event)]);
        assert!(self.engines.allocated(&proposal, false).is_none(), "it has not answered");
        self.mapped(ENGINE, proposal.frame);
        assert_eq!(self.engines.allocated(&proposal, false), Some(Ok(length)));
        let (mapping, known) = self.register(proposal);
        assert!(known[0].1.is_own);
        (proposal, mapping)
    }

    fn ask(&mut self, session: SessionId) {
        self.engines.next(session, None).unwrap();
    }

    fn report(&mut self, session: SessionId, frame: Handle, result: FrameResult) {
        self.engines.next(session, Some(FrameDone { frame, result })).unwrap();
    }

    fn mapped(&mut self, session: SessionId, frame: Handle) {
        self.report(session, frame, FrameResult::Mapped { is_writable: true });
    }

    fn propose(&mut self) -> FrameProposal {
        let memory = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
        let proposals = self.engines.propose(CLIENT, 4096, self.now, memory);
        assert_eq!(proposals.len(), 1);
        proposals[0]
    }

    /// The events that are delivered now, by session.
    fn delivered(&mut self) -> Vec<(SessionId, FrameEvent)> {
        let deliveries = self.engines.take_deliveries();
        for delivery in &deliveries {
            assert_eq!(delivery.memory.is_some(), matches!(delivery.event, FrameEvent::Map { .. }));
        }
        deliveries.into_iter().map(|delivery| (delivery.session, delivery.event)).collect()
    }

    fn register(&mut self, proposal: FrameProposal) -> (Mapping, Vec<(EngineId, ExternalFrame)>) {
        let mapping = Mapping::owned(vec![0; 4096]);
        let known = self.engines.register(&[proposal], &mapping);
        (mapping, known)
    }
}

#[test]
fn refusals_fit_a_packet_whatever_name_was_asked_for() {
    let mut bed = Bed::with_memory();
    let name = "\u{1}".repeat(conduit::MAXIMUM_BYTES - 100);
    let of_frame = bed.engines.allocate(CLIENT, &name, 4096).err().unwrap();
    let of_role = bed.engines.attach(SessionId(9), USER, &name, &EngineRole::Keeper).unwrap_err();
    for refusal in [of_frame, of_role] {
        assert!(refusal.message.starts_with("no engine"), "{refusal}");
        let packet = encode::<Reply>(&Envelope { serial: 1, descriptors: 0, body: Err(refusal) });
        assert!(packet.len() <= conduit::MAXIMUM_BYTES, "{} bytes", packet.len());
    }
}

#[test]
fn a_frame_is_mapped_used_and_unmapped_by_both() {
    let mut bed = Bed::with_engine();
    let proposal = bed.propose();
    let frame = proposal.frame;
    let map = FrameEvent::Map { frame, length: 4096, user: CLIENT };
    assert_eq!(bed.delivered(), [(KEEPER, map), (ENGINE, map)]);
    bed.mapped(KEEPER, frame);
    assert!(!bed.engines.are_answered(&[proposal]));
    bed.mapped(ENGINE, frame);
    assert!(bed.engines.are_answered(&[proposal]));
    let (mapping, known) = bed.register(proposal);
    let external = ExternalFrame { handle: frame, length: 4096, is_writable: true, is_own: false };
    assert_eq!(known, [(EngineId { index: 0, number: 1 }, external)]);
    assert_eq!(bed.engines.states().next().unwrap().frames, 1);

    assert!(bed.engines.release(std::slice::from_ref(&mapping)) && !bed.engines.release(&[mapping]));
    let unmap = FrameEvent::Unmap { frame };
    assert_eq!(bed.delivered(), [(KEEPER, unmap), (ENGINE, unmap)]);
    bed.report(KEEPER, frame, FrameResult::Unmapped);
    let next = bed.propose().frame;
    assert_ne!(next.index(), frame.index(), "the engine may still have it");
    bed.report(ENGINE, frame, FrameResult::Unmapped);
    let later = bed.propose().frame;
    assert_eq!((later.index(), later.generation()), (frame.index(), frame.generation() + 1));
}

#[test]
fn own_memory_is_counted_until_it_is_freed() {
    let mut bed = Bed::with_memory();
    let (proposal, mapping) = bed.allocated(MEMORY - 4096);
    assert_eq!(bed.engines.states().next().unwrap().memory, (MEMORY, MEMORY - 4096));
    assert_eq!(bed.allocate(4097).unwrap_err().kind, RefusalKind::Quota);
    bed.engines.release(&[mapping]);
    let next = bed.allocate(MEMORY).unwrap();
    assert_eq!(bed.engines.states().next().unwrap().memory.1, 2 * MEMORY - 4096, "not freed yet");
    assert!(bed.allocate(1).is_err());
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })], "before the next");
    bed.report(ENGINE, proposal.frame, FrameResult::Unmapped);
    assert_eq!(bed.engines.states().next().unwrap().memory, (MEMORY, MEMORY));
    let event = FrameEvent::Allocate { frame: next.frame, length: MEMORY };
    assert_eq!(bed.delivered(), [(ENGINE, event)]);
}

#[test]
fn own_memory_is_lost_with_its_process() {
    let mut bed = Bed::with_memory();
    let (_, mapping) = bed.allocated(4096);
    let waiting = bed.allocate(4096).unwrap();
    assert!(bed.engines.session_ended(ENGINE, bed.now).is_some());
    assert_eq!(bed.allocate(4096).unwrap_err().kind, RefusalKind::System, "cut off");
    let (_, lost) = bed.engines.process_exited(ENGINE).unwrap();
    assert!(lost.len() == 1 && lost[0].is(&mapping));
    assert!(matches!(bed.engines.allocated(&waiting, false), Some(Err(_))));
    let second = SessionId(3);
    bed.attach_engine(second);
    let id = bed.open(second);
    assert!(bed.engines.mapped(id).is_empty(), "the next process does not have it");
    bed.engines.release(&[mapping]);
    assert!(bed.delivered().is_empty(), "nobody has it");
    assert_eq!(bed.engines.states().next().unwrap().memory, (MEMORY, 0));
}

#[test]
fn an_engine_that_allocates_late_frees_it_again() {
    let mut bed = Bed::with_memory();
    let proposal = bed.allocate(4096).unwrap();
    bed.delivered();
    assert!(matches!(bed.engines.allocated(&proposal, true), Some(Err(_))));
    bed.mapped(ENGINE, proposal.frame);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
    bed.report(ENGINE, proposal.frame, FrameResult::Unmapped);
    let refused = bed.allocate(4096).unwrap();
    bed.delivered();
    bed.report(ENGINE, refused.frame, FrameResult::Failed);
    assert!(matches!(bed.engines.allocated(&refused, false), Some(Err(_))));
    assert_eq!(bed.engines.states().next().unwrap().memory, (MEMORY, 0));
}

#[test]
fn only_an_engine_with_memory_gives_some() {
    let mut bed = Bed::new();
    assert_eq!(bed.allocate(4096).unwrap_err().kind, RefusalKind::System, "not connected");
    for (user, name) in [(CLIENT + 1, "example"), (CLIENT, "other")] {
        assert_eq!(bed.engines.allocate(user, name, 1).unwrap_err().kind, RefusalKind::Argument);
    }
    bed.attach(ENGINE, &EngineRole::Engine(EngineDescription::default())).unwrap();
    bed.open(ENGINE);
    assert_eq!(bed.allocate(4096).unwrap_err().kind, RefusalKind::Argument, "it has none");
}

#[test]
fn only_configured_users_and_names_count() {
    let mut bed = Bed::new();
    let none = || None;
    assert!(bed.engines.propose(CLIENT + 1, 4096, bed.now, none).is_empty(), "another user's frames");
    let role = EngineRole::Engine(EngineDescription::default());
    for (user, name) in [(USER + 1, "example"), (USER, "other")] {
        assert!(bed.engines.attach(ENGINE, user, name, &role).is_err(), "{user} {name}");
    }
    assert!(bed.attach(SessionId(3), &EngineRole::Keeper).is_err(), "a second keeper");
    assert!(bed.attach(KEEPER, &role).is_err(), "a session with two roles");
    let bad = EngineDescription { operations: Operations::SYNCHRONIZED, ..EngineDescription::default() };
    assert!(bed.attach(ENGINE, &EngineRole::Engine(bad)).is_err());
    bed.attach_engine(ENGINE);
    assert!(bed.attach(SessionId(3), &role).is_err(), "a second engine");
    assert!(bed.engines.opening(KEEPER).is_err() && bed.engines.opening(SessionId(9)).is_err());
    let (id, ..) = bed.engines.opening(ENGINE).unwrap();
    bed.engines.opened(id);
    assert!(bed.engines.opening(ENGINE).is_err(), "opened twice");
}

#[test]
fn a_new_engine_inherits_the_keepers_frames() {
    let mut bed = Bed::new();
    let [mapped, failed, released] = std::array::from_fn(|_| bed.propose());
    let mut mappings = Vec::new();
    for (proposal, result) in [
        (mapped, FrameResult::Mapped { is_writable: false }),
        (failed, FrameResult::Failed),
        (released, FrameResult::Mapped { is_writable: true }),
    ] {
        assert_eq!(bed.delivered().len(), 1);
        bed.report(KEEPER, proposal.frame, result);
        let (mapping, known) = bed.register(proposal);
        assert!(known.is_empty(), "there is no engine yet");
        mappings.push(mapping);
    }
    bed.engines.release(&mappings[2..]);
    // It was delivered, but the keeper has not reported it yet.
    assert_eq!(bed.delivered(), [(KEEPER, FrameEvent::Unmap { frame: released.frame })]);
    bed.attach_engine(ENGINE);
    let (id, ..) = bed.engines.opening(ENGINE).unwrap();
    let frames = bed.engines.mapped(id);
    assert_eq!(frames.len(), 1);
    assert!(frames[0].0.is(&mappings[0]) && !frames[0].1.is_writable);
    bed.ask(ENGINE);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: released.frame })]);
}

#[test]
fn a_late_answer_is_followed_by_unmap() {
    let mut bed = Bed::with_engine();
    let proposal = bed.propose();
    bed.delivered();
    bed.mapped(KEEPER, proposal.frame);
    bed.engines.expire(&[proposal], CLIENT, bed.now);
    assert!(bed.engines.are_answered(&[proposal]), "nobody is waited for");
    let (_mapping, known) = bed.register(proposal);
    assert!(known.is_empty());
    bed.mapped(ENGINE, proposal.frame);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
    let none = || None;
    assert!(bed.engines.propose(CLIENT, 4096, bed.now, none).is_empty(), "its user rests");
    assert_eq!(bed.engines.propose(CLIENT, 4096, bed.now + REST, none).len(), 1);
}

#[test]
fn an_event_that_was_not_delivered_in_time_is_dropped() {
    let mut bed = Bed::new();
    let first = bed.propose();
    assert_eq!(bed.delivered().len(), 1);
    let second = bed.propose();
    assert!(bed.delivered().is_empty(), "one event at a time");
    bed.engines.expire(&[second], CLIENT, bed.now);
    bed.engines.withdraw(&[second]);
    bed.mapped(KEEPER, first.frame);
    assert!(bed.delivered().is_empty());
}

#[test]
fn a_peer_that_asks_for_no_event_is_awaited_once() {
    let mut bed = Bed::new();
    bed.attach_engine(ENGINE);
    let first = bed.propose();
    assert_eq!(bed.delivered().len(), 1, "to the keeper");
    bed.mapped(KEEPER, first.frame);
    assert!(!bed.engines.are_answered(&[first]));
    bed.engines.expire(&[first], CLIENT, bed.now);
    let second = bed.propose();
    bed.delivered();
    bed.mapped(KEEPER, second.frame);
    assert!(bed.engines.are_answered(&[second]));
    bed.ask(ENGINE);
    let third = bed.propose();
    assert_eq!(bed.delivered().len(), 2);
    assert!(!bed.engines.are_answered(&[third]));
}

#[test]
fn a_lost_engine_keeps_frames_until_its_process_exits() {
    let mut bed = Bed::with_engine();
    let proposal = bed.propose();
    bed.delivered();
    bed.mapped(KEEPER, proposal.frame);
    bed.mapped(ENGINE, proposal.frame);
    let (mapping, known) = bed.register(proposal);
    let id = known[0].0;
    assert_eq!(bed.engines.session_of(id), Some(ENGINE));
    assert_eq!(bed.engines.session_ended(ENGINE, bed.now), Some(id));
    assert_eq!(bed.engines.session_of(id), None);
    assert!(bed.engines.is_engine(ENGINE), "its process matters");
    let again = EngineRole::Engine(EngineDescription::default());
    assert!(bed.attach(SessionId(3), &again).is_err(), "it has not exited");

    assert_eq!(bed.engines.time_left(bed.now), Some(STUCK));
    assert!(bed.engines.take_overdue(bed.now).is_empty() && bed.delivered().is_empty());
    assert!(bed.engines.take_overdue(bed.now + STUCK).is_empty());
    assert_eq!(bed.delivered(), [(KEEPER, FrameEvent::Restart)]);
    bed.ask(KEEPER);
    assert_eq!(bed.engines.take_overdue(bed.now + LINGERING), [id]);
    assert!(bed.engines.take_overdue(bed.now + LINGERING).is_empty(), "once");
    assert_eq!(bed.engines.time_left(bed.now), None);

    let (exited, lost) = bed.engines.process_exited(ENGINE).unwrap();
    assert_eq!((exited, lost.len()), (id, 0));
    assert!(bed.engines.process_exited(ENGINE).is_none());
    bed.attach_engine(SessionId(3));
    let (second, ..) = bed.engines.opening(SessionId(3)).unwrap();
    assert_ne!(second, id);
    assert!(bed.engines.mapped(second)[0].0.is(&mapping), "inherited from the keeper");
}

#[test]
fn a_lost_keeper_takes_no_handle_with_it() {
    let mut bed = Bed::with_engine();
    let proposal = bed.propose();
    bed.delivered();
    bed.mapped(KEEPER, proposal.frame);
    bed.mapped(ENGINE, proposal.frame);
    let (mapping, _) = bed.register(proposal);
    assert_eq!(bed.engines.session_ended(KEEPER, bed.now), None);
    let none = || None;
    assert!(bed.engines.propose(CLIENT, 4096, bed.now, none).is_empty(), "nobody could inherit it");
    bed.engines.release(&[mapping]);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
    bed.report(ENGINE, proposal.frame, FrameResult::Unmapped);
    bed.attach(SessionId(5), &EngineRole::Keeper).unwrap();
    assert_eq!(bed.propose().frame.index(), proposal.frame.index(), "the handle is free again");
}

#[test]
fn reports_that_belong_to_no_event_are_refused() {
    let mut bed = Bed::with_engine();
    let frame = bed.propose().frame;
    let done = FrameDone { frame, result: FrameResult::Unmapped };
    assert!(bed.engines.next(KEEPER, Some(done)).is_err(), "before the delivery");
    bed.delivered();
    assert!(bed.engines.next(ENGINE, None).is_err(), "without a report");
    assert!(bed.engines.next(SessionId(77), None).is_err(), "a stranger");
    let other = Handle::new(frame.index(), frame.generation() + 1);
    assert!(bed.engines.next(KEEPER, Some(FrameDone { frame: other, ..done })).is_err());
}

/// What a peer makes of an event, and what the engine has then.
fn played(
    session: SessionId,
    event: FrameEvent,
    random: &mut fastrand::Rng,
    has: &mut BTreeSet<Handle>,
) -> (Handle, FrameResult) {
    match event {
        FrameEvent::Map { frame, .. } if random.bool() => {
            if session == ENGINE {
                has.insert(frame);
            }
            (frame, FrameResult::Mapped { is_writable: true })
        }
        FrameEvent::Map { frame, .. } => (frame, FrameResult::Failed),
        FrameEvent::Allocate { frame, .. } | FrameEvent::Attach { frame, .. } if random.bool() => {
            has.insert(frame);
            (frame, FrameResult::Mapped { is_writable: true })
        }
        FrameEvent::Allocate { frame, .. } | FrameEvent::Attach { frame, .. } => (frame, FrameResult::Failed),
        FrameEvent::Unmap { frame } => {
            has.remove(&frame);
            (frame, FrameResult::Unmapped)
        }
        FrameEvent::Export { frame } => {
            assert!(session == ENGINE && has.contains(&frame));
            (frame, exports::EXPORTED)
        }
        FrameEvent::Restart => panic!("nothing was lost"),
    }
}

/// Random events of all kinds: the number of places stays bounded, and no frame is known to workers that an engine did not map.
#[test]
fn random_orders_keep_the_books() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bed = Bed::with_memory();
        let mut open: Vec<FrameProposal> = Vec::new();
        let mut allocating: Vec<FrameProposal> = Vec::new();
        let mut registered: Vec<Mapping> = Vec::new();
        let mut current: BTreeMap<SessionId, FrameEvent> = BTreeMap::new();
        let mut has: BTreeSet<Handle> = BTreeSet::new();
        for _ in 0..300 {
            bed.now += REST + REST;
            match random.u32(..9) {
                0 if open.len() + registered.len() < 8 => open.push(bed.propose()),
                1 if !open.is_empty() => {
                    let proposal = open.swap_remove(random.usize(..open.len()));
                    let (mapping, known) = bed.register(proposal);
                    let is_right = known.iter().all(|(_, frame)| has.contains(&frame.handle));
                    assert!(is_right, "seed {seed}: {known:?}");
                    registered.push(mapping);
                }
                2 if !open.is_empty() => {
                    let proposal = open.swap_remove(random.usize(..open.len()));
                    bed.engines.expire(&[proposal], CLIENT, bed.now);
                    bed.engines.withdraw(&[proposal]);
                }
                3 if !registered.is_empty() => {
                    let mapping = registered.swap_remove(random.usize(..registered.len()));
                    assert!(bed.engines.release(&[mapping]), "seed {seed}");
                }
                4 if allocating.len() + registered.len() < 8 => {
                    let asked = if random.bool() { bed.allocate(4096) } else { bed.attach_remote(4096) };
                    allocating.push(asked.unwrap());
                }
                5 if !allocating.is_empty() => {
                    let index = random.usize(..allocating.len());
                    match bed.engines.allocated(&allocating[index], random.bool()) {
                        None => continue,
                        Some(Err(_)) => {}
                        Some(Ok(length)) => {
                            assert_eq!(length, 4096, "seed {seed}");
                            let (mapping, known) = bed.register(allocating[index]);
                            assert!(known[0].1.is_own && has.contains(&known[0].1.handle), "seed {seed}");
                            registered.push(mapping);
                        }
                    }
                    allocating.swap_remove(index);
                }
                6 if !registered.is_empty() => {
                    // Refused for memory of clients, and while too many wait.
                    let _ = bed.engines.export(CLIENT, &registered[random.usize(..registered.len())]);
                }
                _ => {
                    for (session, event) in bed.delivered() {
                        assert!(current.insert(session, event).is_none(), "seed {seed}: two at a time");
                    }
                    let session = if random.bool() { KEEPER } else { ENGINE };
                    let Some(event) = current.remove(&session) else { continue };
                    let (frame, result) = played(session, event, &mut random, &mut has);
                    bed.report(session, frame, result);
                }
            }
        }
        let places = bed.engines.entries[0].places.len();
        assert!(places <= 40, "seed {seed}: {places} places");
    }
}
