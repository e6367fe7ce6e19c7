//! The interrupt line: which channels want to be looked at.
//!
//! ```text
//! line high ──► INTRCTRL (its read closes the line) ──► ATTNSTATUS ──► each channel armed again, then reported ──► INTRCTRL opened
//! ```
//!
//! A channel is armed again before it is looked at, so that what ends in between interrupts once more. Its news are in the completion
//! word; an interrupt carries none.

use memferry_clock::Clock;
use memferry_registers::NarrowIo;
use memferry_registers::ioat::{CHANNELS, General, Intrctrl, Register};

use super::channels::Channel;
use super::device::{Ioat, at};
use super::memory::DmaMemory;

/// What an interrupt was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handled {
    /// Channels that were reported.
    pub channels: u32,
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Handles the line: reports each channel that raised it, by number. None: the interrupt was another device's.
    pub fn handle_interrupt(&mut self, mut report: impl FnMut(u8)) -> Handled {
        let control = Intrctrl::from_bits(self.io.read8(General::Intrctrl.offset()));
        let mut handled = Handled::default();
        if control.status() {
            let attention = self.io.read(General::Attnstatus.offset());
            for index in (0..CHANNELS as u8).filter(|index| attention >> index & 1 == 1) {
                let channel = Channel { index };
                if self.state(&channel).taken {
                    self.arm_interrupt(&channel);
                    report(index);
                    handled.channels += 1;
                }
            }
        }
        self.enable_interrupts();
        handled
    }

    /// Lets a channel interrupt again: after one that got lost, for a channel believes that it raised it.
    pub fn arm_interrupt(&mut self, channel: &Channel) {
        self.io.write16(at(channel, Register::Chanctrl), Self::run_control().into_bits());
    }
}
