//! VFIO whose device is the model, in the engine's process, in the machine's time.
//!
//! ```text
//! engine ─ Registers ─► model ─ Windows: what is mapped, by IOVA ─► frames
//!        └ Windows (its Domain) ─► map, unmap
//! ```

use std::collections::BTreeMap;
use std::io;
use std::ops;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant as Wall;

use memferry_clock::Instant;
use memferry_engine::{Access, Mapping};
use memferry_engine_ioat::{Bar, Domain, PciAddress, Range, Vfio};
use memferry_models::ioat::{Config, Ioat, Planned};
use memferry_models::{Bus, BusError};
use memferry_registers::ioat::{CHANNELS, Register, offset};
use memferry_registers::{Device, NarrowIo, RegisterIo};

use crate::scenes::STRAY_BYTES;

const PAGE: u64 = 4096;

/// How the fake differs from a device that works.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) planned: Vec<Planned>,
    /// Frames of [`STRAY_BYTES`] are missing in the IOMMU.
    pub(crate) strays: bool,
    /// This file says that the kernel wants the device back.
    pub(crate) wanted_back: Option<std::path::PathBuf>,
    /// So many mappings succeed, those of the rings included.
    pub(crate) mappings: Option<usize>,
    /// The device has no reset of its own, and its channels are in use by a driver before.
    pub(crate) left_behind: bool,
    /// This file gets the number of mappings there are.
    pub(crate) windows: Option<std::path::PathBuf>,
}

#[derive(Debug, Default)]
struct Table {
    /// Frames, and how many bytes of each are mapped.
    windows: BTreeMap<u64, (Mapping, u64)>,
    /// Calls that succeeded, whatever was unmapped since.
    mapped: usize,
}

/// What the device reaches.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    table: Arc<Mutex<Table>>,
    behaviour: Behaviour,
}

impl Windows {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap()
    }

    /// The memory at an address, and the offset there, if all of it is mapped.
    fn find(&self, address: u64, bytes: usize) -> Result<(Mapping, u64), BusError> {
        let table = self.lock();
        let (start, (memory, mapped)) = table.windows.range(..=address).next_back().ok_or(BusError)?;
        let offset = address - start;
        let end = offset.checked_add(bytes as u64).ok_or(BusError)?;
        if end > *mapped { Err(BusError) } else { Ok((memory.clone(), offset)) }
    }

    /// Tells the test what is mapped.
    fn publish(&self, table: &Table) {
        if let Some(file) = &self.behaviour.windows {
            std::fs::write(file, table.windows.len().to_string()).expect("the stage's folder");
        }
    }
}

impl Bus for Windows {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let (memory, offset) = self.find(address, bytes.len())?;
        memory.read(offset, bytes).map_err(|_| BusError)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        let (memory, offset) = self.find(address, bytes.len())?;
        memory.write(offset, bytes).map_err(|_| BusError)
    }
}

impl Domain for Windows {
    fn ranges(&self) -> Vec<Range> {
        vec![Range { first: 0, last: 0xFEDF_FFFF }, Range { first: 0xFEF0_0000, last: (1 << 39) - 1 }]
    }

    fn page_bytes(&self) -> u64 {
        PAGE
    }

    fn map(&self, iova: u64, memory: &Mapping, piece: ops::Range<u64>) -> io::Result<()> {
        assert!(memory.access() != Access::Elsewhere && iova.is_multiple_of(PAGE) && iova > 0);
        let mut table = self.lock();
        if self.behaviour.mappings.is_some_and(|most| table.mapped >= most) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        table.mapped += 1;
        if self.behaviour.strays && memory.length_bytes() as u64 == STRAY_BYTES {
            return Ok(());
        }
        if piece.start == 0 {
            let end = iova + (memory.length_bytes() as u64).next_multiple_of(PAGE);
            let before = table.windows.range(..end).next_back();
            let is_free =
                before.is_none_or(|(start, (other, _))| start + other.length_bytes() as u64 <= iova);
            assert!(is_free, "two mappings at {iova:#x}");
            table.windows.insert(iova, (memory.clone(), 0));
        }
        let (_, mapped) = table.windows.get_mut(&iova).expect("its first piece");
        assert_eq!(*mapped, piece.start, "pieces follow each other");
        *mapped = piece.end;
        self.publish(&table);
        Ok(())
    }

    fn unmap(&self, iova: u64, memory: &Mapping, bytes: u64) -> io::Result<()> {
        if self.behaviour.strays && memory.length_bytes() as u64 == STRAY_BYTES {
            return Ok(());
        }
        let mut table = self.lock();
        let (removed, mapped) = table.windows.remove(&iova).expect("it is mapped");
        assert!(removed.is(memory) && mapped == bytes);
        self.publish(&table);
        Ok(())
    }
}

/// The model's registers. It works while they are accessed, or it is polled.
#[derive(Debug)]
pub(crate) struct OnModel {
    model: Ioat<Windows>,
    origin: Wall,
}

impl OnModel {
    fn catch_up(&mut self) -> &mut Ioat<Windows> {
        let now = self.now();
        self.model.step(now);
        &mut self.model
    }
}

impl RegisterIo for OnModel {
    fn read(&mut self, offset: u32) -> u32 {
        RegisterIo::read(self.catch_up(), offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        RegisterIo::write(self.catch_up(), offset, value);
    }
}

impl NarrowIo for OnModel {
    fn read8(&mut self, offset: u32) -> u8 {
        self.catch_up().read8(offset)
    }

    fn write8(&mut self, offset: u32, value: u8) {
        self.catch_up().write8(offset, value);
    }

    fn read16(&mut self, offset: u32) -> u16 {
        self.catch_up().read16(offset)
    }

    fn write16(&mut self, offset: u32, value: u16) {
        self.catch_up().write16(offset, value);
    }
}

impl Device for OnModel {
    fn advance(&mut self, now: Instant) {
        self.model.step(now);
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN.after(self.origin.elapsed())
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn is_high(&self, _: usize) -> bool {
        false
    }
}

/// VFIO with one device, 8086:3430, which is bound.
#[derive(Debug)]
pub(crate) struct Fake(pub(crate) Behaviour);

impl Vfio for Fake {
    type Registers = OnModel;
    type Domain = Windows;

    fn attribute(&self, _: PciAddress, name: &str) -> io::Result<String> {
        match name {
            "vendor" => Ok("0x8086".to_owned()),
            "device" => Ok("0x3430".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn link(&self, _: PciAddress, name: &str) -> io::Result<String> {
        Ok(if name == "driver" { "vfio-pci" } else { "1" }.to_owned())
    }

    fn group_members(&self, _: PciAddress) -> io::Result<Vec<(String, Option<String>)>> {
        Ok(Vec::new())
    }

    fn open_container(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn has_type1(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn open_group(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn is_viable(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn attach(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn open_device(&mut self, _: PciAddress) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<bool> {
        Ok(!self.0.left_behind)
    }

    fn bar(&mut self) -> io::Result<Bar> {
        Ok(Bar { bytes: 0x4000, can_be_mapped: true })
    }

    fn enable_registers(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn enable_master(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn watch_requests(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take_parts(&mut self) -> io::Result<(OnModel, Windows)> {
        let behaviour = self.0.clone();
        let windows = Windows { table: Arc::default(), behaviour };
        let mut model = Ioat::new(Config::default(), windows.clone());
        if self.0.left_behind {
            // The read takes a channel.
            for channel in 0..CHANNELS {
                let _ = model.read16(offset::channel(channel, Register::Chanctrl));
            }
        }
        self.0.planned.iter().for_each(|planned| model.faults().plan(*planned));
        Ok((OnModel { model, origin: Wall::now() }, windows))
    }

    fn is_wanted_back(&mut self) -> bool {
        self.0.wanted_back.as_ref().is_some_and(|file| file.exists())
    }

    fn lock_limit(&self) -> Option<u64> {
        Some(1 << 20)
    }
}
