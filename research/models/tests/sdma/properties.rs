//! Random configurations against an oracle, random writes, and reproducible traces.
//!
//! ```text
//! seed ──► configuration ──► model ──┬──► equal memory
//!                     └────► oracle ─┘
//! ```
//!
//! The oracle implements the paper's equations element by element and shares no code with the model. Proptest prints
//! and stores the seed of a failure.

use super::support::{Access, BASE, Block, Board, SIZE, copy, pattern};
use memferry_clock::Instant;
use memferry_models::sdma::Config;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{AddressingMode, BurstSize, Ccr, Csdp, DataType, Gcr, WriteMode};
use proptest::prelude::*;

/// Address of element `n` (from 1) by the paper's equations.
fn address(n: i64, mode: AddressingMode, start: u32, es: i64, per_frame: i64, index: (i16, i32)) -> i64 {
    if n == 1 {
        return i64::from(start);
    }
    let ei = i64::from(index.0);
    let fi = i64::from(index.1);
    // Steps before element n that crossed a frame boundary.
    let crossed = (n - 1) / per_frame;
    let within = n - 1 - crossed;
    i64::from(start)
        + match mode {
            AddressingMode::Constant => 0,
            AddressingMode::PostIncrement => (n - 1) * es,
            AddressingMode::SingleIndex => (n - 1) * (es - 1 + ei),
            AddressingMode::DoubleIndex => within * (es - 1 + ei) + crossed * (es - 1 + fi),
        }
}

/// Memory after the block; `None` if an element is misaligned or outside memory.
fn oracle(block: &Block) -> Option<Vec<u8>> {
    let before = pattern();
    let mut after = before.clone();
    let es = i64::from(block.csdp.data_type().bytes()?);
    let per_frame = i64::from(block.elements);
    for n in 1..=per_frame * i64::from(block.frames) {
        let place = |mode, start, index| {
            let at = address(n, mode, start, es, per_frame, index) - i64::from(BASE);
            let inside = at >= 0 && at + es <= SIZE as i64 && at % es == 0;
            inside.then_some(at as usize..(at + es) as usize)
        };
        let to = place(block.ccr.destination_addressing(), block.destination, block.destination_index)?;
        let color = block.color.to_le_bytes();
        if block.ccr.constant_fill() {
            after[to].copy_from_slice(&color[..es as usize]);
            continue;
        }
        let from = place(block.ccr.source_addressing(), block.source, block.source_index)?;
        let seen = (es as usize).min(3);
        let element = before[from].to_vec();
        if !(block.ccr.transparent_copy() && element[..seen] == color[..seen]) {
            after[to].copy_from_slice(&element);
        }
    }
    Some(after)
}

fn mode() -> impl Strategy<Value = AddressingMode> {
    (1u8..=3).prop_map(AddressingMode::from_bits)
}

/// Indexes that are often aligned.
fn index(size: i32) -> impl Strategy<Value = (i16, i32)> {
    (-6i32..=12, -40i32..=40, 0i32..8).prop_map(move |(element, frame, odd)| {
        let skew = i32::from(odd == 0);
        ((element * size + 1 + skew) as i16, frame * size + 1)
    })
}

fn parameters() -> impl Strategy<Value = Csdp> {
    (0u8..=2, any::<[bool; 2]>(), [0u8..=3, 0u8..=3], 0u8..=2).prop_map(|(size, packed, burst, write)| {
        Csdp::new()
            .with_data_type(DataType::from_bits(size))
            .with_source_packed(packed[0])
            .with_destination_packed(packed[1])
            .with_source_burst(BurstSize::from_bits(burst[0]))
            .with_destination_burst(BurstSize::from_bits(burst[1]))
            .with_write_mode(WriteMode::from_bits(write))
    })
}

prop_compose! {
    /// A block that reads the lower half of memory and writes the upper half, unless its indexes lead elsewhere.
    fn block()(csdp in parameters())(
        csdp in Just(csdp),
        modes in [mode(), mode()],
        elements in 1u32..24,
        frames in 1u32..6,
        starts in [0x2000u32..0x3000, 0xA000u32..0xB000],
        aligned in prop::bool::weighted(0.9),
        source_index in index(csdp.data_type().bytes().unwrap_or(1) as i32),
        destination_index in index(csdp.data_type().bytes().unwrap_or(1) as i32),
        operation in 0u8..3,
        color in 0u32..0x0100_0000,
        priorities in any::<[bool; 2]>(),
    ) -> Block {
        let mask = if aligned { !3 } else { !0 };
        let ccr = Ccr::new()
            .with_source_addressing(modes[0])
            .with_destination_addressing(modes[1])
            .with_constant_fill(operation == 1)
            .with_transparent_copy(operation == 2)
            .with_read_priority(priorities[0])
            .with_write_priority(priorities[1]);
        Block {
            source: BASE + (starts[0] & mask),
            destination: BASE + (starts[1] & mask),
            elements, frames, ccr, csdp, color, source_index, destination_index,
        }
    }
}

/// A value for a channel's register: usually valid, sometimes arbitrary.
fn value(register: Register) -> BoxedStrategy<u32> {
    let sensible = match register {
        Register::Ccr => (any::<u32>(), any::<u32>())
            .prop_map(|(bits, more)| bits & more & 0x079C_017F | 0x80 | (bits & 0xF000 | 0x5000))
            .boxed(),
        Register::Cen => (0u32..40).boxed(),
        Register::Cfn => (0u32..6).boxed(),
        Register::Cssa | Register::Cdsa => (0..SIZE as u32).prop_map(|at| BASE + (at & !3)).boxed(),
        Register::Cndp => (0u32..8).prop_map(|at| BASE + 0x400 * at).boxed(),
        Register::Csei | Register::Cdei => Just(1).boxed(),
        Register::Csfi | Register::Cdfi => (1u32..9).boxed(),
        Register::Csdp => parameters().prop_map(Csdp::into_bits).boxed(),
        Register::Cdp => (0u32..16, 1u32..4, 0u32..8)
            .prop_map(|(valid, kind, mode)| valid | kind << 4 | (mode & 5) << 8)
            .boxed(),
        Register::ClnkCtrl => {
            (0u32..3, any::<bool>()).prop_map(|(next, on)| next | u32::from(on) << 15).boxed()
        }
        _ => any::<u32>().boxed(),
    };
    prop_oneof![9 => sensible, 1 => any::<u32>()].boxed()
}

/// A register write: usually to one of three channels, often one that enables it.
fn write() -> impl Strategy<Value = (u32, u32)> {
    let register = prop_oneof![
        1 => Just(Register::Ccr),
        2 => (0..Register::ALL.len()).prop_map(|register| Register::ALL[register]),
    ];
    let of_channel = (0usize..3, register).prop_flat_map(|(channel, register)| {
        value(register).prop_map(move |value| (offset::channel(channel, register), value))
    });
    prop_oneof![
        1 => (0u32..0x1100, any::<u32>()),
        2 => ((0u32..0x20).prop_map(|at| at * 4), any::<u32>()),
        12 => of_channel,
    ]
}

/// Bytes of a slot in the upper half of memory; each block has its own.
const SLOT: usize = 0x800;

/// The block with a contiguous destination in the given slot.
fn in_slot(slot: usize, mut block: Block) -> Block {
    block.ccr.set_destination_addressing(AddressingMode::PostIncrement);
    block.destination = BASE + 0x8000 + (SLOT * slot) as u32 + block.destination % 16;
    block
}

type Trace = (Vec<Access>, Vec<Instant>, Vec<u32>, usize);

/// Runs writes, requests and steps, and returns everything observable.
fn trace(writes: &[(u32, u32)], steps: u8) -> Trace {
    let mut board = Board::new();
    let mut wakes = Vec::new();
    (0..3).for_each(|channel| board.program(channel, copy(9, 3)));
    for (at, value) in writes {
        board.sdma.write(*at, *value);
        if value % 16 == 0 {
            board.sdma.unprivileged().write(at ^ 0x60, *value);
        }
        board.sdma.request((*value % 130) as usize);
        for _ in 0..steps {
            if let Some(due) = board.sdma.next_wake() {
                wakes.push(due);
                board.sdma.step(due);
            }
        }
    }
    let values = (0..offset::SPAN).map(|at| board.sdma.read(at)).collect();
    let complaints = board.sdma.complaints().len();
    (board.sdma.bus().log.clone(), wakes, values, complaints)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn random_blocks_equal_the_equations(block in block(), depth in 1u8.., channel in 0usize..32) {
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(depth).into_bits());
        let csr = board.transfer(channel, block);
        let sources = block.ccr.constant_fill();
        match oracle(&block) {
            Some(after) => {
                prop_assert!(csr.block() && !csr.is_error(), "{csr}");
                // The equations do not order reads after writes of the same element.
                if sources || apart(&block) {
                    prop_assert!(board.sdma.bus().ram.bytes() == after.as_slice());
                }
            }
            None => prop_assert!(csr.misaligned_error() || csr.transaction_error(), "{csr}"),
        }
        prop_assert!(!board.ccr(channel).enable() && !board.sdma.is_busy());
    }

    #[test]
    fn concurrent_channels_do_not_interfere(
        blocks in prop::collection::vec(block(), 1..16),
        gcr: u32,
        pool in 0u32..512,
    ) {
        let mut board = Board::with(Config { fifo_pool_bytes: pool, ..Config::default() });
        board.sdma.write(offset::GCR, gcr & 0x00FF_F0FF | 1);
        let blocks: Vec<Block> = blocks.into_iter().enumerate().map(|(slot, block)| in_slot(slot, block)).collect();
        for (slot, block) in blocks.iter().enumerate() {
            board.program(2 * slot, *block);
        }
        (0..blocks.len()).for_each(|slot| board.enable(2 * slot));
        board.run();
        for (slot, block) in blocks.iter().enumerate() {
            let csr = board.csr(2 * slot);
            let begin = 0x8000 + SLOT * slot;
            match oracle(block) {
                Some(after) => {
                    prop_assert!(csr.block() && !csr.is_error(), "channel {}: {csr}", 2 * slot);
                    let slot = begin..begin + SLOT;
                    prop_assert!(board.sdma.bus().ram.bytes()[slot.clone()] == after[slot]);
                }
                None => prop_assert!(csr.misaligned_error(), "channel {}: {csr}", 2 * slot),
            }
        }
        prop_assert!(!board.sdma.is_busy());
    }

    #[test]
    fn synchronized_blocks_equal_the_equations(
        block in block(),
        unit in 0u8..4,
        packet in 1i32..40,
        [by_source, prefetch, unbuffered]: [bool; 3],
        depth in 1u8..,
        pauses in prop::collection::vec(0u8..12, 1..20),
    ) {
        let mut block = in_slot(0, block);
        block.ccr = block.ccr
            .with_request(77)
            .with_frame_sync(unit & 1 == 1)
            .with_block_sync(unit & 2 == 2)
            .with_source_sync(by_source)
            .with_prefetch(prefetch)
            .with_buffering_disable(unbuffered);
        if unit == 3 && by_source {
            block.source_index.1 = packet;
            block.ccr.set_source_addressing(AddressingMode::PostIncrement);
        } else if unit == 3 {
            block.destination_index.1 = packet;
        }
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(depth).into_bits());
        board.program(0, block);
        board.enable(0);
        let mut requests = 0;
        while board.ccr(0).enable() {
            board.sdma.request(76);
            requests += 1;
            prop_assert!(requests < 5000, "the block ends");
            (0..pauses[requests % pauses.len()] + u8::from(requests % 4 == 0)).for_each(|_| { board.step(); });
        }
        board.run();
        let csr = board.csr(0);
        prop_assert!(!csr.sync());
        match oracle(&block) {
            Some(after) => {
                prop_assert!(csr.block() && !csr.drain() && !csr.misaligned_error(), "{csr}");
                prop_assert!(board.sdma.bus().ram.bytes() == after.as_slice());
            }
            None => prop_assert!(csr.misaligned_error(), "{csr}"),
        }
    }

    #[test]
    fn a_disabled_channel_can_be_used_again(
        block in block(),
        after in 0usize..60,
        by_source: bool,
    ) {
        let mut board = Board::new();
        let mut first = block;
        if by_source {
            first.ccr = first.ccr.with_request(1).with_source_sync(true).with_block_sync(true);
        }
        board.program(0, first);
        board.enable(0);
        board.sdma.request(0);
        (0..after).for_each(|_| { board.step(); });
        board.disable(0);
        board.run();
        prop_assert!(!board.sdma.is_busy());
        let ccr = board.ccr(0);
        prop_assert!(!ccr.enable() && !ccr.read_active() && !ccr.write_active());
        board.sdma.bus_mut().ram.bytes_mut().copy_from_slice(&pattern());
        let csr = board.transfer(0, block);
        match oracle(&block) {
            Some(after) if apart(&block) => {
                prop_assert!(csr.block(), "{csr}");
                prop_assert!(board.sdma.bus().ram.bytes() == after.as_slice());
            }
            Some(_) => prop_assert!(csr.block(), "{csr}"),
            None => prop_assert!(!csr.block() && csr.is_error(), "{csr}"),
        }
    }

    #[test]
    fn random_writes_never_panic(writes in prop::collection::vec(write(), 1..60), steps in 0u8..4) {
        let (log, wakes, ..) = trace(&writes, steps);
        prop_assert!(wakes.is_sorted());
        prop_assert!(log.iter().all(|access| access.1 <= 64), "no access exceeds a burst");
    }

    #[test]
    fn the_same_calls_give_the_same_trace(writes in prop::collection::vec(write(), 1..40), steps in 0u8..4) {
        prop_assert!(trace(&writes, steps) == trace(&writes, steps));
    }

    #[test]
    fn the_step_size_does_not_matter(block in block(), cut in 1u64..400) {
        let mut whole = Board::new();
        whole.transfer(0, block);
        let mut pieces = Board::new();
        pieces.program(0, block);
        pieces.enable(0);
        let mut now = Instant::ORIGIN;
        while pieces.sdma.next_wake().is_some() {
            now = now.after_picoseconds(u128::from(cut) * 1000);
            pieces.sdma.step(now);
        }
        prop_assert!(whole.sdma.bus().log == pieces.sdma.bus().log);
        prop_assert_eq!(whole.csr(0), pieces.csr(0));
    }
}

/// Whether no read element overlaps a written one.
fn apart(block: &Block) -> bool {
    let es = i64::from(block.csdp.data_type().bytes().unwrap_or(1));
    let per_frame = i64::from(block.elements);
    let places = |mode, start, index| -> Vec<i64> {
        (1..=per_frame * i64::from(block.frames))
            .map(|n| address(n, mode, start, es, per_frame, index))
            .collect()
    };
    let read = places(block.ccr.source_addressing(), block.source, block.source_index);
    let written = places(block.ccr.destination_addressing(), block.destination, block.destination_index);
    !read.iter().any(|from| written.iter().any(|to| (from - to).abs() < es))
}
