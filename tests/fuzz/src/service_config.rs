//! The configuration file of the service: any text, by the parser of `memferry serve`.
//!
//! ```text
//! bytes ──► parse ──► settings: the service takes them, and written by the table they are read as the same
//!                └──► mistakes: in order of lines that the text has, each of one line that no terminal can misunderstand
//! ```

#[path = "../../../crates/cli/src/config/engine.rs"]
mod engine;
#[path = "../../../crates/cli/src/config/file.rs"]
mod file;
#[path = "../../../crates/cli/src/config/kinds.rs"]
mod kinds;
#[path = "../../../crates/cli/src/config/settings.rs"]
mod settings;
#[path = "../../../crates/cli/src/config/table.rs"]
mod table;

use file::parse;
use memferry_service::printable::printable;
use settings::Settings;
use table::SECTIONS;

/// Input: the text of a file. What is not UTF-8 is refused before it is parsed.
pub fn service_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text) {
        Ok(settings) => {
            let checked = settings.daemon.service.check();
            assert!(checked.is_ok(), "the service does not start with a file without mistakes: {checked:?}");
            let written = written(&settings);
            assert_eq!(parse(&written).as_ref(), Ok(&settings), "{written}");
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "no settings, and no mistake");
            assert!(mistakes.is_sorted_by_key(|mistake| mistake.line));
            let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
            for mistake in mistakes {
                assert!((1..=lines).contains(&mistake.line), "line {} of {lines}", mistake.line);
                assert!(!mistake.message.is_empty() && printable(&mistake.message) == mistake.message);
            }
        }
    }
}

/// Whether these bytes are a file without mistakes.
pub fn is_service_config(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| parse(text).is_ok())
}

/// A file with all options. What is not set has no line: there is no value for it.
fn written(settings: &Settings) -> String {
    let mut text = String::new();
    for section in SECTIONS {
        text += &format!("[{}]\n", section.name);
        for row in section.rows {
            let value = row.place.to_file(settings);
            if value.as_str() != Some("") {
                text += &format!("{} = {value}\n", row.key);
            }
        }
    }
    text
}
