//! Runs the Linux module in a guest: from Debian's packages to the verdict.
//!
//! ```text
//! kernel, headers, busybox ─► modules, tests, suite ─► initramfs ─► QEMU ─► "guest: N passed, 0 failed"
//! ```
//!
//! Packages are unpacked below target/kernel, and later runs reuse them. The log of each guest is MACHINE.txt there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::archive;
use super::machine::{self, Architecture, Boot, DeviceTree, Machine};
use super::packages::{self, Packages};
use super::watch::Watch;
use crate::failure::Failure;
use crate::files::{broken, copy, make, make_anew, write};
use crate::layout::{self, PRODUCT_WORKSPACE, RESEARCH_WORKSPACE, Workspace, binary, package, test};
use crate::line::Line;
use crate::setup::debian;
use crate::stages::{self, output, run_all, say};
use crate::work::Work;

/// Environment variable with the seed of the guest's fuzzer.
const SEED: &str = "MEMFERRY_FUZZ_SEED";

/// A program in the guest.
struct Program {
    /// The words that want it.
    words: &'static [&'static str],
    /// What the init of the guest calls it.
    name: &'static str,
    /// What cargo builds: a program of a package, or a test of it.
    package: &'static str,
    test: Option<&'static str>,
    workspace: &'static Workspace,
}

impl Program {
    const fn new(
        words: &'static [&'static str],
        name: &'static str,
        package: &'static str,
        test: Option<&'static str>,
    ) -> Self {
        Self { words, name, package, test, workspace: &PRODUCT_WORKSPACE }
    }
}

const PROGRAMS: &[Program] = &[
    Program::new(&["suite"], "suite", test::KERNEL_SUITE.0, Some(test::KERNEL_SUITE.1)),
    Program::new(&["service", "vfio", "dsa-file"], binary::CLI, package::CLI, None),
    Program::new(&["vfio"], binary::ENGINE_IOAT, package::ENGINE_IOAT, None),
    // Clients of a service with an engine, whichever that is.
    Program::new(&["vfio", "dsa-file"], "brokered", package::ENGINE_IOAT, Some("brokered")),
    Program::new(&["vfio"], "straying", package::ENGINE_IOAT, Some("straying")),
    Program::new(&["dsa-file"], binary::ENGINE_DSA, package::ENGINE_DSA, None),
    Program::new(&["dsa-file"], "queue_file", package::ENGINE_DSA, Some("queue_file")),
    Program {
        workspace: &RESEARCH_WORKSPACE,
        ..Program::new(&["dsa-file"], binary::DEVICE, package::DEVICE, None)
    },
    Program::new(&["dsa-vfio"], "portal", package::ENGINE_DSA, Some("vfio")),
];

impl Program {
    fn is_for(&self, machine: &Machine) -> bool {
        self.words.iter().any(|word| machine.wants(word))
    }

    fn arguments(&self) -> Vec<&'static str> {
        match self.test {
            Some(test) => vec!["test", "-p", self.package, "--test", test, "--no-run"],
            None => vec!["build", "-p", self.package],
        }
    }
}

/// Runs a machine; its fuzzer, if it has one, runs for `fuzz_seconds`.
pub(crate) fn run(work: &Work, machine: &'static Machine, fuzz_seconds: u32) -> Result<(), Failure> {
    let guest = Guest::new(work, machine)?;
    work.setup.rust(&[])?;
    work.setup.tools(machine.tools)?;
    work.setup.tools(&[debian::MODULE_BUILD])?;
    if let Some(target) = machine.architecture.rust {
        work.setup.target(target)?;
    }
    guest.need_kernel()?;
    if machine.is_debug {
        guest.need_debug_kernel()?;
    }
    let version = output(&Line::new(machine.qemu).arg("--version")).unwrap_or_default();
    let version = version.lines().next().unwrap_or(machine.qemu);
    say(format_args!("{version}; Debian's kernel {} for {}", guest.abi()?, machine.architecture.debian));
    let name = machine.name;
    work.stages.run("kernel coding style", &guest.style()?)?;
    work.stages.step(&format!("modules for {name}"), "make modules", || guest.build_modules())?;
    work.stages.run(&format!("tests for {name}"), &guest.tests())?;
    work.stages.step(&format!("programs for {name}"), "cargo, strip", || guest.build_programs())?;
    let boot = guest.initramfs()?;
    let seed = std::env::var(SEED).unwrap_or_else(|_| "1".to_owned());
    let line = machine::qemu(machine, &boot, &seed, fuzz_seconds);
    let log = work.place.built(&format!("kernel/{name}.txt"));
    let watch = Watch {
        log: &log,
        limit: machine.limit,
        mark: "guest: ",
        shown: &["guest: ", "FAIL", "memferry_test: "],
    };
    work.stages.step(&format!("guest {name}"), &line, || watch.run(&line))
}

/// What a guest boots: a kernel, modules and programs built for it, and an initial RAM disk of them.
pub(super) struct Guest<'a> {
    work: &'a Work<'a>,
    machine: &'static Machine,
    /// Debian's name of the host's architecture.
    host: String,
    packages: Packages,
    /// The folder with the source of a kernel's DMA drivers, and the shell: what the release's own kernel came with.
    common: PathBuf,
    /// The build folder of modules and programs.
    built: PathBuf,
}

impl<'a> Guest<'a> {
    pub(super) fn new(work: &'a Work<'a>, machine: &'static Machine) -> Result<Self, Failure> {
        let debian = machine.architecture.debian;
        let folder = work.place.built(&format!("kernel/{debian}"));
        let built = if machine.is_debug { work.place.built("kernel/debug") } else { folder.clone() };
        let host = packages::host_architecture()?;
        let packages = Packages::new(folder, debian);
        Ok(Self { work, machine, host, common: packages.unpacked(), packages, built })
    }

    /// The same guest with another kernel, which was unpacked.
    pub(super) fn with_kernel(&self, packages: Packages, built: PathBuf) -> Self {
        let Self { work, machine, ref host, ref common, .. } = *self;
        Self { work, machine, host: host.clone(), common: common.clone(), packages, built }
    }

    /// The full version of the unpacked kernel.
    pub(super) fn abi(&self) -> Result<String, Failure> {
        self.packages.finished().ok_or_else(|| Failure::setup("the kernel's packages are not unpacked"))
    }

    /// The folder of the kernel's source, which is unpacked in part.
    fn source(&self) -> Result<PathBuf, Failure> {
        packages::beginning(&self.common, "linux-source-")
            .ok_or_else(|| Failure::setup("the kernel's source is not unpacked"))
    }

    /// Downloads the kernel, its headers and their tools; of its source only the DMA drivers and the style checker.
    pub(super) fn need_kernel(&self) -> Result<(), Failure> {
        let checker = |source: PathBuf| source.join("scripts/checkpatch.pl").exists();
        if self.packages.finished().is_some() && self.source().is_ok_and(checker) {
            return Ok(());
        }
        self.packages.begin()?;
        let Architecture { debian, flavour, .. } = self.machine.architecture;
        let depends = self.packages.depends(&format!("linux-image-{flavour}:{debian}"));
        let image = packages::newest(&depends, "linux-image-").ok_or_else(|| {
            Failure::setup(format!(
                "the package lists that could be downloaded have no kernel for {debian}; try again later"
            ))
        })?;
        let abi = &image["linux-image-".len()..];
        say(format_args!(
            "downloading kernel {abi}, its headers, the source of its DMA drivers, and its style checker"
        ));
        let headers = self.packages.depends(&format!("linux-headers-{abi}:{debian}"));
        self.packages.download(&wanted_packages(abi, debian, &headers))?;
        self.unpack_source(&version_of(abi))?;
        let headers = self.headers(abi).join("Makefile");
        // The headers refer to each other by their installed paths.
        relocate(&headers, &self.packages.unpacked())?;
        self.packages.finish(abi)
    }

    fn unpack_source(&self, version: &str) -> Result<(), Failure> {
        let source = format!("linux-source-{version}");
        let unpacked = self.packages.unpacked();
        let archive = unpacked.join(format!("usr/src/{source}.tar.xz"));
        let parts = ["drivers/dma", "scripts/checkpatch.pl", "scripts/spelling.txt"];
        let parts = parts.into_iter().chain(["scripts/const_structs.checkpatch"]);
        let line = Line::new("tar").arg("-C").arg(&unpacked).arg("-xf").arg(&archive);
        let line = line.args(parts.map(|part| format!("{source}/{part}")));
        if stages::run(&line) != 0 {
            return Err(Failure::setup("could not unpack the kernel's source"));
        }
        fs::remove_file(&archive).map_err(|error| broken(&archive, &error))
    }

    fn headers(&self, abi: &str) -> PathBuf {
        self.packages.unpacked().join(format!("usr/src/linux-headers-{abi}"))
    }

    /// The same kernel with debugging checks, built from Debian's source. This takes long.
    fn need_debug_kernel(&self) -> Result<(), Failure> {
        if self.built.join("kernel/arch/arm64/boot/Image").exists() {
            return Ok(());
        }
        let version = version_of(&self.abi()?);
        say("downloading the source of the kernel");
        make(&self.built.join("kernel"))?;
        self.packages.download(&[format!("linux-source-{version}")])?;
        let archive = self.packages.unpacked().join(format!("usr/src/linux-source-{version}.tar.xz"));
        let unpack = Line::new("tar").arg("-C").arg(&self.built).arg("-xf").arg(&archive);
        if stages::run(&unpack) != 0 {
            return Err(Failure::setup("could not unpack the kernel's source"));
        }
        fs::remove_file(&archive).map_err(|error| broken(&archive, &error))?;
        let source = self.built.join(format!("linux-source-{version}"));
        let lines = self.debug_kernel(&source);
        self.work.stages.step("debug kernel", &lines[2], || run_all(&lines))
    }

    fn debug_kernel(&self, source: &Path) -> [Line; 3] {
        let config = self.work.place.at(layout::module::DEBUG_CONFIG);
        let mut config_option = std::ffi::OsString::from("KCONFIG_ALLCONFIG=");
        config_option.push(config);
        let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let make = || {
            let output = format!("O={}", self.built.join("kernel").display());
            let line = Line::new("make").args(["-s", "-C"]).arg(source).arg(output);
            line.args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"])
        };
        let jobs = format!("-j{jobs}");
        [
            make().arg("allnoconfig").arg(config_option),
            make().args([&jobs, "modules"]),
            make().args([&jobs, "Image"]),
        ]
    }

    /// Builds the modules of a folder for the machine's kernel.
    fn kbuild(&self, folder: &Path, options: &[&str]) -> Result<Line, Failure> {
        let Architecture { debian, kernel, triple, .. } = self.machine.architecture;
        let headers =
            if self.machine.is_debug { self.built.join("kernel") } else { self.headers(&self.abi()?) };
        let cross = if debian == self.host { String::new() } else { format!("{triple}-") };
        // Type information would need the kernel's, which its packages lack.
        let options = [&["CONFIG_DEBUG_INFO_BTF_MODULES="], options].concat();
        Ok(kbuild(&headers, folder, kernel, &cross, &options))
    }

    /// Builds modules and their tests, and packs them; `kernel` is a name for the stages.
    pub(super) fn boot(&self, kernel: &str) -> Result<Boot, Failure> {
        let stages = &self.work.stages;
        stages.step(&format!("modules for {kernel}"), "make modules", || self.build_modules())?;
        stages.run(&format!("tests for {kernel}"), &self.tests())?;
        self.initramfs()
    }

    pub(super) fn build_modules(&self) -> u8 {
        let build = || -> Result<[Line; 2], Failure> {
            let modules = self.built.join("modules");
            copy_tree(&self.work.place.at(layout::module::FOLDER), &modules)?;
            let sparse: &[&str] = if stages::has("sparse") { &["C=1", "CF=-Wsparse-error"] } else { &[] };
            let options = [&["MEMFERRY_TESTS=m"], sparse].concat();
            Ok([self.kbuild(&modules, &options)?, self.kbuild(&self.copy_drivers()?, &[])?])
        };
        status_of(build().map(|lines| run_all(&lines)))
    }

    /// Copies Linux's engine test and a driver that Debian's kernels lack, to build them out of the tree.
    fn copy_drivers(&self) -> Result<PathBuf, Failure> {
        let drivers = self.built.join("drivers");
        let source = self.source()?.join("drivers/dma");
        make(&drivers.join("xilinx"))?;
        for file in ["dmaengine.h", "dmatest.c", "xilinx/zynqmp_dma.c"] {
            copy_if_other(&source.join(file), &drivers.join(file))?;
        }
        write(&drivers.join("xilinx/Kbuild"), "obj-m := zynqmp_dma.o\n")?;
        let is_arm64 = self.machine.architecture.debian == "arm64";
        let objects = if is_arm64 { "obj-m := dmatest.o xilinx/\n" } else { "obj-m := dmatest.o\n" };
        write(&drivers.join("Kbuild"), objects)?;
        Ok(drivers)
    }

    /// Checks the modules, not their tests, which are ordinary programs. checkpatch would object to the purpose of compat.h.
    fn style(&self) -> Result<Line, Failure> {
        let mut files = Vec::new();
        for folder in layout::module::STYLED {
            let path = self.work.place.at(folder);
            let entries = fs::read_dir(&path).map_err(|error| broken(&path, &error))?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let is_source = |name: &String| {
                let is_code = name.ends_with(".c") && !name.ends_with(".mod.c");
                is_code || name.ends_with(".h")
            };
            files.extend(names.filter(is_source).map(|name| format!("{folder}/{name}")));
        }
        files.sort();
        Ok(checkpatch(&self.source()?.join("scripts/checkpatch.pl"), &files))
    }

    pub(super) fn tests(&self) -> Line {
        let compiler = format!("CC={}-gcc", self.machine.architecture.triple);
        let modules = self.built.join("modules");
        Line::new("make").args(["-s", "-C"]).arg(modules).arg(compiler).arg("memferry_test")
    }

    /// Builds the programs that the guest runs.
    pub(super) fn build_programs(&self) -> u8 {
        let build = || -> Result<u8, Failure> {
            for program in PROGRAMS {
                let path = self.built.join(program.name);
                if path.exists() {
                    fs::remove_file(&path).map_err(|error| broken(&path, &error))?;
                }
                if program.is_for(self.machine) {
                    let status = self.build_program(&path, program);
                    if status != 0 {
                        return Ok(status);
                    }
                }
            }
            Ok(0)
        };
        status_of(build())
    }

    /// Builds a static program with cargo, and strips it.
    fn build_program(&self, path: &Path, program: &Program) -> u8 {
        let target = self.machine.architecture.rust.expect("machines that want programs have a target");
        let line = guest_cargo(program.workspace, target, &program.arguments());
        let messages = line.command().stderr(std::process::Stdio::inherit()).output();
        let messages = match messages {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => return stages::status_of(output.status),
            Err(error) => {
                say(format_args!("cannot start cargo: {error}"));
                return 127;
            }
        };
        let Some(built) = executable(&messages, program.test.unwrap_or(program.name)) else {
            say(format_args!("cargo built no program: {line}"));
            return 1;
        };
        let strip = format!("{}-strip", self.machine.architecture.triple);
        stages::run(&Line::new(strip).arg("-o").arg(path).arg(built))
    }

    pub(super) fn initramfs(&self) -> Result<Boot, Failure> {
        let root = self.built.join(self.machine.name);
        make_anew(&root)?;
        make(&root.join("bin"))?;
        make(&root.join("modules"))?;
        copy(&self.work.place.at(layout::module::INIT), &root.join("init"))?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(root.join("init"), executable).map_err(|error| broken(&root, &error))?;
        copy(&self.built.join("modules/memferry_test"), &root.join("test"))?;
        copy(&packages::busybox(&self.common)?, &root.join("bin/busybox"))?;
        for folder in ["modules", "modules/softdma", "modules/guest/movdir64b", "drivers", "drivers/xilinx"] {
            self.copy_modules(&self.built.join(folder), &root.join("modules"))?;
        }
        // Other guests of this architecture may have left theirs.
        for program in PROGRAMS.iter().filter(|program| program.is_for(self.machine)) {
            copy(&self.built.join(program.name), &root.join(program.name))?;
        }
        let unpacked = self.packages.unpacked();
        let stock = |name: &&str| packages::copy_module(&unpacked, name, &root.join("modules"));
        let lines: Vec<Line> = self.machine.stock.iter().flat_map(stock).collect();
        if run_all(&lines) != 0 {
            return Err(Failure::setup("could not copy the kernel's own modules"));
        }
        write(&root.join("modules/order"), format!("{}\n", self.machine.order))?;
        let initrd = self.built.join(format!("{}.initrd", self.machine.name));
        let content = archive::of_folder(&root).map_err(|error| broken(&root, &error))?;
        write(&initrd, content)?;
        Ok(Boot { kernel: self.kernel_image()?, initrd, device_tree: self.device_tree()? })
    }

    fn copy_modules(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        // An earlier run may have left a driver of another architecture.
        let is_xilinx = from.ends_with("xilinx");
        if is_xilinx && self.machine.architecture.debian != "arm64" {
            return Ok(());
        }
        for entry in fs::read_dir(from).map_err(|error| broken(from, &error))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "ko") {
                copy(&path, &to.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    fn kernel_image(&self) -> Result<PathBuf, Failure> {
        if self.machine.is_debug {
            return Ok(self.built.join("kernel/arch/arm64/boot/Image"));
        }
        packages::beginning(&self.packages.unpacked().join("boot"), "vmlinuz-")
            .ok_or_else(|| Failure::setup("the kernel's package has no kernel"))
    }

    fn device_tree(&self) -> Result<Option<PathBuf>, Failure> {
        match self.machine.device_tree {
            DeviceTree::Default => Ok(None),
            DeviceTree::Kernel(file) => {
                let folder = format!("usr/lib/linux-image-{}", self.abi()?);
                Ok(Some(self.packages.unpacked().join(folder).join(file)))
            }
            DeviceTree::Own => {
                let compiled = self.built.join("machine.dtb");
                let source = self.work.place.at(layout::module::DEVICE_TREE);
                let line =
                    Line::new("dtc").args(["-q", "-I", "dts", "-O", "dtb", "-o"]).arg(&compiled).arg(source);
                if stages::run(&line) != 0 {
                    return Err(Failure::Stage { stage: "device tree".to_owned(), status: 1 });
                }
                Ok(Some(compiled))
            }
        }
    }
}

/// The packages to download for a kernel: kernel, headers and their tools, source, and a shell for the guest.
fn wanted_packages(abi: &str, debian: &str, headers: &str) -> Vec<String> {
    let own = [format!("linux-image-{abi}:{debian}"), format!("linux-headers-{abi}:{debian}")];
    // Of the host's architecture: they are run while modules are built.
    let shared = packages::dependencies(headers, "linux-headers-")
        .chain(packages::dependencies(headers, "linux-kbuild-"))
        .map(str::to_owned);
    let further = [format!("linux-source-{}", version_of(abi)), format!("busybox-static:{debian}")];
    own.into_iter().chain(shared).chain(further).collect()
}

/// The version that names the source package: 6.1 of 6.1.0-41-arm64.
fn version_of(abi: &str) -> String {
    abi.split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

pub(super) fn kbuild(headers: &Path, folder: &Path, kernel: &str, cross: &str, options: &[&str]) -> Line {
    let line = Line::new("make").args(["-s", "-C"]).arg(headers).arg(format!("M={}", folder.display()));
    let line = line.arg(format!("ARCH={kernel}")).arg(format!("CROSS_COMPILE={cross}"));
    line.args(options).arg("modules")
}

fn checkpatch(script: &Path, files: &[String]) -> Line {
    let line = Line::new("perl").arg(script).args(["--no-tree", "--terse", "--no-summary", "--ignore"]);
    line.arg("LINUX_VERSION_CODE,CONSTANT_COMPARISON").arg("-f").args(files)
}

fn guest_cargo(workspace: &Workspace, target: &str, arguments: &[&str]) -> Line {
    let variable = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    let line = workspace.cargo(arguments).env(&variable, "rust-lld");
    line.args(["--target", target, "--message-format=json-render-diagnostics"])
}

/// The program of a target that cargo's messages name. With a test, cargo also builds the programs of its package.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
}

/// Lets the Makefile of headers name the place where they are unpacked.
pub(super) fn relocate(makefile: &Path, unpacked: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(makefile).map_err(|error| broken(makefile, &error))?;
    write(makefile, text.replace("/usr/src/", &format!("{}/usr/src/", unpacked.display())))
}

/// Copies a folder with the times of its files, by which make knows what is up to date.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<(), Failure> {
    make(to)?;
    let line = Line::new("cp").arg("-rp").arg(from.join(".")).arg(to);
    if stages::run(&line) != 0 {
        return Err(Failure::setup(format!("could not copy {}", from.display())));
    }
    Ok(())
}

/// Copies a file unless an equal one exists: a new time would make `make` compile it again.
fn copy_if_other(from: &Path, to: &Path) -> Result<(), Failure> {
    let is_same = fs::read(from).is_ok_and(|bytes| fs::read(to).is_ok_and(|there| there == bytes));
    if is_same { Ok(()) } else { copy(from, to) }
}

/// The status of a stage whose preparation may fail.
fn status_of(outcome: Result<u8, Failure>) -> u8 {
    outcome.unwrap_or_else(|failure| {
        say(&failure);
        failure.exit_status()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_the_build_are_of_this_machine() {
        let headers = "  Depends: <linux-headers-6.1.0-41-common:arm64>\n    linux-headers-6.1.0-41-common\n  \
                       Depends: linux-kbuild-6.1:arm64\n    linux-kbuild-6.1\n";
        assert_eq!(
            wanted_packages("6.1.0-41-arm64", "arm64", headers),
            [
                "linux-image-6.1.0-41-arm64:arm64",
                "linux-headers-6.1.0-41-arm64:arm64",
                "linux-headers-6.1.0-41-common",
                "linux-kbuild-6.1",
                "linux-source-6.1",
                "busybox-static:arm64"
            ]
        );
    }

    #[test]
    fn version_is_the_first_two_numbers() {
        assert_eq!(version_of("6.1.0-41-arm64"), "6.1");
        assert_eq!(version_of("6.12.48+deb13-amd64"), "6.12");
    }

    #[test]
    fn modules_are_cross_compiled() {
        let line = kbuild(Path::new("/h"), Path::new("/m"), "arm64", "aarch64-linux-gnu-", &["A=m"]);
        assert_eq!(
            line.to_string(),
            "make -s -C /h M=/m ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- A=m modules"
        );
    }

    #[test]
    fn programs_of_a_guest_are_linked_statically() {
        let line = guest_cargo(&PRODUCT_WORKSPACE, "aarch64-unknown-linux-musl", &["build", "-p", "a"]);
        let line = line.to_string();
        assert_eq!(
            line,
            "env CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld cargo build -p a --target \
             aarch64-unknown-linux-musl --message-format=json-render-diagnostics"
        );
    }

    #[test]
    fn programs_are_those_that_the_machine_wants() {
        let names = |machine: &Machine| -> Vec<&str> {
            PROGRAMS.iter().filter(|program| program.is_for(machine)).map(|program| program.name).collect()
        };
        assert_eq!(names(&machine::IOAT_VFIO), ["memferry", "memferry-engine-ioat", "brokered", "straying"]);
        assert_eq!(names(&machine::DSA_VFIO), ["portal"]);
        assert_eq!(names(Machine::named("x86").unwrap()), ["suite", "memferry"]);
        assert_eq!(
            names(&machine::DSA_FILE),
            ["memferry", "brokered", "memferry-engine-dsa", "queue_file", "memferry-device"]
        );
        assert_eq!(names(Machine::named("raspi2b").unwrap()), [""; 0]);
        let brokered = PROGRAMS.iter().find(|program| program.name == "brokered").unwrap();
        let line = brokered.arguments().join(" ");
        assert_eq!(line, "test -p memferry-engine-ioat --test brokered --no-run");
    }

    #[test]
    fn executable_is_that_of_the_target() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"suite\"},\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"suite\"},\"executable\":\"/t/suite\"}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"memferry\"},\"executable\":\"/t/other\"}\n\
                        no JSON\n{\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages, "suite"), Some("/t/suite".into()));
        assert_eq!(executable(messages, "build"), None);
        assert_eq!(executable("", "suite"), None);
    }
}
