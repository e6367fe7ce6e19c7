//! Every engine serves the same bytes, cached or not, in blocks and odd pieces, and counts what it counts.

mod harness;

use harness::{Served, cool, is_cold, pattern, wait_until};
use memferry_ninep::codec::{Data, Reply, Request};
use memferry_ninep::{Client, Engine, Way};

const ENGINES: [Engine; 4] = [Engine::Auto, Engine::Copying, Engine::Pool, Engine::Cached];

#[test]
fn every_engine_reads_whole_files() {
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
fn every_engine_reads_odd_pieces() {
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
    let mut next = 0;
    let mut bytes = vec![0; length as usize];
    let mut request = |client: &mut Client, tag| {
        client.send(&Request::Read { fid: 1, offset: next, count: 65_536 }, tag).unwrap();
        let at = next;
        next += 65_536;
        at
    };
    let mut places: Vec<u64> = (0..depth).map(|tag| request(client, tag)).collect();
    let mut received = 0;
    while received < length.div_ceil(65_536) {
        let (tag, reply) = client.receive().unwrap();
        let Reply::Read { data: Data(data) } = reply else { panic!("{reply:?}") };
        let at = places[usize::from(tag)] as usize;
        if at < bytes.len() {
            bytes[at..][..data.len()].copy_from_slice(&data);
            received += 1;
        }
        places[usize::from(tag)] = request(client, tag);
    }
    bytes
}

#[test]
fn outstanding_reads_get_their_own_bytes() {
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

/// A client that has read the first block of `file` as fid 1 while the second was read ahead. Files that changed just before
/// are not read ahead, so it may take several attempts; `None` without `O_DIRECT`.
fn settle(served: &Served) -> Option<Client> {
    loop {
        let mut client = served.client();
        client.walk(1, "file").unwrap();
        client.open(1, 0).unwrap();
        client.read(1, 0, 65_536, &mut Vec::new()).unwrap();
        let counts = served.running().statistics();
        if counts.reads[Way::Pool as usize] == 0 {
            println!("not run: no O_DIRECT here");
            return None;
        }
        if counts.ahead > 0 {
            return Some(client);
        }
    }
}

#[test]
fn the_pool_reads_ahead() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    let bytes = pattern(2 << 20, 1);
    let path = served.export.at("file");
    std::fs::write(&path, &bytes).unwrap();
    cool(&path);
    if settle(&served).is_none() {
        return;
    }
    // Blocks expire after a second, which a busy machine may exceed, so try several times.
    let all_came_from_ahead = |_| {
        let before = served.running().statistics();
        assert!(served.client().read_file(1, "file").unwrap() == bytes);
        let counts = served.running().statistics();
        println!("{counts}");
        assert_eq!(counts.read_bytes[Way::Pool as usize] - before.read_bytes[Way::Pool as usize], 2 << 20);
        counts.ahead - before.ahead >= 30 && counts.ahead_used - before.ahead_used >= 30
    };
    assert!((0..10).any(all_came_from_ahead));
}

#[test]
fn unused_blocks_read_ahead_expire() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    std::fs::write(served.export.at("file"), vec![1; 1 << 20]).unwrap();
    let Some(mut client) = settle(&served) else { return };
    wait_until("no buffer is in use", || served.running().pool().statistics().in_use == 0);
    let mut bytes = Vec::new();
    assert_eq!(client.read(1, 65_536, 65_536, &mut bytes).unwrap(), 65_536, "the file is still open");
}

#[test]
fn read_ahead_leaves_buffers_for_others() {
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
    let counts = served.running().statistics();
    assert_eq!((pool.refused, counts.starved), (0, 0), "{pool:?}\n{counts}");
    assert!(counts.ahead > 4, "{counts}");
    drop(first);
}

#[test]
fn changes_invalidate_blocks_read_ahead() {
    let Some(served) = Served::with(|options| options.engine = Engine::Pool) else { return };
    let path = served.export.at("file");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    cool(&path);
    let Some(mut client) = settle(&served) else { return };
    let mut seen = vec![1; 65_536];
    // By another program, while the second block is in a buffer.
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
    // Truncated while it is read.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 * 65_536 + 10).unwrap();
    assert_eq!(client.read(1, 3 * 65_536, 65_536, &mut seen).unwrap(), 10);
    assert_eq!(client.read(1, 4 * 65_536, 65_536, &mut seen).unwrap(), 0);
}

#[test]
fn auto_counts_its_reasons() {
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
    let counts = served.running().statistics().to_string();
    for line in ["files copying small 1\n", "files cached cold 1\n", "files cached hot 1\n"] {
        assert!(counts.contains(line), "{line}{counts}");
    }
    assert!(counts.contains("files pool large 2\n") || counts.contains("not-offered"), "{counts}");
}

/// Whether this export supports direct writes.
fn has_direct(served: &Served) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
    match options.open(served.export.at("asked")) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            println!("direct writes not tested: no O_DIRECT here");
            false
        }
        opened => opened.map(|_| true).unwrap(),
    }
}

#[test]
fn every_engine_writes_the_right_bytes() {
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
        let counts = served.running().statistics();
        assert_eq!(counts.direct_writes > 0, engine == Engine::Pool && has_direct(&served), "{counts}");
    }
}
