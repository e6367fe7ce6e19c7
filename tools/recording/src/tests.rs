//! Tests of the recording: counts are read back, invalid words are rejected, and concurrent threads lose no calls.

use std::sync::Arc;

use super::*;
use memferry_shm::storage::HeapWords;

fn empty() -> HeapWords {
    let words = HeapWords::zeroed(WORDS);
    words.word(0).store(MAGIC, Ordering::Relaxed);
    words
}

fn kind(bytes: u64) -> Kind {
    Kind {
        operation: Operation::Memmove,
        size_class: size_class(bytes),
        alignment: Alignment::Alike,
        distance: Distance::DestinationFar,
        caller: None,
    }
}

#[test]
fn size_classes_are_powers_of_two() {
    let classes = [0, 1, 2, 3, 4, 4095, 4096, u64::MAX].map(size_class);
    assert_eq!(classes, [0, 1, 2, 2, 3, 12, 13, 64]);
    for class in 0..=64 {
        assert_eq!(size_class(shortest_of(class)), class);
    }
}

#[test]
fn alignment_depends_on_both_addresses() {
    let found = [(64, 128), (64, 8), (65, 129), (65, 66), (67, 67), (8, 8)];
    let expected = [
        Alignment::Lines,
        Alignment::Words,
        Alignment::Alike,
        Alignment::Apart,
        Alignment::Apart,
        Alignment::Words,
    ];
    assert_eq!(found.map(|(to, from)| Alignment::of(to, from)), expected);
}

#[test]
fn every_kind_survives_its_key() {
    let callers = [None, Some((0, 0)), Some((OBJECTS as u16 - 1, (1 << ADDRESS_BITS) - 1))];
    for operation in OPERATIONS {
        for (alignment, distance) in
            ALIGNMENTS.into_iter().zip(DISTANCES).chain([(Alignment::Lines, Distance::Far)])
        {
            for size_class in [0, 1, 64] {
                for caller in callers {
                    let caller = caller.map(|(object, address)| Caller { object: ObjectId(object), address });
                    let kind = Kind { operation, size_class, alignment, distance, caller };
                    assert_eq!(Kind::of_key(kind.key()), Some(kind));
                }
            }
        }
    }
    let far = Caller { object: ObjectId(3), address: 1 << ADDRESS_BITS };
    let without_caller = Kind { caller: None, ..kind(1) };
    assert_eq!(Kind::of_key(Kind { caller: Some(far), ..kind(1) }.key()), Some(without_caller));
}

#[test]
fn threads_count_one_kind_in_one_row() {
    const EACH: u64 = if cfg!(miri) { 20 } else { 5000 };
    let words = empty();
    let recorder = Arc::new(Recorder::new(words.clone()).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let recorder = Arc::clone(&recorder);
            std::thread::spawn(move || {
                recorder.count_process();
                (0..EACH).for_each(|at| recorder.count(kind(100 + at % 2 * 1000), 100 + at % 2 * 1000, 3));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut recording = read(&words).unwrap();
    recording.rows.sort_by_key(|row| row.kind);
    let half = 4 * EACH / 2;
    let row = |bytes| Row { kind: kind(bytes), calls: half, bytes: half * bytes, ticks: half * 3 };
    assert_eq!(recording.rows, [row(100), row(1100)]);
    assert_eq!((recording.processes, recording.left_out_calls, recording.nonsense_rows), (4, 0, 0));
}

#[test]
fn names_are_stored_once() {
    let words = empty();
    let recorder = Recorder::new(words.clone()).unwrap();
    let long: Vec<u8> = (0..1000u32).map(|at| b'a' + (at % 23) as u8).collect();
    let ids = [&b"/lib/a.so"[..], b"/lib/b.so", &long].map(|name| recorder.object(name).unwrap());
    assert_eq!(recorder.object(b"/lib/a.so"), Some(ids[0]));
    assert_ne!(ids[0], ids[1]);
    let recording = read(&words).unwrap();
    let named = ids.map(|id| recording.object(id).unwrap().clone());
    assert_eq!(named[0], Object { name: b"/lib/a.so".to_vec(), is_whole: true });
    assert_eq!(named[1].name, b"/lib/b.so");
    assert_eq!(named[2], Object { name: long[1000 - LONGEST_NAME..].to_vec(), is_whole: false });
}

#[test]
fn calls_without_room_are_counted() {
    let words = empty();
    let recorder = Recorder::new(words.clone()).unwrap();
    for at in 0..ROWS {
        words.word(ROWS_AT + at * ROW_WORDS).store(u64::MAX, Ordering::Relaxed);
    }
    recorder.count(kind(9), 9, 1);
    recorder.count(kind(9), 9, 1);
    let recording = read(&words).unwrap();
    assert_eq!((recording.left_out_calls, recording.left_out_bytes), (2, 18));
    assert_eq!((recording.rows.len(), recording.nonsense_rows), (0, ROWS));
    for at in 0..OBJECTS {
        assert!(recorder.object(format!("/{at}").as_bytes()).is_some() || at > OBJECTS / 2);
    }
    assert_eq!(recorder.object(b"one more"), None);
}

#[test]
fn a_table_of_noise_is_read_safely() {
    let seed = 0x5eed_u64;
    println!("seed {seed:#x}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let words = empty();
    for at in 1..WORDS {
        words.word(at).store(rng.u64(..), Ordering::Relaxed);
    }
    let recording = read(&words).unwrap();
    assert_eq!(recording.rows.len() + recording.nonsense_rows, ROWS);
    for row in &recording.rows {
        let object = row.kind.caller.and_then(|caller| recording.object(caller.object));
        assert!(row.kind.size_class <= 64 && object.is_none_or(|object| object.name.len() <= LONGEST_NAME));
    }
    let recorder = Recorder::new(words.clone()).unwrap();
    recorder.count(kind(1), u64::MAX, u64::MAX);
    recorder.object(b"any");
    words.word(0).store(7, Ordering::Relaxed);
    assert_eq!(read(&words), Err(ReadError::Overwritten { found: 7 }));
    assert_eq!(read(&HeapWords::zeroed(9)), Err(ReadError::TooShort { words: 9 }));
    assert!(Recorder::new(words).is_none() && Recorder::new(HeapWords::zeroed(0)).is_none());
}

#[test]
#[cfg(not(miri))]
fn only_recordings_are_opened() {
    let (descriptor, words) = create().unwrap();
    let recorder = open(OsStr::new(&path_of(&descriptor))).unwrap();
    recorder.count_process();
    recorder.count(kind(5), 5, 0);
    let recording = read(&words).unwrap();
    assert_eq!((recording.processes, recording.rows[0].bytes), (1, 5));
    let (other, _words) = frame::allocate_sealed(8192, true).unwrap();
    for path in [path_of(&other), "/dev/null".to_owned(), "/nowhere".to_owned(), String::new()] {
        assert!(open(OsStr::new(&path)).is_err(), "{path}");
    }
    // Right name, size and first word, but unsealed, so that its owner could truncate it; then another layout version.
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let named = rustix::fs::memfd_create(NAME, flags).unwrap();
    rustix::fs::ftruncate(&named, (WORDS * size_of::<u64>()) as u64).unwrap();
    rustix::io::pwrite(&named, &MAGIC.to_ne_bytes(), 0).unwrap();
    let kind_of = |path: &str| open(OsStr::new(path)).unwrap_err().kind();
    assert_eq!(kind_of(&path_of(&named)), io::ErrorKind::InvalidData);
    rustix::fs::fcntl_add_seals(&named, SealFlags::SHRINK | SealFlags::SEAL).unwrap();
    assert!(open(OsStr::new(&path_of(&named))).is_ok());
    words.word(0).store(MAGIC + 1, Ordering::Relaxed);
    assert_eq!(kind_of(&path_of(&descriptor)), io::ErrorKind::InvalidData);
}
