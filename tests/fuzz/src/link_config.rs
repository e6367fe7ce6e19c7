//! The configuration of a link, and its file of keys.
//!
//! ```text
//! bytes ──► Config::parse ──► a configuration: as TOML has it, within the rules, and the same again when it is written
//!       ──► KeyPair::parse                      or an error; but for wrong syntax, of one line without control characters
//! ```

use std::path::Path;
use std::time::Duration;

use memferry_link::{Config, ConfigError, KeyPair};
use toml::Value;

/// Input: a text. Its first line is also read as the first key of a file.
pub fn link_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    keys(text);
    match parse(text) {
        Ok(config) => {
            check(text, &config);
            let again = parse(&written(&config)).expect("a configuration that was written");
            assert_eq!(format!("{config:?}"), format!("{again:?}"));
        }
        Err(ConfigError::Syntax { .. }) => {}
        // Nothing of the file reaches a terminal as it is.
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && line.chars().all(|letter| !letter.is_control()), "{line:?}");
        }
    }
}

/// Whether these bytes are a configuration.
pub fn is_link_config(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| parse(text).is_ok())
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/memferry/link.toml"), |_| Ok(pair()))
}

/// Keys that are the same in every run.
fn pair() -> KeyPair {
    let text = format!("{}\n{}\n", "01".repeat(32), "ab".repeat(32));
    KeyPair::parse(&text, Path::new("link.key")).expect("two keys")
}

/// A file of keys has two lines of 64 digits each, with white space around them.
fn keys(text: &str) {
    let is_key = |line: Option<&str>| {
        let digits = line.map_or("", str::trim);
        digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let mut lines = text.lines();
    let expected = is_key(lines.next()) && is_key(lines.next());
    let read = KeyPair::parse(text, Path::new("link.key"));
    assert_eq!(read.is_ok(), expected);
    if let Ok(pair) = read {
        let public: String = pair.public.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(text.lines().nth(1).is_some_and(|line| line.trim().eq_ignore_ascii_case(&public)));
    }
}

/// The rules that a configuration keeps, read from its table.
fn check(text: &str, config: &Config) {
    let table: toml::Table = toml::from_str(text).expect("a configuration is TOML");
    let own = table["name"].as_str().expect("a name");
    assert_eq!(config.name.to_string(), own);
    assert!((1..=16).contains(&own.len()));
    let timeout = table.get("timeout-ms").map_or(1500, |value| value.as_integer().expect("a number") as u64);
    assert!((100..=60_000).contains(&timeout) && config.timeout == Duration::from_millis(timeout));
    assert_eq!(config.listen.as_deref(), table.get("listen").and_then(Value::as_str));
    let none = toml::Table::new();
    let peers = table.get("peers").map_or(&none, |peers| peers.as_table().expect("a table"));
    assert_eq!(config.peers.len(), peers.len());
    for (name, peer) in &config.peers {
        let name = name.to_string();
        let entry = &peers[&name];
        let key: String = peer.key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(entry["key"].as_str().is_some_and(|text| text.trim().eq_ignore_ascii_case(&key)));
        let switch = |name: &str| entry.get(name).is_some_and(|value| value.as_bool() == Some(true));
        assert_eq!((peer.require_encryption, peer.direct), (switch("require-encryption"), switch("direct")));
        assert_ne!(name, own);
        // The node whose name comes first opens the connection.
        assert!(if own < &name[..] { peer.address.is_some() } else { config.listen.is_some() });
    }
}

fn written(config: &Config) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text =
        format!("name = \"{}\"\nkey = \"k\"\ntimeout-ms = {}\n", config.name, config.timeout.as_millis());
    text += &config.listen.as_ref().map_or(String::new(), |listen| format!("listen = {}\n", quoted(listen)));
    for (name, peer) in &config.peers {
        let key: String = peer.key.iter().map(|byte| format!("{byte:02x}")).collect();
        text +=
            &format!("[peers.{name}]\nkey = \"{key}\"\nrequire-encryption = {}\n", peer.require_encryption);
        text += &format!("direct = {}\n", peer.direct);
        text += &peer
            .address
            .as_ref()
            .map_or(String::new(), |address| format!("address = {}\n", quoted(address)));
    }
    text
}
