//! The command line of `memferry-engine-dsa`, without a device.

use std::process::{Command, Output};

fn engine(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memferry-engine-dsa")).args(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A queue that no machine has.
const COMPLETE: [&str; 6] = ["--socket", "/nonexistent", "--name", "dsa-0", "--queue", "wq65535.255"];

#[test]
fn the_help_names_every_option() {
    let help = engine(&["--help"]);
    assert!(help.status.success());
    let help = text(&help.stdout);
    for option in ["--socket", "--name", "--queue", "wq0.0"] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for wrong in [&["--queue", "0.0"][..], &["--queue", "wq0.0/../x"], &["--queue", ""], &["--channels", "4"]]
    {
        let refused = engine(&[&COMPLETE, wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
    for missing in [0, 2, 4] {
        let mut arguments = COMPLETE.to_vec();
        arguments.drain(missing..missing + 2);
        assert_eq!(engine(&arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn it_says_that_there_is_no_such_queue() {
    let refused = engine(&COMPLETE);
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("memferry-engine-dsa: there is no work queue wq65535.255; "), "{error}");
}

#[test]
fn too_many_queues_are_refused() {
    let names: Vec<String> = (0..33).map(|number| format!("wq60000.{number}")).collect();
    let mut arguments = COMPLETE[..4].to_vec();
    names.iter().for_each(|name| arguments.extend(["--queue", name]));
    let refused = engine(&arguments);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("33 queues"));
}
