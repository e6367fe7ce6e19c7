//! The service inside a client's own process: the same workers, rings and checks, but direct calls instead of a socket.
//!
//! ```text
//! shared() ─► Embedded ─ call(command) ─► Service::execute
//!               ├─ Revoke ─► the calling thread goes on with it, and waits only for what is in flight
//!               └─ control thread ─ notifier ─► Service::process_events ─► callers waiting for a revocation
//! ```
//!
//! All clients of a process share one service, which ends with the last of them. It protects nothing: code in the same
//! process can access all memory anyway.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use memferry_path::RevocationId;
use memferry_shm::fork_guard::ForkGuard;
use memferry_transfer::{Handle, SessionId};
use rustix::event::{PollFd, PollFlags};

use crate::config::ServiceConfig;
use crate::protocol::{Answer, Command, Refusal, RefusalKind};
use crate::service::{Events, Executed, NotGivenBack, Service};
use crate::session::refusal;
use crate::shared::Clients;
use crate::start_error::StartError;

/// The service of one process. A forked child inherits its parent's slot, whose lock may be held by a thread that does not
/// exist in the child. Therefore the child takes the next slot.
struct Shared {
    /// Process id; 0: free.
    process: AtomicU32,
    service: Mutex<Weak<Embedded>>,
}

/// Maximum depth of forks without exec in which each process can have a service.
const GENERATIONS: usize = 64;

static SHARED: [Shared; GENERATIONS] =
    [const { Shared { process: AtomicU32::new(0), service: Mutex::new(Weak::new()) } }; GENERATIONS];

fn shared_here() -> Option<&'static Mutex<Weak<Embedded>>> {
    let here = std::process::id();
    let mine = |shared: &&Shared| {
        let claimed = shared.process.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(here)
    };
    SHARED.iter().find(mine).map(|shared| &shared.service)
}

struct Control {
    service: Service,
    /// Revocations that are complete, until their caller takes the answer.
    completed: Mutex<BTreeMap<RevocationId, Result<Answer, Refusal>>>,
    changed: Condvar,
    stopping: AtomicBool,
}

/// A service that runs in this process.
pub struct Embedded {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
    guard: ForkGuard,
}

impl Embedded {
    /// The service of this process. Starts it with the default configuration if it does not run yet.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn shared() -> Result<Arc<Self>, StartError> {
        let shared = shared_here().ok_or_else(|| StartError::System {
            step: "forking",
            source: std::io::Error::other(format!(
                "more than {GENERATIONS} nested forks without exec; run another program"
            )),
        })?;
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.upgrade() {
            Some(embedded) if embedded.guard.check().is_ok() => return Ok(embedded),
            // It belongs to an earlier process with the same id.
            Some(embedded) => std::mem::forget(embedded),
            None => {}
        }
        let embedded = Arc::new(Self::start(ServiceConfig::default())?);
        *shared = Arc::downgrade(&embedded);
        Ok(embedded)
    }

    /// Starts a separate service.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(mut config: ServiceConfig) -> Result<Self, StartError> {
        // The only user of this service is this process, so it may use the high class.
        config.high_users.push(rustix::process::geteuid().as_raw());
        let failed = |step| move |source| StartError::System { step, source };
        let guard = ForkGuard::new().map_err(failed("the fork guard"))?;
        let service = Service::start(config, Clients::Here)?;
        let completed = Default::default();
        let changed = Default::default();
        let stopping = Default::default();
        let control = Arc::new(Control { service, completed, changed, stopping });
        let for_thread = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("memferry-control".to_owned())
            .spawn(move || for_thread.run())
            .map_err(failed("starting the control thread"))?;
        Ok(Self { control, thread: Some(thread), guard })
    }

    pub fn service(&self) -> &Service {
        &self.control.service
    }

    /// Whether this process started it, and not a parent.
    pub fn is_of_this_process(&self) -> bool {
        self.guard.check().is_ok()
    }

    /// Executes a command and waits for its answer.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn call(
        &self,
        session: SessionId,
        command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let service = &self.control.service;
        let answer = self.execute(session, command, &descriptors);
        answer.inspect_err(|refusal| service.count_refusal(refusal.kind))
    }

    fn execute(
        &self,
        session: SessionId,
        command: Command,
        descriptors: &[OwnedFd],
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let memory = self.control.service.admit(session, &command, descriptors)?;
        match self.control.service.execute(session, command, memory, descriptors) {
            Executed::Done(answer, descriptors) => answer.map(|answer| (answer, descriptors)),
            // Nobody waits for engine processes, because an embedded service has none.
            Executed::Waits | Executed::Allocates(_) | Executed::Exports(_) => {
                Err(refusal(RefusalKind::Argument, "an embedded service has no engine processes"))
            }
            Executed::Later(revocation) => {
                // Two switches of threads take ten times as long as a revocation that waits for no transfer.
                self.control.finish(self.control.service.revocation_events());
                let mut completed = self.control.completed.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    if let Some(answer) = completed.remove(&revocation) {
                        return answer.map(|answer| (answer, Vec::new()));
                    }
                    completed = self.control.changed.wait(completed).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Embedded {
    /// Revokes a capability when its owner is dropped, and none of the owner's requests uses it any more. Waits only if those of others
    /// could, or after many frames.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn give_back(&self, session: SessionId, handle: Handle) -> Result<(), Refusal> {
        match self.control.service.give_back(session, handle) {
            Ok(events) => events.into_iter().for_each(|events| self.control.finish(events)),
            Err(NotGivenBack) => {
                self.call(session, Command::Revoke { handle }, Vec::new())?;
            }
        }
        Ok(())
    }
}

impl Control {
    /// Drops memory, then answers those who wait for its revocation: they may rely on the memory being free.
    fn finish(&self, Events { revoked, to_drop, .. }: Events) {
        drop(to_drop);
        if !revoked.is_empty() {
            let mut completed = self.completed.lock().unwrap_or_else(PoisonError::into_inner);
            completed.extend(revoked);
            self.changed.notify_all();
        }
    }

    fn run(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            let notifier = self.service.notifier();
            let _ = rustix::event::poll(&mut [PollFd::new(&notifier, PollFlags::IN)], None);
            self.finish(self.service.process_events());
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // The workers and the control thread exist in the parent only; waiting for them here would never end.
            std::mem::forget(Arc::clone(&self.control));
            // Its name may be that of another thread here, which a drop would detach.
            std::mem::forget(self.thread.take());
            return;
        }
        self.control.stopping.store(true, Ordering::Release);
        self.control.service.wake_control();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "forks")]
mod tests {
    use super::*;
    use memferry_path::Grantee;
    use memferry_transfer::{GrantToken, Rights};

    use crate::protocol::NotifyBy;
    use crate::session::Introduced;

    #[test]
    fn a_refused_signal_can_be_set_again() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let embedded = Embedded::start(ServiceConfig { workers: 1, ..ServiceConfig::default() }).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let client = Introduced { user, process: std::process::id(), asymmetric_fences: false };
        let session = embedded.service().connect(client).unwrap();
        let call = |command| embedded.call(session, command, Vec::new());
        let bytes = memferry_shm::queue_pair::Layout::new(2).unwrap().client_bytes();
        let half = memferry_shm::frame::allocate_half(bytes).unwrap().0;
        let (opened, _) = embedded.call(session, Command::OpenQueue { capacity: 2 }, vec![half]).unwrap();
        let Answer::Queue { queue, .. } = opened else { panic!("{opened:?}") };
        let notify = |by| call(Command::Notify { queue, by });
        let refused = notify(NotifyBy::Ring { user_data: 1 }).unwrap_err();
        if refused.message.contains("this system gives the service no io_uring") {
            return println!("{refused}");
        }
        assert_eq!(refused.message, "the command has no descriptor");
        assert_eq!(notify(NotifyBy::Event).unwrap().1.len(), 1);
        let refused = notify(NotifyBy::Event).unwrap_err();
        assert!(refused.message.contains("signalled already"), "{refused}");
    }

    #[test]
    fn memory_of_an_ended_session_gives_no_access() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let embedded = Embedded::start(ServiceConfig { workers: 1, ..ServiceConfig::default() }).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let client = Introduced { user, process: std::process::id(), asymmetric_fences: false };
        let [owner, peer] = [(); 2].map(|()| embedded.service().connect(client.clone()).unwrap());
        let length = rustix::param::page_size() as u64;
        let rights = Rights::all();
        let memory = memferry_shm::frame::allocate(length, Default::default()).unwrap().0;
        let registered = embedded.call(owner, Command::Register { length, rights }, vec![memory]).unwrap().0;
        let Answer::Handle(handle) = registered else { panic!("{registered:?}") };
        let grant =
            Command::Grant { handle, offset: 0, length, rights, to: Grantee::Session(peer), lasts: None };
        let granted = embedded.call(owner, grant, Vec::new()).unwrap().0;
        let Answer::Handle(token) = granted else { panic!("{granted:?}") };
        let accept = Command::Accept { token: GrantToken::from_handle(token) };
        let accepted = embedded.call(peer, accept, Vec::new()).unwrap().0;
        let Answer::Accepted { handle, .. } = accepted else { panic!("{accepted:?}") };
        let derive = || {
            let part = Command::Derive { handle, offset: 0, length: 1, rights: Rights::READ };
            embedded.call(peer, part, Vec::new())
        };
        assert!(derive().is_ok());
        embedded.service().end(owner);
        let refused = derive().unwrap_err();
        assert!(refused.message.contains("was revoked"), "{refused}");
    }

    #[test]
    fn a_child_forked_during_start_gets_its_own() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        // Holds the lock as a thread that starts the service does.
        let starting = shared_here().expect("the first generation").lock().unwrap();
        // SAFETY: the child starts its own service and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child with a status other than 0 if it hangs.
            unsafe { libc::alarm(20) };
            let started = Embedded::shared().is_ok_and(|embedded| embedded.is_of_this_process());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!started)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        drop(starting);
        assert_eq!(status, 0, "the child's status");
    }
}
