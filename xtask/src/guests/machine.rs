//! The machines that run the Linux module: their differences, and QEMU's command line for each.
//!
//! ```text
//! Machine ──► compiler, kernel, words for the guest's init ──► qemu(machine, files) ──► Line
//! ```

use std::path::PathBuf;
use std::time::Duration;

use crate::line::Line;
use crate::setup::debian::{self, Tool};

/// An architecture, with its name in each tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    pub(crate) debian: &'static str,
    /// The flavour of Debian's kernel.
    pub(crate) flavour: &'static str,
    /// The kernel's own name, for `make ARCH=`.
    pub(crate) kernel: &'static str,
    /// The prefix of the C compiler and its tools.
    pub(crate) triple: &'static str,
    /// The Rust target of static programs, if any run in the guest.
    pub(crate) rust: Option<&'static str>,
}

const ARM64: Architecture = Architecture {
    debian: "arm64",
    flavour: "arm64",
    kernel: "arm64",
    triple: "aarch64-linux-gnu",
    rust: Some("aarch64-unknown-linux-musl"),
};
const ARMHF: Architecture = Architecture {
    debian: "armhf",
    flavour: "armmp",
    kernel: "arm",
    triple: "arm-linux-gnueabihf",
    rust: None,
};
const AMD64: Architecture = Architecture {
    debian: "amd64",
    flavour: "amd64",
    kernel: "x86_64",
    triple: "x86_64-linux-gnu",
    rust: Some("x86_64-unknown-linux-musl"),
};

/// The device tree for QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceTree {
    /// QEMU's own tree, or none.
    Default,
    /// A tree from the module's folder, compiled.
    Own,
    /// A tree from the kernel package.
    Kernel(&'static str),
}

/// A QEMU machine and its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) architecture: Architecture,
    pub(crate) qemu: &'static str,
    pub(crate) tools: &'static [&'static [Tool]],
    board: &'static [&'static str],
    serial: &'static [&'static str],
    console: &'static str,
    pub(crate) device_tree: DeviceTree,
    /// Words that select the tasks of the guest's init.
    words: &'static [&'static str],
    /// Modules to load before the others, in order, one a line.
    pub(crate) order: &'static str,
    /// Those of them, and what they need, that come with Debian's kernel.
    pub(crate) stock: &'static [&'static str],
    pub(crate) limit: Duration,
    /// Whether the kernel is built with debugging checks.
    pub(crate) is_debug: bool,
}

const STDIO: &[&str] = &["-serial", "stdio"];
/// The Raspberry Pi's console is its second serial port.
const SECOND_STDIO: &[&str] = &["-serial", "null", "-serial", "stdio"];
const QUARTER_HOUR: Duration = Duration::from_secs(900);
const HALF_HOUR: Duration = Duration::from_secs(1800);

const ZCU102: Machine = Machine {
    name: "zcu102",
    architecture: ARM64,
    qemu: "qemu-system-aarch64",
    tools: &[debian::QEMU_ARM, debian::ARM64_COMPILER],
    board: &["-M", "xlnx-zcu102", "-m", "1G", "-smp", "2"],
    serial: STDIO,
    console: "ttyPS0,115200",
    device_tree: DeviceTree::Own,
    words: &["dmatest", "engine", "policies", "suite", "service", "fuzz", "times"],
    order: "zynqmp_dma",
    stock: &[],
    limit: QUARTER_HOUR,
    is_debug: false,
};
const ZCU102_DEBUG: Machine = Machine {
    name: "zcu102-debug",
    tools: &[debian::QEMU_ARM, debian::ARM64_COMPILER, debian::KERNEL_BUILD],
    words: &["dmatest", "engine", "policies", "fuzz", "softdma"],
    order: "",
    limit: HALF_HOUR,
    is_debug: true,
    ..ZCU102
};
/// No engine: the CPU copies, and a software engine fails on request.
const X86: Machine = Machine {
    name: "x86",
    architecture: AMD64,
    qemu: "qemu-system-x86_64",
    tools: &[debian::QEMU_X86, debian::C_COMPILER],
    board: &["-M", "pc", "-m", "5G", "-smp", "2", "-nic", "none"],
    serial: STDIO,
    console: "ttyS0",
    device_tree: DeviceTree::Default,
    words: &["none", "suite", "service", "softdma", "bounced"],
    order: "",
    stock: &[],
    limit: QUARTER_HOUR,
    is_debug: false,
};
const RASPI3B: Machine = Machine {
    name: "raspi3b",
    board: &["-M", "raspi3b"],
    serial: SECOND_STDIO,
    console: "ttyS1,115200",
    device_tree: DeviceTree::Kernel("broadcom/bcm2837-rpi-3-b.dtb"),
    words: &["dmatest-aligned", "engine", "policies", "suite", "service", "times"],
    order: "",
    limit: HALF_HOUR,
    ..ZCU102
};
const RASPI2B: Machine = Machine {
    name: "raspi2b",
    architecture: ARMHF,
    qemu: "qemu-system-arm",
    tools: &[debian::QEMU_ARM, debian::ARMHF_COMPILER],
    board: &["-M", "raspi2b"],
    serial: STDIO,
    console: "ttyAMA0,115200",
    device_tree: DeviceTree::Kernel("bcm2836-rpi-2-b.dtb"),
    words: &["dmatest-aligned", "engine", "policies", "times"],
    order: "",
    stock: &[],
    limit: HALF_HOUR,
    is_debug: false,
};
const SMDKC210: Machine = Machine {
    name: "smdkc210",
    board: &["-M", "smdkc210", "-m", "1G"],
    console: "ttySAC0,115200",
    device_tree: DeviceTree::Kernel("exynos4210-smdkv310.dtb"),
    words: &["engine", "times"],
    limit: QUARTER_HOUR,
    ..RASPI2B
};

/// What `ioat` builds for the guests of the I/OAT model; the model and the command lines are its own.
pub(super) const IOAT: Machine = Machine {
    name: "ioat",
    words: &[],
    order: "dca\nioatdma",
    stock: &[
        "dca",
        "ioatdma",
        "virtio",
        "virtio_ring",
        "virtio_pci_legacy_dev",
        "virtio_pci_modern_dev",
        "virtio_pci",
        "virtio-iommu",
    ],
    ..X86
};
/// The same with VFIO and the product's programs, which would slow down the start of the other guests.
pub(super) const IOAT_VFIO: Machine = Machine {
    name: "ioat-vfio",
    words: &["vfio"],
    stock: &[
        "dca",
        "ioatdma",
        "irqbypass",
        "vfio_virqfd",
        "vfio",
        "vfio_iommu_type1",
        "vfio-pci-core",
        "vfio-pci",
    ],
    ..IOAT
};

/// What `dsa` builds for the guests of the DSA model.
pub(super) const DSA: Machine = Machine {
    name: "dsa",
    words: &[],
    order: "movdir64b\nidxd_bus\nidxd",
    stock: &["idxd_bus", "idxd"],
    ..X86
};
/// The same with character devices of programs, and the product's programs.
pub(super) const DSA_FILE: Machine = Machine {
    name: "dsa-file",
    words: &["dsa-file"],
    order: "movdir64b\nidxd_bus\nidxd\nfuse\ncuse",
    stock: &["idxd_bus", "idxd", "fuse", "cuse"],
    ..DSA
};

/// The same with VFIO and a program that drives the device at user level.
pub(super) const DSA_VFIO: Machine = Machine {
    name: "dsa-vfio",
    words: &["dsa-vfio"],
    // Linux's driver is loaded when ours is done: that of 6.1 does not survive that a device with work queues is taken from it.
    order: "movdir64b",
    stock: &[
        "idxd_bus",
        "idxd",
        "irqbypass",
        "vfio_virqfd",
        "vfio",
        "vfio_iommu_type1",
        "vfio-pci-core",
        "vfio-pci",
    ],
    ..DSA
};

pub(crate) const MACHINES: &[Machine] = &[ZCU102, ZCU102_DEBUG, X86, RASPI3B, RASPI2B, SMDKC210];

impl Machine {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        MACHINES.iter().find(|machine| machine.name == name)
    }

    /// Whether the guest has this task.
    pub(crate) fn wants(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

/// The files that QEMU boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) device_tree: Option<PathBuf>,
}

/// QEMU's command line. The fuzzer in the guest gets the seed and runs for so many seconds.
pub(crate) fn qemu(machine: &Machine, boot: &Boot, seed: &str, fuzz_seconds: u32) -> Line {
    let line = Line::new(machine.qemu).args(machine.board);
    let line = match &boot.device_tree {
        Some(tree) => line.arg("-dtb").arg(tree),
        None => line,
    };
    let words = machine.words.join(",");
    let console = machine.console;
    line.args(machine.serial)
        .args(["-audiodev", "none,id=none", "-display", "none", "-monitor", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initrd)
        .arg("-append")
        .arg(format!(
            "console={console} quiet panic=-1 log_buf_len=16M memferry={words} fuzz_seconds={fuzz_seconds} seed={seed}"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(device_tree: Option<&str>) -> Boot {
        Boot {
            kernel: "/k/vmlinuz".into(),
            initrd: "/k/x.initrd".into(),
            device_tree: device_tree.map(PathBuf::from),
        }
    }

    #[test]
    fn qemu_boots_an_x86_without_a_device_tree() {
        let line = qemu(&X86, &boot(None), "1", 60).to_string();
        assert_eq!(
            line,
            "qemu-system-x86_64 -M pc -m 5G -smp 2 -nic none -serial stdio -audiodev none,id=none -display none \
             -monitor none -no-reboot -kernel /k/vmlinuz -initrd /k/x.initrd -append 'console=ttyS0 quiet panic=-1 \
             log_buf_len=16M memferry=none,suite,service,softdma,bounced fuzz_seconds=60 seed=1'"
        );
    }

    #[test]
    fn qemu_takes_the_second_port_of_a_raspberry_pi() {
        let line = qemu(&RASPI3B, &boot(Some("/k/rpi.dtb")), "7", 10).to_string();
        assert!(line.starts_with(
            "qemu-system-aarch64 -M raspi3b -dtb /k/rpi.dtb -serial null -serial stdio -audiodev"
        ));
        assert!(line.contains("console=ttyS1,115200 "), "{line}");
        assert!(line.ends_with("fuzz_seconds=10 seed=7'"), "{line}");
    }

    #[test]
    fn machines_are_found_by_their_names() {
        for machine in MACHINES {
            assert_eq!(Machine::named(machine.name), Some(machine));
            assert!(!machine.words.is_empty());
        }
        assert_eq!(Machine::named("n810"), None);
    }

    #[test]
    fn programs_in_rust_run_in_guests_of_64_bits_only() {
        for machine in MACHINES {
            let wants_programs = machine.wants("suite") || machine.wants("service");
            assert!(!wants_programs || machine.architecture.rust.is_some(), "{}", machine.name);
        }
    }

    #[test]
    fn only_the_debug_machine_builds_a_kernel() {
        let builders: Vec<&str> =
            MACHINES.iter().filter(|machine| machine.is_debug).map(|machine| machine.name).collect();
        assert_eq!(builders, ["zcu102-debug"]);
    }
}
