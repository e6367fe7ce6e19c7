//! Rust toolchains: the one that rust-toolchain.toml pins, and those that rustup lists.
//!
//! ```text
//! rust-toolchain.toml ──► Pinned { channel, components }
//! rustup component list, toolchain list ──► has_components, nightlies
//! ```

use toml::{Table, Value};

use crate::line::Line;

/// The toolchain of rust-toolchain.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) channel: String,
    pub(crate) components: Vec<String>,
}

impl Pinned {
    /// Reads the text of rust-toolchain.toml; the error says what is wrong with it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| format!("rust-toolchain.toml: {error}"))?;
        let toolchain = table.get("toolchain").and_then(Value::as_table);
        let entry = |name: &str| toolchain.and_then(|toolchain| toolchain.get(name));
        let channel =
            entry("channel").and_then(Value::as_str).ok_or("rust-toolchain.toml names no channel")?;
        let components = entry("components").and_then(Value::as_array).into_iter().flatten();
        Ok(Self {
            channel: channel.to_owned(),
            components: components.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

/// Whether rustup's list of installed components contains all of these.
pub(crate) fn has_components(installed: &str, wanted: &[&str]) -> bool {
    let has = |component: &&str| {
        installed.lines().any(|line| {
            line.trim().strip_prefix(component).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    };
    wanted.iter().all(has)
}

/// The names of the nightly toolchains in rustup's list.
pub(crate) fn nightlies(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| name.starts_with("nightly"))
}

/// The host in the output of `rustc -vV`.
pub(crate) fn host(version: &str) -> Option<&str> {
    version.lines().find_map(|line| line.strip_prefix("host: "))
}

pub(crate) fn components_of(toolchain: &str) -> Line {
    Line::new("rustup").args(["component", "list", "--toolchain", toolchain, "--installed"])
}

pub(crate) fn install(toolchain: &str, components: &[&str]) -> Line {
    let line = Line::new("rustup").args(["toolchain", "install", toolchain]);
    let line = line.args(["--profile", "minimal", "--no-self-update"]);
    let line = components.iter().fold(line, |line, component| line.arg("--component").arg(component));
    // The latest nightly may lack a component; an older one that has it is sufficient.
    if toolchain.starts_with("nightly") { line.arg("--allow-downgrade") } else { line }
}

pub(crate) fn add_component(toolchain: &str, component: &str) -> Line {
    Line::new("rustup").args(["component", "add", component, "--toolchain", toolchain])
}

pub(crate) fn add_target(target: &str) -> Line {
    Line::new("rustup").args(["target", "add", target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_pinned_toolchain() {
        let text =
            "# Pinned.\n[toolchain]\nchannel = \"1.95.0\"\ncomponents = [\n  \"rustfmt\",\n  \"clippy\"\n]\n";
        let pinned = Pinned::read(text).unwrap();
        assert_eq!(pinned.channel, "1.95.0");
        assert_eq!(pinned.components, ["rustfmt", "clippy"]);
        assert!(Pinned::read("[toolchain]\nchannel = \"1.95.0\"\n").unwrap().components.is_empty());
    }

    #[test]
    fn refuses_a_file_without_a_channel() {
        for text in ["", "[toolchain]\n", "[toolchain]\nchannel = 1\n", "[toolchain\n"] {
            assert!(Pinned::read(text).unwrap_err().contains("rust-toolchain.toml"), "{text:?}");
        }
    }

    #[test]
    fn components_are_named_with_or_without_a_host() {
        let installed = "cargo-x86_64-unknown-linux-gnu\nmiri-x86_64-unknown-linux-gnu\nrust-src\n";
        assert!(has_components(installed, &["miri", "rust-src"]));
        assert!(has_components(installed, &[]));
        assert!(!has_components(installed, &["miri", "clippy"]));
        assert!(!has_components(installed, &["mir"]));
        assert!(!has_components("", &["miri"]));
    }

    #[test]
    fn nightlies_are_picked_from_the_list() {
        let list = "stable-x86_64-unknown-linux-gnu (default)\nnightly-2026-11-01-x86_64-unknown-linux-gnu\n\
                    nightly-x86_64-unknown-linux-gnu (active)\n";
        let found: Vec<&str> = nightlies(list).collect();
        assert_eq!(
            found,
            ["nightly-2026-11-01-x86_64-unknown-linux-gnu", "nightly-x86_64-unknown-linux-gnu"]
        );
        assert_eq!(nightlies("no installed toolchains\n").count(), 0);
    }

    #[test]
    fn the_host_is_rustcs() {
        let version = "rustc 1.95.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(host(version), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host("rustc 1.95.0\n"), None);
    }

    #[test]
    fn only_nightlies_may_be_older_ones() {
        assert_eq!(
            install("nightly", &["miri", "rust-src"]).to_string(),
            "rustup toolchain install nightly --profile minimal --no-self-update --component miri \
             --component rust-src --allow-downgrade"
        );
        assert!(!install("1.95.0", &["clippy"]).to_string().contains("--allow-downgrade"));
    }
}
