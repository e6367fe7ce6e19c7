//! Clients: opening and closing sessions, and their names.
//!
//! ```text
//! mf_connect(path), mf_embed ─► mf_client ─► frames, queues ─► mf_disconnect; the session ends with the last of these
//! ```

use std::ffi::c_char;

use memferry::Client;

use crate::boundary::{Out, call, text};
use crate::error::{Fault, mf_error};
use crate::table;
use crate::types::{MF_VERSION, mf_client};

/// The version of the loaded library, as MF_VERSION is that of the header.
///
/// Any thread, any time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_version() -> u32 {
    MF_VERSION
}

/// Checks that the library serves a program that was compiled with the header of `version`: pass MF_VERSION.
///
/// MF_ERROR_VERSION when it does not. Any thread, any time.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn mf_check_version(version: u32) -> mf_error {
    call(|| {
        let parts = |version: u32| (version >> 16, version & 0xffff);
        let (major, minor) = parts(version);
        let (own_major, own_minor) = parts(MF_VERSION);
        if major == own_major && minor <= own_minor {
            return Ok(());
        }
        let message = format!(
            "the program was compiled for version {major}.{minor} of the interface, and the library has \
             {own_major}.{own_minor}; install the library of the program's header or a later one"
        );
        Err(Fault::new(mf_error::Version, message))
    })
}

fn open(client: *mut mf_client, connect: impl FnOnce() -> Result<Client, Fault>) -> mf_error {
    call(|| {
        let client = Out::new("client", client)?;
        let objects = table::current_or_new()?;
        client.store(mf_client { id: objects.clients.insert(connect()?)? });
        Ok(())
    })
}

/// Opens a session with the service that listens on `path`, and waits for its answer without a limit.
///
/// MF_ERROR_NO_SERVICE, MF_ERROR_VERSION, MF_ERROR_REFUSED_QUOTA, MF_ERROR_TEXT. Any thread. A forked child cannot use its parent's
/// handles and opens its own session.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_connect(path: *const c_char, client: *mut mf_client) -> mf_error {
    open(client, || Ok(Client::connect(text("path", path)?)?))
}

/// Opens a session with the service inside this process, which starts with the first session and needs no daemon. The service
/// starts threads and installs a SIGBUS handler for the process: memory that fails under a transfer becomes that transfer's error;
/// any other SIGBUS goes to the previous handler, or ends the process. A handler installed later has to call this one for signals
/// that it does not handle.
///
/// MF_ERROR_SYSTEM. Any thread, and in a forked child.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_embed(client: *mut mf_client) -> mf_error {
    open(client, || Ok(Client::embedded()?))
}

/// Frees the handle. The session ends with its last frame and queue.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_disconnect(client: mf_client) -> mf_error {
    call(|| table::take_client(client).map(drop))
}

/// Gives the session's public name, which others pass to mf_grant_session.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_session(client: mf_client, session: *mut u64) -> mf_error {
    call(|| {
        let session = Out::new("session", session)?;
        session.store(table::client(client)?.session().0);
        Ok(())
    })
}
