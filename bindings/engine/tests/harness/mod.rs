//! Shared by the tests of the example engine at a service: the service, which is the test's binary in a role, and the compiled example.

#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../../../c/tests/static_library/mod.rs"]
mod static_library;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memferry_daemon::{DaemonOptions, serve};
use memferry_service::{EngineConfig, FramesOf, ServiceConfig};

const ROLE: &str = "MEMFERRY_ENGINE_TEST_SERVES";

/// How long a test waits for what must happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How a service knows the example engine.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The user that the engine runs as.
    pub(crate) user: u32,
    /// The users whose frames it gets.
    pub(crate) clients: Vec<u32>,
    /// The shortest transfer that it gets.
    pub(crate) shortest_bytes: Option<u64>,
}

impl Known {
    /// An engine and clients of this process's user.
    pub(crate) fn own(shortest_bytes: Option<u64>) -> Self {
        let user = own_user();
        Self { user, clients: vec![user], shortest_bytes }
    }

    fn config(&self) -> EngineConfig {
        EngineConfig {
            frames_of: FramesOf::Users(self.clients.clone()),
            shortest_bytes: self.shortest_bytes,
            exports_to: FramesOf::All,
            ..EngineConfig::new("example", self.user)
        }
    }

    /// For the role's environment.
    fn encode(&self) -> String {
        let clients: Vec<_> = self.clients.iter().map(u32::to_string).collect();
        let shortest = self.shortest_bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        format!("{} {} {shortest}", self.user, clients.join(","))
    }

    fn decode(text: &str) -> Self {
        let [user, clients, shortest]: [&str; 3] =
            text.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let number = |text: &str| text.parse().expect("a user");
        Self {
            user: number(user),
            clients: clients.split(',').map(number).collect(),
            shortest_bytes: shortest.parse().ok(),
        }
    }
}

pub(crate) fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The role; passes at once in ordinary test runs.
#[test]
fn serves() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (socket, known) = role.split_once('\n').expect("a path and what is known of the engine");
    let known = Known::decode(known);
    let is_own = known.user == own_user() && known.clients == [own_user()];
    let options = DaemonOptions {
        socket: socket.into(),
        mode: if is_own { 0o600 } else { 0o666 },
        service: ServiceConfig { workers: 1, engines: vec![known.config()], ..ServiceConfig::default() },
        grace: Duration::ZERO,
        sandbox: false,
    };
    serve(&options, || println!("listening")).unwrap();
}

/// A process that is killed when the test ends.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    /// The engine that this keeper has forked.
    pub(crate) fn engine(&self) -> Option<i32> {
        let number = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }
}

/// A socket's path of this test, where nothing is. Removed when the value is dropped.
pub(crate) struct Socket(pub(crate) PathBuf);

impl Socket {
    pub(crate) fn fresh(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("memferry-engine-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        Self(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts the service, and returns when it listens.
pub(crate) fn start_service(socket: &Path, known: &Known) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["harness::serves", "--exact", "--nocapture"]);
    command.env(ROLE, format!("{}\n{}", socket.display(), known.encode())).stdout(Stdio::piped());
    let mut service = Killed(command.spawn().unwrap());
    let lines = BufReader::new(service.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("listening")), "the service did not start");
    service
}

/// The folder of the crate.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library of this build.
fn library() -> PathBuf {
    static_library::beside_this_test("libmemferry_engine_c-")
}

/// An example engine in a folder of its own, which is removed with it. Other users may not be able to enter the folder of the build.
pub(crate) struct Example {
    folder: PathBuf,
    program: &'static str,
    /// Bytes of memory of its own.
    memory: Option<u64>,
}

impl Example {
    fn fresh(name: &str, program: &'static str) -> Self {
        let folder = std::env::temp_dir().join(format!("memferry-engine-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        Self { folder, program, memory: None }
    }

    /// The one in C, compiled with the static library of this build.
    pub(crate) fn compile(name: &str) -> Self {
        let example = Self::fresh(name, "memferry-engine-example");
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-O2", "-I"]).arg(folder()).arg("-o").arg(example.program());
        command.arg(folder().join("../../engines/example/memferry-engine-example.c")).arg(library());
        command.args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]);
        assert!(command.status().unwrap().success());
        example
    }

    /// Gives it memory of its own.
    pub(crate) fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// The one in Python, with the shared library of this build. `None` without Python.
    pub(crate) fn python(name: &str) -> Option<Self> {
        if Command::new("python3").arg("--version").output().is_err() {
            println!("not tested: python3 is not installed");
            return None;
        }
        let example = Self::fresh(name, "memferry_engine_example.py");
        let source = folder().join("../../engines/example-python").join(example.program);
        // Written by this process it could be "busy": a child that another test is just starting has the open file too.
        assert!(Command::new("cp").arg(source).arg(example.program()).status().unwrap().success());
        let mut install = Command::new(folder().join("install"));
        assert!(install.arg(library()).arg(&example.folder).status().unwrap().success());
        Some(example)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.folder.join(self.program)
    }

    /// The command that runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env("MEMFERRY_ENGINE_LIBRARY", self.folder.join("lib/libmemferry_engine.so.0"));
        command
    }

    /// Starts it as `user`.
    pub(crate) fn start(&self, socket: &Path, user: u32, shortest: &str) -> Killed {
        let mut command = self.command();
        command.arg("--socket").arg(socket).args(["--name", "example", "--shortest", shortest]);
        command.args(self.memory.iter().flat_map(|bytes| ["--memory".to_owned(), bytes.to_string()]));
        if user != own_user() {
            command.uid(user).gid(user);
        }
        Killed(command.spawn().unwrap())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a condition that another process fulfils.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
