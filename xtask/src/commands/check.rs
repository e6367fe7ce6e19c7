//! Checks the sources against the house rules.

use crate::failure::Failure;
use crate::rules;
use crate::stages::print;
use crate::tree::{self, Tree};

pub(super) fn run() -> Result<(), Failure> {
    let tree = tree::read().map_err(|error| Failure::WrongUse(error.to_string()))?;
    report(&tree)
}

fn report(tree: &Tree) -> Result<(), Failure> {
    let violations = rules::check(tree);
    for violation in &violations {
        print(violation);
    }
    let checked =
        format!("{} rules, {} files, {} crates", rules::COUNT, tree.files.len(), tree.packages.len());
    if violations.is_empty() {
        print(format_args!("xtask check: no violation ({checked})"));
        return Ok(());
    }
    print(format_args!("xtask check: {} violations ({checked})", violations.len()));
    Err(Failure::Stage { stage: "house rules".to_owned(), status: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceFile;

    #[test]
    fn violations_are_status_1() {
        let files = vec![SourceFile::new("a.rs", "fn undocumented() {}\n")];
        let failure = report(&Tree { files, packages: Vec::new() }).unwrap_err();
        assert_eq!(failure.exit_status(), 1);
    }
}
