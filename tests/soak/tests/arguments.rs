//! Wrong arguments end the soak before anything is started.

use std::process::{Command, Output};

fn soak(arguments: &[&str]) -> (Option<i32>, String) {
    let output: Output =
        Command::new(env!("CARGO_BIN_EXE_memferry-soak")).args(arguments).output().expect("the soak starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn wrong_arguments_exit_with_status_2() {
    let missing = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-such-command");
    for (arguments, expected) in [
        (&["--time", "1d"][..], "'1d' is not a duration; write 90s, 10m or 1h"),
        (&["--time", "0s"], "0s is out of range; choose one second to one week"),
        (&["--seed", "x"], "invalid digit"),
        (&["--memferry", missing], "does not exist; build it, or name it with --memferry"),
        (&["part", "--role", "dancer"], "invalid value 'dancer'"),
    ] {
        let (status, errors) = soak(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
}
