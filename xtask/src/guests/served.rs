//! A model's process beside a guest: the socket between them, its beginning and its end, and QEMU's command line with it.
//!
//! ```text
//! memferry-device serve NAME --socket FOLDER/socket ◄── vfio-user ── QEMU: memory that the process shares
//! ```

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::backport;
use super::machine::Boot;
use super::watch;
use crate::failure::Failure;
use crate::files::broken;
use crate::line::Line;
use crate::stages::say;

/// How long the device may take to listen, and to end after its guest.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the device says once it listens.
const LISTENS: &str = "memferry-device: serving ";

/// A new folder of this user's own for a socket, whose path must be short; removed at the end.
pub(crate) struct SocketFolder(PathBuf);

impl SocketFolder {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("memferry-{name}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // Somebody else's, or left by a process that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(broken(&path, &error)),
            }
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// Lets programs of other users reach the socket.
    pub(crate) fn open_to_all(&self) -> Result<(), Failure> {
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711))
            .map_err(|error| broken(&self.0, &error))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // A device that was killed has left its socket.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process of the device; it ends with this value.
pub(super) struct Device {
    child: Child,
    log: PathBuf,
    was_killed: bool,
}

impl Device {
    /// Starts it and waits until it says that it listens. (To connect would be to be its client.)
    pub(super) fn start(line: &Line, log: &Path) -> Result<Self, Failure> {
        let file = fs::File::create(log).map_err(|error| broken(log, &error))?;
        let errors = file.try_clone().map_err(|error| broken(log, &error))?;
        let mut command = line.command();
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child =
            command.spawn().map_err(|error| Failure::setup(format!("cannot start {line}: {error}")))?;
        let mut device = Self { child, log: log.to_owned(), was_killed: false };
        let start = Instant::now();
        loop {
            // Before the log is read, so that the last words of one that has ended are there.
            let has_ended = !matches!(device.child.try_wait(), Ok(None));
            let said = fs::read_to_string(log).unwrap_or_default();
            if said.contains(LISTENS) {
                return Ok(device);
            }
            if has_ended || start.elapsed() > PATIENCE {
                return Err(Failure::setup(format!("the device does not listen; it said: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn kill(&mut self) {
        self.was_killed = true;
        watch::end(&mut self.child);
    }

    /// Waits until it ends because its guest is gone, or sees that it was killed if it should be; the status of the stage.
    pub(super) fn end(mut self, should_be_killed: bool) -> u8 {
        if self.was_killed != should_be_killed {
            say(if should_be_killed {
                "the guest did not ask to kill its device"
            } else {
                "the device was killed"
            });
            return 1;
        }
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() || self.was_killed => return 0,
                Ok(Some(status)) => {
                    let said = fs::read_to_string(&self.log).unwrap_or_default();
                    say(format_args!("the device ended with {status}; it said: {}", said.trim()));
                    return 1;
                }
                _ if start.elapsed() > PATIENCE => {
                    say(format_args!("the device did not end within {} s of its guest", PATIENCE.as_secs()));
                    return 1;
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        watch::end(&mut self.child);
    }
}

/// The command line of a device's process.
pub(super) fn line(program: &Path, name: &str, socket: &Path) -> Line {
    // It ends with this program, however that ends, and removes its socket.
    Line::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(program)
        .args(["serve", name, "--socket"])
        .arg(socket)
}

/// QEMU's command line: a machine with PCI Express and memory that the device's process shares, devices that come before it, the device.
pub(super) fn machine(
    qemu: Line,
    (machine, memory): (&str, &str),
    boot: &Boot,
    append: &str,
    before: &[&str],
    socket: &Path,
) -> Line {
    let device = format!(
        "{{\"driver\":\"{}\",\"socket\":{{\"path\":\"{}\",\"type\":\"unix\"}}}}",
        backport::DEVICE,
        socket.display()
    );
    qemu.args(["-M", machine, "-m", memory, "-smp", "2", "-cpu", "max", "-nodefaults", "-nic", "none"])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-object"])
        .arg(format!("memory-backend-memfd,id=memory,size={memory},share=on"))
        .args(["-machine", "memory-backend=memory", "-kernel"])
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initrd)
        .arg("-append")
        .arg(format!("console=ttyS0 quiet panic=-1 log_buf_len=16M {append}"))
        .args(before)
        .arg("-device")
        .arg(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_ends_before_it_listens_is_reported() {
        let log = std::env::temp_dir().join(format!("xtask-device-{}", std::process::id()));
        let line = Line::new("sh").args(["-c", "echo no such model >&2; exit 2"]);
        let failure = Device::start(&line, &log).err().unwrap().to_string();
        fs::remove_file(&log).unwrap();
        assert!(failure.contains("does not listen") && failure.contains("no such model"), "{failure}");
    }

    #[test]
    fn a_device_must_end_well_or_be_killed_as_its_scene_says() {
        let log = std::env::temp_dir().join(format!("xtask-ended-{}", std::process::id()));
        let start = |script: &str| {
            let script = format!("echo '{LISTENS}a model' >&2; {script}");
            Device::start(&Line::new("sh").args(["-c", &script]), &log).unwrap()
        };
        assert_eq!(start("exit 0").end(false), 0);
        assert_eq!(start("exit 3").end(false), 1);
        assert_eq!(start("exit 0").end(true), 1);
        for (should_be_killed, status) in [(true, 0), (false, 1)] {
            let mut killed = start("exec sleep 60");
            killed.kill();
            assert_eq!(killed.end(should_be_killed), status);
        }
        fs::remove_file(&log).unwrap();
    }

    #[test]
    fn a_socket_has_a_folder_of_its_own() {
        use std::os::unix::fs::PermissionsExt;
        let [one, two] = [SocketFolder::new("test").unwrap(), SocketFolder::new("test").unwrap()];
        assert_ne!(one.socket(), two.socket());
        let folder = one.0.clone();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.socket(), "").unwrap();
        drop(one);
        assert!(!folder.exists());
    }
}
