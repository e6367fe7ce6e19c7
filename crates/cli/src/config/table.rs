//! Every option of the service, each declared in one row.
//!
//! ```text
//! SECTIONS ─► flags of `memferry serve` and `memferry policy`, with their help
//!          ├► what a file may hold, and what is said of a mistake in it
//!          └► the default file, and docs/guide/options.md
//! ```
//!
//! To add an option, give [`super::settings::Settings`] or `ServiceConfig` a field with its default, and add a row here. What a
//! number of the service may be is part of `memferry_service::config`, which checks it for embedded clients too.

use std::collections::BTreeMap;
use std::path::PathBuf;

use memferry_service::config::{Bounds, bounds};
use memferry_service::{Pinning, PolicyKind, SchedulingClass};
use toml::Value;

use super::kinds::{Access, ClassPolicy, Device, Microseconds, Milliseconds, Permissions, Place};
use super::settings::{LogFormat, Settings};

/// A heading of the file with its options.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) rows: &'static [Row],
}

/// An option, as flag and as entry of the file.
pub(super) struct Row {
    /// Its name in the file.
    pub(super) key: &'static str,
    pub(super) flag: &'static str,
    /// What stands for a value in the help of the flag.
    pub(super) unit: &'static str,
    /// What it is, in a phrase. Choices, bounds and default are added to it.
    pub(super) help: &'static str,
    /// The default in words, where it depends on the machine or the user.
    pub(super) default: Option<&'static str>,
    pub(super) bounds: Option<Bounds>,
    pub(super) place: &'static dyn Access,
}

impl Row {
    /// Sets the option to a value of a file.
    pub(super) fn set_from_file(&self, settings: &mut Settings, value: &Value) -> Result<(), String> {
        self.place.set_from_file(settings, value)?;
        let (Some(bounds), Some(number)) = (self.bounds, value.as_integer()) else { return Ok(()) };
        let is_allowed = u64::try_from(number).is_ok_and(|number| bounds.contains(number));
        if is_allowed { Ok(()) } else { Err(format!("is {number}, it has to be {bounds}")) }
    }

    /// What it is and may be; `quote` writes a name of a choice.
    pub(super) fn about(&self, quote: impl Fn(&str) -> String) -> String {
        let mut about = self.help.to_owned();
        let names: Vec<_> = self.place.choices().into_iter().map(quote).collect();
        if let [others @ .., last] = &names[..] {
            about += &format!(": {} or {last}", others.join(", "));
        }
        if let Some(bounds) = self.bounds {
            about += &format!(" ({bounds})");
        }
        about
    }
}

/// All of them, in the order of the default file.
pub(super) const SECTIONS: &[Section] = &[
    Section { name: "service", about: "Where it listens and how it moves bytes.", rows: SERVICE },
    Section {
        name: "policy",
        about: "Numbers of the policies, and policies of single classes.",
        rows: POLICY,
    },
    Section {
        name: "quotas",
        about: "What one user may hold, in all its sessions together; capabilities count for each session.",
        rows: QUOTAS,
    },
    Section {
        name: "classes",
        about: "Who may use which priority class. Everyone may use normal and low.",
        rows: CLASSES,
    },
];

const SERVICE: &[Row] = &[
    Row {
        key: "socket",
        flag: "socket",
        unit: "PATH",
        help: "Socket to listen on; one that systemd hands over comes before it",
        default: Some("memferry.sock in the user's run-time directory, /run for root"),
        bounds: None,
        place: &Place::<PathBuf>(|settings| &mut settings.daemon.socket),
    },
    Row {
        key: "mode",
        flag: "mode",
        unit: "OCTAL",
        help: "Permissions of the socket, octal: who may connect",
        default: None,
        bounds: None,
        place: &Place::<Permissions>(|settings| &mut settings.daemon.mode),
    },
    Row {
        key: "workers",
        flag: "workers",
        unit: "COUNT",
        help: "Workers: threads that move bytes",
        default: Some("one for each CPU but one, at most 16"),
        bounds: Some(bounds::WORKERS),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.workers),
    },
    Row {
        key: "channels",
        flag: "channels",
        unit: "COUNT",
        help: "Engine channels of each worker: requests it serves by turns",
        default: None,
        bounds: Some(bounds::CHANNELS_PER_WORKER),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.channels_per_worker),
    },
    Row {
        key: "chunk",
        flag: "chunk",
        unit: "BYTES",
        help: "Bytes a worker moves for one request before it looks at the next",
        default: None,
        bounds: Some(bounds::CHUNK_BYTES),
        place: &Place::<u64>(|settings| &mut settings.daemon.service.chunk_bytes),
    },
    Row {
        key: "pin-workers",
        flag: "pin-workers",
        unit: "NAME",
        help: "Whether each worker is kept on a CPU of its own, as far as there are enough",
        default: None,
        bounds: None,
        place: &Place::<Pinning>(|settings| &mut settings.daemon.service.pinning),
    },
    Row {
        key: "worker-class",
        flag: "worker-class",
        unit: "NAME",
        help: "How the kernel schedules workers, see sched(7)",
        default: None,
        bounds: None,
        place: &Place::<SchedulingClass>(|settings| &mut settings.daemon.service.worker_class),
    },
    Row {
        key: "module-device",
        flag: "module-device",
        unit: "PATH",
        help: "Device of the Linux module that moves what is long by DMA engines, such as \"/dev/memferry\", or \"off\"",
        default: None,
        bounds: None,
        place: &Place::<Device>(|settings| &mut settings.daemon.service.module),
    },
    Row {
        key: "policy",
        flag: "policy",
        unit: "NAME",
        help: "Which client gets which engine channel",
        default: None,
        bounds: None,
        place: &Place::<PolicyKind>(|settings| &mut settings.daemon.service.policy.kind),
    },
    Row {
        key: "grace-ms",
        flag: "grace-ms",
        unit: "MILLISECONDS",
        help: "Milliseconds that running requests may go on when the service stops",
        default: None,
        bounds: None,
        place: &Place::<Milliseconds>(|settings| &mut settings.daemon.grace),
    },
    Row {
        key: "sandbox",
        flag: "sandbox",
        unit: "BOOL",
        help: "Whether to confine the process with seccomp once it has started",
        default: None,
        bounds: None,
        place: &Place::<bool>(|settings| &mut settings.daemon.sandbox),
    },
    Row {
        key: "log-format",
        flag: "log-format",
        unit: "NAME",
        help: "Format of log lines, which MEMFERRY_LOG filters",
        default: None,
        bounds: None,
        place: &Place::<LogFormat>(|settings| &mut settings.log_format),
    },
];

const POLICY: &[Row] = &[
    Row {
        key: "low-policy",
        flag: "low-policy",
        unit: "NAME",
        help: "Policy of the low class, if not that of the service",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[0]),
    },
    Row {
        key: "normal-policy",
        flag: "normal-policy",
        unit: "NAME",
        help: "Policy of the normal class, if not that of the service",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[1]),
    },
    Row {
        key: "high-policy",
        flag: "high-policy",
        unit: "NAME",
        help: "Policy of the high class, if not that of the service",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[2]),
    },
    Row {
        key: "period-us",
        flag: "period-us",
        unit: "MICROSECONDS",
        help: "Under the policy priority: microseconds from one slice of the high class to the next",
        default: None,
        bounds: None,
        place: &Place::<Microseconds>(|settings| &mut settings.daemon.service.policy.period),
    },
    Row {
        key: "slice-us",
        flag: "slice-us",
        unit: "MICROSECONDS",
        help: "Under the policy priority: microseconds of a slice, less than a period",
        default: None,
        bounds: None,
        place: &Place::<Microseconds>(|settings| &mut settings.daemon.service.policy.slice),
    },
    Row {
        key: "capacity",
        flag: "capacity",
        unit: "BYTES",
        help: "Under the policy deadline: bytes that a worker can promise for a second",
        default: None,
        bounds: None,
        place: &Place::<u64>(|settings| &mut settings.daemon.service.policy.capacity_bytes_per_second),
    },
    Row {
        key: "class-weights",
        flag: "class-weights",
        unit: "LOW,NORMAL,HIGH",
        help: "Under the policy weighted: weights of the classes low, normal and high",
        default: None,
        bounds: None,
        place: &Place::<[u32; 3]>(|settings| &mut settings.daemon.service.policy.class_weights),
    },
    Row {
        key: "user-weights",
        flag: "user-weight",
        unit: "UID=WEIGHT",
        help: "Under the policy weighted: weights of single users, each as \"1000=3\"; others have 1",
        default: None,
        bounds: None,
        place: &Place::<BTreeMap<u32, u32>>(|settings| &mut settings.daemon.service.policy.user_weights),
    },
    Row {
        key: "rate",
        flag: "rate",
        unit: "BYTES",
        help: "Under the policy rate-limit: bytes a user may move in a second on each worker",
        default: None,
        bounds: None,
        place: &Place::<u64>(|settings| &mut settings.daemon.service.policy.rate_bytes_per_second),
    },
    Row {
        key: "burst",
        flag: "burst",
        unit: "BYTES",
        help: "Under the policy rate-limit: bytes a user may move at once after a rest",
        default: None,
        bounds: None,
        place: &Place::<u64>(|settings| &mut settings.daemon.service.policy.burst_bytes),
    },
];

const QUOTAS: &[Row] = &[
    Row {
        key: "sessions",
        flag: "quota-sessions",
        unit: "COUNT",
        help: "Sessions of a user",
        default: None,
        bounds: Some(bounds::QUOTA_SESSIONS),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.sessions),
    },
    Row {
        key: "frames",
        flag: "quota-frames",
        unit: "COUNT",
        help: "Frames a user has registered",
        default: None,
        bounds: Some(bounds::QUOTA_FRAMES),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.frames),
    },
    Row {
        key: "bytes",
        flag: "quota-bytes",
        unit: "BYTES",
        help: "Bytes of the frames a user has registered",
        default: None,
        bounds: Some(bounds::QUOTA_BYTES),
        place: &Place::<u64>(|settings| &mut settings.daemon.service.quotas.bytes),
    },
    Row {
        key: "queues",
        flag: "quota-queues",
        unit: "COUNT",
        help: "Queues of a user",
        default: None,
        bounds: Some(bounds::QUOTA_QUEUES),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.queues),
    },
    Row {
        key: "capabilities",
        flag: "quota-capabilities",
        unit: "COUNT",
        help: "Capabilities a session holds: frames, derived, granted, accepted and revoked ones",
        default: None,
        bounds: Some(bounds::QUOTA_CAPABILITIES),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.capabilities),
    },
    Row {
        key: "waiting",
        flag: "quota-waiting",
        unit: "COUNT",
        help: "Requests of a user that wait, or are held by links, fences and loops, for each worker; 64 segments count as one",
        default: None,
        bounds: Some(bounds::QUOTA_WAITING),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.waiting),
    },
];

const CLASSES: &[Row] = &[Row {
    key: "high-users",
    flag: "high-user",
    unit: "UID",
    help: "Users, by number, whose requests may be of the high class",
    default: None,
    bounds: None,
    place: &Place::<Vec<u32>>(|settings| &mut settings.daemon.service.high_users),
}];
