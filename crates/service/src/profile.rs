//! The profile of a machine: the thresholds that `memferry tune` measured, in a small file that people can read.
//!
//! ```text
//! MEMFERRY_PROFILE, else ~/.config/memferry/profile.toml, else /etc/memferry-profile.toml
//!   ─ load ─► Profile ─ of this CPU? ─► thresholds of the engines           (no file: what they guess)
//!   ◄─ save ─ memferry tune
//! ```
//!
//! A profile of another CPU is left alone: home directories travel. One that cannot be understood is an error, with its line.
//! Nothing is measured here.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use memferry_cpu::measure;
pub use memferry_cpu::tuning::Tuning;
use memferry_cpu::tuning::{self, TuningError};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Names the profile, or none when it is empty.
pub const VARIABLE: &str = "MEMFERRY_PROFILE";
/// The profile where a user has none.
const SYSTEM_FILE: &str = "/etc/memferry-profile.toml";
/// No profile is longer, bytes.
const LONGEST: u64 = 64 << 10;

const HEADER: &str = "\
# What `memferry tune` measured on this machine: from how many bytes on each way of moving them pays.
# Without this file memferry guesses; on another CPU than this one it does so too.
";

/// Thresholds, and the CPU they were measured on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The CPU's name, as the kernel tells it.
    pub cpu: String,
    pub thresholds: Tuning,
}

/// Why a profile was not read or written.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file system would not.
    #[error("cannot {what} the profile {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// It is no profile.
    #[error("the profile {} cannot be understood; run `memferry tune` again or delete it: {message}", path.display())]
    Unreadable {
        path: PathBuf,
        /// What is wrong, with its line.
        message: String,
    },
    /// A threshold makes no sense.
    #[error("the profile {} makes no sense; run `memferry tune` again or delete it: {source}", path.display())]
    Threshold { path: PathBuf, source: TuningError },
    /// Nobody says where it is to be.
    #[error("there is no place for a profile: set {VARIABLE}, XDG_CONFIG_HOME or HOME")]
    NoPlace,
}

/// Where the environment says that the user's profile is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    File(PathBuf),
    /// There is to be none.
    None,
    Unknown,
}

fn place(variable: impl Fn(&str) -> Option<OsString>) -> Place {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match variable(VARIABLE) {
        Some(path) if path.is_empty() => Place::None,
        Some(path) => Place::File(path.into()),
        None => folder("XDG_CONFIG_HOME")
            .or_else(|| folder("HOME").map(|home| home.join(".config")))
            .map_or(Place::Unknown, |folder| Place::File(folder.join("memferry/profile.toml"))),
    }
}

/// Where the profile of the user is, whether there is one or not.
///
/// # Errors
/// [`ProfileError::NoPlace`].
pub fn path() -> Result<PathBuf, ProfileError> {
    match place(|name| std::env::var_os(name)) {
        Place::File(path) => Ok(path),
        Place::None | Place::Unknown => Err(ProfileError::NoPlace),
    }
}

/// The thresholds of this user's or this system's profile, when there is one and it is of this CPU.
///
/// # Errors
/// [`ProfileError`].
pub fn load() -> Result<Option<Tuning>, ProfileError> {
    let files = match place(|name| std::env::var_os(name)) {
        Place::None => return Ok(None),
        Place::File(path) => vec![path, SYSTEM_FILE.into()],
        Place::Unknown => vec![SYSTEM_FILE.into()],
    };
    for path in files {
        if let Some(profile) = Profile::read(&path)?.filter(|profile| profile.cpu == cpu()) {
            return Ok(Some(profile.thresholds));
        }
    }
    Ok(None)
}

/// Bytes below which an embedded client does requests on the thread that submits them; zero for none.
#[inline]
pub fn inline_end() -> u64 {
    match tuning::current().inline_bytes {
        0 => 0,
        bytes => bytes + 1,
    }
}

/// Makes the folder that a profile is to lie in, with those on the way there.
///
/// # Errors
/// [`ProfileError::File`].
pub fn make_folder(path: &Path) -> Result<(), ProfileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| ProfileError::File { what: "make a folder for", path: path.into(), source };
    fs::create_dir_all(folder).map_err(failed)
}

impl Profile {
    /// Reads one; `None` when there is no such file, or it may not be read.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read(path: &Path) -> Result<Option<Self>, ProfileError> {
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if absent(&error) => return Ok(None),
            Err(source) => return Err(ProfileError::File { what: "read", path: path.into(), source }),
        };
        let profile = toml::from_str::<Self>(&text)
            .map_err(|error| ProfileError::Unreadable { path: path.into(), message: told(&text, &error) })?;
        let checked = profile.thresholds.check();
        checked.map_err(|source| ProfileError::Threshold { path: path.into(), source })?;
        Ok(Some(profile))
    }

    /// Writes it, whole or not at all, with the directories on the way there.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |what| move |source| ProfileError::File { what, path: path.into(), source };
        let text = toml::to_string(self).map_err(io::Error::other).map_err(failed("write"))?;
        make_folder(path)?;
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        let mut file = fs::File::create_new(&draft).map_err(failed("write"))?;
        let written = file.write_all(HEADER.as_bytes()).and_then(|()| file.write_all(text.as_bytes()));
        written.and_then(|()| fs::rename(&draft, path)).map_err(|error| {
            let _ = fs::remove_file(&draft);
            failed("write")(error)
        })
    }
}

/// The whole of an ordinary file: what is none may never end, or never begin.
fn read(path: &Path) -> io::Result<String> {
    let not_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(not_waiting).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// What is wrong, and in which line; not what stands there, for the file may be another one than was meant.
fn told(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = 1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
    format!("line {line}: {}", error.message())
}

fn absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

/// The name of this machine's CPU, as the kernel tells it.
pub fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    // Arm's kernels give numbers for the maker's name of the part.
    value("model name").or_else(|| value("CPU part")).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("memferry-profile-{}-{name}", std::process::id())).join("a/b.toml")
    }

    fn profile() -> Profile {
        Profile { cpu: "a CPU".to_owned(), thresholds: Tuning::of_this_machine() }
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let path = somewhere("round");
        assert!(Profile::read(&path).unwrap().is_none());
        // Measured once: another time a busy machine gives other numbers.
        let written = profile();
        written.write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), Some(written));
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# What `memferry tune`") && text.contains("stream_cold_bytes = 65536"),
            "{text}"
        );
        fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_profile_that_cannot_be_understood_is_refused_with_its_line_and_a_remedy() {
        let path = somewhere("odd");
        profile().write(&path).unwrap();
        let sound = fs::read_to_string(&path).unwrap();
        for (from, to, what) in [
            ("cpu =", "cpu ", "line 3"),
            ("stream_cold_bytes", "stream_colt_bytes", "stream_colt_bytes"),
            ("stream_cold_bytes = 65536", "stream_cold_bytes = -1", "line 6"),
            ("inline_bytes = 8192", "inline_bytes = 8000000", "inline_bytes = 8000000 is above"),
            ("stream_cold_bytes = 65536", "stream_cold_bytes = 1", "stream_cold_bytes = 1 is below"),
            ("zero_cold_bytes", "# zero_cold_bytes", "zero_cold_bytes"),
        ] {
            fs::write(&path, sound.replace(from, to)).unwrap();
            let said = Profile::read(&path).unwrap_err().to_string();
            assert!(said.contains(what) && said.contains("memferry tune"), "{from}: {said}");
        }
        let folder = path.parent().unwrap();
        assert!(Profile::read(folder).unwrap_err().to_string().contains("no ordinary file"));
        fs::write(&path, [0xff; 10]).unwrap();
        assert!(matches!(Profile::read(&path), Err(ProfileError::File { .. })));
        fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn the_environment_says_where_the_profile_is() {
        let at = |pairs: &[(&str, &str)]| {
            place(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let file = |path: &str| Place::File(path.into());
        assert_eq!(at(&[(VARIABLE, "p"), ("HOME", "/h")]), file("p"));
        assert_eq!(at(&[(VARIABLE, ""), ("HOME", "/h")]), Place::None);
        assert_eq!(at(&[("XDG_CONFIG_HOME", "/c"), ("HOME", "/h")]), file("/c/memferry/profile.toml"));
        assert_eq!(at(&[("XDG_CONFIG_HOME", "c"), ("HOME", "/h")]), file("/h/.config/memferry/profile.toml"));
        assert_eq!(at(&[]), Place::Unknown);
    }
}
