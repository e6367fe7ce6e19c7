//! Copies and fills.

use crate::codes::{Code, INVALID_VALUE, SUCCESS};
use crate::commands::{Command, Copy, Fill, IsPageable};
use crate::context::{MAX_PITCH, call_in_context};
use crate::space::{Kind, VRAM, space};
use crate::streams::{enqueue, enqueue_and_wait};

/// Gives copies to a stream. With a side in pageable memory they have run when the call returns, as the driver may do it too.
fn give(name: &str, stream: usize, copies: Result<Vec<Copy>, Code>) -> Code {
    let checked = copies.and_then(|copies| {
        let space = space().read();
        let mut is_pageable = false;
        for copy in &copies {
            is_pageable |= copy.check(&space)?.0;
        }
        Ok((copies, IsPageable(is_pageable)))
    });
    match checked {
        Ok((copies, IsPageable(false))) => enqueue(name, stream, || Ok(Command::Copies(copies))),
        Ok((copies, IsPageable(true))) => enqueue_and_wait(name, stream, Command::Copies(copies)),
        Err(code) => call_in_context(name, || Err(code)),
    }
}

/// One copy; `sides` says whether its operands are of the kinds that the call's name says.
fn copy_one(name: &str, stream: usize, sides: Result<(), Code>, copy: Copy) -> Code {
    match sides {
        Ok(()) if copy.length == 0 => call_in_context(name, || Ok(())),
        _ => give(name, stream, sides.map(|()| vec![copy])),
    }
}

fn device(address: u64) -> Result<(), Code> {
    if address & VRAM != 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

fn host(address: u64) -> Result<(), Code> {
    if address & VRAM == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyAsync(to: u64, from: u64, length: usize, stream: usize) -> Code {
    copy_one("cuMemcpyAsync", stream, Ok(()), Copy { to, from, length: length as u64 })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, length: usize, stream: usize) -> Code {
    let sides = device(to).and_then(|()| host(from));
    copy_one("cuMemcpyHtoDAsync", stream, sides, Copy { to, from, length: length as u64 })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, length: usize, stream: usize) -> Code {
    let sides = host(to).and_then(|()| device(from));
    copy_one("cuMemcpyDtoHAsync", stream, sides, Copy { to, from, length: length as u64 })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: usize) -> Code {
    let sides = device(to).and_then(|()| device(from));
    copy_one("cuMemcpyDtoDAsync", stream, sides, Copy { to, from, length: length as u64 })
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memcpy2d {
    from: Plane,
    to: Plane,
    width_bytes: usize,
    height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Plane {
    x_bytes: usize,
    y: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

const _: () = assert!(size_of::<Memcpy2d>() == 128);

impl Plane {
    fn row(&self, row: usize) -> Result<u64, Code> {
        let base = match self.memory_type {
            1 => host(self.host).map(|()| self.host),
            2 => device(self.device).map(|()| self.device),
            4 => Ok(self.device),
            _ => Err(INVALID_VALUE),
        }?;
        let offset = (self.y + row).checked_mul(self.pitch).and_then(|at| at.checked_add(self.x_bytes));
        offset.and_then(|offset| base.checked_add(offset as u64)).ok_or(INVALID_VALUE)
    }

    fn check(&self, width_bytes: usize) -> Result<(), Code> {
        let fits = self.x_bytes.checked_add(width_bytes).is_some_and(|end| end <= self.pitch);
        if fits && self.pitch as u64 <= MAX_PITCH { Ok(()) } else { Err(INVALID_VALUE) }
    }
}

impl Memcpy2d {
    fn copies(&self) -> Result<Vec<Copy>, Code> {
        self.from.check(self.width_bytes)?;
        self.to.check(self.width_bytes)?;
        if self.width_bytes == 0 || self.height == 0 {
            return Err(INVALID_VALUE);
        }
        let row = |row| {
            Ok(Copy { to: self.to.row(row)?, from: self.from.row(row)?, length: self.width_bytes as u64 })
        };
        (0..self.height).map(row).collect()
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpy2DAsync_v2(rectangle: Option<&Memcpy2d>, stream: usize) -> Code {
    give("cuMemcpy2DAsync", stream, rectangle.ok_or(INVALID_VALUE).and_then(Memcpy2d::copies))
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    source_order: u32,
    source_hint: [u32; 2],
    destination_hint: [u32; 2],
    flags: u32,
}

/// The arrays of a batch.
struct Batch {
    to: *const u64,
    from: *const u64,
    lengths: *const usize,
    count: usize,
    attributes: *const Attributes,
    first_copies: *const usize,
    attribute_count: usize,
}

impl Batch {
    fn copies(&self) -> Result<Vec<Copy>, Code> {
        let is_null = self.to.is_null() || self.from.is_null() || self.lengths.is_null();
        if is_null || self.count == 0 || self.attributes.is_null() || self.first_copies.is_null() {
            return Err(INVALID_VALUE);
        }
        if self.attribute_count == 0 || self.attribute_count > self.count {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has so many elements in its arrays, which were checked for null.
        let (firsts, attributes) = unsafe {
            (
                std::slice::from_raw_parts(self.first_copies, self.attribute_count),
                std::slice::from_raw_parts(self.attributes, self.attribute_count),
            )
        };
        let is_ordered = firsts[0] == 0 && firsts.is_sorted_by(|a, b| a < b);
        let is_known = attributes.iter().all(|one| (1..=3).contains(&one.source_order) && one.flags <= 1);
        if !is_ordered || firsts[firsts.len() - 1] >= self.count || !is_known {
            return Err(INVALID_VALUE);
        }
        let space = space().read();
        let mut copies = Vec::with_capacity(self.count);
        for at in 0..self.count {
            // SAFETY: as above.
            let (to, from, length) =
                unsafe { (*self.to.add(at), *self.from.add(at), *self.lengths.add(at) as u64) };
            let is_usable = |address, writes| {
                let found = space.find_by_device(address, length, writes);
                found.is_ok_and(|found| found.kind != Kind::Pageable)
            };
            if length == 0 || !is_usable(to, true) || !is_usable(from, false) {
                return Err(INVALID_VALUE);
            }
            copies.push(Copy { to, from, length });
        }
        if are_dependent(&copies) {
            return Err(INVALID_VALUE);
        }
        copies.reverse();
        Ok(copies)
    }
}

/// Whether the order of the copies would matter: a byte written twice, or written and read.
fn are_dependent(copies: &[Copy]) -> bool {
    let mut spans: Vec<(u64, u64, bool)> = Vec::new();
    for copy in copies {
        spans.push((copy.to, copy.to + copy.length, true));
        spans.push((copy.from, copy.from + copy.length, false));
    }
    spans.sort_unstable();
    let mut written_until = 0;
    let mut read_until = 0;
    for (start, end, writes) in spans {
        if start < written_until || (writes && start < read_until) {
            return true;
        }
        let until = if writes { &mut written_until } else { &mut read_until };
        *until = end.max(*until);
    }
    false
}

/// The version of CUDA 12.8, which names the copy that failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyBatchAsync(
    to: *const u64,
    from: *const u64,
    lengths: *const usize,
    count: usize,
    attributes: *const Attributes,
    first_copies: *const usize,
    attribute_count: usize,
    failed: Option<&mut usize>,
    stream: usize,
) -> Code {
    let batch = Batch { to, from, lengths, count, attributes, first_copies, attribute_count };
    let code = give("cuMemcpyBatchAsync", stream, batch.copies());
    if let Some(failed) = failed
        && code != SUCCESS
    {
        *failed = usize::MAX;
    }
    code
}

/// The version of CUDA 13.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyBatchAsync_v2(
    to: *const u64,
    from: *const u64,
    lengths: *const usize,
    count: usize,
    attributes: *const Attributes,
    first_copies: *const usize,
    attribute_count: usize,
    stream: usize,
) -> Code {
    cuMemcpyBatchAsync(to, from, lengths, count, attributes, first_copies, attribute_count, None, stream)
}

fn fill(name: &str, stream: usize, fill: Fill) -> Code {
    enqueue(name, stream, || {
        fill.check(&space().read())?;
        Ok(Command::Fill(fill))
    })
}

fn line(to: u64, value: u32, width: u64, elements: usize) -> Fill {
    Fill { to, value, width, elements: elements as u64, rows: 1, pitch: 0 }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) -> Code {
    fill("cuMemsetD8Async", stream, line(to, u32::from(value), 1, count))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) -> Code {
    fill("cuMemsetD16Async", stream, line(to, u32::from(value), 2, count))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) -> Code {
    fill("cuMemsetD32Async", stream, line(to, value, 4, count))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD2D8Async(
    to: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: usize,
) -> Code {
    fill("cuMemsetD2D8Async", stream, plane(to, pitch, u32::from(value), 1, (width, height)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD2D16Async(
    to: u64,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: usize,
) -> Code {
    fill("cuMemsetD2D16Async", stream, plane(to, pitch, u32::from(value), 2, (width, height)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD2D32Async(
    to: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: usize,
) -> Code {
    fill("cuMemsetD2D32Async", stream, plane(to, pitch, value, 4, (width, height)))
}

fn plane(to: u64, pitch: usize, value: u32, width: u64, (elements, rows): (usize, usize)) -> Fill {
    Fill { to, value, width, elements: elements as u64, rows: rows as u64, pitch: pitch as u64 }
}
