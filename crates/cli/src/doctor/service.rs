//! The CPU engine, which is always there, the service, and what of the kernel both use.

use std::path::Path;
use std::time::Duration;

use memferry::{Client, ConnectOptions};
use memferry_service::printable::printable;
use serde::Serialize;

use crate::doctor::finding::Finding;
use crate::doctor::host::{Cpu, Host};

/// A service that answers does so at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The CPU engine with the kernels that this CPU has.
pub(super) fn cpu(host: &Host<'_>) -> Finding {
    let mut finding = Finding::new("cpu", "CPU");
    if !host.cpu.model.is_empty() {
        finding.details.push(printable(&host.cpu.model));
    }
    let kernels = kernels(&host.cpu);
    finding.judged(format!("kernels {kernels}"))
}

fn kernels(cpu: &Cpu) -> &'static str {
    let wide = ["avx512f", "avx512bw", "avx512dq", "avx512vl"];
    if wide.iter().all(|flag| cpu.has(flag)) {
        "avx512"
    } else if cpu.has("avx2") {
        "avx2"
    } else if cpu.has("asimd") {
        "neon"
    } else {
        "portable"
    }
}

/// The service and what it depends on, in lines for a table.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Surroundings {
    /// Whether a service answered; none if none was asked.
    pub(super) answers: Option<bool>,
    pub(super) lines: Vec<String>,
    pub(super) commands: Vec<String>,
}

/// Asks the service at a socket, and reads the kernel's settings.
pub(super) fn surroundings(host: &Host<'_>, socket: &Path) -> Surroundings {
    let (answers, line) = if host.machine.is_live() { ask(socket) } else { (None, "not asked".to_owned()) };
    let mut commands = Vec::new();
    if answers == Some(false) {
        commands.push("sudo systemctl enable --now memferry.socket    # or: memferry serve".to_owned());
    }
    // The commands are for its last line.
    let lines = [Some(kernel(host)), Some(memory(host)), container(host), Some(format!("service: {line}"))];
    Surroundings { answers, lines: lines.into_iter().flatten().collect(), commands }
}

fn ask(socket: &Path) -> (Option<bool>, String) {
    let path = socket.display();
    let options = ConnectOptions { timeout: PATIENCE };
    let status = Client::connect_with(socket, options).map_err(|error| error.to_string());
    match status.and_then(|client| client.status().map_err(|error| error.to_string())) {
        Ok(status) => {
            let engines: Vec<&str> = status.engines.iter().map(|engine| engine.name.as_str()).collect();
            let engines = if engines.is_empty() { "none".to_owned() } else { engines.join(", ") };
            let module = if status.module.is_some() { "used" } else { "not used" };
            let text = format!("answers at {path}; engine processes: {engines}; Linux module: {module}");
            (Some(true), printable(&text))
        }
        Err(error) => (Some(false), printable(&error)),
    }
}

fn kernel(host: &Host<'_>) -> String {
    let machine = host.machine;
    let modules = machine.excerpt("/sys/kernel/security/lsm", 4096, |text| {
        if text.trim().split(',').any(|name| name == "landlock") {
            "landlock".to_owned()
        } else {
            String::new()
        }
    });
    let landlock = match modules.as_deref() {
        Some("landlock") => "yes",
        Some(_) => "no",
        None => "unknown",
    };
    let io_uring = match machine.text("/proc/sys/kernel/io_uring_disabled").as_deref() {
        None | Some("0") => "allowed",
        Some("1") => "for its group only",
        Some(_) => "disabled",
    };
    let release = if host.release.is_empty() { "unknown" } else { host.release.as_str() };
    format!("kernel: {release}; Landlock: {landlock}; io_uring: {io_uring}")
}

fn memory(host: &Host<'_>) -> String {
    let machine = host.machine;
    let limit = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned()
    };
    let locked = machine.excerpt("/proc/self/limits", 16 << 10, limit).filter(|limit| !limit.is_empty());
    let huge = machine.text("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let number = |text: Option<String>| {
        let is_word =
            |text: &String| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        text.filter(is_word).unwrap_or_else(|| "unknown".to_owned())
    };
    let locked = match number(locked).as_str() {
        word @ ("unlimited" | "unknown") => word.to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    format!("locked memory, here: {locked}; huge pages of 2 MiB: {}", number(huge))
}

fn container(host: &Host<'_>) -> Option<String> {
    let text = "this is a container: sysfs shows the host's devices, and only those that were passed in can be opened";
    host.in_container.then(|| text.to_owned())
}
