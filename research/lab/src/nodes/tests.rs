//! The rules are those of the link's source, and each statement of docs/remote.md about what breaks first is one that a change moves.

use super::connections::Storm;
use super::fan_in::Found;
use super::limits::{Of, used};
use super::lines::{Variant, readers_of_one, revoked};
use crate::parameters::Parameters;

fn parameters() -> Parameters {
    Parameters::parse(include_str!("../../parameters/nodes.toml")).expect("well formed")
}

/// The text of a constant in a source file: what stands between `=` and `;`.
fn constant<'a>(source: &'a str, name: &str) -> &'a str {
    let (_, rest) = source.split_once(&format!("const {name}:")).expect("the link has this constant");
    let (_, value) = rest.split_once('=').expect("a constant has a value");
    value.split(';').next().expect("split gives one part").trim()
}

#[test]
fn limits_are_those_of_the_links_source() {
    let message = include_str!("../../../../engines/link/src/message.rs");
    let owner = include_str!("../../../../engines/link/src/owner.rs");
    let requests = include_str!("../../../../engines/link/src/requests.rs");
    let connections = include_str!("../../../../engines/link/src/connections.rs");
    let config = include_str!("../../../../engines/link/src/config.rs");
    let unit = include_str!("../../../../packaging/link/memferry-link.service");
    let parameters = parameters();
    let value = |name: &str| parameters.get(name).expect("listed").to_string();
    assert_eq!((constant(message, "CHUNK_BYTES"), value("chunk").as_str()), ("256 << 10", "262144"));
    for (source, name, parameter) in [
        (message, "WINDOW", "window"),
        (owner, "SLOTS", "slots"),
        (owner, "DROPS", "drops"),
        (owner, "MAX_ATTACHMENTS", "attachments"),
        (requests, "AHEAD", "ahead"),
        (config, "TIMEOUT_MS", "timeout"),
    ] {
        assert_eq!(constant(source, name), value(parameter), "{name}");
    }
    assert_eq!(constant(connections, "MAX_HANDSHAKES"), format!("({}, 4)", value("handshakes")));
    let pauses = format!("(Duration::from_millis({}), Duration::from_secs(2))", value("first-pause"));
    assert_eq!((constant(connections, "PAUSES"), value("last-pause")), (pauses.as_str(), "2000".to_owned()));
    assert!(unit.contains(&format!("\nLimitNOFILE={}\n", value("descriptors"))));
    assert!(!unit.contains("TasksMax"), "the parameter `threads` is its default");
}

/// The rules that this study found wanting, as they are since.
#[test]
fn turns_of_the_link_begin_behind_the_last_peer() {
    let node = include_str!("../../../../engines/link/src/node.rs");
    let serve = node.split_once("pub(crate) fn serve").expect("there").1;
    let begun = serve.split_once("owner.start(").expect("there").0;
    assert!(begun.contains("self.turns.run("), "`by_name` may be the rule now");
    let turns = include_str!("../../../../engines/link/src/turns.rs");
    assert!(turns.contains("self.accessing.range((Excluded(last), Unbounded))"), "as above");
    // No look at all peers for a message.
    let links = include_str!("../../../../engines/link/src/links.rs");
    for found in ["self.connections.get(&connection)", "self.senders.get(&key)"] {
        assert!(links.contains(found), "`searches` may be the rule now: no {found}");
    }
}

const SEED: u64 = 1;

const AS_IS: Variant = Variant {
    of: None,
    by_name: false,
    timeout: None,
    ahead: None,
    wire: None,
    copies: None,
    fresh: false,
    searches: false,
    requests: None,
};
/// As it was: from the first peer in each turn.
const BY_NAME: Variant = Variant { by_name: true, ..AS_IS };
const SLOW_WIRE: Variant = Variant { wire: Some(10.0), ..AS_IS };

fn found(variant: Variant, readers: usize) -> Found {
    readers_of_one(&parameters(), &variant, readers, SEED).expect("listed")
}

#[test]
fn the_order_of_names_cut_readers_off_first() {
    let by_name = Variant { searches: true, ..BY_NAME };
    assert_eq!(found(by_name, 200).cut_off, 0);
    assert!(found(by_name, 500).cut_off > 0);
    // Nothing but the order is different.
    assert!(found(BY_NAME, 500).cut_off > 0);
    for readers in [500, 2000] {
        assert_eq!(found(AS_IS, readers).cut_off, 0, "{readers}");
    }
    let fresh = Variant { fresh: true, ..AS_IS };
    assert!(found(Variant { by_name: true, ..fresh }, 100).cut_off > 0);
    assert_eq!(found(fresh, 100).cut_off, 0);
}

#[test]
fn the_time_limit_of_an_access_breaks_first() {
    assert_eq!(found(AS_IS, 2000).cut_off, 0);
    assert_eq!(found(AS_IS, 5000).cut_off, 5000);
    for eased in [Variant { timeout: Some(6000.0), ..AS_IS }, Variant { ahead: Some(2), ..AS_IS }] {
        assert_eq!(found(eased, 5000).cut_off, 0, "{eased:?}");
    }
}

#[test]
fn on_a_slow_wire_the_order_does_not_matter() {
    assert_eq!(found(SLOW_WIRE, 500).cut_off, 0);
    assert!(found(SLOW_WIRE, 1000).cut_off > 0);
    assert!(found(Variant { by_name: true, ..SLOW_WIRE }, 1000).cut_off > 0);
    assert_eq!(found(Variant { timeout: Some(6000.0), ..SLOW_WIRE }, 1000).cut_off, 0);
}

#[test]
fn held_answers_are_the_readers_credit() {
    let mib = |variant, readers| found(variant, readers).memory >> 20;
    for (readers, accesses, variant) in [
        (200, 8, SLOW_WIRE),
        (500, 8, SLOW_WIRE),
        (100, 32, Variant { requests: Some(4), ..SLOW_WIRE }),
        (200, 2, Variant { ahead: Some(2), ..SLOW_WIRE }),
    ] {
        let credit = readers as u64 * accesses / 4;
        let held = mib(variant, readers);
        assert!(held <= credit && held > credit * 9 / 10, "{held} of {credit} MiB, {readers} readers");
    }
    // The fast wire waits for the owner's thread: what is held are the slots.
    assert_eq!(mib(AS_IS, 500), 8);
}

#[test]
fn looks_at_all_peers_stopped_ten_thousand() {
    let rate = |variant| found(variant, 10_000).useful;
    let with_looks = rate(Variant { searches: true, ..AS_IS });
    let with_index = rate(AS_IS);
    assert!(with_looks < with_index / 10, "{with_looks} chunks, {with_index} with an index");
}

#[test]
fn a_revocation_answers_whatever_the_readers_do() {
    let parameters = parameters();
    let after =
        |parameters: &Parameters, readers| revoked(parameters, &AS_IS, readers, SEED).expect("listed");
    let few = after(&parameters, 10);
    let many = after(&parameters, 2000);
    assert!(few.answered.abs_diff(many.answered) < 20_000, "{few:?} {many:?}");
    assert!(many.renewed > 10 * few.renewed && many.given_back > 100 * few.given_back);
    // What grows are the calls of the service, one for each grant.
    let cheaper = after(&parameters.scaled("call", 0.25).expect("listed"), 2000);
    assert!(cheaper.renewed < many.renewed * 3 / 4, "{cheaper:?} {many:?}");
}

#[test]
fn handshakes_matter_if_they_are_slow() {
    let parameters = parameters();
    let seconds = |parameters: &Parameters, admitted: usize| {
        let mut storm = Storm::new(parameters).expect("listed");
        storm.admitted = admitted;
        storm.last_connected(1000, SEED) as f64 / 1e9
    };
    let as_it_is = seconds(&parameters, 16);
    assert!(as_it_is < 2.1, "{as_it_is} s");
    let slow = parameters.with("handshake", 100.0).expect("listed");
    assert!(seconds(&slow, 16) > 2.0 * seconds(&slow, 64), "{} s", seconds(&slow, 16));
}

#[test]
fn limits_are_reached_in_this_order() {
    let parameters = parameters();
    let reached =
        |of| (1..=10_000).find(|peers| used(&parameters, of, f64::from(*peers)).expect("listed") > 100.0);
    let order = [Of::Descriptors, Of::Grants, Of::Memory, Of::Threads, Of::Time].map(reached);
    assert_eq!(order, [Some(820), Some(1001), Some(1561), Some(2458), Some(3606)]);
}
