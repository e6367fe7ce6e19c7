//! Two relays back to back, as links have them, and clients that break the rules.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memferry::{CallError, Client, GrantToken, RefusalKind, ServiceId};
use memferry_shm::conduit;
use memferry_shm::storage::RingStorage;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::trouble::lingering;
use crate::closing::{check_room, threads_of};
use crate::connection::Own;
use crate::relay::{Carried, Closed, Guest, Relay, Wish, prepare, turn_away};
use crate::wire::{
    AREA_BYTES, ASLEEP, MESSAGE_WAKE, PIECE_BYTES, RECEIVER_PARKED, RETIRED, ROOM_WAKE, SENDER_PARKED, SLOTS,
    Slot, Violation,
};
use crate::{
    ConnectError, Content, LinkRefusal, Options, ReceiveError, Receiver, RemoteListener, RemoteUser,
    SendError, Sender, SharedFrame, connect_remote,
};

const LONG: Duration = Duration::from_secs(30);

/// The socket of a link, and where it is.
fn link() -> (OwnedFd, std::path::PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("memferry-relay-{}-{number}.sock", std::process::id()));
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_passcred(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    (socket, path)
}

fn user(node: &str) -> RemoteUser {
    RemoteUser { node: node.parse().unwrap(), user: rustix::process::geteuid().as_raw() }
}

fn guest(socket: &OwnedFd, client: &Client) -> Guest {
    let connection = rustix::net::accept_with(socket, SocketFlags::CLOEXEC).unwrap();
    Guest::receive(connection, client, LONG).unwrap()
}

type Ends = (Sender, Receiver);

/// A client of alpha and one of beta, and the relay of each.
fn channel(client: &Client) -> ((Ends, Relay), (Ends, Relay)) {
    let (socket, path) = link();
    let options = Options { longest: 6 << 20, ..Options::default() };
    std::thread::scope(|scope| {
        let listens = scope.spawn(|| {
            let listener = RemoteListener::new(&path, "test", &[user("alpha")]).unwrap();
            listener.accept(client, options, Some(LONG)).unwrap()
        });
        let listening = guest(&socket, client);
        let connects = scope.spawn(|| connect_remote(&path, user("beta"), "test", client, options).unwrap());
        let connecting = guest(&socket, client);
        let expected = Wish::Listen { name: "test".to_owned(), from: vec![user("alpha")] };
        assert_eq!(*listening.wish(), expected);
        assert_eq!(*connecting.wish(), Wish::Connect { name: "test".to_owned(), to: user("beta") });
        assert_eq!((listening.user(), listening.longest()), (user("beta").user, 6 << 20));
        let longest = [connecting.longest(), listening.longest()];
        let far = listening.join(user("alpha"), longest[0]).unwrap();
        let near = connecting.join(user("beta"), longest[1]).unwrap();
        let _ = std::fs::remove_file(&path);
        ((connects.join().unwrap(), near), (listens.join().unwrap(), far))
    })
}

/// Carries what there is from one to the other. Returns how many slots that was.
fn carry(from: &mut Relay, to: &mut Relay) -> usize {
    let mut slots = 0;
    let closed = from.closed();
    while let Some(carried) = from.take().unwrap() {
        to.put(&carried).unwrap();
        slots += 1;
    }
    to.retire(from.finished().unwrap()).unwrap();
    to.close(closed);
    slots
}

#[test]
fn messages_pass_two_relays_whole_and_in_order() {
    let client = Client::embedded().unwrap();
    let (((mut sender, receiver), mut near), ((back, mut taker), mut far)) = channel(&client);
    assert_eq!((sender.remote(), back.remote()), (Some(user("beta")), Some(user("alpha"))));
    let long: Vec<u8> = (0..5_u32 << 20).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        let taking = scope.spawn(move || {
            for number in 0..500 {
                let message = taker.receive(Some(LONG)).unwrap();
                assert_eq!(message.kind, number);
                assert!(
                    matches!(message.content, Content::Bytes(bytes) if bytes.len() == number as usize % 90)
                );
            }
            let message = taker.receive(Some(LONG)).unwrap();
            assert!(matches!(message.content, Content::Bytes(bytes) if bytes == long));
            assert!(matches!(taker.receive(Some(LONG)), Err(ReceiveError::Closed)));
            taker
        });
        let sending = scope.spawn(|| {
            let long: Vec<u8> = (0..5_u32 << 20).map(|at| (at % 251) as u8).collect();
            for number in 0..500 {
                sender.send(number, &long[..number as usize % 90], Some(LONG)).unwrap();
            }
            sender.send(1, &long, Some(LONG)).unwrap();
            drop((sender, receiver));
        });
        while !taking.is_finished() || !sending.is_finished() {
            let slots = carry(&mut near, &mut far) + carry(&mut far, &mut near);
            assert!(slots <= SLOTS as usize, "no more than the credit");
            let ready = [near.arm().unwrap(), far.arm().unwrap()];
            if slots == 0 && !ready.contains(&true) {
                std::thread::yield_now();
            }
        }
        drop(taking.join().unwrap());
    });
    // Another thread closes the socket.
    while !near.is_lost() {
        std::thread::yield_now();
    }
    assert!(!far.is_lost(), "this one holds its sender");
    assert_eq!(near.closed(), Closed { sender: true, receiver: true });
    assert_eq!(far.closed(), Closed { sender: false, receiver: true });
    drop(back);
}

#[test]
fn a_client_that_shuts_down_one_direction_is_gone() {
    let client = Client::embedded().unwrap();
    let (((_sender, receiver), near), (_far_end, far)) = channel(&client);
    assert!(!near.is_lost());
    // Its socket is readable for good, and says nothing of the end: who waits for that would wait in vain, and not sleep.
    rustix::net::shutdown(receiver.as_fd(), rustix::net::Shutdown::Write).unwrap();
    assert!(near.is_lost() && !far.is_lost());
}

#[test]
fn a_client_that_sleeps_is_woken_by_the_end() {
    let client = Client::embedded().unwrap();
    let (((sender, _receiver), near), _other) = channel(&client);
    let peer = sender.peer();
    let wakes = || [MESSAGE_WAKE, ROOM_WAKE].map(|word| peer.theirs.word(word).load(Ordering::Acquire));
    let before = wakes();
    for flag in [RECEIVER_PARKED, SENDER_PARKED] {
        peer.own.word(flag).store(ASLEEP, Ordering::Release);
    }
    drop(near);
    assert!(peer.lost(), "a client that wakes finds the connection ended");
    assert!(wakes().iter().zip(before).all(|(now, before)| *now != before), "both are woken");
}

#[test]
fn what_breaks_the_rules_goes_no_further() {
    let client = Client::embedded().unwrap();
    let refusal = |forge: &dyn Fn(&mut Sender)| {
        let (((mut sender, _receiver), mut near), _other) = channel(&client);
        forge(&mut sender);
        loop {
            match near.take() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(violation) => return Some(violation),
            }
        }
    };
    let token = GrantToken::from_raw(1 << 32 | 3);
    let granted = refusal(&|sender| sender.forge(&Slot::Grant { index: 0, token }.encode()));
    assert!(matches!(granted, Some(Violation::NotRemote)), "{granted:?}");
    let mapped = Slot::Descriptor { index: 0, once: false, length: 4096 };
    let mapped = refusal(&|sender| sender.forge(&mapped.encode()));
    assert!(matches!(mapped, Some(Violation::NotRemote)), "{mapped:?}");
    let remote = |withheld| Slot::Remote { index: 0, token, length: 1, service: ServiceId(1), withheld };
    let withheld = refusal(&|sender| sender.forge(&remote(Some(RefusalKind::System)).encode()));
    assert!(matches!(withheld, Some(Violation::NotRemote)), "links withhold grants: {withheld:?}");
    assert!(refusal(&|sender| sender.forge(&remote(None).encode())).is_none());
    let unknown = refusal(&|sender| sender.forge(&[9 << 32, 0, 0, 0, 0, 0, 0, 0]));
    assert!(matches!(unknown, Some(Violation::Sort(9))), "{unknown:?}");
    // Pieces that lie over each other are more than the area holds.
    let piece = Slot::Piece { kind: 1, first: true, total: 1 << 20, at: 0, length: PIECE_BYTES };
    let pieces = AREA_BYTES / PIECE_BYTES;
    let many = refusal(&|sender| (0..=pieces).for_each(|_| sender.forge(&piece.encode())));
    assert!(matches!(many, Some(Violation::Bounds { what: "bytes in the area", .. })), "{many:?}");
    assert!(refusal(&|sender| (0..pieces).for_each(|_| sender.forge(&piece.encode()))).is_none());
    // A slot after 64 that nobody has finished with.
    let (((mut sender, receiver), mut near), (_ends, mut far)) = channel(&client);
    let short = Slot::Inline { kind: 1, length: 0, bytes: [0; 40] }.encode();
    for _ in 0..SLOTS {
        sender.forge(&short);
        let carried = near.take().unwrap().unwrap();
        far.put(&carried).unwrap();
    }
    let more = Carried { slot: short, bytes: Vec::new() };
    assert!(matches!(far.put(&more), Err(Violation::Overrun)));
    sender.forge_over(&short);
    assert!(matches!(near.take(), Err(Violation::Overrun)));
    // More than was sent is not finished with, at either end.
    assert!(matches!(near.retire(SLOTS + 1), Err(Violation::Bounds { .. })));
    near.retire(SLOTS).unwrap();
    assert!(matches!(near.retire(1), Err(Violation::Bounds { .. })));
    receiver.peer().own.word(RETIRED).store(7, Ordering::Release);
    assert!(near.arm().unwrap(), "it says something");
    assert!(matches!(near.finished(), Err(Violation::Count(_))));
}

#[test]
fn a_grant_that_could_not_be_checked_is_no_revoked_one() {
    let client = Client::embedded().unwrap();
    let (((mut sender, _receiver), mut near), ((_back, mut taker), mut far)) = channel(&client);
    let frame = client.frame(4096).alloc().unwrap();
    let _loan = sender.lend(7, &frame, Some(LONG)).unwrap();
    while let Some(mut carried) = near.take().unwrap() {
        carried.withhold_grant(Some(RefusalKind::Quota));
        far.put(&carried).unwrap();
    }
    let refused = taker.receive(Some(LONG)).map(|message| message.kind);
    let Err(ReceiveError::Refused { kind: 7, source: CallError::Refused(refusal) }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal.kind, RefusalKind::Quota);
    assert!(refusal.message.contains("forget the frame and lend it again"), "{}", refusal.message);
    // The connection goes on.
    sender.send(8, b"on", Some(LONG)).unwrap();
    carry(&mut near, &mut far);
    assert_eq!(taker.receive(Some(LONG)).map(|message| message.kind).unwrap(), 8);
}

#[test]
fn descriptors_do_not_reach_a_relay() {
    let client = Client::embedded().unwrap();
    let (((mut sender, _receiver), mut near), _other) = channel(&client);
    let frame = SharedFrame::allocate(&client, 4096).unwrap();
    assert!(matches!(sender.lend_mapped(1, &frame, (0, 8), Some(LONG)), Err(SendError::OtherNode)));
    assert!(!near.arm().unwrap());
    // Linux refuses them, from 6.16.
    if sender.peer().socket.send(0, frame.descriptor()).is_ok() {
        assert!(matches!(near.arm(), Err(Violation::NotRemote)));
        return;
    }
    assert!(!near.arm().unwrap());
    // Before, the relay looks at each packet: one with descriptors is not received. What lingers would be closed by this thread.
    let (((sender, _receiver), mut near), _other) = channel(&client);
    conduit::accept_descriptors(near.as_fd()).unwrap();
    near.examine().unwrap();
    sender.peer().socket.signal(7);
    assert!(!near.arm().unwrap(), "a packet without them");
    let (slow, taker) = lingering();
    sender.peer().socket.send(0, slow.as_fd()).unwrap();
    drop(slow);
    assert!(matches!(near.arm(), Err(Violation::NotRemote)));
    assert_eq!(rustix::io::ioctl_fionread(&near), Ok(4), "it is still in the socket");
    drop(near);
    drop(taker);
}

/// Connects as a client does, without a request.
fn stranger(path: &std::path::Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn who_is_turned_away_delays_nobody() {
    let (socket, path) = link();
    let accept = || rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    // The user has no other test's number. Linux before 6.16 takes descriptors from the start, as this socket does.
    let user = 4_000_001;
    let gifts: Vec<_> = (0..100).map(|_| lingering()).collect();
    let clients: Vec<_> = gifts
        .iter()
        .map(|(slow, _)| {
            let client = stranger(&path);
            conduit::send(client.as_fd(), b"x", &[slow.as_fd()], false).unwrap();
            let accepted = accept();
            (client, accepted)
        })
        .collect();
    let (slow, takers): (Vec<_>, Vec<_>) = gifts.into_iter().unzip();
    drop(slow);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (client, accepted) in clients {
            turn_away(accepted, user);
            drop(client);
        }
        done.send(()).unwrap();
    });
    assert_eq!(ended.recv_timeout(LONG), Ok(()), "no close was waited for");
    assert!(threads_of(user) <= 4, "{} threads", threads_of(user));
    assert!(matches!(check_room(user), Err(ConnectError::Closing { pending: 65.. })));
    for other in [user + 1, user + 64, user - 64, user + 4096] {
        assert!(check_room(other).is_ok(), "others are served");
    }
    drop(takers);
    while check_room(user).is_err() {
        std::thread::yield_now();
    }
    // A prepared socket takes no descriptors before a request is awaited, if Linux can.
    prepare(socket.as_fd()).unwrap();
    let client = stranger(&path);
    let gift = rustix::fs::memfd_create("gift", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let sent = conduit::send(client.as_fd(), b"x", &[gift.as_fd()], false);
    assert_eq!(sent.is_err(), conduit::refuses_descriptors(socket.as_fd()));
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_request_brings_one_descriptor_and_nothing_behind_it() {
    let client = Client::embedded().unwrap();
    let (socket, path) = link();
    let refusal = |forge: &dyn Fn(&OwnedFd)| {
        let stranger = stranger(&path);
        forge(&stranger);
        let connection = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        Guest::receive(connection, &client, LONG).map(drop).unwrap_err()
    };
    let wish = Wish::Connect { name: "name".to_owned(), to: user("beta") };
    let own = Own::prepare(&client, 0).unwrap();
    let (hello, memory) = own.copy().unwrap();
    let request = wish.encode(&hello);
    let send = |to: &OwnedFd, count| {
        conduit::send(to.as_fd(), &request, &vec![memory.as_fd(); count], false).unwrap();
    };
    let many = refusal(&|to| send(to, 4));
    assert!(matches!(many, ConnectError::Handshake(_)), "{many}");
    let more = refusal(&|to| (0..2).for_each(|_| send(to, 1)));
    assert!(matches!(more, ConnectError::Handshake("the process sent more than its request")), "{more}");
    // A link that closes the connection instead of the welcome is busy.
    let busy = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            connect_remote(&path, user("beta"), "test", &client, Options::default()).map(drop).unwrap_err()
        });
        turn_away(rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap(), 0);
        connecting.join().unwrap()
    });
    assert!(matches!(busy, ConnectError::Link(LinkRefusal::Busy)), "{busy}");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_refusal_names_its_reason_and_silence_ends_in_time() {
    let client = Client::embedded().unwrap();
    let (socket, path) = link();
    for why in LinkRefusal::ALL {
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                connect_remote(&path, user("beta"), "test", &client, Options::default())
                    .map(drop)
                    .unwrap_err()
            });
            guest(&socket, &client).refuse(why);
            let error = connecting.join().unwrap();
            assert!(matches!(error, ConnectError::Link(said) if said == why), "{error}");
        });
    }
    let options = Options { handshake: Duration::from_millis(20), ..Options::default() };
    let unanswered = connect_remote(&path, user("beta"), "test", &client, options).map(drop).unwrap_err();
    assert!(matches!(unanswered, ConnectError::Unanswered { .. }), "{unanswered}");
    let early = RemoteListener::new(&path, "test", &[]).unwrap();
    let early = early.accept(&client, options, Some(Duration::from_millis(20))).map(drop).unwrap_err();
    assert!(matches!(early, ConnectError::TimedOut), "{early}");
    let _ = std::fs::remove_file(&path);
}
