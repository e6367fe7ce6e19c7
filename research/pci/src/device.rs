//! A PCI device: the shell around a [`Function`].
//!
//! ```text
//! Message ── handle ──► reply        bytes in, bytes out; no socket, no clock
//! time    ── advance ─► next event   runs the function and delivers its interrupts
//! ```
//!
//! Each message of a client ends in a reply, a refusal with an errno, or a [`Fatal`] that ends the connection. Nothing here panics.

use std::os::fd::OwnedFd;

use memferry_clock::Instant;
use thiserror::Error;

use crate::config::{self, ConfigSpace};
use crate::function::{Bar, Description, Function, Signalling};
use crate::interrupts::{self, Interrupts, Route};
use crate::memory::{MAXIMUM_WINDOWS, Memory};
use crate::message::{DmaMap, Header, MAXIMUM_DATA, MAXIMUM_DESCRIPTORS, Refusal, Request, command};
use crate::pace::Timed;

/// VFIO's number of regions: six BARs, the ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;
/// The device can be reset; it is a PCI device.
const DEVICE_FLAGS: u32 = 0b11;
const READ_WRITE: u32 = 0b11;
const MAJOR: u16 = 0;
/// The newest minor version that this server knows.
const MINOR: u16 = 1;

/// Why a client is disconnected.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fatal {
    #[error("the client's first command is {command}; VERSION comes first")]
    NoVersion { command: u16 },
    #[error("the client speaks vfio-user {major}; this device speaks {MAJOR}")]
    OtherVersion { major: u16 },
}

/// A table of MSI-X vectors in a BAR, and its pending bits.
#[derive(Clone, Debug)]
struct Table {
    bar: usize,
    at: u64,
    bytes: Vec<u8>,
}

impl Table {
    /// The part of an access that is in the table: its place in the access, and in the table.
    fn part(&self, bar: usize, offset: u64, length: usize) -> Option<(usize, usize, usize)> {
        let end = offset.checked_add(length as u64)?;
        let first = offset.max(self.at);
        let last = end.min(self.at + self.bytes.len() as u64);
        let there = self.bar == bar && first < last;
        there.then(|| ((first - offset) as usize, (first - self.at) as usize, (last - first) as usize))
    }
}

/// A PCI device that a client can use.
pub struct Device<F> {
    function: F,
    description: Description,
    config: ConfigSpace,
    memory: Memory,
    interrupts: Interrupts,
    tables: Vec<Table>,
    has_version: bool,
    refusals: Vec<String>,
}

impl<F: Function> Device<F> {
    /// Puts the shell around a function, whose memory this is.
    pub fn new(function: F, memory: Memory) -> Self {
        let description = function.describe();
        let config = ConfigSpace::new(&description);
        let (msi, msi_x, tables) = match description.signalling {
            Signalling::Intx => (0, 0, Vec::new()),
            Signalling::Msi => (1, 0, Vec::new()),
            Signalling::MsiX { vectors, bar, table, pending } => {
                let entries = vec![0; 16 * usize::from(vectors)];
                let pending_bits = vec![0; usize::from(vectors).div_ceil(64) * 8];
                let entries = Table { bar, at: table.into(), bytes: entries };
                let pending = Table { bar, at: pending.into(), bytes: pending_bits };
                (1, vectors, vec![entries, pending])
            }
        };
        let interrupts = Interrupts::new(msi, msi_x);
        Self {
            function,
            description,
            config,
            memory,
            interrupts,
            tables,
            has_version: false,
            refusals: Vec::new(),
        }
    }

    pub fn function(&self) -> &F {
        &self.function
    }

    pub fn function_mut(&mut self) -> &mut F {
        &mut self.function
    }

    /// Whether the client has negotiated a version.
    pub(crate) fn has_version(&self) -> bool {
        self.has_version
    }

    pub fn name(&self) -> &'static str {
        self.description.name
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Interrupts sent so far.
    pub fn interrupts_sent(&self) -> u64 {
        self.interrupts.sent()
    }

    pub fn now(&self) -> Instant {
        self.function.now()
    }

    pub fn next_wake(&self) -> Option<Instant> {
        self.function.next_wake()
    }

    /// Runs the device until `now` and delivers its interrupts; the time of its next event.
    pub fn advance(&mut self, now: Instant) -> Option<Instant> {
        let next = self.function.advance(now);
        self.deliver();
        next
    }

    fn deliver(&mut self) {
        let bus_master = self.config.is_bus_master();
        let level = self.function.level();
        // Vectors stay with the device while none can be sent. Once one can, those without an eventfd lose their messages.
        let vectors = match self.interrupts.takes_messages(bus_master) {
            true => self.function.take_messages(),
            false => 0,
        };
        self.config.set_interrupt_status(level);
        let intx_disabled = self.config.is_intx_disabled();
        self.interrupts.deliver(Route { level, vectors, bus_master, intx_disabled });
    }

    /// Resets the device; the client keeps its windows and eventfds.
    pub fn reset(&mut self) {
        self.function.reset();
        self.config.reset();
        self.memory.set_bus_master(false);
        self.interrupts.reset();
        for table in &mut self.tables {
            table.bytes.fill(0);
        }
    }

    /// The client is gone: everything it passed is dropped.
    pub fn disconnect(&mut self) {
        self.reset();
        self.memory.clear();
        self.interrupts.clear();
        self.has_version = false;
    }

    /// Takes lines for a person to read: refused commands, and the function's report.
    pub fn take_report(&mut self) -> Vec<String> {
        let mut report = std::mem::take(&mut self.refusals);
        report.extend(self.function.take_report());
        report
    }

    /// Carries out a command; the bytes of the reply, if the client wants one.
    ///
    /// # Errors
    /// [`Fatal`] when the connection must end.
    pub fn handle(
        &mut self,
        header: &Header,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Vec<u8>>, Fatal> {
        let decoded = Request::decode(header.command, payload);
        if !self.has_version && header.command != command::VERSION {
            return Err(Fatal::NoVersion { command: header.command });
        }
        if let Ok(Request::Version { major, .. }) = decoded
            && major != MAJOR
        {
            return Err(Fatal::OtherVersion { major });
        }
        let done = decoded.and_then(|request| self.execute(request, descriptors));
        self.deliver();
        let answer = match done {
            Ok(payload) => header.reply(&payload),
            Err(refusal) => {
                self.refusals.push(format!("refused: {refusal}"));
                header.refuse(refusal.errno)
            }
        };
        Ok(header.wants_reply().then_some(answer))
    }

    fn execute(&mut self, request: Request<'_>, descriptors: Vec<OwnedFd>) -> Result<Vec<u8>, Refusal> {
        let takes_descriptors = matches!(request, Request::Map(_) | Request::SetIrqs(_));
        if !takes_descriptors && !descriptors.is_empty() {
            let why = format!("{} descriptors with a command that takes none", descriptors.len());
            return Err(Refusal::invalid(why));
        }
        match request {
            Request::Version { minor, data, .. } => self.version(minor, data),
            Request::Map(request) => self.map(&request, &descriptors),
            Request::Unmap { all, address, size } => self.unmap(all, address, size),
            Request::DeviceInfo => Ok(words(&[16, DEVICE_FLAGS, REGIONS, interrupts::KINDS])),
            Request::RegionInfo { index } => self.region_info(index),
            Request::IrqInfo { index } if index < interrupts::KINDS => {
                let (flags, count) = self.interrupts.describe(index);
                Ok(words(&[16, flags, index, count]))
            }
            Request::IrqInfo { index } => Err(Refusal::invalid(format!("interrupts of kind {index}"))),
            Request::SetIrqs(command) => self.interrupts.set(&command, descriptors).map(|()| Vec::new()),
            Request::Read { region, offset, count } => self.read(region, offset, count),
            Request::Write { region, offset, data } => self.write(region, offset, data),
            Request::Reset => {
                self.reset();
                Ok(Vec::new())
            }
        }
    }

    fn version(&mut self, minor: u16, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        if self.has_version {
            return Err(Refusal::invalid("VERSION for the second time".to_owned()));
        }
        let text = data.strip_suffix(&[0]).unwrap_or(data);
        if !text.is_empty() {
            serde_json::from_slice::<serde_json::Value>(text).map_err(|error| {
                Refusal::invalid(format!("VERSION with capabilities that are no JSON: {error}"))
            })?;
        }
        self.has_version = true;
        let capabilities = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAXIMUM_DESCRIPTORS,
            "max_data_xfer_size": MAXIMUM_DATA,
            "max_dma_maps": MAXIMUM_WINDOWS,
            "pgsizes": 4096,
        } });
        let mut reply = Vec::new();
        reply.extend(MAJOR.to_ne_bytes());
        reply.extend(minor.min(MINOR).to_ne_bytes());
        reply.extend(capabilities.to_string().into_bytes());
        reply.push(0);
        Ok(reply)
    }

    fn map(&mut self, request: &DmaMap, descriptors: &[OwnedFd]) -> Result<Vec<u8>, Refusal> {
        match descriptors {
            // Memory that only the client reaches, as a ROM or another device's: no device here uses it.
            [] => Ok(Vec::new()),
            [descriptor] => self
                .memory
                .map(descriptor, request)
                .map(|()| Vec::new())
                .map_err(|error| Refusal::new(error.errno(), format!("DMA_MAP: {error}"))),
            several => {
                Err(Refusal::invalid(format!("DMA_MAP with {} descriptors; it has one", several.len())))
            }
        }
    }

    fn unmap(&mut self, all: bool, address: u64, size: u64) -> Result<Vec<u8>, Refusal> {
        let flags = if all { 2 } else { 0 };
        let unmapped = match all {
            true => self.memory.clear(),
            false => self
                .memory
                .unmap(address, size)
                .map_err(|error| Refusal::new(error.errno(), format!("DMA_UNMAP: {error}")))?,
        };
        let mut reply = words(&[24, flags]);
        reply.extend(address.to_ne_bytes());
        reply.extend(unmapped.to_ne_bytes());
        Ok(reply)
    }

    fn region_bytes(&self, index: u32) -> u64 {
        let bar = |bar: &&Bar| bar.index as u64 == u64::from(index);
        match index {
            CONFIG_REGION => config::BYTES as u64,
            _ => self.description.bars.iter().find(bar).map_or(0, |bar| bar.bytes),
        }
    }

    fn region_info(&self, index: u32) -> Result<Vec<u8>, Refusal> {
        if index >= REGIONS {
            return Err(Refusal::invalid(format!("region {index}; there are {REGIONS}")));
        }
        let bytes = self.region_bytes(index);
        let flags = if bytes == 0 { 0 } else { READ_WRITE };
        let mut reply = words(&[32, flags, index, 0]);
        reply.extend(bytes.to_ne_bytes());
        reply.extend(0_u64.to_ne_bytes());
        Ok(reply)
    }

    fn check_access(&self, region: u32, offset: u64, count: u64) -> Result<(), Refusal> {
        let bytes = self.region_bytes(region);
        if count > MAXIMUM_DATA as u64 {
            let why = format!("{count} bytes of region {region}; {MAXIMUM_DATA} at once is the limit");
            return Err(Refusal::invalid(why));
        }
        let end = offset.checked_add(count).filter(|end| *end <= bytes && count > 0);
        end.map(|_| ()).ok_or_else(|| {
            Refusal::invalid(format!("{count} bytes at {offset:#x} of region {region}, which has {bytes:#x}"))
        })
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Refusal> {
        self.check_access(region, offset, count.into())?;
        let mut data = vec![0; count as usize];
        if region == CONFIG_REGION {
            self.config.read(offset as usize, &mut data);
        } else {
            self.read_bar(region as usize, offset, &mut data);
        }
        let mut reply = access_reply(region, offset, count);
        reply.extend(data);
        Ok(reply)
    }

    fn read_bar(&mut self, bar: usize, offset: u64, data: &mut [u8]) {
        for table in &self.tables {
            if let Some((at, from, length)) = table.part(bar, offset, data.len()) {
                // An access is to the table or to registers.
                data[at..at + length].copy_from_slice(&table.bytes[from..from + length]);
                return;
            }
        }
        self.function.read(bar, offset, data);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.check_access(region, offset, data.len() as u64)?;
        if region == CONFIG_REGION {
            let written = self.config.write(offset as usize, data);
            if written.reset {
                self.reset();
            }
            let bus_master = self.config.is_bus_master();
            if self.memory.set_bus_master(bus_master) != bus_master {
                self.function.set_bus_master(bus_master);
            }
        } else {
            self.write_bar(region as usize, offset, data);
        }
        Ok(access_reply(region, offset, data.len() as u32))
    }

    fn write_bar(&mut self, bar: usize, offset: u64, data: &[u8]) {
        for (index, table) in self.tables.iter_mut().enumerate() {
            if let Some((at, to, length)) = table.part(bar, offset, data.len()) {
                // Pending bits are the device's.
                if index == 0 {
                    table.bytes[to..to + length].copy_from_slice(&data[at..at + length]);
                }
                return;
            }
        }
        self.function.write(bar, offset, data);
    }
}

impl<F: Function> Timed for Device<F> {
    fn advance(&mut self, now: Instant) -> Option<Instant> {
        Self::advance(self, now)
    }

    fn now(&self) -> Instant {
        Self::now(self)
    }

    fn next_wake(&self) -> Option<Instant> {
        Self::next_wake(self)
    }
}

impl<F: Function> std::fmt::Debug for Device<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {:?})", self.description.name, self.memory.traffic())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn access_reply(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut reply = Vec::from(offset.to_ne_bytes());
    reply.extend(words(&[region, count]));
    reply
}
