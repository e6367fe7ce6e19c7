//! A service that is killed: who polls seldom, and who waits for the descriptor, learn of it.
//!
//! ```text
//! this test ─ another process of it: the service ─ killed ─► mf_poll 60 times a second, mf_arm ─► the loss
//! ```

#![allow(unsafe_code, reason = "the C interface takes pointers")]

mod harness;

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null;
use std::time::Duration;

use harness::Service;
use memferry_c::*;

/// A queue of a client of its own, with a transfer that has no end.
fn busy(path: &CString) -> mf_queue {
    let mut client = Default::default();
    let mut frame = Default::default();
    let mut queue = Default::default();
    let plane = mf_plane { start: 0, x_step: 0, y_step: 0 };
    let endless = mf_shape_2d {
        pixel_bytes: 1,
        x_count: 1 << 19,
        y_count: 1 << 19,
        transparent: 0,
        color: 7,
        reserved: 0,
        source: plane,
        destination: plane,
    };
    // SAFETY: results go to variables of these types, and the path has its end.
    unsafe {
        assert_eq!(mf_connect(path.as_ptr(), &mut client), mf_error::None);
        assert_eq!(mf_frame_allocate(client, 4096, &mut frame), mf_error::None);
        assert_eq!(mf_queue_open(client, 4, &mut queue), mf_error::None);
        let all = mf_range { frame, offset: 0, length: MF_TO_END };
        let submitted = mf_submit_fill_2d(queue, all, &endless, null(), std::ptr::null_mut());
        assert_eq!(submitted, mf_error::None);
    }
    queue
}

fn poll(queue: mf_queue) -> Option<mf_error> {
    let mut done = MaybeUninit::<mf_completion>::uninit();
    // SAFETY: the result goes to a variable of its type, which is looked at when it was filled only.
    unsafe {
        match mf_poll(queue, done.as_mut_ptr()) {
            mf_error::None => Some(done.assume_init().error),
            mf_error::Nothing => None,
            other => panic!("{other:?}"),
        }
    }
}

fn arm(queue: mf_queue) -> i32 {
    let mut ready = -1;
    // SAFETY: the result goes to a variable of its type.
    assert_eq!(unsafe { mf_arm(queue, &mut ready) }, mf_error::None);
    ready
}

#[test]
fn a_service_that_was_killed_is_missed_by_who_polls_seldom_and_by_who_arms_again() {
    let service = Service::start("killed");
    let path = &service.socket;
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let polled = busy(&name);
    let armed = busy(&name);
    let mut event = -1;
    // SAFETY: the result goes to a variable of its type.
    let signalled = unsafe { mf_eventfd(armed, &mut event) } == mf_error::None;
    if signalled {
        assert_eq!(arm(armed), 0);
    }
    assert_eq!(poll(polled), None);
    drop(service);
    // As a game does, for five seconds at most.
    let lost = (0..300).find_map(|_| {
        std::thread::sleep(Duration::from_millis(16));
        poll(polled)
    });
    assert_eq!(lost, Some(mf_error::OutcomeUnknown));
    if signalled {
        assert_eq!(arm(armed), 1, "armed again");
        assert_eq!(poll(armed), Some(mf_error::OutcomeUnknown));
    }
}
