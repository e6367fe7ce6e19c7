//! Memory of the device: length, quota, zeroes, and sharing it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::process::Command;
use std::sync::Arc;

use memferry_engine_cuda::{Device, HostMemory, Job, Vram, VramError, VramPool};
use memferry_shm::mapping::Access;

use crate::stage::{bytes, finish_well, frame, host, is_real, open, pattern, stage};

const MEBIBYTE: u64 = 1 << 20;

fn read(device: &Arc<Device>, vram: &Arc<Vram>) -> Vec<u8> {
    let length = vram.length_bytes();
    let host = HostMemory::new(device, frame(length as usize, Access::ReadWrite));
    let mut stream = open(device);
    let from = vram.place(0..length).expect("all of it");
    let to = host.place(0..length).expect("all of it");
    stream.submit(Job::Copy { from, to }).expect("it is right");
    finish_well(&mut stream);
    bytes(&host)
}

fn write(device: &Arc<Device>, vram: &Arc<Vram>, seed: u8) {
    let length = vram.length_bytes();
    let host = host(device, length as usize, seed);
    let mut stream = open(device);
    let from = host.place(0..length).expect("all of it");
    let to = vram.place(0..length).expect("all of it");
    stream.submit(Job::Copy { from, to }).expect("it is right");
    finish_well(&mut stream);
}

#[test]
fn lengths_are_rounded_and_memory_is_zero() {
    let (_fake, device) = stage("");
    let pool = VramPool::new(&device, 64 * MEBIBYTE);
    for _ in 0..3 {
        let vram = pool.allocate(100_001).expect("there is VRAM");
        assert_eq!((vram.length_bytes(), vram.mapped_bytes()), (100_001, 2 * MEBIBYTE));
        assert!(read(&device, &vram).iter().all(|byte| *byte == 0), "it shows what was there");
        write(&device, &vram, 7);
        assert_eq!(read(&device, &vram), pattern(100_001, 7));
    }
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn places_lie_in_the_memory() {
    let (_fake, device) = stage("");
    let vram = VramPool::new(&device, 2 * MEBIBYTE).allocate(1000).expect("there is VRAM");
    assert!(vram.place(0..1000).is_some() && vram.place(1000..1000).is_some());
    assert!(vram.place(0..1001).is_none() && vram.place(u64::MAX..u64::MAX).is_none());
    let reversed = std::ops::Range { start: 5, end: 4 };
    assert!(vram.place(reversed).is_none());
}

#[test]
fn a_quota_holds() {
    let (_fake, device) = stage("");
    let pool = VramPool::new(&device, 5 * MEBIBYTE);
    let first = pool.allocate(1).expect("it fits");
    let second = pool.allocate(2 * MEBIBYTE).expect("it fits");
    let refused = pool.allocate(1).expect_err("it does not fit");
    let wanted_bytes = 2 * MEBIBYTE;
    let left_bytes = MEBIBYTE;
    let quota_bytes = 5 * MEBIBYTE;
    assert_eq!(refused, VramError::Quota { wanted_bytes, left_bytes, quota_bytes });
    drop(first);
    let place = second.place(0..1).expect("inside");
    drop(second);
    assert_eq!(pool.used_bytes(), 2 * MEBIBYTE, "a place keeps its memory");
    drop(place);
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn absurd_lengths_are_refused() {
    let (_fake, device) = stage("");
    let pool = VramPool::new(&device, u64::MAX);
    for length_bytes in [0, u64::MAX, i64::MAX as u64 + 2] {
        assert_eq!(pool.allocate(length_bytes).expect_err("absurd"), VramError::Length { length_bytes });
    }
    assert!(matches!(pool.allocate(1 << 60), Err(VramError::Exhausted { .. })));
}

#[test]
fn an_exhausted_device_says_so_and_recovers() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (_fake, device) = stage("memory=8388608");
    let pool = VramPool::new(&device, 64 * MEBIBYTE);
    let kept = pool.allocate(6 * MEBIBYTE).expect("it fits");
    let wanted_bytes = 4 * MEBIBYTE;
    assert_eq!(pool.allocate(wanted_bytes).expect_err("full"), VramError::Exhausted { wanted_bytes });
    assert_eq!(pool.used_bytes(), 6 * MEBIBYTE);
    drop(kept);
    assert!(pool.allocate(wanted_bytes).is_ok());
}

#[test]
fn a_failed_step_gives_everything_back() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (fake, device) = stage("");
    let pool = VramPool::new(&device, 64 * MEBIBYTE);
    let calls = ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"];
    for call in calls.into_iter().chain(["cuStreamCreateWithPriority", "cuMemsetD8Async"]) {
        fake.set(&format!("fail={call}:400:1"));
        let Err(VramError::Call(error)) = pool.allocate(1) else { panic!("{call} fails") };
        assert_eq!(error.call, call);
        let (free, total) = device.memory_info().expect("the context is well");
        assert_eq!((pool.used_bytes(), free), (0, total), "after {call}");
    }
    assert!(pool.allocate(1).is_ok());
}

#[test]
fn memory_that_is_not_given_back_counts() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (fake, device) = stage("");
    let pool = VramPool::new(&device, 64 * MEBIBYTE);
    for (index, call) in ["cuMemUnmap", "cuMemRelease"].into_iter().enumerate() {
        let vram = pool.allocate(1).expect("there is VRAM");
        fake.set(&format!("fail={call}:400:1"));
        drop(vram);
        assert_eq!(pool.used_bytes(), (index as u64 + 1) * 2 * MEBIBYTE, "after {call}");
    }
    drop(pool.allocate(1).expect("there is VRAM"));
    assert_eq!(pool.used_bytes(), 4 * MEBIBYTE);
}

#[test]
fn exported_memory_is_the_same_elsewhere() {
    const MARK: &str = "MEMFERRY_TEST_EXPORTED";
    const LENGTH: u64 = 300_000;
    if let Ok(number) = std::env::var(MARK) {
        let number: RawFd = number.parse().expect("a descriptor");
        imports(number, LENGTH);
        return;
    }
    let (_fake, device) = stage("");
    let vram = VramPool::new(&device, 2 * MEBIBYTE).allocate(LENGTH).expect("there is VRAM");
    write(&device, &vram, 11);
    let exported = vram.export().expect("it can be exported");
    let flags = rustix::io::fcntl_getfd(&exported).expect("it is open");
    assert_eq!(flags, rustix::io::FdFlags::CLOEXEC, "started programs do not get it");
    let inherited = rustix::io::fcntl_dupfd_cloexec(&exported, 200).expect("a descriptor");
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).expect("it is inherited");
    let status = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "vram::exported_memory_is_the_same_elsewhere", "--nocapture"])
        .env(MARK, inherited.as_raw_fd().to_string())
        .status();
    assert!(status.expect("it starts").success());
    assert_eq!(read(&device, &vram), pattern(LENGTH as usize, 12), "what the other process wrote");
}

#[expect(unsafe_code, reason = "takes the descriptor that the parent left open")]
fn imports(number: RawFd, length: u64) {
    // SAFETY: the parent left it open, and nothing here closes it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let (_fake, device) = stage("");
    let vram = Vram::import(&device, descriptor, length).expect("it can be imported");
    assert_eq!(read(&device, &vram), pattern(length as usize, 11));
    write(&device, &vram, 12);
}

#[test]
fn exported_memory_outlives_its_exporter() {
    let (_fake, device) = stage("");
    let vram = VramPool::new(&device, 2 * MEBIBYTE).allocate(5000).expect("there is VRAM");
    write(&device, &vram, 3);
    let exported = vram.export().expect("it can be exported");
    drop(vram);
    let again = Vram::import(&device, exported.as_fd(), 5000).expect("it can be imported");
    assert_eq!(read(&device, &again), pattern(5000, 3));
    assert!(Vram::import(&device, exported.as_fd(), 5 * MEBIBYTE).is_err(), "longer than it is");
    assert!(Vram::import(&device, std::io::stdin(), 5000).is_err(), "no memory");
}
