//! Engine processes as the control side sees them: the connected ones, the frames that each has mapped, and the next event for each.
//!
//! ```text
//! propose(frame) ─► Map for keeper and engine ─► next(done) ─► register: workers learn what the engine has
//! allocate(length) ─► Allocate for the engine ──► next(done) ─► register                 it has the only memory of this frame
//! export(frame) ─► Export for the engine ─► next(done)                           its attendant has the descriptor
//! release(frame) ─► Unmap for both ─► next(done) ─► the handle is free again
//! session ended ─► cut ─► its process has exited: gone, or it has not for a while: lingering
//! ```
//!
//! Pure data: no access to sockets, workers or memory. A peer (a keeper or an engine) gets one event at a time and reports it before it
//! gets the next. docs/engines.md says why there are two processes.

mod exports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memferry_external::{EngineDescription, ExternalFrame};
use memferry_shm::mapping::Mapping;
use memferry_transfer::{Handle, Rights, SessionId};

use crate::config::{EngineConfig, FramesOf};
use crate::engine_id::EngineId;
use crate::protocol::{EngineRole, FrameDone, FrameEvent, FrameResult, LINK, Refusal, RefusalKind};
use crate::session::refusal;

pub use exports::{ExportRequest, ExportState};

/// Frames that one engine has mapped at most: Linux limits the mappings of a process to 65,530.
const MAX_FRAMES: usize = 1 << 14;
/// How long a user's memory is not proposed to an engine that could not map some in time.
const REST: Duration = Duration::from_secs(10);
/// How long the process of an engine may live on without its connection before its keeper is asked to end it.
const STUCK: Duration = Duration::from_millis(500);
/// How long it may live on before its requests end.
const LINGERING: Duration = Duration::from_secs(5);

/// A frame that is proposed to an engine before it is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameProposal {
    index: usize,
    frame: Handle,
    /// What its owner may do with it.
    pub(crate) rights: Rights,
}

/// An event that a session waits for.
#[derive(Debug)]
pub struct FrameDelivery {
    pub session: SessionId,
    pub event: FrameEvent,
    pub memory: Option<OwnedFd>,
}

/// What a peer has of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Has {
    Nothing,
    /// It was told to map it.
    Asked,
    /// It was told to map it, but that took too long: it will have to unmap it.
    Late,
    Mapped {
        is_writable: bool,
    },
    /// It may have inherited the mapping.
    Maybe,
    /// It was told to unmap it.
    Leaving,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Keeper = 0,
    Engine = 1,
}

const SIDES: [Side; 2] = [Side::Keeper, Side::Engine];

/// A place for a frame; its index is that of the frame's handle.
struct Place {
    generation: u32,
    /// Whether a frame is here that can be used or may become usable.
    is_live: bool,
    user: u32,
    /// Once the frame is registered.
    mapping: Option<Mapping>,
    /// Bytes of the engine's own memory that the frame takes; 0 for memory of a client.
    own_bytes: u64,
    /// What keeper and engine have.
    has: [Has; 2],
}

/// The connection of a keeper or an engine.
struct Peer {
    session: SessionId,
    events: VecDeque<(FrameEvent, Option<OwnedFd>)>,
    /// The event that it has and did not report.
    current: Option<FrameEvent>,
    /// It waits for an event.
    waits: bool,
    /// It took too long with its event: until it reports that, nobody waits for it.
    is_late: bool,
}

impl Peer {
    fn new(session: SessionId) -> Self {
        Self { session, events: VecDeque::new(), current: None, waits: false, is_late: false }
    }
}

struct Running {
    peer: Peer,
    id: EngineId,
    description: EngineDescription,
    is_open: bool,
    /// When its connection ended.
    cut: Option<Instant>,
    /// Its keeper was asked to end it.
    is_ending: bool,
    is_lingering: bool,
}

impl Running {
    /// When the service does something about a process that was cut off, if it has not exited by then.
    fn due(&self) -> Option<Instant> {
        let cut = self.cut.filter(|_| !self.is_lingering)?;
        Some(cut + if self.is_ending { LINGERING } else { STUCK })
    }
}

struct Entry {
    config: EngineConfig,
    keeper: Option<Peer>,
    engine: Option<Running>,
    processes: u32,
    places: Vec<Place>,
    /// Places of registered frames, by the key of their mapping.
    by_key: BTreeMap<usize, u32>,
    /// Places that are not free, by user.
    by_user: BTreeMap<u32, usize>,
    /// Places that a new frame may have.
    free: BTreeSet<u32>,
    resting: BTreeMap<u32, Instant>,
}

/// An engine as the status shows it.
pub(crate) struct EngineState<'a> {
    pub(crate) config: &'a EngineConfig,
    pub(crate) session: Option<SessionId>,
    pub(crate) is_connected: bool,
    pub(crate) frames: usize,
    /// Bytes of its own memory: all, and those in frames.
    pub(crate) memory: (u64, u64),
}

/// All engines of the configuration.
pub(crate) struct Engines {
    entries: Vec<Entry>,
    deliveries: Vec<FrameDelivery>,
}

impl Engines {
    pub(crate) fn new(configs: &[EngineConfig]) -> Self {
        let entry = |config: &EngineConfig| Entry {
            config: config.clone(),
            keeper: None,
            engine: None,
            processes: 0,
            places: Vec::new(),
            by_key: BTreeMap::new(),
            by_user: BTreeMap::new(),
            free: BTreeSet::new(),
            resting: BTreeMap::new(),
        };
        Self { entries: configs.iter().map(entry).collect(), deliveries: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the events that sessions wait for.
    pub(crate) fn take_deliveries(&mut self) -> Vec<FrameDelivery> {
        for entry in &mut self.entries {
            let engine = entry.engine.as_mut().filter(|engine| engine.cut.is_none());
            for peer in entry.keeper.iter_mut().chain(engine.map(|engine| &mut engine.peer)) {
                if peer.waits
                    && let Some((event, memory)) = peer.events.pop_front()
                {
                    peer.waits = false;
                    peer.current = Some(event);
                    self.deliveries.push(FrameDelivery { session: peer.session, event, memory });
                }
            }
        }
        std::mem::take(&mut self.deliveries)
    }

    /// Makes a session of `user` the keeper or the engine of that name.
    pub(crate) fn attach(
        &mut self,
        session: SessionId,
        user: u32,
        name: &str,
        role: &EngineRole,
    ) -> Result<Duration, Refusal> {
        let unknown = || {
            let why = format!("no engine of user {user} is called {name:?} in the service's configuration");
            refusal(RefusalKind::Argument, why)
        };
        if self.find(session).is_some() {
            return Err(refusal(RefusalKind::Argument, "this session is an engine's already"));
        }
        let index = self.entries.iter().position(|entry| entry.config.name == name);
        let index = index.filter(|index| self.entries[*index].config.user == user).ok_or_else(unknown)?;
        let entry = &mut self.entries[index];
        match role {
            EngineRole::Keeper if entry.keeper.is_some() => {
                let why = format!("engine {name} is connected already; stop its other process first");
                return Err(refusal(RefusalKind::System, why));
            }
            EngineRole::Keeper => {
                entry.keeper = Some(Peer::new(session));
            }
            EngineRole::Engine(description) => {
                description.check().map_err(|error| refusal(RefusalKind::Argument, error))?;
                entry.attach_engine(session, index, *description)?;
            }
        }
        Ok(entry.config.stall)
    }

    /// The engine that a session is, with its description and configuration, if its queue pairs are not open yet.
    pub(crate) fn opening(
        &mut self,
        session: SessionId,
    ) -> Result<(EngineId, EngineDescription, &EngineConfig), Refusal> {
        let not = |why: &str| refusal(RefusalKind::Argument, why);
        let index = match self.find(session) {
            Some((index, Side::Engine)) => index,
            _ => return Err(not("this session is no engine's; attach first")),
        };
        let entry = &mut self.entries[index];
        match &entry.engine {
            Some(running) if !running.is_open => Ok((running.id, running.description, &entry.config)),
            _ => Err(not("the queue pairs of this engine are open already")),
        }
    }

    /// The queue pairs of an engine are open.
    pub(crate) fn opened(&mut self, id: EngineId) {
        let engine = self.entries.get_mut(id.index).and_then(|entry| entry.engine.as_mut());
        if let Some(running) = engine.filter(|running| running.id == id) {
            running.is_open = true;
        }
    }

    /// What workers have to know of frames that an engine has mapped and that are registered.
    pub(crate) fn mapped(&self, id: EngineId) -> Vec<(Mapping, ExternalFrame)> {
        let entry = &self.entries[id.index];
        let frames = (0..).zip(&entry.places).filter_map(|(index, place)| {
            let mapping = place.mapping.clone().filter(|_| place.is_live)?;
            Some((mapping, place.frame_of(index)?))
        });
        frames.collect()
    }

    /// Proposes memory to all engines that may have it. `duplicate` gives a descriptor for each peer.
    pub(crate) fn propose(
        &mut self,
        user: u32,
        length: u64,
        now: Instant,
        duplicate: impl Fn() -> Option<OwnedFd>,
    ) -> Vec<FrameProposal> {
        let mut proposals = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            entry.resting.retain(|_, until| *until > now);
            let may = entry.config.frames_of.contains(user) && !entry.resting.contains_key(&user);
            if !may || entry.keeper.is_none() {
                continue;
            }
            let Some(frame) = entry.take_place(user) else { continue };
            let place = &mut entry.places[frame.index() as usize];
            let engine = entry.engine.as_mut().filter(|engine| engine.cut.is_none());
            let keeper = entry.keeper.as_mut().map(|peer| (Side::Keeper, peer));
            for (side, peer) in
                keeper.into_iter().chain(engine.map(|engine| (Side::Engine, &mut engine.peer)))
            {
                if !peer.is_late
                    && let Some(memory) = duplicate()
                {
                    peer.events.push_back((FrameEvent::Map { frame, length, user }, Some(memory)));
                    place.has[side as usize] = Has::Asked;
                }
            }
            proposals.push(FrameProposal { index, frame, rights: Rights::all() });
        }
        proposals
    }

    /// Asks an engine for a frame in its own memory.
    pub(crate) fn allocate(&mut self, user: u32, home: &str, length: u64) -> Result<FrameProposal, Refusal> {
        let event = |frame| FrameEvent::Allocate { frame, length };
        self.ask_for_frame(user, home, (length, Rights::all()), event)
    }

    /// Asks an engine for a frame in its own memory, or for a name of memory that it reaches, by `event`.
    pub(crate) fn ask_for_frame(
        &mut self,
        user: u32,
        home: &str,
        (length, rights): (u64, Rights),
        event: impl FnOnce(Handle) -> FrameEvent,
    ) -> Result<FrameProposal, Refusal> {
        let none = || {
            let why =
                format!("no engine process {home:?} gives memory to user {user}; see `memferry status`");
            refusal(RefusalKind::Argument, why)
        };
        let index = self.entries.iter().position(|entry| entry.config.name == home).ok_or_else(none)?;
        let entry = &mut self.entries[index];
        if !entry.config.frames_of.contains(user) {
            return Err(none());
        }
        let gone = || refusal(RefusalKind::System, format!("engine {home} is not connected; try again"));
        let engine = entry.engine.as_ref().filter(|engine| engine.cut.is_none() && engine.is_open);
        let memory_bytes = engine.ok_or_else(gone)?.description.memory_bytes;
        if memory_bytes == 0 {
            return Err(none());
        }
        // What it has to free, it frees first.
        let live = entry.places.iter().filter(|place| place.is_live).map(|place| place.own_bytes);
        let left = memory_bytes.saturating_sub(live.sum());
        if length > left {
            let why = format!(
                "engine {home} has {left} of {memory_bytes} bytes left, not {length}; release some first"
            );
            return Err(refusal(RefusalKind::Quota, why));
        }
        let full = || refusal(RefusalKind::Quota, format!("engine {home} has as many frames as it can have"));
        let frame = entry.take_place(user).ok_or_else(full)?;
        let place = &mut entry.places[frame.index() as usize];
        place.own_bytes = length;
        place.has[Side::Engine as usize] = Has::Asked;
        if let Some(engine) = &mut entry.engine {
            engine.peer.events.push_back((event(frame), None));
        }
        Ok(FrameProposal { index, frame, rights })
    }

    /// Whether an engine has allocated a frame that it was asked for, with its length; `None` while it has not answered. If it is late,
    /// it is not waited for, and frees what it may yet allocate.
    pub(crate) fn allocated(
        &mut self,
        proposal: &FrameProposal,
        is_late: bool,
    ) -> Option<Result<u64, Refusal>> {
        let place = self.place(proposal).filter(|place| place.is_live);
        let found = place.map(|place| (place.has[Side::Engine as usize], place.own_bytes));
        let what = match found {
            Some((Has::Mapped { .. }, length)) => return Some(Ok(length)),
            Some((Has::Asked, _)) if !is_late => return None,
            Some((Has::Asked, _)) => "did not allocate the memory in time",
            _ => "could not allocate the memory",
        };
        let entry = &mut self.entries[proposal.index];
        entry.release(proposal.frame.index());
        let why = if entry.config.name == LINK && !matches!(found, Some((Has::Asked, _))) {
            "the link did not take it: it ended meanwhile, or [peers] of its configuration does not name this node".to_owned()
        } else {
            format!("engine {} {what}; try again, or with less memory", entry.config.name)
        };
        Some(Err(refusal(RefusalKind::System, why)))
    }

    /// Whether all peers have answered to the proposals.
    pub(crate) fn are_answered(&self, proposals: &[FrameProposal]) -> bool {
        let answered = |proposal: &FrameProposal| {
            self.place(proposal).is_none_or(|place| !place.has.contains(&Has::Asked))
        };
        proposals.iter().all(answered)
    }

    /// The proposals took too long: peers that have not answered do not get the memory, and for a while none of this user.
    pub(crate) fn expire(&mut self, proposals: &[FrameProposal], user: u32, now: Instant) {
        for proposal in proposals {
            let entry = &mut self.entries[proposal.index];
            if entry.give_up_asking(proposal.frame) {
                entry.resting.insert(user, now + REST);
            }
        }
    }

    /// The memory is registered. Returns what workers have to know.
    pub(crate) fn register(
        &mut self,
        proposals: &[FrameProposal],
        mapping: &Mapping,
    ) -> Vec<(EngineId, ExternalFrame)> {
        let mut known = Vec::new();
        for proposal in proposals {
            let entry = &mut self.entries[proposal.index];
            let id = entry.engine.as_ref().filter(|engine| engine.cut.is_none()).map(|engine| engine.id);
            entry.give_up_asking(proposal.frame);
            let Some(place) = entry.place_mut(proposal.frame) else { continue };
            place.mapping = Some(mapping.clone());
            let frame = place.frame_of(proposal.frame.index());
            entry.by_key.insert(mapping.key(), proposal.frame.index());
            if let (Some(id), Some(frame)) = (id, frame) {
                known.push((id, frame));
            }
        }
        known
    }

    /// The memory is not registered after all.
    pub(crate) fn withdraw(&mut self, proposals: &[FrameProposal]) {
        for proposal in proposals {
            self.entries[proposal.index].release(proposal.frame.index());
        }
    }

    /// No request will use these frames any more. Returns whether any engine had one.
    pub(crate) fn release(&mut self, mappings: &[Mapping]) -> bool {
        let mut any = false;
        for entry in &mut self.entries {
            for mapping in mappings {
                if let Some(index) = entry.by_key.get(&mapping.key()).copied() {
                    entry.release(index);
                    any = true;
                }
            }
        }
        any
    }

    /// A peer reports its last event and waits for the next one.
    pub(crate) fn next(&mut self, session: SessionId, done: Option<FrameDone>) -> Result<(), Refusal> {
        let not = |why: &str| refusal(RefusalKind::Argument, why);
        let (index, side) =
            self.find(session).ok_or_else(|| not("this session is no engine's; attach first"))?;
        let entry = &mut self.entries[index];
        let peer = entry.peer_mut(side).ok_or_else(|| not("the engine is gone"))?;
        let current = peer.current.take();
        peer.waits = true;
        peer.is_late = false;
        match (current, done) {
            (None | Some(FrameEvent::Restart), None) => Ok(()),
            (
                Some(
                    FrameEvent::Map { frame, .. }
                    | FrameEvent::Allocate { frame, .. }
                    | FrameEvent::Attach { frame, .. }
                    | FrameEvent::Unmap { frame },
                ),
                Some(FrameDone { frame: named, result }),
            ) if frame == named => {
                entry.reported(side, frame, result);
                Ok(())
            }
            // The descriptor is with the attendants.
            (Some(FrameEvent::Export { frame }), Some(FrameDone { frame: named, result }))
                if frame == named
                    && matches!(
                        result,
                        FrameResult::Exported { .. } | FrameResult::NotExported | FrameResult::Failed
                    ) =>
            {
                Ok(())
            }
            _ => Err(not("the report does not belong to the last event")),
        }
    }

    /// An event that was taken for a session did not reach it: it comes again.
    pub(crate) fn undelivered(&mut self, delivery: FrameDelivery) {
        let FrameDelivery { session, event, memory } = delivery;
        let Some((index, side)) = self.find(session) else { return };
        if let Some(peer) = self.entries[index].peer_mut(side) {
            peer.current = None;
            peer.waits = true;
            peer.events.push_front((event, memory));
        }
    }

    /// A session has ended. Returns the engine that it was, whose process may live on.
    pub(crate) fn session_ended(&mut self, session: SessionId, now: Instant) -> Option<EngineId> {
        let (index, side) = self.find(session)?;
        let entry = &mut self.entries[index];
        match side {
            Side::Keeper => {
                entry.keeper = None;
                entry.lose(Side::Keeper);
                None
            }
            Side::Engine => {
                let running = entry.engine.as_mut()?;
                running.cut.get_or_insert(now);
                running.peer.events.clear();
                let id = running.id;
                for place in &mut entry.places {
                    let has = &mut place.has[Side::Engine as usize];
                    if *has == Has::Asked {
                        *has = Has::Late;
                    }
                }
                Some(id)
            }
        }
    }

    /// The process of a session that was an engine has exited. Returns what it was, and the frames whose memory is gone with it.
    pub(crate) fn process_exited(&mut self, session: SessionId) -> Option<(EngineId, Vec<Mapping>)> {
        let is_it =
            |entry: &Entry| entry.engine.as_ref().is_some_and(|engine| engine.peer.session == session);
        let entry = self.entries.iter_mut().find(|entry| is_it(entry))?;
        let id = entry.engine.take()?.id;
        entry.lose(Side::Engine);
        if let Some(keeper) = &mut entry.keeper {
            // It would end the next one.
            keeper.events.retain(|(event, _)| *event != FrameEvent::Restart);
        }
        let own = entry.places.iter().filter(|place| place.is_live && place.own_bytes > 0);
        Some((id, own.filter_map(|place| place.mapping.clone()).collect()))
    }

    /// The session of an engine process.
    pub(crate) fn session_of(&self, id: EngineId) -> Option<SessionId> {
        let engine = self.entries.get(id.index)?.engine.as_ref();
        engine.filter(|engine| engine.id == id && engine.cut.is_none()).map(|engine| engine.peer.session)
    }

    /// Whether a session is an engine's, so that the end of its process matters.
    pub(crate) fn is_engine(&self, session: SessionId) -> bool {
        matches!(self.find(session), Some((_, Side::Engine)))
    }

    /// Has keepers end processes that live on without their connection. Returns those that have done so for too long; each once.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<EngineId> {
        let mut lingering = Vec::new();
        for entry in &mut self.entries {
            let is_due = |running: &&mut Running| running.due().is_some_and(|due| due <= now);
            let Some(running) = entry.engine.as_mut().filter(is_due) else { continue };
            if running.is_ending {
                running.is_lingering = true;
                lingering.push(running.id);
                continue;
            }
            running.is_ending = true;
            if let Some(keeper) = &mut entry.keeper {
                keeper.events.push_front((FrameEvent::Restart, None));
            }
        }
        lingering
    }

    /// The time until [`take_overdue`](Self::take_overdue) has something to do.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        let running = self.entries.iter().filter_map(|entry| entry.engine.as_ref());
        Some(running.filter_map(Running::due).min()?.saturating_duration_since(now))
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = EngineState<'_>> {
        self.entries.iter().map(|entry| {
            let connected = entry.engine.as_ref().filter(|engine| engine.cut.is_none() && engine.is_open);
            let mapped = |place: &&Place| matches!(place.has[Side::Engine as usize], Has::Mapped { .. });
            EngineState {
                config: &entry.config,
                session: entry.engine.as_ref().map(|engine| engine.peer.session),
                is_connected: connected.is_some(),
                frames: entry.places.iter().filter(|place| place.is_live).filter(mapped).count(),
                memory: (connected.map_or(0, |engine| engine.description.memory_bytes), entry.own_bytes()),
            }
        })
    }

    fn place(&self, proposal: &FrameProposal) -> Option<&Place> {
        let place = self.entries.get(proposal.index)?.places.get(proposal.frame.index() as usize)?;
        (place.generation == proposal.frame.generation()).then_some(place)
    }

    /// The engine that a session belongs to, and on which side.
    fn find(&self, session: SessionId) -> Option<(usize, Side)> {
        (0..).zip(&self.entries).find_map(|(index, entry)| {
            let is_keeper = entry.keeper.as_ref().is_some_and(|peer| peer.session == session);
            let is_engine = entry.engine.as_ref().is_some_and(|engine| engine.peer.session == session);
            let side = if is_keeper { Side::Keeper } else { Side::Engine };
            (is_keeper || is_engine).then_some((index, side))
        })
    }
}

impl Place {
    /// The frame as a worker names it, if the engine has it.
    fn frame_of(&self, index: u32) -> Option<ExternalFrame> {
        let Has::Mapped { is_writable } = self.has[Side::Engine as usize] else { return None };
        let length = self.mapping.as_ref()?.length_bytes() as u64;
        let is_own = self.own_bytes > 0;
        Some(ExternalFrame { handle: Handle::new(index, self.generation), length, is_writable, is_own })
    }
}

impl Entry {
    fn attach_engine(
        &mut self,
        session: SessionId,
        index: usize,
        description: EngineDescription,
    ) -> Result<(), Refusal> {
        let name = &self.config.name;
        if self.keeper.is_none() {
            return Err(refusal(RefusalKind::System, format!("engine {name} has no keeper")));
        }
        if self.engine.is_some() {
            let why = format!("the last process of engine {name} has not exited yet; try again");
            return Err(refusal(RefusalKind::System, why));
        }
        let mut peer = Peer::new(session);
        for (index, place) in (0..).zip(&mut self.places) {
            let frame = Handle::new(index, place.generation);
            place.has[Side::Engine as usize] = match place.has[Side::Keeper as usize] {
                Has::Nothing => Has::Nothing,
                Has::Mapped { is_writable } if place.is_live => Has::Mapped { is_writable },
                // The keeper may have handled the event before the fork, although its report is not here yet.
                Has::Asked | Has::Late if place.is_live => Has::Maybe,
                Has::Asked | Has::Late | Has::Mapped { .. } | Has::Maybe | Has::Leaving => {
                    peer.events.push_back((FrameEvent::Unmap { frame }, None));
                    Has::Leaving
                }
            };
        }
        self.processes = self.processes.wrapping_add(1);
        let id = EngineId { index, number: self.processes };
        let running = Running {
            peer,
            id,
            description,
            is_open: false,
            cut: None,
            is_ending: false,
            is_lingering: false,
        };
        self.engine = Some(running);
        Ok(())
    }

    fn peer_mut(&mut self, side: Side) -> Option<&mut Peer> {
        match side {
            Side::Keeper => self.keeper.as_mut(),
            Side::Engine => self.engine.as_mut().map(|engine| &mut engine.peer),
        }
    }

    fn place_mut(&mut self, frame: Handle) -> Option<&mut Place> {
        let place = self.places.get_mut(frame.index() as usize)?;
        (place.generation == frame.generation()).then_some(place)
    }

    /// Bytes of the engine's own memory that are taken, also by frames that it has not freed yet.
    fn own_bytes(&self) -> u64 {
        self.places.iter().map(|place| place.own_bytes).sum()
    }

    /// A place for a new frame of a user; `None` if the engine has too many, or too many of this user.
    fn take_place(&mut self, user: u32) -> Option<Handle> {
        let of_user = self.by_user.get(&user).copied().unwrap_or(0);
        if of_user >= MAX_FRAMES / 2 {
            return None;
        }
        let index = match self.free.pop_first() {
            Some(index) => index,
            None if self.places.len() < MAX_FRAMES => {
                self.places.push(Place {
                    generation: 0,
                    is_live: false,
                    user,
                    mapping: None,
                    own_bytes: 0,
                    has: [Has::Nothing; 2],
                });
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.places[index as usize];
        // No generation is 0, because a handle of zeros names nothing at all.
        place.generation = place.generation.wrapping_add(1).max(1);
        place.is_live = true;
        place.user = user;
        *self.by_user.entry(user).or_default() += 1;
        Some(Handle::new(index, place.generation))
    }

    /// Takes a frame from peers that have not answered. Returns whether one was busy with it, and not with frames of others before it.
    fn give_up_asking(&mut self, frame: Handle) -> bool {
        let mut any = false;
        for side in SIDES {
            let Some(place) = self.place_mut(frame) else { return false };
            if place.has[side as usize] != Has::Asked {
                continue;
            }
            let is_it = |(event, _): &(FrameEvent, _)| match event {
                FrameEvent::Map { frame: of, .. }
                | FrameEvent::Allocate { frame: of, .. }
                | FrameEvent::Attach { frame: of, .. } => *of == frame,
                FrameEvent::Unmap { .. } | FrameEvent::Restart | FrameEvent::Export { .. } => false,
            };
            let mut has = Has::Late;
            if let Some(peer) = self.peer_mut(side) {
                // Also if it is busy with another event, or has not asked for one.
                peer.is_late = true;
                if let Some(at) = peer.events.iter().position(is_it) {
                    peer.events.remove(at);
                    has = Has::Nothing;
                }
            }
            any |= has == Has::Late;
            if let Some(place) = self.place_mut(frame) {
                place.has[side as usize] = has;
            }
        }
        any
    }

    /// Tells both sides to unmap a frame that they have.
    fn release(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        place.is_live = false;
        let frame = Handle::new(index, place.generation);
        self.give_up_asking(frame);
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if let Some(mapping) = place.mapping.take() {
            self.by_key.remove(&mapping.key());
        }
        if let Some(engine) = &mut self.engine {
            engine.peer.forget_export(frame);
        }
        for side in SIDES {
            self.leave(side, index);
        }
        self.free_place(index);
    }

    /// Tells a peer to unmap a frame, if it may have it.
    fn leave(&mut self, side: Side, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if !matches!(place.has[side as usize], Has::Mapped { .. } | Has::Maybe) {
            return;
        }
        place.has[side as usize] = Has::Leaving;
        let frame = Handle::new(index, place.generation);
        if let Some(peer) = self.peer_mut(side) {
            peer.events.push_back((FrameEvent::Unmap { frame }, None));
        }
    }

    /// A peer has handled an event.
    fn reported(&mut self, side: Side, frame: Handle, result: FrameResult) {
        let index = frame.index();
        let Some(place) = self.place_mut(frame) else { return };
        let is_live = place.is_live;
        let has = &mut place.has[side as usize];
        match (*has, result) {
            (Has::Asked, FrameResult::Mapped { is_writable }) => *has = Has::Mapped { is_writable },
            (Has::Late, FrameResult::Mapped { is_writable }) => {
                *has = Has::Mapped { is_writable };
                self.leave(side, index);
            }
            (Has::Asked | Has::Late, _) | (Has::Leaving, FrameResult::Unmapped) => *has = Has::Nothing,
            // Reports that fit no event change nothing.
            _ => {}
        }
        if !is_live {
            self.free_place(index);
        }
    }

    /// A side is gone with all its mappings.
    fn lose(&mut self, side: Side) {
        for index in 0..self.places.len() as u32 {
            let place = &mut self.places[index as usize];
            if place.has[side as usize] != Has::Nothing {
                place.has[side as usize] = Has::Nothing;
                self.free_place(index);
            }
        }
    }

    fn free_place(&mut self, index: u32) {
        let place = &self.places[index as usize];
        let is_free = !place.is_live && place.has == [Has::Nothing; 2];
        if !is_free || !self.free.insert(index) {
            return;
        }
        let user = place.user;
        self.places[index as usize].own_bytes = 0;
        if let Some(count) = self.by_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&user);
            }
        }
    }
}

impl FramesOf {
    fn contains(&self, user: u32) -> bool {
        match self {
            Self::All => true,
            Self::Users(users) => users.contains(&user),
        }
    }
}

#[cfg(test)]
mod tests;
