//! The functions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use memferry_engine::{
    Access, Engine, EngineDescription, EngineOptions, ExportKind, Exported, Failure, FrameWatcher, Handle,
    Mapping, NotExported, Outcome, RunError, run,
};
use memferry_transfer::{EngineKind, Operations};

use crate::boundary::{Fault, call, check, text};
use crate::request::{Lent, lend};
use crate::types::{
    mf_engine_export_kind, mf_engine_exported, mf_engine_options, mf_engine_request, mf_engine_status,
};

/// The engine in its own process, as serve gets it.
pub struct mf_engine_process {
    /// Borrowed for as long as `serve` runs.
    engine: *mut Engine,
    /// Requests that C has.
    lent: BTreeMap<u64, Lent>,
}

/// The loop of an engine. It runs in a process of its own, again in a new one each time that has ended. Returns 0, or anything else to
/// have the end reported as a failure; in both cases the process ends and another one begins.
pub type mf_engine_serve =
    Option<unsafe extern "C" fn(engine: *mut mf_engine_process, context: *mut c_void) -> c_int>;

/// Is called when a frame was mapped, or before it is unmapped, on threads of the library. `mapped` has a thread of its own and may pin the
/// memory for as long as that takes; the library makes the pages present before. Meanwhile other functions are called for other frames, so
/// what they share with `mapped` needs a lock. The other functions should return within milliseconds, because frames of all users wait for
/// them. No function may touch the bytes, or call the library: each call returns MF_ENGINE_ERROR_IN_CALLBACK. Threads change from call to
/// call: set what belongs to a thread, as a device's context, in each.
pub type mf_engine_frame_event = Option<
    unsafe extern "C" fn(context: *mut c_void, frame: u64, base: *mut c_void, length: u64, is_writable: bool),
>;

/// Is called when a client wants a frame of `length` bytes in memory that only the engine reaches. Allocates it, zeroed, and returns the
/// address by which requests name it, which need not be one of this process. Returns null if there is not so much memory: the client gets
/// an error then. The memory is the client's until `unmapping` was called for it. The rules of mf_engine_frame_event apply.
pub type mf_engine_allocate =
    Option<unsafe extern "C" fn(context: *mut c_void, frame: u64, length: u64) -> *mut c_void>;

/// Is called when the owner of a frame in the engine's own memory wants to reach it from its own process. Stores a descriptor of the memory at
/// `exported`, which is all zeros but for a descriptor of -1, and returns 0; or returns anything else if there is none this time. The owner
/// keeps the memory for as long as it likes, also after `unmapping`: memory that was exported must not be given to another frame. The
/// rules of mf_engine_frame_event apply.
pub type mf_engine_export = Option<
    unsafe extern "C" fn(context: *mut c_void, frame: u64, exported: *mut mf_engine_exported) -> c_int,
>;

/// Runs an engine until SIGTERM or SIGINT: then it returns 0. The calling process becomes the keeper, which maps frames and forks the
/// process in which `serve` runs with `context`. It must have one thread. What goes wrong is written to standard error; when the
/// service is lost, the keeper connects again.
///
/// MF_ENGINE_ERROR_ARGUMENT, MF_ENGINE_ERROR_VERSION, MF_ENGINE_ERROR_SERVICE, MF_ENGINE_ERROR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_run(
    options: *const mf_engine_options,
    serve: mf_engine_serve,
    context: *mut c_void,
) -> c_int {
    call(|| {
        check(options)?;
        // SAFETY: C1: not null, and every version of the structure begins with its size.
        let size = unsafe { options.cast::<u32>().read() };
        if size as usize != size_of::<mf_engine_options>() {
            return Err(Fault::Version);
        }
        // SAFETY: C1: a structure of integers and pointers, which is not null and has this version's size.
        let options = unsafe { options.read() };
        let serve = serve.ok_or(Fault::BadPointer)?;
        let description = EngineDescription {
            operations: Operations::from_bits_retain(options.operations),
            longest_bytes: options.longest_bytes,
            shortest_bytes: options.shortest_bytes,
            alignment_bytes: options.alignment_bytes,
            channels: options.channels,
            memory_bytes: options.memory_bytes,
        };
        let options =
            EngineOptions { socket: text(options.socket)?.into(), name: text(options.name)?, description };
        let ran = run(options, |engine| {
            let mut process = mf_engine_process { engine, lent: BTreeMap::new() };
            // SAFETY: C1: the function is the program's, and gets the pointer and its own context.
            match unsafe { serve(&raw mut process, context) } {
                0 => Ok(()),
                code => Err(format!("it returned {code}")),
            }
        });
        ran.map(|()| 0).map_err(|error| {
            // A closed standard error is the program's choice.
            let _ = writeln!(std::io::stderr(), "memferry engine: {error}");
            match error {
                RunError::Name(_) | RunError::Description(_) => Fault::Argument,
                RunError::Connection(_) => Fault::Service,
                RunError::Threads | RunError::System { .. } => Fault::System,
            }
        })
    })
}

thread_local! {
    /// Whether this thread is in a function of the program for frames. A call from there would meet references and locks that the
    /// library's caller holds.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with an engine that C passed.
fn with(
    process: *mut mf_engine_process,
    body: impl FnOnce(&mut Engine, &mut BTreeMap<u64, Lent>) -> Result<c_int, Fault>,
) -> c_int {
    call(|| {
        check(process)?;
        if IN_CALLBACK.get() {
            return Err(Fault::InCallback);
        }
        // SAFETY: C1: the pointer that `serve` got, which is used by one thread at a time, and not by a function that this thread calls
        // meanwhile. So the reference is unique.
        let process = unsafe { &mut *process };
        // SAFETY: C1: `serve` still runs, so the engine that it borrows is there, and only this pointer leads to it.
        let engine = unsafe { &mut *process.engine };
        body(engine, &mut process.lent)
    })
}

/// Gets the next request: returns 1 and stores it at `request`, or 0 if none came within `timeout_ns` nanoseconds. A negative timeout is
/// no limit. It returns 0 before that if the service asked for the early end of a request, see mf_engine_take_cancels.
///
/// One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_next(
    engine: *mut mf_engine_process,
    request: *mut mf_engine_request,
    timeout_ns: i64,
) -> c_int {
    with(engine, |engine, lent| {
        check(request)?;
        let limit = u64::try_from(timeout_ns).map_or(Duration::MAX, Duration::from_nanos);
        let Some(job) = engine.next(limit) else { return Ok(0) };
        let flat = match lend(lent, job) {
            Ok(flat) => flat,
            Err(id) => {
                engine.complete(id, Outcome::refused(Failure::Unsupported));
                return Ok(0);
            }
        };
        // SAFETY: C1: not null, aligned, and the program's to be written during this call.
        unsafe { request.write(flat) };
        Ok(1)
    })
}

/// Completes a request: `status` is one value of mf_engine_status. The engine must not touch its memory any more: if its
/// device cannot be stopped, it ends the process instead. `bytes_done` are the bytes that were moved: all of them for MF_ENGINE_STATUS_DONE, except with a
/// comparison. `value` is the operation's result, else 0. The service ends the connection with an engine that claims what
/// cannot be. Returns 0.
///
/// MF_ENGINE_ERROR_UNKNOWN_REQUEST, MF_ENGINE_ERROR_ARGUMENT for another status. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_complete(
    engine: *mut mf_engine_process,
    id: u64,
    status: u32,
    bytes_done: u64,
    value: u64,
) -> c_int {
    with(engine, |engine, lent| {
        let result = mf_engine_status::result(status).ok_or(Fault::Argument)?;
        let kept = lent.remove(&id).ok_or(Fault::UnknownRequest)?;
        let outcome = Outcome { result, bytes_done, value, engine: EngineKind::External };
        engine.complete(kept.job.id(), outcome);
        Ok(0)
    })
}

/// Reports that the first `bytes` of a request's destination are final, or the last ones if `downward`; with a comparison or a CRC, that
/// they were read. This keeps a long request from being taken for stalled: the service ends the connection with an engine that neither
/// completes nor reports anything for as long as its configuration says (stall-ms). Each request must also move at 32 MiB/s at least,
/// counted with those submitted before it, and has four times stall-ms on top. 0 bytes say that its memory is being prepared: for four
/// times stall-ms that is as good as progress. Returns 0.
///
/// MF_ENGINE_ERROR_UNKNOWN_REQUEST. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_progress(
    engine: *mut mf_engine_process,
    id: u64,
    bytes: u64,
    downward: bool,
) -> c_int {
    with(engine, |engine, lent| {
        let kept = lent.get(&id).ok_or(Fault::UnknownRequest)?;
        engine.progress(kept.job.id(), bytes, downward);
        Ok(0)
    })
}

/// Returns 1 if the service asked for the early end of a request, else 0. The request is completed all the same, early or not.
///
/// MF_ENGINE_ERROR_UNKNOWN_REQUEST. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_is_cancelled(engine: *mut mf_engine_process, id: u64) -> c_int {
    with(engine, |engine, lent| {
        let kept = lent.get(&id).ok_or(Fault::UnknownRequest)?;
        Ok(engine.is_cancelled(kept.job.id()).into())
    })
}

/// Returns 1 if the service asked for the early end of any request since the last call, else 0. If so, look at all that run.
///
/// One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_take_cancels(engine: *mut mf_engine_process) -> c_int {
    with(engine, |engine, _| Ok(engine.take_cancels().into()))
}

/// Has functions called for frames that come and go, for instance to pin them for a device: `mapped` also for those that are here
/// already. Either may be null. Requests that name a frame come only after its `mapped` has returned. An engine with memory of its own gives
/// `allocate`, another one null; `unmapping` is called when such a frame is to be freed.
/// If clients may map that memory in their own processes, it also gives `exporting`, else null.
/// The functions replace those of an earlier call, which are not called any more then. `context` must stay valid until that or until `serve`
/// has returned, so it is no variable of `serve`. Returns 0.
///
/// One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_engine_watch_frames(
    engine: *mut mf_engine_process,
    mapped: mf_engine_frame_event,
    unmapping: mf_engine_frame_event,
    allocate: mf_engine_allocate,
    exporting: mf_engine_export,
    context: *mut c_void,
) -> c_int {
    with(engine, |engine, _| {
        engine.watch_frames(Callbacks { mapped, unmapping, allocate, exporting, context });
        Ok(0)
    })
}

/// The program's functions for frames.
struct Callbacks {
    mapped: mf_engine_frame_event,
    unmapping: mf_engine_frame_event,
    allocate: mf_engine_allocate,
    exporting: mf_engine_export,
    context: *mut c_void,
}

// SAFETY: C1: the program gave the context to functions that it knows to be called on other threads.
unsafe impl Send for Callbacks {}
// SAFETY: C1: it also knows that `mapped` is called at the same time as the others.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    fn call(&self, function: mf_engine_frame_event, frame: Handle, memory: &Mapping) {
        let Some(function) = function else { return };
        let length = memory.length_bytes() as u64;
        let is_writable = memory.access() != Access::ReadOnly;
        IN_CALLBACK.set(true);
        // SAFETY: C1: the function is the program's, and gets its own context. The mapping lives during the call.
        unsafe { function(self.context, frame.bits(), memory.pointer().cast(), length, is_writable) }
        IN_CALLBACK.set(false);
    }
}

impl FrameWatcher for Callbacks {
    fn mapped(&self, frame: Handle, memory: &Mapping) {
        self.call(self.mapped, frame, memory);
    }

    fn pins(&self, _: &Mapping) -> bool {
        self.mapped.is_some()
    }

    fn unmapping(&self, frame: Handle, memory: &Mapping) {
        self.call(self.unmapping, frame, memory);
    }

    fn allocate(&self, frame: Handle, length: u64) -> Option<usize> {
        let allocate = self.allocate?;
        IN_CALLBACK.set(true);
        // SAFETY: C1: the function is the program's, and gets its own context.
        let address = unsafe { allocate(self.context, frame.bits(), length) };
        IN_CALLBACK.set(false);
        Some(address.addr()).filter(|address| *address != 0)
    }

    fn export(&self, frame: Handle, _: &Mapping) -> Result<Exported, NotExported> {
        let exporting = self.exporting.ok_or(NotExported::Unsupported)?;
        let mut exported = mf_engine_exported { descriptor: -1, kind: 0, length: 0, device: [0; 16] };
        IN_CALLBACK.set(true);
        // SAFETY: C1: the function is the program's, and gets its own context and a structure that lives during the call.
        let failed = unsafe { exporting(self.context, frame.bits(), &raw mut exported) };
        IN_CALLBACK.set(false);
        if exported.descriptor < 0 {
            return Err(NotExported::Failed);
        }
        // SAFETY: C1: the program has opened it, and gives it to the library, also if it failed then.
        let descriptor = unsafe { OwnedFd::from_raw_fd(exported.descriptor) };
        if failed != 0 {
            return Err(NotExported::Failed);
        }
        let kind = match exported.kind {
            kind if kind == mf_engine_export_kind::Memory as u32 => ExportKind::Memory,
            kind if kind == mf_engine_export_kind::Cuda as u32 => {
                ExportKind::Cuda { device: exported.device }
            }
            _ => return Err(NotExported::Failed),
        };
        Ok(Exported { descriptor, kind, length: exported.length })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    /// What `calls_back` got.
    struct Got(*mut mf_engine_process, c_int);

    unsafe extern "C" fn calls_back(context: *mut c_void, _: u64, _: *mut c_void, _: u64, _: bool) {
        // SAFETY: the test passes its own structure, which nobody else uses meanwhile.
        let got = unsafe { &mut *context.cast::<Got>() };
        // SAFETY: the pointer is that of a structure that lives.
        got.1 = unsafe { mf_engine_watch_frames(got.0, None, None, None, None, std::ptr::null_mut()) };
    }

    #[test]
    fn a_call_from_a_callback_is_refused() {
        // A call that goes on would use the null pointer.
        let mut process = mf_engine_process { engine: std::ptr::null_mut(), lent: BTreeMap::new() };
        let mut got = Got(&raw mut process, 0);
        let context = (&raw mut got).cast();
        let callbacks =
            Callbacks { mapped: Some(calls_back), unmapping: None, allocate: None, exporting: None, context };
        let (_descriptor, memory) = memferry_shm::frame::allocate(4096, Default::default()).unwrap();
        callbacks.mapped(Handle::new(1, 1), &memory);
        callbacks.unmapping(Handle::new(1, 1), &memory);
        assert_eq!(got.1, Fault::InCallback as c_int);
        assert!(!IN_CALLBACK.get());
    }

    /// Gives what the context says.
    unsafe extern "C" fn exports(context: *mut c_void, _: u64, exported: *mut mf_engine_exported) -> c_int {
        // SAFETY: the test passes its own numbers, and the library a structure.
        unsafe {
            let (failed, given) = *context.cast::<(c_int, mf_engine_exported)>();
            assert_eq!((*exported).descriptor, -1);
            *exported = given;
            failed
        }
    }

    #[test]
    fn only_descriptors_of_a_known_kind_are_exported() {
        let pipe = || std::io::pipe().unwrap();
        let device = *b"sixteen-byte-gpu";
        for (failed, kind, has_one, expected) in [
            (0, 1, true, Ok(ExportKind::Memory)),
            (0, 2, true, Ok(ExportKind::Cuda { device })),
            (0, 3, true, Err(NotExported::Failed)),
            (0, 0, true, Err(NotExported::Failed)),
            (0, 1, false, Err(NotExported::Failed)),
            (-5, 1, false, Err(NotExported::Failed)),
        ] {
            let (reader, writer) = pipe();
            let descriptor = if has_one {
                OwnedFd::from(writer).into_raw_fd()
            } else {
                drop(writer);
                -1
            };
            let mut given = (failed, mf_engine_exported { descriptor, kind, length: 4096, device });
            let context = (&raw mut given).cast();
            let callbacks = Callbacks {
                mapped: None,
                unmapping: None,
                allocate: None,
                exporting: Some(exports),
                context,
            };
            let memory = Mapping::elsewhere(4096, 4096).unwrap();
            let exported = callbacks.export(Handle::new(1, 1), &memory);
            assert_eq!(exported.as_ref().map(|exported| exported.kind).map_err(|error| *error), expected);
            drop(exported);
            // The end of the pipe: its writer is closed in each case.
            assert_eq!(std::io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        }
        let context = std::ptr::null_mut();
        let none = Callbacks { mapped: None, unmapping: None, allocate: None, exporting: None, context };
        let memory = Mapping::elsewhere(4096, 4096).unwrap();
        assert_eq!(none.export(Handle::new(1, 1), &memory).unwrap_err(), NotExported::Unsupported);
    }
}
