//! Interrupts: eventfds of the client, for INTx, MSI and MSI-X.
//!
//! ```text
//! level ──┬─ MSI-X or MSI in use ──► a rise is one message
//!         └─ else ─────────────────► INTx: signalled once, then masked until the client unmasks it
//! vectors ── MSI-X in use ─────────► a message for each
//! ```
//!
//! The client enables a kind by passing eventfds for it. Messages are memory writes, so they wait while the device may not be bus master.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::message::{IrqAction, IrqData, Refusal, SetIrqs};

/// A kind of interrupt, by VFIO's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Intx,
    Msi,
    MsiX,
}

/// VFIO's number of kinds; the last two, errors and requests, have no interrupts here.
pub(crate) const KINDS: u32 = 5;

const CAN_EVENTFD: u32 = 1;
const CAN_MASK: u32 = 1 << 1;
const MASKS_ITSELF: u32 = 1 << 2;
const NO_RESIZE: u32 = 1 << 3;

/// The eventfds and masks that a client has set.
#[derive(Debug)]
pub(crate) struct Interrupts {
    intx: [Option<OwnedFd>; 1],
    msi: Vec<Option<OwnedFd>>,
    msi_x: Vec<Option<OwnedFd>>,
    intx_masked: bool,
    was_high: bool,
    sent: u64,
}

/// The state that decides how an interrupt travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) level: bool,
    pub(crate) vectors: u64,
    pub(crate) bus_master: bool,
    pub(crate) intx_disabled: bool,
}

impl Interrupts {
    pub(crate) fn new(msi: u16, msi_x: u16) -> Self {
        let none = |count: u16| (0..count).map(|_| None).collect();
        Self {
            intx: [None],
            msi: none(msi),
            msi_x: none(msi_x),
            intx_masked: false,
            was_high: false,
            sent: 0,
        }
    }

    /// Flags and number of a kind, as the client asks for them.
    pub(crate) fn describe(&self, index: u32) -> (u32, u32) {
        match kind(index) {
            Some(Kind::Intx) => (CAN_EVENTFD | CAN_MASK | MASKS_ITSELF, 1),
            Some(Kind::Msi) if !self.msi.is_empty() => (CAN_EVENTFD | NO_RESIZE, self.msi.len() as u32),
            // Vectors come and go one by one.
            Some(Kind::MsiX) if !self.msi_x.is_empty() => (CAN_EVENTFD, self.msi_x.len() as u32),
            _ => (0, 0),
        }
    }

    /// Interrupts of every kind that were signalled.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Forgets the client's eventfds.
    pub(crate) fn clear(&mut self) {
        *self = Self { sent: self.sent, ..Self::new(self.msi.len() as u16, self.msi_x.len() as u16) };
    }

    /// After a reset of the device. The client keeps its eventfds.
    pub(crate) fn reset(&mut self) {
        self.intx_masked = false;
        self.was_high = false;
    }

    fn lines(&mut self, index: u32) -> &mut [Option<OwnedFd>] {
        match kind(index) {
            Some(Kind::Intx) => &mut self.intx,
            Some(Kind::Msi) => &mut self.msi,
            Some(Kind::MsiX) => &mut self.msi_x,
            None => &mut [],
        }
    }

    /// Carries out a client's command.
    ///
    /// # Errors
    /// [`Refusal`]; nothing changes then.
    pub(crate) fn set(&mut self, command: &SetIrqs<'_>, descriptors: Vec<OwnedFd>) -> Result<(), Refusal> {
        let SetIrqs { index, start, count, data, action } = *command;
        let available = self.describe(index).1;
        let end = start.checked_add(count).filter(|end| *end <= available);
        let Some(end) = end else {
            let why = format!("interrupts {start} to {start}+{count} of kind {index}, which has {available}");
            return Err(Refusal::invalid(why));
        };
        if !descriptors.is_empty() && data != IrqData::Eventfd {
            return Err(Refusal::invalid("descriptors with a command that takes none".to_owned()));
        }
        let range = start as usize..end as usize;
        match (action, data) {
            (IrqAction::Trigger, IrqData::Eventfd) => self.assign(index, range, descriptors),
            (IrqAction::Trigger, IrqData::None) if count == 0 && start == 0 => {
                self.lines(index).fill_with(|| None);
                Ok(())
            }
            (IrqAction::Trigger, _) => {
                for at in range.clone().filter(|at| data.names(at - range.start)) {
                    if let Some(descriptor) = self.lines(index).get(at).and_then(Option::as_ref)
                        && signal(descriptor)
                    {
                        self.sent += 1;
                    }
                }
                Ok(())
            }
            (IrqAction::Mask | IrqAction::Unmask, IrqData::None | IrqData::Bool(_)) if index == 0 => {
                if range.into_iter().any(|at| data.names(at)) {
                    self.intx_masked = action == IrqAction::Mask;
                }
                Ok(())
            }
            (IrqAction::Mask | IrqAction::Unmask, _) => Err(Refusal::new(
                Errno::OPNOTSUPP,
                format!("masking kind {index} this way; only INTx is masked, by message"),
            )),
        }
    }

    fn assign(
        &mut self,
        index: u32,
        range: std::ops::Range<usize>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        if !descriptors.is_empty() && descriptors.len() != range.len() {
            let why = format!(
                "{} eventfds for {} interrupts; send one for each, or none",
                descriptors.len(),
                range.len()
            );
            return Err(Refusal::invalid(why));
        }
        for descriptor in &descriptors {
            prepare(descriptor)?;
        }
        let mut given = descriptors.into_iter();
        for line in self.lines(index).get_mut(range).unwrap_or_default() {
            *line = given.next();
        }
        if index == 0 {
            self.intx_masked = false;
        }
        Ok(())
    }

    /// Sends the interrupts that the device's state asks for.
    pub(crate) fn deliver(&mut self, route: Route) {
        let is_set = |lines: &[Option<OwnedFd>]| lines.iter().any(Option::is_some);
        let messages = match (is_set(&self.msi_x), is_set(&self.msi)) {
            (true, _) => Some(&self.msi_x),
            (false, true) => Some(&self.msi),
            (false, false) => None,
        };
        let Some(lines) = messages else {
            self.was_high = false;
            if route.level
                && !route.intx_disabled
                && !self.intx_masked
                && let [Some(descriptor)] = &self.intx
                && signal(descriptor)
            {
                self.intx_masked = true;
                self.sent += 1;
            }
            return;
        };
        if !route.bus_master {
            // A line that falls meanwhile can rise again, which is then sent once the device may send.
            self.was_high &= route.level;
            return;
        }
        let rise = u64::from(route.level && !self.was_high);
        self.was_high = route.level;
        let wanted = route.vectors | rise;
        for (at, line) in lines.iter().enumerate().take(64) {
            if wanted >> at & 1 == 1 && line.as_ref().is_some_and(signal) {
                self.sent += 1;
            }
        }
    }

    /// Whether vectors taken now would be sent.
    pub(crate) fn takes_messages(&self, bus_master: bool) -> bool {
        bus_master && self.msi_x.iter().chain(&self.msi).any(Option::is_some)
    }
}

fn kind(index: u32) -> Option<Kind> {
    match index {
        0 => Some(Kind::Intx),
        1 => Some(Kind::Msi),
        2 => Some(Kind::MsiX),
        _ => None,
    }
}

/// Checks that it is an eventfd and makes writes to it return at once, so that a full one does not stop the device.
fn prepare(descriptor: &OwnedFd) -> Result<(), Refusal> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    // Without /proc its kind remains unknown; a write then fails or returns at once all the same.
    if link.is_ok_and(|link| link.as_os_str() != "anon_inode:[eventfd]") {
        return Err(Refusal::invalid("an interrupt's descriptor that is no eventfd".to_owned()));
    }
    let flags = rustix::fs::fcntl_getfl(descriptor)
        .and_then(|flags| rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK));
    flags.map_err(|errno| Refusal::new(errno, "fcntl of an eventfd".to_owned()))
}

/// Adds one to an eventfd. A full one has been signalled anyway.
///
/// A client that makes its eventfd blocking again, and fills it between the poll and the write, stops its own device until it reads it.
/// Linux has no write to an eventfd that ignores its flags (RWF_NOWAIT is refused).
fn signal(descriptor: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(descriptor, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let writable = rustix::event::poll(&mut ready, Some(&now)) == Ok(1);
    writable && rustix::io::write(descriptor.as_fd(), &1_u64.to_ne_bytes()) == Ok(8)
}
