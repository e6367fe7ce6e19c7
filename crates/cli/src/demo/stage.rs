//! The demo's surroundings: a directory, three users if possible, and processes that end with the demo.
//!
//! ```text
//! Stage ─ directory ─ executable for all users, a directory for each process
//!       ├ Service   `memferry serve`         ended with SIGTERM, killed when dropped
//!       ├ Actor     `memferry demo-client`   ended by the end of its input, killed when dropped
//!       └ Engine    a program of a folder    ended with SIGTERM when dropped
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::lines::{Order, Report};
use crate::child::Group;
use crate::{CommandError, interrupt};

/// How long a process may take over one answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a wait checks whether the demo was interrupted.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Service,
    A,
    B,
    Engines,
}

impl Part {
    const ALL: [Self; 4] = [Self::Service, Self::A, Self::B, Self::Engines];

    /// The unprivileged user of this role, if there are four. None is 65534: in a container that does not map all users, the
    /// service refuses that id, because it stands for every other user.
    pub(crate) const fn user(self) -> u32 {
        match self {
            Self::Service => 65531,
            Self::A => 65532,
            Self::B => 65533,
            Self::Engines => 65530,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::A => "a",
            Self::B => "b",
            Self::Engines => "engines",
        }
    }
}

/// The directory and the users.
pub(crate) struct Stage {
    directory: PathBuf,
    executable: PathBuf,
    interrupted: Arc<AtomicBool>,
    /// Whether every role has its own user; if not, why.
    pub(crate) users: Result<(), String>,
}

impl Stage {
    pub(crate) fn build() -> Result<Self, CommandError> {
        let interrupted = interrupt::flag()?;
        let directory = std::env::temp_dir().join(format!("memferry-demo-{}", std::process::id()));
        let failed = |error: io::Error| format!("cannot set up {}: {error}", directory.display());
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        let executable = directory.join("memferry");
        let mut stage = Self { directory: directory.clone(), executable, interrupted, users: Ok(()) };
        stage.install().map_err(failed)?;
        stage.users = stage.try_users();
        if stage.users.is_err() && !runs(stage.command_as(None)) {
            stage.executable = std::env::current_exe()?;
        }
        for part in Part::ALL {
            let place = stage.path_of(part, "");
            std::fs::DirBuilder::new().mode(0o755).create(&place).map_err(failed)?;
            let user = stage.user_of(part);
            chown(&place, user, user).map_err(failed)?;
        }
        Ok(stage)
    }

    /// Opens the directory to other users and copies the executable there.
    fn install(&self) -> io::Result<()> {
        std::fs::set_permissions(&self.directory, PermissionsExt::from_mode(0o755))?;
        std::fs::copy("/proc/self/exe", &self.executable)?;
        std::fs::set_permissions(&self.executable, PermissionsExt::from_mode(0o755))
    }

    /// Checks that the executable runs as each of the users.
    fn try_users(&self) -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err("the demo does not run as root".to_owned());
        }
        match Part::ALL.into_iter().find(|part| !runs(self.command_as(Some(part.user())))) {
            Some(part) => Err(format!("user {} cannot run programs here", part.user())),
            None => Ok(()),
        }
    }

    fn command_as(&self, user: Option<u32>) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir("/").env("MEMFERRY_LOG", "warn");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
    }

    fn command(&self, part: Part) -> Command {
        self.command_as(self.user_of(part))
    }

    /// A path in a role's own directory.
    pub(crate) fn path_of(&self, part: Part, file: &str) -> PathBuf {
        self.directory.join(part.name()).join(file)
    }

    /// The owner of its process and files, if it differs from the demo's user.
    pub(crate) fn user_of(&self, part: Part) -> Option<u32> {
        self.users.is_ok().then_some(part.user())
    }

    /// Copies a program or library to where every user can run it.
    pub(crate) fn take_program(&self, program: &Path) -> Result<PathBuf, CommandError> {
        let failed = |error: io::Error| {
            format!(
                "cannot copy {}: {error}; `./x demo --engines` builds the engines, `./x demo --nodes 2` the link",
                program.display()
            )
        };
        let name = program.file_name().ok_or_else(|| format!("{} names no file", program.display()))?;
        let to = self.directory.join(name);
        std::fs::copy(program, &to).map_err(failed)?;
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).map_err(failed)?;
        Ok(to)
    }

    /// Writes a file that only that role may read.
    pub(crate) fn give(&self, part: Part, file: &str, bytes: &[u8]) -> Result<PathBuf, CommandError> {
        let path = self.path_of(part, file);
        let write = || {
            // Another user owns the directory: an existing file, especially a link, is not written to.
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(bytes)?;
            let user = self.user_of(part);
            fchown(&file, user, user)
        };
        write().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn check_interrupted(&self) -> Result<(), CommandError> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn runs(mut command: Command) -> bool {
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A process and the lines it prints. Killed when dropped, with what it started.
struct Player {
    group: Group,
    lines: mpsc::Receiver<io::Result<String>>,
    interrupted: Arc<AtomicBool>,
}

impl Player {
    fn start(mut command: Command, stage: &Stage) -> Result<Self, CommandError> {
        let mut group = Group::start(command.stdout(Stdio::piped()))
            .map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
        let lines = lines_of(group.take_output())?;
        Ok(Self { group, lines, interrupted: Arc::clone(&stage.interrupted) })
    }

    /// The next line; `None` at the end.
    fn receive_line(&self) -> Result<Option<String>, CommandError> {
        let started = Instant::now();
        loop {
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => return Ok(Some(line?)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if self.interrupted.load(Ordering::Relaxed) => {
                    return Err("interrupted".into());
                }
                Err(RecvTimeoutError::Timeout) if started.elapsed() > PATIENCE => {
                    return Err(format!("a process printed nothing for {} s", PATIENCE.as_secs()).into());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for the end of the output, then for the end of the process.
    fn end(&mut self) -> Result<ExitStatus, CommandError> {
        while self.receive_line()?.is_some() {}
        Ok(self.group.wait()?)
    }
}

fn lines_of(output: Option<ChildStdout>) -> io::Result<mpsc::Receiver<io::Result<String>>> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = output {
        std::thread::Builder::new().spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(receiver)
}

pub(crate) struct Service {
    player: Player,
    pub(crate) socket: PathBuf,
}

impl Service {
    /// Starts the service with further arguments and waits until clients can connect.
    pub(crate) fn start(stage: &Stage, arguments: &[&str]) -> Result<Self, CommandError> {
        Self::start_at(stage, "memferry.sock", arguments)
    }

    /// As [`start`](Self::start), with a socket of another name: there may be several services.
    pub(crate) fn start_at(stage: &Stage, socket: &str, arguments: &[&str]) -> Result<Self, CommandError> {
        let socket = stage.path_of(Part::Service, socket);
        let mut command = stage.command(Part::Service);
        command
            .args(["serve", "--no-config", "--mode", "666", "--stop-with-parent", "--socket"])
            .arg(&socket)
            .args(arguments);
        command.stdin(Stdio::null());
        let player = Player::start(command, stage)?;
        match player.receive_line()? {
            Some(line) if line.starts_with("listening on ") => Ok(Self { player, socket }),
            Some(line) => Err(format!("the service printed: {line}").into()),
            None => Err("the service ended before it listened; its message is above".into()),
        }
    }

    pub(crate) fn process(&self) -> u32 {
        self.player.group.id()
    }

    /// Stops the service with SIGTERM and checks that it succeeded and removed its socket.
    pub(crate) fn stop(mut self) -> Result<(), CommandError> {
        self.player.group.terminate()?;
        let status = self.player.end()?;
        if !status.success() {
            return Err(format!("the service ended with {status}").into());
        }
        if self.socket.exists() {
            return Err("the service left its socket behind".into());
        }
        Ok(())
    }
}

/// A keeper, and with it the engine that it has forked.
pub(crate) struct Engine(Player);

impl Engine {
    pub(crate) fn start(
        stage: &Stage,
        program: &Path,
        socket: &Path,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self, CommandError> {
        let program = stage.take_program(program)?;
        let mut command = Command::new(&program);
        if let Some(user) = stage.user_of(Part::Engines) {
            command.uid(user).gid(user);
        }
        command.current_dir("/").arg("--socket").arg(socket).args(["--name", name]).args(arguments);
        command.stdin(Stdio::null());
        Player::start(command, stage).map(Self)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The keeper ends its engine. Should it not end, it is killed, and its engine with it.
        if self.0.group.terminate().is_ok() {
            let _ = self.0.end();
        }
    }
}

/// The link of a node. Killed when dropped, and its engine with it.
pub(crate) struct Link(Player);

impl Link {
    /// Starts a link by the words of a command. It runs as the engines' user, unless the command enters a network first, for which only
    /// root has the right.
    pub(crate) fn start(stage: &Stage, words: &[PathBuf]) -> Result<Self, CommandError> {
        let (program, arguments) = words.split_first().ok_or("the link has no command")?;
        let mut command = match (stage.user_of(Part::Engines), program.as_os_str() == "ip") {
            (Some(user), true) => {
                let (network, link) = arguments.split_at(3);
                let mut command = Command::new(program);
                command.args(network).args(["setpriv", "--clear-groups"]);
                command.args([format!("--reuid={user}"), format!("--regid={user}")]).args(link);
                command
            }
            (user, _) => {
                let mut command = Command::new(program);
                command.args(arguments);
                if let Some(user) = user {
                    command.uid(user).gid(user);
                }
                command
            }
        };
        command.current_dir("/").stdin(Stdio::null());
        Player::start(command, stage).map(Self)
    }

    /// Checks that it runs.
    pub(crate) fn check(&mut self) -> Result<(), CommandError> {
        match self.0.group.status()? {
            Some(status) => Err(format!("a link ended ({status}); its message is above").into()),
            None => Ok(()),
        }
    }
}

impl Stage {
    /// Makes a link's key, and returns what the program prints: its public half.
    pub(crate) fn keygen(&self, program: &Path, file: &Path) -> Result<String, CommandError> {
        let mut command = Command::new(program);
        if let Some(user) = self.user_of(Part::Engines) {
            command.uid(user).gid(user);
        }
        let made = command.current_dir("/").arg("keygen").arg(file).stdin(Stdio::null()).output()?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned().into());
        }
        Ok(String::from_utf8_lossy(&made.stdout).trim().to_owned())
    }
}

pub(crate) struct Actor {
    player: Player,
    input: Option<ChildStdin>,
    name: &'static str,
}

impl Actor {
    pub(crate) fn start(stage: &Stage, part: Part, socket: &Path) -> Result<Self, CommandError> {
        let mut command = stage.command(part);
        command.args(["demo-client", "--socket"]).arg(socket).stdin(Stdio::piped());
        let mut player = Player::start(command, stage)?;
        let input = player.group.take_input();
        Ok(Self { player, input, name: if part == Part::A { "A" } else { "B" } })
    }

    /// Sends an order and receives its report. A reported failure is an error.
    pub(crate) fn ask(&mut self, order: &Order) -> Result<Report, CommandError> {
        let name = self.name;
        let input = self.input.as_mut().ok_or("the client's input is closed")?;
        writeln!(input, "{}", serde_json::to_string(order)?)
            .map_err(|error| format!("client {name} no longer reads orders: {error}"))?;
        let line = self
            .player
            .receive_line()?
            .ok_or_else(|| format!("client {name} ended; its message is above"))?;
        match serde_json::from_str(&line)? {
            Report::Failed { message } => Err(format!("client {name}: {message}").into()),
            report => Ok(report),
        }
    }

    /// Closes the client's input and checks that it succeeded.
    pub(crate) fn dismiss(mut self) -> Result<(), CommandError> {
        self.input = None;
        let status = self.player.end()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("client {} ended with {status}", self.name).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_link_is_noticed() {
        let stage = Stage {
            directory: PathBuf::from("/nonexistent"),
            executable: PathBuf::new(),
            interrupted: Arc::default(),
            users: Err("a test has one user".to_owned()),
        };
        let start = |words: [&str; 2]| Link::start(&stage, &words.map(PathBuf::from)).unwrap();
        start(["sleep", "600"]).check().unwrap();
        let mut ended = start(["test", ""]);
        ended.0.end().unwrap();
        assert!(ended.check().unwrap_err().to_string().contains("(exit status: 1)"));
    }
}
