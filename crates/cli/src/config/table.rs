//! Every option of the service, each declared in one row.
//!
//! ```text
//! SECTIONS ─► flags of `memferry serve` and `memferry policy`, with their help
//!          ├► the keys of a configuration file, and the error messages for it
//!          └► the default file, memferry.toml(5), and docs/guide/options.md
//! ```
//!
//! To add an option, add a field with its default to [`super::settings::Settings`] or `ServiceConfig`, and a row here. The bounds
//! of the service's numbers are in `memferry_service::config`, which also checks them for embedded clients.

use std::collections::BTreeMap;
use std::path::PathBuf;

use memferry_service::config::{Bounds, bounds};
use memferry_service::{EngineConfig, Pinning, PolicyKind, SchedulingClass};
use toml::Value;

use super::kinds::{Access, ClassPolicy, Device, Microseconds, Milliseconds, Permissions, Place};
use super::settings::{LogFormat, Settings};

/// A section of the file with its options.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) rows: &'static [Row],
}

/// An option, as a flag and as a key of the file.
pub(super) struct Row {
    /// Name in the file.
    pub(super) key: &'static str,
    pub(super) flag: &'static str,
    /// Placeholder of the value in the flag's help.
    pub(super) unit: &'static str,
    /// Description, as a phrase. Choices, bounds and default are added to it.
    pub(super) help: &'static str,
    /// The default in words, if it depends on the machine or the user.
    pub(super) default: Option<&'static str>,
    pub(super) bounds: Option<Bounds>,
    pub(super) place: &'static dyn Access,
}

impl Row {
    /// Sets the option to a file's value.
    pub(super) fn set_from_file(&self, settings: &mut Settings, value: &Value) -> Result<(), String> {
        self.place.set_from_file(settings, value)?;
        self.check_bounds(value)
    }

    /// Fails if a value is a number out of bounds.
    pub(super) fn check_bounds(&self, value: &Value) -> Result<(), String> {
        let (Some(bounds), Some(number)) = (self.bounds, value.as_integer()) else { return Ok(()) };
        let is_allowed = u64::try_from(number).is_ok_and(|number| bounds.contains(number));
        if is_allowed { Ok(()) } else { Err(format!("is {number}, it has to be {bounds}")) }
    }

    /// Description, choices and bounds. `quote` formats the name of a choice.
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

/// All sections, in the order of the default file.
pub(super) const SECTIONS: &[Section] = &[
    Section { name: "service", about: "Socket, workers and general behaviour.", rows: SERVICE },
    Section {
        name: "policy",
        about: "Parameters of the policies, and policies for single classes.",
        rows: POLICY,
    },
    Section {
        name: "quotas",
        about: "Limits for one user over all sessions. The limit on capabilities applies to each session.",
        rows: QUOTAS,
    },
    Section {
        name: "engines",
        about: "Engine processes that may connect: programs that move bytes for the service (docs/engines.md).",
        rows: ENGINES,
    },
    Section {
        name: "classes",
        about: "Users that may use the high priority class. All users may use normal and low.",
        rows: CLASSES,
    },
];

const SERVICE: &[Row] = &[
    Row {
        key: "socket",
        flag: "socket",
        unit: "PATH",
        help: "Socket to listen on; a socket from systemd takes precedence",
        default: Some("memferry.sock in the user's run-time directory, or in /run for root"),
        bounds: None,
        place: &Place::<PathBuf>(|settings| &mut settings.daemon.socket),
    },
    Row {
        key: "mode",
        flag: "mode",
        unit: "OCTAL",
        help: "Permissions of the socket (octal), which decide who may connect",
        default: None,
        bounds: None,
        place: &Place::<Permissions>(|settings| &mut settings.daemon.mode),
    },
    Row {
        key: "workers",
        flag: "workers",
        unit: "COUNT",
        help: "Worker threads that move bytes",
        default: Some("number of CPUs minus one, at most 16"),
        bounds: Some(bounds::WORKERS),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.workers),
    },
    Row {
        key: "channels",
        flag: "channels",
        unit: "COUNT",
        help: "Engine channels per worker: requests that it serves in turn",
        default: None,
        bounds: Some(bounds::CHANNELS_PER_WORKER),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.channels_per_worker),
    },
    Row {
        key: "chunk",
        flag: "chunk",
        unit: "BYTES",
        help: "Bytes that a worker moves for one request before it serves the next",
        default: None,
        bounds: Some(bounds::CHUNK_BYTES),
        place: &Place::<u64>(|settings| &mut settings.daemon.service.chunk_bytes),
    },
    Row {
        key: "pin-workers",
        flag: "pin-workers",
        unit: "NAME",
        help: "Whether each worker is pinned to its own CPU, if there are enough CPUs",
        default: None,
        bounds: None,
        place: &Place::<Pinning>(|settings| &mut settings.daemon.service.pinning),
    },
    Row {
        key: "worker-class",
        flag: "worker-class",
        unit: "NAME",
        help: "Scheduling class of the workers, see sched(7)",
        default: None,
        bounds: None,
        place: &Place::<SchedulingClass>(|settings| &mut settings.daemon.service.worker_class),
    },
    Row {
        key: "module-device",
        flag: "module-device",
        unit: "PATH",
        help: "Device of the Linux module, which moves long transfers with DMA engines, such as \"/dev/memferry\", or \"off\"",
        default: None,
        bounds: None,
        place: &Place::<Device>(|settings| &mut settings.daemon.service.module),
    },
    Row {
        key: "policy",
        flag: "policy",
        unit: "NAME",
        help: "Policy that assigns engine channels to clients",
        default: None,
        bounds: None,
        place: &Place::<PolicyKind>(|settings| &mut settings.daemon.service.policy.kind),
    },
    Row {
        key: "grace-ms",
        flag: "grace-ms",
        unit: "MILLISECONDS",
        help: "Milliseconds that running requests may continue when the service stops",
        default: None,
        bounds: None,
        place: &Place::<Milliseconds>(|settings| &mut settings.daemon.grace),
    },
    Row {
        key: "sandbox",
        flag: "sandbox",
        unit: "BOOL",
        help: "Whether to confine the service's processes with seccomp and Landlock",
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
        help: "Policy of the low class, if it differs from the service's",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[0]),
    },
    Row {
        key: "normal-policy",
        flag: "normal-policy",
        unit: "NAME",
        help: "Policy of the normal class, if it differs from the service's",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[1]),
    },
    Row {
        key: "high-policy",
        flag: "high-policy",
        unit: "NAME",
        help: "Policy of the high class, if it differs from the service's",
        default: None,
        bounds: None,
        place: &Place::<ClassPolicy>(|settings| &mut settings.daemon.service.policy.classes[2]),
    },
    Row {
        key: "period-us",
        flag: "period-us",
        unit: "MICROSECONDS",
        help: "Policy priority: microseconds between the starts of two slices of the high class",
        default: None,
        bounds: None,
        place: &Place::<Microseconds>(|settings| &mut settings.daemon.service.policy.period),
    },
    Row {
        key: "slice-us",
        flag: "slice-us",
        unit: "MICROSECONDS",
        help: "Policy priority: microseconds of a slice, less than a period",
        default: None,
        bounds: None,
        place: &Place::<Microseconds>(|settings| &mut settings.daemon.service.policy.slice),
    },
    Row {
        key: "capacity",
        flag: "capacity",
        unit: "BYTES",
        help: "Policy deadline: bytes per second that a worker can promise",
        default: None,
        bounds: None,
        place: &Place::<u64>(|settings| &mut settings.daemon.service.policy.capacity_bytes_per_second),
    },
    Row {
        key: "class-weights",
        flag: "class-weights",
        unit: "LOW,NORMAL,HIGH",
        help: "Policy weighted: weights of the classes low, normal and high",
        default: None,
        bounds: None,
        place: &Place::<[u32; 3]>(|settings| &mut settings.daemon.service.policy.class_weights),
    },
    Row {
        key: "user-weights",
        flag: "user-weight",
        unit: "UID=WEIGHT",
        help: "Policy weighted: weights of individual users, each as \"1000=3\"; the default weight is 1",
        default: None,
        bounds: None,
        place: &Place::<BTreeMap<u32, u32>>(|settings| &mut settings.daemon.service.policy.user_weights),
    },
    Row {
        key: "rate",
        flag: "rate",
        unit: "BYTES",
        help: "Policy rate-limit: bytes per second that a user may move on each worker",
        default: None,
        bounds: None,
        place: &Place::<u64>(|settings| &mut settings.daemon.service.policy.rate_bytes_per_second),
    },
    Row {
        key: "burst",
        flag: "burst",
        unit: "BYTES",
        help: "Policy rate-limit: bytes that a user may move at once after a pause",
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
        help: "Registered frames of a user",
        default: None,
        bounds: Some(bounds::QUOTA_FRAMES),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.frames),
    },
    Row {
        key: "bytes",
        flag: "quota-bytes",
        unit: "BYTES",
        help: "Bytes of a user's registered frames",
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
        help: "Capabilities of a session: frames, and derived, granted, accepted and revoked ones",
        default: None,
        bounds: Some(bounds::QUOTA_CAPABILITIES),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.capabilities),
    },
    Row {
        key: "waiting",
        flag: "quota-waiting",
        unit: "COUNT",
        help: "Requests of a user on each worker that wait, or are held by links, fences and loops; 64 segments count as one",
        default: None,
        bounds: Some(bounds::QUOTA_WAITING),
        place: &Place::<u32>(|settings| &mut settings.daemon.service.quotas.waiting),
    },
];

const ENGINES: &[Row] = &[Row {
    key: "processes",
    flag: "engine",
    unit: "ENGINE",
    help: "Engine processes: a name, user=UID or name of the user that it runs as, and optionally frames=all or users whose frames it \
           maps, exports=all or users who get its own memory by descriptor, shortest=BYTES of the transfers that it gets, stall-ms=TIME after which a request without progress ends its \
           connection; a transfer goes to the first one that suits",
    default: None,
    bounds: None,
    place: &Place::<Vec<EngineConfig>>(|settings| &mut settings.daemon.service.engines),
}];

const CLASSES: &[Row] = &[Row {
    key: "high-users",
    flag: "high-user",
    unit: "UID",
    help: "Users, by number, that may use the high class",
    default: None,
    bounds: None,
    place: &Place::<Vec<u32>>(|settings| &mut settings.daemon.service.high_users),
}];
