//! Arenas: buffers and collections, and the reuse of their memory.

use allocator_api2::vec::Vec as ArenaVec;
use memferry::{
    ArenaOptions, BufferError, CallError, Client, Color24, Copy2d, CopyError, Count2d, Failure, Fill2d,
    FrameAllocator, FrameArena, Grantee, Pattern, PixelSize, Placement, Plane, Promised, Quotas, Rights,
    ServiceConfig, Side, SubmitReason, copy, copy_2d, fill, fill_2d,
};

use super::*;

fn arena(client: &Client) -> FrameArena {
    client.arena(ArenaOptions { segment_bytes: 64 << 10, ..ArenaOptions::default() }).expect("an arena")
}

fn list(arena: &FrameArena, length: usize, value: u8) -> ArenaVec<u8, FrameAllocator> {
    let mut list = ArenaVec::new_in(arena.allocator());
    list.resize(length, value);
    list
}

fn bytes_of(buffer: &memferry::Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.length() as usize];
    buffer.read(0, &mut bytes).expect("access to the buffer");
    bytes
}

#[test]
fn many_buffers_share_one_registration() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(16).expect("a queue");
    let buffers: Vec<_> = (0..20).map(|_| arena.buffer(1000).expect("room")).collect();
    buffers[0].write(0, &[9; 1000]).expect("access to the frame");
    for pair in buffers.windows(2) {
        let ticket = queue.submit(copy(&pair[0], &pair[1])).expect("room");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(1000));
    }
    assert!(buffers.iter().all(|buffer| bytes_of(buffer) == [9; 1000]));
    let frames = client.status().expect("a status").sessions[0].frames;
    assert_eq!((frames, arena.statistics().segments), (1, 1));
    drop(buffers);
    arena.trim();
    let frames = client.status().expect("a status").sessions[0].frames;
    assert_eq!((frames, arena.statistics().segments), (0, 0));
}

#[test]
fn a_transfer_keeps_its_buffers_until_completion() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(4).expect("a queue");
    let _keeps_the_segment = arena.buffer(1).expect("room");
    let buffer = arena.buffer(4096).expect("room");
    let held = arena.statistics().live_bytes;
    let ticket = queue.submit(endless(&buffer)).expect("room");
    drop(buffer);
    for _ in 0..50 {
        let other = arena.buffer(4096).expect("room");
        assert_eq!(bytes_of(&other), [0; 4096], "the engine writes to a reused buffer");
    }
    assert_eq!(arena.statistics().live_bytes, held);
    queue.cancel(ticket).expect("an outstanding transfer");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Err(Failure::Cancelled));
    assert_eq!(arena.statistics().live_bytes, held - 4096);
}

#[test]
fn buffers_of_a_dropped_queue_are_not_reused() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(4).expect("a queue");
    let keeps_the_segment = arena.buffer(1).expect("room");
    let buffer = arena.buffer(4096).expect("room");
    let _ = queue.submit(endless(&buffer)).expect("room");
    while bytes_of(&buffer)[0] == 0 {
        std::thread::yield_now();
    }
    drop((queue, buffer));
    assert_eq!(arena.statistics().abandoned_bytes, 4096);
    for _ in 0..50 {
        assert_eq!(bytes_of(&arena.buffer(4096).expect("room")), [0; 4096]);
    }
    drop(keeps_the_segment);
    let statistics = arena.statistics();
    assert_eq!((statistics.abandoned_bytes, statistics.segments), (0, 0), "freed with their segment");
}

#[test]
fn a_revoked_part_of_a_buffer_is_reused() {
    let client = client();
    let arena = arena(&client);
    let buffer = arena.buffer(4096).expect("room");
    let derived = client.derive(buffer.slice(..), Rights::READ).expect("part of it");
    derived.revoke().expect("its own capability");
    drop((buffer, derived));
    let statistics = arena.statistics();
    assert_eq!((statistics.live_bytes, statistics.abandoned_bytes), (0, 0));
}

#[test]
fn a_transfer_cannot_leave_its_buffer() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(4).expect("a queue");
    let (before, buffer, after) = {
        let mut buffers = (0..3).map(|_| arena.buffer(4096).expect("room"));
        (buffers.next().expect("one"), buffers.next().expect("one"), buffers.next().expect("one"))
    };
    let one = Count2d { pixel: PixelSize::Bits8, x_count: 3, y_count: 1 };
    let color = Color24::new(7).expect("24 bits");
    let walk = |start, x_step| Fill2d { count: one, destination: Plane { start, x_step, y_step: 0 }, color };
    let outside = [
        fill(buffer.slice(0..4097), Pattern::Byte(7)),
        fill(buffer.slice(4096..4097), Pattern::Byte(7)),
        fill(buffer.slice(u64::MAX - 2..), Pattern::Byte(7)),
        fill(buffer.slice(u64::MAX - 2..u64::MAX), Pattern::Byte(7)),
        fill(buffer.slice(4096..4104), Pattern::Byte(7)),
        fill_2d(&buffer, walk(4094, 1)),
        fill_2d(&buffer, walk(1, -1)),
        fill_2d(buffer.slice(4000..4096), walk(94, 1)),
        fill_2d(&buffer, walk(0, i64::MIN)),
    ];
    for transfer in outside {
        // The client library refuses inverted slices and walks whose start overflows; the service refuses the others.
        let Ok(ticket) = queue.submit(transfer.clone()) else { continue };
        let end = outcome(end_of(&mut queue, ticket));
        assert!(matches!(end, Err(Failure::OutOfBounds { .. })), "{transfer:?}: {end:?}");
    }
    let shape = Copy2d {
        count: one,
        source: walk(4094, 1).destination,
        destination: walk(0, 1).destination,
        transparent: None,
    };
    assert!(queue.submit(copy_2d(&buffer, &after, shape)).is_err());
    for inside in [walk(4093, 1), walk(2, -1)] {
        let ticket = queue.submit(fill_2d(&buffer, inside)).expect("room");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(3));
    }
    assert_eq!((bytes_of(&before), bytes_of(&after)), (vec![0; 4096], vec![0; 4096]));
}

#[test]
fn a_derived_frame_grants_a_buffer_and_keeps_it() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another client");
    let arena = arena(&owner);
    let _keeps_the_segment = arena.buffer(1).expect("room");
    let buffer = arena.buffer(4096).expect("room");
    let rights = Rights::READ | Rights::WRITE | Rights::GRANT;
    let refused = owner.grant(&buffer, rights, Grantee::Session(peer.session()));
    assert!(matches!(refused, Err(CallError::PartOfArena)));
    assert!(owner.derive(buffer.slice(0..4097), rights).is_err());
    let derived = owner.derive(&buffer, rights).expect("derived");
    let grant = owner.grant(&derived, rights, Grantee::Session(peer.session())).expect("granted");
    let granted = peer.accept(grant.token()).expect("accepted");
    let mut queue = peer.queue(4).expect("a queue");
    let running = queue.submit(endless(&granted)).expect("room");
    let held = arena.statistics().live_bytes;
    drop(buffer);
    assert_eq!(arena.statistics().live_bytes, held);
    drop(derived);
    assert_eq!(arena.statistics().live_bytes, held - 4096);
    assert_eq!(bytes_of(&arena.buffer(4096).expect("room")), [0; 4096]);
    end_of(&mut queue, running).expect_err("its memory was revoked");
}

#[test]
fn slices_of_collections_are_copied() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(4).expect("a queue");
    let mut from = list(&arena, 20_000, 3);
    let mut to = list(&arena, 20_000, 0);
    from[10_000] = 4;
    let copied = arena.copy(&mut queue, &from[1..19_999], &mut to[1..19_999]).expect("copied");
    assert_eq!((copied.by_engine, copied.by_caller), (3 * 4096, 19_998 - 3 * 4096));
    assert_eq!((to[0], to[19_999], &to[1..19_999]), (0, 0, &from[1..19_999]));
    let copied = arena.copy(&mut queue, &from[..10], &mut to[..10]).expect("copied");
    assert_eq!((copied.by_engine, copied.by_caller, to[0]), (0, 10, 3));
    arena.copy(&mut queue, &[], &mut []).expect("nothing to do");

    let elsewhere = self::arena(&client);
    let mut foreign = list(&elsewhere, 20_000, 0);
    let lengths = CopyError::Lengths { from: 2, to: 3 };
    assert_eq!(arena.copy(&mut queue, &from[..2], &mut to[..3]), Err(lengths));
    let not_in_arena = |side| Err(CopyError::NotInArena(side));
    assert_eq!(arena.copy(&mut queue, &from, &mut foreign), not_in_arena(Side::Destination));
    assert_eq!(arena.copy(&mut queue, &foreign, &mut to), not_in_arena(Side::Source));
    assert_eq!(arena.copy(&mut queue, &[0; 4], &mut to[..4]), not_in_arena(Side::Source));
    let mut foreign_queue = self::client().queue(4).expect("a queue");
    let refused = Err(CopyError::Submit(SubmitReason::ForeignFrame));
    assert_eq!(arena.copy(&mut foreign_queue, &from, &mut to), refused);
    assert!(
        to.len() == 20_000 && arena.copy(&mut queue, &from, &mut to).is_ok(),
        "the refused copies left the memory usable"
    );
    assert_eq!(from, to);
}

#[test]
#[expect(unsafe_code, reason = "`Promised::new` is unsafe")]
fn a_region_of_promised_memory_is_bounded() {
    let client = client();
    let arena = arena(&client);
    let mut queue = client.queue(4).expect("a queue");
    let mut list = list(&arena, 300, 1);
    // SAFETY: the list is alive and not accessed until all completions were taken.
    let promised = unsafe { Promised::new(list.as_mut_ptr(), 300) };
    let region = arena.region_of(promised).expect("in the arena");
    assert!(self::arena(&client).region_of(promised).is_none());
    assert_eq!((region.length(), region.frame().read(0, &mut [0]).is_err()), (300, true));
    let mut ended = |transfer| {
        let ticket = queue.submit(transfer).expect("room");
        outcome(end_of(&mut queue, ticket))
    };
    assert!(ended(fill(region.frame().slice(299..301), Pattern::Byte(5))).is_err());
    assert_eq!(ended(fill(&region, Pattern::Byte(6))), Ok(300));
    assert!(list.iter().all(|byte| *byte == 6));
}

#[test]
fn limits_and_bad_arguments_are_refused() {
    let quotas = Quotas { bytes: 256 << 10, ..Quotas::default() };
    let config = ServiceConfig { workers: 1, quotas, ..ServiceConfig::default() };
    let client = Client::embedded_with(config).expect("a service");
    let arena = arena(&client);
    assert!(matches!(arena.buffer(0), Err(BufferError::Empty)));
    assert!(matches!(arena.buffer(usize::MAX), Err(BufferError::TooLong { .. })));
    assert!(matches!(arena.buffer_aligned(1, 4 << 20), Err(BufferError::Alignment { .. })));
    // More memory than the machine has is refused without an attempt.
    assert!(matches!(arena.buffer(1 << 45), Err(BufferError::Limit { .. })));
    assert!(ArenaVec::<u8, _>::new_in(arena.allocator()).try_reserve(1 << 45).is_err());
    let Err(refused) = arena.buffer(300 << 10) else { panic!("the quota did not hold") };
    assert!(refused.to_string().contains("quota"), "{refused}");
    let buffer = arena.buffer(200 << 10).expect("within the quota");
    assert!(matches!(arena.buffer(100 << 10), Err(BufferError::Segment { .. })));
    drop(buffer);
    arena.buffer(100 << 10).expect("room again");

    let limited =
        client.arena(ArenaOptions { limit_bytes: 64 << 10, ..ArenaOptions::default() }).expect("an arena");
    let _first = limited.buffer(40 << 10).expect("within the limit");
    assert!(matches!(limited.buffer(40 << 10), Err(BufferError::Limit { .. })));
}

#[test]
fn a_missing_node_is_refused() {
    let client = client();
    let options = ArenaOptions { placement: Placement::on_node(1023), ..ArenaOptions::default() };
    let Err(refused) = client.arena(options).expect("an arena").buffer(1) else { panic!("no such node") };
    assert!(refused.to_string().contains("no memory node 1023; this machine has nodes"), "{refused}");
}

#[test]
fn threads_share_an_arena() {
    let client = client();
    let arena = arena(&client);
    std::thread::scope(|scope| {
        for thread in 1..=3_u8 {
            let client = &client;
            let arena = &arena;
            scope.spawn(move || {
                let mut queue = client.queue(4).expect("a queue");
                for round in 0..200_usize {
                    let length = [100, 3000, 9000, 70_000][(round + usize::from(thread)) % 4];
                    let from = arena.buffer(length).expect("room");
                    let to = arena.buffer(length).expect("room");
                    assert!(bytes_of(&to) == vec![0; length], "an old byte is visible");
                    from.write(0, &vec![thread; length]).expect("access to the frame");
                    let ticket = queue.submit(copy(&from, &to)).expect("room");
                    drop(from);
                    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(length as u64));
                    assert!(bytes_of(&to) == vec![thread; length], "bytes of another thread");
                }
            });
        }
    });
    arena.trim();
    let statistics = arena.statistics();
    assert_eq!((statistics.live_bytes, statistics.segments, statistics.abandoned_bytes), (0, 0, 0));
    assert_eq!(client.status().expect("a status").sessions[0].frames, 0);
}
