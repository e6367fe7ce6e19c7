//! A PCI device, its shell and the model of its engine, against a guest and a client that do anything.
//!
//! ```text
//! bytes ──► registers, configuration space, descriptors ──► Device<IoatFunction> ──► replies: whole, of the right message
//!       ──► messages, windows, truncations, resets, time ─┘                      └─► no byte outside the windows changes or is copied
//! ```
//!
//! The guest's memory is one memfd of a few pages; windows show some of them, and some of another file. The pages that no writable window
//! shows keep their bytes. Those that no window ever shows hold a secret, and no eight bytes of it may be in any other page. Each signal
//! counts in one of the client's eventfds, and each refused command is one line for a person.

use std::os::fd::OwnedFd;
use std::time::Duration;

use memferry_pci::ioat::{Interrupting, IoatFunction, IoatOptions, Version};
use memferry_pci::message::{HEADER, Header, command};
use memferry_pci::{Device, Memory, Planned, schedule};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;

use crate::input::Input;

const PAGE: u64 = 4096;
const PAGES: u64 = 16;
/// Pages that may be mapped; the rest is secret.
const SHOWN: u64 = 12;
const SECRET: u64 = 0x5EC2_E7B1_7E5A_FE00;
/// Addresses of the guest, below and above 4 GiB.
const PLACES: [u64; 2] = [0x1000, 0x1_0000_0000];
const BAR0: u32 = 0;
const CONFIG: u32 = 7;

/// Input: a byte for the device's kind, one for its faults, then steps of one byte and its operands (see `step`).
pub fn pci_device(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(&mut input);
    while !input.is_empty() {
        rig.step(&mut input);
    }
    rig.device.disconnect();
    rig.check_bytes();
    rig.check_signals();
}

/// A window that the client has mapped.
struct Window {
    /// The first page in the guest's file; `None` in the other file.
    first: Option<u64>,
    pages: u64,
    address: u64,
    writable: bool,
}

impl Window {
    fn end(&self) -> u64 {
        self.address + self.pages * PAGE
    }

    /// Whether the device may write this page of the guest's file.
    fn may_change(&self, page: u64) -> bool {
        self.writable && self.first.is_some_and(|first| (first..first + self.pages).contains(&page))
    }
}

struct Rig {
    device: Device<IoatFunction>,
    file: OwnedFd,
    other: OwnedFd,
    /// The file as it was when the pages without a writable window lost it.
    kept: Vec<u8>,
    windows: Vec<Window>,
    /// The client's eventfds, which it passes again and again.
    eventfds: Vec<OwnedFd>,
    passed: usize,
    /// Signals read from them.
    signals: u64,
}

fn faults(byte: u8) -> Vec<Planned> {
    const TEXTS: [&str; 6] = [
        "channel any descriptor 2.. every 3 halt write-data",
        "channel any descriptor 1.. every 2 lose completion",
        "channel any descriptor 3.. every 4 stick for 10us",
        "channel 0 descriptor 2 stick until reset",
        "channel any descriptor 1.. slow 2us",
        "channel any descriptor 2.. lose interrupt",
    ];
    let chosen = TEXTS.iter().enumerate().filter(|(at, _)| byte >> at & 1 == 1);
    let text: Vec<&str> = chosen.map(|(_, text)| *text).collect();
    schedule::parse(&text.join("\n"), 4).expect("a schedule")
}

impl Rig {
    fn new(input: &mut Input<'_>) -> Self {
        memferry_shm::bus_error::install().expect("a signal handler");
        let kind = input.u8();
        let options = IoatOptions {
            channels: 1 + (kind & 3),
            version: [Version::V3_0, Version::V3_2, Version::V3_3][usize::from(kind >> 2 & 3) % 3],
            device: None,
            signalling: [Interrupting::Intx, Interrupting::Msi, Interrupting::MsiX]
                [usize::from(kind >> 4) % 3],
            faults: faults(input.u8()),
        };
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
        let mut bytes: Vec<u8> = (0..SHOWN * PAGE).map(|at| ((at * 7) >> 3) as u8).collect();
        bytes.extend(secret_words().flat_map(u64::to_le_bytes));
        assert!(bytes[(SHOWN * PAGE) as usize..].chunks_exact(8).all(is_secret));
        write_all(&file, &bytes, 0);
        let memory = Memory::new();
        let device = Device::new(IoatFunction::new(options, memory.clone()), memory);
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&other, SHOWN * PAGE).expect("a length");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfds = (0..8).map(|_| rustix::event::eventfd(0, flags).expect("an eventfd")).collect();
        let windows = Vec::new();
        let mut rig = Self { device, file, other, kept: bytes, windows, eventfds, passed: 0, signals: 0 };
        rig.greet();
        rig
    }

    /// Negotiates a version and lets the device be bus master.
    fn greet(&mut self) {
        assert_eq!(self.send(command::VERSION, &[0, 0, 1, 0], Vec::new()), Some(0));
        self.config(4, &[6, 0]);
    }

    /// Ends the connection and begins another.
    fn reconnect(&mut self) {
        self.check_bytes();
        self.device.disconnect();
        self.windows.clear();
        assert_eq!(self.device.memory().traffic().windows, 0);
        self.greet();
    }

    /// Sends a command and checks the form of the reply; its errno, or `None` if the device ended the connection.
    fn send(&mut self, number: u16, payload: &[u8], descriptors: Vec<OwnedFd>) -> Option<u32> {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&77_u16.to_ne_bytes());
        header[2..4].copy_from_slice(&number.to_ne_bytes());
        header[4..8].copy_from_slice(&((HEADER + payload.len()) as u32).to_ne_bytes());
        let header = Header::decode(&header).expect("a header");
        let Ok(reply) = self.device.handle(&header, payload, descriptors) else {
            self.reconnect();
            return None;
        };
        let reply = reply.expect("a reply is wanted");
        let word = |at: usize| u32::from_ne_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(reply[..2], 77_u16.to_ne_bytes());
        assert_eq!(reply[2..4], number.to_ne_bytes());
        assert_eq!(word(4) as usize, reply.len());
        assert!(word(8) == 1 && word(12) == 0 || word(8) == 0x21 && word(12) != 0 && reply.len() == HEADER);
        let refused = self.report();
        assert_eq!(refused, usize::from(word(12) != 0), "a line for each refused command");
        Some(word(12))
    }

    /// Checks the lines for a person; the number of refused commands among them.
    fn report(&mut self) -> usize {
        let report = self.device.take_report();
        let known = |line: &String| {
            line.starts_with("refused: ")
                || line.starts_with("complaint: ")
                || line.ends_with(" further complaints")
        };
        for line in &report {
            assert!(known(line) && line.len() < 2000 && !line.contains(char::is_control), "{line:?}");
        }
        report.iter().filter(|line| line.starts_with("refused: ")).count()
    }

    fn access(&mut self, number: u16, region: u32, offset: u64, count: u32, data: &[u8]) {
        let payload = [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes(), data].concat();
        self.send(number, &payload, Vec::new());
    }

    fn register(&mut self, offset: u32, data: &[u8]) {
        self.access(command::REGION_WRITE, BAR0, offset.into(), data.len() as u32, data);
    }

    fn config(&mut self, offset: u64, data: &[u8]) {
        self.access(command::REGION_WRITE, CONFIG, offset, data.len() as u32, data);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 13 {
            0 => {
                let offset = register(input);
                let width = 1 << (input.u8() % 4);
                self.register(offset, &input.u64().to_le_bytes()[..width]);
            }
            1 => {
                let offset = register(input);
                self.access(command::REGION_READ, BAR0, offset.into(), 1 << (input.u8() % 5), &[]);
            }
            2 => {
                let offset = u64::from(input.u32() % 4100);
                let width = 1 << (input.u8() % 4);
                self.config(offset, &input.u64().to_le_bytes()[..width]);
            }
            3 => {
                self.access(command::REGION_READ, CONFIG, (input.u32() % 4100).into(), input.u8().into(), &[])
            }
            4 => self.map(input),
            5 => self.unmap(input),
            6 => self.advance(Duration::from_nanos(u64::from(input.u32()) % 50_000)),
            7 => self.message(input),
            8 => self.descriptor(input),
            9 => self.arm(input),
            10 => self.interrupts(input),
            11 => self.truncate(input),
            _ => self.reset(input.u8()),
        }
        assert_eq!(self.report(), 0, "a refusal without a command");
        self.check_signals();
    }

    /// Each signal is in one of the client's eventfds.
    fn check_signals(&mut self) {
        for eventfd in &self.eventfds {
            let mut count = [0; 8];
            if rustix::io::read(eventfd, &mut count).is_ok() {
                self.signals += u64::from_ne_bytes(count);
            }
        }
        assert_eq!(self.signals, self.device.interrupts_sent());
    }

    fn advance(&mut self, time: Duration) {
        let until = self.device.now().after(time);
        self.device.advance(until);
        assert!(self.device.next_wake().is_none_or(|due| due > until), "an event is left behind");
        self.check_bytes();
    }

    fn map(&mut self, input: &mut Input<'_>) {
        let first = u64::from(input.u8()) % SHOWN;
        let pages = (1 + u64::from(input.u8()) % 3).min(SHOWN - first);
        let place = input.u8();
        let address = PLACES[usize::from(place >> 7)] + u64::from(place & 0x0F) * PAGE;
        let flags = u32::from(1 + input.u8() % 3);
        let head = [32_u32.to_ne_bytes(), flags.to_ne_bytes()].concat();
        let range = [first * PAGE, address, pages * PAGE].map(u64::to_ne_bytes).concat();
        let is_own = place & 0x70 != 0x70;
        let file = if is_own { &self.file } else { &self.other };
        let file = file.try_clone().expect("a descriptor");
        self.check_bytes();
        if self.send(command::DMA_MAP, &[head, range].concat(), vec![file]) == Some(0) {
            let first = is_own.then_some(first);
            let new = Window { first, pages, address, writable: flags & 2 != 0 };
            let overlaps = |window: &Window| window.address < new.end() && address < window.end();
            assert!(!self.windows.iter().any(overlaps), "a window over another");
            self.windows.push(new);
        }
    }

    fn unmap(&mut self, input: &mut Input<'_>) {
        let place = input.u8();
        let address = PLACES[usize::from(place >> 7)] + u64::from(place & 0x0F) * PAGE;
        let size = u64::from(input.u8() % 32) * PAGE / 2;
        let all = place & 0x70 == 0x70;
        let range = if all { [0, 0] } else { [address, size] };
        let head = [24_u32.to_ne_bytes(), u32::from(all).wrapping_mul(2).to_ne_bytes()].concat();
        self.check_bytes();
        let payload = [head, range.map(u64::to_ne_bytes).concat()].concat();
        if self.send(command::DMA_UNMAP, &payload, Vec::new()) == Some(0) {
            let end = address.saturating_add(size);
            self.windows.retain(|window| !all && (address > window.address || window.end() > end));
        }
        assert_eq!(self.device.memory().traffic().windows, self.windows.len());
    }

    fn message(&mut self, input: &mut Input<'_>) {
        let number = u16::from(input.u8() % 20);
        let length = usize::from(input.u8() % 48);
        let payload: Vec<u8> = (0..length).map(|_| input.u8()).collect();
        let count = input.u8() % 4;
        self.check_bytes();
        let descriptors = (0..count / 2).map(|_| self.other.try_clone().expect("a descriptor")).collect();
        self.send(number, &payload, descriptors);
        if self.device.memory().traffic().windows != self.windows.len() {
            // It happened to be an unmap or a map.
            self.send(
                command::DMA_UNMAP,
                &[24_u32.to_ne_bytes(), 2_u32.to_ne_bytes(), [0; 4], [0; 4], [0; 4], [0; 4]].concat(),
                Vec::new(),
            );
            self.windows.clear();
        }
    }

    /// Writes a descriptor into a page of memory, most of whose addresses lie in windows.
    fn descriptor(&mut self, input: &mut Input<'_>) {
        let page = u64::from(input.u8()) % SHOWN;
        let slot = u64::from(input.u8() % 64);
        let address = |input: &mut Input<'_>| {
            let place = input.u32();
            PLACES[(place >> 31) as usize] + u64::from(place & 0x1_FFFF)
        };
        let opcode = [0x00, 0x01, 0x87, 0x88][usize::from(input.u8() % 4)];
        let control = u64::from(input.u8()) | opcode << 24;
        let mut words = [u64::from(input.u32() % 20_000) | control << 32, 0, 0, 0, 0, 0, 0, 0];
        for word in &mut words[1..] {
            *word = address(input);
        }
        words[3] &= !0x3F;
        self.check_bytes();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        write_all(&self.file, &bytes, page * PAGE + slot * 64);
        self.kept = self.bytes();
    }

    /// Gives a channel a chain and lets it run.
    fn arm(&mut self, input: &mut Input<'_>) {
        let base = 0x80 + 0x80 * u32::from(input.u8() % 4);
        let place = input.u32();
        let chain = PLACES[(place >> 31) as usize] + u64::from(place & 0xFFC0);
        self.register(base + 0x28, &u32::MAX.to_le_bytes());
        self.register(base, &[0x1D, 0]);
        let halves = |value: u64| [(value as u32).to_le_bytes(), ((value >> 32) as u32).to_le_bytes()];
        for (offset, value) in [(0x18, chain ^ 0x1000), (0x10, chain)] {
            let [low, high] = halves(value);
            self.register(base + offset, &low);
            self.register(base + offset + 4, &high);
        }
        self.register(3, &[1 | input.u8() & 8]);
        self.register(base + 6, &u16::from(input.u8()).to_le_bytes());
    }

    fn interrupts(&mut self, input: &mut Input<'_>) {
        let kind = u32::from(input.u8() % 4);
        let start = u32::from(input.u8() % 5);
        let count = u32::from(input.u8() % 3);
        let next = self.eventfds.iter().cycle().skip(self.passed % self.eventfds.len());
        let given = next.take(count as usize).map(|fd| fd.try_clone().expect("a descriptor")).collect();
        self.passed += count as usize;
        let payload = [20, 1 << 2 | 1 << 5, kind, start, count].map(u32::to_ne_bytes).concat();
        self.send(command::SET_IRQS, &payload, given);
    }

    /// The owner of the memory cuts the file short and makes it long again.
    fn truncate(&mut self, input: &mut Input<'_>) {
        let pages = u64::from(input.u8()) % (SHOWN + 1);
        self.check_bytes();
        rustix::fs::ftruncate(&self.file, pages * PAGE).expect("a shorter file");
        let until = self.device.now().after(Duration::from_nanos(u64::from(input.u8()) * 50));
        self.device.advance(until);
        let tail = self.kept[(SHOWN * PAGE) as usize..].to_vec();
        rustix::fs::ftruncate(&self.file, PAGES * PAGE).expect("a longer file");
        write_all(&self.file, &tail, SHOWN * PAGE);
        self.kept = self.bytes();
    }

    fn reset(&mut self, kind: u8) {
        match kind % 3 {
            0 => {
                self.send(command::RESET, &[], Vec::new());
            }
            1 => self.config(0x68, &[0, 0x80]),
            _ => self.reconnect(),
        }
        self.config(4, &[6, 0]);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; (PAGES * PAGE) as usize];
        assert_eq!(rustix::io::pread(&self.file, &mut bytes, 0), Ok(bytes.len()));
        bytes
    }

    /// Pages without a writable window must have kept their bytes, and none may hold a part of the secret.
    fn check_bytes(&mut self) {
        let bytes = self.bytes();
        for page in 0..PAGES {
            let range = (page * PAGE) as usize..((page + 1) * PAGE) as usize;
            let may_change = self.windows.iter().any(|window| window.may_change(page));
            assert!(may_change || bytes[range.clone()] == self.kept[range], "page {page} was written");
        }
        let shown = &bytes[..(SHOWN * PAGE) as usize];
        assert!(!shown.windows(8).any(is_secret), "a page outside all windows was copied");
        self.kept = bytes;
    }
}

/// The words of the pages that are never shown.
fn secret_words() -> impl Iterator<Item = u64> {
    (SHOWN * PAGE / 8..PAGES * PAGE / 8).map(|word| SECRET ^ word.rotate_left(40))
}

/// Whether eight bytes are a word of the secret. All its words differ from [`SECRET`] in the same 13 bits.
fn is_secret(bytes: &[u8]) -> bool {
    let word = bytes.try_into().map_or(0, u64::from_le_bytes);
    (word ^ SECRET) & !(0x1FFF << 40) == 0
}

/// An offset in BAR 0, most often of a register.
fn register(input: &mut Input<'_>) -> u32 {
    let offset = input.u32();
    if offset >> 28 == 0 { offset % 0x4010 } else { offset % 0x300 }
}

fn write_all(file: &OwnedFd, bytes: &[u8], offset: u64) {
    assert_eq!(rustix::io::pwrite(file, bytes, offset), Ok(bytes.len()));
}
