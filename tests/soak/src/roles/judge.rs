//! Checks the outcomes of a few requests, and the memory they leave, against the oracle.
//!
//! ```text
//! Run: requests in an order, the completion of each ─► oracle, one by one ─► same outcome, bytes and value?
//!                                                                        └─► same bytes in every frame?
//! cancelled, too late, refused: allowed if requested ─► the oracle applies the part that was done
//! ```
//!
//! If the oracle cannot determine what a part leaves (pixels are visited in any order, overlapping copies start from either
//! end, an engine process may have written more than it reported: those of this test lie, and end at any time), the destination frame
//! is not compared; all others are.

use memferry::{Done, EngineKind, Failure, TransferError};
use memferry_conformance::oracle;
use memferry_conformance::requests::{Draft, Served, judged, placed};
use memferry_transfer::{Operation, Side};

use crate::output::{Stop, finding};

/// The outcome of a request with any kind of value.
pub(super) type Outcome = Result<Done<u64>, TransferError>;

pub(super) fn bytes_done(ended: &Outcome) -> u64 {
    ended.map_or_else(|error| error.bytes_done, |done| done.bytes_done)
}

/// The outcome in the oracle's terms. A failed request has no value.
fn served(ended: &Outcome) -> Served {
    match ended {
        Ok(done) => Served { outcome: Ok(()), bytes_done: done.bytes_done, value: done.output },
        Err(error) => Served { outcome: Err(error.failure), bytes_done: error.bytes_done, value: 0 },
    }
}

/// Whether an engine process kept a request for good: it was lost and had not exited for five seconds, or the service stopped and
/// waited no longer. It may write to the memory of the request until it has exited.
pub(super) fn is_lingering<T>(ended: &Result<Done<T>, TransferError>) -> bool {
    let of = |error: &TransferError| (error.failure, error.engine);
    ended.as_ref().err().map(of) == Some((Failure::ChannelFaulted, EngineKind::External))
}

/// The order of the requests of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Each starts after the one before succeeded. A single request is a chain of one.
    Linked,
    /// Each starts after all before have ended.
    Fenced,
    /// The sequence is repeated `rounds` times; 0 until stopped. The loop's own completion comes first.
    Loop { rounds: u32 },
}

/// Requested conditions that may end a request early.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Excuses {
    pub(super) cancelled: bool,
    pub(super) deadline: bool,
    pub(super) busy: bool,
}

impl Excuses {
    fn cover(self, failure: Failure) -> bool {
        match failure {
            Failure::Cancelled => self.cancelled,
            Failure::DeadlineExceeded | Failure::DeadlineUnreachable => self.deadline,
            Failure::ChannelsBusy { .. } => self.busy,
            // All clients of a user share this quota.
            Failure::WaitingQuota { .. } => true,
            _ => false,
        }
    }
}

/// The oracle's state during a run.
struct Oracle {
    model: Vec<Vec<u8>>,
    /// Frames whose contents it does not know any more.
    unknown: Vec<bool>,
    excuses: Excuses,
}

/// Checks the outcomes of a run and the memory it left. `model` is the contents of its frames before the run, `contents`
/// after it.
pub(super) fn judge(
    (order, drafts): (Order, &[Draft]),
    ends: &[Outcome],
    excuses: Excuses,
    model: &[Vec<u8>],
    contents: &[Vec<u8>],
) -> Result<(), Stop> {
    let mut oracle_state = Oracle { model: model.to_vec(), unknown: vec![false; model.len()], excuses };
    match order {
        Order::Loop { rounds } => oracle_state.looped(rounds, drafts, ends)?,
        Order::Linked | Order::Fenced => oracle_state.sequence(order == Order::Linked, drafts, ends)?,
    }
    for (frame, (expected, found)) in oracle_state.model.iter().zip(contents).enumerate() {
        if !oracle_state.unknown[frame]
            && let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at])
        {
            return finding(format!(
                "byte {at} of frame {frame} is {}, not {}, after {order:?} {drafts:?} ended with {ends:?}",
                found[at], expected[at]
            ));
        }
    }
    Ok(())
}

impl Oracle {
    fn sequence(&mut self, linked: bool, drafts: &[Draft], ends: &[Outcome]) -> Result<(), Stop> {
        let mut failed = None;
        for (draft, end) in drafts.iter().zip(ends) {
            let outcome = served(end).outcome;
            if linked && let Some(failure) = failed {
                let inherited = matches!(end, Err(error) if error.inherited && error.failure == failure);
                let excused = matches!(outcome, Err(own) if self.excuses.cover(own));
                // A request that is invalid by itself may be refused before its predecessor ends.
                let refused = outcome.is_err() && outcome == judged(draft, &mut self.model.clone()).outcome;
                if !(inherited || excused || refused) {
                    return finding(format!(
                        "{draft:?} is linked to a request that failed with {failure:?}: {end:?}"
                    ));
                }
                failed = outcome.err();
                continue;
            }
            self.one(draft, end)?;
            failed = outcome.err();
        }
        Ok(())
    }

    fn one(&mut self, draft: &Draft, end: &Outcome) -> Result<(), Stop> {
        let mut trial = self.model.clone();
        let expected = judged(draft, &mut trial);
        let found = served(end);
        // What a request reads may be unknown; whether it fits its frames is known.
        let unsure = self.has_unknown(draft) && found.outcome == expected.outcome;
        if found == expected || unsure {
            self.model = trial;
            if unsure {
                self.mark_unknown(draft);
            }
            return Ok(());
        }
        match found.outcome {
            Err(failure) if self.excuses.cover(failure) => {
                match matches!(end, Err(error) if error.engine == EngineKind::External) {
                    true => self.mark_unknown(draft),
                    false => self.part(draft, found.bytes_done),
                }
            }
            Err(Failure::Cancelled | Failure::ServiceStopping) => {
                return Err(Stop::Refused("stopping", format!("{:?}", found.outcome)));
            }
            Err(Failure::ChannelFaulted) if is_lingering(end) => {
                return Err(Stop::Refused("lingering", format!("{:?}", found.outcome)));
            }
            _ => return finding(format!("{draft:?} ended with {found:?}, not with {expected:?}")),
        }
        Ok(())
    }

    /// Applies the first `bytes` of a request.
    fn part(&mut self, draft: &Draft, bytes: u64) {
        let length = self.model.first().map_or(0, |memory| memory.len() as u64);
        let certain = match draft {
            // It may have read unknown contents.
            _ if self.has_unknown(draft) => false,
            Operation::Copy2d { .. } | Operation::Fill2d { .. } | Operation::ScatterGather { .. } => false,
            Operation::Copy { source, destination, .. } | Operation::CopyCrc { source, destination, .. } => {
                source.0 != destination.0
            }
            _ => true,
        };
        if !certain && bytes > 0 {
            self.mark_unknown(draft);
        } else if bytes > 0 {
            // A request outside its frames moves nothing.
            let _ = oracle::apply_part(&placed(draft, length), &mut self.model, bytes);
        }
    }

    /// Whether the request reads or writes a frame with unknown contents.
    fn has_unknown(&self, draft: &Draft) -> bool {
        let seen = draft.visit(|_, place, _| if self.unknown[place.0] { Err(()) } else { Ok(()) });
        seen.is_err()
    }

    /// Marks the frames that the request writes as unknown.
    fn mark_unknown(&mut self, draft: &Draft) {
        let _ = draft.visit(|side, place, _| {
            if side == Side::Destination {
                self.unknown[place.0] = true;
            }
            Ok::<_, ()>(())
        });
    }

    fn looped(&mut self, rounds: u32, drafts: &[Draft], ends: &[Outcome]) -> Result<(), Stop> {
        let Some((own, members)) = ends.split_first() else { return Ok(()) };
        let whole = match own {
            Ok(done) => done.output,
            Err(error) if self.excuses.cover(error.failure) => {
                drafts.iter().for_each(|draft| self.mark_unknown(draft));
                return Ok(());
            }
            Err(TransferError {
                failure: failure @ (Failure::Cancelled | Failure::ServiceStopping), ..
            }) => {
                return Err(Stop::Refused("stopping", format!("{failure:?}")));
            }
            Err(_) if is_lingering(own) => return Err(Stop::Refused("lingering", format!("{own:?}"))),
            Err(_) => return finding(format!("a loop over {drafts:?} ended with {own:?}")),
        };
        if rounds != 0 && whole != u64::from(rounds) || members.iter().any(Result::is_err) {
            return finding(format!("a loop of {rounds} over {drafts:?} ended with {ends:?}"));
        }
        if whole > MAX_ROUNDS {
            drafts.iter().for_each(|draft| self.mark_unknown(draft));
            return Ok(());
        }
        let mut done = vec![0; drafts.len()];
        for _ in 0..whole {
            for (draft, done) in drafts.iter().zip(&mut done) {
                *done += judged(draft, &mut self.model).bytes_done;
            }
        }
        match members.iter().zip(&done).all(|(member, done)| bytes_done(member) == *done) {
            true => Ok(()),
            false => finding(format!("{whole} rounds of {drafts:?} moved {done:?} bytes: {ends:?}")),
        }
    }
}

/// Rounds of a loop that the oracle applies at most, since it is slow.
const MAX_ROUNDS: u64 = 40;

#[cfg(test)]
mod tests {
    use memferry::{EngineKind, Pattern, TicketId};

    use super::*;

    fn done(bytes_done: u64, output: u64) -> Outcome {
        Ok(Done { id: TicketId::NONE, bytes_done, output, engine: EngineKind::Cpu })
    }

    fn failed(failure: Failure, bytes_done: u64, inherited: bool) -> Outcome {
        let engine = EngineKind::Cpu;
        Err(TransferError { id: TicketId::NONE, failure, bytes_done, inherited, engine })
    }

    fn fill(length: u64) -> Draft {
        Operation::Fill { destination: (0, 1), length, pattern: Pattern::Byte(7) }
    }

    fn is_finding(judged: Result<(), Stop>) -> bool {
        matches!(judged, Err(Stop::Finding(_)))
    }

    #[test]
    fn moved_bytes_are_checked() {
        let before = [vec![1; 8]];
        let none = Excuses::default();
        let cancel = Excuses { cancelled: true, ..none };
        let of = |end, excuses, found: [u8; 8]| {
            judge((Order::Linked, &[fill(4)]), &[end], excuses, &before, &[found.to_vec()])
        };
        let whole = done(4, 0);
        let early = failed(Failure::Cancelled, 2, false);
        assert!(of(whole, none, [1, 7, 7, 7, 7, 1, 1, 1]).is_ok());
        assert!(is_finding(of(whole, none, [1, 7, 7, 7, 7, 7, 1, 1])), "a byte outside the range");
        assert!(is_finding(of(done(3, 0), none, [1, 7, 7, 7, 7, 1, 1, 1])), "a wrong count");
        assert!(of(early, cancel, [1, 7, 7, 1, 1, 1, 1, 1]).is_ok());
        assert!(is_finding(of(early, cancel, [1, 7, 7, 7, 1, 1, 1, 1])), "more bytes than reported");
        assert!(matches!(of(early, none, [1, 7, 7, 1, 1, 1, 1, 1]), Err(Stop::Refused("stopping", _))));
        assert!(is_finding(of(failed(Failure::MemoryFault, 0, false), cancel, [1; 8])));
    }

    #[test]
    fn linked_requests_inherit_the_failure() {
        let drafts = [fill(9), fill(2)];
        let before = [vec![1; 8]];
        let beyond = Failure::OutOfBounds { side: Side::Destination, available: 8 };
        let first = failed(beyond, 0, false);
        let of =
            |second| judge((Order::Linked, &drafts), &[first, second], Excuses::default(), &before, &before);
        assert!(is_finding(of(failed(beyond, 0, false))));
        assert!(of(failed(beyond, 0, true)).is_ok());
        assert!(is_finding(of(done(2, 0))));
    }

    #[test]
    fn an_unknown_frame_excuses_no_other() {
        let before = [vec![1; 8], vec![1; 8]];
        let excuses = Excuses { cancelled: true, ..Excuses::default() };
        let overlapping = Operation::Copy { source: (0, 0), destination: (0, 2), length: 4 };
        let early = failed(Failure::Cancelled, 2, false);
        let of = |draft: Draft, bytes, found: [u8; 8]| {
            let drafts = [overlapping.clone(), draft];
            let ends = [early, done(bytes, 0)];
            judge((Order::Fenced, &drafts), &ends, excuses, &before, &[vec![9; 8], found.to_vec()])
        };
        let fill = Operation::Fill { destination: (1, 1), length: 4, pattern: Pattern::Byte(7) };
        assert!(of(fill.clone(), 4, [1, 7, 7, 7, 7, 1, 1, 1]).is_ok());
        assert!(is_finding(of(fill.clone(), 3, [1, 7, 7, 7, 7, 1, 1, 1])), "a wrong count");
        assert!(is_finding(of(fill, 4, [1, 7, 7, 7, 1, 1, 1, 1])), "a byte too few");
        // A comparison with unknown memory may have any value.
        let compare = |first| Operation::Compare { first: (first, 0), second: (1, 4), length: 4 };
        assert!(of(compare(0), 4, [1; 8]).is_ok());
        assert!(is_finding(of(compare(1), 4, [1; 8])));
    }

    #[test]
    fn a_killed_engine_may_write_more_than_it_reports() {
        let before = [vec![1; 8], vec![1; 8]];
        let excuses = Excuses { cancelled: true, ..Excuses::default() };
        let of = |engine, excuses, failure, found: [Vec<u8>; 2]| {
            let error =
                TransferError { id: TicketId::NONE, failure, bytes_done: 0, inherited: false, engine };
            judge((Order::Linked, &[fill(4)]), &[Err(error)], excuses, &before, &found)
        };
        let more = [vec![1, 7, 7, 1, 1, 1, 1, 1], vec![1; 8]];
        assert!(of(EngineKind::External, excuses, Failure::Cancelled, more.clone()).is_ok());
        assert!(is_finding(of(EngineKind::Cpu, excuses, Failure::Cancelled, more.clone())));
        assert!(is_finding(of(
            EngineKind::External,
            excuses,
            Failure::Cancelled,
            [more[0].clone(), vec![2; 8]]
        )));
        let faulted = |engine| of(engine, Excuses::default(), Failure::ChannelFaulted, before.clone());
        assert!(matches!(faulted(EngineKind::External), Err(Stop::Refused("lingering", _))));
        assert!(is_finding(faulted(EngineKind::Module)));
    }

    #[test]
    fn a_loop_moves_its_rounds() {
        let drafts = [fill(2)];
        let before = [vec![1; 4]];
        let after = [vec![1, 7, 7, 1]];
        let of = |rounds, whole, bytes, found: &[Vec<u8>]| {
            let ends = [done(0, whole), done(bytes, 0)];
            judge((Order::Loop { rounds }, &drafts), &ends, Excuses::default(), &before, found)
        };
        assert!(of(3, 3, 6, &after).is_ok() && of(0, 5, 10, &after).is_ok());
        assert!(is_finding(of(3, 2, 4, &after)) && is_finding(of(3, 3, 4, &after)));
        assert!(is_finding(of(3, 3, 6, &before)));
    }
}
