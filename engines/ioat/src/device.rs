//! A device that was taken: what it can do, and the engine over its channels.

use std::time::Duration;

use memferry_clock::Clock;
use memferry_driven_engines::{Completion, DeviceWords, IoatEngine, IoatOptions, Shared};
use memferry_driver_ioat::{DmaMemory, Ioat};
use memferry_engine::Operations;
use memferry_ioat_registers::{Cbver, General, NarrowIo};
use memferry_shm::frame;
use memferry_shm::storage::MappedWords;

use crate::frames::{Frames, pin_remedy};
use crate::ids::Generation;
use crate::memory::Reached;
use crate::open::{Found, OpenError, open};
use crate::vfio::Vfio;
use memferry_vfio::PciAddress;

/// Memory of the rings of all channels: 256 descriptors and a completion word each.
const RING_BYTES: u64 = 128 << 10;
/// The newest version 3 that the driver knows: 3.4 fetches descriptors in another way.
const NEWEST_MINOR: u8 = 3;

/// What a device can do, as it says, less what is known not to work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// 3 and the minor number.
    pub version: (u8, u8),
    pub channels: u8,
    pub operations: Operations,
}

#[derive(Debug)]
pub struct Opened<V: Vfio> {
    pub(crate) vfio: V,
    pub(crate) registers: Shared<V::Registers>,
    domain: V::Domain,
    device: PciAddress,
    abilities: Abilities,
}

/// For a driver that gives no channel a ring.
struct NoMemory;

impl DmaMemory for NoMemory {
    fn read(&mut self, _: u64) -> u64 {
        0
    }

    fn write(&mut self, _: u64, _: u64) {}
}

impl<V: Vfio> Opened<V> {
    /// Takes a device.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(mut vfio: V, device: PciAddress) -> Result<Self, OpenError> {
        let found = open(&mut vfio, device)?;
        let step = |step| move |source| OpenError::Step { step, device, source };
        let (registers, domain) = vfio.take_parts().map_err(step("mapping BAR 0"))?;
        let registers = Shared::new(registers);
        let abilities = abilities(&registers, &found, device)?;
        vfio.enable_master().map_err(step("making a bus master"))?;
        Ok(Self { vfio, registers, domain, device, abilities })
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// The engine over its channels, at most so many, and the frames that its requests can name.
    pub(crate) fn into_engine(self, name: &str, channels: u32) -> Result<Parts<V>, OpenError> {
        let Self { vfio, registers, domain, device, .. } = self;
        let lock_limit = vfio.lock_limit();
        let frames = Frames::new(name, domain, lock_limit);
        let rings = |source| {
            let remedy = pin_remedy(&source, lock_limit);
            OpenError::Rings { device, source, remedy }
        };
        let (_, memory) =
            frame::allocate_half(RING_BYTES).map_err(|error| rings(std::io::Error::other(error)))?;
        let reached = frames.map_own(&memory).map_err(rings)?;
        let words = MappedWords::new(memory).ok_or_else(|| rings(std::io::ErrorKind::InvalidData.into()))?;
        let words = DeviceWords::new(words, reached.iova);
        let engine = IoatEngine::new(registers.clone(), (words, reached), channels, options())
            .map_err(|source| OpenError::Channels { device, source })?;
        Ok(Parts { vfio, registers, engine, frames })
    }
}

pub(crate) struct Parts<V: Vfio> {
    pub(crate) vfio: V,
    pub(crate) registers: Shared<V::Registers>,
    pub(crate) engine: IoatEngine<V::Registers, DeviceWords<MappedWords>, Reached>,
    pub(crate) frames: Frames<V::Domain>,
}

/// The times together stay below the two seconds after which a service takes the engine for stalled. Linux's driver also waits up to
/// 200 ms for a reset.
fn options() -> IoatOptions {
    IoatOptions {
        patience: Duration::from_millis(500),
        drain: Duration::from_millis(100),
        reset: Duration::from_millis(200),
        // The caller decides when to poll.
        completion: Completion::Poll(Duration::ZERO),
        ..IoatOptions::default()
    }
}

/// What the registers say; channels that were not reset are now.
fn abilities<R>(registers: &Shared<R>, found: &Found, device: PciAddress) -> Result<Abilities, OpenError>
where
    Shared<R>: NarrowIo + Clock,
{
    let version = Cbver::from_bits(registers.clone().read8(General::Cbver.offset()));
    let version = (version.major(), version.minor());
    if version.0 != 3 || version.1 > NEWEST_MINOR {
        return Err(OpenError::Version { device, major: version.0, minor: version.1 });
    }
    let mut driver = Ioat::new(registers.clone(), NoMemory, registers.clone());
    driver.initialize().map_err(|source| OpenError::Init { device, source })?;
    if !found.is_reset {
        driver.seize(options().reset).map_err(|source| OpenError::NotReset { device, source })?;
    }
    let mut operations = Operations::COPY | Operations::SCATTER_GATHER;
    operations.set(Operations::FILL, driver.limits().fills);
    operations.set(Operations::XOR, driver.limits().xor && found.generation == Generation::Full);
    Ok(Abilities { version, channels: driver.channels(), operations })
}
