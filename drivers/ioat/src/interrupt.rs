//! Handles the interrupt line and reports the channels that raised it.
//!
//! ```text
//! line high ──► read INTRCTRL (disables the line) ──► ATTNSTATUS ──► rearm and report each channel ──► enable INTRCTRL
//! ```
//!
//! A channel is rearmed before it is reported, so a completion in between raises another interrupt. The interrupt only
//! names channels; their progress is in the completion word.

use memferry_clock::Clock;
use memferry_ioat_registers::NarrowIo;
use memferry_ioat_registers::{CHANNELS, General, Intrctrl, Register};

use super::channels::Channel;
use super::device::{Ioat, at};
use super::memory::DmaMemory;

/// Result of one call of the interrupt handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handled {
    /// Number of channels reported.
    pub channels: u32,
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Handles an interrupt and reports the number of each channel that raised it. If there is none, another device on
    /// the line raised the interrupt.
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

    /// Rearms a channel's interrupt. Needed after a lost interrupt, because the channel raises none before it is rearmed.
    pub fn arm_interrupt(&mut self, channel: &Channel) {
        self.io.write16(at(channel, Register::Chanctrl), Self::run_control().into_bits());
    }
}
