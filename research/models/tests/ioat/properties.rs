//! Random chains against an oracle, random accesses, and reproducible traces.
//!
//! ```text
//! seed ──► chain ──► model ──┬──► equal memory
//!              └──► oracle ──┘
//! ```
//!
//! The oracle works byte by byte and shares no code with the model. Proptest prints and stores the seed of a failure.

use super::support::{BASE, Board, COMPLETING, SIZE, pattern};
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor, Sources, WORDS};
use memferry_registers::ioat::offset::{Location, SPAN};
use memferry_registers::ioat::{Chancmd, Register, TransferState};
use memferry_registers::{NarrowIo, RegisterIo};
use proptest::prelude::*;

/// Sources are in READS.., destinations in WRITES...
const READS: u64 = 0x8000;
const WRITES: u64 = 0x10000;

fn body(slot: u64) -> impl Strategy<Value = (u32, Body)> {
    let sources = prop::collection::vec(0..READS - 2000, 2..=8);
    (0..4, sources, any::<u64>(), 0..60_u64, 1..1500_u32).prop_map(
        move |(kind, sources, pattern, skew, size)| {
            let destination = BASE + WRITES + 0x800 * slot + skew;
            let addresses: Vec<u64> = sources.iter().map(|source| BASE + source).collect();
            let body = match kind {
                0 => Body::Null,
                1 => Body::Fill { pattern, destination },
                2 => Body::Copy { source: addresses[0], destination },
                _ => Body::Xor { sources: Sources::new(&addresses).unwrap(), destination },
            };
            (size, body)
        },
    )
}

fn oracle(size: u32, body: &Body, memory: &mut [u8]) {
    let at = |address: u64| (address - BASE) as usize;
    for index in 0..size as usize {
        let (byte, destination) = match body {
            Body::Null | Body::XorCheck { .. } => return,
            Body::Fill { pattern, destination } => (pattern.to_le_bytes()[index % 8], *destination),
            Body::Copy { source, destination } => (memory[at(*source) + index], *destination),
            Body::Xor { sources, destination } => {
                let all = sources.addresses().iter();
                (all.fold(0, |byte, source| byte ^ memory[at(*source) + index]), *destination)
            }
        };
        memory[at(destination) + index] = byte;
    }
}

fn chains() -> impl Strategy<Value = Vec<(usize, (u32, Body))>> {
    (1..24_usize)
        .prop_flat_map(|count| (0..count as u64).map(|slot| (0..4_usize, body(slot))).collect::<Vec<_>>())
}

/// A register access; most address a register and carry a valid value.
#[derive(Clone, Debug)]
enum Access {
    Read(u32, u8),
    Write(u32, u8, u32),
    Put(u16, [u64; WORDS]),
    Wait(u16),
}

fn access() -> impl Strategy<Value = Access> {
    let count = Location::all().count();
    let offset = prop_oneof![
        6 => (0..count, 0..8_u32).prop_map(move |(index, byte)| {
            let location = Location::all().nth(index).unwrap();
            location.offset() + if location.bytes() == 8 { byte & 4 } else { 0 }
        }),
        1 => 0..SPAN + 0x40,
        1 => any::<u32>(),
    ];
    let sensible = (0..2_usize, 0..6_u8, any::<u16>()).prop_map(|(channel, kind, value)| {
        let at = |register| Location::Channel(channel, register).offset();
        match kind {
            0 => Access::Write(at(Register::Dmacount), 2, u32::from(value % 64)),
            1 => Access::Write(at(Register::Chancmd), 1, 1 << (value % 6)),
            2 => Access::Write(at(Register::Chanerr), 4, u32::MAX >> 13),
            3 => Access::Write(at(Register::Chainaddr), 4, BASE as u32 + u32::from(value % 64) * 64),
            4 => Access::Write(at(Register::Chainaddr) + 4, 4, 0),
            _ => Access::Write(at(Register::Chanctrl), 2, u32::from(value)),
        }
    });
    let words =
        (any::<[u64; WORDS]>(), 0..4_u8, 0..64_u64, 1..5000_u64).prop_map(|(mut words, kind, next, size)| {
            let control =
                [Control::new(), COMPLETING.with_opcode(1), COMPLETING.with_opcode(0x87), COMPLETING]
                    [usize::from(kind)];
            words[0] = size | u64::from(control.with_variant(words[1] as u8 & 1).into_bits()) << 32;
            for (index, word) in words.iter_mut().enumerate().skip(1) {
                *word = BASE + *word % (SIZE as u64 - 6000) + if index == 3 { 0 } else { 4096 };
            }
            words[3] = BASE + 64 * next;
            words
        });
    prop_oneof![
        2 => (offset.clone(), 0..3_u8).prop_map(|(offset, width)| Access::Read(offset, 1 << width)),
        3 => (offset, 0..3_u8, any::<u32>()).prop_map(|(offset, width, value)| Access::Write(offset, 1 << width, value)),
        8 => sensible,
        4 => (0..64_u16, words).prop_map(|(slot, words)| Access::Put(slot, words)),
        4 => any::<u16>().prop_map(Access::Wait),
    ]
}

/// Everything observable: values read, wake times, complaints, and memory.
fn trace(accesses: &[Access]) -> (Vec<u64>, Vec<u8>) {
    let mut board = Board::armed();
    let mut seen = Vec::new();
    for access in accesses {
        match access {
            Access::Read(offset, 1) => seen.push(board.ioat.read8(*offset).into()),
            Access::Read(offset, 2) => seen.push(board.ioat.read16(*offset).into()),
            Access::Read(offset, _) => seen.push(board.ioat.read(*offset).into()),
            Access::Write(offset, 1, value) => board.ioat.write8(*offset, *value as u8),
            Access::Write(offset, 2, value) => board.ioat.write16(*offset, *value as u16),
            Access::Write(offset, _, value) => board.ioat.write(*offset, *value),
            Access::Put(slot, words) => board.put(BASE + 64 * u64::from(*slot), words),
            Access::Wait(nanoseconds) => {
                let until = board.ioat.now().after_picoseconds(u128::from(*nanoseconds) * 1000);
                seen.extend(board.ioat.step(until).map(|at| at.nanoseconds()));
            }
        }
    }
    seen.push(board.ioat.complaints().len() as u64);
    (seen, board.ioat.bus().bytes().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_chains_equal_the_oracle(chains in chains(), stops in prop::collection::vec((0..4_usize, 1..4000_u64), 0..8)) {
        let mut board = Board::armed();
        let mut expected = pattern();
        for (channel, (size, body)) in &chains {
            board.chain(*channel, *size, COMPLETING, *body);
            oracle(*size, body, &mut expected);
        }
        (0..4).for_each(|channel| board.count(channel));
        let mut at = 0;
        for (channel, wait) in stops {
            at += wait;
            board.run_until(at);
            board.suspend(channel);
            if wait % 3 == 0 {
                board.run();
                prop_assert_eq!(board.state(channel), TransferState::Suspended);
                at = board.ioat.now().nanoseconds();
            }
            board.resume(channel);
        }
        board.run();
        prop_assert!(board.memory(BASE, 0x20000) == &expected[..0x20000]);
        for channel in 0..4 {
            let state = if board.written[channel] == 0 { TransferState::Idle } else { board.state(channel) };
            prop_assert_eq!(state, TransferState::Idle);
        }
    }

    #[test]
    fn random_accesses_never_panic(accesses in prop::collection::vec(access(), 1..150)) {
        prop_assert!(trace(&accesses) == trace(&accesses));
    }

    #[test]
    fn a_reset_always_recovers_a_channel(accesses in prop::collection::vec(access(), 1..80)) {
        let mut board = Board::armed();
        for access in &accesses {
            match access {
                Access::Write(offset, 1, value) => board.ioat.write8(*offset, *value as u8),
                Access::Write(offset, 2, value) => board.ioat.write16(*offset, *value as u16),
                Access::Write(offset, _, value) => board.ioat.write(*offset, *value),
                Access::Put(slot, words) => board.put(BASE + 64 * u64::from(*slot), words),
                _ => {}
            }
        }
        for channel in 0..4 {
            board.command(channel, Chancmd::new().with_reset(true));
        }
        board.run();
        for channel in 0..4 {
            let errors = board.errors(channel).into_bits();
            board.ioat.write(Location::Channel(channel, Register::Chanerr).offset(), errors);
            board.arm(channel);
            board.chain(channel, 8, COMPLETING, Body::Fill { pattern: 0x1111_1111 * (1 + channel as u64), destination: BASE + 0x1000 });
            board.count(channel);
            board.run();
            prop_assert_eq!(board.state(channel), TransferState::Idle);
            prop_assert_eq!(board.memory(BASE + 0x1000, 1)[0], 0x11 * (1 + channel as u8));
        }
    }
}

#[test]
fn test_descriptors_decode() {
    let body = Body::Copy { source: 1, destination: 2 };
    let descriptor = Descriptor { size: 3, control: COMPLETING, next: 64, body };
    assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
}
