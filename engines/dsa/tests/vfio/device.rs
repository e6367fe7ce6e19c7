//! A DSA that this process has through VFIO: its registers and a portal, mapped, and memory at DMA addresses of its own.
//!
//! ```text
//! VFIO ─┬► BAR 0 ─► driver, control half: reset, configuration, commands
//!       ├► BAR 2 ─► the engine's portal: MOVDIR64B
//!       └► type 1: FRAME, OWN ─► memory of this process          STRAY: nothing
//! ```

use std::rc::Rc;
use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_conformance::EngineFixture;
use memferry_driven_engines::{
    DSA_SLOTS, DeviceMemory, DeviceWords, DsaControl, DsaEngine, DsaOptions, NotStopped, Present,
};
use memferry_dsa::registers::RegisterIo;
use memferry_dsa::registers::offset::{Portal as Kind, portal};
use memferry_dsa::registers::{descriptor, record};
use memferry_dsa::{CommandFailure, Dsa, Group, Limits, Queue, QueueConfig, Stopped, WorkQueue};
use memferry_engine::Mapping;
use memferry_engine_dsa::Mapped;
use memferry_shm::frame;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{EngineKind, Memory};
use memferry_vfio::{Domain, Linux, MappedBar, PciAddress, Type1, monotonic};

/// Addresses for the device. At none of them this process has something, and behind no IOMMU all would be the machine's memory.
pub(crate) const FRAME: u64 = 0x1000_0000;
const OWN: u64 = 0x2000_0000;
pub(crate) const STRAY: u64 = 0x3000_0000;
/// Memory that is mapped at [`FRAME`].
pub(crate) const FRAME_BYTES: u64 = 2 << 20;
const PAGE: u64 = 4096;

const REGISTERS: u32 = 0;
const PORTALS: u32 = 2;
const ENTRIES: u16 = 32;
const LISTS: u16 = 8;
const LIST_LENGTH: u16 = 16;
const RECORD_BYTES: u64 = record::BYTES * DSA_SLOTS as u64;
const OWN_BYTES: u64 = RECORD_BYTES + descriptor::BYTES * LISTS as u64 * LIST_LENGTH as u64;
/// An emulated processor and a busy machine take their time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// BAR 0, and the machine's time.
#[derive(Clone, Debug)]
pub(crate) struct Registers(Rc<MappedBar>);

impl RegisterIo for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        self.0.load(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.0.store(offset, value);
    }
}

impl Clock for Registers {
    fn now(&self) -> Instant {
        monotonic()
    }
}

pub(crate) type Control = Dsa<Registers, Registers>;
pub(crate) type Words = DeviceWords<MappedWords>;

/// A device that was opened. The process's end, however it comes, takes all back.
pub(crate) struct Rig {
    vfio: Linux,
    registers: Registers,
    /// Keeps the mappings' container.
    _domain: Type1,
    frame: Mapping,
    own: MappedWords,
}

impl Rig {
    /// Takes the device, bound to vfio-pci, and lets it reach `frame` and memory for records and lists.
    pub(crate) fn new(device: PciAddress, frame: Mapping) -> Rc<Self> {
        let mut vfio = Linux::new();
        let group = vfio.link(device, "iommu_group").expect("an IOMMU");
        vfio.open_container().expect("/dev/vfio/vfio");
        assert!(vfio.has_type1().expect("its abilities"), "VFIO has type 1");
        vfio.open_group(&group).expect("the group's file");
        assert!(vfio.is_viable().expect("the group's state"), "the group is VFIO's alone");
        vfio.attach().expect("an IOMMU for the group");
        vfio.open_device(device).expect("the device");
        let is_reset = vfio.reset().expect("a reset");
        println!("the device {} a reset of its own", if is_reset { "has" } else { "has no" });
        vfio.enable_registers().expect("the command register");
        let registers = Registers(Rc::new(vfio.map_bar(REGISTERS).expect("BAR 0")));
        let domain = vfio.domain().expect("the IOMMU");
        let (_, own) = frame::allocate_half(OWN_BYTES).expect("memory");
        for (memory, iova) in [(&frame, FRAME), (&own, OWN)] {
            let bytes = (memory.length_bytes() as u64).next_multiple_of(PAGE);
            domain.map(iova, memory, 0..bytes).expect("room in the IOMMU");
        }
        vfio.enable_master().expect("the command register");
        let own = MappedWords::new(own).expect("aligned");
        Rc::new(Self { vfio, registers, _domain: domain, frame, own })
    }

    pub(crate) fn control(&self) -> Control {
        Dsa::new(self.registers.clone(), self.registers.clone())
    }

    /// Resets the device, which then has one dedicated work queue; what that takes.
    fn configure(&self) -> Limits {
        let mut control = self.control();
        control.initialize(TIMEOUT).expect("a device that the driver knows");
        let group = Group { engines: 0b1111, read_buffers_reserved: 0, read_buffers_allowed: None };
        let queue = WorkQueue {
            size: ENTRIES,
            group: 0,
            dedicated: true,
            threshold: 0,
            priority: 10,
            block_on_fault: false,
            max_transfer: None,
            max_batch: None,
            pasid: None,
        };
        control.configure(&[group], &[queue]).expect("within the rules");
        control.enable(TIMEOUT).expect("valid");
        control.enable_queue(0, TIMEOUT).expect("valid");
        control.limits(0).expect("it exists")
    }

    /// The queue's portal, mapped once more.
    pub(crate) fn portal(&self) -> Mapped {
        let (device, start) = self.vfio.place(PORTALS).expect("BAR 2");
        Mapped::of_device(device, start + portal(0, Kind::Limited)).expect("a page that can be mapped")
    }

    /// A queue of a device that was just reset.
    pub(crate) fn queue(&self) -> Queue<Mapped, Words, DSA_SLOTS> {
        let limits = self.configure();
        let config = QueueConfig {
            records: OWN,
            list: OWN + RECORD_BYTES,
            lists: LISTS,
            list_length: LIST_LENGTH,
            entries: ENTRIES,
            attempts: 1,
        };
        let words = DeviceWords::new(self.own.clone(), OWN);
        Queue::new(self.portal(), words, limits, config).expect("within the rules")
    }
}

/// Stops the queue by the device's registers.
pub(crate) struct Drain(Control);

impl DsaControl for Drain {
    fn now(&self) -> Instant {
        monotonic()
    }

    fn stop(&mut self) -> Result<Stopped, NotStopped> {
        match self.0.drain_queue(0, TIMEOUT) {
            Ok(stopped) => Ok(stopped),
            // A disabled work queue has nothing.
            Err(CommandFailure::Refused { .. }) => Ok(Stopped::known_to_caller()),
            Err(_) => Err(NotStopped),
        }
    }
}

/// Memory at an address of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    pub(crate) iova: u64,
    pub(crate) bytes: u64,
}

impl Memory for Reached {
    fn length(&self) -> u64 {
        self.bytes
    }
}

impl DeviceMemory for Reached {
    const LONGEST_BYTES: u64 = 1 << 40;
    const KIND: EngineKind = EngineKind::External;

    fn device_address(&self) -> u64 {
        self.iova
    }
}

/// The driver's engine over the device, and memory for its operands.
pub(crate) struct Fixture {
    pub(crate) rig: Rc<Rig>,
    pub(crate) engine: DsaEngine<Drain, Mapped, Words, Present, Reached>,
    used: u64,
}

impl Fixture {
    pub(crate) fn new(rig: &Rc<Rig>, channels: u32, chunk_bytes: u64) -> Self {
        let queue = rig.queue();
        let options =
            DsaOptions { chunk_bytes, patience: TIMEOUT, period: Duration::ZERO, ..DsaOptions::default() };
        let engine = DsaEngine::new(Drain(rig.control()), queue, Present, channels, options);
        Self { rig: Rc::clone(rig), engine, used: 0 }
    }
}

impl EngineFixture for Fixture {
    type Memory = Reached;
    type Engine = DsaEngine<Drain, Mapped, Words, Present, Reached>;

    fn engine(&mut self) -> &mut Self::Engine {
        &mut self.engine
    }

    fn allocate(&mut self, bytes: &[u8]) -> Reached {
        let at = self.used;
        self.rig.frame.write(at, bytes).expect("room in the frame");
        self.used = (at + bytes.len() as u64).next_multiple_of(64);
        Reached { iova: FRAME + at, bytes: bytes.len() as u64 }
    }

    fn contents(&self, memory: &Reached) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes as usize];
        self.rig.frame.read(memory.iova - FRAME, &mut bytes).expect("inside");
        bytes
    }

    fn is_same(&self, one: &Reached, other: &Reached) -> bool {
        one == other
    }

    /// The device works in the machine's time.
    fn wait(&mut self, now: Instant, next_wake: Option<Instant>) -> Instant {
        assert!(next_wake.is_some(), "transfers are outstanding, but the engine wants no further poll");
        std::thread::sleep(Duration::from_micros(20));
        monotonic().max(now)
    }
}
