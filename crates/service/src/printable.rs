//! Texts of others that are safe to print.
//!
//! A text from another process or user may hold characters that control a terminal: escape sequences, carriage returns, or
//! marks that reverse the direction of what follows. The side that receives such a text cleans it before it becomes part of a
//! message.

/// Maximum number of characters of a text. Longer ones are cut.
pub const MAX_CHARACTERS: usize = 1000;

/// The text with control characters as escapes such as `\u{1b}`, cut to [`MAX_CHARACTERS`].
pub fn printable(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(MAX_CHARACTERS));
    // Room for the characters that say that the text was cut.
    let mut room = MAX_CHARACTERS - 3;
    for letter in text.chars() {
        let escaped = if is_safe(letter) { None } else { Some(letter.escape_default()) };
        let length = escaped.as_ref().map_or(1, ExactSizeIterator::len);
        if length > room {
            cleaned.push_str("...");
            break;
        }
        room -= length;
        match escaped {
            Some(escaped) => cleaned.extend(escaped),
            None => cleaned.push(letter),
        }
    }
    cleaned
}

/// A text of several lines: as [`printable`], but line feeds stay, and the length is not limited.
pub fn printable_lines(text: &str) -> String {
    let clean = |letter: char| match letter {
        '\n' => "\n".to_owned(),
        letter if is_safe(letter) => letter.to_string(),
        letter => letter.escape_default().to_string(),
    };
    text.chars().map(clean).collect()
}

/// Whether a character neither controls a terminal nor changes where others appear.
fn is_safe(letter: char) -> bool {
    let moves_others = matches!(
        letter,
        // Marks of direction, line and paragraph separators, embeddings and isolates of direction.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    );
    !letter.is_control() && !moves_others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes() {
        assert_eq!(printable("user 7: quota of 3 MiB, déjà vu"), "user 7: quota of 3 MiB, déjà vu");
        assert_eq!(printable("\x1b]0;title\x07\x1b[2J"), "\\u{1b}]0;title\\u{7}\\u{1b}[2J");
        assert_eq!(printable("a\r\nb\tc\0"), "a\\r\\nb\\tc\\u{0}");
        assert_eq!(printable("\u{9b}31m \u{7f}"), "\\u{9b}31m \\u{7f}");
        assert_eq!(printable("\u{202e}txt.exe\u{2028}"), "\\u{202e}txt.exe\\u{2028}");
        assert_eq!(printable_lines("line 1\n\x1bline 2\r"), "line 1\n\\u{1b}line 2\\r");
    }

    #[test]
    fn long_texts_are_cut() {
        let longest = "x".repeat(MAX_CHARACTERS - 3);
        assert_eq!(printable(&longest), longest);
        for text in ["y".repeat(5000), "\x1b".repeat(5000), "é".repeat(998)] {
            let cut = printable(&text);
            assert!(cut.ends_with("...") && cut.chars().count() <= MAX_CHARACTERS, "{cut}");
        }
    }
}
