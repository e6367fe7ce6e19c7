//! Reads what the rules check: the working tree's text files, and the crates with their dependencies.
//!
//! ```text
//! git ls-files (tracked, and untracked but not ignored) ──► text files only ──► Tree::files
//! cargo metadata --no-deps, of both workspaces ──► edges to crates of these only ─► Tree::packages
//! ```
//!
//! Files that are not UTF-8 text are left out, as are links and files that git lists but that do not exist.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::layout::{WORKSPACES, Workspace};
use crate::syntax::{self, Syntax};

/// A text file of the working tree.
pub(crate) struct SourceFile {
    /// Relative to the root of the workspace, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The lexer's result, for a Rust file.
    pub(crate) syntax: Option<Result<Syntax, syntax::LexError>>,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let syntax = path.ends_with(".rs").then(|| Syntax::read(text));
        Self { path: path.to_owned(), text: text.to_owned(), syntax }
    }

    /// The facts about a Rust file that lexes; `None` for any other file.
    pub(crate) fn rust(&self) -> Option<&Syntax> {
        self.syntax.as_ref()?.as_ref().ok()
    }

    /// Lines with their numbers, counted from one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// Whether the path makes the whole file test code: in a `tests` directory, or named `tests.rs`.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }
}

/// A crate of one of the two workspaces.
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its Cargo.toml, relative to the root of the workspace.
    pub(crate) manifest: String,
    /// The crates of the two workspaces that it depends on, and how.
    pub(crate) edges: Vec<(String, DependencyKind)>,
}

/// The input of the rules.
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
    pub(crate) packages: Vec<Package>,
}

/// Why the tree could not be read; no rule was run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("cannot read the workspace: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    #[error("cannot start git: {0}")]
    Git(io::Error),
    #[error("git ls-files failed: {0}")]
    GitRefused(String),
    #[error("cannot read {}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// Reads the workspace of the current directory.
pub(crate) fn read() -> Result<Tree, ReadError> {
    let product = MetadataCommand::new().no_deps().exec()?;
    let root = product.workspace_root.as_std_path();
    let read = |workspace: &Workspace| {
        let manifest = root.join(workspace.folder).join("Cargo.toml");
        MetadataCommand::new().no_deps().manifest_path(manifest).exec()
    };
    let workspaces = WORKSPACES.iter().map(read).collect::<Result<Vec<Metadata>, _>>()?;
    Ok(Tree { files: read_files(root)?, packages: packages(root, &workspaces) })
}

fn packages(root: &Path, workspaces: &[Metadata]) -> Vec<Package> {
    let members: Vec<_> = workspaces.iter().flat_map(|metadata| metadata.workspace_packages()).collect();
    let is_member = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    let relative =
        |path: &cargo_metadata::camino::Utf8Path| path.strip_prefix(root).unwrap_or(path).as_str().to_owned();
    members
        .iter()
        .map(|package| Package {
            name: package.name.to_string(),
            manifest: relative(&package.manifest_path),
            edges: package
                .dependencies
                .iter()
                .filter(|dependency| dependency.path.is_some() && is_member(&dependency.name))
                .map(|dependency| (dependency.name.clone(), dependency.kind))
                .collect(),
        })
        .collect()
}

fn read_files(root: &Path) -> Result<Vec<SourceFile>, ReadError> {
    let mut files = Vec::new();
    for name in list_files(root)? {
        let path = root.join(&name);
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(|error| ReadError::File { path, error })?;
        if let Ok(text) = std::str::from_utf8(&bytes)
            && !text.contains('\0')
        {
            files.push(SourceFile::new(&name, text));
        }
    }
    Ok(files)
}

fn list_files(root: &Path) -> Result<Vec<String>, ReadError> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(ReadError::Git)?;
    if !listing.status.success() {
        return Err(ReadError::GitRefused(String::from_utf8_lossy(&listing.stderr).trim().to_owned()));
    }
    let names = String::from_utf8_lossy(&listing.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
