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
use crate::doctor::machine::Node;
use crate::doctor::program::{DSA, program_step};
use crate::doctor::unit::{DROP_IN, drop_ins_set};

/// A file of `/sys/bus/dsa/devices` for each device, group, engine and work queue.
const BUS: &str = "/sys/bus/dsa/devices";
/// Entries of a new work queue, if the device has so many left.
const QUEUE_ENTRIES: u64 = 32;
/// The bit for scalable mode in the IOMMU's extended capabilities.
const SCALABLE_MODE: u32 = 43;
/// The batch in sysfs's mask of operations.
const BATCH: u64 = 1 << 1;
/// The version whose portals are unsafe for users who are not trusted.
const UNSAFE_VERSION: u64 = 0x100;
/// The name that memferry's commands give a work queue.
const QUEUE_NAME: &str = "memferry";
/// Drop-ins of the unit that runs the engine.
const FOLDER: &str = "/etc/systemd/system/memferry-engine-dsa@.service.d";

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
    group: String,
    /// `memferry`, `set` for another one, or nothing.
    label: String,
}

impl Queue {
    fn is_for_users(&self) -> bool {
        self.kind == "user" && self.state == "enabled"
    }

    fn is_ours(&self) -> bool {
        self.label == QUEUE_NAME
    }

    fn path(&self) -> String {
        format!("/dev/dsa/{}", self.name)
    }

    /// What Linux needs before it enables the queue for programs, and the queue before it works.
    fn missing(&self, engines: &[(String, String)]) -> Vec<&'static str> {
        let has_driver = self.driver.as_deref().is_none_or(|driver| driver == "user");
        let has_group = self.group.parse::<u32>().is_ok();
        let needs = [
            (has_group, "a group"),
            (!has_group || engines.iter().any(|(_, group)| *group == self.group), "an engine in its group"),
            (self.size > 0, "a size"),
            (!self.label.is_empty(), "a name"),
            (has_driver, "the driver_name user"),
        ];
        needs.into_iter().filter(|(has, _)| !has).map(|(_, what)| what).collect()
    }

    fn detail(&self) -> String {
        let Self { name, kind, mode, state, size, .. } = self;
        let driver = self.driver.as_deref().filter(|driver| !driver.is_empty());
        let driver = driver.map_or(String::new(), |driver| format!(", driver {driver}"));
        let unnamed = if !self.label.is_empty() || kind == "none" { "" } else { ", without a name" };
        format!("{name}: type {kind}, {mode}, {size} entries, {state}{driver}{unnamed}")
    }
}

struct Device {
    name: String,
    state: String,
    version: u64,
    /// The mask of operations, if it can be read.
    operations: Option<u64>,
    /// Whether this machine may arrange the queues. In a virtual machine the host may have done so.
    is_configurable: bool,
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
            group: word(&format!("{name}/group_id")),
            // An administrator's name may be private: a report holds only that there is one.
            label: machine
                .excerpt(&format!("{folder}/{name}/name"), 4096, |text| match text.trim() {
                    "" => String::new(),
                    QUEUE_NAME => QUEUE_NAME.to_owned(),
                    _ => "set".to_owned(),
                })
                .unwrap_or_default(),
            name,
        };
        Self {
            state: word("state"),
            version: hexadecimal(&word("version")).unwrap_or(0),
            operations: machine.text(&format!("{folder}/op_cap")).as_deref().and_then(lowest_operations),
            is_configurable: word("configurable") != "0",
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
        // Nothing opens a queue before these are mended.
        if let Some(step) = self.unsafe_kernel().or_else(|| self.halted()) {
            return vec![step];
        }
        let mut steps = Vec::new();
        if !self.has_pasid {
            steps.push(no_shared_memory(host));
        }
        match self.queue_to_use(host) {
            None => steps.push(self.no_queue(host)),
            Some(queue) => steps.extend(closed_queue(host, queue)),
        }
        steps.extend(self.portal(host));
        steps
    }

    /// One that can be opened, else memferry's own, else the first.
    fn queue_to_use(&self, host: &Host<'_>) -> Option<&Queue> {
        let is_open = |queue: &&Queue| {
            host.machine.node(&queue.path()).is_some_and(|node| host.reach(&node) == Reach::Open)
        };
        let mut ready = self.queues.iter().filter(|queue| queue.is_for_users());
        let first = ready.clone().next();
        ready.clone().find(is_open).or_else(|| ready.find(|queue| queue.is_ours())).or(first)
    }

    /// A halted device refuses every command, also that of Linux's driver to reset it.
    fn halted(&self) -> Option<Step> {
        let why = format!(
            "The device {} is halted. Its users have lost their queues. The kernel's log says which reset it needs; after \
             a restart of the machine it works again, and its queues are to be made again.",
            self.name
        );
        (self.state == "halted").then(|| Step::new("halted", why).run("sudo dmesg | grep idxd"))
    }

    /// What makes a work queue of type user.
    fn no_queue(&self, host: &Host<'_>) -> Step {
        if !self.is_configurable {
            let why = "No work queue of type user is enabled, and this machine may not arrange the device's queues \
                       (configurable is 0). The host of this virtual machine has to give it one.";
            return Step::new("no-queue", why);
        }
        let disabled = || self.queues.iter().filter(|queue| queue.state == "disabled");
        let of_users = || disabled().filter(|queue| queue.kind == "user");
        let finished = || of_users().filter(|queue| queue.missing(&self.engines).is_empty());
        if let Some(queue) = finished().find(|queue| queue.is_ours()).or_else(|| finished().next()) {
            return self.enable_queue(queue);
        }
        let unfinished: String = of_users()
            .map(|queue| {
                let missing = queue.missing(&self.engines).join(", ");
                format!(" {} lacks {missing}: it cannot be enabled, and is left as it is.", queue.name)
            })
            .collect();
        let used: u64 = self.queues.iter().map(|queue| queue.size).fold(0, u64::saturating_add);
        let left = self.total_entries.saturating_sub(used);
        let unused = disabled().find(|queue| queue.kind == "none" && queue.size == 0);
        let Some(queue) = unused.filter(|_| left > 0) else {
            let why = format!(
                "No work queue of type user is enabled, and all entries or queues are taken by others.{unfinished} Take \
                 a queue from its present use first: accel-config list -i shows them."
            );
            return Step::new("no-queue", why);
        };
        let begin = format!("No work queue of type user is enabled.{unfinished}");
        let users: Vec<&str> = self
            .queues
            .iter()
            .filter(|queue| queue.state == "enabled")
            .map(|queue| queue.name.as_str())
            .collect();
        if self.state == "enabled" && !users.is_empty() {
            let why = format!(
                "{begin} Queues can be arranged only while the device is disabled, which takes those in use ({}) from \
                 their users and forgets all settings. Stop these users and disable the device first (accel-config \
                 save-config -s FILE keeps the settings), then look again: the commands for a queue of memferry are shown \
                 then.",
                users.join(", ")
            );
            return Step::new("no-queue", why);
        }
        self.make_queue(host, begin, queue, left.min(QUEUE_ENTRIES))
    }

    /// Commands for a queue that has all that it needs.
    fn enable_queue(&self, queue: &Queue) -> Step {
        let others =
            if queue.is_ours() { "" } else { " If it is another program's, make one for memferry instead." };
        let why = format!("The work queue {} of type user is not enabled.{others}", queue.name);
        let mut step = Step::new("enable-queue", why);
        if self.state != "enabled" {
            step = step.run(format!("echo {} | sudo tee /sys/bus/dsa/drivers/idxd/bind", self.name));
        }
        step.run(format!("echo {} | sudo tee /sys/bus/dsa/drivers/user/bind", queue.name))
    }

    /// Commands that make a dedicated work queue in group 0 of a device without enabled queues.
    fn make_queue(&self, host: &Host<'_>, begin: String, queue: &Queue, entries: u64) -> Step {
        let mut why = begin;
        why.push_str(
            " A dedicated one belongs to the one process that opens it. The commands' effect ends with a restart; \
             accel-config save-config -s FILE keeps it for load-config -c FILE -e.",
        );
        let mut commands = Vec::new();
        let has_tool = host.machine.exists("/usr/bin/accel-config");
        if self.state == "enabled" {
            why.push_str(
                " The device has to be disabled meanwhile, which forgets the settings of its other queues: save these \
                 before.",
            );
            commands.push(if has_tool {
                format!("sudo accel-config disable-device {}", self.name)
            } else {
                format!("echo {} | sudo tee /sys/bus/dsa/drivers/idxd/unbind", self.name)
            });
        }
        let engine = self.engine_to_use();
        commands.extend(if has_tool {
            self.by_accel_config(queue, entries, engine)
        } else {
            self.by_sysfs(queue, entries, engine)
        });
        commands.into_iter().fold(Step::new("no-queue", why), Step::run)
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
             --priority=10 --block-on-fault=0 --type=user{driver} --name={QUEUE_NAME}"
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
        values.push(("name", QUEUE_NAME));
        commands.extend(values.iter().map(|(file, value)| set(&format!("{name}/{file}"), value)));
        commands.push(format!("echo {device} | sudo tee /sys/bus/dsa/drivers/idxd/bind"));
        commands.push(format!("echo {name} | sudo tee /sys/bus/dsa/drivers/user/bind"));
        commands
    }

    fn lists_batches(&self) -> bool {
        self.operations.is_some_and(|mask| mask & BATCH != 0)
    }

    /// Whether this is a kernel before INTEL-SA-01084. The mask of operations tells: since the same change it leaves out
    /// batches where `write()` refuses them.
    fn unsafe_kernel(&self) -> Option<Step> {
        const HARM: &str = "every user who may open a queue can map its portal and harm the machine (INTEL-SA-01084, \
                            CVE-2024-21823)";
        const FIXED: &str = "Kernels with the fix, such as Linux 6.8.10, 6.9.1 and later ones";
        const UPDATE: &str =
            "Update the kernel before anyone but root gets a queue; the other steps are shown then.";
        if self.version > UNSAFE_VERSION {
            return None;
        }
        let why = match self.operations {
            Some(_) if !self.lists_batches() => return None,
            Some(_) => format!(
                "Unsafe with this kernel: {HARM}. {FIXED}, leave batches out of op_cap here. {UPDATE}"
            ),
            None => format!(
                "Perhaps unsafe with this kernel: {HARM}. {FIXED}, leave batches out of op_cap, which cannot be read here. \
                 {UPDATE}"
            ),
        };
        Some(Step::new("unsafe-kernel", why))
    }

    /// What submitting needs on the kernels since INTEL-SA-01084.
    fn portal(&self, host: &Host<'_>) -> Option<Step> {
        let has_drop_in = || drop_ins_set(host, FOLDER, "AmbientCapabilities", "CAP_SYS_RAWIO");
        if self.operations.is_none() || host.asker.raw_io && !host.asker.is_root() || has_drop_in() {
            return None;
        }
        let batches = if self.lists_batches() { "" } else { ", without batches" };
        let why = format!(
            "Portals need CAP_SYS_RAWIO: since INTEL-SA-01084 (CVE-2024-21823) Linux asks for it with every DSA device. \
             Without it a process submits by write() on the queue, each descriptor by a system call{batches}; that works, \
             and is slower. The capability also opens I/O ports and more, so only the engine's unit gets it."
        );
        Some(
            Step::optional("raw-io", why)
                .run(format!("sudo mkdir -p {FOLDER}"))
                .run(format!(
                    "printf '[Service]\\nCapabilityBoundingSet=CAP_SYS_RAWIO\\nAmbientCapabilities=CAP_SYS_RAWIO\\n\
                     ' | sudo tee {FOLDER}/{DROP_IN}"
                ))
                .run("sudo systemctl daemon-reload"),
        )
    }
}

/// The lowest operations of a mask. Linux writes words of 32 bits with commas between, the lowest last; older kernels four numbers with
/// blanks between, the lowest first, or that one alone.
fn lowest_operations(text: &str) -> Option<u64> {
    hexadecimal(match text.split_once(' ') {
        Some((first, _)) => first,
        None => text.rsplit(',').next()?,
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

/// The commands take the device from the users of the other driver.
fn other_driver(pci: &PciDevice, driver: &str) -> Step {
    let address = &pci.address;
    let begin =
        format!("The driver {driver} has the device. Memferry uses work queues of Linux's driver idxd.");
    if driver == "vfio-pci" {
        // It was bound on purpose.
        let harm = if pci.device == 0x0b25 {
            " vfio-pci refuses this device since INTEL-SA-01084 unless disable_denylist=1 was set; its user can harm the machine."
        } else {
            ""
        };
        let why = format!(
            "{begin} A virtual machine or another program may use it, and would lose it: stop that first, and undo what \
             binds it to vfio-pci.{harm}"
        );
        return Step::new("other-driver", why);
    }
    let why = format!("{begin} Its present user loses it by these commands: stop that first.");
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

/// The step for a queue that only root may open, or somebody else.
fn closed_queue(host: &Host<'_>, queue: &Queue) -> Option<Step> {
    let path = queue.path();
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
    let Node { uid, gid, mode, .. } = node;
    if node.is_given() && !queue.is_ours() {
        let why = format!(
            "The work queue {path} belongs to user {uid} and group {gid} (mode {mode:04o}), who may use it. If it is free, \
             give it to the group {ENGINE_USER} by a rule for udev (see the guide); if not, make another one for memferry."
        );
        return Some(Step::new("others-queue", why));
    }
    let others = if queue.is_ours() {
        ""
    } else {
        " If another program uses it, make another one for memferry instead."
    };
    let why = format!(
        "Only user {uid} and group {gid} may open {path} (mode {mode:04o}). A rule gives this queue to the group \
         {ENGINE_USER}.{}{others}",
        missing_user(host)
    );
    let name = &queue.name;
    // The queue itself is a device, too, of the name wq0.0 alone.
    let rule = format!("SUBSYSTEM==\"dsa\", KERNEL==\"dsa/{name}\", GROUP=\"{ENGINE_USER}\", MODE=\"0660\"");
    Some(
        Step::new("closed-queue", why)
            // A file for each queue: a machine has several devices.
            .run(format!("echo '{rule}' | sudo tee /etc/udev/rules.d/70-memferry-{name}.rules"))
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
