//! A killed service is detected by a program that polls rarely, and by one that arms its eventfd again. A silent one is an error in
//! time.
//!
//! ```text
//! this test ─ the service in another process ─ killed ─► mf_poll 60 times a second, mf_arm ─► OutcomeUnknown
//! this test ─ a socket that nobody accepts from ─► mf_connect_with ─► NoAnswer
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

/// A queue of a new client, with a transfer that does not end.
fn busy_queue(path: &CString) -> mf_queue {
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
    // SAFETY: results go to variables of these types, and the path is terminated.
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
    // SAFETY: the result goes to a variable of its type.
    let polled = unsafe { mf_poll(queue, done.as_mut_ptr()) };
    if polled == mf_error::Nothing {
        return None;
    }
    assert!(polled == mf_error::None || polled as i32 >= 100, "{polled:?}");
    // SAFETY: filled whenever a completion was taken, as checked above.
    assert_eq!(unsafe { done.assume_init() }.error, polled);
    Some(polled)
}

fn arm(queue: mf_queue) -> i32 {
    let mut ready = -1;
    // SAFETY: the result goes to a variable of its type.
    assert_eq!(unsafe { mf_arm(queue, &mut ready) }, mf_error::None);
    ready
}

#[test]
fn poll_and_arm_detect_a_killed_service() {
    let service = Service::start("killed");
    let path = &service.socket;
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let polled = busy_queue(&name);
    let armed = busy_queue(&name);
    let mut event = -1;
    // SAFETY: the result goes to a variable of its type.
    let signalled = unsafe { mf_eventfd(armed, &mut event) } == mf_error::None;
    if signalled {
        assert_eq!(arm(armed), 0);
    }
    assert_eq!(poll(polled), None);
    drop(service);
    // Once a frame of a game, for five seconds at most.
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

#[test]
fn a_silent_service_is_an_error_in_time() {
    let path = harness::socket("silent");
    let kind = rustix::net::SocketType::SEQPACKET;
    let listener = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut client = Default::default();
    // SAFETY: the result goes to a variable of its type, and the path is terminated.
    let connected = unsafe { mf_connect_with(name.as_ptr(), 50_000_000, &mut client) };
    assert_eq!(connected, mf_error::NoAnswer);
    // SAFETY: a constant or this thread's message, which is terminated.
    let message = unsafe { std::ffi::CStr::from_ptr(mf_last_message()) }.to_string_lossy();
    assert!(message.contains("did not answer within 50ms"), "{message}");
    let _ = std::fs::remove_file(&path);
}
