//! One GPU: its primary context, and whether that is lost.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use crate::driver::{Attribute, CallError, Code, ContextHandle, Driver, Function};
use crate::gather;
use crate::pinnings::Pinnings;

thread_local! {
    /// The serial of the device whose context is current on this thread; 0 at first.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Serials tell devices apart that were opened one after the other, whose contexts may have the same handle.
static LAST_SERIAL: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DeviceError {
    #[error("device {ordinal} ({name}) cannot {what}, which the engine needs")]
    Lacks { ordinal: i32, name: String, what: &'static str },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What the device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Longest distance between rows that 2-D copies take.
    pub max_pitch_bytes: u64,
    /// Engines for copies: so many can run at the same time, with one for each direction at least if there are two.
    pub copy_engines: u32,
    pub multiprocessors: u32,
    /// Whether read-only host memory can be pinned.
    pub pins_read_only: bool,
    /// Whether host memory of others can be pinned at all.
    pub pins_host_memory: bool,
    /// Lengths of VRAM are rounded up to this.
    pub granularity_bytes: u64,
}

/// A GPU with its primary context, which programs of one process share.
///
/// An error of the device itself, as an illegal address, loses the context: every call fails from then on, and memory may still be
/// written until the process has ended. So the process must exit, and a new one starts.
#[derive(Debug)]
pub struct Device {
    driver: Driver,
    serial: u64,
    handle: i32,
    context: ContextHandle,
    name: String,
    uuid: [u8; 16],
    abilities: Abilities,
    /// Filled once the context is there.
    gather: OnceLock<Result<Function, CallError>>,
    lost: OnceLock<Code>,
    pinnings: Pinnings,
}

impl Device {
    /// Opens the device with a number from 0 on.
    ///
    /// # Errors
    /// There is no such device, it lacks something, or the driver fails.
    pub fn open(driver: &Driver, ordinal: i32) -> Result<Arc<Self>, DeviceError> {
        let handle = driver.device(ordinal)?;
        let name = driver.device_name(handle)?;
        let has = |attribute| Ok::<_, CallError>(driver.attribute(attribute, handle)? != 0);
        for (attribute, what) in [
            (Attribute::VirtualMemory, "map memory at chosen addresses"),
            (Attribute::PosixDescriptors, "share memory by descriptor"),
        ] {
            if !has(attribute)? {
                return Err(DeviceError::Lacks { ordinal, name, what });
            }
        }
        let number = |attribute| Ok::<_, CallError>(driver.attribute(attribute, handle)?.max(0) as u32);
        let mut abilities = Abilities {
            max_pitch_bytes: u64::from(number(Attribute::MaxPitch)?),
            copy_engines: number(Attribute::CopyEngines)?,
            multiprocessors: number(Attribute::Multiprocessors)?,
            pins_read_only: has(Attribute::RegistersReadOnly)?,
            pins_host_memory: has(Attribute::RegistersHostMemory)?,
            granularity_bytes: 0,
        };
        let uuid = driver.device_uuid(handle)?;
        let context = driver.retain_context(handle)?;
        let mut device = Self {
            driver: driver.clone(),
            serial: LAST_SERIAL.fetch_add(1, Ordering::Relaxed) + 1,
            handle,
            context,
            name,
            uuid,
            abilities,
            gather: OnceLock::new(),
            lost: OnceLock::new(),
            pinnings: Pinnings::default(),
        };
        abilities.granularity_bytes = device.call(|driver| driver.granularity(handle))?;
        if !abilities.granularity_bytes.is_power_of_two() {
            return Err(DeviceError::Lacks {
                ordinal,
                name: device.name.clone(),
                what: "say its granularity",
            });
        }
        device.abilities = abilities;
        // Without the kernel, for instance because this GPU is older than the PTX, lists are copied in other ways.
        let loaded = device.call(|driver| driver.function(gather::PTX, gather::NAME));
        if let Err(error) = &loaded
            && error.code.loses_context()
        {
            return Err(error.clone().into());
        }
        device.gather = loaded.into();
        Ok(Arc::new(device))
    }

    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells GPUs apart, also between machines.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Why the gather kernel was not loaded, if it was not.
    pub fn no_gather(&self) -> Option<&CallError> {
        self.gather.get()?.as_ref().err()
    }

    /// Free and all bytes of VRAM.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn memory_info(&self) -> Result<(u64, u64), CallError> {
        self.call(Driver::memory_info)
    }

    /// Why the context is lost, if it is.
    pub fn lost(&self) -> Option<Code> {
        self.lost.get().copied()
    }

    pub(crate) fn gather(&self) -> Option<Function> {
        self.gather.get()?.as_ref().ok().copied()
    }

    pub(crate) fn pinnings(&self) -> &Pinnings {
        &self.pinnings
    }

    pub(crate) fn handle(&self) -> i32 {
        self.handle
    }

    /// Calls the driver with this device's context current, and notes if the answer says that it is lost.
    pub(crate) fn call<T>(&self, body: impl FnOnce(&Driver) -> Result<T, CallError>) -> Result<T, CallError> {
        let answer = self.enter().and_then(|()| body(&self.driver));
        if let Err(error) = &answer
            && error.code.loses_context()
        {
            self.lose(error.code);
        }
        answer
    }

    /// From now on the context counts as lost. The first reason stays.
    pub(crate) fn lose(&self, code: Code) {
        _ = self.lost.set(code);
    }

    fn enter(&self) -> Result<(), CallError> {
        if CURRENT.get() != self.serial {
            self.driver.set_context(self.context)?;
            CURRENT.set(self.serial);
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.lost().is_none() {
            _ = self.driver.release_context(self.handle);
        }
    }
}
