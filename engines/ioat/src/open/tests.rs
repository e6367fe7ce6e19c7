//! Each reason why a device cannot be used, by a VFIO that fails at one step.

use std::io::Error;

use memferry_clock::Instant;
use memferry_engine::{Mapping, Operations};
use memferry_ioat_registers::{Device, NarrowIo, RegisterIo};

use super::*;
use crate::device::Opened;
use memferry_vfio::{Bar, Domain, Range};

/// What goes wrong, or differs from a device that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Nothing,
    /// A file or link of sysfs has this text, or is missing.
    File(&'static str, Option<&'static str>),
    Denied(&'static str),
    Unreadable(&'static str),
    Fails(&'static str, i32),
    NoType1,
    NotViable,
    /// Since it was asked, the others have left.
    NotViableAnyMore,
    Bar(Bar),
    Registers(u8, u8),
    Limit,
    /// It has no reset of its own.
    NoReset,
    /// Nor do its channels end theirs.
    Wedged,
}

struct Fake {
    wrong: Wrong,
    steps: Vec<&'static str>,
}

/// Version, channels, the command register's bits that never clear, and commands that were written; the time.
struct Registers(u8, u8, u8, Vec<(u32, u8)>, std::cell::Cell<u64>);
struct NoIommu;

impl RegisterIo for Registers {
    fn read(&mut self, offset: u32) -> u32 {
        if offset == 0x10 { 0x140 } else { 0 }
    }
    fn write(&mut self, _: u32, _: u32) {}
}

impl NarrowIo for Registers {
    fn read8(&mut self, offset: u32) -> u8 {
        match offset {
            0 => self.1,
            1 => 20,
            8 => self.0,
            0x84 => self.2,
            _ => 0,
        }
    }
    fn write8(&mut self, offset: u32, value: u8) {
        self.3.push((offset, value));
    }
    fn read16(&mut self, _: u32) -> u16 {
        0
    }
    fn write16(&mut self, _: u32, _: u16) {}
}

impl Device for Registers {
    fn advance(&mut self, _: Instant) {}
    fn now(&self) -> Instant {
        // Each question takes a millisecond.
        self.4.set(self.4.get() + 1);
        Instant::ORIGIN.after(std::time::Duration::from_millis(self.4.get()))
    }
    fn next_wake(&self) -> Option<Instant> {
        None
    }
    fn is_high(&self, _: usize) -> bool {
        false
    }
}

impl Domain for NoIommu {
    fn ranges(&self) -> Vec<Range> {
        vec![Range { first: 0, last: 1 << 30 }]
    }
    fn page_bytes(&self) -> u64 {
        4096
    }
    fn map(&self, _: u64, _: &Mapping, _: std::ops::Range<u64>) -> io::Result<()> {
        Err(Error::from_raw_os_error(libc::ENOMEM))
    }
    fn unmap(&self, _: u64, _: &Mapping, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Fake {
    fn step(&mut self, name: &'static str) -> io::Result<()> {
        self.steps.push(name);
        match self.wrong {
            Wrong::Fails(step, code) if step == name => Err(Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn file(&self, name: &str, usual: Option<&str>) -> io::Result<String> {
        let text = match self.wrong {
            Wrong::File(file, text) if file == name => text,
            Wrong::Denied(file) if file == name => return Err(Error::from_raw_os_error(libc::EACCES)),
            Wrong::Unreadable(file) if file == name => Some("what is this"),
            _ => usual,
        };
        text.map(str::to_owned).ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))
    }
}

impl Vfio for Fake {
    type Registers = Registers;
    type Domain = NoIommu;

    fn attribute(&self, _: PciAddress, name: &str) -> io::Result<String> {
        match name {
            "vendor" => self.file(name, Some("0x8086")),
            "device" => self.file(name, Some("0x3430")),
            _ => self.file(name, None),
        }
    }
    fn link(&self, _: PciAddress, name: &str) -> io::Result<String> {
        self.file(name, Some(if name == "driver" { "vfio-pci" } else { "7" }))
    }
    fn group_members(&self, _: PciAddress) -> io::Result<Vec<(String, Option<String>)>> {
        let member = |name: &str, driver: Option<&str>| (name.to_owned(), driver.map(str::to_owned));
        let mut members = vec![
            member("0000:00:04.0", Some("vfio-pci")),
            member("0000:00:04.2", None),
            member("0000:00:03.0", Some("pcieport")),
            member("0000:00:04.3", Some("pci-stub")),
        ];
        if self.wrong == Wrong::NotViable {
            members.push(member("0000:00:04.1", Some("ioatdma")));
        }
        Ok(members)
    }
    fn open_container(&mut self) -> io::Result<()> {
        self.step("container")
    }
    fn has_type1(&mut self) -> io::Result<bool> {
        self.step("type1").map(|()| self.wrong != Wrong::NoType1)
    }
    fn open_group(&mut self, number: &str) -> io::Result<()> {
        assert_eq!(number, "7");
        self.step("group")
    }
    fn is_viable(&mut self) -> io::Result<bool> {
        self.step("viable").map(|()| !matches!(self.wrong, Wrong::NotViable | Wrong::NotViableAnyMore))
    }
    fn attach(&mut self) -> io::Result<()> {
        self.step("attach")
    }
    fn open_device(&mut self, _: PciAddress) -> io::Result<()> {
        self.step("device")
    }
    fn reset(&mut self) -> io::Result<bool> {
        self.step("reset").map(|()| !matches!(self.wrong, Wrong::NoReset | Wrong::Wedged))
    }
    fn bar(&mut self) -> io::Result<Bar> {
        self.step("bar")?;
        let Wrong::Bar(bar) = self.wrong else { return Ok(Bar { bytes: 0x4000, can_be_mapped: true }) };
        Ok(bar)
    }
    fn enable_registers(&mut self) -> io::Result<()> {
        self.step("registers")
    }
    fn enable_master(&mut self) -> io::Result<()> {
        self.step("master")
    }
    fn watch_requests(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn take_parts(&mut self) -> io::Result<(Registers, NoIommu)> {
        self.step("parts")?;
        let (version, channels) = match self.wrong {
            Wrong::Registers(version, channels) => (version, channels),
            _ => (0x32, 4),
        };
        let stuck = if self.wrong == Wrong::Wedged { 0x20 } else { 0 };
        Ok((Registers(version, channels, stuck, Vec::new(), Default::default()), NoIommu))
    }
    fn is_wanted_back(&mut self) -> bool {
        false
    }
    fn lock_limit(&self) -> Option<u64> {
        (self.wrong == Wrong::Limit).then_some(65536)
    }
}

fn device() -> PciAddress {
    "0000:00:04.0".parse().unwrap()
}

fn opened(wrong: Wrong) -> Result<Opened<Fake>, OpenError> {
    Opened::new(Fake { wrong, steps: Vec::new() }, device())
}

/// The error, which names these words.
fn refused(wrong: Wrong, words: &[&str]) {
    let error = opened(wrong).err().unwrap_or_else(|| panic!("{wrong:?} is accepted")).to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{wrong:?}: {error}");
}

#[test]
fn a_device_is_taken_step_by_step() {
    let opened = opened(Wrong::Nothing).ok().unwrap();
    let steps = ["container", "type1", "group", "viable", "attach", "device", "reset", "bar", "registers"];
    assert_eq!(opened.vfio.steps, [&steps[..], &["parts", "master"]].concat());
    let resets =
        opened.registers.with(|registers| registers.3.iter().filter(|write| write.1 == 0x20).count());
    assert_eq!(resets, 0, "channels of a device that was reset");
    let abilities = opened.abilities();
    assert_eq!((abilities.version, abilities.channels), ((3, 2), 4));
    let all = Operations::COPY | Operations::FILL | Operations::SCATTER_GATHER | Operations::XOR;
    assert_eq!(abilities.operations, all);
}

#[test]
fn channels_are_reset_where_the_device_is_not() {
    let opened = opened(Wrong::NoReset).ok().unwrap();
    let mut writes = opened.registers.with(|registers| registers.3.clone());
    writes.retain(|(_, value)| *value == 0x20);
    assert_eq!(writes, [0x84, 0x104, 0x184, 0x204].map(|offset| (offset, 0x20)));
    refused(Wrong::Wedged, &["0000:00:04.0 has no reset of its own", "channel 0", "reboot"]);
}

#[test]
fn xor_is_left_out_where_silicon_has_errata() {
    let opened = opened(Wrong::File("device", Some("0x2021"))).ok().unwrap();
    assert!(!opened.abilities().operations.contains(Operations::XOR));
}

#[test]
fn sysfs_says_what_the_device_is() {
    refused(Wrong::File("vendor", None), &["there is no PCI device 0000:00:04.0", "lspci"]);
    refused(Wrong::Denied("vendor"), &["0000:00:04.0, vendor", "denied"]);
    refused(Wrong::Unreadable("device"), &["0000:00:04.0, device", "invalid digit"]);
    refused(Wrong::File("vendor", Some("0x1022")), &["1022:3430", "no I/OAT engine"]);
    refused(Wrong::File("device", Some("0x0b25")), &["8086:0b25", "no I/OAT engine"]);
    refused(Wrong::File("device", Some("0x0b00")), &["0b00", "3.4", "CPU"]);
    refused(Wrong::File("device", Some("0x1a38")), &["1a38", "older than version 3.0"]);
}

#[test]
fn the_commands_that_bind_the_device_are_named() {
    let folder = "/sys/bus/pci/devices/0000:00:04.0";
    let unbind = format!("; echo 0000:00:04.0 > {folder}/driver/unbind; ");
    let bind = format!("modprobe vfio-pci; echo vfio-pci > {folder}/driver_override");
    let probe = "echo 0000:00:04.0 > /sys/bus/pci/drivers_probe";
    refused(Wrong::File("driver", Some("ioatdma")), &["bound to ioatdma", &bind, &unbind, probe]);
    refused(Wrong::File("driver", None), &["bound to no driver", &bind, probe]);
    refused(Wrong::Denied("driver"), &["0000:00:04.0, driver", "denied"]);
}

#[test]
fn a_device_without_an_iommu_is_refused() {
    refused(Wrong::File("iommu_group", None), &["behind no IOMMU", "intel_iommu=on"]);
    refused(Wrong::File("iommu_group/name", Some("vfio-noiommu")), &["unsafe", "intel_iommu=on"]);
    refused(Wrong::Denied("iommu_group"), &["iommu_group", "denied"]);
    assert!(opened(Wrong::File("iommu_group/name", Some("other"))).is_ok());
}

#[test]
fn each_call_that_fails_is_named() {
    for (step, code, words) in [
        ("container", libc::ENOENT, &["/dev/vfio/vfio", "modprobe vfio-pci"][..]),
        ("container", libc::EACCES, &["/dev/vfio/vfio", "chmod 666 /dev/vfio/vfio"]),
        ("container", libc::ENODEV, &["/dev/vfio/vfio", "CONFIG_VFIO_CONTAINER"]),
        ("type1", libc::EIO, &["asking VFIO"]),
        ("group", libc::EACCES, &["/dev/vfio/7", "chown memferry-engine /dev/vfio/7"]),
        ("group", libc::EBUSY, &["/dev/vfio/7", "another process has it"]),
        ("group", libc::ENOENT, &["/dev/vfio/7", "bind the device"]),
        ("viable", libc::EIO, &["the state of the group"]),
        ("attach", libc::EPERM, &["attaching group 7", "kernel's log"]),
        ("device", libc::ENODEV, &["opening 0000:00:04.0"]),
        ("reset", libc::EIO, &["the reset of 0000:00:04.0"]),
        ("registers", libc::EIO, &["the registers of 0000:00:04.0"]),
        ("bar", libc::EINVAL, &["the size of BAR 0"]),
        ("master", libc::EIO, &["making a bus master of 0000:00:04.0"]),
        ("parts", libc::ENOMEM, &["mapping BAR 0 of 0000:00:04.0"]),
    ] {
        refused(Wrong::Fails(step, code), words);
    }
    refused(Wrong::NoType1, &["type 1", "modprobe vfio_iommu_type1"]);
    refused(Wrong::NotViable, &["group 7", "unbind, 0000:00:04.1"]);
    let error = opened(Wrong::NotViable).err().unwrap().to_string();
    assert!(error.ends_with("unbind, 0000:00:04.1"), "others are not in the way: {error}");
    refused(Wrong::NotViableAnyMore, &["group 7", "0000:00:04.0/iommu_group/devices", "try again"]);
    refused(Wrong::Bar(Bar { bytes: 0x4000, can_be_mapped: false }), &["BAR 0", " 0 bytes"]);
    refused(Wrong::Bar(Bar { bytes: 0x100, can_be_mapped: true }), &["BAR 0", " 256 bytes"]);
}

#[test]
fn registers_must_be_those_of_the_driver() {
    refused(Wrong::Registers(0x34, 4), &["version 3.4", "3.0 to 3.3"]);
    refused(Wrong::Registers(0x20, 4), &["version 2.0"]);
    refused(Wrong::Registers(0xFF, 0xFF), &["version 15.15"]);
    refused(Wrong::Registers(0x30, 0), &["no channels"]);
}

#[test]
fn memory_that_cannot_be_locked_names_the_limit() {
    let error = opened(Wrong::Limit).ok().unwrap().into_engine("test", 4).err().unwrap().to_string();
    assert!(error.contains("rings of 0000:00:04.0") && error.contains("65536 bytes"), "{error}");
}
