//! A full run: parts in order, each once for the same sources; or one part, for continuous integration.
//!
//! ```text
//! parts ── passed earlier ──► skipped
//!       ├─ passes ──────────► noted in target/full/passed
//!       ├─ cannot be set up ► NOT RUN, the others continue
//!       └─ fails ───────────► the run ends with its status; the next run starts with it
//! ```

use std::time::{Duration, Instant};

use super::parts::{self, PARTS, Part};
use super::progress::{self, Progress};
use crate::arguments;
use crate::failure::Failure;
use crate::files;
use crate::line::Line;
use crate::stages::{output, print, say};
use crate::work::Work;

pub(super) fn run(work: &Work, test: &arguments::Test) -> Result<(), Failure> {
    if test.list {
        print(list());
        return Ok(());
    }
    if let Some(seconds) = test.rotate {
        return rotate(work, seconds);
    }
    if test.parts.is_empty() {
        let parts: Vec<&Part> = PARTS.iter().filter(|part| part.is_default).collect();
        return Run::new(work, test.fresh)?.run(&parts, true);
    }
    Run::new(work, test.fresh)?.run(&parts::named(&test.parts)?, false)
}

fn list() -> String {
    let rows = PARTS.iter().map(|part| {
        let mark = if part.is_default { ' ' } else { '*' };
        format!("{:20} {:3} min {mark} {}\n", part.name, part.minutes, part.about)
    });
    let minutes: u32 = PARTS.iter().filter(|part| part.is_default).map(|part| part.minutes).sum();
    let rows: String = rows.collect();
    format!(
        "{rows}\nUsual durations on two CPUs, with nothing built or downloaded before; {minutes} minutes in all.\n\
         * only where it is named: ./x test --full PART"
    )
}

struct Run<'a> {
    work: &'a Work<'a>,
    progress: Progress,
    results: Vec<String>,
    not_run: Vec<(&'static str, Failure)>,
}

impl<'a> Run<'a> {
    fn new(work: &'a Work<'a>, is_fresh: bool) -> Result<Self, Failure> {
        let path = progress::path(work.place);
        let progress = match progress::sources(work.place) {
            Some(sources) if !is_fresh => Progress::load(&path, &sources),
            sources => {
                let none = Progress::none(sources.as_deref().unwrap_or("unknown"));
                none.save(&path).map_err(|error| files::broken(&path, &error))?;
                none
            }
        };
        Ok(Self { work, progress, results: Vec::new(), not_run: Vec::new() })
    }

    /// Runs parts. Parts that passed earlier are run again only if they are named.
    fn run(mut self, parts: &[&'static Part], continues: bool) -> Result<(), Failure> {
        let ended = parts.iter().try_for_each(|part| match self.progress.seconds(part.name) {
            Some(seconds) if continues => {
                self.note(part, &format!("passed earlier in {seconds} s, with the same sources"));
                Ok(())
            }
            _ => self.run_part(part),
        });
        print(format_args!("\n{}", self.results.join("\n")));
        ended?;
        if continues {
            let left_out: Vec<&str> =
                PARTS.iter().filter(|part| !part.is_default).map(|part| part.name).collect();
            self.work.leave_out(format!("left out: {}", left_out.join(", ")));
        }
        match self.not_run.pop() {
            Some((_, failure)) if !continues => Err(failure),
            last => {
                let is_whole = last.is_none();
                let all = if is_whole { "all parts passed" } else { "all parts that were run passed" };
                print(format_args!("\nx test --full: {all}{}", self.work.left_out()));
                Ok(())
            }
        }
    }

    fn run_part(&mut self, part: &'static Part) -> Result<(), Failure> {
        print(format_args!("\n### {}: {}, usually {} min", part.name, part.about, part.minutes));
        let start = Instant::now();
        let ended = (part.run)(self.work, None);
        let seconds = start.elapsed().as_secs();
        match ended {
            Ok(()) => {
                if let Err(error) = self.progress.note(&progress::path(self.work.place), part.name, seconds) {
                    say(format_args!("cannot note that {} passed: {error}", part.name));
                }
                self.note(part, &format!("passed in {seconds} s"));
                Ok(())
            }
            Err(Failure::Setup(why)) => {
                say(format_args!("{}: NOT RUN: {why}", part.name));
                self.note(part, &format!("NOT RUN: {why}"));
                self.work.leave_out(format!("{} was NOT RUN: {why}", part.name));
                self.not_run.push((part.name, Failure::Setup(why)));
                Ok(())
            }
            Err(failure) => {
                self.note(part, &format!("FAILED after {seconds} s; ./x test --full continues with it"));
                Err(failure)
            }
        }
    }

    fn note(&mut self, part: &Part, result: &str) {
        self.results.push(format!("{:20} {result}", part.name));
    }
}

/// Runs one part, chosen by the number of commits among those that fit into the seconds.
fn rotate(work: &Work, seconds: u64) -> Result<(), Failure> {
    let line = Line::new("git").args(["rev-list", "--count", "HEAD"]).within(&work.place.root);
    let commits = output(&line).and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let Some(part) = parts::choose(commits, seconds) else {
        print(format_args!("\nx test --full: NOT RUN: no part fits into {seconds} s"));
        return Ok(());
    };
    print(format_args!("\n### {}: {}, chosen by commit {commits} for {seconds} s", part.name, part.about));
    match (part.run)(work, Some(Duration::from_secs(seconds))) {
        Ok(()) => {
            print(format_args!("\nx test --full: {} passed{}", part.name, work.left_out()));
            Ok(())
        }
        Err(Failure::Setup(why)) => {
            print(format_args!("\nx test --full: {} was NOT RUN: {why}", part.name));
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    const PASSES: Part = parts::for_tests("passes", |_, _| Ok(()));
    const CANNOT: Part = parts::for_tests("cannot", |_, _| Err(Failure::setup("no network")));
    const FAILS: Part =
        parts::for_tests("fails", |_, _| Err(Failure::Stage { stage: "fails".to_owned(), status: 7 }));
    const NEVER: Part = parts::for_tests("never", |_, _| panic!("this part must not run"));

    fn full(name: &str, parts: &[&'static Part], continues: bool) -> (Result<(), Failure>, Progress) {
        let target = std::env::temp_dir().join(format!("xtask-full-{name}-{}", std::process::id()));
        let place = Place { root: target.clone(), caller: target.clone(), target: target.clone() };
        let work = Work::new(&place);
        let mut progress = Progress::none("abc");
        progress.add("never", 5);
        let run = Run { work: &work, progress, results: Vec::new(), not_run: Vec::new() };
        let ended = run.run(parts, continues);
        let progress = Progress::load(&progress::path(&place), "abc");
        let _ = std::fs::remove_dir_all(&target);
        (ended, progress)
    }

    #[test]
    fn a_run_continues_after_passed_parts() {
        let (ended, progress) = full("on", &[&NEVER, &PASSES], true);
        assert_eq!(ended, Ok(()));
        assert!(progress.seconds("passes").is_some());
    }

    #[test]
    fn a_run_ends_with_the_failed_status() {
        let (ended, progress) = full("fails", &[&PASSES, &FAILS, &NEVER], true);
        assert_eq!(ended.unwrap_err().exit_status(), 7);
        assert!(progress.seconds("passes").is_some() && progress.seconds("fails").is_none());
    }

    #[test]
    fn a_failed_setup_is_not_a_failure() {
        let (ended, progress) = full("cannot", &[&CANNOT, &PASSES], true);
        assert_eq!(ended, Ok(()));
        assert!(progress.seconds("passes").is_some() && progress.seconds("cannot").is_none());
    }

    #[test]
    fn a_named_part_must_run() {
        let (ended, _) = full("named", &[&CANNOT], false);
        assert_eq!(ended.unwrap_err().exit_status(), 3);
    }

    #[test]
    fn list_has_every_part_with_its_duration() {
        let list = list();
        for part in PARTS {
            let row = list.lines().find(|row| row.starts_with(&format!("{} ", part.name)));
            assert!(row.is_some_and(|row| row.contains(&format!("{} min", part.minutes))), "{}", part.name);
        }
    }
}
