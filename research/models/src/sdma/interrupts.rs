//! Channel events and the four interrupt lines.
//!
//! ```text
//! event ── CICR ──► CSR of the channel ── IRQENABLE_Lj ──► IRQSTATUS_Lj ──► line j is high
//!    (not enabled: lost)                    (not enabled: CSR only)      until the bit is cleared
//! ```
//!
//! Per the paper, section 2.3.2.2, an event that CICR does not enable has no effect on CSR or the lines. Clearing CSR
//! does not clear the line and clearing the line does not clear CSR: software must do both.

use super::Sdma;
use crate::Bus;
use memferry_registers::sdma::{Csr, LINES, Register};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interrupts {
    pub(super) status: [u32; LINES],
    pub(super) enable: [u32; LINES],
    /// Bits of `status` that do not raise the line, because their interrupt was lost by fault injection.
    pub(super) lost: [u32; LINES],
}

impl Interrupts {
    pub(super) const fn is_high(&self, line: usize) -> bool {
        self.status[line] & !self.lost[line] != 0
    }

    /// Sets the bit of `channel` on its enabled lines. With `lose`, lines that would rise stay low; returns whether
    /// there was such a line.
    fn raise(&mut self, channel: usize, lose: bool) -> bool {
        let bit = 1 << channel;
        let mut swallowed = false;
        for line in (0..LINES).filter(|line| self.enable[*line] & bit != 0) {
            if lose && self.status[line] & bit == 0 {
                self.lost[line] |= bit;
                swallowed = true;
            }
            self.status[line] |= bit;
        }
        swallowed
    }

    pub(super) const fn clear(&mut self, line: usize, bits: u32) {
        self.status[line] &= !bits;
        self.lost[line] &= !bits;
    }
}

impl<B: Bus> Sdma<B> {
    /// Whether interrupt line `line` is high; false for an invalid line.
    pub fn line(&self, line: usize) -> bool {
        line < LINES && self.interrupts.is_high(line)
    }

    /// Records events of `channel` and raises its lines.
    pub(super) fn report(&mut self, channel: usize, events: Csr) {
        let registers = &mut self.channels[channel].registers;
        let enabled = events.into_bits() & registers.cicr().into_bits();
        if enabled == 0 {
            return;
        }
        registers.set(Register::Csr, registers.csr().into_bits() | enabled);
        let lose = self.faults.interrupts_to_lose > 0;
        if self.interrupts.raise(channel, lose) {
            self.faults.interrupts_to_lose -= 1;
        }
    }

    /// Sets CSR's sync bit while a synchronized block moves, else clears it.
    pub(super) fn show_sync(&mut self, channel: usize, moves: bool) {
        let state = &mut self.channels[channel];
        let synchronized = state.block().is_some_and(|block| block.setup.sync.is_some());
        let csr = state.registers.csr().with_sync(moves && synchronized);
        state.registers.set(Register::Csr, csr.into_bits());
    }
}
