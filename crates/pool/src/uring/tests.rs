//! The ring on real files and sockets.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::{Options, Pool};

/// A ring; `None` if the system has no io_uring or forbids it.
fn ring() -> Option<Ring> {
    Ring::new(8).inspect_err(|error| println!("io_uring is not available: {error}")).ok()
}

fn wait_for_one(ring: &mut Ring) -> Done {
    let mut done = Vec::new();
    while done.is_empty() {
        ring.wait(None, &mut done).unwrap();
    }
    assert_eq!(done.len(), 1);
    done.remove(0)
}

fn file(bytes: &[u8]) -> Arc<OwnedFd> {
    let path = std::env::temp_dir().join(format!(
        "memferry-uring-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file.into())
}

#[test]
fn reads_writes_and_syncs_a_file() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let file = file(b"what the file holds");
    ring.read_file(Arc::clone(&file), pool.take().unwrap(), (100, 50), 5, 7).unwrap();
    let done = wait_for_one(&mut ring);
    assert_eq!((done.token, done.result.unwrap()), (7, 14));
    let Held::Buffer(buffer) = done.held else { panic!("the read did not return its buffer") };
    let view = buffer.share(100, 14).unwrap();
    let mut bytes = [0; 14];
    view.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"the file holds");
    ring.write_file(Arc::clone(&file), view.part(4, 4).unwrap(), 0, 8).unwrap();
    assert_eq!(wait_for_one(&mut ring).result.unwrap(), 4);
    ring.sync(Arc::clone(&file), true, 9).unwrap();
    assert_eq!(wait_for_one(&mut ring).result.unwrap(), 0);
    rustix::io::pread(&file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"file the file ");
    let registrations = ring.registrations();
    assert_eq!(registrations.fixed + registrations.unregistered, 2);
    assert_eq!(pool.statistics().in_use, 1, "only the view holds a buffer");
    drop(view);
    assert_eq!(pool.statistics().in_use, 0);
}

#[test]
fn a_registration_drops_retired_segments() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let file = file(&[1; 100]);
    for _ in 0..3 {
        ring.read_file(Arc::clone(&file), pool.take().unwrap(), (0, 100), 0, 0).unwrap();
        assert_eq!(wait_for_one(&mut ring).result.unwrap(), 100);
        pool.trim();
        assert!(ring.registrations().segments <= 1);
    }
}

#[test]
fn sends_in_order_and_receives_at_the_offset() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours: Arc<OwnedFd> = Arc::new(ours.into());
    let mut buffer = pool.take().unwrap();
    buffer.write(10, b"body").unwrap();
    let view = buffer.share(10, 4).unwrap();
    ring.send(Arc::clone(&ours), b"head ".to_vec(), Some(view), 1).unwrap();
    assert_eq!(wait_for_one(&mut ring).result.unwrap(), 9);
    let mut bytes = [0; 9];
    theirs.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"head body");
    theirs.write_all(b"abc").unwrap();
    ring.receive(Arc::clone(&ours), vec![0; 8], (5, 3), 2).unwrap();
    let Done { result, held: Held::Bytes(bytes), .. } = wait_for_one(&mut ring) else {
        panic!("the receive did not return its bytes")
    };
    assert_eq!((result.unwrap(), &bytes[5..]), (3, &b"abc"[..]));
    ring.receive_buffer(Arc::clone(&ours), pool.take().unwrap(), (4096, 6), 3).unwrap();
    theirs.write_all(b"two").unwrap();
    theirs.write_all(b"six").unwrap();
    let Done { result, held: Held::Buffer(buffer), .. } = wait_for_one(&mut ring) else {
        panic!("the receive did not return its buffer")
    };
    let mut bytes = [0; 6];
    buffer.read(4096, &mut bytes).unwrap();
    assert_eq!((result.unwrap(), &bytes), (6, b"twosix"));
}

#[test]
fn refuses_ranges_outside_the_buffer() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let file = file(&[]);
    let length = pool.options().buffer_bytes;
    assert!(ring.read_file(Arc::clone(&file), pool.take().unwrap(), (1, length), 0, 0).is_err());
    assert!(ring.receive_buffer(Arc::clone(&file), pool.take().unwrap(), (usize::MAX, 2), 0).is_err());
    assert!(ring.receive(file, vec![0; 3], (2, 2), 0).is_err());
    assert_eq!((ring.in_flight(), pool.statistics().in_use), (0, 0));
}

#[test]
fn operations_beyond_the_entries_complete() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let file = file(&[9; 4096]);
    for token in 0..100 {
        ring.read_file(Arc::clone(&file), pool.take().unwrap(), (0, 4096), 0, token).unwrap();
    }
    let mut done = Vec::new();
    while ring.in_flight() > 0 {
        ring.wait(None, &mut done).unwrap();
    }
    let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..100).collect::<Vec<u64>>());
    assert!(done.iter().all(|done| matches!(done.result, Ok(4096))));
}

#[test]
fn a_dropped_ring_cancels_and_returns_buffers() {
    let Some(mut ring) = ring() else { return };
    let pool = Pool::new(Options::default()).unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ours: Arc<OwnedFd> = Arc::new(ours.into());
    ring.receive_buffer(Arc::clone(&ours), pool.take().unwrap(), (0, 100), 0).unwrap();
    ring.wait(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
    ring.receive_buffer(Arc::clone(&ours), pool.take().unwrap(), (0, 100), 0).unwrap();
    ring.poll(ours, libc::POLLIN as u32, 1).unwrap();
    assert_eq!((ring.in_flight(), pool.statistics().in_use), (3, 2));
    drop(ring);
    assert_eq!(pool.statistics().in_use, 0);
}
