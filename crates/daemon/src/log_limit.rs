//! A limit on log lines about what clients cause, for each user: a flood of connections must not become a flood of lines.
//!
//! ```text
//! refused, violated, may_write ─► a line, or a count once the user has had its lines of this period ─► one line with the count
//! ```
//!
//! Refusals with violations have one limit, sessions that begin and end another, so that neither hides the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memferry_service::protocol::Violation;
use memferry_transfer::SessionId;

/// Lines of one user in a period, about refusals and violations, and about sessions.
const MAX_LINES: u32 = 8;
const MAX_SESSION_LINES: u32 = 64;
const PERIOD: Duration = Duration::from_secs(10);
/// Users whose lines are counted. Lines about others are counted together.
const MAX_USERS: usize = 256;

#[derive(Default)]
struct Lines {
    written: u32,
    suppressed: u64,
}

pub(crate) struct LogLimit {
    /// Lines of one user in a period.
    limit: u32,
    /// What the lines are about.
    about: &'static str,
    /// By user; `None`: all users beyond the limit.
    users: BTreeMap<Option<u32>, Lines>,
    since: Option<Instant>,
}

impl LogLimit {
    fn new(limit: u32, about: &'static str) -> Self {
        Self { limit, about, users: BTreeMap::new(), since: None }
    }

    /// Counts lines about refusals and violations.
    pub(crate) fn of_refusals() -> Self {
        Self::new(MAX_LINES, "refusals and violations")
    }

    /// Counts lines about sessions that begin and end, so that those of refusals stay visible.
    pub(crate) fn of_sessions() -> Self {
        Self::new(MAX_SESSION_LINES, "connections")
    }

    /// A client was not accepted.
    pub(crate) fn refused(&mut self, user: u32, reason: &str) {
        if self.may_write(user) {
            tracing::warn!(user, reason, "refused");
        }
    }

    /// A client violated the protocol.
    pub(crate) fn violated(
        &mut self,
        user: u32,
        process: u32,
        session: Option<SessionId>,
        violation: &Violation,
    ) {
        if self.may_write(user) {
            let session = session.map(|session| session.0);
            tracing::warn!(session, user, process, reason = %violation, "violation");
        }
    }

    /// Whether another line about `user` may be written; counts it if not.
    pub(crate) fn may_write(&mut self, user: u32) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let known = self.users.contains_key(&Some(user)) || self.users.len() < MAX_USERS;
        let lines = self.users.entry(known.then_some(user)).or_default();
        if lines.written < self.limit {
            lines.written += 1;
            return true;
        }
        lines.suppressed += 1;
        false
    }

    /// Time until the end of the period, if lines were left out in it. An idle service has nothing to wake up for.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.users.values().any(|lines| lines.suppressed > 0).then_some(())?;
        Some((self.since? + PERIOD).saturating_duration_since(Instant::now()))
    }

    /// At the end of a period, says how many lines were left out.
    pub(crate) fn report_suppressed(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() < PERIOD) {
            return;
        }
        self.since = None;
        for (user, lines) in std::mem::take(&mut self.users) {
            if lines.suppressed > 0 {
                let count = lines.suppressed;
                tracing::warn!(user, count, "more {}, not logged one by one", self.about);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_user_hides_no_line_of_another() {
        let mut limit = LogLimit::of_refusals();
        let written = (0..1000).filter(|_| limit.may_write(1)).count();
        assert_eq!(written, MAX_LINES as usize);
        assert!(limit.may_write(2));
        assert_eq!(limit.users[&Some(1)].suppressed, 1000 - u64::from(MAX_LINES));
    }

    #[test]
    fn many_users_share_one_count() {
        let mut limit = LogLimit::of_refusals();
        let written = (0..10_000).filter(|user| limit.may_write(*user)).count();
        assert_eq!(written, MAX_USERS + MAX_LINES as usize);
        assert_eq!(limit.users.len(), MAX_USERS + 1);
    }

    #[test]
    fn only_lines_left_out_are_waited_for() {
        let mut limit = LogLimit::of_refusals();
        (0..MAX_LINES).for_each(|_| assert!(limit.may_write(1)));
        assert_eq!(limit.time_left(), None);
        limit.may_write(1);
        assert!(limit.time_left().is_some_and(|left| left <= PERIOD));
        limit.since = Instant::now().checked_sub(PERIOD);
        limit.report_suppressed();
        assert!(limit.users.is_empty() && limit.time_left().is_none());
        limit.may_write(1);
        limit.since = Instant::now().checked_sub(PERIOD);
        limit.report_suppressed();
        assert!(limit.users.is_empty(), "a period without such lines ends at the next event");
    }
}
