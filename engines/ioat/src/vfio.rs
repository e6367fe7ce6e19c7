//! What the engine needs of VFIO and of the device behind it, step by step, so that tests can take its place.
//!
//! ```text
//! attribute, link (sysfs) ─► container ─► group ─► attach ─► device ─► reset ─► BAR ─► take_parts: registers, Domain ─► bus master
//! ```

use std::io;

use memferry_ioat_registers::{Device, NarrowIo};
use memferry_vfio::{Bar, Domain, PciAddress};

/// The system calls that open a device, in order. The first one that fails ends the attempt; dropping the value takes all back.
pub trait Vfio {
    /// The registers in BAR 0. Their time is that of the machine, and they outlive this value.
    type Registers: Device + NarrowIo + 'static;
    /// The IOMMU's mappings for the device.
    type Domain: Domain + 'static;

    /// Reads a file in the device's folder of sysfs, without white space at its ends.
    ///
    /// # Errors
    /// Those of the file system.
    fn attribute(&self, device: PciAddress, name: &str) -> io::Result<String>;

    /// The last part of what a link in that folder leads to.
    ///
    /// # Errors
    /// Those of the file system.
    fn link(&self, device: PciAddress, name: &str) -> io::Result<String>;

    /// The PCI devices of the device's group, with the driver of each.
    ///
    /// # Errors
    /// Those of the file system.
    fn group_members(&self, device: PciAddress) -> io::Result<Vec<(String, Option<String>)>>;

    /// Opens `/dev/vfio/vfio`.
    ///
    /// # Errors
    /// Those of the call.
    fn open_container(&mut self) -> io::Result<()>;

    /// Whether the container knows type 1, version 2.
    ///
    /// # Errors
    /// Those of the calls.
    fn has_type1(&mut self) -> io::Result<bool>;

    /// Opens `/dev/vfio/NUMBER`.
    ///
    /// # Errors
    /// Those of the call.
    fn open_group(&mut self, number: &str) -> io::Result<()>;

    /// Whether all devices of the group are bound to VFIO's drivers, or to none.
    ///
    /// # Errors
    /// Those of the call.
    fn is_viable(&mut self) -> io::Result<bool>;

    /// Puts the group into the container, and gives that an IOMMU of type 1.
    ///
    /// # Errors
    /// Those of the calls.
    fn attach(&mut self) -> io::Result<()>;

    /// Opens the device.
    ///
    /// # Errors
    /// Those of the call.
    fn open_device(&mut self, device: PciAddress) -> io::Result<()>;

    /// Resets the device. Returns whether it has a reset of its own; without one it goes on with what another program began.
    ///
    /// # Errors
    /// Those of the calls.
    fn reset(&mut self) -> io::Result<bool>;

    /// BAR 0.
    ///
    /// # Errors
    /// Those of the call.
    fn bar(&mut self) -> io::Result<Bar>;

    /// Lets the registers be accessed. The device accesses no memory yet.
    ///
    /// # Errors
    /// Those of the accesses to configuration space.
    fn enable_registers(&mut self) -> io::Result<()>;

    /// Maps BAR 0, and hands out what is used from then on.
    ///
    /// # Errors
    /// Those of the calls.
    fn take_parts(&mut self) -> io::Result<(Self::Registers, Self::Domain)>;

    /// Lets the device access memory, with its writes in order.
    ///
    /// # Errors
    /// Those of the accesses to configuration space.
    fn enable_master(&mut self) -> io::Result<()>;

    /// Has [`is_wanted_back`](Self::is_wanted_back) learn what the kernel wants.
    ///
    /// # Errors
    /// Those of the calls. The kernel then waits for the end of this process, which does not learn of it.
    fn watch_requests(&mut self) -> io::Result<()>;

    /// Whether the kernel wants the device back: it is being removed, or given to another driver.
    fn is_wanted_back(&mut self) -> bool;

    /// Bytes that the process may lock, for messages; `None` if there is no limit.
    fn lock_limit(&self) -> Option<u64>;
}
