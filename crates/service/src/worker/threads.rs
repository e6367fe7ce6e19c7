//! The workers' threads: started one after the other, each with its CPU and scheduling class, and stopped together.
//!
//! ```text
//! start ─► thread: pin to a CPU ─ scheduling class ─ report ─► Worker::run        stop ─► Stop to all ─► join
//! ```
//!
//! The service decides which queue pairs a worker gets.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use memferry_clock::Clock;
use memferry_cpu::CpuEngine;
use memferry_path::{Path, PathLimits, Policy};
use memferry_shm::mapping::Mapping;

use super::{Spins, Worker};
use crate::MonotonicClock;
use crate::config::{ServiceConfig, cpus};
use crate::module::Registrar;
use crate::pinning::{Place, keep_on};
use crate::protocol::{LatencyStatus, ModuleStatus};
use crate::shared::{Clients, Shared, WorkerCommand, WorkerHandle};
use crate::start_error::StartError;
use crate::worker_engine::{NewFrames, WorkerEngine};

/// All workers of a service.
#[derive(Default)]
pub(crate) struct Workers {
    handles: Vec<Arc<WorkerHandle>>,
    threads: Vec<JoinHandle<()>>,
    registrar: Option<Registrar>,
}

/// Whether a worker's thread could be scheduled as configured.
type ThreadStart = std::io::Result<()>;

impl Workers {
    /// Starts a worker for each handle.
    ///
    /// Waits for each thread, because its set-up needs system calls that the sandbox forbids later.
    pub(crate) fn start(
        config: &ServiceConfig,
        clients: Clients,
        shared: &Arc<Shared>,
        handles: impl Iterator<Item = ((Arc<WorkerHandle>, Box<dyn Policy>), Option<Place>)>,
    ) -> Result<Self, StartError> {
        let registrar = config.module.as_deref().map(Registrar::start).transpose()?;
        let mut workers = Self { registrar, ..Self::default() };
        let (reporter, reports) = channel();
        for (handle, place) in handles {
            if let Err(error) =
                workers.start_one((config, clients), shared, handle, place, (&reporter, &reports))
            {
                workers.stop(Duration::ZERO, shared);
                return Err(error);
            }
        }
        Ok(workers)
    }

    fn start_one(
        &mut self,
        (config, clients): (&ServiceConfig, Clients),
        shared: &Arc<Shared>,
        (handle, policy): (Arc<WorkerHandle>, Box<dyn Policy>),
        place: Option<Place>,
        (reporter, reports): (&Sender<ThreadStart>, &Receiver<ThreadStart>),
    ) -> Result<(), StartError> {
        let failed = |step| move |source: std::io::Error| StartError::System { step, source };
        let number = self.handles.len();
        let engine = CpuEngine::new(config.channels_per_worker, config.chunk_bytes)
            .for_other_cores()
            .with_team(Arc::clone(&shared.team));
        let (engine, offload) = match &self.registrar {
            None => (WorkerEngine::new(engine), None),
            Some(registrar) => {
                let (engine, offload) = registrar.worker_engine(engine, &handle)?;
                (engine, Some(offload))
            }
        };
        let engine = engine.with_new_frames(Arc::clone(&handle) as Arc<dyn NewFrames>);
        let limits = PathLimits { waiting_per_user: config.quotas.waiting as usize };
        let path = Path::new(engine, policy, limits);
        let spins = Spins::of(number, cpus() as usize);
        let worker = Worker::new(
            number,
            Arc::clone(&handle),
            Arc::clone(shared),
            path,
            offload,
            (spins, clients, config.chunk_bytes),
        )
        .ok_or_else(|| {
            failed("a worker's view of the capabilities")(std::io::ErrorKind::OutOfMemory.into())
        })?;
        let reporter = reporter.clone();
        let class = config.worker_class;
        let thread = std::thread::Builder::new().name(format!("memferry-worker-{number}")).spawn(move || {
            // Fails if the CPU is not allowed any more: then the worker runs anywhere.
            let _ = place.map(|place| keep_on(place.cpu));
            let scheduled = class.apply();
            let runs = scheduled.is_ok();
            let _ = reporter.send(scheduled);
            if runs {
                worker.run();
            }
        });
        self.threads.push(thread.map_err(failed("starting a worker"))?);
        self.handles.push(handle);
        match reports.recv() {
            Ok(Err(source)) => Err(StartError::Class { class: config.worker_class.name(), source }),
            _ => Ok(()),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// The control side's handle of a worker.
    pub(crate) fn get(&self, number: usize) -> &WorkerHandle {
        &self.handles[number]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WorkerHandle> {
        self.handles.iter().map(Arc::as_ref)
    }

    /// Makes workers forget and unpin released frames. Returns the frames that can be unmapped now: all, if there is no module and
    /// engine processes do not know them either.
    pub(crate) fn forget(&self, memory: Vec<Mapping>, engines_know: bool) -> Vec<Mapping> {
        if self.registrar.is_none() && !engines_know || memory.is_empty() {
            return memory;
        }
        self.iter().for_each(|worker| worker.send(WorkerCommand::Forget(memory.clone())));
        Vec::new()
    }

    /// Statistics of the Linux module for all workers.
    pub(crate) fn module_status(&self) -> Option<ModuleStatus> {
        let all = self.iter().map(|worker| worker.counters.module.status());
        self.registrar.as_ref().map(|_| all.fold(ModuleStatus::default(), ModuleStatus::plus))
    }

    /// Times of sampled requests of all workers.
    pub(crate) fn latency(&self) -> LatencyStatus {
        self.iter()
            .map(|worker| worker.counters.latency.status())
            .fold(LatencyStatus::default(), LatencyStatus::plus)
    }

    /// Stops all workers, which finish running requests within `grace`, and waits for them.
    pub(crate) fn stop(&mut self, grace: Duration, shared: &Shared) {
        let deadline = MonotonicClock.now().after(grace);
        let no_moves = shared.no_moves();
        self.iter().for_each(|worker| worker.send(WorkerCommand::Stop { deadline }));
        drop(no_moves);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(registrar) = self.registrar.take() {
            registrar.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::scheduling::SchedulingClass;

    use crate::{Clients, Pinning, Service, ServiceConfig};

    /// The CPU list and the scheduling policy of each worker thread of this process, from `/proc`.
    fn workers() -> Vec<(String, u32)> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
        tasks
            .filter(|task| read(task.path().join("comm")).starts_with("memferry-worker"))
            .map(|task| {
                let status = read(task.path().join("status"));
                let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                let stat = read(task.path().join("stat"));
                // After the name, which may contain blanks. The policy is field 41 (proc(5)).
                let policy = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(38)?.parse().ok());
                (cpus.unwrap_or_default().trim().to_owned(), policy.unwrap_or(u32::MAX))
            })
            .collect()
    }

    #[test]
    fn workers_have_their_cpu_and_class() {
        const SCHED_IDLE: u32 = 5;
        let config = ServiceConfig {
            workers: 1,
            pinning: Pinning::Spread,
            worker_class: SchedulingClass::Idle,
            ..ServiceConfig::default()
        };
        let planned = config.pinning.plan(1)[0];
        let service = Service::start(config, Clients::Here).unwrap();
        // Other tests of this process may run workers too, and the kernel's list has gaps while threads end.
        let find = || workers().into_iter().find(|(_, policy)| *policy == SCHED_IDLE);
        let mine = std::iter::repeat_with(find).take(10_000).flatten().next().expect("an idle worker");
        if let Some(place) = planned {
            assert_eq!(mine.0, place.cpu.to_string());
        }
        drop(service);
    }
}
