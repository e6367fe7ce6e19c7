//! Integration tests of the slides' machine, the basis of crossings and bandwidths.
//!
//! ```text
//! parameters ──► Machine ──► Cftu: one copy, many callers ──► times, bytes
//! ```

use std::time::Duration;

use memferry_lab::papa::PAPER;
use memferry_lab::papa::cftu::{Cftu, CftuError, Machine};
use memferry_lab::papa::chipset::{CALLERS, window};
use memferry_lab::parameters::Parameters;
use memferry_path::PolicyKind;
use memferry_transfer::PriorityClass;

fn machine() -> Machine {
    Machine::new(&Parameters::parse(PAPER.parameters).expect("well formed"), 1)
        .expect("all parameters present")
}

fn cftu(machine: &Machine, callers: usize) -> Result<Cftu, CftuError> {
    let caches = machine.caches()?;
    Cftu::new(machine, &caches, PolicyKind::Shared.build(), &vec![PriorityClass::Normal; callers])
}

#[test]
fn a_copy_writes_every_byte_once() {
    let machine = machine();
    let mut cftu = cftu(&machine, 1).expect("set up");
    let took = cftu.copy([64, 128], 16_064).expect("copied");
    assert_eq!(cftu.written(0), 16_064);
    let host = &machine.host;
    let steps = host.call + host.submit + host.interrupt + host.wake;
    assert!(took.cpu >= steps && took.all > took.cpu, "{took:?}");
    assert_eq!(cftu.complaints(), 0);
}

#[test]
fn engine_accesses_keep_caches_coherent() {
    let machine = machine();
    let caches = machine.caches().expect("well formed");
    let mut cftu =
        Cftu::new(&machine, &caches, PolicyKind::Shared.build(), &[PriorityClass::Normal]).expect("set up");
    let [source, destination] = window(0);
    caches.borrow_mut().write(source, 4096);
    caches.borrow_mut().write(destination, 4096);
    cftu.copy([0, 0], 4096).expect("copied");
    let mut caches = caches.borrow_mut();
    assert_eq!(caches.snoop(source, 4096, false), 0, "the source is clean");
    assert_eq!(caches.access(source, false), 0, "the source is still cached");
    assert!(caches.access(destination, false) > 100_000, "the destination is read from memory");
}

#[test]
fn callers_share_the_engine_evenly() {
    let machine = machine();
    let mut all = cftu(&machine, 4).expect("set up");
    let times = [Duration::from_micros(300), Duration::from_micros(900)];
    let rates = all.bandwidths(64 << 10, times).expect("runs");
    let mean = rates.iter().sum::<f64>() / 4.0;
    assert!(rates.iter().all(|rate| (rate / mean - 1.0).abs() < 0.1), "{rates:?}");
    let callers = CALLERS + 1;
    assert!(
        matches!(cftu(&machine, callers), Err(CftuError::Callers { callers: refused }) if refused == callers)
    );
}
