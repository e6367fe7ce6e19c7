//! Channels of Linux's dmaengine, which memferry uses through its module, and I/OAT functions, which can also go to an engine
//! process by VFIO.
//!
//! ```text
//! /sys/class/dma/dmaXchanY ─► driver ─► memferry.ko ─► /dev/memferry ─► memferry serve --module-device
//! I/OAT function ─► vfio-pci ─► /dev/vfio/GROUP ─► memferry-engine-ioat
//! ```
//!
//! Sources: Linux, `drivers/dma/ioat`, `drivers/dma/amd` and `drivers/vfio/pci`.

use std::collections::BTreeMap;

use crate::doctor::finding::{Finding, Step, shortened};
use crate::doctor::host::{Host, PciDevice};
use crate::doctor::ioat::{bind_commands, ioat_version, is_too_new, too_new, vfio_steps};
use crate::doctor::program::{IOAT, program_step};
use crate::doctor::unit::{DROP_IN, LOCKED, drop_ins_set};

const CHANNELS: &str = "/sys/class/dma";
const MODULE_NODE: &str = "/dev/memferry";
/// The group that a rule gives the module's node to. The service's dynamic user is called memferry: a group of that name
/// without such a user would keep systemd from making it.
const MODULE_GROUP: &str = "memferry-dma";
/// Drop-ins of the service's unit.
const FOLDER: &str = "/etc/systemd/system/memferry.service.d";

/// Drivers whose channels copy memory, by their sources.
const COPYING: [&str; 7] =
    ["idxd", "ioatdma", "ptdma", "ae4dma", "xilinx-zynqmp-dma", "bcm2835-dma", "dma-pl330"];
/// How the service uses a channel.
const BY_MODULE: &str = "by module-device = \"/dev/memferry\" below [service]";

/// The driver of an AMD engine.
pub(super) fn amd_driver(device: u32) -> Option<&'static str> {
    match device {
        0x1498 => Some("ptdma"),
        0x14c8 | 0x14dc | 0x149b => Some("ae4dma"),
        _ => None,
    }
}

/// Whether a name is a channel's, such as `dma0chan3`.
fn is_channel(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix("dma").and_then(|rest| rest.split_once("chan"));
    numbers.is_some_and(|(device, channel)| is_number(device) && is_number(channel))
}

/// Channels by driver: names, and the PCI functions or other devices that they belong to.
#[derive(Default)]
pub(super) struct Channels {
    by_driver: BTreeMap<String, Vec<Channel>>,
}

struct Channel {
    name: String,
    device: String,
    in_use: bool,
}

impl Channels {
    pub(super) fn of(host: &Host<'_>) -> Self {
        let machine = host.machine;
        let mut by_driver: BTreeMap<String, Vec<Channel>> = BTreeMap::new();
        for name in machine.names(CHANNELS, is_channel) {
            let device = machine.link(&format!("{CHANNELS}/{name}/device")).unwrap_or_default();
            let driver = machine.link(&format!("{CHANNELS}/{name}/device/driver"));
            let users = machine.text(&format!("{CHANNELS}/{name}/in_use"));
            let in_use = users.is_some_and(|users| users != "0");
            let driver = driver.unwrap_or_else(|| "an unnamed driver".to_owned());
            by_driver.entry(driver).or_default().push(Channel { name, device, in_use });
        }
        Self { by_driver }
    }

    fn of_functions(&self, functions: &[&PciDevice]) -> Vec<&Channel> {
        let is_ours = |channel: &&Channel| functions.iter().any(|pci| pci.address == channel.device);
        self.by_driver.values().flatten().filter(is_ours).collect()
    }

    /// Findings for channels of other drivers than those of `known` PCI functions.
    pub(super) fn others(&self, host: &Host<'_>, known: &[&PciDevice]) -> Vec<Finding> {
        let is_other = |channel: &&Channel| !known.iter().any(|pci| pci.address == channel.device);
        let others = self
            .by_driver
            .iter()
            .map(|(driver, all)| (driver, all.iter().filter(is_other).collect::<Vec<_>>()));
        let finding = |(driver, channels): (&String, Vec<&Channel>)| {
            (!channels.is_empty()).then(|| {
                let mut finding = Finding::new("dmaengine", format!("DMA channels of {driver}"));
                finding.details.push(counted(&channels));
                finding.steps.extend(module_steps(host));
                if COPYING.contains(&driver.as_str()) {
                    return finding.judged(BY_MODULE);
                }
                finding.details.push(
                    "sysfs does not say whether these copy memory; the module takes those that do".to_owned(),
                );
                finding.doubted("through the Linux module, if it copies memory")
            })
        };
        others.filter_map(finding).collect()
    }
}

fn counted(channels: &[&Channel]) -> String {
    let names: Vec<&str> = channels.iter().map(|channel| channel.name.as_str()).collect();
    let used = channels.iter().filter(|channel| channel.in_use).count();
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{} channel{plural}, {used} in use: {}", names.len(), shortened(&names))
}

/// A finding for each driver that has functions of I/OAT: a Xeon has eight or more of them.
pub(super) fn examine_ioat(host: &Host<'_>, functions: &[&PciDevice], channels: &Channels) -> Vec<Finding> {
    by_driver(functions)
        .into_iter()
        .map(|(driver, group)| ioat_group(host, driver, &group, channels))
        .collect()
}

fn by_driver<'a>(functions: &[&'a PciDevice]) -> BTreeMap<Option<&'a str>, Vec<&'a PciDevice>> {
    let mut groups: BTreeMap<Option<&str>, Vec<&PciDevice>> = BTreeMap::new();
    for pci in functions {
        groups.entry(pci.driver.as_deref()).or_default().push(pci);
    }
    groups
}

fn titled(engine: &'static str, what: &str, functions: &[&PciDevice]) -> Finding {
    let addresses: Vec<&str> = functions.iter().map(|pci| pci.address.as_str()).collect();
    let count = if addresses.len() > 1 { format!("{} functions, ", addresses.len()) } else { String::new() };
    Finding::new(engine, format!("{what} ({count}{})", shortened(&addresses)))
}

fn ioat_group(
    host: &Host<'_>,
    driver: Option<&str>,
    functions: &[&PciDevice],
    channels: &Channels,
) -> Finding {
    let version = functions.first().and_then(|pci| ioat_version(pci.device)).unwrap_or("3");
    let mut finding = titled("ioat", &format!("Intel I/OAT {version}"), functions);
    finding.details.push(format!("driver {}", driver.unwrap_or("none")));
    match driver {
        Some("ioatdma") => {
            let own = channels.of_functions(functions);
            finding.details.push(counted(&own));
            if !is_too_new(version) {
                let other = "or for the engine process memferry-engine-ioat: bind the functions to vfio-pci (see the guide)";
                finding.details.push(other.to_owned());
            }
            if own.is_empty() {
                let why = "ioatdma has no channel in /sys/class/dma. Its self-test may have failed: the kernel's log says.";
                finding.steps.push(Step::new("no-channel", why).run("sudo dmesg | grep ioatdma"));
            }
            finding.steps.extend(module_steps(host));
            finding.judged(BY_MODULE)
        }
        Some("vfio-pci") if is_too_new(version) => {
            finding.steps.push(too_new(functions));
            finding.judged("")
        }
        Some("vfio-pci") => {
            finding.steps.extend(vfio_steps(host, functions));
            finding.steps.extend(program_step(host, &IOAT));
            finding.judged("by VFIO, for the engine process")
        }
        Some(other) => {
            let why = format!("The driver {other} has these functions.");
            finding.steps.push(Step::new("other-driver", why));
            finding.judged("")
        }
        None => {
            finding.steps.push(unbound_ioat(host, functions, version));
            finding.judged("")
        }
    }
}

fn unbound_ioat(host: &Host<'_>, functions: &[&PciDevice], version: &str) -> Step {
    if is_too_new(version) {
        let why = "No driver has it. With ioatdma, memferry uses it through the Linux module.";
        return Step::new("no-driver", why).run("sudo modprobe ioatdma");
    }
    let why = "No driver has it. With ioatdma, memferry uses it through the Linux module; with vfio-pci, the engine \
               process memferry-engine-ioat has it alone and needs an active IOMMU.";
    let step = Step::new("no-driver", why).run("sudo modprobe ioatdma");
    let Some(pci) = functions.first() else { return step };
    if host.iommus.is_empty() {
        return step;
    }
    bind_commands(&pci.address)
        .into_iter()
        .fold(step.run("# or, for the engine process, and each function:"), Step::run)
}

/// A finding for each kind of AMD's engines and its driver.
pub(super) fn examine_amd(host: &Host<'_>, functions: &[&PciDevice], channels: &Channels) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut groups: BTreeMap<_, Vec<&PciDevice>> = BTreeMap::new();
    for pci in functions {
        let Some(expected) = amd_driver(pci.device) else { continue };
        groups.entry((pci.driver.as_deref(), expected)).or_default().push(pci);
    }
    for ((driver, expected), group) in groups {
        let mut finding = titled("ptdma", &format!("AMD {}", expected.to_uppercase()), &group);
        finding.details.push(format!("driver {}", driver.unwrap_or("none")));
        match driver {
            Some(found) if found == expected => {
                finding.details.push(counted(&channels.of_functions(&group)));
                finding.steps.extend(module_steps(host));
            }
            Some(other) => {
                finding.steps.push(Step::new("other-driver", format!("The driver {other} has it.")));
            }
            None if host.comes_with(expected) == Some(false) => {
                let why = format!(
                    "The driver {expected} is not loaded, and this kernel has no module of that name."
                );
                finding.steps.push(Step::new("no-module", why));
            }
            None => {
                let why = format!("The driver {expected} is not loaded.");
                finding.steps.push(Step::new("not-loaded", why).run(format!("sudo modprobe {expected}")));
            }
        }
        findings.push(finding.judged(BY_MODULE));
    }
    findings
}

/// What keeps the service from using channels through memferry's module.
fn module_steps(host: &Host<'_>) -> Vec<Step> {
    let Some(node) = host.machine.node(MODULE_NODE) else {
        let why = "Memferry's Linux module is not loaded: /dev/memferry is missing.";
        let step = Step::new("no-module-device", why);
        let step = if host.comes_with("memferry") == Some(true) {
            step
        } else {
            step.run("sudo apt install ./memferry-dkms_*.deb")
        };
        return vec![step.run("sudo modprobe memferry")];
    };
    let is_grouped = node.gid != 0 && node.mode & 0o060 == 0o060;
    let is_for_all = node.mode & 0o006 == 0o006;
    let is_allowed = drop_ins_set(host, FOLDER, "DeviceAllow", MODULE_NODE);
    // Who may open it can run a service, too.
    if (is_grouped || is_for_all) && is_allowed || host.asker_opens(&node) {
        return Vec::new();
    }
    if is_grouped || is_for_all {
        let why = format!(
            "No drop-in gives {MODULE_NODE} to the service, whose unit keeps it from devices. Its option module-device = \
             \"{MODULE_NODE}\" makes it use it."
        );
        let group = is_grouped.then(|| node.gid.to_string());
        return vec![drop_in(Step::new("no-drop-in", why), group.as_deref())];
    }
    let why = format!(
        "Only root may open {MODULE_NODE} (mode {:04o}). A rule gives it to a group, and a drop-in gives the group and \
         the device to the service. Its option module-device = \"{MODULE_NODE}\" makes it use it.",
        node.mode
    );
    let rule = format!("KERNEL==\"memferry\", GROUP=\"{MODULE_GROUP}\", MODE=\"0660\"");
    let step = Step::new("closed-module-device", why)
        .run(format!("sudo groupadd --system --force {MODULE_GROUP}"))
        .run(format!("echo '{rule}' | sudo tee /etc/udev/rules.d/70-memferry-module.rules"))
        .run("sudo udevadm control --reload && sudo udevadm trigger --name-match=memferry");
    vec![drop_in(step, Some(MODULE_GROUP))]
}

/// Gives the module's node, and the group that may open it, to the service.
fn drop_in(step: Step, group: Option<&str>) -> Step {
    let group = group.map_or(String::new(), |group| format!("SupplementaryGroups={group}\\n"));
    step.run(format!("sudo mkdir -p {FOLDER}"))
        .run(format!(
            "printf '[Service]\\nPrivateDevices=no\\nDevicePolicy=closed\\nDeviceAllow={MODULE_NODE} rw\\n{group}{LOCKED}\\n' \
             | sudo tee {FOLDER}/{DROP_IN}"
        ))
        .run("sudo systemctl daemon-reload && sudo systemctl restart memferry")
}
