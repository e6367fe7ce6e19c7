//! The structures and enumerations of the interface.
//!
//! Plain data only. Layouts are part of the interface: `tests/programs.rs` has C compilers compare them with the header's.

use std::ffi::{c_char, c_int, c_void};

use memferry_transfer::{Failure, Operations};

/// An error of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine_error {
    /// A pointer is null or misaligned.
    BadPointer = -1,
    /// A number or a text is outside its range; mf_engine_run describes it on standard error.
    Argument = -2,
    /// mf_engine_options.size is that of another version.
    Version = -3,
    /// The process has no request with this id: it was completed before, or never was.
    UnknownRequest = -4,
    /// No service answers at the socket, or it does not want this engine; mf_engine_run describes it on standard error.
    Service = -5,
    /// The process has more than one thread, or a system call failed; mf_engine_run describes it on standard error.
    System = -6,
    /// The library is at fault; please report this.
    Panicked = -7,
    /// A function for frames, which the library calls, has called the library.
    InCallback = -8,
}

/// What an engine connects as. Initialise with MF_ENGINE_OPTIONS_INIT, which sets all but socket and name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_engine_options {
    /// sizeof(mf_engine_options), which MF_ENGINE_OPTIONS_INIT sets.
    pub size: u32,
    /// The operations that it performs, bits of mf_engine_operation.
    pub operations: u32,
    /// The path of the service's socket.
    pub socket: *const c_char,
    /// Its name in the service's configuration: up to 32 lower-case letters, digits and hyphens.
    pub name: *const c_char,
    /// Longest transfer that it takes, bytes.
    pub longest_bytes: u64,
    /// Shortest transfer for which handing it over pays, bytes. Shorter ones stay with the CPU.
    pub shortest_bytes: u64,
    /// Every address and length is a multiple of this, a power of two.
    pub alignment_bytes: u32,
    /// Requests that it takes at a time.
    pub channels: u32,
    /// Bytes of memory of its own in which clients can have frames, by the function `allocate` of mf_engine_watch_frames. 0 for none.
    pub memory_bytes: u64,
}

/// An operation; also bits of mf_engine_options.operations. "source", "destination" and so on are fields of the request.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine_operation {
    /// Moves nothing and completes.
    Nop = 1,
    /// Copies length bytes from source to destination, which may overlap, as with memmove.
    Copy = 2,
    /// Repeats pattern over length bytes at destination. pattern_bytes is 1, 2 or 4, and length is a multiple of it.
    Fill = 4,
    /// Moves x_count times y_count pixels from source to destination, in order. length is the number of bytes of the pixels.
    Copy2d = 8,
    /// Writes color to x_count times y_count pixels at destination.
    Fill2d = 16,
    /// Moves the bytes of source_segments to destination_segments in order, each piece as with memmove.
    ScatterGather = 32,
    /// Writes the exclusive or of length bytes of all source_segments to destination, which may be one of them.
    Xor = 64,
    /// Finds the first difference of length bytes at source and second. value of the completion is its offset, or length.
    Compare = 128,
    /// Computes the CRC-32C of length bytes at source, from seed. It is value of the completion.
    Crc = 256,
    /// Copies as MF_ENGINE_OPERATION_COPY, and computes the CRC-32C of the bytes as written.
    CopyCrc = 512,
    /// Copies length bytes from source to destination and to second.
    DualCopy = 1024,
}

/// How a request ended.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine_status {
    /// It was carried out as a whole; a comparison may have ended at the first difference.
    Done = 0,
    /// It was ended early because the service asked for it.
    Cancelled = 1,
    /// Memory failed while the engine used it.
    MemoryFault = 2,
    /// The engine does not perform it; the CPU does.
    Unsupported = 3,
    /// The device did not complete it in time and was stopped.
    TimedOut = 4,
    /// The device was reset and no longer touches the memory.
    Reset = 5,
}

/// How a request should treat the CPU caches. An engine may ignore it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine_hint {
    /// The engine decides between the others.
    Auto = 0,
    /// The destination will be read soon.
    Keep = 1,
    /// Neither side will be read soon.
    Stream = 2,
}

/// What a descriptor of an engine's memory is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mf_engine_export_kind {
    /// A memfd, to be mapped from its first byte on. It must have the seal F_SEAL_SHRINK.
    Memory = 1,
    /// Memory of an NVIDIA GPU, from cuMemExportToShareableHandle.
    Cuda = 2,
}

/// Memory of a frame, for the process of its owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_engine_exported {
    /// The descriptor, which the library closes.
    pub descriptor: c_int,
    /// One value of mf_engine_export_kind.
    pub kind: u32,
    /// Bytes of the memory, at least those of the frame, which begins with the first one.
    pub length: u64,
    /// The UUID of the GPU, with MF_ENGINE_EXPORT_KIND_CUDA.
    pub device: [u8; 16],
}

/// A piece of a list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_engine_segment {
    /// Where its first byte is.
    pub address: *mut c_void,
    /// Bytes, also 0. The sources of an xor all have the request's length.
    pub length: u64,
}

/// A request to carry out. Every byte that it names lies in memory of this process, and what it writes is writable. Fields that the
/// operation does not use are 0. The pointers are valid until the request is completed. Memory that is read must not be written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mf_engine_request {
    /// Names it until it is completed.
    pub id: u64,
    /// One value of mf_engine_operation.
    pub operation: u32,
    /// One value of mf_engine_hint.
    pub hint: u32,
    /// Bytes of each operand; of all segments of one list; of all pixels.
    pub length: u64,
    /// Memory to read. With 2-D operations: the first pixel.
    pub source: *mut c_void,
    /// Memory to write. With 2-D operations: the first pixel.
    pub destination: *mut c_void,
    /// The second operand of MF_ENGINE_OPERATION_COMPARE or the second destination of MF_ENGINE_OPERATION_DUAL_COPY.
    pub second: *mut c_void,
    /// The list to read, of MF_ENGINE_OPERATION_SCATTER_GATHER and MF_ENGINE_OPERATION_XOR.
    pub source_segments: *const mf_engine_segment,
    /// The list to write, of MF_ENGINE_OPERATION_SCATTER_GATHER.
    pub destination_segments: *const mf_engine_segment,
    /// Number of segments at source_segments.
    pub source_count: u32,
    /// Number of segments at destination_segments.
    pub destination_count: u32,
    /// The pattern of a fill, repeated to four bytes.
    pub pattern: [u8; 4],
    /// Bytes after which the pattern repeats.
    pub pattern_bytes: u32,
    /// The CRC of the preceding bytes.
    pub seed: u32,
    /// Bytes of a pixel: 1, 2 or 4, little-endian.
    pub pixel_bytes: u32,
    /// Pixels of a row.
    pub x_count: u32,
    /// Rows of the shape.
    pub y_count: u32,
    /// Not 0: source pixels whose low 24 bits are color are left out.
    pub transparent: u32,
    /// The transparent colour, or that of a fill. Smaller pixels use its low bits.
    pub color: u32,
    /// Bytes added to the source after each pixel but the last of a row; may be negative.
    pub source_x_step: i64,
    /// Bytes added to the source after the last pixel of a row.
    pub source_y_step: i64,
    /// As source_x_step, for the destination.
    pub destination_x_step: i64,
    /// As source_y_step, for the destination.
    pub destination_y_step: i64,
}

impl mf_engine_request {
    /// Without anything but its operation.
    pub(crate) const fn of(id: u64, operation: Operations, hint: mf_engine_hint, length: u64) -> Self {
        Self {
            id,
            operation: operation.bits(),
            hint: hint as u32,
            length,
            source: std::ptr::null_mut(),
            destination: std::ptr::null_mut(),
            second: std::ptr::null_mut(),
            source_segments: std::ptr::null(),
            destination_segments: std::ptr::null(),
            source_count: 0,
            destination_count: 0,
            pattern: [0; 4],
            pattern_bytes: 0,
            seed: 0,
            pixel_bytes: 0,
            x_count: 0,
            y_count: 0,
            transparent: 0,
            color: 0,
            source_x_step: 0,
            source_y_step: 0,
            destination_x_step: 0,
            destination_y_step: 0,
        }
    }
}

impl mf_engine_status {
    /// The status with this number, as a result; `None` if there is none.
    pub(crate) const fn result(number: u32) -> Option<Result<(), Failure>> {
        Some(match number {
            0 => Ok(()),
            1 => Err(Failure::Cancelled),
            2 => Err(Failure::MemoryFault),
            3 => Err(Failure::Unsupported),
            4 => Err(Failure::EngineTimedOut),
            5 => Err(Failure::EngineReset),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_numbers_of_the_set() {
        let numbered = [
            (mf_engine_operation::Nop, Operations::NOP),
            (mf_engine_operation::Copy, Operations::COPY),
            (mf_engine_operation::Fill, Operations::FILL),
            (mf_engine_operation::Copy2d, Operations::COPY_2D),
            (mf_engine_operation::Fill2d, Operations::FILL_2D),
            (mf_engine_operation::ScatterGather, Operations::SCATTER_GATHER),
            (mf_engine_operation::Xor, Operations::XOR),
            (mf_engine_operation::Compare, Operations::COMPARE),
            (mf_engine_operation::Crc, Operations::CRC),
            (mf_engine_operation::CopyCrc, Operations::COPY_CRC),
            (mf_engine_operation::DualCopy, Operations::DUAL_COPY),
        ];
        for (number, operation) in numbered {
            assert_eq!(number as u32, operation.bits());
        }
        let all = numbered.iter().fold(0, |all, (number, _)| all | *number as u32);
        assert_eq!(all, Operations::OF_MEMORY.bits());
    }
}
