//! Many channels: threads, priorities, FIFO depth, links, and disabling.
//!
//! ```text
//! 32 channels ──► 4 read threads, 2 write threads ──► order of service
//! ```
//!
//! Times are compared with each other, never with constants: they are parameters.

use super::support::{BASE, Block, Board, copy};
use memferry_models::sdma::{Config, Port, Reason};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{BurstSize, ClnkCtrl, Csr, FifoBudget, Gcr, OcpSysconfig, ThreadReservation};

/// Starts a copy on each of `channels`, each to its own destination.
fn busy(board: &mut Board, channels: core::ops::Range<usize>, change: impl Fn(usize, &mut Block)) {
    for channel in channels.clone() {
        let mut block = copy(64, 1);
        block.destination = BASE + 0x8000 + 0x100 * channel as u32;
        change(channel, &mut block);
        board.program(channel, block);
    }
    channels.for_each(|channel| board.enable(channel));
}

/// The order in which channels report the end of their block.
fn order(board: &mut Board) -> Vec<usize> {
    let mut ended = Vec::new();
    while board.step() {
        for channel in 0..32 {
            if board.csr(channel).block() && !ended.contains(&channel) {
                ended.push(channel);
            }
        }
    }
    ended
}

#[test]
fn all_channels_share_the_threads() {
    let mut board = Board::new();
    busy(&mut board, 0..32, |_, _| {});
    let mut most_reads = 0;
    let mut most_writes = 0;
    while board.step() {
        most_reads = most_reads.max(board.sdma.threads(Port::Read).flatten().count());
        most_writes = most_writes.max(board.sdma.threads(Port::Write).flatten().count());
    }
    assert_eq!((most_reads, most_writes), (4, 2));
    for channel in 0..32 {
        assert!(board.csr(channel).block());
        let source = board.memory(BASE + 0x1000, 256).to_vec();
        assert_eq!(board.memory(BASE + 0x8000 + 0x100 * channel as u32, 256), source);
    }
}

#[test]
fn a_channel_holds_several_threads() {
    let most = |channel_reads, channels| {
        let mut config = Config::default();
        config.timing.channel_reads = channel_reads;
        let mut board = Board::with(config);
        board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(255).into_bits());
        busy(&mut board, 0..channels, |_, _| {});
        let mut most = 0;
        while board.step() {
            let carried: Vec<usize> = board.sdma.threads(Port::Read).flatten().collect();
            let of = |channel: &usize| carried.iter().filter(|other| *other == channel).count();
            most = most.max(carried.iter().map(of).max().unwrap_or(0));
        }
        most
    };
    assert_eq!([1, 3, 9].map(|limit| most(limit, 1)), [1, 3, 4]);
    // The limit of a channel is the same whatever the others do, though they take threads too.
    for channels in [2, 8] {
        assert_eq!(most(1, channels), 1);
        assert!((2..=3).contains(&most(3, channels)), "{channels} channels");
        assert!(most(9, channels) > 1, "{channels} channels");
    }
}

#[test]
fn reads_stop_at_the_fifos_limit() {
    // A read may start below the limit even if it goes above it.
    for (depth, reads) in [(1, 1), (4, 1), (5, 2), (8, 2), (16, 4)] {
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(depth).into_bits());
        busy(&mut board, 0..1, |_, _| {});
        let in_flight = board.sdma.threads(Port::Read).flatten().count();
        assert_eq!(in_flight, reads, "elements of four bytes, {depth} bytes of FIFO");
    }
}

#[test]
fn high_priority_channels_finish_first() {
    let mut board = Board::new();
    board.sdma.write(offset::GCR, Gcr::RESET.with_arbitration_rate(255).into_bits());
    busy(&mut board, 0..12, |channel, block| {
        block.ccr.set_read_priority(channel >= 10);
        block.ccr.set_write_priority(channel >= 10);
    });
    let order = order(&mut board);
    let mut first: Vec<usize> = order[..2].to_vec();
    first.sort_unstable();
    assert_eq!(first, [10, 11], "{order:?}");
}

#[test]
fn the_arbitration_rate_prevents_starvation() {
    let ends_at = |rate: u8| {
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_arbitration_rate(rate).into_bits());
        busy(&mut board, 0..13, |channel, block| {
            block.ccr.set_read_priority(channel > 0);
            block.ccr.set_write_priority(channel > 0);
        });
        order(&mut board).iter().position(|channel| *channel == 0).expect("channel 0 ends")
    };
    assert_eq!(ends_at(255), 12, "with a high rate the low channel finishes last");
    assert!(ends_at(1) < 12);
}

#[test]
fn reserved_threads_serve_high_priority_only() {
    for (reservation, reads) in
        [(ThreadReservation::One, 3), (ThreadReservation::Two, 2), (ThreadReservation::Three, 1)]
    {
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_thread_reservation(reservation).into_bits());
        busy(&mut board, 0..8, |_, _| {});
        let mut most_reads = 0;
        let mut most_writes = 0;
        while board.step() {
            most_reads = most_reads.max(board.sdma.threads(Port::Read).flatten().count());
            most_writes = most_writes.max(board.sdma.threads(Port::Write).flatten().count());
        }
        assert_eq!((most_reads, most_writes), (reads, 1), "{reservation}");
    }
}

#[test]
fn a_deeper_fifo_allows_larger_bursts() {
    let run = |depth: u8| {
        let mut board = Board::new();
        board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(depth).into_bits());
        let mut block = copy(256, 1);
        block.csdp.set_source_packed(true);
        block.csdp.set_destination_packed(true);
        block.csdp.set_source_burst(BurstSize::Bytes64);
        block.csdp.set_destination_burst(BurstSize::Bytes64);
        board.program(0, block);
        board.enable(0);
        let end = board.run();
        (end, board.lengths(true), board.reasons())
    };
    let (slow, small, complaints) = run(16);
    let (fast, large, none) = run(128);
    assert!(fast < slow);
    assert!(small.iter().all(|length| *length == 16));
    assert!(large.iter().all(|length| *length == 64));
    assert_eq!(complaints, [Reason::BurstAboveFifo; 2]);
    assert_eq!(none, []);
}

#[test]
fn a_small_fifo_pool_stops_no_channel() {
    for budget in [FifoBudget::Shared, FifoBudget::Low25, FifoBudget::Low50, FifoBudget::Low75] {
        let mut board = Board::with(Config { fifo_pool_bytes: 16, ..Config::default() });
        board.sdma.write(offset::GCR, Gcr::RESET.with_fifo_budget(budget).into_bits());
        busy(&mut board, 0..32, |channel, block| block.ccr.set_read_priority(channel % 2 == 0));
        assert_eq!(order(&mut board).len(), 32, "{budget}");
    }
}

#[test]
fn a_link_enables_the_next_channel() {
    let mut board = Board::new();
    for channel in [2, 5, 31] {
        let mut block = copy(16, 1);
        block.destination = BASE + 0x8000 + 0x100 * channel;
        board.program(channel as usize, block);
    }
    board.set(2, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).with_next_channel(5).into_bits());
    board.set(
        5,
        Register::ClnkCtrl,
        ClnkCtrl::new().with_enable_link(true).with_next_channel(31).into_bits(),
    );
    board.enable(2);
    assert_eq!(order(&mut board), [2, 5, 31]);
    assert_eq!(board.reasons(), []);
    assert!([2, 5, 31].iter().all(|channel| !board.ccr(*channel).enable()));
}

#[test]
fn a_loop_of_channels_runs_until_unlinked() {
    let mut board = Board::new();
    for (channel, next) in [(0, 1), (1, 0)] {
        board.program(channel, copy(4, 1));
        let link = ClnkCtrl::new().with_enable_link(true).with_next_channel(next);
        board.set(channel, Register::ClnkCtrl, link.into_bits());
    }
    board.enable(0);
    let mut rounds = 0;
    while rounds < 5 {
        assert!(board.step(), "the loop continues");
        if board.csr(1).block() {
            rounds += 1;
            board.set(1, Register::Csr, Csr::ALL.into_bits());
        }
    }
    board.set(1, Register::ClnkCtrl, 0);
    board.run();
    assert!(!board.sdma.is_busy());
}

#[test]
fn a_channel_may_link_to_itself() {
    let mut board = Board::new();
    board.program(6, copy(4, 1));
    let link = ClnkCtrl::new().with_enable_link(true).with_next_channel(6);
    board.set(6, Register::ClnkCtrl, link.into_bits());
    board.enable(6);
    for _ in 0..200 {
        assert!(board.step());
    }
    assert!(board.ccr(6).enable());
    assert_eq!(board.reasons(), []);
}

#[test]
fn reports_a_link_to_an_enabled_channel() {
    let mut board = Board::new();
    busy(&mut board, 0..2, |channel, block| block.elements = if channel == 0 { 4 } else { 200 });
    board.set(0, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).with_next_channel(1).into_bits());
    board.run();
    assert_eq!(board.reasons(), [Reason::LinkToEnabled]);
}

#[test]
fn disabling_finishes_accesses_in_flight() {
    let mut board = Board::new();
    board.program(0, copy(256, 1));
    board.enable(0);
    (0..20).for_each(|_| assert!(board.step()));
    board.disable(0);
    assert!(!board.ccr(0).enable());
    board.run();
    let ccr = board.ccr(0);
    assert!(!ccr.read_active() && !ccr.write_active());
    let csr = board.csr(0);
    assert!(!csr.block() && !csr.drain(), "{csr}");
    let written: usize = board.lengths(true).iter().sum();
    assert!(0 < written && written < 1024);

    board.set(0, Register::Csr, Csr::ALL.into_bits());
    board.enable(0);
    board.run();
    assert!(board.csr(0).block(), "the channel can be used again");
}

#[test]
fn refuses_to_enable_an_active_channel() {
    let mut board = Board::new();
    board.program(0, copy(256, 1));
    board.enable(0);
    (0..5).for_each(|_| assert!(board.step()));
    board.disable(0);
    assert!(board.ccr(0).read_active() || board.ccr(0).write_active());
    board.enable(0);
    assert!(!board.ccr(0).enable());
    assert!(board.reasons().contains(&Reason::StillActive));
}

#[test]
fn suspend_stops_only_sensitive_channels() {
    let mut board = Board::new();
    busy(&mut board, 0..2, |channel, block| block.ccr.set_suspend_sensitive(channel == 0));
    board.sdma.set_suspend(true);
    board.run();
    assert!(!board.csr(0).block() && board.csr(1).block());
    board.sdma.set_suspend(false);
    board.run();
    assert!(board.csr(0).block());
}

#[test]
fn emu_free_ignores_suspend() {
    let mut board = Board::new();
    board.sdma.write(offset::OCP_SYSCONFIG, OcpSysconfig::new().with_emu_free(true).into_bits());
    busy(&mut board, 0..1, |_, block| block.ccr.set_suspend_sensitive(true));
    board.sdma.set_suspend(true);
    board.run();
    assert!(board.csr(0).block());
}

#[test]
fn disabling_frees_the_fifo_pool() {
    let mut board = Board::with(Config { fifo_pool_bytes: 64, ..Config::default() });
    board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(64).into_bits());
    busy(&mut board, 0..1, |_, block| block.ccr = block.ccr.with_request(1).with_prefetch(true));
    board.run();
    busy(&mut board, 1..2, |_, _| {});
    board.run();
    assert!(!board.csr(1).block(), "the prefetched data takes the whole pool");
    board.disable(0);
    board.run();
    assert!(board.csr(1).block());
}

#[test]
fn failing_channels_do_not_block_others() {
    let mut board = Board::new();
    board.sdma.set_suspend(true);
    busy(&mut board, 0..20, |channel, block| {
        block.ccr.set_suspend_sensitive(true);
        block.source += u32::from(channel < 19);
    });
    board.sdma.set_suspend(false);
    board.run();
    assert!((0..19).all(|channel| board.csr(channel).misaligned_error()));
    assert!(board.csr(19).block());
}

#[test]
fn activity_bits_show_no_gap() {
    let mut board = Board::new();
    board.program(0, copy(64, 2));
    board.enable(0);
    let mut seen = vec![(board.ccr(0).read_active(), board.ccr(0).write_active())];
    while board.step() {
        seen.push((board.ccr(0).read_active(), board.ccr(0).write_active()));
    }
    seen.dedup();
    assert_eq!(seen, [(true, false), (true, true), (false, true), (false, false)]);
}

#[test]
fn disabling_a_linked_channel_is_reported() {
    let mut board = Board::new();
    busy(&mut board, 0..1, |_, _| {});
    board.program(1, copy(4, 1));
    board.set(0, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).with_next_channel(1).into_bits());
    board.disable(0);
    board.run();
    assert_eq!(board.reasons(), [Reason::DisabledWhileLinked]);
    assert!(!board.csr(1).block());
}
