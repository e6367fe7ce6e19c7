//! Memory of another node by the functions of the C interface.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use memferry_c::*;
use memferry_conformance::noise;

use super::harness::wait_until;
use super::{Way, two_nodes, user};

#[allow(unsafe_code, reason = "the C interface")]
fn connect(socket: &Path) -> mf_client {
    let path = CString::new(socket.to_str().unwrap()).unwrap();
    let mut client = mf_client::default();
    // SAFETY: C1: a terminated text, and a place for the result.
    assert_eq!(unsafe { mf_connect(path.as_ptr(), &mut client) }, mf_error::None);
    client
}

fn ok(number: mf_error) {
    assert_eq!(number, mf_error::None);
}

const fn all(frame: mf_frame) -> mf_range {
    mf_range { frame, offset: 0, length: MF_TO_END }
}

#[test]
#[allow(unsafe_code, reason = "the C interface")]
fn c_functions_grant_to_another_node_and_accept_there() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    beta.engine();
    let bytes = noise(5000, 1);
    let owner = connect(&alpha.service.socket);
    let client = connect(&beta.service.socket);
    let mut theirs = mf_frame::default();
    let mut remote = mf_frame::default();
    let mut queue = mf_queue::default();
    let mut token = mf_grant_token { value: 0 };
    let mut text = [0 as c_char; MF_REMOTE_TOKEN_BYTES];
    // SAFETY: C1, here and below: places of these types for results, terminated texts, and bytes of that length.
    unsafe {
        ok(mf_frame_allocate(owner, 5000, &mut theirs));
        ok(mf_frame_write(theirs, 0, bytes.as_ptr().cast(), bytes.len()));
        let range = mf_range { frame: theirs, offset: 0, length: 4096 };
        let rights = mf_rights::Read as u32;
        ok(mf_grant_remote(range, rights, c"beta".as_ptr(), user(), &mut token));
        ok(mf_remote_token(range, rights, c"alpha".as_ptr(), token, text.as_mut_ptr()));
        let said = CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned();
        assert!(said.starts_with("alpha:") && said.ends_with("/4096/r"), "{said}");
        ok(mf_queue_open(client, 4, &mut queue));
        wait_until("the own link", || mf_accept_remote(client, text.as_ptr(), &mut remote) == mf_error::None);
        let run = |from: mf_range, to: mf_range| {
            let mut ticket = mf_ticket::default();
            ok(mf_submit_copy(queue, from, to, std::ptr::null(), &mut ticket));
            mf_wait(queue, ticket, MF_FOREVER, std::ptr::null_mut())
        };
        let mut own = mf_frame::default();
        wait_until("a copy", || {
            // The link may be late for memory on a busy machine.
            ok(mf_frame_allocate(client, 4096, &mut own));
            run(mf_range { frame: remote, offset: 0, length: 4096 }, all(own)) == mf_error::None
        });
        let mut copied = vec![0_u8; 4096];
        ok(mf_frame_read(own, 0, copied.as_mut_ptr().cast(), copied.len()));
        assert!(copied == bytes[..4096]);
        // Not granted: to write, and what is of another user.
        let to_write = run(
            mf_range { frame: own, offset: 0, length: 8 },
            mf_range { frame: remote, offset: 0, length: 8 },
        );
        assert_eq!(to_write, mf_error::MissingRight);
        ok(mf_grant_remote_for(range, rights, c"beta".as_ptr(), user() + 1, 3_600_000_000_000, &mut token));
        ok(mf_remote_token(range, rights, c"alpha".as_ptr(), token, text.as_mut_ptr()));
        let mut others = mf_frame::default();
        ok(mf_accept_remote(client, text.as_ptr(), &mut others));
        let part = |frame| mf_range { frame, offset: 0, length: 8 };
        assert_eq!(run(part(others), part(own)), mf_error::PeerRefused);
        ok(mf_revoke(owner, token));
        let unknown = CString::new(said.replacen("alpha", "nobody", 1)).unwrap();
        assert_eq!(mf_accept_remote(client, unknown.as_ptr(), &mut others), mf_error::RefusedSystem);
    }
    ok(mf_disconnect(client));
    ok(mf_disconnect(owner));
}
