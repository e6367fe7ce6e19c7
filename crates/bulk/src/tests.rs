//! Both ends in one process: order, integrity, backpressure, lent frames, and a peer that breaks the protocol.
//!
//! ```text
//! socketpair ─► over, over ─► (Sender, Receiver) twice, clients of one embedded service
//! hostile    ─ slots written by hand into an honest end's memory ─► the other end's errors
//! ```

mod polling;
mod relays;
mod trouble;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use memferry::{Client, Failure, Side};
use memferry_conformance::noise;
use memferry_shm::conduit;
use memferry_shm::storage::RingStorage;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::wire::{AREA_BYTES, INLINE_BYTES, PIECE_BYTES, RECEIVER_PARKED, RETIRED, SLOT_WORDS, SLOTS, Slot};
use crate::{
    Content, FinishError, Options, PullReason, ReceiveError, Receiver, SendError, Sender, SharedFrame,
    Violation, over,
};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const NOW: Option<Duration> = Some(Duration::ZERO);

type End = (Client, Sender, Receiver);

fn ends(options: Options) -> (End, End) {
    let kind = SocketType::SEQPACKET;
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let open = move |socket| {
        let client = Client::embedded().unwrap();
        let (sender, receiver) = over(socket, &client, options).unwrap();
        (client, sender, receiver)
    };
    std::thread::scope(|scope| {
        let there = scope.spawn(move || open(other));
        (open(one), there.join().unwrap())
    })
}

fn receive_bytes(receiver: &mut Receiver) -> (u32, Vec<u8>) {
    let message = receiver.receive(SOON).unwrap();
    match message.content {
        Content::Bytes(bytes) => (message.kind, bytes.to_vec()),
        Content::Range(lent) => panic!("received {lent:?} instead of bytes"),
    }
}

fn receive_lent(receiver: &mut Receiver) -> crate::LentFrame {
    match receiver.receive(SOON).unwrap().content {
        Content::Range(lent) => lent,
        Content::Bytes(bytes) => panic!("received {} bytes instead of a lent frame", bytes.len()),
    }
}

#[test]
fn ends_are_send() {
    fn is_send<T: Send>() {}
    is_send::<Sender>();
    is_send::<Receiver>();
    is_send::<crate::LentFrame>();
    is_send::<crate::Producer>();
    is_send::<crate::Consumer>();
}

fn lengths() -> impl Strategy<Value = usize> {
    let piece = PIECE_BYTES as usize;
    prop_oneof![
        4 => 0..=INLINE_BYTES + 1,
        4 => 0..10_000usize,
        1 => piece - 2..piece + 2,
        1 => 2 * piece - 2..2 * piece + 2,
        1 => AREA_BYTES as usize - 2..AREA_BYTES as usize + piece,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn messages_arrive_once_whole_and_in_order(messages in prop::collection::vec((any::<u32>(), lengths()), 1..120)) {
        let ((_one, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
        let expected = messages.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (index, (kind, length)) in messages.iter().enumerate() {
                    sender.send(*kind, &noise(*length, index as u64), SOON).unwrap();
                }
            });
            for (index, (kind, length)) in expected.iter().enumerate() {
                let (of, bytes) = receive_bytes(&mut receiver);
                assert_eq!((of, bytes.len()), (*kind, *length), "message {index}");
                assert!(bytes == noise(*length, index as u64), "bytes of message {index}");
            }
            let end = receiver.receive(SOON).map(|message| message.kind);
            assert!(matches!(end, Err(ReceiveError::Closed)), "{end:?}");
        });
    }
}

#[test]
fn a_full_ring_times_out_until_there_is_room() {
    let ((_one, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    for number in 0..SLOTS {
        sender.send(number, b"", NOW).unwrap();
    }
    assert!(matches!(sender.send(99, b"", NOW), Err(SendError::TimedOut)));
    assert_eq!(receive_bytes(&mut receiver).0, 0);
    sender.send(SLOTS, b"", NOW).unwrap();
    for number in 1..=SLOTS {
        assert_eq!(receive_bytes(&mut receiver), (number, Vec::new()));
    }
    assert!(matches!(receiver.receive(NOW), Err(ReceiveError::TimedOut)));
}

#[test]
fn a_partly_sent_message_is_not_delivered() {
    let ((_one, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    let long = noise(AREA_BYTES as usize + 5, 3);
    assert!(matches!(sender.send(1, &long, NOW), Err(SendError::TimedOut)));
    assert!(matches!(receiver.receive(NOW), Err(ReceiveError::TimedOut)), "part of a message was delivered");
    sender.send(2, &long[..100_000], SOON).unwrap();
    let (kind, bytes) = receive_bytes(&mut receiver);
    assert!(kind == 2 && bytes == long[..100_000]);
}

#[test]
fn the_sender_refuses_too_long_messages() {
    let ((_one, mut sender, _here), (_other, mut back, mut receiver)) =
        ends(Options { longest: 1000, ..Options::default() });
    assert!(matches!(
        sender.send(1, &[0; 1001], SOON),
        Err(SendError::TooLong { length: 1001, longest: 1000 })
    ));
    assert_eq!(back.longest(), 1000);
    sender.send(1, &[7; 1000], SOON).unwrap();
    assert_eq!(receive_bytes(&mut receiver), (1, vec![7; 1000]));
    back.send(1, b"and back", SOON).unwrap();
}

#[test]
fn an_inverted_slice_is_not_lent() {
    let ((ours, mut sender, _), _other) = ends(Options::default());
    let frame = ours.frame(4096).alloc().unwrap();
    let _loan = sender.lend(9, frame.slice(..), SOON).unwrap();
    let inverted = sender.lend(9, frame.slice(4097..), SOON).unwrap_err();
    assert_eq!(inverted.to_string(), "the slice 4097..4096 ends before it begins");
}

#[test]
fn lent_ranges_are_pulled_whole() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(1 << 20).alloc().unwrap();
    let to = theirs.frame(2 << 20).alloc().unwrap();
    let bytes = noise(1 << 20, 5);
    from.write(0, &bytes).unwrap();
    for (offset, length) in [(0, 1 << 20), (3, 4097), (77, 0), ((1 << 20) - 1, 1), (4095, 2)] {
        let loan = sender.lend(9, from.slice(offset..offset + length), SOON).unwrap();
        let lent = receive_lent(&mut receiver);
        assert_eq!((lent.kind(), lent.length(), lent.is_mapped()), (9, length, false));
        assert!(!sender.settled(loan).unwrap());
        receiver.pull(lent, to.slice(1..1 + length)).unwrap();
        assert_eq!(receiver.finish(SOON).unwrap().length, length);
        sender.settle(loan, SOON).unwrap();
        let mut moved = vec![0; length as usize];
        to.read(1, &mut moved).unwrap();
        assert!(moved == bytes[offset as usize..][..length as usize], "{length} bytes at {offset}");
    }
    let statistics = sender.statistics();
    assert_eq!((statistics.misses, statistics.hits), (1, 4), "the first export contains the other ranges");
}

#[test]
fn concurrent_pulls_finish_in_order() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(8 << 16).alloc().unwrap();
    let to = theirs.frame(8 << 16).alloc().unwrap();
    let bytes = noise(8 << 16, 8);
    from.write(0, &bytes).unwrap();
    let loans: Vec<_> = (0..8)
        .map(|index| sender.lend(index as u32, from.slice(index << 16..(index + 1) << 16), SOON).unwrap())
        .collect();
    for index in 0..8 {
        let lent = receive_lent(&mut receiver);
        receiver.pull(lent, to.slice(index << 16..(index + 1) << 16)).unwrap();
    }
    assert_eq!(receiver.pulling(), 8);
    for (index, loan) in loans.into_iter().enumerate() {
        assert_eq!(receiver.finish(SOON).unwrap().kind, index as u32);
        sender.settle(loan, SOON).unwrap();
    }
    assert_eq!(receiver.finish(SOON), Err(FinishError::Nothing));
    let mut moved = vec![0; 8 << 16];
    to.read(0, &mut moved).unwrap();
    assert!(moved == bytes);
}

#[test]
fn mapped_frames_are_copied_by_the_cpu_only() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = SharedFrame::allocate(&ours, 8192).unwrap();
    let to = theirs.frame(8192).alloc().unwrap();
    let bytes = noise(8192, 6);
    from.frame().write(0, &bytes).unwrap();
    for once in [false, true, true, false] {
        let loan = match once {
            true => sender.lend_mapped_once(1, &from, (5, 8000), SOON).unwrap(),
            false => sender.lend_mapped(1, &from, (5, 8000), SOON).unwrap(),
        };
        let lent = receive_lent(&mut receiver);
        assert!(lent.is_mapped());
        to.write(0, &[0; 8192]).unwrap();
        lent.copy_to(&to, 1).unwrap();
        assert!(lent.read(1, &mut [0; 8000]).is_err(), "exceeds the lent range");
        assert!(lent.copy_to(&to, 200).is_err(), "exceeds the frame");
        let mut moved = vec![0; 8000];
        to.read(1, &mut moved).unwrap();
        assert!(moved == bytes[5..8005]);
        lent.read(0, &mut moved).unwrap();
        assert!(moved == bytes[5..8005]);
        let refused = receiver.pull(lent, &to).unwrap_err();
        assert!(matches!(refused.reason, PullReason::Mapped));
        assert!(!sender.settled(loan).unwrap());
        drop(refused);
        assert!(matches!(receiver.receive(NOW), Err(ReceiveError::TimedOut)));
        sender.settle(loan, SOON).unwrap();
    }
    assert_eq!(sender.statistics().entries, 1);
}

#[test]
fn ranges_outside_their_frames_are_refused() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(4096).alloc().unwrap();
    let to = theirs.frame(4096).alloc().unwrap();
    for outside in [1..4097, u64::MAX - 1..u64::MAX, 0..u64::MAX] {
        let refused = sender.lend(1, from.slice(outside), SOON);
        assert!(matches!(refused, Err(SendError::OutOfRange { .. })), "{refused:?}");
    }
    let _loan = sender.lend(1, &from, SOON).unwrap();
    let lent = receive_lent(&mut receiver);
    let refused = receiver.pull(lent, to.slice(..4095)).unwrap_err();
    assert!(matches!(refused.reason, PullReason::Length { lent: 4096, available: 4095 }));
    receiver.pull(refused.lent, to.slice(1..4097)).unwrap();
    let outside = receiver.finish(SOON);
    let of_service = FinishError::Failed {
        kind: 1,
        failure: Failure::OutOfBounds { side: Side::Destination, available: 4096 },
    };
    assert_eq!(outside, Err(of_service), "the service checks the destination");
}

#[test]
fn a_revoked_frame_can_be_lent_again() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(4096).alloc().unwrap();
    let to = theirs.frame(4096).alloc().unwrap();
    from.write(0, &[9; 4096]).unwrap();
    // Revoked after the other end accepted the grant, and before.
    for accepted in [true, false] {
        let _loan = sender.lend(1, &from, SOON).unwrap();
        let before = accepted.then(|| receive_lent(&mut receiver));
        sender.forget(from.handle()).unwrap();
        match before {
            Some(lent) => {
                receiver.pull(lent, &to).unwrap();
                let ended = receiver.finish(SOON);
                assert!(matches!(ended, Err(FinishError::Failed { kind: 1, .. })), "{ended:?}");
            }
            None => {
                let refused = receiver.receive(SOON).map(|message| message.kind);
                assert!(matches!(refused, Err(ReceiveError::Refused { kind: 1, .. })), "{refused:?}");
            }
        }
        let loan = sender.lend(2, &from, SOON).unwrap();
        let lent = receive_lent(&mut receiver);
        receiver.pull(lent, &to).unwrap();
        assert_eq!(receiver.finish(SOON).unwrap().kind, 2);
        sender.settle(loan, SOON).unwrap();
        sender.forget(from.handle()).unwrap();
    }
}

#[test]
fn exports_beyond_the_maximum_evict() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(100 << 12).alloc().unwrap();
    let to = theirs.frame(4096).alloc().unwrap();
    for index in 0..100u64 {
        from.write(index << 12, &[index as u8; 4096]).unwrap();
    }
    for index in (0..100).chain(0..100) {
        let loan = sender.lend(1, from.slice(index << 12..(index + 1) << 12), SOON).unwrap();
        let lent = receive_lent(&mut receiver);
        receiver.pull(lent, &to).unwrap();
        receiver.finish(SOON).unwrap();
        sender.settle(loan, SOON).unwrap();
        let mut moved = [0; 4096];
        to.read(0, &mut moved).unwrap();
        assert_eq!(moved, [index as u8; 4096]);
    }
    assert_eq!(sender.statistics().evictions, 200 - 64);
}

#[test]
fn a_frame_may_be_dropped_on_any_thread() {
    let ((ours, mut sender, _here), (_other, mut back, mut receiver)) = ends(Options::default());
    let from = ours.frame(4096).alloc().unwrap();
    let loan = sender.lend(1, &from, SOON).unwrap();
    let lent = receive_lent(&mut receiver);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || receiver.receive(SOON).map(|message| message.kind));
        scope.spawn(move || drop(lent)).join().unwrap();
        sender.settle(loan, SOON).unwrap();
        sender.send(2, b"", SOON).unwrap();
        assert_eq!(sleeper.join().unwrap().unwrap(), 2);
    });
    back.send(1, b"", SOON).unwrap();
}

#[test]
fn mapped_and_granted_frames_keep_order() {
    let ((ours, mut sender, _), (theirs, _, receiver)) = ends(Options::default());
    let frames: Vec<_> = (0..6).map(|_| SharedFrame::allocate(&ours, 4096).unwrap()).collect();
    for (index, frame) in frames.iter().enumerate() {
        frame.frame().write(0, &[index as u8 + 1; 4096]).unwrap();
        let kind = index as u32;
        let all = (0, 4096);
        let _loan = match index % 3 {
            1 => sender.lend_mapped(kind, frame, all, SOON).unwrap(),
            2 => sender.lend_mapped_once(kind, frame, all, SOON).unwrap(),
            _ => sender.lend(kind, frame.frame(), SOON).unwrap(),
        };
    }
    let mut consumer = crate::Consumer::new(receiver, &theirs, 3, 4096).unwrap();
    for index in 0..6 {
        let taken = consumer.take(SOON).unwrap();
        assert_eq!((taken.from, taken.length), (index, 4096));
        let mut bytes = [0; 4096];
        consumer.frame(taken.frame).unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [index as u8 + 1; 4096], "frame {index}");
    }
}

#[test]
fn a_pull_ends_despite_a_slot_without_message() {
    let ((ours, mut sender, _), (theirs, _, receiver)) = ends(Options::default());
    let one = ours.frame(4096).alloc().unwrap();
    let other = ours.frame(4096).alloc().unwrap();
    let loan = sender.lend(1, &one, SOON).unwrap();
    sender.export(&other, SOON).unwrap();
    let mut consumer = crate::Consumer::new(receiver, &theirs, 2, 4096).unwrap();
    assert_eq!(consumer.take(SOON).unwrap().from, 1);
    sender.settle(loan, SOON).unwrap();
}

#[test]
fn frames_of_another_client_are_refused() {
    let ((ours, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    // A separate service assigns the same handles.
    let stranger = Client::embedded_with(memferry::ServiceConfig::default()).unwrap();
    let mine = SharedFrame::allocate(&ours, 4096).unwrap();
    let foreign = SharedFrame::allocate(&stranger, 4096).unwrap();
    let _loan = sender.lend(1, mine.frame(), SOON).unwrap();
    let refused = sender.lend(2, foreign.frame(), SOON);
    assert!(matches!(refused, Err(SendError::ForeignFrame)), "{refused:?}");
    assert!(ours.grant(foreign.frame(), memferry::Rights::READ, memferry::Grantee::User(0)).is_err());
    drop(receive_lent(&mut receiver));
    for (frame, byte) in [(&mine, 5), (&foreign, 6)] {
        frame.frame().write(0, &[byte]).unwrap();
        let _loan = sender.lend_mapped(3, frame, (0, 4096), SOON).unwrap();
        let mut read = [0];
        receive_lent(&mut receiver).read(0, &mut read).unwrap();
        assert_eq!(read, [byte]);
    }
}

#[test]
fn a_timed_out_lend_leaves_no_export() {
    let ((ours, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    let frame = SharedFrame::allocate(&ours, 4096).unwrap();
    (1..SLOTS).for_each(|number| sender.send(number, b"", NOW).unwrap());
    let timed_out = sender.lend_mapped_once(1, &frame, (0, 4096), NOW);
    assert!(matches!(timed_out, Err(SendError::TimedOut)), "{timed_out:?}");
    (1..SLOTS).for_each(|number| assert_eq!(receive_bytes(&mut receiver).0, number));
    for _ in 0..3 {
        let _loan = sender.lend_mapped(7, &frame, (0, 4096), SOON).unwrap();
        assert_eq!(receive_lent(&mut receiver).kind(), 7);
    }
}

#[test]
fn each_side_sees_the_other_close() {
    let ((_one, mut sender, receiver), (_other, mut back, mut there)) = ends(Options::default());
    sender.send(1, b"last words", SOON).unwrap();
    drop(sender);
    assert_eq!(receive_bytes(&mut there), (1, b"last words".to_vec()));
    assert!(matches!(there.receive(SOON), Err(ReceiveError::Closed)));
    drop(receiver);
    assert!(matches!(back.send(1, b"", SOON), Err(SendError::Closed | SendError::PeerLost)));
}

/// Writes a slot of any content.
fn forge(sender: &mut Sender, words: [u64; SLOT_WORDS]) {
    sender.forge(&words);
}

#[test]
fn every_violation_ends_the_connection() {
    let lent = |index| Slot::Lent { kind: 1, index, offset: 0, length: 1 }.encode();
    let piece = |first, total, length| Slot::Piece { kind: 1, first, total, at: 0, length }.encode();
    let cases: [(&str, Vec<[u64; SLOT_WORDS]>); 11] = [
        ("unknown type", vec![[0xff << 32, 0, 0, 0, 0, 0, 0, 0]]),
        ("type 0", vec![[0; SLOT_WORDS]]),
        ("too long for a slot", vec![[1 << 32, 41 << 32, 0, 0, 0, 0, 0, 0]]),
        ("longer than the longest message", vec![piece(true, 1 << 40, 8)]),
        ("piece too long", vec![[2 << 32 | 1 << 40, 0x20_0000 << 32, 1 << 30, 0, 0, 0, 0, 0]]),
        ("outside the area", vec![[2 << 32 | 1 << 40, 64 << 32, 64, u64::MAX, 0, 0, 0, 0]]),
        ("more than announced", vec![piece(true, 100, 60), piece(false, 100, 60)]),
        ("empty piece", vec![piece(true, 100, 0)]),
        ("pieces of two messages", vec![piece(true, 100, 60), piece(false, 200, 40)]),
        ("not exported", vec![lent(3)]),
        ("no descriptor", vec![Slot::Descriptor { index: 1, once: false, length: 4096 }.encode()]),
    ];
    for (name, slots) in cases {
        let ((_one, mut sender, _), (_other, _, mut receiver)) =
            ends(Options { longest: 1 << 20, ..Options::default() });
        slots.into_iter().for_each(|words| forge(&mut sender, words));
        let broken = receiver.receive(SOON).map(|message| message.kind);
        assert!(matches!(broken, Err(ReceiveError::Broken(_))), "{name}: {broken:?}");
        let again = receiver.receive(SOON).map(|message| message.kind);
        assert!(matches!(again, Err(ReceiveError::Broken(Violation::Earlier))), "{name}: {again:?}");
    }
}

#[test]
fn a_forged_range_fails_its_own_pull() {
    let ((ours, mut sender, _), (theirs, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(4096).alloc().unwrap();
    let to = theirs.frame(4096).alloc().unwrap();
    let _loan = sender.lend(1, &from, SOON).unwrap();
    drop(receive_lent(&mut receiver));
    let forged = [(u64::MAX, 2), (u64::MAX, 0), (u64::MAX - 1, 4096), (4096, 1)];
    for (kind, (offset, length)) in (2..).zip(forged) {
        forge(&mut sender, Slot::Lent { kind, index: 0, offset, length }.encode());
        let lent = receive_lent(&mut receiver);
        receiver.pull(lent, &to).unwrap();
        let failure = Failure::OutOfBounds { side: Side::Source, available: 4096 };
        assert_eq!(receiver.finish(SOON), Err(FinishError::Failed { kind, failure }));
    }
}

#[test]
fn overwriting_slots_in_use_is_refused() {
    let ((ours, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    let from = ours.frame(4096).alloc().unwrap();
    let _loan = sender.lend(1, &from, SOON).unwrap();
    let _held = receive_lent(&mut receiver);
    let mut number = 0;
    let broken = loop {
        sender.forge_over(&Slot::Inline { kind: number, length: 0, bytes: [0; INLINE_BYTES] }.encode());
        number += 1;
        match receiver.receive(SOON).map(|message| message.kind) {
            Ok(_) => assert!(number < SLOTS, "the first slot is still in use"),
            Err(error) => break error,
        }
    };
    assert!(matches!(broken, ReceiveError::Broken(Violation::Overrun)), "{broken:?}");
}

#[test]
fn slots_without_message_keep_the_limit() {
    let ((_one, mut sender, _here), (_other, _, mut receiver)) = ends(Options::default());
    let begins = Slot::Piece { kind: 1, first: true, total: 100, at: 0, length: 1 }.encode();
    (0..2).for_each(|_| forge(&mut sender, begins));
    sender.send(7, b"", NOW).unwrap();
    // The slots before the message have taken longer than the call may last.
    let late = Some(Instant::now() - Duration::from_secs(1));
    for _ in 0..2 {
        let ended = receiver.receive_until(late).map(|message| message.kind);
        assert!(matches!(ended, Err(ReceiveError::TimedOut)), "{ended:?}");
    }
    assert_eq!(receive_bytes(&mut receiver).0, 7);
}

#[test]
fn descriptors_other_than_frames_are_refused() {
    let ((_one, mut sender, _), (_other, _, mut receiver)) = ends(Options::default());
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    conduit::send(sender.peer().socket.as_fd(), &5u32.to_le_bytes(), &[pipe.as_fd()], false).unwrap();
    forge(&mut sender, Slot::Descriptor { index: 5, once: false, length: 4096 }.encode());
    let broken = receiver.receive(SOON).map(|message| message.kind);
    assert!(matches!(broken, Err(ReceiveError::Broken(Violation::Descriptor(_)))), "{broken:?}");
}

#[test]
fn an_impossible_slot_count_is_refused() {
    let ((_one, mut sender, _), (_other, _, receiver)) = ends(Options::default());
    for number in 0..SLOTS {
        sender.send(number, b"", SOON).unwrap();
    }
    receiver.peer().own.word(RETIRED).store(1000, std::sync::atomic::Ordering::Release);
    assert!(matches!(sender.send(1, b"", SOON), Err(SendError::Broken(Violation::Count(_)))));
    assert!(matches!(sender.send(1, b"", SOON), Err(SendError::Broken(Violation::Earlier))));
}

#[test]
fn a_wrong_greeting_is_refused() {
    let client = Client::embedded().unwrap();
    for words in [&b"hello"[..], &[0; 40]] {
        let kind = SocketType::SEQPACKET;
        let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        conduit::send(other.as_fd(), words, &[], false).unwrap();
        assert!(over(one, &client, Options::default()).is_err());
    }
}
