//! The model of the OMAP's SDMA, against software that writes any register at any time, and against a literal copy.
//!
//! ```text
//! bytes ──► registers, requests, faults, time ──► model over one memory ──► after a reset it is at rest, and no read changes memory
//!       ──► a block of elements and frames ─────► model ──────────────────► as a loop over the elements leaves the memory
//! ```

use memferry_models::Ram;
use memferry_models::sdma::{Config, Sdma};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Location, Register};
use memferry_registers::sdma::{
    AddressingMode, BurstSize, CHANNELS, Ccr, Cicr, Csdp, Csr, DataType, LINES, OcpSysconfig, WriteMode,
};

use crate::input::Input;

const BASE: u32 = 0x8000_0000;
const SIZE: u32 = 0x4000;
/// Events that a block of this target causes at most, and more.
const MOST_EVENTS: usize = 20_000;

/// Input: steps of one byte and its operands (see `step`).
pub fn sdma_device(data: &[u8]) {
    let mut input = Input::new(data);
    let bytes = (0..SIZE).map(|at| ((at * 7) >> 3) as u8).collect();
    let mut rig = Rig { device: Sdma::new(Config::default(), Ram::new(BASE.into(), bytes)) };
    while !input.is_empty() {
        rig.step(&mut input);
    }
    rig.settle();
}

struct Rig {
    device: Sdma<Ram>,
}

impl Rig {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0..=2 => self.block(&Block::of(input)),
            3 => {
                let channel = usize::from(input.u8()) % CHANNELS;
                let register = Register::ALL[usize::from(input.u8()) % Register::ALL.len()];
                self.device.write(offset::channel(channel, register), input.u32());
            }
            4 => self.device.write(u32::from(input.u8()) << 4 | u32::from(input.u8() % 16), input.u32()),
            5 => {
                let before = self.device.bus().bytes().to_vec();
                let offset = input.u32() % 0x1200;
                if input.u8().is_multiple_of(2) {
                    self.device.read(offset)
                } else {
                    self.device.unprivileged().read(offset)
                };
                assert_eq!(self.device.bus().bytes(), before, "a read of {offset:#x} changed memory");
            }
            6 => self.device.unprivileged().write(input.u32() % 0x1200, input.u32()),
            7 => {
                let _ = self.device.request(usize::from(input.u8()));
            }
            8 => {
                let now = self.device.now();
                let until = now.after_picoseconds(u128::from(input.u32() % 50_000_000));
                let next = self.device.step(until);
                assert!(
                    self.device.now() == until && next.is_none_or(|next| next > until),
                    "an event is late"
                );
            }
            9 => {
                let at = BASE + input.u32() % SIZE;
                match input.u8() % 4 {
                    0 => self.device.faults().bus_error_at(at..=at + 3),
                    1 => self.device.faults().lose_interrupts(1),
                    2 => self.device.faults().stick(at as usize % 40),
                    _ => self.device.faults().release(at as usize % 40),
                }
            }
            10 => self.device.set_suspend(input.u8().is_multiple_of(2)),
            _ => self.settle(),
        }
        let now = self.device.now();
        assert!(self.device.next_wake().is_none_or(|next| next >= now), "an event of the past");
    }

    /// Runs until nothing is due; false if that takes more than the events of a block.
    fn rest(&mut self) -> bool {
        for _ in 0..MOST_EVENTS {
            let Some(wake) = self.device.next_wake() else { return true };
            self.device.step(wake);
        }
        false
    }

    /// Resets the device, after which it is at rest.
    fn settle(&mut self) {
        self.device.faults().clear();
        self.device.set_suspend(false);
        // An access during a reset is ignored.
        assert!(self.rest() || self.device.is_busy(), "it never comes to rest, and no channel runs");
        self.device
            .write(Location::OcpSysconfig.offset(), OcpSysconfig::new().with_soft_reset(true).into_bits());
        let kept = self.device.bus().bytes().to_vec();
        assert!(self.rest() && !self.device.is_busy(), "a reset stops nothing");
        assert!((0..=LINES).all(|line| !self.device.line(line)), "an interrupt after a reset");
        assert_eq!(self.device.bus().bytes(), kept, "a byte was written after the reset");
        self.device.take_complaints();
    }

    /// Moves a block, and compares memory with what a loop over its elements makes of it.
    fn block(&mut self, block: &Block) {
        self.settle();
        let before = self.device.bus().bytes().to_vec();
        let mut set = |register, value| {
            self.device.write(offset::channel(block.channel, register), value);
        };
        set(Register::Csdp, block.csdp().into_bits());
        set(Register::Cen, block.elements);
        set(Register::Cfn, block.frames);
        set(Register::Cssa, block.source.start);
        set(Register::Cdsa, block.destination.start);
        set(Register::Csei, u32::from(block.source.element_index as u16));
        set(Register::Csfi, block.source.frame_index as u32);
        set(Register::Cdei, u32::from(block.destination.element_index as u16));
        set(Register::Cdfi, block.destination.frame_index as u32);
        set(Register::Color, block.color);
        set(Register::Cicr, Cicr::ALL.into_bits());
        set(Register::Ccr, block.ccr().into_bits());
        assert!(self.rest(), "a block never ends: {block:?}");
        assert!(!self.device.is_busy());
        let status = Csr::from_bits(self.device.read(offset::channel(block.channel, Register::Csr)));
        let ccr = Ccr::from_bits(self.device.read(offset::channel(block.channel, Register::Ccr)));
        assert!(!ccr.enable() && !ccr.read_active() && !ccr.write_active());
        match block.expected(&before) {
            Expected::Memory(memory) => {
                assert!(status.block() && !status.is_error(), "{status} after {block:?}");
                let wrong =
                    memory.iter().zip(self.device.bus().bytes()).position(|(one, other)| one != other);
                assert_eq!(wrong, None, "{block:?}");
            }
            Expected::Error => assert!(status.is_error(), "{status} after {block:?}"),
            Expected::Open => {}
        }
        let after = self.device.bus().bytes();
        let is_named = block.destination_bytes();
        let stray = (0..before.len()).find(|at| before[*at] != after[*at] && !is_named[*at]);
        assert_eq!(stray, None, "a byte outside the destinations: {block:?}");
    }
}

/// What a block leaves.
enum Expected {
    Memory(Vec<u8>),
    /// Elements are outside memory, or not aligned.
    Error,
    /// What is read may have been written before: that depends on how far the device reads ahead.
    Open,
}

#[derive(Debug)]
struct Side {
    start: u32,
    mode: AddressingMode,
    element_index: i16,
    frame_index: i32,
}

impl Side {
    fn of(input: &mut Input<'_>, size: u32) -> Self {
        let place = input.u32();
        let aligned = if place >> 28 == 15 { 0xffff_ffff } else { !(size - 1) };
        let near = BASE.wrapping_add(place % (SIZE + 64)).wrapping_sub(32);
        let steps = input.u8();
        // A step of so many elements, from the last byte of one.
        let step = |count: i32| count * size as i32 - (size as i32 - 1);
        Self {
            start: near & aligned,
            mode: AddressingMode::from_bits(1 + steps % 3),
            element_index: step(i32::from(steps >> 2 & 7) - 2) as i16,
            frame_index: step((i32::from(input.u8()) - 128) / 2),
        }
    }

    /// The addresses of all elements.
    fn addresses(&self, size: u32, elements: u32, frames: u32) -> Vec<u32> {
        let mut addresses = Vec::new();
        let mut at = self.start;
        for _ in 0..frames {
            for element in 1..=elements {
                addresses.push(at);
                let index = match self.mode {
                    AddressingMode::Constant => 1 - size as i32,
                    AddressingMode::PostIncrement => 1,
                    AddressingMode::DoubleIndex if element == elements => self.frame_index,
                    AddressingMode::SingleIndex | AddressingMode::DoubleIndex => self.element_index.into(),
                };
                at = at.wrapping_add(size - 1).wrapping_add(index as u32);
            }
        }
        addresses
    }
}

/// A block of elements and frames in a channel.
#[derive(Debug)]
struct Block {
    channel: usize,
    size: u32,
    elements: u32,
    frames: u32,
    source: Side,
    destination: Side,
    color: u32,
    /// Bits: fill, transparent, packed sides, bursts, priorities, write mode.
    manner: u32,
}

impl Block {
    fn of(input: &mut Input<'_>) -> Self {
        let shape = input.u8();
        let size = 1 << (shape % 3);
        Self {
            channel: usize::from(shape >> 2) % CHANNELS,
            size,
            elements: 1 + u32::from(input.u8() % 60),
            frames: 1 + u32::from(input.u8() % 5),
            source: Side::of(input, size),
            destination: Side::of(input, size),
            color: input.u32() & 0xff_ffff,
            manner: input.u32(),
        }
    }

    fn bit(&self, bit: u32) -> bool {
        self.manner >> bit & 1 == 1
    }

    fn is_fill(&self) -> bool {
        self.manner & 3 == 3
    }

    fn is_transparent(&self) -> bool {
        self.manner & 3 == 2
    }

    fn csdp(&self) -> Csdp {
        let burst = |shift: u32, packed: bool| {
            if packed {
                BurstSize::from_bits((self.manner >> shift & 3) as u8)
            } else {
                BurstSize::from_bits(0)
            }
        };
        let source = self.bit(2);
        let destination = self.bit(3);
        Csdp::new()
            .with_data_type(DataType::from_bits(self.size.ilog2() as u8))
            .with_source_packed(source)
            .with_destination_packed(destination)
            .with_source_burst(burst(4, source))
            .with_destination_burst(burst(6, destination))
            .with_write_mode(WriteMode::from_bits((self.manner >> 8) as u8 % 3))
    }

    fn ccr(&self) -> Ccr {
        Ccr::new()
            .with_enable(true)
            .with_source_addressing(self.source.mode)
            .with_destination_addressing(self.destination.mode)
            .with_constant_fill(self.is_fill())
            .with_transparent_copy(self.is_transparent())
            .with_read_priority(self.bit(10))
            .with_write_priority(self.bit(11))
    }

    /// Which bytes of memory are those of a destination.
    fn destination_bytes(&self) -> Vec<bool> {
        let mut is_named = vec![false; SIZE as usize];
        for address in self.destination.addresses(self.size, self.elements, self.frames) {
            for byte in (0..self.size).map(|byte| address.wrapping_add(byte).wrapping_sub(BASE)) {
                is_named.get_mut(byte as usize).into_iter().for_each(|is_named| *is_named = true);
            }
        }
        is_named
    }

    fn expected(&self, before: &[u8]) -> Expected {
        let size = self.size as usize;
        let of = |side: &Side| side.addresses(self.size, self.elements, self.frames);
        let sources = of(&self.source);
        let destinations = of(&self.destination);
        let place = |address: u32| {
            let at = address.checked_sub(BASE)? as usize;
            (address.is_multiple_of(self.size) && at + size <= before.len()).then_some(at)
        };
        let named = destinations.iter().chain(if self.is_fill() { &[][..] } else { &sources[..] });
        if named.clone().any(|address| place(*address).is_none()) {
            // A transparent copy may skip the elements that would fail.
            return if self.is_transparent() { Expected::Open } else { Expected::Error };
        }
        let written: std::collections::BTreeSet<u32> = destinations.iter().copied().collect();
        if !self.is_fill() && sources.iter().any(|address| written.contains(address)) {
            return Expected::Open;
        }
        let mut memory = before.to_vec();
        for (from, to) in sources.into_iter().zip(destinations) {
            let (Some(to), from) = (place(to), place(from)) else { continue };
            let element = match from.filter(|_| !self.is_fill()) {
                Some(from) => before[from..from + size].to_vec(),
                None => self.color.to_le_bytes()[..size].to_vec(),
            };
            let compared = size.min(3);
            if self.is_transparent() && element[..compared] == self.color.to_le_bytes()[..compared] {
                continue;
            }
            memory[to..to + size].copy_from_slice(&element);
        }
        Expected::Memory(memory)
    }
}
