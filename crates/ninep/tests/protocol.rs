//! Bad input, limits and faults over a socket: what clients may send, and that other clients are unaffected.

mod harness;

use std::borrow::Cow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use harness::{Folder, MESSAGE, Served, is_over, pattern, wait_until};
use memferry_ninep::codec::{Change, Data, NO_FID, NO_TAG, NO_USER, Reply, Request, VERSION, change};
use memferry_ninep::{Client, ClientError, Engine};
use rustix::io::Errno;

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Errno {
    match result {
        Err(ClientError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn version(msize: u32) -> Vec<u8> {
    Request::Version { msize, version: VERSION.into() }.encode(NO_TAG)
}

#[test]
fn bad_lengths_end_only_their_session() {
    let Some(served) = Served::new() else { return };
    let mut witness = served.client();
    for size in [0_u32, 1, 6, 65_561, u32::MAX] {
        let mut client = served.client();
        client.send_bytes(&[&size.to_le_bytes()[..], &[116, 1, 0]].concat()).unwrap();
        assert!(is_over(&mut client), "{size}");
    }
    // Before a version is negotiated the limit is smaller.
    let mut client = served.raw();
    client.send_bytes(&[&5000_u32.to_le_bytes()[..], &[100, 255, 255]].concat()).unwrap();
    assert!(is_over(&mut client));
    witness.walk(1, "").unwrap();
    assert_eq!(served.running().statistics().violations, 6);
}

#[test]
fn malformed_messages_get_errors() {
    let Some(served) = Served::new() else { return };
    let mut client = served.client();
    for kind in (0..=255_u8).filter(|kind| !matches!(kind, 100 | 118)) {
        for body in [&b""[..], b"\xff", &[0xff; 9], &[0xff; 40], &[0; 300]] {
            let size = (7 + body.len()) as u32;
            client.send_bytes(&[&size.to_le_bytes()[..], &[kind, 9, 0], body].concat()).unwrap();
            let (tag, reply) = client.receive().unwrap();
            assert!(tag == 9 && matches!(reply, Reply::Error { code } if code != 0), "{kind}: {reply:?}");
        }
    }
    // Writes whose count differs from the bytes that follow.
    for (size, count) in [(7_u32, 0_u32), (22, 0), (23, 1), (24, 0), (1023, 2000), (60_000, 59_000)] {
        let mut message =
            [&size.to_le_bytes()[..], &[118, 9, 0, 1, 0, 0, 0], &[0; 8], &count.to_le_bytes()].concat();
        message.resize(size as usize, 7);
        client.send_bytes(&message).unwrap();
        assert!(matches!(client.receive().unwrap(), (9, Reply::Error { code: 22 })), "{size}, {count}");
    }
    // Longer than any valid name, but within the connection's limit.
    let long = Request::Mkdir { dfid: 0, name: vec![b'x'; 40_000].into(), mode: 0, gid: 0 };
    assert_eq!(refused(client.call(&long)), Errno::NAMETOOLONG);
    client.walk(1, "").unwrap();
}

#[test]
fn a_version_is_required_and_restarts() {
    let Some(served) = Served::new() else { return };
    let mut client = served.raw();
    let attach =
        Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname: b"".into(), user: NO_USER };
    assert_eq!(refused(client.call(&attach)), Errno::PROTO);
    assert_eq!(refused(client.write(0, 0, b"x")), Errno::PROTO);
    client.send_bytes(&version(100)).unwrap();
    assert!(matches!(client.receive().unwrap().1, Reply::Error { .. }), "no message would fit");
    for (offered, agreed) in [(4096, 4096), (u32::MAX, MESSAGE)] {
        client.send_bytes(&version(offered)).unwrap();
        assert_eq!(client.receive().unwrap().1, Reply::Version { msize: agreed, version: VERSION.into() });
    }
    client.call(&attach).unwrap();
    assert_eq!(refused(client.call(&attach)), Errno::INVAL, "the fid is in use");
    assert!(served.raw().attach(MESSAGE, &"/.".repeat(64)).is_ok());
    let long = served.raw().attach(MESSAGE, &format!("{}/missing", "/.".repeat(64)));
    assert!(matches!(long, Err(ClientError::Refused(Errno::NAMETOOLONG))), "no name is ignored");
    client.send_bytes(&Request::Version { msize: 8192, version: b"9P2000".into() }.encode(NO_TAG)).unwrap();
    assert!(matches!(client.receive().unwrap().1, Reply::Version { version, .. } if *version == *b"unknown"));
    assert_eq!(refused(client.call(&Request::Clunk { fid: 0 })), Errno::PROTO);
}

#[test]
fn fids_tags_and_users_are_limited() {
    let Some(served) = Served::with(|options| options.limits.fids = 10) else { return };
    let mut client = served.client();
    for fid in 1..10 {
        client.walk(fid, "").unwrap();
    }
    assert_eq!(refused(client.walk(10, "")), Errno::MFILE);
    for taken in [3, NO_FID] {
        assert_eq!(refused(client.walk(taken, "")), Errno::INVAL);
    }
    client.call(&Request::Clunk { fid: 3 }).unwrap();
    client.walk(3, "").unwrap();
    for fid in [77, NO_FID] {
        assert_eq!(refused(client.open(fid, 0)), Errno::BADF);
        assert_eq!(refused(client.call(&Request::Clunk { fid })), Errno::BADF);
    }
    client.call(&Request::Clunk { fid: 4 }).unwrap();
    let claims = Request::Attach { fid: 4, afid: NO_FID, uname: b"".into(), aname: b"".into(), user: 12_345 };
    let own = rustix::process::geteuid().as_raw();
    assert!(own == 0 || matches!(client.call(&claims), Err(ClientError::Refused(Errno::PERM))));
}

#[test]
fn clients_cannot_leave_the_export() {
    let outside = Folder::new();
    std::fs::write(outside.at("secret"), "secret").unwrap();
    std::fs::create_dir(outside.at("export")).unwrap();
    std::os::unix::fs::symlink("../secret", outside.at("export/link")).unwrap();
    let Some(served) = Served::with(|options| options.directory = outside.at("export")) else { return };
    let mut client = served.client();
    client.walk(1, "../../../..").unwrap();
    let Reply::Getattr { attributes } = client.call(&Request::Getattr { fid: 1, mask: 0 }).unwrap() else {
        panic!()
    };
    let root = attributes.qid;
    let Reply::Getattr { attributes } = client.call(&Request::Getattr { fid: 0, mask: 0 }).unwrap() else {
        panic!()
    };
    assert_eq!(attributes.qid, root);
    for name in [&b"../secret"[..], b"a/b", b"a\0b", b"/etc"] {
        let walk = Request::Walk { fid: 0, newfid: 5, names: vec![name.into()] };
        assert_eq!(refused(client.call(&walk)), Errno::INVAL, "{name:?}");
    }
    assert_eq!(refused(client.walk(5, "../secret")), Errno::NOENT);
    client.walk(6, "link").unwrap();
    assert_eq!(refused(client.open(6, 0)), Errno::LOOP);
    assert!(served.raw().attach(MESSAGE, "/link/secret").is_err());
    assert!(served.raw().attach(MESSAGE, "/../secret").is_err());
}

/// A client's operations may complete together with the signal to stop.
#[test]
fn a_server_stops_while_clients_leave() {
    for _ in 0..400 {
        let Some(served) = Served::with(|_| ()) else { return };
        let mut client = served.client();
        client.walk(1, "").unwrap();
        let leaving = std::thread::spawn(move || drop(client));
        drop(served);
        leaving.join().unwrap();
    }
}

#[test]
fn a_read_only_export_does_not_change() {
    let Some(served) = Served::with(|options| options.read_only = true) else { return };
    std::fs::write(served.export.at("file"), "as it was").unwrap();
    let mut client = served.client();
    client.walk(1, "file").unwrap();
    let name = || Cow::Borrowed(&b"new"[..]);
    let size = Change { valid: change::SIZE, ..Change::default() };
    for request in [
        Request::Lopen { fid: 1, flags: 1 },
        Request::Lopen { fid: 1, flags: 0o1000 },
        Request::Lcreate { fid: 0, name: name(), flags: 2, mode: 0o600, gid: 0 },
        Request::Mkdir { dfid: 0, name: name(), mode: 0o700, gid: 0 },
        Request::Symlink { dfid: 0, name: name(), target: name(), gid: 0 },
        Request::Link { dfid: 0, fid: 1, name: name() },
        Request::Renameat { dfid: 0, name: b"file".into(), newdfid: 0, newname: name() },
        Request::Rename { fid: 1, dfid: 0, name: name() },
        Request::Unlinkat { dfid: 0, name: b"file".into(), flags: 0 },
        Request::Setattr { fid: 1, change: size },
        Request::Xattrcreate { fid: 1, name: b"user.a".into(), size: 1, flags: 0 },
        Request::Remove { fid: 1 },
    ] {
        assert_eq!(refused(client.call(&request)), Errno::ROFS, "{request:?}");
    }
    assert_eq!(client.read_file(2, "file").unwrap(), b"as it was");
}

#[test]
fn dead_clients_leave_nothing_behind() {
    let Some(served) = Served::new() else { return };
    std::fs::write(served.export.at("file"), pattern(4 << 20, 3)).unwrap();
    for round in 0..20 {
        let mut client = served.client();
        client.walk(1, "file").unwrap();
        client.open(1, 2).unwrap();
        for tag in 0..30 {
            client
                .send(&Request::Read { fid: 1, offset: u64::from(tag) * 65_536, count: 65_536 }, tag)
                .unwrap();
        }
        // Also dies in the middle of a write.
        let data = Data(vec![1; 60_000].into());
        let write = Request::Write { fid: 1, offset: 0, data }.encode(99);
        client.send_bytes(&write[..round * 2000]).unwrap();
    }
    wait_until("all are gone", || served.running().statistics().connected == 0);
    assert_eq!(served.running().pool().statistics().in_use, 0);
    assert_eq!(served.client().read_file(1, "file").unwrap().len(), 4 << 20);
}

/// A server with a short stall limit, and an honest client, which retries if it was too slow to attach. The
/// limit is longer than a busy machine delays the server, so honest clients are not disconnected.
fn impatient() -> Option<(Served, Client)> {
    let served = Served::with(|options| options.limits.stall = Duration::from_secs(2))?;
    let client = impatiently_attached(&served);
    Some((served, client))
}

fn impatiently_attached(served: &Served) -> Client {
    (0..100).find_map(|_| served.raw().attach(MESSAGE, "/").ok()).unwrap()
}

#[test]
fn idle_readers_are_disconnected() {
    let Some((served, mut slow)) = impatient() else { return };
    let bytes = pattern(1 << 20, 8);
    std::fs::write(served.export.at("file"), &bytes).unwrap();
    slow.walk(1, "file").unwrap();
    slow.open(1, 0).unwrap();
    let mut other = impatiently_attached(&served);
    let before = served.running().statistics().stalled;
    for tag in 0..64 {
        let Ok(()) = slow.send(&Request::Read { fid: 1, offset: 0, count: 65_536 }, tag) else { break };
    }
    while served.running().statistics().stalled == before {
        assert!(other.read_file(1, "file").unwrap() == bytes);
    }
    let received = std::iter::from_fn(|| slow.receive().is_ok().then_some(())).count();
    assert!(received < 64 && is_over(&mut slow), "{received} answers");
    assert!(other.read_file(1, "file").unwrap() == bytes);
}

#[test]
fn half_messages_and_strangers_time_out() {
    let Some((served, mut other)) = impatient() else { return };
    // Both at once, to wait for the limit only once.
    let mut half = served.raw();
    let mut stranger = served.raw();
    half.send_bytes(&version(8192)[..10]).unwrap();
    // On a busy machine the answer may not arrive.
    if stranger.send_bytes(&version(8192)).is_ok() {
        drop(stranger.receive());
    }
    assert!(is_over(&mut half) && is_over(&mut stranger));
    other.walk(1, "").unwrap();
}

#[test]
fn busy_strangers_are_disconnected() {
    let Some((served, mut other)) = impatient() else { return };
    // It is always in the middle of a message.
    let mut talker = served.raw();
    let message = version(100);
    let started = Instant::now();
    let round = [&message[1..], &message[..1]].concat();
    let mut talks = talker.send_bytes(&message[..1]).is_ok();
    while talks {
        assert!(started.elapsed() < Duration::from_secs(20), "a busy stranger was not disconnected");
        talks = talker.send_bytes(&round).is_ok() && talker.receive().is_ok();
    }
    other.walk(1, "").unwrap();
}

#[test]
fn slow_clients_of_long_blocks_are_served() {
    const BLOCK: u32 = 1 << 20;
    const PIECE: usize = 64 << 10;
    let stall = Duration::from_millis(500);
    let Some(served) = Served::with(|options| {
        options.block_bytes = BLOCK as usize;
        options.limits.stall = stall;
    }) else {
        return;
    };
    let bytes = pattern(BLOCK as usize, 8);
    std::fs::write(served.export.at("file"), &bytes).unwrap();
    let write = Request::Write { fid: 1, offset: 0, data: Data(bytes.into()) }.encode(5);
    // The whole takes longer than the limit, each piece less; retried if the machine delays a piece.
    let pause = || std::thread::sleep(stall / 5);
    let reads = || {
        let mut client = served.raw().attach(BLOCK + 24, "/").ok()?;
        client.walk(1, "file").ok()?;
        client.open(1, 2).ok()?;
        client.send(&Request::Read { fid: 1, offset: 0, count: BLOCK }, 5).ok()?;
        let mut answer = vec![0; 11 + BLOCK as usize];
        for piece in answer.chunks_mut(PIECE) {
            pause();
            client.receive_bytes(piece).ok()?;
        }
        for piece in write.chunks(PIECE) {
            pause();
            client.send_bytes(piece).ok()?;
        }
        client.receive().is_ok_and(|answer| answer == (5, Reply::Write { count: BLOCK })).then_some(())
    };
    assert!((0..5).any(|_| reads().is_some()), "{}", served.running().statistics());
}

/// A write of two bytes, split before the last byte.
fn halves() -> (Vec<u8>, Vec<u8>) {
    let mut message = Request::Write { fid: 1, offset: 0, data: Data(vec![7; 2].into()) }.encode(5);
    let last = message.split_off(message.len() - 1);
    (message, last)
}

#[test]
fn refused_writes_take_no_buffer() {
    let Some(served) = Served::new() else { return };
    let mut stranger = served.raw();
    stranger.send_bytes(&version(8192)).unwrap();
    stranger.receive().unwrap();
    let mut client = served.client();
    for other in [&mut stranger, &mut client] {
        let (head, last) = halves();
        other.send_bytes(&head).unwrap();
        assert!(matches!(other.receive().unwrap(), (5, Reply::Error { .. })), "before the data arrived");
        assert_eq!(served.running().pool().statistics().taken, 0);
        other.send_bytes(&last).unwrap();
        assert!(matches!(other.call(&Request::Clunk { fid: 9 }), Err(ClientError::Refused(Errno::BADF))));
    }
}

#[test]
fn buffers_are_given_in_order() {
    let Some(served) = Served::new() else { return };
    std::fs::write(served.export.at("file"), "as it was").unwrap();
    let starved = || served.running().statistics().starved;
    let mut one = served.client();
    let mut other = served.client();
    let mut taken: Vec<_> = std::iter::from_fn(|| served.running().pool().take().ok()).collect();
    // The client that connected later asks first.
    for (nth, client) in [(1, &mut other), (2, &mut one)] {
        client.walk(1, "file").unwrap();
        client.open(1, 1).unwrap();
        client.send_bytes(&halves().0).unwrap();
        wait_until("it waits", || starved() == nth);
    }
    // Each request makes the server check its waiting clients.
    let mut witness = served.client();
    for fid in 1..100 {
        witness.walk(fid, "").unwrap();
    }
    assert_eq!(starved(), 2);
    // One buffer suffices for both in turn.
    drop(taken.pop());
    for client in [&mut other, &mut one] {
        client.send_bytes(&halves().1).unwrap();
        assert!(matches!(client.receive().unwrap(), (5, Reply::Write { count: 2 })));
    }
    assert_eq!(starved(), 2);
}

#[test]
fn requests_wait_for_buffers() {
    let Some(served) = Served::with(|options| options.pool_bytes = 2 << 20) else { return };
    let bytes = pattern(3 << 20, 6);
    std::fs::write(served.export.at("file"), &bytes).unwrap();
    harness::cool(&served.export.at("file"));
    let threads: Vec<_> = (0..12)
        .map(|_| {
            let mut client = served.client();
            std::thread::spawn(move || {
                client.walk(1, "file").unwrap();
                client.open(1, 2).unwrap();
                for tag in 0..48 {
                    client
                        .send(&Request::Read { fid: 1, offset: u64::from(tag) * 65_536, count: 65_536 }, tag)
                        .unwrap();
                }
                let mut received = 0;
                for _ in 0..48 {
                    let (_, Reply::Read { data }) = client.receive().unwrap() else { panic!() };
                    received += data.0.len();
                }
                let block = &pattern(3 << 20, 6)[..65_536];
                assert_eq!(client.write(1, 0, block).unwrap(), 65_536);
                received
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 3 << 20);
    }
    let pool = served.running().pool().statistics();
    assert_eq!((pool.in_use, pool.segments), (0, 1), "{}", served.running().statistics());
}

#[test]
fn excess_clients_are_refused() {
    let Some(served) = Served::with(|options| {
        options.limits.clients = 500;
        options.limits.clients_per_user = 500;
        options.threads = 2;
    }) else {
        return;
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = 4000;
    if limit.current.is_some_and(|current| current < wanted) {
        println!("not run: fewer than {wanted} descriptors");
        return;
    }
    let bytes = pattern(100_000, 4);
    std::fs::write(served.export.at("file"), &bytes).unwrap();
    let mut clients: Vec<Client> = (0..500).map(|_| served.client()).collect();
    for client in &mut clients {
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        client.send(&Request::Read { fid: 1, offset: 34_464, count: 65_536 }, 5).unwrap();
    }
    for client in &mut clients {
        let (5, Reply::Read { data }) = client.receive().unwrap() else { panic!() };
        assert!(*data.0 == bytes[34_464..]);
    }
    assert!(served.raw().attach(MESSAGE, "/").is_err());
    drop(clients);
    wait_until("all are gone", || served.running().statistics().connected == 0);
    served.client().walk(1, "file").unwrap();
}

#[test]
fn flushes_are_answered_last() {
    // With this engine reads are never answered before the ring was waited for.
    let Some(served) = Served::with(|options| options.engine = Engine::Copying) else { return };
    std::fs::write(served.export.at("file"), pattern(1 << 20, 2)).unwrap();
    harness::cool(&served.export.at("file"));
    let mut client = served.client();
    client.walk(1, "file").unwrap();
    client.open(1, 0).unwrap();
    client.send(&Request::Read { fid: 1, offset: 500_000, count: 65_536 }, 10).unwrap();
    client.send(&Request::Flush { oldtag: 10 }, 11).unwrap();
    client.send(&Request::Flush { oldtag: 777 }, 12).unwrap();
    // Flushes of flushes, up to the limit of outstanding requests.
    (20..70).for_each(|tag| {
        client.send(&Request::Flush { oldtag: if tag == 20 { 11 } else { tag - 1 } }, tag).unwrap()
    });
    let order: Vec<u16> = (0..53).map(|_| client.receive().unwrap().0).collect();
    let place = |tag| order.iter().position(|received| *received == tag).unwrap();
    let row: Vec<usize> = [10, 11].into_iter().chain(20..70).map(place).collect();
    assert!(row.is_sorted(), "{order:?}");
    // A reused tag ends the session. Both messages arrive together, so both are examined before any answer.
    let read = Request::Read { fid: 1, offset: 0, count: 65_536 }.encode(10);
    client.send_bytes(&[&read[..], &read].concat()).unwrap();
    assert!(is_over(&mut client));
    assert_eq!(served.running().statistics().violations, 1);
}

#[test]
fn a_restarted_server_serves_the_same_files() {
    let Some(mut served) = Served::new() else { return };
    let mut client = served.client();
    client.walk(1, "").unwrap();
    client.call(&Request::Lcreate { fid: 1, name: b"file".into(), flags: 2, mode: 0o644, gid: 0 }).unwrap();
    client.write(1, 0, b"written before").unwrap();
    served.server = None;
    assert!(client.read(1, 0, 10, &mut Vec::new()).is_err());
    assert!(UnixStream::connect(&served.socket).is_err(), "its socket is gone");
    let listener = memferry_ninep::Listener::unix(&served.socket).unwrap();
    let options = memferry_ninep::Options::new(&served.export.0);
    served.server = Some(memferry_ninep::Server::start(options, vec![listener]).unwrap());
    assert_eq!(served.client().read_file(1, "file").unwrap(), b"written before");
}

#[test]
fn a_version_waits_for_operations_in_flight() {
    const ROUNDS: u64 = 20;
    let Some(served) = Served::with(|options| {
        options.engine = Engine::Copying;
        options.limits.outstanding = 4;
    }) else {
        return;
    };
    std::fs::write(served.export.at("file"), pattern(8 << 20, 9)).unwrap();
    harness::cool(&served.export.at("file"));
    let mut client = served.raw();
    let mut messages = Vec::new();
    for round in 0..ROUNDS {
        let attach =
            Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname: b"/".into(), user: NO_USER };
        let requests = [
            attach,
            Request::Walk { fid: 0, newfid: 1, names: vec![b"file".into()] },
            Request::Lopen { fid: 1, flags: 0 },
        ];
        let reads = (0..4).map(|read| Request::Read {
            fid: 1,
            offset: (round * 4 + read) * 65_536 % (8 << 20),
            count: 65_536,
        });
        messages.extend(version(MESSAGE));
        for (tag, request) in requests.into_iter().chain(reads).enumerate() {
            messages.extend(request.encode(tag as u16));
        }
    }
    client.send_bytes(&messages).unwrap();
    // A read is answered before the next version or never; all other requests are answered.
    let mut opened = 0;
    while opened < ROUNDS {
        opened += u64::from(matches!(client.receive().unwrap(), (2, Reply::Lopen { .. })));
    }
    drop(client);
    wait_until("all are gone", || served.running().statistics().connected == 0);
    let pool = served.running().pool().statistics();
    // Four requests, and an answer being sent.
    assert!(pool.in_use == 0 && pool.peak_in_use <= 5, "{pool:?}");
}

#[test]
fn a_client_that_is_gone_holds_no_buffer() {
    let Some(served) = Served::with(|options| options.engine = Engine::Copying) else { return };
    std::fs::write(served.export.at("file"), pattern(1 << 20, 10)).unwrap();
    for _ in 0..4000 {
        let mut client = served.client();
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        let requests = || served.running().statistics().requests;
        let before = requests();
        // More than the socket takes, so an answer is being sent when the client goes.
        (0..8).for_each(|tag| {
            let offset = u64::from(tag) * 65_536;
            client.send(&Request::Read { fid: 1, offset, count: 65_536 }, tag).unwrap();
        });
        let in_use = || served.running().pool().statistics().in_use;
        wait_until("answers are sent", || requests() == before + 8 && in_use() < 8);
        // Usually received after an answer has got stuck: then the server sees the end before that answer fails.
        client.send(&Request::Statfs { fid: 1 }, 8).unwrap();
        wait_until("it is received", || requests() == before + 9);
        drop(client);
        wait_until("it is gone", || served.running().statistics().connected == 0);
        assert_eq!(in_use(), 0);
    }
}
