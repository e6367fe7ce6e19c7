//! Starts blocks and follows what comes after them: loading descriptors, linking channels.
//!
//! ```text
//! enabled ──► block ──► ended ──► link to another channel, or
//!    │          ▲         ├────► end of super block, or
//!    └─ fast ─► load ◄────┘      next descriptor, after a pause when it says so
//! ```
//!
//! A channel that links to another before the end of its list continues with its next descriptor when it is enabled
//! again. Descriptors are read through the read port without occupying a thread.

use super::channel::{Block, Channel, Run, State};
use super::complaint::Reason;
use super::setup::latch;
use super::{Event, Sdma};
use crate::Bus;
use memferry_registers::sdma::descriptor::{Body, Descriptor, Form, MAX_BYTES, Shape, Whole};
use memferry_registers::sdma::{AddressSource, ClnkCtrl, Cndp, Csr, Register};

impl<B: Bus> Sdma<B> {
    /// Starts an enabled channel.
    pub(super) fn start(&mut self, channel: usize) {
        let state = &mut self.channels[channel];
        let resumes = core::mem::take(&mut state.resumes_list);
        if !resumes {
            let registers = &state.registers;
            state.ended = (registers.get(Register::Cssa), registers.get(Register::Cdsa));
        }
        state.run = Some(Run::new(State::Loading));
        self.running.insert(channel);
        if state.follows_list() && (resumes || state.registers.cdp().fast_start()) {
            self.load(channel);
        } else {
            self.start_block(channel);
        }
    }

    /// Starts the block that the registers describe; if they are invalid, disables the channel.
    pub(super) fn start_block(&mut self, channel: usize) {
        let (setup, broken) = latch(&self.channels[channel].registers, self.gcr, &self.config);
        for (register, reason) in broken {
            self.complain(channel, register, reason);
        }
        let Some(setup) = setup else {
            return self.finish(channel);
        };
        if let Some(run) = self.channels[channel].run.as_mut() {
            run.state = State::Active;
            run.block = Some(Block::new(setup));
        }
        self.grant(channel);
    }

    /// Continues a paused list after software cleared the pause.
    pub(super) fn resume(&mut self, channel: usize) {
        if self.channels[channel].state() == Some(State::Paused) {
            self.start_block(channel);
        }
    }

    fn load(&mut self, channel: usize) {
        let registers = &self.channels[channel].registers;
        let next = Cndp::from_bits(registers.get(Register::Cndp));
        let Some(form) = Form::announced(registers.cdp()).filter(|_| !next.is_end()) else {
            self.complain(channel, Register::Cdp, Reason::BadDescriptor);
            return self.finish(channel);
        };
        if let Some(run) = self.channels[channel].run.as_mut() {
            run.state = State::Loading;
            run.block = None;
            run.loading = true;
        }
        self.show_sync(channel, false);
        let address = next.address();
        let served = self.read_served(address, form.bytes() as u32);
        let done = served.after_picoseconds(self.config.timing.descriptor.into());
        self.events.push(done, Event::Descriptor { channel, address, form });
    }

    /// Handles an arrived descriptor.
    pub(super) fn loaded(&mut self, channel: usize, address: u32, form: Form) {
        let mut bytes = [0; MAX_BYTES];
        let bytes = &mut bytes[..form.bytes()];
        let result = self.bus_read(address, bytes);
        let Some(run) = self.channels[channel].run.as_mut() else {
            return;
        };
        run.loading = false;
        if run.state == State::Aborting {
            return self.settle(channel);
        }
        let Some(descriptor) = Descriptor::decode(form, bytes).filter(|_| result.is_ok()) else {
            return self.fail(channel, Csr::new().with_transaction_error(true));
        };
        self.channels[channel].apply(&descriptor);
        if !descriptor.next.pause() {
            self.start_block(channel);
        } else if let Some(run) = self.channels[channel].run.as_mut() {
            run.state = State::Paused;
        }
    }

    /// Handles the end of a block.
    pub(super) fn block_ended(&mut self, channel: usize) {
        let state = &mut self.channels[channel];
        if let Some(block) = state.block() {
            state.ended = (block.setup.source.address(), block.setup.destination.address());
        }
        let registers = &state.registers;
        let link = ClnkCtrl::from_bits(registers.get(Register::ClnkCtrl));
        let list_ends = Cndp::from_bits(registers.get(Register::Cndp)).is_end();
        let follows_list = state.follows_list();
        self.report(channel, Csr::new().with_block(true));
        if follows_list && !list_ends && !link.enable_link() {
            return self.load(channel);
        }
        self.finish(channel);
        self.channels[channel].resumes_list = follows_list && !list_ends;
        if follows_list && list_ends {
            self.report(channel, Csr::new().with_super_block(true));
        }
        if link.enable_link() {
            self.link(channel, usize::from(link.next_channel()));
        }
    }

    fn link(&mut self, from: usize, to: usize) {
        if self.channels[to].run.is_some() || self.channels[to].registers.ccr().enable() {
            return self.complain(from, Register::ClnkCtrl, Reason::LinkToEnabled);
        }
        let target = &self.channels[to];
        if target.follows_list() && target.registers.cdp().fast_start() && !target.resumes_list {
            self.complain(to, Register::Cdp, Reason::LinkToFastStart);
        }
        self.channels[to].registers.set_enable(true);
        self.check_request_shared(to);
        self.start(to);
    }

    /// Ends a channel with no transaction in flight.
    fn finish(&mut self, channel: usize) {
        self.channels[channel].run = None;
        self.running.remove(channel);
        self.channels[channel].registers.set_enable(false);
        self.show_sync(channel, false);
    }
}

impl Channel {
    /// Loads a descriptor into the registers. The previous descriptor determines addresses that this one omits.
    fn apply(&mut self, descriptor: &Descriptor) {
        let announced = self.registers.cdp();
        let (source, destination) = self.ended;
        let address = |given: Option<u32>, from: AddressSource, ended| match from {
            AddressSource::Continue => given.or(Some(ended)),
            _ => given,
        };
        let source = address(descriptor.source, announced.source_valid(), source);
        let destination = address(descriptor.destination, announced.destination_valid(), destination);
        source.into_iter().for_each(|address| self.registers.set(Register::Cssa, address));
        destination.into_iter().for_each(|address| self.registers.set(Register::Cdsa, address));
        self.registers.set(Register::Cen, descriptor.header.elements());
        self.registers.set(Register::Cndp, descriptor.next.pointer().into_bits());
        let cdp = announced
            .with_next_descriptor_type(descriptor.header.next_type())
            .with_source_valid(descriptor.header.next_source())
            .with_destination_valid(descriptor.header.next_destination())
            .with_pause(descriptor.next.pause());
        self.registers.set(Register::Cdp, cdp.into_bits());
        let number = self.registers.get(Register::Ccdn).wrapping_add(1);
        self.registers.set(Register::Ccdn, number);
        match descriptor.body {
            Body::Type1(shape, whole) => {
                self.apply_shape(&shape);
                self.apply_whole(&whole);
            }
            Body::Type2(shape) => self.apply_shape(&shape),
            Body::Type3 => {
                let cicr = self.registers.cicr().with_block(descriptor.header.block_interrupt());
                self.registers.set(Register::Cicr, cicr.into_bits());
            }
        }
    }

    fn apply_shape(&mut self, shape: &Shape) {
        self.registers.set(Register::Cicr, shape.cicr.into_bits());
        self.registers.set(Register::Cfn, shape.cfn.into_bits());
        self.registers.set(Register::Csei, u32::from(shape.source_element_index as u16));
        self.registers.set(Register::Cdei, u32::from(shape.destination_element_index as u16));
        self.registers.set(Register::Csfi, shape.source_frame_index as u32);
        self.registers.set(Register::Cdfi, shape.destination_frame_index as u32);
    }

    /// Neither the enable bit nor the supervisor bit can be changed by a descriptor.
    fn apply_whole(&mut self, whole: &Whole) {
        let ccr = self.registers.ccr();
        let loaded = whole.ccr.with_enable(true).with_read_active(false).with_write_active(false);
        self.registers.set(Register::Ccr, loaded.with_supervisor(ccr.supervisor()).into_bits());
        self.registers.set(Register::Color, whole.color.into_bits());
        self.registers.set(Register::Csdp, whole.csdp.into_bits());
        self.registers.set(Register::ClnkCtrl, whole.clnk_ctrl.into_bits());
    }
}
