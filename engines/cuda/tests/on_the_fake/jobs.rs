//! Each kind of job in each manner.

use std::sync::Arc;

use memferry_engine_cuda::{
    Counts, Device, HostMemory, Job, JobError, Pieces, Place, Rows, Settings, Stream, Vram,
};
use memferry_shm::mapping::Access;
use memferry_transfer::Pattern;

use crate::stage::{bytes, finish, finish_well, frame, host, is_real, open, pattern, possible, stage, vram};

const LENGTH: usize = 100_000;

fn copy(from: Place, to: Place) -> Job {
    Job::Copy { from, to }
}

fn all(host: &Arc<HostMemory>) -> Place {
    host.place(0..host.mapping().length_bytes() as u64).expect("all of it")
}

fn part(vram: &Arc<Vram>, start: u64, length: u64) -> Place {
    vram.place(start..start + length).expect("inside")
}

fn whole(vram: &Arc<Vram>) -> Place {
    part(vram, 0, vram.length_bytes())
}

fn contents(device: &Arc<Device>, vram: &Arc<Vram>) -> Vec<u8> {
    let target = HostMemory::new(device, frame(vram.length_bytes() as usize, Access::ReadWrite));
    let mut stream = open(device);
    stream.submit(copy(whole(vram), all(&target))).expect("it is right");
    finish_well(&mut stream);
    bytes(&target)
}

#[test]
fn copies_go_there_and_back() {
    for faults in possible(["", "register=refused"]) {
        let (_fake, device) = stage(faults);
        let first = vram(&device, LENGTH as u64);
        let second = vram(&device, LENGTH as u64);
        let source = host(&device, LENGTH, 1);
        let target = host(&device, LENGTH, 2);
        assert_eq!(source.not_pinned().is_none(), faults.is_empty());
        let mut stream = open(&device);
        stream.submit(copy(all(&source), whole(&first))).expect("host to device");
        stream.submit(copy(whole(&first), whole(&second))).expect("device to device");
        stream.submit(copy(whole(&second), all(&target))).expect("device to host");
        finish_well(&mut stream);
        assert_eq!(bytes(&target), pattern(LENGTH, 1));
        assert_eq!(stream.counts().copies, 3);
    }
}

#[test]
fn empty_jobs_complete_in_order() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 100);
    let source = host(&device, 100, 0);
    let mut stream = open(&device);
    let nothing = copy(source.place(9..9).expect("inside"), part(&memory, 3, 0));
    let fill = Job::Fill { to: part(&memory, 0, 0), pattern: Pattern::Word(1) };
    let jobs = [nothing, fill, Job::Scatter(Pieces::default()), copy(all(&source), whole(&memory))];
    let tickets: Vec<_> = jobs.map(|job| stream.submit(job).expect("it is right")).into();
    let completed: Vec<_> = finish(&mut stream).into_iter().map(|done| done.ticket).collect();
    assert_eq!(completed, tickets);
}

#[test]
fn wrong_jobs_are_refused() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 1000);
    let source = host(&device, 1000, 0);
    let read_only = HostMemory::new(&device, frame(1000, Access::ReadOnly));
    let mut stream = open(&device);
    let mut refused = |job| stream.submit(job).expect_err("it is wrong");
    let lengths = JobError::Lengths { from_bytes: 1000, to_bytes: 10 };
    assert_eq!(refused(copy(all(&source), part(&memory, 0, 10))), lengths);
    assert_eq!(refused(copy(whole(&memory), all(&read_only))), JobError::ReadOnly);
    assert_eq!(refused(copy(part(&memory, 0, 10), part(&memory, 9, 10))), JobError::Overlap);
    assert_eq!(refused(copy(all(&source), all(&host(&device, 1000, 1)))), JobError::NoVram);
    assert_eq!(refused(Job::Fill { to: all(&source), pattern: Pattern::Byte(1) }), JobError::NoVram);
    let rows = |pitch_bytes| Rows { place: whole(&memory), pitch_bytes };
    let from = Rows { place: all(&source), pitch_bytes: 100 };
    for (pitch, row_bytes, rows_) in [(100, 101, 10), (u64::MAX, 10, 3), (100, 50, 11), (10, 20, 3)] {
        let job = Job::Copy2d { from: from.clone(), to: rows(pitch), row_bytes, rows: rows_ };
        assert!(matches!(refused(job), JobError::Geometry { .. }), "{pitch} {row_bytes} {rows_}");
    }
    assert_eq!(stream.outstanding(), 0);
}

#[test]
fn endless_empty_rows_are_no_work() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 1000);
    let mut stream = open(&device);
    for (row_bytes, rows) in [(0, u64::MAX), (0, 1 << 40), (0, 0), (100, 0)] {
        let place = || Rows { place: whole(&memory), pitch_bytes: 0 };
        stream.submit(Job::Copy2d { from: place(), to: place(), row_bytes, rows }).expect("nothing to do");
        let pattern = Pattern::Word(0x0102_0304);
        stream.submit(Job::Fill2d { to: place(), pattern, row_bytes, rows }).expect("nothing to do");
    }
    finish_well(&mut stream);
    assert_eq!(stream.counts(), Counts::default());
}

#[test]
fn jobs_of_too_many_calls_are_refused() {
    const ROWS: u64 = 70_000;
    let (_fake, device) = stage("");
    let memory = vram(&device, 8 * ROWS);
    let source = host(&device, 8 * ROWS as usize, 0);
    let mut stream = open(&device);
    let mut refused = |job| stream.submit(job).expect_err("it is wrong");
    let rows = |place, pitch_bytes| Rows { place, pitch_bytes };
    let word = Pattern::Word(0x0102_0304);
    let fill =
        |pitch| Job::Fill2d { to: rows(whole(&memory), pitch), pattern: word, row_bytes: 4, rows: ROWS };
    // Rows on each other: as many as one likes in a small place.
    let endless = Job::Fill2d { to: rows(whole(&memory), 0), pattern: word, row_bytes: 4, rows: 1 << 40 };
    assert!(matches!(refused(endless), JobError::Geometry { .. }));
    assert_eq!(refused(fill(7)), JobError::TooManyCalls);
    let repeated =
        Job::Copy2d { from: rows(all(&source), 0), to: rows(whole(&memory), 8), row_bytes: 4, rows: ROWS };
    assert_eq!(refused(repeated), JobError::TooManyCalls);
    let between = |at| rows(part(&memory, at, 8 * ROWS - 4), 8);
    let between = Job::Copy2d { from: between(0), to: between(4), row_bytes: 4, rows: ROWS };
    assert_eq!(refused(between), JobError::TooManyCalls);
    let target = host(&device, 8 * ROWS as usize, 1);
    let detour = Job::Detour { from: all(&source), to: all(&target), through: Some(part(&memory, 0, 8)) };
    assert_eq!(refused(detour), JobError::TooManyCalls);
    stream.submit(fill(8)).expect("one call");
    finish_well(&mut stream);
}

#[test]
fn rectangles_are_copied_in_one_call() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 10_000);
    let source = host(&device, 10_000, 5);
    let mut stream = open(&device);
    let from = Rows { place: source.place(7..9000).expect("inside"), pitch_bytes: 300 };
    let to = Rows { place: part(&memory, 11, 9000), pitch_bytes: 257 };
    stream.submit(Job::Copy2d { from, to, row_bytes: 200, rows: 29 }).expect("it is right");
    finish_well(&mut stream);
    assert_eq!(stream.counts(), Counts { rectangles: 1, ..Counts::default() });
    let source = pattern(10_000, 5);
    let copied = contents(&device, &memory);
    let mut expected = vec![0; 10_000];
    for row in 0..29 {
        let from = 7 + row * 300;
        let to = 11 + row * 257;
        expected[to..to + 200].copy_from_slice(&source[from..from + 200]);
    }
    assert!(copied == expected);
}

#[test]
fn odd_rectangles_go_row_by_row() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (fake, device) = stage("");
    let memory = vram(&device, 1000);
    let source = host(&device, 1000, 5);
    let mut stream = open(&device);
    // All rows are the first one.
    let from = Rows { place: all(&source), pitch_bytes: 0 };
    let to = Rows { place: whole(&memory), pitch_bytes: 100 };
    stream.submit(Job::Copy2d { from, to: to.clone(), row_bytes: 40, rows: 10 }).expect("it is right");
    finish_well(&mut stream);
    assert_eq!((stream.counts().rectangles, stream.counts().copies), (0, 10));
    fake.set("fail=cuMemcpy2DAsync:1:1");
    let from = Rows { place: all(&source), pitch_bytes: 100 };
    stream.submit(Job::Copy2d { from, to, row_bytes: 60, rows: 10 }).expect("it is right");
    finish_well(&mut stream);
    assert_eq!((stream.counts().fallbacks, stream.counts().copies), (1, 20));
    let copied = contents(&device, &memory);
    assert!((0..10).all(|row| copied[row * 100..][..60] == pattern(1000, 5)[row * 100..][..60]));
}

#[test]
fn rows_may_lie_between_each_other() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 1000);
    let mut stream = open(&device);
    let fill = Job::Fill2d {
        to: Rows { place: part(&memory, 0, 950), pitch_bytes: 100 },
        pattern: Pattern::Byte(9),
        row_bytes: 50,
        rows: 10,
    };
    stream.submit(fill).expect("it is right");
    let rows = |start| Rows { place: part(&memory, start, 950), pitch_bytes: 100 };
    let between = |to| Job::Copy2d { from: rows(0), to: rows(to), row_bytes: 50, rows: 10 };
    stream.submit(between(50)).expect("the rows are apart");
    assert_eq!(stream.submit(between(49)), Err(JobError::Overlap));
    finish_well(&mut stream);
    assert!(contents(&device, &memory).iter().all(|byte| *byte == 9));
}

#[test]
fn fills_begin_anywhere() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 64);
    let patterns = [Pattern::Byte(0x5a), Pattern::Half(0x1234), Pattern::Word(0x1122_3344), Pattern::Word(0)];
    for pattern in patterns {
        for start in 0..9 {
            for length in 0..14 {
                let mut stream = open_small(&device);
                stream.submit(Job::Fill { to: whole(&memory), pattern: Pattern::Byte(0xee) }).expect("right");
                stream.submit(Job::Fill { to: part(&memory, start, length), pattern }).expect("right");
                finish_well(&mut stream);
                let mut expected = vec![0xee; 64];
                for at in 0..length {
                    expected[(start + at) as usize] = pattern.word_bytes()[at as usize % 4];
                }
                assert_eq!(contents(&device, &memory), expected, "{pattern:?}, {start}, {length}");
            }
        }
    }
}

fn open_small(device: &Arc<Device>) -> Stream {
    Stream::open(device, Settings { depth: 2, ..Settings::default() }).expect("it opens")
}

#[test]
fn rectangles_are_filled() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 1000);
    for (start, pitch, row_bytes, pattern, calls) in [
        (0, 100, 40, Pattern::Word(0x0102_0304), 1),
        (2, 50, 30, Pattern::Half(0x0102), 1),
        (1, 33, 33, Pattern::Byte(7), 1),
        (4, 100, 41, Pattern::Word(0x0102_0304), 18),
    ] {
        let mut stream = open(&device);
        stream.submit(Job::Fill { to: whole(&memory), pattern: Pattern::Byte(0) }).expect("right");
        let to = Rows { place: part(&memory, start, 900), pitch_bytes: pitch };
        stream.submit(Job::Fill2d { to, pattern, row_bytes, rows: 9 }).expect("it is right");
        finish_well(&mut stream);
        assert_eq!(stream.counts().fills, 1 + calls, "{pattern:?}");
        let mut expected = vec![0; 1000];
        for row in 0..9 {
            for at in 0..row_bytes {
                expected[(start + row * pitch + at) as usize] = pattern.word_bytes()[at as usize % 4];
            }
        }
        assert_eq!(contents(&device, &memory), expected, "{pattern:?}");
    }
}

/// Pieces in reverse order, so that none continues another.
fn pieces(source: &Arc<HostMemory>, memory: &Arc<Vram>, count: u64, length: u64) -> Pieces {
    let piece = |index: u64| {
        let from = source.place(index * length..(index + 1) * length).expect("inside");
        (from, part(memory, (count - 1 - index) * length, length))
    };
    (0..count).map(piece).collect()
}

fn reversed(count: usize, length: usize, seed: u8) -> Vec<u8> {
    pattern(count * length, seed).chunks(length).rev().flatten().copied().collect()
}

#[test]
fn lists_go_to_kernel_batch_or_single_calls() {
    let kernel = Counts { kernels: 1, ..Counts::default() };
    let batch = Counts { batches: 1, ..Counts::default() };
    let single = Counts { copies: 50, ..Counts::default() };
    let fallen = |counts, fallbacks| Counts { fallbacks, ..counts };
    let both = Counts { kernels: 1, batches: 1, copies: 50, fallbacks: 2, ..Counts::default() };
    for (faults, kernel_below_bytes, expected) in [
        ("", 4096, kernel),
        ("", 1000, batch),
        ("without=cuMemcpyBatchAsync", 1000, single),
        ("without=cuMemcpyBatchAsync fail=cuModuleLoadData:218:1", 4096, single),
        ("fail=cuModuleLoadData:218:1", 4096, batch),
        ("register=refused", 4096, single),
        ("fail=cuLaunchKernel:400:1", 4096, fallen(Counts { batches: 1, ..kernel }, 1)),
        ("fail=cuMemcpyBatchAsync:801:1", 1000, fallen(Counts { copies: 50, ..batch }, 1)),
        ("fail=cuLaunchKernel:1:1 fail=cuMemcpyBatchAsync:1:1", 4096, both),
    ] {
        if is_real() && !faults.is_empty() {
            continue;
        }
        let (_fake, device) = stage(faults);
        let memory = vram(&device, 50 * 1000);
        let source = host(&device, 50 * 1000, 3);
        let settings = Settings { kernel_below_bytes, ..Settings::default() };
        let mut stream = Stream::open(&device, settings).expect("it opens");
        stream.submit(Job::Scatter(pieces(&source, &memory, 50, 1000))).expect("it is right");
        finish_well(&mut stream);
        assert_eq!(stream.counts(), expected, "{faults}");
        assert!(contents(&device, &memory) == reversed(50, 1000, 3), "{faults}");
    }
}

#[test]
fn adjacent_pieces_become_one_copy() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 5000);
    let source = host(&device, 5000, 4);
    let piece = |start: u64, length: u64| {
        (source.place(start..start + length).expect("inside"), part(&memory, start, length))
    };
    let mut stream = open(&device);
    let list = [piece(0, 100), piece(100, 0), piece(100, 1900), piece(2000, 3000)];
    stream.submit(Job::Scatter(list.into_iter().collect())).expect("it is right");
    finish_well(&mut stream);
    assert_eq!(stream.counts(), Counts { copies: 1, ..Counts::default() });
    assert!(contents(&device, &memory) == pattern(5000, 4));
}

#[test]
fn dependent_pieces_keep_their_order() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 300);
    let source = host(&device, 300, 8);
    let mut stream = open(&device);
    let list = [
        (source.place(0..100).expect("inside"), part(&memory, 0, 100)),
        (source.place(150..250).expect("inside"), part(&memory, 50, 100)),
        (part(&memory, 25, 100), part(&memory, 200, 100)),
    ];
    stream.submit(Job::Scatter(list.into_iter().collect())).expect("it is right");
    finish_well(&mut stream);
    assert_eq!(stream.counts(), Counts { copies: 3, ..Counts::default() });
    let source = pattern(300, 8);
    let copied = contents(&device, &memory);
    assert!(copied[..50] == source[..50] && copied[50..150] == source[150..250]);
    assert!(copied[200..300] == copied[25..125]);
}

#[test]
fn long_lists_use_no_table() {
    let (_fake, device) = stage("");
    let memory = vram(&device, 3000 * 8);
    let source = host(&device, 3000 * 8, 3);
    let mut stream = open(&device);
    stream.submit(Job::Scatter(pieces(&source, &memory, 3000, 8))).expect("it is right");
    finish_well(&mut stream);
    assert_eq!(stream.counts(), Counts { batches: 1, ..Counts::default() });
    assert!(contents(&device, &memory) == reversed(3000, 8, 3));
}

#[test]
fn tables_of_running_lists_are_apart() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (fake, device) = stage("hold go");
    let memory: Vec<_> = (0..20).map(|_| vram(&device, 16 * 1000)).collect();
    let source = host(&device, 16 * 1000, 3);
    let mut stream = Stream::open(&device, Settings { depth: 4, ..Settings::default() }).expect("it opens");
    fake.set("hold");
    for memory in &memory {
        stream.submit(Job::Scatter(pieces(&source, memory, 1000, 16))).expect("it is right");
    }
    fake.set("go");
    finish_well(&mut stream);
    assert_eq!(stream.counts().kernels, 20);
    assert!(memory.iter().all(|memory| contents(&device, memory) == reversed(1000, 16, 3)));
}

#[test]
fn detours_copy_host_memory() {
    let (_fake, device) = stage("");
    let through = vram(&device, 3000);
    let source = host(&device, 10_000, 3);
    for through in [Some(whole(&through)), None] {
        let target = host(&device, 10_000, 9);
        let mut stream = open(&device);
        let job = Job::Detour { from: all(&source), to: all(&target), through: through.clone() };
        stream.submit(job).expect("it is right");
        finish_well(&mut stream);
        assert_eq!(stream.counts().copies, if through.is_some() { 8 } else { 1 });
        assert!(bytes(&target) == pattern(10_000, 3));
    }
    let job = Job::Detour { from: part(&through, 0, 10), to: part(&through, 20, 10), through: None };
    assert_eq!(open(&device).submit(job), Err(JobError::NoDetour));
}

#[test]
fn streams_run_beside_each_other() {
    if is_real() {
        println!("left out: only the fake has faults");
        return;
    }
    let (_fake, device) = stage("slow=2000");
    let memory: Vec<_> = (0..4).map(|_| vram(&device, 5000)).collect();
    let source = host(&device, 5000, 6);
    let mut streams: Vec<_> = (0..4).map(|_| open(&device)).collect();
    for (stream, memory) in streams.iter_mut().zip(&memory) {
        for _ in 0..5 {
            stream.submit(copy(all(&source), whole(memory))).expect("it is right");
        }
    }
    streams.iter_mut().for_each(finish_well);
    assert!(memory.iter().all(|memory| contents(&device, memory) == pattern(5000, 6)));
}
