//! Licences and notices of the crates that a program contains.
//!
//! ```text
//! cargo metadata ──► crates that the program links, not its build ──► list, then each different text once
//! ```
//!
//! The texts are those that the crates' own archives have. A crate without one is an error: most licences demand that copies of a program
//! bring their notice. So does that of Rust's standard library, whose text is that of this project's MIT licence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};

use crate::failure::Failure;

/// Beginnings of the names of files with licences, in capitals.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];
const TITLE: &str = "Crates of others in this package, with their licences and notices.\n";
/// The project's own MIT licence: its heading and first line of copyright end before the text that is the same for all.
const MIT: &str = include_str!("../../../LICENSE-MIT");
const STANDARD_LIBRARY: &str = "Rust's standard library";

/// The notices of some of the project's crates, in a workspace's folder, for a host.
pub(crate) fn of(crate_names: &[&str], workspace: &Path, host: &str) -> Result<String, Failure> {
    let mut crates: Vec<Notice> =
        linked(&metadata(workspace, host)?, crate_names).into_iter().map(Notice::read).collect();
    if let Some(bare) = crates.iter().find(|notice| notice.texts.is_empty()) {
        return Err(Failure::setup(format!("the crate {} brings no text of its licence", bare.name)));
    }
    crates.push(standard_library());
    Ok(text(&crates))
}

fn standard_library() -> Notice {
    let permission = MIT.find("Permission is hereby granted").map_or(MIT, |at| &MIT[at..]);
    Notice {
        name: STANDARD_LIBRARY.to_owned(),
        licence: "MIT OR Apache-2.0".to_owned(),
        texts: vec![format!("Copyright (c) The Rust Project Contributors\n\n{permission}")],
    }
}

/// The crates for a host, which set-up has fetched. Those for other platforms need not be there.
fn metadata(workspace: &Path, host: &str) -> Result<Metadata, Failure> {
    let options = ["--filter-platform", host, "--offline", "--locked"].map(str::to_owned);
    let metadata = MetadataCommand::new().current_dir(workspace).other_options(options).exec();
    metadata.map_err(|error| Failure::setup(format!("cannot read the crates: {error}")))
}

/// A crate and its texts.
struct Notice {
    name: String,
    licence: String,
    texts: Vec<String>,
}

impl Notice {
    fn read(package: &Package) -> Self {
        let folder = package.manifest_path.parent().map(|folder| folder.as_std_path());
        let licence = package.license.clone().unwrap_or_else(|| "see its text".to_owned());
        Self {
            name: format!("{} {}", package.name, package.version),
            licence,
            texts: folder.map(texts).unwrap_or_default(),
        }
    }
}

/// The crates of others that end up in a program, in order of name.
fn linked<'a>(metadata: &'a Metadata, crate_names: &[&str]) -> Vec<&'a Package> {
    let nodes = metadata.resolve.as_ref().map_or(&[][..], |resolve| &resolve.nodes);
    let is_wanted = |package: &&Package| crate_names.contains(&package.name.as_str());
    let mut waiting: Vec<&PackageId> = metadata.packages.iter().filter(is_wanted).map(|p| &p.id).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node.id == *id);
        let linked = node
            .into_iter()
            .flat_map(|node| &node.deps)
            .filter(|dependency| dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal));
        waiting.extend(linked.map(|dependency| &dependency.pkg));
    }
    let is_others = |package: &&Package| package.source.is_some() && found.contains(&package.id);
    let mut packages: Vec<&Package> = metadata.packages.iter().filter(is_others).collect();
    packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    packages
}

fn texts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_licence = |name: &str| NAMES.iter().any(|start| name.to_uppercase().starts_with(start));
    let mut files: Vec<_> = entries
        .filter(|entry| is_licence(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect()
}

fn text(crates: &[Notice]) -> String {
    let mut page = TITLE.to_owned();
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for notice in crates {
        // Writing to a string does not fail.
        let _ = write!(page, "\n{}: {}", notice.name, notice.licence);
        for text in &notice.texts {
            users.entry(text.trim()).or_default().push(&notice.name);
        }
    }
    page.push('\n');
    for (text, names) in users {
        let _ = write!(page, "\n{}\n{}:\n\n{text}\n", "-".repeat(72), names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{self, package};
    use crate::line::Line;
    use crate::setup::toolchains;
    use crate::stages::output;

    fn notice(name: &str, texts: &[&str]) -> Notice {
        Notice {
            name: name.to_owned(),
            licence: "MIT".to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn equal_texts_come_once_with_all_their_crates() {
        let page = text(&[notice("a 1.0.0", &["One.\n", "Two."]), notice("b 2.0.0", &["One."])]);
        assert!(page.contains("\na 1.0.0: MIT\nb 2.0.0: MIT\n"), "{page}");
        assert!(
            page.contains("a 1.0.0, b 2.0.0:\n\nOne.\n") && page.contains("a 1.0.0:\n\nTwo.\n"),
            "{page}"
        );
        assert_eq!(page.matches("One.").count(), 1);
    }

    #[test]
    fn packages_bring_the_texts_of_all_their_crates() {
        let rustc = output(&Line::new("rustc").arg("-vV")).unwrap();
        let host = toolchains::host(&rustc).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (name, crates, workspace) in super::super::debian::WITH_CRATES {
            let folder = root.join(workspace.folder);
            let metadata = metadata(&folder, host).unwrap();
            let page = of(crates, &folder, host).unwrap();
            let list = page.split("-----").next().unwrap();
            assert!(list.contains(STANDARD_LIBRARY), "{name}");
            for package in linked(&metadata, crates) {
                let crate_name = format!("{} {}", package.name, package.version);
                assert!(list.contains(&format!("\n{crate_name}: ")), "{name}: {crate_name}");
                // In the list, and above a text.
                assert!(page.matches(&crate_name).count() > 1, "{name}: {crate_name}");
            }
        }
    }

    /// Wheels hold the file that is in the tree.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn notices_of_the_python_package_are_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let path = root.join(layout::PYTHON_NOTICES);
        let expected = of(&[package::PYTHON], root, "x86_64-unknown-linux-gnu").unwrap();
        if std::env::var_os("MEMFERRY_WRITE_LICENCES").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} is not that of the crates; MEMFERRY_WRITE_LICENCES=1 cargo test -p xtask licences writes it",
            path.display()
        );
    }

    #[test]
    fn only_linked_crates_of_others_are_named() {
        let rustc = output(&Line::new("rustc").arg("-vV")).unwrap();
        let metadata = metadata(Path::new("."), toolchains::host(&rustc).unwrap()).unwrap();
        let names: Vec<&str> =
            linked(&metadata, &["xtask"]).iter().map(|package| package.name.as_str()).collect();
        assert!(names.contains(&"clap") && !names.contains(&"xtask"), "{names:?}");
        assert!(!names.contains(&"loom"), "{names:?}");
    }
}
