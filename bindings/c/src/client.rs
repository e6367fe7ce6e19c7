//! Clients: opening and closing sessions, and their names.
//!
//! ```text
//! mf_connect(path), mf_connect_with, mf_embed ─► mf_client ─► frames, queues ─► mf_disconnect; the session ends with the last of these
//! ```

use std::ffi::c_char;
use std::time::Duration;

use memferry::{Client, ConnectOptions};

use crate::boundary::{Out, call, text};
use crate::error::{Fault, mf_error};
use crate::table;
use crate::types::{MF_FOREVER, MF_VERSION, mf_client};

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

/// Opens a session with the service that listens on `path`. The service has five seconds to answer, here and in each later call.
///
/// MF_ERROR_NO_SERVICE, MF_ERROR_NO_ANSWER, MF_ERROR_VERSION, MF_ERROR_REFUSED_QUOTA, MF_ERROR_TEXT. Any thread. A forked child cannot use its parent's
/// handles and opens its own session.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_connect(path: *const c_char, client: *mut mf_client) -> mf_error {
    open(client, || Ok(Client::connect(text("path", path)?)?))
}

/// As mf_connect, but the service has `limit_ns` nanoseconds to answer, here and in each later call; MF_FOREVER for no limit. Waits
/// for transfers have limits of their own.
///
/// As mf_connect; MF_ERROR_ARGUMENT for another negative limit. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_connect_with(
    path: *const c_char,
    limit_ns: i64,
    client: *mut mf_client,
) -> mf_error {
    open(client, || {
        let timeout = match (limit_ns, u64::try_from(limit_ns)) {
            (MF_FOREVER, _) => Duration::MAX,
            (_, Ok(nanoseconds)) => Duration::from_nanos(nanoseconds),
            (_, Err(_)) => {
                let message = format!("limit_ns is {limit_ns}; it must be MF_FOREVER, 0 or more");
                return Err(Fault::new(mf_error::Argument, message));
            }
        };
        let options = ConnectOptions { timeout };
        Ok(Client::connect_with(text("path", path)?, options)?)
    })
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
