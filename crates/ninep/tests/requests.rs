//! Effects of requests on names, attributes, locks and pool files, as the file system and other clients see them.

mod harness;

use std::collections::BTreeSet;

use harness::Served;
use memferry_ninep::codec::{Change, Data, Entry, Reply, Request, change};
use memferry_ninep::{Client, ClientError};
use rustix::io::Errno;

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Errno {
    match result {
        Err(ClientError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn create(client: &mut Client, fid: u32, name: &'static str) {
    client.walk(fid, "").unwrap();
    let request = Request::Lcreate { fid, name: name.as_bytes().into(), flags: 2, mode: 0o640, gid: 0 };
    client.call(&request).unwrap();
}

/// All names of a directory, read in answers of `room` bytes.
fn names(client: &mut Client, fid: u32, room: u32) -> Vec<String> {
    let mut all = Vec::new();
    let mut offset = 0;
    loop {
        let Reply::Readdir { data } = client.call(&Request::Readdir { fid, offset, count: room }).unwrap()
        else {
            panic!("no listing")
        };
        let entries = Entry::all(&data.0).unwrap();
        let Some(last) = entries.last() else { return all };
        assert!(data.0.len() <= room as usize);
        offset = last.next;
        all.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
}

#[test]
fn listings_are_complete_at_any_size() {
    let Some(served) = Served::new() else { return };
    let wanted: BTreeSet<String> = (0..500).map(|number| format!("file-{number}")).collect();
    for name in &wanted {
        std::fs::write(served.export.at(name), "").unwrap();
    }
    let mut client = served.client();
    client.walk(1, "").unwrap();
    client.open(1, 0).unwrap();
    for room in [60, 300, 5000, 65_536, 300] {
        let listed = names(&mut client, 1, room);
        let without_dots: BTreeSet<String> =
            listed.iter().filter(|name| !name.starts_with('.')).cloned().collect();
        assert_eq!((listed.len(), &without_dots), (502, &wanted), "{room}");
    }
    let tiny = Request::Readdir { fid: 1, offset: 0, count: 20 };
    assert_eq!(refused(client.call(&tiny)), Errno::INVAL, "not one entry fits");
}

#[test]
fn names_are_created_moved_and_removed() {
    let Some(served) = Served::new() else { return };
    let mut client = served.client();
    let at = |name: &str| served.export.at(name);
    create(&mut client, 1, "file");
    client.write(1, 0, b"text").unwrap();
    client.call(&Request::Mkdir { dfid: 0, name: b"folder".into(), mode: 0o755, gid: 0 }).unwrap();
    client.walk(2, "folder").unwrap();
    client.call(&Request::Link { dfid: 2, fid: 1, name: b"hard".into() }).unwrap();
    client
        .call(&Request::Symlink { dfid: 2, name: b"soft".into(), target: b"/anywhere".into(), gid: 0 })
        .unwrap();
    client.walk(3, "folder/soft").unwrap();
    let link = client.call(&Request::Readlink { fid: 3 }).unwrap();
    assert_eq!(link, Reply::Readlink { target: b"/anywhere".into() });
    client
        .call(&Request::Renameat { dfid: 0, name: b"file".into(), newdfid: 2, newname: b"moved".into() })
        .unwrap();
    assert_eq!(std::fs::read(at("folder/moved")).unwrap(), b"text");
    // An open file is unaffected by the rename.
    client.write(1, 4, b" more").unwrap();
    assert_eq!(std::fs::read(at("folder/hard")).unwrap(), b"text more");
    client.walk(4, "folder/moved").unwrap();
    client.call(&Request::Rename { fid: 4, dfid: 0, name: b"back".into() }).unwrap();
    assert!(at("back").exists() && !at("folder/moved").exists());
    assert_eq!(refused(client.call(&Request::Remove { fid: 4 })), Errno::NOENT, "its name has changed");
    assert_eq!(
        refused(client.call(&Request::Unlinkat { dfid: 0, name: b"folder".into(), flags: 0x200 })),
        Errno::NOTEMPTY
    );
    assert_eq!(
        refused(client.call(&Request::Unlinkat { dfid: 0, name: b"back".into(), flags: 0x200 })),
        Errno::NOTDIR
    );
    for name in [&b"hard"[..], b"soft"] {
        client.call(&Request::Unlinkat { dfid: 2, name: name.into(), flags: 0 }).unwrap();
    }
    client.call(&Request::Remove { fid: 2 }).unwrap();
    assert!(!at("folder").exists());
    // The longest target does not fit the shortest messages.
    let target = [&b"a/"[..]; 2047].concat();
    let longest = Request::Symlink { dfid: 0, name: b"long".into(), target: target.clone().into(), gid: 0 };
    client.call(&longest).unwrap();
    let mut narrow = served.raw().attach(4096, "/").unwrap();
    for (client, room) in [(&mut client, true), (&mut narrow, false)] {
        client.walk(5, "long").unwrap();
        match client.call(&Request::Readlink { fid: 5 }) {
            Ok(Reply::Readlink { target: read }) => assert!(room && *read == target),
            other => assert!(!room && refused(other) == Errno::NAMETOOLONG),
        }
    }
    let special =
        Request::Mknod { dfid: 0, name: b"device".into(), mode: 0o20666, major: 1, minor: 3, gid: 0 };
    assert_eq!(refused(client.call(&special)), Errno::PERM);
}

#[test]
fn only_requested_attributes_change() {
    let Some(served) = Served::new() else { return };
    let mut client = served.client();
    create(&mut client, 1, "file");
    client.write(1, 0, &[1; 5000]).unwrap();
    let valid = change::SIZE | change::MODE | change::MTIME | change::MTIME_SET;
    let wanted =
        Change { valid, size: 100, mode: 0o4711, mtime: 1_000_000_000, mtime_nanos: 5, ..Change::default() };
    client.call(&Request::Setattr { fid: 1, change: wanted }).unwrap();
    let Reply::Getattr { attributes } = client.call(&Request::Getattr { fid: 1, mask: 0x7ff }).unwrap()
    else {
        panic!("no attributes")
    };
    assert_eq!((attributes.size, attributes.mode & 0o7777, attributes.links), (100, 0o711, 1));
    assert_eq!((attributes.mtime, attributes.mtime_nanos), (1_000_000_000, 5));
    assert_ne!(attributes.atime, 1_000_000_000);
    let nonsense =
        Change { valid: change::MTIME | change::MTIME_SET, mtime_nanos: u64::MAX, ..Change::default() };
    assert_eq!(refused(client.call(&Request::Setattr { fid: 1, change: nonsense })), Errno::INVAL);
    let Reply::Statfs { block, blocks, name_length, .. } = client.call(&Request::Statfs { fid: 0 }).unwrap()
    else {
        panic!("no file system")
    };
    assert!(block > 0 && blocks > 0 && name_length == 255);
}

#[test]
fn extended_attributes_work() {
    let Some(served) = Served::new() else { return };
    let mut client = served.client();
    create(&mut client, 1, "file");
    let set = |client: &mut Client, name: &'static str, value: &[u8]| {
        client.walk(2, "file")?;
        let size = value.len() as u64;
        client.call(&Request::Xattrcreate { fid: 2, name: name.as_bytes().into(), size, flags: 0 })?;
        if !value.is_empty() {
            client.write(2, 0, value)?;
        }
        client.call(&Request::Clunk { fid: 2 }).map(drop)
    };
    let get = |client: &mut Client, name: &'static str| {
        client.call(&Request::Xattrwalk { fid: 1, newfid: 3, name: name.as_bytes().into() })?;
        let mut value = Vec::new();
        client.read(3, 0, 65_536, &mut value)?;
        client.call(&Request::Clunk { fid: 3 })?;
        Ok::<_, ClientError>(value)
    };
    match set(&mut client, "user.colour", b"blue") {
        Err(ClientError::Refused(Errno::OPNOTSUPP)) => {
            return println!("not run: no extended attributes here");
        }
        other => other.unwrap(),
    }
    assert_eq!(get(&mut client, "user.colour").unwrap(), b"blue");
    assert_eq!(get(&mut client, "").unwrap(), b"user.colour\0");
    set(&mut client, "user.colour", b"").unwrap();
    assert_eq!(refused(get(&mut client, "user.colour")), Errno::NODATA);
    assert_eq!(refused(get(&mut client, "trusted.overlay")), Errno::OPNOTSUPP);
    assert_eq!(refused(set(&mut client, "security.selinux", b"x")), Errno::OPNOTSUPP);
}

#[test]
fn locks_exclude_others_until_the_fid_ends() {
    let Some(served) = Served::new() else { return };
    let mut one = served.client();
    let mut other = served.client();
    create(&mut one, 1, "file");
    other.walk(1, "file").unwrap();
    other.open(1, 2).unwrap();
    let lock = |kind, start| Request::Lock {
        fid: 1,
        kind,
        flags: 0,
        start,
        length: 10,
        process: 7,
        client: b"here".into(),
    };
    let status = |client: &mut Client, request: &Request<'_>| match client.call(request).unwrap() {
        Reply::Lock { status } => status,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(status(&mut one, &lock(1, 100)), 0);
    assert_eq!(status(&mut other, &lock(1, 105)), 1, "taken");
    assert_eq!(status(&mut other, &lock(1, 110)), 0, "beside it");
    let ask = Request::Getlock { fid: 1, kind: 0, start: 0, length: 0, process: 9, client: b"there".into() };
    // The owner is unknown, and must not be reported as the asking client.
    let taken = Reply::Getlock { kind: 1, start: 100, length: 10, process: 0, client: b"".into() };
    assert_eq!(other.call(&ask).unwrap(), taken);
    let ask = Request::Getlock { fid: 1, kind: 0, start: 0, length: 9, process: 9, client: b"there".into() };
    let free = Reply::Getlock { kind: 2, start: 0, length: 9, process: 9, client: b"there".into() };
    assert_eq!(other.call(&ask).unwrap(), free);
    one.call(&Request::Clunk { fid: 1 }).unwrap();
    assert_eq!(status(&mut other, &lock(0, 100)), 0, "the lock ended with its fid");
    assert_eq!(refused(other.call(&lock(9, 0))), Errno::INVAL);
    assert_eq!(refused(other.call(&lock(1, u64::MAX))), Errno::INVAL);
}

#[test]
fn pool_files_report_and_control() {
    let Some(served) = Served::with(|options| options.pool_files = true) else { return };
    std::fs::write(served.export.at("file"), vec![1; 100_000]).unwrap();
    if !harness::is_cold(&served.export.at("file")) {
        return;
    }
    served.client().read_file(1, "file").unwrap();
    let mut pool = served.attached("/pool");
    pool.walk(1, "").unwrap();
    pool.open(1, 0).unwrap();
    assert_eq!(names(&mut pool, 1, 4096), ["ctl", "statistics", "server", "0"]);
    let text = |pool: &mut Client, path: &str| String::from_utf8(pool.read_file(2, path).unwrap()).unwrap();
    assert!(text(&mut pool, "statistics").contains("segments 1\n"));
    assert!(text(&mut pool, "server").contains("files copying small 1\n"));
    assert_eq!(text(&mut pool, "0/size"), "2097152\n");
    pool.walk(3, "ctl").unwrap();
    pool.open(3, 1).unwrap();
    assert_eq!(refused(pool.write(3, 0, b"explode")), Errno::INVAL);
    // The command's own buffer is in use, so the segment may stay.
    pool.write(3, 0, b"limit 16777216").unwrap();
    assert!(text(&mut pool, "statistics").contains("limit_bytes 16777216\n"));
    for request in [
        Request::Lopen { fid: 4, flags: 1 },
        Request::Mkdir { dfid: 0, name: b"x".into(), mode: 0, gid: 0 },
        Request::Unlinkat { dfid: 0, name: b"ctl".into(), flags: 0 },
        Request::Write { fid: 1, offset: 0, data: Data(b"x".into()) },
    ] {
        pool.walk(4, "statistics").unwrap();
        assert!(matches!(refused(pool.call(&request)), Errno::PERM | Errno::BADF), "{request:?}");
        pool.call(&Request::Clunk { fid: 4 }).unwrap();
    }
    assert!(served.raw().attach(4096, "/pool/ctl").is_err());
}
