//! What a program finds at the file of a work queue that takes descriptors by `write()`, with good and bad input. A guest runs these tests on a file
//! of ours (`./x guest dsa`); they say the same of `/dev/dsa/wqD.Q` on a machine that has the device.
//!
//! `MEMFERRY_TEST_QUEUE` names the file, of a queue that this user may open and nobody else uses. Tests must not run side by side.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry_dsa::registers::descriptor::{Descriptor, Flags, Operation, opcode};
use memferry_dsa::registers::record::{Record, Status};
use memferry_shm::frame;
use memferry_shm::storage::{MappedWords, RingStorage};

const QUEUE: &str = "MEMFERRY_TEST_QUEUE";
/// A file that ends the flood when it is there.
const STOP: &str = "MEMFERRY_TEST_STOP";
/// What this program does as a process of its own.
const ROLE: &str = "MEMFERRY_TEST_ROLE";
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: u64 = 4096;
/// Completion records of a [`Memory`], in its first page.
const RECORDS: u64 = PAGE / 32;

fn path() -> PathBuf {
    std::env::var_os(QUEUE).unwrap_or_else(|| panic!("{QUEUE} is not set")).into()
}

/// Opens the queue. One that was closed a moment ago by a process that ended may be busy.
fn open() -> File {
    let started = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path()) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.expect("the queue"),
        }
    }
}

fn write(file: &mut File, descriptors: &[Descriptor]) -> io::Result<usize> {
    let words = descriptors.iter().flat_map(|descriptor| descriptor.words);
    file.write(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// Pages of this process, absent until they are touched; the first one has completion records and is present.
struct Memory {
    words: MappedWords,
    base: u64,
}

impl Memory {
    fn new(pages: u64) -> Self {
        let (_, mapping) = frame::allocate_half((pages + 1) * PAGE).expect("memory");
        let base = mapping.pointer().expose_provenance() as u64;
        let memory = Self { words: MappedWords::new(mapping).expect("words"), base };
        memory.set(0, 0);
        memory
    }

    fn set(&self, address: u64, word: u64) {
        self.words.word((address / 8) as usize).store(word, Ordering::Release);
    }

    fn get(&self, address: u64) -> u64 {
        self.words.word((address / 8) as usize).load(Ordering::Acquire)
    }

    /// The place of a page after the records.
    fn page(&self, number: u64) -> u64 {
        self.base + (number + 1) * PAGE
    }

    /// Writes numbers to a range of pages.
    fn touch(&self, first: u64, count: u64, seed: u64) {
        for at in ((first + 1) * PAGE..(first + 1 + count) * PAGE).step_by(8) {
            self.set(at, at.wrapping_mul(seed));
        }
    }

    fn has(&self, first: u64, count: u64, of: u64, seed: u64) -> bool {
        let moved = (of + 1) * PAGE;
        let start = (first + 1) * PAGE;
        (0..count * PAGE).step_by(8).all(|at| self.get(start + at) == (moved + at).wrapping_mul(seed))
    }

    fn record(&self, number: u64) -> u64 {
        assert!(number < RECORDS);
        self.base + 32 * number
    }

    /// A record that was written, or `None`.
    fn look(&self, number: u64) -> Option<Record> {
        let words = [0, 8, 16, 24].map(|at| self.get(32 * number + at));
        (words[0] & 0x3f != 0).then(|| Record::from_words(words))
    }

    /// Waits for a record, and clears it.
    fn wait(&self, number: u64) -> (Option<Status>, Record) {
        let started = Instant::now();
        loop {
            if let Some(record) = self.look(number) {
                (0..32).step_by(8).for_each(|at| self.set(32 * number + at, 0));
                return (Status::from_code(record.head.status()), record);
            }
            assert!(started.elapsed() < PATIENCE, "no completion record");
            std::thread::yield_now();
        }
    }

    fn moved(&self, from: u64, to: u64, pages: u64, record: u64) -> Descriptor {
        let operation = Operation::Move {
            source: self.page(from),
            destination: self.page(to),
            bytes: (pages * PAGE) as u32,
        };
        Descriptor::new(&operation, Flags::new()).with_record(self.record(record))
    }
}

/// The queue still works.
fn works(file: &mut File) {
    let memory = Memory::new(2);
    memory.touch(0, 1, 5);
    memory.touch(1, 1, 1);
    assert_eq!(write(file, &[memory.moved(0, 1, 1, 0)]).expect("it takes a descriptor"), 64);
    assert_eq!(memory.wait(0).0, Some(Status::Success));
    assert!(memory.has(1, 1, 0, 5));
}

fn error(result: io::Result<usize>) -> i32 {
    result.expect_err("it is refused").raw_os_error().expect("an error of the kernel")
}

const EPERM: i32 = 1;
const EINVAL: i32 = 22;

#[test]
#[ignore = "needs a work queue of type user"]
fn a_descriptor_is_performed() {
    let mut file = open();
    let memory = Memory::new(32);
    memory.touch(0, 16, 3);
    memory.touch(16, 16, 1);
    assert_eq!(write(&mut file, &[memory.moved(0, 16, 16, 1)]).unwrap(), 64);
    assert_eq!(memory.wait(1).0, Some(Status::Success));
    assert!(memory.has(16, 16, 0, 3));
}

#[test]
#[ignore = "needs a work queue of type user"]
fn only_whole_descriptors_are_taken() {
    let mut file = open();
    let memory = Memory::new(4);
    memory.touch(0, 4, 7);
    let descriptors = [memory.moved(0, 1, 1, 0), memory.moved(0, 2, 1, 1), memory.moved(0, 3, 1, 2)];
    let bytes: Vec<u8> = descriptors.iter().flat_map(|one| one.words).flat_map(u64::to_le_bytes).collect();
    assert_eq!(file.write(&bytes[..63]).unwrap(), 0);
    assert_eq!(file.write(&bytes[..1]).unwrap(), 0);
    assert_eq!(file.write(&bytes[..64 + 63]).unwrap(), 64);
    assert_eq!(memory.wait(0).0, Some(Status::Success));
    assert_eq!(memory.look(1), None);
    assert_eq!(file.write(&bytes).unwrap(), 192, "several in one call");
    for record in 0..3 {
        assert_eq!(memory.wait(record).0, Some(Status::Success));
        assert!(memory.has(record + 1, 1, 0, 7));
    }
    assert!(file.read(&mut [0; 64]).is_err(), "nothing can be read");
}

#[test]
#[ignore = "needs a work queue of type user"]
fn a_bad_descriptor_ends_the_call() {
    let mut file = open();
    let memory = Memory::new(2);
    memory.touch(0, 2, 7);
    let good = memory.moved(0, 1, 1, 0);
    let list = Operation::Batch { list: memory.page(0), count: 2 };
    let batch = Descriptor::new(&list, Flags::new()).with_record(memory.record(1));
    assert_eq!(error(write(&mut file, &[batch])), EINVAL);
    for misaligned in [1, 8, 16] {
        let bad = good.with_record(memory.record(1) + misaligned);
        assert_eq!(error(write(&mut file, &[bad, good])), EINVAL);
    }
    assert_eq!(memory.look(0), None, "what is behind it is not performed");
    assert_eq!(write(&mut file, &[good, batch, good]).unwrap(), 64);
    assert_eq!(memory.wait(0).0, Some(Status::Success));
    assert_eq!(memory.look(1), None);
}

#[test]
#[ignore = "needs a work queue of type user"]
fn an_absent_page_ends_a_descriptor_early() {
    let mut file = open();
    let memory = Memory::new(12);
    memory.touch(0, 6, 3);
    // Two pages are there; the others were never touched.
    memory.touch(6, 2, 1);
    write(&mut file, &[memory.moved(0, 6, 6, 0)]).unwrap();
    let (status, record) = memory.wait(0);
    assert_eq!(status, Some(Status::PageFault));
    assert_eq!(u64::from(record.head.completed()), 2 * PAGE);
    assert_eq!(record.fault_address & !(PAGE - 1), memory.page(8));
    assert!(record.head.write());
    assert!(memory.has(6, 2, 0, 3));
    memory.touch(8, 4, 1);
    write(&mut file, &[memory.moved(2, 8, 4, 0)]).unwrap();
    assert_eq!(memory.wait(0).0, Some(Status::Success));
    assert!(memory.has(6, 6, 0, 3));
}

#[test]
#[ignore = "needs a work queue of type user"]
fn fields_out_of_range_end_with_a_status() {
    let mut file = open();
    let memory = Memory::new(2);
    memory.touch(0, 2, 7);
    let good = memory.moved(0, 1, 1, 0);
    let with = |place: usize, word: u64| {
        let mut words = good.words;
        words[place] = word;
        Descriptor { words }
    };
    let head = good.words[0];
    let code = |code: u8| head & !(0xff << 56) | u64::from(code) << 56;
    let cases = [
        (with(0, code(0x7f)), Status::UnsupportedOperation),
        (with(0, code(opcode::MOVE) | 1 << 32), Status::InvalidFlags),
        (with(4, 0), Status::InvalidSize),
        (with(5, 1), Status::ReservedField),
        // No process has these.
        (with(2, 0x2000), Status::PageFault),
        (with(3, 8), Status::PageFault),
    ];
    for (descriptor, expected) in cases {
        assert_eq!(write(&mut file, &[descriptor]).unwrap(), 64);
        assert_eq!(memory.wait(0).0, Some(expected), "{descriptor:x?}");
    }
    works(&mut file);
}

#[test]
#[ignore = "needs a work queue of type user"]
fn a_foreign_record_touches_nothing() {
    static CONSTANT: [u64; 64] = [0x1234_5678; 64];
    let mut file = open();
    let memory = Memory::new(2);
    memory.touch(0, 2, 7);
    let constant = CONSTANT.as_ptr().addr() as u64;
    for record in [32, 0xffff_8000_0000_0000, u64::MAX - 31, constant.next_multiple_of(32)] {
        assert_eq!(write(&mut file, &[memory.moved(0, 1, 1, 0).with_record(record)]).unwrap(), 64);
    }
    works(&mut file);
    assert!(std::hint::black_box(&CONSTANT).iter().all(|word| *word == 0x1234_5678));
}

#[test]
#[ignore = "needs a work queue of type user"]
fn closing_waits_for_the_device() {
    for _ in 0..8 {
        let mut file = open();
        let memory = Memory::new(64);
        memory.touch(0, 64, 3);
        let descriptors: Vec<Descriptor> = (0..8).map(|record| memory.moved(0, 32, 32, record)).collect();
        assert_eq!(write(&mut file, &descriptors).unwrap(), 512);
        drop(file);
        // None of them is touched by the device after that.
        assert!((0..8).all(|record| memory.look(record).is_some()));
    }
    works(&mut open());
}

/// This program again, as a process with a role.
fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["plays_a_role", "--exact"]).env(ROLE, role).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn plays_a_role() {
    match std::env::var(ROLE).as_deref() {
        // Leaves with descriptors under way. Nothing is dropped.
        Ok("leaves") => {
            let mut file = open();
            let memory = Memory::new(512);
            memory.touch(0, 512, 3);
            let descriptors: Vec<Descriptor> =
                (0..8).map(|record| memory.moved(0, 256, 256, record)).collect();
            let _ = write(&mut file, &descriptors);
            std::process::abort();
        }
        // Has the queue from its parent.
        Ok("inherits") => {
            let queue: OwnedFd = rustix::io::dup(io::stdin()).expect("a descriptor");
            let memory = Memory::new(2);
            memory.touch(0, 2, 3);
            let refused = write(&mut File::from(queue), &[memory.moved(0, 1, 1, 0)]);
            std::process::exit(refused.err().and_then(|error| error.raw_os_error()).unwrap_or(0));
        }
        _ => {}
    }
}

#[test]
#[ignore = "needs a work queue of type user"]
fn a_process_that_ends_leaves_nothing() {
    for _ in 0..3 {
        assert!(!child("leaves").status().expect("a process").success());
        works(&mut open());
    }
}

#[test]
#[ignore = "needs a work queue of type user"]
fn another_address_space_is_refused() {
    let mut file = open();
    let given = file.try_clone().unwrap();
    let status = child("inherits").stdin(given).status().expect("a process");
    assert_eq!(status.code(), Some(EPERM));
    works(&mut file);
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20 ^ self.0 << 30
    }
}

/// A client of a shared queue that means harm to the others: any descriptors, any calls, and it closes at any time.
#[test]
#[ignore = "needs a shared work queue of type user, and somebody who ends it"]
fn a_flood_of_descriptors() {
    let Some(stop) = std::env::var_os(STOP).map(PathBuf::from) else { return };
    let memory = Memory::new(8);
    memory.touch(0, 8, 3);
    let mut random = Random(1);
    let mut written = 0_u64;
    while !stop.exists() {
        let mut file = open();
        for _ in 0..random.next() % 64 {
            let mut descriptor =
                memory.moved(random.next() % 8, random.next() % 8, 1, random.next() % RECORDS);
            for _ in 0..random.next() % 3 {
                descriptor.words[(random.next() % 8) as usize] ^= 1 << (random.next() % 64);
            }
            if random.next().is_multiple_of(8) {
                descriptor.words = std::array::from_fn(|_| random.next());
            }
            let count = random.next() % 8;
            written += write(&mut file, &vec![descriptor; count as usize]).unwrap_or(0) as u64 / 64;
        }
    }
    println!("{written} descriptors were taken");
    assert!(written > 0);
}
