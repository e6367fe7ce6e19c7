//! Tests in which the user matters, run again by root as an ordinary user.
//!
//! ```text
//! root ─► cargo test ─ its runner: setpriv ─► each test program as an ordinary user
//! ```
//!
//! Root passes checks of permissions that others meet, so a fault that every user has would be hidden.

use std::os::unix::fs::PermissionsExt;

use crate::failure::Failure;
use crate::files::{broken, make_anew};
use crate::layout::{PRODUCT_WORKSPACE, test};
use crate::line::Line;
use crate::place::is_root;
use crate::stages::{has, run};
use crate::work::Work;

/// What runs a program as a user whose id no package gives to anybody. It is not 65534, which stands for users without an id.
/// Folders of root in its path would be forbidden to this user.
const RUNNER: [&str; 7] = [
    "setpriv",
    "--reuid=64999",
    "--regid=64999",
    "--clear-groups",
    "env",
    "HOME=/tmp",
    "PATH=/usr/local/bin:/usr/bin:/bin",
];

/// Runs them if this is root, and if another user can reach the working tree.
pub(super) fn again(work: &Work) -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let target = &work.place.target;
    let can_read = as_user().args(["test", "-r"]).arg(target.join("debug/memferry"));
    if !has("setpriv") || run(&can_read) != 0 {
        work.leave_out("the tests were not run as an ordinary user, who cannot read this folder");
        return Ok(());
    }
    let temporary = target.join("tmp");
    make_anew(&temporary)?;
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o777))
        .map_err(|error| broken(&temporary, &error))?;
    // Of the whole workspace, which is built: packages alone would be built again, with other features.
    let tests = test::USERS_MATTER.iter().flat_map(|name| ["--test", name]);
    let line = PRODUCT_WORKSPACE.cargo(&["test", "--workspace"]).args(tests);
    let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
    let line = line.env(&runner, RUNNER.join(" ")).env("MEMFERRY_TEST_BUILT", target.join("debug"));
    work.stages.run("tests as an ordinary user", &line)
}

fn as_user() -> Line {
    let [program, words @ ..] = RUNNER;
    Line::new(program).args(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_without_roots_groups() {
        let line = as_user().arg("true").to_string();
        let user = "setpriv --reuid=64999 --regid=64999 --clear-groups env HOME=/tmp";
        assert_eq!(line, format!("{user} PATH=/usr/local/bin:/usr/bin:/bin true"));
    }
}
