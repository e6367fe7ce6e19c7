//! The 9P file server under Linux's own client: a guest mounts a directory that `memferry 9p serve` serves.
//!
//! ```text
//! Debian's kernel, busybox, tcc, sqlite3 ──► initramfs ──► QEMU ── v9fs over TCP ──► memferry 9p serve EXPORT
//!                                                           └──► "v9fs: N passed, 0 failed"
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::archive;
use super::packages::{self, Packages};
use super::watch::{self, Watch};
use crate::failure::Failure;
use crate::files::{broken, copy, make, make_anew, write};
use crate::layout::{self, binary, package};
use crate::line::Line;
use crate::setup::debian;
use crate::stages::{self, output, run_all, say};
use crate::work::Work;

const QEMU: &str = "qemu-system-x86_64";
const GNU: &str = "x86_64-linux-gnu";
const MODULES: [&str; 6] = ["netfs", "fscache", "9pnet", "9pnet_fd", "9p", "e1000"];
/// Libraries of the guest's programs, by the prefixes of their file names.
const LIBRARIES: [&str; 9] = [
    "libc.so.",
    "libm.so.",
    "libz.so.",
    "libsqlite3.so.0",
    "libreadline.so.8",
    "libtinfo.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "ld-linux-",
];
/// Files that a C compiler takes from the library's folder.
const OBJECTS: [&str; 6] = ["crt1.o", "crti.o", "crtn.o", "libc.so", "libc_nonshared.a", "tcc"];
/// Parts of the source tree that the guest compiles.
const PARTS: u32 = 39;
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::QEMU_X86])?;
    let folder = work.place.built("guest-v9fs");
    let packages = Packages::new(folder.join("packages"), "amd64");
    need_packages(&packages)?;
    let build = Line::new("cargo").args(["build", "--release", "-p", package::CLI]);
    work.stages.run("memferry", &build)?;
    for name in ["root", "export", "tree"] {
        make_anew(&folder.join(name))?;
    }
    fill_root(work, &packages.unpacked(), &folder)?;
    let root = folder.join("root");
    let content = archive::of_folder(&root).map_err(|error| broken(&root, &error))?;
    write(&folder.join("initrd"), content)?;
    fill_export(work, &folder.join("export"))?;
    let kernel = packages::beginning(&packages.unpacked().join("boot"), "vmlinuz-")
        .ok_or_else(|| Failure::setup("the kernel's package has no kernel"))?;
    let server = work.place.built("release").join(binary::CLI);
    work.stages.step("v9fs", "memferry 9p serve, and QEMU", || serve(&server, &folder, &kernel))
}

/// Debian's current kernel, a compiler and a database with their libraries, and a shell.
fn need_packages(packages: &Packages) -> Result<(), Failure> {
    if packages.finished().is_some() {
        return Ok(());
    }
    packages.begin()?;
    let depends = packages.depends("linux-image-amd64");
    let image = packages::newest(&depends, "linux-image-")
        .ok_or_else(|| Failure::setup("the package lists that could be downloaded have no kernel"))?;
    say(format_args!("downloading {image}, busybox, tcc, sqlite3 and their libraries"));
    packages.download(&wanted(image, &packages.depends("sqlite3")))?;
    packages.finish(image)
}

fn wanted(image: &str, sqlite: &str) -> Vec<String> {
    // Debian renamed the package when times became 64 bits wide.
    let readline = packages::dependencies(sqlite, "libreadline8").next().unwrap_or("libreadline8");
    let further =
        ["busybox-static", "tcc", "sqlite3", "libsqlite3-0", "libtinfo6", "zlib1g", "libc6", "libc6-dev"];
    let all = [image, readline].into_iter().chain(further).chain(["linux-libc-dev"]);
    all.map(|name| format!("{name}:amd64")).collect()
}

/// Copies the guest's files to its root.
fn fill_root(work: &Work, unpacked: &Path, folder: &Path) -> Result<(), Failure> {
    let root = folder.join("root");
    for name in ["bin", "modules", "lib64", "usr/include"] {
        make(&root.join(name))?;
    }
    let libraries = root.join("lib").join(GNU);
    let objects = root.join("usr/lib").join(GNU);
    make(&libraries)?;
    make(&objects)?;
    copy(&work.place.at(layout::ninep::INIT), &root.join("init"))?;
    fs::set_permissions(root.join("init"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .map_err(|error| broken(&root, &error))?;
    copy(&packages::busybox(unpacked)?, &root.join("bin/busybox"))?;
    for name in ["tcc", "sqlite3"] {
        copy(&unpacked.join("usr/bin").join(name), &root.join("bin").join(name))?;
    }
    let mut lines = Vec::new();
    for from in [unpacked.join("lib").join(GNU), unpacked.join("usr/lib").join(GNU)] {
        for file in LIBRARIES.iter().flat_map(|beginning| packages::all_beginning(&from, beginning)) {
            lines.push(Line::new("cp").arg("-d").arg(file).arg(&libraries));
        }
    }
    for name in OBJECTS {
        let from = unpacked.join("usr/lib").join(GNU).join(name);
        lines.push(Line::new("cp").arg("-r").arg(from).arg(&objects));
    }
    lines.push(Line::new("cp").arg("-r").arg(unpacked.join("usr/include/.")).arg(root.join("usr/include")));
    let tree = folder.join("tree");
    make_tree(&tree)?;
    lines.push(Line::new("tar").arg("-C").arg(&tree).arg("-cf").arg(root.join("tree.tar")).arg("."));
    for name in MODULES {
        lines.extend(packages::copy_module(unpacked, name, &root.join("modules")));
    }
    if run_all(&lines) != 0 {
        return Err(Failure::setup("could not copy the files of the guest"));
    }
    let loader = "ld-linux-x86-64.so.2";
    let to = root.join("lib64").join(loader);
    symlink(format!("/lib/{GNU}/{loader}"), &to).map_err(|error| broken(&to, &error))
}

/// A small source tree: a header, a main program, and parts that each add their number.
fn make_tree(folder: &Path) -> Result<(), Failure> {
    let mut header = String::new();
    let mut calls = String::new();
    for part in 1..=PARTS {
        // Writing to a string does not fail.
        let _ = writeln!(header, "int part_{part}(int sum);");
        let _ = writeln!(calls, "    sum = part_{part}(sum);");
        let text = format!("#include \"parts.h\"\nint part_{part}(int sum) {{ return sum + {part}; }}\n");
        write(&folder.join(format!("part_{part}.c")), text)?;
    }
    write(&folder.join("parts.h"), header)?;
    let main = format!(
        "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {{\n    int sum = 0;\n{calls}    \
         printf(\"the sum is %d\\n\", sum);\n    return 0;\n}}\n"
    );
    write(&folder.join("main.c"), main)
}

/// The served directory: a source tree, a long file of random bytes, and the checksums of all.
fn fill_export(work: &Work, export: &Path) -> Result<(), Failure> {
    let source = export.join("source");
    let line = Line::new("cp").arg("-r").arg(work.place.at(layout::ninep::SERVED)).arg(&source);
    if stages::run(&line) != 0 {
        return Err(Failure::setup("could not copy the files to be served"));
    }
    let mut long = Vec::new();
    let random = Path::new("/dev/urandom");
    let bytes = fs::File::open(random).and_then(|file| file.take(3_000_000).read_to_end(&mut long));
    bytes.map_err(|error| broken(random, &error))?;
    write(&source.join("long"), long)?;
    let script = "find . -type f | LC_ALL=C sort | xargs sha256sum";
    let sums = output(&Line::new("sh").args(["-c", script]).within(&source));
    write(&export.join("sums"), sums.ok_or_else(|| Failure::setup("could not compute sums of the files"))?)
}

/// Serves on a port that the system chooses, while the guest runs.
fn serve(server: &Path, folder: &Path, kernel: &Path) -> u8 {
    let line = Line::new(server).args(["9p", "serve"]).arg(folder.join("export"));
    let mut command = line.args(["--listen", "tcp:127.0.0.1:0"]).command();
    let mut server = match command.stdout(Stdio::piped()).spawn() {
        Ok(server) => server,
        Err(error) => {
            say(format_args!("cannot start the server: {error}"));
            return 127;
        }
    };
    let said = server.stdout.take().expect("standard output is piped");
    let port = BufReader::new(said).lines().map_while(Result::ok).find_map(|line| port_of(&line));
    let status = match port {
        Some(port) => {
            let watch = Watch { log: &folder.join("said.txt"), limit: LIMIT, mark: "v9fs: ", shown: &[""] };
            watch.run(&qemu(kernel, &folder.join("initrd"), port))
        }
        None => {
            say("the server ended before it printed its address");
            1
        }
    };
    watch::end(&mut server);
    status
}

/// The port at the end of the line with the server's address.
fn port_of(line: &str) -> Option<u16> {
    line.rsplit_once(':')?.1.trim().parse().ok()
}

fn qemu(kernel: &Path, initrd: &Path, port: u16) -> Line {
    let line = Line::new(QEMU).args(["-M", "pc", "-m", "512", "-kernel"]).arg(kernel);
    let line = line.arg("-initrd").arg(initrd).arg("-append");
    let line = line.arg(format!("console=ttyS0 quiet panic=-1 memferry_port={port}"));
    let line = line.args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"]);
    line.args(["-nic", "user,model=e1000"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_the_port() {
        let line = qemu(Path::new("/k"), Path::new("/i"), 4567).to_string();
        assert!(line.starts_with("qemu-system-x86_64 -M pc -m 512 -kernel /k -initrd /i -append "), "{line}");
        assert!(line.contains("memferry_port=4567'"), "{line}");
    }

    #[test]
    fn port_is_at_the_end_of_the_line() {
        assert_eq!(port_of("listening on tcp:127.0.0.1:40123"), Some(40123));
        assert_eq!(port_of("starting: one moment"), None);
        assert_eq!(port_of("starting"), None);
    }

    #[test]
    fn library_is_named_as_the_release_has_it() {
        let trixie = "sqlite3\n  Depends: libc6\n  Depends: libreadline8t64\n";
        assert!(wanted("linux-image-6.1", trixie).contains(&"libreadline8t64:amd64".to_owned()));
        assert!(wanted("linux-image-6.1", "").contains(&"libreadline8:amd64".to_owned()));
    }

    #[test]
    fn tree_has_a_part_for_every_call() {
        let folder = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        make_anew(&folder).unwrap();
        make_tree(&folder).unwrap();
        let main = fs::read_to_string(folder.join("main.c")).unwrap();
        assert!(main.contains("sum = part_39(sum);") && main.ends_with("return 0;\n}\n"), "{main}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 41);
        fs::remove_dir_all(&folder).unwrap();
    }
}
