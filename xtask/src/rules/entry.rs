//! The README's test command is the one that continuous integration runs.
//!
//! Both must name [`TEST`], and continuous integration also [`LINT`]. The commands themselves are not checked.

use crate::tree::SourceFile;
use crate::violation::Violation;

const TEST: &str = "./x test";
const LINT: &str = "./x lint";
const README: &str = "README.md";
const CI: &str = ".ci/run";

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    [(README, TEST), (CI, TEST), (CI, LINT)]
        .into_iter()
        .filter(|(path, command)| !files.iter().any(|file| file.path == *path && names(file, command)))
        .map(|(path, command)| {
            let message = format!("`{command}` is not named here");
            Violation::new(
                path,
                1,
                message,
                format!("name `{command}` in {path}, on its own line or in backquotes"),
            )
        })
        .collect()
}

/// Whether a line other than a comment contains the whole command.
fn names(file: &SourceFile, command: &str) -> bool {
    file.lines().filter(|(_, line)| !line.starts_with("# ")).any(|(_, line)| {
        line.split_once(command)
            .is_some_and(|(_, rest)| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(readme: &str, ci: &str) -> Vec<Violation> {
        check(&[SourceFile::new(README, readme), SourceFile::new(CI, ci)])
    }

    #[test]
    fn accepts_the_same_commands_in_both() {
        assert_eq!(tree("Run `./x test`.\n", "./x lint\ntimed ./x test\n"), []);
    }

    #[test]
    fn refuses_a_readme_that_names_another_command() {
        assert_eq!(tree("Run `cargo test`.\n", "./x lint\n./x test\n")[0].path, README);
        assert_eq!(tree("Run `./x testing`.\n", "./x lint\n./x test\n")[0].path, README);
        assert_eq!(check(&[SourceFile::new(CI, "./x lint\n./x test\n")])[0].path, README);
    }

    #[test]
    fn refuses_continuous_integration_that_leaves_one_out() {
        assert_eq!(tree("./x test\n", "# ./x lint\n./x test\n")[0].path, CI);
        assert_eq!(tree("./x test\n", "./x lint\n").len(), 1);
    }
}
