//! Calibrated numbers are met, and each cause that docs/lab.md names changes what it is said to cause.

use super::*;

fn parameters() -> Parameters {
    Parameters::parse(include_str!("../../../parameters/dsa.toml")).expect("well formed")
}

const LONE: Way = Way { batch: 1, depth: 1, engines: 1, shared: true };
const IN_FLIGHT: Way = Way { depth: 128, ..LONE };
const BATCHES: Way = Way { batch: 32, depth: 8, engines: 1, shared: true };
const FOUR_ENGINES: Way = Way { engines: 4, ..BATCHES };

fn nanoseconds(parameters: &Parameters, way: Way, bytes: u64) -> f64 {
    let core = Core::new(parameters).expect("listed");
    nanoseconds_of_one(core, timing(parameters).expect("listed"), way, bytes).expect("runs")
}

fn rate(way: Way, bytes: u64) -> f64 {
    mib_per_second(bytes, nanoseconds(&parameters(), way, bytes))
}

/// The smallest size from which on the device is faster than the core in cold memory.
fn from(parameters: &Parameters, way: Way) -> u64 {
    let times: Vec<_> = SIZES
        .map(|power| {
            let bytes = 1 << power;
            let core = copied_by_core(parameters, "sequential", bytes).expect("listed");
            (bytes, nanoseconds(parameters, way, bytes), core)
        })
        .collect();
    crossover(&times, 1.0).expect("the device is faster at 1 MiB")
}

#[test]
fn what_is_calibrated_is_met() {
    for (way, bytes, published) in [
        (LONE, 64, 81.0),
        (IN_FLIGHT, 64, 324.0),
        (BATCHES, 256, 3581.0),
        (FOUR_ENGINES, 128, 2824.0),
        (FOUR_ENGINES, 256 << 10, 29914.0),
    ] {
        let found = rate(way, bytes);
        assert!((found / published - 1.0).abs() < 0.03, "{found} where {published}, {bytes} bytes, {way:?}");
    }
}

#[test]
fn batches_pay_from_smaller_sizes() {
    let parameters = parameters();
    let [lone, in_flight, batches] = [LONE, IN_FLIGHT, FOUR_ENGINES].map(|way| from(&parameters, way));
    assert!(lone > in_flight && in_flight > batches, "{lone}, {in_flight}, {batches}");
    // Within a factor of two of what was measured on silicon.
    for (found, published) in [(lone, 32 << 10), (in_flight, 2 << 10), (batches, 512)] {
        assert!(2 * found >= published && found <= 2 * published, "{found} where {published}");
    }
}

/// What batches save is the answer to ENQCMD: with stores to a dedicated queue, lone descriptors are as fast.
#[test]
fn without_the_answer_lone_descriptors_are_as_fast() {
    let parameters = parameters();
    let dedicated = nanoseconds(&parameters, Way { shared: false, ..IN_FLIGHT }, 256);
    let shared = nanoseconds(&parameters, IN_FLIGHT, 256);
    let batches = nanoseconds(&parameters, BATCHES, 256);
    assert!(
        shared > 2.5 * dedicated && (dedicated / batches - 1.0).abs() < 0.05,
        "{shared}, {dedicated}, {batches} ns"
    );
    let cheap = parameters.with("enqcmd", 20.0).expect("listed");
    assert_eq!(nanoseconds(&cheap, IN_FLIGHT, 256), dedicated);
}

#[test]
fn one_engine_is_bound_by_its_dispatch() {
    let parameters = parameters();
    let faster = parameters.with("dispatch", 20_000.0).expect("listed");
    let gain = |way| nanoseconds(&parameters, way, 256) / nanoseconds(&faster, way, 256);
    assert!(gain(BATCHES) > 1.4, "{}", gain(BATCHES));
    // Four engines are not: there the core that describes the moves is.
    assert!(gain(FOUR_ENGINES) < 1.05, "{}", gain(FOUR_ENGINES));
    let idle = parameters.with("prepare", 10.0).expect("listed");
    assert!(nanoseconds(&idle, FOUR_ENGINES, 256) < 0.7 * nanoseconds(&parameters, FOUR_ENGINES, 256));
}

#[test]
fn long_batches_take_time_in_proportion() {
    let long = nanoseconds(&parameters(), BATCHES, 1 << 20);
    let whole = nanoseconds(&parameters(), BATCHES, 64 << 10);
    assert!((long / whole / 16.0 - 1.0).abs() < 0.01, "{long} and {whole} ns");
    // And that is the link's rate.
    let rate = mib_per_second(1 << 20, long);
    assert!((29_000.0..30_000.0).contains(&rate), "{rate} MiB/s");
}

#[test]
fn crossovers_are_where_the_device_stays_faster() {
    let times = [(64, 2.0, 1.0), (128, 1.0, 2.0), (256, 3.0, 2.0), (512, 1.0, 4.0), (1024, 1.0, 8.0)];
    let found = [0.1, 0.6, 1.0, 3.0, 5.0, 9.0].map(|speed| crossover(&times, speed));
    assert_eq!(found, [Some(64), Some(128), Some(512), Some(512), Some(1024), None]);
}
