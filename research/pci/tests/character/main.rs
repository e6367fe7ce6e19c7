//! The character device by its messages: this process is the client, whose memory the device reads and writes.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_dsa::registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa::registers::record::{Record, Status};
use memferry_pci::character::{
    CharacterDevice, CharacterError, CharacterOptions, INIT, OPEN, RELEASE, WRITE, serve,
};
use memferry_shm::frame;
use memferry_shm::storage::{MappedWords, RingStorage};
use rustix::io::Errno;

const PAGE: u64 = 4096;
const SUCCESS: u8 = 1;

fn options() -> CharacterOptions {
    CharacterOptions { name: "wq0.0".to_owned(), entries: 16, is_shared: false, block_on_fault: false }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn message(operation: u32, thread: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((40 + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(operation.to_ne_bytes());
    bytes.extend(9_u64.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes.extend(thread.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

struct Rig {
    device: CharacterDevice,
    now: Instant,
}

impl Rig {
    fn new(options: CharacterOptions) -> Self {
        Self { device: CharacterDevice::new(options).unwrap(), now: Instant::from_nanoseconds(1_000_000_000) }
    }

    /// The body of the reply, or its error.
    fn send(&mut self, message: &[u8]) -> Result<Vec<u8>, Errno> {
        let reply = self.device.handle(message).expect("a reply");
        assert_eq!(reply[..4], (reply.len() as u32).to_ne_bytes());
        assert_eq!(reply[8..16], 9_u64.to_ne_bytes());
        match i32::from_ne_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(reply[16..].to_vec()),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    fn open_as(&mut self, thread: u32) -> Result<u64, Errno> {
        let body = self.send(&message(OPEN, thread, &[0; 8]))?;
        Ok(u64::from_ne_bytes(body[..8].try_into().unwrap()))
    }

    fn open(&mut self) -> u64 {
        self.open_as(this_thread()).unwrap()
    }

    fn write_as(&mut self, thread: u32, file: u64, data: &[u8]) -> Result<u32, Errno> {
        let mut body = file.to_ne_bytes().to_vec();
        body.extend([0; 8]);
        body.extend((data.len() as u32).to_ne_bytes());
        body.resize(40, 0);
        body.extend(data);
        let body = self.send(&message(WRITE, thread, &body))?;
        Ok(u32::from_ne_bytes(body[..4].try_into().unwrap()))
    }

    fn write(&mut self, file: u64, descriptors: &[Descriptor]) -> Result<u32, Errno> {
        self.write_as(this_thread(), file, &bytes(descriptors))
    }

    fn release(&mut self, file: u64) -> Result<Vec<u8>, Errno> {
        let mut body = file.to_ne_bytes().to_vec();
        body.resize(24, 0);
        self.send(&message(RELEASE, 0, &body))
    }

    fn run(&mut self) {
        self.now = self.now.after(Duration::from_millis(10));
        self.device.step(self.now);
        assert_eq!(self.device.pending(), 0);
    }
}

fn bytes(descriptors: &[Descriptor]) -> Vec<u8> {
    descriptors.iter().flat_map(|one| one.words).flat_map(u64::to_le_bytes).collect()
}

/// Pages of this process; the first one has completion records, and all others are absent until they are touched.
struct Memory {
    words: MappedWords,
    base: u64,
}

impl Memory {
    fn new(pages: u64) -> Self {
        let (_, mapping) = frame::allocate_half((pages + 1) * PAGE).unwrap();
        let base = mapping.pointer().expose_provenance() as u64;
        let memory = Self { words: MappedWords::new(mapping).unwrap(), base };
        memory.set(0, 0);
        memory
    }

    fn set(&self, at: u64, word: u64) {
        self.words.word((at / 8) as usize).store(word, Ordering::Release);
    }

    fn get(&self, at: u64) -> u64 {
        self.words.word((at / 8) as usize).load(Ordering::Acquire)
    }

    fn touch(&self, page: u64, word: u64) {
        (0..PAGE).step_by(8).for_each(|at| self.set((page + 1) * PAGE + at, word));
    }

    fn has(&self, page: u64, word: u64) -> bool {
        (0..PAGE).step_by(8).all(|at| self.get((page + 1) * PAGE + at) == word)
    }

    fn page(&self, number: u64) -> u64 {
        self.base + (number + 1) * PAGE
    }

    fn record(&self, number: u64) -> Record {
        Record::from_words([0, 8, 16, 24].map(|at| self.get(32 * number + at)))
    }

    fn moved(&self, from: u64, to: u64, pages: u64, record: u64) -> Descriptor {
        let bytes = (pages * PAGE) as u32;
        let operation = Operation::Move { source: self.page(from), destination: self.page(to), bytes };
        Descriptor::new(&operation, Flags::new()).with_record(self.base + 32 * record)
    }
}

#[test]
fn the_first_message_names_the_file() {
    let mut rig = Rig::new(options());
    let body = rig.send(&message(INIT, 0, &[7, 0, 0, 0, 38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    assert!(body.ends_with(b"DEVNAME=dsa/wq0.0\0"), "{body:?}");
    assert_eq!(rig.device.path(), "/dev/dsa/wq0.0");
    for name in ["", ".", "..", "../x", "a/b", "a b", "a\0", &"x".repeat(33)] {
        assert!(
            CharacterDevice::new(CharacterOptions { name: name.to_owned(), ..options() }).is_err(),
            "{name}"
        );
    }
}

#[test]
fn descriptors_are_performed_on_the_clients_memory() {
    for is_shared in [false, true] {
        let mut rig = Rig::new(CharacterOptions { is_shared, ..options() });
        let memory = Memory::new(8);
        let file = rig.open();
        (0..8).for_each(|page| memory.touch(page, page));
        memory.touch(3, 99);
        assert_eq!(rig.write(file, &[memory.moved(3, 0, 1, 0), memory.moved(4, 1, 2, 1)]), Ok(128));
        rig.run();
        assert_eq!([0, 1].map(|record| memory.record(record).head.status()), [SUCCESS; 2]);
        assert!(memory.has(0, 99) && memory.has(1, 4) && memory.has(2, 5));
        assert!(rig.device.take_report().is_empty());
    }
}

#[test]
fn only_whole_descriptors_without_faults_are_taken() {
    let mut rig = Rig::new(options());
    let memory = Memory::new(2);
    let file = rig.open();
    (0..2).for_each(|page| memory.touch(page, page));
    let good = memory.moved(1, 0, 1, 0);
    let misaligned = good.with_record(memory.base + 8);
    let batch = Descriptor::new(&Operation::Batch { list: memory.page(0), count: 2 }, Flags::new());
    let thread = this_thread();
    for (length, taken) in [(0, 0), (1, 0), (63, 0), (127, 64), (128, 128)] {
        assert_eq!(rig.write_as(thread, file, &bytes(&[good, good])[..length]), Ok(taken), "{length}");
        rig.run();
    }
    for bad in [misaligned, batch] {
        assert_eq!(rig.write(file, &[bad, good]), Err(Errno::INVAL));
        assert_eq!(rig.write(file, &[good, good, bad, good]), Ok(128));
        rig.run();
    }
    assert_eq!(rig.write(file + 1, &[good]), Err(Errno::BADF));
    assert_eq!(rig.release(file + 1), Err(Errno::BADF));
}

#[test]
fn absent_pages_end_a_descriptor_early() {
    let mut rig = Rig::new(options());
    let memory = Memory::new(6);
    let file = rig.open();
    (0..4).for_each(|page| memory.touch(page, page));
    rig.write(file, &[memory.moved(0, 3, 3, 0)]).unwrap();
    rig.run();
    let record = memory.record(0);
    assert_eq!(Status::from_code(record.head.status()), Some(Status::PageFault));
    assert_eq!((u64::from(record.head.completed()), record.fault_address), (PAGE, memory.page(4)));
    assert!(record.head.write() && memory.has(3, 0));
    // With a source that is absent, and then touched.
    rig.write(file, &[memory.moved(4, 0, 1, 1)]).unwrap();
    rig.run();
    assert_eq!(memory.record(1).head.completed(), 0);
    memory.touch(4, 7);
    rig.write(file, &[memory.moved(4, 0, 1, 1)]).unwrap();
    rig.run();
    assert!(memory.has(0, 7));
}

#[test]
fn descriptors_may_wait_for_pages() {
    let mut rig = Rig::new(CharacterOptions { block_on_fault: true, ..options() });
    let memory = Memory::new(2);
    let file = rig.open();
    memory.touch(0, 7);
    let waits = memory.moved(0, 1, 1, 0);
    let waits = waits.with_flags(waits.flags().with_block_on_fault(true));
    rig.write(file, &[waits]).unwrap();
    rig.run();
    assert_eq!(memory.record(0).head.status(), SUCCESS);
    assert!(memory.has(1, 7));
    // Nobody can have this page.
    let mut words = waits.words;
    words[2] = 0x2000;
    memory.set(0, 0);
    rig.write(file, &[Descriptor { words }]).unwrap();
    rig.run();
    assert_eq!(Status::from_code(memory.record(0).head.status()), Some(Status::PageRequestFailed));
}

#[test]
fn a_record_out_of_reach_is_reported() {
    let mut rig = Rig::new(options());
    let memory = Memory::new(2);
    let file = rig.open();
    (0..2).for_each(|page| memory.touch(page, page));
    for record in [32, 0xffff_8000_0000_0000, u64::MAX - 31] {
        rig.write(file, &[memory.moved(0, 1, 1, 0).with_record(record)]).unwrap();
        rig.run();
        let said = rig.device.take_report().join("; ");
        assert!(said.contains("page fault on the completion record"), "{said}");
    }
    rig.write(file, &[memory.moved(0, 1, 1, 0)]).unwrap();
    rig.run();
    assert_eq!(memory.record(0).head.status(), SUCCESS);
}

#[test]
fn a_dedicated_queue_has_one_opener() {
    let mut rig = Rig::new(options());
    let file = rig.open();
    assert_eq!(rig.open_as(this_thread()), Err(Errno::BUSY));
    rig.release(file).unwrap();
    let next = rig.open();
    assert_ne!(next, file);
    let mut shared = Rig::new(CharacterOptions { is_shared: true, ..options() });
    let files: Vec<u64> = (0..20).map(|_| shared.open()).collect();
    assert!(files.into_iter().all(|file| shared.release(file).is_ok()));
}

#[test]
fn release_waits_for_the_device() {
    for is_shared in [false, true] {
        let mut rig = Rig::new(CharacterOptions { is_shared, ..options() });
        let memory = Memory::new(64);
        (0..64).for_each(|page| memory.touch(page, page));
        let file = rig.open();
        let descriptors: Vec<Descriptor> = (0..8).map(|record| memory.moved(0, 32, 32, record)).collect();
        assert_eq!(rig.write(file, &descriptors), Ok(512));
        rig.release(file).unwrap();
        assert!((0..8).all(|record| memory.record(record).head.status() == SUCCESS));
        assert!(rig.device.take_report().is_empty());
    }
}

#[test]
fn a_full_shared_queue_answers_again() {
    let mut rig = Rig::new(CharacterOptions { is_shared: true, entries: 4, ..options() });
    let memory = Memory::new(2);
    (0..2).for_each(|page| memory.touch(page, page));
    let file = rig.open();
    // The device's time stands still.
    assert_eq!(rig.write(file, &vec![memory.moved(0, 1, 1, 0); 9]), Ok(256));
    assert_eq!(rig.write(file, &[memory.moved(0, 1, 1, 0)]), Err(Errno::AGAIN));
    rig.run();
    assert_eq!(rig.write(file, &[memory.moved(0, 1, 1, 0)]), Ok(64));
}

/// A process that does nothing, and ends with the test.
struct Other(Child);

impl Other {
    fn new() -> Self {
        Self(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn other_processes_may_not_use_the_file() {
    let mut rig = Rig::new(options());
    let memory = Memory::new(2);
    let file = rig.open();
    let good = bytes(&[memory.moved(0, 1, 1, 0)]);
    let other = Other::new();
    for thread in [other.0.id(), 0, u32::MAX] {
        assert_eq!(rig.write_as(thread, file, &good), Err(Errno::PERM), "{thread}");
    }
    let own_thread = std::thread::spawn(this_thread).join().unwrap();
    assert_eq!(rig.write_as(own_thread, file, &good), Err(Errno::PERM), "a thread that has ended");
    let (say, said) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let living = std::thread::spawn(move || {
        say.send(this_thread()).unwrap();
        let _ = ended.recv();
    });
    assert_eq!(rig.write_as(said.recv().unwrap(), file, &good), Ok(64), "another thread of the opener");
    drop(end);
    living.join().unwrap();
    for nobody in [0, u32::MAX] {
        assert_eq!(Rig::new(options()).open_as(nobody), Err(Errno::NODEV));
    }
}

#[test]
fn a_client_may_end_with_descriptors_under_way() {
    let mut rig = Rig::new(options());
    let memory = Memory::new(64);
    (0..64).for_each(|page| memory.touch(page, 1));
    let other = Other::new();
    let file = rig.open_as(other.0.id()).unwrap();
    // The addresses are of this process, and mean other memory in that one, or none.
    let descriptors: Vec<Descriptor> = (0..8).map(|record| memory.moved(0, 32, 32, record)).collect();
    assert_eq!(rig.write_as(other.0.id(), file, &bytes(&descriptors)), Ok(512));
    let id = other.0.id();
    drop(other);
    assert_eq!(rig.write_as(id, file, &bytes(&descriptors)), Err(Errno::PERM));
    rig.run();
    rig.release(file).unwrap();
    assert!((0..8).all(|record| memory.record(record) == Record::default()));
    assert!((32..64).all(|page| memory.has(page, 1)), "this process's memory is not touched");
    let file = rig.open();
    rig.write(file, &[memory.moved(0, 1, 1, 0)]).unwrap();
    rig.run();
    assert_eq!(memory.record(0).head.status(), SUCCESS);
}

#[test]
fn any_descriptors_and_messages_are_survived() {
    let mut rig = Rig::new(CharacterOptions { is_shared: true, ..options() });
    // The descriptors of one, at random, may touch any of its memory.
    let other = Other::new();
    let id = other.0.id();
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 24 ^ state << 40
    };
    let mut file = rig.open_as(id).unwrap();
    for round in 0..2000 {
        let mut descriptor = Descriptor { words: std::array::from_fn(|_| random()) };
        if round % 2 == 0 {
            // As far as possible a good one.
            let operation =
                Operation::Move { source: random(), destination: random(), bytes: random() as u32 };
            descriptor = Descriptor::new(&operation, Flags::new()).with_record(random() & !31);
        }
        let _ = rig.write_as(id, file, &bytes(&vec![descriptor; (random() % 4) as usize]));
        let mut garbage: Vec<u8> = (0..random() % 120).map(|_| random() as u8).collect();
        if let Some(head) = garbage.get_mut(..8) {
            head[..4].copy_from_slice(&(random() as u32 % 120).to_ne_bytes());
            head[4..].copy_from_slice(&(random() as u32 % 48).to_ne_bytes());
        }
        let _ = rig.device.handle(&garbage);
        rig.run();
        if round % 64 == 0 {
            let _ = rig.release(file);
            file = rig.open_as(id).unwrap();
        }
    }
    let memory = Memory::new(2);
    (0..2).for_each(|page| memory.touch(page, page));
    let file = rig.open();
    rig.write(file, &[memory.moved(0, 1, 1, 0)]).unwrap();
    rig.run();
    assert_eq!(memory.record(0).head.status(), SUCCESS);
}

#[test]
fn without_cuse_the_program_says_what_to_do() {
    if std::path::Path::new("/dev/cuse").exists() {
        return;
    }
    let mut device = CharacterDevice::new(options()).unwrap();
    let error = serve(&mut device, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, CharacterError::Open(Errno::NOENT)), "{error}");
    assert!(error.to_string().contains("modprobe cuse"));
}
