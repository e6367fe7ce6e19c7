//! Processes that a command starts and ends.
//!
//! ```text
//! start ─► process group of its own ─► end: by itself, or killed when dropped ─► what is left of the group is killed
//! ```
//!
//! A terminal's signals do not reach the group, so the command has to end it: see [`crate::interrupt::flag`].

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// A process, and those that it started and that did not leave its process group. They are killed when this is dropped.
pub(crate) struct Group {
    first: Child,
    status: Option<ExitStatus>,
}

impl Group {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self { first: command.process_group(0).spawn()?, status: None })
    }

    /// The number of the process that was started.
    pub(crate) fn id(&self) -> u32 {
        self.first.id()
    }

    /// Its piped standard input; `None` if there is none any more.
    pub(crate) fn take_input(&mut self) -> Option<ChildStdin> {
        self.first.stdin.take()
    }

    /// Its piped standard output; `None` if there is none any more.
    pub(crate) fn take_output(&mut self) -> Option<ChildStdout> {
        self.first.stdout.take()
    }

    /// Asks the first process to end.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        match self.status {
            Some(_) => Ok(()),
            None => Ok(kill_process(Pid::from_child(&self.first), Signal::TERM)?),
        }
    }

    /// How the first process ended; `None` if it runs. Once it has ended, so have the others.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.look(WaitIdOptions::NOHANG)
    }

    /// Waits for the end of the first process, and kills the others.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.look(WaitIdOptions::empty())? {
                return Ok(status);
            }
        }
    }

    fn look(&mut self, options: WaitIdOptions) -> io::Result<Option<ExitStatus>> {
        // Not waited for yet, the process keeps its number, and with it the group's.
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let pid = WaitId::Pid(Pid::from_child(&self.first));
        if self.status.is_none() && rustix::io::retry_on_intr(|| waitid(pid.clone(), options))?.is_some() {
            self.kill()?;
        }
        Ok(self.status)
    }

    fn kill(&mut self) -> io::Result<()> {
        let _ = kill_process_group(Pid::from_child(&self.first), Signal::KILL);
        self.status = Some(self.first.wait()?);
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A shell that has started another process. Its output ends when both have.
    fn shell(end: &str) -> (Group, BufReader<ChildStdout>) {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("sleep 600 & echo ready; {end}")]).stdout(Stdio::piped());
        let mut group = Group::start(&mut command).unwrap();
        let mut output = BufReader::new(group.take_output().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        (group, output)
    }

    fn has_ended(output: &BufReader<ChildStdout>) -> bool {
        let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
        poll(&mut [PollFd::new(output.get_ref(), PollFlags::IN)], Some(&limit)) == Ok(1)
    }

    #[test]
    fn a_dropped_group_ends_with_its_children() {
        let (mut group, output) = shell("wait");
        assert_eq!(group.status().unwrap(), None);
        drop(group);
        assert!(has_ended(&output));
    }

    #[test]
    fn children_do_not_outlive_the_first_process() {
        let (mut group, output) = shell("exit 3");
        assert_eq!(group.wait().unwrap().code(), Some(3));
        assert!(has_ended(&output));
        assert_eq!(group.status().unwrap().and_then(|status| status.code()), Some(3));
    }
}
