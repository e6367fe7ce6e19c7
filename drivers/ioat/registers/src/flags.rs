//! Printing of a register's one-bit fields, for the `Display` of the register types.

use core::fmt;

/// Writes the words of each flag that is set.
pub fn write_set(f: &mut fmt::Formatter<'_>, flags: &[(bool, &str)]) -> fmt::Result {
    flags.iter().filter(|(set, _)| *set).try_for_each(|(_, words)| f.write_str(words))
}
