//! Byte-range locks on an open file.
//!
//! ```text
//! lock(file, Lock) ─ F_OFD_SETLK ─► acquired or not        would_lock ─ F_OFD_GETLK ─► the conflicting lock
//! ```
//!
//! A lock belongs to the open file, hence to one fid, and ends with it. It excludes other fids and other programs of this
//! machine alike. Nothing waits: a client that is refused tries again.

use std::os::fd::OwnedFd;

use nix::fcntl::FcntlArg;
use rustix::io::Errno;

/// The access that a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    Read,
    Write,
    Unlock,
}

impl LockKind {
    pub(crate) fn of(number: u8) -> Result<Self, Errno> {
        match number {
            0 => Ok(Self::Read),
            1 => Ok(Self::Write),
            2 => Ok(Self::Unlock),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Unlock => 2,
        }
    }
}

/// A range to lock; length zero reaches to the end of the file, even if it grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub(crate) kind: LockKind,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Lock {
    fn native(self) -> Result<libc::flock, Errno> {
        let kind = match self.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        let number = |value| i64::try_from(value).map_err(|_| Errno::INVAL);
        Ok(libc::flock {
            l_type: kind as _,
            l_whence: libc::SEEK_SET as _,
            l_start: number(self.start)?,
            l_len: number(self.length)?,
            l_pid: 0,
        })
    }
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Sets a lock; returns whether it was acquired.
pub(crate) fn lock(file: &OwnedFd, lock: Lock) -> Result<bool, Errno> {
    match nix::fcntl::fcntl(file, FcntlArg::F_OFD_SETLK(&lock.native()?)).map_err(errno) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The lock that conflicts with this one; [`LockKind::Unlock`] if none does.
pub(crate) fn would_lock(file: &OwnedFd, lock: Lock) -> Result<Lock, Errno> {
    let mut native = lock.native()?;
    nix::fcntl::fcntl(file, FcntlArg::F_OFD_GETLK(&mut native)).map_err(errno)?;
    let kind = match i32::from(native.l_type) {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        _ => return Ok(Lock { kind: LockKind::Unlock, ..lock }),
    };
    Ok(Lock { kind, start: native.l_start.cast_unsigned(), length: native.l_len.cast_unsigned() })
}
