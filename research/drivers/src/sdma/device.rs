//! The device: initialized once, then channels are configured and enabled in separate steps.
//!
//! ```text
//! Sdma::new ──► initialize: reset, wait, quiet channels, FIFO depth ──► allocate ──► configure ──► enable ──► running
//! ```
//!
//! Configuring never sets the enable bit; enabling is one write of its own, so that the device can be measured without
//! the configuration (paper, section 3.2.1). Memory ordering is the register access's: an implementation must not let
//! the write that enables overtake writes to memory. Completion is the interrupt module's.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{
    CHANNELS, Caps0, Ccr, Cen, Cfn, ClnkCtrl, Color, Csdp, Csr, FifoBudget, Gcr, LINES, OcpSysconfig,
    Register, SysStatus, ThreadReservation, offset,
};
use thiserror::Error;

use super::channels::{AllChannelsBusy, Channel, ChannelTaken, Channels};
use super::config::{ChannelConfig, Operation, Port, Priority, Side, SyncUnit, Trusted};
use super::validate::ConfigError;

/// What is set once for the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// FIFO entries that one channel may take; not zero.
    pub fifo_depth: u8,
    /// How often high priority goes first before the ordinary queue has its turn; not zero.
    pub arbitration_rate: u8,
    /// Threads kept for high priority.
    pub reserved_threads: ThreadReservation,
    /// How the FIFO pool is divided between the priorities.
    pub fifo_budget: FifoBudget,
    /// How long the reset may take.
    pub reset_timeout: Duration,
}

impl Default for Settings {
    /// A FIFO depth of 128 holds two bursts of 64 bytes, one being written while the next is read; the device's own
    /// default of 16 holds none (paper, 2.3.2.1). The rest is the device's default.
    fn default() -> Self {
        Self {
            fifo_depth: 128,
            arbitration_rate: 1,
            reserved_threads: ThreadReservation::None,
            fifo_budget: FifoBudget::Shared,
            reset_timeout: Duration::from_millis(10),
        }
    }
}

/// Why the device could not be initialized. It must not be used then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    /// A FIFO depth of zero.
    #[error(
        "a FIFO depth of zero lets no channel move anything: set at least 1, and 64 for bursts of 64 bytes"
    )]
    FifoDepthZero,
    /// An arbitration rate of zero.
    #[error("an arbitration rate of zero is not allowed: set at least 1")]
    ArbitrationRateZero,
    /// The device did not report the end of its reset.
    #[error("the device did not end its reset within {waited:?}: check its clocks and the base address")]
    ResetTimedOut {
        /// How long was waited.
        waited: Duration,
    },
    /// A channel goes on though it was disabled.
    #[error("channel {channel} is still active {waited:?} after it was disabled: reset the whole chip")]
    ChannelStillActive {
        channel: u8,
        /// How long was waited.
        waited: Duration,
    },
}

/// Why a channel was not configured. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigureError {
    /// The device has not been initialized.
    #[error("the device is not initialized: call initialize first")]
    NotInitialized,
    /// The configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The channel is enabled, or still active on a port.
    #[error("channel {channel} is running: wait for its end, or stop it")]
    Running { channel: u8 },
    /// The channel did not drain and may still touch memory.
    #[error("channel {channel} is quarantined: initialize the device again before it is used")]
    Quarantined { channel: u8 },
    /// The device cannot follow linked lists.
    #[error("this device has no linked lists: make each segment a transfer")]
    NoLinkedLists,
}

/// Why a channel was not enabled. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EnableError {
    /// It was not configured since the device was initialized.
    #[error("channel {channel} is not configured: configure it first")]
    NotConfigured { channel: u8 },
    /// It is enabled, or still active on a port.
    #[error("channel {channel} is running: wait for its end, or stop it")]
    Running { channel: u8 },
    /// It did not drain and may still touch memory.
    #[error("channel {channel} is quarantined: initialize the device again before it is used")]
    Quarantined { channel: u8 },
    /// Another enabled channel has its request line.
    #[error(
        "request line {request} starts channel {other} already, not {channel} too: stop that one, or link them"
    )]
    RequestTaken {
        channel: u8,
        /// The one that has the line.
        other: u8,
        request: u32,
    },
}

/// The driver of one device.
#[derive(Debug)]
pub struct Sdma<Io, C> {
    pub(super) io: Io,
    pub(super) clock: C,
    pub(super) channels: Channels,
    /// Channels whose registers hold a checked configuration.
    pub(super) configured: u32,
    /// Those of them that follow a linked list.
    pub(super) lists: u32,
    /// Channels that interrupt on each line.
    pub(super) lines: [u32; LINES],
    initialized: bool,
    has_lists: bool,
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// A driver of the device behind `io`, and the one token that goes with it. No register is touched.
    ///
    /// The clock bounds every wait, so it must advance while the driver polls: a simulation moves it on each access.
    pub fn new(io: Io, clock: C) -> (Self, Trusted) {
        let sdma = Self {
            io,
            clock,
            channels: Channels::default(),
            configured: 0,
            lists: 0,
            lines: [0; LINES],
            initialized: false,
            has_lists: false,
        };
        (sdma, Trusted(()))
    }

    /// Resets the device and sets it up; again after a fault, which ends every transfer and every quarantine.
    ///
    /// # Errors
    /// [`InitError`]; waits at most the settings' time for the reset, and as long for channels that go on.
    pub fn initialize(&mut self, settings: &Settings) -> Result<(), InitError> {
        if settings.fifo_depth == 0 {
            return Err(InitError::FifoDepthZero);
        }
        if settings.arbitration_rate == 0 {
            return Err(InitError::ArbitrationRateZero);
        }
        (self.initialized, self.configured, self.lists, self.lines) = (false, 0, 0, [0; LINES]);
        let waited = settings.reset_timeout;
        let configuration = OcpSysconfig::from_bits(self.io.read(offset::OCP_SYSCONFIG));
        self.io.write(offset::OCP_SYSCONFIG, configuration.with_soft_reset(true).into_bits());
        self.wait(waited, |io| SysStatus::from_bits(io.read(offset::SYSSTATUS)).reset_done())
            .map_err(|()| InitError::ResetTimedOut { waited })?;
        for line in 0..LINES {
            self.io.write(offset::irq_enable(line), 0);
        }
        for channel in 0..CHANNELS {
            self.quiet(channel);
            self.wait(waited, |io| !is_running(read_ccr(io, channel)))
                .map_err(|()| InitError::ChannelStillActive { channel: channel as u8, waited })?;
        }
        for line in 0..LINES {
            self.io.write(offset::irq_status(line), u32::MAX);
        }
        let global = Gcr::new()
            .with_max_channel_fifo_depth(settings.fifo_depth)
            .with_arbitration_rate(settings.arbitration_rate)
            .with_thread_reservation(settings.reserved_threads)
            .with_fifo_budget(settings.fifo_budget);
        self.io.write(offset::GCR, global.into_bits());
        self.has_lists = Caps0::from_bits(self.io.read(offset::CAPS_0)).linked_list_types_123();
        self.channels.lift_quarantine();
        self.initialized = true;
        Ok(())
    }

    /// A channel that was not ended by the reset, since not every revision has one, is disabled and forgotten.
    fn quiet(&mut self, channel: usize) {
        for register in [Register::ClnkCtrl, Register::Cicr, Register::Ccr] {
            self.io.write(offset::channel(channel, register), 0);
        }
        self.io.write(offset::channel(channel, Register::Csr), Csr::ALL.into_bits());
    }

    /// Polls until `done` or the time is over; looks once more after that, since this thread may have been delayed.
    pub(super) fn wait(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&mut Io) -> bool,
    ) -> Result<(), ()> {
        let deadline = self.clock.now().after(timeout);
        while self.clock.now() < deadline {
            if done(&mut self.io) {
                return Ok(());
            }
        }
        if done(&mut self.io) { Ok(()) } else { Err(()) }
    }

    /// Takes the free channel with the lowest number.
    ///
    /// # Errors
    /// [`AllChannelsBusy`]; waiting for one is the caller's choice.
    pub fn allocate(&mut self) -> Result<Channel, AllChannelsBusy> {
        self.channels.allocate()
    }

    /// Takes the channel with this number.
    ///
    /// # Errors
    /// [`ChannelTaken`] also for a number that no channel has.
    pub fn take(&mut self, index: u8) -> Result<Channel, ChannelTaken> {
        self.channels.take(index)
    }

    /// Gives a channel back.
    ///
    /// # Errors
    /// The channel itself when it is running: stop it first.
    pub fn release(&mut self, channel: Channel) -> Result<(), Channel> {
        if !self.channels.is_quarantined(&channel) {
            if self.is_running(&channel) {
                return Err(channel);
            }
            self.write(&channel, Register::Cicr, 0);
            self.write(&channel, Register::ClnkCtrl, 0);
        }
        self.configured &= !channel.bit();
        self.lists &= !channel.bit();
        self.channels.release(channel);
        Ok(())
    }

    /// How many channels are neither taken nor quarantined.
    pub fn free_channels(&self) -> u32 {
        self.channels.free()
    }

    /// Whether the device follows linked lists, as it said when it was initialized.
    pub fn has_linked_lists(&self) -> bool {
        self.has_lists
    }

    /// Whether a channel is enabled or still active on a port.
    pub fn is_running(&mut self, channel: &Channel) -> bool {
        is_running(read_ccr(&mut self.io, usize::from(channel.index())))
    }

    /// Checks a configuration and writes it to a channel, which stays disabled. Events not yet handled are forgotten.
    ///
    /// # Errors
    /// [`ConfigureError`]; then nothing was written.
    pub fn configure(
        &mut self,
        channel: &Channel,
        config: &ChannelConfig,
        trusted: Option<&Trusted>,
    ) -> Result<(), ConfigureError> {
        self.check_configurable(channel)?;
        config.validate(trusted)?;
        self.write_config(channel, config);
        // Not every revision has the register.
        if self.has_lists {
            self.write(channel, Register::Cdp, 0);
        }
        self.configured |= channel.bit();
        self.lists &= !channel.bit();
        Ok(())
    }

    pub(super) fn check_configurable(&mut self, channel: &Channel) -> Result<(), ConfigureError> {
        let index = channel.index();
        if !self.initialized {
            Err(ConfigureError::NotInitialized)
        } else if self.channels.is_quarantined(channel) {
            Err(ConfigureError::Quarantined { channel: index })
        } else if self.is_running(channel) {
            Err(ConfigureError::Running { channel: index })
        } else {
            Ok(())
        }
    }

    pub(super) fn write_config(&mut self, channel: &Channel, config: &ChannelConfig) {
        let config = &harmless_source(config);
        let [source, destination] = [&config.source, &config.destination];
        let size = &config.size;
        self.forget_events(channel);
        self.write(channel, Register::ClnkCtrl, link_control(config.link).into_bits());
        self.write(channel, Register::Cicr, config.interrupts.cicr().into_bits());
        self.write(channel, Register::Csdp, parameters(config).into_bits());
        self.write(channel, Register::Cen, Cen::new().with_elements(size.elements).into_bits());
        self.write(channel, Register::Cfn, Cfn::new().with_frames(size.frames as u16).into_bits());
        self.write(channel, Register::Cssa, source.address as u32);
        self.write(channel, Register::Cdsa, destination.address as u32);
        let (element, frame) = indexes(config, Port::Source);
        self.write(channel, Register::Csei, u32::from(element as u16));
        self.write(channel, Register::Csfi, frame as u32);
        let (element, frame) = indexes(config, Port::Destination);
        self.write(channel, Register::Cdei, u32::from(element as u16));
        self.write(channel, Register::Cdfi, frame as u32);
        self.write(channel, Register::Color, color(config).into_bits());
        self.write(channel, Register::Ccr, control(config).into_bits());
    }

    /// Clears what the channel reported before, so that it is not taken for the next transfer's.
    pub(super) fn forget_events(&mut self, channel: &Channel) {
        self.write(channel, Register::Csr, Csr::ALL.into_bits());
        for line in (0..LINES).filter(|line| self.lines[*line] & channel.bit() != 0) {
            self.io.write(offset::irq_status(line), channel.bit());
        }
    }

    /// A channel that is enabled and waits for the same request line; chained channels are enabled one at a time.
    fn rival(&mut self, channel: u8, request: u8) -> Option<u8> {
        let mut others = (0..CHANNELS as u8).filter(|other| *other != channel && request != 0);
        others.find(|other| {
            let control = read_ccr(&mut self.io, usize::from(*other));
            control.enable() && control.request() == request
        })
    }

    /// Sets the enable bit of a configured channel: it starts, or waits for its request line.
    ///
    /// # Errors
    /// [`EnableError`]; then nothing was written.
    pub fn enable(&mut self, channel: &Channel) -> Result<(), EnableError> {
        let index = channel.index();
        if self.channels.is_quarantined(channel) {
            return Err(EnableError::Quarantined { channel: index });
        }
        if self.configured & channel.bit() == 0 {
            return Err(EnableError::NotConfigured { channel: index });
        }
        let control = read_ccr(&mut self.io, usize::from(index));
        if is_running(control) {
            return Err(EnableError::Running { channel: index });
        }
        if let Some(other) = self.rival(index, control.request()) {
            let request = u32::from(control.request()) - 1;
            return Err(EnableError::RequestTaken { channel: index, other, request });
        }
        if self.lists & channel.bit() != 0 {
            // The list will have overwritten the registers.
            self.configured &= !channel.bit();
        }
        self.write(channel, Register::Ccr, control.with_enable(true).into_bits());
        Ok(())
    }

    pub(super) fn write(&mut self, channel: &Channel, register: Register, value: u32) {
        self.io.write(offset::channel(usize::from(channel.index()), register), value);
    }

    pub(super) fn read(&mut self, channel: &Channel, register: Register) -> u32 {
        self.io.read(offset::channel(usize::from(channel.index()), register))
    }

    /// The registers and the clock, back.
    pub fn into_parts(self) -> (Io, C) {
        (self.io, self.clock)
    }
}

pub(super) fn read_ccr(io: &mut impl RegisterIo, channel: usize) -> Ccr {
    Ccr::from_bits(io.read(offset::channel(channel, Register::Ccr)))
}

pub(super) const fn is_running(control: Ccr) -> bool {
    control.enable() || control.read_active() || control.write_active()
}

pub(super) const fn link_control(next: Option<u8>) -> ClnkCtrl {
    match next {
        Some(next) => ClnkCtrl::new().with_next_channel(next).with_enable_link(true),
        None => ClnkCtrl::new(),
    }
}

/// Element and frame index of a side. A packet's size takes the place of the frame index on the side that asks for it,
/// whose address stays.
pub(super) fn indexes(config: &ChannelConfig, port: Port) -> (i16, i32) {
    let addressing = config.side(port).addressing;
    let element = addressing.element_index() as i16;
    let frame = addressing.frame_index() as i32;
    match config.synchronization {
        Some(sync) if sync.by == port => match sync.unit {
            SyncUnit::Packet { elements } => (element, elements as i32),
            _ => (element, frame),
        },
        _ => (element, frame),
    }
}

pub(super) const fn color(config: &ChannelConfig) -> Color {
    Color::new().with_value(config.operation.color())
}

pub(super) const fn parameters(config: &ChannelConfig) -> Csdp {
    Csdp::new()
        .with_data_type(config.size.element.data_type())
        .with_source_packed(config.source.packed)
        .with_source_burst(config.source.burst)
        .with_destination_packed(config.destination.packed)
        .with_destination_burst(config.destination.burst)
        .with_write_mode(config.write_mode)
}

/// Channel control, with the enable bit clear.
pub(super) fn control(config: &ChannelConfig) -> Ccr {
    let control = Ccr::new()
        .with_read_priority(config.read_priority == Priority::High)
        .with_write_priority(config.write_priority == Priority::High)
        .with_suspend_sensitive(config.suspend_sensitive)
        .with_source_addressing(config.source.addressing.mode())
        .with_destination_addressing(config.destination.addressing.mode())
        .with_constant_fill(matches!(config.operation, Operation::Fill { .. }))
        .with_transparent_copy(matches!(config.operation, Operation::TransparentCopy { .. }))
        .with_supervisor(config.supervisor);
    let Some(sync) = config.synchronization else { return control };
    let (frame, block) = match sync.unit {
        SyncUnit::Element => (false, false),
        SyncUnit::Frame => (true, false),
        SyncUnit::Block => (false, true),
        SyncUnit::Packet { .. } => (true, true),
    };
    control
        .with_request(sync.request as u8 + 1)
        .with_frame_sync(frame)
        .with_block_sync(block)
        .with_source_sync(sync.by == Port::Source)
        .with_prefetch(sync.prefetch)
        .with_buffering_disable(!sync.buffering)
}

/// A fill's source is not accessed and was not checked, so it is written as something harmless.
fn harmless_source(config: &ChannelConfig) -> ChannelConfig {
    let source = if config.operation.reads() { config.source } else { Side::memory(0) };
    ChannelConfig { source, ..*config }
}

#[cfg(test)]
pub(super) mod tests;
