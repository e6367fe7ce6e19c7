//! Sends the same requests to this server and to p9's, each over its own directory, and compares the answers.
//!
//! ```text
//! seed ─► requests ─┬─► ours, over a socket ──► Reply ─┐
//!                   └─► p9::Server, in memory ──► Reply ┴─► equal except identities, times and error codes
//! ```
//!
//! p9 is the crate behind crosvm's file server. Requests that it does not support are left out, as are those where it is known
//! to differ: opening, creating and changing attributes through an open fid, and listings, whose order is the
//! directory's.

mod harness;

use std::collections::BTreeMap;

use harness::{Folder, MESSAGE, Served, pattern};
use memferry_ninep::codec::{
    Change, Data, HEADER, Header, NO_FID, NO_TAG, NO_USER, Reply, Request, VERSION, change,
};

const NAMES: [&[u8]; 5] = [b"a", b"b", b"dir", b"dir2", b"nothing"];

struct Dice(fastrand::Rng);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }

    /// Fids 1 to 3 are for directories and walks, 4 to 6 for open files.
    fn request(&mut self) -> Request<'static> {
        let walked = 1 + self.below(3) as u32;
        let open = 4 + self.below(3) as u32;
        let from = [0, walked][self.below(2) as usize];
        let name = self.name();
        let offset = self.below(20_000);
        match self.below(14) {
            0 => Request::Walk { fid: 0, newfid: walked, names: vec![name.into()] },
            1 => Request::Walk { fid: from, newfid: open, names: vec![name.into()] },
            2 => Request::Walk { fid: 0, newfid: open, names: vec![] },
            3 => Request::Lcreate { fid: open, name: name.into(), flags: 0o202, mode: 0o644, gid: 0 },
            4 => Request::Lopen { fid: open, flags: self.below(3) as u32 },
            5 => Request::Clunk { fid: [walked, open][self.below(2) as usize] },
            6 => Request::Mkdir { dfid: from, name: name.into(), mode: 0o755, gid: 0 },
            7 => Request::Renameat { dfid: from, name: name.into(), newdfid: 0, newname: self.name().into() },
            8 => Request::Unlinkat { dfid: from, name: name.into(), flags: self.below(2) as u32 * 0x200 },
            9 => Request::Getattr { fid: [walked, open][self.below(2) as usize], mask: 0x7ff },
            10 => {
                let change = Change { valid: change::SIZE, size: offset, ..Change::default() };
                Request::Setattr { fid: open, change }
            }
            11 => Request::Read { fid: open, offset, count: 3000 },
            _ => {
                let data = pattern(1 + self.below(3000) as usize, offset);
                Request::Write { fid: open, offset, data: Data(data.into()) }
            }
        }
    }
}

struct Oracle {
    server: p9::Server,
    reply: Vec<u8>,
}

impl Oracle {
    fn new(root: &std::path::Path) -> Self {
        let server = p9::Server::new(root, BTreeMap::new(), BTreeMap::new()).unwrap();
        Self { server, reply: Vec::new() }
    }

    fn ask(&mut self, request: &Request<'_>, tag: u16) -> Reply<'_> {
        self.reply.clear();
        self.server.handle_message(&mut &request.encode(tag)[..], &mut self.reply).unwrap();
        let header = Header::of(&self.reply).unwrap();
        assert_eq!((header.size as usize, header.tag), (self.reply.len(), tag));
        Reply::decode(header.kind, &self.reply[HEADER..]).unwrap()
    }
}

/// The parts of an answer that must be equal.
fn essence(reply: Reply<'_>) -> String {
    match reply {
        Reply::Error { .. } => "refused".to_owned(),
        Reply::Getattr { attributes } => {
            let directory = attributes.qid.kind == 0x80;
            let size = if directory { 0 } else { attributes.size };
            format!("{:o} {size} {}", attributes.mode, attributes.links)
        }
        Reply::Walk { qids } => format!("walked {:?}", qids.iter().map(|qid| qid.kind).collect::<Vec<_>>()),
        Reply::Lopen { qid, .. } | Reply::Lcreate { qid, .. } | Reply::Mkdir { qid } => {
            format!("{}", qid.kind)
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn answers_match_another_server() {
    let Some(served) = Served::new() else { return };
    for seed in 1..=40_u64 {
        println!("seed {seed}");
        let theirs = Folder::new();
        for entry in std::fs::read_dir(&served.export.0).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        let mut client = served.client();
        let mut oracle = Oracle::new(&theirs.0);
        oracle.ask(&Request::Version { msize: MESSAGE, version: VERSION.into() }, NO_TAG);
        let root =
            Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname: b"/".into(), user: NO_USER };
        assert!(matches!(oracle.ask(&root, 1), Reply::Attach { .. }));
        let mut dice = Dice(fastrand::Rng::with_seed(seed));
        let mut agreed = 0;
        let mut open = [false; 7];
        for step in 0..300 {
            let request = dice.request();
            if let Request::Lopen { fid, .. } | Request::Lcreate { fid, .. } | Request::Setattr { fid, .. } =
                request
                && open[fid as usize]
            {
                continue;
            }
            client.send(&request, 5).unwrap();
            let ours = essence(client.receive().unwrap().1);
            let theirs = essence(oracle.ask(&request, 5));
            assert_eq!(ours, theirs, "seed {seed}, step {step}: {request:?}");
            agreed += usize::from(ours != "refused");
            match request {
                Request::Lopen { fid, .. } | Request::Lcreate { fid, .. } => {
                    open[fid as usize] = ours != "refused"
                }
                Request::Clunk { fid } => open[fid as usize] = false,
                _ => {}
            }
        }
        assert!(agreed > 30, "only {agreed} requests succeeded");
    }
}
