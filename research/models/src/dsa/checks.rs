//! Checks of a descriptor when it is processed (5.4, 5.5, tables 5-2 to 5-5).

use super::Dsa;
use super::finish::End;
use super::origin::Origin;
use crate::Bus;
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation, opcode, rules, specific};
use memferry_dsa_registers::record::{self, Status};

/// Where a descriptor was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Queue,
    Batch,
}

impl<B: Bus> Dsa<B> {
    /// Checks a descriptor; how it ends if it breaks a rule.
    pub(super) fn check(&self, descriptor: &Descriptor, origin: &Origin, place: Place) -> Result<(), End> {
        let failed = |status| Err(End::new(status));
        let flags = descriptor.flags();
        if flags.record_valid() && !descriptor.record().is_multiple_of(record::BYTES) {
            return failed(Status::RecordMisaligned);
        }
        let mode = self.queues[origin.queue].mode();
        if !mode.dedicated() && origin.privileged && !self.pci.privileged {
            return failed(Status::InvalidPrivilege);
        }
        let code = descriptor.code();
        let nested = place == Place::Batch && matches!(code, opcode::BATCH | opcode::DRAIN);
        let Some(rules) = rules(code).filter(|_| self.allows(origin.queue, code) && !nested) else {
            return failed(Status::UnsupportedOperation);
        };
        let allowed = self.allowed_flags(rules.flags, descriptor, origin, place);
        let missing = Flags::from_bits(rules.required.into_bits() & !flags.into_bits());
        let notifies = flags.request_record() || flags.request_interrupt();
        let invalid = flags.into_bits() & !allowed.into_bits() | missing.into_bits();
        // A drain has to tell when it is complete (table 5-5).
        let invalid = match code {
            opcode::DRAIN if !notifies => {
                invalid | Flags::new().with_request_record(true).with_request_interrupt(true).into_bits()
            }
            _ => invalid,
        };
        if invalid != 0 {
            return Err(End { value: invalid.into(), ..End::new(Status::InvalidFlags) });
        }
        if self.has_reserved(descriptor, &rules.reserved) {
            return failed(Status::ReservedField);
        }
        if flags.request_interrupt() {
            self.check_interrupt(descriptor, origin)?;
        }
        self.check_operands(descriptor, origin)
    }

    /// Whether a work queue performs an operation.
    fn allows(&self, queue: usize, code: u8) -> bool {
        let configured = &self.queues[queue].words[8..];
        let in_queue = configured[usize::from(code) / 32] >> (code % 32) & 1 == 1;
        self.config.operations.contains(code) && (in_queue || !self.config.queues.operations_control())
    }

    /// Flags that a descriptor may have: of those that its operation knows, what device, queue, place and other flags permit (table 5-4).
    fn allowed_flags(&self, known: Flags, descriptor: &Descriptor, origin: &Origin, place: Place) -> Flags {
        let general = self.config.general;
        let mode = self.queues[origin.queue].mode();
        let flags = descriptor.flags();
        let mut may = known;
        let mut only_if = |permitted: bool, without: fn(Flags) -> Flags| {
            if !permitted {
                may = without(may);
            }
        };
        only_if(place == Place::Batch, |flags| flags.with_fence(false));
        only_if(mode.block_on_fault(), |flags| flags.with_block_on_fault(false));
        only_if(flags.record_valid(), |flags| flags.with_request_record(false).with_record_class_b(false));
        let user = mode.pasid_enable() && !origin.privileged;
        only_if(!user || self.control.gencfg.user_interrupts(), |flags| flags.with_request_interrupt(false));
        only_if(general.cache_control(), |flags| flags.with_to_cache(false));
        only_if(general.destination_readback(), |flags| flags.with_readback(false));
        // Cache control 3 alone is a durable write; with 2 it is a write with readback; with 1 it is reserved (table 8-4).
        let third = if flags.readback() { general.destination_readback() } else { general.durable_write() };
        only_if(third && !flags.to_cache(), |flags| flags.with_cache_control_3(false));
        let mut bits = may.specific();
        match descriptor.code() {
            opcode::BATCH if !general.batch_continuation() => bits = 0,
            opcode::FILL if !general.fill_16() => bits = 0,
            opcode::DRAIN if !general.drain_readback() => {
                bits &= specific::NO_READBACK_A | specific::NO_READBACK_B
            }
            opcode::CRC | opcode::COPY_CRC => {
                if !general.crc_64() {
                    bits &= !specific::CRC_64;
                }
                if flags.specific() & specific::READ_SEED == 0 {
                    may = may.with_third_class_b(false);
                }
            }
            _ => {}
        }
        if descriptor.code() == opcode::DRAIN {
            may = may
                .with_first_class_b(bits & flags.specific() & specific::READBACK_1 != 0)
                .with_second_class_b(bits & flags.specific() & specific::READBACK_2 != 0);
        }
        may.with_specific(bits)
    }

    /// Whether a reserved field is not zero.
    fn has_reserved(&self, descriptor: &Descriptor, reserved: &[u64; 8]) -> bool {
        let flags = descriptor.flags();
        let words = &descriptor.words;
        if words.iter().zip(reserved).any(|(word, reserved)| word & reserved != 0) {
            return true;
        }
        let set = |flag: u8| flags.specific() & flag != 0;
        let conditional = [
            (!flags.record_valid(), words[1] != 0),
            (!flags.request_interrupt(), descriptor.interrupt_handle() != 0),
        ];
        let of_operation = match descriptor.code() {
            opcode::DRAIN => {
                [(!set(specific::READBACK_1), words[2] != 0), (!set(specific::READBACK_2), words[3] != 0)]
            }
            opcode::FILL => [(!set(specific::PATTERN_16), words[5] != 0), (false, false)],
            opcode::CRC | opcode::COPY_CRC => {
                [(set(specific::READ_SEED), words[5] != 0), (!set(specific::READ_SEED), words[6] != 0)]
            }
            _ => [(false, false); 2],
        };
        let wide = matches!(descriptor.code(), opcode::CRC | opcode::COPY_CRC) && words[5] >> 32 != 0;
        wide || conditional.into_iter().chain(of_operation).any(|(applies, set)| applies && set)
    }

    fn check_interrupt(&self, descriptor: &Descriptor, origin: &Origin) -> Result<(), End> {
        let invalid = Err(End::new(Status::InvalidInterruptHandle));
        // There is no command for handles, so that they are indices of the MSI-X table (table 5-2).
        let index = usize::from(descriptor.interrupt_handle());
        let Some(permission) = self.permissions.get(index).filter(|_| !origin.ims) else { return invalid };
        let pasid = self.queues[origin.queue].mode().pasid_enable();
        let matches = permission.pasid_enable() == pasid && (!pasid || permission.pasid() == origin.pasid);
        if matches { Ok(()) } else { invalid }
    }

    fn check_operands(&self, descriptor: &Descriptor, origin: &Origin) -> Result<(), End> {
        let failed = |status| Err(End::new(status));
        let limits = self.queues[origin.queue].limits();
        let Some(operation) = descriptor.operation() else { return failed(Status::UnsupportedOperation) };
        if let Operation::Batch { list, count } = operation {
            let smallest = if self.config.general.batch_of_one() { 1 } else { 2 };
            let largest = 1_u32 << limits.max_batch();
            return if !(smallest..=largest).contains(&count) {
                failed(Status::InvalidCount)
            } else if !list.is_multiple_of(64) {
                failed(Status::ListMisaligned)
            } else {
                Ok(())
            };
        }
        if matches!(operation, Operation::Nop | Operation::Drain) {
            return Ok(());
        }
        let bytes = u64::from(operation.size());
        if bytes == 0 || bytes > 1 << limits.max_transfer() {
            return failed(Status::InvalidSize);
        }
        let overlaps = |one: u64, other: u64| one.abs_diff(other) < bytes;
        let may_overlap =
            matches!(operation, Operation::Move { .. }) && self.config.general.overlapping_copy();
        let reads = operation.reads();
        let writes = operation.writes();
        let clash =
            writes.iter().flatten().any(|write| reads.iter().flatten().any(|read| overlaps(*read, *write)));
        if clash && !may_overlap {
            return failed(Status::Overlap);
        }
        if let Operation::Dualcast { destinations: [first, second], .. } = operation {
            if (first ^ second) & 0xFFF != 0 {
                return failed(Status::DualcastMisaligned);
            }
            if overlaps(first, second) {
                return failed(Status::Overlap);
            }
        }
        let reads_seed = matches!(operation, Operation::Crc { .. } | Operation::CopyCrc { .. })
            && descriptor.flags().specific() & specific::READ_SEED != 0;
        if reads_seed && !descriptor.seed_address().is_multiple_of(4) {
            return failed(Status::AddressMisaligned);
        }
        Ok(())
    }
}
