//! Changes an engine process's line in a configuration file, and nothing else in it.
//!
//! ```text
//! file ─ no mistakes ─► the string of the engine, with its place ─► other words kept, shortest= replaced ─► draft ─► rename
//! ```

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use memferry_service::EngineConfig;
use toml::Value;
use toml::de::{DeTable, DeValue};

use super::{SYSTEM_FILE, Settings, text_of};
use crate::CommandError;

/// An engine process in a configuration file.
#[derive(Debug)]
pub(crate) struct EngineLine {
    path: PathBuf,
    text: String,
    /// Where its string is in the text, with the quotes.
    place: Range<usize>,
    /// What the string says.
    words: String,
    /// All settings of the file.
    pub(crate) settings: Settings,
}

impl EngineLine {
    /// Finds the engine in the named file, else in the system's.
    pub(crate) fn find(named: Option<&Path>, name: &str) -> Result<Self, CommandError> {
        let path = named.unwrap_or(Path::new(SYSTEM_FILE));
        let (text, settings) = text_of(path)?;
        let Some((place, words)) = place_of(&text, name) else {
            let engines: Vec<_> = settings.daemon.service.engines.iter().map(named_by).collect();
            let others = match &engines[..] {
                [] => " and no other".to_owned(),
                engines => format!(", but {}", engines.join(", ")),
            };
            let path = path.display();
            return Err(format!(
                "{path} has no engine process '{name}' in [engines]{others}; to measure without writing, take --dry-run"
            )
            .into());
        };
        Ok(Self { path: path.to_owned(), text, place, words, settings })
    }

    /// Writes the file with another length from which the engine gets transfers. Returns the engine's new line.
    pub(crate) fn write_shortest(&self, bytes: u64) -> Result<String, CommandError> {
        let words = self.words.split_whitespace().filter(|word| !word.starts_with("shortest="));
        let mut words: Vec<_> = words.map(str::to_owned).collect();
        words.push(format!("shortest={bytes}"));
        let words = words.join(" ");
        let mut text = self.text.clone();
        text.replace_range(self.place.clone(), &Value::String(words.clone()).to_string());
        let write = || {
            // What a link names is replaced, not the link.
            let path = fs::canonicalize(&self.path)?;
            if fs::read(&path)? != self.text.as_bytes() {
                return Err(io::Error::other("it was changed during the measurement; repeat the command"));
            }
            let draft = path.with_extension(format!("{}.draft", std::process::id()));
            let about = fs::metadata(&path)?;
            let mut file = fs::File::create_new(&draft)?;
            let owned = fchown(&file, Some(about.uid()), Some(about.gid()));
            let permitted = owned.and_then(|()| file.set_permissions(about.permissions()));
            let written = permitted.and_then(|()| file.write_all(text.as_bytes()));
            written.and_then(|()| fs::rename(&draft, &path)).inspect_err(|_| {
                let _ = fs::remove_file(&draft);
            })
        };
        write().map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
        Ok(words)
    }
}

fn named_by(engine: &EngineConfig) -> String {
    format!("'{}'", engine.name)
}

/// Where the string of an engine is in a text without mistakes, and what it says.
fn place_of(text: &str, name: &str) -> Option<(Range<usize>, String)> {
    let mark = text.len() - text.trim_start_matches('\u{feff}').len();
    let table = DeTable::parse(&text[mark..]).ok()?;
    let DeValue::Table(section) = table.get_ref().get("engines")?.get_ref() else { return None };
    let DeValue::Array(engines) = section.get("processes")?.get_ref() else { return None };
    engines.iter().find_map(|engine| {
        let DeValue::String(words) = engine.get_ref() else { return None };
        let is_it = words.split_whitespace().next() == Some(name);
        let Range { start, end } = engine.span();
        is_it.then(|| (start + mark..end + mark, words.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("memferry-edit-{}-{name}.toml", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn only_the_length_changes() {
        for (before, after) in [
            ("\"a user=1\"", "\"a user=1 shortest=65536\""),
            ("'a  user=1 shortest=7 stall-ms=90'", "\"a user=1 stall-ms=90 shortest=65536\""),
        ] {
            for mark in ["", "\u{feff}"] {
                let text = |line: &str| {
                    format!(
                        "{mark}# kept\n[engines]\nprocesses = [\n  \"ab user=1\", # é\n  {line},\n]\n[service]\n"
                    )
                };
                let path = file("changes", &text(before));
                EngineLine::find(Some(&path), "a").unwrap().write_shortest(65536).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text(after));
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn changes_made_meanwhile_are_kept() {
        let path = file("meanwhile", "[engines]\nprocesses = [\"a user=1\"]\n");
        let line = EngineLine::find(Some(&path), "a").unwrap();
        let changed = "[engines]\nprocesses = [\"a user=2\"]\n";
        fs::write(&path, changed).unwrap();
        let error = line.write_shortest(65536).unwrap_err().to_string();
        assert!(error.contains("was changed"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), changed);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn engines_that_are_not_there_are_refused() {
        for (text, others) in [("", "and no other"), ("[engines]\nprocesses = [\"ab user=1\"]\n", "but 'ab'")]
        {
            let path = file("refused", text);
            let error = EngineLine::find(Some(&path), "a").unwrap_err().to_string();
            assert!(error.contains("no engine process 'a'") && error.contains(others), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            fs::remove_file(&path).unwrap();
        }
        let missing = EngineLine::find(Some(Path::new("/nonexistent/memferry.toml")), "a").unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/memferry.toml"), "{missing}");
    }
}
