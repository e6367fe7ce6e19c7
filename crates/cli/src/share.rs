//! `memferry share`: grants a file's bytes to a user of another node until a signal or for a time.
//!
//! ```text
//! file ─► frame ─ grant ─► token on standard output ─► a signal, or the time is over ─► revoke ─► file, if it was granted for writing
//! ```
//!
//! The bytes are a copy in memory: what happens to the file meanwhile is not seen by the other node.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use memferry::{BadNodeName, Client, Frame, Grantee, NodeName, Rights};
use rustix::io::Errno;

use crate::interrupt::Interrupt;
use crate::output::say;
use crate::{CommandError, files, socket};

/// Configuration of this node's link, which says its name.
const LINK_CONFIG: &str = "/etc/memferry/link.toml";
/// Bytes that are read or written at a time.
const PART_BYTES: u64 = 1 << 20;
/// How often the service is looked after.
const LOOK: Duration = Duration::from_secs(2);

/// Arguments of `share`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// File whose bytes are granted: as they are now, in memory.
    file: PathBuf,
    /// Node, and number of the user there (id -u), who may use them.
    #[arg(long, value_name = "NODE:USER")]
    to: RemoteUser,
    /// Let the user write, too; the file gets what is there at the end.
    #[arg(long)]
    write: bool,
    /// Let this node's link use the memory in place, where its configuration allows that for the other node.
    #[arg(long)]
    direct: bool,
    /// End after this time: a number with s, m, h or d. Without it, Ctrl-C ends it.
    #[arg(long, value_name = "TIME", value_parser = time)]
    lasts: Option<Duration>,
    /// Name of this node; that in /etc/memferry/link.toml if not given.
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
}

/// A user of another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RemoteUser {
    node: NodeName,
    user: u32,
}

impl FromStr for RemoteUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, user) = text.split_once(':').ok_or("it has to be NODE:USER, as in beta:1000")?;
        let node = node.parse().map_err(|error: BadNodeName| error.to_string())?;
        let user = user
            .parse()
            .map_err(|_| format!("'{user}' is no number of a user; `id -u` says it on the other node"))?;
        Ok(Self { node, user })
    }
}

/// A time, as in 90s, 15m, 1h, 2d.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time; write a number with s, m, h or d, as in 90s or 1h");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| (1..=315_360_000).contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("{text} is not from 1s to 3650d"))?;
    Ok(Duration::from_secs(seconds))
}

/// Runs `memferry share`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let node = match arguments.node {
        Some(node) => node,
        None => configured_name(Path::new(LINK_CONFIG))?,
    };
    let path = &arguments.file;
    let (file, about) = files::open_source(path)?;
    let file = if arguments.write {
        let failed = |error| format!("cannot write {}: {error}", path.display());
        OpenOptions::new().read(true).write(true).open(path).map_err(failed)?
    } else {
        file
    };
    let length = about.len();
    if length == 0 {
        return Err(format!("{} is empty: there is nothing to share", path.display()).into());
    }
    let interrupt = Interrupt::new()?;
    let client = Client::connect(&arguments.socket)?;
    let frame = client.frame(length).alloc()?;
    load(&file, &frame, length).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut rights = if arguments.write { Rights::READ | Rights::WRITE } else { Rights::READ };
    rights.set(Rights::DIRECT, arguments.direct);
    let RemoteUser { node: there, user } = arguments.to;
    let to = Grantee::Remote { node: there, user };
    let since = Instant::now();
    let grant = match arguments.lasts {
        Some(lasts) => client.grant_for(frame.slice(..length), rights, to, lasts)?,
        None => client.grant(frame.slice(..length), rights, to)?,
    };
    say!("{}", grant.remote_token(node)?);
    let until = if arguments.lasts.is_some() { "until its time is over or Ctrl-C" } else { "until Ctrl-C" };
    eprintln!("memferry: shared with user {user} of {there} {until}; there: memferry copy TOKEN FILE");
    let waited = wait(&client, &interrupt, arguments.lasts.map(|lasts| since + lasts));
    // Its answer is the promise that nothing is read or written any more.
    let revoked = grant.revoke();
    if arguments.write {
        // The bytes are here, whatever became of the service.
        let failed = |error| format!("cannot write {}: {error}; the file is incomplete", path.display());
        save(&file, &frame, length).map_err(failed)?;
    }
    match waited.and(revoked.map_err(CommandError::from)) {
        // Nobody may read it any more, as after a closed terminal.
        Ok(()) => _ = writeln!(std::io::stderr(), "memferry: revoked"),
        Err(error) if arguments.write => {
            let saved = format!("{} has what was written until now, perhaps in part", path.display());
            return Err(format!("{error}; {saved}").into());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Waits for a signal or the end of the time. An error is that the service is gone.
fn wait(client: &Client, interrupt: &Interrupt, ends: Option<Instant>) -> Result<(), CommandError> {
    loop {
        let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        if interrupt.wait(None, Some(left.map_or(LOOK, |left| left.min(LOOK))))? {
            return Ok(());
        }
        client.identify(client.session())?;
    }
}

/// Offsets and lengths of the parts of so many bytes. A frame has whole pages.
fn parts(length: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..length.div_ceil(PART_BYTES)).map(move |number| {
        let at = number * PART_BYTES;
        (at, PART_BYTES.min(length - at) as usize)
    })
}

fn load(file: &File, frame: &Frame, length: u64) -> std::io::Result<()> {
    let mut part = vec![0; PART_BYTES as usize];
    for (at, length) in parts(length) {
        file.read_exact_at(&mut part[..length], at)?;
        frame.write(at, &part[..length]).map_err(std::io::Error::other)?;
    }
    Ok(())
}

/// Writes what is not in the file yet.
fn save(file: &File, frame: &Frame, length: u64) -> std::io::Result<()> {
    let mut part = vec![0; PART_BYTES as usize];
    let mut old = vec![0; PART_BYTES as usize];
    for (at, length) in parts(length) {
        frame.read(at, &mut part[..length]).map_err(std::io::Error::other)?;
        let is_same = file.read_exact_at(&mut old[..length], at).is_ok() && old[..length] == part[..length];
        if !is_same {
            file.write_all_at(&part[..length], at)?;
        }
    }
    Ok(())
}

/// The name of this node in the configuration of its link.
fn configured_name(path: &Path) -> Result<NodeName, CommandError> {
    let remedy = "name this node with --node";
    let failed = |why: &str| format!("{}: {why}; {remedy}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| {
        let is_private = error.raw_os_error() == Some(Errno::ACCESS.raw_os_error());
        failed(if is_private {
            "this user may not read it"
        } else {
            "there is no readable configuration of a link"
        })
    })?;
    let table: toml::Table = text.parse().map_err(|_| failed("it is no TOML"))?;
    let name = table.get("name").and_then(toml::Value::as_str).ok_or_else(|| failed("it has no name"))?;
    Ok(name.parse().map_err(|error: BadNodeName| failed(&error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_users_are_read_and_mistakes_named() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2d"), Ok(Duration::from_secs(172_800)));
        for bad in ["", "s", "1", "1w", "-1s", "1.5h", "0s", "4000d", "99999999999999999999d", "1é"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        let beta = "beta".parse().unwrap();
        assert_eq!("beta:1000".parse(), Ok(RemoteUser { node: beta, user: 1000 }));
        for bad in
            ["", "beta", "beta:", ":1", "beta:-1", "beta:root", "Beta:1", "beta:4294967296", "beta:1:2"]
        {
            assert!(bad.parse::<RemoteUser>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_without_a_name_asks_for_one() {
        let path = std::env::temp_dir().join(format!("memferry-share-{}.toml", std::process::id()));
        for (text, expected) in
            [("name = 1", "no name"), ("name = \"A B\"", "1 to 16"), ("name", "no TOML"), ("", "no name")]
        {
            std::fs::write(&path, text).unwrap();
            let refused = configured_name(&path).unwrap_err().to_string();
            assert!(refused.contains(expected) && refused.contains("--node"), "{text}: {refused}");
        }
        std::fs::write(&path, "name = \"alpha\"\nkey = \"k\"").unwrap();
        assert_eq!(configured_name(&path).unwrap().to_string(), "alpha");
        std::fs::remove_file(&path).unwrap();
        assert!(configured_name(&path).unwrap_err().to_string().contains("--node"));
    }
}
