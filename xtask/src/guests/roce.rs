//! Two links over soft RoCE: two guests with Linux's rdma_rxe, joined by a network of QEMU's, and UCX over its verbs.
//!
//! ```text
//! Debian's kernel, busybox, rdma, UCX, verbs ─┐
//! memferry, memferry-link, keys ──────────────┴─► initramfs ──► QEMU alpha ═ socket ═ QEMU beta ──► "roce: N passed, M failed"
//! ```
//!
//! The guest that reads gives the verdict. No hardware is needed, and nothing is said about speed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
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
use crate::stages::{output, run_all, say};
use crate::work::Work;

const QEMU: &str = "qemu-system-x86_64";
const GNU: &str = "x86_64-linux-gnu";
const MODULES: [&str; 15] = [
    "configfs",
    "crc32_generic",
    "crc32c_generic",
    "crct10dif_generic",
    "e1000",
    "ib_cm",
    "ib_core",
    "ib_uverbs",
    "ip6_udp_tunnel",
    "iw_cm",
    "libcrc32c",
    "rdma_cm",
    "rdma_rxe",
    "rdma_ucm",
    "udp_tunnel",
];
/// The kernel, what its guests run, and the libraries of that.
const PACKAGES: [&str; 17] = [
    "busybox-static",
    "iproute2",
    "libbsd0",
    "libcap2",
    "libmd0",
    "libmnl0",
    "libc6",
    "libgcc-s1",
    "libucx0",
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "libgomp1",
    "zlib1g",
];
/// Libraries of the packages by the beginnings of their names, and folders of such.
const LIBRARIES: [&str; 15] = [
    "libbsd.so.",
    "libcap.so.",
    "libmd.so.",
    "libmnl.so.",
    "libc.so.",
    "libm.so.",
    "libgcc_s.so.",
    "libuc",
    "libibverbs.so.",
    "libmlx5.so.",
    "librdmacm.so.",
    "libnl-",
    "libnuma.so.",
    "libgomp.so.",
    "ld-linux-",
];
const FOLDERS: [&str; 2] = ["ucx", "libibverbs"];
const NODES: [&str; 2] = ["alpha", "beta"];
/// The network of the guests.
const ADDRESS: &str = "10.0.0.2:7471";
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    if packages::host_architecture()? != "amd64" {
        return Err(Failure::setup("the guests with soft RoCE run programs that are built here, on amd64"));
    }
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::QEMU_X86])?;
    let folder = work.place.built("guest-roce");
    let packages = Packages::new(folder.join("packages"), "amd64");
    need_packages(&packages)?;
    for name in [package::CLI, package::LINK] {
        work.stages.run(name, &Line::new("cargo").args(["build", "--release", "-p", name]))?;
    }
    let root = folder.join("root");
    make_anew(&root)?;
    fill_root(work, &packages.unpacked(), &root)?;
    configure(&work.place.built("release").join(binary::LINK), &root.join("etc"))?;
    let content = archive::of_folder(&root).map_err(|error| broken(&root, &error))?;
    write(&folder.join("initrd"), content)?;
    let kernel = packages::beginning(&packages.unpacked().join("boot"), "vmlinuz-")
        .ok_or_else(|| Failure::setup("the kernel's package has no kernel"))?;
    work.stages.step("roce", "two QEMUs", || both(&folder, &kernel))
}

fn need_packages(packages: &Packages) -> Result<(), Failure> {
    if packages.finished().is_some() {
        return Ok(());
    }
    packages.begin()?;
    let depends = packages.depends("linux-image-amd64");
    let image = packages::newest(&depends, "linux-image-")
        .ok_or_else(|| Failure::setup("the package lists that could be downloaded have no kernel"))?;
    say(format_args!("downloading {image}, busybox, UCX, verbs and their libraries"));
    let names = [image].into_iter().chain(PACKAGES).map(|name| format!("{name}:amd64"));
    packages.download(&names.collect::<Vec<_>>())?;
    packages.finish(image)
}

/// Copies the files of both guests to their root.
fn fill_root(work: &Work, unpacked: &Path, root: &Path) -> Result<(), Failure> {
    // Where the library of verbs looks for its parts.
    let libraries = root.join("usr/lib").join(GNU);
    for folder in
        [&root.join("bin"), &root.join("modules"), &root.join("lib64"), &root.join("etc"), &libraries]
    {
        make(folder)?;
    }
    let init = root.join("init");
    copy(&work.place.at(layout::roce::INIT), &init)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(|error| broken(&init, &error))?;
    copy(&packages::busybox(unpacked)?, &root.join("bin/busybox"))?;
    for name in [binary::CLI, binary::LINK] {
        copy(&work.place.built("release").join(name), &root.join("bin").join(name))?;
    }
    let rdma = ["usr/bin/rdma", "bin/rdma", "sbin/rdma"].map(|path| unpacked.join(path));
    let rdma = rdma.iter().find(|path| path.exists());
    copy(rdma.ok_or_else(|| Failure::setup("iproute2 has no rdma"))?, &root.join("bin/rdma"))?;
    let mut lines = Vec::new();
    for from in [unpacked.join("lib").join(GNU), unpacked.join("usr/lib").join(GNU)] {
        for file in LIBRARIES.iter().flat_map(|beginning| packages::all_beginning(&from, beginning)) {
            lines.push(Line::new("cp").arg("-d").arg(file).arg(&libraries));
        }
        let inner = FOLDERS.map(|name| from.join(name));
        for folder in inner.iter().filter(|folder| folder.exists()) {
            lines.push(Line::new("cp").arg("-r").arg(folder).arg(&libraries));
        }
    }
    lines.push(Line::new("cp").arg("-r").arg(unpacked.join("etc/libibverbs.d")).arg(root.join("etc")));
    for name in MODULES {
        lines.extend(packages::copy_module(unpacked, name, &root.join("modules")));
    }
    if run_all(&lines) != 0 {
        return Err(Failure::setup("could not copy the files of the guests"));
    }
    let loader = "ld-linux-x86-64.so.2";
    for (path, to) in [
        (root.join("lib64").join(loader), format!("/usr/lib/{GNU}/{loader}")),
        (root.join("lib"), "usr/lib".to_owned()),
    ] {
        symlink(to, &path).map_err(|error| broken(&path, &error))?;
    }
    let users = root.join("etc/passwd");
    write(&users, "root:x:0:0::/tmp:/bin/sh\n")
}

/// Makes the keys and configurations of both links.
fn configure(link: &Path, folder: &Path) -> Result<(), Failure> {
    let mut keys = Vec::new();
    for name in NODES {
        let made = output(&Line::new(link).arg("keygen").arg(folder.join(format!("{name}.key"))));
        keys.push(made.ok_or_else(|| Failure::setup("memferry-link makes no key"))?.trim().to_owned());
    }
    write(&folder.join("alpha.toml"), configuration("alpha", &keys[1]))?;
    write(&folder.join("beta.toml"), configuration("beta", &keys[0]))
}

/// The configuration of a node with the key of the other one. An emulated machine takes long for everything.
fn configuration(node: &str, key_of_other: &str) -> String {
    let own = format!("name = \"{node}\"\nkey = \"{node}.key\"\ntimeout-ms = 60000\n");
    match node {
        "alpha" => format!("{own}[peers.beta]\nkey = \"{key_of_other}\"\naddress = \"{ADDRESS}\"\n"),
        _ => format!("{own}listen = \"{ADDRESS}\"\n[peers.alpha]\nkey = \"{key_of_other}\"\n"),
    }
}

/// Runs both guests until beta gives its verdict.
fn both(folder: &Path, kernel: &Path) -> u8 {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = match port {
        Ok(address) => address.port(),
        Err(error) => {
            say(format_args!("no port for the network of the guests: {error}"));
            return 1;
        }
    };
    let initrd = folder.join("initrd");
    let said_by_alpha = folder.join("said-alpha.txt");
    let mut alpha = qemu(kernel, &initrd, "alpha", &format!("listen=127.0.0.1:{port}")).command();
    let log = fs::File::create(&said_by_alpha).and_then(|log| Ok((log.try_clone()?, log)));
    let started =
        log.and_then(|(output, errors)| alpha.stdin(Stdio::null()).stdout(output).stderr(errors).spawn());
    let mut alpha = match started {
        Ok(child) => child,
        Err(error) => {
            say(format_args!("the guest alpha cannot be run: {error}"));
            return 1;
        }
    };
    let listens = || output(&Line::new("sh").args(["-c", &format!("grep -qi ':{port:04X} ' /proc/net/tcp")]));
    for _ in 0..100 {
        if listens().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = &["PASS", "FAIL", "roce: "];
    let watch = Watch { log: &folder.join("said-beta.txt"), limit: LIMIT, mark: "roce: ", shown };
    let status = watch.run(&qemu(kernel, &initrd, "beta", &format!("connect=127.0.0.1:{port}")));
    watch::end(&mut alpha);
    if status != 0 {
        say(format_args!("what the other guest said is in {}", said_by_alpha.display()));
    }
    status
}

fn qemu(kernel: &Path, initrd: &Path, node: &str, network: &str) -> Line {
    let number = if node == "alpha" { 1 } else { 2 };
    // They end with this program, however that ends.
    let line = Line::new("setpriv").args(["--pdeathsig", "KILL", QEMU]);
    let line = line.args(["-M", "pc", "-m", "768", "-kernel"]).arg(kernel).arg("-initrd").arg(initrd);
    let line = line.arg("-append").arg(format!("console=ttyS0 quiet panic=-1 memferry_node={node}"));
    let line = line.args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"]);
    let line = line.arg("-netdev").arg(format!("socket,id=network,{network}"));
    line.arg("-device").arg(format!("e1000,netdev=network,mac=52:54:00:00:00:0{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_one_network_and_two_addresses() {
        let line = |node, network| qemu(Path::new("/k"), Path::new("/i"), node, network).to_string();
        let alpha = line("alpha", "listen=127.0.0.1:5");
        let beta = line("beta", "connect=127.0.0.1:5");
        assert!(
            alpha.contains("memferry_node=alpha' ") && alpha.ends_with("mac=52:54:00:00:00:01"),
            "{alpha}"
        );
        assert!(beta.contains("socket,id=network,connect=127.0.0.1:5 ") && beta.ends_with(":02"), "{beta}");
    }

    #[test]
    fn the_first_node_connects_to_the_second() {
        let alpha = configuration("alpha", "bb");
        assert!(alpha.ends_with("[peers.beta]\nkey = \"bb\"\naddress = \"10.0.0.2:7471\"\n"), "{alpha}");
        let beta = configuration("beta", "aa");
        assert!(beta.contains("listen = \"10.0.0.2:7471\"\n[peers.alpha]\nkey = \"aa\"\n"), "{beta}");
    }
}
