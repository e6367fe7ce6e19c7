//! A fake driver for each test, and memory to copy.
#![expect(unsafe_code, reason = "finds the fake's control function and calls it")]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry_engine_cuda::{
    Completion, Device, Driver, HostMemory, LoadError, Settings, Stream, Vram, VramPool,
};
use memferry_shm::mapping::{Access, Mapping};
use rustix::fs::{MemfdFlags, SealFlags};

/// No job here takes so long, also on a slow, busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const PAGE: usize = 4096;

/// Names the library of a real driver, on a machine with a GPU. Tests that need the fake's faults then end at once.
const REAL: &str = "MEMFERRY_TEST_CUDA_LIBRARY";

/// The library that Cargo built for this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.with_file_name("libmemferry_fake_cuda.so")
}

fn real() -> Option<PathBuf> {
    std::env::var_os(REAL).map(PathBuf::from)
}

/// Whether a real driver is tested.
pub(crate) fn is_real() -> bool {
    real().is_some()
}

/// Those faults that the driver under test can be given: a real one has none.
pub(crate) fn possible<const N: usize>(faults: [&'static str; N]) -> impl Iterator<Item = &'static str> {
    faults.into_iter().filter(|faults| faults.is_empty() || !is_real())
}

/// A copy of the library, so a driver with a state of its own; or the real driver.
#[derive(Debug)]
pub(crate) struct Fake {
    path: PathBuf,
    set: Option<unsafe extern "C" fn(*const c_char) -> u32>,
}

impl Fake {
    pub(crate) fn new(faults: &str) -> Self {
        if let Some(path) = real() {
            assert_eq!(faults, "", "only the fake has faults");
            return Self { path, set: None };
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the copy");
        let path = folder.join("libcuda.so.1");
        std::fs::copy(library(), &path).expect("the library was built");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        // SAFETY: it is our own library, which is never closed; its function has this signature.
        let set = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
            let symbol = libc::dlsym(library, c"memferry_fake_cuda_set".as_ptr());
            assert!(!symbol.is_null(), "the fake has its control function");
            std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*const c_char) -> u32>(symbol)
        };
        let fake = Self { path, set: Some(set) };
        fake.set(faults);
        fake
    }

    pub(crate) fn set(&self, faults: &str) {
        let text = CString::new(faults).expect("no NUL");
        let set = self.set.expect("only the fake has faults");
        // SAFETY: the text lives during the call.
        assert_eq!(unsafe { set(text.as_ptr()) }, 0, "the fake does not know: {faults}");
    }

    pub(crate) fn load(&self) -> Result<Driver, LoadError> {
        Driver::load(&self.path)
    }

    pub(crate) fn device(&self) -> Arc<Device> {
        Device::open(&self.load().expect("it loads"), 0).expect("it has a device")
    }
}

impl Drop for Fake {
    /// The library stays loaded without its file.
    fn drop(&mut self) {
        let is_copy = self.set.is_some();
        if let Some(folder) = self.path.parent().filter(|_| is_copy) {
            _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A device of a fake with these faults.
pub(crate) fn stage(faults: &str) -> (Fake, Arc<Device>) {
    let fake = Fake::new(faults);
    let device = fake.device();
    (fake, device)
}

pub(crate) fn vram(device: &Arc<Device>, length: u64) -> Arc<Vram> {
    VramPool::new(device, u64::MAX).allocate(length).expect("there is VRAM")
}

/// Sealed shared memory, as a frame of a client is.
pub(crate) fn frame(length: usize, access: Access) -> Mapping {
    let memory = rustix::fs::memfd_create(c"frame", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let memory = memory.expect("a memfd");
    rustix::fs::ftruncate(&memory, length as u64).expect("a length");
    let mapping =
        Mapping::shared(std::os::fd::AsFd::as_fd(&memory), length, access, PAGE).expect("a mapping");
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&memory, seals).expect("seals");
    mapping
}

/// A pinned frame with bytes that differ by place and seed.
pub(crate) fn host(device: &Arc<Device>, length: usize, seed: u8) -> Arc<HostMemory> {
    let mapping = frame(length, Access::ReadWrite);
    mapping.write(0, &pattern(length, seed)).expect("it is mapped");
    HostMemory::new(device, mapping)
}

pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ at as u8 ^ seed).collect()
}

pub(crate) fn bytes(host: &HostMemory) -> Vec<u8> {
    let mut bytes = vec![0; host.mapping().length_bytes()];
    host.mapping().read(0, &mut bytes).expect("it is mapped");
    bytes
}

pub(crate) fn open(device: &Arc<Device>) -> Stream {
    Stream::open(device, Settings::default()).expect("it opens")
}

/// Polls until nothing is outstanding.
pub(crate) fn finish(stream: &mut Stream) -> Vec<Completion> {
    let mut completions = Vec::new();
    let began = Instant::now();
    while stream.outstanding() > 0 {
        stream.poll(&mut completions);
        assert!(began.elapsed() < LIMIT, "{} outstanding, so far {completions:?}", stream.outstanding());
        std::thread::yield_now();
    }
    completions
}

/// Like [`finish`]; every job must have ended well.
pub(crate) fn finish_well(stream: &mut Stream) {
    for completion in finish(stream) {
        assert_eq!(completion.result, Ok(()), "{:?}", completion.ticket);
    }
}
