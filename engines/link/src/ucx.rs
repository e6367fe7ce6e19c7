//! UCX: `libucp.so.0`, opened when the program runs. Nothing of UCX is needed to build.
//!
//! ```text
//! Ucx::load ─► worker, address ─► peers create endpoints to it
//! send(endpoint, bytes) ─ the bytes are kept until UCX is done ─► poll ─► messages that came, endpoints that failed
//! ```
//!
//! Invariant X: one thread calls UCX. A buffer that UCX was given lives in a box that only its callback takes back, once, and UCX does not
//! touch the buffer after that. What callbacks write lies in a box that is as old as the worker, which is never destroyed: the process
//! ends with it. Messages longer than [`MAX_MESSAGE`] with its key are dropped before memory is allocated for them.
//!
//! The bytes go in clear text, and anybody who can reach the address can send: that a message has the key of a connection is checked by the
//! caller.

#![expect(unsafe_code, reason = "calls of UCX, which accesses buffers later: invariant X")]

mod table;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::path::Path;

use self::table::{
    Arrival, EndpointParameters, Handler, IN_PROGRESS, OK, Parameters, RequestParameters, Status, Table,
    WorkerParameters,
};
use crate::backlog::Unsent;
use crate::message::{MAX_MESSAGE, WINDOW};
use crate::packet::{Buffer, KEY_BYTES, Pool};

pub(crate) use self::table::UcxError;

/// The name by which the dynamic linker finds UCP.
pub const LIBRARY: &str = "libucp.so.0";

/// Version of the interface that is asked for.
const INTERFACE: (u32, u32) = (1, 11);
/// The messages of links among active messages.
const MESSAGE_ID: u32 = 7;

const FIELD_FEATURES: u64 = 1;
const FEATURE_MESSAGES: u64 = 1 << 6;
const FIELD_ERROR_HANDLER: u64 = 1 << 2;
const ENDPOINT_FIELDS: u64 = 1 | 1 << 1 | FIELD_ERROR_HANDLER;
/// Peers that fail are reported, which transports over shared memory cannot. Without, the link notices it by the encrypted connection.
const ERROR_MODES: [i32; 2] = [1, 0];
const HANDLER_FIELDS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3;
/// A message is shown when all of it is there.
const WHOLE_MESSAGES: u32 = 1;
const ATTRIBUTE_CALLBACK: u32 = 1 << 1;
const ATTRIBUTE_USER_DATA: u32 = 1 << 2;
const ATTRIBUTE_FLAGS: u32 = 1 << 4;
const ATTRIBUTE_MEMORY_TYPE: u32 = 1 << 6;
const CLOSE_BY_FORCE: u32 = 1;
const ARRIVED_RENDEZVOUS: u64 = 1 << 17;
/// Messages that come, and calls of UCX, before others get their turn. Anybody can send what keeps UCX busy and is no message.
const MESSAGES: usize = 64;
const STEPS: usize = 256;

/// Names an endpoint by the connection that it belongs to.
type Connection = u64;

/// Where callbacks put what came and what failed.
struct Inbox {
    table: Table,
    worker: *mut c_void,
    arrived: Vec<Buffer>,
    /// Endpoints of which UCX reported an error, some perhaps closed.
    failed: Vec<*mut c_void>,
    /// Messages that are being fetched, and how many may be: anybody can offer some.
    fetching: (usize, usize),
    pool: Pool,
}

/// A buffer that UCX has.
struct Lent {
    inbox: *mut Inbox,
    buffer: Buffer,
    /// Of what is sent.
    _unsent: Option<Unsent>,
}

/// A worker of UCX, its endpoints, and what came.
pub(crate) struct Ucx {
    table: Table,
    worker: *mut c_void,
    inbox: *mut Inbox,
    address: Vec<u8>,
    endpoints: BTreeMap<Connection, Endpoint>,
}

#[derive(Clone, Copy)]
struct Endpoint {
    endpoint: *mut c_void,
    /// What is under way can be given up.
    reports_errors: bool,
}

/// Settings of UCX for a process that is an engine: it must not replace the handlers of signals, nor functions of the C library, nor wait
/// in `connect` for a peer that is not there, for minutes. Call it while the process has one thread. What the administrator set stays.
pub(crate) fn prepare() {
    for (name, value) in [
        ("UCX_HANDLE_ERRORS", "none"),
        ("UCX_ERROR_SIGNALS", ""),
        ("UCX_MEM_MMAP_HOOK_MODE", "none"),
        ("UCX_TCP_CONN_NB", "y"),
    ] {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller's process has one thread, so nobody reads the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

impl Ucx {
    /// Loads the library and opens a worker that so many peers send to.
    ///
    /// # Errors
    /// [`UcxError`].
    pub(crate) fn load(path: &Path, peers: usize, pool: Pool) -> Result<Self, UcxError> {
        let table = Table::load(path)?;
        let parameters = Parameters { mask: FIELD_FEATURES, features: FEATURE_MESSAGES, rest: [0; 32] };
        let mut context = std::ptr::null_mut();
        // SAFETY: X: the structure has the fields of its mask, and the place for the context is local.
        let status = unsafe {
            (table.initialize)(INTERFACE.0, INTERFACE.1, &parameters, std::ptr::null(), &mut context)
        };
        check("ucp_init", status)?;
        let parameters = WorkerParameters { mask: 0, thread_mode: 0, rest: [0; 64] };
        let mut worker = std::ptr::null_mut();
        // SAFETY: X: as above; the context was just made.
        check("ucp_worker_create", unsafe { (table.create_worker)(context, &parameters, &mut worker) })?;
        // A peer asks and answers within its window.
        let fetching = (0, 2 * WINDOW * peers.max(1));
        let inbox =
            Box::new(Inbox { table, worker, arrived: Vec::new(), failed: Vec::new(), fetching, pool });
        let inbox = Box::into_raw(inbox);
        let handler = Handler {
            mask: HANDLER_FIELDS,
            id: MESSAGE_ID,
            flags: WHOLE_MESSAGES,
            on_message: Some(on_message),
            argument: inbox.cast(),
            rest: [0; 8],
        };
        // SAFETY: X: the worker was just made, and the inbox lives as long as it does.
        check("ucp_worker_set_am_recv_handler", unsafe { (table.set_handler)(worker, &handler) })?;
        let mut start = std::ptr::null_mut();
        let mut length = 0;
        // SAFETY: X: the worker writes where its address is and how long; it stays until it is released.
        let address = unsafe {
            check("ucp_worker_get_address", (table.address)(worker, &mut start, &mut length))?;
            let address = std::slice::from_raw_parts(start, length).to_vec();
            (table.release_address)(worker, start);
            address
        };
        Ok(Self { table, worker, inbox, address, endpoints: BTreeMap::new() })
    }

    /// Where others reach this worker.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// The version of the library.
    pub(crate) fn version(&self) -> String {
        // SAFETY: X: a constant string of the library.
        unsafe { CStr::from_ptr((self.table.version)()) }.to_string_lossy().into_owned()
    }

    /// Makes an endpoint to a peer's worker.
    ///
    /// # Errors
    /// [`UcxError::Call`].
    // The address is the peer's word. UCX reads its length from it, so it is followed by zeros.
    pub(crate) fn connect(&mut self, connection: Connection, address: &[u8]) -> Result<(), UcxError> {
        let mut padded = address.to_vec();
        padded.resize(address.len() + (64 << 10), 0);
        let mut last = OK;
        for error_mode in ERROR_MODES {
            let reports_errors = error_mode == ERROR_MODES[0];
            let parameters = EndpointParameters {
                mask: if reports_errors { ENDPOINT_FIELDS } else { ENDPOINT_FIELDS & !FIELD_ERROR_HANDLER },
                address: padded.as_ptr(),
                error_mode,
                on_error: Some(on_error),
                on_error_argument: self.inbox.cast(),
                rest: [0; 32],
            };
            let mut endpoint = std::ptr::null_mut();
            // SAFETY: X: the structure has the fields of its mask; the address and the place for the endpoint live during the call.
            last = unsafe { (self.table.create_endpoint)(self.worker, &parameters, &mut endpoint) };
            if last == OK {
                self.endpoints.insert(connection, Endpoint { endpoint, reports_errors });
                return Ok(());
            }
        }
        check("ucp_ep_create", last)
    }

    /// Sends a message. A failure is reported by [`poll`](Self::poll), if the connection is not closed before.
    pub(crate) fn send(&mut self, connection: Connection, buffer: Buffer, unsent: Unsent) {
        let Some(Endpoint { endpoint, .. }) = self.endpoints.get(&connection).copied() else { return };
        let lent = Box::into_raw(Box::new(Lent { inbox: self.inbox, buffer, _unsent: Some(unsent) }));
        let mut parameters = RequestParameters::new();
        parameters.attributes = ATTRIBUTE_CALLBACK | ATTRIBUTE_USER_DATA | ATTRIBUTE_MEMORY_TYPE;
        parameters.callback = on_sent as *const c_void;
        parameters.user_data = lent.cast();
        // SAFETY: X: the buffer lives in its box until `on_sent`, or until it is taken back here because UCX is done with it.
        unsafe {
            let bytes = (*lent).buffer.bytes();
            let start = bytes.as_ptr();
            let length = bytes.len();
            let request = (self.table.send)(
                endpoint,
                MESSAGE_ID,
                std::ptr::null(),
                0,
                start.cast(),
                length,
                &parameters,
            );
            match state_of(request) {
                State::Pending => {}
                State::Done => drop(Box::from_raw(lent)),
                State::Failed => {
                    drop(Box::from_raw(lent));
                    (*self.inbox).failed.push(endpoint);
                }
            }
        }
    }

    /// Closes the endpoint of a connection. What was sent and has not gone is given up, or, by shared memory with a process that has ended,
    /// kept.
    pub(crate) fn close(&mut self, connection: Connection) {
        let Some(Endpoint { endpoint, reports_errors }) = self.endpoints.remove(&connection) else { return };
        let mut parameters = RequestParameters::new();
        parameters.attributes = ATTRIBUTE_CALLBACK | ATTRIBUTE_USER_DATA | ATTRIBUTE_FLAGS;
        parameters.flags = if reports_errors { CLOSE_BY_FORCE } else { 0 };
        parameters.callback = on_closed as *const c_void;
        parameters.user_data = self.inbox.cast();
        // SAFETY: X: the endpoint is closed once, and not used again. Callbacks of its requests run before or from `poll`.
        unsafe {
            (self.table.close_endpoint)(endpoint, &parameters);
            (*self.inbox).failed.retain(|failed| *failed != endpoint);
        }
    }

    /// Goes on with all that is under way. Adds the messages that came to `messages`, and the connections that failed to `failed`. Returns
    /// whether anything happened.
    pub(crate) fn poll(&mut self, messages: &mut Vec<Buffer>, failed: &mut Vec<Connection>) -> bool {
        let mut any = repeat(|| {
            // SAFETY: X: callbacks run in this call only, and no reference to the inbox lives across it.
            unsafe { (self.table.progress)(self.worker) > 0 && (*self.inbox).arrived.len() < MESSAGES }
        });
        // SAFETY: X: no callback runs now.
        let inbox = unsafe { &mut *self.inbox };
        any |= !inbox.arrived.is_empty();
        messages.append(&mut inbox.arrived);
        for endpoint in inbox.failed.drain(..) {
            failed.extend(
                self.endpoints.iter().find(|(_, one)| one.endpoint == endpoint).map(|(name, _)| *name),
            );
        }
        any
    }
}

/// Calls `step` until it has no more to do, but not for ever. Returns whether it had anything to do.
fn repeat(mut step: impl FnMut() -> bool) -> bool {
    (0..STEPS).take_while(|_| step()).count() > 0
}

fn check(call: &'static str, status: Status) -> Result<(), UcxError> {
    if status == OK { Ok(()) } else { Err(UcxError::Call { call, text: format!("status {status}") }) }
}

/// What a call answered that may go on.
enum State {
    Done,
    Pending,
    Failed,
}

/// Pointers of the last hundred addresses are errors.
fn state_of(request: *mut c_void) -> State {
    match request.addr() as isize {
        0 => State::Done,
        -100..0 => State::Failed,
        _ => State::Pending,
    }
}

/// SAFETY: X: `user_data` is the box of `send`, whose bytes UCX has read or given up.
unsafe extern "C" fn on_sent(request: *mut c_void, _: Status, user_data: *mut c_void) {
    // SAFETY: as above; the request is UCX's, and freed once.
    unsafe {
        let lent = Box::from_raw(user_data.cast::<Lent>());
        ((*lent.inbox).table.free_request)(request);
    }
}

/// SAFETY: X: `user_data` is the inbox.
unsafe extern "C" fn on_closed(request: *mut c_void, _: Status, user_data: *mut c_void) {
    // SAFETY: as above; the request is UCX's, and freed once.
    unsafe { ((*user_data.cast::<Inbox>()).table.free_request)(request) };
}

/// SAFETY: X: `argument` is the inbox.
unsafe extern "C" fn on_error(argument: *mut c_void, endpoint: *mut c_void, _: Status) {
    // SAFETY: as above. No reference to the inbox lives while UCX runs.
    unsafe { (*argument.cast::<Inbox>()).failed.push(endpoint) };
}

/// SAFETY: X: `argument` is the inbox, `data` and `length` a message, or, if the attributes say so, what to ask for it with.
unsafe extern "C" fn on_message(
    argument: *mut c_void,
    _: *const c_void,
    _: usize,
    data: *mut c_void,
    length: usize,
    arrival: *const Arrival,
) -> Status {
    let inbox = argument.cast::<Inbox>();
    if length > MAX_MESSAGE + KEY_BYTES {
        return OK;
    }
    // SAFETY: X: UCX passes a structure that lives during the call.
    if unsafe { (*arrival).attributes } & ARRIVED_RENDEZVOUS == 0 {
        // SAFETY: as above. No reference to the inbox lives while UCX runs.
        let mut buffer = unsafe { (*inbox).pool.take(length) };
        if length > 0 {
            // SAFETY: X: UCX passes so many bytes, which stay during the call.
            buffer
                .bytes_mut()
                .copy_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) });
        }
        // SAFETY: as above.
        unsafe { (*inbox).arrived.push(buffer) };
        return OK;
    }
    // SAFETY: as above.
    let (table, worker, fetching) = unsafe { ((*inbox).table, (*inbox).worker, (*inbox).fetching) };
    // Not fetched, it is dropped. If it was a peer's after all, its request ends with the connection.
    if fetching.0 >= fetching.1 {
        return OK;
    }
    // SAFETY: as above.
    let buffer = unsafe { (*inbox).pool.take(length) };
    let lent = Box::into_raw(Box::new(Lent { inbox, buffer, _unsent: None }));
    let mut parameters = RequestParameters::new();
    parameters.attributes = ATTRIBUTE_CALLBACK | ATTRIBUTE_USER_DATA | ATTRIBUTE_MEMORY_TYPE;
    parameters.callback = on_received as *const c_void;
    parameters.user_data = lent.cast();
    // SAFETY: X: the buffer has so many bytes, and lives in its box until `on_received`, or until it is taken back here because UCX is
    // done with it.
    unsafe {
        (*inbox).fetching.0 += 1;
        let start = (*lent).buffer.bytes_mut().as_mut_ptr();
        let request = (table.receive)(worker, data, start.cast(), length, &parameters);
        match state_of(request) {
            State::Pending => {}
            State::Done => {
                let lent = Box::from_raw(lent);
                (*inbox).fetching.0 -= 1;
                (*inbox).arrived.push(lent.buffer);
            }
            State::Failed => {
                (*inbox).fetching.0 -= 1;
                drop(Box::from_raw(lent));
            }
        }
    }
    IN_PROGRESS
}

/// SAFETY: X: `user_data` is the box of `on_message`, which UCX has filled or given up.
unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: Status,
    length: usize,
    user_data: *mut c_void,
) {
    // SAFETY: as above; the request is UCX's, and freed once.
    unsafe {
        let lent = *Box::from_raw(user_data.cast::<Lent>());
        ((*lent.inbox).table.free_request)(request);
        (*lent.inbox).fetching.0 -= 1;
        // The buffer may have bytes of an earlier message behind those that came.
        if status == OK && length == lent.buffer.bytes().len() {
            (*lent.inbox).arrived.push(lent.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_always_busy_gets_a_turn_only() {
        let mut steps = 0;
        let mut step = || {
            steps += 1;
            assert!(steps <= STEPS);
            true
        };
        assert!(repeat(&mut step));
        assert!(!repeat(|| false));
    }
}
