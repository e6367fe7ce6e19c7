//! The device as a client of vfio-user sees it: messages, configuration space, memory, interrupts, transfers, faults, the program.

mod config;
mod dsa;
mod faults;
mod interrupts;
mod memory;
mod messages;
mod program;
mod support;
mod transfers;
