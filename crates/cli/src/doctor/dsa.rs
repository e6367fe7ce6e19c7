//! Intel DSA: from the PCI function to a work queue that an engine process may open.
//!
//! ```text
//! PCI id ─► driver idxd ─► shared virtual memory (IOMMU in scalable mode) ─► work queue of type user ─► /dev/dsa/wqM.N
//!                                                                             portal: CAP_SYS_RAWIO, else write()
//! ```
//!
//! Sources: Linux, `drivers/dma/idxd` and `Documentation/ABI/stable/sysfs-driver-dma-idxd`; the advisory INTEL-SA-01084
//! (CVE-2024-21823); the manual pages of accel-config. All was read, nothing was tried: no such machine was here.

use crate::doctor::finding::{Finding, Step};
use crate::doctor::host::{ENGINE_USER, Host, PciDevice, Reach};
use crate::doctor::program::{DSA, program_step};

/// A file of `/sys/bus/dsa/devices` for each device, group, engine and work queue.
const BUS: &str = "/sys/bus/dsa/devices";
/// Entries of a new work queue, if the device has so many left.
const QUEUE_ENTRIES: u64 = 32;
/// Of the IOMMU's extended capabilities: scalable mode.
const SCALABLE_MODE: u32 = 43;
/// Of the operations that sysfs lists: the second is the batch.
const BATCH: u64 = 1 << 1;
/// The version whose portals are unsafe for users who are not trusted.
const UNSAFE_VERSION: u64 = 0x100;

/// The name of the machines that a PCI id belongs to.
pub(super) fn platform(device: u32) -> Option<&'static str> {
    match device {
        0x0b25 => Some("Sapphire Rapids and later Xeons"),
        0x11fb => Some("Granite Rapids-D"),
        0x1212 => Some("Diamond Rapids"),
        _ => None,
    }
}

/// The Analytics Accelerator beside it, which compresses and does not copy.
pub(super) fn is_analytics(device: u32) -> bool {
    matches!(device, 0x0cfe | 0x1216 | 0xb02d)
}

/// What is found and missing for one DSA device.
pub(super) fn examine(host: &Host<'_>, pci: &PciDevice, platform: &str) -> Finding {
    let address = &pci.address;
    let name = device_name(host, address);
    let title = match &name {
        Some(name) => format!("Intel DSA {name} ({address})"),
        None => format!("Intel DSA ({address})"),
    };
    let mut finding = Finding::new("dsa", title);
    finding.details.push(format!("PCI id 8086:{:04x}: {platform}", pci.device));
    finding.details.push(format!("driver {}", pci.driver.as_deref().unwrap_or("none")));
    let device = name.map(|name| Device::of(host, name));
    let mut usable = "a work queue is ready";
    match (pci.driver.as_deref(), device) {
        (Some("idxd"), Some(device)) => {
            finding.details.extend(device.details());
            finding.steps.extend(device.steps(host));
            if finding.steps.iter().any(|step| step.optional) {
                usable = "a work queue is ready, by write()";
            }
        }
        (Some("idxd"), None) => finding.steps.push(unseen(address)),
        (Some(other), _) => finding.steps.push(other_driver(pci, other)),
        (None, _) => finding.steps.push(no_driver(host, address)),
    }
    finding.steps.extend(program_step(host, &DSA));
    finding.judged(usable)
}

/// The device of a PCI function: the one whose link leads through its folder.
fn device_name(host: &Host<'_>, address: &str) -> Option<String> {
    let is_device = |name: &str| number_after(name, "dsa").is_some();
    let names = host.machine.names(BUS, is_device);
    names.into_iter().find(|name| {
        let target = host.machine.target(&format!("{BUS}/{name}"));
        target.is_some_and(|parts| parts.iter().any(|part| part == address))
    })
}

fn number_after<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let number = name.strip_prefix(prefix)?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

struct Queue {
    name: String,
    kind: String,
    mode: String,
    state: String,
    size: u64,
    /// The driver it is for; kernels before 6.7 have no such attribute.
    driver: Option<String>,
    has_name: bool,
}

impl Queue {
    fn is_for_users(&self) -> bool {
        self.kind == "user" && self.state == "enabled"
    }

    fn detail(&self) -> String {
        let Self { name, kind, mode, state, size, .. } = self;
        let driver = self.driver.as_deref().filter(|driver| !driver.is_empty());
        let driver = driver.map_or(String::new(), |driver| format!(", driver {driver}"));
        let unnamed = if self.has_name || kind == "none" { "" } else { ", without a name" };
        format!("{name}: type {kind}, {mode}, {size} entries, {state}{driver}{unnamed}")
    }
}

struct Device {
    name: String,
    state: String,
    version: u64,
    /// The mask of operations, if it can be read.
    operations: Option<u64>,
    has_pasid: bool,
    total_entries: u64,
    groups: usize,
    engines: Vec<(String, String)>,
    queues: Vec<Queue>,
    status: String,
}

impl Device {
    fn of(host: &Host<'_>, name: String) -> Self {
        let machine = host.machine;
        let folder = format!("{BUS}/{name}");
        let word = |path: &str| word(machine.text(&format!("{folder}/{path}")));
        let number = name.trim_start_matches("dsa").to_owned();
        // One look for all three: a folder is listed once in a report.
        let all = machine.names(&folder, |name| {
            ["wq", "group", "engine"]
                .iter()
                .any(|kind| number_after(name, &format!("{kind}{number}.")).is_some())
        });
        let of_kind = |kind: &str| {
            let prefix = format!("{kind}{number}.");
            all.iter().filter(|name| name.starts_with(&prefix)).cloned().collect::<Vec<_>>()
        };
        let engines = of_kind("engine").into_iter().map(|engine| {
            let group = word(&format!("{engine}/group_id"));
            (engine, group)
        });
        let queue = |name: String| Queue {
            kind: word(&format!("{name}/type")),
            mode: word(&format!("{name}/mode")),
            state: word(&format!("{name}/state")),
            size: word(&format!("{name}/size")).parse().unwrap_or(0),
            driver: machine
                .exists(&format!("{folder}/{name}/driver_name"))
                .then(|| word(&format!("{name}/driver_name"))),
            has_name: machine
                // An administrator's word for it, which is nobody else's business.
                .excerpt(&format!("{folder}/{name}/name"), 4096, |text| {
                    if text.trim().is_empty() { String::new() } else { "set".to_owned() }
                })
                .is_some_and(|text| !text.is_empty()),
            name,
        };
        Self {
            state: word("state"),
            version: hexadecimal(&word("version")).unwrap_or(0),
            operations: word("op_cap").rsplit(',').next().and_then(hexadecimal),
            has_pasid: word("pasid_enabled") == "1",
            total_entries: word("max_work_queues_size").parse().unwrap_or(0),
            groups: of_kind("group").len(),
            engines: engines.collect(),
            queues: of_kind("wq").into_iter().map(queue).collect(),
            status: word("cmd_status"),
            name,
        }
    }

    fn details(&self) -> Vec<String> {
        let groups = self.groups;
        let engines = self.engines.len();
        let queues = self.queues.len();
        let pasid = if self.has_pasid { "on" } else { "off" };
        let major = self.version >> 8;
        let mut lines = vec![format!(
            "version {major}.{}, state {}, shared virtual memory (pasid_enabled) {pasid}, {groups} groups, \
             {engines} engines, {queues} work queues, {} entries",
            self.version & 0xff,
            self.state,
            self.total_entries
        )];
        lines.extend(
            self.queues.iter().filter(|queue| queue.kind != "none" || queue.size > 0).map(Queue::detail),
        );
        if !matches!(self.status.as_str(), "" | "0" | "0x0" | "?") {
            lines.push(format!("last command's status: {}", self.status));
        }
        lines
    }

    fn steps(&self, host: &Host<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.state == "halted" {
            steps.push(self.halted());
        }
        if !self.has_pasid {
            steps.push(no_shared_memory(host));
        }
        match self.queues.iter().find(|queue| queue.is_for_users()) {
            None => steps.push(self.no_queue(host)),
            Some(queue) => steps.extend(closed_queue(host, queue)),
        }
        steps.extend(self.portal(host));
        steps
    }

    fn halted(&self) -> Step {
        let name = &self.name;
        Step::new(
            "halted",
            format!(
                "The device {name} is halted. Binding it again resets it; its queues are to be made again."
            ),
        )
        .run(format!("echo {name} | sudo tee /sys/bus/dsa/drivers/idxd/unbind"))
        .run(format!("echo {name} | sudo tee /sys/bus/dsa/drivers/idxd/bind"))
    }

    /// Commands that make a dedicated work queue of type user in group 0.
    fn no_queue(&self, host: &Host<'_>) -> Step {
        let used: u64 = self.queues.iter().map(|queue| queue.size).fold(0, u64::saturating_add);
        let left = self.total_entries.saturating_sub(used);
        let unused = self
            .queues
            .iter()
            .find(|queue| queue.kind == "none" && queue.size == 0 && queue.state == "disabled");
        let configured = self.queues.iter().find(|queue| queue.kind == "user" && queue.state == "disabled");
        if let Some(queue) = configured {
            let why = format!("The work queue {} of type user is not enabled.", queue.name);
            let mut step = Step::new("enable-queue", why);
            if self.state != "enabled" {
                step = step.run(format!("echo {} | sudo tee /sys/bus/dsa/drivers/idxd/bind", self.name));
            }
            return step.run(format!("echo {} | sudo tee /sys/bus/dsa/drivers/user/bind", queue.name));
        }
        let Some(queue) = unused.filter(|_| left > 0) else {
            let why = "No work queue of type user is enabled, and all entries or queues are taken by others. \
                       Take a queue from its present use first: accel-config list -i shows them.";
            return Step::new("no-queue", why);
        };
        let mut why = "No work queue of type user is enabled. A dedicated one belongs to the one process that opens it. \
                       The commands' effect ends with a restart; accel-config save-config -s FILE keeps it for load-config -c FILE -e."
            .to_owned();
        let mut commands = Vec::new();
        let has_tool = host.machine.exists("/usr/bin/accel-config");
        if self.state == "enabled" {
            why.push_str(
                " The device has to be disabled meanwhile, which takes its other queues from their users and forgets \
                 their settings: save these before.",
            );
            commands.push(if has_tool {
                format!("sudo accel-config disable-device {}", self.name)
            } else {
                format!("echo {} | sudo tee /sys/bus/dsa/drivers/idxd/unbind", self.name)
            });
        }
        let entries = left.min(QUEUE_ENTRIES);
        let engine = self.engine_to_use();
        commands.extend(if has_tool {
            self.by_accel_config(queue, entries, engine)
        } else {
            self.by_sysfs(queue, entries, engine)
        });
        let step = Step::new("no-queue", why);
        commands.into_iter().fold(step, Step::run)
    }

    /// An engine for group 0, and none if that group has one that it keeps. Disabling the device takes all engines from groups.
    fn engine_to_use(&self) -> Option<&str> {
        if self.state == "enabled" {
            return self.engines.first().map(|(name, _)| name.as_str());
        }
        if self.engines.iter().any(|(_, group)| group == "0") {
            return None;
        }
        self.engines.iter().find(|(_, group)| group == "-1").map(|(name, _)| name.as_str())
    }

    fn by_accel_config(&self, queue: &Queue, entries: u64, engine: Option<&str>) -> Vec<String> {
        let device = &self.name;
        let name = &queue.name;
        let mut commands = Vec::new();
        commands.extend(
            engine.map(|engine| format!("sudo accel-config config-engine {device}/{engine} --group-id=0")),
        );
        let driver = if queue.driver.is_some() { " --driver-name=user" } else { "" };
        commands.push(format!(
            "sudo accel-config config-wq {device}/{name} --group-id=0 --mode=dedicated --wq-size={entries} \
             --priority=10 --block-on-fault=0 --type=user{driver} --name=memferry"
        ));
        commands.push(format!("sudo accel-config enable-device {device}"));
        commands.push(format!("sudo accel-config enable-wq {device}/{name}"));
        commands
    }

    fn by_sysfs(&self, queue: &Queue, entries: u64, engine: Option<&str>) -> Vec<String> {
        let device = &self.name;
        let name = &queue.name;
        let set = |file: &str, value: &str| format!("echo {value} | sudo tee {BUS}/{device}/{file}");
        let mut commands = Vec::new();
        commands.extend(engine.map(|engine| set(&format!("{engine}/group_id"), "0")));
        let entries = entries.to_string();
        let mut values = vec![
            ("group_id", "0"),
            ("mode", "dedicated"),
            ("size", &entries),
            ("priority", "10"),
            ("type", "user"),
        ];
        if queue.driver.is_some() {
            values.push(("driver_name", "user"));
        }
        values.push(("name", "memferry"));
        commands.extend(values.iter().map(|(file, value)| set(&format!("{name}/{file}"), value)));
        commands.push(format!("echo {device} | sudo tee /sys/bus/dsa/drivers/idxd/bind"));
        commands.push(format!("echo {name} | sudo tee /sys/bus/dsa/drivers/user/bind"));
        commands
    }

    /// What submitting needs on the kernels since INTEL-SA-01084. The mask of operations tells them apart: since the same
    /// change it leaves out batches where these are refused.
    fn portal(&self, host: &Host<'_>) -> Option<Step> {
        let lists_batches = self.operations.is_some_and(|mask| mask & BATCH != 0);
        if self.version <= UNSAFE_VERSION && lists_batches {
            let why = "Unsafe with this kernel: every user who may open a queue can map its portal and harm the machine \
                       (INTEL-SA-01084, CVE-2024-21823). Kernels with the fix, such as Linux 6.8.10, 6.9.1 and later \
                       ones, leave batches out of op_cap here. Update the kernel before anyone but root gets a queue.";
            return Some(Step::new("unsafe-kernel", why));
        }
        if self.operations.is_none() || host.asker.raw_io && !host.asker.is_root() || has_drop_in(host) {
            return None;
        }
        let batches = if lists_batches { "" } else { ", without batches" };
        let why = format!(
            "Portals need CAP_SYS_RAWIO, by Linux for every DSA device since INTEL-SA-01084 (CVE-2024-21823). Without \
             it a process submits by write() on the queue, each descriptor by a system call{batches}; that works, and \
             is slower. The capability also opens I/O ports and more, so only the engine's unit gets it."
        );
        Some(
            Step::optional("raw-io", why)
                .run(format!("sudo mkdir -p {DROP_IN}"))
                .run(format!(
                    "printf '[Service]\\nCapabilityBoundingSet=CAP_SYS_RAWIO\\nAmbientCapabilities=CAP_SYS_RAWIO\\n\
                     ' | sudo tee {DROP_IN}/rawio.conf"
                ))
                .run("sudo systemctl daemon-reload"),
        )
    }
}

/// Drop-ins of the unit that runs the engine.
const DROP_IN: &str = "/etc/systemd/system/memferry-engine-dsa@.service.d";

fn has_drop_in(host: &Host<'_>) -> bool {
    let is_configuration = |name: &str| name.ends_with(".conf");
    let names = host.machine.names(DROP_IN, is_configuration);
    names.iter().any(|name| {
        host.machine.contains(&format!("{DROP_IN}/{name}"), "CAP_SYS_RAWIO", 64 << 10) == Some(true)
    })
}

/// A value that is one word, as the attributes are. A question mark for another one, and for none.
fn word(text: Option<String>) -> String {
    let is_word = |text: &String| {
        let is_safe = |letter: char| letter.is_ascii_alphanumeric() || "_-.,".contains(letter);
        text.len() <= 256 && text.chars().all(is_safe)
    };
    text.filter(is_word).unwrap_or_else(|| "?".to_owned())
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

fn unseen(address: &str) -> Step {
    Step::new(
        "no-device",
        "idxd is bound, and no device of it is in /sys/bus/dsa. The kernel's log has the reason.",
    )
    .run(format!("sudo dmesg | grep 'idxd {address}'"))
}

fn other_driver(pci: &PciDevice, driver: &str) -> Step {
    let address = &pci.address;
    let mut why =
        format!("The driver {driver} has the device. Memferry uses work queues of Linux's driver idxd.");
    if pci.device == 0x0b25 && driver == "vfio-pci" {
        why.push_str(
            " vfio-pci refuses this device since INTEL-SA-01084 unless disable_denylist=1 was set; whoever has it can \
             harm the machine.",
        );
    }
    Step::new("other-driver", why)
        .run(format!("echo {address} | sudo tee /sys/bus/pci/drivers/{driver}/unbind"))
        .run(format!("echo | sudo tee /sys/bus/pci/devices/{address}/driver_override"))
        .run("sudo modprobe idxd")
        .run(format!("echo {address} | sudo tee /sys/bus/pci/drivers_probe"))
}

fn no_driver(host: &Host<'_>, address: &str) -> Step {
    if host.has_driver("idxd") {
        let why = "idxd is loaded and did not take the device. The kernel's log has the reason.";
        return Step::new("unbound", why)
            .run(format!("sudo dmesg | grep 'idxd {address}'"))
            .run(format!("echo {address} | sudo tee /sys/bus/pci/drivers/idxd/bind"));
    }
    if !host.cpu.flags.is_empty() && !host.cpu.has("movdir64b") {
        let why = "The driver idxd is not loaded, and refuses to load: the CPU does not announce MOVDIR64B. In a \
                   virtual machine, give it a CPU model that does.";
        return Step::new("no-movdir64b", why);
    }
    if host.comes_with("idxd") == Some(false) {
        let why = "The driver idxd is not loaded, and this kernel has no module of that name (CONFIG_INTEL_IDXD). \
                   Install another kernel.";
        return Step::new("no-module", why);
    }
    let why = "The driver idxd is not loaded. It usually loads by itself: if it did not, a file in /etc/modprobe.d or \
               the kernel's command line may block it.";
    Step::new("not-loaded", why).run("sudo modprobe idxd").run("grep -rs idxd /etc/modprobe.d /proc/cmdline")
}

/// Work queues of type user need shared virtual memory: Linux enables none without.
fn no_shared_memory(host: &Host<'_>) -> Step {
    let machine = host.machine;
    let sva = machine.text("/sys/module/idxd/parameters/sva");
    let intel: Vec<&String> = host.iommus.iter().filter(|name| name.starts_with("dmar")).collect();
    let is_scalable = |name: &&String| {
        let path = format!("/sys/class/iommu/{name}/intel-iommu/ecap");
        let capabilities = machine.text(&path).as_deref().and_then(hexadecimal);
        capabilities.is_none_or(|mask| mask >> SCALABLE_MODE & 1 == 1)
    };
    let begin = "Shared virtual memory is off: no work queue of type user can be enabled.";
    if sva.as_deref() == Some("N") {
        return Step::new("sva-off", format!("{begin} The module's parameter sva=N switches it off."))
            .run("grep -rs 'sva' /etc/modprobe.d /proc/cmdline")
            .run("sudo modprobe -r idxd && sudo modprobe idxd sva=1");
    }
    if !intel.is_empty() && !intel.iter().any(is_scalable) {
        return Step::new("no-scalable-mode", format!("{begin} The IOMMU has no scalable mode."));
    }
    let sees_parameter = host.has_parameter("intel_iommu", "sm_on");
    let is_on = !intel.is_empty();
    let why = match (is_on, sees_parameter) {
        (true, true) => {
            let why = format!(
                "{begin} The command line asks for the IOMMU's scalable mode (sm_on), and the driver could not use it. \
                 The kernel's log has the reason. In a virtual machine the IOMMU has to offer it."
            );
            return Step::new("no-scalable-mode", why).run("sudo dmesg | grep -iE 'dmar|idxd'");
        }
        (true, false) => format!("{begin} The IOMMU is not in scalable mode."),
        (false, _) => {
            format!("{begin} No IOMMU is active: it also has to be on in the firmware's settings (VT-d).")
        }
    };
    let step = Step::new("no-scalable-mode", why);
    host.boot_commands("intel_iommu=on,sm_on").into_iter().fold(step, Step::run)
}

/// The step for a queue that only root may open.
fn closed_queue(host: &Host<'_>, queue: &Queue) -> Option<Step> {
    let path = format!("/dev/dsa/{}", queue.name);
    let Some(node) = host.machine.node(&path) else {
        let why = format!(
            "The work queue is enabled, and {path} is missing. In a container the node has to be passed in \
             (--device {path}); on the host, udev makes it."
        );
        return Some(Step::new("no-node", why).run("sudo udevadm trigger --subsystem-match=dsa"));
    };
    if host.reach(&node) == Reach::Open {
        return None;
    }
    let why = format!(
        "Only user {} and group {} may open {path} (mode {}). A rule gives queues to the group {ENGINE_USER}.{}",
        node.uid,
        node.gid,
        node.mode,
        missing_user(host)
    );
    let rule = format!(
        "SUBSYSTEM==\"dsa\", ENV{{DEVNAME}}==\"/dev/dsa/wq*\", GROUP=\"{ENGINE_USER}\", MODE=\"0660\""
    );
    Some(
        Step::new("closed-queue", why)
            .run(format!("echo '{rule}' | sudo tee /etc/udev/rules.d/70-memferry-dsa.rules"))
            .run("sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=dsa")
            .run(format!("ls -l {path}")),
    )
}

/// A sentence if the engines' user does not exist yet.
fn missing_user(host: &Host<'_>) -> String {
    match host.engine_user {
        Some(_) => String::new(),
        None => {
            " That user does not exist here: the package memferry makes it, or systemd-sysusers.".to_owned()
        }
    }
}
