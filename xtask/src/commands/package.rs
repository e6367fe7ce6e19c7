//! Builds the packages, and installs below a prefix.

use std::path::Path;

use crate::failure::Failure;
use crate::packaging::tree::{self, Prefix};
use crate::packaging::{build, debian};
use crate::stages::{print, say};
use crate::work::Work;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    let folder = debian::run(work)?;
    let source = build::source(work)?;
    print(format_args!(
        "\nx package: built and checked; to install the service: apt install {}/memferry_*.deb\n\
         x package: the Python package's sources are {}",
        folder.display(),
        source.display()
    ));
    Ok(())
}

/// Installs below a prefix, which is relative to the caller's directory.
pub(super) fn install(work: &Work, prefix: &Path) -> Result<(), Failure> {
    let built = build::programs(work)?;
    let prefix = prefix_of(&work.place.caller.join(prefix));
    tree::command(&built, &prefix)?;
    tree::cuda(&built, &prefix)?;
    tree::dsa(&built, &prefix)?;
    tree::device(&built, &prefix)?;
    for library in [&built.c, &built.engine] {
        tree::library(library, &prefix)?;
        tree::development(library, &prefix)?;
    }
    tree::examples(&built, &prefix, "memferry")?;
    let root = prefix.root.display();
    say(format_args!("installed below {root}; the command is {root}/bin/memferry"));
    Ok(())
}

fn prefix_of(root: &Path) -> Prefix {
    Prefix {
        root: root.to_owned(),
        seen: root.to_owned(),
        libraries: "lib".to_owned(),
        units: root.join("lib/systemd/system"),
        zsh: "share/zsh/site-functions",
    }
}
