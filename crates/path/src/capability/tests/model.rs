//! Random histories against a naive table: a list of records with parents, searched from scratch for each question.
//!
//! ```text
//! Step ──► Capabilities ──► answer ─┐
//!      └─► Model ─────────► answer ─┴─► equal; then every handle in every session, and every holder of memory
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const QUOTA: usize = 10;
const SESSIONS: [SessionId; 3] = [A, B, C];

fn user_of(session: SessionId) -> u32 {
    if session == A { ALICE } else { BOB }
}

fn node() -> NodeName {
    "far".parse().unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Register {
        session: usize,
        length: u64,
        rights: u8,
    },
    Derive {
        session: usize,
        of: Index,
        range: (u64, u64),
        rights: u8,
    },
    Grant {
        session: usize,
        of: Index,
        range: (u64, u64),
        rights: u8,
        to: Grantee,
        lasts: Option<u64>,
    },
    /// For a user of another node, if one is named.
    Accept {
        session: usize,
        token: Index,
        far: Option<u32>,
    },
    Revoke {
        session: usize,
        of: Index,
    },
    Close {
        session: usize,
    },
    Admit {
        session: usize,
        source: Index,
        destination: Index,
        range: (u64, u64),
    },
    Release {
        which: Index,
    },
    /// Grants may end by it.
    Pass {
        nanoseconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..3_usize;
    let range = (0..20_u64, 0..24_u64);
    let rights = rights();
    let to = prop_oneof![
        (0..3_usize).prop_map(|session| Grantee::Session(SESSIONS[session])),
        prop_oneof![Just(ALICE), Just(BOB)].prop_map(Grantee::User),
        prop_oneof![Just(ALICE), Just(BOB)].prop_map(|user| Grantee::Remote { node: node(), user }),
    ];
    let any = any::<Index>;
    prop_oneof![
        2 => (session.clone(), 0..40_u64, rights.clone())
            .prop_map(|(session, length, rights)| Step::Register { session, length, rights }),
        4 => (session.clone(), any(), range.clone(), rights.clone())
            .prop_map(|(session, of, range, rights)| Step::Derive { session, of, range, rights }),
        4 => (session.clone(), any(), range.clone(), rights, to, proptest::option::of(0..30_u64)).prop_map(
            |(session, of, range, rights, to, lasts)| Step::Grant { session, of, range, rights, to, lasts },
        ),
        6 => (session.clone(), any(), proptest::option::weighted(0.3, prop_oneof![Just(ALICE), Just(BOB)]))
            .prop_map(|(session, token, far)| Step::Accept { session, token, far }),
        3 => (session.clone(), any()).prop_map(|(session, of)| Step::Revoke { session, of }),
        1 => session.clone().prop_map(|session| Step::Close { session }),
        6 => (session, any(), any(), range).prop_map(|(session, source, destination, range)| {
            Step::Admit { session, source, destination, range }
        }),
        4 => any().prop_map(|which| Step::Release { which }),
        2 => (0..20_u64).prop_map(|nanoseconds| Step::Pass { nanoseconds }),
    ]
}

/// Usually all rights, so that long chains of capabilities arise.
fn rights() -> impl Strategy<Value = u8> + Clone {
    prop_oneof![3 => Just(15_u8), 1 => 0..16_u8]
}

struct Record {
    handle: Handle,
    session: SessionId,
    parent: Option<usize>,
    memory: usize,
    offset: u64,
    length: u64,
    rights: Rights,
    grantee: Option<Grantee>,
    /// The moment from which it gives no access.
    expires: Option<u64>,
    in_flight: usize,
    revoked: bool,
    /// Its holder gets no tombstone.
    forgotten: bool,
}

struct Running {
    admitted: Admitted<Counted>,
    records: [usize; 2],
}

/// What a mirror heard, by index.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<BTreeMap<u32, Alive>>>);

/// What the mirror was told of a living entry.
type Alive = (Handle, SessionId, (u64, u64), Rights);

impl Mirror<Counted> for Heard {
    fn appeared(
        &mut self,
        handle: Handle,
        session: SessionId,
        memory: &Counted,
        range: (u64, u64),
        rights: Rights,
    ) {
        assert!(range.0 + range.1 <= memory.length());
        let before = self.0.lock().unwrap().insert(handle.index(), (handle, session, range, rights));
        assert_eq!(before, None, "an index appeared twice");
    }

    fn died(&mut self, index: u32) {
        self.0.lock().unwrap().remove(&index);
    }
}

impl Heard {
    /// The range that a session may write by a handle.
    fn writable(&self, session: SessionId, handle: Handle) -> Option<(u64, u64)> {
        let (known, holder, range, rights) = *self.0.lock().unwrap().get(&handle.index())?;
        (known == handle && holder == session && rights.contains(Rights::WRITE)).then_some(range)
    }
}

struct Model {
    table: Capabilities<Counted>,
    clock: Ticks,
    heard: Heard,
    /// Revocations are done one node at a time.
    in_parts: bool,
    memories: Vec<Counted>,
    records: Vec<Record>,
    running: Vec<Running>,
    /// Revocations with the records they wait for.
    revocations: Vec<(RevocationId, Vec<usize>)>,
}

impl Model {
    fn new(in_parts: bool) -> Self {
        let heard = Heard::default();
        let clock = Ticks::default();
        let table = Capabilities::new(QUOTA).with_mirror(heard.clone()).with_clock(clock.clone());
        let memories = vec![];
        let records = vec![];
        let running = vec![];
        let revocations = vec![];
        Self { table, clock, heard, in_parts, memories, records, running, revocations }
    }

    fn do_step(&mut self, step: Step) {
        match step {
            Step::Register { session, length, rights } => self.register(SESSIONS[session], length, rights),
            Step::Derive { session, of, range, rights } => {
                self.narrow(SESSIONS[session], of, range, rights, None, None);
            }
            Step::Grant { session, of, range, rights, to, lasts } => {
                self.narrow(SESSIONS[session], of, range, rights, Some(to), lasts);
            }
            Step::Accept { session, token, far } => self.accept(SESSIONS[session], token, far),
            Step::Revoke { session, of } => self.revoke(SESSIONS[session], of),
            Step::Close { session } => self.close(SESSIONS[session]),
            Step::Admit { session, source, destination, range } => {
                self.admit(SESSIONS[session], [source, destination], range);
            }
            Step::Release { which } => self.release(which),
            Step::Pass { nanoseconds } => self.clock.pass(nanoseconds),
        }
        self.check();
    }

    fn pick(&self, index: Index) -> Option<usize> {
        (!self.records.is_empty()).then(|| index.index(self.records.len()))
    }

    /// Whether it has expired.
    fn is_over(&self, record: &Record) -> bool {
        record.expires.is_some_and(|end| end <= self.clock.ticks())
    }

    /// The records from one up to its root.
    fn upwards(&self, index: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(index), |index| self.records[*index].parent)
    }

    /// Whether its handle still names it: it is live, a tombstone, or has something in flight on it or below.
    fn present(&self, index: usize) -> bool {
        let record = &self.records[index];
        let in_use =
            |other: usize| self.records[other].in_flight > 0 && self.upwards(other).any(|up| up == index);
        !(record.revoked && record.forgotten) || (0..self.records.len()).any(in_use)
    }

    fn held_by(&self, session: SessionId) -> usize {
        let held = |index: &usize| self.records[*index].session == session && self.present(*index);
        (0..self.records.len()).filter(held).count()
    }

    fn add(&mut self, handle: Handle, record: Record) {
        let clash = self.records.iter().any(|other| other.handle == handle);
        assert!(!clash, "handle {handle} was assigned twice");
        self.records.push(Record { handle, ..record });
    }

    fn register(&mut self, session: SessionId, length: u64, rights: u8) {
        let memory = Counted::new(length);
        let rights = Rights::from_bits_truncate(rights);
        let full = self.held_by(session) >= QUOTA;
        match self.table.register(session, memory.clone(), rights) {
            Ok(handle) => {
                assert!(!full);
                self.memories.push(memory);
                let memory = self.memories.len() - 1;
                self.add(handle, fresh(session, None, memory, (0, length), rights));
            }
            Err(error) => assert!(full && error == CapabilityError::Quota { limit: QUOTA }),
        }
    }

    fn narrow(
        &mut self,
        session: SessionId,
        of: Index,
        (offset, length): (u64, u64),
        rights: u8,
        to: Option<Grantee>,
        lasts: Option<u64>,
    ) {
        let Some(of) = self.pick(of) else { return };
        let wanted = Rights::from_bits_truncate(rights);
        let parent = &self.records[of];
        let handle = parent.handle;
        let held = parent.rights;
        let available = parent.length;
        let expected = if parent.session != session || !self.present(of) {
            Some(CapabilityError::Unknown(handle))
        } else if parent.revoked {
            Some(CapabilityError::Revoked(handle))
        } else if offset + length > available {
            Some(CapabilityError::OutOfRange { handle, offset, length, available })
        } else if wanted.is_empty() || !(wanted - held).is_empty() {
            Some(CapabilityError::Rights { handle, held, wanted })
        } else if self.is_over(parent) {
            Some(CapabilityError::Expired(handle))
        } else if to.is_some() && !held.contains(Rights::GRANT) {
            Some(CapabilityError::NotGrantable(handle))
        } else if self.held_by(session) >= QUOTA {
            Some(CapabilityError::Quota { limit: QUOTA })
        } else {
            None
        };
        let range = (parent.offset + offset, length);
        let own_end = lasts.map(|lasts| self.clock.ticks() + lasts);
        let expires = own_end.into_iter().chain(parent.expires).min();
        let record =
            Record { grantee: to, expires, ..fresh(session, Some(of), parent.memory, range, wanted) };
        let answer = match to {
            None => self.table.derive(session, handle, (offset, length), wanted),
            Some(to) => {
                let lasts = lasts.map(Duration::from_nanos);
                let granted = self.table.grant_for(session, handle, (offset, length), wanted, to, lasts);
                granted.map(GrantToken::handle)
            }
        };
        assert_eq!(answer.err(), expected);
        if let Ok(handle) = answer {
            self.add(handle, record);
        }
    }

    fn accept(&mut self, session: SessionId, token: Index, far: Option<u32>) {
        let Some(token) = self.pick(token) else { return };
        let grant = &self.records[token];
        let is_grantee = match grant.grantee {
            None => false,
            Some(Grantee::Session(to)) => far.is_none() && to == session,
            Some(Grantee::User(to)) => far.is_none() && to == user_of(session),
            Some(Grantee::Remote { user, .. }) => far == Some(user),
        };
        let expected = if grant.revoked || !is_grantee {
            Some(CapabilityError::NoSuchGrant(GrantToken::from_handle(grant.handle)))
        } else if self.is_over(grant) {
            Some(CapabilityError::ExpiredGrant(GrantToken::from_handle(grant.handle)))
        } else if self.held_by(session) >= QUOTA {
            Some(CapabilityError::Quota { limit: QUOTA })
        } else {
            None
        };
        let range = (grant.offset, grant.length);
        let fresh = fresh(session, Some(token), grant.memory, range, grant.rights);
        let record = Record { expires: grant.expires, ..fresh };
        let token = GrantToken::from_handle(grant.handle);
        let answer = match far {
            None => self.table.accept(session, user_of(session), token),
            Some(user) => self.table.accept_for(session, (node(), user), token),
        };
        assert_eq!(answer.err(), expected);
        if let Ok(accepted) = answer {
            assert_eq!((accepted.length, accepted.rights), (record.length, record.rights));
            self.add(accepted.handle, record);
        }
    }

    fn revoke(&mut self, session: SessionId, of: Index) {
        let Some(of) = self.pick(of) else { return };
        let record = &self.records[of];
        let known = record.session == session && self.present(of);
        let answer = if self.in_parts {
            self.table.begin_revoke(session, record.handle, 1)
        } else {
            self.table.revoke(session, record.handle)
        };
        while self.table.advance(1) {}
        match answer {
            Ok(id) => {
                assert!(known);
                self.revoked(id, &[of], session);
            }
            Err(error) => assert!(!known && error == CapabilityError::Unknown(record.handle)),
        }
    }

    fn close(&mut self, session: SessionId) {
        let held = |index: &usize| self.records[*index].session == session && self.present(*index);
        let targets: Vec<_> = (0..self.records.len()).filter(held).collect();
        let id = if self.in_parts { self.table.begin_close(session, 1) } else { self.table.close(session) };
        while self.table.advance(1) {}
        self.revoked(id, &targets, session);
    }

    fn revoked(&mut self, id: RevocationId, targets: &[usize], by: SessionId) {
        let below = |index: usize| self.upwards(index).any(|index| targets.contains(&index));
        let reached: Vec<_> = (0..self.records.len()).filter(|index| below(*index)).collect();
        for &index in &reached {
            let record = &mut self.records[index];
            // A node revoked earlier stays a tombstone until its own handle is released.
            if !record.revoked || targets.contains(&index) {
                record.forgotten |= record.session == by || record.grantee.is_some();
            }
            record.revoked = true;
        }
        self.revocations.push((id, reached));
    }

    fn admit(&mut self, session: SessionId, [source, destination]: [Index; 2], (offset, length): (u64, u64)) {
        let (Some(source), Some(destination)) = (self.pick(source), self.pick(destination)) else { return };
        let span = |index: usize, offset| Span::new(self.records[index].handle, offset);
        let request = Request::copy(span(source, offset), span(destination, 0), length);
        let expected = self
            .expected(session, Side::Source, source, (offset, length))
            .and_then(|()| self.expected(session, Side::Destination, destination, (0, length)));
        let answer = self.table.admit(session, &request, u64::MAX);
        assert_eq!(answer.as_ref().map(|_| ()).map_err(|failure| *failure), expected);
        self.admit_xor(session, [source, destination], (offset, length), expected);
        if let Ok(admitted) = answer {
            let records = [source, destination];
            records.iter().for_each(|index| self.records[*index].in_flight += 1);
            self.running.push(Running { admitted, records });
        }
    }

    /// Admits an xor of a copy's operands; `expected` is the answer to the copy.
    fn admit_xor(
        &mut self,
        session: SessionId,
        [source, destination]: [usize; 2],
        (offset, length): (u64, u64),
        expected: Result<(), Failure>,
    ) {
        let [from, to] = [source, destination].map(|index| &self.records[index]);
        let bytes = |record: &Record, offset| record.offset + offset..record.offset + offset + length;
        let [read, written] = [bytes(from, offset), bytes(to, 0)];
        let shared = read.clone().any(|byte| written.contains(&byte));
        let expected = expected.and_then(|()| match from.memory == to.memory && shared && read != written {
            true => Err(Failure::Overlap { operand: 0 }),
            false => Ok(()),
        });
        let sources = Box::new([Span::new(from.handle, offset)]);
        let destination = Span::new(to.handle, 0);
        let answer = self.table.admit(
            session,
            &Request::new(Operation::Xor { sources, destination, length }),
            u64::MAX,
        );
        assert_eq!(answer.as_ref().map(|_| ()).map_err(|failure| *failure), expected);
        if let Ok(admitted) = answer {
            release(&mut self.table, admitted);
        }
    }

    fn release(&mut self, which: Index) {
        if !self.running.is_empty() {
            let running = self.running.remove(which.index(self.running.len()));
            self.end(running);
        }
    }

    fn end(&mut self, Running { admitted, records }: Running) {
        let revoked = records.iter().any(|index| self.records[*index].revoked);
        assert_eq!(self.table.uses_revoked(admitted.claims()), revoked);
        release(&mut self.table, admitted);
        records.iter().for_each(|index| self.records[*index].in_flight -= 1);
    }

    /// The expected answer of admission for one operand.
    fn expected(
        &self,
        session: SessionId,
        side: Side,
        index: usize,
        (offset, length): (u64, u64),
    ) -> Result<(), Failure> {
        let record = &self.records[index];
        let handle = record.handle;
        let needed = if side == Side::Source { Rights::READ } else { Rights::WRITE };
        if record.session != session || !self.present(index) {
            let same_slot = |other: &usize| self.records[*other].handle.index() == handle.index();
            let at = (0..self.records.len()).rev().find(same_slot).expect("the record itself");
            let latest = &self.records[at];
            let is_stale = latest.handle != handle || !self.present(at);
            Err(if is_stale && latest.session == session {
                Failure::StaleHandle { side, handle }
            } else {
                Failure::UnknownHandle { side, handle }
            })
        } else if record.revoked {
            Err(Failure::Revoked { side, handle })
        } else if record.grantee.is_some() || !record.rights.contains(needed) {
            Err(Failure::MissingRight { side, handle })
        } else if self.is_over(record) {
            Err(Failure::Expired { side, handle })
        } else if offset + length > record.length {
            Err(Failure::OutOfBounds { side, available: record.length })
        } else {
            Ok(())
        }
    }

    fn check(&mut self) {
        for session in SESSIONS {
            assert_eq!(self.table.count(session), self.held_by(session));
            for index in 0..self.records.len() {
                let record = &self.records[index];
                let handle = record.handle;
                let place = (record.offset, record.length);
                let expected = self.expected(session, Side::Destination, index, (0, record.length));
                let admitted = filled(&mut self.table, session, handle, (0, place.1));
                assert_eq!(admitted, expected.map(|()| place));
                // A mirror is not told of what expires.
                let mirrored = expected.ok().filter(|()| record.expires.is_none()).map(|()| place);
                assert_eq!(self.heard.writable(session, handle), mirrored);
            }
        }
        let mut over = Vec::new();
        let records = &self.records;
        self.revocations.retain(|(id, awaited)| {
            let waits = awaited.iter().any(|index| records[*index].in_flight > 0);
            if !waits {
                over.push(*id);
            }
            waits
        });
        let mut finished = self.table.take_finished();
        finished.sort();
        assert_eq!(finished, over);
        drop(self.table.take_dropped());
        self.check_memories();
        self.check_owners();
    }

    /// The table looks for owners among the registered capabilities only, however many are below them.
    fn check_owners(&self) {
        let roots = self.records.iter().filter(|record| record.parent.is_none() && !record.revoked);
        assert_eq!(self.table.roots.len(), roots.clone().count());
        let owners: BTreeSet<_> = roots.map(|record| record.session).collect();
        assert_eq!(self.table.owners(|_| true), Vec::from_iter(owners));
    }

    /// Memory is held only by capabilities that give access or have requests in flight, by these requests, and by the registered capability
    /// as long as there are such requests below it.
    fn check_memories(&self) {
        for (index, memory) in self.memories.iter().enumerate() {
            let is_used = self.records.iter().any(|record| record.memory == index && record.in_flight > 0);
            let kept = |record: &&Record| {
                let is_root_of_used = record.parent.is_none() && is_used;
                record.memory == index && (!record.revoked || record.in_flight > 0 || is_root_of_used)
            };
            let running = self.running.iter().flat_map(|running| running.records);
            let operands = running.filter(|record| self.records[*record].memory == index).count();
            assert_eq!(memory.holders(), self.records.iter().filter(kept).count() + operands);
        }
    }
}

fn fresh(
    session: SessionId,
    parent: Option<usize>,
    memory: usize,
    (offset, length): (u64, u64),
    rights: Rights,
) -> Record {
    Record {
        handle: Handle::from_bits(0),
        session,
        parent,
        memory,
        offset,
        length,
        rights,
        grantee: None,
        expires: None,
        in_flight: 0,
        revoked: false,
        forgotten: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_agrees_with_the_naive_table(
        steps in proptest::collection::vec(step(), 1..80),
        in_parts: bool,
    ) {
        let mut model = Model::new(in_parts);
        for step in steps {
            model.do_step(step);
        }
        for session in SESSIONS {
            model.close(session);
        }
        while let Some(running) = model.running.pop() {
            model.end(running);
        }
        model.check();
        prop_assert!(model.memories.iter().all(|memory| memory.holders() == 0));
        prop_assert!(model.revocations.is_empty());
    }
}
