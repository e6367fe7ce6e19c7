//! I/OAT functions: their PCI ids; for functions bound to VFIO also their IOMMU groups, with the other devices and the
//! permissions of each group.
//!
//! ```text
//! function ─► iommu_group ─┬─► other devices of the group
//!                          └─► /dev/vfio/GROUP ─► one rule for the groups of all functions
//! ```
//!
//! What shares a group with a function can be what the machine needs to run, such as its network card: commands take only
//! other functions of I/OAT.

use crate::doctor::INTEL;
use crate::doctor::finding::{Step, shortened};
use crate::doctor::host::{ENGINE_USER, Host, PciDevice, Reach, is_address};
use crate::doctor::machine::Node;

/// Base class of devices of a group that VFIO does not mind: bridges.
const BRIDGE: u32 = 0x06;

/// The version of an I/OAT function.
pub(super) fn ioat_version(device: u32) -> Option<&'static str> {
    match device {
        0x3429..=0x342c | 0x3430..=0x3433 => Some("3.0"),
        0x3710..=0x3719 | 0x2021 => Some("3.2"),
        0x0e20..=0x0e27 | 0x2f20..=0x2f27 | 0x3c20..=0x3c27 | 0x6f20..=0x6f27 => Some("3.2"),
        0x0e2e | 0x0e2f | 0x2f2e | 0x2f2f | 0x3c2e | 0x3c2f | 0x6f2e | 0x6f2f => Some("3.2"),
        0x0c50..=0x0c53 | 0x6f50..=0x6f53 => Some("3.3"),
        0x0b00 => Some("3.4"),
        _ => None,
    }
}

/// Whether the engine process refuses that version.
pub(super) fn is_too_new(version: &str) -> bool {
    version == "3.4"
}

/// Gives functions that the engine process refuses back to Linux's driver.
pub(super) fn too_new(functions: &[&PciDevice]) -> Step {
    let why = "The engine process memferry-engine-ioat does not know this version. These commands give the functions to ioatdma, and \
               memferry uses them through the Linux module. A virtual machine or another program that has them by VFIO loses \
               them, so stop that first.";
    let step = Step::new("too-new", why).run("sudo modprobe ioatdma");
    functions.iter().fold(step, |step, PciDevice { address, .. }| {
        step.run(format!("echo | sudo tee /sys/bus/pci/devices/{address}/driver_override"))
            .run(format!("echo {address} | sudo tee /sys/bus/pci/devices/{address}/driver/unbind"))
            .run(format!("echo {address} | sudo tee /sys/bus/pci/drivers_probe"))
    })
}

/// What keeps an engine process from functions that VFIO has.
pub(super) fn vfio_steps(host: &Host<'_>, functions: &[&PciDevice]) -> Vec<Step> {
    let mut unprotected = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    for pci in functions {
        match group_of(host, &pci.address) {
            None => unprotected.push(pci.address.as_str()),
            Some(group) if groups.contains(&group) => {}
            Some(group) => groups.push(group),
        }
    }
    let mut steps: Vec<Step> = no_iommu(host, &unprotected).into_iter().collect();
    // VFIO opens no group that has a device of another driver, even to users who may open its node.
    let mut whole = Vec::new();
    for group in groups {
        match shared_group(host, &group) {
            Some(step) => steps.push(step),
            None => whole.push(group),
        }
    }
    steps.extend(closed_nodes(host, &whole));
    steps
}

/// The number of a function's IOMMU group.
fn group_of(host: &Host<'_>, address: &str) -> Option<String> {
    let group = host.machine.link(&format!("/sys/bus/pci/devices/{address}/iommu_group"))?;
    group.bytes().all(|byte| byte.is_ascii_digit()).then_some(group)
}

/// Gives a function to VFIO.
pub(super) fn bind_commands(address: &str) -> [String; 3] {
    [
        "sudo modprobe vfio-pci".to_owned(),
        format!("echo vfio-pci | sudo tee /sys/bus/pci/devices/{address}/driver_override"),
        format!("echo {address} | sudo tee /sys/bus/pci/drivers_probe"),
    ]
}

fn no_iommu(host: &Host<'_>, addresses: &[&str]) -> Option<Step> {
    if addresses.is_empty() {
        return None;
    }
    let begin = format!(
        "No IOMMU keeps {} from the rest of memory, and VFIO gives nobody a device without one.",
        shortened(addresses)
    );
    if !host.iommus.is_empty() {
        let why = format!(
            "{begin} The active one has no group for it: use it by the driver ioatdma and memferry's module instead."
        );
        return Some(Step::new("no-iommu", why));
    }
    let why = format!("{begin} It also has to be on in the firmware's settings (VT-d).");
    let step = Step::new("no-iommu", why);
    Some(host.boot_commands("intel_iommu=on").into_iter().fold(step, Step::run))
}

/// A device that shares a group, and that another driver than VFIO has.
struct Foreign {
    address: String,
    driver: String,
    class: Option<u32>,
    is_ioat: bool,
}

impl Foreign {
    /// None for what does not keep VFIO from a group: bridges, and devices without a driver or with VFIO's.
    fn of(host: &Host<'_>, address: &str) -> Option<Self> {
        let machine = host.machine;
        let folder = format!("/sys/bus/pci/devices/{address}");
        let number = |name: &str| {
            let text = machine.text(&format!("{folder}/{name}"))?;
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let driver = machine.link(&format!("{folder}/driver"))?;
        let class = number("class");
        if driver == "vfio-pci" || driver == "pci-stub" || class.is_some_and(|class| class >> 16 == BRIDGE) {
            return None;
        }
        let is_ioat = number("vendor") == Some(INTEL) && number("device").and_then(ioat_version).is_some();
        Some(Self { address: address.to_owned(), driver, class, is_ioat })
    }

    fn name(&self) -> String {
        let Self { address, driver, .. } = self;
        let kind = match self.class {
            _ if self.is_ioat => "I/OAT".to_owned(),
            None => "of an unknown class".to_owned(),
            Some(class) => match class >> 16 {
                0x01 => "a storage controller".to_owned(),
                0x02 => "a network controller".to_owned(),
                0x03 => "a display controller".to_owned(),
                _ => format!("class {class:06x}"),
            },
        };
        format!("{address} ({kind}, driver {driver})")
    }
}

/// VFIO opens a group only if no other driver has a device of it, but for bridges.
fn shared_group(host: &Host<'_>, group: &str) -> Option<Step> {
    let all = host.machine.names(&format!("/sys/kernel/iommu_groups/{group}/devices"), is_address);
    let foreign: Vec<Foreign> = all.iter().filter_map(|address| Foreign::of(host, address)).collect();
    if foreign.is_empty() {
        return None;
    }
    let names: Vec<String> = foreign.iter().map(Foreign::name).collect();
    let begin = format!(
        "IOMMU group {group} also has {}. VFIO opens a group only when no other driver has a device of it.",
        names.join(", ")
    );
    if !foreign.iter().all(|device| device.is_ioat) {
        let why = format!(
            "{begin} The machine may need what else is there, so no command takes it away: use these functions by the \
             driver ioatdma and memferry's module instead."
        );
        return Some(Step::new("shared-group", why));
    }
    let why = format!(
        "{begin} These commands give it to VFIO, too: the user of its channels loses them, so stop that first."
    );
    let mut step = Step::new("shared-group", why);
    for Foreign { address, .. } in &foreign {
        step = step.run(format!("echo {address} | sudo tee /sys/bus/pci/devices/{address}/driver/unbind"));
        step = bind_commands(address).into_iter().fold(step, Step::run);
    }
    Some(step)
}

/// Steps for groups that are missing in /dev, that somebody else has, and that only root may open.
fn closed_nodes(host: &Host<'_>, groups: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut missing = Vec::new();
    let mut closed: Option<(String, Node)> = None;
    let mut ours = Vec::new();
    for group in groups {
        let path = format!("/dev/vfio/{group}");
        match host.machine.node(&path) {
            None => {
                missing.push(path);
                ours.push(group.as_str());
            }
            Some(node) if host.reach(&node) == Reach::Open => ours.push(group.as_str()),
            Some(node) if node.is_given() => steps.push(others_node(&path, &node)),
            Some(node) => {
                closed = closed.or(Some((path, node)));
                ours.push(group.as_str());
            }
        }
    }
    if let Some(first) = missing.first() {
        let why = format!(
            "{} is missing. In a container, pass it in with /dev/vfio/vfio (--device {first}).",
            missing.join(", ")
        );
        steps.push(Step::new("no-node", why).run("sudo modprobe vfio-pci"));
    }
    steps.extend(closed.map(|(path, node)| closed_node(&path, &node, &ours)));
    steps
}

fn others_node(path: &str, node: &Node) -> Step {
    let Node { uid, gid, mode, .. } = node;
    let why = format!(
        "{path} belongs to user {uid} and group {gid} (mode {mode:04o}). A virtual machine or another program may use it, \
         so no command takes it away: if it is free, name it in a rule for {ENGINE_USER} yourself (see the guide)."
    );
    Step::new("others-node", why)
}

/// One rule for all groups, also for those that can be opened: the file holds nothing else. The unit allows the devices and has no limit of
/// locked memory.
fn closed_node(path: &str, node: &Node, groups: &[&str]) -> Step {
    let Node { uid, gid, mode, .. } = node;
    let why = format!(
        "Only user {uid} and group {gid} may open {path} (mode {mode:04o}). A rule gives the groups of these functions to \
         {ENGINE_USER}. Look again after other cards were added: the kernel may number groups anew."
    );
    let rule = format!(
        "SUBSYSTEM==\"vfio\", KERNEL==\"{}\", GROUP=\"{ENGINE_USER}\", MODE=\"0660\"",
        groups.join("|")
    );
    Step::new("closed-node", why)
        .run(format!("echo '{rule}' | sudo tee /etc/udev/rules.d/70-memferry-vfio.rules"))
        .run("sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=vfio")
}
