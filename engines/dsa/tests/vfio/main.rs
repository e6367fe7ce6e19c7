//! A program: the driver of DSA and the engine's portal code at user level, on a device that VFIO gives them. A guest runs it, as an ordinary
//! user, on the model as a PCI device.
//!
//! ```text
//! suite     the driver's conformance suite, descriptors by MOVDIR64B into the mapped portal
//! strays    an address that is not mapped fails its request, or is in the error register, and leaves the others alone
//! killed    a process that is killed with descriptors outstanding: its memory is not written any more, and the device serves the next one
//! ```
//!
//! Arguments: --vfio ADDRESS SCENE. Without any it does nothing, because Cargo runs it as a test.

mod device;

use std::io::{BufRead, BufReader, stdin};
use std::os::fd::AsFd;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use device::{FRAME, FRAME_BYTES, Fixture, Reached, Rig, STRAY};
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_dsa::registers::descriptor::{Descriptor as Raw, Flags, Operation as Hardware};
use memferry_dsa::{Portal, Request, SubmitError};
use memferry_engine::{Access, Mapping};
use memferry_shm::frame;
use memferry_transfer::{Descriptor, Engine, EngineCompletion, Failure, Operation, Region};
use memferry_vfio::PciAddress;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);
const BUSY: &str = "the queue is full";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [flag, address, scene] = arguments.as_slice() else { return ExitCode::SUCCESS };
    if flag != "--vfio" {
        return ExitCode::SUCCESS;
    }
    let device: PciAddress = address.parse().expect("an address of a PCI device");
    match scene.as_str() {
        "suite" => suite(device),
        "strays" => strays(&open(device)),
        "killed" => killed(device),
        "busy" => busy(device),
        other => {
            eprintln!("unknown scene '{other}'");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn open(device: PciAddress) -> Rc<Rig> {
    let (_, frame) = frame::allocate_half(FRAME_BYTES).expect("memory");
    Rig::new(device, frame)
}

fn suite(device: PciAddress) {
    let rig = open(device);
    engine_suite(|setup: EngineSetup| Fixture::new(&rig, setup.channels, setup.chunk_bytes));
}

/// The memories of a copy.
struct Pair {
    source: Reached,
    destination: Reached,
}

impl Pair {
    fn new(fixture: &mut Fixture, length: usize) -> Self {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
        Self { source: fixture.allocate(&bytes), destination: fixture.allocate(&vec![0; length]) }
    }

    fn post(&self, fixture: &mut Fixture, channel: u32) {
        let length = self.source.bytes;
        let region = |memory| Region::new(memory, 0, length).expect("inside");
        let copy =
            Operation::Copy { source: region(self.source), destination: region(self.destination), length };
        let descriptor = Descriptor::new(channel, copy).expect("inside");
        assert!(fixture.engine.post(descriptor).is_ok(), "channel {channel} is free");
    }
}

/// Runs what is posted; the results by channel.
fn run(fixture: &mut Fixture, count: usize) -> Vec<Result<(), Failure>> {
    fixture.engine.ring_doorbell();
    let mut ends: Vec<EngineCompletion> = Vec::new();
    wait_until("completions", || {
        let now = memferry_vfio::monotonic();
        fixture.engine.poll(now, &mut ends);
        ends.len() == count
    });
    ends.sort_by_key(|end| end.ticket.channel);
    ends.iter().map(|end| end.outcome.result).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Four copies, all of which are right.
fn serves(fixture: &mut Fixture) {
    let copies: Vec<Pair> = (0..4).map(|_| Pair::new(fixture, 10_000)).collect();
    (0..).zip(&copies).for_each(|(channel, copy)| copy.post(fixture, channel));
    assert_eq!(run(fixture, 4), [Ok(()); 4]);
    for Pair { source, destination } in &copies {
        assert!(fixture.contents(source) == fixture.contents(destination));
    }
}

fn strays(rig: &Rc<Rig>) {
    let mut fixture = Fixture::new(rig, 4, 4096);
    for is_written in [true, false] {
        let copies: Vec<Pair> = (0..4)
            .map(|channel| {
                let mut copy = Pair::new(&mut fixture, 10_000);
                if channel == 1 {
                    let side = if is_written { &mut copy.destination } else { &mut copy.source };
                    // Its second half is behind what is mapped.
                    side.iova = if is_written { STRAY } else { FRAME + FRAME_BYTES - 5000 };
                }
                copy
            })
            .collect();
        (0..).zip(&copies).for_each(|(channel, copy)| copy.post(&mut fixture, channel));
        assert_eq!(run(&mut fixture, 4), [Ok(()), Err(Failure::MemoryFault), Ok(()), Ok(())]);
        for channel in [0, 2, 3] {
            let Pair { source, destination } = &copies[channel];
            assert!(fixture.contents(source) == fixture.contents(destination), "channel {channel}");
        }
    }
    println!("an address that is not mapped fails its request only");
    // A completion record that is out of reach. The device's error is one of another descriptor than the engine's.
    let mut control = rig.control();
    let _before = control.take_error();
    rig.portal().submit(&Raw::new(&Hardware::Nop, Flags::new()).with_record(STRAY)).expect("a posted store");
    let mut error = None;
    wait_until("the error register", || {
        error = control.take_error();
        error.is_some()
    });
    let error = error.expect("it came");
    assert_eq!((error.status.code(), error.address & !0xFFF), (0x1A, STRAY), "{error:?}");
    println!("a record that is not mapped is in the error register: {:#x}", error.status.code());
    serves(&mut fixture);
}

/// The memory of a process that is killed stays with another one, which sees whether the device still writes it.
fn killed(device: PciAddress) {
    let (file, memory) = frame::allocate_half(FRAME_BYTES).expect("memory");
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--vfio", &device.to_string(), "busy"])
        .stdin(Stdio::from(file))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(child.stdout.take().expect("a pipe"));
    let is_busy = said.lines().map_while(Result::ok).any(|line| line == BUSY);
    assert!(is_busy, "it has the device");
    let last = |memory: &Mapping| {
        let mut word = [0; 8];
        memory.read(FRAME_BYTES - 8, &mut word).expect("inside");
        u64::from_le_bytes(word)
    };
    for _ in 0..3 {
        let before = last(&memory);
        wait_until("the device's writes", || last(&memory) != before);
    }
    child.kill().expect("it runs");
    child.wait().expect("its end");
    // From here on the memory has another use.
    let bytes = vec![0xA5; FRAME_BYTES as usize];
    memory.write(0, &bytes).expect("inside");
    std::thread::sleep(Duration::from_millis(500));
    let mut now = vec![0; FRAME_BYTES as usize];
    memory.read(0, &mut now).expect("inside");
    assert!(now == bytes, "the device wrote memory of a process that is gone");
    println!("the memory of a killed process is not written any more");
    let rig = Rig::new(device, memory);
    serves(&mut Fixture::new(&rig, 4, 4096));
}

/// Keeps the queue full of fills of the memory that is the standard input, each with another word.
fn busy(device: PciAddress) {
    let memory = Mapping::shared(stdin().as_fd(), FRAME_BYTES as usize, Access::ReadWrite, 4096);
    let rig = Rig::new(device, memory.expect("the memory of the process that looks on"));
    let mut queue = rig.queue();
    let mut is_told = false;
    for pattern in 1_u64.. {
        let fill = Hardware::Fill { pattern, destination: FRAME, bytes: FRAME_BYTES as u32 };
        while let Err(error) = queue.submit(&Request::new(fill)) {
            assert!(matches!(error, SubmitError::NoEntry { .. }), "{error}");
            if !is_told {
                is_told = true;
                println!("{BUSY}");
            }
            while queue.poll().is_some() {}
        }
    }
}
