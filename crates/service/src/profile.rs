//! The profile of a machine: thresholds measured by `memferry tune`, in a small text file.
//!
//! ```text
//! MEMFERRY_PROFILE, else ~/.config/memferry/profile.toml, else /etc/memferry-profile.toml
//!   ─ load ─► Profile ─ same CPU? ─► thresholds of the engines           (no file: built-in estimates)
//!   ◄─ save ─ memferry tune
//! ```
//!
//! A profile of another CPU is ignored, because home directories are shared between machines. A malformed profile is an
//! error that names the line. `memferry_cpu::measure` does the measuring.

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

/// Environment variable with the path of the profile. Empty: use no profile.
pub const VARIABLE: &str = "MEMFERRY_PROFILE";
/// The profile for users who have none.
const SYSTEM_FILE: &str = "/etc/memferry-profile.toml";
/// Maximum length of a profile, bytes.
const MAX_BYTES: u64 = 64 << 10;

const HEADER: &str = "\
# What `memferry tune` measured on this machine: the number of bytes from which each method of moving them pays.
# Without this file, or on another CPU, memferry uses built-in estimates.
";

/// Thresholds and the CPU on which they were measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The CPU's name in `/proc/cpuinfo`.
    pub cpu: String,
    pub thresholds: Tuning,
}

/// Reason for which a profile was not read or written.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// An operation of the file system failed.
    #[error("cannot {what} the profile {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// The file is no valid profile.
    #[error("the profile {} is malformed; delete it, then run `memferry tune` again: {message}", path.display())]
    Unreadable {
        path: PathBuf,
        /// What is wrong and in which line.
        message: String,
    },
    /// A threshold is outside its range.
    #[error("the profile {} has a threshold out of range; delete it, then run `memferry tune` again: {source}", path.display())]
    Threshold { path: PathBuf, source: TuningError },
    /// The environment names no path for the profile.
    #[error("the environment names no path for the profile: set {VARIABLE}, XDG_CONFIG_HOME or HOME")]
    NoPlace,
}

/// Location of the user's profile according to the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Location {
    File(PathBuf),
    /// The user wants no profile.
    None,
    Unknown,
}

fn location(variable: impl Fn(&str) -> Option<OsString>) -> Location {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match variable(VARIABLE) {
        Some(path) if path.is_empty() => Location::None,
        Some(path) => Location::File(path.into()),
        None => folder("XDG_CONFIG_HOME")
            .or_else(|| folder("HOME").map(|home| home.join(".config")))
            .map_or(Location::Unknown, |folder| Location::File(folder.join("memferry/profile.toml"))),
    }
}

/// Path of the user's profile, whether the file exists or not.
///
/// # Errors
/// [`ProfileError::NoPlace`].
pub fn path() -> Result<PathBuf, ProfileError> {
    match location(|name| std::env::var_os(name)) {
        Location::File(path) => Ok(path),
        Location::None | Location::Unknown => Err(ProfileError::NoPlace),
    }
}

/// Thresholds of the user's profile or else the system's; `None` if neither exists for this CPU.
///
/// # Errors
/// [`ProfileError`].
pub fn load() -> Result<Option<Tuning>, ProfileError> {
    let files = match location(|name| std::env::var_os(name)) {
        Location::None => return Ok(None),
        Location::File(path) => vec![path, SYSTEM_FILE.into()],
        Location::Unknown => vec![SYSTEM_FILE.into()],
    };
    for path in files {
        if let Some(profile) = Profile::read(&path)?.filter(|profile| profile.cpu == cpu()) {
            return Ok(Some(profile.thresholds));
        }
    }
    Ok(None)
}

/// Requests of fewer bytes run on the submitting thread of an embedded client; zero: none do.
#[inline]
pub fn inline_end() -> u64 {
    match tuning::current().inline_bytes {
        0 => 0,
        bytes => bytes + 1,
    }
}

/// Creates the folder of a profile and its parents.
///
/// # Errors
/// [`ProfileError::File`].
pub fn make_folder(path: &Path) -> Result<(), ProfileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| ProfileError::File { what: "make a folder for", path: path.into(), source };
    fs::create_dir_all(folder).map_err(failed)
}

impl Profile {
    /// Reads a profile; `None` if the file does not exist or may not be read.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read(path: &Path) -> Result<Option<Self>, ProfileError> {
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(source) => return Err(ProfileError::File { what: "read", path: path.into(), source }),
        };
        let profile = toml::from_str::<Self>(&text).map_err(|error| ProfileError::Unreadable {
            path: path.into(),
            message: describe(&text, &error),
        })?;
        let checked = profile.thresholds.check();
        checked.map_err(|source| ProfileError::Threshold { path: path.into(), source })?;
        Ok(Some(profile))
    }

    /// Writes the profile atomically, and creates missing directories.
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

/// Reads a regular file. Refuses others, such as pipes, which could block or never end.
fn read(path: &Path) -> io::Result<String> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Formats the error with its line number. It does not quote the file, which may be a private one named by mistake.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = 1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
    format!("line {line}: {}", error.message())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

/// The name of this machine's CPU in `/proc/cpuinfo`.
pub fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    // Kernels for Arm report the part's number instead of a name.
    value("model name").or_else(|| value("CPU part")).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("memferry-profile-{}-{name}", std::process::id())).join("a/b.toml")
    }

    fn profile() -> Profile {
        Profile { cpu: "a CPU".to_owned(), thresholds: Tuning::of_this_machine() }
    }

    #[test]
    fn a_written_profile_is_read_back() {
        let path = temporary_path("round");
        assert!(Profile::read(&path).unwrap().is_none());
        // Measured once: a second measurement on a busy machine gives other numbers.
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
    fn a_malformed_profile_is_refused_with_its_line() {
        let path = temporary_path("odd");
        profile().write(&path).unwrap();
        let valid = fs::read_to_string(&path).unwrap();
        for (from, to, what) in [
            ("cpu =", "cpu ", "line 3"),
            ("stream_cold_bytes", "stream_colt_bytes", "stream_colt_bytes"),
            ("stream_cold_bytes = 65536", "stream_cold_bytes = -1", "line 6"),
            ("inline_bytes = 8192", "inline_bytes = 8000000", "inline_bytes = 8000000 is above"),
            ("stream_cold_bytes = 65536", "stream_cold_bytes = 1", "stream_cold_bytes = 1 is below"),
            ("zero_cold_bytes", "# zero_cold_bytes", "zero_cold_bytes"),
        ] {
            fs::write(&path, valid.replace(from, to)).unwrap();
            let message = Profile::read(&path).unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("memferry tune"), "{from}: {message}");
        }
        let folder = path.parent().unwrap();
        assert!(Profile::read(folder).unwrap_err().to_string().contains("not a regular file"));
        fs::write(&path, [0xff; 10]).unwrap();
        assert!(matches!(Profile::read(&path), Err(ProfileError::File { .. })));
        fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn the_environment_selects_the_profile() {
        let at = |pairs: &[(&str, &str)]| {
            location(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let file = |path: &str| Location::File(path.into());
        assert_eq!(at(&[(VARIABLE, "p"), ("HOME", "/h")]), file("p"));
        assert_eq!(at(&[(VARIABLE, ""), ("HOME", "/h")]), Location::None);
        assert_eq!(at(&[("XDG_CONFIG_HOME", "/c"), ("HOME", "/h")]), file("/c/memferry/profile.toml"));
        assert_eq!(at(&[("XDG_CONFIG_HOME", "c"), ("HOME", "/h")]), file("/h/.config/memferry/profile.toml"));
        assert_eq!(at(&[]), Location::Unknown);
    }
}
