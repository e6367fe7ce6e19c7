//! Looks at a machine: which engines it has, and what each lacks.

use std::path::Path;

use memferry_service::printable::printable;

use crate::doctor::channels::{self, Channels};
use crate::doctor::finding::Finding;
use crate::doctor::host::{Host, PciDevice};
use crate::doctor::machine::{Fact, Machine};
use crate::doctor::show::Diagnosis;
use crate::doctor::{AMD, INTEL, dsa, gpu, ioat, service};

/// Unreadable files that are named.
const MAX_UNREAD: usize = 20;

/// Looks at everything, and says what it found.
pub(super) fn diagnosed(machine: &Machine, socket: &Path) -> Diagnosis {
    let host = Host::of(machine, |vendor, device, class| {
        let is_intel = dsa::platform(device).is_some()
            || dsa::is_analytics(device)
            || ioat::ioat_version(device).is_some();
        vendor == INTEL && is_intel
            || vendor == AMD && channels::amd_driver(device).is_some()
            || gpu::is_gpu(vendor, class)
    });
    let channels = Channels::of(&host);
    let mut findings = vec![service::cpu(&host)];
    let of = |is_kind: &dyn Fn(&PciDevice) -> bool| -> Vec<&PciDevice> {
        host.devices.iter().filter(|pci| is_kind(pci)).collect()
    };
    for pci in of(&|pci| pci.vendor == INTEL) {
        findings.extend(dsa::platform(pci.device).map(|platform| dsa::examine(&host, pci, platform)));
    }
    findings.extend(analytics(&of(&|pci| pci.vendor == INTEL && dsa::is_analytics(pci.device))));
    let ioat = of(&|pci| pci.vendor == INTEL && ioat::ioat_version(pci.device).is_some());
    findings.extend(channels::examine_ioat(&host, &ioat, &channels));
    let amd = of(&|pci| pci.vendor == AMD && channels::amd_driver(pci.device).is_some());
    findings.extend(channels::examine_amd(&host, &amd, &channels));
    let known: Vec<&PciDevice> = ioat.into_iter().chain(amd).collect();
    findings.extend(channels.others(&host, &known));
    findings.extend(gpu::examine(&host, &of(&|pci| gpu::is_gpu(pci.vendor, pci.class))));
    let surroundings = service::surroundings(&host, socket);
    Diagnosis::new(findings, surroundings, unread(machine))
}

fn analytics(devices: &[&PciDevice]) -> Option<Finding> {
    let first = devices.first()?;
    let name = format!("Intel IAA ({} at {} and others)", devices.len(), first.address);
    let name = if devices.len() == 1 { format!("Intel IAA ({})", first.address) } else { name };
    let finding = Finding::new("iaa", name);
    Some(finding.without_engine("it compresses and encrypts, and is no engine for copies"))
}

/// Files that exist and could not be read, with the reason.
fn unread(machine: &Machine) -> Vec<String> {
    let facts = machine.facts();
    let reasons = facts.iter().filter_map(|((path, _), fact)| match fact {
        Fact::Failed { failed } => Some(printable(&format!("{path}: {failed}"))),
        _ => None,
    });
    let mut lines: Vec<String> = reasons.collect();
    let more = lines.len().saturating_sub(MAX_UNREAD);
    if more > 0 {
        lines.truncate(MAX_UNREAD);
        lines.push(format!("and {more} more"));
    }
    lines
}
