//! GPUs: NVIDIA's need the driver, its device nodes and `libcuda.so.1`; others have no engine yet.

use std::collections::BTreeMap;

use crate::doctor::finding::{Finding, Step};
use crate::doctor::host::{Host, PciDevice, Reach};
use crate::doctor::program::{CUDA, program_step};

/// Base class of display controllers, which GPUs for computing have, too.
const DISPLAY: u32 = 0x03;
const NVIDIA: u32 = 0x10de;
const LIBRARY: &str = "libcuda.so.1";
/// Where the dynamic loader looks without its cache, and where container runtimes put the library.
const FOLDERS: [&str; 7] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
];
const CACHE_BYTES: usize = 4 << 20;

/// Whether a PCI function is a GPU that the doctor talks about. Consoles of servers and of virtual machines are none.
pub(super) fn is_gpu(vendor: u32, class: u32) -> bool {
    class >> 16 == DISPLAY && matches!(vendor, NVIDIA | 0x1002 | 0x8086)
}

/// A finding for each vendor and driver.
pub(super) fn examine(host: &Host<'_>, gpus: &[&PciDevice]) -> Vec<Finding> {
    let mut groups: BTreeMap<(u32, Option<&str>), Vec<&PciDevice>> = BTreeMap::new();
    for pci in gpus {
        groups.entry((pci.vendor, pci.driver.as_deref())).or_default().push(pci);
    }
    groups.into_iter().map(|((vendor, driver), group)| examine_group(host, vendor, driver, &group)).collect()
}

fn examine_group(host: &Host<'_>, vendor: u32, driver: Option<&str>, group: &[&PciDevice]) -> Finding {
    let vendor_name = match vendor {
        NVIDIA => "NVIDIA",
        0x1002 => "AMD",
        _ => "Intel",
    };
    let addresses: Vec<&str> = group.iter().map(|pci| pci.address.as_str()).collect();
    let count = addresses.len();
    let plural = if count == 1 { "" } else { "s" };
    let mut finding =
        Finding::new("gpu", format!("{count} {vendor_name} GPU{plural} ({})", addresses.join(", ")));
    finding.details.push(format!("driver {}", driver.unwrap_or("none")));
    if vendor != NVIDIA {
        return finding.without_engine("memferry has no engine for it yet");
    }
    match driver {
        Some("nvidia") => finding.steps.extend(nvidia_steps(host)),
        // It was taken from the driver on purpose, and may be in use.
        Some("vfio-pci") => {
            let why = "vfio-pci has it, for a virtual machine or another program. Its user loses it when NVIDIA's \
                       driver gets it: stop that first, and undo what binds it to vfio-pci.";
            finding.steps.push(Step::new("vfio", why));
        }
        Some(other) => {
            let why = format!("The driver {other} has it; the engine needs NVIDIA's driver.");
            finding.steps.push(install_driver(Step::new("other-driver", why)));
        }
        None => {
            let why = "NVIDIA's driver is not loaded.";
            let step = Step::new("not-loaded", why);
            let step = if host.comes_with("nvidia") == Some(true) { step } else { install_driver(step) };
            finding.steps.push(step.run("sudo modprobe nvidia"));
        }
    }
    finding.steps.extend(library_step(host));
    finding.steps.extend(program_step(host, &CUDA));
    if finding.steps.is_empty() {
        finding.details.push(
            "start the engine of the first one: sudo systemctl enable --now memferry-engine-cuda@0"
                .to_owned(),
        );
        finding.details.push("and name it in /etc/memferry.toml, below [engines]:".to_owned());
        finding.details.push("processes = [\"cuda-0 user=memferry-engine frames=all\"]".to_owned());
    }
    finding.judged("by memferry-engine-cuda")
}

/// For Debian; other distributions have other names.
fn install_driver(step: Step) -> Step {
    step.run("sudo apt install nvidia-driver    # Debian, from contrib and non-free")
}

fn nvidia_steps(host: &Host<'_>) -> Option<Step> {
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    // Any one: a container may have got another than the first.
    let gpus: Vec<String> =
        host.machine.names("/dev", is_gpu).iter().map(|name| format!("/dev/{name}")).collect();
    let gpu = gpus.iter().find(|path| unopened(host, path).is_none()).or(gpus.first());
    let gpu = gpu.map_or("/dev/nvidia0", String::as_str);
    ["/dev/nvidiactl", "/dev/nvidia-uvm", gpu].into_iter().find_map(|path| unopened(host, path))
}

/// What keeps an engine from one of the driver's nodes.
fn unopened(host: &Host<'_>, path: &str) -> Option<Step> {
    let Some(node) = host.machine.node(path) else {
        let why = format!(
            "{path} is missing, and the engine's unit may not make it. In a container, start it with the NVIDIA \
             container toolkit, or pass the device in."
        );
        return Some(Step::new("no-node", why).run("sudo nvidia-modprobe -u -c 0"));
    };
    if host.reach(&node) == Reach::Open || node.mode & 0o006 == 0o006 {
        return None;
    }
    let why = format!(
        "Only user {} and group {} may open {path} (mode {:04o}). The driver makes it so by its options \
         NVreg_DeviceFileGID and NVreg_DeviceFileMode: add the engines' user to that group.",
        node.uid, node.gid, node.mode
    );
    Some(Step::new("closed-node", why).run("grep -rs NVreg_DeviceFile /etc/modprobe.d"))
}

fn library_step(host: &Host<'_>) -> Option<Step> {
    let machine = host.machine;
    if machine.contains("/etc/ld.so.cache", LIBRARY, CACHE_BYTES) == Some(true)
        || FOLDERS.iter().any(|folder| machine.exists(&format!("{folder}/{LIBRARY}")))
    {
        return None;
    }
    if host.in_container {
        let why =
            format!("{LIBRARY}, the driver's library, is not found. The NVIDIA container toolkit brings it.");
        return Some(Step::new("no-library", why));
    }
    let why = format!("{LIBRARY}, the driver's library, is not where the dynamic loader looks.");
    let install = "sudo apt install libcuda1    # Debian, from non-free";
    Some(Step::new("no-library", why).run(install).run("sudo ldconfig"))
}
