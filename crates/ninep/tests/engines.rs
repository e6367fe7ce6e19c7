//! Every engine serves the same bytes, hot and cold, in blocks and in odd pieces, and says what it did.

mod harness;

use harness::{Served, cool, is_cold, pattern, wait_until};
use memferry_ninep::codec::{Data, Reply, Request};
use memferry_ninep::{Client, Engine, Way};

const ENGINES: [Engine; 4] = [Engine::Auto, Engine::Copying, Engine::Pool, Engine::Cached];

#[test]
fn whole_files_are_the_same_by_every_engine() {
    for engine in ENGINES {
        let Some(served) = Served::with(|options| options.engine = engine) else { return };
        let mut client = served.client();
        for length in [0, 1, 4095, 65_536, 65_537, 1_000_000, 3 << 20] {
            let bytes = pattern(length, length as u64);
            let path = served.export.at("file");
            std::fs::write(&path, &bytes).unwrap();
            for hot in [true, false] {
                if !hot {
                    cool(&path);
                }
                assert!(
                    client.read_file(1, "file").unwrap() == bytes,
                    "{engine:?}, {length} bytes, hot: {hot}"
                );
            }
        }
        println!("{engine:?}:\n{}", served.running().statistics());
    }
}

#[test]
fn odd_pieces_are_the_same_by_every_engine() {
    let bytes = pattern(700_001, 3);
    for engine in ENGINES {
        let Some(served) = Served::with(|options| options.engine = engine) else { return };
        let path = served.export.at("file");
        std::fs::write(&path, &bytes).unwrap();
        let mut client = served.client();
        for (fid, piece) in [(1, 1000), (2, 65_512), (3, 4096), (4, 33_333)] {
            cool(&path);
            client.walk(fid, "file").unwrap();
            client.open(fid, 0).unwrap();
            let mut read = Vec::new();
            while client.read(fid, read.len() as u64, piece, &mut read).unwrap() > 0 {}
            assert!(read == bytes, "{engine:?}, pieces of {piece}");
            for offset in [0, 1, 699_999, 700_000, 700_001, 900_000, 65_535, 4097] {
                let mut read = Vec::new();
                client.read(fid, offset, piece, &mut read).unwrap();
                let from = bytes.len().min(offset as usize);
                assert!(read == bytes[from..][..read.len()] && (!read.is_empty() || from == bytes.len()));
            }
        }
    }
}

/// Reads a file with up to `depth` requests outstanding.
fn read_deep(client: &mut Client, length: u64, depth: u16) -> Vec<u8> {
    let mut asked = 0;
    let mut bytes = vec![0; length as usize];
    let mut ask = |client: &mut Client, tag| {
        client.send(&Request::Read { fid: 1, offset: asked, count: 65_536 }, tag).unwrap();
        let at = asked;
        asked += 65_536;
        at
    };
    let mut places: Vec<u64> = (0..depth).map(|tag| ask(client, tag)).collect();
    let mut came = 0;
    while came < length.div_ceil(65_536) {
        let (tag, reply) = client.receive().unwrap();
        let Reply::Read { data: Data(data) } = reply else { panic!("{reply:?}") };
        let at = places[usize::from(tag)] as usize;
        if at < bytes.len() {
            bytes[at..][..data.len()].copy_from_slice(&data);
            came += 1;
        }
        places[usize::from(tag)] = ask(client, tag);
    }
    bytes
}

#[test]
fn many_reads_at_a_time_each_get_their_own_bytes() {
    let bytes = pattern(5 << 20, 9);
    for engine in ENGINES {
        let Some(served) = Served::with(|options| options.engine = engine) else { return };
        let path = served.export.at("file");
        std::fs::write(&path, &bytes).unwrap();
        cool(&path);
        let mut client = served.client();
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        assert!(read_deep(&mut client, bytes.len() as u64, 20) == bytes, "{engine:?}");
    }
}

/// A client that has read the first block of `file` as fid 1, and the second was read ahead. That is not done for a file that has
/// changed a moment ago, so it may take some tries; `None` where nothing is read past the page cache.
fn settle(served: &Served) -> Option<Client> {
    loop {
        let mut client = served.client();
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        client.read(1, 0, 65_536, &mut Vec::new()).unwrap();
        let did = served.running().statistics();
        if did.reads[Way::Pool as usize] == 0 {
            println!("not run: no O_DIRECT here");
            return None;
        }
        if did.ahead > 0 {
            return Some(client);
        }
    }
}

#[test]
fn the_pool_reads_ahead_and_past_the_page_cache() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    let bytes = pattern(2 << 20, 1);
    let path = served.export.at("file");
    std::fs::write(&path, &bytes).unwrap();
    cool(&path);
    if settle(&served).is_none() {
        return;
    }
    // A block is good for a second only, which a busy machine may let pass: then it is tried again.
    let all_came_from_ahead = |_| {
        let before = served.running().statistics();
        assert!(served.client().read_file(1, "file").unwrap() == bytes);
        let did = served.running().statistics();
        println!("{did}");
        assert_eq!(did.read_bytes[Way::Pool as usize] - before.read_bytes[Way::Pool as usize], 2 << 20);
        did.ahead - before.ahead >= 30 && did.ahead_used - before.ahead_used >= 30
    };
    assert!((0..10).any(all_came_from_ahead));
}

#[test]
fn what_was_read_ahead_and_not_come_for_is_given_up() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    std::fs::write(served.export.at("file"), vec![1; 1 << 20]).unwrap();
    let Some(mut client) = settle(&served) else { return };
    wait_until("no buffer is in use", || served.running().pool().statistics().in_use == 0);
    let mut bytes = Vec::new();
    assert_eq!(client.read(1, 65_536, 65_536, &mut bytes).unwrap(), 65_536, "its file is open still");
}

#[test]
fn reading_long_blocks_ahead_leaves_buffers_for_others() {
    const BLOCK: u32 = 1 << 20;
    let Some(served) = Served::with(|options| {
        options.engine = Engine::Pool;
        options.block_bytes = BLOCK as usize;
        options.pool_bytes = 16 << 20;
    }) else {
        return;
    };
    std::fs::File::create(served.export.at("file")).unwrap().set_len(64 << 20).unwrap();
    let Some(first) = settle(&served) else { return };
    let mut clients: Vec<Client> = (0..4).map(|_| served.raw().attach(BLOCK + 24, "/").unwrap()).collect();
    for client in &mut clients {
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        for block in 0..6 {
            assert!(client.read(1, block * u64::from(BLOCK), BLOCK, &mut Vec::new()).unwrap() > 0);
        }
    }
    let pool = served.running().pool().statistics();
    let did = served.running().statistics();
    assert_eq!((pool.refused, did.starved), (0, 0), "{pool:?}\n{did}");
    assert!(did.ahead > 4, "{did}");
    drop(first);
}

#[test]
fn what_was_read_ahead_is_not_used_once_the_file_has_changed() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    let path = served.export.at("file");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    cool(&path);
    let Some(mut client) = settle(&served) else { return };
    let mut seen = vec![1; 65_536];
    // By somebody else, while the second block lies in a buffer.
    std::fs::write(&path, vec![2; 1 << 20]).unwrap();
    client.read(1, 65_536, 65_536, &mut seen).unwrap();
    assert_eq!((seen.len(), seen[0], seen[65_536]), (131_072, 1, 2));
    // By another client of this server.
    let mut other = served.client();
    other.walk(1, "file").unwrap();
    other.open(1, 1).unwrap();
    other.write(1, 2 * 65_536, &[3; 65_536]).unwrap();
    client.read(1, 2 * 65_536, 65_536, &mut seen).unwrap();
    assert_eq!(seen[2 * 65_536], 3);
    // Cut short while it is read.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 * 65_536 + 10).unwrap();
    assert_eq!(client.read(1, 3 * 65_536, 65_536, &mut seen).unwrap(), 10);
    assert_eq!(client.read(1, 4 * 65_536, 65_536, &mut seen).unwrap(), 0);
}

#[test]
fn auto_says_why_it_chose() {
    let Some(served) = Served::with(|options| options.large_bytes = 4 << 20) else { return };
    let files = [("small", 1000), ("long", 2 << 20), ("large", 4 << 20)];
    for (name, length) in files {
        std::fs::write(served.export.at(name), pattern(length, 5)).unwrap();
        if !is_cold(&served.export.at(name)) {
            return;
        }
    }
    let mut client = served.client();
    for name in ["small", "long", "large", "large", "long"] {
        client.read_file(1, name).unwrap();
    }
    let did = served.running().statistics().to_string();
    for line in ["files copying small 1\n", "files cached cold 1\n", "files cached hot 1\n"] {
        assert!(did.contains(line), "{line}{did}");
    }
    assert!(did.contains("files pool large 2\n") || did.contains("not-offered"), "{did}");
}

/// Whether files of this export can be opened to be written past the page cache.
fn has_direct(served: &Served) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
    match options.open(served.export.at("asked")) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            println!("direct writes were not tried: no O_DIRECT here");
            false
        }
        opened => opened.map(|_| true).unwrap(),
    }
}

#[test]
fn writes_by_every_engine_are_what_the_file_holds() {
    for engine in ENGINES {
        let Some(served) = Served::with(|options| options.engine = engine) else { return };
        let mut client = served.client();
        client.walk(1, "").unwrap();
        let create = Request::Lcreate { fid: 1, name: b"new".into(), flags: 2, mode: 0o640, gid: 0 };
        client.call(&create).unwrap();
        let mut expected = vec![0; 400_000];
        let bytes = pattern(65_536, 11);
        for (offset, length) in
            [(0, 65_536), (65_536, 4096), (100_000, 10), (399_000, 1000), (131_072, 65_000), (5, 0)]
        {
            assert_eq!(client.write(1, offset as u64, &bytes[..length]).unwrap(), length as u32);
            expected[offset..offset + length].copy_from_slice(&bytes[..length]);
        }
        client.call(&Request::Fsync { fid: 1, datasync: 0 }).unwrap();
        assert!(std::fs::read(served.export.at("new")).unwrap() == expected, "{engine:?}");
        let mut read = Vec::new();
        client.read(1, 99_990, 30, &mut read).unwrap();
        assert_eq!(read, expected[99_990..100_020]);
        let did = served.running().statistics();
        assert_eq!(did.direct_writes > 0, engine == Engine::Pool && has_direct(&served), "{did}");
    }
}
