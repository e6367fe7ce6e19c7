//! Handles an interrupt line and reports the events of its channels.
//!
//! ```text
//! IRQSTATUS of the line, channels enabled on it ──► each channel: read CSR, write the same bits back ──► Event
//!                                                             └──► write the channel's IRQSTATUS bit back
//! ```
//!
//! Several events raise one interrupt, so the handler checks every channel of the line (paper, 2.3.2.2). It reports and
//! clears events without waiting; the caller decides what an event means for a request.

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{CHANNELS, Csr, Register, offset};

use super::cause::Cause;
use super::channels::Channel;
use super::device::Sdma;

/// One of the four interrupt lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    L0,
    L1,
    L2,
    L3,
}

impl Line {
    pub const ALL: [Self; 4] = [Self::L0, Self::L1, Self::L2, Self::L3];

    pub const fn index(self) -> usize {
        self as usize
    }
}

/// An event that a channel reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the channel.
    pub channel: u8,
    /// Value read from the channel's status register.
    pub status: Csr,
}

impl Event {
    /// The causes of the event, in order of their bits. An event that the driver reports has at least one.
    pub fn causes(&self) -> impl Iterator<Item = Cause> + use<> {
        let status = self.status;
        Cause::ALL.into_iter().filter(move |cause| cause.is_in(status))
    }

    /// The first cause that is an error, if any.
    pub fn error(&self) -> Option<Cause> {
        self.causes().find(|cause| cause.is_error())
    }

    /// Whether the block or the list is done.
    pub const fn is_end(&self) -> bool {
        self.status.block() || self.status.super_block()
    }
}

/// Result of one call of the interrupt handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handled {
    /// Number of events reported.
    pub events: u32,
    /// Number of pending channels without an event, for example because it was polled before the interrupt.
    pub spurious: u32,
}

/// Maximum number of events that one call reports for a channel. The next interrupt reports the rest.
const ROUNDS: u32 = 4;

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Handles an interrupt of a line: reads, clears and reports the status of each pending channel enabled on the line.
    ///
    /// Clears the line's bit between two reads of the channel's status, so that an event in between is not lost and does
    /// not stay without an interrupt.
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

    /// Reads and clears a channel's status without an interrupt, to poll or after a lost interrupt.
    pub fn poll(&mut self, channel: &Channel) -> Option<Event> {
        let mut event = None;
        self.take_status(channel.index(), &mut |taken| event = Some(taken));
        event
    }

    /// Enables or disables a channel's interrupts on a line. Clears a pending interrupt before it enables the channel.
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

    /// Reads, clears and reports a channel's status. Returns whether there was an event.
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
