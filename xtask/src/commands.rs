//! The commands of `./x`, one module per subject.
//!
//! ```text
//! Command ──► set up what it needs ──► run its stages until one fails, or execute a program
//! ```

mod audit;
mod bindings;
mod check;
mod dashboard;
mod fuzz;
mod guest;
mod lint;
mod package;
mod peers;
mod prepare;
mod programs;
mod site;
mod soak;
mod test;
mod unpacked;

use crate::arguments::Command;
use crate::failure::Failure;
use crate::work::Work;

pub(crate) fn run(work: &Work, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Demo(passed) => programs::demo(work, &passed.arguments),
        Command::Advise(passed) => programs::advise(work, &passed.arguments),
        Command::Bench(passed) => programs::bench(work, &passed.arguments),
        Command::Lab(passed) => programs::lab(work, &passed.arguments),
        Command::Soak(passed) => soak::run(work, &passed.arguments),
        Command::Python(passed) => bindings::python(work, &passed.arguments),
        Command::C(c) => bindings::c(work, c.prefix.as_deref()),
        Command::Test(test) => test::run(work, test),
        Command::Guest(guest) => guest::run(work, &guest.machine),
        Command::Lint => lint::run(work),
        Command::Fuzz(fuzz) => fuzz::run(work, fuzz.target.as_deref(), fuzz.all, fuzz.seconds),
        Command::Audit => audit::run(work),
        Command::Coverage => audit::coverage(work),
        Command::Site(options) => site::run(work, options),
        Command::Setup(setup) => prepare::run(work.place, setup.dry_run),
        Command::Package => package::run(work),
        Command::Install(install) => package::install(work, &install.prefix),
        Command::Check => check::run(),
    }
}
