//! Configuration space as a guest's kernel expects it.

use memferry_pci::ioat::{Interrupting, IoatOptions, Version};
use memferry_pci::message::command;
use rustix::io::Errno;

use super::support::{CONFIG, Rig, u32s, u64s};

/// The capabilities: ids and places, by the chain of pointers.
fn capabilities(rig: &mut Rig) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    let mut at = u64::from(rig.read(CONFIG, 0x34, 1)[0]);
    while at != 0 {
        assert!((0x40..0x100).contains(&at) && at % 4 == 0 && found.len() < 8, "{at:#x}");
        let head = rig.read(CONFIG, at, 2);
        found.push((head[0], at));
        at = head[1].into();
    }
    found
}

#[test]
fn identifies_each_version() {
    for (version, minor, id) in
        [(Version::V3_0, 0x30, 0x3430), (Version::V3_2, 0x32, 0x3710), (Version::V3_3, 0x33, 0x0C50)]
    {
        let mut rig = Rig::with(IoatOptions { version, ..IoatOptions::default() });
        assert_eq!(rig.config16(0x00), 0x8086);
        assert_eq!(rig.config16(0x02), id);
        assert_eq!(rig.read(CONFIG, 0x09, 3), [0x00, 0x80, 0x08], "interface, subclass, class");
        assert_eq!(rig.read(CONFIG, 0x0E, 1), [0], "an ordinary header");
        assert_eq!(rig.config16(0x06) & 0x10, 0x10, "a capability list");
        assert_eq!(rig.read(super::support::BAR0, 8, 1), [minor], "CBVER");
    }
    let mut rig = Rig::with(IoatOptions { device: Some(0x0E20), channels: 2, ..IoatOptions::default() });
    assert_eq!(rig.config16(0x02), 0x0E20);
    assert_eq!(rig.read(super::support::BAR0, 0, 1), [2], "CHANCNT");
    assert_eq!(rig.read(super::support::BAR0, 0x182, 2), [0, 0], "channel 2 is not there");
}

#[test]
fn offers_capabilities() {
    let chain = |signalling| {
        let mut rig = Rig::with(IoatOptions { signalling, ..IoatOptions::default() });
        let found = capabilities(&mut rig);
        (rig, found)
    };
    let (_, found) = chain(Interrupting::Intx);
    assert_eq!(found, [(0x10, 0x60)]);
    let (mut rig, found) = chain(Interrupting::Msi);
    assert_eq!(found, [(0x05, 0x50), (0x10, 0x60)]);
    assert_eq!(rig.config16(0x52) & 0x80, 0x80, "64 address bits");
    assert_eq!(rig.config16(0x62) & 0xF, 2, "version of the capability");
    assert_eq!(rig.config16(0x66) & 1 << 12, 1 << 12, "function-level reset");
    assert_eq!(rig.read(CONFIG, 0x100, 4), [0; 4], "no extended capability");
    assert_eq!(rig.read(CONFIG, 0xFFC, 4), [0; 4], "4 KiB");
    let (mut rig, found) = chain(Interrupting::MsiX);
    assert_eq!(found, [(0x05, 0x50), (0x10, 0x60), (0x11, 0xA0)]);
    assert_eq!(rig.config16(0xA2), 3, "four vectors");
    assert_eq!(rig.read(CONFIG, 0xA4, 8), [0, 0x10, 0, 0, 0, 0x18, 0, 0], "table and pending bits in BAR 0");
}

#[test]
fn the_bar_shows_its_size() {
    let mut rig = Rig::new();
    rig.write(CONFIG, 0x10, &[0xFF; 8]);
    assert_eq!(rig.read(CONFIG, 0x10, 8), [0x04, 0xC0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    rig.write(CONFIG, 0x10, &u64s(&[0x38_0000_C000]));
    assert_eq!(rig.read(CONFIG, 0x10, 8), [0x04, 0xC0, 0x00, 0x00, 0x38, 0, 0, 0]);
    rig.write(CONFIG, 0x18, &[0xFF; 16]);
    assert_eq!(rig.read(CONFIG, 0x18, 16), [0; 16], "no other BAR");
}

#[test]
fn read_only_bits_stay() {
    let mut rig = Rig::new();
    let before = rig.read(CONFIG, 0, 4096);
    rig.write(CONFIG, 0, &[0xFF; 0x68]);
    rig.write(CONFIG, 0x6C, &[0xFF; 4096 - 0x6C]);
    for at in [0x00, 0x02, 0x06, 0x08, 0x2C, 0x34, 0x50, 0x60, 0x62, 0x64, 0x66] {
        assert_eq!(
            rig.config16(at),
            u16::from_le_bytes([before[at as usize], before[at as usize + 1]]),
            "{at:#x}"
        );
    }
    assert_eq!(rig.config16(0x04), 0x0546, "bits of the command register");
    assert_eq!(rig.read(CONFIG, 0x180, 4), [0; 4], "ones clear errors");
}

#[test]
fn accesses_stay_in_configuration_space() {
    let mut rig = Rig::new();
    for (offset, count) in [(4096, 1), (4095, 2), (0, 4097), (u64::MAX, 4), (0, 0)] {
        let access = [u64s(&[offset]), u32s(&[CONFIG, count])].concat();
        assert_eq!(rig.bad(command::REGION_READ, &access, vec![]), Errno::INVAL, "{offset:#x} {count}");
    }
}

#[test]
#[cfg(debug_assertions)]
fn impossible_bars_are_a_mistake() {
    use memferry_pci::Bar;
    let bar = |index, bytes| Bar { index, bytes };
    let makes = |bars: &[Bar]| {
        let function = super::support::Shape { bars: bars.to_vec() };
        std::panic::catch_unwind(|| memferry_pci::Device::new(function, memferry_pci::Memory::new())).is_ok()
    };
    assert!(makes(&[bar(0, 4096), bar(2, 1 << 20), bar(4, 1 << 33)]));
    for bars in [
        vec![bar(5, 4096)],
        vec![bar(0, 0)],
        vec![bar(0, 2048)],
        vec![bar(0, 5000)],
        vec![bar(0, 4096), bar(1, 4096)],
        vec![bar(2, 4096), bar(0, 4096)],
    ] {
        assert!(!makes(&bars), "{bars:?}");
    }
}
