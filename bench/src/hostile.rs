//! Group `hostile`: what a client waits beside attackers of another user, and whether the service ends on SIGTERM and SIGKILL.
//!
//! ```text
//! for one worker and for two:
//!   alone, honest   the victim's latencies without others, and beside a client that copies 1 MiB again and again
//!   each attack     service 1: latencies beside the attack ─► SIGTERM, still attacked
//!                   service 2, at the same path: attacked ─► SIGKILL ─► service 3 answers
//! ```
//!
//! The victim copies 4 KiB every 2 ms, then allocates and frees a frame of 64 KiB every 5 ms. Service, victim and attacker are
//! processes of three users, so this needs root. Controls are rows without targets: the same load on the kernel without the service.
//! Attackers and the honest client run at nice 19, because the scheduler divides CPUs between threads, not between users. Nothing is
//! waited for without a deadline, and a deadline that passes is a row that misses its target.

mod rows;
pub(crate) mod service;

use std::time::{Duration, Instant};

use memferry_attackers::{ATTACKS, Attack, CONTROLS, Connection, Failed, Started, Task, Users, Victim};
use rustix::process::Signal;

use crate::BenchError;
use crate::hostile::rows::{Beside, Figure, Gone};
use crate::hostile::service::Service;
use crate::rows::Row;
use crate::run::Run;

/// Parts by the number of workers. The attacks are parts, too.
const WORKERS: [(&str, u32); 2] = [("one-worker", 1), ("two-workers", 2)];

/// Time that a started attack gets before the victim is measured.
const RAMP: Duration = Duration::from_millis(200);

/// Time in which another service must be able to start.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(2);

/// Durations of the victim's phases.
struct Times {
    copy: Duration,
    allocate: Duration,
}

/// Measures the selected attacks.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let names =
        WORKERS.iter().map(|(name, _)| *name).chain(ATTACKS.iter().chain(CONTROLS).map(|attack| attack.name));
    run.refuse_unknown(names)?;
    let users = match Users::available() {
        Ok(users) => users,
        Err(reason) => return Ok(vec![Row::not_measured("hostile", reason)]),
    };
    // Without a selected attack, all are; likewise the numbers of workers.
    let mut attacks: Vec<&Attack> =
        ATTACKS.iter().chain(CONTROLS).filter(|attack| run.wants(attack.name)).collect();
    if attacks.is_empty() {
        attacks = ATTACKS.iter().chain(CONTROLS).collect();
    }
    let mut workers: Vec<_> = WORKERS.iter().filter(|(name, _)| run.wants(name)).collect();
    if workers.is_empty() {
        workers = WORKERS.iter().collect();
    }
    let (copy, allocate) = if run.quick() { (300, 200) } else { (1200, 800) };
    let times = Times { copy: Duration::from_millis(copy), allocate: Duration::from_millis(allocate) };
    let mut rows = Vec::new();
    for (part, workers) in workers {
        let bench = Bench { run, users, workers: *workers, times: &times };
        run.part(part, attacks.len());
        rows.extend(bench.rows(&attacks)?);
    }
    Ok(rows)
}

/// The measurements with one number of workers.
struct Bench<'a> {
    run: &'a Run,
    users: Users,
    workers: u32,
    times: &'a Times,
}

impl Bench<'_> {
    fn rows(&self, attacks: &[&Attack]) -> Result<Vec<Row>, BenchError> {
        let alone = self.without_attack(false)?;
        let honest = self.without_attack(true)?;
        let mut rows = rows::baseline(self.workers, "alone", &alone);
        rows.extend(rows::baseline(self.workers, "honest", &honest));
        // Beside an honest client the worker is always awake, so the median may be smaller than alone.
        let p50 = |beside: &Beside| beside.copy.as_ref().map_or(f64::NAN, |figures| figures.p50);
        let usual_p50 = p50(&alone).max(p50(&honest));
        for attack in attacks {
            match self.attacked(attack)? {
                Ok(beside) if CONTROLS.iter().any(|control| control.name == attack.name) => {
                    rows.extend(rows::baseline(self.workers, attack.name, &beside));
                }
                Ok(beside) => rows.extend(rows::of_attack(self.workers, attack.name, &beside, usual_p50)),
                Err(reason) => rows.push(rows::impossible(self.workers, attack.name, &reason)),
            }
            self.run.round_done();
        }
        Ok(rows)
    }

    fn without_attack(&self, honest: bool) -> Result<Beside, BenchError> {
        let place = service::Place::new(self.run, self.users)?;
        let service = Service::start(&place, self.workers)?;
        let mut victim = self.victim(&service)?;
        let beside = match honest {
            false => None,
            true => match memferry_attackers::start_honest(&[], service.socket(), self.users.attacker) {
                Ok(Started::Running(player)) => Some(player),
                Ok(Started::Impossible(reason)) => return Err(reason.into()),
                Err(error) => return Err(error),
            },
        };
        std::thread::sleep(RAMP);
        let (copy, allocate) = self.latencies(&mut victim);
        drop(beside);
        Ok(Beside { copy, allocate, terminated: None, killed: None })
    }

    /// Measures one attack. The inner error says why it is impossible here.
    fn attacked(&self, attack: &Attack) -> Result<Result<Beside, String>, BenchError> {
        let place = service::Place::new(self.run, self.users)?;
        let mut service = Service::start(&place, self.workers)?;
        let mut victim = self.victim(&service)?;
        let watcher = Connection::open(service.socket()).map_err(|error| error as BenchError)?;
        let attacker = match self.attack(attack, &service)? {
            Started::Running(player) => player,
            Started::Impossible(reason) => return Ok(Err(reason)),
        };
        std::thread::sleep(RAMP);
        let (copy, allocate) = self.latencies(&mut victim);
        let terminated = service.ends(Signal::TERM, &watcher);
        drop(victim);
        // At the path of a service that may still hang there.
        let (terminated, second) = self.successor(&place, terminated);
        drop(attacker);
        drop(service);
        let killed = match second {
            Some(second) => self.killed(attack, &place, second)?,
            None => {
                let elsewhere = service::Place::new(self.run, self.users)?;
                let second = Service::start(&elsewhere, self.workers)?;
                self.killed(attack, &elsewhere, second)?
            }
        };
        Ok(Ok(Beside { copy, allocate, terminated: Some(terminated), killed }))
    }

    /// Starts another service at the path of one that has ended, while the attack goes on. The time until one starts
    /// counts as part of the end.
    fn successor(&self, place: &service::Place, gone: Gone) -> (Gone, Option<Service>) {
        let since = Instant::now();
        loop {
            let late = since.elapsed();
            let started = Service::start(place, self.workers).and_then(|service| {
                Connection::open(service.socket()).map_err(|error| error as BenchError)?;
                Ok(service)
            });
            match started {
                Ok(service) => return (gone.later_by(late), Some(service)),
                Err(error) if !gone.is_over() || late > SUCCESSOR_LIMIT => {
                    return (gone.without_successor(&error), None);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Kills the service while it is attacked. `None` if the attack did not begin.
    fn killed(
        &self,
        attack: &Attack,
        place: &service::Place,
        mut service: Service,
    ) -> Result<Option<Gone>, BenchError> {
        let Ok(watcher) = Connection::open(service.socket()) else {
            return Ok(Some(Gone::NoSuccessor("it refuses a client".to_owned())));
        };
        let Started::Running(_attacker) = self.attack(attack, &service)? else { return Ok(None) };
        std::thread::sleep(RAMP);
        let gone = service.ends(Signal::KILL, &watcher);
        Ok(Some(self.successor(place, gone).0))
    }

    fn victim(&self, service: &Service) -> Result<Victim, BenchError> {
        Victim::start(&[], service.socket(), Some(self.users.victim)).map_err(|error| error as BenchError)
    }

    fn attack(&self, attack: &Attack, service: &Service) -> Result<Started, BenchError> {
        let quick = self.run.quick();
        memferry_attackers::start_attack(&[], attack, service.socket(), self.users.attacker, quick)
            .map_err(|error| error as BenchError)
    }

    /// Latencies of the victim's copies, then of its allocations.
    fn latencies(&self, victim: &mut Victim) -> (Figure, Figure) {
        let text = |error: Failed| error.to_string();
        let copy = victim.work(Task::Copy, self.times.copy).map_err(text);
        if copy.as_ref().is_ok_and(|figures| figures.hung()) {
            return (copy, Err("the victim's copies hung".to_owned()));
        }
        let allocate = victim.work(Task::Allocate, self.times.allocate).map_err(text);
        (copy, allocate)
    }
}
