//! Tests of the service under clients.

use super::*;
use crate::parameters::Parameters;

fn host() -> Host {
    let parameters = Parameters::parse(include_str!("../../parameters/wicki.toml")).expect("checked");
    Host::new(&parameters).expect("complete")
}

fn served(host: &Host, work: &Work) -> Outcome {
    serve(host, Config::default(), work).expect("fits the board")
}

#[test]
fn show() {
    let host = host();
    for call in [Call::Simple, Call::TwoDimensional] {
        for power in [12, 16, 20, 25] {
            let length = 1u64 << power;
            let start = std::time::Instant::now();
            let direct = served(&host.direct(), &Work::once(1, call, length)).mean_latency() / 1e6;
            let through = served(&host, &Work::once(1, call, length)).mean_latency() / 1e6;
            println!("{call:?} {length}: direct {direct:.1} us, service {through:.1} us, {:?}", start.elapsed());
        }
    }
    for power in [12, 20, 22] {
        for clients in 1..=6 {
            let length = 1u64 << power;
            let start = std::time::Instant::now();
            let outcome = served(&host, &Work::once(clients, Call::Simple, length));
            let sum: f64 = outcome.latencies.iter().flatten().map(|l| length as f64 / 1.048576 / (*l as f64 / 1e6)).sum();
            println!("{length} x {clients}: mean {:.1} us, aggregate {sum:.1} MiB/s, elapsed {} {:?}", outcome.mean_latency() / 1e6, outcome.elapsed/1000000, start.elapsed());
        }
    }
}
