//! A program: the engine with a fault in it. It believes that frames of a certain length are mapped for the device, and they are not, so
//! that its descriptors stray. The IOMMU must stop them.
//!
//! It takes the options of `memferry-engine-ioat`. Without any it does nothing, because Cargo runs it as a test.

use std::io;
use std::ops;
use std::process::ExitCode;

use clap::Parser;
use memferry_engine::Mapping;
use memferry_engine_ioat::{Bar, Domain, Linux, Options, PciAddress, Range, Vfio, run_on};

/// As in `brokered/scenes.rs`.
const STRAY_BYTES: usize = 3 << 12;

struct Straying(Linux);

struct Holes<D>(D);

impl<D: Domain> Domain for Holes<D> {
    fn ranges(&self) -> Vec<Range> {
        self.0.ranges()
    }

    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    fn map(&self, iova: u64, memory: &Mapping, piece: ops::Range<u64>) -> io::Result<()> {
        if memory.length_bytes() == STRAY_BYTES { Ok(()) } else { self.0.map(iova, memory, piece) }
    }

    fn unmap(&self, iova: u64, memory: &Mapping, bytes: u64) -> io::Result<()> {
        if memory.length_bytes() == STRAY_BYTES { Ok(()) } else { self.0.unmap(iova, memory, bytes) }
    }
}

impl Vfio for Straying {
    type Registers = <Linux as Vfio>::Registers;
    type Domain = Holes<<Linux as Vfio>::Domain>;

    fn attribute(&self, device: PciAddress, name: &str) -> io::Result<String> {
        self.0.attribute(device, name)
    }
    fn link(&self, device: PciAddress, name: &str) -> io::Result<String> {
        self.0.link(device, name)
    }
    fn group_members(&self, device: PciAddress) -> io::Result<Vec<(String, Option<String>)>> {
        self.0.group_members(device)
    }
    fn open_container(&mut self) -> io::Result<()> {
        self.0.open_container()
    }
    fn has_type1(&mut self) -> io::Result<bool> {
        self.0.has_type1()
    }
    fn open_group(&mut self, number: &str) -> io::Result<()> {
        self.0.open_group(number)
    }
    fn is_viable(&mut self) -> io::Result<bool> {
        self.0.is_viable()
    }
    fn attach(&mut self) -> io::Result<()> {
        self.0.attach()
    }
    fn open_device(&mut self, device: PciAddress) -> io::Result<()> {
        self.0.open_device(device)
    }
    fn reset(&mut self) -> io::Result<bool> {
        self.0.reset()
    }
    fn bar(&mut self) -> io::Result<Bar> {
        Vfio::bar(&mut self.0)
    }
    fn enable_registers(&mut self) -> io::Result<()> {
        self.0.enable_registers()
    }
    fn enable_master(&mut self) -> io::Result<()> {
        self.0.enable_master()
    }
    fn watch_requests(&mut self) -> io::Result<()> {
        self.0.watch_requests()
    }
    fn take_parts(&mut self) -> io::Result<(Self::Registers, Self::Domain)> {
        let (registers, domain) = self.0.take_parts()?;
        Ok((registers, Holes(domain)))
    }
    fn is_wanted_back(&mut self) -> bool {
        self.0.is_wanted_back()
    }
    fn lock_limit(&self) -> Option<u64> {
        self.0.lock_limit()
    }
}

fn main() -> ExitCode {
    // The harness's options are passed to every test.
    if !std::env::args().any(|argument| argument.starts_with("--vfio")) {
        return ExitCode::SUCCESS;
    }
    match run_on(&Options::parse(), || Straying(Linux::new())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
