//! What all engines depend on: kernel, command line, IOMMUs, modules, PCI devices, and who asks.
//!
//! The filters here decide what a report holds: of files that name users, hosts, disks or addresses, only the few words that
//! the doctor needs are kept.

use crate::doctor::machine::{Machine, Node, is_plain};

/// Of the kernel's command line.
const PARAMETERS: [&str; 9] = [
    "intel_iommu=",
    "amd_iommu=",
    "iommu=",
    "iommu.",
    "vfio",
    "idxd.",
    "ioatdma.",
    "modprobe.blacklist=",
    "module_blacklist=",
];
const EXCERPT_BYTES: usize = 1 << 20;
/// The first CPU's paragraph is shorter.
const CPU_BYTES: usize = 16 << 10;
const MODULE_LIST_BYTES: usize = 16 << 20;
/// `CAP_SYS_RAWIO`.
const RAW_IO: u32 = 17;
/// The user that the units of engine processes run as.
pub(super) const ENGINE_USER: &str = "memferry-engine";

/// A PCI function with its driver.
#[derive(Clone, Debug)]
pub(super) struct PciDevice {
    /// Such as `0000:6a:01.0`.
    pub(super) address: String,
    pub(super) vendor: u32,
    pub(super) device: u32,
    /// Base class, subclass and interface.
    pub(super) class: u32,
    pub(super) driver: Option<String>,
}

/// A user, by numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) raw_io: bool,
}

impl Identity {
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the permission bits let this user read and write, without capabilities.
    fn may_open(&self, node: &Node) -> bool {
        let bits = node.mode;
        let shift = if node.uid == self.uid {
            6
        } else if self.groups.contains(&node.gid) {
            3
        } else {
            0
        };
        bits >> shift & 0o6 == 0o6
    }
}

/// Who may open a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The engine processes' user, or the asking user if that is not root.
    Open,
    /// Neither of them. Root can open it all the same.
    Closed,
}

/// The facts that several engines depend on.
pub(super) struct Host<'a> {
    pub(super) machine: &'a Machine,
    pub(super) release: String,
    pub(super) parameters: Vec<String>,
    pub(super) cpu: Cpu,
    pub(super) asker: Identity,
    pub(super) engine_user: Option<Identity>,
    /// Names such as `dmar0`.
    pub(super) iommus: Vec<String>,
    pub(super) devices: Vec<PciDevice>,
    pub(super) in_container: bool,
}

/// What the kernel says of the first CPU.
#[derive(Default)]
pub(super) struct Cpu {
    pub(super) model: String,
    pub(super) flags: Vec<String>,
}

impl Cpu {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|found| found == flag)
    }
}

impl<'a> Host<'a> {
    /// Looks at everything. `wanted` chooses the PCI devices that are kept.
    pub(super) fn of(machine: &'a Machine, wanted: impl Fn(u32, u32, u32) -> bool) -> Self {
        let release = machine.text("/proc/sys/kernel/osrelease").filter(|release| is_plain(release));
        let parameters = machine.excerpt("/proc/cmdline", EXCERPT_BYTES, parameters).unwrap_or_default();
        let is_iommu = |name: &str| !name.is_empty();
        Self {
            machine,
            release: release.unwrap_or_default(),
            parameters: parameters.split_whitespace().map(str::to_owned).collect(),
            cpu: cpu(machine),
            asker: asker(machine),
            engine_user: engine_user(machine),
            iommus: machine.names("/sys/class/iommu", is_iommu),
            devices: devices(machine, wanted),
            in_container: machine.exists("/run/.containerenv") || machine.exists("/.dockerenv"),
        }
    }

    /// Who may open a node.
    pub(super) fn reach(&self, node: &Node) -> Reach {
        let engine = self.engine_user.as_ref().is_some_and(|user| user.may_open(node));
        if engine || self.asker_opens(node) { Reach::Open } else { Reach::Closed }
    }

    /// Whether the asking user may open a node, and is not root.
    pub(super) fn asker_opens(&self, node: &Node) -> bool {
        !self.asker.is_root() && node.open.unwrap_or_else(|| self.asker.may_open(node))
    }

    /// Whether a module is loaded or built in, as a driver of PCI devices.
    pub(super) fn has_driver(&self, driver: &str) -> bool {
        self.machine.exists(&format!("/sys/bus/pci/drivers/{driver}"))
    }

    /// Whether the running kernel comes with a module, by its file. None if its list cannot be read.
    pub(super) fn comes_with(&self, module: &str) -> Option<bool> {
        if self.release.is_empty() {
            return None;
        }
        let path = format!("/lib/modules/{}/modules.dep", self.release);
        self.machine.contains(&path, &format!("/{module}.ko"), MODULE_LIST_BYTES)
    }

    pub(super) fn has_parameter(&self, name: &str, value: &str) -> bool {
        let has = |text: &str| text.split(',').any(|part| part == value);
        self.parameters
            .iter()
            .filter_map(|word| word.split_once('='))
            .any(|(key, text)| key == name && has(text))
    }

    /// Commands that add a parameter to the kernel's command line and restart the machine.
    pub(super) fn boot_commands(&self, parameter: &str) -> Vec<String> {
        let commands = if self.machine.exists("/usr/sbin/grubby") {
            vec![format!("sudo grubby --update-kernel=ALL --args=\"{parameter}\"")]
        } else {
            vec![
                format!(
                    "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}\"' | \
                     sudo tee /etc/default/grub.d/memferry.cfg"
                ),
                "sudo update-grub".to_owned(),
            ]
        };
        commands.into_iter().chain(["sudo reboot".to_owned()]).collect()
    }
}

fn parameters(line: &str) -> String {
    let is_wanted = |word: &&str| PARAMETERS.iter().any(|wanted| word.starts_with(wanted));
    line.split_whitespace().filter(is_wanted).collect::<Vec<_>>().join(" ")
}

fn cpu(machine: &Machine) -> Cpu {
    let wanted = ["vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features"];
    let filter = |text: &str| {
        let first = text.split("\n\n").next().unwrap_or_default();
        let lines = first.lines().filter_map(|line| line.split_once(':'));
        let kept = lines.filter(|(name, _)| wanted.contains(&name.trim()));
        kept.map(|(name, value)| format!("{}: {}\n", name.trim(), value.trim())).collect()
    };
    let text = machine.excerpt("/proc/cpuinfo", CPU_BYTES, filter).unwrap_or_default();
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_default().to_owned()
    };
    let flags = format!("{} {}", value("flags"), value("Features"));
    Cpu { model: value("model name"), flags: flags.split_whitespace().map(str::to_owned).collect() }
}

fn asker(machine: &Machine) -> Identity {
    let wanted = ["Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs"];
    let filter = |text: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let kept = lines.filter(|(name, _)| wanted.contains(name));
        let join = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
        kept.map(|(name, value)| format!("{name}: {}\n", join(value))).collect()
    };
    let text = machine.excerpt("/proc/self/status", EXCERPT_BYTES, filter).unwrap_or_default();
    let values = |name: &str| -> Vec<String> {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    // Real, effective, saved and of file systems.
    let effective = |name: &str| values(name).get(1).and_then(|id| id.parse().ok());
    let mut groups: Vec<u32> = values("Groups").iter().filter_map(|id| id.parse().ok()).collect();
    groups.extend(effective("Gid"));
    let capabilities = values("CapEff").first().and_then(|mask| u64::from_str_radix(mask, 16).ok());
    Identity {
        // Someone without a number has no rights.
        uid: effective("Uid").unwrap_or(u32::MAX),
        groups,
        raw_io: capabilities.is_some_and(|mask| mask >> RAW_IO & 1 == 1),
    }
}

/// The engine processes' user: its own number and groups from the files of accounts, without any other line of these.
fn engine_user(machine: &Machine) -> Option<Identity> {
    let own = |text: &str| {
        let mine = text.lines().filter(|line| line.split(':').next() == Some(ENGINE_USER));
        let numbers = |line: &str| line.split(':').skip(2).take(2).collect::<Vec<_>>().join(":");
        mine.take(1).map(numbers).collect()
    };
    let numbers = machine.excerpt("/etc/passwd", EXCERPT_BYTES, own)?;
    let (uid, gid) = numbers.split_once(':')?;
    let member = |text: &str| {
        let is_member = |line: &&str| {
            line.rsplit(':').next().unwrap_or_default().split(',').any(|name| name == ENGINE_USER)
        };
        let numbers = text.lines().filter(is_member).filter_map(|line| line.split(':').nth(2));
        numbers.collect::<Vec<_>>().join(" ")
    };
    let others = machine.excerpt("/etc/group", EXCERPT_BYTES, member).unwrap_or_default();
    let mut groups: Vec<u32> = others.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    groups.extend(gid.parse::<u32>());
    Some(Identity { uid: uid.parse().ok()?, groups, raw_io: false })
}

fn devices(machine: &Machine, wanted: impl Fn(u32, u32, u32) -> bool) -> Vec<PciDevice> {
    const FOLDER: &str = "/sys/bus/pci/devices";
    let number = |address: &str, name: &str| {
        let text = machine.peek(&format!("{FOLDER}/{address}/{name}"))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let about = |address: &str| {
        is_address(address).then_some(())?;
        Some((number(address, "vendor")?, number(address, "device")?, number(address, "class")?))
    };
    let is_wanted =
        |address: &str| about(address).is_some_and(|(vendor, device, class)| wanted(vendor, device, class));
    let known = |address: String| {
        for name in ["vendor", "device", "class"] {
            machine.text(&format!("{FOLDER}/{address}/{name}"));
        }
        let (vendor, device, class) = about(&address)?;
        let driver = machine.link(&format!("{FOLDER}/{address}/driver"));
        Some(PciDevice { address, vendor, device, class, driver })
    };
    machine.names(FOLDER, is_wanted).into_iter().filter_map(known).collect()
}

/// Whether a name is a PCI function's, such as `0000:6a:01.0`.
pub(super) fn is_address(name: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.splitn(3, ':');
    let domain = parts.next();
    let bus = parts.next();
    let rest = parts.next().and_then(|rest| rest.split_once('.'));
    domain.is_some_and(|text| is_hex(text) && text.len() >= 4)
        && bus.is_some_and(|text| is_hex(text) && text.len() == 2)
        && rest.is_some_and(|(slot, function)| {
            is_hex(slot) && slot.len() == 2 && is_hex(function) && function.len() == 1
        })
}
