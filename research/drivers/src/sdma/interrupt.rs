//! Interrupts: what may cause one, and the handler of a line.
//!
//! ```text
//! IRQSTATUS of the line, of channels enabled on it ──► each channel: CSR read, the same bits written back ──► Event
//!                                                                └──► IRQSTATUS bit written back
//! ```
//!
//! Several events give one interrupt, so the handler looks at every channel of the line (paper, 2.3.2.2). It reports
//! and clears; what an event means for a request is the caller's to decide. It waits for nothing.

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{CHANNELS, Csr, Register, offset};

use super::cause::Cause;
use super::channels::Channel;
use super::device::Sdma;

/// One of the four interrupt lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// Line 0.
    L0,
    /// Line 1.
    L1,
    /// Line 2.
    L2,
    /// Line 3.
    L3,
}

impl Line {
    pub const ALL: [Self; 4] = [Self::L0, Self::L1, Self::L2, Self::L3];

    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What a channel reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Index of the channel.
    pub channel: u8,
    /// Its status register as it was read.
    pub status: Csr,
}

impl Event {
    /// The causes, by rising bit; none when the line said that the channel has an event and the channel knew of none.
    pub fn causes(&self) -> impl Iterator<Item = Cause> + use<> {
        let status = self.status;
        Cause::ALL.into_iter().filter(move |cause| cause.is_in(status))
    }

    /// The first cause that is an error.
    pub fn error(&self) -> Option<Cause> {
        self.causes().find(|cause| cause.is_error())
    }

    /// Whether the block or the list is done.
    pub const fn is_end(&self) -> bool {
        self.status.block() || self.status.super_block()
    }
}

/// What one call of the handler did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handled {
    /// Events given to the caller.
    pub events: u32,
    /// Channels that the line named though their status was empty: an interrupt that came too late to tell.
    pub spurious: u32,
}

/// Rounds after which a channel that never stops reporting is left to the next interrupt.
const ROUNDS: u32 = 4;

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Handles an interrupt of a line: reads and clears the status of each channel that is pending and enabled on it,
    /// and hands every event over.
    ///
    /// The line's bit is cleared between two looks at the channel, so that an event which arrives meanwhile is neither
    /// lost nor left without an interrupt.
    pub fn handle_interrupt(&mut self, line: Line, mut report: impl FnMut(Event)) -> Handled {
        let pending = self.io.read(offset::irq_status(line.index())) & self.lines[line.index()];
        let mut handled = Handled::default();
        for channel in (0..CHANNELS as u8).filter(|channel| pending & 1 << channel != 0) {
            let mut events = u32::from(self.take_status(channel, &mut report));
            self.io.write(offset::irq_status(line.index()), 1 << channel);
            for _ in 1..ROUNDS {
                if !self.take_status(channel, &mut report) {
                    break;
                }
                events += 1;
                self.io.write(offset::irq_status(line.index()), 1 << channel);
            }
            handled.events += events;
            handled.spurious += u32::from(events == 0);
        }
        handled
    }

    /// Reads and clears a channel's status without an interrupt: for those who poll, or suspect a lost interrupt.
    pub fn poll(&mut self, channel: &Channel) -> Option<Event> {
        let mut event = None;
        self.take_status(channel.index(), &mut |taken| event = Some(taken));
        event
    }

    /// Lets a channel interrupt on a line, or no longer. A pending interrupt is cleared before it is let through.
    pub fn set_line(&mut self, channel: &Channel, line: Line, enabled: bool) {
        let index = line.index();
        let before = self.lines[index];
        if enabled && before & channel.bit() == 0 {
            self.io.write(offset::irq_status(index), channel.bit());
        }
        let after = if enabled { before | channel.bit() } else { before & !channel.bit() };
        self.lines[index] = after;
        self.io.write(offset::irq_enable(index), after);
    }

    /// Whether there was an event.
    fn take_status(&mut self, channel: u8, report: &mut impl FnMut(Event)) -> bool {
        let at = offset::channel(usize::from(channel), Register::Csr);
        let status = Csr::from_bits(self.io.read(at));
        let event = Event { channel, status };
        if event.causes().next().is_none() {
            return false;
        }
        self.io.write(at, status.into_bits());
        report(event);
        true
    }
}

#[cfg(test)]
mod tests;
