//! Progress of a run: a bar if standard error is a terminal, otherwise a line for each finished job.
//!
//! ```text
//! job ended ──► count ──► bar with its name, or "17/250 wicki-fig-03, after 12.1 s"
//! ```
//!
//! Counts jobs only; it does not estimate time.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress display of a run.
pub(crate) struct Display {
    bar: ProgressBar,
    /// The number of jobs, if a line is printed for each.
    lines: Option<usize>,
    ended: AtomicUsize,
    kept: AtomicUsize,
    started: Instant,
}

impl Display {
    pub(crate) fn new(jobs: usize) -> Self {
        let terminal = io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            lines: (!terminal).then_some(jobs),
            ended: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            started: Instant::now(),
        }
    }

    /// Counts a finished job; `kept` if its result was recalled.
    pub(crate) fn ended(&self, name: &str, kept: bool) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        self.kept.fetch_add(usize::from(kept), Ordering::Relaxed);
        self.bar.set_message(name.to_owned());
        self.bar.inc(1);
        if let Some(jobs) = self.lines.filter(|_| !kept) {
            eprintln!("{ended}/{jobs} {name}, after {:.1} s", self.started.elapsed().as_secs_f64());
        }
    }

    /// Ends the display and prints how many results were recalled.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
        let ended = self.ended.load(Ordering::Relaxed);
        let kept = self.kept.load(Ordering::Relaxed);
        if kept > 0 {
            eprintln!(
                "{kept} of {ended} results were kept from earlier runs of this build; --fresh computes them again"
            );
        }
    }
}
