//! The default configuration file, written from the list of options.

use std::fmt::Write;

use super::entries::SECTIONS;
use super::options::Options;

/// A file that changes nothing: every option, what it is, and its default commented out.
pub(super) fn default_file() -> String {
    let settings = Options::default().resolve();
    let mut text = String::from(
        "# What `memferry serve` is started with. Every line shows a default; take the # off to change it.\n\
         # Options of the command line come before this file. `memferry config check FILE` says what is wrong in one.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n# {}\n[{}]\n", section.about, section.name);
        for entry in section.entries {
            let _ = write!(text, "# {}\n#{} = {}\n", entry.about, entry.key, (entry.shown)(&settings));
        }
    }
    text
}
