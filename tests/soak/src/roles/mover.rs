//! Requests of every kind in every order, many at a time; some are cancelled or have a short deadline.
//!
//! ```text
//! Random ─┬─ start a run on a free cell: chain, fenced, loop ─► queue ─► completions, one for each ticket ─► judge
//!         ├─ cancel, stop, fill the queue until it refuses
//!         └─ take_completions completions: poll, wait for one, for any, for a part, with a descriptor
//! ```
//!
//! Cells share no frame, so concurrent runs do not touch each other's bytes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use memferry::{
    Armed, CacheHint, Client, Failure, PriorityClass, Queue, SubmitReason, Ticket, TicketId, Transfer,
    TransferError, nop, repeat,
};
use memferry_conformance::requests::{self, Draft, placed};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::PATIENCE;
use super::cells::Cell;
use super::judge::{Excuses, Order, Outcome, bytes_done, judge};
use super::transfers::{self, Drafts};
use crate::output::{Progress, Stop, finding};
use crate::random::Random;

/// How often a wait for a signal checks that the service lives. A service that dies signals nothing.
const CHECK_NS: i64 = 100_000_000;

/// A few requests on one cell.
struct Run {
    order: Order,
    drafts: Vec<Draft>,
    tickets: Vec<TicketId>,
    ends: Vec<Option<Outcome>>,
    excuses: Excuses,
}

/// The request that a ticket belongs to.
#[derive(Clone, Copy)]
enum Meaning {
    /// Request number two of the run on cell number one.
    Of(usize, usize),
    Nop,
}

fn id_of(outcome: &Outcome) -> TicketId {
    outcome.map_or_else(|error| error.id, |done| done.id)
}

struct Mover<'a> {
    client: &'a Client,
    random: &'a mut Random,
    drafts: Drafts,
    queue: Queue,
    event: Option<std::os::fd::OwnedFd>,
    cells: Vec<Cell>,
    runs: Vec<Option<Run>>,
    tickets: HashMap<TicketId, Meaning>,
    /// A loop that ends only when it is stopped.
    endless: Option<TicketId>,
}

/// Works for a number of rounds.
pub(super) fn session(
    client: &Client,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Stop> {
    let mut mover = Mover::open(client, random)?;
    for _ in 0..rounds {
        let done = mover.step(progress);
        mover.handle_result(done)?;
    }
    while mover.queue.outstanding() > 0 || !mover.tickets.is_empty() {
        let done = mover.take_completions(progress);
        mover.handle_result(done)?;
    }
    match mover.queue.poll() {
        None => Ok(()),
        Some(more) => finding(format!("an additional completion: {more:?}")),
    }
}

/// Asserts that an allocation beyond this process's limit fails and the client stays usable.
pub(super) fn beyond_limits(client: &Client, hungry: Option<u64>) -> Result<(), Stop> {
    let Some(bytes) = hungry else { return Ok(()) };
    match client.frame(bytes).alloc() {
        Ok(_) => finding("a process with limited memory allocated a gigabyte"),
        Err(error) => match Stop::from(error) {
            Stop::Refused("own", _) => Ok(()),
            other => Err(other),
        },
    }
}

impl<'a> Mover<'a> {
    fn open(client: &'a Client, random: &'a mut Random) -> Result<Self, Stop> {
        let capacity = random.one_of(&[4, 8, 32, 128]);
        let queue = client.queue(capacity)?;
        let event = if random.once_in(3) { Some(queue.notify_by_event()?) } else { None };
        let count = random.between(1, 6) as usize;
        let cells = (0..count)
            .map(|_| {
                let long = random.once_in(4);
                Cell::new(client, long, random)
            })
            .collect::<Result<Vec<_>, Stop>>()?;
        let drafts = Drafts::new(random);
        let runs = cells.iter().map(|_| None).collect();
        let tickets = HashMap::new();
        Ok(Self { client, random, drafts, queue, event, cells, runs, tickets, endless: None })
    }

    /// Handles the result of a step. After a loss, checks that every ticket gets its completion.
    fn handle_result(&mut self, done: Result<(), Stop>) -> Result<(), Stop> {
        let Err(Stop::Lost) = done else { return done };
        let until = Instant::now() + PATIENCE;
        while !self.tickets.is_empty() {
            match self.queue.poll() {
                Some(outcome) if self.tickets.remove(&id_of(&outcome)).is_none() => {
                    return finding(format!(
                        "a completion without request, from a lost service: {outcome:?}"
                    ));
                }
                Some(_) => {}
                None if Instant::now() > until => {
                    return finding(format!("{} tickets of a lost service do not end", self.tickets.len()));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        if let Some(more) = self.queue.poll() {
            return finding(format!("an additional completion of a lost service: {more:?}"));
        }
        match self.client.status() {
            Ok(_) => finding("a queue was lost although its service responds"),
            Err(error) => Err(error.into()),
        }
    }

    fn step(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        match self.random.below(100) {
            0..60 => self.start(progress),
            60..70 => self.cancel(),
            70 => self.flood(progress),
            71 => self.replace(),
            _ => self.take_completions(progress),
        }
    }

    /// Starts a run on a free cell.
    fn start(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        let free: Vec<usize> = (0..self.cells.len()).filter(|cell| self.runs[*cell].is_none()).collect();
        if free.is_empty() {
            return self.take_completions(progress);
        }
        let cell = self.random.one_of(&free);
        let order = match self.random.below(10) {
            0..5 => Order::Linked,
            5..8 => Order::Fenced,
            _ if self.endless.is_none() && self.random.once_in(3) => Order::Loop { rounds: 0 },
            _ => Order::Loop { rounds: self.random.between(1, 5) as u32 },
        };
        let most = u64::from(self.queue.capacity()).min(6) - 1;
        let count = self.random.between(1, most) as usize;
        let drafts = self.draw(cell, order, count)?;
        if self.queue.capacity() as usize - self.queue.outstanding() <= drafts.len() {
            return self.take_completions(progress);
        }
        self.submit(cell, order, drafts, progress)
    }

    fn draw(&mut self, cell: usize, order: Order, count: usize) -> Result<Vec<Draft>, Stop> {
        let mut drafts = Vec::new();
        let bytes = self.cells[cell].model[0].len() as u64;
        while drafts.len() < count {
            let draft = match self.cells[cell].long {
                true => transfers::long(self.random),
                false => {
                    self.drafts.small().ok_or_else(|| Stop::Finding("no request could be drawn".into()))?
                }
            };
            // A request that is refused would end a loop.
            let looped = matches!(order, Order::Loop { .. });
            let is_admitted = || requests::refusal(&placed(&draft, bytes), bytes).is_none();
            if transfers::is_even(&draft) && (!looped || is_admitted()) {
                drafts.push(draft);
            }
        }
        Ok(drafts)
    }

    fn submit(
        &mut self,
        cell: usize,
        order: Order,
        drafts: Vec<Draft>,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        let last = drafts.len() - 1;
        let mut excuses = Excuses::default();
        let limit = self.random.once_in(10).then(|| Duration::from_micros(self.random.below(3000)));
        excuses.deadline = limit.is_some();
        excuses.busy = self.random.once_in(8) && !matches!(order, Order::Loop { .. });
        let hint = self.random.one_of(&[CacheHint::Auto, CacheHint::Keep, CacheHint::Stream]);
        let class = self.random.one_of(&[PriorityClass::Normal, PriorityClass::Normal, PriorityClass::Low]);
        let mut transfers = Vec::new();
        if let Order::Loop { rounds } = order {
            transfers.push(repeat(rounds));
        }
        for (index, draft) in drafts.iter().enumerate() {
            let transfer = transfers::transfer(draft, &self.cells[cell].frames);
            let mut transfer = transfer.with_hint(hint).with_class(class);
            transfer = if let Some(limit) = limit { transfer.within(limit) } else { transfer };
            transfer = if excuses.busy { transfer.refuse_when_busy() } else { transfer };
            transfers.push(match order {
                Order::Fenced if index > 0 => transfer.fenced(),
                Order::Linked | Order::Loop { .. } if index < last => transfer.linked(),
                _ => transfer,
            });
        }
        let ends = vec![None; transfers.len()];
        self.runs[cell] = Some(Run { order, drafts, tickets: Vec::new(), ends, excuses });
        for transfer in transfers {
            let ticket = self.submit_one(transfer, progress)?;
            if let Some(run) = &mut self.runs[cell] {
                self.tickets.insert(ticket, Meaning::Of(cell, run.tickets.len()));
                run.tickets.push(ticket);
                if order == (Order::Loop { rounds: 0 }) && run.tickets.len() == 1 {
                    self.endless = Some(ticket);
                }
            }
        }
        Ok(())
    }

    /// Submits a transfer. Waits for room while lists of segments fill the queue's area.
    fn submit_one(&mut self, mut transfer: Transfer<u64>, progress: &mut Progress) -> Result<TicketId, Stop> {
        let until = Instant::now() + PATIENCE;
        loop {
            let stage = self.random.once_in(2);
            let submitted = if stage { self.queue.stage(transfer) } else { self.queue.submit(transfer) };
            match submitted {
                Ok(ticket) => return Ok(ticket.id()),
                Err(full) if matches!(full.reason, SubmitReason::Full { .. }) && Instant::now() < until => {
                    transfer = *full.transfer;
                    self.queue.publish();
                    if let Some(outcome) = self.queue.poll() {
                        self.handle_completion(outcome, progress)?;
                    }
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.reason.into()),
            }
        }
    }

    fn cancel(&mut self) -> Result<(), Stop> {
        let known: Vec<usize> = (0..self.runs.len()).filter(|cell| self.runs[*cell].is_some()).collect();
        if known.is_empty() {
            return Ok(());
        }
        let cell = self.random.one_of(&known);
        let Some(run) = &mut self.runs[cell] else { return Ok(()) };
        if run.tickets.is_empty() {
            return Ok(());
        }
        run.excuses.cancelled = true;
        let ticket = self.random.one_of(&run.tickets);
        match self.queue.cancel(ticket) {
            // It may have ended and been received while another ticket was waited for.
            Ok(()) | Err(TransferError { failure: Failure::UnknownTicket, .. }) => Ok(()),
            Err(error) => finding(format!("cancel: {error}")),
        }
    }

    /// Fills the queue until it refuses.
    fn flood(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        self.halt()?;
        loop {
            match self.queue.stage(nop()) {
                Ok(ticket) => drop(self.tickets.insert(ticket.id(), Meaning::Nop)),
                Err(full) if matches!(full.reason, SubmitReason::Full { .. }) => break,
                Err(error) => return Err(error.reason.into()),
            }
            if self.queue.outstanding() > self.queue.capacity() as usize {
                return finding(format!("a queue of {} holds more requests", self.queue.capacity()));
            }
        }
        self.take_completions(progress)
    }

    /// Replaces a cell's memory.
    fn replace(&mut self) -> Result<(), Stop> {
        let cell = self.random.below(self.cells.len() as u64) as usize;
        if self.runs[cell].is_none() {
            let long = self.cells[cell].long;
            self.cells[cell] = Cell::new(self.client, long, self.random)?;
        }
        Ok(())
    }

    /// Stops the endless loop.
    fn halt(&mut self) -> Result<(), Stop> {
        match self.endless.take().map(|ticket| self.queue.stop(ticket)) {
            None | Some(Ok(()) | Err(TransferError { failure: Failure::UnknownTicket, .. })) => Ok(()),
            Some(Err(error)) => finding(format!("stop: {error}")),
        }
    }

    /// Takes completions with one of the possible calls.
    fn take_completions(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        self.halt()?;
        let mut outstanding: Vec<TicketId> = self.tickets.keys().copied().collect();
        outstanding.sort();
        if outstanding.is_empty() {
            return Ok(());
        }
        let ticket = self.random.one_of(&outstanding);
        let waited = match self.random.below(5) {
            0 => self.queue.wait_for(Ticket::from(ticket), PATIENCE),
            1 => return self.wait_for_part(ticket),
            2 if self.event.is_some() => return self.wait_for_signal(progress),
            _ => self.queue.wait_any_for(PATIENCE),
        };
        match waited.transpose() {
            Some(outcome) => self.handle_completion(outcome, progress)?,
            None => return finding(format!("none of {} outstanding requests ends", outstanding.len())),
        }
        while let Some(outcome) = self.queue.poll() {
            self.handle_completion(outcome, progress)?;
        }
        Ok(())
    }

    /// Waits for the first bytes of a request. Its completion is taken later.
    fn wait_for_part(&mut self, ticket: TicketId) -> Result<(), Stop> {
        let part = self.random.below(1 << 16);
        match self.queue.wait_range_for(ticket, 0..part, PATIENCE) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => finding(format!("the first {part} bytes of a request are not done in time")),
            Err(TransferError { failure: Failure::UnknownTicket | Failure::Forked, .. }) => {
                finding("an outstanding request is unknown to its queue")
            }
            // The request failed; its completion reports the same failure.
            Err(_) => Ok(()),
        }
    }

    /// Waits with the descriptor, as event loops do.
    fn wait_for_signal(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(outcome) = self.queue.poll() {
                return self.handle_completion(outcome, progress);
            }
            // Polling disarmed the descriptor.
            if self.queue.arm() == Armed::Waiting
                && let Some(event) = &self.event
            {
                let mut entry = [PollFd::new(event, PollFlags::IN)];
                let look = Timespec { tv_sec: 0, tv_nsec: CHECK_NS };
                let _ = rustix::event::poll(&mut entry, Some(&look));
                if !entry[0].revents().is_empty() {
                    let _ = rustix::io::read(event, &mut [0; 8]);
                }
            }
        }
        finding("no completion came, with or without a signal")
    }

    /// Handles a completion. Its ticket must be outstanding.
    fn handle_completion(&mut self, outcome: Outcome, progress: &mut Progress) -> Result<(), Stop> {
        let Some(meaning) = self.tickets.remove(&id_of(&outcome)) else {
            return finding(format!("a completion without outstanding request: {outcome:?}"));
        };
        match outcome.map_err(|error| error.failure) {
            Err(Failure::ServiceLost) => return Err(Stop::Lost),
            Err(Failure::ServiceStopping) => return Err(Stop::Refused("stopping", "stopping".to_owned())),
            Err(failure @ (Failure::UnknownTicket | Failure::Forked)) => {
                return finding(format!("an outstanding request ended with {failure:?}"));
            }
            _ => {}
        }
        progress.add(1, bytes_done(&outcome));
        let (cell, number) = match meaning {
            Meaning::Of(cell, number) => (cell, number),
            Meaning::Nop => {
                return match outcome.map_err(|error| error.failure) {
                    Ok(_) | Err(Failure::WaitingQuota { .. }) => Ok(()),
                    Err(Failure::Cancelled) => Err(Stop::Refused("stopping", "cancelled".to_owned())),
                    Err(_) => finding(format!("a no-op ended with {outcome:?}")),
                };
            }
        };
        if let Some(run) = &mut self.runs[cell] {
            run.ends[number] = Some(outcome);
        }
        let ends: Option<Vec<Outcome>> =
            self.runs[cell].as_ref().and_then(|run| run.ends.iter().copied().collect());
        let (Some(ends), Some(run)) =
            (ends, self.runs[cell].take_if(|run| run.ends.iter().all(Option::is_some)))
        else {
            return Ok(());
        };
        let contents = self.cells[cell].contents()?;
        judge((run.order, &run.drafts), &ends, run.excuses, &self.cells[cell].model, &contents)?;
        self.cells[cell].model = contents;
        Ok(())
    }
}
