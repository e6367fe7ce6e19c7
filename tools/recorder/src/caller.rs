//! Where a return address lies: in which file, and where in it.
//!
//! ```text
//! address ─ _dl_find_object, which takes no lock ─► link map ─► name, load address ─► number of the name, offset
//! ```
//!
//! C libraries without `_dl_find_object` (glibc before 2.35, others) have no callers. Functions are not named here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use memferry_recording::Caller;

use crate::start::Table;

/// `struct dl_find_object`, and room for what later versions add.
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

/// Finds what finds callers, and the program's own name. To be called once, when the system may be asked.
pub(crate) fn find() {
    PROGRAM
        .get_or_init(|| std::fs::read_link("/proc/self/exe").unwrap_or_default().into_os_string().into_vec());
    // SAFETY: a name that ends with zero, and no memory of ours besides.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND.store(found, Ordering::Relaxed);
}

/// Who a call will return to.
pub(crate) fn locate(recorder: &Table, address: usize) -> Option<Caller> {
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = MaybeUninit::<Found>::uninit();
    // The call itself: what follows it may be another function already.
    let call = ptr::without_provenance(address.checked_sub(1)?);
    // SAFETY: only a function of this type is stored there; it writes all fields but `rest` when it returns zero, and
    // reads tables of the loader's own.
    let link_map = unsafe {
        match std::mem::transmute::<*mut c_void, Find>(find)(call, found.as_mut_ptr()) {
            0 => (&raw const (*found.as_ptr()).link_map).read(),
            _ => return None,
        }
    };
    // SAFETY: the map of an object that code is running in, so that nobody unloads it; its name is a string.
    let (load_address, name) = unsafe {
        let map = link_map.as_ref()?;
        (map.load_address, if map.name.is_null() { c"" } else { CStr::from_ptr(map.name) })
    };
    // The loader calls the program itself by no name.
    let name = match name.to_bytes() {
        [] => PROGRAM.get()?.as_slice(),
        name => name,
    };
    Some(Caller { object: recorder.object(name)?, address: address.wrapping_sub(load_address) as u64 })
}
