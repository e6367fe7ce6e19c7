//! One version everywhere: that of `[workspace.package]` in the root manifest.
//!
//! ```text
//! Cargo.toml, workspace.package.version ──┬─► manifests, and what they ask of crates of the tree
//!                                         ├─► lock files: packages of the tree
//!                                         ├─► first release of CHANGELOG.md
//!                                         └─► MF_VERSION of the C interface, version of the libfabric provider
//! ```
//!
//! Debian's changelog, the pkg-config files, the names of the libraries and the manual pages take the version when they are made. Symbol
//! versions are not checked: they name the release that brought a symbol.

use toml::{Table, Value};

use crate::tree::SourceFile;
use crate::violation::Violation;

const ROOT: &str = "Cargo.toml";
const CHANGELOG: &str = "CHANGELOG.md";
const PYTHON: &str = "bindings/python/pyproject.toml";
/// The C interface's number, and the provider's: file, and what stands before and after them.
const C_TYPES: (&str, &str, char) = ("bindings/c/src/types.rs", "pub const MF_VERSION: u32 = ", ';');
const PROVIDER: (&str, &str, char) = ("bindings/libfabric/provider.c", ".version = FI_VERSION(", ')');
const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let root = files.iter().find(|file| file.path == ROOT);
    // A file that is no TOML is a violation of another rule.
    let Some(version) = root.and_then(|root| workspace_version(&root.text.parse().ok()?)) else {
        return Vec::new();
    };
    let mut violations = Vec::new();
    for file in files {
        let Some(found) = found(file, &version) else { continue };
        for (line, found) in found.into_iter().filter(|(_, found)| found.as_str() != version) {
            let message = format!("version {found}, and the workspace has {version}");
            let remedy = format!("write the version of {ROOT}; `cargo update --workspace` mends a lock file");
            violations.push(Violation::new(&file.path, line, message, remedy));
        }
    }
    violations
}

/// The versions that a file says the tree has, with their lines; `None` for a file that says none.
fn found(file: &SourceFile, version: &str) -> Option<Vec<(usize, String)>> {
    let is = |name: &str| file.path == name || file.path.ends_with(&format!("/{name}"));
    if is("Cargo.toml") || file.path == PYTHON {
        return Some(of_manifest(file));
    }
    if is("Cargo.lock") {
        return Some(of_lock_file(file));
    }
    match file.path.as_str() {
        CHANGELOG => Some(vec![of_changelog(file)]),
        path if path == C_TYPES.0 => Some(vec![of_number(file, C_TYPES, version, c_version)]),
        path if path == PROVIDER.0 => Some(vec![of_number(file, PROVIDER, version, provider_version)]),
        _ => None,
    }
}

fn workspace_version(manifest: &Table) -> Option<String> {
    text_of(manifest.get("workspace")?.get("package")?)
}

fn text_of(package: &Value) -> Option<String> {
    package.get("version")?.as_str().map(str::to_owned)
}

fn of_manifest(file: &SourceFile) -> Vec<(usize, String)> {
    let Ok(manifest) = file.text.parse::<Table>() else { return Vec::new() };
    let own = ["package", "project"].into_iter().filter_map(|name| text_of(manifest.get(name)?));
    let workspace = manifest.get("workspace").and_then(Value::as_table);
    let inherited = workspace_version(&manifest).into_iter();
    let holders = [Some(&manifest), workspace].into_iter().flatten();
    let dependencies = holders.flat_map(|holder| SECTIONS.iter().filter_map(|name| holder.get(*name)));
    let dependencies = dependencies.filter_map(Value::as_table).flatten();
    let of_the_tree = dependencies.filter(|(_, value)| value.get("path").is_some());
    let asked = of_the_tree.filter_map(|(_, value)| text_of(value));
    own.chain(inherited).chain(asked).map(|version| (line_of(file, &version), version)).collect()
}

/// Packages without a source are those of the tree.
fn of_lock_file(file: &SourceFile) -> Vec<(usize, String)> {
    let Ok(lock) = file.text.parse::<Table>() else { return Vec::new() };
    let packages = lock.get("package").and_then(Value::as_array).into_iter().flatten();
    let own = packages.filter(|package| package.get("source").is_none());
    own.filter_map(text_of).map(|version| (line_of(file, &version), version)).collect()
}

/// The latest release that the changelog describes.
fn of_changelog(file: &SourceFile) -> (usize, String) {
    let headings =
        file.lines().filter_map(|(line, text)| Some((line, text.strip_prefix("## [")?.split(']').next()?)));
    let release =
        headings.filter(|(_, name)| *name != "Unreleased").map(|(line, name)| (line, name.to_owned()));
    release.into_iter().next().unwrap_or((1, "none".to_owned()))
}

/// The version itself, if the number is the right one for it.
fn of_number(
    file: &SourceFile,
    (_, before, after): (&str, &str, char),
    version: &str,
    number: fn(u32, u32) -> String,
) -> (usize, String) {
    let found = file.lines().find_map(|(line, text)| {
        Some((line, text.trim_start().strip_prefix(before)?.split(after).next()?.to_owned()))
    });
    let Some((line, found)) = found else { return (1, "none".to_owned()) };
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let expected = number(parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (line, if found == expected { version.to_owned() } else { found })
}

/// As MF_MAKE_VERSION makes it.
fn c_version(major: u32, minor: u32) -> String {
    (major << 16 | minor).to_string()
}

fn provider_version(major: u32, minor: u32) -> String {
    format!("{major}, {minor}")
}

/// The first line with this version as a key's value.
fn line_of(file: &SourceFile, version: &str) -> usize {
    let text = format!("version = \"{version}\"");
    file.lines().find(|(_, line)| line.contains(&text)).map_or(1, |(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a file with violations, beside a workspace of version 1.2.3.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let root = SourceFile::new(ROOT, "[workspace.package]\nversion = \"1.2.3\"\n");
        check(&[root, SourceFile::new(path, text)]).iter().map(|violation| violation.line).collect()
    }

    const NONE: [usize; 0] = [];

    #[test]
    fn manifests_have_the_workspaces_version() {
        let path = "research/Cargo.toml";
        assert_eq!(lines(path, "[workspace.package]\nversion = \"1.2.3\"\n"), NONE);
        assert_eq!(lines(path, "[workspace.package]\nversion = \"1.2.4\"\n"), [2]);
        assert_eq!(lines(path, "[package]\n\nversion = \"1.2\"\n"), [3]);
        assert_eq!(lines(path, "[package]\nversion.workspace = true\n"), NONE);
        assert_eq!(lines(PYTHON, "[project]\nversion = \"0.1.0\"\n"), [2]);
    }

    #[test]
    fn crates_ask_for_that_version_of_each_other() {
        let one = |version| format!("[dependencies]\na = {{ path = \"a\", version = \"{version}\" }}\n");
        assert_eq!(lines("b/Cargo.toml", &one("1.2.3")), NONE);
        assert_eq!(lines("b/Cargo.toml", &one("1.2.2")), [2]);
        assert_eq!(lines("b/Cargo.toml", "[dependencies]\na = { version = \"4.0\" }\n"), NONE);
    }

    #[test]
    fn lock_files_are_those_of_the_version() {
        let lock = |version, source| format!("[[package]]\nname = \"a\"\nversion = \"{version}\"\n{source}");
        assert_eq!(lines("tests/fuzz/Cargo.lock", &lock("1.2.3", "")), NONE);
        assert_eq!(lines("tests/fuzz/Cargo.lock", &lock("1.2.2", "")), [3]);
        assert_eq!(lines("tests/fuzz/Cargo.lock", &lock("1.2.2", "source = \"registry\"\n")), NONE);
    }

    #[test]
    fn changelog_describes_the_version() {
        assert_eq!(lines(CHANGELOG, "# C\n\n## [Unreleased]\n\n## [1.2.3] - 2026\n\n## [1.0.0]\n"), NONE);
        assert_eq!(lines(CHANGELOG, "# C\n\n## [1.2.2]\n\n## [1.2.3]\n"), [3]);
        assert_eq!(lines(CHANGELOG, "# C\n\n## [Unreleased]\n"), [1]);
    }

    #[test]
    fn numbers_of_interfaces_follow() {
        assert_eq!(lines(C_TYPES.0, "pub const MF_VERSION: u32 = 65538;\n"), NONE);
        assert_eq!(lines(C_TYPES.0, "pub const MF_VERSION: u32 = 65537;\n"), [1]);
        assert_eq!(lines(C_TYPES.0, "\n"), [1]);
        assert_eq!(lines(PROVIDER.0, "a = {\n    .version = FI_VERSION(1, 2),\n"), NONE);
        assert_eq!(lines(PROVIDER.0, "a = {\n    .version = FI_VERSION(0, 1),\n"), [2]);
    }
}
