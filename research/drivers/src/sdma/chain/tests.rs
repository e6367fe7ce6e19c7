//! Links channels with scripted registers.

extern crate std;

use std::vec::Vec;

use memferry_registers::sdma::Ccr;

use super::super::device::tests::{Tested, at, copy, ready};
use super::super::{LinkedList, ListOptions, Segment};
use super::*;

fn configured(sdma: &mut Tested, count: u8) -> Vec<Channel> {
    (0..count)
        .map(|index| {
            let channel = sdma.take(index).unwrap();
            sdma.configure(&channel, &copy(), None).unwrap();
            channel
        })
        .collect()
}

fn links(sdma: &Tested, count: u8) -> Vec<Option<u8>> {
    let control = |index| ClnkCtrl::from_bits(sdma.io.values[&at(index, Register::ClnkCtrl)]);
    (0..count).map(control).map(|link| link.enable_link().then(|| link.next_channel())).collect()
}

#[test]
fn links_each_channel_to_the_next() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 3);
    sdma.link(&[&channels[2], &channels[0], &channels[1]], ChainEnd::Stop).unwrap();
    assert_eq!(links(&sdma, 3), [Some(1), None, Some(0)]);
}

#[test]
fn closes_a_loop_and_ends_it_at_a_channel() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 3);
    let chain: Vec<&Channel> = channels.iter().collect();
    sdma.link(&chain, ChainEnd::Loop).unwrap();
    assert_eq!(links(&sdma, 3), [Some(1), Some(2), Some(0)]);
    sdma.end_after(&channels[1]);
    assert_eq!(links(&sdma, 3), [Some(1), None, Some(0)]);
    sdma.link(&[&channels[0]], ChainEnd::Loop).unwrap();
    assert_eq!(links(&sdma, 1), [Some(0)], "a channel may be linked to itself");
}

#[test]
fn refused_chains_change_no_link() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 2);
    let unconfigured = sdma.take(9).unwrap();
    sdma.io.writes.clear();
    assert_eq!(sdma.link(&[], ChainEnd::Stop), Err(ChainError::Empty));
    let twice = [&channels[0], &channels[1], &channels[0]];
    assert_eq!(sdma.link(&twice, ChainEnd::Stop), Err(ChainError::Repeated { channel: 0 }));
    let error = Err(ChainError::NotConfigured { channel: 9 });
    assert_eq!(sdma.link(&[&channels[0], &unconfigured], ChainEnd::Stop), error);
    assert_eq!(sdma.io.writes, []);
    sdma.enable(&channels[1]).unwrap();
    sdma.io.writes.clear();
    let error = Err(ChainError::Running { channel: 1 });
    assert_eq!(sdma.link(&[&channels[0], &channels[1]], ChainEnd::Stop), error);
    assert_eq!(sdma.io.writes, []);
}

#[test]
fn accepts_a_linked_list_only_at_the_front() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 2);
    let mut words = [0; 16];
    let segment = Segment { source: 0, destination: 0x1000, length_bytes: 64 };
    let options = ListOptions::default();
    let list = LinkedList::build(&copy(), &[segment], (&mut words, 0x2000), options, None).unwrap();
    sdma.configure_list(&channels[1], &list, None).unwrap();
    let error = Err(ChainError::ListNotFirst { channel: 1 });
    assert_eq!(sdma.link(&[&channels[0], &channels[1]], ChainEnd::Stop), error);
    assert_eq!(sdma.link(&[&channels[1], &channels[0]], ChainEnd::Loop), error);
    assert_eq!(sdma.link(&[&channels[1], &channels[0]], ChainEnd::Stop), Ok(()));
}

#[test]
fn cuts_all_links_before_stopping_channels() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 3);
    let chain: Vec<&Channel> = channels.iter().collect();
    sdma.link(&chain, ChainEnd::Loop).unwrap();
    sdma.enable(&channels[0]).unwrap();
    sdma.io.writes.clear();
    sdma.stop_chain(&chain, Duration::from_micros(50)).unwrap();
    let links_first = sdma.io.writes[..3].iter().all(|(offset, value)| {
        (0..3).any(|index| *offset == at(index, Register::ClnkCtrl)) && value & 1 << 15 == 0
    });
    assert!(links_first, "{:x?}", sdma.io.writes);
    assert_eq!(links(&sdma, 3), [None; 3]);
}

#[test]
fn stops_the_chain_despite_an_undrained_channel() {
    let (mut sdma, _trusted) = ready();
    let channels = configured(&mut sdma, 2);
    let stuck = Ccr::new().with_read_active(true).into_bits();
    sdma.enable(&channels[1]).unwrap();
    sdma.io.script.insert(at(0, Register::Ccr), core::iter::repeat_n(stuck, 1000).collect());
    let waited = Duration::from_micros(50);
    let error = StopError::NotDrained { channel: 0, waited, reading: true, writing: false };
    assert_eq!(sdma.stop_chain(&[&channels[0], &channels[1]], waited), Err(error));
    assert!(!sdma.is_running(&channels[1]));
}
