//! Messages, good and bad, and the answers to a broken or hostile client.

use memferry_pci::Fatal;
use memferry_pci::ioat::{IoatFunction, IoatOptions};
use memferry_pci::message::{HEADER, Header, MAXIMUM, MAXIMUM_DATA, StreamError, command};
use memferry_pci::{Bar, Device, Memory};
use rustix::io::Errno;

use super::support::{
    BAR0, BOOL, CONFIG, EVENTFD, MASK, NO_DATA, PAGE, Rig, Shape, TRIGGER, UNMASK, header, irqs_payload,
    map_payload, memfd, u32s, u64s,
};

fn fresh() -> Device<IoatFunction> {
    let memory = Memory::new();
    Device::new(IoatFunction::new(IoatOptions::default(), memory.clone()), memory)
}

fn sent(device: &mut Device<IoatFunction>, number: u16, payload: &[u8]) -> Result<Option<Vec<u8>>, Fatal> {
    let header = Header::decode(&header(1, number, HEADER + payload.len(), 0)).unwrap();
    device.handle(&header, payload, vec![])
}

#[test]
fn headers_have_limits() {
    let decode = |size, flags| Header::decode(&header(3, 9, size, flags)).map(|header| header.size as usize);
    assert_eq!(decode(HEADER, 0), Ok(HEADER));
    assert_eq!(decode(MAXIMUM, 1 << 4), Ok(MAXIMUM));
    assert_eq!(decode(HEADER - 1, 0), Err(StreamError::TooShort { size: 15 }));
    assert_eq!(decode(0, 0), Err(StreamError::TooShort { size: 0 }));
    assert_eq!(decode(MAXIMUM + 1, 0), Err(StreamError::TooLong { size: MAXIMUM as u32 + 1 }));
    assert_eq!(decode(u32::MAX as usize, 0), Err(StreamError::TooLong { size: u32::MAX }));
    assert_eq!(decode(HEADER, 1), Err(StreamError::NoCommand { id: 3, kind: 1 }));
}

#[test]
fn the_version_comes_first() {
    let mut device = fresh();
    assert_eq!(sent(&mut device, command::RESET, &[]), Err(Fatal::NoVersion { command: command::RESET }));
    let short = sent(&mut device, command::VERSION, &[0, 0]).unwrap().unwrap();
    assert_eq!(short[8..], u32s(&[0x21, Errno::INVAL.raw_os_error() as u32]), "a refusal");
    assert_eq!(sent(&mut device, command::RESET, &[]), Err(Fatal::NoVersion { command: command::RESET }));
    assert_eq!(sent(&mut device, command::VERSION, &[1, 0, 0, 0]), Err(Fatal::OtherVersion { major: 1 }));
    assert_eq!(sent(&mut device, 999, &[]), Err(Fatal::NoVersion { command: 999 }));
}

#[test]
fn versions_are_negotiated() {
    let reply = |minor: u16, data: &[u8]| {
        let payload = [&[0, 0][..], &minor.to_ne_bytes(), data].concat();
        sent(&mut fresh(), command::VERSION, &payload).unwrap().unwrap()
    };
    let newest = reply(9, b"{\"capabilities\":{\"max_msg_fds\":8}}\0");
    assert_eq!(newest[HEADER..HEADER + 4], [0, 0, 1, 0]);
    let text = newest[HEADER + 4..].strip_suffix(&[0]).expect("NUL");
    let json: serde_json::Value = serde_json::from_slice(text).unwrap();
    assert_eq!(json["capabilities"]["max_msg_fds"], 16);
    assert_eq!(json["capabilities"]["pgsizes"], 4096);
    assert_eq!(reply(0, b"")[HEADER..HEADER + 4], [0, 0, 0, 0]);
    assert_eq!(reply(1, b"{]\0")[8..12], 0x21_u32.to_ne_bytes(), "no JSON");
    let mut rig = Rig::new();
    assert_eq!(rig.bad(command::VERSION, &[0, 0, 1, 0], vec![]), Errno::INVAL, "a second time");
}

#[test]
fn describes_the_device() {
    let mut rig = Rig::new();
    assert_eq!(rig.good(command::DEVICE_INFO, &u32s(&[16, 0, 0, 0]), vec![]), u32s(&[16, 3, 9, 5]));
    let region = |rig: &mut Rig, index| {
        rig.good(command::REGION_INFO, &[u32s(&[32, 0, index, 0]), u64s(&[0, 0])].concat(), vec![])
    };
    assert_eq!(region(&mut rig, BAR0), [u32s(&[32, 3, 0, 0]), u64s(&[0x4000, 0])].concat());
    assert_eq!(region(&mut rig, 1), [u32s(&[32, 0, 1, 0]), u64s(&[0, 0])].concat());
    assert_eq!(region(&mut rig, CONFIG), [u32s(&[32, 3, 7, 0]), u64s(&[0x1000, 0])].concat());
    let irq = |rig: &mut Rig, index| rig.good(command::IRQ_INFO, &u32s(&[16, 0, index, 0]), vec![]);
    assert_eq!(irq(&mut rig, 0), u32s(&[16, 7, 0, 1]));
    assert_eq!(irq(&mut rig, 1), u32s(&[16, 9, 1, 1]));
    assert_eq!(irq(&mut rig, 2), u32s(&[16, 0, 2, 0]), "no MSI-X");
    assert_eq!(irq(&mut rig, 4), u32s(&[16, 0, 4, 0]));
}

#[test]
fn malformed_payloads_are_refused() {
    let mut rig = Rig::new();
    let region = |offset: u64, region: u32, count: u32| [u64s(&[offset]), u32s(&[region, count])].concat();
    let unmap = |flags, address, size| [u32s(&[24, flags]), u64s(&[address, size])].concat();
    let cases: &[(u16, Vec<u8>)] = &[
        (command::DEVICE_INFO, vec![]),
        (command::DEVICE_INFO, u32s(&[16, 0, 0])),
        (command::DEVICE_INFO, u32s(&[16, 0, 0, 0, 0])),
        (command::DEVICE_INFO, u32s(&[15, 0, 0, 0])),
        (command::REGION_INFO, u32s(&[32, 0, 0, 0])),
        (command::REGION_INFO, [u32s(&[32, 0, 9, 0]), u64s(&[0, 0])].concat()),
        (command::REGION_INFO, [u32s(&[31, 0, 0, 0]), u64s(&[0, 0])].concat()),
        (command::IRQ_INFO, u32s(&[16, 0, 5, 0])),
        (command::IRQ_INFO, u32s(&[16, 0, u32::MAX, 0])),
        (command::DMA_MAP, map_payload(3, 0, 0, PAGE)[..31].to_vec()),
        (command::DMA_MAP, [map_payload(3, 0, 0, PAGE), vec![0]].concat()),
        (command::DMA_MAP, map_payload(0, 0, 0, PAGE)),
        (command::DMA_MAP, map_payload(7, 0, 0, PAGE)),
        (command::DMA_UNMAP, unmap(0, 0, PAGE)[..23].to_vec()),
        (command::DMA_UNMAP, unmap(1, 0, PAGE)),
        (command::DMA_UNMAP, unmap(2, 0, PAGE)),
        (command::DMA_UNMAP, unmap(0, 0, 0)),
        (command::DMA_UNMAP, unmap(0, u64::MAX, 2)),
        (command::SET_IRQS, irqs_payload(NO_DATA | TRIGGER, 0, 0, 1)[..19].to_vec()),
        (command::SET_IRQS, irqs_payload(TRIGGER, 0, 0, 1)),
        (command::SET_IRQS, irqs_payload(NO_DATA | BOOL | TRIGGER, 0, 0, 1)),
        (command::SET_IRQS, irqs_payload(NO_DATA, 0, 0, 1)),
        (command::SET_IRQS, irqs_payload(NO_DATA | TRIGGER | UNMASK, 0, 0, 1)),
        (command::SET_IRQS, irqs_payload(NO_DATA | TRIGGER | 1 << 6, 0, 0, 1)),
        (command::SET_IRQS, irqs_payload(BOOL | TRIGGER, 0, 0, 1)),
        (command::SET_IRQS, [irqs_payload(BOOL | TRIGGER, 0, 0, 1), vec![1, 1]].concat()),
        (command::SET_IRQS, irqs_payload(EVENTFD | TRIGGER, 1, 0, 2)),
        (command::SET_IRQS, irqs_payload(EVENTFD | TRIGGER, 1, u32::MAX, 1)),
        (command::SET_IRQS, irqs_payload(NO_DATA | TRIGGER, 7, 0, 1)),
        (command::REGION_READ, region(0, BAR0, 4)[..15].to_vec()),
        (command::REGION_READ, [region(0, BAR0, 4), vec![0]].concat()),
        (command::REGION_READ, region(0x4000, BAR0, 1)),
        (command::REGION_READ, region(0, 1, 4)),
        (command::REGION_READ, region(0, 9, 4)),
        (command::REGION_READ, region(0, u32::MAX, 4)),
        (command::REGION_READ, region(0, BAR0, u32::MAX)),
        (command::REGION_READ, region(0, BAR0, 0)),
        (command::REGION_WRITE, region(0, BAR0, 4)),
        (command::REGION_WRITE, [region(0, BAR0, 2), vec![0; 4]].concat()),
        (command::REGION_WRITE, region(0, BAR0, u32::MAX)),
        (command::REGION_WRITE, [region(0x3FFF, BAR0, 2), vec![0; 2]].concat()),
        (command::RESET, vec![0]),
    ];
    for (number, payload) in cases {
        assert_eq!(rig.bad(*number, payload, vec![]), Errno::INVAL, "{number} {payload:x?}");
        assert_eq!(rig.device.take_report().len(), 1, "{number} {payload:x?}");
    }
    for number in [0, 6, 11, 12, 14, 15, 16, 17, 18, u16::MAX] {
        assert_eq!(rig.bad(number, &[0; 16], vec![]), Errno::OPNOTSUPP, "{number}");
    }
    assert_eq!(rig.bad(command::SET_IRQS, &irqs_payload(NO_DATA | MASK, 1, 0, 1), vec![]), Errno::OPNOTSUPP);
    assert_eq!(rig.config16(0), 0x8086, "the device goes on");
}

#[test]
fn wrong_descriptors_are_refused() {
    let mut rig = Rig::new();
    let memory = || memfd(PAGE);
    let (pipe, other) = rustix::pipe::pipe().unwrap();
    let map = map_payload(3, 0, 0x1000, PAGE);
    assert_eq!(rig.bad(command::DMA_MAP, &map, vec![memory(), memory()]), Errno::INVAL, "two");
    assert_eq!(rig.bad(command::DMA_MAP, &map, vec![pipe]), Errno::INVAL, "a pipe");
    let trigger = irqs_payload(EVENTFD | TRIGGER, 1, 0, 1);
    assert_eq!(rig.bad(command::SET_IRQS, &trigger, vec![other]), Errno::INVAL, "a pipe");
    assert_eq!(rig.bad(command::SET_IRQS, &trigger, vec![memory(), memory()]), Errno::INVAL, "two");
    let disable = irqs_payload(NO_DATA | TRIGGER, 1, 0, 0);
    assert_eq!(rig.bad(command::SET_IRQS, &disable, vec![memory()]), Errno::INVAL, "none wanted");
    for (number, payload) in [(command::RESET, vec![]), (command::DEVICE_INFO, u32s(&[16, 0, 0, 0]))] {
        assert_eq!(rig.bad(number, &payload, vec![memory()]), Errno::INVAL, "none wanted");
    }
    // Memory that cannot be mapped is not the device's: QEMU announces a ROM this way.
    rig.good(command::DMA_MAP, &map, vec![]);
    assert_eq!(rig.device.memory().traffic().windows, 0);
}

#[test]
fn a_command_may_want_no_reply() {
    let mut device = fresh();
    sent(&mut device, command::VERSION, &[0, 0, 1, 0]).unwrap();
    let silent = Header::decode(&header(1, command::RESET, HEADER, 1 << 4)).unwrap();
    assert_eq!(device.handle(&silent, &[], vec![]), Ok(None));
}

#[test]
fn accesses_are_no_longer_than_was_announced() {
    let mut device = Device::new(Shape { bars: vec![Bar { index: 0, bytes: 1 << 24 }] }, Memory::new());
    let mut send = |number, payload: &[u8]| {
        let header = Header::decode(&header(1, number, HEADER + payload.len(), 0)).unwrap();
        device.handle(&header, payload, vec![]).unwrap().unwrap()
    };
    send(command::VERSION, &[0, 0, 1, 0]);
    let limit = MAXIMUM_DATA as u32;
    for (count, length) in [(limit, HEADER + 16 + MAXIMUM_DATA), (limit + 1, HEADER), (1 << 24, HEADER)] {
        let reply = send(command::REGION_READ, &[u64s(&[0]), u32s(&[BAR0, count])].concat());
        assert_eq!(reply.len(), length, "{count}");
    }
}
