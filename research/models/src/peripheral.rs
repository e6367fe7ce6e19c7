//! A bus with one peripheral data register beside memory, for hardware-synchronized transfers.
//!
//! ```text
//! reads of the register ── oldest byte first ◄── received      sent ◄── writes to the register
//! any other address ──► the wrapped bus
//! ```
//!
//! Each access moves as many bytes as it is wide. Reading an empty register returns zeros, as hardware whose FIFO
//! underflows does, and counts as an underflow. The bus raises no request line; its user does.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::{Bus, BusError};

/// A bus with a peripheral's data register.
#[derive(Clone, Debug)]
pub struct WithRegister<B> {
    bus: B,
    register: u32,
    received: VecDeque<u8>,
    sent: Vec<u8>,
    underflows: u32,
}

impl<B> WithRegister<B> {
    /// A peripheral with its data register at `register` and nothing received.
    pub const fn new(bus: B, register: u32) -> Self {
        Self { bus, register, received: VecDeque::new(), sent: Vec::new(), underflows: 0 }
    }

    pub const fn bus(&self) -> &B {
        &self.bus
    }

    pub const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Adds bytes for the register to deliver.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.received.extend(bytes);
    }

    /// Bytes written to the register, in order.
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// Received bytes not yet read.
    pub fn unread(&self) -> usize {
        self.received.len()
    }

    /// Reads of the register that had fewer bytes than requested.
    pub const fn underflows(&self) -> u32 {
        self.underflows
    }
}

impl<B: Bus> Bus for WithRegister<B> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        if address != u64::from(self.register) {
            return self.bus.read(address, bytes);
        }
        self.underflows += u32::from(self.received.len() < bytes.len());
        bytes.fill_with(|| self.received.pop_front().unwrap_or(0));
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        if address != u64::from(self.register) {
            return self.bus.write(address, bytes);
        }
        self.sent.extend(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ram;
    use alloc::vec;

    #[test]
    fn received_bytes_are_read_once() {
        let mut board = WithRegister::new(Ram::new(0, vec![7; 8]), 0x100);
        board.receive(&[1, 2, 3]);
        let mut word = [9; 2];
        board.read(0x100, &mut word).unwrap();
        assert_eq!((word, board.unread(), board.underflows()), ([1, 2], 1, 0));
        board.read(0x100, &mut word).unwrap();
        assert_eq!((word, board.underflows()), ([3, 0], 1));
        board.write(0x100, &[4, 5]).unwrap();
        assert_eq!(board.sent(), [4, 5]);
        board.read(0, &mut word).unwrap();
        assert_eq!(word, [7, 7]);
        assert_eq!(board.write(0x200, &[0]), Err(BusError));
    }
}
