//! Random messages of many clients at once, beside an honest client that must always be served.
//!
//! ```text
//! MEMFERRY_9P_SOAK=600 (seconds; 4 by default)   MEMFERRY_9P_SEED=1 (by default a new one, which is printed)
//! ```
//!
//! The seed decides what each client sends, not how clients interleave.

mod harness;

use std::borrow::Cow;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use std::io::{Read, Write};

use harness::{MESSAGE, Served, pattern, wait_until};
use memferry_ninep::codec::{Change, Data, NO_FID, NO_TAG, NO_USER, Request, VERSION, change};
use memferry_ninep::{Client, Engine};

const CLIENTS: usize = 6;
/// Far above what an honest request takes beside the random ones.
const PROMPT: Duration = Duration::from_secs(20);
const NAMES: [&[u8]; 12] =
    [b"a", b"b", b"c", b"d", b"e", b"..", b".", b"", b"a/b", b"\0", &[b'n'; 255], &[b'n'; 300]];

struct Random(fastrand::Rng);

impl Random {
    fn name(&mut self) -> Cow<'static, [u8]> {
        let common = if self.0.u8(..) < 200 { 5 } else { NAMES.len() };
        Cow::Borrowed(NAMES[self.0.usize(..common)])
    }

    fn number(&mut self) -> u64 {
        match self.0.u8(..8) {
            0 => u64::MAX - self.0.u64(..3),
            1 => 1 << self.0.u32(..64),
            2 => self.0.u64(..),
            _ => self.0.u64(..100_000),
        }
    }

    fn fid(&mut self) -> u32 {
        match self.0.u8(..) {
            0..4 => self.0.u32(..),
            4..64 => self.0.u32(..16),
            _ => self.0.u32(..6),
        }
    }

    fn count(&mut self) -> u32 {
        if self.0.bool() { 65_536 } else { self.number() as u32 }
    }

    fn change(&mut self) -> Change {
        // Permissions and owners stay, so that a server without privileges can go on and clean up.
        let valid = self.0.u32(..0x200) & !(change::MODE | change::UID | change::GID);
        Change {
            valid,
            size: self.number() % (1 << 24),
            mtime: self.number(),
            mtime_nanos: self.number(),
            ..Change::default()
        }
    }

    /// A request that decodes; its numbers are random.
    fn request(&mut self) -> Request<'static> {
        let fid = self.fid();
        let newfid = self.fid();
        let name = self.name();
        match self.0.u8(..30) {
            0 => Request::Statfs { fid },
            1..4 => Request::Lopen { fid, flags: self.0.u32(..3) | self.0.u32(..) & 0o1000 },
            4 | 5 => Request::Lcreate { fid, name, flags: self.0.u32(..) & 0o7203, mode: 0o600, gid: 0 },
            6 => Request::Symlink { dfid: fid, name, target: self.name(), gid: 0 },
            7 => Request::Mknod { dfid: fid, name, mode: self.0.u32(..), major: 1, minor: 3, gid: 0 },
            8 => Request::Rename { fid, dfid: newfid, name },
            9 => Request::Readlink { fid },
            10 => Request::Getattr { fid, mask: self.number() },
            11 => Request::Setattr { fid, change: self.change() },
            12 => Request::Xattrwalk { fid, newfid, name: b"user.a".into() },
            13 => {
                Request::Xattrcreate { fid, name: b"user.a".into(), size: self.number() % 70_000, flags: 0 }
            }
            14 => Request::Readdir { fid, offset: self.number(), count: self.count() },
            15 => Request::Fsync { fid, datasync: self.0.u32(..2) },
            16 => Request::Lock {
                fid,
                kind: self.0.u8(..4),
                flags: 0,
                start: self.number(),
                length: self.number(),
                process: 1,
                client: name,
            },
            17 => Request::Link { dfid: fid, fid: newfid, name },
            18 => Request::Mkdir { dfid: fid, name, mode: 0o700, gid: 0 },
            19 => Request::Renameat { dfid: fid, name, newdfid: newfid, newname: self.name() },
            20 => Request::Unlinkat { dfid: fid, name, flags: self.0.u32(..2) * 0x200 },
            21 => Request::Flush { oldtag: self.0.u16(..70) },
            22 | 23 => Request::Read { fid, offset: self.number(), count: self.count() },
            24 | 25 => {
                let data = vec![self.0.u8(..); self.0.usize(..70_000)];
                Request::Write { fid, offset: self.number() % (1 << 24), data: Data(data.into()) }
            }
            26 => Request::Clunk { fid },
            27 => Request::Remove { fid },
            _ => {
                let names = (0..self.0.usize(..17)).map(|_| self.name()).collect();
                Request::Walk { fid: if self.0.bool() { 0 } else { fid }, newfid, names }
            }
        }
    }

    /// A message: well-formed, with a wrong size or body, or noise.
    fn message(&mut self) -> Vec<u8> {
        let tag = self.0.u16(..64);
        let mut bytes = match self.0.u16(..1000) {
            0 => Request::Version { msize: self.count(), version: VERSION.into() }.encode(NO_TAG),
            _ => self.request().encode(tag),
        };
        match self.0.u16(..300) {
            0 => {
                let at = self.0.usize(..bytes.len());
                bytes[at] ^= 1 << self.0.u8(..8);
            }
            1 => bytes[..4].copy_from_slice(&(self.number() as u32).to_le_bytes()),
            2 => bytes.truncate(self.0.usize(..bytes.len())),
            3 => {
                let length = self.0.usize(..200);
                bytes = (0..length).map(|_| self.0.u8(..)).collect();
            }
            _ => {}
        }
        bytes
    }

    /// Requests that make and open a file as fids 1 and 2, and list the directory as fid 3, so that random ones find them.
    fn opened(&mut self) -> Vec<u8> {
        let file = || Cow::Borrowed(NAMES[0]);
        let walk = |newfid, names| Request::Walk { fid: 0, newfid, names };
        let requests = [
            walk(1, vec![]),
            Request::Lcreate { fid: 1, name: file(), flags: 2, mode: 0o600, gid: 0 },
            Request::Write { fid: 1, offset: self.number() % (1 << 22), data: Data(vec![3; 60_000].into()) },
            walk(2, vec![file()]),
            Request::Lopen { fid: 2, flags: 2 },
            walk(3, vec![]),
            Request::Lopen { fid: 3, flags: 0 },
            walk(4, vec![]),
        ];
        requests.iter().zip(100..).flat_map(|(request, tag)| request.encode(tag)).collect()
    }

    /// One connection: sends random messages, and reads answers fast, slowly or never.
    fn session(&mut self, socket: &Path, messages: &AtomicU64) -> std::io::Result<()> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        stream.set_nonblocking(false)?;
        let reads = self.0.u8(..4);
        if self.0.u8(..) > 4 {
            let aname = Cow::Borrowed(&b"/den"[..]);
            let attach = Request::Attach { fid: 0, afid: NO_FID, uname: b"".into(), aname, user: NO_USER };
            let version = Request::Version { msize: MESSAGE, version: VERSION.into() }.encode(NO_TAG);
            stream.write_all(&[version, attach.encode(1)].concat())?;
            if self.0.u8(..8) > 0 {
                stream.write_all(&self.opened())?;
            }
        }
        let mut answers = vec![0; 1 << 16];
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        for _ in 0..self.0.usize(..400) {
            let message = self.message();
            let pieces = if self.0.u8(..) < 4 { 1 + self.0.usize(..3) } else { 1 };
            for piece in message.chunks(message.len().div_ceil(pieces).max(1)) {
                stream.write_all(piece)?;
            }
            messages.fetch_add(1, Ordering::Relaxed);
            let wanted = match reads {
                0 => 0,
                1 => self.0.usize(..200),
                _ => answers.len(),
            };
            match stream.read(&mut answers[..wanted]) {
                Ok(0) if wanted > 0 => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads and writes files beside the random clients; every answer is right and comes in time.
fn witness(served: &Served, running: &AtomicBool) -> (u64, Duration) {
    let bytes = pattern(200_000, 5);
    std::fs::write(served.export.at("witness"), &bytes).unwrap();
    let mut longest = Duration::ZERO;
    let mut rounds = 0;
    while running.load(Ordering::Relaxed) {
        let started = Instant::now();
        let mut client: Client = served.client();
        assert!(client.read_file(1, "witness").unwrap() == bytes);
        client.walk(1, "").unwrap();
        let name = b"witness-writes".into();
        client.call(&Request::Lcreate { fid: 1, name, flags: 2, mode: 0o600, gid: 0 }).unwrap();
        client.write(1, 0, &bytes[..50_000]).unwrap();
        client.call(&Request::Remove { fid: 1 }).unwrap();
        longest = longest.max(started.elapsed());
        assert!(longest < PROMPT, "{longest:?}");
        rounds += 1;
    }
    (rounds, longest)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_messages_harm_no_other_client() {
    let time = Duration::from_secs(variable("MEMFERRY_9P_SOAK").unwrap_or(4));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = variable("MEMFERRY_9P_SEED").unwrap_or(now.as_nanos() as u64);
    let engine =
        [Engine::Auto, Engine::Copying, Engine::Pool, Engine::Cached][(seed / CLIENTS as u64 % 4) as usize];
    println!("MEMFERRY_9P_SEED={seed} (engine {engine:?})");
    let Some(served) = Served::with(|options| {
        options.engine = engine;
        options.pool_bytes = 4 << 20;
        options.threads = 2;
        options.limits.stall = Duration::from_secs(5);
    }) else {
        return;
    };
    std::fs::create_dir(served.export.at("den")).unwrap();
    drop(served.client());
    wait_until("it is gone", || served.running().statistics().connected == 0);
    let before = open_descriptors();
    let running = AtomicBool::new(true);
    let messages = AtomicU64::new(0);
    let (rounds, longest) = std::thread::scope(|scope| {
        for index in 0..CLIENTS {
            let socket = &served.socket;
            let running = &running;
            let messages = &messages;
            scope.spawn(move || {
                let mut random = Random(fastrand::Rng::with_seed(seed.wrapping_add(index as u64)));
                while running.load(Ordering::Relaxed) {
                    // An error ends the session, as it should for most random messages.
                    let _ = random.session(socket, messages);
                }
            });
        }
        let honest = scope.spawn(|| witness(&served, &running));
        let started = Instant::now();
        while started.elapsed() < time && !honest.is_finished() {
            // Random requests move, replace and remove the directory and its files.
            let _ = std::fs::remove_dir_all(served.export.at("den"));
            let _ = std::fs::create_dir_all(served.export.at("den"));
            std::thread::sleep(Duration::from_millis(500));
        }
        running.store(false, Ordering::Relaxed);
        honest.join().unwrap()
    });
    wait_until("all are gone", || served.running().statistics().connected == 0);
    assert!(!served.running().is_over());
    let pool = served.running().pool().statistics();
    assert_eq!(pool.in_use, 0, "{pool:?}");
    // Pipes are kept for reuse, at most 64 of each thread.
    assert!(open_descriptors() <= before + 2 * 2 * 64, "{} descriptors, {before} before", open_descriptors());
    println!(
        "{} messages; {rounds} honest rounds, the longest {longest:?}; {}",
        messages.load(Ordering::Relaxed),
        served.running().statistics()
    );
}
