//! No file names a directory of one machine, or the host of a package registry.
//!
//! Such a name is valid on one machine, or for one way to get packages, but looks like part of the project. The lines of a
//! Cargo.lock that name a crate's source are cargo's format, and exempt.

use crate::tree::SourceFile;
use crate::violation::Violation;

/// Spelled in two parts, so that the list does not match itself.
const DIRECTORIES: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
const HOSTS: [&str; 4] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("deb.debian", ".org"),
];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        for (number, line) in file.lines().filter(|(_, line)| !is_lock_entry(&file.path, line)) {
            violations.extend(DIRECTORIES.iter().filter(|name| names_directory(line, name)).map(|name| {
                let message = format!("names a directory of one machine, `{name}`");
                Violation::new(
                    &file.path,
                    number,
                    message,
                    "use a path relative to the repository, or a temporary one",
                )
            }));
            violations.extend(HOSTS.iter().filter(|host| line.contains(*host)).map(|host| {
                let message = format!("names the host of a package registry, `{host}`");
                Violation::new(
                    &file.path,
                    number,
                    message,
                    "leave the host to the package manager's settings",
                )
            }));
        }
    }
    violations
}

fn is_lock_entry(path: &str, line: &str) -> bool {
    path.rsplit('/').next() == Some("Cargo.lock") && line.starts_with("source = \"registry+")
}

/// Whether the line contains an absolute path with this prefix. Inside a longer path the same letters are allowed.
fn names_directory(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_-.~}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[SourceFile::new(path, text)]).len()
    }

    #[test]
    fn refuses_directories_of_a_machine_in_any_file() {
        for name in DIRECTORIES {
            for text in [
                format!("see {name}notes"),
                format!("{name}a"),
                format!("file://{name}a"),
                format!("PATH=a:{name}b"),
            ] {
                assert_eq!(count("docs/a.md", &text), 1, "{text}");
            }
        }
    }

    #[test]
    fn accepts_the_same_letters_within_a_path() {
        assert_eq!(count("a.md", &format!("device{}x and ${{out}}{}x", DIRECTORIES[0], DIRECTORIES[1])), 0);
    }

    #[test]
    fn refuses_hosts_of_registries() {
        for host in HOSTS {
            assert_eq!(count("README.md", &format!("from https://static.{host}/x")), 1, "{host}");
        }
    }

    #[test]
    fn accepts_cargos_own_lines_in_a_lock_file_only() {
        let line = format!("source = \"registry+https://github.com/rust-lang/{}-index\"", HOSTS[0]);
        assert_eq!(count("tests/fuzz/Cargo.lock", &line), 0);
        assert_eq!(count("Cargo.toml", &line), 1);
        assert_eq!(count("Cargo.lock", &format!("# {}", HOSTS[0])), 1);
    }
}
