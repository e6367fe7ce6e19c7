//! Test fixture: a client that sends bytes to a device, and a guest's memory in pages that are scattered over a file.
//!
//! ```text
//! Rig ── messages ──► Device<IoatFunction> ── Bus ──► windows of 4 KiB ──► memfd ◄── Guest: reads and writes by address
//! ```
//!
//! Time is virtual: `run` goes from event to event.

use std::os::fd::OwnedFd;

use memferry_clock::Instant;
use memferry_pci::ioat::{IoatFunction, IoatOptions};
use memferry_pci::message::{HEADER, Header, command};
use memferry_pci::{Bar, Description, Device, Fatal, Function, Memory, Signalling};
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor, Sources};
use memferry_registers::ioat::offset::channel as register;
use memferry_registers::ioat::{Chancmd, Chanctrl, Chanerr, Chansts, Intrctrl, Register, TransferState};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

pub(crate) const CONFIG: u32 = 7;
pub(crate) const BAR0: u32 = 0;
pub(crate) const PAGE: u64 = 4096;
pub(crate) const PAGES: u64 = 64;
/// Above 4 GiB.
pub(crate) const BASE: u64 = 0x1_4000_0000;

/// The errno of a reply, zero for success, and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) errno: i32,
    pub(crate) payload: Vec<u8>,
}

/// A header as a client writes it.
pub(crate) fn header(id: u16, command: u16, size: usize, flags: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..2].copy_from_slice(&id.to_ne_bytes());
    bytes[2..4].copy_from_slice(&command.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(size as u32).to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

pub(crate) fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn map_payload(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    [u32s(&[32, flags]), u64s(&[offset, address, size])].concat()
}

pub(crate) fn irqs_payload(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    u32s(&[20, flags, index, start, count])
}

/// Eventfds for SET_IRQS: trigger.
pub(crate) const TRIGGER: u32 = 1 << 5;
pub(crate) const UNMASK: u32 = 1 << 4;
pub(crate) const MASK: u32 = 1 << 3;
pub(crate) const EVENTFD: u32 = 1 << 2;
pub(crate) const BOOL: u32 = 1 << 1;
pub(crate) const NO_DATA: u32 = 1;

pub(crate) struct Rig {
    pub(crate) device: Device<IoatFunction>,
}

impl Rig {
    pub(crate) fn with(options: IoatOptions) -> Self {
        memferry_shm::bus_error::install().unwrap();
        let memory = Memory::new();
        let mut rig = Self { device: Device::new(IoatFunction::new(options, memory.clone()), memory) };
        rig.good(command::VERSION, &[0, 0, 1, 0], vec![]);
        rig
    }

    pub(crate) fn new() -> Self {
        Self::with(IoatOptions::default())
    }

    /// Sends a command and decodes the reply.
    pub(crate) fn try_send(
        &mut self,
        number: u16,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Reply, Fatal> {
        let sent = header(7, number, HEADER + payload.len(), 0);
        let sent = Header::decode(&sent).expect("a header");
        let bytes = self.device.handle(&sent, payload, fds)?.expect("a reply");
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(bytes[..4], header(7, number, 0, 0)[..4], "id and command");
        assert_eq!(word(4) as usize, bytes.len());
        let is_error = word(8) == 0x21;
        assert!(is_error || word(8) == 1, "{:#x}", word(8));
        let errno = word(12) as i32;
        assert_eq!(is_error, errno != 0);
        assert!(!is_error || bytes.len() == HEADER, "an error has no payload");
        Ok(Reply { errno, payload: bytes[HEADER..].to_vec() })
    }

    pub(crate) fn send(&mut self, number: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Reply {
        self.try_send(number, payload, fds).expect("the connection goes on")
    }

    pub(crate) fn good(&mut self, number: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Vec<u8> {
        let reply = self.send(number, payload, fds);
        assert_eq!(reply.errno, 0, "command {number}: {:?}", self.device.take_report());
        reply.payload
    }

    pub(crate) fn bad(&mut self, number: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Errno {
        let reply = self.send(number, payload, fds);
        assert_ne!(reply.errno, 0, "command {number} with {payload:x?} was carried out");
        Errno::from_raw_os_error(reply.errno)
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let payload = [u64s(&[offset]), u32s(&[region, count])].concat();
        self.good(command::REGION_READ, &payload, vec![])[16..].to_vec()
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let payload = [u64s(&[offset]), u32s(&[region, data.len() as u32]), data.to_vec()].concat();
        self.good(command::REGION_WRITE, &payload, vec![]);
    }

    pub(crate) fn map(&mut self, fd: &OwnedFd, offset: u64, address: u64, size: u64) {
        let fd = fd.try_clone().unwrap();
        self.good(command::DMA_MAP, &map_payload(3, offset, address, size), vec![fd]);
    }

    pub(crate) fn unmap(&mut self, address: u64, size: u64) {
        self.good(command::DMA_UNMAP, &[u32s(&[24, 0]), u64s(&[address, size])].concat(), vec![]);
    }

    pub(crate) fn config16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(CONFIG, offset, 2).try_into().unwrap())
    }

    /// Lets the device be bus master and decode memory.
    pub(crate) fn enable(&mut self) {
        self.write(CONFIG, 4, &6_u16.to_le_bytes());
    }

    /// Passes a new eventfd for interrupt `at` of a kind.
    pub(crate) fn eventfd(&mut self, index: u32, at: u32) -> OwnedFd {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let given = eventfd.try_clone().unwrap();
        self.good(command::SET_IRQS, &irqs_payload(EVENTFD | TRIGGER, index, at, 1), vec![given]);
        eventfd
    }

    pub(crate) fn set32(&mut self, offset: u32, value: u32) {
        self.write(BAR0, offset.into(), &value.to_le_bytes());
    }

    pub(crate) fn get32(&mut self, offset: u32) -> u32 {
        u32::from_le_bytes(self.read(BAR0, offset.into(), 4).try_into().unwrap())
    }

    pub(crate) fn status(&mut self, channel: usize) -> Chansts {
        let bytes = self.read(BAR0, register(channel, Register::Chansts).into(), 8);
        Chansts::from_bits(u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    pub(crate) fn state(&mut self, channel: usize) -> TransferState {
        self.status(channel).state()
    }

    pub(crate) fn errors(&mut self, channel: usize) -> Chanerr {
        Chanerr::from_bits(self.get32(register(channel, Register::Chanerr)))
    }

    pub(crate) fn command(&mut self, channel: usize, command: Chancmd) {
        self.write(BAR0, register(channel, Register::Chancmd).into(), &[command.into_bits()]);
    }

    /// Enables interrupts of the device, each channel's with a vector of its own if `vectors`.
    pub(crate) fn enable_interrupts(&mut self, vectors: bool) {
        let enable = Intrctrl::new().with_master_enable(true).with_msix_vector_control(vectors);
        self.write(BAR0, 3, &[enable.into_bits()]);
    }

    /// Arms a channel as Linux's driver does: completions, errors and interrupts on, chain and completion addresses.
    pub(crate) fn arm(&mut self, channel: usize, guest: &Guest) {
        self.rearm(channel);
        for (at, value) in
            [(Register::Chancmp, guest.completion(channel)), (Register::Chainaddr, guest.slot(channel, 0))]
        {
            self.set32(register(channel, at), value as u32);
            self.set32(register(channel, at) + 4, (value >> 32) as u32);
        }
    }

    pub(crate) fn rearm(&mut self, channel: usize) {
        let control = Chanctrl::new()
            .with_interrupt_disable(true)
            .with_error_completion_enable(true)
            .with_any_error_abort_enable(true)
            .with_error_interrupt_enable(true);
        let control = control.into_bits().to_le_bytes();
        self.write(BAR0, register(channel, Register::Chanctrl).into(), &control);
    }

    pub(crate) fn count(&mut self, channel: usize, count: u16) {
        self.write(BAR0, register(channel, Register::Dmacount).into(), &count.to_le_bytes());
    }

    /// Runs until nothing is due; the time.
    pub(crate) fn run(&mut self) -> u64 {
        for _ in 0..10_000_000 {
            match self.device.next_wake() {
                Some(due) => self.device.advance(due),
                None => return self.device.now().nanoseconds(),
            };
        }
        panic!("the device still has events after 10,000,000 steps");
    }

    /// Runs for this time.
    pub(crate) fn run_for(&mut self, time: std::time::Duration) {
        let until = self.device.now().after(time);
        self.device.advance(until);
    }
}

/// Reads an eventfd's count; zero if nothing was signalled.
pub(crate) fn signals(eventfd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(eventfd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(Errno::AGAIN) => 0,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn memfd(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

/// A guest's memory: [`PAGES`] pages from [`BASE`], in an order of their own in the file.
pub(crate) struct Guest {
    pub(crate) file: OwnedFd,
    written: [u16; 4],
}

impl Guest {
    /// Fills memory and maps it, each page as a window.
    pub(crate) fn new(rig: &mut Rig) -> Self {
        let guest = Self { file: memfd(PAGES * PAGE), written: [0; 4] };
        let pattern: Vec<u8> = (0..PAGES * PAGE).map(Self::pattern).collect();
        guest.write(BASE, &pattern);
        for page in 0..PAGES {
            rig.map(&guest.file, Self::place(page), BASE + page * PAGE, PAGE);
        }
        rig.enable();
        guest
    }

    /// The byte of memory at first.
    pub(crate) fn pattern(at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
    }

    /// Where a page is in the file: neighbours in memory are none there.
    fn place(page: u64) -> u64 {
        (page * 23 + 5) % PAGES * PAGE
    }

    fn pieces(address: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = address - BASE + done as u64;
            let here = ((PAGE - at % PAGE) as usize).min(length - done);
            let range = done..done + here;
            done += here;
            (here > 0).then(|| (Self::place(at / PAGE) + at % PAGE, range))
        })
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        for (offset, range) in Self::pieces(address, bytes.len()) {
            assert_eq!(rustix::io::pwrite(&self.file, &bytes[range.clone()], offset), Ok(range.len()));
        }
    }

    pub(crate) fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (offset, range) in Self::pieces(address, length) {
            assert_eq!(rustix::io::pread(&self.file, &mut bytes[range.clone()], offset), Ok(range.len()));
        }
        bytes
    }

    /// A channel's ring is a page near the end, its completion word in the last page.
    pub(crate) fn slot(&self, channel: usize, index: u16) -> u64 {
        BASE + (PAGES - 8 + channel as u64) * PAGE + 64 * u64::from(index % 64)
    }

    pub(crate) fn completion(&self, channel: usize) -> u64 {
        BASE + (PAGES - 1) * PAGE + 64 * channel as u64
    }

    pub(crate) fn completed(&self, channel: usize) -> Chansts {
        let bytes = self.read(self.completion(channel), 8);
        Chansts::from_bits(u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    /// Appends a descriptor to a channel's ring; the number for DMACOUNT.
    pub(crate) fn chain(&mut self, channel: usize, size: u32, control: Control, body: Body) -> u16 {
        let index = self.written[channel];
        let descriptor = Descriptor { size, control, next: self.slot(channel, index + 1), body };
        self.write(self.slot(channel, index), &u64s(&descriptor.encode()));
        if let Some(words) = descriptor.encode_extension(self.slot(channel, index + 2)) {
            self.write(self.slot(channel, index + 1), &u64s(&words));
        }
        self.written[channel] += descriptor.slots();
        self.written[channel]
    }

    /// A new chain begins.
    pub(crate) fn restart(&mut self, channel: usize) {
        self.written[channel] = 0;
    }
}

pub(crate) const COMPLETING: Control = Control::new().with_completion_write(true).with_interrupt(true);

pub(crate) fn copy(from: u64, to: u64) -> Body {
    Body::Copy { source: BASE + from, destination: BASE + to }
}

pub(crate) fn sources(from: &[u64]) -> Sources {
    let addresses: Vec<u64> = from.iter().map(|at| BASE + at).collect();
    Sources::new(&addresses).expect("2 to 8")
}

/// A device that has these BARs and does nothing.
pub(crate) struct Shape {
    pub(crate) bars: Vec<Bar>,
}

impl Function for Shape {
    fn describe(&self) -> Description {
        Description {
            name: "shape",
            vendor: 0,
            device: 0,
            revision: 0,
            class: [0; 3],
            bars: self.bars.clone(),
            signalling: Signalling::Intx,
            registers: vec![],
        }
    }

    fn read(&mut self, _bar: usize, _offset: u64, _bytes: &mut [u8]) {}

    fn write(&mut self, _bar: usize, _offset: u64, _bytes: &[u8]) {}

    fn advance(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn level(&self) -> bool {
        false
    }

    fn take_messages(&mut self) -> u64 {
        0
    }

    fn reset(&mut self) {}

    fn take_report(&mut self) -> Vec<String> {
        vec![]
    }
}
