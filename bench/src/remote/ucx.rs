//! The versions of UCX that are measured, and how programs are started with each.
//!
//! ```text
//! installed ────────────────────────────────────► PROGRAM
//! unpacked below MEMFERRY_BENCH_UCX, with glibc ─► its ld.so --library-path ... PROGRAM
//! ```
//!
//! A newer release's UCX needs that release's C library, so programs of this machine are started by its loader.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::children::{Program, loader};
use crate::rows::Row;
use crate::service::ucx::{NOT_INSTALLED, Perftest, Report, version_in};

/// Names the folder into which `./x bench` unpacks a newer UCX.
const VARIABLE: &str = "MEMFERRY_BENCH_UCX";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const PERFTEST: &str = "ucx_perftest";
/// How long the program that prints the version may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a test may take: half a GiB by TCP takes seconds, and long on a busy machine.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// How bytes go between the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Tcp,
    SharedMemory,
}

impl Transport {
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::SharedMemory];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::SharedMemory => "shared memory",
        }
    }

    /// The settings of UCX, the same for all that is compared.
    pub(super) fn environment(self) -> [(&'static str, &'static str); 3] {
        let transports = match self {
            Self::Tcp => "tcp",
            // Not with tcp beside it, or endpoints that are to report errors would take that.
            Self::SharedMemory => "posix,cma",
        };
        [("UCX_TLS", transports), ("UCX_NET_DEVICES", "lo"), ("UCX_WARN_UNUSED_ENV_VARS", "n")]
    }
}

/// A version of UCX.
pub(super) struct Ucx {
    version: String,
    /// The folder with its packages; `None`: it is installed.
    folder: Option<PathBuf>,
}

impl Ucx {
    /// Those that are there, and rows that say which are not.
    pub(super) fn all() -> (Vec<Self>, Vec<Row>) {
        let newer = std::env::var_os(VARIABLE).map(PathBuf::from);
        let mut found = Vec::new();
        let mut missing = Vec::new();
        match Self::find(None) {
            Ok(ucx) => found.push(ucx),
            Err(_) => missing.push(Row::not_measured("UCX of this machine", NOT_INSTALLED)),
        }
        match newer.map(|folder| Self::find(Some(folder))) {
            Some(Ok(ucx)) => found.push(ucx),
            Some(Err(error)) => missing.push(Row::not_measured("newer UCX", &error.to_string())),
            None => {
                let why = format!("{VARIABLE} names no folder with it; ./x bench unpacks one where it can");
                missing.push(Row::not_measured("newer UCX", &why));
            }
        }
        (found, missing)
    }

    fn find(folder: Option<PathBuf>) -> Result<Self, BenchError> {
        let mut ucx = Self { version: String::new(), folder };
        let words = ucx.own("ucx_info");
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["-v"]).collect();
        let output = Program::start(&words, &[])?.output(Instant::now() + LIMIT)?;
        let version = output.as_deref().and_then(version_in);
        ucx.version = version.ok_or("ucx_info printed no version")?.to_owned();
        Ok(ucx)
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Whether it is this machine's own.
    pub(super) fn is_installed(&self) -> bool {
        self.folder.is_none()
    }

    /// The words that start one of UCX's programs.
    fn own(&self, name: &str) -> Vec<String> {
        match &self.folder {
            None => vec![name.to_owned()],
            Some(folder) => self.with(&folder.join("usr/bin").join(name)),
        }
    }

    /// The words that start a program of this machine with this UCX.
    pub(super) fn with(&self, program: &Path) -> Vec<String> {
        let words = self.folder.as_ref().map(|folder| loader(&folder.join(LIBRARIES))).unwrap_or_default();
        words.into_iter().chain([program.display().to_string()]).collect()
    }

    /// Runs one of the tests of UCX's benchmark. Also returns the processor time of the end that asks, in seconds.
    pub(super) fn perftest(
        &self,
        transport: Transport,
        (test, bytes, count): (&str, u64, usize),
    ) -> Result<(Report, f64), BenchError> {
        let words = self.own(PERFTEST);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let environment = &transport.environment();
        let perftest = Perftest { limit: TEST_LIMIT, words: &words, environment };
        // A run of minutes is not given up for one that hung, or that the machine held up.
        perftest.run(test, bytes, count).or_else(|_| perftest.run(test, bytes, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_in_both_forms() {
        assert_eq!(version_in("# UCT version=1.13.1 revision 09f27c0\n# x 1.2\n"), None);
        assert_eq!(version_in("# Version 1.13.1\n"), Some("1.13.1"));
        assert_eq!(version_in("# Library version: 1.18.1\n# Library path: /x\n"), Some("1.18.1"));
        assert_eq!(version_in(""), None);
    }

    #[test]
    fn an_unpacked_ucx_is_loaded_by_its_own_loader() {
        let unpacked = Ucx { version: "2".to_owned(), folder: Some("/u".into()) };
        let lib = "/u/usr/lib/x86_64-linux-gnu";
        let expected = [&format!("{lib}/ld-linux-x86-64.so.2"), "--library-path", lib, "/p"];
        assert_eq!(unpacked.with(Path::new("/p")), expected);
        assert_eq!(unpacked.own("a").last().map(String::as_str), Some("/u/usr/bin/a"));
        let installed = Ucx { version: "1".to_owned(), folder: None };
        assert_eq!(installed.with(Path::new("/p")), ["/p"]);
        assert_eq!(installed.own("a"), ["a"]);
    }
}
