//! Copies through the service against two releases of UCX, by its own benchmark: as part `ucx` of group `service`.

use memferry::Client;

use super::{missing, subject, unpacked};
use crate::BenchError;
use crate::children::Service;
use crate::pair::Pair;
use crate::placement::Class;
use crate::rows::{Row, Subject, Target};
use crate::run::Run;
use crate::service::ucx::{NOT_INSTALLED, TESTS, Test, Ucx};

pub(super) const SECTION: &str = "ucx";
const ROUNDS: usize = 5;
/// Where sid's UCX is, below the folder of peers.
const NEWER: &str = "ucx/unpacking";

/// Both sides of each round of a test, until one failed.
type Sides = Result<Vec<(f64, f64)>, String>;

/// The peers that there are, with their names.
fn peers() -> Vec<(String, Ucx)> {
    let newer = unpacked(NEWER).map(|root| Ucx::unpacked(&root));
    let named =
        |ucx: Ucx| (format!("UCX {}", ucx.version().unwrap_or_else(|| "of unknown version".to_owned())), ucx);
    [Some(Ucx::of_the_system()), newer].into_iter().flatten().filter(Ucx::works).map(named).collect()
}

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part(SECTION, ROUNDS);
    let service = Service::start(run)?;
    let most = TESTS.iter().map(|test| test.bytes).max().unwrap_or(0);
    let mut pair = Pair::new(Client::connect(service.socket())?, most)?;
    let peers = peers();
    let mut measured: Vec<[Sides; TESTS.len()]> =
        peers.iter().map(|_| [const { Ok(Vec::new()) }; TESTS.len()]).collect();
    for _ in 0..rounds {
        for (index, test) in TESTS.iter().enumerate() {
            let ours = test.ours(&mut pair)?;
            for ((_, ucx), measured) in peers.iter().zip(&mut measured) {
                let Ok(sides) = &mut measured[index] else { continue };
                match test.theirs(ucx) {
                    Ok(theirs) => sides.push((ours, theirs)),
                    Err(error) => measured[index] = Err(format!("NOT RUN: {error}")),
                }
            }
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ((peer, _), measured) in peers.iter().zip(&measured) {
        rows.extend(TESTS.iter().zip(measured).map(|(test, sides)| row(test, peer, sides, class)));
    }
    if unpacked(NEWER).is_none() {
        rows.push(Row::not_compared(
            &about("messages", "UCX of Debian sid", class),
            &missing("sid's ucx-utils"),
        ));
    } else if peers.len() < 2 {
        rows.push(Row::not_compared(&about("messages", "UCX", class), &format!("NOT RUN: {NOT_INSTALLED}")));
    }
    Ok(rows)
}

fn about(what: &str, peer: &str, class: Class) -> Subject {
    subject(SECTION, what, peer, class)
}

fn row(test: &Test, peer: &str, sides: &Sides, class: Class) -> Row {
    let subject = about(&test.what(), peer, class);
    match sides {
        // Its claim is in the documents' terms: our time over theirs for a latency.
        Ok(sides) => Row::against(&subject, test.unit(), Target::AtLeast(test.least_gain()), sides),
        Err(reason) => Row::not_compared(&subject, reason),
    }
}
