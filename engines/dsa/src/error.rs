//! Why a work queue cannot be used, and what to do about it.

use std::io;

use memferry_dsa::QueueError;
use memferry_shm::frame::AllocateError;
use thiserror::Error;

use crate::name::QueueName;

/// Why a work queue cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("there is no work queue {queue}; {}", no_queue(.others))]
    NoQueue { queue: QueueName, others: Vec<QueueName> },
    #[error(
        "{queue} is of type {kind}, not user: accel-config config-wq {device}/{queue} --type=user --driver-name=user --name=memferry, while it \
         is disabled",
        device = .queue.device()
    )]
    NotUser { queue: QueueName, kind: String },
    #[error("{queue} is {state}: accel-config enable-wq {device}/{queue}", device = .queue.device())]
    NotEnabled { queue: QueueName, state: String },
    #[error(
        "{device} has no shared virtual memory (pasid_enabled is 0), without which it does not know the addresses of a process: boot with \
         intel_iommu=on,sm_on and have VT-d's scalable mode in the firmware",
        device = .queue.device()
    )]
    NoSharedMemory { queue: QueueName },
    #[error("{queue} has no entries: accel-config config-wq {device}/{queue} --wq-size=32, with --threshold if it is shared", device = .queue.device())]
    NoEntries { queue: QueueName },
    #[error(
        "{queue} moves no memory: its max_transfer_size is 0, or its op_config or {device}'s op_cap lacks that operation: set the queue's own \
         two while it is disabled, or use a queue of another device",
        device = .queue.device()
    )]
    NoMoves { queue: QueueName },
    #[error("/sys/bus/dsa/devices/{file}: {source}; `memferry doctor` shows what this kernel has")]
    Sysfs { queue: QueueName, file: String, source: io::Error },
    #[error(
        "/sys/bus/dsa/devices/{file} is '{value}', which this engine does not know: use another queue, and report this"
    )]
    Value { queue: QueueName, file: String, value: String },
    #[error("opening /dev/dsa/{queue}: {source}; {}", open_remedy(*.queue, .source))]
    Open { queue: QueueName, source: io::Error },
    #[error(
        "memory for the completion records of {queue}: {source}; raise MemoryMax= of the unit, or name fewer queues"
    )]
    Memory { queue: QueueName, source: AllocateError },
    #[error("{queue}: {source}")]
    Queue { queue: QueueName, source: QueueError },
}

fn no_queue(others: &[QueueName]) -> String {
    if others.is_empty() {
        return "this machine has none of type user: `memferry doctor` says how to make one".to_owned();
    }
    let names: Vec<String> = others.iter().map(ToString::to_string).collect();
    format!("of type user there are: {}", names.join(", "))
}

pub(crate) fn open_remedy(queue: QueueName, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::ResourceBusy => {
            "another process has this dedicated queue: end that, or use another queue or a shared one"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "give it to the engine's user, as in: chown memferry-engine /dev/dsa/{queue} (or a rule of udev)"
            )
        }
        io::ErrorKind::NotFound => {
            "see whether /dev is that of the machine: a container has to be given the file".to_owned()
        }
        _ => "the kernel's log has the reason; without shared virtual memory a queue cannot be opened"
            .to_owned(),
    }
}
