//! Writes the default configuration file, its manual page and the guide's page of options from the table.

use std::fmt::Write;

use toml::Value;

use super::settings::Settings;
use super::table::{Row, SECTIONS};
use crate::roff::{escaped, see_also};

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

/// The manual page memferry.toml(5), without its title.
pub(super) fn manual() -> String {
    let settings = Settings::default();
    let mut page = String::from(
        ".SH NAME\nmemferry.toml \\- options of the memferry service\n\
         .SH SYNOPSIS\n.I /etc/memferry.toml\n\
         .SH DESCRIPTION\n\
         .B memferry serve\nreads this file, or the one that its option\n.B \\-\\-config\nnames.\n\
         The file is TOML: sections with lines of the form\n.IB key \" = \" value\\fR.\n\
         Each key may be left out, and each has an option of the command line, which overrides it.\n\
         An unknown key, a value outside its range and a value of another type are mistakes; the service does not start then.\n",
    );
    for section in SECTIONS {
        let name = section.name.to_uppercase();
        let _ = write!(page, ".SH \"SECTION [{name}]\"\n{}\n", escaped(section.about));
        section.rows.iter().for_each(|row| page += &entry(row, &settings));
    }
    page += ".SH EXAMPLES\n.nf\n[service]\nworkers = 2\npolicy = \"weighted\"\n\n[policy]\nclass\\-weights = [1, 2, 8]\n.fi\n";
    let pages = ["memferry-serve", "memferry-config-check", "memferry-config-default", "memferry-policy"];
    page + &see_also(pages.iter().map(|page| format!("{page}(1)")))
}

fn entry(row: &Row, settings: &Settings) -> String {
    let default = match row.default {
        Some(words) => words.to_owned(),
        None => row.place.to_file(settings).to_string(),
    };
    let about = escaped(&row.about(|name| Value::from(name).to_string()));
    let [key, flag, unit, default] = [row.key, row.flag, row.unit, &default].map(escaped);
    format!(".TP\n.B {key}\n{about}.\nDefault: {default}.\nOption:\n.BI \\-\\-{flag} \" {unit}\"\\fR.\n")
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
