//! `memferry demo --engines`: what the demo shows of engine processes, and of memory that only one of them reaches.
//!
//! ```text
//! A's file ─► host memory ─ "example" moves it ─► B
//!        └──► memory of "cuda" ─ granted to B ─► B's host memory     revoked in mid-flight      lost when "cuda" is killed
//! ```
//!
//! The programs are those of a folder: an engine that copies by the CPU, and the CUDA engine over a driver that is a fake. So no GPU is
//! used, and no time is worth measuring.

use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, ExternalStatus, SessionId};

use super::lines::{Order, Report};
use super::stage::{Actor, Engine, Part, Service, Stage};
use super::story::{introduce, refused, unexpected};
use crate::measure::Bytes;
use crate::output::say;
use crate::{CommandError, status};

/// Bytes of the file that go to the engine's memory.
const MAX_BYTES: usize = 16 << 20;
/// Bytes of memory that the CUDA engine gives to clients.
const MEMORY: &str = "134217728";
/// Copies that run when the memory is revoked or the engine killed.
const COPIES: u32 = 64;
const EXAMPLE: &str = "example";
const CUDA: &str = "cuda";
/// How long an engine may take to connect.
const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of this part, which are dropped in this order.
pub(crate) struct Story<'a> {
    a: Actor,
    b: Actor,
    _engines: [Engine; 2],
    service: Service,
    stage: &'a Stage,
    /// Sees the engines' status.
    own: Client,
    b_session: SessionId,
    file: Vec<u8>,
    /// Files that A was given.
    files: u32,
}

impl<'a> Story<'a> {
    /// Starts the processes, and waits until both engines are connected.
    pub(crate) fn open(stage: &'a Stage, file: &[u8], programs: &Path) -> Result<Self, CommandError> {
        say!("memferry demo --engines: a service, two engine processes and two clients\n");
        let user = stage.user_of(Part::Engines).unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let example = format!("{EXAMPLE} user={user} shortest=65536");
        let cuda = format!("{CUDA} user={user}");
        let service = Service::start(stage, &["--engine", &example, "--engine", &cuda])?;
        let socket = service.socket.clone();
        let start = |program: &str, name: &str, arguments: &[&str]| {
            Engine::start(stage, &programs.join(program), &socket, name, arguments)
        };
        let library = stage.take_program(&programs.join("libcuda.so.1"))?;
        let library = library.to_str().ok_or("the demo's directory has no name in UTF-8")?;
        let engines = [
            start("memferry-engine-example", EXAMPLE, &[])?,
            start("memferry-engine-cuda", CUDA, &["--memory", MEMORY, "--library", library])?,
        ];
        let own = Client::connect(&socket)?;
        let mut a = Actor::start(stage, Part::A, &socket)?;
        let mut b = Actor::start(stage, Part::B, &socket)?;
        say!("The service is process {}.", service.process());
        introduce("A", &mut a)?;
        let b_session = introduce("B", &mut b)?;
        let mut file = file.to_vec();
        file.truncate(MAX_BYTES);
        let story = Self { a, b, _engines: engines, service, stage, own, b_session, file, files: 0 };
        for name in [EXAMPLE, CUDA] {
            let engine = story.connected(name, None)?;
            let process = engine.process.unwrap_or(0);
            say!("Engine {name:?} is process {process} of user {}.", engine.user);
        }
        say!(
            "Their devices are a CPU copy loop, and a fake of NVIDIA's driver that keeps its memory in the engine's process."
        );
        Ok(story)
    }

    /// Tells the whole story.
    pub(crate) fn tell(mut self) -> Result<(), CommandError> {
        say!("\n1. The example engine copies A's file to B, between frames of the host");
        self.shared(None)?;
        say!(
            "\n2. A puts the file into memory that only the CUDA engine reaches, and B copies it from there"
        );
        self.shared(Some(CUDA))?;
        say!("\n3. A revokes the grant while {COPIES} of B's copies are on their way");
        self.begin()?;
        match self.a.ask(&Order::Revoke)? {
            Report::Revoked => {}
            other => return Err(unexpected(&other)),
        }
        self.finish(&["was revoked", "cancelled"])?;
        refused(&mut self.b, &Order::FetchAgain)?;
        say!("\n4. The CUDA engine is killed while {COPIES} copies are on their way");
        self.shared(Some(CUDA))?;
        let before = self.connected(CUDA, None)?.process;
        self.begin()?;
        self.kill(before)?;
        self.finish(&["the engine was reset", "no engine of this service", "was revoked", "cancelled"])?;
        let again = self.connected(CUDA, before)?;
        say!(
            "   The engine is back as process {}. Its memory was lost with its process:",
            again.process.unwrap_or(0)
        );
        refused(&mut self.b, &Order::FetchAgain)?;
        self.shared(Some(CUDA))?;
        self.end()
    }

    /// A places the file at `home` and grants it to B, which copies it to memory of the host.
    fn shared(&mut self, home: Option<&str>) -> Result<(), CommandError> {
        self.files += 1;
        let file = self.stage.give(Part::A, &format!("file-{}", self.files), &self.file)?;
        let place = Order::Place { file, home: home.map(str::to_owned) };
        let (length, given) = match self.a.ask(&place)? {
            Report::Registered { length, checksum, .. } => (length, checksum),
            other => return Err(unexpected(&other)),
        };
        let token = match self.a.ask(&Order::Grant { to: self.b_session })? {
            Report::Granted { token } => token,
            other => return Err(unexpected(&other)),
        };
        match self.b.ask(&Order::Take { token })? {
            Report::Taken { engine, checksum } if checksum == given => {
                say!("   {} arrived at B with the same SHA-256, moved by an {engine}.", Bytes(length));
                if engine != "engine process" {
                    return Err("no engine process moved it".into());
                }
                Ok(())
            }
            Report::Taken { checksum, .. } => {
                Err(format!("B's copy has SHA-256 {checksum}, A's memory has {given}").into())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn begin(&mut self) -> Result<(), CommandError> {
        match self.b.ask(&Order::Begin { copies: COPIES })? {
            Report::Begun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// B waits for its copies. The messages of those that failed must have words of `meant`.
    fn finish(&mut self, meant: &[&str]) -> Result<(), CommandError> {
        let Report::Finished { done, failed } = self.b.ask(&Order::Finish)? else {
            return Err("B did not wait for its copies".into());
        };
        say!("   {done} were done; each of the others ended once:");
        let mut all = done;
        for (message, count) in failed {
            say!("     {count}: {message}");
            if !meant.iter().any(|words| message.contains(words)) {
                return Err(format!("copies of B failed in another way than expected: {message}").into());
            }
            all += count;
        }
        if all == COPIES { Ok(()) } else { Err(format!("{all} copies ended, of {COPIES}").into()) }
    }

    /// The status of an engine that is connected as another process than `before`.
    fn connected(&self, name: &str, before: Option<u32>) -> Result<ExternalStatus, CommandError> {
        let started = Instant::now();
        loop {
            self.stage.check_interrupted()?;
            let engines = self.own.status()?.engines;
            let found = engines.into_iter().find(|engine| engine.name == name && engine.is_connected);
            if let Some(engine) = found.filter(|engine| engine.process != before) {
                return Ok(engine);
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("engine {name} did not connect within {} s", PATIENCE.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(&self, process: Option<u32>) -> Result<(), CommandError> {
        let number = process.and_then(|number| rustix::process::Pid::from_raw(number.cast_signed()));
        let number = number.ok_or("the engine has no process")?;
        Ok(rustix::process::kill_process(number, rustix::process::Signal::KILL)?)
    }

    fn end(self) -> Result<(), CommandError> {
        say!("\n5. The service's status (`memferry status`), and the end");
        status::print(&self.own, "   ")?;
        drop(self.own);
        self.b.dismiss()?;
        self.a.dismiss()?;
        self.service.stop()?;
        say!(
            "   The clients ended after their input was closed, the service after SIGTERM, and the engines are ended now."
        );
        Ok(())
    }
}
