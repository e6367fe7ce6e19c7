//! Byte-range locks on an open file.
//!
//! ```text
//! Locks::set ─ room in the user's account? ─ F_OFD_SETLK ─► acquired or not
//! would_lock ─ F_OFD_GETLK ─► the conflicting lock
//! ```
//!
//! A lock belongs to the open file, hence to one fid, and ends with it. It excludes other fids and other programs of this
//! machine alike. Nothing waits: a client that is refused tries again.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::fcntl::FcntlArg;
use rustix::io::Errno;

use crate::accounts::Account;

/// Locked ranges that a user may have. Linux goes through all ranges of a file for each request about one, which takes milliseconds
/// if there are tens of thousands.
const MOST_RANGES: u64 = 1024;

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

/// The locked ranges of one open file, as first byte and first byte behind. They count for its user.
#[derive(Debug)]
pub(crate) struct Locks {
    ranges: RefCell<Vec<(u64, u64)>>,
    account: Arc<Account>,
}

impl Locks {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { ranges: RefCell::default(), account }
    }

    /// Sets a lock of `file`; returns whether it was acquired.
    ///
    /// # Errors
    /// [`Errno::NOLCK`] if the user would have too many, and those of fcntl.
    pub(crate) fn set(&self, file: &OwnedFd, wanted: Lock) -> Result<bool, Errno> {
        let mut ranges = self.ranges.borrow_mut();
        let before = ranges.len() as u64;
        let next = with_lock(&ranges, wanted);
        let after = next.len() as u64;
        let more = after.saturating_sub(before);
        if !self.account.add_locks(more, MOST_RANGES) {
            return Err(Errno::NOLCK);
        }
        let acquired = lock(file, wanted);
        if acquired == Ok(true) {
            *ranges = next;
            self.account.remove_locks(before.saturating_sub(after));
        } else {
            self.account.remove_locks(more);
        }
        acquired
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.account.remove_locks(self.ranges.get_mut().len() as u64);
    }
}

/// What is locked after `lock`, which replaces what it covers. Linux joins some ranges, so it has at most as many.
fn with_lock(ranges: &[(u64, u64)], lock: Lock) -> Vec<(u64, u64)> {
    let start = lock.start;
    let end = if lock.length == 0 { u64::MAX } else { start.saturating_add(lock.length) };
    let rest = |(from, to): &(u64, u64)| [(*from, start.min(*to)), (end.max(*from), *to)];
    let locked = (lock.kind != LockKind::Unlock).then_some((start, end));
    ranges.iter().flat_map(rest).filter(|(from, to)| from < to).chain(locked).collect()
}

/// Sets a lock; returns whether it was acquired.
fn lock(file: &OwnedFd, lock: Lock) -> Result<bool, Errno> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn after(locks: &[(LockKind, u64, u64)]) -> Vec<(u64, u64)> {
        let lock = |(kind, start, length): (LockKind, u64, u64)| Lock { kind, start, length };
        locks.iter().fold(Vec::new(), |ranges, one| with_lock(&ranges, lock(*one)))
    }

    #[test]
    fn a_lock_replaces_what_it_covers() {
        use LockKind::{Read, Unlock, Write};
        assert_eq!(after(&[(Write, 5, 5), (Read, 20, 0)]), [(5, 10), (20, u64::MAX)]);
        assert_eq!(after(&[(Write, 0, 9), (Unlock, 3, 3)]), [(0, 3), (6, 9)]);
        assert_eq!(after(&[(Write, 0, 9), (Read, 3, 3)]), [(0, 3), (6, 9), (3, 6)]);
        assert_eq!(after(&[(Write, 3, 3), (Read, 3, 3), (Write, 0, 9)]), [(0, 9)]);
        assert_eq!(after(&[(Write, 3, 3), (Write, 8, 1), (Unlock, 0, 0)]), []);
        assert_eq!(after(&[(Write, 3, u64::MAX)]), [(3, u64::MAX)]);
    }
}
