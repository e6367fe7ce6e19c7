//! Linked lists and linked channels.
//!
//! Descriptors are at the start of memory, from where the device loads them.

use std::collections::BTreeMap;

use memferry_drivers::sdma::{
    ChainEnd, Channel, ChannelConfig, LinearPieces, LinkedList, ListOptions, NonCacheable, Operation, Segment,
};
use proptest::prelude::*;

use super::machine::{BASE, Driver, Machine, SIZE, changed, wait};
use std::time::Duration;

fn copy(source: u64, destination: u64, length: u64) -> ChannelConfig {
    let piece = LinearPieces::copy(source, destination, length).unwrap().next().unwrap();
    ChannelConfig::new(Operation::Copy, piece)
}

fn build(machine: &Machine, segments: &[Segment], options: ListOptions) -> LinkedList {
    let mut words = vec![0; 400];
    let mut config = copy(BASE, BASE + 64, 64);
    config.size.element = Segment::element_for(segments);
    let list = LinkedList::build(&config, segments, (&mut words, BASE), options, None).unwrap();
    let bytes: Vec<u8> = words[..list.words()].iter().flat_map(|word| word.to_ne_bytes()).collect();
    machine.set_memory(BASE, &bytes);
    list
}

fn start(driver: &mut Driver<'_>, list: &LinkedList) -> Channel {
    let channel = driver.allocate().unwrap();
    driver.configure_list(&channel, list, None).unwrap();
    driver.enable(&channel).unwrap();
    channel
}

fn copied(before: &[u8], segments: &[Segment]) -> BTreeMap<u64, u8> {
    let bytes = segments.iter().flat_map(|part| {
        (0..part.length_bytes).map(|at| (part.destination + at, before[(part.source + at - BASE) as usize]))
    });
    bytes.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn list_gathers_and_scatters_its_segments(
        parts in prop::collection::vec((0..0x800u64, 0..0x800u64, 1..64u64), 1..24),
        whole: bool,
        joined: bool,
        unit in prop::sample::select(&[1u64, 2, 4]),
    ) {
        let machine = Machine::new();
        // Destinations do not overlap: each segment has its own range.
        let mut segments: Vec<Segment> = (0u64..).zip(parts).map(|(index, (source, skew, length))| Segment {
            source: BASE + SIZE / 4 + unit * source,
            destination: BASE + SIZE / 2 + index * 0x1000 + unit * skew,
            length_bytes: unit * length,
        }).collect();
        if joined {
            for index in 1..segments.len() {
                segments[index].source = segments[index - 1].source + segments[index - 1].length_bytes;
            }
        }
        let list = build(&machine, &segments, ListOptions { whole, ..ListOptions::default() });
        let before = machine.memory();
        let (mut driver, _trusted) = machine.driver();
        list.prepare_caches(&segments, &mut NonCacheable);
        let channel = start(&mut driver, &list);
        let event = wait(&machine, &mut driver, &channel);
        prop_assert!(event.status.super_block() && !event.status.block() && event.error().is_none());
        let changes = copied(&before, &segments);
        prop_assert_eq!(machine.memory(), changed(before, changes));
        machine.assert_no_complaints();
    }
}

#[test]
fn list_pauses_and_continues() {
    let machine = Machine::new();
    let segment = |at: u64| Segment {
        source: BASE + SIZE / 4 + 2 * at,
        destination: BASE + SIZE / 2 + 3 * at,
        length_bytes: 64,
    };
    let segments = [segment(0), segment(0x100), segment(0x200)];
    let list = build(&machine, &segments, ListOptions { pause_at: Some(2), ..ListOptions::default() });
    let before = machine.memory();
    let (mut driver, _trusted) = machine.driver();
    let channel = start(&mut driver, &list);
    machine.pass(Duration::from_micros(100));
    assert_eq!(driver.poll(&channel), None);
    assert_eq!(machine.memory(), changed(before.clone(), copied(&before, &segments[..2])));
    driver.resume_list(&channel);
    assert!(wait(&machine, &mut driver, &channel).is_end());
    assert_eq!(machine.memory(), changed(before.clone(), copied(&before, &segments)));
    machine.assert_no_complaints();
}

#[test]
fn chain_runs_its_channels_in_order() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let before = machine.memory();
    let places = [(0, 1), (1, 2), (2, 3)].map(|(from, to)| (BASE + from * 0x1000, BASE + to * 0x1000));
    let channels: Vec<Channel> = places
        .iter()
        .map(|(from, to)| {
            let channel = driver.allocate().unwrap();
            driver.configure(&channel, &copy(*from, *to, 0x1000), None).unwrap();
            channel
        })
        .collect();
    let chain: Vec<&Channel> = channels.iter().collect();
    driver.link(&chain, ChainEnd::Stop).unwrap();
    driver.enable(&channels[0]).unwrap();
    for channel in &channels {
        assert!(wait(&machine, &mut driver, channel).is_end());
    }
    // Each channel copies what the one before it has written.
    let memory = machine.memory();
    for place in 1..4 {
        assert_eq!(memory[place * 0x1000..][..0x1000], before[..0x1000]);
    }
    machine.assert_no_complaints();
}

#[test]
fn loop_repeats_until_it_is_ended() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let first = driver.allocate().unwrap();
    let second = driver.allocate().unwrap();
    driver.configure(&first, &copy(BASE, BASE + 0x1000, 256), None).unwrap();
    driver.configure(&second, &copy(BASE, BASE + 0x2000, 256), None).unwrap();
    driver.link(&[&first, &second], ChainEnd::Loop).unwrap();
    driver.enable(&first).unwrap();
    for _ in 0..5 {
        assert!(wait(&machine, &mut driver, &first).is_end());
        assert!(wait(&machine, &mut driver, &second).is_end());
    }
    driver.end_after(&second);
    machine.pass(Duration::from_micros(200));
    assert!(!driver.is_running(&first) && !driver.is_running(&second));
}
