//! A job as a flat structure of addresses.
//!
//! ```text
//! Job ─► Lent: the job, which keeps its memory, and its segments ─► mf_engine_request, which points into both
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;

use memferry_engine::{CacheHint, Job, Mapping, Operation, Region, Segment, WorkId};
use memferry_transfer::{Count2d, Plane};

use crate::types::{mf_engine_hint, mf_engine_request, mf_engine_segment};

/// What a request that C has points to.
pub(crate) struct Lent {
    pub(crate) job: Job,
    /// Segments to read, then those to write. They are not moved while C has the request.
    _segments: Box<[mf_engine_segment]>,
}

/// The number of a request.
pub(crate) const fn number_of(id: WorkId) -> u64 {
    (id.worker as u64) << 32 | id.tag as u64
}

/// An address within a region. A walk may start anywhere in it.
fn address(region: &Region<Mapping>, start: u64) -> *mut c_void {
    region.memory().pointer().wrapping_add((region.offset() + start) as usize).cast()
}

fn segments(list: &[Segment<Region<Mapping>>]) -> impl Iterator<Item = mf_engine_segment> + '_ {
    list.iter()
        .map(|segment| mf_engine_segment { address: address(&segment.place, 0), length: segment.length })
}

impl mf_engine_request {
    fn set_count(&mut self, count: &Count2d) {
        self.pixel_bytes = count.pixel.bytes() as u32;
        self.x_count = count.x_count;
        self.y_count = count.y_count;
    }

    fn set_source(&mut self, region: &Region<Mapping>, plane: &Plane) {
        self.source = address(region, plane.start);
        self.source_x_step = plane.x_step;
        self.source_y_step = plane.y_step;
    }

    fn set_destination(&mut self, region: &Region<Mapping>, plane: &Plane) {
        self.destination = address(region, plane.start);
        self.destination_x_step = plane.x_step;
        self.destination_y_step = plane.y_step;
    }

    fn set_segments(&mut self, segments: &[mf_engine_segment], sources: usize) {
        let (source, destination) = segments.split_at(sources);
        self.source_segments = source.as_ptr();
        self.source_count = source.len() as u32;
        self.destination_segments = destination.as_ptr();
        self.destination_count = destination.len() as u32;
    }
}

/// Lends a job to C. Fails if C has a request with its number: a service that is wrong must not free memory that C reads.
pub(crate) fn lend(lent: &mut BTreeMap<u64, Lent>, job: Job) -> Result<mf_engine_request, WorkId> {
    let id = job.id();
    match lent.entry(number_of(id)) {
        Entry::Occupied(_) => Err(id),
        Entry::Vacant(place) => {
            let (kept, request) = Lent::new(job);
            place.insert(kept);
            Ok(request)
        }
    }
}

impl Lent {
    /// Takes a job, and makes the request that points into it.
    fn new(job: Job) -> (Self, mf_engine_request) {
        let hint = match job.hint() {
            CacheHint::Auto => mf_engine_hint::Auto,
            CacheHint::Keep => mf_engine_hint::Keep,
            CacheHint::Stream => mf_engine_hint::Stream,
        };
        let operation = job.operation();
        let id = number_of(job.id());
        let mut request = mf_engine_request::of(id, operation.kind(), hint, operation.total_bytes());
        let mut list: Box<[mf_engine_segment]> = Box::default();
        match operation {
            // No engine can announce the last one, so the service sends none.
            Operation::Nop | Operation::Synchronized { .. } => {}
            Operation::Copy { source, destination, .. } => {
                request.source = address(source, 0);
                request.destination = address(destination, 0);
            }
            Operation::Fill { destination, pattern, .. } => {
                request.destination = address(destination, 0);
                request.pattern = pattern.word_bytes();
                request.pattern_bytes = pattern.length_bytes() as u32;
            }
            Operation::Copy2d { source, destination, shape } => {
                request.set_count(&shape.count);
                request.set_source(source, &shape.source);
                request.set_destination(destination, &shape.destination);
                if let Some(color) = shape.transparent {
                    request.transparent = 1;
                    request.color = color.value();
                }
            }
            Operation::Fill2d { destination, shape } => {
                request.set_count(&shape.count);
                request.set_destination(destination, &shape.destination);
                request.color = shape.color.value();
            }
            Operation::ScatterGather { lists } => {
                list = segments(&lists.source).chain(segments(&lists.destination)).collect();
                request.set_segments(&list, lists.source.len());
            }
            Operation::Xor { sources, destination, length } => {
                let segment = |source| mf_engine_segment { address: address(source, 0), length: *length };
                list = sources.iter().map(segment).collect();
                request.set_segments(&list, sources.len());
                request.destination = address(destination, 0);
            }
            Operation::Compare { first, second, .. } => {
                request.source = address(first, 0);
                request.second = address(second, 0);
            }
            Operation::Crc { source, seed, .. } => {
                request.source = address(source, 0);
                request.seed = *seed;
            }
            Operation::CopyCrc { source, destination, seed, .. } => {
                request.source = address(source, 0);
                request.destination = address(destination, 0);
                request.seed = *seed;
            }
            Operation::DualCopy { source, destinations: [one, other], .. } => {
                request.source = address(source, 0);
                request.destination = address(one, 0);
                request.second = address(other, 0);
            }
        }
        (Self { job, _segments: list }, request)
    }
}

#[cfg(test)]
mod tests {
    use memferry_transfer::Descriptor;

    use super::*;

    #[test]
    fn a_tag_in_use_is_not_lent_again() {
        let mut lent = BTreeMap::new();
        let job = |tag, hint| {
            let descriptor = Descriptor::new(0, Operation::Nop).unwrap().with_hint(hint);
            Job::new(WorkId { worker: 1, tag }, descriptor)
        };
        let request = lend(&mut lent, job(7, CacheHint::Keep)).unwrap();
        assert_eq!(lend(&mut lent, job(7, CacheHint::Stream)).unwrap_err(), WorkId { worker: 1, tag: 7 });
        assert_eq!(lent[&request.id].job.hint(), CacheHint::Keep, "the first one is still here");
        assert!(lend(&mut lent, job(8, CacheHint::Stream)).is_ok());
        lent.remove(&request.id);
        assert!(lend(&mut lent, job(7, CacheHint::Stream)).is_ok());
    }
}
