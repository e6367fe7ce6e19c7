//! Servers of others for the same file, in user space on the loopback interface, each with its client.
//!
//! ```text
//! rsync --daemon ─► rsync rsync://...      sshd, keys of this run ─► scp      ganesha.nfsd, VFS ─► nfs-cp nfs://...
//! ```
//!
//! They are installed, or unpacked below a folder; nothing of the machine's own configuration is read or changed. A server ends with this
//! program.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::TOOLS_VARIABLE;
use super::nodes::{free_port, patiently, user};
use crate::BenchError;
use crate::children::Program;

const ADDRESS: &str = "127.0.0.1";
/// Where Debian's packages have programs, and libraries that are not where the loader looks.
const PROGRAMS: [&str; 3] = ["usr/bin", "usr/sbin", "bin"];
const LIBRARIES: [&str; 4] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/ganesha",
    "usr/lib/x86_64-linux-gnu/ganesha",
];
/// Where the modules of Ganesha are, below the root or the folder.
const MODULES: &str = "usr/lib/x86_64-linux-gnu/ganesha";

/// Starts `sshd` where its own user and folder are, without making these on the machine.
const SSHD_BY_ROOT: &str = "set -e
cp /etc/passwd \"$2/passwd\"
grep -q ^sshd: \"$2/passwd\" || echo 'sshd:x:65533:65534::/:/usr/sbin/nologin' >> \"$2/passwd\"
echo 'root:*:19000:0:99999:7:::' > \"$2/shadow\"
mount --bind \"$2/passwd\" /etc/passwd
mount --bind \"$2/shadow\" /etc/shadow
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
exec \"$1\" -D -e -f \"$2/sshd.conf\"";

/// Where the programs are.
pub(super) struct Tools {
    folder: Option<PathBuf>,
}

impl Tools {
    pub(super) fn find() -> Self {
        Self { folder: std::env::var_os(TOOLS_VARIABLE).map(PathBuf::from) }
    }

    /// A program, with its package for the message that it is missing.
    fn program(&self, name: &str, package: &str) -> Result<String, BenchError> {
        let unpacked = self.folder.iter().flat_map(|folder| PROGRAMS.map(|place| folder.join(place)));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let installed = std::env::split_paths(&path).chain(PROGRAMS.map(|place| Path::new("/").join(place)));
        let found = unpacked.chain(installed).map(|place| place.join(name)).find(|program| program.exists());
        let found = found.ok_or_else(|| {
            format!("{name} is missing; ./x bench unpacks it where it can (Debian: {package})")
        })?;
        Ok(found.display().to_string())
    }

    fn libraries(&self) -> String {
        let root = self.folder.as_deref().unwrap_or(Path::new("/"));
        LIBRARIES.map(|place| root.join(place).display().to_string()).join(":")
    }

    fn modules(&self) -> PathBuf {
        let unpacked = self.folder.iter().map(|folder| folder.join(MODULES));
        unpacked.chain([Path::new("/").join(MODULES)]).find(|place| place.exists()).unwrap_or_default()
    }
}

/// A server that runs, and the words of its client but for the destination.
pub(super) struct Server {
    _server: Option<Program>,
    client: Vec<String>,
    libraries: String,
}

impl Server {
    /// One that does not run.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self { _server: None, client: vec!["true".to_owned()], libraries: String::new() }
    }

    /// The command that copies the file.
    pub(super) fn command(&self, destination: &Path) -> Command {
        let mut command = Command::new(&self.client[0]);
        command.args(&self.client[1..]).arg(destination).env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    /// Starts a server by these words, and waits until it listens.
    fn start(tools: &Tools, port: u16, words: &[&str], client: Vec<String>) -> Result<Self, BenchError> {
        let libraries = tools.libraries();
        let mut server = Program::start(words, &[("LD_LIBRARY_PATH", &libraries)])?;
        patiently("a server to listen", || {
            if !server.runs()? {
                return Err(format!("it did not start: {}", words.join(" ")).into());
            }
            Ok(TcpStream::connect((ADDRESS, port)).ok().map(drop))
        })?;
        // A moment for what it does after it listens.
        std::thread::sleep(Duration::from_millis(100));
        Ok(Self { _server: Some(server), client, libraries })
    }
}

/// What is served: a file, and a folder for the servers' own files.
pub(super) struct Place<'a> {
    pub(super) file: &'a Path,
    pub(super) own: &'a Path,
}

impl Place<'_> {
    fn folder(&self) -> String {
        self.file.parent().unwrap_or(Path::new("/")).display().to_string()
    }

    fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn own(&self, name: &str) -> String {
        self.own.join(name).display().to_string()
    }
}

/// Clear text, as bytes over UCX are.
pub(super) fn rsync(tools: &Tools, place: &Place<'_>) -> Result<Server, BenchError> {
    let program = tools.program("rsync", "rsync")?;
    let port = free_port()?;
    let as_user = if user() == 0 { "uid = 0\ngid = 0\n" } else { "" };
    let settings = format!(
        "port = {port}\naddress = {ADDRESS}\nuse chroot = no\nreverse lookup = no\n{as_user}[files]\npath = {}\nread only = yes\n",
        place.folder()
    );
    let config = place.own("rsyncd.conf");
    std::fs::write(&config, settings)?;
    let words = [&*program, "--daemon", "--no-detach", "--config", &config];
    let address = format!("rsync://{ADDRESS}:{port}/files/{}", place.name());
    Server::start(tools, port, &words, vec![program.clone(), address])
}

/// Encrypted. By root in a mount namespace of its own: the server wants a user and a folder.
pub(super) fn scp(tools: &Tools, place: &Place<'_>) -> Result<Server, BenchError> {
    let server = tools.program("sshd", "openssh-server")?;
    let beside = |name| tools.program(name, "openssh-client");
    let client = beside("scp")?;
    let ssh = beside("ssh")?;
    let keygen = beside("ssh-keygen")?;
    let [host_key, key] = ["host-key", "key"].map(|name| place.own(name));
    for key in [&host_key, &key] {
        let made = Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f", key]).status()?;
        if !made.success() {
            return Err("ssh-keygen makes no key".into());
        }
    }
    let port = free_port()?;
    let settings = format!(
        "Port {port}\nListenAddress {ADDRESS}\nHostKey {host_key}\nAuthorizedKeysFile {key}.pub\nPidFile none\nUsePAM no\n\
         StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
         Subsystem sftp internal-sftp\n"
    );
    let config = place.own("sshd.conf");
    std::fs::write(&config, settings)?;
    let own = place.own.display().to_string();
    let by_root = ["unshare", "--mount", "sh", "-c", SSHD_BY_ROOT, "sshd", &server, &own];
    let by_others = [&*server, "-D", "-e", "-f", &config];
    let words: &[&str] = if user() == 0 { &by_root } else { &by_others };
    let name = nix::unistd::User::from_uid(nix::unistd::Uid::current())?.ok_or("this user has no name")?.name;
    let options =
        ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"];
    let from = format!("{name}@{ADDRESS}:{}", place.file.display());
    let port_text = port.to_string();
    let before = [&*client, "-q", "-S", &ssh, "-F", "none", "-i", &key, "-P", &port_text];
    let after = ["-o", "IdentitiesOnly=yes", &from];
    let words_of_client =
        before.iter().chain(&options).chain(&after).map(|word| (*word).to_owned()).collect();
    Server::start(tools, port, words, words_of_client)
}

/// Clear text, version 4.0. Its VFS module opens files by handles, which takes root.
pub(super) fn nfs(tools: &Tools, place: &Place<'_>) -> Result<Server, BenchError> {
    let program = tools.program("ganesha.nfsd", "nfs-ganesha, nfs-ganesha-vfs")?;
    let client = tools.program("nfs-cp", "libnfs-utils")?;
    if user() != 0 {
        return Err("nfs-ganesha's module for file systems opens files by handles, which takes root".into());
    }
    let port = free_port()?;
    let recovery = place.own("recovery");
    std::fs::create_dir(&recovery)?;
    let settings = format!(
        "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = {ADDRESS}; Enable_NLM = false; Enable_RQUOTA = false; Plugins_Dir = \"{}\"; }}\n\
         NFSV4 {{ RecoveryRoot = \"{recovery}\"; Graceless = true; Only_Numeric_Owners = true; UseGetpwnam = true; Minor_Versions = 0; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{}\"; Pseudo = \"/files\"; Access_Type = RO; Squash = No_Root_Squash; Protocols = 4; Transports = TCP; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
        tools.modules().display(),
        place.folder()
    );
    let config = place.own("ganesha.conf");
    std::fs::write(&config, settings)?;
    let [log, pid] = ["ganesha.log", "ganesha.pid"].map(|name| place.own(name));
    let words = [&*program, "-F", "-f", &config, "-L", &log, "-p", &pid, "-N", "CRIT"];
    let address = format!("nfs://{ADDRESS}/files/{}?version=4&nfsport={port}", place.name());
    Server::start(tools, port, &words, vec![client, address])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let tools = Tools { folder: Some("/none".into()) };
        let error = tools.program("no-such-program", "no-package").unwrap_err().to_string();
        assert!(
            error.contains("no-such-program is missing") && error.contains("Debian: no-package"),
            "{error}"
        );
        assert!(tools.program("sh", "dash").unwrap().ends_with("/sh"));
        assert!(tools.libraries().starts_with("/none/usr/lib/x86_64-linux-gnu:/none/lib/"));
    }
}
