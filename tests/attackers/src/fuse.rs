//! A file whose reads are never answered, and whose closes never end.
//!
//! ```text
//! attacker, as root ─ private mounts ─ mount("fuse", fd=N) ─► <directory>/fuse/file
//! server process    ─ /dev/fuse as its standard input ─► answers INIT, LOOKUP, GETATTR, OPEN; never READ and FLUSH
//! ```
//!
//! The server is a process of its own and holds the only descriptor of the connection. When it is killed, Linux ends every call
//! that waits for it. The mount vanishes with the attacker's mount namespace.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use memferry_shm::mapping::{Access, Mapping};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::Failed;
use crate::{roles, system};

/// Bytes of the file.
const LENGTH: u64 = 1 << 30;
const ROOT: u64 = 1;
const FILE: u64 = 2;
const DIRECTORY_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_666;

// Requests of fuse(4), with Linux's numbers (include/uapi/linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

pub(crate) struct Fuse {
    path: PathBuf,
}

impl Fuse {
    /// Mounts the file over `directory`, served by `user`. Needs root; the mount is open to all users.
    pub(crate) fn mount(directory: &Path, arguments: &[String], user: &str) -> Result<Self, Failed> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| format!("cannot open /dev/fuse: {error}"))?;
        let denied = |step| move |error: Errno| format!("cannot mount a FUSE file system ({step}): {error}");
        system::private_mounts().map_err(denied("unshare"))?;
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(denied("private mounts"))?;
        let _ = std::fs::create_dir(directory);
        let number = device.as_raw_fd();
        let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0,allow_other");
        let data = CString::new(data)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("memferry-hostile", directory, "fuse", flags, data.as_c_str())
            .map_err(denied("mount"))?;
        let mut server = roles::role(arguments, &["fuse-server", user]);
        // The process group is the attacker's, so that both are killed at once.
        server.stdin(Stdio::from(device)).stdout(Stdio::null()).arg0("memferry-fuse");
        server.spawn()?;
        Ok(Self { path: directory.join("file") })
    }

    pub(crate) fn open(&self) -> Result<File, Failed> {
        Ok(File::options().read(true).write(true).open(&self.path)?)
    }

    /// Memory of the file. Whoever reads it waits.
    pub(crate) fn map(&self) -> Result<Mapping, Failed> {
        self.map_for(Access::ReadOnly)
    }

    /// The same; whoever writes to it waits, too.
    pub(crate) fn map_writable(&self) -> Result<Mapping, Failed> {
        self.map_for(Access::ReadWrite)
    }

    fn map_for(&self, access: Access) -> Result<Mapping, Failed> {
        let file = self.open()?;
        let mapping = Mapping::shared(file.as_fd(), LENGTH as usize, access, 4096)?;
        // Closing it would wait for the FLUSH.
        std::mem::forget(file);
        Ok(mapping)
    }
}

/// Serves the connection on the standard input until Linux ends it.
pub(crate) fn serve() -> Result<(), Failed> {
    let device = rustix::stdio::stdin();
    let mut request = vec![0; 1 << 20];
    loop {
        let length = match rustix::io::read(device, &mut request) {
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(_) => return Ok(()),
        };
        if length >= HEADER {
            handle(device, &request[..length]);
        }
    }
}

/// Length of a request's header.
const HEADER: usize = 40;

fn handle(device: BorrowedFd<'_>, request: &[u8]) {
    let half =
        |at: usize| request.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let opcode = half(4);
    let unique = &request[8..16];
    let node = u64::from(half(16)) | u64::from(half(20)) << 32;
    let (error, body) = match opcode {
        READ | FLUSH | FORGET | BATCH_FORGET | INTERRUPT => return,
        INIT => (0, initialized(half(HEADER + 4), half(HEADER + 8))),
        LOOKUP => (0, entry()),
        GETATTR => (0, [&3600u64.to_ne_bytes()[..], &[0; 8], &attributes(node)].concat()),
        // A file handle, no flags, padding.
        OPEN => (0, [&1u64.to_ne_bytes()[..], &[0; 8]].concat()),
        RELEASE => (0, Vec::new()),
        _ => (libc::ENOSYS, Vec::new()),
    };
    let length = (16 + body.len()) as u32;
    let answer = [&length.to_ne_bytes()[..], &(-error).to_ne_bytes(), unique, &body].concat();
    let _ = rustix::io::write(device, &answer);
}

/// `struct fuse_init_out`: the kernel's minor version, its read-ahead and no features.
fn initialized(minor: u32, read_ahead: u32) -> Vec<u8> {
    let words = [7, minor.min(31), read_ahead, 0, 64 << 16 | 64, 1 << 16, 1];
    let mut body: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    body.resize(64, 0);
    body
}

/// `struct fuse_entry_out` of the file, whatever its name.
fn entry() -> Vec<u8> {
    let times = [FILE, 1, 3600, 3600, 0];
    times.iter().flat_map(|word| word.to_ne_bytes()).chain(attributes(FILE)).collect()
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { DIRECTORY_MODE } else { FILE_MODE };
    let longs = [node, LENGTH, LENGTH / 512, 0, 0, 0];
    let halves = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    let longs = longs.iter().flat_map(|word| word.to_ne_bytes());
    longs.chain(halves.iter().flat_map(|word| word.to_ne_bytes())).collect()
}
