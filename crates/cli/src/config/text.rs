//! The default configuration file and the list of options in the guide, written from the table.

use std::fmt::Write;

use toml::Value;

use super::settings::Settings;
use super::table::SECTIONS;

/// A file that changes nothing: every option, what it is, and its default commented out.
pub(super) fn default_file() -> String {
    let settings = Settings::default();
    let mut text = String::from(
        "# What `memferry serve` is started with. Every line shows a default; take the # off to change it.\n\
         # Options of the command line come before this file. `memferry config check FILE` says what is wrong in one.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n# {}\n[{}]\n", section.about, section.name);
        for row in section.rows {
            let about = row.about(|name| Value::from(name).to_string());
            let default = row.default.map(|words| format!(" By default: {words}.")).unwrap_or_default();
            let value = row.place.to_file(&settings);
            let _ = write!(text, "# {about}.{default}\n#{} = {value}\n", row.key);
        }
    }
    text
}

/// The page of the guide, `docs/guide/options.md`.
#[cfg(test)]
pub(super) fn guide() -> String {
    let settings = Settings::default();
    let mut text = String::from(
        "# Options of the service\n\n\
         `memferry serve` takes these as flags, and from the file that `--config` names or `/etc/memferry.toml`. A flag comes before the file.\n\
         `memferry config default` prints a file with all of them; `memferry config check FILE` finds mistakes in one. This page is written\n\
         from the same table as both.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n## [{}]\n\n{}\n\n", section.name, section.about);
        text += "| in the file | flag | default | meaning |\n| --- | --- | --- | --- |\n";
        for row in section.rows {
            let about = row.about(|name| format!("`{name}`"));
            let default = match row.default {
                Some(words) => words.to_owned(),
                None => format!("`{}`", row.place.to_file(&settings)),
            };
            let _ = writeln!(text, "| `{}` | `--{} {}` | {default} | {about} |", row.key, row.flag, row.unit);
        }
    }
    text
}
