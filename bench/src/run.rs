//! One run of a group: its options, its directory, its progress bar, and cleanup on a signal.
//!
//! ```text
//! Run::begin ─► part(name, rounds) ─ round_done, ... ─► part ... ─► drop: removes bar and files
//!      └ a thread that sleeps until SIGINT or SIGTERM: removes bar and files, exits; children end with this process
//! ```
//!
//! The bar is drawn only between rounds, without a thread, and only if stderr is a terminal.

use std::io::{IsTerminal, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry_charts::DrawError;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::BenchError;

/// A shell's exit code for a command ended by SIGINT.
const INTERRUPTED: i32 = 130;
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

pub(crate) struct Run {
    quick: bool,
    only: Vec<String>,
    plots: Option<PathBuf>,
    directory: PathBuf,
    /// Its place, perhaps not made yet.
    in_memory: PathBuf,
    bar: ProgressBar,
}

impl Run {
    /// Begins a run: `quick` only checks that everything works; `only` selects parts.
    pub(crate) fn begin(quick: bool, only: &[String]) -> Result<Self, BenchError> {
        let name = format!("memferry-bench-{}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        let in_memory = Path::new(MEMORY).join(&name);
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{msg:<12} [{bar:40}] {pos}/{len}")?.progress_chars("=> "),
        );
        end_on_signal(bar.clone(), [directory.clone(), in_memory.clone()])?;
        Ok(Self { quick, only: only.to_vec(), plots: None, directory, in_memory, bar })
    }

    /// Draws plots into this directory; without one, none are drawn.
    pub(crate) fn plots_into(&mut self, directory: Option<&Path>) {
        self.plots = directory.map(Path::to_owned);
    }

    /// Whether to run few rounds.
    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// Whether the part was selected.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == part)
    }

    /// Fails if a selected part does not exist.
    ///
    /// # Errors
    /// Names the first unknown part.
    pub(crate) fn refuse_unknown(
        &self,
        parts: impl IntoIterator<Item = &'static str>,
    ) -> Result<(), BenchError> {
        let names: Vec<_> = parts.into_iter().collect();
        match self.only.iter().find(|wanted| !names.contains(&wanted.as_str())) {
            Some(odd) => {
                Err(format!("the group has no part '{odd}'; choose among: {}", names.join(", ")).into())
            }
            None => Ok(()),
        }
    }

    /// Directory for files, removed with the run.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Directory for long files, in memory if there is room for so many bytes, so that no disk is measured; removed with the run.
    pub(crate) fn directory_in_memory(&self, bytes: u64) -> Result<&Path, BenchError> {
        let has_room = rustix::fs::statvfs(MEMORY).is_ok_and(|about| about.f_bavail * about.f_bsize > bytes);
        let made = has_room.then(|| std::fs::DirBuilder::new().mode(0o700).create(&self.in_memory));
        if self.in_memory.exists() && made.is_none_or(|made| made.is_ok()) {
            return Ok(&self.in_memory);
        }
        self.say(&format!("{MEMORY} has no room: files are in {}", self.directory.display()));
        Ok(&self.directory)
    }

    /// Begins a part and returns its number of rounds: `full`, or few in a quick run.
    pub(crate) fn part(&self, name: &str, full: usize) -> usize {
        let rounds = if self.quick { full.min(3) } else { full };
        self.bar.reset();
        self.bar.set_length(rounds as u64);
        self.bar.set_message(name.to_owned());
        rounds
    }

    /// Advances the progress bar by a round.
    pub(crate) fn round_done(&self) {
        self.bar.inc(1);
    }

    /// Whether plots were requested.
    pub(crate) fn draws(&self) -> bool {
        self.plots.is_some()
    }

    /// Draws and writes a chart if plots were requested, and prints its path.
    ///
    /// # Errors
    /// If it cannot be drawn or written.
    pub(crate) fn picture(
        &self,
        name: &str,
        draw: impl FnOnce() -> Result<String, DrawError>,
    ) -> Result<(), BenchError> {
        let Some(directory) = &self.plots else { return Ok(()) };
        let path = directory.join(name).with_extension("svg");
        let text = draw().map_err(|error| format!("cannot draw {name}: {error}"))?;
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        self.say(&format!("plot: {}", path.display()));
        Ok(())
    }

    /// Prints a line beside the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        for directory in [&self.directory, &self.in_memory] {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn end_on_signal(bar: ProgressBar, directories: [PathBuf; 2]) -> Result<(), BenchError> {
    let (mut ours, handler_end) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, handler_end.try_clone()?)?;
    }
    let wait = move || {
        // Pinned open, or the other end would read end-of-file.
        let _handler_end = handler_end;
        if ours.read_exact(&mut [0]).is_ok() {
            bar.finish_and_clear();
            for directory in &directories {
                let _ = std::fs::remove_dir_all(directory);
            }
            eprintln!("memferry-bench: interrupted");
            std::process::exit(INTERRUPTED);
        }
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait)?;
    Ok(())
}
