//! Tests of frame admission: descriptors it must refuse, and changes that an admitted memfd must refuse.

use std::os::fd::AsFd;

use super::*;

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn memfd(flags: MemfdFlags, size: u64, allocated: u64) -> OwnedFd {
    let descriptor = rustix::fs::memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&descriptor, size).unwrap();
    if allocated > 0 {
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, allocated).unwrap();
    }
    descriptor
}

#[test]
fn admits_an_allocated_frame() {
    let (descriptor, ours) = allocate(10_000, Pages::Ordinary).unwrap();
    assert_eq!(ours.length_bytes(), 12_288);
    let theirs = admit(descriptor.as_fd(), 12_288, me()).unwrap();
    ours.write(5, b"abc").unwrap();
    let mut bytes = [0; 3];
    theirs.read(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
}

#[test]
fn an_admitted_frame_refuses_changes() {
    let (descriptor, ours) = allocate(8192, Pages::Ordinary).unwrap();
    admit(descriptor.as_fd(), 8192, me()).unwrap();
    assert!(rustix::fs::ftruncate(&descriptor, 4096).is_err());
    assert!(rustix::fs::ftruncate(&descriptor, 16384).is_err());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&descriptor, punch, 0, 4096).is_err());
    assert!(rustix::io::pwrite(&descriptor, b"x", 0).is_err());
    assert!(rustix::fs::fcntl_add_seals(&descriptor, SealFlags::WRITE).is_err());
    assert!(Mapping::shared(descriptor.as_fd(), 8192, Access::ReadWrite, 4096).is_err());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(Mapping::shared(again.as_fd(), 8192, Access::ReadWrite, 4096).is_err());
    assert!(rustix::io::pwrite(&again, b"x", 0).is_err());
    // SAFETY: the range is mapped by `ours`, and Linux must refuse to remove its pages.
    let removed =
        unsafe { rustix::mm::madvise(ours.pointer().cast(), 4096, rustix::mm::Advice::LinuxRemove) };
    assert!(removed.is_err());
    ours.write(0, b"earlier mappings stay writable").unwrap();
}

/// So the service cannot map a frame after the seal that it waits for: `docs/guide/soundness.md` tells what follows.
#[test]
fn holes_end_only_with_writable_mappings() {
    let descriptor = memfd(MemfdFlags::ALLOW_SEALING, 4096, 4096);
    let may_punch = || {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&descriptor, how, 0, 4096).is_ok()
    };
    let may_map = || Mapping::shared(descriptor.as_fd(), 4096, Access::ReadWrite, 4096).is_ok();
    rustix::fs::fcntl_add_seals(&descriptor, REQUIRED.difference(SealFlags::FUTURE_WRITE | SealFlags::SEAL))
        .unwrap();
    assert!(may_punch() && may_map());
    rustix::fs::fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE).unwrap();
    assert!(!may_punch() && !may_map());
}

#[test]
fn refuses_descriptors_that_are_not_memfds() {
    let regular = std::fs::File::open("/proc/self/exe").unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let directory = std::fs::File::open("/").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    for descriptor in [regular.as_fd(), pipe.as_fd(), directory.as_fd(), zero.as_fd()] {
        assert!(matches!(admit(descriptor, 4096, me()), Err(FrameRefused::NotMemfd)));
    }
}

#[test]
fn refuses_unsuitable_memfds() {
    let sealing = MemfdFlags::ALLOW_SEALING;
    let refused =
        |descriptor: OwnedFd, announced, user| admit(descriptor.as_fd(), announced, user).unwrap_err();
    let error = refused(memfd(MemfdFlags::empty(), 4096, 4096), 4096, me());
    assert!(matches!(error, FrameRefused::Unsealable { .. }), "{error}");
    let error = refused(memfd(sealing, 8192, 4096), 8192, me());
    assert!(matches!(error, FrameRefused::Sparse { allocated: 4096, length: 8192 }), "{error}");
    let error = refused(memfd(sealing, 4096, 4096), 8192, me());
    assert!(matches!(error, FrameRefused::SizeDiffers { announced: 8192, size: 4096 }), "{error}");
    let error = refused(memfd(sealing, 8192, 8192), 4096, me());
    assert!(matches!(error, FrameRefused::SizeDiffers { announced: 4096, size: 8192 }), "{error}");
    let error = refused(memfd(sealing, 4096, 4096), u64::MAX, me());
    assert!(matches!(error, FrameRefused::SizeDiffers { .. }), "{error}");
    assert!(matches!(refused(memfd(sealing, 4096, 4096), 0, me()), FrameRefused::Empty));
    let error = refused(memfd(sealing, 4096, 4096), 4096, me() + 1);
    assert!(matches!(error, FrameRefused::Foreign { .. }), "{error}");
}

#[test]
fn pages_beyond_the_end_hide_no_hole() {
    let keep = FallocateFlags::KEEP_SIZE;
    let beyond = |size: u64, extra: u64| {
        let descriptor = memfd(MemfdFlags::ALLOW_SEALING, size, 0);
        rustix::fs::fallocate(&descriptor, keep, size, extra).unwrap();
        descriptor
    };
    for (extra, left) in [(4096, 4096), (1 << 20, 0), ((1 << 20) + 4096, 0)] {
        let descriptor = beyond(1 << 20, extra);
        let error = admit(descriptor.as_fd(), 1 << 20, me()).unwrap_err();
        assert!(matches!(error, FrameRefused::Sparse { .. }), "{error}");
        // Pages beyond the end are freed where they could hide a hole, and the service allocates none.
        assert_eq!(rustix::fs::fstat(&descriptor).unwrap().st_blocks * 512, left);
    }
    // The service does not free a large excess: that would delay other clients.
    let error = admit(beyond(1 << 20, 4 << 20).as_fd(), 1 << 20, me()).unwrap_err();
    assert!(matches!(error, FrameRefused::BeyondEnd { .. }), "{error}");
    let whole = memfd(MemfdFlags::ALLOW_SEALING, 1 << 20, 1 << 20);
    rustix::fs::fallocate(&whole, keep, 1 << 20, 1 << 20).unwrap();
    admit(whole.as_fd(), 1 << 20, me()).unwrap();
    assert_eq!(rustix::fs::fstat(&whole).unwrap().st_blocks * 512, 1 << 20);
}

#[test]
fn refuses_a_read_only_descriptor() {
    let (descriptor, _) = allocate(4096, Pages::Ordinary).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let read_only = std::fs::File::open(path).unwrap();
    assert!(matches!(admit(read_only.as_fd(), 4096, me()), Err(FrameRefused::Unsealable { .. })));
}

#[test]
fn admits_a_write_sealed_frame_read_only() {
    let descriptor = memfd(MemfdFlags::ALLOW_SEALING, 4096, 4096);
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&descriptor, seals).unwrap();
    let mapping = admit(descriptor.as_fd(), 4096, me()).unwrap();
    assert_eq!(mapping.access(), Access::ReadOnly);
    assert_eq!(mapping.write(0, &[1]), Err(crate::mapping::AccessError::ReadOnly));
}

#[test]
fn refuses_impossible_lengths() {
    assert!(matches!(allocate(0, Pages::Ordinary), Err(AllocateError::Empty)));
    for length in [u64::MAX, i64::MAX as u64, u64::MAX - 4095] {
        assert!(matches!(allocate(length, Pages::Ordinary), Err(AllocateError::System { .. })));
    }
}

#[test]
fn admits_huge_pages_where_available() {
    match allocate(1, Pages::Huge) {
        Ok((descriptor, ours)) => {
            let length = ours.length_bytes() as u64;
            assert!(length > 4096);
            admit(descriptor.as_fd(), length, me()).unwrap();
            assert!(rustix::fs::ftruncate(&descriptor, 0).is_err());
        }
        Err(error) => println!("no huge pages on this machine: {error}"),
    }
}

#[test]
fn accepts_sealed_memory_of_a_peer() {
    for peer_writes in [false, true] {
        let (descriptor, _) = allocate_sealed(5000, peer_writes).unwrap();
        assert_eq!(check_sealed(descriptor.as_fd(), 5000).unwrap(), 8192);
        assert_eq!(check_sealed(descriptor.as_fd(), 8192).unwrap(), 8192);
        let small = check_sealed(descriptor.as_fd(), 8193);
        assert!(matches!(small, Err(UnsafeMemory::TooSmall { needed: 8193, size: 8192 })), "{small:?}");
    }
}

#[test]
fn refuses_unsealed_memory_of_a_peer() {
    let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL];
    for absent in all {
        let descriptor = memfd(MemfdFlags::ALLOW_SEALING, 8192, 8192);
        let seals =
            all.into_iter().filter(|seal| *seal != absent).fold(SealFlags::empty(), |all, seal| all | seal);
        rustix::fs::fcntl_add_seals(&descriptor, seals).unwrap();
        let refused = check_sealed(descriptor.as_fd(), 4096);
        let missing = absent.bits();
        assert!(matches!(refused, Err(UnsafeMemory::Unsealed { missing: m }) if m == missing), "{refused:?}");
    }
    // A memfd without MFD_ALLOW_SEALING has the seal SEAL only.
    let refused = check_sealed(memfd(MemfdFlags::empty(), 8192, 8192).as_fd(), 4096);
    assert!(matches!(refused, Err(UnsafeMemory::Unsealed { .. })), "{refused:?}");
}

#[test]
fn refuses_memory_that_was_truncated_before_its_seals() {
    let descriptor = memfd(MemfdFlags::ALLOW_SEALING, 8192, 8192);
    rustix::fs::ftruncate(&descriptor, 100).unwrap();
    rustix::fs::fcntl_add_seals(&descriptor, FIXED_SIZE).unwrap();
    let refused = check_sealed(descriptor.as_fd(), 8192);
    assert!(matches!(refused, Err(UnsafeMemory::TooSmall { needed: 8192, size: 100 })), "{refused:?}");
}

#[test]
fn refuses_other_objects_as_memory_of_a_peer() {
    let regular = std::fs::File::open("/proc/self/exe").unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    for descriptor in [regular.as_fd(), pipe.as_fd(), zero.as_fd()] {
        assert!(matches!(check_sealed(descriptor, 1), Err(UnsafeMemory::NotMemfd)));
        assert!(matches!(check_admitted(descriptor, 1), Err(UnsafeMemory::NotMemfd)));
    }
}

#[test]
fn an_admitted_frame_passes_the_owners_check() {
    let (descriptor, _) = allocate(8192, Pages::Ordinary).unwrap();
    let unsealed = check_admitted(descriptor.as_fd(), 8192);
    assert!(matches!(unsealed, Err(UnsafeMemory::Unsealed { .. })), "{unsealed:?}");
    admit(descriptor.as_fd(), 8192, me()).unwrap();
    check_admitted(descriptor.as_fd(), 8192).unwrap();
    let short = check_admitted(descriptor.as_fd(), 8193);
    assert!(matches!(short, Err(UnsafeMemory::TooSmall { .. })), "{short:?}");
}
