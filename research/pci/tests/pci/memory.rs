//! Windows of guest memory: overlaps, limits, accesses, and files that change under them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use memferry_models::{Bus, BusError};
use memferry_pci::Memory;
use memferry_pci::message::{DmaMap, command};
use memferry_registers::ioat::{Chanerr, TransferState};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::support::{
    BASE, COMPLETING, CONFIG, Guest, PAGE, PAGES, Rig, copy, map_payload, memfd, u32s, u64s,
};

fn unmap_payload(address: u64, size: u64) -> Vec<u8> {
    [u32s(&[24, 0]), u64s(&[address, size])].concat()
}

#[test]
fn windows_do_not_overlap() {
    let mut rig = Rig::new();
    let file = memfd(16 * PAGE);
    rig.map(&file, 0, 0x10000, 4 * PAGE);
    let again = |rig: &mut Rig, address, size| {
        rig.bad(command::DMA_MAP, &map_payload(3, 0, address, size), vec![file.try_clone().unwrap()])
    };
    for (address, size) in
        [(0x10000, 4 * PAGE), (0x0F000, 2 * PAGE), (0x13FFF, 1), (0, 0x10001), (0x11000, 1)]
    {
        assert_eq!(again(&mut rig, address, size), Errno::EXIST, "{address:#x} {size:#x}");
    }
    for (address, size) in [(0x20000, 0), (u64::MAX, 2)] {
        assert_eq!(again(&mut rig, address, size), Errno::INVAL, "{address:#x} {size:#x}");
    }
    rig.map(&file, 0, 0x0F000, PAGE);
    rig.map(&file, 8 * PAGE, 0x14000, PAGE);
    rig.map(&file, 0, u64::MAX - PAGE + 1, PAGE);
    assert_eq!(rig.device.memory().traffic().windows, 4);
}

#[test]
fn unmapping_takes_whole_windows() {
    let mut rig = Rig::new();
    let file = memfd(16 * PAGE);
    for at in [0x10000, 0x11000, 0x12000, 0x20000] {
        rig.map(&file, 0, at, PAGE);
    }
    for (address, size) in [(0x10800, PAGE), (0x0F000, PAGE + 1), (0x11000, PAGE + 1)] {
        assert_eq!(rig.bad(command::DMA_UNMAP, &unmap_payload(address, size), vec![]), Errno::INVAL);
    }
    assert_eq!(rig.device.memory().traffic().windows, 4, "nothing was unmapped by a refused command");
    let reply = rig.good(command::DMA_UNMAP, &unmap_payload(0x8000, 0x0A000), vec![]);
    assert_eq!(reply, [u32s(&[24, 0]), u64s(&[0x8000, 2 * PAGE])].concat());
    let reply = rig.good(command::DMA_UNMAP, &unmap_payload(0x8000, 0x0A000), vec![]);
    assert_eq!(reply[16..], u64s(&[0]), "nothing is left there");
    let reply = rig.good(command::DMA_UNMAP, &[u32s(&[24, 2]), u64s(&[0, 0])].concat(), vec![]);
    assert_eq!(reply, [u32s(&[24, 2]), u64s(&[0, 2 * PAGE])].concat(), "the bytes of what was left");
    assert_eq!(rig.device.memory().traffic().windows, 0, "all");
}

#[test]
fn files_must_hold_their_windows() {
    let mut rig = Rig::new();
    let file = memfd(4 * PAGE);
    let mut refused = |flags, offset, size, fd: &dyn AsFd| {
        let fd = fd.as_fd().try_clone_to_owned().unwrap();
        rig.bad(command::DMA_MAP, &map_payload(flags, offset, 0x1000, size), vec![fd])
    };
    assert_eq!(refused(3, 0, 5 * PAGE, &file), Errno::INVAL);
    assert_eq!(refused(3, 4 * PAGE, 1, &file), Errno::INVAL);
    assert_eq!(refused(3, u64::MAX, 2, &file), Errno::INVAL);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(refused(3, 0, PAGE, &read_only), Errno::ACCESS);
    let folder = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(refused(1, 0, PAGE, &folder), Errno::INVAL);
    rig.good(command::DMA_MAP, &map_payload(1, 0, 0x1000, PAGE), vec![read_only]);
}

/// Starts a copy of 32 KiB on each of channels 0 and 1: within pages 0 to 16, and within pages 32 to 48.
fn two_copies(rig: &mut Rig) -> Guest {
    let mut guest = Guest::new(rig);
    for channel in 0..2 {
        rig.arm(channel, &guest);
        let from = 32 * PAGE * channel as u64;
        let count = guest.chain(channel, 8 * PAGE as u32, COMPLETING, copy(from + 100, from + 9 * PAGE));
        rig.count(channel, count);
    }
    guest
}

fn assert_second_is_whole(rig: &mut Rig, guest: &Guest) {
    assert_eq!(rig.state(1), TransferState::Idle);
    let expected: Vec<u8> = (0..8 * PAGE).map(|at| Guest::pattern(32 * PAGE + 100 + at)).collect();
    assert!(guest.read(BASE + 41 * PAGE, expected.len()) == expected, "the other channel goes on");
}

#[test]
fn unmapping_under_a_copy_halts_its_channel() {
    for (page, expected) in
        [(5, Chanerr::new().with_read_data(true)), (14, Chanerr::new().with_write_data(true))]
    {
        let mut rig = Rig::new();
        let guest = two_copies(&mut rig);
        rig.run_for(Duration::from_micros(3));
        assert_eq!(rig.state(0), TransferState::Active);
        rig.unmap(BASE + page * PAGE, PAGE);
        rig.run();
        assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Halted, expected));
        assert_eq!(guest.completed(0).state(), TransferState::Halted, "the channel did not halt");
        assert_second_is_whole(&mut rig, &guest);
        assert!(rig.device.memory().traffic().refused > 0);
    }
}

#[test]
fn unmapping_everything_under_a_copy_is_no_crash() {
    let mut rig = Rig::new();
    let guest = two_copies(&mut rig);
    rig.run_for(Duration::from_micros(3));
    rig.good(command::DMA_UNMAP, &[u32s(&[24, 2]), u64s(&[0, 0])].concat(), vec![]);
    let before = guest.read(BASE, (PAGES * PAGE) as usize);
    rig.run();
    for channel in 0..2 {
        assert_eq!(rig.state(channel), TransferState::Halted);
        assert!(rig.errors(channel).completion_address(), "{}", rig.errors(channel));
    }
    assert!(guest.read(BASE, (PAGES * PAGE) as usize) == before, "nothing is written after the unmap");
}

#[test]
fn a_truncated_file_is_an_error_of_the_device() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let file = memfd(4 * PAGE);
    let far = 0x9_0000_0000;
    rig.map(&file, 0, far, 4 * PAGE);
    rig.map(&file, 0, far + 16 * PAGE, PAGE);
    rustix::fs::ftruncate(&file, PAGE).unwrap();
    rig.arm(0, &guest);
    let body = memferry_registers::ioat::descriptor::Body::Copy { source: far + 2 * PAGE, destination: BASE };
    let count = guest.chain(0, 512, COMPLETING, body);
    rig.count(0, count);
    rig.run();
    assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Halted, Chanerr::new().with_read_data(true)));
    // Mapped again, the file is as good as its length, though an older window still shows the damage.
    rustix::fs::ftruncate(&file, 4 * PAGE).unwrap();
    rig.unmap(far, 4 * PAGE);
    rig.map(&file, 0, far, 4 * PAGE);
    let errors = rig.get32(0xA8);
    rig.set32(0xA8, errors);
    rig.arm(0, &guest);
    rig.count(0, count);
    rig.run();
    assert_eq!((rig.state(0), guest.read(BASE, 512)), (TransferState::Idle, vec![0; 512]));
}

#[test]
fn read_only_windows_are_not_written() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let file = memfd(PAGE);
    let given = file.try_clone().unwrap();
    rig.good(command::DMA_MAP, &map_payload(1, 0, 0x5000, PAGE), vec![given]);
    rig.arm(0, &guest);
    let body = memferry_registers::ioat::descriptor::Body::Copy { source: BASE, destination: 0x5000 };
    let count = guest.chain(0, 64, COMPLETING, body);
    rig.count(0, count);
    rig.run();
    assert_eq!(rig.errors(0), Chanerr::new().with_write_data(true));
    let mut bytes = [1; 64];
    rustix::io::pread(&file, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn only_a_bus_master_reaches_memory() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    rig.write(CONFIG, 4, &[2, 0]);
    rig.arm(0, &guest);
    let count = guest.chain(0, 64, COMPLETING, copy(0, 0x2000));
    rig.count(0, count);
    let before = guest.read(BASE, 64 * PAGE as usize);
    rig.run();
    assert_eq!(rig.state(0), TransferState::Halted);
    assert!(rig.errors(0).next_address(), "the descriptor could not be fetched: {}", rig.errors(0));
    assert!(guest.read(BASE, 64 * PAGE as usize) == before);
}

#[test]
fn a_file_is_mapped_once() {
    let mut rig = Rig::new();
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:once").count();
    let file = rustix::fs::memfd_create("once", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 512 * PAGE).unwrap();
    for page in 0..512 {
        rig.map(&file, (page * 7 % 512) * PAGE, 0x10_0000 + page * PAGE, PAGE);
    }
    assert_eq!((mappings(), rig.device.memory().traffic().windows), (1, 512));
    rig.unmap(0x10_0000, 512 * PAGE);
    assert_eq!(mappings(), 0, "nothing is kept of unmapped memory");
}

#[test]
fn an_access_that_leaves_its_windows_moves_nothing() {
    let mut memory = Memory::new();
    let map = |address, bytes: &[u8]| {
        let file = memfd(bytes.len() as u64);
        rustix::io::pwrite(&file, bytes, 0).unwrap();
        let size = bytes.len() as u64;
        let mapped = memory.map(&file, &DmaMap { read: true, write: true, offset: 0, address, size });
        mapped.map(|()| file)
    };
    let first = map(0x1000, &[1; 100]).unwrap();
    let second = map(0x1064, &[2; 28]).unwrap();
    let third = map(u64::MAX - 15, &[3; 16]).unwrap();
    assert!(map(0x1010, &[0; 1]).is_err() && map(0x2000, &[]).is_err());
    assert_eq!(memory.write(0x1000, &[9]), Err(BusError), "no bus master");
    memory.set_bus_master(true);
    let bytes = |file: &OwnedFd| {
        let mut bytes = vec![0; PAGE as usize];
        let length = rustix::io::pread(file, &mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    };
    for (address, length) in [(0x1000, 129), (0x0FFF, 2), (0x107F, 2), (u64::MAX, 2), (0x1000, 0), (0, 1)] {
        assert_eq!(memory.write(address, &vec![9; length]), Err(BusError), "{address:#x} {length}");
        assert_eq!(memory.read(address, &mut vec![9; length]), Err(BusError), "{address:#x} {length}");
    }
    assert_eq!((bytes(&first), bytes(&second), bytes(&third)), (vec![1; 100], vec![2; 28], vec![3; 16]));
    memory.write(0x1060, &[7; 8]).unwrap();
    memory.write(u64::MAX, &[8]).unwrap();
    let mut read = [0; 12];
    memory.read(0x105E, &mut read).unwrap();
    assert_eq!(read, [1, 1, 7, 7, 7, 7, 7, 7, 7, 7, 2, 2]);
    assert_eq!(bytes(&third)[15], 8);
    let traffic = memory.traffic();
    assert_eq!((traffic.refused, traffic.bytes_written, traffic.bytes_read), (13, 9, 12));
}

#[test]
fn only_files_in_memory_are_mapped() {
    let mut rig = Rig::new();
    // The first is no tmpfs wherever the tests run; the second could be mapped.
    for path in ["/proc/version", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        if rustix::fs::fcntl_get_seals(&file).is_ok() {
            continue;
        }
        let refused = rig.bad(command::DMA_MAP, &map_payload(1, 0, 0x1000, 8), vec![file]);
        let report = rig.device.take_report().concat();
        assert_eq!(refused, Errno::INVAL, "{path}");
        assert!(report.contains("no memfd and no file of tmpfs or hugetlbfs; back"), "{path}: {report}");
    }
}

#[test]
fn mappings_have_a_limit() {
    let mut rig = Rig::new();
    let map = |at: u64| (map_payload(3, 0, at * PAGE, PAGE), vec![memfd(PAGE)]);
    for at in 0..1024 {
        let (payload, file) = map(at);
        rig.good(command::DMA_MAP, &payload, file);
    }
    let (payload, file) = map(1024);
    assert_eq!(rig.bad(command::DMA_MAP, &payload, file), Errno::NOSPC);
    assert!(rig.device.take_report().concat().contains("1024 files are mapped; unmap"));
    // One that was unmapped makes room for another.
    rig.unmap(0, PAGE);
    let (payload, file) = map(0);
    rig.good(command::DMA_MAP, &payload, file);
    rig.device.disconnect();
    rig.good(command::VERSION, &[0, 0, 1, 0], vec![]);
    let (payload, file) = map(0);
    rig.good(command::DMA_MAP, &payload, file);
}

#[test]
fn mapped_bytes_have_a_limit() {
    let mut rig = Rig::new();
    let limit = 1 << 44;
    let too_large = vec![memfd(limit + PAGE)];
    assert_eq!(rig.bad(command::DMA_MAP, &map_payload(3, 0, 0, PAGE), too_large), Errno::NOSPC);
    rig.map(&memfd(limit), 0, 0, PAGE);
    let refused = rig.bad(command::DMA_MAP, &map_payload(3, 0, PAGE, PAGE), vec![memfd(PAGE)]);
    assert_eq!(refused, Errno::NOSPC);
    assert!(rig.device.take_report().concat().contains("0x100000000000 is the limit"));
    rig.unmap(0, PAGE);
    rig.map(&memfd(PAGE), 0, PAGE, PAGE);
}

#[test]
fn old_mappings_end_with_their_windows() {
    let mut rig = Rig::new();
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:again").count();
    let file = rustix::fs::memfd_create("again", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, PAGE).unwrap();
    rig.map(&file, 0, 0, PAGE);
    rustix::fs::ftruncate(&file, 2 * PAGE).unwrap();
    rig.map(&file, PAGE, PAGE, PAGE);
    assert_eq!(mappings(), 2, "the first is too short for the second window");
    rig.unmap(0, PAGE);
    assert_eq!(mappings(), 1);
    rig.map(&file, 0, 0, PAGE);
    assert_eq!(mappings(), 1, "the second suits");
    rig.unmap(0, 2 * PAGE);
    assert_eq!(mappings(), 0);
}
