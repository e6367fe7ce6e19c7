//! The DSA model as a PCI device under Linux's own driver: `memferry-device serve dsa`, plugged into QEMU guests.
//!
//! ```text
//! memferry-device serve dsa ◄── vfio-user ── QEMU ── PCI ── Linux: idxd ── dmaengine ── dmatest, memferry.ko, its tests
//!        portals ◄── eight stores ── movdir64b.ko ◄── invalid opcode: MOVDIR64B                        └──► verdict
//! ```
//!
//! The driver is Intel's, as Debian builds it; in one scene, our own in a program, through VFIO. QEMU emulates the processor, which lacks MOVDIR64B; a module
//! of ours performs that. Work queues of type user need shared virtual memory, which a vfio-user device does not have; a scene shows where they end. In
//! another one a character device of ours stands for such a queue:
//!
//! ```text
//! queue_file ─ write() ─► /dev/dsa/wq0.4 ◄─ CUSE ─ memferry-device char dsa: the model
//! memferry-engine-dsa ────────┘└─ sysfs of Linux's idxd, which has the queue configured; two files of it are covered
//! ```
//!
//! Linux's sysfs describes the queue all the same; the guest mounts other files over `state` and `pasid_enabled` (`kernel/guest/init`, `dsa_file`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::backport::Qemu;
use super::machine::{Boot, DSA, DSA_FILE, DSA_VFIO, Machine};
use super::module::Guest;
use super::newer;
use super::served::{self, Device, SocketFolder};
use super::watch::Watch;
use crate::failure::Failure;
use crate::files::make;
use crate::layout::{RESEARCH_WORKSPACE, binary, package};
use crate::line::Line;
use crate::setup::debian;
use crate::stages::say;
use crate::work::Work;

/// Environment variable with the names of the scenes to run, with commas between them.
const CHOICE: &str = "MEMFERRY_DSA_SCENES";
const LIMIT: Duration = Duration::from_secs(240);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// The one of this machine's release.
    Own,
    /// The newest in its backports.
    Newer,
    /// The first one, with VFIO and a program with our own driver.
    OwnWithDriver,
    /// The first one, with the engine process and the program that makes a work queue's file.
    OwnWithFile,
}

/// A guest to boot with a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scene {
    name: &'static str,
    kernel: Kernel,
    /// Behind Intel's IOMMU, with these properties.
    iommu: Option<&'static str>,
    /// Words that select the tasks of the guest's init.
    words: &'static [&'static str],
}

const DRIVER: Scene =
    Scene { name: "dsa", kernel: Kernel::Own, iommu: None, words: &["dsa", "dmatest", "engine", "policies"] };
/// The scenes, in order. The first one that fails ends the run.
const SCENES: &[Scene] = &[
    DRIVER,
    Scene {
        name: "dsa-life",
        words: &["dsa", "dsa-life", "dsa-disabled", "dsa-disabled-queues", "dmatest"],
        ..DRIVER
    },
    Scene {
        name: "dsa-intel-iommu",
        iommu: Some("caching-mode=on"),
        words: &["dsa", "iommu", "dmatest", "moves"],
        ..DRIVER
    },
    Scene {
        name: "dsa-user",
        iommu: Some("caching-mode=on,scalable-mode=on"),
        words: &["dsa", "dsa-user", "dmatest"],
        ..DRIVER
    },
    Scene {
        name: "dsa-vfio",
        kernel: Kernel::OwnWithDriver,
        iommu: Some("caching-mode=on"),
        words: &["dsa-vfio", "dmatest"],
    },
    Scene { name: "dsa-file", kernel: Kernel::OwnWithFile, words: &["dsa", "dsa-file"], ..DRIVER },
    Scene {
        name: "dsa-newer",
        kernel: Kernel::Newer,
        words: &["dsa", "dsa-disabled-queues", "dsa-user", "dmatest", "moves"],
        ..DRIVER
    },
];

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    let scenes = chosen(std::env::var(CHOICE).ok().as_deref())?;
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::C_COMPILER, debian::MODULE_BUILD])?;
    let folder = work.place.built("guest-dsa");
    make(&folder)?;
    let qemu = Qemu::need(&folder.join("qemu"))?;
    let guest = Guest::new(work, &DSA)?;
    guest.need_kernel()?;
    say(format_args!("{}; Debian's kernel {}", qemu.version()?, guest.abi()?));
    let build = RESEARCH_WORKSPACE.cargo(&["build", "--release", "-p", package::DEVICE]);
    work.stages.run("device", &build)?;
    let boots = boots(work, &guest, &folder, &scenes)?;
    let run = Run { work, qemu, device: work.place.built("release").join(binary::DEVICE), folder, boots };
    scenes.into_iter().try_for_each(|scene| run.scene(scene))
}

/// What the scenes boot, in the order of [`Kernel`].
fn boots(
    work: &Work,
    guest: &Guest,
    folder: &Path,
    scenes: &[&'static Scene],
) -> Result<[Option<Boot>; 4], Failure> {
    let wants = |kernel| scenes.iter().any(|scene| scene.kernel == kernel);
    // The guest with a program has the same modules.
    let own = Some(guest.boot("Debian's kernel")?);
    let newer = match wants(Kernel::Newer) {
        true => {
            let (packages, version) = newer::need(&work.place.built("kernel/newer"), true)?;
            make(&folder.join("newer"))?;
            let newer = guest.with_kernel(packages, folder.join("newer"));
            Some(newer.boot(&format!("kernel {version}"))?)
        }
        false => None,
    };
    let with = |kernel, machine| wants(kernel).then(|| boot_with_programs(work, machine)).transpose();
    let with_driver = with(Kernel::OwnWithDriver, &DSA_VFIO)?;
    let with_file = with(Kernel::OwnWithFile, &DSA_FILE)?;
    Ok([own, newer, with_driver, with_file])
}

/// The modules are built already.
fn boot_with_programs(work: &Work, machine: &'static Machine) -> Result<Boot, Failure> {
    if let Some(target) = machine.architecture.rust {
        work.setup.target(target)?;
    }
    let guest = Guest::new(work, machine)?;
    work.stages.step("programs for the guest", "cargo, strip", || guest.build_programs())?;
    guest.initramfs()
}

/// All scenes, or those of a list with commas.
fn chosen(names: Option<&str>) -> Result<Vec<&'static Scene>, Failure> {
    let Some(names) = names else { return Ok(SCENES.iter().collect()) };
    let find = |name: &str| SCENES.iter().find(|scene| scene.name == name);
    let unknown = |name: &str| {
        let all: Vec<&str> = SCENES.iter().map(|scene| scene.name).collect();
        Failure::WrongUse(format!("{CHOICE}: unknown scene '{name}'; the scenes are {}", all.join(", ")))
    };
    names.split(',').map(|name| find(name).ok_or_else(|| unknown(name))).collect()
}

struct Run<'a> {
    work: &'a Work<'a>,
    qemu: Qemu,
    device: PathBuf,
    folder: PathBuf,
    /// In the order of [`Kernel`].
    boots: [Option<Boot>; 4],
}

impl Run<'_> {
    /// Boots a scene, with a device of its own.
    fn scene(&self, scene: &Scene) -> Result<(), Failure> {
        let folder = SocketFolder::new("dsa")?;
        let socket = folder.socket();
        let device = served::line(&self.device, "dsa", &socket);
        let boot = self.boots[scene.kernel as usize].as_ref();
        let boot = boot.ok_or_else(|| Failure::setup(format!("nothing was built for {}", scene.name)))?;
        let line = machine(self.qemu.line(), scene, boot, &socket);
        self.work.stages.step(scene.name, format_args!("{device} & {line}"), || {
            let said = self.folder.join(format!("{}.device.txt", scene.name));
            let device = match Device::start(&device, &said) {
                Ok(device) => device,
                Err(failure) => {
                    say(failure);
                    return 1;
                }
            };
            let log = self.folder.join(format!("{}.txt", scene.name));
            let shown = &["guest: ", "FAIL", "memferry_test: "];
            let status = Watch { log: &log, limit: LIMIT, mark: "guest: ", shown }.run(&line);
            // A guest that failed is the cause of what its device says, and is reported.
            if status == 0 { device.end(false).max(complaints(&said)) } else { status }
        })
    }
}

/// A status of 1 if Linux's driver broke a rule of the engine.
fn complaints(said: &Path) -> u8 {
    let said = match std::fs::read_to_string(said) {
        Ok(said) => said,
        Err(error) => {
            say(format_args!("FAIL: what the device said cannot be read from {}: {error}", said.display()));
            return 1;
        }
    };
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("complaint")).collect();
    if complaints.is_empty() {
        return 0;
    }
    say(format_args!("the device complained: {}", complaints.join("; ")));
    1
}

fn machine(qemu: Line, scene: &Scene, boot: &Boot, socket: &Path) -> Line {
    let words = scene.words.join(",");
    let Some(properties) = scene.iommu else {
        let append = format!("memferry={words}");
        return served::machine(qemu, ("q35,accel=tcg", "1G"), boot, &append, &[], socket);
    };
    let iommu = format!("intel-iommu,{properties}");
    let parameter = if properties.contains("scalable") { "on,sm_on" } else { "on" };
    let append = format!("memferry={words} intel_iommu={parameter}");
    served::machine(
        qemu,
        ("q35,accel=tcg,kernel-irqchip=split", "1G"),
        boot,
        &append,
        &["-device", &iommu],
        socket,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(scene: &Scene) -> String {
        let boot = Boot { kernel: "/k".into(), initrd: "/i".into(), device_tree: None };
        machine(Line::new("qemu"), scene, &boot, Path::new("/s")).to_string()
    }

    #[test]
    fn an_iommu_comes_before_the_device() {
        for scene in SCENES {
            let line = line(scene);
            let device = line.find("vfio-user-pci").expect("the device");
            assert_eq!(
                line.find("intel-iommu,").is_some_and(|iommu| iommu < device),
                scene.iommu.is_some(),
                "{line}"
            );
            assert!(line.contains(&format!("memferry={}", scene.words.join(","))), "{line}");
        }
    }

    #[test]
    fn scenes_with_programs_have_what_these_need() {
        for scene in SCENES {
            let has = |word| scene.words.contains(&word);
            assert_eq!(has("dsa-vfio"), scene.kernel == Kernel::OwnWithDriver, "{}", scene.name);
            assert!(!has("dsa-vfio") || scene.iommu.is_some(), "{}", scene.name);
            assert_eq!(has("dsa-file"), scene.kernel == Kernel::OwnWithFile, "{}", scene.name);
        }
    }

    #[test]
    fn scenes_are_chosen_by_name() {
        assert_eq!(chosen(None).unwrap().len(), SCENES.len());
        let two = chosen(Some("dsa-newer,dsa")).unwrap();
        assert_eq!(two.iter().map(|scene| scene.name).collect::<Vec<_>>(), ["dsa-newer", "dsa"]);
        let failure = chosen(Some("dsa,nonsense")).unwrap_err();
        assert_eq!(failure.exit_status(), 2);
        assert!(failure.to_string().contains("unknown scene 'nonsense'; the scenes are dsa, "), "{failure}");
    }
}
