//! Modules: PTX is looked at, not compiled; a kernel that has a twin here runs as that.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::codes::{Code, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NOT_FOUND};
use crate::commands::{Command, Copy};
use crate::context::{call_in_context, put};
use crate::space::{Kind, Space, space};
use crate::streams::enqueue;

/// Kernels with a twin.
const GATHER: &str = "memferry_gather";
/// Bytes of one piece in the table of that kernel: source, destination, length.
const PIECE_BYTES: u64 = 24;

struct Modules {
    last_handle: usize,
    /// Names of the kernels in each module.
    loaded: BTreeMap<usize, Vec<String>>,
    functions: BTreeMap<usize, String>,
}

static MODULES: Mutex<Modules> =
    Mutex::new(Modules { last_handle: 0x7000, loaded: BTreeMap::new(), functions: BTreeMap::new() });

fn modules() -> MutexGuard<'static, Modules> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuModuleLoadData(module: Option<&mut usize>, image: *const c_char) -> Code {
    call_in_context("cuModuleLoadData", || {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes PTX, which is a C string.
        let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_IMAGE)?;
        let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.is_empty());
        if !lines().next().is_some_and(|line| line.starts_with(".version ")) {
            return Err(INVALID_IMAGE);
        }
        if !lines().any(|line| line.starts_with(".target ")) {
            return Err(INVALID_PTX);
        }
        let entries = lines().filter_map(|line| line.split_once(".entry ")).filter_map(|(_, rest)| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
        });
        let mut modules = modules();
        modules.last_handle += 1;
        let handle = modules.last_handle;
        modules.loaded.insert(handle, entries.collect());
        put(module, handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuModuleGetFunction(
    function: Option<&mut usize>,
    module: usize,
    name: *const c_char,
) -> Code {
    call_in_context("cuModuleGetFunction", || {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        let mut modules = modules();
        let kernels = modules.loaded.get(&module).ok_or(INVALID_HANDLE)?;
        if !kernels.iter().any(|kernel| kernel == name) {
            return Err(NOT_FOUND);
        }
        modules.last_handle += 1;
        let handle = modules.last_handle;
        modules.functions.insert(handle, name.to_owned());
        put(function, handle)
    })
}

/// `parameters` points to a pointer to each parameter of the kernel.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: usize,
    parameters: *const [*const u64; 2],
    extra: *const u8,
) -> Code {
    enqueue("cuLaunchKernel", stream, || {
        let is_gather = modules().functions.get(&function).ok_or(INVALID_HANDLE)? == GATHER;
        let threads = u64::from(block_x) * u64::from(block_y) * u64::from(block_z);
        let blocks = u64::from(grid_x) * u64::from(grid_y) * u64::from(grid_z);
        let is_possible = (1..=1024).contains(&threads) && blocks > 0 && shared_bytes <= 48 << 10;
        if !is_possible || !is_gather || parameters.is_null() || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes pointers to the two parameters of this kernel, an address and a number of 32 bits.
        let (table, count) = unsafe {
            let [table, count] = *parameters;
            (*table, *count.cast::<u32>())
        };
        space().read().find_by_device(table, u64::from(count) * PIECE_BYTES, false)?;
        Ok(Command::Gather { table, count })
    })
}

/// The twin of the kernel: copies each piece of the table.
pub(crate) fn gather(space: &Space, table: u64, count: u32) -> Result<(), Code> {
    for piece in 0..u64::from(count) {
        let found = space.find_by_device(table + piece * PIECE_BYTES, PIECE_BYTES, false)?;
        // SAFETY: the table has these bytes, and does not change while this guard of it lives.
        let [from, to, length] = unsafe { found.pointer.cast::<[u64; 3]>().read_unaligned() };
        let is_usable = |address, writes| {
            space.find_by_device(address, length, writes).is_ok_and(|found| found.kind != Kind::Pageable)
        };
        if !is_usable(from, false) || !is_usable(to, true) {
            return Err(INVALID_VALUE);
        }
        Copy { to, from, length }.run(space)?;
    }
    Ok(())
}
