//! A server that only calls `sendfile`: the cost from page cache to socket without a protocol.
//!
//! ```text
//! request: file, offset, count, 8 bytes each ──► available bytes (8 bytes), then sendfile(socket, file, offset, count)
//! ```
//!
//! One thread per connection. It trusts its clients, which are this program's receivers.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use rustix::net::{SendFlags, send};

use crate::BenchError;

/// Bytes of a request.
const REQUEST: usize = 24;

/// Serves a directory until its input ends.
pub(super) fn serve(directory: &Path, addresses: &[&str]) -> Result<(), BenchError> {
    for address in addresses {
        let listener = TcpListener::bind(address)?;
        let directory = directory.to_owned();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let directory = directory.clone();
                // The thread ends with its connection; the receiver notices errors.
                std::thread::spawn(move || drop(answer(socket, directory)));
            }
        });
    }
    crate::children::wait_for_end_of_input()
}

fn answer(mut socket: TcpStream, directory: PathBuf) -> Result<(), BenchError> {
    socket.set_nodelay(true)?;
    let mut file: Option<(u64, File, u64)> = None;
    let mut request = [0; REQUEST];
    loop {
        socket.read_exact(&mut request)?;
        let word =
            |at: usize| request[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let index = word(0);
        let mut offset = word(8);
        if file.as_ref().is_none_or(|(open, ..)| *open != index) {
            let opened = File::open(directory.join(super::name(usize::try_from(index)?)))?;
            let length = opened.metadata()?.len();
            file = Some((index, opened, length));
        }
        let Some((_, file, length)) = &file else { continue };
        let end = (offset + word(16)).min(*length);
        let count = end.saturating_sub(offset);
        send(&socket, &count.to_le_bytes(), if count > 0 { SendFlags::MORE } else { SendFlags::empty() })?;
        while offset < end {
            let left = (end - offset) as usize;
            if rustix::fs::sendfile(&socket, file, Some(&mut offset), left)? == 0 {
                return Err("the file was truncated while it was sent".into());
            }
        }
    }
}
