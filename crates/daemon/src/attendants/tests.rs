//! Plays the control thread with real attendants.

use rustix::event::Timespec;

use super::*;
use crate::messages::ClientId;
use crate::testing::{is_readable, run_one_by_one, runs_alone, wait_readable};

const USER_A: u32 = 4_000_001;

struct Stage {
    attendants: Attendants,
    epoll: OwnedFd,
}

impl Stage {
    fn new() -> Self {
        assert!(runs_alone());
        let attendants = Attendants::start(Traces::default(), false).unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        Self { attendants, epoll }
    }

    fn need(&mut self, user: u32) -> Result<(), NoAttendant> {
        self.attendants.need(&self.epoll, user)
    }

    fn give_up(&mut self, user: u32) {
        self.attendants.give_up(&self.epoll, user);
    }

    /// Takes the next answer of the spawner.
    fn take_spawned(&mut self) {
        wait_readable(self.attendants.spawner.socket());
        self.attendants.spawned(&self.epoll).unwrap();
    }

    /// A descriptor of the process of the user's attendant.
    fn process(&self, user: u32) -> OwnedFd {
        let token = self.attendants.by_user[&user].process.unwrap();
        self.attendants.processes[&token].1.try_clone().unwrap()
    }

    /// Handles the ends of processes until `count` have ended.
    fn take_ends(&mut self, count: usize) {
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut ended = 0;
        while ended < count {
            let mut space = [std::mem::MaybeUninit::uninit(); 8];
            let (events, _) = epoll::wait(&self.epoll, &mut space, Some(&limit)).unwrap();
            assert!(!events.is_empty(), "{ended} of {count} processes ended");
            for token in events.iter().map(|event| event.data.u64()) {
                assert!(Attendants::is_process(token), "token {token:#x}");
                self.attendants.process_ended(&self.epoll, token);
                ended += 1;
            }
        }
    }
}

#[test]
fn one_by_one() {
    run_one_by_one("attendants::tests::");
}

#[test]
#[ignore = "one_by_one runs it"]
fn a_user_has_one_attendant() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.need(USER_A).unwrap();
    stage.take_spawned();
    assert_eq!(stage.attendants.processes.len(), 1);
    assert!(stage.attendants.coming.is_empty());
}

#[test]
#[ignore = "one_by_one runs it"]
fn attendants_that_do_not_end_count() {
    let mut stage = Stage::new();
    for _ in 0..MAX_PER_USER {
        stage.need(USER_A).unwrap();
        stage.take_spawned();
        stage.give_up(USER_A);
    }
    // Their ends were not seen yet.
    let refused = stage.need(USER_A).unwrap_err();
    assert!(refused.contains(&format!("{MAX_PER_USER} processes")), "{refused}");
    stage.need(USER_A + 1).unwrap();
    stage.take_ends(MAX_PER_USER);
    stage.need(USER_A).unwrap();
}

#[test]
#[ignore = "one_by_one runs it"]
fn attendants_on_their_way_count() {
    let mut stage = Stage::new();
    for _ in 0..MAX_PER_USER {
        stage.need(USER_A).unwrap();
        stage.give_up(USER_A);
    }
    stage.need(USER_A).unwrap_err();
    for _ in 0..MAX_PER_USER {
        stage.take_spawned();
    }
    // Some may have ended before the spawner could watch them.
    stage.take_ends(stage.attendants.processes.len());
    stage.need(USER_A).unwrap();
}

#[test]
#[ignore = "one_by_one runs it"]
fn a_late_answer_does_not_kill_the_successor() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.give_up(USER_A);
    stage.need(USER_A).unwrap();
    // The answer about the first one arrives when the second one serves.
    stage.take_spawned();
    assert!(stage.attendants.by_user[&USER_A].process.is_none());
    stage.take_spawned();
    let process = stage.process(USER_A);
    stage.take_ends(stage.attendants.processes.len() - 1);
    assert!(!is_readable(&process));
    assert!(rustix::process::pidfd_send_signal(&process, Signal::CONT).is_ok());
}

#[test]
#[ignore = "one_by_one runs it"]
fn an_attendant_that_is_given_up_is_killed() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.take_spawned();
    let process = stage.process(USER_A);
    // It cannot notice the end of its channel.
    rustix::process::pidfd_send_signal(&process, Signal::STOP).unwrap();
    stage.give_up(USER_A);
    wait_readable(&process);
    stage.take_ends(1);
    assert!(stage.attendants.processes.is_empty() && stage.attendants.by_user.is_empty());
}

#[test]
#[ignore = "one_by_one runs it"]
fn an_idle_attendant_is_kept_for_a_while() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.take_spawned();
    let process = stage.process(USER_A);
    assert!(stage.attendants.time_left().is_some(), "its first client may not come");
    stage.attendants.add_client(USER_A);
    stage.attendants.add_client(USER_A);
    stage.attendants.remove_client(USER_A);
    assert_eq!(stage.attendants.time_left(), None);
    stage.attendants.remove_client(USER_A);
    assert!(stage.attendants.time_left().is_some_and(|left| left <= KEPT));
    stage.attendants.let_go(&stage.epoll);
    assert!(stage.attendants.by_user.contains_key(&USER_A));
    let attendant = stage.attendants.by_user.get_mut(&USER_A).unwrap();
    attendant.idle_since = Instant::now().checked_sub(KEPT);
    stage.attendants.let_go(&stage.epoll);
    assert!(stage.attendants.by_user.is_empty());
    // It ends by itself.
    wait_readable(&process);
}

#[test]
#[ignore = "one_by_one runs it"]
fn a_client_ends_the_idle_time() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.attendants.add_client(USER_A);
    stage.attendants.remove_client(USER_A);
    stage.attendants.add_client(USER_A);
    assert_eq!(stage.attendants.time_left(), None);
}

#[test]
#[ignore = "one_by_one runs it"]
fn the_attendant_of_rejected_clients_stays() {
    let mut stage = Stage::new();
    stage.need(NO_USER).unwrap();
    stage.attendants.add_client(NO_USER);
    stage.attendants.remove_client(NO_USER);
    assert_eq!(stage.attendants.time_left(), None);
}

#[test]
#[ignore = "one_by_one runs it"]
fn a_stopped_attendant_does_not_block_the_sender() {
    let mut stage = Stage::new();
    stage.need(USER_A).unwrap();
    stage.take_spawned();
    let process = stage.process(USER_A);
    rustix::process::pidfd_send_signal(&process, Signal::STOP).unwrap();
    assert!(stage.attendants.keeps_up(USER_A) && !stage.attendants.keeps_up(USER_A + 1));
    let message = ToAttendant::Release { client: ClientId(1), queues: vec![1; 2048] };
    let while_it_keeps_up = (0..1 << 16)
        .take_while(|_| stage.attendants.keeps_up(USER_A) && stage.attendants.send(USER_A, &message, &[]));
    assert!((1..1 << 16).contains(&while_it_keeps_up.count()));
    assert!(stage.attendants.send(USER_A, &message, &[]), "no room is left for other messages");
    let message = ToAttendant::TurnAway { farewell: vec![0; 16 << 10] };
    let sent = (0..1 << 16).take_while(|_| stage.attendants.send(USER_A, &message, &[])).count();
    assert!(sent < 1 << 16);
    stage.give_up(USER_A);
    stage.take_ends(1);
}
