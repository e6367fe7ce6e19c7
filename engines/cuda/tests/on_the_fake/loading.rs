//! Loading the driver, refusing unsuitable ones, and pinning host memory.

use std::path::Path;
use std::process::Command;

use memferry_engine_cuda::{Code, Device, DeviceError, Driver, HostMemory, Job, LIBRARY, LoadError};
use memferry_shm::mapping::{Access, Mapping};

use crate::stage::{Fake, PAGE, finish_well, frame, library, open, stage};

#[test]
fn the_linker_finds_the_driver_by_name() {
    const MARK: &str = "MEMFERRY_TEST_FINDS_BY_NAME";
    if std::env::var_os(MARK).is_some() {
        let driver = Driver::load(Path::new(LIBRARY)).expect("it is on the path");
        assert_eq!(driver.version(), 12090);
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("by-name");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(library(), folder.join(LIBRARY)).expect("the library was built");
    let status = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "loading::the_linker_finds_the_driver_by_name"])
        .env(MARK, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .status();
    assert!(status.expect("it starts").success());
}

#[test]
fn a_missing_library_is_named() {
    let path = Path::new("/nowhere/libcuda.so.1");
    let error = Driver::load(path).expect_err("there is none");
    assert!(matches!(error, LoadError::Missing { .. }));
    assert!(error.to_string().contains("/nowhere/libcuda.so.1"), "{error}");
}

#[test]
fn another_library_is_refused() {
    let error = Driver::load(Path::new("libc.so.6")).expect_err("it is no driver");
    assert!(matches!(error, LoadError::Foreign { symbol: "cuDriverGetVersion", .. }), "{error}");
}

#[test]
fn old_drivers_are_refused() {
    let error = Fake::new("driver=11080").load().expect_err("too old");
    assert_eq!(error, LoadError::Old { found: 11080 });
    assert!(error.to_string().contains("supports CUDA 11.8"), "{error}");
}

#[test]
fn a_missing_function_is_named() {
    let error = Fake::new("without=cuMemMap").load().expect_err("it is needed");
    assert_eq!(error, LoadError::NoFunction { symbol: "cuMemMap" });
}

#[test]
fn batches_are_optional() {
    assert!(Fake::new("").load().expect("it loads").has_batches());
    assert!(!Fake::new("without=cuMemcpyBatchAsync").load().expect("it loads").has_batches());
    assert!(!Fake::new("driver=12060").load().expect("it loads").has_batches());
    assert!(Fake::new("driver=13000").load().expect("it loads").has_batches());
}

#[test]
fn errors_name_call_and_operands() {
    let fake = Fake::new("fail=cuInit:999:1");
    let error = fake.load().expect_err("the call fails");
    assert_eq!(error.to_string(), "cuInit(0) failed with CUDA_ERROR_UNKNOWN");
    let driver = fake.load().expect("once only");
    let DeviceError::Call(error) = Device::open(&driver, 7).expect_err("there is one device") else {
        panic!("the call fails");
    };
    assert_eq!(error.to_string(), "cuDeviceGet(7) failed with CUDA_ERROR_INVALID_DEVICE");
    assert_eq!(Code::from_raw(12345), Some(Code::Other(12345)));
    assert_eq!(Code::Other(12345).to_string(), "CUDA error 12345");
}

#[test]
fn a_device_describes_itself() {
    let (_fake, device) = stage("memory=67108864");
    assert_eq!(device.name(), "Memferry Fake GPU");
    assert_eq!(device.memory_info(), Ok((64 << 20, 64 << 20)));
    assert_eq!(device.no_gather(), None);
    assert_eq!(device.abilities().granularity_bytes, 2 << 20);
}

#[test]
fn a_device_is_used_from_any_thread() {
    let (_fake, device) = stage("");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(device.memory_info().is_ok()));
        }
    });
}

#[test]
fn a_device_without_the_kernel_works() {
    let (_fake, device) = stage("fail=cuModuleLoadData:218:1");
    let reason = device.no_gather().expect("it was not loaded").to_string();
    assert!(
        reason.starts_with("cuModuleLoadData(") && reason.ends_with("CUDA_ERROR_INVALID_PTX"),
        "{reason}"
    );
}

#[test]
fn sealed_frames_are_pinned_once() {
    let (_fake, device) = stage("");
    let mapping = frame(3 * PAGE, Access::ReadWrite);
    let first = HostMemory::new(&device, mapping.clone());
    assert_eq!(first.not_pinned(), None);
    let second = HostMemory::new(&device, mapping.clone());
    assert_eq!(second.not_pinned(), None, "they share it");
    drop(first);
    let from = second.place(0..PAGE as u64).expect("inside");
    let to = second.place(PAGE as u64..2 * PAGE as u64).expect("inside");
    let mut stream = open(&device);
    stream.submit(Job::Detour { from, to, through: None }).expect("it is right");
    finish_well(&mut stream);
    drop(second);
    assert_eq!(HostMemory::new(&device, mapping).not_pinned(), None, "it was unpinned between");
}

#[test]
fn read_only_frames_are_pinned_so() {
    let (_fake, device) = stage("");
    assert_eq!(HostMemory::new(&device, frame(PAGE, Access::ReadOnly)).not_pinned(), None);
}

#[test]
fn refused_frames_stay_unpinned() {
    let (_fake, device) = stage("register=refused");
    let host = HostMemory::new(&device, frame(PAGE, Access::ReadWrite));
    assert!(host.not_pinned().is_some());
    assert_eq!(HostMemory::new(&device, Mapping::owned(vec![0; PAGE])).not_pinned(), None);
}
