//! Programs whose data stays in the caches: one for each category of MiBench, which the slides run beside the copies.
//!
//! ```text
//! victim ─ computes on values ─ Core::get, Core::set ─► address ─► caches ─► time      at intervals ─► a copy
//! ```
//!
//! They are small programs of our own with the same kind of work. An access costs a few cycles and waits for the caches; the
//! overlap of a real processor is not modelled. Instruction fetches are left out.

use crate::rng::Rng;

use super::cftu::Machine;
use super::chipset::Caches;

/// Cycles of an instruction or two around each access.
const CYCLES: f64 = 3.0;

/// A core that runs a victim.
pub(super) struct Core<'a> {
    caches: &'a Caches,
    /// Picoseconds of an access without the caches.
    access: u64,
    /// Picoseconds of the victim itself.
    own: u64,
    /// When the next copy runs, in the victim's own time, and the interval between copies.
    next: u64,
    every: u64,
    between: &'a mut dyn FnMut(),
}

impl<'a> Core<'a> {
    /// A core that calls `between` each time the victim has run for `every` picoseconds.
    pub(super) fn new(
        machine: &Machine,
        caches: &'a Caches,
        every: u64,
        between: &'a mut dyn FnMut(),
    ) -> Self {
        let access = (CYCLES * machine.host.cycle) as u64;
        Self { caches, access, own: 0, next: every, every, between }
    }

    /// Picoseconds that the victim has run.
    pub(super) const fn own(&self) -> u64 {
        self.own
    }

    fn touch(&mut self, address: u64, write: bool) {
        self.own += self.access + self.caches.borrow_mut().access(address, write);
        if self.own >= self.next {
            (self.between)();
            self.next = self.own + self.every;
        }
    }

    fn get(&mut self, array: &Array, index: usize) -> u32 {
        self.touch(array.base + 4 * index as u64, false);
        array.values[index]
    }

    fn set(&mut self, array: &mut Array, index: usize, value: u32) {
        self.touch(array.base + 4 * index as u64, true);
        array.values[index] = value;
    }

    fn swap(&mut self, array: &mut Array, one: usize, other: usize) {
        let first = self.get(array, one);
        let second = self.get(array, other);
        self.set(array, one, second);
        self.set(array, other, first);
    }
}

/// Values with their address.
struct Array {
    base: u64,
    values: Vec<u32>,
}

/// Address of the victims' data: above the callers' windows.
const DATA: u64 = 0xD000_0000;

impl Array {
    fn new(number: u64, values: Vec<u32>) -> Self {
        // An offset, so that the arrays do not share their sets.
        Self { base: DATA + number * ((1 << 20) + (5 << 10)), values }
    }

    fn random(number: u64, length: usize) -> Self {
        let mut rng = Rng::new(number + 1);
        Self::new(number, (0..length).map(|_| rng.below(1 << 32) as u32).collect())
    }
}

/// A category with its victim, which runs once and returns a sum as a check of its result.
pub(super) struct Victim {
    /// The name of the category in MiBench.
    pub(super) category: &'static str,
    pub(super) run: fn(&mut Core<'_>) -> u64,
}

/// One of each category, in MiBench's order.
pub(super) const VICTIMS: [Victim; 6] = [
    Victim { category: "automotive", run: sort },
    Victim { category: "consumer", run: transform },
    Victim { category: "network", run: shortest_paths },
    Victim { category: "office", run: look_up },
    Victim { category: "security", run: encipher },
    Victim { category: "telecomm", run: spectrum },
];

fn sum(array: &Array) -> u64 {
    (1u64..)
        .zip(&array.values)
        .fold(0, |sum, (at, value)| sum.wrapping_add(at.wrapping_mul(u64::from(*value))))
}

/// Heap sort of 32 KiB, as large as level 1.
fn sort(core: &mut Core<'_>) -> u64 {
    let mut heap = Array::random(0, 8 << 10);
    let length = heap.values.len();
    for root in (0..length / 2).rev() {
        sift(core, &mut heap, root, length);
    }
    for end in (1..length).rev() {
        core.swap(&mut heap, 0, end);
        sift(core, &mut heap, 0, end);
    }
    u64::from(heap.values.is_sorted()).wrapping_mul(sum(&heap))
}

fn sift(core: &mut Core<'_>, heap: &mut Array, mut root: usize, end: usize) {
    loop {
        let mut child = 2 * root + 1;
        if child >= end {
            return;
        }
        if child + 1 < end && core.get(heap, child) < core.get(heap, child + 1) {
            child += 1;
        }
        if core.get(heap, root) >= core.get(heap, child) {
            return;
        }
        core.swap(heap, root, child);
        root = child;
    }
}

/// The Walsh-Hadamard transform of each 8 by 8 block of a picture of 64 KiB, as in picture coding.
fn transform(core: &mut Core<'_>) -> u64 {
    const WIDTH: usize = 128;
    let mut picture = Array::random(2, WIDTH * WIDTH);
    for block in 0..WIDTH * WIDTH / 64 {
        let first = block / (WIDTH / 8) * 8 * WIDTH + block % (WIDTH / 8) * 8;
        for (along, across) in [(1, WIDTH), (WIDTH, 1)] {
            for line in 0..8 {
                for butterfly in 0..12 {
                    let half = 1 << (butterfly / 4);
                    let pair = butterfly % 4;
                    let low = pair / half * 2 * half + pair % half;
                    let [one, other] = [low, low + half].map(|at| first + line * across + at * along);
                    let a = core.get(&picture, one);
                    let b = core.get(&picture, other);
                    core.set(&mut picture, one, a.wrapping_add(b));
                    core.set(&mut picture, other, a.wrapping_sub(b));
                }
            }
        }
    }
    sum(&picture)
}

/// Shortest paths from four nodes in a dense graph of 160 nodes, with a matrix of 100 KiB.
fn shortest_paths(core: &mut Core<'_>) -> u64 {
    const NODES: usize = 160;
    let mut matrix = Array::random(4, NODES * NODES);
    matrix.values.iter_mut().for_each(|length| *length = *length % 1000 + 1);
    let mut total: u64 = 0;
    for source in 0..4 {
        let mut far = Array::new(5, vec![u32::MAX; NODES]);
        let mut done = [false; NODES];
        core.set(&mut far, source, 0);
        for _ in 0..NODES {
            let open = (0..NODES).filter(|node| !done[*node]);
            let Some(nearest) = open.min_by_key(|node| core.get(&far, *node)) else { break };
            done[nearest] = true;
            let base = core.get(&far, nearest);
            for node in 0..NODES {
                let over = base.saturating_add(core.get(&matrix, nearest * NODES + node));
                if over < core.get(&far, node) {
                    core.set(&mut far, node, over);
                }
            }
        }
        total = total.wrapping_add(sum(&far));
    }
    total
}

/// Looks words of a text up in a dictionary of 128 KiB with open addressing; most words are frequent ones.
fn look_up(core: &mut Core<'_>) -> u64 {
    const SLOTS: usize = 32 << 10;
    let mut dictionary = Array::new(6, vec![0; SLOTS]);
    let slot = |word: u32| (word.wrapping_mul(0x9E37_79B9) >> 17) as usize;
    let mut known = 0;
    for word in 1..=16_000 {
        let mut at = slot(word);
        while dictionary.values[at] != 0 {
            at = (at + 1) % SLOTS;
        }
        dictionary.values[at] = word;
    }
    let mut rng = Rng::new(7);
    for _ in 0..60_000 {
        // The smallest of three random numbers: frequent words are few.
        let word = (0..3).map(|_| rng.below(20_000) as u32 + 1).min().unwrap_or(1);
        let mut at = slot(word);
        loop {
            let found = core.get(&dictionary, at);
            if found == word || found == 0 {
                known += u64::from(found == word);
                break;
            }
            at = (at + 1) % SLOTS;
        }
    }
    known
}

/// A cipher of ten rounds with four tables of 1 KiB, over 64 KiB.
fn encipher(core: &mut Core<'_>) -> u64 {
    let tables = Array::random(8, 4 * 256);
    let mut text = Array::random(9, 16 << 10);
    for block in 0..text.values.len() / 4 {
        let mut state = [0, 1, 2, 3].map(|word| core.get(&text, 4 * block + word));
        for _ in 0..10 {
            let before = state;
            for (word, mixed) in state.iter_mut().enumerate() {
                *mixed = (0..4).fold(0, |mixed, table| {
                    let byte = before[(word + table) % 4] >> (8 * table) & 0xFF;
                    mixed ^ core.get(&tables, 256 * table + byte as usize)
                });
            }
        }
        for (word, value) in state.into_iter().enumerate() {
            core.set(&mut text, 4 * block + word, value);
        }
    }
    sum(&text)
}

/// The number-theoretic transform of 8 Ki numbers modulo 65,537: a spectrum without rounding.
fn spectrum(core: &mut Core<'_>) -> u64 {
    const MODULUS: u64 = 65_537;
    const LENGTH: usize = 8 << 10;
    let mut wave = Array::random(10, LENGTH);
    wave.values.iter_mut().for_each(|value| *value %= MODULUS as u32);
    // 3 generates the group of order 2^16.
    let root = power(3, 65_536 / LENGTH as u64, MODULUS);
    let twiddles = (0..LENGTH as u64 / 2).map(|at| power(root, at, MODULUS) as u32).collect();
    let twiddles = Array::new(11, twiddles);
    let mut half = LENGTH / 2;
    while half > 0 {
        for first in (0..LENGTH).step_by(2 * half) {
            for at in 0..half {
                let a = core.get(&wave, first + at);
                let b = core.get(&wave, first + at + half);
                let twiddle = u64::from(core.get(&twiddles, at * (LENGTH / 2 / half)));
                let a = u64::from(a);
                let b = u64::from(b);
                core.set(&mut wave, first + at, ((a + b) % MODULUS) as u32);
                core.set(&mut wave, first + at + half, ((a + MODULUS - b) * twiddle % MODULUS) as u32);
            }
        }
        half /= 2;
    }
    sum(&wave)
}

fn power(mut base: u64, mut exponent: u64, modulus: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn copies_do_not_change_victims_results() {
        let parameters = Parameters::parse(include_str!("../../parameters/papa.toml")).expect("well formed");
        let machine = Machine::new(&parameters, 1).expect("all there");
        for victim in &VICTIMS {
            let caches = machine.caches().expect("well formed");
            let mut copies = 0;
            let mut between = || {
                copies += 1;
                caches.borrow_mut().copy(0, 1 << 20, 16_064);
            };
            let mut core = Core::new(&machine, &caches, 10_000_000, &mut between);
            let disturbed = (victim.run)(&mut core);
            let took = core.own();
            let mut nothing = || ();
            let mut alone = Core::new(&machine, &caches, u64::MAX, &mut nothing);
            assert_eq!((victim.run)(&mut alone), disturbed, "{}", victim.category);
            assert!(disturbed > 0 && alone.own() < took, "{}", victim.category);
            assert!(copies > 10, "{}: {copies}", victim.category);
        }
    }
}
