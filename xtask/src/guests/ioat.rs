//! The I/OAT model as a PCI device under Linux's own driver: `memferry-device serve ioat`, plugged into QEMU guests.
//!
//! ```text
//! memferry-device serve ioat ◄── vfio-user ── QEMU ── PCI ── Linux: ioatdma ── dmaengine ── dmatest, memferry.ko, its tests
//!        └── one for each scene: another kernel, an IOMMU, faults, or the end of the device          └──► verdict
//! ```
//!
//! The driver is Intel's, as Debian builds it; in one scene, the product's own at user level (`engines/ioat`), through VFIO. QEMU emulates the processor, so times say nothing about hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::backport::Qemu;
use super::machine::{Boot, IOAT, IOAT_VFIO};
use super::module::Guest;
use super::newer;
use super::served::{self, Device, SocketFolder};
use super::watch::Watch;
use crate::failure::Failure;
use crate::files::{make, write};
use crate::layout::{self, RESEARCH_WORKSPACE, binary, package};
use crate::line::Line;
use crate::setup::debian;
use crate::stages::say;
use crate::work::Work;

/// Environment variable with the names of the scenes to run, with commas between them.
const CHOICE: &str = "MEMFERRY_IOAT_SCENES";
const LIMIT: Duration = Duration::from_secs(240);
/// The line with which a guest asks for the end of the device's process.
const KILL: &str = "guest: kill the device";
/// How QEMU ends at times when the device's process is killed: it sets an error twice.
const QEMU_ENDS: &str = "Assertion `*errp == NULL' failed";
/// How often a scene is tried that kills the device's process.
const TRIES: u32 = 3;
/// The beginning of a row of the table of copies.
const ROW: &str = "memferry_test: emulated ";
/// The scene that prints the rows: of each number of channels, under each of these, the lengths from 4 KiB to 4 MiB by fours.
const COPIES: &str = "ioat-copies";
const CHANNELS: u32 = 4;
const POLICIES: [&str; 4] = ["shared", "exclusive", "priority-normal", "priority-high"];
const LENGTHS: [u32; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// The one of this machine's release.
    Own,
    /// The newest in its backports.
    Newer,
    /// The first one, with VFIO and the product's programs.
    OwnWithPrograms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iommu {
    None,
    Intel,
    Virtio,
}

/// A guest to boot with a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scene {
    name: &'static str,
    kernel: Kernel,
    iommu: Iommu,
    /// Of the engine. Linux uses its XOR in 3.0 and 3.3.
    version: &'static str,
    memory: &'static str,
    /// Words that select the tasks of the guest's init.
    words: &'static [&'static str],
    /// The schedule of faults that the device follows.
    faults: Option<&'static str>,
}

impl Scene {
    /// Whether the guest asks for the end of the device's process.
    fn kills(&self) -> bool {
        self.words.contains(&"killed")
    }

    /// Whether the product's engine process drives the device, not the kernel.
    fn is_at_user_level(&self) -> bool {
        self.kernel == Kernel::OwnWithPrograms
    }
}

const DRIVER: Scene = Scene {
    name: "ioat",
    kernel: Kernel::Own,
    iommu: Iommu::None,
    version: "3.2",
    memory: "1G",
    words: &["ioat", "dmatest", "engine", "policies"],
    faults: None,
};
/// The scenes, in order. The first one that fails ends the run.
const SCENES: &[Scene] = &[
    DRIVER,
    Scene { name: COPIES, words: &["ioat", "copies"], ..DRIVER },
    Scene {
        name: "ioat-5g",
        version: "3.0",
        memory: "5G",
        words: &["ioat", "xor", "dmatest", "moves"],
        ..DRIVER
    },
    Scene {
        name: "ioat-intel-iommu",
        iommu: Iommu::Intel,
        words: &["ioat", "iommu", "dmatest", "moves"],
        ..DRIVER
    },
    Scene {
        name: "ioat-vfio",
        kernel: Kernel::OwnWithPrograms,
        iommu: Iommu::Intel,
        version: "3.0",
        words: &["ioat", "iommu", "vfio", "dmatest"],
        ..DRIVER
    },
    Scene { name: "ioat-faults", words: &["ioat", "device-faults"], faults: Some("faults"), ..DRIVER },
    Scene { name: "ioat-late", words: &["ioat", "late"], faults: Some("late"), ..DRIVER },
    Scene { name: "ioat-quarantine", words: &["ioat", "quarantine"], faults: Some("quarantine"), ..DRIVER },
    Scene { name: "ioat-killed", words: &["ioat", "killed"], ..DRIVER },
    Scene { name: "ioat-removed", words: &["ioat", "removed"], ..DRIVER },
    Scene {
        name: "ioat-newer",
        kernel: Kernel::Newer,
        version: "3.3",
        words: &["ioat", "xor", "dmatest", "moves"],
        ..DRIVER
    },
    Scene {
        name: "ioat-newer-intel-iommu",
        kernel: Kernel::Newer,
        iommu: Iommu::Intel,
        words: &["ioat", "iommu", "dmatest", "moves", "removed"],
        ..DRIVER
    },
    Scene {
        name: "ioat-newer-virtio-iommu",
        kernel: Kernel::Newer,
        iommu: Iommu::Virtio,
        words: &["virtio-iommu", "ioat", "iommu", "dmatest", "moves"],
        ..DRIVER
    },
];

/// All scenes, or those that the environment names.
pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    run_scenes(work, &chosen(std::env::var(CHOICE).ok().as_deref())?)
}

/// The scenes in which a driver of the kernel has the device.
pub(crate) fn run_of_linux(work: &Work) -> Result<(), Failure> {
    run_scenes(work, &SCENES.iter().filter(|scene| !scene.is_at_user_level()).collect::<Vec<_>>())
}

/// Those in which the product's engine process has it.
pub(crate) fn run_at_user_level(work: &Work) -> Result<(), Failure> {
    run_scenes(work, &SCENES.iter().filter(|scene| scene.is_at_user_level()).collect::<Vec<_>>())
}

fn run_scenes(work: &Work, scenes: &[&'static Scene]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::C_COMPILER, debian::MODULE_BUILD])?;
    let folder = work.place.built("guest-ioat");
    make(&folder)?;
    let qemu = Qemu::need(&folder.join("qemu"))?;
    let guest = Guest::new(work, &IOAT)?;
    guest.need_kernel()?;
    say(format_args!("{}; Debian's kernel {}", qemu.version()?, guest.abi()?));
    let build = RESEARCH_WORKSPACE.cargo(&["build", "--release", "-p", package::DEVICE]);
    work.stages.run("device", &build)?;
    let boots = boots(work, &guest, &folder, scenes)?;
    let run = Run { work, qemu, device: work.place.built("release").join(binary::DEVICE), folder, boots };
    let mut rows = Vec::new();
    for scene in scenes {
        run.scene(scene, &mut rows)?;
    }
    if scenes.iter().any(|scene| scene.name == COPIES) { run.keep(&rows) } else { Ok(()) }
}

/// What the scenes boot, in the order of [`Kernel`].
fn boots(
    work: &Work,
    guest: &Guest,
    folder: &Path,
    scenes: &[&'static Scene],
) -> Result<[Option<Boot>; 3], Failure> {
    let wants = |kernel| scenes.iter().any(|scene| scene.kernel == kernel);
    // The guest with programs has the same modules.
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
    let with_programs = match wants(Kernel::OwnWithPrograms) {
        true => Some(boot_with_programs(work)?),
        false => None,
    };
    Ok([own, newer, with_programs])
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

/// The modules are built already.
fn boot_with_programs(work: &Work) -> Result<Boot, Failure> {
    if let Some(target) = IOAT_VFIO.architecture.rust {
        work.setup.target(target)?;
    }
    let guest = Guest::new(work, &IOAT_VFIO)?;
    work.stages.step("programs for the guest", "cargo, strip", || guest.build_programs())?;
    guest.initramfs()
}

struct Run<'a> {
    work: &'a Work<'a>,
    qemu: Qemu,
    device: PathBuf,
    folder: PathBuf,
    /// In the order of [`Kernel`].
    boots: [Option<Boot>; 3],
}

impl Run<'_> {
    /// Boots a scene; again where QEMU does not survive the end of the device's process.
    fn scene(&self, scene: &Scene, rows: &mut Vec<String>) -> Result<(), Failure> {
        for _ in 1..TRIES {
            let outcome = self.boot(scene, rows);
            let said = fs::read_to_string(self.log(scene)).unwrap_or_default();
            if outcome.is_ok() || !scene.kills() || !said.contains(QEMU_ENDS) {
                return outcome;
            }
            say(format_args!(
                "QEMU did not survive that the device's process was killed ({QEMU_ENDS}); again"
            ));
        }
        self.boot(scene, rows)
    }

    /// What the guest says.
    fn log(&self, scene: &Scene) -> PathBuf {
        self.folder.join(format!("{}.txt", scene.name))
    }

    /// Boots a scene, with a device of its own; collects the rows of its table.
    fn boot(&self, scene: &Scene, rows: &mut Vec<String>) -> Result<(), Failure> {
        let folder = SocketFolder::new("ioat")?;
        let socket = folder.socket();
        let faults = scene.faults.map(|name| self.work.place.at(layout::module::FAULTS).join(name));
        let device = device(&self.device, scene.version, &socket, faults.as_deref());
        let boot = self.boots[scene.kernel as usize].as_ref();
        let boot = boot.ok_or_else(|| Failure::setup(format!("nothing was built for {}", scene.name)))?;
        let line = machine(self.qemu.line(), scene, boot, &socket);
        self.work.stages.step(scene.name, format_args!("{device} & {line}"), || {
            let log = self.folder.join(format!("{}.device.txt", scene.name));
            let mut device = match Device::start(&device, &log) {
                Ok(device) => device,
                Err(failure) => {
                    say(failure);
                    return 1;
                }
            };
            let log = self.log(scene);
            let shown = &["guest: ", "FAIL", "memferry_test: "];
            let watch = Watch { log: &log, limit: LIMIT, mark: "guest: ", shown };
            let status = watch.run_with(&line, &mut |line| {
                if line == KILL {
                    device.kill();
                }
                rows.extend(line.strip_prefix(ROW).map(str::to_owned));
            });
            // A guest that failed is the cause of what its device says, and is reported.
            if status == 0 { device.end(scene.kills()) } else { status }
        })
    }

    /// Writes the table of copies, which must be complete.
    fn keep(&self, rows: &[String]) -> Result<(), Failure> {
        if let Some(missing) = missing(rows) {
            return Err(Failure::setup(format!(
                "the guest printed no row '{missing}' of the table of copies"
            )));
        }
        let path = self.folder.join("copies.txt");
        let table = table(rows);
        write(&path, &table)?;
        say(format_args!("copies by the I/OAT model under Linux's driver ({}):\n{table}", path.display()));
        Ok(())
    }
}

/// The beginning of the first row that the table lacks.
fn missing(rows: &[String]) -> Option<String> {
    let beginnings = (1..=CHANNELS).flat_map(|channels| {
        POLICIES.iter().flat_map(move |policy| {
            LENGTHS.iter().map(move |length| format!("{policy} {channels} {length} "))
        })
    });
    beginnings.into_iter().find(|beginning| !rows.iter().any(|row| row.starts_with(beginning)))
}

/// The table of Papa's copies, with its warning.
fn table(rows: &[String]) -> String {
    let heading = "EMULATED: processor by QEMU, engine by the project's model. No figure of hardware, and no claim's verdict.\n\
                   policy, channels, bytes, read by CPU, read by DMA, write by CPU, write by DMA (microseconds, best of two; \"-\": no channel)\n";
    format!("{heading}{}\n", rows.join("\n"))
}

fn device(program: &Path, version: &str, socket: &Path, faults: Option<&Path>) -> Line {
    let line = served::line(program, "ioat", socket).args(["--version", version]);
    match faults {
        Some(file) => line.arg("--faults").arg(file),
        None => line,
    }
}

/// QEMU's command line: a machine with PCI Express, memory that the device's process shares, an IOMMU, the device.
fn machine(qemu: Line, scene: &Scene, boot: &Boot, socket: &Path) -> Line {
    let memory = scene.memory;
    let words = scene.words.join(",");
    let (machine, iommu, parameter): (_, &[&str], _) = match scene.iommu {
        Iommu::None => ("q35,accel=tcg", &[], ""),
        // The device's process learns of mappings only from an IOMMU that caches none on behalf of it.
        Iommu::Intel => (
            "q35,accel=tcg,kernel-irqchip=split",
            &["-device", "intel-iommu,caching-mode=on"],
            " intel_iommu=on",
        ),
        Iommu::Virtio => ("q35,accel=tcg", &["-device", "virtio-iommu-pci"], ""),
    };
    let append = format!("memferry={words}{parameter}");
    served::machine(qemu, (machine, memory), boot, &append, iommu, socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(scene: &Scene) -> String {
        let boot = Boot { kernel: "/k".into(), initrd: "/i".into(), device_tree: None };
        machine(Line::new("qemu"), scene, &boot, Path::new("/s")).to_string()
    }

    #[test]
    fn the_device_shares_the_guests_memory() {
        let line = line(&DRIVER);
        assert!(
            line.contains("memory-backend-memfd,id=memory,size=1G,share=on -machine memory-backend=memory"),
            "{line}"
        );
        assert!(
            line.ends_with(r#"{"driver":"vfio-user-pci","socket":{"path":"/s","type":"unix"}}'"#),
            "{line}"
        );
        assert!(line.contains("memferry=ioat,dmatest,engine,policies'"), "{line}");
    }

    /// The devices of QEMU's command line, in order.
    fn devices(line: &str) -> Vec<&str> {
        line.split(" -device ").skip(1).filter_map(|rest| rest.split([' ', ',']).next()).collect()
    }

    #[test]
    fn an_iommu_comes_before_the_device() {
        for scene in SCENES {
            let line = line(scene);
            let devices = devices(&line);
            let iommu: &[&str] = match scene.iommu {
                Iommu::None => &[],
                Iommu::Intel => &["intel-iommu"],
                Iommu::Virtio => &["virtio-iommu-pci"],
            };
            assert_eq!(devices[..devices.len() - 1], *iommu, "{line}");
            assert!(devices.last().unwrap().contains(r#""driver":"vfio-user-pci""#), "{line}");
        }
    }

    #[test]
    fn scenes_have_names_of_their_own_and_their_schedules_exist() {
        for scene in SCENES {
            assert_eq!(SCENES.iter().filter(|other| other.name == scene.name).count(), 1, "{}", scene.name);
            if let Some(name) = scene.faults {
                let file = format!("{}/../{}/{name}", env!("CARGO_MANIFEST_DIR"), layout::module::FAULTS);
                assert!(Path::new(&file).exists(), "{file}");
            }
        }
    }

    #[test]
    fn a_user_level_driver_has_an_iommu_and_its_programs() {
        for scene in SCENES {
            let is_ours = scene.words.contains(&"vfio");
            assert_eq!(is_ours, scene.is_at_user_level(), "{}", scene.name);
            assert!(!is_ours || scene.iommu != Iommu::None, "{}", scene.name);
        }
    }

    #[test]
    fn scenes_are_chosen_by_name() {
        assert_eq!(chosen(None).unwrap().len(), SCENES.len());
        let two = chosen(Some("ioat-killed,ioat")).unwrap();
        assert_eq!(two.iter().map(|scene| scene.name).collect::<Vec<_>>(), ["ioat-killed", "ioat"]);
        let failure = chosen(Some("ioat,nonsense")).unwrap_err();
        assert_eq!(failure.exit_status(), 2);
        assert!(failure.to_string().contains("unknown scene 'nonsense'; the scenes are ioat, "), "{failure}");
    }

    #[test]
    fn a_table_of_copies_must_be_complete() {
        let mut rows: Vec<String> = Vec::new();
        for channels in 1..=4 {
            for policy in POLICIES {
                rows.extend(LENGTHS.iter().map(|length| format!("{policy} {channels} {length} 1 2 3 -")));
            }
        }
        assert_eq!(rows.len(), 96);
        assert_eq!(missing(&rows), None);
        let left = rows.remove(40);
        assert!(left.starts_with(&missing(&rows).unwrap()), "{left}");
        assert_eq!(missing(&[]).as_deref(), Some("shared 1 4096 "));
    }

    #[test]
    fn the_table_says_that_it_is_emulated() {
        let table = table(&["shared 4 4096 1 2 3 4".to_owned()]);
        assert!(table.starts_with("EMULATED") && table.ends_with("\nshared 4 4096 1 2 3 4\n"), "{table}");
    }
}
