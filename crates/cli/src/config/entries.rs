//! Every option of the configuration file: where it stands, what it is called, what it may be, its default.
//!
//! ```text
//! SECTIONS ─► parse: key and value ─ set ─► Options
//!          └► default file: about, default
//! ```
//!
//! A new option is a line here, a field of `Options` and one of `Settings`. How large a number may be is the
//! broker's to say (`memferry_service::config::LIMITS`).

use clap::ValueEnum;
use toml::Value;

use super::options::{LogFormat, Options, Settings, class, module_path, octal, pinning};
use super::policy::{POLICY, policy};

/// A heading with its options.
pub(super) struct Section {
    pub(super) name: &'static str,
    /// What it is about, for people.
    pub(super) about: &'static str,
    pub(super) entries: &'static [Entry],
}

/// One option.
pub(super) struct Entry {
    pub(super) key: &'static str,
    /// What it is, for people.
    pub(super) about: &'static str,
    /// The broker's name of the number, when it has bounds there.
    pub(super) limit: Option<&'static str>,
    /// Sets it; an error says what the value has to be.
    pub(super) set: fn(&mut Options, &Value) -> Result<(), String>,
    /// The value in settings, as TOML.
    pub(super) shown: fn(&Settings) -> String,
}

/// All of them, in the order of the default file.
pub(super) const SECTIONS: &[Section] = &[
    Section { name: "service", about: "Where it listens and how it moves bytes.", entries: SERVICE },
    Section {
        name: "policy",
        about: "Numbers of the policies, and policies of single classes.",
        entries: POLICY,
    },
    Section {
        name: "quotas",
        about: "What one user may hold, in all its sessions together; capabilities count for each session.",
        entries: QUOTAS,
    },
    Section {
        name: "classes",
        about: "Who may use which priority class. Everyone may use normal and low.",
        entries: CLASSES,
    },
];

const SERVICE: &[Entry] = &[
    Entry {
        key: "socket",
        about: "Socket to listen on. A socket that systemd hands over comes before it.",
        limit: None,
        set: |options, value| set(&mut options.socket, path(value)),
        shown: |settings| quoted(&settings.socket.display().to_string()),
    },
    Entry {
        key: "mode",
        about: "Permissions of the socket, octal, in quotes: who may connect.",
        limit: None,
        set: |options, value| set(&mut options.mode, mode(value)),
        shown: |settings| quoted(&format!("{:o}", settings.mode)),
    },
    Entry {
        key: "workers",
        about: "workers: threads that move bytes. One for each CPU but one, at most 16, unless set.",
        limit: Some("workers"),
        set: |options, value| set(&mut options.workers, number(value)),
        shown: |settings| settings.service.workers.to_string(),
    },
    Entry {
        key: "channels",
        about: "Engine channels of each worker: requests it serves by turns.",
        limit: Some("channels_per_worker"),
        set: |options, value| set(&mut options.channels, number(value)),
        shown: |settings| settings.service.channels_per_worker.to_string(),
    },
    Entry {
        key: "chunk",
        about: "Bytes a worker moves for one request before it looks at the next.",
        limit: Some("chunk_bytes"),
        set: |options, value| set(&mut options.chunk, number(value)),
        shown: |settings| settings.service.chunk_bytes.to_string(),
    },
    Entry {
        key: "pin-workers",
        about: "Whether workers are kept on CPUs: \"spread\", each on one of its own as far as they go, or \"off\".",
        limit: None,
        set: |options, value| set(&mut options.pin_workers, text(value).and_then(|name| said(pinning(name)))),
        shown: |settings| quoted(settings.service.pinning.name()),
    },
    Entry {
        key: "worker-class",
        about: "How the kernel schedules workers: \"inherited\", \"batch\", \"idle\" or \"fifo\" (sched(7)).",
        limit: None,
        set: |options, value| set(&mut options.worker_class, text(value).and_then(|name| said(class(name)))),
        shown: |settings| quoted(settings.service.worker_class.name()),
    },
    Entry {
        key: "module-device",
        about: "Device of the Linux module that moves what is long by DMA engines, such as \"/dev/memferry\", or \"off\".",
        limit: None,
        set: |options, value| {
            set(&mut options.module_device, text(value).and_then(|name| said(module_path(name))))
        },
        shown: |settings| {
            let path = settings.service.module.as_ref().map(|path| path.display().to_string());
            quoted(path.as_deref().unwrap_or("off"))
        },
    },
    Entry {
        key: "policy",
        about: "Who gets which channel: \"shared\", \"exclusive\", \"priority\", \"deadline\", \"weighted\" or \"rate-limit\".",
        limit: None,
        set: |options, value| set(&mut options.policy, text(value).and_then(|name| said(policy(name)))),
        shown: |settings| quoted(settings.service.policy.kind.name()),
    },
    Entry {
        key: "grace-ms",
        about: "Milliseconds running requests may go on when the service stops.",
        limit: None,
        set: |options, value| set(&mut options.grace_ms, number(value)),
        shown: |settings| settings.grace.as_millis().to_string(),
    },
    Entry {
        key: "sandbox",
        about: "Whether to confine the process with seccomp once it has started.",
        limit: None,
        set: |options, value| set(&mut options.sandbox, switch(value)),
        shown: |settings| settings.sandbox.to_string(),
    },
    Entry {
        key: "log-format",
        about: "How log lines are written: \"text\" or \"json\". Which are, says MEMFERRY_LOG.",
        limit: None,
        set: |options, value| set(&mut options.log_format, log_format(value)),
        shown: |settings| {
            let name = settings.log_format.to_possible_value();
            quoted(name.as_ref().map_or("text", |value| value.get_name()))
        },
    },
];

const QUOTAS: &[Entry] = &[
    Entry {
        key: "sessions",
        about: "Sessions of a user.",
        limit: Some("quotas.sessions"),
        set: |options, value| set(&mut options.quota_sessions, number(value)),
        shown: |settings| settings.service.quotas.sessions.to_string(),
    },
    Entry {
        key: "frames",
        about: "Frames a user has registered.",
        limit: Some("quotas.frames"),
        set: |options, value| set(&mut options.quota_frames, number(value)),
        shown: |settings| settings.service.quotas.frames.to_string(),
    },
    Entry {
        key: "bytes",
        about: "Bytes of these frames.",
        limit: Some("quotas.bytes"),
        set: |options, value| set(&mut options.quota_bytes, number(value)),
        shown: |settings| settings.service.quotas.bytes.to_string(),
    },
    Entry {
        key: "queues",
        about: "Queues (queue pairs) of a user.",
        limit: Some("quotas.queues"),
        set: |options, value| set(&mut options.quota_queues, number(value)),
        shown: |settings| settings.service.quotas.queues.to_string(),
    },
    Entry {
        key: "capabilities",
        about: "Capabilities a session holds: frames, derived, offered, accepted and revoked ones.",
        limit: Some("quotas.capabilities"),
        set: |options, value| set(&mut options.quota_capabilities, number(value)),
        shown: |settings| settings.service.quotas.capabilities.to_string(),
    },
    Entry {
        key: "waiting",
        about: "Requests of a user that may wait, or be held by links, fences and loops, for each worker; 64 segments count as one.",
        limit: Some("quotas.waiting"),
        set: |options, value| set(&mut options.quota_waiting, number(value)),
        shown: |settings| settings.service.quotas.waiting.to_string(),
    },
];

const CLASSES: &[Entry] = &[Entry {
    key: "high-users",
    about: "Users, by number, whose requests may be of the high class.",
    limit: None,
    set: |options, value| set(&mut options.high_users, numbers(value)),
    shown: |settings| format!("{:?}", settings.service.high_users),
}];

pub(super) fn set<T>(option: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *option = Some(value?);
    Ok(())
}

pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// What a value of the wrong kind is, and what it has to be.
pub(super) fn expected(what: &str, value: &Value) -> String {
    format!("is {}, it has to be {what}", kind(value))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a whole number",
        Value::Float(number) if number.is_infinite() => "a number too large for anything",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

/// A remedy after what is wrong with a text.
pub(super) fn said<T>(result: Result<T, String>) -> Result<T, String> {
    result.map_err(|reason| format!("is wrong: {reason}"))
}

pub(super) fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| expected("a text in quotes", value))
}

fn path(value: &Value) -> Result<std::path::PathBuf, String> {
    match text(value)? {
        "" => Err("is empty, it has to be a path such as \"/run/memferry.sock\"".to_owned()),
        path => Ok(path.into()),
    }
}

fn mode(value: &Value) -> Result<u32, String> {
    let quotes = || expected("octal and in quotes, such as \"660\"", value);
    said(octal(value.as_str().ok_or_else(quotes)?))
}

fn switch(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| expected("true or false, without quotes", value))
}

fn log_format(value: &Value) -> Result<LogFormat, String> {
    let name = text(value)?;
    let unknown = |_| format!("is wrong: there is no log format '{name}'; choose one of text, json");
    LogFormat::from_str(name, false).map_err(unknown)
}

fn numbers<T: TryFrom<i64>>(value: &Value) -> Result<Vec<T>, String> {
    let wanted = "a list of whole numbers, such as [1000, 1001]";
    let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
    list.iter().map(|one| number(one).map_err(|reason| format!("holds a value that {reason}"))).collect()
}

pub(super) fn number<T: TryFrom<i64>>(value: &Value) -> Result<T, String> {
    let whole = value.as_integer().ok_or_else(|| expected("a whole number without quotes", value))?;
    T::try_from(whole).map_err(|_| match whole {
        ..0 => format!("is {whole}, it has to be at least 0"),
        _ => format!("is {whole}, which is too large"),
    })
}
