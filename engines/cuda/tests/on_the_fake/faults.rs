//! Cancellation, failed calls and lost contexts: one end for each job, and memory kept as long as the device may use it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use memferry_engine_cuda::{
    Code, Device, HostMemory, Job, JobError, Settings, Stream, Ticket, VramError, VramPool,
};
use memferry_shm::mapping::Access;
use memferry_transfer::Pattern;

use crate::stage::{bytes, finish, finish_well, frame, host, open, pattern, stage, vram};

fn fill(memory: &Arc<memferry_engine_cuda::Vram>) -> Job {
    let to = memory.place(0..memory.length_bytes()).expect("all of it");
    Job::Fill { to, pattern: Pattern::Byte(1) }
}

#[test]
fn only_waiting_jobs_can_be_cancelled() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let mut stream = Stream::open(&device, Settings { depth: 2, ..Settings::default() }).expect("it opens");
    fake.set("hold");
    let tickets: Vec<Ticket> = (0..5).map(|_| stream.submit(fill(&memory)).expect("it is right")).collect();
    let cancelled: Vec<bool> = tickets.iter().map(|ticket| stream.cancel(*ticket)).collect();
    assert_eq!(cancelled, [false, false, true, true, true]);
    assert!(!stream.cancel(tickets[2]), "once only");
    assert_eq!(stream.outstanding(), 2);
    fake.set("go");
    let ended: Vec<Ticket> = finish(&mut stream).into_iter().map(|done| done.ticket).collect();
    assert_eq!(ended, tickets[..2]);
    assert!(!stream.cancel(tickets[0]), "it has ended");
}

#[test]
fn a_failed_call_ends_one_job() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let mut stream = open(&device);
    let tickets: Vec<Ticket> = (0..3)
        .map(|index| {
            if index == 1 {
                fake.set("fail=cuMemsetD8Async:400:1");
            }
            stream.submit(fill(&memory)).expect("it is right")
        })
        .collect();
    let done = finish(&mut stream);
    assert_eq!(done.iter().map(|done| done.ticket).collect::<Vec<_>>(), tickets);
    assert!(done[0].result.is_ok() && done[2].result.is_ok());
    let Err(JobError::Call(error)) = &done[1].result else { panic!("the call failed") };
    assert_eq!((error.call, error.code), ("cuMemsetD8Async", Code::InvalidHandle));
    assert!(error.operands.contains("4096 times"), "{error}");
    assert_eq!(device.lost(), None);
}

#[test]
fn a_failed_word_write_is_waited_for() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let mut stream = open(&device);
    fake.set("fail=cuStreamWriteValue32:400:2");
    for _ in 0..4 {
        stream.submit(fill(&memory)).expect("it is right");
    }
    finish_well(&mut stream);
}

#[test]
fn a_job_keeps_its_memory() {
    let (fake, device) = stage("");
    let pool = VramPool::new(&device, 4 << 20);
    let memory = pool.allocate(4096).expect("there is VRAM");
    let source = host(&device, 4096, 1);
    let mut stream = open(&device);
    fake.set("hold");
    let from = source.place(0..4096).expect("inside");
    let to = memory.place(0..4096).expect("inside");
    stream.submit(Job::Copy { from, to }).expect("it is right");
    drop((memory, source));
    assert_eq!(pool.used_bytes(), 2 << 20);
    fake.set("go");
    finish_well(&mut stream);
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn a_running_job_keeps_its_memory_pinned() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let mapping = frame(4096, Access::ReadWrite);
    let first = HostMemory::new(&device, mapping.clone());
    let second = HostMemory::new(&device, mapping);
    let mut stream = open(&device);
    fake.set("hold");
    // A list, because the kernel reaches pinned memory only.
    let piece = |range: Range<u64>| {
        (memory.place(range.clone()).expect("inside"), second.place(range).expect("inside"))
    };
    stream.submit(Job::Scatter([piece(0..100), piece(200..300)].into_iter().collect())).expect("it is right");
    let overlapping = Job::Detour {
        from: first.place(0..4000).expect("inside"),
        to: second.place(96..4096).expect("inside"),
        through: None,
    };
    assert_eq!(stream.submit(overlapping), Err(JobError::Overlap));
    drop((first, second));
    fake.set("go");
    finish_well(&mut stream);
    assert_eq!(stream.counts().kernels, 1);
}

#[test]
fn dropping_a_stream_waits() {
    let (_fake, device) = stage("slow=5000");
    let memory = vram(&device, 4096);
    let source = host(&device, 4096, 1);
    let target = host(&device, 4096, 2);
    let mut stream = open(&device);
    let inner = memory.place(0..4096).expect("inside");
    let from = source.place(0..4096).expect("inside");
    stream.submit(Job::Copy { from, to: inner.clone() }).expect("it is right");
    let to = target.place(0..4096).expect("inside");
    stream.submit(Job::Copy { from: inner, to }).expect("it is right");
    drop(stream);
    assert_eq!(bytes(&target), pattern(4096, 1));
}

/// Submits jobs to some streams and loses the context after so many commands.
fn lose(device: &Arc<Device>, jobs: usize, code: Code) {
    let memory = vram(device, 4096);
    let mut streams: Vec<Stream> = (0..3).map(|_| open(device)).collect();
    for stream in &mut streams {
        let tickets: BTreeSet<Ticket> =
            (0..jobs).map(|_| stream.submit(fill(&memory)).expect("it is right")).collect();
        let done = finish(stream);
        assert_eq!(done.len(), jobs, "each completes once");
        assert_eq!(done.iter().map(|done| done.ticket).collect::<BTreeSet<_>>(), tickets);
        let first_lost = done.iter().position(|done| done.result.is_err()).unwrap_or(jobs);
        for lost in &done[first_lost..] {
            assert!(matches!(&lost.result, Err(JobError::Lost(why)) if *why == code), "{lost:?}");
        }
        let mut more = Vec::new();
        stream.poll(&mut more);
        assert_eq!(more, []);
    }
    assert_eq!(device.lost(), Some(code));
}

#[test]
fn a_lost_context_ends_a_thousand_jobs_once() {
    let (fake, device) = stage("");
    fake.set("hold");
    fake.set("lost=400:700 go");
    lose(&device, 1000, Code::IllegalAddress);
    let memory = VramPool::new(&device, 4 << 20);
    let Err(VramError::Call(error)) = memory.allocate(1) else { panic!("nothing works any more") };
    assert_eq!(error.code, Code::IllegalAddress);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn a_loss_of_any_code_ends_running_jobs() {
    for code in [226, 721, 720, 999] {
        let (fake, device) = stage("");
        let memory = vram(&device, 4096);
        let mut stream = open(&device);
        fake.set("hold");
        let tickets: Vec<Ticket> =
            (0..3).map(|_| stream.submit(fill(&memory)).expect("it is right")).collect();
        fake.set(&format!("lost=0:{code} go"));
        let done = finish(&mut stream);
        assert_eq!(done.iter().map(|done| done.ticket).collect::<Vec<_>>(), tickets);
        let lost = Code::from_raw(code).expect("no success");
        assert!(done.iter().all(|done| done.result == Err(JobError::Lost(lost))), "{done:?}");
        assert_eq!(device.lost(), Some(lost));
    }
}

#[test]
fn unended_zeroing_loses_the_context() {
    let (_fake, device) = stage("fail=cuStreamSynchronize:999:1");
    let pool = VramPool::new(&device, 4 << 20);
    let Err(VramError::Call(error)) = pool.allocate(1) else { panic!("the call fails") };
    assert_eq!(error.call, "cuStreamSynchronize");
    assert_eq!(device.lost(), Some(Code::Unknown));
}

#[test]
fn a_context_may_be_lost_at_any_command() {
    // The first command zeroes the memory; an early loss shows there.
    for command in 1..40 {
        let (fake, device) = stage("");
        fake.set(&format!("lost={command}:719"));
        lose(&device, 12, Code::LaunchFailed);
    }
}

#[test]
fn a_lost_context_refuses_later_jobs() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let mut stream = open(&device);
    fake.set("lost=0:700");
    stream.submit(fill(&memory)).expect("accepted");
    assert_eq!(finish(&mut stream).len(), 1);
    let ticket = stream.submit(fill(&memory)).expect("accepted");
    let done = finish(&mut stream);
    assert_eq!((done.len(), done[0].ticket), (1, ticket));
    assert_eq!(done[0].result, Err(JobError::Lost(Code::IllegalAddress)));
}

#[test]
fn memory_of_lost_jobs_is_kept() {
    let (fake, device) = stage("");
    let memory = vram(&device, 4096);
    let source = host(&device, 4096, 1);
    let watched = Arc::downgrade(&source);
    let mut stream = open(&device);
    fake.set("lost=0:700");
    let from = source.place(0..4096).expect("inside");
    let to = memory.place(0..4096).expect("inside");
    stream.submit(Job::Copy { from, to }).expect("it is right");
    assert!(finish(&mut stream)[0].result.is_err());
    drop((stream, source, memory));
    assert!(watched.upgrade().is_some(), "the device may still read it");
}

#[test]
fn jobs_outlive_the_handles_of_their_memory() {
    let (_fake, device) = stage("slow=200");
    let pool = VramPool::new(&device, 64 << 20);
    let mut stream = open(&device);
    for _ in 0..20 {
        let memory = pool.allocate(4096).expect("there is VRAM");
        stream.submit(fill(&memory)).expect("it is right");
        drop(memory);
    }
    finish_well(&mut stream);
    assert_eq!((pool.used_bytes(), device.lost()), (0, None));
}
