//! Completion: the record, the interrupt, or the software error register (3.6, 3.7, 5.8.1, 9.2.15).

use super::origin::Origin;
use super::{Dsa, Event, Owner};
use crate::{Access, AccessKind, Bus};
use alloc::vec::Vec;
use memferry_dsa_registers::control::{DeviceState, Gensts};
use memferry_dsa_registers::descriptor::Descriptor;
use memferry_dsa_registers::error::{SoftwareError, Swerr, other};
use memferry_dsa_registers::record::{BYTES, Head, Record, Status};

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: Status,
    pub(super) result: u8,
    /// Bytes before a fault or a difference, or descriptors of a batch.
    pub(super) completed: u64,
    /// Address, whether it was a write, and the operand.
    pub(super) fault: Option<(u64, bool, u8)>,
    /// Invalid flags, or a CRC.
    pub(super) value: u64,
}

impl End {
    pub(super) const fn new(status: Status) -> Self {
        Self { status, result: 0, completed: 0, fault: None, value: 0 }
    }
}

/// What remains to be done for a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    owner: Owner,
    /// The record and its address, in the space below.
    record: Option<(u64, Record)>,
    space: u32,
    interrupt: Option<usize>,
    success: bool,
    /// What to report if the record cannot be written.
    error: SoftwareError,
}

impl<B: Bus> Dsa<B> {
    /// Completes a descriptor or a batch.
    pub(super) fn finish(
        &mut self,
        owner: Owner,
        engine: usize,
        descriptor: &Descriptor,
        origin: &Origin,
        batch_index: Option<u16>,
        end: End,
    ) {
        let flags = descriptor.flags();
        let success = end.status == Status::Success;
        let needs_record =
            !matches!(end.status, Status::Success | Status::FalsePredicate | Status::BatchFailed);
        let error = software_error(descriptor, origin, batch_index, &end);
        let goes_to_record = flags.record_valid() && !end.status.is_software_error();
        let space = origin.pasid;
        let mut completion = Completion { owner, record: None, space, interrupt: None, success, error };
        if goes_to_record && (flags.request_record() || needs_record) {
            completion.record = Some((descriptor.record(), record(&end, self.config.general.fault_info())));
        } else if needs_record {
            self.software_error(error);
        }
        let is_handle = end.status == Status::InvalidInterruptHandle;
        if is_handle && flags.record_valid() {
            // Reported twice (table 5-1).
            self.software_error(error);
        }
        if flags.request_interrupt() && !is_handle && !end.status.is_software_error() {
            completion.interrupt = Some(usize::from(descriptor.interrupt_handle()));
        }
        let at = self.completion_time(&completion);
        self.engines[engine].completions.push(completion);
        self.events.push(at, Event::Recorded(owner));
    }

    /// When the record is in memory.
    fn completion_time(&mut self, completion: &Completion) -> memferry_clock::Instant {
        let timing = self.config.timing;
        let Some((address, _)) = completion.record else {
            return self.now.after_picoseconds(1);
        };
        let left = self.link.writes.max(self.now).after_picoseconds(timing.on_link(BYTES));
        self.link.writes = left;
        let access = Access { address, bytes: BYTES as u32, kind: AccessKind::Write };
        self.bus.serve(left, access).after_picoseconds(timing.write_latency.max(1).into())
    }

    /// The record is in memory: raises the interrupt, and tells who waits.
    pub(super) fn recorded(&mut self, owner: Owner) {
        let engine = match owner {
            Owner::Work(serial) => self.works.get(&serial).map(|work| work.engine),
            Owner::Batch(serial) => self.batches.get(&serial).map(|batch| batch.engine),
        };
        let Some(engine) = engine else { return };
        let list = &mut self.engines[engine].completions;
        let Some(index) = list.iter().position(|completion| completion.owner == owner) else { return };
        let completion = list.remove(index);
        let written = completion
            .record
            .is_none_or(|(address, record)| self.write_record(completion.space, address, record));
        if !written {
            // Such an error has no interrupt of its own: the descriptor is not completed (3.13.3).
            self.software_error(completion.error_of_record());
        } else if let Some(vector) = completion.interrupt {
            self.interrupt(vector);
        }
        let success = completion.success && written;
        match owner {
            Owner::Work(serial) => {
                self.engines[engine].works.retain(|work| *work != serial);
                let batch = self.works.remove(&serial).and_then(|work| work.batch);
                if let Some((batch, _)) = batch {
                    self.child_ended(batch, success);
                }
            }
            Owner::Batch(serial) => {
                self.engines[engine].batches.retain(|batch| *batch != serial);
                self.batches.remove(&serial);
            }
        }
        self.check_drains();
        self.advance_command();
    }

    /// Whether the record could be written.
    fn write_record(&mut self, space: u32, address: u64, record: Record) -> bool {
        if !self.translates(space, address, true) || self.faults.hits(address, BYTES) {
            return false;
        }
        if self.faults.records_to_lose > 0 {
            self.faults.records_to_lose -= 1;
            return true;
        }
        let bytes: Vec<u8> = record.into_words().iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bus.write(address, &bytes).is_ok()
    }

    /// An interrupt of a descriptor's completion (3.7).
    fn interrupt(&mut self, vector: usize) {
        if self.permissions.get(vector).is_none_or(|permission| permission.ignore()) {
            return;
        }
        if self.faults.interrupts_to_lose > 0 {
            self.faults.interrupts_to_lose -= 1;
            return;
        }
        self.messages |= 1 << vector;
    }

    /// Records an error in SWERROR, or that it did not fit.
    pub(super) fn software_error(&mut self, error: SoftwareError) {
        if self.control.error.status.valid() {
            self.control.error.status.set_overflow(true);
            return;
        }
        self.control.error = SoftwareError { status: error.status.with_valid(true), ..error };
        if self.control.genctrl.software_error() {
            self.control.intcause.set_software_error(true);
            self.messages |= 1;
        }
    }

    /// Halts the device: descriptors are dropped, only a reset helps (5.7).
    pub(super) fn halt(&mut self) {
        let status = Swerr::new().with_code(other::CONFIGURATION_CHANGED);
        self.software_error(SoftwareError { status, ..SoftwareError::default() });
        self.control.state = DeviceState::Halted;
        self.control.reset = self.config.halt_reset;
        self.drop_everything();
        if self.control.genctrl.halt() {
            self.control.intcause.set_halt(true);
            self.messages |= 1;
        }
    }

    pub(super) fn general_status(&self) -> Gensts {
        Gensts::new().with_state(self.control.state).with_reset(self.control.reset)
    }
}

impl Completion {
    /// The record's page has no translation, or the write failed.
    fn error_of_record(&self) -> SoftwareError {
        let (address, _) = self.record.unwrap_or_default();
        let status = self.error.status.with_code(Status::RecordPageFault.code()).with_write(true);
        SoftwareError { status, address, information: 0, ..self.error }
    }
}

fn software_error(
    descriptor: &Descriptor,
    origin: &Origin,
    batch_index: Option<u16>,
    end: &End,
) -> SoftwareError {
    let status = Swerr::new()
        .with_descriptor_valid(true)
        .with_queue_valid(true)
        .with_queue(origin.queue as u8)
        .with_batch(batch_index.is_some())
        .with_write(end.fault.is_some_and(|(_, write, _)| write))
        .with_privileged(origin.privileged)
        .with_code(end.status.code())
        .with_operation(descriptor.code())
        .with_pasid(origin.pasid);
    let information = match end.status {
        Status::InvalidFlags => end.value as u32,
        Status::InvalidInterruptHandle => descriptor.interrupt_handle().into(),
        _ => 0,
    };
    let address = end.fault.map_or(0, |(address, ..)| address);
    SoftwareError { status, batch_index: batch_index.unwrap_or(0), information, address }
}

/// The record of an end (8.2).
fn record(end: &End, fault_info: bool) -> Record {
    let (address, write, operand) = end.fault.unwrap_or_default();
    let head = Head::new()
        .with_status(end.status.code())
        .with_write(write)
        .with_result(end.result)
        .with_completed(end.completed as u32)
        .with_operand(if fault_info { operand } else { 0 });
    Record { head, fault_address: address, value: end.value }
}
