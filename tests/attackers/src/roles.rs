//! The roles of this program's children, and the words by which a parent names them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memferry::{Client, Queue, copy};
use rustix::process::{Resource, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

use crate::attacks::{ATTACKS, CONTROLS, Needs};
use crate::fuse::Fuse;
use crate::stage::Stage;
use crate::{Failed, fuse, system, victim};

/// Names the role, its words one to a line.
const ROLE: &str = "MEMFERRY_HOSTILE_ROLE";
/// Begins every line that a child reports, so that other output is ignored.
pub(crate) const PREFIX: &str = "hostile: ";
/// Attempts before an attack that never ran counts as refused.
const ATTEMPTS: u32 = 5;
/// Lifetime of a child whose parent was killed in a way that Linux did not report.
const LIFETIME: Duration = Duration::from_secs(900);

/// The users of a run: service, victim and attacker are strangers to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Users {
    pub service: u32,
    pub victim: u32,
    pub attacker: u32,
}

impl Users {
    /// The users, if this process may start children for them.
    ///
    /// # Errors
    /// A text that says what is missing.
    pub fn available() -> Result<Self, &'static str> {
        if rustix::process::geteuid().is_root() {
            Ok(Self { service: 60003, victim: 60001, attacker: 60002 })
        } else {
            Err("needs root: service, victim and attacker are processes of three users")
        }
    }
}

/// The command that runs this program in a role. A test binary gives the arguments that select the test that calls [`play_role`].
///
/// # Panics
/// If Linux does not know the path of this program.
#[must_use]
pub fn role(arguments: &[String], words: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = Command::new(program);
    command.args(arguments).env(ROLE, words.join("\n"));
    command
}

/// Reports a line to the parent.
pub fn report(line: impl std::fmt::Display) {
    println!("{PREFIX}{line}");
}

/// Plays the role of this process, if it has one. `arguments` are those given to [`role`].
#[must_use]
pub fn play_role(arguments: &[String]) -> Option<ExitCode> {
    let words = std::env::var(ROLE).ok()?;
    let words: Vec<&str> = words.lines().collect();
    let played = match words.as_slice() {
        // The attacker's user: Linux sends the signal at its end with its rights.
        ["fuse-server", user] => drop_to(user).and_then(|()| fuse::serve()),
        ["attack", name, socket, user, size] => {
            attack(name, Path::new(socket), user, *size == "short", arguments)
        }
        ["victim", socket, user] => drop_to(user).and_then(|()| victim::play(Path::new(socket))),
        ["honest", socket, user] => drop_to(user).and_then(|()| honest(Path::new(socket))),
        other => Err(format!("unknown role {other:?}").into()),
    };
    Some(match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("error {error}"));
            ExitCode::FAILURE
        }
    })
}

/// Becomes another user, unless `user` is empty, and ends with the parent from now on.
///
/// # Errors
/// Those of the system calls.
pub fn drop_to(user: &str) -> Result<(), Failed> {
    if !user.is_empty() {
        system::become_user(user.parse()?)?;
    }
    // A change of users clears this, so it comes second.
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

fn attack(name: &str, socket: &Path, user: &str, short: bool, arguments: &[String]) -> Result<(), Failed> {
    let attack = ATTACKS.iter().chain(CONTROLS).find(|attack| attack.name == name).ok_or("no such attack")?;
    let fuse = match attack.needs {
        Needs::Nothing => None,
        Needs::Fuse => {
            let directory = socket.with_file_name("fuse");
            match Fuse::mount(&directory, arguments, user) {
                Ok(fuse) => Some(fuse),
                Err(error) => {
                    report(format_args!("unavailable {error}"));
                    return Ok(());
                }
            }
        }
    };
    drop_to(user)?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    step_back();
    std::thread::spawn(|| {
        std::thread::sleep(LIFETIME);
        std::process::exit(1);
    });
    let stage = Stage { socket: socket.to_owned(), fuse, short, announced: AtomicBool::new(false) };
    let mut attempts = 0;
    loop {
        let Err(error) = (attack.run)(&stage) else { continue };
        attempts += 1;
        if attempts >= ATTEMPTS && !stage.announced.load(Ordering::Relaxed) {
            report(format_args!("refused {error}"));
            return Ok(());
        }
        eprintln!("{name}: {error}");
        // The service ended the connection, or another service has started.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Gives this process the lowest priority. The scheduler divides CPUs between threads, not between users, and the figures beside
/// many or busy threads would be the scheduler's. A site that wants CPUs divided between users sets up control groups.
fn step_back() {
    let _ = rustix::process::nice(19);
}

/// Copies 1 MiB again and again, with a few copies outstanding.
fn honest(socket: &Path) -> Result<(), Failed> {
    const LENGTH: u64 = 1 << 20;
    step_back();
    let client = Client::connect(socket)?;
    let source = client.frame(LENGTH).alloc()?;
    let destination = client.frame(LENGTH).alloc()?;
    let mut bytes = vec![0; LENGTH as usize];
    fastrand::Rng::with_seed(11).fill(&mut bytes);
    source.write(0, &bytes)?;
    // One for each of two workers, as the attackers have queues on both.
    let mut queues = [client.queue(8)?, client.queue(8)?];
    let again = |queue: &mut Queue| -> Result<(), Failed> {
        queue.submit(copy(&source, &destination)).map_err(|error| error.to_string())?.id();
        Ok(())
    };
    for queue in &mut queues {
        (0..4).try_for_each(|_| again(queue))?;
    }
    report("running");
    loop {
        for queue in &mut queues {
            queue.wait_any_for(Duration::from_secs(60))?.ok_or("a copy takes a minute")?;
            again(queue)?;
        }
    }
}
