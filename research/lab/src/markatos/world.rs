//! The machine that is explored: processes on one or two CPUs, their write buffers, a preemptive scheduler, the engine.
//!
//! ```text
//! State { engine, processes at steps of their programs, who runs where, write buffers }
//!   ── moves ──► Switch │ Step │ Drain │ Idle ── apply ──► next State, Happening { access, word, start, breach }
//! ```
//!
//! An honest process asks for its transfers in turn, again and again. A malicious one issues whatever its page table
//! allows, in any order: it keeps no state. The scheduler switches at any point that is not masked; the switch itself
//! has a barrier in it, so no store of one process leaves the buffer in the time of another on the same CPU. A malicious
//! store reaches the engine at once: a late one is one that was issued late. Which properties hold is decided where a
//! transfer starts and where a process concludes something ([`Breach`]). Nothing is searched here; see
//! [`super::explore`].

use super::machine::{
    Access, Answer, Caller, Held, Idle, Kind, MOST_PROCESSES, Meaning, PageTable, Place, Protocol, Step,
    Transfer, Word,
};

/// What a process is after.
#[derive(Clone, Debug)]
pub enum Role {
    /// It initiates these, in turn, by its protocol's program.
    Honest(Vec<Transfer>),
    /// It issues whatever it can.
    Malicious,
}

#[derive(Clone, Debug)]
pub struct Process {
    /// What it is after.
    pub role: Role,
    pub table: PageTable,
}

/// Who is there, and on what machine.
#[derive(Clone, Debug)]
pub struct Scene {
    pub name: &'static str,
    /// One to three; with two CPUs they are dealt out in turn.
    pub processes: Vec<Process>,
    pub cpus: u8,
    /// Whether stores go through a write buffer that merges and reorders.
    pub buffered: bool,
    /// Whether the engine stops at the end of a page.
    pub clamp: bool,
    /// Sizes that malicious processes pass.
    pub sizes: Vec<u8>,
}

/// A property that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// A transfer started that no honest process is asking for and no malicious one may address.
    NobodyAsked(Transfer),
    /// It was asked for, and touches a page that whoever asked has no right to.
    BeyondRights(Transfer),
    /// One initiation started its transfer twice.
    Twice(Transfer),
    /// A process concludes that its transfer was started, and it was not.
    ToldStarted(u8),
    /// A process concludes that its transfer was rejected, and it was started.
    ToldRejected(u8),
}

/// Where a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Actor {
    /// Of its programs; a malicious process chooses one whenever it is at step 0.
    program: u8,
    step: u8,
    /// Transfers that its present initiation started.
    started: u8,
}

/// A CPU's stores that have not reached the engine, the oldest first.
type Buffer = [Option<(Place, Word)>; 2];

/// Everything that decides what may happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<E> {
    pub engine: E,
    actors: [Actor; MOST_PROCESSES],
    running: [u8; 2],
    buffers: [Buffer; 2],
}

/// How an access leaves the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Direct,
    /// A store into the write buffer, behind what is there.
    Buffered,
    /// A store that takes the place of one to the same address.
    Merged(u8),
    /// A load that the write buffer answers.
    Serviced(u8),
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// The scheduler gives a CPU to another process.
    Switch { to: u8 },
    /// A process takes its next step.
    Step { who: u8, program: u8, way: Way },
    /// A buffered store reaches the engine.
    Drain { cpu: u8, entry: u8 },
    /// The engine goes on by itself, in one of the ways that it has.
    Idle(u8),
}

/// What a move did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happening {
    /// The access that was issued, or that reached the engine.
    pub access: Option<Access>,
    pub word: Option<Word>,
    /// What began, as the engine carries it out.
    pub starts: Option<Transfer>,
    /// What the process concludes.
    pub meaning: Option<Meaning>,
    /// The property that was broken.
    pub breach: Option<Breach>,
    /// What the engine did by itself.
    pub says: &'static str,
}

/// A protocol in a scene.
pub struct Machine<'a, P: Protocol> {
    pub protocol: &'a P,
    pub scene: &'a Scene,
    programs: Vec<Vec<Vec<Step>>>,
}

impl<'a, P: Protocol> Machine<'a, P> {
    /// A protocol in a scene.
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

    /// The numbers of the processes.
    pub fn everyone(&self) -> std::ops::Range<u8> {
        0..self.scene.processes.len() as u8
    }

    fn step(&self, who: u8, program: u8, step: u8) -> Option<&Step> {
        self.programs.get(usize::from(who))?.get(usize::from(program))?.get(usize::from(step))
    }

    /// What holds a process between its last step and its next.
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

    /// Whether a process has its CPU.
    pub fn is_running(&self, state: &State<P::Engine>, who: u8) -> bool {
        state.running[self.cpu(who)] == who
    }

    /// Everything that may happen next.
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

    /// The next steps of a process that runs.
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

    /// How a step can leave the processor, given what its buffer holds.
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
            // A load that finds nothing to its address goes ahead of the stores that wait.
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

    /// What a move leads to; it has to be one of [`moves`](Self::moves).
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

    /// Moves a process on, by what it read.
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
        let meaning = read.map_or(Meaning::GoOn, |word| self.protocol.meaning(who, before, word));
        let asked = wants.len() as u8;
        let started = actor.started;
        match meaning {
            Meaning::Again => return,
            Meaning::GoOn if !is_last => actor.step = at + 1,
            Meaning::GoOn | Meaning::Rejected => {
                *actor = Actor { program: actor.program, ..Actor::default() }
            }
            Meaning::Started => *actor = Actor { program: (actor.program + 1) % asked, ..Actor::default() },
        }
        if meaning != Meaning::GoOn {
            happening.meaning = Some(meaning);
        }
        if meaning == Meaning::Started && started == 0 {
            happening.breach = Some(Breach::ToldStarted(who));
        } else if meaning == Meaning::Rejected && started > 0 {
            happening.breach = happening.breach.or(Some(Breach::ToldRejected(who)));
        }
    }

    /// What the engine carries out of what it was asked for.
    fn carried_out(&self, asked: Transfer) -> Transfer {
        if self.scene.clamp && !self.protocol.checks_size() { asked.clamped() } else { asked }
    }

    /// A transfer begins: whose it is, and whether that process may have it.
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
            // Between two initiations a process asks for nothing.
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
