//! Lines for the administrator.

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long strangers' mistakes are counted before the next line.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes a line for the administrator to standard error, as far as that is open.
pub(crate) fn tell(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "memferry link: {what}");
}

/// Lines that anybody can cause: one in a while, and a count of the others.
#[derive(Default)]
pub(crate) struct Rare(Mutex<(Option<Instant>, u64)>);

impl Rare {
    /// Writes a line, or counts it.
    pub(crate) fn tell(&self, what: std::fmt::Arguments<'_>) {
        match self.due(Instant::now()) {
            None => {}
            Some(0) => tell(what),
            Some(more) => tell(format_args!("{what} ({more} more before, not shown)")),
        }
    }

    /// How many lines were not shown before this one, if it is shown.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, hidden) = &mut *state;
        if last.is_some_and(|last| now < last + PAUSE) {
            *hidden += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(hidden))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_shown_in_a_while() {
        let rare = Rare::default();
        let now = Instant::now();
        assert_eq!(rare.due(now), Some(0));
        assert_eq!(rare.due(now), None);
        assert_eq!(rare.due(now + PAUSE / 2), None);
        assert_eq!(rare.due(now + PAUSE), Some(2));
        assert_eq!(rare.due(now + PAUSE * 3), Some(0));
    }
}
