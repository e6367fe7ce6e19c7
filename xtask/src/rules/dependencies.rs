//! Every dependency is declared once, in the root manifest, with its reason; every crate inherits it.
//!
//! ```text
//! Cargo.toml, [workspace.dependencies] ──► a comment line directly above each that is not a path
//! the manifest of each crate ────────────► `workspace = true` for each dependency, and for the lints
//! manifests outside the workspaces ──────► their own `unsafe_code = "deny"`
//! ```
//!
//! Manifests outside the workspaces (the fuzz targets, the firmware) cannot inherit; their dependencies are not checked.

use toml::{Table, Value};

use crate::tree::{Package, SourceFile};
use crate::violation::Violation;

/// The manifests of the two workspaces.
const ROOTS: [&str; 2] = ["Cargo.toml", "research/Cargo.toml"];
const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(crate) fn check(files: &[SourceFile], packages: &[Package]) -> Vec<Violation> {
    let file = |path: &str| files.iter().find(|file| file.path == path);
    let mut violations: Vec<Violation> = ROOTS.into_iter().filter_map(file).flat_map(check_root).collect();
    for package in packages {
        violations.extend(file(&package.manifest).into_iter().flat_map(check_member));
    }
    let is_member =
        |path: &str| ROOTS.contains(&path) || packages.iter().any(|package| package.manifest == path);
    let is_manifest = |path: &str| path.ends_with("/Cargo.toml");
    let others = files.iter().filter(|file| is_manifest(&file.path) && !is_member(&file.path));
    violations.extend(others.flat_map(check_outsider));
    violations
}

fn check_outsider(file: &SourceFile) -> Option<Violation> {
    let manifest = match parse(file) {
        Ok(manifest) => manifest,
        Err(violation) => return Some(violation),
    };
    let lints = table(&manifest, "lints").and_then(|lints| table(lints, "rust"));
    let denies = lints.and_then(|rust| rust.get("unsafe_code")).and_then(Value::as_str) == Some("deny");
    (!denies).then(|| {
        let message = "a crate outside the workspaces does not deny unsafe code";
        Violation::new(&file.path, 1, message, "add `[lints.rust]` with `unsafe_code = \"deny\"`")
    })
}

fn check_root(root: &SourceFile) -> Vec<Violation> {
    let manifest = match parse(root) {
        Ok(manifest) => manifest,
        Err(violation) => return vec![violation],
    };
    let Some(dependencies) =
        table(&manifest, "workspace").and_then(|workspace| table(workspace, "dependencies"))
    else {
        return Vec::new();
    };
    let lines: Vec<&str> = root.text.lines().collect();
    let external = dependencies.iter().filter(|(_, value)| value.get("path").is_none());
    external
        .filter_map(|(name, _)| {
            let line = line_of(root, "workspace.dependencies", name);
            let above = line.checked_sub(2).map_or("", |above| lines[above]);
            (!above.starts_with("# ")).then(|| {
                let message = format!("dependency `{name}` has no reason");
                Violation::new(
                    &root.path,
                    line,
                    message,
                    "say directly above, in a comment, what it is needed for",
                )
            })
        })
        .collect()
}

fn check_member(file: &SourceFile) -> Vec<Violation> {
    let manifest = match parse(file) {
        Ok(manifest) => manifest,
        Err(violation) => return vec![violation],
    };
    let mut violations = Vec::new();
    if !table(&manifest, "lints").is_some_and(inherits) {
        let message = "the crate does not inherit the workspace's lints";
        violations.push(Violation::new(&file.path, 1, message, "add `[lints]` with `workspace = true`"));
    }
    let targets =
        table(&manifest, "target").into_iter().flatten().filter_map(|(_, target)| target.as_table());
    for holder in targets.chain([&manifest]) {
        for section in SECTIONS {
            let declared = table(holder, section).into_iter().flatten();
            for (name, _) in declared.filter(|(_, value)| !value.as_table().is_some_and(inherits)) {
                violations.push(Violation::new(
                    &file.path,
                    line_of(file, section, name),
                    format!("dependency `{name}` is not inherited from the workspace"),
                    "declare it in the root manifest, with its reason, and write `workspace = true` here",
                ));
            }
        }
    }
    violations
}

fn parse(file: &SourceFile) -> Result<Table, Violation> {
    file.text.parse().map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + file.text[..start].matches('\n').count();
        Violation::new(&file.path, line, error.message(), "make the manifest valid TOML")
    })
}

fn table<'a>(holder: &'a Table, name: &str) -> Option<&'a Table> {
    holder.get(name).and_then(Value::as_table)
}

fn inherits(entry: &Table) -> bool {
    entry.get("workspace").and_then(Value::as_bool) == Some(true)
}

/// The line that declares the dependency: a key in its section, or a header.
fn line_of(file: &SourceFile, section: &str, name: &str) -> usize {
    let own_header = format!("{section}.{name}]");
    let mut in_section = false;
    let declares = |line: &str| {
        let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
        key.trim_matches('"') == name
    };
    file.lines()
        .find(|(_, line)| {
            if line.starts_with('[') {
                in_section = line.ends_with(&format!("{section}]"));
                return line.ends_with(&own_header);
            }
            in_section && declares(line)
        })
        .map_or(1, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn root(dependencies: &str) -> Vec<usize> {
        let text = format!("[workspace.dependencies]\n{dependencies}");
        check(&[SourceFile::new(ROOTS[0], &text)], &[]).iter().map(|violation| violation.line).collect()
    }

    fn member(manifest: &str) -> Vec<(usize, String)> {
        let package = Package { name: "a".to_owned(), manifest: "a/Cargo.toml".to_owned(), edges: vec![] };
        let found = check(&[SourceFile::new("a/Cargo.toml", manifest)], &[package]);
        found.into_iter().map(|violation| (violation.line, violation.message)).collect()
    }

    #[test]
    fn accepts_reasons_and_our_own_crates() {
        assert_eq!(
            root("a = { path = \"a\" }\n\n# Needed for b.\nb = \"1\"\n# And c.\nc = { version = \"1\" }\n"),
            NONE
        );
    }

    #[test]
    fn a_crate_outside_the_workspace_denies_unsafe_code_itself() {
        let found = |manifest: &str| check(&[SourceFile::new("b/Cargo.toml", manifest)], &[]).len();
        assert_eq!(found("[lints.rust]\nunsafe_code = \"deny\"\n"), 0);
        assert_eq!(found("[lints.rust]\nunsafe_code = \"warn\"\n"), 1);
        assert_eq!(found("[package]\nname = \"b\"\n"), 1);
        assert_eq!(found("[package\n"), 1);
    }

    #[test]
    fn refuses_a_dependency_without_its_reason() {
        assert_eq!(root("# Needed for b.\nb = \"1\"\nc = \"1\"\n"), [4]);
        assert_eq!(root("# Too far.\n\nb = \"1\"\n"), [4]);
        assert_eq!(root("\n[workspace.dependencies.b]\nversion = \"1\"\n"), [3]);
    }

    #[test]
    fn accepts_inherited_dependencies_in_every_form() {
        let manifest = "[dependencies]\na.workspace = true\nb = { workspace = true, optional = true }\n\
                        [target.'cfg(loom)'.dev-dependencies]\nc.workspace = true\n[lints]\nworkspace = true\n";
        assert_eq!(member(manifest), []);
    }

    #[test]
    fn refuses_a_dependency_not_inherited() {
        let manifest = "[lints]\nworkspace = true\n[dependencies]\na = \"1\"\n[dev-dependencies.b]\npath = \"../b\"\n\
                        [target.'cfg(loom)'.dependencies]\nc = { version = \"1\" }\n";
        let mut lines: Vec<usize> = member(manifest).into_iter().map(|(line, _)| line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [4, 5, 8]);
    }

    #[test]
    fn refuses_a_crate_with_its_own_lints() {
        assert!(member("[package]\nname = \"a\"\n")[0].1.contains("lints"));
        assert!(member("[lints.rust]\nunsafe_code = \"allow\"\n")[0].1.contains("lints"));
    }

    #[test]
    fn refuses_a_manifest_that_is_not_toml() {
        assert_eq!(member("[lints]\nworkspace = \n").len(), 1);
    }
}
