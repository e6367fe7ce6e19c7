//! The answer of a link to `memferry-link status`: JSON that anything may have written.
//!
//! ```text
//! bytes ──► Snapshot ──► JSON     decodes to the same
//!                   ├──► text     lines that no terminal can misunderstand
//!                   └──► metrics  each line a name, its labels in quotes, and a number
//! ```

use memferry_link::{Snapshot, StatusOptions, show};

/// Input: what a link answers.
pub fn link_status(data: &[u8]) {
    let Ok(snapshot) = serde_json::from_slice::<Snapshot>(data) else { return };
    let options = |json, metrics, transfers| StatusOptions {
        status: "/run/memferry-link/status.sock".into(),
        json,
        metrics,
        transfers,
    };
    let json = show(&snapshot, &options(true, false, false)).expect("a snapshot is JSON");
    assert_eq!(serde_json::from_str::<Snapshot>(&json).ok().as_ref(), Some(&snapshot));
    let text = show(&snapshot, &options(false, false, true)).expect("a snapshot has a text");
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
    let most = 1 + 5 * snapshot.peers.len() + snapshot.transfers.len();
    assert!(text.lines().count() <= most, "a name became a line");
    let metrics = show(&snapshot, &options(false, true, false)).expect("a snapshot has metrics");
    let samples =
        metrics.lines().filter(|line| !line.starts_with('#')).inspect(|line| check_sample(line)).count();
    assert_eq!(samples, 14 * snapshot.peers.len());
}

/// A line of the exposition format: `name{label="value",...} number`.
fn check_sample(line: &str) {
    let (name, rest) = line.split_once('{').expect("labels");
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
    let mut letters = rest.chars();
    loop {
        let label: String = letters.by_ref().take_while(|letter| *letter != '=').collect();
        assert!(["peer", "side"].contains(&&label[..]), "label {label:?} in {line:?}");
        assert_eq!(letters.next(), Some('"'), "{line:?}");
        loop {
            match letters.next() {
                Some('\\') => assert!(matches!(letters.next(), Some('\\' | '"' | 'n')), "{line:?}"),
                Some('"') => break,
                Some(letter) => assert!(!letter.is_control(), "{line:?}"),
                None => panic!("a label does not end: {line:?}"),
            }
        }
        match letters.next() {
            Some(',') => {}
            Some('}') => break,
            other => panic!("{other:?} after a label of {line:?}"),
        }
    }
    let number = letters.as_str();
    assert!(number.strip_prefix(' ').is_some_and(|number| number.parse::<u64>().is_ok()), "{line:?}");
}
