//! The DSA model as a PCI device under Linux's own driver: `memferry-device serve dsa`, plugged into QEMU guests.
//!
//! ```text
//! memferry-device serve dsa ◄── vfio-user ── QEMU ── PCI ── Linux: idxd ── dmaengine ── dmatest, memferry.ko, its tests
//!        portals ◄── eight stores ── movdir64b.ko ◄── invalid opcode: MOVDIR64B                        └──► verdict
//! ```
//!
//! The driver is Intel's, as Debian builds it. QEMU emulates the processor, which lacks MOVDIR64B; a module of ours performs that. Work queues of type
//! user need shared virtual memory, which a vfio-user device does not have; a scene shows where they end. In another one, a character device of ours
//! stands in for such a queue (`dsa_file`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::backport::Qemu;
use super::dsa_file;
use super::machine::{Boot, DSA};
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

/// A guest to boot with a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scene {
    name: &'static str,
    /// The newest kernel of the release's backports, instead of its own.
    newer: bool,
    /// With the product's programs.
    programs: bool,
    /// Behind Intel's IOMMU, with these properties.
    iommu: Option<&'static str>,
    /// Words that select the tasks of the guest's init.
    words: &'static [&'static str],
}

const DRIVER: Scene = Scene {
    name: "dsa",
    newer: false,
    programs: false,
    iommu: None,
    words: &["dsa", "dmatest", "engine", "policies"],
};
/// The scenes, in order. The first one that fails ends the run.
const SCENES: &[Scene] = &[
    DRIVER,
    Scene { name: "dsa-life", words: &["dsa", "dsa-life", "dmatest"], ..DRIVER },
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
    Scene { name: "dsa-file", programs: true, words: dsa_file::WORDS, ..DRIVER },
    Scene { name: "dsa-newer", newer: true, words: &["dsa", "dsa-user", "dmatest", "moves"], ..DRIVER },
];

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::C_COMPILER, debian::MODULE_BUILD])?;
    let folder = work.place.built("guest-dsa");
    make(&folder)?;
    let qemu = Qemu::need(&folder.join("qemu"))?;
    let guest = Guest::new(work, &DSA)?;
    guest.need_kernel()?;
    let (packages, version) = newer::need(&work.place.built("kernel/newer"), true)?;
    let newer = guest.with_kernel(packages, folder.join("newer"));
    make(&folder.join("newer"))?;
    say(format_args!("{}; Debian's kernels {} and {version}", qemu.version()?, guest.abi()?));
    let build = RESEARCH_WORKSPACE.cargo(&["build", "--release", "-p", package::DEVICE]);
    work.stages.run("device", &build)?;
    let scenes = chosen(std::env::var(CHOICE).ok().as_deref())?;
    let boots = [guest.boot("Debian's kernel")?, newer.boot("the newer kernel")?];
    // The modules are built already.
    let has_programs = scenes.iter().any(|scene| scene.programs);
    let with_programs = has_programs.then(|| dsa_file::boot(work)).transpose()?;
    let device = work.place.built("release").join(binary::DEVICE);
    let run = Run { work, qemu, device, folder, boots, with_programs };
    scenes.into_iter().try_for_each(|scene| run.scene(scene))
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
    /// Of the release's own kernel, and of the newer one.
    boots: [Boot; 2],
    /// Of the first one, with the product's programs, if a scene needs it.
    with_programs: Option<Boot>,
}

impl Run<'_> {
    /// Boots a scene, with a device of its own.
    fn scene(&self, scene: &Scene) -> Result<(), Failure> {
        let folder = SocketFolder::new("dsa")?;
        let socket = folder.socket();
        let device = served::line(&self.device, "dsa", &socket);
        let own = &self.boots[usize::from(scene.newer)];
        let boot = self.with_programs.as_ref().filter(|_| scene.programs).unwrap_or(own);
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
    fn a_queues_file_has_the_products_programs() {
        for scene in SCENES {
            assert_eq!(scene.programs, scene.words.contains(&"dsa-file"), "{}", scene.name);
            assert!(!scene.programs || !scene.newer, "{}: programs are with one kernel", scene.name);
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
