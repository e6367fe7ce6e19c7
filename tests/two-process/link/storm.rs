//! Revocations in mid-flight, many of them, and networks that lose, delay or pass in one direction only.

use std::time::{Duration, Instant};

use memferry::{Client, Failure, Frame, PeerReason, Queue, Ticket, copy};
use memferry_conformance::noise;
use rustix::process::{Signal, kill_process};

use super::networks::Networks;
use super::{
    BOTH, MIB, Node, STALL_MS, Way, accept, connected, contents, failure, grant, nodes_with, proven_host,
    refused, two_nodes,
};

/// Bytes for each request: three accesses and a bit.
const PART: usize = 800 << 10;
/// Requests that run when a grant is revoked.
const PARTS: usize = 3;

/// A sequence of numbers that a run repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// A request, and what may become of it.
struct Asked {
    ticket: Ticket,
    writes: bool,
    /// Its range in both frames.
    range: std::ops::Range<usize>,
}

/// The memory of both sides.
struct Bed<'a> {
    owner: Client,
    theirs: Frame,
    own: Frame,
    queue: Queue,
    random: Random,
    nodes: [&'a Node; 2],
    client: Client,
    /// How long a batch takes that is not interrupted.
    usual: Duration,
}

impl Bed<'_> {
    /// Submits a request for each part.
    fn submit(&mut self, remote: &Frame) -> Vec<Asked> {
        let mut asked = Vec::new();
        for part in 0..PARTS {
            let begin = part * PART + self.random.below(PART / 2);
            let range = begin..begin + 1 + self.random.below((part + 1) * PART - begin);
            let writes = self.random.below(2) == 0;
            let there = remote.slice(range.start as u64..range.end as u64);
            let here = self.own.slice(range.start as u64..range.end as u64);
            let transfer = if writes { copy(here, there) } else { copy(there, here) };
            asked.push(Asked { ticket: self.queue.submit(transfer).unwrap(), writes, range });
        }
        asked
    }

    /// One grant, requests that use it, and its revocation. Returns how many requests that interrupted.
    fn round(&mut self, seed: u64, is_revoked_late: bool) -> usize {
        let before = [noise(PARTS * PART, 2 * seed), noise(PARTS * PART, 2 * seed + 1)];
        self.theirs.write(0, &before[0]).unwrap();
        self.own.write(0, &before[1]).unwrap();
        let (granted, token) = grant(self.nodes[0], &self.theirs, &self.owner, BOTH, self.nodes[1]);
        let remote = accept(&self.client, token);
        let begin = Instant::now();
        let asked = self.submit(&remote);
        if is_revoked_late {
            for one in &asked {
                self.queue.wait(one.ticket).unwrap();
            }
            self.usual = begin.elapsed();
            granted.revoke().unwrap();
            return 0;
        }
        let pause = self.usual.mul_f64(self.random.below(1000) as f64 / 800.0);
        while begin.elapsed() < pause {
            std::hint::spin_loop();
        }
        granted.revoke().unwrap();
        let answered = contents(&self.theirs);
        let mut ends = Vec::new();
        for one in &asked {
            ends.push(match self.queue.wait(one.ticket) {
                Ok(done) => {
                    assert_eq!(done.bytes_done, one.range.len() as u64);
                    (true, one.range.len())
                }
                Err(error) => {
                    let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
                    assert!(reasons.contains(&Some(error.failure)), "round {seed}: {error}");
                    (false, error.bytes_done as usize)
                }
            });
        }
        assert!(contents(&self.theirs) == answered, "round {seed}: written after the answer");
        self.check(seed, &before, &answered, &asked, &ends);
        let late = failure(self.queue.run(copy(remote.slice(..8), self.own.slice(..8))));
        let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
        assert!(reasons.contains(&late), "round {seed}: {late:?}");
        ends.iter().filter(|(is_whole, _)| !is_whole).count()
    }

    /// Each byte is the one before or the one that was copied; those that are done are copied, and no other ones are touched.
    fn check(
        &self,
        seed: u64,
        [theirs, own]: &[Vec<u8>; 2],
        theirs_now: &[u8],
        asked: &[Asked],
        ends: &[(bool, usize)],
    ) {
        let own_now = contents(&self.own);
        let mut touched = [vec![false; theirs.len()], vec![false; own.len()]];
        for (Asked { writes, range, .. }, (_, done)) in asked.iter().zip(ends) {
            let (from, old, now, side) =
                if *writes { (own, theirs, theirs_now, 0) } else { (theirs, own, &own_now[..], 1) };
            touched[side][range.clone()].fill(true);
            let copied = range.start..range.start + done;
            assert!(
                now[copied.clone()] == from[copied],
                "round {seed}: {done} bytes done, and others are there"
            );
            for at in range.clone() {
                assert!(now[at] == old[at] || now[at] == from[at], "round {seed}: byte {at} is of nobody");
            }
        }
        for (now, before, touched) in [(theirs_now, theirs, &touched[0]), (&own_now, own, &touched[1])] {
            let others = touched.iter().zip(now.iter().zip(before)).filter(|(touched, _)| !**touched);
            assert!(others.into_iter().all(|(_, (now, before))| now == before), "round {seed}: bytes beside");
        }
    }
}

/// So many revocations, each while requests run that use the grant, over each transport in turn.
#[test]
fn revocations_in_mid_flight_leave_every_byte_right() {
    let wanted =
        std::env::var("MEMFERRY_LINK_REVOCATIONS").map_or(120, |text| text.parse().expect("a number"));
    let ways = Way::all();
    let share = usize::div_ceil(wanted, ways.len());
    for way in ways {
        let (alpha, beta) = two_nodes(way);
        let owner = alpha.client();
        let theirs = owner.frame((PARTS * PART) as u64).alloc().unwrap();
        let client = beta.client();
        let mut queue = client.queue(16).unwrap();
        let (_first, token) = grant(&alpha, &theirs, &owner, BOTH, &beta);
        let own = proven_host(
            (&client, &mut queue),
            &accept(&client, token),
            (PARTS * PART) as u64,
            [&alpha, &beta],
        );
        let nodes = [&alpha, &beta];
        let random = Random(7 + way as u64);
        let usual = Duration::ZERO;
        let mut bed = Bed { owner, theirs, own, queue, random, nodes, client, usual };
        let mut hits = 0;
        let mut rounds = 0;
        while hits < share {
            // The machine's speed changes.
            let interrupted = bed.round(rounds, rounds % 50 == 0);
            hits += usize::from(interrupted > 0);
            rounds += 1;
            assert!(rounds < 20 * share as u64 + 100, "{way:?}: {hits} of {rounds} were in mid-flight");
        }
        println!("{way:?}: {hits} revocations of {rounds} were in mid-flight");
    }
}

/// Two nodes of the three in networks of their own, with short time limits.
fn far_apart(networks: &Networks, way: Way) -> Vec<Node> {
    let place = |number: usize| {
        (["alpha", "beta"][number], ["10.77.0.10", "10.77.0.11"][number], networks.command(number))
    };
    nodes_with(way, &[place(0), place(1)], 1500, STALL_MS)
}

/// Frames of both nodes, and a queue of beta's.
fn frames(all: &[Node]) -> (Frame, memferry::Grant, Frame, Frame, Queue) {
    let owner = all[0].client();
    let theirs = owner.frame(4 * MIB).alloc().unwrap();
    theirs.write(0, &noise(4 << 20, 3)).unwrap();
    let (granted, token) = grant(&all[0], &theirs, &owner, BOTH, &all[1]);
    let client = all[1].client();
    let remote = accept(&client, token);
    let mut queue = client.queue(16).unwrap();
    let own = proven_host((&client, &mut queue), &remote, 4 * MIB, [&all[0], &all[1]]);
    (theirs, granted, remote, own, queue)
}

#[test]
fn a_network_that_passes_in_one_direction_only_is_a_lost_peer() {
    let Some(networks) = Networks::new() else { return };
    let ways = Way::all().into_iter().filter(|way| *way != Way::SharedMemory);
    for way in ways.map(|way| if way == Way::Tcp { Way::Network } else { way }) {
        let all = far_apart(&networks, way);
        let (theirs, _granted, remote, own, mut queue) = frames(&all);
        for (from, to) in [(0, 1), (1, 0)] {
            networks.mute(from, to);
            let since = Instant::now();
            // What was sent before may still be answered.
            let lost = loop {
                match failure(queue.run(copy(&remote, &own))) {
                    None if since.elapsed() < super::harness::SOON => {}
                    other => break other,
                }
            };
            let told = [all[0].told(), all[1].told()].concat();
            assert_eq!(lost, Some(Failure::PeerLost), "{way:?}: {from} is not heard by {to}\n{told}");
            networks.unmute(from, to);
            connected(&mut queue, &remote, &own, [&all[0], &all[1]]);
            own.write(0, &vec![0; 4 << 20]).unwrap();
            queue.run(copy(&remote, &own)).unwrap();
            assert!(contents(&own) == contents(&theirs), "{way:?}");
        }
    }
}

/// As behind a filter of packets: nobody answers to UCX, while the encrypted connection is there.
#[test]
fn nobody_waits_for_a_peer_that_ucx_does_not_reach() {
    let Some(networks) = Networks::new() else { return };
    if !Way::all().contains(&Way::Tcp) {
        return;
    }
    let names = ["alpha", "beta", "gamma"];
    let addresses = ["10.78.0.10", "10.78.0.11", "10.78.0.12"];
    let places = [0, 1, 2].map(|number| (names[number], addresses[number], networks.command(number)));
    let all = nodes_with(Way::Network, &places, 1500, STALL_MS);
    let [alpha, beta, gamma] = [&all[0], &all[1], &all[2]];
    networks.mute(1, 0);
    let client = beta.client();
    let mut queue = client.queue(16).unwrap();
    let frame_of = |node: &Node| {
        let owner = node.client();
        let theirs = owner.frame(MIB).alloc().unwrap();
        let (granted, token) = grant(node, &theirs, &owner, BOTH, beta);
        ((owner, theirs, granted), accept(&client, token))
    };
    let (_of_gamma, near) = frame_of(gamma);
    let (_of_alpha, far) = frame_of(alpha);
    let own = proven_host((&client, &mut queue), &near, MIB, [gamma, beta]);
    let engine = beta.engine();
    // It is lost until UCX rests, and others are served meanwhile.
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < 4 * super::harness::SOON, "{}", beta.told());
        let reached = queue.submit(copy(&far, &own)).unwrap();
        connected(&mut queue, &near, &own, [gamma, beta]);
        match queue.wait(reached) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.failure, Failure::PeerLost, "{}", beta.told()),
        }
    }
    assert!(beta.told().contains("UCX delivered nothing to or from alpha"), "{}", beta.told());
    assert_eq!(beta.engine(), engine, "{}", beta.told());
}

#[test]
fn a_network_that_loses_and_delays_changes_no_byte() {
    let Some(networks) = Networks::new() else { return };
    if let Err(why) = networks.disturb("delay 2ms 1ms loss 1%") {
        println!("skipped: this kernel has no netem: {why}");
        return;
    }
    let ways = Way::all().into_iter().filter(|way| *way != Way::SharedMemory);
    for way in ways.map(|way| if way == Way::Tcp { Way::Network } else { way }) {
        let all = far_apart(&networks, way);
        let (theirs, _granted, remote, own, mut queue) = frames(&all);
        for round in 0..5_u64 {
            let (from, to) = if round % 2 == 0 { (&theirs, &own) } else { (&own, &theirs) };
            from.write(0, &noise(4 << 20, round)).unwrap();
            let transfer = if round % 2 == 0 { copy(&remote, &own) } else { copy(&own, &remote) };
            queue.run(transfer).unwrap();
            assert!(contents(from) == contents(to), "{way:?}");
        }
    }
}

/// Instead of a network that delays, where the kernel has none: a process that stands still for less than the time limit.
#[test]
fn a_link_that_stands_still_for_a_moment_loses_nothing() {
    for way in Way::all() {
        let (alpha, beta) = two_nodes(way);
        let owner = alpha.client();
        let theirs = owner.frame(4 * MIB).alloc().unwrap();
        theirs.write(0, &noise(4 << 20, 9)).unwrap();
        let (_granted, token) = grant(&alpha, &theirs, &owner, BOTH, &beta);
        let client = beta.client();
        let mut queue = client.queue(16).unwrap();
        let remote = accept(&client, token);
        let own = proven_host((&client, &mut queue), &remote, 4 * MIB, [&alpha, &beta]);
        for engine in [alpha.engine(), beta.engine()] {
            own.write(0, &vec![0; 4 << 20]).unwrap();
            let tickets: Vec<_> = (0..8).map(|_| queue.submit(copy(&remote, &own)).unwrap()).collect();
            kill_process(engine, Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            kill_process(engine, Signal::CONT).unwrap();
            for ticket in tickets {
                queue.wait(ticket).unwrap();
            }
            assert!(contents(&own) == contents(&theirs), "{way:?}");
        }
    }
}
