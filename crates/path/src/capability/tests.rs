//! Tests of the capability table.
//!
//! ```text
//! narrowing    register, derive, quotas        admission   all failures of all operations
//! grants       grant, accept, grantees         revocation  waiting for requests, dropping memory
//! handles      foreign, forged and stale ones  model       random histories against a naive table
//! operands     the right of each operand of each operation
//! expiry       grants for a limited time
//! parts        revocations that the table's other users interrupt
//! ```

mod admission;
mod expiry;
mod grants;
mod handles;
mod model;
mod narrowing;
mod operands;
mod parts;
mod revocation;

use std::rc::Rc;

use memferry_transfer::{Pattern, PixelSize, Request};

use super::*;
use crate::tests::Ticks;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);
const ALICE: u32 = 1000;
const BOB: u32 = 1001;

const ALL: Rights = Rights::all();

/// Memory without bytes: only a length, and a count of its holders.
#[derive(Clone, Debug)]
struct Counted(Rc<u64>);

impl Counted {
    fn new(length: u64) -> Self {
        Self(Rc::new(length))
    }

    /// Holders other than the test itself.
    fn holders(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }
}

impl Memory for Counted {
    fn length(&self) -> u64 {
        *self.0
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Counted {}

fn table() -> Capabilities<Counted> {
    Capabilities::new(16)
}

/// A table in which A holds a root of 100 bytes with all rights.
fn with_root() -> (Capabilities<Counted>, Handle, Counted) {
    let mut table = table();
    let memory = Counted::new(100);
    let root = table.register(A, memory.clone(), ALL).unwrap();
    (table, root, memory)
}

fn fill(handle: Handle, offset: u64, length: u64) -> Request {
    Request::fill(Span::new(handle, offset), length, Pattern::Byte(1))
}

/// Admits a fill, which needs only a destination.
fn admit_fill(
    table: &mut Capabilities<Counted>,
    session: SessionId,
    handle: Handle,
    (offset, length): (u64, u64),
) -> Result<Admitted<Counted>, Failure> {
    table.admit(session, &fill(handle, offset, length), u64::MAX)
}

/// Admits a fill, releases its claim, and returns the range in its memory.
fn filled(
    table: &mut Capabilities<Counted>,
    session: SessionId,
    handle: Handle,
    range: (u64, u64),
) -> Result<(u64, u64), Failure> {
    let (operation, claims) = admit_fill(table, session, handle, range)?.into_parts();
    table.release(claims);
    let Operation::Fill { destination, .. } = operation else { panic!("a fill became {}", operation.name()) };
    Ok((destination.offset(), destination.length()))
}

fn release(table: &mut Capabilities<Counted>, admitted: Admitted<Counted>) {
    let (_, claims) = admitted.into_parts();
    table.release(claims);
}

/// Grants a whole capability to `to`, which accepts it. Returns the handles of the grant and of the accepted capability.
fn pass(
    table: &mut Capabilities<Counted>,
    from: (SessionId, Handle, u64),
    rights: Rights,
    to: SessionId,
) -> (Handle, Handle) {
    let (session, handle, length) = from;
    let token = table.grant(session, handle, (0, length), rights, Grantee::Session(to)).unwrap();
    (token.handle(), table.accept(to, BOB, token).unwrap().handle)
}
