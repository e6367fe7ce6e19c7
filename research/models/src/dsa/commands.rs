//! Administrative commands (3.15, 9.2.12), and the checks at enabling (5.1, 5.2).

use super::queues::WorkQueue;
use super::{Dsa, Event};
use crate::Bus;
use alloc::vec::Vec;
use memferry_clock::Instant;
use memferry_dsa_registers::control::{
    Cmd, Cmdsts, Command, CommandError, DeviceState, Genctrl, Intcause, NoCommand, QueueSet, ResetType,
};
use memferry_dsa_registers::error::{SoftwareError, Swerr, other};
use memferry_dsa_registers::offset::{GROUP_FLAGS, Tables};
use memferry_dsa_registers::table::{Grpflags, Msixperm, QueueState, word};

/// A command in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    command: Command,
    interrupt: bool,
    earliest: Instant,
    /// Descriptors accepted until it was given.
    order: u64,
}

impl<B: Bus> Dsa<B> {
    /// A write to CMD.
    pub(super) fn give_command(&mut self, cmd: Cmd) {
        if self.command.is_some() {
            let status = Swerr::new().with_code(other::COMMAND_ACTIVE);
            return self.software_error(SoftwareError { status, ..SoftwareError::default() });
        }
        let checked = self.check_command(cmd);
        let command = match checked {
            Ok(command) => command,
            Err(error) => return self.end_command(error.code(), cmd.interrupt()),
        };
        self.begin_command(command);
        let earliest = self.now.after_picoseconds(self.config.timing.command.max(1).into());
        self.command = Some(Running { command, interrupt: cmd.interrupt(), earliest, order: self.order });
        self.control.cmdsts = Cmdsts::new().with_active(true);
        self.events.push(earliest, Event::Command);
    }

    fn check_command(&self, cmd: Cmd) -> Result<Command, CommandError> {
        let command = Command::decode(cmd).map_err(|error| match error {
            NoCommand::Code(_) => CommandError::UnknownCommand,
            NoCommand::Reserved => CommandError::ReservedField,
        })?;
        if self.control.state == DeviceState::Halted && command != Command::ResetDevice {
            return Err(CommandError::HaltedDevice);
        }
        if self.control.state == DeviceState::Halted && self.control.reset != ResetType::Software {
            return Err(CommandError::HaltedDevice);
        }
        match command {
            Command::EnableDevice => self.check_device()?,
            Command::DisableDevice if self.control.state != DeviceState::Enabled => {
                return Err(CommandError::DisableDeviceNotEnabled);
            }
            Command::EnableQueue(queue) => self.check_queue(queue)?,
            Command::DisableQueues(set) | Command::DrainQueues(set) | Command::AbortQueues(set) => {
                let enabled = |queue: usize| self.queues[queue].state == QueueState::Enabled;
                if !self.check_set(set)?.into_iter().all(enabled) {
                    return Err(CommandError::QueueNotEnabled);
                }
            }
            Command::ResetQueues(set) => drop(self.check_set(set)?),
            _ => {}
        }
        Ok(command)
    }

    fn check_set(&self, set: QueueSet) -> Result<Vec<usize>, CommandError> {
        let queues: Vec<usize> = set.queues().collect();
        let exist = queues.iter().all(|queue| *queue < self.queues.len());
        if exist { Ok(queues) } else { Err(CommandError::NoSuchQueue) }
    }

    /// Device enable checks (5.1).
    fn check_device(&self) -> Result<(), CommandError> {
        if self.control.state != DeviceState::Disabled {
            return Err(CommandError::DeviceNotDisabled);
        }
        if !self.pci.bus_master {
            return Err(CommandError::NoBusMaster);
        }
        let sizes: usize = self.queues.iter().map(WorkQueue::size).sum();
        if sizes > usize::from(self.config.queues.total_size()) {
            return Err(CommandError::QueueSizes);
        }
        let all = |count: usize| 1_u64.checked_shl(count as u32).map_or(u64::MAX, |bit| bit - 1);
        let mut queues = 0;
        let mut engines = 0;
        for group in &self.groups {
            let [members, beyond @ ..] = group.queues;
            if (members == 0) != (group.engines == 0) {
                return Err(CommandError::GroupIncomplete);
            }
            if beyond != [0; 3] || members & !all(self.queues.len()) != 0 || members & queues != 0 {
                return Err(CommandError::GroupQueues);
            }
            if group.engines & !all(self.engines.len()) != 0 || group.engines & engines != 0 {
                return Err(CommandError::GroupEngines);
            }
            (queues, engines) = (queues | members, engines | group.engines);
        }
        let active = self.queues.iter().enumerate().fold(0, |active, (index, queue)| {
            if queue.size() > 0 { active | 1_u64 << index } else { active }
        });
        if active != queues {
            return Err(CommandError::GroupQueues);
        }
        if self.control.gencfg.event_log() {
            return Err(CommandError::EventLog);
        }
        self.check_buffers()
    }

    /// Checks of read buffers, and of the other flags of groups.
    fn check_buffers(&self) -> Result<(), CommandError> {
        let have = self.config.groups;
        let total = u32::from(have.read_buffers());
        let used = || self.groups.iter().filter(|group| group.engines != 0);
        let reserved: u32 = used().map(|group| u32::from(group.flags.read_buffers_reserved())).sum();
        let limits_engines: u32 = used()
            .filter(|group| group.flags.use_read_buffer_limit())
            .map(|group| group.engines.count_ones())
            .sum();
        let limit = u32::from(self.control.gencfg.read_buffer_limit());
        let limit_is_wrong = match have.read_buffer_limit() {
            false => limits_engines > 0,
            true => limit > total || (limits_engines > 0 && limit < 4 * limits_engines),
        };
        let group_is_wrong = |flags: Grpflags, engines: u64| {
            let own = u32::from(flags.read_buffers_reserved());
            let allowed = u32::from(flags.read_buffers_allowed());
            let least = (4 * engines.count_ones()).max(own);
            let most = own + total.saturating_sub(reserved);
            have.read_buffer_control() && !(least..=most).contains(&allowed)
        };
        let bandwidth = |flags: Grpflags| flags.read_bandwidth() | flags.write_bandwidth();
        let wrong = limit_is_wrong
            || have.read_buffer_control() && reserved > total
            || used().any(|group| group_is_wrong(group.flags, group.engines) || bandwidth(group.flags) != 0);
        if wrong { Err(CommandError::ReadBuffers) } else { Ok(()) }
    }

    /// Work queue enable checks (5.2).
    fn check_queue(&self, index: u8) -> Result<(), CommandError> {
        if self.control.state != DeviceState::Enabled {
            return Err(CommandError::DeviceNotEnabled);
        }
        let queue = self.queues.get(usize::from(index)).ok_or(CommandError::NoSuchQueue)?;
        let have = self.config.queues;
        let mode = queue.mode();
        let limits = queue.limits();
        let general = self.config.general;
        let operations = queue.words[word::OPERATIONS as usize..].chunks_exact(2);
        let device = self.config.operations.0;
        let allows_more = operations
            .zip(device)
            .any(|(words, device)| (u64::from(words[0]) | u64::from(words[1]) << 32) & !device != 0);
        let batches = self.config.operations.contains(memferry_dsa_registers::descriptor::opcode::BATCH);
        let no_batch = batches && limits.max_batch() == 0 && !general.batch_of_one();
        let wrong = [
            (queue.state != QueueState::Disabled, CommandError::QueueNotDisabled),
            (queue.size() == 0, CommandError::QueueEmpty),
            (have.priority() && mode.priority() == 0, CommandError::QueuePriority),
            (if mode.dedicated() { !have.dedicated() } else { !have.shared() }, CommandError::QueueMode),
            (
                mode.block_on_fault() && !(general.block_on_fault() && self.pci.page_requests),
                CommandError::QueueBlockOnFault,
            ),
            (!mode.dedicated() && !mode.pasid_enable(), CommandError::QueuePasid),
            (mode.pasid_enable() && !self.pci.pasid, CommandError::QueuePasid),
            (
                mode.dedicated() && mode.pasid_enable() && mode.privileged() && !self.pci.privileged,
                CommandError::QueuePrivilege,
            ),
            (limits.max_transfer() > general.max_transfer(), CommandError::QueueTransfer),
            (no_batch || limits.max_batch() > general.max_batch(), CommandError::QueueBatch),
            (have.operations_control() && allows_more, CommandError::QueueOperations),
        ];
        wrong.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// What a command does at once.
    fn begin_command(&mut self, command: Command) {
        match command {
            Command::DisableQueues(set) => self.drain_queues(set, false),
            Command::AbortQueues(set) => set.queues().for_each(|queue| self.queues[queue].entries.clear()),
            Command::ResetQueues(set) => self.drain_queues(set, true),
            Command::AbortAll => self.queues.iter_mut().for_each(|queue| queue.entries.clear()),
            Command::AbortPasid(pasid) => {
                for queue in &mut self.queues {
                    queue.entries.retain(|entry| entry.origin.pasid != pasid);
                }
            }
            Command::DisableDevice | Command::ResetDevice => {
                let resets = command == Command::ResetDevice;
                self.control.state = DeviceState::Draining;
                for queue in &mut self.queues {
                    if queue.state == QueueState::Enabled {
                        queue.state = QueueState::Draining;
                    }
                    if resets {
                        queue.entries.clear();
                    }
                }
            }
            _ => {}
        }
    }

    fn drain_queues(&mut self, set: QueueSet, drop: bool) {
        for queue in set.queues() {
            let queue = &mut self.queues[queue];
            if queue.state == QueueState::Enabled {
                queue.state = QueueState::Draining;
            }
            if drop {
                queue.entries.clear();
            }
        }
    }

    /// Ends the command in progress, if what it waits for is over.
    pub(super) fn advance_command(&mut self) {
        let Some(running) = self.command.filter(|running| running.earliest <= self.now) else { return };
        let is_set = |set: QueueSet, queue: usize| set.queues().any(|of| of == queue);
        let waits = match running.command {
            Command::EnableDevice | Command::EnableQueue(_) => false,
            Command::DisableDevice | Command::ResetDevice => self.has(|_, _, _| true),
            Command::DrainAll | Command::AbortAll => self.has(|_, _, order| order <= running.order),
            Command::DisableQueues(set) | Command::ResetQueues(set) => {
                self.has(|queue, _, _| is_set(set, queue))
            }
            Command::DrainQueues(set) | Command::AbortQueues(set) => {
                self.has(|queue, _, order| order <= running.order && is_set(set, queue))
            }
            Command::DrainPasid(of) | Command::AbortPasid(of) => {
                self.has(|_, pasid, order| order <= running.order && pasid == of)
            }
        };
        if waits {
            return;
        }
        self.command = None;
        self.complete_command(running.command);
        self.end_command(0, running.interrupt);
    }

    /// Whether there is a descriptor, in a queue or an engine, of such a queue, PASID and order.
    fn has(&self, such: impl Fn(usize, u32, u64) -> bool) -> bool {
        let queued = self.queues.iter().flat_map(|queue| queue.entries.iter().map(|entry| &entry.origin));
        let working = self.works.values().map(|work| &work.origin);
        let batches = self.batches.values().map(|batch| &batch.origin);
        queued.chain(working).chain(batches).any(|origin| such(origin.queue, origin.pasid, origin.order))
    }

    /// What a command does at its end.
    fn complete_command(&mut self, command: Command) {
        match command {
            Command::EnableDevice => self.control.state = DeviceState::Enabled,
            Command::EnableQueue(queue) => {
                if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
                    queue.state = QueueState::Enabled;
                }
            }
            Command::DisableQueues(set) => {
                set.queues().for_each(|queue| self.queues[queue].state = QueueState::Disabled);
            }
            Command::ResetQueues(set) => set.queues().for_each(|queue| self.reset_queue(queue, true)),
            Command::DisableDevice => {
                self.queues.iter_mut().for_each(|queue| queue.state = QueueState::Disabled);
                self.control.state = DeviceState::Disabled;
            }
            Command::ResetDevice => self.clear_configuration(),
            _ => {}
        }
    }

    fn end_command(&mut self, error: u8, interrupt: bool) {
        self.control.cmdsts = Cmdsts::new().with_error(error);
        if interrupt {
            self.control.intcause.set_command(true);
            self.messages |= 1;
        }
    }

    fn reset_queue(&mut self, queue: usize, keep_size: bool) {
        let size = self.queues[queue].words[word::SIZE as usize];
        let mut fresh = WorkQueue::default();
        if keep_size {
            fresh.words[word::SIZE as usize] = size;
        }
        let operations = self.config.operations.0;
        for (words, bits) in fresh.words[word::OPERATIONS as usize..].chunks_exact_mut(2).zip(operations) {
            (words[0], words[1]) = (bits as u32, (bits >> 32) as u32);
        }
        self.queues[queue] = fresh;
    }

    /// The configuration after a reset (table 9-3). CMD, CMDSTATUS and SWERROR stay.
    pub(super) fn clear_configuration(&mut self) {
        let total = self.config.groups.read_buffers();
        let control = &mut self.control;
        control.gencfg = memferry_dsa_registers::control::Gencfg::new().with_read_buffer_limit(total);
        (control.genctrl, control.intcause) = (Genctrl::new(), Intcause::new());
        (control.state, control.reset) = (DeviceState::Disabled, ResetType::Software);
        for group in &mut self.groups {
            (group.queues, group.engines) = ([0; 4], 0);
            group.flags = Grpflags::new().with_read_buffers_allowed(total);
        }
        self.permissions.fill(Msixperm::new());
        (0..self.queues.len()).for_each(|queue| self.reset_queue(queue, false));
    }

    /// Drops everything in queues and engines, as a halt does.
    pub(super) fn drop_everything(&mut self) {
        self.works.clear();
        self.batches.clear();
        for queue in &mut self.queues {
            queue.entries.clear();
            queue.state = QueueState::Disabled;
        }
        for engine in &mut self.engines {
            engine.works.clear();
            engine.batches.clear();
            engine.completions.clear();
        }
        self.groups.iter_mut().for_each(|group| group.buffers = 0);
        if let Some(running) = self.command.take() {
            self.end_command(CommandError::HaltedDevice.code(), running.interrupt);
        }
    }
}

/// The tables of the model: where the examples of the specification have them (figure 9-1).
pub(super) const fn tables(entry_bytes: u32) -> Tables {
    Tables { groups: 0x600, queues: 0x800, permissions: 0x400, queue_bytes: entry_bytes }
}

const _: () = assert!(GROUP_FLAGS == 40);
