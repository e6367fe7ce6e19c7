//! Drop-ins of systemd units: whether one sets what an engine or the service needs.

use crate::doctor::host::Host;

/// The name of the drop-ins whose commands the doctor prints. The examples have other names, so that the commands
/// overwrite nothing that an administrator wrote.
pub(super) const DROP_IN: &str = "doctor.conf";
/// Locked memory for the frames of clients: the service with its module needs it.
pub(super) const LOCKED: &str = "LimitMEMLOCK=4G";
const DROP_IN_BYTES: usize = 64 << 10;

/// Whether a drop-in in a folder has a line of `key` with `word` among its values. Of the files, a report holds that alone.
pub(super) fn drop_ins_set(host: &Host<'_>, folder: &str, key: &str, word: &str) -> bool {
    let wanted = format!("{key}={word}");
    let filter = |text: &str| if sets(text, key, word) { wanted.clone() } else { String::new() };
    let names = host.machine.names(folder, |name| name.ends_with(".conf"));
    let found = |name: &String| host.machine.excerpt(&format!("{folder}/{name}"), DROP_IN_BYTES, filter);
    names.iter().any(|name| found(name).is_some_and(|text| text == wanted))
}

/// The last lines count: an empty value takes back what stood before.
fn sets(text: &str, key: &str, word: &str) -> bool {
    let value = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        (name.trim_end() == key)
            .then(|| (value.trim().is_empty(), value.split_whitespace().any(|one| one == word)))
    };
    text.lines().filter_map(value).fold(false, |is_set, (is_reset, has_word)| has_word || is_set && !is_reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_in_force_count() {
        let sets = |text| sets(text, "AmbientCapabilities", "CAP_SYS_RAWIO");
        assert!(sets("[Service]\nAmbientCapabilities=CAP_SYS_RAWIO\n"));
        assert!(sets("AmbientCapabilities = CAP_SYS_NICE CAP_SYS_RAWIO"));
        for text in [
            "# Without AmbientCapabilities=CAP_SYS_RAWIO it is slower.\n",
            ";AmbientCapabilities=CAP_SYS_RAWIO",
            "CapabilityBoundingSet=CAP_SYS_RAWIO",
            "AmbientCapabilities=CAP_SYS_RAWIO\nAmbientCapabilities=\n",
            "AmbientCapabilities=CAP_SYS_RAWIO_NOT",
            "",
        ] {
            assert!(!sets(text), "{text}");
        }
    }
}
