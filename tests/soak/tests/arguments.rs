//! What the soak is told, and what it says of it: wrong arguments end it before anything is started.

use std::process::{Command, Output};

fn soak(arguments: &[&str]) -> (Option<i32>, String) {
    let output: Output =
        Command::new(env!("CARGO_BIN_EXE_memferry-soak")).args(arguments).output().expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn wrong_arguments_are_told_and_end_it_with_status_2() {
    let missing = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-such-command");
    for (arguments, said) in [
        (&["--time", "1d"][..], "'1d' is no time; write 90s, 10m or 1h"),
        (&["--time", "0s"], "0s is not from a second to a week"),
        (&["--seed", "x"], "invalid digit"),
        (&["--memferry", missing], "is not there; build it, or name it with --memferry"),
        (&["part", "--role", "dancer"], "invalid value 'dancer'"),
    ] {
        let (status, errors) = soak(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(said), "{arguments:?}: {errors}");
    }
}
