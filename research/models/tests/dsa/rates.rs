//! Times: the rates that the parameters say, and how batches pay. All of it is the model's, not the hardware's.

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa_registers::table::Grpflags;
use memferry_models::dsa::Config;

use super::support::{BASE, Board, DEDICATED, LIST, TABLES, Wq, moved};

const NONE: Flags = Flags::new();

/// Nanoseconds of `count` moves of `bytes` bytes, submitted alone or as one batch.
fn time(engines: u64, count: u32, bytes: u32, batched: bool) -> u64 {
    let queue = Wq { size: 128, ..DEDICATED };
    let mut board = Board::engines(Config::default(), engines, &[queue]);
    let started = board.dsa.now();
    let span = u64::from(bytes).next_multiple_of(64);
    let moves: Vec<Descriptor> = (0..u64::from(count))
        .map(|index| {
            board.describe(moved(span * index % 0x4_0000, 0x4_0000 + span * index % 0x4_0000, bytes), NONE)
        })
        .collect();
    if batched {
        for (index, child) in moves.iter().enumerate() {
            board.put(LIST + 64 * index as u64, &child.words);
        }
        let batch = board.describe(Operation::Batch { list: LIST, count }, NONE);
        board.post(&batch);
    } else {
        moves.iter().for_each(|descriptor| board.post(descriptor));
    }
    board.run();
    assert!(moves.iter().all(|descriptor| board.status(descriptor) == 1));
    board.dsa.now().nanoseconds() - started.nanoseconds()
}

#[test]
fn long_moves_are_as_fast_as_the_link() {
    let bytes = 0x4_0000;
    for engines in [1, 0b1111] {
        let rate = f64::from(bytes) / time(engines, 1, bytes, false) as f64;
        assert!((27.0..30.0).contains(&rate), "{rate} bytes a nanosecond");
    }
}

#[test]
fn read_buffers_limit_the_rate_of_a_group() {
    let rate = |allowed: u8| {
        let mut board = Board::with(Config::default());
        board.group(0, 1, 1);
        let flags = Grpflags::new().with_read_buffers_allowed(allowed);
        board.dsa.write64(TABLES.group_flags(0), flags.into_bits());
        board.queue(0, &DEDICATED);
        let commands = [
            memferry_dsa_registers::control::Command::EnableDevice,
            memferry_dsa_registers::control::Command::EnableQueue(0),
        ];
        commands.into_iter().for_each(|command| assert_eq!(board.command(command), None));
        let descriptor = board.describe(moved(0, 0x4_0000, 0x4_0000), NONE);
        let started = board.dsa.now().nanoseconds();
        board.execute(&descriptor);
        f64::from(0x4_0000) / (board.dsa.now().nanoseconds() - started) as f64
    };
    let [few, half, all] = [8, 48, 96].map(rate);
    assert!(few < 4.0 && few < half / 3.0 && half < all, "{few}, {half}, {all} bytes a nanosecond");
}

#[test]
fn small_moves_pay_in_batches_and_on_several_engines() {
    let alone: u64 = (0..32).map(|_| time(1, 1, 256, false)).sum();
    let piped = time(1, 32, 256, false);
    let batched = time(1, 32, 256, true);
    assert!(piped < alone / 4, "{piped} ns in a queue, {alone} ns one after the other");
    assert!(batched < alone / 4, "{batched} ns in a batch");
    // One submission costs the processor less than 32; the device itself is bounded by its dispatch.
    assert!(batched >= 32 * 20, "{batched} ns");
    assert!(time(0b1111, 32, 256, false) < piped);
}

#[test]
fn a_drop_of_patience_shows_in_no_rate() {
    // Equal submissions take equal times: the model has no hidden state.
    assert_eq!(time(0b11, 7, 3000, true), time(0b11, 7, 3000, true));
    assert_eq!(BASE % 4096, 0);
}
