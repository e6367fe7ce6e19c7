//! Intel's Data Streaming Accelerator behind the PCI shell.
//!
//! ```text
//! BAR 0: registers, tables; MSI-X table at 0x4000, pending bits at 0x5000        BAR 2: portals, four pages for each work queue
//! ```
//!
//! The model is [`memferry_models::dsa`], the bus the guest's memory. Places of tables are those of the specification's examples (figure 9-1).
//!
//! # A relaxation: split portal writes
//!
//! A portal takes one write of 64 bytes. Emulated processors without MOVDIR64B store eight times eight bytes, and a virtual machine passes each store by itself. The
//! device joins writes of eight bytes that rise through one aligned 64-byte line of a portal, from its first byte to its last, into one. Any other
//! write, or one out of this order, is ignored as the specification says, and the line begins anew. Writers of one line have to take turns; real
//! stores of 64 bytes do not tear. Deferrable writes (ENQCMD) do not exist on this way, so that shared work queues answer nobody; they need PASID, which
//! vfio-user does not have.

use std::collections::BTreeMap;

use memferry_clock::Instant;
use memferry_dsa_registers::{DEVICE, VENDOR};
use memferry_models::dsa::{Config, Dsa, Pci};

use crate::function::{Bar, Description, Function, Signalling, pieces};
use crate::memory::Memory;

const REGISTERS_BYTES: u64 = 0x1_0000;
const PORTALS_BYTES: u64 = 0x2_0000;
const PORTALS: usize = 2;
const TABLE: u32 = 0x4000;
const PENDING: u32 = 0x5000;
/// Bytes of a descriptor, and of a line.
const LINE: u64 = 64;

/// A line of a portal that was written in part, from its first word on.
#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    words: [u64; 8],
    written: usize,
}

/// A DSA in front of a guest's memory.
#[derive(Debug)]
pub struct DsaFunction {
    model: Dsa<Memory>,
    config: Config,
    memory: Memory,
    /// By the line's offset. There are no more than the lines of the BAR.
    partial: BTreeMap<u64, Partial>,
}

impl DsaFunction {
    /// A device of the first generation, after power-up.
    pub fn new(memory: Memory) -> Self {
        let config = Config::default();
        let model = made(config, &memory, false);
        Self { model, config, memory, partial: BTreeMap::new() }
    }

    fn write_portal(&mut self, offset: u64, bytes: &[u8]) {
        if let Ok(line) = <&[u8; LINE as usize]>::try_from(bytes)
            && offset.is_multiple_of(LINE)
        {
            self.partial.remove(&offset);
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| line[8 * at + byte]));
            return self.model.post(offset, core::array::from_fn(word));
        }
        let start = offset - offset % LINE;
        let place = (offset % LINE / 8) as usize;
        let Ok(word) = <[u8; 8]>::try_from(bytes) else {
            self.partial.remove(&start);
            return self.model.ignore_portal_write(offset);
        };
        let partial = self.partial.entry(start).or_default();
        if !offset.is_multiple_of(8) || place != 0 && place != partial.written {
            self.partial.remove(&start);
            return self.model.ignore_portal_write(offset);
        }
        partial.words[place] = u64::from_le_bytes(word);
        partial.written = place + 1;
        if partial.written == partial.words.len() {
            let words = partial.words;
            self.partial.remove(&start);
            self.model.post(start, words);
        }
    }
}

fn made(config: Config, memory: &Memory, bus_master: bool) -> Dsa<Memory> {
    let mut model = Dsa::new(config, memory.clone());
    model.set_pci(Pci { bus_master, ..Pci::default() });
    model
}

impl Function for DsaFunction {
    fn describe(&self) -> Description {
        Description {
            name: "DSA",
            vendor: VENDOR,
            device: DEVICE,
            revision: 0,
            // A system peripheral that has no class of its own.
            class: [0x08, 0x80, 0x00],
            bars: vec![
                Bar { index: 0, bytes: REGISTERS_BYTES },
                Bar { index: PORTALS, bytes: PORTALS_BYTES },
            ],
            signalling: Signalling::MsiX {
                vectors: self.config.vectors.into(),
                bar: 0,
                table: TABLE,
                pending: PENDING,
            },
            registers: Vec::new(),
        }
    }

    fn read(&mut self, bar: usize, offset: u64, bytes: &mut [u8]) {
        if bar == PORTALS {
            bytes.fill(self.model.read_portal(offset));
            return;
        }
        for (at, length) in pieces(offset, bytes.len(), 8) {
            self.model.read(offset + at as u64, &mut bytes[at..at + length]);
        }
    }

    fn write(&mut self, bar: usize, offset: u64, bytes: &[u8]) {
        if bar == PORTALS {
            return self.write_portal(offset, bytes);
        }
        for (at, length) in pieces(offset, bytes.len(), 8) {
            self.model.write(offset + at as u64, &bytes[at..at + length]);
        }
    }

    fn set_bus_master(&mut self, bus_master: bool) {
        self.model.set_pci(Pci { bus_master, ..Pci::default() });
    }

    fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.model.step(now)
    }

    fn now(&self) -> Instant {
        self.model.now()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.model.next_wake()
    }

    /// The device has no interrupt line, only messages.
    fn level(&self) -> bool {
        false
    }

    fn take_messages(&mut self) -> u64 {
        self.model.take_messages()
    }

    fn reset(&mut self) {
        // The device's time goes on.
        let now = self.model.now();
        self.model = made(self.config, &self.memory, false);
        self.model.step(now);
        self.partial.clear();
    }

    fn take_report(&mut self) -> Vec<String> {
        let left_out = self.model.complaints_left_out();
        let mut report: Vec<String> =
            self.model.take_complaints().iter().map(|complaint| format!("complaint: {complaint}")).collect();
        if left_out > 0 {
            report.push(format!("{left_out} further complaints"));
        }
        report
    }
}
