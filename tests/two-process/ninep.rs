//! `memferry 9p serve` as a process: killed, limited, misconfigured, and reached with a key.
//!
//! ```text
//! command ─► "listening on" ─► clients ─ fsync ─ SIGKILL ─► the next process serves what was synced
//! ```
//!
//! The tests wait for a process's output or exit. The library's tests cover the requests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memferry_ninep::codec::Request;
use memferry_ninep::{Client, ClientError};

const BINARY: &str = env!("CARGO_BIN_EXE_memferry");
const MESSAGE: u32 = (64 << 10) + 24;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("9p-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("export")).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// Serves the export; `before` is a shell command to run first, such as a limit.
    fn serve(&self, before: &str, arguments: &[&str]) -> Served {
        let mut command = Command::new("sh");
        let script = format!("{before} exec \"$0\" 9p serve \"$@\"");
        command.args(["-c", &script, BINARY]).arg(self.0.join("export"));
        command.arg("--listen").arg(format!("unix:{}", self.socket().display())).args(arguments);
        self.start(command)
    }

    /// Waits until the server listens or has exited.
    fn start(&self, mut command: Command) -> Served {
        let errors = self.0.join("errors");
        command.stderr(std::fs::File::create(&errors).unwrap());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first_line = lines.next().map_or_else(String::new, Result::unwrap);
        Served { child, first_line, errors }
    }

    fn client(&self) -> Client {
        Client::unix(&self.socket()).unwrap().attach(MESSAGE, "/").unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Served {
    child: Child,
    /// The first line of output; empty if the server exited without one.
    first_line: String,
    /// The file with its standard error.
    errors: PathBuf,
}

impl Served {
    /// Whether the server runs. It may fail only where there is no io_uring.
    fn runs(&self) -> bool {
        if self.first_line.is_empty() {
            let errors = self.errors();
            assert!(errors.contains("cannot make an io_uring"), "the server did not start: {errors}");
            println!("skipped: {errors}");
        }
        !self.first_line.is_empty()
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(client: &mut Client, name: &'static [u8]) {
    client.walk(1, "").unwrap();
    client.call(&Request::Lcreate { fid: 1, name: name.into(), flags: 2, mode: 0o644, gid: 0 }).unwrap();
}

#[test]
fn synced_data_survives_a_kill() {
    let place = Place::new("kill");
    for (round, engine) in ["auto", "copying", "pool", "cached"].into_iter().enumerate() {
        let served = place.serve("", &["--engine", engine]);
        if !served.runs() {
            return;
        }
        let mut client = place.client();
        create(&mut client, b"file");
        let bytes = vec![round as u8 + 1; 40_000];
        for block in 0..10_u64 {
            client.write(1, block * 40_000, &bytes).unwrap();
            client.call(&Request::Fsync { fid: 1, datasync: (block % 2) as u32 }).unwrap();
        }
        // Another write is in flight when the server is killed.
        client.send_bytes(&Request::Write { fid: 1, offset: 0, data: vec_data(&bytes) }.encode(9)).unwrap();
        drop(served);
        assert_eq!(std::fs::read(place.0.join("export/file")).unwrap(), bytes.repeat(10));
        let again = place.serve("", &[]);
        assert!(again.runs(), "the socket of a dead server is not replaced");
        assert_eq!(place.client().read_file(1, "file").unwrap(), bytes.repeat(10));
    }
}

fn vec_data(bytes: &[u8]) -> memferry_ninep::codec::Data<'_> {
    memferry_ninep::codec::Data(bytes.into())
}

#[test]
fn a_full_disk_fails_the_write_only() {
    let place = Place::new("full");
    // A file size limit stands in for a full disk, without a mount. A segment of the pool must fit. Units of 512 bytes.
    let limit = 8 << 20;
    let served = place.serve(&format!("ulimit -f {};", limit / 512), &[]);
    if !served.runs() {
        return;
    }
    let mut client = place.client();
    create(&mut client, b"file");
    let block = [7; 50_000];
    let mut end = limit - 120_000;
    let error = loop {
        match client.write(1, end, &block) {
            Ok(count) => end += u64::from(count),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Refused(rustix::io::Errno::FBIG)), "{error}");
    assert_eq!(end, limit, "bytes that fit were not written or not reported");
    assert_eq!(client.read_file(2, "file").unwrap().len() as u64, limit);
}

#[test]
fn a_pool_without_memory_fails_each_request() {
    let place = Place::new("memory");
    // No memfd can have the length of a segment.
    let served = place.serve("ulimit -f 1000;", &[]);
    if !served.runs() {
        return;
    }
    let mut client = place.client();
    create(&mut client, b"file");
    for _ in 0..3 {
        let error = client.write(1, 0, &[7; 50_000]).unwrap_err();
        assert!(matches!(error, ClientError::Refused(rustix::io::Errno::NOMEM)), "{error}");
    }
    client.walk(2, "file").unwrap();
}

#[test]
fn returned_buffers_are_zeroed_on_request() {
    let place = Place::new("zero");
    let served = place.serve("", &["--zero-buffers", "--pool-files"]);
    if !served.runs() {
        return;
    }
    let mut client = place.client();
    create(&mut client, b"file");
    client.write(1, 0, &[7; 50_000]).unwrap();
    let mut pool = Client::unix(&place.socket()).unwrap().attach(MESSAGE, "/pool").unwrap();
    let started = std::time::Instant::now();
    loop {
        let text = String::from_utf8(pool.read_file(1, "statistics").unwrap()).unwrap();
        if text.lines().any(|line| line.strip_prefix("zeroed ").is_some_and(|count| count != "0")) {
            break;
        }
        assert!(started.elapsed().as_secs() < 20, "no buffer was zeroed:\n{text}");
    }
    assert_eq!(client.read_file(2, "file").unwrap(), [7; 50_000]);
}

#[test]
fn tcp_needs_a_key_for_other_machines() {
    let place = Place::new("key");
    std::fs::write(place.0.join("key"), "a long enough key\n").unwrap();
    let key = place.0.join("key");
    let served = place.serve("", &["--listen", "tcp:0.0.0.0:0"]);
    assert_eq!(served.first_line, "", "the server listens to others without a key");
    let errors = served.errors();
    assert!(errors.contains("can be reached from other machines; give a key file"), "{errors}");
    let mut command = Command::new(BINARY);
    command.args(["9p", "serve"]).arg(place.0.join("export")).args([
        "--listen",
        "tcp:127.0.0.1:0",
        "--key-file",
    ]);
    command.arg(&key);
    let served = place.start(command);
    if !served.runs() {
        return;
    }
    let address = served.first_line.strip_prefix("listening on tcp:").unwrap();
    let attach = |name: &str| Client::tcp(address).unwrap().attach(MESSAGE, name).map(drop);
    assert!(attach("/").is_err() && attach("key=a wrong key").is_err());
    attach("key=a long enough key").unwrap();
    attach("key=a long enough key:/").unwrap();
}
