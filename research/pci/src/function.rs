//! The device behind the PCI shell: its description, and the calls that the shell makes.
//!
//! ```text
//! shell ── read, write of a BAR ──► Function ── Memory ──► guest
//!       ── advance(now) ──────────►          ── level, messages ──► interrupts
//! ```

use memferry_clock::Instant;

/// A memory region of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// 0 to 4. It has 64 bits and takes the next number, too.
    pub index: usize,
    /// A power of two from 4096.
    pub bytes: u64,
}

/// A register of configuration space that only this device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRegister {
    pub offset: u16,
    pub value: u32,
    /// Bits that a write of a one clears. All others are read-only.
    pub clears: u32,
}

/// How a device can interrupt, besides INTx.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signalling {
    Intx,
    /// One message for the whole device, besides INTx.
    #[default]
    Msi,
    /// This number of messages, with table and pending bits in a BAR; one message, too.
    MsiX {
        vectors: u16,
        bar: usize,
        table: u32,
        pending: u32,
    },
}

/// The identity and abilities that configuration space shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub name: &'static str,
    pub vendor: u16,
    pub device: u16,
    pub revision: u8,
    /// Class, subclass and programming interface.
    pub class: [u8; 3],
    /// By rising index. None takes the number of another.
    pub bars: Vec<Bar>,
    pub signalling: Signalling,
    pub registers: Vec<ConfigRegister>,
}

/// A device behind the shell. No call may panic: all arguments are a guest's.
pub trait Function {
    fn describe(&self) -> Description;

    /// Reads registers of a BAR. The range lies in the BAR.
    fn read(&mut self, bar: usize, offset: u64, bytes: &mut [u8]);

    /// Writes registers of a BAR. The range lies in the BAR.
    fn write(&mut self, bar: usize, offset: u64, bytes: &[u8]);

    /// The guest lets the device be bus master, or no longer. The memory refuses accesses then, whatever the device does with this.
    fn set_bus_master(&mut self, _bus_master: bool) {}

    /// Runs everything that is due at `now`; the time of the next event.
    fn advance(&mut self, now: Instant) -> Option<Instant>;

    /// The latest time passed to [`advance`](Self::advance).
    fn now(&self) -> Instant;

    fn next_wake(&self) -> Option<Instant>;

    /// Whether the interrupt line is high. Its rise is a message where the guest uses messages.
    fn level(&self) -> bool;

    /// Takes the vectors, as a bit mask, that send a message of their own.
    fn take_messages(&mut self) -> u64;

    /// Returns to the state after power-up.
    fn reset(&mut self);

    /// Takes lines for a person to read: rules that software broke.
    fn take_report(&mut self) -> Vec<String>;
}

/// Cuts an access into aligned pieces of at most `widest` bytes, a power of two; as offset from the access's start and length.
pub fn pieces(offset: u64, length: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = length.checked_sub(done).filter(|left| *left > 0)?;
        let at = offset.wrapping_add(done as u64);
        let aligned = 1_usize << at.trailing_zeros().min(widest.trailing_zeros());
        let fits = 1_usize << (usize::BITS - 1 - left.leading_zeros());
        let length = aligned.min(fits);
        let piece = (done, length);
        done += length;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_cover_the_access() {
        let cut = |offset, length| Vec::from_iter(pieces(offset, length, 4));
        assert_eq!(cut(0, 8), [(0, 4), (4, 4)]);
        assert_eq!(cut(3, 8), [(0, 1), (1, 4), (5, 2), (7, 1)]);
        assert_eq!(cut(6, 2), [(0, 2)]);
        assert_eq!(cut(5, 0), []);
        assert_eq!(cut(0, 3), [(0, 2), (2, 1)]);
    }
}
