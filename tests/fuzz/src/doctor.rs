//! What `memferry doctor` reads of a machine, and of reports: files with any text.
//!
//! ```text
//! bytes ──► a report ─► facts ─┐
//!       ──► files ─► Machine ──┴─► diagnosis ──► lines that no terminal can misunderstand
//!                                     └─► report ─► facts ─► the same diagnosis, and the same facts
//! ```

#[path = "../../../crates/cli/src/doctor/channels.rs"]
mod channels;
#[path = "../../../crates/cli/src/doctor/dsa.rs"]
mod dsa;
#[path = "../../../crates/cli/src/doctor/examination.rs"]
mod examination;
#[path = "../../../crates/cli/src/doctor/finding.rs"]
mod finding;
#[path = "../../../crates/cli/src/doctor/gpu.rs"]
mod gpu;
#[path = "../../../crates/cli/src/doctor/host.rs"]
mod host;
#[path = "../../../crates/cli/src/doctor/ioat.rs"]
mod ioat;
#[path = "../../../crates/cli/src/doctor/machine.rs"]
mod machine;
#[path = "../../../crates/cli/src/doctor/program.rs"]
mod program;
#[path = "../../../crates/cli/src/doctor/report.rs"]
mod report;
#[path = "../../../crates/cli/src/doctor/service.rs"]
mod service;
#[path = "../../../crates/cli/src/doctor/show.rs"]
mod show;
#[path = "../../../crates/cli/src/doctor/unit.rs"]
mod unit;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use machine::{Facts, Machine};
use memferry_service::printable::printable;

const INTEL: u32 = 0x8086;
const AMD: u32 = 0x1022;

/// Input: the text of a report.
pub fn doctor_report(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(facts) = report::parsed(&text) {
        diagnose(&Machine::recorded(facts));
    }
}

/// Whether these bytes are a report.
pub fn is_doctor_report(data: &[u8]) -> bool {
    report::parsed(&String::from_utf8_lossy(data)).is_ok()
}

/// Files that the doctor reads, relative to the machine's root. Those that end in `@` are links.
const FILES: [&str; 24] = [
    "proc/sys/kernel/osrelease",
    "proc/cmdline",
    "proc/cpuinfo",
    "proc/self/status",
    "proc/meminfo",
    "etc/passwd",
    "etc/group",
    "sys/kernel/security/lsm",
    "sys/bus/pci/devices/0000:6a:01.0/vendor",
    "sys/bus/pci/devices/0000:6a:01.0/device",
    "sys/bus/pci/devices/0000:6a:01.0/class",
    "sys/bus/pci/devices/0000:6a:01.0/driver@",
    "sys/bus/pci/devices/0000:6a:01.0/iommu_group@",
    "sys/bus/pci/devices/0000:00:04.0/vendor",
    "sys/bus/pci/devices/0000:00:04.0/device",
    "sys/bus/pci/devices/0000:00:04.0/class",
    "sys/bus/pci/devices/0000:00:04.0/driver@",
    "sys/class/iommu/dmar0/intel-iommu/ecap",
    "sys/module/idxd/parameters/sva",
    "sys/class/dma/dma0chan0/in_use",
    "sys/class/dma/dma0chan0/device@",
    "sys/bus/dsa/devices/dsa0/state",
    "sys/bus/dsa/devices/dsa0/max_work_queues_size",
    "sys/bus/dsa/devices/wq0.0/state",
];

/// Input: files, each as a byte for its name, two for its length, and its bytes.
pub fn doctor_files(data: &[u8]) {
    static ROOT: OnceLock<Mutex<PathBuf>> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("memferry-fuzz-{}-machine", std::process::id()));
        Mutex::new(path)
    });
    let root = root.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = std::fs::remove_dir_all(&*root);
    std::fs::create_dir_all(root.join("sys")).expect("a new folder");
    let mut rest = data;
    while let [name, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high % 24])).min(more.len());
        let (bytes, after) = more.split_at(length);
        write(&root, FILES[usize::from(*name) % FILES.len()], bytes);
        rest = after;
    }
    diagnose(&Machine::below(&root).expect("a folder"));
    let _ = std::fs::remove_dir_all(&*root);
}

fn write(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name.trim_end_matches('@'));
    let _ = path.parent().map(std::fs::create_dir_all);
    if name.ends_with('@') {
        // A link that cannot be is left out.
        let _ = symlink(String::from_utf8_lossy(bytes).as_ref(), path);
    } else {
        std::fs::write(path, bytes).expect("a file below the root");
    }
}

/// Diagnoses a machine, and its report as another one.
fn diagnose(machine: &Machine) {
    let socket = Path::new("/nonexistent/memferry.sock");
    let lines = examination::diagnosed(machine, socket).lines(false);
    for line in &lines {
        let wrong = line.chars().find(|letter| printable(&letter.to_string()) != letter.to_string());
        assert_eq!(wrong, None, "{line:?}");
    }
    let facts = machine.facts();
    let summary = examination::diagnosed(machine, socket).summary();
    let text = report::written(&facts, &summary);
    let again: Facts = report::parsed(&text).expect("a report that was written");
    assert_eq!(again, facts, "{text}");
    let recorded = Machine::recorded(again);
    let lines_again = examination::diagnosed(&recorded, socket).lines(false);
    assert_eq!(lines_again, lines, "a report is diagnosed as another machine: {text}");
}
