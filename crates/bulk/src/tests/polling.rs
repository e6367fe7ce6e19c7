//! Waiting for messages and for room with a descriptor, as event loops do.

use std::iter;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use memferry::Armed;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::*;
use crate::wire::MESSAGE_NEWS;

fn epoll_of(receiver: &Receiver) -> OwnedFd {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, receiver, EventData::new_u64(0), EventFlags::IN).unwrap();
    epoll
}

fn wakes(epoll: &OwnedFd, limit: Option<Duration>) -> bool {
    let seconds = limit.unwrap().as_secs().cast_signed();
    let mut space = [std::mem::MaybeUninit::uninit(); 1];
    !epoll::wait(epoll, &mut space, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap().0.is_empty()
}

#[test]
fn an_armed_descriptor_reports_the_next_message() {
    let ((_one, mut sender, _here), (_other, _back, mut receiver)) = ends(Options::default());
    let epoll = epoll_of(&receiver);
    for number in 0..20 {
        assert_eq!(receiver.arm().unwrap(), Armed::Waiting);
        assert!(!wakes(&epoll, NOW), "an earlier wake-up is still readable");
        sender.send(number, b"", SOON).unwrap();
        assert!(wakes(&epoll, SOON));
        sender.send(number, b"", SOON).unwrap();
        assert_eq!(receiver.arm().unwrap(), Armed::Ready);
        assert_eq!((receive_bytes(&mut receiver).0, receive_bytes(&mut receiver).0), (number, number));
    }
    // Without a request, the descriptor is not made readable.
    assert_eq!(receiver.arm().unwrap(), Armed::Waiting);
    sender.send(1, b"", SOON).unwrap();
    assert_eq!(receiver.arm().unwrap(), Armed::Ready);
    receive_bytes(&mut receiver);
    while receiver.arm().unwrap() == Armed::Ready {}
    receiver.peer().own.word(RECEIVER_PARKED).store(0, std::sync::atomic::Ordering::Relaxed);
    sender.send(1, b"", SOON).unwrap();
    assert!(!wakes(&epoll, NOW));
}

#[test]
fn polling_misses_no_message() {
    const MESSAGES: u32 = 20_000;
    let ((ours, mut sender, _here), (theirs, _back, mut receiver)) = ends(Options::default());
    let frame = SharedFrame::allocate(&ours, 4096).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                match number % 1000 {
                    // Descriptors use the same socket.
                    7 => drop(sender.lend_mapped_once(number, &frame, (0, 64), SOON).unwrap()),
                    _ => sender.send(number, &number.to_le_bytes(), SOON).unwrap(),
                }
                if number % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let epoll = epoll_of(&receiver);
        let mut next = 0;
        let end = loop {
            match receiver.receive(NOW) {
                Ok(message) => {
                    assert_eq!(message.kind, next);
                    next += 1;
                }
                Err(ReceiveError::TimedOut) => {
                    if receiver.arm().unwrap() == Armed::Waiting {
                        assert!(wakes(&epoll, SOON), "message {next} did not wake the poller");
                    }
                }
                Err(other) => break other,
            }
        };
        assert!(matches!(end, ReceiveError::Closed), "{end:?}");
        assert_eq!(next, MESSAGES);
    });
    drop(theirs);
}

#[test]
fn room_for_the_sender_wakes_the_descriptor() {
    let ((ours, mut sender, mut here), (_other, _back, mut receiver)) = ends(Options::default());
    let epoll = epoll_of(&here);
    (0..SLOTS).for_each(|number| sender.send(number, b"", NOW).unwrap());
    assert!(matches!(sender.send(SLOTS, b"", NOW), Err(SendError::TimedOut)));
    assert_eq!(sender.arm().unwrap(), Armed::Waiting);
    assert_eq!(here.arm().unwrap(), Armed::Waiting);
    assert!(!wakes(&epoll, NOW));
    receive_bytes(&mut receiver);
    assert!(wakes(&epoll, SOON));
    assert_eq!(here.arm().unwrap(), Armed::Ready, "the receiver consumed the sender's wake-up");
    sender.send(SLOTS, b"", NOW).unwrap();
    (0..SLOTS).for_each(|_| drop(receive_bytes(&mut receiver)));
    // A settled loan wakes it in the same way.
    let frame = ours.frame(4096).alloc().unwrap();
    let loan = sender.lend(1, &frame, SOON).unwrap();
    while sender.arm().unwrap() == Armed::Ready || here.arm().unwrap() == Armed::Ready {}
    drop(receive_lent(&mut receiver));
    assert!(wakes(&epoll, SOON));
    assert!(sender.settled(loan).unwrap());
}

#[test]
fn a_wake_up_consumed_with_a_frame_is_kept() {
    let ((ours, mut sender, mut here), (theirs, mut back, mut receiver)) = ends(Options::default());
    let loan = sender.lend(1, ours.frame(4096).alloc().unwrap(), SOON).unwrap();
    assert_eq!((sender.arm().unwrap(), here.arm().unwrap()), (Armed::Waiting, Armed::Waiting));
    drop(receive_lent(&mut receiver));
    // A descriptor follows the wake-up: receiving the frame consumes both.
    let frame = SharedFrame::allocate(&theirs, 4096).unwrap();
    let _loan = back.lend_mapped(2, &frame, (0, 64), SOON).unwrap();
    drop(receive_lent(&mut here));
    assert_eq!(here.arm().unwrap(), Armed::Ready);
    assert!(sender.settled(loan).unwrap());
}

#[test]
fn closing_wakes_a_polling_peer() {
    let ((_one, sender, here), (_other, mut back, mut receiver)) = ends(Options::default());
    let epoll = epoll_of(&receiver);
    assert_eq!(receiver.arm().unwrap(), Armed::Waiting);
    drop(sender);
    assert!(wakes(&epoll, SOON));
    assert_eq!(receiver.arm().unwrap(), Armed::Ready);
    assert!(matches!(receiver.receive(NOW), Err(ReceiveError::Closed)));
    drop(here);
    assert!(matches!(back.arm(), Err(SendError::Closed | SendError::PeerLost)));
}

#[test]
fn taking_in_packets_is_bounded() {
    let ((_one, mut sender, _here), (_other, _back, mut receiver)) = ends(Options::default());
    forge(&mut sender, Slot::Descriptor { index: 1, once: false, length: 4096 }.encode());
    let socket = sender.peer().socket.as_fd();
    let send = || conduit::send(socket, &MESSAGE_NEWS.to_le_bytes(), &[], false).is_ok();
    let room = iter::repeat_with(send).take_while(|sent| *sent).count();
    let stop = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    let most = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    sent.fetch_add(usize::from(send()), Relaxed);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(2);
        let arm = || {
            let before = sent.load(Relaxed);
            // An error is checked below, when the senders have stopped.
            let _ = receiver.arm();
            sent.load(Relaxed) - before
        };
        let most = iter::repeat_with(arm).take_while(|_| Instant::now() < until).max();
        stop.store(true, Relaxed);
        most.unwrap()
    });
    // The packets that made room and these, plus some that the kernel let in at once. Without a bound: thousands.
    assert!(most <= 4 * room, "one call received {most} packets; the socket holds {room}");
    let broken = receiver.receive(SOON).map(|message| message.kind);
    assert!(matches!(broken, Err(ReceiveError::Broken(Violation::NoDescriptor))), "{broken:?}");
}

#[test]
fn an_invalid_packet_ends_the_connection() {
    let noises: [&[u8]; 3] = [b"", b"abc", &5u32.to_le_bytes()];
    for (noise, gifts) in noises.into_iter().zip([1, 0, 2]) {
        let ((_one, sender, _here), (_other, _back, mut receiver)) = ends(Options::default());
        let (gift, _writer) = rustix::pipe::pipe().unwrap();
        let gifts = vec![gift.as_fd(); gifts];
        conduit::send(sender.peer().socket.as_fd(), noise, &gifts, false).unwrap();
        let broken = receiver.arm();
        assert!(matches!(broken, Err(ReceiveError::Broken(Violation::NoDescriptor))), "{broken:?}");
        assert!(matches!(receiver.receive(NOW), Err(ReceiveError::Broken(Violation::Earlier))));
    }
    // Descriptors without a slot are limited as well.
    let ((_one, sender, _here), (_other, _back, mut receiver)) = ends(Options::default());
    let (gift, _writer) = rustix::pipe::pipe().unwrap();
    let mut sent = 0;
    let broken = loop {
        conduit::send(sender.peer().socket.as_fd(), &5u32.to_le_bytes(), &[gift.as_fd()], false).unwrap();
        sent += 1;
        if let Err(broken) = receiver.arm() {
            break broken;
        }
    };
    assert!(matches!(broken, ReceiveError::Broken(Violation::NoDescriptor)), "{broken:?}");
    assert_eq!(sent, SLOTS + 1);
}
