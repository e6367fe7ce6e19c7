//! Builds lists, and replays their descriptors as the device loads them.

extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use memferry_registers::sdma::Register;
use proptest::prelude::*;

use super::super::NonCacheable;
use super::super::device::tests::{at, copy, ready};
use super::*;

const ADDRESS: u64 = 0x9000_0000;

fn segment(source: u64, destination: u64, length_bytes: u64) -> Segment {
    Segment { source, destination, length_bytes }
}

fn build(segments: &[Segment], words: &mut [u32], options: ListOptions) -> Result<LinkedList, ListError> {
    LinkedList::build(&copy(), segments, (words, ADDRESS), options, None)
}

/// Replays a list as the device does: its descriptors, and the source, destination and size of each block.
fn replay(list: &LinkedList, words: &[u32]) -> (Vec<Descriptor>, Vec<(u32, u32, u64)>) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut form = list.first;
    let mut address = list.address;
    let mut source = 0u32;
    let mut destination = 0u32;
    let mut frames = 0u16;
    let mut descriptors = Vec::new();
    let mut blocks = Vec::new();
    loop {
        let descriptor = Descriptor::decode(form, &bytes[(address - list.address) as usize..]).unwrap();
        source = descriptor.source.unwrap_or(source);
        destination = descriptor.destination.unwrap_or(destination);
        if let Body::Type1(shape, _) | Body::Type2(shape) = descriptor.body {
            frames = shape.cfn.frames();
        }
        let length = 4 * u64::from(descriptor.header.elements()) * u64::from(frames);
        blocks.push((source, destination, length));
        source = source.wrapping_add(length as u32);
        destination = destination.wrapping_add(length as u32);
        descriptors.push(descriptor);
        if descriptor.next.pointer().is_end() {
            return (descriptors, blocks);
        }
        address = descriptor.next.pointer().address();
        let parameters = Cdp::new()
            .with_next_descriptor_type(descriptor.header.next_type())
            .with_source_valid(descriptor.header.next_source())
            .with_destination_valid(descriptor.header.next_destination());
        form = Form::announced(parameters).expect("the next descriptor must have a defined form");
    }
}

fn forms(descriptors: &[Descriptor]) -> Vec<(DescriptorType, bool, bool)> {
    descriptors.iter().map(Descriptor::form).map(|form| (form.kind, form.source, form.destination)).collect()
}

#[test]
fn descriptors_omit_continued_addresses() {
    let segments = [
        segment(0x1000, 0x8000, 64),
        segment(0x2000, 0x8040, 64), // continues the destination
        segment(0x2040, 0xa000, 64), // continues the source
        segment(0x5000, 0xb000, 64),
        segment(0x5040, 0xb040, 64), // continues both sides
    ];
    let mut words = [0; 64];
    let list = build(&segments, &mut words, ListOptions::default()).unwrap();
    let (descriptors, blocks) = replay(&list, &words);
    let two = DescriptorType::Type2;
    let three = DescriptorType::Type3;
    let expected = [
        (two, true, true),
        (three, true, false),
        (three, false, true),
        (three, true, true),
        (three, false, true),
    ];
    assert_eq!(forms(&descriptors), expected);
    assert_eq!((list.words(), list.descriptors()), (8 + 3 + 3 + 4 + 3, 5));
    let expected = segments.map(|part| (part.source as u32, part.destination as u32, part.length_bytes));
    assert_eq!(blocks, expected);
}

#[test]
fn a_new_frame_count_needs_type_2() {
    let segments = [segment(0, 0x8000_0000, 64), segment(0x1000_0000, 0x9100_0000, 1 << 26)];
    let mut words = [0; 64];
    let list = build(&segments, &mut words, ListOptions::default()).unwrap();
    let (descriptors, blocks) = replay(&list, &words);
    assert_eq!(forms(&descriptors)[1], (DescriptorType::Type2, true, true));
    assert_eq!(blocks[1], (0x1000_0000, 0x9100_0000, 1 << 26));
}

#[test]
fn whole_descriptors_link_only_at_the_end() {
    let config = ChannelConfig { link: Some(9), ..copy() };
    let segments = [segment(0x1000, 0x8000, 64), segment(0x2000, 0x9000, 128)];
    let mut words = [0; 24];
    let options = ListOptions { whole: true, ..ListOptions::default() };
    let list = LinkedList::build(&config, &segments, (&mut words, ADDRESS), options, None).unwrap();
    let (descriptors, blocks) = replay(&list, &words);
    assert_eq!((list.words(), blocks[1]), (24, (0x2000, 0x9000, 128)));
    for (number, descriptor) in descriptors.iter().enumerate() {
        let Body::Type1(_, whole) = descriptor.body else { panic!("{descriptor:?}") };
        assert!(whole.ccr.enable());
        assert_eq!(whole.clnk_ctrl.enable_link(), number == 1);
    }
}

#[test]
fn reports_block_ends_only_on_request() {
    let segments = [segment(0x1000, 0x8000, 64), segment(0x2000, 0x9000, 64)];
    for block_ends in [false, true] {
        let mut words = [0; 24];
        let options = ListOptions { block_ends, ..ListOptions::default() };
        let list = build(&segments, &mut words, options).unwrap();
        let (descriptors, _) = replay(&list, &words);
        let Body::Type2(shape) = descriptors[0].body else { panic!("{:?}", descriptors[0]) };
        assert_eq!((shape.cicr.super_block(), shape.cicr.block()), (true, block_ends));
        assert_eq!(descriptors[1].header.block_interrupt(), block_ends);
    }
}

#[test]
fn pauses_before_the_chosen_block() {
    let segments = [segment(0x1000, 0x8000, 64), segment(0x2000, 0x9000, 64)];
    let mut words = [0; 24];
    let options = ListOptions { pause_at: Some(1), ..ListOptions::default() };
    let list = build(&segments, &mut words, options).unwrap();
    let pauses: Vec<bool> =
        replay(&list, &words).0.iter().map(|descriptor| descriptor.next.pause()).collect();
    assert_eq!(pauses, [false, true]);
}

#[test]
fn refuses_bad_segments_and_buffers() {
    let mut words = [0; 8];
    let options = ListOptions::default();
    assert_eq!(build(&[], &mut words, options), Err(ListError::Empty));
    for length_bytes in [0, 6] {
        let error = ListError::Length { segment: 1, length_bytes, bytes: 4 };
        let segments = [segment(0, 64, 4), segment(0, 64, length_bytes)];
        assert_eq!(build(&segments, &mut words, options), Err(error));
    }
    let error = ConfigError::AddressMisaligned { port: Port::Source, address: 2, bytes: 4 };
    let error = ListError::Segment { segment: 0, error };
    assert_eq!(build(&[segment(2, 64, 4)], &mut words, options), Err(error));
    let segments = [segment(0, 64, 4), segment(8, 128, 4)];
    assert_eq!(
        build(&segments, &mut words, options),
        Err(ListError::BufferTooShort { given: 8, written: 8 })
    );
    for address in [0x9000_0002, 0xffff_fff0, 1 << 32, u64::MAX - 3] {
        let built = LinkedList::build(&copy(), &segments, (&mut words, address), options, None);
        assert_eq!(built, Err(ListError::BufferAddress { address }));
    }
    let far = build(&[segment(u64::MAX - 3, 64, 64)], &mut words, options);
    assert!(matches!(
        far,
        Err(ListError::Segment { segment: 0, error: ConfigError::AddressTooLarge { .. } })
    ));
}

#[test]
fn chooses_the_largest_common_element() {
    assert_eq!(Segment::element_for(&[segment(0, 4, 8), segment(8, 12, 4)]), Element::Bits32);
    assert_eq!(Segment::element_for(&[segment(0, 4, 8), segment(8, 14, 4)]), Element::Bits16);
    assert_eq!(Segment::element_for(&[segment(0, 4, 7)]), Element::Bits8);
}

#[test]
fn starts_by_loading_the_first_descriptor() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(6).unwrap();
    let mut words = [0; 24];
    let segments = [segment(0x1000, 0x8000, 64), segment(0x2000, 0x9000, 64)];
    let list = build(&segments, &mut words, ListOptions::default()).unwrap();
    sdma.configure_list(&channel, &list, None).unwrap();
    let value = |register| sdma.io.values[&at(6, register)];
    assert_eq!(u64::from(value(Register::Cndp)), ADDRESS);
    // Both addresses, type 2, linked list, fast start.
    assert_eq!(value(Register::Cdp), 1 | 1 << 2 | 2 << 4 | 1 << 8 | 1 << 10);
    assert_eq!((value(Register::Ccdn), value(Register::Ccfn), value(Register::Ccen)), (0, 0xffff, 0xff_ffff));
    assert_eq!(value(Register::Ccr) & 1 << 7, 0);
    sdma.enable(&channel).unwrap();
    sdma.io.values.insert(at(6, Register::Ccr), 0);
    assert!(sdma.enable(&channel).is_err(), "a second run must need a new configuration");
}

#[test]
fn refuses_lists_on_devices_without_them() {
    let (mut sdma, _trusted) = ready();
    sdma.io.values.insert(memferry_registers::sdma::offset::CAPS_0, 0);
    sdma.initialize(&super::super::Settings::default()).unwrap();
    sdma.io.writes.clear();
    let channel = sdma.allocate().unwrap();
    let mut words = [0; 8];
    let list = build(&[segment(0x1000, 0x8000, 64)], &mut words, ListOptions::default()).unwrap();
    assert_eq!(sdma.configure_list(&channel, &list, None), Err(ConfigureError::NoLinkedLists));
    assert_eq!(sdma.io.writes, []);
}

#[test]
fn maintains_caches_of_list_and_segments() {
    #[derive(Default)]
    struct Cleaned(BTreeMap<u64, u64>);
    impl CacheMaintenance for Cleaned {
        fn clean(&mut self, address: u64, length: u64) {
            self.0.insert(address, length);
        }
        fn clean_and_invalidate(&mut self, address: u64, length: u64) {
            self.0.insert(address, length);
        }
        fn invalidate(&mut self, address: u64, length: u64) {
            assert_eq!(self.0.remove(&address), Some(length));
        }
    }
    let mut words = [0; 24];
    let segments = [segment(0x1000, 0x8000, 64), segment(0x2000, 0x9000, 32)];
    let list = build(&segments, &mut words, ListOptions::default()).unwrap();
    let mut caches = Cleaned::default();
    list.prepare_caches(&segments, &mut caches);
    assert_eq!(caches.0.get(&ADDRESS), Some(&(4 * list.words() as u64)));
    list.finish_caches(&segments, &mut caches);
    assert_eq!(caches.0.keys().copied().collect::<Vec<_>>(), [0x1000, 0x2000, ADDRESS]);
    list.prepare_caches(&segments, &mut NonCacheable);
}

proptest! {
    #[test]
    fn moves_any_segments_in_order(
        parts in prop::collection::vec((0..1u64 << 26, 0..1u64 << 26, 1..1u64 << 25), 1..20),
        whole: bool,
        adjoining_sources: bool,
    ) {
        let mut segments: Vec<Segment> = parts.into_iter()
            .map(|(source, destination, words)| segment(4 * source, 0x8000_0000 + 4 * destination, 4 * words))
            .collect();
        if adjoining_sources {
            for index in 1..segments.len() {
                segments[index].source = segments[index - 1].source + segments[index - 1].length_bytes;
            }
        }
        let mut words = std::vec![0; 1000];
        let options = ListOptions { whole, ..ListOptions::default() };
        prop_assume!(segments.iter().all(|part| part.source + part.length_bytes < 1 << 32));
        let list = build(&segments, &mut words, options).unwrap();
        let (descriptors, blocks) = replay(&list, &words);
        prop_assert_eq!(descriptors.len(), list.descriptors() as usize);
        let mut blocks = blocks.into_iter();
        for part in &segments {
            let mut done = 0;
            while done < part.length_bytes {
                let (source, destination, length) = blocks.next().unwrap();
                prop_assert_eq!(u64::from(source), part.source + done);
                prop_assert_eq!(u64::from(destination), part.destination + done);
                done += length;
            }
            prop_assert_eq!(done, part.length_bytes);
        }
        prop_assert!(blocks.next().is_none());
    }
}
