//! Opens a device: checks that it is one of ours and given to VFIO, then takes it. Each failure says what to do.

use std::io;

use memferry_driven_engines::IoatInitError;
use memferry_driver_ioat::{InitError, StopError};
use thiserror::Error;

use crate::ids::{Generation, INTEL, generation};
use crate::vfio::Vfio;
use memferry_vfio::PciAddress;

/// The register space of an engine with four channels.
const BAR_BYTES: u64 = memferry_ioat_registers::offset::SPAN as u64;
/// The name of a group without an IOMMU, if VFIO was told to allow that.
const NO_IOMMU: &str = "vfio-noiommu";
/// Drivers that leave a group usable: bridges' and the one that does nothing.
const HARMLESS_DRIVERS: [&str; 2] = ["pcieport", "pci-stub"];

/// Why a device cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("there is no PCI device {device}; `lspci -D -d 8086::0880` lists candidates")]
    NoDevice { device: PciAddress },
    #[error("sysfs of {device}, {file}: {source}")]
    Sysfs { device: PciAddress, file: &'static str, source: io::Error },
    #[error(
        "{device} is {vendor:04x}:{number:04x}, no I/OAT engine; `lspci -D -d 8086::0880` lists candidates"
    )]
    NotIoat { device: PciAddress, vendor: u16, number: u16 },
    #[error(
        "{device} ({number:04x}) is an I/OAT engine of version 3.4 (Ice Lake), which the driver does not know; use a CPU engine"
    )]
    TooNew { device: PciAddress, number: u16 },
    #[error(
        "{device} ({number:04x}) is an I/OAT engine older than version 3.0, which was never tried; use a CPU engine"
    )]
    TooOld { device: PciAddress, number: u16 },
    #[error("{}", not_bound(*.device, .driver.as_deref()))]
    NotBound { device: PciAddress, driver: Option<String> },
    #[error(
        "{device} is behind no IOMMU: switch VT-d on in the firmware and boot with intel_iommu=on. Without it nothing would keep the device \
         to the memory of its requests"
    )]
    NoIommu { device: PciAddress },
    #[error(
        "{device} is in VFIO's unsafe mode without an IOMMU, which this engine does not use: unload vfio, load it without \
         enable_unsafe_noiommu_mode, switch VT-d on in the firmware and boot with intel_iommu=on"
    )]
    UnsafeNoIommu { device: PciAddress },
    #[error("cannot open /dev/vfio/vfio: {source}; {}", container_remedy(.source))]
    Container { source: io::Error },
    #[error("VFIO offers no IOMMU of type 1; `modprobe vfio_iommu_type1` adds it")]
    NoType1,
    #[error("cannot open /dev/vfio/{group}: {source}; {}", group_remedy(.source, .group))]
    Group { group: String, source: io::Error },
    #[error("group {group} of {device} cannot be used while others drive its devices: {}", viable_remedy(*.device, .others))]
    NotViable { device: PciAddress, group: String, others: Vec<String> },
    #[error("attaching group {group} to an IOMMU: {source}; the kernel's log has the reason")]
    Attach { group: String, source: io::Error },
    #[error("opening {device} in its group: {source}")]
    Device { device: PciAddress, source: io::Error },
    #[error(
        "BAR 0 of {device} has {bytes} bytes that can be mapped, fewer than {BAR_BYTES}: it is no I/OAT engine, or its BIOS left it unset"
    )]
    Bar { device: PciAddress, bytes: u64 },
    #[error(
        "{device} is an I/OAT engine of version {major}.{minor}, and the driver knows 3.0 to 3.3; use a CPU engine"
    )]
    Version { device: PciAddress, major: u8, minor: u8 },
    #[error("{device}: {source}")]
    Init { device: PciAddress, source: InitError },
    #[error(
        "{device} has no reset of its own, and what another program left in its channels does not end: {source}; a reboot ends it"
    )]
    NotReset { device: PciAddress, source: StopError },
    #[error("the rings of {device} cannot be mapped for it: {source}{remedy}")]
    Rings { device: PciAddress, source: io::Error, remedy: String },
    #[error("the channels of {device}: {source}")]
    Channels { device: PciAddress, source: IoatInitError },
    #[error("{step} of {device}: {source}")]
    Step { step: &'static str, device: PciAddress, source: io::Error },
}

/// The commands that give the device to VFIO.
fn not_bound(device: PciAddress, driver: Option<&str>) -> String {
    let folder = format!("/sys/bus/pci/devices/{device}");
    let (state, unbind) = match driver {
        Some(driver) => (format!("bound to {driver}"), format!("; echo {device} > {folder}/driver/unbind")),
        None => ("bound to no driver".to_owned(), String::new()),
    };
    format!(
        "{device} is {state}, not to vfio-pci. As root: modprobe vfio-pci; echo vfio-pci > {folder}/driver_override{unbind}; \
         echo {device} > /sys/bus/pci/drivers_probe"
    )
}

fn container_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "let the engine's user open it, as in: chmod 666 /dev/vfio/vfio",
        Some(libc::ENODEV | libc::ENXIO) => {
            "the kernel needs VFIO's containers (CONFIG_VFIO_CONTAINER): `modprobe vfio`"
        }
        _ => "`modprobe vfio-pci` makes it",
    }
}

fn viable_remedy(device: PciAddress, others: &[String]) -> String {
    if others.is_empty() {
        let folder = format!("/sys/bus/pci/devices/{device}/iommu_group/devices");
        return format!("sysfs names none any more; see the drivers in {folder}, and try again");
    }
    format!("bind to vfio-pci, or unbind, {}", others.join(", "))
}

fn group_remedy(source: &io::Error, group: &str) -> String {
    match source.raw_os_error() {
        Some(libc::EBUSY) => "another process has it: end that first".to_owned(),
        Some(libc::EACCES | libc::EPERM) => {
            format!("give it to the engine's user, as in: chown memferry-engine /dev/vfio/{group}")
        }
        _ => "bind the device to vfio-pci, and see whether /dev is that of the machine".to_owned(),
    }
}

/// A device whose registers can be mapped. It does not access memory yet.
pub(crate) struct Found {
    pub(crate) generation: Generation,
    /// Otherwise its channels are as another program left them.
    pub(crate) is_reset: bool,
}

/// Takes the device, up to where its registers can be mapped.
pub(crate) fn open<V: Vfio>(vfio: &mut V, device: PciAddress) -> Result<Found, OpenError> {
    let generation = check(vfio, device)?;
    let group = group(vfio, device)?;
    vfio.open_container().map_err(|source| OpenError::Container { source })?;
    let step = |step| move |source| OpenError::Step { step, device, source };
    if !vfio.has_type1().map_err(step("asking VFIO for its abilities"))? {
        return Err(OpenError::NoType1);
    }
    vfio.open_group(&group).map_err(|source| OpenError::Group { group: group.clone(), source })?;
    if !vfio.is_viable().map_err(step("the state of the group"))? {
        let members = vfio.group_members(device).unwrap_or_default();
        let is_in_the_way =
            |driver: &String| !driver.starts_with("vfio") && !HARMLESS_DRIVERS.contains(&driver.as_str());
        let others =
            members.into_iter().filter_map(|(member, driver)| driver.filter(is_in_the_way).map(|_| member));
        return Err(OpenError::NotViable { device, group, others: others.collect() });
    }
    vfio.attach().map_err(|source| OpenError::Attach { group, source })?;
    vfio.open_device(device).map_err(|source| OpenError::Device { device, source })?;
    let is_reset = vfio.reset().map_err(step("the reset"))?;
    let bar = vfio.bar().map_err(step("the size of BAR 0"))?;
    let bytes = if bar.can_be_mapped { bar.bytes } else { 0 };
    if bytes < BAR_BYTES {
        return Err(OpenError::Bar { device, bytes });
    }
    vfio.enable_registers().map_err(step("switching on the registers"))?;
    Ok(Found { generation, is_reset })
}

/// Checks numbers and driver, as sysfs has them.
fn check<V: Vfio>(vfio: &V, device: PciAddress) -> Result<Generation, OpenError> {
    let number = |file: &'static str| {
        let text = vfio.attribute(device, file).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OpenError::NoDevice { device },
            _ => OpenError::Sysfs { device, file, source },
        })?;
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u16::from_str_radix(digits, 16).map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidData, error);
            OpenError::Sysfs { device, file, source }
        })
    };
    let vendor = number("vendor")?;
    let number = number("device")?;
    let known = generation(number).filter(|_| vendor == INTEL);
    let generation = match known.ok_or(OpenError::NotIoat { device, vendor, number })? {
        Generation::TooNew => return Err(OpenError::TooNew { device, number }),
        Generation::TooOld => return Err(OpenError::TooOld { device, number }),
        usable => usable,
    };
    match vfio.link(device, "driver") {
        Ok(driver) if driver == "vfio-pci" => Ok(generation),
        Ok(driver) => Err(OpenError::NotBound { device, driver: Some(driver) }),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            Err(OpenError::NotBound { device, driver: None })
        }
        Err(source) => Err(OpenError::Sysfs { device, file: "driver", source }),
    }
}

/// The number of the device's group, which has an IOMMU.
fn group<V: Vfio>(vfio: &V, device: PciAddress) -> Result<String, OpenError> {
    let group = vfio.link(device, "iommu_group").map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::NoIommu { device },
        _ => OpenError::Sysfs { device, file: "iommu_group", source },
    })?;
    match vfio.attribute(device, "iommu_group/name") {
        Ok(name) if name == NO_IOMMU => Err(OpenError::UnsafeNoIommu { device }),
        _ => Ok(group),
    }
}

#[cfg(test)]
mod tests;
