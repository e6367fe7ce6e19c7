//! A client that writes anything into its ring gets errors or loses its session, without effect on other clients.

mod harness;

use harness::{Raw, RawQueue, SOON, Service, endless};
use memferry::{
    Copy2d, Count2d, Failure, Handle, Pattern, PixelSize, Plane, Rights, Side, SubmitReason, copy, fill, nop,
    zero,
};
use memferry_conformance::oracle::{Place, overlapping_operand};
use memferry_service::protocol::{Answer, Command, Violation};
use memferry_shm::frame::{self, Pages};
use memferry_shm::queue_pair::Layout;
use memferry_shm::storage::RingStorage;
use memferry_transfer::wire::{self, SlotError};
use memferry_transfer::{Operation, Request, Span};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// A raw client with one frame of `length` bytes and one queue.
fn raw_client(service: &Service, length: u64, capacity: u32) -> (Raw, RawQueue, Handle) {
    let mut raw = Raw::open(&service.socket);
    let (descriptor, _mapping) = frame::allocate(length, Pages::Ordinary).unwrap();
    let register = Command::Register { length, rights: Rights::READ | Rights::WRITE };
    let (answer, _) = raw.command(register, &[descriptor.as_fd()]);
    let Ok(Answer::Handle(handle)) = answer else { panic!("{answer:?}") };
    let queue = raw.queue(capacity);
    (raw, queue, handle)
}

fn submit(queue: &mut RawQueue, slot: &[u64; 16]) {
    queue.end.stage(slot).unwrap();
    queue.end.publish();
    queue.ring();
}

/// Encodes a request without a list.
fn encoded(tag: u32, request: &Request) -> wire::SubmissionSlot {
    let mut list = Vec::new();
    let slot = wire::encode_request(tag, request, &mut list).unwrap();
    assert!(list.is_empty());
    slot
}

/// Submits a slot and returns its result.
fn outcome(queue: &mut RawQueue, slot: &[u64; 16]) -> Result<(), Failure> {
    submit(queue, slot);
    let completion = wire::decode_completion(&queue.completion(), 0).expect("a completion");
    assert_eq!(completion.tag, slot[0] >> 32);
    completion.outcome.result
}

#[test]
fn invalid_slots_complete_as_malformed() {
    let service = Service::start(&[]);
    let (_raw, mut queue, _) = raw_client(&service, 4096, 8);
    for (header, error) in [
        (0, SlotError::Opcode(0)),
        (wire::LONG | 200 << 16, SlotError::Opcode(200)),
        (1 << 16 | 3 << 27, SlotError::Reserved),
        (wire::LONG | 1 << 16, SlotError::Reserved),
        (5 << 16, SlotError::Length),
        (3 << 16, SlotError::Width(255)),
    ] {
        let mut slot = [u64::MAX; 16];
        slot[0] = 5 << 32 | header;
        assert_eq!(outcome(&mut queue, &slot), Err(Failure::Malformed(error)));
    }
    service.assert_serves();
}

#[test]
fn extreme_integers_stay_inside_the_frame() {
    let service = Service::start(&[]);
    let (_raw, mut queue, handle) = raw_client(&service, 4096, 8);
    let limits =
        [0, 1, 4095, 4096, 4097, u64::from(u32::MAX), i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
    let mut tag = 0;
    let mut served = 0;
    for offset in limits {
        for length in limits {
            let at = |offset| Span::new(handle, offset);
            let fill = Operation::Fill { destination: at(offset), length, pattern: Pattern::Byte(1) };
            let copy = Operation::Copy { source: at(offset), destination: at(0), length };
            for operation in [fill, copy] {
                tag += 1;
                let slot = encoded(tag, &Request::new(operation.clone()));
                let inside = offset.checked_add(length).is_some_and(|end| end <= 4096);
                let result = outcome(&mut queue, &slot);
                assert_eq!(result.is_ok(), inside && length <= 4096, "{operation:?}: {result:?}");
                served += u32::from(result.is_ok());
            }
        }
    }
    assert!(served > 4);
    service.assert_serves();
}

#[test]
fn extreme_2d_walks_stay_inside_the_frame() {
    let service = Service::start(&[]);
    let (_raw, mut queue, handle) = raw_client(&service, 4096, 8);
    let steps = [0, 1, -1, 4096, -4096, i64::from(i32::MAX), i64::from(i32::MIN), i64::MAX, i64::MIN];
    let mut tag = 0;
    let mut ended = [0; 3];
    for start in [0, 4092, 4093, u64::MAX] {
        for (x_step, y_step) in steps.into_iter().flat_map(|x| steps.map(|y| (x, y))) {
            for (x_count, y_count) in [(0, 9), (1, 1), (2, 3), (u32::MAX, u32::MAX)] {
                // Walks of the source visit the first of these pixels, or come near it.
                for onto in [0, 2, 2048] {
                    tag += 1;
                    let count = Count2d { pixel: PixelSize::Bits32, x_count, y_count };
                    let walk = Plane { start, x_step, y_step };
                    let pixel = Plane { start: onto, x_step: 0, y_step: 0 };
                    let shape = Copy2d { count, source: walk, destination: pixel, transparent: None };
                    let request = Request::copy_2d(Span::new(handle, 0), Span::new(handle, 0), shape);
                    let result = outcome(&mut queue, &encoded(tag, &request));
                    let found = match result {
                        Ok(()) => Ending::Served,
                        Err(Failure::Overlap { operand: 0 }) => Ending::Overlap,
                        Err(_) => Ending::Refused,
                    };
                    assert_eq!(found, expected_2d(&shape, 4096), "{shape:?}: {result:?}");
                    ended[found as usize] += 1;
                }
            }
        }
    }
    assert!(ended.into_iter().all(|count| count > 4), "{ended:?}");
    service.assert_serves();
}

/// How a 2-D copy within one frame ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Served,
    /// The walks have bytes in common, and no order of the pixels is right.
    Overlap,
    /// A walk leaves the frame, or moves too much.
    Refused,
}

fn expected_2d(shape: &Copy2d, length: u64) -> Ending {
    let count = shape.count;
    let right = count.x_count.max(1) - 1;
    let bottom = count.y_count.max(1) - 1;
    let corners = [(0, 0), (right, 0), (0, bottom), (right, bottom)];
    let pixels = 0..=i128::from(length - count.pixel.bytes());
    let is_inside = corners.iter().all(|(x, y)| pixels.contains(&shape.source.offset_of(&count, *x, *y)));
    if count.total_bytes() > 1 << 40 || (count.pixels() != 0 && !is_inside) {
        return Ending::Refused;
    }
    let frame = Place { memory: 0, offset: 0, length };
    let operation = Operation::Copy2d { source: frame, destination: frame, shape: *shape };
    if overlapping_operand(&operation).is_some() { Ending::Overlap } else { Ending::Served }
}

#[test]
fn stale_and_forged_handles_are_refused() {
    let service = Service::start(&[]);
    let (_other, _queue, foreign) = raw_client(&service, 4096, 2);
    let client = service.client();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(4).unwrap();
    let (mut raw, mut raw_queue, own) = raw_client(&service, 4096, 8);
    let read = |handle: Handle| {
        let source = Span::new(handle, 0);
        let request = Request::copy(source, Span::new(own, 0), 1);
        encoded(1, &request)
    };
    assert_eq!(outcome(&mut raw_queue, &read(own)), Ok(()));
    let mut forged = vec![foreign, frame.handle(), Handle::from_bits(0), Handle::from_bits(u64::MAX)];
    forged.extend((0..64).flat_map(|index| (0..4).map(move |generation| Handle::new(index, generation))));
    for handle in forged.into_iter().filter(|handle| *handle != own) {
        let failure = outcome(&mut raw_queue, &read(handle)).unwrap_err();
        let nothing = matches!(failure, Failure::UnknownHandle { .. } | Failure::StaleHandle { .. });
        assert!(nothing, "{handle}: {failure}");
    }
    raw.command(Command::Revoke { handle: own }, &[]).0.unwrap();
    let stale = outcome(&mut raw_queue, &read(own)).unwrap_err();
    assert_eq!(stale, Failure::StaleHandle { side: Side::Source, handle: own });
    let ticket = queue.submit(fill(&frame, Pattern::Byte(1))).unwrap();
    harness::done(&mut queue, ticket);
}

#[test]
fn wrong_counts_end_the_session() {
    let service = Service::start(&[]);
    // Word 16 of the client's memory is its count of completions. There are twice as many completion slots as requests.
    for count in [9, 11, 1 << 31, u64::MAX] {
        let (raw, mut queue, _) = raw_client(&service, 4096, 4);
        let nop = encoded(1, &Request::new(Operation::Nop));
        for _ in 0..8 {
            assert_eq!(outcome(&mut queue, &nop), Ok(()));
        }
        // The service reads the count when the known room is used up.
        queue.scribble.word(16).store(count, Ordering::Release);
        submit(&mut queue, &nop);
        assert_eq!(raw.farewell(), Violation::RingCounts, "{count}");
        assert!(queue.end.closed());
    }
    service.assert_serves();
}

#[test]
fn garbage_in_the_ring_ends_its_session_only() {
    let service = Service::start(&[]);
    let client = service.client();
    let (_raw, queue, _) = raw_client(&service, 4096, 16);
    let mut rng = fastrand::Rng::with_seed(1);
    let started = std::time::Instant::now();
    // The service reads only slots whose sequence numbers are near its own. It serves what it reads until something breaks a rule.
    let mut near = 0;
    for round in 0.. {
        assert!(started.elapsed() < SOON, "the session did not end");
        if round % 1000 == 0 {
            let served = client.status().unwrap().sessions.iter().map(|session| session.requests).max();
            near = served.unwrap().saturating_sub(8);
        }
        // Lists are read only if a request refers to them.
        for index in 0..queue.scribble.words() - Layout::new(16).unwrap().list_words() {
            let value = match rng.u64(..4) {
                // Sequence numbers up to more than there are completion slots.
                0 => near + rng.u64(..0x40),
                1 => rng.u64(..8) << 32 | (near + rng.u64(..0x40)),
                2 => 0,
                _ => rng.u64(..),
            };
            queue.scribble.word(index).store(value, Ordering::Relaxed);
        }
        if round % 100 == 0 {
            queue.ring();
        }
        if queue.end.closed() {
            break;
        }
    }
    harness::assert_moves_bytes(&client);
}

#[test]
fn overrunning_completions_ends_the_session() {
    let service = Service::start(&[]);
    let (raw, mut queue, _) = raw_client(&service, 4096, 4);
    // A correct client stops at its capacity. This one ignores it and follows the service's count.
    for tag in 0..64 {
        let slot = encoded(tag, &Request::new(Operation::Nop));
        let started = std::time::Instant::now();
        while queue.end.stage(&slot).is_err() && !queue.end.closed() {
            assert!(started.elapsed() < SOON);
        }
        queue.end.publish();
        queue.ring();
    }
    assert_eq!(raw.farewell(), Violation::Overrun);
    service.assert_serves();
}

#[test]
fn unread_completions_fill_the_queue() {
    let service = Service::start(&[]);
    let client = service.client();
    let mut queue = client.queue(4).unwrap();
    let tickets: Vec<_> = (0..4).map(|_| queue.submit(nop()).unwrap()).collect();
    for _ in 0..100 {
        let refused = queue.submit(nop()).unwrap_err();
        assert_eq!(refused.reason, SubmitReason::Full { capacity: 4 });
        queue = match refused.reason {
            SubmitReason::Full { .. } => queue,
            other => panic!("{other}"),
        };
    }
    service.assert_serves();
    for ticket in tickets {
        harness::done(&mut queue, ticket);
    }
    let ticket = queue.submit(nop()).unwrap();
    harness::done(&mut queue, ticket);
}

#[test]
fn the_services_memory_is_protected() {
    use memferry_shm::mapping::{Access, Mapping};
    let service = Service::start(&[]);
    let (_raw, queue, _) = raw_client(&service, 4096, 4);
    assert!(Mapping::shared(queue.service.as_fd(), 4096, Access::ReadWrite, 4096).is_err());
    assert!(rustix::io::pwrite(&queue.service, b"x", 0).is_err());
    for memory in [&queue.service, &queue.client] {
        assert!(rustix::fs::ftruncate(memory, 0).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(memory, punch, 0, 4096);
        // A hole in the client's own memory reads as zeros, which the client could write anyway.
        assert!(punched.is_err() || std::ptr::eq(memory, &queue.client));
    }
}

#[test]
fn a_misused_doorbell_does_not_block_others() {
    let service = Service::start(&[]);
    let client = service.client();
    let (_raw, mut queue, _) = raw_client(&service, 4096, 4);
    rustix::io::write(&queue.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&queue.doorbell, rustix::fs::OFlags::empty()).unwrap();
    harness::assert_moves_bytes(&client);
    rustix::io::read(&queue.doorbell, &mut [0u8; 8]).unwrap();
    let nop = encoded(1, &Request::new(Operation::Nop));
    assert_eq!(outcome(&mut queue, &nop), Ok(()));
}

#[test]
fn busy_channels_refuse_or_queue_requests() {
    let service = Service::start(&["--channels=2", "--quota-waiting=1"]);
    let client = service.client();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(16).unwrap();
    let running: Vec<_> = (0..2).map(|_| queue.submit(endless(&frame)).unwrap()).collect();
    let short = queue.submit(nop().refuse_when_busy()).unwrap();
    harness::done(&mut queue, short);
    let refused = queue.submit(endless(&frame).refuse_when_busy()).unwrap();
    let failure = harness::failure(&mut queue, refused);
    assert_eq!(failure, Failure::ChannelsBusy { channels: 2 });
    let long = client.frame(1 << 20).alloc().unwrap();
    let waiting = queue.submit(zero(&long)).unwrap();
    let over = queue.submit(zero(&long)).unwrap();
    assert_eq!(harness::failure(&mut queue, over), Failure::WaitingQuota { limit: 1 });
    queue.cancel(running[0]).unwrap();
    assert_eq!(harness::failure(&mut queue, running[0]), Failure::Cancelled);
    harness::done(&mut queue, waiting);
    let overdue = queue.submit(endless(&frame).within(std::time::Duration::from_millis(5))).unwrap();
    assert_eq!(harness::failure(&mut queue, overdue), Failure::DeadlineExceeded);
}

#[test]
fn an_exclusive_channel_has_one_client() {
    let service = Service::start(&["--channels=1", "--policy=exclusive"]);
    let first = service.client();
    let second = service.client();
    let mut of_first = first.queue(4).unwrap();
    let mut of_second = second.queue(4).unwrap();
    let of_first_frame = first.frame(1 << 20).alloc().unwrap();
    let frame = second.frame(1 << 20).alloc().unwrap();
    let ticket = of_first.submit(zero(&of_first_frame)).unwrap();
    harness::done(&mut of_first, ticket);
    let short = of_second.submit(nop().refuse_when_busy()).unwrap();
    harness::done(&mut of_second, short);
    let ticket = of_second.submit(zero(&frame).refuse_when_busy()).unwrap();
    let failure = harness::failure(&mut of_second, ticket);
    assert_eq!(failure, Failure::ChannelsBusy { channels: 0 });
    let waiting = of_second.submit(zero(&frame)).unwrap();
    let overdue = of_second.submit(nop().within(std::time::Duration::from_millis(300))).unwrap();
    service.assert_idle();
    assert_eq!(harness::failure(&mut of_second, overdue), Failure::DeadlineExceeded);
    let unwanted = of_second.submit(zero(&frame)).unwrap();
    service.assert_idle();
    of_second.cancel(unwanted).unwrap();
    assert_eq!(harness::failure(&mut of_second, unwanted), Failure::Cancelled);
    drop(of_first);
    drop(first);
    harness::done(&mut of_second, waiting);
}

#[test]
fn frames_of_huge_pages_are_served() {
    let service = Service::start(&[]);
    let client = service.client();
    let huge = match client.frame(1).huge().alloc() {
        Ok(huge) => huge,
        Err(error) => return println!("no huge pages on this machine: {error}"),
    };
    assert!(huge.length() > 4096);
    let small = client.frame(4096).alloc().unwrap();
    huge.write(huge.length() - 4, b"huge").unwrap();
    let mut queue = client.queue(4).unwrap();
    let end = huge.slice(huge.length() - 4096..);
    let ticket = queue.submit(copy(end, &small)).unwrap();
    harness::done(&mut queue, ticket);
    let mut bytes = [0; 4];
    small.read(4092, &mut bytes).unwrap();
    assert_eq!(&bytes, b"huge");
}
