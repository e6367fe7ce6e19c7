//! Tests of the service under clients.

use super::*;
use crate::parameters::Parameters;

fn board() -> super::super::Board {
    let parameters = Parameters::parse(super::super::PAPER.parameters).expect("checked");
    super::super::board(&parameters, 1).expect("complete")
}

fn host() -> Host {
    board().host
}

fn served(host: &Host, work: &Work) -> Outcome {
    serve(host, &board().device, work).expect("fits the board")
}

const KIB: u64 = 1024;

#[test]
fn a_single_call_takes_two_switches() {
    let host = host();
    let [through, direct] =
        [host.clone(), host.direct()].map(|host| served(&host, &Work::once(1, Call::Simple, 64 * KIB)));
    assert_eq!((through.switches, through.latencies.len()), (2, 1));
    let added = through.elapsed - direct.elapsed;
    assert!(added > 2 * host.switch && added < 2 * host.switch + 50_000_000, "{added} ps");
    assert_eq!(through.elapsed, through.latencies[0][0], "there is only one call");
    assert!(direct.busy < direct.elapsed / 4, "the core waits for the device");
}

#[test]
fn call_time_grows_with_words() {
    let host = host();
    let time = |call: Call| host.call(call.words(), 2);
    assert_eq!(time(Call::TwoDimensional) - time(Call::Simple), 12 * host.word);
    // This number of words fills three messages.
    assert_eq!(host.call(2 * host.message_words + 1, 2) / host.message, 3);
}

#[test]
fn every_call_gets_a_reply() {
    let work =
        Work { transfers: 5, outstanding: 2, frames: 2, ..Work::once(3, Call::TwoDimensional, 8 * KIB) };
    let outcome = served(&host(), &work);
    assert!(outcome.latencies.iter().all(|latencies| latencies.len() == 5), "{outcome:?}");
    assert!(outcome.busy <= outcome.elapsed);
    assert_eq!(outcome, served(&host(), &work));
}

#[test]
fn calls_overlap_on_the_device() {
    let host = Host { switch: 0, ..host() };
    let outcome = served(&host, &Work::once(4, Call::Simple, 1024 * KIB));
    let waited: u64 = outcome.latencies.iter().flatten().sum();
    assert!(waited > 3 * outcome.elapsed, "all four are in flight most of the time: {outcome:?}");
}

#[test]
fn register_accesses_cost_driver_time() {
    let host = Host { interrupt: 0, ..host().direct() };
    let dearer = Host { access: 2 * host.access, ..host.clone() };
    let of = |host: &Host| served(host, &Work::once(1, Call::Simple, 4 * KIB)).busy;
    assert!(of(&host) > 10 * host.access, "configuring takes more than ten accesses");
    assert_eq!(of(&dearer), 2 * of(&host));
}

#[test]
fn every_call_moves_its_frames() {
    let direct = host().direct();
    let of = |call| served(&direct, &Work { frames: 4, ..Work::once(1, call, 256 * KIB) }).elapsed;
    let copy = of(Call::Simple);
    for call in [Call::TwoDimensional, Call::Transparent] {
        assert!((0.95..1.05).contains(&(of(call) as f64 / copy as f64)), "{call:?}");
    }
    assert!(of(Call::Fill) < copy, "a fill reads nothing");
    assert!(of(Call::ScatterGather) > 3 * copy, "four frames");
}

#[test]
fn a_list_needs_one_interrupt() {
    let work = Work { frames: 8, ..Work::once(1, Call::ScatterGather, 4 * KIB) };
    let dear = |interrupt| Host { interrupt, ..host().direct() };
    let added = |serve: fn(&Host, &DeviceTimes, &Work) -> Result<Outcome, ServiceError>| {
        let of = |interrupt| serve(&dear(interrupt), &board().device, &work).expect("fits").elapsed;
        (of(1_000_000_000) - of(0)) / 1_000_000_000
    };
    assert_eq!((added(serve), added(serve_by_parts)), (1, 8));
}

#[test]
fn a_stalled_device_is_an_error() {
    let host = host();
    let work = Work::once(1, Call::Simple, 4 * KIB);
    let model = Sdma::new(board().device.config, Dram::new(board().device.memory, Blank::default()));
    let service = Service::new(model, 1, Service::<Memory>::patient(64)).expect("resets");
    service.with_device(|device| device.faults().lose_interrupts(1));
    let stalled = Core::new(&host, service, &work).expect("fits").run();
    assert_eq!(stalled, Err(ServiceError::Stalled { waiting: 1 }));
}

#[test]
fn calls_in_turn_do_not_overlap() {
    let at_once = Work { transfers: 4, outstanding: 4, ..Work::once(1, Call::Simple, 1024 * KIB) };
    let host = Host { switch: 0, ..host() };
    let [at_once, in_turn] = [false, true].map(|in_turn| served(&host, &Work { in_turn, ..at_once }));
    let longest = |outcome: &Outcome| outcome.latencies[0].iter().copied().max().expect("four");
    assert_eq!(in_turn.latencies[0].len(), 4);
    let first = in_turn.latencies[0][0];
    assert!(longest(&in_turn) > 7 * first / 2, "the last waits for three others: {in_turn:?}");
    assert!(at_once.latencies[0][0] > 2 * first, "all four share the device: {at_once:?}");
}
