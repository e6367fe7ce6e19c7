//! Clients that try to take what others need: connections, buffers, memory, descriptors, and the serving thread's time.

mod harness;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use harness::{MESSAGE, Served, is_over, pattern, wait_until};
use memferry_ninep::codec::{Data, Request};
use memferry_ninep::{Client, ClientError, Engine};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use rustix::process::{Resource, getrlimit};

/// Far above what a request takes when nothing delays it.
const PROMPT: Duration = Duration::from_secs(10);

/// Reads the witness's file and compares it; each answer must come promptly.
fn check(witness: &mut Client, bytes: &[u8]) {
    let started = Instant::now();
    assert!(witness.read_file(100, "file").unwrap() == bytes);
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

fn with_file(served: &Served, bytes: usize) -> Vec<u8> {
    let bytes = pattern(bytes, 7);
    std::fs::write(served.export.at("file"), &bytes).unwrap();
    bytes
}

/// Connects as another user; `None` without the right to be one.
fn as_user<T: Send>(user: u32, action: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        println!("not run: needs root to act as another user");
        return None;
    }
    let become_user = || {
        let id = rustix::process::Uid::from_raw(user);
        let root = rustix::process::Uid::ROOT;
        rustix::thread::set_thread_res_uid(root, id, root).unwrap();
        action()
    };
    std::thread::scope(|scope| scope.spawn(become_user).join().ok())
}

#[test]
fn one_user_cannot_take_all_connections() {
    let Some(served) = Served::with(|options| {
        options.limits.clients = 12;
        options.limits.clients_per_user = 4;
        options.access.users = vec![60_001];
    }) else {
        return;
    };
    let turned_away = || served.running().statistics().turned_away_by_user;
    let kept: Vec<Client> = (0..4).map(|_| served.client()).collect();
    assert!(served.raw().attach(MESSAGE, "/").is_err());
    assert_eq!((turned_away(), served.running().statistics().turned_away), (1, 0));
    let socket = &served.socket;
    let attached = || Client::unix(socket).unwrap().attach(MESSAGE, "/");
    let Some(other) = as_user(60_001, attached) else { return };
    other.unwrap();
    // All users who may not attach share one limit.
    let strangers: Vec<_> =
        (61_000..61_008).map(|user| as_user(user, || Client::unix(socket).unwrap()).unwrap()).collect();
    wait_until("half of the strangers are refused", || turned_away() == 5);
    as_user(60_001, attached).unwrap().unwrap();
    drop((kept, strangers));
    wait_until("all are gone", || served.running().statistics().connected == 0);
    served.client().walk(1, "").unwrap();
}

#[test]
fn one_address_cannot_take_all_connections() {
    let listener = memferry_ninep::Listener::tcp("127.0.0.1:0", false).unwrap();
    let address = listener.address().strip_prefix("tcp:").unwrap().to_owned();
    let folder = harness::Folder::new();
    let mut options = memferry_ninep::Options::new(&folder.0);
    options.limits.clients_per_user = 3;
    let Ok(server) = memferry_ninep::Server::start(options, vec![listener]) else {
        return println!("not run: no io_uring here");
    };
    let attach = || Client::tcp(&address).unwrap().attach(MESSAGE, "/");
    let kept: Vec<_> = (0..3).map(|_| attach().unwrap()).collect();
    assert!(attach().is_err());
    assert_eq!(server.statistics().turned_away_by_user, 1);
    drop(kept);
    wait_until("all are gone", || server.statistics().connected == 0);
    attach().unwrap();
}

/// A TCP socket whose close lingers for an hour, or until its other end (returned second) is closed.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (taker, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 64 << 10]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    (stream, taker)
}

/// Sends bytes and a descriptor.
fn send_with(socket: &UnixStream, bytes: &[u8], gift: &TcpStream) -> rustix::io::Result<usize> {
    let gifts = [gift.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&gifts)));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Bytes of a session up to the data of a write: version, attach, create, the head of a write of 60,000 bytes.
fn up_to_a_write(name: &'static str) -> Vec<u8> {
    use memferry_ninep::codec::{NO_FID, NO_TAG, NO_USER, VERSION};
    let name = name.as_bytes().into();
    let data = Data(vec![1; 60_000].into());
    let attach =
        Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname: b"/".into(), user: NO_USER };
    let mut bytes = Request::Version { msize: MESSAGE, version: VERSION.into() }.encode(NO_TAG);
    bytes.extend(attach.encode(1));
    bytes.extend(Request::Lcreate { fid: 0, name, flags: 2, mode: 0o600, gid: 0 }.encode(2));
    bytes.extend(&Request::Write { fid: 0, offset: 0, data }.encode(3)[..5000]);
    bytes
}

#[test]
fn descriptors_of_clients_block_no_thread() {
    let limit = |options: &mut memferry_ninep::Options| options.limits.stall = Duration::from_secs(20);
    for passing in [false, true] {
        let served = if passing { Served::passing(limit) } else { Served::with(limit) };
        let Some(served) = served else { return };
        let bytes = with_file(&served, 300_000);
        let mut witness = served.client();
        // At the start of a message, and in the middle of a write's data.
        for before in [Vec::new(), up_to_a_write("gift")] {
            let (gift, taker) = lingering();
            let mut client = UnixStream::connect(&served.socket).unwrap();
            client.write_all(&before).unwrap();
            if !before.is_empty() {
                wait_until("the file is there", || served.export.at("gift").exists());
                std::thread::sleep(Duration::from_millis(50));
            }
            let sent = send_with(&client, b"x", &gift);
            // The last to close it waits, which may be this one.
            let closing = std::thread::spawn(move || drop(gift));
            match sent {
                Err(error) => assert!(!passing && error == Errno::PERM, "{error}"),
                Ok(_) => {
                    check(&mut witness, &bytes);
                    let _ = client.read_to_end(&mut Vec::new());
                }
            }
            check(&mut witness, &bytes);
            drop((client, taker));
            closing.join().unwrap();
            wait_until("it is gone", || served.running().statistics().connected == 1);
            let _ = std::fs::remove_file(served.export.at("gift"));
        }
        // Descriptors that were never received do not delay the end of their connection.
        let (gift, taker) = lingering();
        let client = UnixStream::connect(&served.socket).unwrap();
        let _ = send_with(&client, &[0; 7], &gift);
        let closing = std::thread::spawn(move || drop(gift));
        drop(client);
        check(&mut witness, &bytes);
        drop(taker);
        closing.join().unwrap();
    }
}

#[test]
fn unread_answers_leave_buffers_to_others() {
    let Some(served) = Served::with(|options| {
        options.engine = Engine::Copying;
        options.pool_bytes = 8 << 20;
        options.limits.clients_per_user = 100;
        options.access.users = vec![60_001];
    }) else {
        return;
    };
    let bytes = with_file(&served, 1 << 20);
    let all = served.running().pool().options().buffers_within(8 << 20);
    // Sixteen clients that read nothing: far more than the pool holds.
    let mut stalled: Vec<Client> = (0..16).map(|_| served.client()).collect();
    for client in &mut stalled {
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        for tag in 0..64 {
            client.send(&Request::Read { fid: 1, offset: 0, count: 65_536 }, tag).unwrap();
        }
    }
    let in_use = || served.running().pool().statistics().in_use;
    wait_until("they hold what they may", || in_use() * 2 > all);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(in_use() <= all - all / 4, "{} of {all}", in_use());
    }
    let socket = &served.socket;
    let other = as_user(60_001, || Client::unix(socket).unwrap().attach(MESSAGE, "/").unwrap());
    if let Some(mut other) = other {
        for _ in 0..20 {
            check(&mut other, &bytes);
        }
    }
    drop(stalled);
    wait_until("all is free", || in_use() == 0);
    check(&mut served.client(), &bytes);
}

#[test]
fn unread_answers_hold_few_pipes() {
    let Some(served) = Served::with(|options| options.engine = Engine::Cached) else { return };
    let _ = with_file(&served, 64 << 10);
    let mut greedy = served.client();
    greedy.walk(1, "file").unwrap();
    greedy.open(1, 0).unwrap();
    for tag in 0..64 {
        greedy.send(&Request::Read { fid: 1, offset: 0, count: 65_536 }, tag).unwrap();
    }
    // The file is in the page cache, so each answer would have a pipe of its own.
    wait_until("later answers are in buffers", || served.running().pool().statistics().in_use > 0);
}

#[test]
fn unread_answers_hold_little_memory() {
    let Some(served) = Served::with(|options| options.limits.outstanding = 4096) else { return };
    for number in 0..3000 {
        std::fs::write(served.export.at(&format!("{number:0>200}")), "").unwrap();
    }
    let bytes = with_file(&served, 1000);
    let mut greedy = served.client();
    greedy.walk(1, "").unwrap();
    greedy.open(1, 0).unwrap();
    let before = served.running().statistics().requests;
    let listing = Request::Readdir { fid: 1, offset: 0, count: 65_536 };
    let requests: Vec<u8> = (0..1000).flat_map(|tag| listing.encode(tag)).collect();
    greedy.send_bytes(&requests).unwrap();
    check(&mut served.client(), &bytes);
    std::thread::sleep(Duration::from_millis(200));
    // A socket holds some answers of 64 KiB, the queue a megabyte.
    let answered = served.running().statistics().requests - before;
    assert!(answered < 200, "{answered} listings were made for a client that reads none");
    assert!((0..1000).all(|tag| greedy.receive().is_ok_and(|(of, _)| of == tag)));
}

#[test]
fn fids_hold_few_extended_attributes() {
    let Some(served) = Served::new() else { return };
    let mut client = served.client();
    with_file(&served, 10);
    let create = |client: &mut Client, fid| {
        client.walk(fid, "file")?;
        client.call(&Request::Xattrcreate { fid, name: b"user.a".into(), size: 65_536, flags: 0 }).map(drop)
    };
    let refused = (1..100).find_map(|fid| create(&mut client, fid).err().map(|error| (fid, error)));
    assert!(matches!(refused, Some((17, ClientError::Refused(Errno::NOMEM)))), "{refused:?}");
    drop(client.call(&Request::Clunk { fid: 1 }));
    create(&mut client, 50).unwrap();
}

#[test]
fn a_user_holds_few_locked_ranges() {
    let Some(served) = Served::new() else { return };
    with_file(&served, 10);
    let mut clients = [served.client(), served.client()];
    for client in &mut clients {
        client.walk(1, "file").unwrap();
        client.open(1, 2).unwrap();
    }
    let lock = |kind, start, length| {
        let client_id = b"test".into();
        Request::Lock { fid: 1, kind, flags: 0, start, length, process: 1, client: client_id }
    };
    // Every other byte, so that no two of them join; the second client goes on where the first one is refused.
    let mut taken = [0, 0];
    for (client, taken) in clients.iter_mut().zip(&mut taken) {
        let byte = |number: u64| lock(0, 2 * number, 1);
        *taken = (0..2000).take_while(|number| client.call(&byte(*number)).is_ok()).count();
    }
    assert_eq!(taken, [1024, 0]);
    let refused = clients[0].call(&lock(1, 5000, 1)).map(drop);
    assert!(matches!(refused, Err(ClientError::Refused(Errno::NOLCK))), "{refused:?}");
    // One range instead of all.
    clients[0].call(&lock(1, 0, 0)).unwrap();
    let [mut first, mut second] = clients;
    let take_all = |client: &mut Client, from: u64| {
        (0..2000).take_while(|number| client.call(&lock(0, from + 2 * number, 1)).is_ok()).count()
    };
    // What is unlocked, clunked or left behind by a disconnected client can be taken again.
    first.call(&lock(2, 0, 0)).unwrap();
    assert_eq!(take_all(&mut second, 0), 1024, "unlocked");
    second.call(&Request::Clunk { fid: 1 }).unwrap();
    assert_eq!(take_all(&mut first, 10_000), 1024, "clunked");
    second.walk(1, "file").unwrap();
    second.open(1, 2).unwrap();
    drop(first);
    wait_until("its locks are given back", || second.call(&lock(0, 20_000, 1)).is_ok());
    assert_eq!(take_all(&mut second, 20_000), 1024, "left behind");
}

#[test]
fn one_user_cannot_take_all_descriptors() {
    let Some(most) = getrlimit(Resource::Nofile).current else { return println!("not run: no limit") };
    if most > 8192 {
        return println!("not run: {most} descriptors take long");
    }
    let Some(served) = Served::new() else { return };
    let bytes = with_file(&served, 1000);
    let mut clients: Vec<Client> = (0..8).map(|_| served.client()).collect();
    let walked = clients
        .iter_mut()
        .map(|client| (1..4000).take_while(|fid| client.walk(*fid, "file").is_ok()).count());
    let walked: usize = walked.sum();
    assert!(walked as u64 <= most / 4, "{walked} of {most}");
    drop(clients);
    check(&mut served.client(), &bytes);
}

#[test]
fn floods_of_requests_delay_no_other_client() {
    let Some(served) = Served::new() else { return };
    let bytes = with_file(&served, 300_000);
    let deep: String = (0..16).map(|_| "d/").collect();
    std::fs::create_dir_all(served.export.at(&deep)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let running = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let deep_walk = Request::Walk { fid: 0, newfid: 7, names: vec![b"d".into(); 16] };
        let floods = [
            Request::Flush { oldtag: 9 },
            deep_walk,
            Request::Read { fid: 0, offset: u64::MAX, count: u32::MAX },
            Request::Readdir { fid: 0, offset: u64::MAX, count: u32::MAX },
        ];
        for flood in floods {
            let mut client = served.client();
            scope.spawn(move || {
                let round: Vec<u8> = (0..32_u16)
                    .flat_map(|tag| [flood.encode(tag * 2), Request::Clunk { fid: 7 }.encode(tag * 2 + 1)])
                    .flatten()
                    .collect();
                while running() {
                    client.send_bytes(&round).unwrap();
                    (0..64).for_each(|_| drop(client.receive().unwrap()));
                }
            });
        }
        let mut witness = served.client();
        for _ in 0..50 {
            check(&mut witness, &bytes);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut client = served.client();
    client.send_bytes(&7_u32.to_le_bytes()).unwrap();
    client.send_bytes(&[108, 1, 0]).unwrap();
    assert!(!is_over(&mut client), "a flush without a tag gets an error");
}
