//! Stops channels with scripted registers.

extern crate std;

use std::collections::VecDeque;

use super::super::device::tests::{Tested, at, copy, ready};
use super::super::{ConfigureError, EnableError, Piece, Port, Settings, SyncUnit, Synchronization};
use super::*;

const TIMEOUT: Duration = Duration::from_micros(50);

/// Enables channel 2 and clears the log of writes.
fn running(sdma: &mut Tested, config: &ChannelConfig) -> Channel {
    let channel = sdma.take(2).unwrap();
    sdma.configure(&channel, config, None).unwrap();
    sdma.enable(&channel).unwrap();
    sdma.io.writes.clear();
    channel
}

#[test]
fn cuts_the_link_before_it_disables_the_channel() {
    let (mut sdma, _trusted) = ready();
    let channel = running(&mut sdma, &ChannelConfig { link: Some(2), ..copy() });
    let progress = sdma.stop(&channel, TIMEOUT).unwrap();
    let order: std::vec::Vec<u32> = sdma.io.writes.iter().map(|(at, _)| *at).collect();
    let expected = [Register::ClnkCtrl, Register::Cicr, Register::Ccr, Register::Csr];
    assert_eq!(order, expected.map(|register| at(2, register)));
    assert!(!progress.ended);
    assert_eq!(sdma.enable(&channel), Err(EnableError::NotConfigured { channel: 2 }));
}

#[test]
fn waits_until_both_ports_are_idle() {
    let (mut sdma, _trusted) = ready();
    let channel = running(&mut sdma, &copy());
    let control = Ccr::new();
    let script = [
        control.with_enable(true),
        control.with_read_active(true).with_write_active(true),
        control.with_write_active(true),
        control,
    ];
    sdma.io.script.insert(at(2, Register::Ccr), VecDeque::from(script.map(Ccr::into_bits)));
    assert!(sdma.stop(&channel, TIMEOUT).is_ok());
    assert!(sdma.io.script[&at(2, Register::Ccr)].is_empty());
}

#[test]
fn quarantines_an_undrained_channel_until_reset() {
    let (mut sdma, _trusted) = ready();
    let channel = running(&mut sdma, &copy());
    let stuck = Ccr::new().with_write_active(true).into_bits();
    sdma.io.script.insert(at(2, Register::Ccr), std::iter::repeat_n(stuck, 1000).collect());
    let error = StopError::NotDrained { channel: 2, waited: TIMEOUT, reading: false, writing: true };
    assert_eq!(sdma.stop(&channel, TIMEOUT), Err(error));
    sdma.io.script.clear();
    assert_eq!(sdma.configure(&channel, &copy(), None), Err(ConfigureError::Quarantined { channel: 2 }));
    assert_eq!(sdma.enable(&channel), Err(EnableError::Quarantined { channel: 2 }));
    sdma.release(channel).unwrap();
    assert_eq!(sdma.free_channels(), 31);
    assert!(sdma.take(2).is_err());
    sdma.initialize(&Settings::default()).unwrap();
    assert!(sdma.take(2).is_ok());
}

#[test]
fn reports_that_the_channel_had_ended() {
    let (mut sdma, _trusted) = ready();
    let channel = running(&mut sdma, &copy());
    sdma.io.values.insert(at(2, Register::Ccr), 0);
    let progress = sdma.stop(&channel, TIMEOUT).unwrap();
    assert!(progress.ended);
    assert!(progress.pieces_left(&copy()).unwrap().is_none());
}

#[test]
fn prevents_standby_while_a_channel_drains() {
    let (mut sdma, _trusted) = ready();
    let sync = Synchronization {
        request: 3,
        unit: SyncUnit::Frame,
        by: Port::Source,
        prefetch: false,
        buffering: true,
    };
    let config = ChannelConfig { synchronization: Some(sync), ..copy() };
    let channel = running(&mut sdma, &config);
    let smart = OcpSysconfig::new().with_midle_mode(MidleMode::SmartStandby);
    sdma.io.values.insert(offset::OCP_SYSCONFIG, smart.into_bits());
    sdma.stop(&channel, TIMEOUT).unwrap();
    let disabled = sdma.io.writes.iter().position(|(offset, _)| *offset == at(2, Register::Ccr));
    let no_standby = smart.with_midle_mode(MidleMode::NoStandby);
    let writes = &sdma.io.writes;
    let position = |value: OcpSysconfig| {
        writes.iter().position(|write| *write == (offset::OCP_SYSCONFIG, value.into_bits()))
    };
    assert!(position(no_standby) < disabled && disabled < position(smart));
}

#[test]
fn the_rest_begins_at_the_interrupted_burst() {
    let config = copy();
    let total = config.size.bytes();
    let progress = |destination| Progress {
        ended: false,
        source: 0,
        destination,
        elements: 0,
        frames: 0,
        descriptor: 0,
    };
    let left = |progress: Progress| -> std::vec::Vec<Piece> {
        progress.pieces_left(&config).unwrap().unwrap().collect()
    };
    let pieces = left(progress(0x8100_0000 + 100));
    assert_eq!(pieces[0].source.address, 0x8000_0000 + 64);
    assert_eq!(pieces[0].destination.address, 0x8100_0000 + 64);
    assert_eq!(pieces.iter().map(|piece| piece.size.bytes()).sum::<u64>(), total - 64);
    for no_progress in [0, 0x8100_0000] {
        assert_eq!(left(progress(no_progress)).iter().map(|piece| piece.size.bytes()).sum::<u64>(), total);
    }
}

#[test]
fn resumes_only_a_paused_list() {
    let (mut sdma, _trusted) = ready();
    let channel = running(&mut sdma, &copy());
    sdma.resume_list(&channel);
    assert_eq!(sdma.io.writes, []);
    sdma.io
        .values
        .insert(at(2, Register::Cdp), Cdp::new().with_pause(true).with_fast_start(true).into_bits());
    sdma.resume_list(&channel);
    let resumed = Cdp::new().with_fast_start(true).into_bits();
    assert_eq!(sdma.io.writes, [(at(2, Register::Cdp), resumed)]);
}
