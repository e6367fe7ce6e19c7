//! Safety claims of the thesis: bounds, the colour's 24 bits, and requests when all channels are busy (2.3.2.2, 3.3.2, 3.4).
//!
//! ```text
//! seed ─► random 2-D requests, mostly invalid ─► Bed ─► refused: nothing changed; done: nothing outside the window
//! the same requests, done ─► the pixels and order of listing 3, computed here ─► the same bytes
//! words with every upper byte ─► fill, transparent copy ─► upper eight bits zero; ignored
//! more requests than channels ─► refused or waiting ─► each shifts its bytes by one: a lost or repeated run shows
//! ```

use std::collections::BTreeSet;

use memferry_driven::SdmaOptions;
use memferry_models::Ram;
use memferry_models::sdma::{Config, Sdma};
use memferry_transfer::{
    Color24, Copy2d, Count2d, Failure, Fill2d, Operation, PixelSize, Plane, SessionId, Span, Terms, WhenBusy,
};

use super::beds::{Bed, BedError, Draft, Live, MEMORY_BYTES, Simulated, WINDOW_AT, WINDOW_BYTES};
use super::busy;
use super::crowd::{Crowd, shift};
use super::service::Service;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::rng::Rng;
use crate::verdict::{Basis, Verdict};

const SEED: u64 = 1;
/// Number of random 2-D requests.
const DRAFTS: u32 = 2000;

const fn judged(
    claim: &'static str,
    place: Place,
    judge: fn(&Case<'_>) -> Result<Verdict, RunError>,
) -> Judge {
    Judge { claim, place, judge }
}

pub(super) const JUDGES: [Judge; 8] = [
    judged("wicki-bounds", Place::Simulated, |case| bounds(case, Place::Simulated)),
    judged("wicki-bounds", Place::Live, |case| bounds(case, Place::Live)),
    judged("wicki-walk", Place::Simulated, |case| walks(case, Place::Simulated)),
    judged("wicki-walk", Place::Live, |case| walks(case, Place::Live)),
    judged("wicki-fill-colour-bits", Place::Simulated, |case| colour_bits(case, Place::Simulated)),
    judged("wicki-fill-colour-bits", Place::Live, |case| colour_bits(case, Place::Live)),
    judged("wicki-channels-exhausted", Place::Simulated, |case| exhausted(case, Place::Simulated)),
    judged("wicki-channels-exhausted", Place::Live, |case| exhausted(case, Place::Live)),
];

/// Random requests, mostly invalid, and random contents of memory.
struct Noise(Rng);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0.word()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// A step: usually small, in either direction; sometimes one that causes an overflow.
    fn step(&mut self) -> i64 {
        match self.below(8) {
            0 => [i64::MIN, i64::MAX, 1 << 32, -(1 << 40), 513][self.below(5) as usize],
            _ => (self.below(41) as i64 - 20) * 4,
        }
    }

    fn plane(&mut self) -> Plane {
        let start = match self.below(8) {
            0 => [u64::MAX, 1 << 63, 513, 4096][self.below(4) as usize],
            _ => self.below(WINDOW_BYTES as u64 / 4) * 4,
        };
        Plane { start, x_step: self.step(), y_step: self.step() }
    }

    fn draft(&mut self) -> Draft {
        let pixel = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32][self.below(3) as usize];
        let x_count = self.below(9) as u32;
        let y_count = self.below(9) as u32;
        let mut destination = self.plane();
        let mut source = self.plane();
        let mut count = Count2d { pixel, x_count, y_count };
        if self.below(10) == 0 {
            // With this many pixels every walk leaves the window, unless it stays in place.
            count.x_count = self.next() as u32 | 1 << 20;
            (source.x_step, destination.x_step) = (source.x_step | 4, destination.x_step | 4);
        }
        let color = Color24::new(self.next() as u32 & 0xff_ffff);
        match (self.below(2), color) {
            (0, Some(color)) => Draft::Fill(Fill2d { count, destination, color }),
            (_, color) => {
                let transparent = color.filter(|_| self.below(2) == 0);
                Draft::Copy(Copy2d { count, source, destination, transparent })
            }
        }
    }
}

/// Numbers of requests by outcome, and the first one that did something forbidden.
struct Tried {
    done: u32,
    refused: u32,
    wrong: Option<String>,
}

fn try_bounds(bed: &mut impl Bed) -> Result<Tried, BedError> {
    let mut noise = Noise(Rng::new(SEED));
    let mut tried = Tried { done: 0, refused: 0, wrong: None };
    for number in 0..DRAFTS {
        let before = [noise.bytes(MEMORY_BYTES), noise.bytes(MEMORY_BYTES)];
        bed.load([&before[0], &before[1]])?;
        let draft = noise.draft();
        let outcome = bed.submit(&draft)?;
        let [source, destination] = bed.contents()?;
        let window = WINDOW_AT..WINDOW_AT + WINDOW_BYTES;
        let outside = |bytes: &[u8]| [&bytes[..window.start], &bytes[window.end..]].concat();
        let kept = source == before[0] && outside(&destination) == outside(&before[1]);
        let untouched = outcome.is_ok() || destination == before[1];
        *(if outcome.is_ok() { &mut tried.done } else { &mut tried.refused }) += 1;
        if !kept || !untouched {
            tried
                .wrong
                .get_or_insert(format!("request {number}, {draft:?}, which completed with {outcome:?}"));
        }
    }
    Ok(tried)
}

fn failed<'a>(case: &'a Case<'_>) -> impl Fn(BedError) -> RunError + 'a {
    |message| case.failed(message)
}

fn basis(place: Place) -> Basis {
    match place {
        Place::Simulated => Basis::Explored,
        Place::Live => Basis::Measured,
    }
}

fn bounds(case: &Case<'_>, place: Place) -> Result<Verdict, RunError> {
    let tried = match place {
        Place::Simulated => Simulated::new().and_then(|mut bed| try_bounds(&mut bed)),
        Place::Live => Live::new().and_then(|mut bed| try_bounds(&mut bed)),
    };
    let tried = tried.map_err(failed(case))?;
    let mut finding = Finding::of(case.claim);
    finding.figure("done", f64::from(tried.done)).figure("refused", f64::from(tried.refused));
    let words = match &tried.wrong {
        None => format!(
            "{} requests were done and changed nothing outside their window, {} were refused and changed nothing",
            tried.done, tried.refused
        ),
        Some(wrong) => wrong.clone(),
    };
    finding.check(tried.wrong.is_none() && tried.done > 100 && tried.refused > 100, words);
    Ok(finding.verdict(place, basis(place)))
}

/// The offsets of a walk's pixels in its frame, in the order of listing 3.
fn listing_3(count: &Count2d, plane: &Plane) -> Vec<i128> {
    let mut at = i128::from(plane.start);
    let mut all = Vec::new();
    for _ in 0..count.y_count {
        for x in 1..=count.x_count {
            all.push(at);
            at += i128::from(if x < count.x_count { plane.x_step } else { plane.y_step });
        }
    }
    all
}

/// The destination's window after a request, by listing 3; `None` if a pixel lies outside a window.
fn expected(draft: &Draft, [source, destination]: [&[u8]; 2]) -> Option<Vec<u8>> {
    let mut found = destination.to_vec();
    let (count, to) = match draft {
        Draft::Copy(shape) => (&shape.count, &shape.destination),
        Draft::Fill(shape) => (&shape.count, &shape.destination),
    };
    let bytes = count.pixel.bytes() as usize;
    let range = |at: i128| usize::try_from(at).ok().map(|at| at..at + bytes);
    let mut read = match draft {
        Draft::Copy(shape) => listing_3(count, &shape.source),
        Draft::Fill(_) => Vec::new(),
    }
    .into_iter();
    for at in listing_3(count, to) {
        let pixel = match draft {
            Draft::Fill(shape) => shape.color.value().to_le_bytes()[..bytes].to_vec(),
            Draft::Copy(_) => source.get(range(read.next()?)?)?.to_vec(),
        };
        let mut word = [0; 4];
        word[..bytes].copy_from_slice(&pixel);
        let value = u32::from_le_bytes(word);
        let color = if let Draft::Copy(shape) = draft { shape.transparent } else { None };
        let place = found.get_mut(range(at)?)?;
        if color.is_none_or(|color| !color.matches(count.pixel, value)) {
            place.copy_from_slice(&pixel);
        }
    }
    Some(found)
}

/// Numbers of requests that were done and of pixels that they moved, and the first one that moved others.
struct Walked {
    done: u32,
    pixels: u64,
    wrong: Option<String>,
}

fn try_walks(bed: &mut impl Bed) -> Result<Walked, BedError> {
    let mut noise = Noise(Rng::new(SEED));
    let mut walked = Walked { done: 0, pixels: 0, wrong: None };
    let window = |bytes: &[u8]| bytes[WINDOW_AT..][..WINDOW_BYTES].to_vec();
    for number in 0..DRAFTS {
        let before = [noise.bytes(MEMORY_BYTES), noise.bytes(MEMORY_BYTES)];
        bed.load([&before[0], &before[1]])?;
        let draft = noise.draft();
        if bed.submit(&draft)?.is_err() {
            continue;
        }
        let after = window(&bed.contents()?[1]);
        walked.done += 1;
        walked.pixels += match &draft {
            Draft::Copy(shape) => shape.count.pixels(),
            Draft::Fill(shape) => shape.count.pixels(),
        };
        if expected(&draft, [&window(&before[0]), &window(&before[1])]) != Some(after) {
            walked.wrong.get_or_insert(format!("request {number}, {draft:?}, moved other pixels"));
        }
    }
    Ok(walked)
}

fn walks(case: &Case<'_>, place: Place) -> Result<Verdict, RunError> {
    let walked = match place {
        Place::Simulated => Simulated::new().and_then(|mut bed| try_walks(&mut bed)),
        Place::Live => Live::new().and_then(|mut bed| try_walks(&mut bed)),
    };
    let walked = walked.map_err(failed(case))?;
    let mut finding = Finding::of(case.claim);
    finding.figure("done", f64::from(walked.done)).figure("pixels", walked.pixels as f64);
    let words = match &walked.wrong {
        None => format!(
            "{} random requests moved {} pixels as listing 3 does, with modifiers of either sign",
            walked.done, walked.pixels
        ),
        Some(wrong) => wrong.clone(),
    };
    finding.check(walked.wrong.is_none() && walked.done > 100 && walked.pixels > 1000, words);
    Ok(finding.verdict(place, basis(place)))
}

/// A walk through the window, word by word.
const ALONG: Plane = Plane { start: 0, x_step: 4, y_step: 4 };
const WORDS: usize = WINDOW_BYTES / 4;

/// Bits of a colour (2.3.2.2; OMAP36xx manual, 11.4.14).
const COLOUR_BITS: u32 = 24;

/// The bytes of a 32-bit element in memory: the colour's three from the lowest, then the upper one. Written out by the definition, and
/// not by what the service or the device use for it.
fn element(colour: u32, upper: u8) -> [u8; 4] {
    [colour % 256, colour / 256 % 256, colour / 65_536 % 256, u32::from(upper)].map(|byte| byte as u8)
}

/// Results of fills and transparent copies.
#[derive(Debug)]
struct Colours {
    /// Fills that wrote other bytes than the colour's three and a zero.
    filled_wrong: u32,
    /// Fills: one for each bit of a colour, and some colours.
    fills: u32,
    /// Elements that a transparent copy treated otherwise than by its 24 bits.
    copied_wrong: u32,
    /// Upper bytes tried together with the colour.
    upper: BTreeSet<u8>,
    /// Bits in which elements differed from the colour, and nowhere else.
    near: BTreeSet<u32>,
}

/// Tries fills, and transparent copies with the colour, and with colours that differ from it in one bit, under many upper bytes.
fn try_colours(bed: &mut impl Bed) -> Result<Colours, BedError> {
    const COLOUR: u32 = 0xab_cdef;
    let window = |bytes: &[u8]| bytes[WINDOW_AT..][..WINDOW_BYTES].to_vec();
    let count = Count2d { pixel: PixelSize::Bits32, x_count: WORDS as u32, y_count: 1 };
    // Every byte is set, so that one that was to become zero and did not shows.
    let before = vec![0xff; MEMORY_BYTES];
    let mut upper = BTreeSet::new();
    let mut near = BTreeSet::new();
    let [mut fills, mut filled_wrong, mut copied_wrong] = [0, 0, 0];
    let single = (0..COLOUR_BITS).map(|bit| 1 << bit);
    for value in single.chain([0, COLOUR, (1 << COLOUR_BITS) - 1]) {
        let color = Color24::new(value).ok_or("a colour of 24 bits")?;
        bed.load([&before, &before])?;
        let fill = bed.submit(&Draft::Fill(Fill2d { count, destination: ALONG, color }))?;
        let is_right = window(&bed.contents()?[1]) == element(value, 0).repeat(WORDS);
        fills += 1;
        filled_wrong += u32::from(fill.is_err() || !is_right);
    }
    let transparent = Color24::new(COLOUR);
    for first in (0..=u8::MAX).step_by(WORDS / 2) {
        let mut source = before.clone();
        let mut expected = window(&before);
        for (at, byte) in (first..=u8::MAX).take(WORDS / 2).enumerate() {
            // The colour, which is left out; then a near one, which is copied.
            let bit = u32::from(byte) % COLOUR_BITS;
            let pair = [element(COLOUR, byte), element(COLOUR ^ 1 << bit, byte)];
            source[WINDOW_AT + 8 * at..][..8].copy_from_slice(&pair.concat());
            expected[8 * at + 4..][..4].copy_from_slice(&pair[1]);
            upper.insert(byte);
            near.insert(bit);
        }
        bed.load([&source, &before])?;
        let shape = Copy2d { count, source: ALONG, destination: ALONG, transparent };
        let copy = bed.submit(&Draft::Copy(shape))?;
        let found = window(&bed.contents()?[1]);
        let differ = found.chunks(4).zip(expected.chunks(4)).filter(|(one, other)| one != other).count();
        copied_wrong += if copy.is_ok() { differ as u32 } else { WORDS as u32 };
    }
    Ok(Colours { filled_wrong, fills, copied_wrong, upper, near })
}

fn colour_bits(case: &Case<'_>, place: Place) -> Result<Verdict, RunError> {
    let tried = match place {
        Place::Simulated => Simulated::new().and_then(|mut bed| try_colours(&mut bed)),
        Place::Live => Live::new().and_then(|mut bed| try_colours(&mut bed)),
    };
    let Colours { filled_wrong, fills, copied_wrong, upper, near } = tried.map_err(failed(case))?;
    let mut finding = Finding::of(case.claim);
    let words = format!(
        "of {fills} fills of {WORDS} elements {filled_wrong} left other bytes than the colour's three and a zero"
    );
    finding.check(filled_wrong == 0, words);
    let words = format!(
        "under {} upper bytes, transparent copies left out the colour and copied {} colours that differ from it in one bit; {copied_wrong} \
         elements came out otherwise",
        upper.len(),
        near.len()
    );
    finding.check(copied_wrong == 0 && upper.len() == 256 && near.len() == COLOUR_BITS as usize, words);
    Ok(finding.verdict(place, basis(place)))
}

fn exhausted(case: &Case<'_>, place: Place) -> Result<Verdict, RunError> {
    let crowd = match place {
        Place::Simulated => crowd_simulated(),
        Place::Live => busy::crowd_live(),
    };
    let crowd = crowd.map_err(failed(case))?;
    let mut finding = Finding::of(case.claim);
    finding.figure("refused", f64::from(crowd.refused)).figure("waited", f64::from(crowd.waited));
    let words = format!(
        "with all channels busy {} requests were refused as such, {} waited and ran once, {} did otherwise",
        crowd.refused, crowd.waited, crowd.wrong
    );
    finding.check(crowd.refused > 0 && crowd.waited > 0 && crowd.wrong == 0, words);
    Ok(finding.verdict(place, basis(place)))
}

fn crowd_simulated() -> Result<Crowd, BedError> {
    const CHANNELS: u32 = 32;
    const REQUESTS: u64 = 64;
    const SHIFTED: usize = 256;
    let client = SessionId(1);
    let base = 0x8000_0000u32;
    let memory = vec![0; REQUESTS as usize * SHIFTED];
    let device = Sdma::new(Config::default(), Ram::new(base.into(), memory));
    let message = |error: super::service::ServiceError| error.to_string();
    let mut service = Service::new(device, CHANNELS, SdmaOptions::default()).map_err(message)?;
    let place = |tag: u64| tag as usize * SHIFTED..(tag as usize + 1) * SHIFTED;
    for tag in 0..REQUESTS {
        let address = base + place(tag).start as u32;
        let frame = service.frame(client, address, SHIFTED as u64).map_err(message)?;
        let before = &shift(tag, SHIFTED)[0];
        service.with_device(|device| device.bus_mut().bytes_mut()[place(tag)].copy_from_slice(before));
        let source = Span::new(frame, 0);
        let destination = Span::new(frame, 1);
        let copy = Operation::Copy { source, destination, length: SHIFTED as u64 - 1 };
        // The last quarter refuses to wait.
        let when_busy = if tag < REQUESTS * 3 / 4 { WhenBusy::Wait } else { WhenBusy::Refuse };
        service.submit(client, tag, copy, Terms { when_busy, ..Terms::default() }).map_err(message)?;
    }
    let mut ends = service.run();
    ends.sort_by_key(|(tag, _)| *tag);
    let mut crowd = Crowd { refused: 0, waited: 0, wrong: u32::from(ends.len() as u64 != REQUESTS) };
    for (tag, outcome) in ends {
        let found = service.with_device(|device| device.bus().bytes()[place(tag)].to_vec());
        let [before, after] = shift(tag, SHIFTED);
        match outcome {
            Ok(()) if found == after => crowd.waited += u32::from(tag >= CHANNELS.into()),
            Err(Failure::ChannelsBusy { .. }) if found == before => crowd.refused += 1,
            _ => crowd.wrong += 1,
        }
    }
    Ok(crowd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_requests_are_done_and_refused() {
        let tried = try_bounds(&mut Simulated::new().expect("a service")).expect("it serves");
        assert!(tried.done > 100 && tried.refused > 100 && tried.wrong.is_none());
    }

    /// A broken service that writes a byte beside the window, even when it refuses.
    struct Careless(Simulated);

    impl Bed for Careless {
        fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError> {
            self.0.load(memories)
        }

        fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError> {
            let outcome = self.0.submit(draft)?;
            let [source, mut destination] = self.0.contents()?;
            destination[WINDOW_AT - 1] ^= 1;
            self.0.load([&source, &destination])?;
            Ok(outcome)
        }

        fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError> {
            self.0.contents()
        }
    }

    /// A broken service that takes the step after a row for a step within it.
    struct Straight(Simulated);

    impl Bed for Straight {
        fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError> {
            self.0.load(memories)
        }

        fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError> {
            let mut draft = *draft;
            if let Draft::Copy(shape) = &mut draft {
                shape.destination.y_step = shape.destination.x_step;
            }
            self.0.submit(&draft)
        }

        fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError> {
            self.0.contents()
        }
    }

    #[test]
    fn walks_are_those_of_listing_3() {
        let right = try_walks(&mut Simulated::new().expect("a service")).expect("it serves");
        assert!(right.done > 100 && right.wrong.is_none(), "{:?}", right.wrong);
        let wrong = try_walks(&mut Straight(Simulated::new().expect("a service"))).expect("it serves");
        assert!(wrong.wrong.is_some());
    }

    /// A broken service, whose colour has fewer or more bits than 24.
    struct Masked {
        bed: Simulated,
        /// Bits that a fill writes, and that a transparent copy compares.
        bits: u32,
        memories: [Vec<u8>; 2],
    }

    impl Bed for Masked {
        fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError> {
            self.memories = memories.map(<[u8]>::to_vec);
            self.bed.load(memories)
        }

        fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError> {
            let mask = ((1u64 << self.bits) - 1) as u32;
            let [source, destination] = &mut self.memories;
            let window = WINDOW_AT..WINDOW_AT + WINDOW_BYTES;
            let words = source[window.clone()].chunks(4).zip(destination[window].chunks_mut(4));
            for (from, to) in words {
                let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                match draft {
                    Draft::Fill(fill) => {
                        let kept = word(to) & !mask & 0xff_ffff;
                        // With more bits, the upper byte is whatever was there.
                        let upper = if self.bits > 24 { word(to) & !0xff_ffff } else { 0 };
                        to.copy_from_slice(&(upper | kept | fill.color.value() & mask).to_le_bytes());
                    }
                    Draft::Copy(copy) => {
                        let color = copy.transparent.map_or(0, Color24::value);
                        if (word(from) ^ color) & mask != 0 {
                            to.copy_from_slice(from);
                        }
                    }
                }
            }
            Ok(Ok(()))
        }

        fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError> {
            Ok(self.memories.clone())
        }
    }

    #[test]
    fn a_colour_of_other_than_24_bits_is_detected() {
        for bits in [16, 23, 24, 25, 32] {
            let bed = Simulated::new().expect("a service");
            let mut masked = Masked { bed, bits, memories: [vec![], vec![]] };
            let tried = try_colours(&mut masked).expect("it serves");
            let is_right = tried.filled_wrong == 0 && tried.copied_wrong == 0;
            assert_eq!(is_right, bits == 24, "{bits} bits: {tried:?}");
        }
    }

    #[test]
    fn a_write_beside_the_window_is_detected() {
        let mut careless = Careless(Simulated::new().expect("a service"));
        assert!(try_bounds(&mut careless).expect("it serves").wrong.is_some());
    }
}
