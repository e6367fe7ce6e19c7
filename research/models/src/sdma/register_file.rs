//! Storage of a channel's registers, with typed access to the common ones.
//!
//! ```text
//! write ── implemented bits only ──► register file ──► value, or a register's bit fields
//! ```
//!
//! Access rules and side effects are in `registers`.

use memferry_registers::sdma::{Ccr, Cdp, Cicr, Csr, Register};

const REGISTERS: usize = Register::ALL.len();

/// The registers of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registers([u32; REGISTERS]);

impl Registers {
    /// After a reset: zero where the manual gives a value, `undefined` where it gives none.
    pub(super) fn reset(undefined: u32) -> Self {
        let mut registers = Self([0; REGISTERS]);
        for register in [
            Register::Cen,
            Register::Cfn,
            Register::Cssa,
            Register::Cdsa,
            Register::Csei,
            Register::Csfi,
            Register::Cdei,
            Register::Cdfi,
            Register::Csac,
            Register::Cdac,
            Register::Ccen,
            Register::Ccfn,
            Register::Color,
            Register::Cndp,
        ] {
            registers.set(register, undefined);
        }
        registers
    }

    pub(super) const fn get(&self, register: Register) -> u32 {
        self.0[register as usize]
    }

    /// Stores the bits that exist.
    pub(super) const fn set(&mut self, register: Register, value: u32) {
        self.0[register as usize] = value & register.implemented();
    }

    pub(super) const fn ccr(&self) -> Ccr {
        Ccr::from_bits(self.get(Register::Ccr))
    }

    pub(super) const fn csr(&self) -> Csr {
        Csr::from_bits(self.get(Register::Csr))
    }

    pub(super) const fn cicr(&self) -> Cicr {
        Cicr::from_bits(self.get(Register::Cicr))
    }

    pub(super) const fn cdp(&self) -> Cdp {
        Cdp::from_bits(self.get(Register::Cdp))
    }

    pub(super) fn set_enable(&mut self, enable: bool) {
        let ccr = self.ccr().with_enable(enable);
        self.set(Register::Ccr, ccr.into_bits());
    }
}
