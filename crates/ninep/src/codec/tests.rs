//! Messages survive a round trip, reject truncation and trailing bytes, and match known encodings.

use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = Text<'static>> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Cow::Owned)
}

fn names_and_numbers() -> impl Strategy<Value = Request<'static>> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u8>());
    (0..28_usize, numbers, name(), name()).prop_map(|(which, (a, b, c, d, e, f), name, other)| match which {
        0 => Request::Statfs { fid: a },
        1 => Request::Lopen { fid: a, flags: b },
        2 => Request::Lcreate { fid: a, name, flags: b, mode: c, gid: a },
        3 => Request::Symlink { dfid: a, name, target: other, gid: b },
        4 => Request::Mknod { dfid: a, name, mode: b, major: c, minor: a, gid: b },
        5 => Request::Rename { fid: a, dfid: b, name },
        6 => Request::Readlink { fid: a },
        7 => Request::Getattr { fid: a, mask: d },
        8 => Request::Setattr { fid: a, change: Change { valid: b, size: d, mtime: e, ..Change::default() } },
        9 => Request::Xattrwalk { fid: a, newfid: b, name },
        10 => Request::Xattrcreate { fid: a, name, size: d, flags: b },
        11 => Request::Readdir { fid: a, offset: d, count: b },
        12 => Request::Fsync { fid: a, datasync: b },
        13 => Request::Lock { fid: a, kind: f, flags: b, start: d, length: e, process: c, client: name },
        14 => Request::Getlock { fid: a, kind: f, start: d, length: e, process: c, client: name },
        15 => Request::Link { dfid: a, fid: b, name },
        16 => Request::Mkdir { dfid: a, name, mode: b, gid: c },
        17 => Request::Renameat { dfid: a, name, newdfid: b, newname: other },
        18 => Request::Unlinkat { dfid: a, name, flags: b },
        19 => Request::Version { msize: a, version: name },
        20 => Request::Auth { afid: a, uname: name, aname: other, user: b },
        21 => Request::Attach { fid: a, afid: b, uname: name, aname: other, user: c },
        22 => Request::Flush { oldtag: b as u16 },
        23 => Request::Walk { fid: a, newfid: b, names: vec![name; usize::from(f % 17)] },
        24 => Request::Read { fid: a, offset: d, count: b },
        25 => Request::Write { fid: a, offset: d, data: Data(name) },
        26 => Request::Clunk { fid: a },
        _ => Request::Remove { fid: a },
    })
}

proptest! {
    #[test]
    fn requests_survive_a_round_trip(request in names_and_numbers(), tag in any::<u16>()) {
        let bytes = request.encode(tag);
        let header = Header::of(&bytes).unwrap();
        prop_assert_eq!((header.size as usize, header.tag), (bytes.len(), tag));
        let body = &bytes[HEADER..];
        prop_assert_eq!(&Request::decode(header.kind, body).unwrap(), &request);
        for shorter in 0..body.len() {
            prop_assert!(Request::decode(header.kind, &body[..shorter]).is_err(), "{} of {}", shorter, body.len());
        }
        let longer = [body, &[0]].concat();
        prop_assert!(Request::decode(header.kind, &longer).is_err());
        if let Request::Write { fid, offset, data } = &request {
            let head = WriteHead::decode(&body[..16], header.size).unwrap();
            prop_assert_eq!((head.fid, head.offset, head.count as usize), (*fid, *offset, data.0.len()));
            prop_assert!(WriteHead::decode(&body[..16], header.size + 1).is_err());
        }
    }

    #[test]
    fn decoding_arbitrary_bytes_is_canonical(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(kind, &body) {
            prop_assert_eq!(&request.encode(0)[HEADER..], &body[..]);
        }
        if let Ok(reply) = Reply::decode(kind, &body) {
            prop_assert_eq!(&reply.encode(0)[HEADER..], &body[..]);
        }
        let _ = Entry::all(&body);
        let _ = Header::of(&body);
    }
}

#[test]
fn reply_numbers_follow_request_numbers() {
    for number in Reply::NUMBERS.iter().filter(|number| **number != 7) {
        assert!(Request::NUMBERS.contains(&(number - 1)), "{number}");
    }
    assert_eq!(Reply::NUMBERS.len(), Request::NUMBERS.len() + 1);
}

#[test]
fn encodings_match_the_protocol() {
    // The first message of Linux's client.
    let version = Request::Version { msize: 8192, version: VERSION.into() }.encode(NO_TAG);
    assert_eq!(version, b"\x15\0\0\0\x64\xff\xff\0\x20\0\0\x08\09P2000.L");
    let walk = Request::Walk { fid: 0, newfid: 1, names: vec![b"a".into(), b"bc".into()] }.encode(1);
    assert_eq!(walk, b"\x18\0\0\0\x6e\x01\0\0\0\0\0\x01\0\0\0\x02\0\x01\0a\x02\0bc");
    let reply = Reply::Read { data: Data(b"xyz".into()) }.encode(2);
    assert_eq!(reply, [&read_head(2, 3)[..], b"xyz"].concat());
    let attributes = Reply::Getattr { attributes: Attributes::default() }.encode(0);
    assert_eq!(attributes.len(), HEADER + 8 + 13 + 3 * 4 + 15 * 8);
}

#[test]
fn too_many_names_are_refused() {
    let walk = Request::Walk { fid: 0, newfid: 1, names: vec![b"a".into(); 17] }.encode(0);
    assert_eq!(Request::decode(110, &walk[HEADER..]), Err(Malformed::List { count: 17 }));
}
