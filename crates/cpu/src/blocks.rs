//! Operations that examine bytes (CRC, xor, compare): block by block, through private memory.
//!
//! ```text
//! regions ──load──► private block ──crc, xor──► value ──store──► regions
//! regions ──compare──► value
//! ```
//!
//! The CRC is computed on the private block that is then stored, so it matches the stored bytes even while another process
//! overwrites the source. Blocks fit the first-level cache.

use std::borrow::Borrow;

use memferry_shm::mapping::Mapping;
use memferry_transfer::{Failure, Operation, Region};

use super::kernels::{self, XOR_GROUP, equal_bytes, load, settle, store, xor_group};
use super::state::{State, runs_down, step};

/// Bytes processed in one step.
pub(super) const BLOCK: usize = 8192;

/// Sets the result of an operation on no bytes.
pub(super) fn begin<M: Borrow<Mapping>>(operation: &Operation<Region<M>>, state: &mut State) {
    if let Operation::Crc { seed, .. } | Operation::CopyCrc { seed, .. } = operation
        && state.done == 0
    {
        state.value = u64::from(*seed);
    }
}

/// Processes the next `length` bytes; returns how many were processed.
pub(super) fn advance<M: Borrow<Mapping>>(
    operation: &Operation<Region<M>>,
    state: &mut State,
    length: u64,
) -> Result<u64, Failure> {
    begin(operation, state);
    if let Operation::Compare { first, second, .. } = operation {
        return compare(first, second, state, state.done, length);
    }
    if let Operation::Xor { sources, destination, .. } = operation
        && sources.len() <= XOR_GROUP
    {
        xor_directly(sources, destination, state, length)?;
        return Ok(length);
    }
    // Allocated once: clearing it for each block would take as long as filling it.
    let mut space = [0; BLOCK];
    let mut moved = 0;
    while moved < length {
        let bytes = (length - moved).min(BLOCK as u64);
        let done = block(operation, state, state.done + moved, &mut space[..bytes as usize]);
        if done.is_err() {
            settle(state.manner());
        }
        done?;
        moved += bytes;
    }
    settle(state.manner());
    Ok(moved)
}

/// Processes one block after the first `done` bytes.
fn block<M: Borrow<Mapping>>(
    operation: &Operation<Region<M>>,
    state: &mut State,
    done: u64,
    block: &mut [u8],
) -> Result<(), Failure> {
    match operation {
        Operation::Crc { source, .. } => {
            step([source.memory().borrow()], || load(source, done, block))?;
            state.value = append(state.value, block);
        }
        Operation::CopyCrc { source, destination, length, seed } => {
            let down = runs_down(source, destination, *length);
            let at = if down { length - done - block.len() as u64 } else { done };
            step([source.memory().borrow(), destination.memory().borrow()], || {
                load(source, at, block)?;
                store(state.manner(), destination, at, block)
            })?;
            state.value = match down {
                false => append(state.value, block),
                true => before(block, state.value, done, (*length, *seed)),
            };
        }
        Operation::DualCopy { source, destinations: [one, other], .. } => {
            step([source.memory().borrow(), one.memory().borrow(), other.memory().borrow()], || {
                load(source, done, block)?;
                store(state.manner(), one, done, block)?;
                store(state.manner(), other, done, block)
            })?;
        }
        Operation::Xor { sources, destination, .. } => {
            xor(sources, done, block)?;
            step([destination.memory().borrow()], || store(state.manner(), destination, done, block))?;
        }
        _ => return Err(Failure::Unsupported),
    }
    Ok(())
}

fn append(crc: u64, block: &[u8]) -> u64 {
    u64::from(crc32c::crc32c_append(crc as u32, block))
}

/// The CRC when blocks run from the last one down: of `block` followed by the `done` bytes whose CRC is `value`. The
/// seed precedes the first byte, which comes last.
fn before(block: &[u8], value: u64, done: u64, (length, seed): (u64, u32)) -> u64 {
    let after = if done == 0 { 0 } else { value as u32 };
    let crc = crc32c::crc32c_combine(crc32c::crc32c(block), after, done as usize);
    let whole = done + block.len() as u64 == length;
    u64::from(if whole { crc32c::crc32c_combine(seed, crc, length as usize) } else { crc })
}

fn compare<M: Borrow<Mapping>>(
    first: &Region<M>,
    second: &Region<M>,
    state: &mut State,
    done: u64,
    length: u64,
) -> Result<u64, Failure> {
    let equal = step([first.memory().borrow(), second.memory().borrow()], || {
        equal_bytes(first, second, done, length)
    })?;
    state.over = equal < length;
    state.value = done + equal;
    Ok(equal)
}

/// Combines few sources straight into the destination: nothing is checked between reading and writing.
fn xor_directly<M: Borrow<Mapping>>(
    sources: &[Region<M>],
    destination: &Region<M>,
    state: &State,
    length: u64,
) -> Result<(), Failure> {
    // Unused entries repeat the destination.
    let mappings: [&Mapping; XOR_GROUP + 1] =
        std::array::from_fn(|index| sources.get(index).unwrap_or(destination).memory().borrow());
    let done = step(mappings, || kernels::xor(state.manner(), sources, destination, state.done, length));
    settle(state.manner());
    done
}

fn xor<M: Borrow<Mapping>>(sources: &[Region<M>], done: u64, block: &mut [u8]) -> Result<(), Failure> {
    for (number, group) in sources.chunks(XOR_GROUP).enumerate() {
        // Unused entries repeat the group's last source.
        let memory = |index: usize| group[index.min(group.len() - 1)].memory().borrow();
        let mappings: [&Mapping; XOR_GROUP] = std::array::from_fn(memory);
        step(mappings, || xor_group(block, group, done, number > 0))?;
    }
    Ok(())
}
