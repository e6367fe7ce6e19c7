//! Attacks of another user, in their short forms: nothing of a victim is stuck or lost, and the service ends on SIGTERM.
//!
//! `./x bench hostile` measures the same attacks in full. These tests need root, for two users, and pass without a check otherwise. Those
//! that need FUSE pass without a check where `/dev/fuse` cannot be mounted.

mod harness;

use std::time::{Duration, Instant};

use harness::Service;
use memferry_attackers::{ATTACKS, Started, Task, Users, Victim};
use rustix::process::Signal;

/// Latency above which an operation counts as stuck, on a machine that runs other tests too.
const STUCK_MS: f64 = 5000.0;
/// Latency that grows with the attack, in its short form.
const DELAYED_MS: f64 = 500.0;
/// Turns in which it is measured. One may be delayed: after that the attacker rests for longer than they last.
const TURNS: usize = 3;
/// Time for running requests after SIGTERM, and for the end after that.
const GRACE: &str = "--grace-ms=1000";
const END_LIMIT: Duration = Duration::from_secs(5);
/// Limit of the service's descriptors. Like a service of a distribution it has no privilege, and so Linux's limits hold for it.
const DESCRIPTORS: u64 = 2048;

/// Runs the role of a child process. Without one, this test does nothing.
#[test]
fn role() {
    if let Some(code) = memferry_attackers::play_role(&role_arguments()) {
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

fn role_arguments() -> Vec<String> {
    ["role", "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec()
}

/// Sockets of a process and those below it.
fn sockets_of(process: &str) -> usize {
    let entries = |folder: &str| {
        std::fs::read_dir(format!("/proc/{process}/{folder}")).into_iter().flatten().filter_map(Result::ok)
    };
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let children = entries("task").map(|task| std::fs::read_to_string(task.path().join("children")));
    let below: Vec<_> = children.map(Result::unwrap_or_default).collect();
    let below = below.iter().flat_map(|children| children.split_whitespace()).map(sockets_of);
    entries("fd").filter(is_socket).count() + below.sum::<usize>()
}

fn survives(name: &str) {
    let attack = ATTACKS.iter().find(|attack| attack.name == name).expect("an attack of the list");
    let users = match Users::available() {
        Ok(users) => users,
        Err(reason) => return println!("{name}: not tested: {reason}"),
    };
    let mut service = Service::start_as(users.service, DESCRIPTORS, &["--mode=666", GRACE]);
    let mut victim = Victim::start(&role_arguments(), &service.socket, Some(users.victim)).unwrap();
    let started =
        memferry_attackers::start_attack(&role_arguments(), attack, &service.socket, users.attacker, true);
    let attacker = match started.unwrap() {
        Started::Running(player) => player,
        Started::Impossible(reason) => return println!("{name}: not tested: {reason}"),
    };
    std::thread::sleep(Duration::from_millis(100));
    for task in [Task::Copy, Task::Allocate] {
        // This one holds nothing for ever, so it would not count as stuck with as few mappings as a test may make.
        let (turns, limit) = if name == "slow-maps" { (TURNS, DELAYED_MS) } else { (1, STUCK_MS) };
        let works = (0..turns).any(|_| {
            let figures = victim.work(task, Duration::from_millis(300)).unwrap();
            println!("{name}: {task:?}: {figures:?}");
            !figures.hung() && figures.max < limit
        });
        assert!(works, "{name}: {task:?} is stuck");
    }
    if name == "unread-bytes" {
        let sockets = sockets_of(&service.child.id().to_string());
        println!("{name}: {sockets} sockets");
        assert!((16..100).contains(&sockets), "{sockets} sockets of ended sessions are full of answers");
    }
    if name == "turned-away" {
        // The victim has two frames, and the attacker none.
        let frames = || service.proc("maps").matches("memferry-frame").count();
        harness::wait_until("freed frames are unmapped", || frames() <= 2);
    }
    let told = Instant::now();
    service.signal(Signal::TERM);
    while service.child.try_wait().unwrap().is_none() {
        assert!(told.elapsed() < END_LIMIT, "{name}: the service does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{name}: ended after {:?}", told.elapsed());
    drop(attacker);
}

macro_rules! attacks {
    ($($test:ident)*) => {
        $(
            #[test]
            fn $test() {
                survives(&stringify!($test).replace('_', "-"));
            }
        )*

        #[test]
        fn every_attack_is_tested() {
            let tested = [$(stringify!($test).replace('_', "-")),*];
            let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name.to_owned()).collect();
            assert_eq!(names, tested);
        }
    };
}

attacks! {
    seal_writers seal_fuse_writer queue_maps queue_holes queue_fuse_writer completion_watches doorbell_watches
    long_lists request_flood malformed_flood endless_work cancel_storm grant_trees register_storm status_flood
    connect_flood session_quota lingering_sockets fuse_files fuse_pipes no_reads pipelined_commands sleepers
    descriptors_in_flight fork_storm page_moves doorbell_flood queue_storm progress_watchers greed failing_chains
    policy_flood ring_garbage unread_answers unread_bytes last_closes slow_maps turned_away nested_epolls
}
