//! The files of each package: where they are built, and where they are installed.
//!
//! ```text
//! Built ──► command, cuda, ioat, dsa, link, device, library, development, examples, python, module ──► files below Prefix::root
//! ```
//!
//! `Prefix::seen` is the path that the installed programs know. It differs from `root` while a package is made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::files::{broken, copy, make, read, write};
use crate::layout::{self, binary};
use crate::line::Line;
use crate::stages;

/// Where the build left what is installed.
pub(crate) struct Built {
    /// The root of the working tree.
    pub(crate) root: PathBuf,
    /// Programs and libraries of the release build.
    pub(crate) programs: PathBuf,
    /// Manual pages that the command wrote.
    pub(crate) manuals: PathBuf,
    /// What shells read to complete the command, a file for each.
    pub(crate) completions: PathBuf,
    /// The library for clients in C.
    pub(crate) c: CLibrary,
    /// The library for engines in C.
    pub(crate) engine: CLibrary,
}

/// A C library, as its script installs it.
pub(crate) struct CLibrary {
    /// The name of its header and pkg-config file, and of the library without the "lib".
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
}

/// A place to install to.
pub(crate) struct Prefix {
    /// Where files are written.
    pub(crate) root: PathBuf,
    /// The path of `root` once it is installed.
    pub(crate) seen: PathBuf,
    /// The folder of shared libraries, below the prefix.
    pub(crate) libraries: String,
    /// Where files for systemd's units are written.
    pub(crate) units: PathBuf,
    /// The folder of zsh's completions, below the prefix: Debian has one of its own for packages.
    pub(crate) zsh: &'static str,
}

impl Prefix {
    fn folder(&self, below: &str) -> Result<PathBuf, Failure> {
        let folder = self.root.join(below);
        make(&folder)?;
        Ok(folder)
    }

    fn libraries(&self) -> Result<PathBuf, Failure> {
        self.folder(&self.libraries)
    }
}

/// The command with its units, manual pages, completions and the libraries that it preloads.
pub(crate) fn command(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    stripped(&built.programs.join(binary::CLI), &prefix.folder("bin")?)?;
    let libraries = prefix.folder("lib/memferry")?;
    for library in [binary::RECORDER_LIBRARY, binary::PRELOAD_LIBRARY] {
        stripped(&built.programs.join(library), &libraries)?;
    }
    units(&built.root.join(layout::packaging::UNITS), prefix)?;
    let shared = prefix.folder("share/memferry")?;
    copy(&built.root.join(layout::packaging::GRAFANA), &shared.join("grafana.json"))?;
    let examples = built.root.join(layout::packaging::EXAMPLES);
    for extension in ["conf", "rules"] {
        copy_all(&examples, &prefix.folder("share/doc/memferry/examples")?, extension)?;
    }
    let users = built.root.join(layout::packaging::USERS);
    copy_all(&users, &prefix.folder("lib/sysusers.d")?, "conf")?;
    for section in ["1", "5"] {
        copy_all(&built.manuals, &prefix.folder(&format!("share/man/man{section}"))?, section)?;
    }
    completions(built, prefix)
}

/// The units in a folder, for programs below the prefix.
fn units(folder: &Path, prefix: &Prefix) -> Result<(), Failure> {
    make(&prefix.units)?;
    let is_unit =
        |file: &&PathBuf| file.extension().is_some_and(|found| found == "service" || found == "socket");
    for unit in entries(folder)?.iter().filter(is_unit) {
        let seen = prefix.seen.display();
        let text = read(unit)?.replace("/usr/bin/", &format!("{seen}/bin/"));
        let text = text.replace("/usr/lib/memferry/", &format!("{seen}/lib/memferry/"));
        write(&prefix.units.join(unit.file_name().unwrap_or_default()), text)?;
    }
    Ok(())
}

/// The engine process for NVIDIA GPUs, with its unit and manual page.
pub(crate) fn cuda(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    engine(built, prefix, layout::engine::CUDA, layout::packaging::CUDA)
}

/// The engine process for Intel's DSA, with its unit and manual page.
pub(crate) fn dsa(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    engine(built, prefix, layout::engine::DSA, layout::packaging::DSA)
}

fn engine(built: &Built, prefix: &Prefix, program: &str, folder: &str) -> Result<(), Failure> {
    stripped(&built.programs.join(program), &prefix.folder("bin")?)?;
    let from = built.root.join(folder);
    units(&from, prefix)?;
    copy_all(&from, &prefix.folder("share/man/man1")?, "1")
}

/// The engine process for I/OAT devices, with its unit and manual page.
pub(crate) fn ioat(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    stripped(&built.programs.join(binary::ENGINE_IOAT), &prefix.folder("bin")?)?;
    let from = built.root.join(layout::packaging::IOAT);
    units(&from, prefix)?;
    copy_all(&from, &prefix.folder("share/man/man1")?, "1")
}

/// The link to other nodes, with its unit and manual page.
pub(crate) fn node_link(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    stripped(&built.programs.join(layout::binary::LINK), &prefix.folder("bin")?)?;
    let from = built.root.join(layout::packaging::LINK);
    units(&from, prefix)?;
    copy_all(&from, &prefix.folder("share/man/man1")?, "1")
}

/// Devices for virtual machines, with the manual page.
pub(crate) fn device(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    stripped(&built.programs.join(binary::DEVICE), &prefix.folder("bin")?)?;
    let page = built.root.join(layout::packaging::DEVICE_PAGE);
    copy(&page, &prefix.folder("share/man/man1")?.join("memferry-device.1"))
}

/// Each shell finds completions by the name of the file.
fn completions(built: &Built, prefix: &Prefix) -> Result<(), Failure> {
    for (shell, folder, name) in [
        ("bash", "share/bash-completion/completions", "memferry"),
        ("zsh", prefix.zsh, "_memferry"),
        ("fish", "share/fish/vendor_completions.d", "memferry.fish"),
    ] {
        copy(&built.completions.join(shell), &prefix.folder(folder)?.join(name))?;
    }
    Ok(())
}

/// The shared library, with the link that programs load it by.
pub(crate) fn library(library: &CLibrary, prefix: &Prefix) -> Result<(), Failure> {
    let to = prefix.libraries()?;
    let from = library.folder.join("lib");
    let beginning = format!("lib{}.so.", library.name);
    for file in entries(&from)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(&beginning) {
            continue;
        }
        match fs::read_link(&file) {
            Ok(target) => link(&target, &to.join(name))?,
            Err(_) => copy(&file, &to.join(name))?,
        }
    }
    Ok(())
}

/// The provider for libfabric, in the folder where Debian's libfabric looks for providers.
pub(crate) fn provider(folder: &Path, prefix: &Prefix) -> Result<(), Failure> {
    let to = prefix.folder(&format!("{}/libfabric", prefix.libraries))?;
    stripped(&folder.join(layout::libfabric::LIBRARY), &to)
}

/// Header, static library, pkg-config file and manual pages.
pub(crate) fn development(library: &CLibrary, prefix: &Prefix) -> Result<(), Failure> {
    let CLibrary { name, folder } = library;
    let from = folder.join("lib");
    let to = prefix.libraries()?;
    let header = format!("{name}.h");
    copy(&folder.join("include").join(&header), &prefix.folder("include")?.join(&header))?;
    let archive = format!("lib{name}.a");
    copy(&from.join(&archive), &to.join(&archive))?;
    link(Path::new(&format!("lib{name}.so.0")), &to.join(format!("lib{name}.so")))?;
    let description = format!("{name}.pc");
    let text = read(&from.join("pkgconfig").join(&description))?;
    let text = pkg_config(&text, &prefix.seen, &prefix.libraries);
    make(&to.join("pkgconfig"))?;
    write(&to.join("pkgconfig").join(&description), text)?;
    for section in ["3", "7"] {
        let below = format!("share/man/man{section}");
        // Not every library has both.
        if folder.join(&below).is_dir() {
            copy_all(&folder.join(&below), &prefix.folder(&below)?, section)?;
        }
    }
    Ok(())
}

/// The sources of the example engines, as documentation of `package`.
pub(crate) fn examples(built: &Built, prefix: &Prefix, package: &str) -> Result<(), Failure> {
    let to = prefix.folder(&format!("share/doc/{package}/examples"))?;
    for file in layout::examples::ENGINES.map(Path::new) {
        copy(&built.root.join(file), &to.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// The pkg-config file with another prefix and folder of libraries.
fn pkg_config(text: &str, seen: &Path, libraries: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once('=') {
        Some(("prefix", _)) => format!("prefix={}\n", seen.display()),
        Some(("libdir", _)) => format!("libdir=${{prefix}}/{libraries}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// The Python package out of its wheel.
pub(crate) fn python(wheel: &Path, prefix: &Prefix) -> Result<(), Failure> {
    let to = prefix.folder("lib/python3/dist-packages")?;
    let unpack = Line::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&to);
    if stages::run(&unpack) != 0 {
        return Err(Failure::setup(format!("could not unpack {}", wheel.display())));
    }
    for file in entries(&to.join("memferry"))? {
        if file.extension().is_some_and(|extension| extension == "so") {
            strip(&file)?;
        }
    }
    Ok(())
}

/// The sources of the Linux module, for DKMS.
pub(crate) fn module(built: &Built, prefix: &Prefix, version: &str) -> Result<(), Failure> {
    let to = prefix.folder(&format!("src/memferry-{version}"))?;
    let from = built.root.join(layout::module::FOLDER);
    for file in entries(&from)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "Kbuild" || name == "Makefile" || name.ends_with(".c") || name.ends_with(".h") {
            copy(&file, &to.join(name))?;
        }
    }
    for folder in ["demo", "include", "include/uapi"] {
        make(&to.join(folder))?;
        for extension in ["c", "h"] {
            copy_all(&from.join(folder), &to.join(folder), extension)?;
        }
    }
    Ok(())
}

/// The paths in a folder, in order of name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()
    });
    let mut found = found.map_err(|error| broken(folder, &error))?;
    found.sort();
    Ok(found)
}

/// Copies the files with this extension.
fn copy_all(from: &Path, to: &Path, extension: &str) -> Result<(), Failure> {
    let has_extension = |file: &&PathBuf| file.extension().is_some_and(|found| found == extension);
    entries(from)?
        .iter()
        .filter(has_extension)
        .try_for_each(|file| copy(file, &to.join(file.file_name().unwrap_or_default())))
}

fn link(target: &Path, path: &Path) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).map_err(|error| broken(path, &error))?;
    }
    symlink(target, path).map_err(|error| broken(path, &error))
}

/// Copies a program or library, without what only debuggers and linkers read.
fn stripped(from: &Path, folder: &Path) -> Result<(), Failure> {
    let to = folder.join(from.file_name().unwrap_or_default());
    // A running program cannot be overwritten, but removed.
    let _ = fs::remove_file(&to);
    copy(from, &to)?;
    strip(&to)
}

fn strip(file: &Path) -> Result<(), Failure> {
    let line = Line::new("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(file);
    match stages::run(&line) {
        0 => Ok(()),
        _ => Err(Failure::setup(format!("could not strip {}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkg_config_names_where_it_is_installed() {
        let text = "prefix=/t/c\nincludedir=${prefix}/include\nlibdir=${prefix}/lib\n\nName: memferry\n";
        assert_eq!(
            pkg_config(text, Path::new("/usr"), "lib/x86_64-linux-gnu"),
            "prefix=/usr\nincludedir=${prefix}/include\nlibdir=${prefix}/lib/x86_64-linux-gnu\n\nName: memferry\n"
        );
    }

    /// A build of which nothing is there but the tree, and a prefix.
    fn nothing_built(root: PathBuf, folder: &Path) -> (Built, Prefix) {
        let built = Built {
            root,
            programs: "/p".into(),
            manuals: "/m".into(),
            completions: folder.join("built"),
            c: CLibrary { name: "memferry", folder: "/c".into() },
            engine: CLibrary { name: "memferry_engine", folder: "/e".into() },
        };
        let prefix = Prefix {
            root: folder.to_owned(),
            seen: "/usr".into(),
            libraries: "lib".to_owned(),
            units: "/u".into(),
            zsh: "share/zsh/vendor-completions",
        };
        (built, prefix)
    }

    #[test]
    fn each_shell_finds_its_completions() {
        let folder = std::env::temp_dir().join(format!("xtask-completions-{}", std::process::id()));
        let (built, prefix) = nothing_built("/r".into(), &folder);
        make(&built.completions).unwrap();
        for shell in ["bash", "zsh", "fish"] {
            write(&built.completions.join(shell), shell).unwrap();
        }
        completions(&built, &prefix).unwrap();
        let has =
            |path: &str, shell: &str| fs::read_to_string(folder.join(path)).is_ok_and(|text| text == shell);
        let bash = has("share/bash-completion/completions/memferry", "bash");
        let zsh = has("share/zsh/vendor-completions/_memferry", "zsh");
        let fish = has("share/fish/vendor_completions.d/memferry.fish", "fish");
        fs::remove_dir_all(&folder).unwrap();
        assert!(bash && zsh && fish, "{bash} {zsh} {fish}");
    }

    #[test]
    fn module_brings_what_its_makefile_needs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let folder = std::env::temp_dir().join(format!("xtask-module-{}", std::process::id()));
        let (built, prefix) = nothing_built(root, &folder);
        module(&built, &prefix, "1.2.3").unwrap();
        let to = folder.join("src/memferry-1.2.3");
        for file in ["Kbuild", "Makefile", "main.c", "memferry.h", "demo/memferry_demo.c"] {
            assert!(to.join(file).is_file(), "{file}");
        }
        assert!(to.join("include/uapi/memferry.h").is_file() && !to.join("tests").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn examples_are_documentation() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let folder = std::env::temp_dir().join(format!("xtask-example-{}", std::process::id()));
        let (built, prefix) = nothing_built(root, &folder);
        examples(&built, &prefix, "libmemferry-engine-dev").unwrap();
        let to = folder.join("share/doc/libmemferry-engine-dev/examples");
        for file in ["Makefile", "memferry-engine-example.c", "memferry_engine_example.py"] {
            assert!(to.join(file).is_file(), "{file}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
