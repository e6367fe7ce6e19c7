//! Frames: memory the service may move bytes in, and the rights others are given to it.
//!
//! ```text
//! mf_frame_allocate, _register (a memfd), _lend (plain memory) ─► mf_frame ─► mf_frame_map, _read, _write
//! mf_grant_* ─► token ─ any way ─► mf_accept in another session ─► mf_frame, not mapped        mf_revoke(token)
//! ```

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use memferry::{Access, AccessError, Client, Frame, Grantee, Handle, Lent, Rights, SessionId};

use crate::boundary::{Out, bytes, call};
use crate::error::{Fault, mf_error};
use crate::plain;
use crate::table::{self, FrameEntry, Shared};
use crate::types::{mf_client, mf_frame, mf_range};

fn keep(client: &Client, frame: Frame, lent: bool) -> Result<mf_frame, Fault> {
    let entry = FrameEntry { client: client.clone(), frame, lent };
    Ok(mf_frame { id: table::current_or_new()?.frames.insert(entry)? })
}

fn make(
    client: mf_client,
    frame: *mut mf_frame,
    how: impl FnOnce(&Client) -> Result<Frame, Fault>,
) -> mf_error {
    call(|| {
        let frame = Out::new("frame", frame)?;
        let client = table::client(client)?;
        frame.store(keep(&client, how(&client)?, false)?);
        Ok(())
    })
}

fn rights(bits: u32) -> Result<Rights, Fault> {
    let known = u8::try_from(bits).ok().and_then(Rights::from_bits);
    known.ok_or_else(|| Fault::new(mf_error::Argument, format!("there are no mf_rights {bits:#x}")))
}

/// Allocates at least `length` bytes, in whole pages, zeroed, with all rights, mapped in this process.
///
/// MF_ERROR_SYSTEM, MF_ERROR_REFUSED_QUOTA. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_allocate(client: mf_client, length: u64, frame: *mut mf_frame) -> mf_error {
    make(client, frame, |client| Ok(client.allocate(length)?))
}

/// Registers a memfd of this user, of exactly `length` bytes, all allocated, sealable. It is sealed for good. One that is sealed
/// against writing, or was opened to be read, is a frame without MF_RIGHTS_WRITE. The descriptor stays the caller's.
///
/// MF_ERROR_ARGUMENT when it is no descriptor, MF_ERROR_REFUSED_FRAME, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_register(
    client: mf_client,
    memfd: c_int,
    length: u64,
    frame: *mut mf_frame,
) -> mf_error {
    make(client, frame, |client| {
        if memfd < 0 {
            return Err(Fault::new(mf_error::Argument, format!("{memfd} is no descriptor")));
        }
        // SAFETY: not -1, and only duplicated, which tells a closed one; C1 says that nobody closes it meanwhile.
        let borrowed = unsafe { BorrowedFd::borrow_raw(memfd) };
        let copy = rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
            .map_err(|error| Fault::new(mf_error::Argument, format!("descriptor {memfd}: {error}")))?;
        Ok(client.register_memfd(copy, length)?)
    })
}

/// Makes plain memory of this process a frame, without copying it: `length` bytes at `memory`, to be read only when `read_only` is
/// not 0. The memory stays the caller's, who keeps it mapped until mf_frame_free has returned. Only for clients of mf_embed.
///
/// MF_ERROR_ARGUMENT for no bytes or a range beyond all addresses, MF_ERROR_NOT_EMBEDDED, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY,
/// MF_ERROR_REFUSED_QUOTA. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_lend(
    client: mf_client,
    memory: *mut c_void,
    length: usize,
    read_only: c_int,
    frame: *mut mf_frame,
) -> mf_error {
    call(|| {
        let frame = Out::new("frame", frame)?;
        let client = table::client(client)?;
        let memory: *mut u8 = memory.cast();
        bytes("memory", memory, length)?;
        if length == 0 {
            return Err(Fault::new(mf_error::Argument, "a frame has at least one byte"));
        }
        let access = if read_only == 0 { Access::ReadWrite } else { Access::ReadOnly };
        plain::check("memory", memory, length, access)?;
        // SAFETY: C1, and the caller keeps the memory until `mf_frame_free`, which revokes the frame before it returns.
        let lent = unsafe { Lent::new(memory, length, access) };
        let lent = lent.ok_or_else(|| Fault::new(mf_error::NullPointer, "memory is null"))?;
        frame.store(keep(&client, client.register_lent(lent)?, true)?);
        Ok(())
    })
}

/// Frees the handle. Transfers under way keep the memory until their completions were taken, and frames of mf_derive until they are
/// freed; when nothing keeps it any more, what was granted of it ends. Lent memory is not kept: transfers that use it are cancelled,
/// its grants and the frames derived from it end, and when this returns nothing touches it any more. Pointers of mf_frame_map are
/// good no more.
///
/// MF_ERROR_BAD_HANDLE; MF_ERROR_REFUSED_SYSTEM of lent memory that an engine which failed may still write to: the handle is gone, but
/// leave the memory alone. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_frame_free(frame: mf_frame) -> mf_error {
    call(|| {
        let entry = table::take_frame(frame)?;
        if !entry.lent {
            return Ok(());
        }
        let revoked = entry.client.revoke(entry.frame.handle());
        // A call of another thread, as mf_frame_read, may be copying there.
        table::last(entry);
        match revoked {
            Err(error) if !error.is_revoked_before() => Err(error.into()),
            _ => Ok(()),
        }
    })
}

/// Bytes of the frame, and bits of mf_rights; each may be null.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_describe(frame: mf_frame, length: *mut u64, rights: *mut u32) -> mf_error {
    call(|| {
        let length = Out::optional("length", length)?;
        let rights = Out::optional("rights", rights)?;
        let entry = table::frame(frame)?;
        if let Some(length) = length {
            length.store(entry.frame.length());
        }
        if let Some(rights) = rights {
            rights.store(entry.frame.rights().bits().into());
        }
        Ok(())
    })
}

/// The session that granted the frame: compare it with that of the peer you expect, for a token alone tells nothing of who
/// made it.
///
/// MF_ERROR_ARGUMENT for a frame that mf_accept did not give. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_grantor(frame: mf_frame, session: *mut u64) -> mf_error {
    call(|| {
        let session = Out::new("session", session)?;
        let grantor = table::frame(frame)?.frame.grantor().ok_or_else(|| {
            Fault::new(mf_error::Argument, "nobody granted this frame: mf_accept did not give it")
        })?;
        session.store(grantor.0);
        Ok(())
    })
}

/// Where the frame's bytes are in this process, and how many; `length` may be null. Good until the frame is freed. The service
/// writes there when a transfer asks it to: look at a destination when its completion was taken.
///
/// MF_ERROR_NOT_MAPPED for a frame that was accepted or derived. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_map(
    frame: mf_frame,
    memory: *mut *mut c_void,
    length: *mut u64,
) -> mf_error {
    call(|| {
        let memory = Out::new("memory", memory)?;
        let length = Out::optional("length", length)?;
        let entry = table::frame(frame)?;
        let (base, bytes, _) = entry.frame.pointer().ok_or_else(not_mapped)?;
        memory.store(base.cast());
        if let Some(length) = length {
            length.store(bytes as u64);
        }
        Ok(())
    })
}

fn not_mapped() -> Fault {
    Fault::new(
        mf_error::NotMapped,
        "the frame was accepted or derived and is not mapped here; copy it to one that is",
    )
}

/// Where an access by this process begins, with what keeps the memory there.
///
/// The buffer may lie in the mapping of this frame, or in that of another that the service writes. So no reference to it may be
/// formed, and the two may overlap.
fn mapped(
    frame: mf_frame,
    offset: u64,
    (buffer, length): (*const u8, usize),
    access: Access,
) -> Result<(*mut u8, Shared<FrameEntry>), Fault> {
    bytes("buffer", buffer, length)?;
    let entry = table::frame(frame)?;
    let (base, available, allowed) = entry.frame.pointer().ok_or_else(not_mapped)?;
    if access == Access::ReadWrite && allowed == Access::ReadOnly {
        return Err(AccessError::ReadOnly.into());
    }
    let length = length as u64;
    let available = available as u64;
    if offset.checked_add(length).is_none_or(|end| end > available) {
        return Err(AccessError::OutOfRange { offset, length, available }.into());
    }
    Ok((base.wrapping_add(offset as usize), entry))
}

/// Copies bytes out of the frame, on this thread, as memmove does: the buffer may lie in a frame, also in this one.
///
/// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_read(
    frame: mf_frame,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
) -> mf_error {
    call(|| {
        let buffer: *mut u8 = buffer.cast();
        let (from, _kept) = mapped(frame, offset, (buffer, length), Access::ReadOnly)?;
        if length > 0 {
            // SAFETY: M1: `mapped` checked the range, which the entry keeps mapped; C1: `length` bytes to be written. Copied raw
            // (M2), and they may overlap.
            unsafe { std::ptr::copy(from, buffer, length) };
        }
        Ok(())
    })
}

/// Copies bytes into the frame, on this thread, as memmove does: the buffer may lie in a frame, also in this one.
///
/// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_write(
    frame: mf_frame,
    offset: u64,
    buffer: *const c_void,
    length: usize,
) -> mf_error {
    call(|| {
        let buffer: *const u8 = buffer.cast();
        let (to, _kept) = mapped(frame, offset, (buffer, length), Access::ReadWrite)?;
        if length > 0 {
            // SAFETY: M1, M3: `mapped` checked the range and that it may be written, and the entry keeps it mapped; C1: `length`
            // bytes to be read. Copied raw (M2), and they may overlap.
            unsafe { std::ptr::copy(buffer, to, length) };
        }
        Ok(())
    })
}

fn grant(range: mf_range, bits: u32, to: Grantee, token: *mut u64) -> mf_error {
    call(|| {
        let token = Out::new("token", token)?;
        let rights = rights(bits)?;
        let (entry, range) = table::range_of(range)?;
        token.store(entry.client.grant(&range, rights, to)?.bits());
        Ok(())
    })
}

/// Offers a range to every session of a user, with bits of mf_rights. The token is no secret: it is good for that user only.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_user(range: mf_range, rights: u32, user: u32, token: *mut u64) -> mf_error {
    grant(range, rights, Grantee::User(user), token)
}

/// Offers a range to one session, as mf_grant_user.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_session(
    range: mf_range,
    rights: u32,
    session: u64,
    token: *mut u64,
) -> mf_error {
    grant(range, rights, Grantee::Session(SessionId(session)), token)
}

/// Takes up a grant. The frame is not mapped here: the service moves bytes there, within the rights granted.
///
/// MF_ERROR_REFUSED_CAPABILITY. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_accept(client: mf_client, token: u64, frame: *mut mf_frame) -> mf_error {
    make(client, frame, |client| Ok(client.accept(Handle::from_bits(token))?))
}

/// Takes away what was granted under a token. Returns when no transfer uses it any more: those running are cancelled.
///
/// MF_ERROR_REFUSED_CAPABILITY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_revoke(client: mf_client, token: u64) -> mf_error {
    call(|| Ok(table::client(client)?.revoke(Handle::from_bits(token))?))
}

/// A frame of a narrower range or with fewer rights, of the same session. It keeps the memory though the other frame is freed, but
/// for lent memory.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_derive(range: mf_range, rights: u32, frame: *mut mf_frame) -> mf_error {
    call(|| {
        let frame = Out::new("frame", frame)?;
        let bits = self::rights(rights)?;
        let (entry, range) = table::range_of(range)?;
        frame.store(keep(&entry.client, entry.client.derive(&range, bits)?, false)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::client::mf_embed;

    #[test]
    fn bytes_are_read_and_written_within_one_frame_though_they_overlap() {
        let mut client = mf_client::default();
        let mut frame = mf_frame::default();
        let mut memory: *mut c_void = std::ptr::null_mut();
        let pattern: Vec<u8> = (0..=255).collect();
        // SAFETY: results go to variables of these types; the bytes lie in the frame, which no transfer uses.
        unsafe {
            assert_eq!(mf_embed(&mut client), mf_error::None);
            assert_eq!(mf_frame_allocate(client, 4096, &mut frame), mf_error::None);
            assert_eq!(mf_frame_map(frame, &mut memory, std::ptr::null_mut()), mf_error::None);
            for (offset, at) in [(0, 8), (8, 0), (3, 3)] {
                for read in [true, false] {
                    let mut expected = pattern.clone();
                    let (from, to) = if read { (offset, at) } else { (at, offset) };
                    expected.copy_within(from..from + 200, to);
                    assert_eq!(mf_frame_write(frame, 0, pattern.as_ptr().cast(), 256), mf_error::None);
                    let inside = memory.wrapping_byte_add(at);
                    let moved = match read {
                        true => mf_frame_read(frame, offset as u64, inside, 200),
                        false => mf_frame_write(frame, offset as u64, inside, 200),
                    };
                    assert_eq!(moved, mf_error::None);
                    let mut now = [0_u8; 256];
                    assert_eq!(mf_frame_read(frame, 0, now.as_mut_ptr().cast(), 256), mf_error::None);
                    assert_eq!(now[..], expected, "{offset}, {at}, {read}");
                }
            }
        }
        assert_eq!(mf_frame_free(frame), mf_error::None);
        crate::client::mf_disconnect(client);
    }

    #[test]
    fn lent_memory_is_free_when_no_other_call_touches_it() {
        let mut client = mf_client::default();
        let mut frame = mf_frame::default();
        let mut memory = vec![0_u8; 4096];
        // SAFETY: results go to variables of these types, and the memory outlives the frame.
        unsafe {
            assert_eq!(mf_embed(&mut client), mf_error::None);
            assert_eq!(
                mf_frame_lend(client, memory.as_mut_ptr().cast(), memory.len(), 0, &mut frame),
                mf_error::None
            );
        }
        // As another thread's mf_frame_read has it.
        let reads = table::frame(frame).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let frees = scope.spawn(|| (mf_frame_free(frame), over.load(Ordering::SeqCst)));
            while table::frame(frame).is_ok() {
                std::thread::yield_now();
            }
            // Time for the revoke to return: it takes microseconds.
            (0..10_000).for_each(|_| std::thread::yield_now());
            over.store(true, Ordering::SeqCst);
            drop(reads);
            assert_eq!(frees.join().unwrap(), (mf_error::None, true));
        });
        assert_eq!(mf_frame_free(frame), mf_error::BadHandle);
        crate::client::mf_disconnect(client);
    }
}
