//! Generations of handles: all short histories of the capability table, without requests in flight, against a list of what was issued.
//!
//! ```text
//! every sequence of register, derive, grant, accept, revoke, close ─► Capabilities ─► which handles give access? ─┐
//!                                                                  └► Issued, a list ─► which should? ──────────┴─► equal
//! ```
//!
//! A slot of the table is used again as soon as its capability is gone, so that short histories have many handles of few slots. Requests
//! in flight, expiry and quotas are left to the random histories of `crates/path/src/capability/tests/model.rs`.

use std::collections::BTreeSet;

use memferry_path::{Capabilities, Grantee};
use memferry_transfer::{GrantToken, Handle, Memory, Rights, SessionId, Side, Span};

const SESSIONS: [SessionId; 2] = [SessionId(1), SessionId(2)];
const LENGTH: u64 = 8;

#[derive(Clone, Debug)]
struct Bytes;

impl Memory for Bytes {
    fn length(&self) -> u64 {
        LENGTH
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// By the session of this number.
    Register(usize),
    /// From the capability of this number, by its holder.
    Derive(usize),
    /// To the other session.
    Grant(usize),
    /// The grant of this number, by the other session.
    Accept(usize),
    /// By its holder, also when it is gone already.
    Revoke(usize),
    Close(usize),
}

/// A handle that was issued.
#[derive(Clone, Copy, Debug)]
struct Issued {
    handle: Handle,
    session: usize,
    parent: Option<usize>,
    is_grant: bool,
    is_live: bool,
}

struct History {
    table: Capabilities<Bytes>,
    issued: Vec<Issued>,
}

impl History {
    fn new() -> Self {
        Self { table: Capabilities::new(usize::MAX), issued: Vec::new() }
    }

    /// The steps that can come next.
    fn next(&self) -> Vec<Step> {
        let mut steps: Vec<Step> =
            (0..2).flat_map(|session| [Step::Register(session), Step::Close(session)]).collect();
        for (number, one) in self.issued.iter().enumerate() {
            if one.is_live {
                steps.push(if one.is_grant { Step::Accept(number) } else { Step::Derive(number) });
                if !one.is_grant {
                    steps.push(Step::Grant(number));
                }
            }
            steps.push(Step::Revoke(number));
        }
        steps
    }

    fn add(&mut self, handle: Handle, session: usize, parent: Option<usize>, is_grant: bool) {
        self.issued.push(Issued { handle, session, parent, is_grant, is_live: true });
    }

    fn take(&mut self, step: Step) {
        let whole = (0, LENGTH);
        match step {
            Step::Register(session) => {
                let handle = self.table.register(SESSIONS[session], Bytes, Rights::all()).expect("no quota");
                self.add(handle, session, None, false);
            }
            Step::Derive(number) => {
                let Issued { handle, session, .. } = self.issued[number];
                let derived = self.table.derive(SESSIONS[session], handle, whole, Rights::all());
                self.add(derived.expect("a live capability"), session, Some(number), false);
            }
            Step::Grant(number) => {
                let Issued { handle, session, .. } = self.issued[number];
                let to = Grantee::Session(SESSIONS[1 - session]);
                let token = self.table.grant(SESSIONS[session], handle, whole, Rights::all(), to);
                self.add(token.expect("a live capability").handle(), session, Some(number), true);
            }
            Step::Accept(number) => {
                let Issued { handle, session, .. } = self.issued[number];
                let by = 1 - session;
                let accepted = self.table.accept(SESSIONS[by], 0, GrantToken::from_handle(handle));
                self.add(accepted.expect("a live grant").handle, by, Some(number), false);
            }
            Step::Revoke(number) => {
                let Issued { handle, session, .. } = self.issued[number];
                let _ = self.table.revoke(SESSIONS[session], handle);
                self.end(|issued, at| at == number && issued.is_live);
            }
            Step::Close(session) => {
                self.table.close(SESSIONS[session]);
                self.end(|issued, _| issued.session == session);
            }
        }
    }

    /// Ends capabilities and all below them. What is below has a higher number.
    fn end(&mut self, is_ended: impl Fn(&Issued, usize) -> bool) {
        let mut over = BTreeSet::new();
        for at in 0..self.issued.len() {
            let issued = self.issued[at];
            if is_ended(&issued, at) || issued.parent.is_some_and(|parent| over.contains(&parent)) {
                over.insert(at);
                self.issued[at].is_live = false;
            }
        }
    }

    /// Whether each handle that was ever issued gives access to its holder while it should, and to nobody else.
    fn check(&self) {
        for (number, issued) in self.issued.iter().enumerate() {
            let others = &self.issued[..number];
            assert!(others.iter().all(|other| other.handle != issued.handle), "issued twice: {issued:?}");
            for (session, id) in SESSIONS.into_iter().enumerate() {
                let span = Span::new(issued.handle, 0);
                let gives = self.table.operand(id, Side::Destination, span, LENGTH).is_some();
                let should = issued.is_live && !issued.is_grant && issued.session == session;
                assert_eq!(gives, should, "{issued:?} in session {id}");
            }
        }
    }
}

/// Checks every history of `length` steps. `before` are those of the present one. Returns how many there were.
fn histories(before: &mut Vec<Step>, length: usize) -> u64 {
    let mut history = History::new();
    before.iter().for_each(|step| history.take(*step));
    history.check();
    if before.len() == length {
        return 1;
    }
    let mut count = 0;
    for step in history.next() {
        before.push(step);
        count += histories(before, length);
        before.pop();
    }
    count
}

#[test]
fn every_history_of_five_steps_issues_no_handle_twice() {
    assert!(histories(&mut Vec::new(), 5) > 5_000);
}

#[test]
#[ignore = "takes minutes without optimization; ./x test --full proof runs it"]
fn every_history_of_seven_steps_issues_no_handle_twice() {
    assert!(histories(&mut Vec::new(), 7) > 1_000_000);
}
