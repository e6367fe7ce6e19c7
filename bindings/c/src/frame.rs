//! Frames: memory the service may move bytes in, and grants of it to other sessions.
//!
//! ```text
//! mf_frame_allocate, _allocate_at (an engine's memory), _register (a memfd), _lend (plain memory) ─► mf_frame ─► mf_frame_map, _read, _write
//! mf_frame_export ─► a descriptor of an engine's memory
//! mf_grant_* ─► mf_grant_token ─ any way ─► mf_accept in another session ─► mf_frame, not mapped        mf_revoke(token)
//! mf_grant_remote ─ mf_remote_token ─► text ─ any way ─► mf_accept_remote on another node ─► mf_frame, not mapped
//! ```

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::Duration;

use memferry::{
    Access, AccessError, BadNodeName, BadRemoteToken, Client, ExportKind, Exported, Frame, GrantToken,
    Grantee, Lent, NodeName, RemoteToken, Rights, SessionId,
};

use crate::boundary::{Out, bytes, call, text};
use crate::error::{Fault, mf_error};
use crate::plain;
use crate::table::{self, FrameEntry, Shared};
use crate::types::{
    MF_REMOTE_TOKEN_BYTES, mf_client, mf_export_kind, mf_exported, mf_frame, mf_grant_token, mf_range,
};

fn insert(client: &Client, frame: Frame, lent: bool) -> Result<mf_frame, Fault> {
    let entry = FrameEntry { client: client.clone(), frame, lent };
    Ok(mf_frame { id: table::current_or_new()?.frames.insert(entry)? })
}

fn make(
    client: mf_client,
    frame: *mut mf_frame,
    create: impl FnOnce(&Client) -> Result<Frame, Fault>,
) -> mf_error {
    call(|| {
        let frame = Out::new("frame", frame)?;
        let client = table::client(client)?;
        frame.store(insert(&client, create(&client)?, false)?);
        Ok(())
    })
}

fn rights(bits: u32) -> Result<Rights, Fault> {
    let known = u8::try_from(bits).ok().and_then(Rights::from_bits);
    known.ok_or_else(|| {
        Fault::new(mf_error::Argument, format!("{bits:#x} has bits that mf_rights does not define"))
    })
}

/// Allocates at least `length` bytes, in whole pages, zeroed, with all rights, mapped in this process.
///
/// MF_ERROR_ARGUMENT for no bytes, MF_ERROR_SYSTEM, MF_ERROR_REFUSED_QUOTA. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_allocate(client: mf_client, length: u64, frame: *mut mf_frame) -> mf_error {
    make(client, frame, |client| Ok(client.frame(length).alloc()?))
}

/// Allocates `length` bytes, zeroed, with all rights, in memory that only the engine process `engine` reaches, such as that of a GPU. The
/// frame is not mapped here: transfers by that engine reach it. It is lost, and its grants are revoked, when the engine's process ends.
///
/// MF_ERROR_TEXT, MF_ERROR_REFUSED_ARGUMENT if no such engine has memory for this user,
/// MF_ERROR_REFUSED_QUOTA, MF_ERROR_REFUSED_SYSTEM if the engine could not allocate it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_allocate_at(
    client: mf_client,
    engine: *const c_char,
    length: u64,
    frame: *mut mf_frame,
) -> mf_error {
    make(client, frame, |client| Ok(client.frame(length).home(text("engine", engine)?).alloc()?))
}

/// Gives a descriptor of the memory of a frame of mf_frame_allocate_at, for reading and writing it in this process. It cannot be taken
/// back: the memory stays until the descriptor and all mappings of it are gone, also after mf_frame_free, or when the engine has ended.
/// Grants of the frame are not affected. The caller closes the descriptor, which is not inherited by exec.
///
/// MF_ERROR_REFUSED_CAPABILITY for a frame that was accepted or derived, MF_ERROR_REFUSED_ARGUMENT for one in memory of the host and for
/// an engine that gives out no descriptors, MF_ERROR_REFUSED_SYSTEM if the engine is gone, busy or late. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_export(frame: mf_frame, exported: *mut mf_exported) -> mf_error {
    call(|| {
        let out = Out::new("exported", exported)?;
        let Exported { descriptor, kind, length } = table::frame(frame)?.frame.export()?;
        let (kind, device) = match kind {
            ExportKind::Memory => (mf_export_kind::Memory, [0; 16]),
            ExportKind::Cuda { device } => (mf_export_kind::Cuda, device),
        };
        out.store(mf_exported { descriptor: descriptor.into_raw_fd(), kind: kind as u32, length, device });
        Ok(())
    })
}

/// Registers a memfd of this user, of exactly `length` bytes, all allocated, sealable. It is sealed permanently. A memfd that is
/// sealed against writing, or was opened read-only, becomes a frame without MF_RIGHTS_WRITE. The caller keeps the descriptor.
///
/// MF_ERROR_ARGUMENT for an invalid descriptor, MF_ERROR_REFUSED_FRAME, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_register(
    client: mf_client,
    memfd: c_int,
    length: u64,
    frame: *mut mf_frame,
) -> mf_error {
    make(client, frame, |client| {
        if memfd < 0 {
            return Err(Fault::new(mf_error::Argument, format!("{memfd} is not a file descriptor")));
        }
        // SAFETY: not -1, and only duplicated, which detects a closed one; C1: no thread closes it meanwhile.
        let borrowed = unsafe { BorrowedFd::borrow_raw(memfd) };
        let copy = rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
            .map_err(|error| Fault::new(mf_error::Argument, format!("descriptor {memfd}: {error}")))?;
        Ok(client.register_memfd(copy, length)?)
    })
}

/// Makes plain memory of this process a frame, without copying it: `length` bytes at `memory`, read-only when `read_only` is not 0.
/// The caller keeps the memory mapped until mf_frame_free has returned. Only for clients of mf_embed.
///
/// MF_ERROR_ARGUMENT for no bytes or a range past the last address, MF_ERROR_NOT_EMBEDDED, MF_ERROR_NOT_MAPPED,
/// MF_ERROR_READ_ONLY, MF_ERROR_REFUSED_QUOTA. Any thread.
#[must_use]
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
        // SAFETY: C1; the caller keeps the memory until `mf_frame_free`, which revokes the frame before it returns.
        let lent = unsafe { Lent::new(memory, length, access) };
        let lent = lent.ok_or_else(|| Fault::new(mf_error::NullPointer, "memory is null"))?;
        frame.store(insert(&client, client.register_lent(lent)?, true)?);
        Ok(())
    })
}

/// Frees the handle; pointers of mf_frame_map become invalid. Transfers under way keep the memory until their completions were
/// taken, and frames of mf_derive keep it until they are freed; its grants end after the last of these. Lent memory is not kept:
/// transfers that use it are cancelled, its grants and the frames derived from it end, and when this returns nothing accesses it.
///
/// MF_ERROR_BAD_HANDLE; for lent memory MF_ERROR_REFUSED_SYSTEM when a failed engine may still write to it: the handle is freed, but
/// do not reuse the memory. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_frame_free(frame: mf_frame) -> mf_error {
    call(|| {
        let entry = table::take_frame(frame)?;
        if !entry.lent {
            return Ok(());
        }
        let revoked = entry.frame.revoke();
        // Another thread's mf_frame_read may still be copying there.
        table::wait_for_drop(entry);
        match revoked {
            Err(error) if !error.is_revoked_before() => Err(error.into()),
            _ => Ok(()),
        }
    })
}

/// Gives the frame's length in bytes and its bits of mf_rights; each pointer may be null.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[must_use]
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

/// Gives the session that granted the frame. Compare it with the session of the expected peer: a token does not identify its grantor.
///
/// MF_ERROR_ARGUMENT for a frame that mf_accept did not give. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_frame_grantor(frame: mf_frame, session: *mut u64) -> mf_error {
    call(|| {
        let session = Out::new("session", session)?;
        let grantor = table::frame(frame)?.frame.grantor().ok_or_else(|| {
            Fault::new(mf_error::Argument, "the frame has no grantor: it does not come from mf_accept")
        })?;
        session.store(grantor.0);
        Ok(())
    })
}

/// Gives the address of the frame's bytes in this process, and how many there are; `length` may be null. Valid until the frame is
/// freed. Transfers write there: read a destination after its completion was taken.
///
/// MF_ERROR_NOT_MAPPED for a frame that was accepted or derived. Any thread.
#[must_use]
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

/// The first byte of an access by this process, and the entry that keeps the memory mapped.
///
/// The buffer may lie in the mapping of this frame, or of another that the service writes. So no reference to it may be formed, and
/// the two may overlap.
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

/// Copies bytes out of the frame on this thread, as memmove does: the buffer may lie in any frame, also in this one.
///
/// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED. Any thread.
#[must_use]
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
            // SAFETY: M1: `mapped` checked the range, which the entry keeps mapped; C1: `length` bytes may be written. Copied raw
            // (M2), and they may overlap.
            unsafe { std::ptr::copy(from, buffer, length) };
        }
        Ok(())
    })
}

/// Copies bytes into the frame on this thread, as memmove does: the buffer may lie in any frame, also in this one.
///
/// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY. Any thread.
#[must_use]
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
            // bytes may be read. Copied raw (M2), and they may overlap.
            unsafe { std::ptr::copy(buffer, to, length) };
        }
        Ok(())
    })
}

fn grant(
    range: mf_range,
    bits: u32,
    to: Grantee,
    lasts: Option<Duration>,
    token: *mut mf_grant_token,
) -> mf_error {
    call(|| {
        let token = Out::new("token", token)?;
        let rights = rights(bits)?;
        let (entry, region) = table::resolve(range)?;
        let grant = match lasts {
            None => entry.client.grant(region, rights, to)?,
            Some(lasts) => entry.client.grant_for(region, rights, to, lasts)?,
        };
        token.store(mf_grant_token { value: grant.token().to_raw() });
        Ok(())
    })
}

/// Grants bits of mf_rights on a range to every session of a user. The token is not secret: only that user can accept it. The
/// grant lasts until mf_revoke or the end of the frame.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_user(
    range: mf_range,
    rights: u32,
    user: u32,
    token: *mut mf_grant_token,
) -> mf_error {
    grant(range, rights, Grantee::User(user), None, token)
}

/// Grants rights on a range to one session, as mf_grant_user.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_session(
    range: mf_range,
    rights: u32,
    session: u64,
    token: *mut mf_grant_token,
) -> mf_error {
    grant(range, rights, Grantee::Session(SessionId(session)), None, token)
}

/// Grants as mf_grant_user, for lasts_ns nanoseconds by the service's CLOCK_MONOTONIC, which stops while the machine is suspended.
/// Afterwards the grant cannot be accepted, and transfers under it end with MF_ERROR_EXPIRED. One that runs is not interrupted: mf_revoke
/// the grant before the memory is reused. Until then the grant counts against the quota of capabilities, also when its time is over.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_user_for(
    range: mf_range,
    rights: u32,
    user: u32,
    lasts_ns: u64,
    token: *mut mf_grant_token,
) -> mf_error {
    grant(range, rights, Grantee::User(user), Some(Duration::from_nanos(lasts_ns)), token)
}

/// Grants as mf_grant_session, for lasts_ns nanoseconds, as mf_grant_user_for.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_session_for(
    range: mf_range,
    rights: u32,
    session: u64,
    lasts_ns: u64,
    token: *mut mf_grant_token,
) -> mf_error {
    let to = Grantee::Session(SessionId(session));
    grant(range, rights, to, Some(Duration::from_nanos(lasts_ns)), token)
}

/// The name of a node that C passed.
fn node(what: &str, pointer: *const c_char) -> Result<NodeName, Fault> {
    let name = text(what, pointer)?;
    name.parse()
        .map_err(|error: BadNodeName| Fault::new(mf_error::Argument, format!("{what} is {name:?}: {error}")))
}

/// A grant to a user of a node, which is checked first.
fn grant_remote(
    range: mf_range,
    rights: u32,
    (there, user): (*const c_char, u32),
    lasts: Option<Duration>,
    token: *mut mf_grant_token,
) -> mf_error {
    let mut to = None;
    let named = call(|| {
        to = Some(Grantee::Remote { node: node("node", there)?, user });
        Ok(())
    });
    match to {
        Some(to) => grant(range, rights, to, lasts, token),
        None => named,
    }
}

/// Grants MF_RIGHTS_READ, MF_RIGHTS_WRITE or both on a range to `user` of the machine that the links' configurations call `node`, as
/// mf_grant_user. mf_remote_token gives what the user needs to accept it there.
///
/// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_TEXT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_remote(
    range: mf_range,
    rights: u32,
    node: *const c_char,
    user: u32,
    token: *mut mf_grant_token,
) -> mf_error {
    grant_remote(range, rights, (node, user), None, token)
}

/// Grants as mf_grant_remote, for lasts_ns nanoseconds, as mf_grant_user_for.
///
/// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_TEXT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_grant_remote_for(
    range: mf_range,
    rights: u32,
    node: *const c_char,
    user: u32,
    lasts_ns: u64,
    token: *mut mf_grant_token,
) -> mf_error {
    grant_remote(range, rights, (node, user), Some(Duration::from_nanos(lasts_ns)), token)
}

/// Writes the text by which a grant of mf_grant_remote is accepted on the other node, with its end, to `text`, an array of
/// MF_REMOTE_TOKEN_BYTES. `range` and `rights` are those of the grant, `node` is the name of this machine in the links' configurations.
/// The text is not secret. It is good until the service of this machine ends.
///
/// MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_OUT_OF_RANGE, MF_ERROR_TEXT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_remote_token(
    range: mf_range,
    rights: u32,
    node: *const c_char,
    token: mf_grant_token,
    text: *mut c_char,
) -> mf_error {
    call(|| {
        let place = Out::new("text", text.cast::<[u8; MF_REMOTE_TOKEN_BYTES]>())?;
        let node = self::node("node", node)?;
        let rights = self::rights(rights)?;
        let (entry, region) = table::resolve(range)?;
        let service = entry.client.identify(entry.client.session())?.service;
        let token = GrantToken::from_raw(token.value);
        let written = RemoteToken { node, service, token, length: region.length(), rights }.to_string();
        let mut bytes = [0; MF_REMOTE_TOKEN_BYTES];
        bytes[..written.len()].copy_from_slice(written.as_bytes());
        place.store(bytes);
        Ok(())
    })
}

/// Accepts a grant that another node made to this user, by the text of its mf_remote_token, through the link of this node
/// (memferry-link(1)). The other node is not asked yet: it checks each transfer, which ends with MF_ERROR_PEER_REFUSED if that is not
/// granted, and with MF_ERROR_PEER_LOST while the node cannot be reached. The frame is not mapped.
///
/// MF_ERROR_ARGUMENT for a text that is no such token, MF_ERROR_TEXT; MF_ERROR_REFUSED_ARGUMENT where this node has no link or the user
/// may not use it, MF_ERROR_REFUSED_SYSTEM where the link does not know the other node, MF_ERROR_REFUSED_QUOTA. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_accept_remote(
    client: mf_client,
    text: *const c_char,
    frame: *mut mf_frame,
) -> mf_error {
    make(client, frame, |client| {
        let text = self::text("text", text)?;
        let wrong =
            |error: BadRemoteToken| Fault::new(mf_error::Argument, format!("text is {text:?}: {error}"));
        Ok(client.accept_remote(text.parse().map_err(wrong)?)?)
    })
}

/// Accepts a grant. The frame is not mapped in this process: transfers move bytes there, within the rights granted.
///
/// MF_ERROR_REFUSED_CAPABILITY. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_accept(
    client: mf_client,
    token: mf_grant_token,
    frame: *mut mf_frame,
) -> mf_error {
    make(client, frame, |client| Ok(client.accept(GrantToken::from_raw(token.value))?))
}

/// Revokes a grant that this client made. Cancels the transfers that use it, and returns when none uses it any more.
///
/// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_REFUSED_SYSTEM when a failed engine may still write to the memory. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn mf_revoke(client: mf_client, token: mf_grant_token) -> mf_error {
    call(|| Ok(table::client(client)?.revoke(GrantToken::from_raw(token.value))?))
}

/// Makes a frame of a narrower range or with fewer rights, in the same session. It keeps the memory when the other frame is freed,
/// unless the memory is lent.
///
/// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_derive(range: mf_range, rights: u32, frame: *mut mf_frame) -> mf_error {
    call(|| {
        let frame = Out::new("frame", frame)?;
        let bits = self::rights(rights)?;
        let (entry, region) = table::resolve(range)?;
        frame.store(insert(&entry.client, entry.client.derive(region, bits)?, false)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::client::mf_embed;

    #[test]
    fn overlapping_reads_and_writes_are_right() {
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
    fn freeing_lent_memory_waits_for_other_calls() {
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
        // Stands for another thread's mf_frame_read.
        let reader = table::frame(frame).unwrap();
        let reader_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let free = scope.spawn(|| (mf_frame_free(frame), reader_done.load(Ordering::SeqCst)));
            while table::frame(frame).is_ok() {
                std::thread::yield_now();
            }
            // Time for the revoke to return: it takes microseconds.
            (0..10_000).for_each(|_| std::thread::yield_now());
            reader_done.store(true, Ordering::SeqCst);
            drop(reader);
            assert_eq!(free.join().unwrap(), (mf_error::None, true));
        });
        assert_eq!(mf_frame_free(frame), mf_error::BadHandle);
        crate::client::mf_disconnect(client);
    }
}
