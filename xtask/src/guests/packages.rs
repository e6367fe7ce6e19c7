//! Downloads and unpacks Debian packages with a separate package state, without installing them.
//!
//! ```text
//! apt.conf, lists, status below FOLDER/ ──► apt-get update, apt-cache depends, apt-get download ──► dpkg -x ──► FOLDER/unpacking
//! ```
//!
//! It needs no root and does not change the system's package state. Later runs reuse what was unpacked.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::files::{broken, make, make_anew, write};
use crate::line::Line;
use crate::stages::{self, say};

/// A package state and its unpacked packages.
pub(crate) struct Packages {
    folder: PathBuf,
    /// Debian's name of the packages' architecture.
    debian: &'static str,
}

impl Packages {
    pub(crate) fn new(folder: PathBuf, debian: &'static str) -> Self {
        Self { folder, debian }
    }

    /// Packages to compare with: they are programs and libraries for the machine of most figures.
    pub(crate) fn to_compare_with(folder: PathBuf) -> Result<Self, Failure> {
        match host_architecture()?.as_str() {
            "amd64" => Ok(Self::new(folder, "amd64")),
            other => Err(Failure::setup(format!(
                "packages to compare with are unpacked on amd64 only, this is {other}"
            ))),
        }
    }

    /// The folder of unpacked packages.
    pub(crate) fn unpacked(&self) -> PathBuf {
        self.folder.join("unpacking")
    }

    /// The note of [`Self::finish`], if everything was unpacked.
    pub(crate) fn finished(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("unpacked")).ok().map(|text| text.trim().to_owned())
    }

    /// Notes that everything is unpacked; later runs rely on it.
    pub(crate) fn finish(&self, note: &str) -> Result<(), Failure> {
        write(&self.folder.join("unpacked"), format!("{note}\n"))
    }

    /// Starts from nothing and downloads the lists of the system's own sources.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        make_anew(&self.folder)?;
        self.make_state("")?;
        self.update()
    }

    /// Starts from nothing and downloads the lists of these suites only, from the system's mirror.
    pub(crate) fn begin_with(&self, suites: &[&str]) -> Result<(), Failure> {
        self.begin_with_lists("deb", suites)
    }

    /// As [`Self::begin_with`], for source packages.
    pub(crate) fn begin_with_sources(&self, suites: &[&str]) -> Result<(), Failure> {
        self.begin_with_lists("deb-src", suites)
    }

    fn begin_with_lists(&self, kind: &str, suites: &[&str]) -> Result<(), Failure> {
        let (_, mirror) = mirror()?;
        make_anew(&self.folder)?;
        let list = self.folder.join("sources.list");
        write(&list, suites.iter().map(|suite| source(kind, &mirror, suite)).collect::<String>())?;
        self.make_state(&format!(
            "Dir::Etc::sourcelist \"{}\"; Dir::Etc::sourceparts \"/dev/null\"; Acquire::Languages \"none\";",
            list.display()
        ))?;
        self.update()
    }

    fn update(&self) -> Result<(), Failure> {
        // A mirror that is being updated may have invalid lists, which may not be needed.
        if stages::run(&self.apt("apt-get").arg("update")) != 0 {
            say(format_args!(
                "not every package list for {} could be downloaded: continuing with those that could",
                self.debian
            ));
        }
        Ok(())
    }

    fn make_state(&self, settings: &str) -> Result<(), Failure> {
        let host = host_architecture()?;
        for folder in ["apt/state/lists/partial", "apt/cache/archives/partial", "unpacking"] {
            make(&self.folder.join(folder))?;
        }
        write(&self.folder.join("apt/status"), "")?;
        write(&self.folder.join("apt.conf"), configuration(&self.folder, &host, self.debian, settings))
    }

    /// A command line of apt's tools that uses this state only.
    fn apt(&self, tool: &str) -> Line {
        let line = Line::new(tool).env("APT_CONFIG", self.folder.join("apt.conf"));
        line.args(["-o", "APT::Sandbox::User=root"])
    }

    /// The dependencies of a package, as apt-cache prints them.
    pub(crate) fn depends(&self, package: &str) -> String {
        stages::output(&self.apt("apt-cache").args(["depends", package])).unwrap_or_default()
    }

    /// Downloads and unpacks these packages. None of them is installed.
    pub(crate) fn download(&self, names: &[String]) -> Result<(), Failure> {
        let folder = self.folder.join("packages");
        make_anew(&folder)?;
        let line = self.apt("apt-get").arg("download").args(names).within(&folder);
        if stages::run(&line) != 0 {
            return Err(Failure::setup(format!("could not download: {}", names.join(" "))));
        }
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .map_err(|error| broken(&folder, &error))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        self.unpack(&files)?;
        fs::remove_dir_all(&folder).map_err(|error| broken(&folder, &error))
    }

    /// Downloads and unpacks a package of a suite with everything it depends on.
    pub(crate) fn download_with_dependencies(&self, suite: &str, name: &str) -> Result<(), Failure> {
        let line = self.apt("apt-get").args(["install", "--download-only", "--yes", "--quiet"]);
        let line = line.args(["--no-install-recommends", "--target-release", suite, name]);
        if stages::run(&line) != 0 {
            return Err(Failure::setup(format!("could not download {name} of {suite}")));
        }
        let folder = self.folder.join("apt/cache/archives");
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .map_err(|error| broken(&folder, &error))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect();
        files.sort();
        self.unpack(&files)?;
        fs::remove_dir_all(&folder).map_err(|error| broken(&folder, &error))
    }

    /// Downloads a source package, whose signature and sums apt checks. Gives its archive of upstream's files.
    pub(crate) fn download_source(&self, name: &str) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("sources");
        make_anew(&folder)?;
        if stages::run(&self.apt("apt-get").args(["source", "--download-only", name]).within(&folder)) != 0 {
            return Err(Failure::setup(format!("could not download the source package {name}")));
        }
        let is_upstreams = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar.");
        let files = fs::read_dir(&folder).map_err(|error| broken(&folder, &error))?;
        let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
        files
            .find(is_upstreams)
            .ok_or_else(|| Failure::setup(format!("the source package {name} has no archive")))
    }

    fn unpack(&self, files: &[PathBuf]) -> Result<(), Failure> {
        for file in files {
            if stages::run(&Line::new("dpkg").arg("-x").arg(file).arg(self.unpacked())) != 0 {
                return Err(Failure::setup(format!("could not unpack {}", file.display())));
            }
        }
        Ok(())
    }
}

/// The line of a suite in a list of sources, signed by a key of Debian's.
fn source(kind: &str, mirror: &str, suite: &str) -> String {
    format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n")
}

/// The keys of all of Debian's releases.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The release of this machine, and the mirror that its own package lists name for it.
pub(crate) fn mirror() -> Result<(String, String), Failure> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename =
        codename(&release).ok_or_else(|| Failure::setup("/etc/os-release names no release of Debian"))?;
    let targets = ["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"];
    let lists = stages::output(&Line::new("apt-get").args(targets)).unwrap_or_default();
    let mirror = mirror_of(&lists, codename).ok_or_else(|| {
        Failure::setup(format!(
            "the system's package lists name no mirror of {codename}; try: apt-get update"
        ))
    })?;
    Ok((codename.to_owned(), mirror.to_owned()))
}

fn codename(release: &str) -> Option<&str> {
    release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))
}

/// The mirror of a release, from lines `RELEASE ADDRESS`.
fn mirror_of<'a>(lists: &'a str, codename: &str) -> Option<&'a str> {
    lists.lines().find_map(|line| line.strip_prefix(codename)?.strip_prefix(' '))
}

/// Debian's name of this machine's architecture.
pub(crate) fn host_architecture() -> Result<String, Failure> {
    let name = stages::output(&Line::new("dpkg").arg("--print-architecture"));
    let name = name.ok_or_else(|| Failure::setup("no dpkg here: guests take Debian's packages"))?;
    Ok(name.trim().to_owned())
}

fn configuration(folder: &Path, host: &str, debian: &str, settings: &str) -> String {
    let folder = folder.display();
    format!(
        "APT::Architectures {{ \"{host}\"; \"{debian}\"; }};\n\
         Dir::State \"{folder}/apt/state\";\n\
         Dir::State::status \"{folder}/apt/status\";\n\
         Dir::Cache \"{folder}/apt/cache\";\n\
         {settings}\n"
    )
}

/// The packages with this prefix in the output of `apt-cache depends`, without architectures. Names in angle brackets are those that
/// have no package of the same architecture.
pub(crate) fn dependencies<'a>(output: &'a str, beginning: &'a str) -> impl Iterator<Item = &'a str> {
    output
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("Depends: "))
        .map(|name| name.trim_start_matches('<'))
        .map(|name| name.split([':', ' ', '>']).next().unwrap_or(name))
        .filter(move |name| name.starts_with(beginning))
}

/// The versioned package of a meta package: `linux-image-6.1.0-30-amd64` for `linux-image-amd64`.
pub(crate) fn newest<'a>(output: &'a str, beginning: &'a str) -> Option<&'a str> {
    dependencies(output, beginning)
        .find(|name| name[beginning.len()..].starts_with(|digit: char| digit.is_ascii_digit()))
}

/// The first file or folder whose name has this prefix.
pub(crate) fn beginning(folder: &Path, beginning: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)))
        .collect();
    found.sort();
    found.into_iter().next()
}

/// The files in a folder whose names have this prefix, not folders.
pub(crate) fn all_beginning(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let begins = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)) && !path.is_dir()
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(begins).collect();
    found.sort();
    found
}

/// The static busybox among the unpacked packages. Its path depends on the release of Debian.
pub(crate) fn busybox(unpacked: &Path) -> Result<PathBuf, Failure> {
    ["bin/busybox", "usr/bin/busybox"]
        .into_iter()
        .map(|path| unpacked.join(path))
        .find(|path| path.exists())
        .ok_or_else(|| Failure::setup("the package busybox-static has no busybox"))
}

/// Copies a kernel module, uncompressed. If the kernel lacks it, the guest reports that.
pub(crate) fn copy_module(unpacked: &Path, name: &str, to: &Path) -> Vec<Line> {
    let found = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")]
        .into_iter()
        .filter(|folder| folder.exists())
        .filter_map(|folder| {
            stages::output(&Line::new("find").arg(folder).args(["-name", &format!("{name}.ko*")]))
        })
        .find_map(|found| found.lines().next().map(PathBuf::from));
    let Some(found) = found else { return Vec::new() };
    let copied = to.join(found.file_name().unwrap_or_default());
    let is_packed = copied.extension().is_some_and(|extension| extension == "xz");
    let copy = Line::new("cp").arg(&found).arg(&copied);
    let unpack = Line::new("xz").arg("-d").arg(&copied);
    [copy].into_iter().chain(is_packed.then_some(unpack)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "linux-image-arm64:arm64\n  Depends: linux-image-6.1.0-41-arm64:arm64\n";
    const HEADERS: &str = "linux-headers-6.12.48+deb13-amd64\n  Depends: linux-headers-6.12.48+deb13-common\n \
                           |Depends: linux-image-6.12.48+deb13-amd64\n  Depends: <linux-image-unsigned>\n  \
                           Depends: linux-kbuild-6.12.48+deb13\n  Depends: gcc-14-for-host\n";

    #[test]
    fn newest_kernel_is_what_the_meta_package_names() {
        assert_eq!(newest(IMAGE, "linux-image-"), Some("linux-image-6.1.0-41-arm64"));
        assert_eq!(newest(IMAGE, "linux-headers-"), None);
        assert_eq!(newest("  Depends: linux-image-rt\n", "linux-image-"), None);
        assert_eq!(newest("", "linux-image-"), None);
    }

    #[test]
    fn headers_name_what_they_are_built_with() {
        let common: Vec<&str> = dependencies(HEADERS, "linux-headers-").collect();
        assert_eq!(common, ["linux-headers-6.12.48+deb13-common"]);
        assert_eq!(
            dependencies(HEADERS, "linux-kbuild-").collect::<Vec<_>>(),
            ["linux-kbuild-6.12.48+deb13"]
        );
    }

    #[test]
    fn mirror_is_the_one_of_the_release() {
        let lists =
            "bookworm-updates http://a/debian/\nbookworm http://b/debian/\nbookworm http://c/debian/\n";
        assert_eq!(mirror_of(lists, "bookworm"), Some("http://b/debian/"));
        assert_eq!(mirror_of(lists, "trixie"), None);
    }

    #[test]
    fn codename_is_read_from_the_release() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=trixie\n"), Some("trixie"));
        assert_eq!(codename("ID=other\n"), None);
    }

    #[test]
    fn suites_are_verified_by_debians_keys() {
        assert_eq!(
            source("deb", "http://b/debian/", "trixie-backports"),
            format!("deb [signed-by={KEYRING}] http://b/debian/ trixie-backports main\n")
        );
    }

    #[test]
    fn state_is_the_folders_own() {
        let text = configuration(Path::new("/t/arm64"), "amd64", "arm64", "A \"b\";");
        assert!(text.contains("APT::Architectures { \"amd64\"; \"arm64\"; };"), "{text}");
        assert!(text.contains("Dir::State::status \"/t/arm64/apt/status\";"), "{text}");
        assert!(text.ends_with("A \"b\";\n"), "{text}");
    }

    #[test]
    fn apt_is_run_with_that_state() {
        let packages = Packages::new("/t/arm64".into(), "arm64");
        let line = packages.apt("apt-get").arg("update").to_string();
        assert_eq!(line, "env APT_CONFIG=/t/arm64/apt.conf apt-get -o APT::Sandbox::User=root update");
    }
}
