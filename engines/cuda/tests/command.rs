//! The command line of `memferry-engine-cuda`, without a service.

use std::process::{Command, Output};

fn engine(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memferry-engine-cuda")).args(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_help_names_every_option() {
    let help = engine(&["--help"]);
    assert!(help.status.success());
    let help = text(&help.stdout);
    for option in ["--socket", "--name", "--device", "--memory", "--streams", "--library", "libcuda.so.1"] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let complete = ["--socket", "/nonexistent", "--name", "cuda-0", "--memory", "1"];
    for wrong in [
        &["--streams", "0"][..],
        &["--streams", "65"],
        &["--device", "-1"],
        &["--memory", "1G"],
        &["--other"],
    ] {
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
fn it_says_why_it_cannot_run() {
    for (name, why) in [
        ("cuda-0", "cannot connect to the service at /nonexistent/memferry.sock"),
        ("CUDA", "the engine's name \"CUDA\" has to be"),
    ] {
        let arguments = ["--socket", "/nonexistent/memferry.sock", "--name", name, "--memory", "1"];
        let refused = engine(&arguments);
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.starts_with("memferry-engine-cuda: ") && error.contains(why), "{error}");
    }
}
