//! The explored machine: processes on one or two CPUs, their write buffers, a preemptive scheduler, the engine.
//!
//! ```text
//! State { engine, processes at steps of their programs, running processes, write buffers }
//!   ── moves ──► Switch │ Step │ Drain │ Idle ── apply ──► next State, Happening { access, word, start, breach }
//! ```
//!
//! An honest process requests its transfers in turn, repeatedly. A malicious one issues anything that its page table allows,
//! in any order, and keeps no state. The scheduler switches at any point that is not masked. A switch includes a barrier, so
//! no store of one process leaves the buffer while another runs on the same CPU. A malicious store reaches the engine at
//! once, since a late one equals one issued later. Properties are checked where a transfer starts and where a process reaches
//! a conclusion ([`Breach`]). [`super::explore`] searches.

use super::machine::{
    Access, Answer, Caller, Held, Idle, Kind, MAX_PROCESSES, Meaning, PageTable, Place, Protocol, Step,
    Transfer, Word,
};

/// The behaviour of a process.
#[derive(Clone, Debug)]
pub enum Role {
    /// Initiates these in turn by its protocol's program.
    Honest(Vec<Transfer>),
    /// Issues any access it can.
    Malicious,
}

#[derive(Clone, Debug)]
pub struct Process {
    pub role: Role,
    pub table: PageTable,
}

/// The processes and the machine.
#[derive(Clone, Debug)]
pub struct Scene {
    pub name: &'static str,
    /// One to three; on two CPUs they alternate.
    pub processes: Vec<Process>,
    pub cpus: u8,
    /// Whether stores go through a write buffer that merges and reorders.
    pub buffered: bool,
    /// Whether the engine stops at the end of a page.
    pub clamp: bool,
    /// Sizes passed by malicious processes.
    pub sizes: Vec<u8>,
}

/// A property that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// A transfer started that no honest process requests and no malicious one may address.
    NobodyAsked(Transfer),
    /// A requested transfer touches a page beyond the rights of its issuer.
    BeyondRights(Transfer),
    /// One initiation started its transfer twice.
    Twice(Transfer),
    /// A process concludes that its transfer was started, but it was not.
    BelievedStarted(u8),
    /// A process concludes that its transfer was rejected, but it was started.
    BelievedRejected(u8),
}

/// The position of a process in its programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Actor {
    /// Number of the program; a malicious process chooses one at step 0.
    program: u8,
    step: u8,
    /// Number of transfers started by its present initiation.
    started: u8,
}

/// A CPU's stores that have not reached the engine, oldest first.
type Buffer = [Option<(Place, Word)>; 2];

/// The state that determines the possible moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<E> {
    pub engine: E,
    actors: [Actor; MAX_PROCESSES],
    running: [u8; 2],
    buffers: [Buffer; 2],
}

/// The path of an access out of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Direct,
    /// A store into the write buffer, behind earlier ones.
    Buffered,
    /// A store that replaces a buffered one to the same address.
    Merged(u8),
    /// A load answered by the write buffer.
    Serviced(u8),
}

/// A possible next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// The scheduler switches a CPU to another process.
    Switch { to: u8 },
    /// A process takes its next step.
    Step { who: u8, program: u8, way: Way },
    /// A buffered store reaches the engine.
    Drain { cpu: u8, entry: u8 },
    /// The engine makes a step by itself; its number among the possible ones.
    Idle(u8),
}

/// The effect of a move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happening {
    /// The access that was issued or reached the engine.
    pub access: Option<Access>,
    pub word: Option<Word>,
    /// The transfer that started, as carried out by the engine.
    pub starts: Option<Transfer>,
    /// The conclusion of the process.
    pub meaning: Option<Meaning>,
    pub breach: Option<Breach>,
    /// The name of the engine's own step.
    pub says: &'static str,
}

/// A protocol in a scene.
pub struct Machine<'a, P: Protocol> {
    pub protocol: &'a P,
    pub scene: &'a Scene,
    programs: Vec<Vec<Vec<Step>>>,
}

impl<'a, P: Protocol> Machine<'a, P> {
    pub fn new(protocol: &'a P, scene: &'a Scene) -> Self {
        let program = |(who, process): (u8, &Process)| match &process.role {
            Role::Honest(wants) => wants.iter().map(|wants| protocol.program(who, *wants)).collect(),
            Role::Malicious => protocol.attacks(Caller { who, table: &process.table, sizes: &scene.sizes }),
        };
        let programs = (0u8..).zip(scene.processes.iter()).map(program).collect();
        Self { protocol, scene, programs }
    }

    pub fn reset(&self) -> State<P::Engine> {
        let tables: Vec<PageTable> = self.scene.processes.iter().map(|process| process.table).collect();
        State {
            engine: self.protocol.reset(&tables),
            actors: Default::default(),
            running: [0, 1],
            buffers: Default::default(),
        }
    }

    /// The CPU of a process.
    fn cpu(&self, who: u8) -> usize {
        usize::from(who % self.scene.cpus)
    }

    /// Whether a process follows its program.
    pub fn is_honest(&self, who: u8) -> bool {
        matches!(self.scene.processes.get(usize::from(who)), Some(Process { role: Role::Honest(_), .. }))
    }

    /// The numbers of all processes.
    pub fn everyone(&self) -> std::ops::Range<u8> {
        0..self.scene.processes.len() as u8
    }

    fn step(&self, who: u8, program: u8, step: u8) -> Option<&Step> {
        self.programs.get(usize::from(who))?.get(usize::from(program))?.get(usize::from(step))
    }

    /// The protection of a process between its last step and its next.
    fn held(&self, state: &State<P::Engine>, who: u8) -> Held {
        let actor = state.actors[usize::from(who)];
        let last = actor.step.checked_sub(1).and_then(|last| self.step(who, actor.program, last));
        last.map_or(Held::Nothing, Step::held)
    }

    /// Whether a process cannot be interrupted now.
    pub fn is_masked(&self, state: &State<P::Engine>, who: u8) -> bool {
        self.held(state, who) != Held::Nothing
    }

    /// Whether a process is inside an initiation.
    pub fn is_initiating(&self, state: &State<P::Engine>, who: u8) -> bool {
        state.actors[usize::from(who)].step > 0
    }

    /// Whether a process runs on its CPU now.
    pub fn is_running(&self, state: &State<P::Engine>, who: u8) -> bool {
        state.running[self.cpu(who)] == who
    }

    /// All possible next moves.
    pub fn moves(&self, state: &State<P::Engine>) -> Vec<Move> {
        let mut moves = Vec::new();
        for who in self.everyone() {
            let cpu = self.cpu(who);
            if state.running[cpu] == who {
                self.steps(state, who, &mut moves);
            } else if !self.is_masked(state, state.running[cpu]) && state.buffers[cpu][0].is_none() {
                moves.push(Move::Switch { to: who });
            }
        }
        for cpu in 0..self.scene.cpus {
            let [first, second] = state.buffers[usize::from(cpu)];
            moves.extend(first.map(|_| Move::Drain { cpu, entry: 0 }));
            if let (Some((older, _)), Some((at, _))) = (first, second)
                && older != at
            {
                moves.push(Move::Drain { cpu, entry: 1 });
            }
        }
        let ways = self.protocol.idle(&state.engine).len() as u8;
        moves.extend((0..ways).map(Move::Idle));
        moves
    }

    /// Adds the next steps of a running process.
    fn steps(&self, state: &State<P::Engine>, who: u8, moves: &mut Vec<Move>) {
        let actor = state.actors[usize::from(who)];
        let chosen = if actor.step == 0 && !self.is_honest(who) {
            0..self.programs[usize::from(who)].len() as u8
        } else {
            actor.program..actor.program + 1
        };
        for program in chosen {
            let Some(step) = self.step(who, program, actor.step) else { continue };
            let enters = step.held() == Held::Lock && self.held(state, who) != Held::Lock;
            if enters && self.everyone().any(|other| self.held(state, other) == Held::Lock) {
                continue;
            }
            let buffer = state.buffers[self.cpu(who)];
            self.ways(step, &buffer, self.is_honest(who), |way| {
                moves.push(Move::Step { who, program, way });
            });
        }
    }

    /// The ways of a step out of the processor, given its write buffer.
    fn ways(&self, step: &Step, buffer: &Buffer, honest: bool, mut can: impl FnMut(Way)) {
        let Step::Access(access, held) = step else {
            if buffer[0].is_none() {
                can(Way::Direct);
            }
            return;
        };
        let same = |entry: &Option<(Place, Word)>| entry.is_some_and(|(at, _)| at == access.at);
        let last_same = buffer.iter().rposition(same);
        if !self.scene.buffered || !honest || *held != Held::Nothing {
            can(Way::Direct);
        } else if access.kind == Kind::Load {
            // A load without a buffered store to its address passes the buffered stores.
            can(last_same.map_or(Way::Direct, |entry| Way::Serviced(entry as u8)));
        } else if access.kind == Kind::Store {
            if let Some(entry) = last_same {
                can(Way::Merged(entry as u8));
            }
            if buffer[1].is_none() {
                can(Way::Buffered);
            }
        } else if buffer[0].is_none() {
            can(Way::Direct);
        }
    }

    /// Applies a move, which must be one of [`moves`](Self::moves).
    pub fn apply(&self, state: &State<P::Engine>, chosen: Move) -> (State<P::Engine>, Happening) {
        let mut next = state.clone();
        let mut happening = Happening::default();
        match chosen {
            Move::Switch { to } => {
                next.running[self.cpu(to)] = to;
                self.protocol.switched(&mut next.engine, to);
            }
            Move::Step { who, program, way } => self.take(&mut next, who, program, way, &mut happening),
            Move::Drain { cpu, entry } => {
                let buffer = &mut next.buffers[usize::from(cpu)];
                if let Some((at, data)) = buffer[usize::from(entry)].take() {
                    if entry == 0 {
                        buffer.swap(0, 1);
                    }
                    let access = Access::store(at, data);
                    happening.access = Some(access);
                    let answer = self.protocol.arrive(&mut next.engine, access);
                    self.started(&mut next, answer.starts, None, &mut happening);
                }
            }
            Move::Idle(way) => {
                let ways = self.protocol.idle(&state.engine);
                if let Some(Idle { engine, starts, says }) = ways.into_iter().nth(usize::from(way)) {
                    next.engine = engine;
                    happening.says = says;
                    self.started(&mut next, starts, None, &mut happening);
                }
            }
        }
        (next, happening)
    }

    fn take(&self, next: &mut State<P::Engine>, who: u8, program: u8, way: Way, happening: &mut Happening) {
        let at = next.actors[usize::from(who)].step;
        next.actors[usize::from(who)].program = program;
        let Some(step) = self.step(who, program, at) else { return };
        let mut read = None;
        if let Step::Access(access, _) = step {
            happening.access = Some(*access);
            let buffer = &mut next.buffers[self.cpu(who)];
            match way {
                Way::Direct => {
                    let Answer { word, starts } = self.protocol.arrive(&mut next.engine, *access);
                    self.started(next, starts, Some(who), happening);
                    read = (access.kind != Kind::Store).then_some(word);
                }
                Way::Buffered => {
                    let free = usize::from(buffer[0].is_some());
                    buffer[free] = Some((access.at, access.data));
                }
                Way::Merged(entry) => buffer[usize::from(entry)] = Some((access.at, access.data)),
                Way::Serviced(entry) => read = buffer[usize::from(entry)].map(|(_, data)| data),
            }
        }
        happening.word = read;
        self.conclude(next, who, at, read, happening);
    }

    /// Advances a process by the word that it read.
    fn conclude(
        &self,
        next: &mut State<P::Engine>,
        who: u8,
        at: u8,
        read: Option<Word>,
        happening: &mut Happening,
    ) {
        let program = next.actors[usize::from(who)].program;
        let is_last = self.step(who, program, at + 1).is_none();
        let reads = |step: &u8| matches!(self.step(who, program, *step), Some(Step::Access(access, _)) if access.kind != Kind::Store);
        let before = (0..at).filter(reads).count();
        let actor = &mut next.actors[usize::from(who)];
        let Some(Process { role: Role::Honest(wants), .. }) = self.scene.processes.get(usize::from(who))
        else {
            *actor = if is_last { Actor::default() } else { Actor { step: at + 1, ..*actor } };
            return;
        };
        let meaning = read.map_or(Meaning::Continue, |word| self.protocol.meaning(who, before, word));
        let asked = wants.len() as u8;
        let started = actor.started;
        match meaning {
            Meaning::Again => return,
            Meaning::Continue if !is_last => actor.step = at + 1,
            Meaning::Continue | Meaning::Rejected => {
                *actor = Actor { program: actor.program, ..Actor::default() }
            }
            Meaning::Started => *actor = Actor { program: (actor.program + 1) % asked, ..Actor::default() },
        }
        if meaning != Meaning::Continue {
            happening.meaning = Some(meaning);
        }
        if meaning == Meaning::Started && started == 0 {
            happening.breach = Some(Breach::BelievedStarted(who));
        } else if meaning == Meaning::Rejected && started > 0 {
            happening.breach = happening.breach.or(Some(Breach::BelievedRejected(who)));
        }
    }

    /// The transfer that the engine carries out for a request.
    fn carried_out(&self, asked: Transfer) -> Transfer {
        if self.scene.clamp && !self.protocol.checks_size() { asked.clamped() } else { asked }
    }

    /// Checks a transfer that starts: its issuer, and whether that process has the rights.
    fn started(
        &self,
        next: &mut State<P::Engine>,
        starts: Option<Transfer>,
        issuer: Option<u8>,
        happening: &mut Happening,
    ) {
        let Some(transfer) = starts.map(|asked| self.carried_out(asked)) else { return };
        happening.starts = Some(transfer);
        for ((who, actor), process) in (0u8..).zip(next.actors.iter_mut()).zip(&self.scene.processes) {
            let Role::Honest(wants) = &process.role else { continue };
            let wants = wants.get(usize::from(actor.program)).map(|wants| self.carried_out(*wants));
            // Between two initiations a process requests nothing.
            let asks = actor.step > 0 || issuer == Some(who);
            if asks && wants == Some(transfer) {
                actor.started = (actor.started + 1).min(2);
                happening.breach = match (process.table.covers(transfer), actor.started) {
                    (false, _) => Some(Breach::BeyondRights(transfer)),
                    (true, 2) => Some(Breach::Twice(transfer)),
                    (true, _) => None,
                };
                return;
            }
        }
        let malicious = || {
            let all = self.scene.processes.iter();
            all.filter(|process| matches!(process.role, Role::Malicious)).map(|process| process.table)
        };
        happening.breach = if malicious().any(|table| table.covers(transfer)) {
            None
        } else if malicious().any(|table| table.names(transfer)) {
            Some(Breach::BeyondRights(transfer))
        } else {
            Some(Breach::NobodyAsked(transfer))
        };
    }
}
