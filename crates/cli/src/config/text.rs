//! Writes the default configuration file and the guide's page of options from the table.

use std::fmt::Write;

use toml::Value;

use super::settings::Settings;
use super::table::SECTIONS;

/// A file that changes nothing: every option with its description and its default, commented out.
pub(super) fn default_file() -> String {
    let settings = Settings::default();
    let mut text = String::from(
        "# Configuration of `memferry serve`. Each line shows a default; remove the # to change it.\n\
         # Flags on the command line override this file. `memferry config check FILE` reports mistakes in a file.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n# {}\n[{}]\n", section.about, section.name);
        for row in section.rows {
            let about = row.about(|name| Value::from(name).to_string());
            let default = row.default.map(|words| format!(" Default: {words}.")).unwrap_or_default();
            let value = row.place.to_file(&settings);
            let _ = write!(text, "# {about}.{default}\n#{} = {value}\n", row.key);
        }
    }
    text
}

/// The page `docs/guide/options.md` of the guide.
#[cfg(test)]
pub(super) fn guide() -> String {
    let settings = Settings::default();
    let mut text = String::from(
        "# Options of the service\n\n\
         `memferry serve` takes these as flags, and from the file that `--config` names or `/etc/memferry.toml`. A flag overrides the file.\n\
         `memferry config default` prints a file with all of them; `memferry config check FILE` reports mistakes in one. This page is\n\
         generated from the same table.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n## [{}]\n\n{}\n\n", section.name, section.about);
        text += "| key in the file | flag | default | meaning |\n| --- | --- | --- | --- |\n";
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
