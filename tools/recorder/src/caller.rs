//! Maps a return address to a file and an offset in it.
//!
//! ```text
//! address ─ _dl_find_object, which takes no lock ─► link map ─► name, load address ─► object number, offset
//! ```
//!
//! Without `_dl_find_object` (glibc before 2.35, other C libraries) there are no callers. Function names are not resolved.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use memferry_recording::Caller;

use crate::state::Table;

/// `struct dl_find_object`, with room for fields of later versions.
#[repr(C)]
struct Found {
    flags: u64,
    start: *const c_void,
    end: *const c_void,
    link_map: *const LinkMap,
    rest: MaybeUninit<[u64; 16]>,
}

/// The beginning of `struct link_map`.
#[repr(C)]
struct LinkMap {
    load_address: usize,
    name: *const c_char,
}

type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;

static FIND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();

/// Looks up `_dl_find_object` and the program's path. Call it once at start-up, while system calls are allowed.
pub(crate) fn find() {
    PROGRAM
        .get_or_init(|| std::fs::read_link("/proc/self/exe").unwrap_or_default().into_os_string().into_vec());
    // SAFETY: the name is zero-terminated, and none of our memory is accessed.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND.store(found, Ordering::Relaxed);
}

/// The caller to which a call returns.
pub(crate) fn locate(recorder: &Table, address: usize) -> Option<Caller> {
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = MaybeUninit::<Found>::uninit();
    // The address of the call itself: the return address may already belong to another function.
    let call = ptr::without_provenance(address.checked_sub(1)?);
    // SAFETY: only a function of this type is stored there; it writes all fields but `rest` when it returns zero, and
    // reads only the loader's tables.
    let link_map = unsafe {
        match std::mem::transmute::<*mut c_void, Find>(find)(call, found.as_mut_ptr()) {
            0 => (&raw const (*found.as_ptr()).link_map).read(),
            _ => return None,
        }
    };
    // SAFETY: code of this object is running, so nobody unloads it and its map is valid; its name is a string.
    let (load_address, name) = unsafe {
        let map = link_map.as_ref()?;
        (map.load_address, if map.name.is_null() { c"" } else { CStr::from_ptr(map.name) })
    };
    // The loader uses an empty name for the program itself.
    let name = match name.to_bytes() {
        [] => PROGRAM.get()?.as_slice(),
        name => name,
    };
    Some(Caller { object: recorder.object(name)?, address: address.wrapping_sub(load_address) as u64 })
}
