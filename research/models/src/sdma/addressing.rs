//! Element addresses of a block.
//!
//! ```text
//! A(1) = start
//! A(n) = A(n - 1)                     constant
//!      = A(n - 1) + ES                post-increment
//!      = A(n - 1) + (ES - 1) + EI     single index, and double index within a frame
//!      = A(n - 1) + (ES - 1) + FI     double index, when n - 1 was the last element of its frame
//! ```
//!
//! The equations are those of the paper, section 2.3.2.2: indexes count from the last byte of an element. Addresses wrap
//! at 32 bits, as on the device. Alignment is not checked here.

use memferry_registers::sdma::AddressingMode;

/// Addressing of one side, source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) mode: AddressingMode,
    pub(super) element_index: i16,
    pub(super) frame_index: i32,
}

/// A walk over a block's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    rule: Rule,
    size: u32,
    elements: u32,
    frames: u32,
    address: u32,
    element: u32,
    frame: u32,
}

impl Walk {
    pub(super) const fn new(rule: Rule, size: u32, elements: u32, frames: u32, start: u32) -> Self {
        Self { rule, size, elements, frames, address: start, element: 0, frame: 0 }
    }

    /// Address of the next element; after the last one, the address that a further element would have.
    pub(super) const fn address(&self) -> u32 {
        self.address
    }

    pub(super) const fn frame(&self) -> u32 {
        self.frame
    }

    pub(super) const fn is_done(&self) -> bool {
        self.frame >= self.frames
    }

    /// Remaining elements of the current frame.
    pub(super) const fn left_in_frame(&self) -> u32 {
        if self.is_done() { 0 } else { self.elements - self.element }
    }

    /// Remaining elements of the block.
    pub(super) const fn left(&self) -> u64 {
        let frames = self.frames.saturating_sub(self.frame) as u64;
        (frames * self.elements as u64).saturating_sub(self.element as u64)
    }

    pub(super) fn advance(&mut self) {
        self.element += 1;
        let frame_ended = self.element == self.elements;
        if frame_ended {
            self.element = 0;
            self.frame += 1;
        }
        let from_last_byte = self.size.wrapping_sub(1);
        let step = match (self.rule.mode, frame_ended) {
            (AddressingMode::Constant, _) => 0,
            (AddressingMode::PostIncrement, _) => self.size,
            (AddressingMode::DoubleIndex, true) => from_last_byte.wrapping_add(self.rule.frame_index as u32),
            (AddressingMode::SingleIndex | AddressingMode::DoubleIndex, _) => {
                from_last_byte.wrapping_add(i32::from(self.rule.element_index) as u32)
            }
        };
        self.address = self.address.wrapping_add(step);
    }

    /// Number of elements that one access can carry: contiguous, within one frame, at most `limit`, and within one aligned
    /// window of `window` bytes (a power of two, at least the element's size).
    pub(super) fn run(&self, limit: u32, window: u32) -> u32 {
        let limit = limit.min(self.left_in_frame());
        let contiguous = match self.rule.mode {
            AddressingMode::Constant => false,
            AddressingMode::PostIncrement => true,
            AddressingMode::SingleIndex | AddressingMode::DoubleIndex => self.rule.element_index == 1,
        };
        let left_in_window = window - (self.address & (window - 1));
        if contiguous { limit.min((left_in_window / self.size).max(1)) } else { limit.min(1) }
    }

    /// Advances past the elements of [`Walk::run`] and returns their number.
    pub(super) fn advance_run(&mut self, limit: u32, window: u32) -> u32 {
        let passed = self.run(limit, window);
        if passed > 0 {
            self.element += passed - 1;
            self.address = self.address.wrapping_add((passed - 1) * self.size);
            self.advance();
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn addresses(mode: AddressingMode, element_index: i16, frame_index: i32, size: u32) -> Vec<u32> {
        let mut walk = Walk::new(Rule { mode, element_index, frame_index }, size, 3, 2, 100);
        let mut seen = Vec::new();
        while !walk.is_done() {
            seen.push(walk.address());
            walk.advance();
        }
        seen
    }

    #[test]
    fn constant_addresses_do_not_move() {
        assert_eq!(addresses(AddressingMode::Constant, 9, 9, 4), [100; 6]);
    }

    #[test]
    fn post_increment_steps_by_element_size() {
        assert_eq!(addresses(AddressingMode::PostIncrement, 9, 9, 4), [100, 104, 108, 112, 116, 120]);
    }

    #[test]
    fn indexes_count_from_an_elements_last_byte() {
        assert_eq!(addresses(AddressingMode::SingleIndex, 1, 9, 4), [100, 104, 108, 112, 116, 120]);
        assert_eq!(addresses(AddressingMode::SingleIndex, -7, 9, 4), [100, 96, 92, 88, 84, 80]);
        assert_eq!(addresses(AddressingMode::DoubleIndex, 3, -9, 2), [100, 104, 108, 100, 104, 108]);
    }

    #[test]
    fn a_run_ends_at_window_frame_and_gap() {
        let rule = Rule { mode: AddressingMode::PostIncrement, element_index: 0, frame_index: 0 };
        let mut walk = Walk::new(rule, 4, 5, 2, 0x1C);
        assert_eq!(walk.advance_run(16, 16), 1, "the window ends at 0x20");
        assert_eq!(walk.advance_run(16, 16), 4, "the frame ends with the window");
        assert_eq!(walk.advance_run(2, 64), 2);
        assert_eq!(walk.advance_run(16, 64), 2, "the next window begins at 0x40");
        let gap = Rule { mode: AddressingMode::SingleIndex, element_index: 5, frame_index: 0 };
        assert_eq!(Walk::new(gap, 4, 5, 2, 0).advance_run(16, 64), 1);
    }

    #[test]
    fn addresses_wrap_at_32_bits() {
        let rule = Rule { mode: AddressingMode::PostIncrement, element_index: 0, frame_index: 0 };
        let mut walk = Walk::new(rule, 4, 4, 1, 0xFFFF_FFF8);
        assert_eq!(walk.advance_run(16, 64), 2);
        assert_eq!(walk.address(), 0);
        assert_eq!(walk.left(), 2);
    }
}
