//! The command line of `memferry-engine-ioat`, without a device.

use std::process::{Command, Output};

fn engine(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memferry-engine-ioat")).args(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_help_names_every_option() {
    let help = engine(&["--help"]);
    assert!(help.status.success());
    let help = text(&help.stdout);
    for option in ["--socket", "--name", "--vfio", "--channels", "0000:00:04.0"] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let complete = ["--socket", "/nonexistent", "--name", "ioat-0", "--vfio", "0000:00:04.0"];
    for wrong in [&["--channels", "0"][..], &["--channels", "5"], &["--vfio", "4"], &["--noiommu"]] {
        let refused = engine(&[&complete, wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
    for missing in [0, 2, 4] {
        let mut arguments = complete.to_vec();
        arguments.drain(missing..missing + 2);
        assert_eq!(engine(&arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn it_says_that_there_is_no_such_device() {
    let arguments = ["--socket", "/nonexistent", "--name", "ioat-0", "--vfio", "ffff:ff:1f.7"];
    let refused = engine(&arguments);
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("there is no PCI device ffff:ff:1f.7; `lspci"), "{error}");
}
