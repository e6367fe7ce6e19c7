//! Initializes the device, and configures and enables channels in separate steps.
//!
//! ```text
//! Sdma::new ──► initialize: reset, wait, disable channels, FIFO depth ──► allocate ──► configure ──► enable ──► running
//! ```
//!
//! Configuration never sets the enable bit. Enabling is a separate write, so that transfers can be measured without the
//! configuration (paper, section 3.2.1). The implementation of register access must keep memory writes ahead of the write
//! that enables a channel. The `interrupt` module reports completions.

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

/// Settings of the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// FIFO entries that one channel may use; not zero.
    pub fifo_depth: u8,
    /// Grants to high priority channels between two grants to normal priority channels; not zero.
    pub arbitration_rate: u8,
    /// Threads reserved for high priority.
    pub reserved_threads: ThreadReservation,
    /// Division of the FIFO pool between the priorities.
    pub fifo_budget: FifoBudget,
    /// Maximum duration of the reset.
    pub reset_timeout: Duration,
}

impl Default for Settings {
    /// A FIFO depth of 128 holds two bursts of 64 bytes: one is written while the next is read. The device's reset value
    /// of 16 holds none (paper, 2.3.2.1). The other settings are the device's reset values.
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

/// Reason why the device was not initialized. It must not be used then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    #[error(
        "with a FIFO depth of zero no channel can transfer: set at least 1, and 64 for bursts of 64 bytes"
    )]
    FifoDepthZero,
    #[error("an arbitration rate of zero is not allowed: set at least 1")]
    ArbitrationRateZero,
    #[error("the device did not end its reset within {waited:?}: check its clocks and the base address")]
    ResetTimedOut {
        /// Duration of the wait.
        waited: Duration,
    },
    /// A disabled channel did not become idle.
    #[error("channel {channel} is still active {waited:?} after it was disabled: reset the whole chip")]
    ChannelStillActive {
        channel: u8,
        /// Duration of the wait.
        waited: Duration,
    },
}

/// Reason why a channel was not configured. No register was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigureError {
    #[error("the device is not initialized: call initialize first")]
    NotInitialized,
    /// The configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The channel is enabled, or still active on a port.
    #[error("channel {channel} is running: wait for its end, or stop it")]
    Running { channel: u8 },
    /// The channel did not drain and may still access memory.
    #[error("channel {channel} is quarantined: initialize the device again before using it")]
    Quarantined { channel: u8 },
    #[error("this device does not support linked lists: make each segment a transfer")]
    NoLinkedLists,
}

/// Reason why a channel was not enabled. No register was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EnableError {
    /// The channel has not been configured since the device was initialized.
    #[error("channel {channel} is not configured: configure it first")]
    NotConfigured { channel: u8 },
    /// The channel is enabled, or still active on a port.
    #[error("channel {channel} is running: wait for its end, or stop it")]
    Running { channel: u8 },
    /// The channel did not drain and may still access memory.
    #[error("channel {channel} is quarantined: initialize the device again before using it")]
    Quarantined { channel: u8 },
    /// Another enabled channel uses the same request line.
    #[error(
        "channel {channel} cannot use request line {request}, which channel {other} uses: stop that one, or link them"
    )]
    RequestTaken {
        channel: u8,
        /// The channel that uses the line.
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
    /// Set of channels whose registers hold a validated configuration.
    pub(super) configured: u32,
    /// Set of configured channels that follow a linked list.
    pub(super) lists: u32,
    /// For each line, the set of channels that interrupt on it.
    pub(super) lines: [u32; LINES],
    initialized: bool,
    has_lists: bool,
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Makes a driver of the device behind `io`, and its only [`Trusted`] token. Accesses no register.
    ///
    /// The clock bounds every wait, so it must advance while the driver polls; a simulated clock advances on each access.
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

    /// Resets the device and sets it up. A repeated call recovers from faults: it ends every transfer and quarantine.
    ///
    /// # Errors
    /// [`InitError`]; the timeout of `settings` bounds the wait for the reset and for each active channel.
    pub fn initialize(&mut self, settings: &Settings) -> Result<(), InitError> {
        if settings.fifo_depth == 0 {
            return Err(InitError::FifoDepthZero);
        }
        if settings.arbitration_rate == 0 {
            return Err(InitError::ArbitrationRateZero);
        }
        self.initialized = false;
        self.configured = 0;
        self.lists = 0;
        self.lines = [0; LINES];
        let waited = settings.reset_timeout;
        let configuration = OcpSysconfig::from_bits(self.io.read(offset::OCP_SYSCONFIG));
        self.io.write(offset::OCP_SYSCONFIG, configuration.with_soft_reset(true).into_bits());
        self.wait(waited, |io| SysStatus::from_bits(io.read(offset::SYSSTATUS)).reset_done())
            .map_err(|()| InitError::ResetTimedOut { waited })?;
        for line in 0..LINES {
            self.io.write(offset::irq_enable(line), 0);
        }
        for channel in 0..CHANNELS {
            self.disable_channel(channel);
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

    /// Disables a channel and clears its events. Not every revision has a reset, so channels may still run.
    fn disable_channel(&mut self, channel: usize) {
        for register in [Register::ClnkCtrl, Register::Cicr, Register::Ccr] {
            self.io.write(offset::channel(channel, register), 0);
        }
        self.io.write(offset::channel(channel, Register::Csr), Csr::ALL.into_bits());
    }

    /// Polls until `done` or `timeout`. Checks once more after the deadline, since the thread may have been delayed.
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
    /// [`AllChannelsBusy`]; the caller decides whether to wait.
    pub fn allocate(&mut self) -> Result<Channel, AllChannelsBusy> {
        self.channels.allocate()
    }

    /// Takes channel `index`.
    ///
    /// # Errors
    /// [`ChannelTaken`], also for a channel that does not exist.
    pub fn take(&mut self, index: u8) -> Result<Channel, ChannelTaken> {
        self.channels.take(index)
    }

    /// Gives a channel back. A quarantined channel stays quarantined.
    ///
    /// # Errors
    /// The channel itself while it is running: stop it first.
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

    /// Number of channels that are neither taken nor quarantined.
    pub fn free_channels(&self) -> u32 {
        self.channels.free()
    }

    /// Whether the device supports linked lists; `false` before it is initialized.
    pub fn has_linked_lists(&self) -> bool {
        self.has_lists
    }

    /// Whether a channel is enabled or still active on a port.
    pub fn is_running(&mut self, channel: &Channel) -> bool {
        is_running(read_ccr(&mut self.io, usize::from(channel.index())))
    }

    /// Validates a configuration and writes it to a channel, which stays disabled. Drops the channel's pending events.
    ///
    /// # Errors
    /// [`ConfigureError`]; no register was written then.
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
        let config = &without_unused_source(config);
        let [source, destination] = [&config.source, &config.destination];
        let size = &config.size;
        self.clear_events(channel);
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

    /// Clears the channel's pending events, which would otherwise be attributed to the next transfer.
    pub(super) fn clear_events(&mut self, channel: &Channel) {
        self.write(channel, Register::Csr, Csr::ALL.into_bits());
        for line in (0..LINES).filter(|line| self.lines[*line] & channel.bit() != 0) {
            self.io.write(offset::irq_status(line), channel.bit());
        }
    }

    /// Another enabled channel that uses the same request line. Of linked channels, only one is enabled at a time.
    fn other_user_of(&mut self, request: u8, channel: u8) -> Option<u8> {
        let mut others = (0..CHANNELS as u8).filter(|other| *other != channel && request != 0);
        others.find(|other| {
            let control = read_ccr(&mut self.io, usize::from(*other));
            control.enable() && control.request() == request
        })
    }

    /// Enables a configured channel: it starts, or waits for its request line.
    ///
    /// # Errors
    /// [`EnableError`]; no register was written then.
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
        if let Some(other) = self.other_user_of(control.request(), index) {
            let request = u32::from(control.request()) - 1;
            return Err(EnableError::RequestTaken { channel: index, other, request });
        }
        if self.lists & channel.bit() != 0 {
            // The list overwrites the registers, so a second run needs a new configuration.
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

    /// Gives back the registers and the clock.
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

/// Element and frame index of a side. On the side that requests packets, whose address is constant, the frame index
/// register holds the packet's size.
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

/// Replaces the source of a fill by address zero, because validation does not check it. The device does not access it.
fn without_unused_source(config: &ChannelConfig) -> ChannelConfig {
    let source = if config.operation.reads() { config.source } else { Side::memory(0) };
    ChannelConfig { source, ..*config }
}

#[cfg(test)]
pub(super) mod tests;
