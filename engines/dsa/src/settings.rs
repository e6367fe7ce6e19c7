//! What sysfs says about a work queue, and what follows for its use.

use std::io;

use memferry_dsa::Limits;
use memferry_dsa::registers::capability::{Gencap, Opcap};
use memferry_dsa::registers::descriptor::opcode;
use memferry_engine::Operations;

use crate::error::OpenError;
use crate::kernel::{Kernel, Mode};
use crate::name::QueueName;

/// A work queue of type user that is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub mode: Mode,
    /// Descriptors that may be outstanding.
    pub entries: u16,
    pub group: i16,
    pub limits: Limits,
}

impl Settings {
    /// Reads and checks the settings of a queue.
    pub(crate) fn read<K: Kernel>(kernel: &K, queue: QueueName) -> Result<Self, OpenError> {
        let device = queue.device();
        let of = |file: &str| format!("{device}/{queue}/{file}");
        let kind = kernel.attribute(&of("type")).map_err(|source| missing(kernel, queue, source))?;
        if kind != "user" {
            return Err(OpenError::NotUser { queue, kind });
        }
        let text =
            |file: String| kernel.attribute(&file).map_err(|source| OpenError::Sysfs { queue, file, source });
        let state = text(of("state"))?;
        if state != "enabled" {
            return Err(OpenError::NotEnabled { queue, state });
        }
        if text(format!("{device}/pasid_enabled"))? != "1" {
            return Err(OpenError::NoSharedMemory { queue });
        }
        let number = |file: String| {
            let value = text(file.clone())?;
            value.parse::<u64>().map_err(|_| OpenError::Value { queue, file, value })
        };
        let mode = match text(of("mode"))?.as_str() {
            "dedicated" => Mode::Dedicated,
            "shared" => Mode::Shared,
            other => return Err(OpenError::Value { queue, file: of("mode"), value: other.to_owned() }),
        };
        let size = number(of("size"))?;
        // Through the portal of users a shared queue fills up to its threshold.
        let entries = if mode == Mode::Shared { number(of("threshold"))?.min(size) } else { size };
        if entries == 0 {
            return Err(OpenError::NoEntries { queue });
        }
        let general = hexadecimal(&text(format!("{device}/gen_cap"))?).map(Gencap::from_bits);
        let file = format!("{device}/gen_cap");
        let general = general.ok_or(OpenError::Value { queue, file, value: "no number".to_owned() })?;
        let operations = operations(kernel, queue)?;
        let longest = number(of("max_transfer_size"))?.min(1 << 31);
        let batch = number(of("max_batch_size"))?.min(1 << 16);
        if longest == 0 || !operations.contains(opcode::MOVE) {
            return Err(OpenError::NoMoves { queue });
        }
        let limits = Limits {
            longest,
            largest_batch: if operations.contains(opcode::BATCH) { batch as u32 } else { 0 },
            batch_of_one: general.batch_of_one(),
            operations,
            overlapping_moves: general.overlapping_copy(),
            cache_control: general.cache_control(),
            // Faults end a descriptor early instead: another client's request must not wait behind a page.
            block_on_fault: false,
            fault_info: general.fault_info(),
        };
        let group = kernel.attribute(&of("group_id")).ok().and_then(|group| group.parse().ok());
        let entries = u16::try_from(entries).unwrap_or(u16::MAX);
        Ok(Self { mode, entries, group: group.unwrap_or(-1), limits })
    }

    /// What the queue does for a service.
    pub(crate) fn operations(&self) -> Operations {
        let has = |codes: &[u8]| codes.iter().all(|code| self.limits.operations.contains(*code));
        let mut all = Operations::COPY | Operations::SCATTER_GATHER;
        all.set(Operations::FILL, has(&[opcode::FILL]));
        all.set(Operations::COMPARE, has(&[opcode::COMPARE]));
        all.set(Operations::CRC, has(&[opcode::CRC]));
        // Operands that overlap take a CRC and a move.
        all.set(Operations::COPY_CRC, has(&[opcode::COPY_CRC, opcode::CRC]));
        all.set(Operations::DUAL_COPY, has(&[opcode::DUALCAST]));
        all
    }
}

/// Why the type of a queue cannot be read.
fn missing<K: Kernel>(kernel: &K, queue: QueueName, source: io::Error) -> OpenError {
    if source.kind() != io::ErrorKind::NotFound {
        return OpenError::Sysfs { queue, file: format!("{}/{queue}/type", queue.device()), source };
    }
    let mut others: Vec<QueueName> = kernel
        .names("")
        .unwrap_or_default()
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|name: &QueueName| {
            kernel.attribute(&format!("{}/{name}/type", name.device())).is_ok_and(|kind| kind == "user")
        })
        .collect();
    others.sort_unstable();
    OpenError::NoQueue { queue, others }
}

/// The operations of a queue: its own set where the kernel has one, less those that the device does not have.
fn operations<K: Kernel>(kernel: &K, queue: QueueName) -> Result<Opcap, OpenError> {
    let device = queue.device();
    let read = |file: String| match kernel.attribute(&file) {
        Ok(text) => operation_set(&text).map(Some).ok_or(OpenError::Value { queue, file, value: text }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Sysfs { queue, file, source }),
    };
    let file = format!("{device}/op_cap");
    let absent = || OpenError::Sysfs { queue, file: file.clone(), source: io::ErrorKind::NotFound.into() };
    let mut set = read(file.clone())?.ok_or_else(absent)?;
    // A queue's set is empty where the device cannot restrict one.
    let own = read(format!("{device}/{queue}/op_config"))?.filter(|own| *own != Opcap::default());
    if let Some(own) = own {
        set.0.iter_mut().zip(own.0).for_each(|(all, own)| *all &= own);
    }
    Ok(set)
}

/// The set in one of the forms that kernels had: words of 32 bits, the highest first, with commas; before Linux 6.2, four words of 64 bits with
/// 0x, the lowest first.
fn operation_set(text: &str) -> Option<Opcap> {
    let mut set = Opcap::default();
    if text.contains(' ') {
        for (place, word) in text.split_whitespace().enumerate() {
            *set.0.get_mut(place)? = hexadecimal(word)?;
        }
        return Some(set);
    }
    for (place, word) in text.rsplit(',').enumerate() {
        let bits = u64::from(u32::try_from(hexadecimal(word)?).ok()?);
        *set.0.get_mut(place / 2)? |= bits << (place % 2 * 32);
    }
    Some(set)
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_sets_have_two_forms() {
        let expected = Opcap([0x1_003f_03ff, 0, 0, 0x8000_0000_0000_0000]);
        let new = "80000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03ff";
        assert_eq!(operation_set(new), Some(expected));
        assert_eq!(operation_set("0x1003f03ff 0x0 0x0 0x8000000000000000"), Some(expected));
        assert_eq!(operation_set("003f03fd"), Some(Opcap([0x3f_03fd, 0, 0, 0])));
    }

    #[test]
    fn other_texts_are_no_set() {
        for text in [
            "",
            ",",
            "x",
            "1ffffffff",
            "-1",
            "0x 0x",
            "1 2 3 4 5",
            "1,2,3,4,5,6,7,8,9",
            "+1",
            "10000000000000000 0",
        ] {
            assert_eq!(operation_set(text), None, "{text}");
        }
    }
}
