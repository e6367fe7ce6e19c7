//! Tests with diod's clients diodcat and diodls (Debian's package `diod`), over both kinds of socket.
//!
//! A test whose program is missing prints that and passes. diodload is not used: it works only with diod, whose synthetic
//! files it reads and writes.

mod harness;

use std::process::Command;

use harness::{Folder, Served, pattern};
use memferry_ninep::{Engine, Listener, Options, Server};

/// A program of diod, installed where only administrators look.
fn program(name: &str) -> Option<Command> {
    let found =
        ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"].map(|place| format!("{place}/{name}"));
    let path = found.into_iter().find(|path| std::path::Path::new(path).exists());
    if path.is_none() {
        println!("not run: {name} is not installed (Debian's package diod)");
    }
    path.map(Command::new)
}

fn tcp(export: &Folder, engine: Engine) -> Option<(Server, String)> {
    let listener = Listener::tcp("127.0.0.1:0", false).unwrap();
    let address = listener.address().strip_prefix("tcp:").unwrap().to_owned();
    let mut options = Options::new(&export.0);
    options.engine = engine;
    options.pool_files = true;
    match Server::start(options, vec![listener]) {
        Ok(server) => Some((server, address)),
        Err(error) => {
            println!("not run: {error}");
            None
        }
    }
}

#[test]
fn diodcat_reads_with_every_engine() {
    let export = Folder::new();
    let bytes = pattern(3_000_001, 7);
    std::fs::create_dir(export.at("sub")).unwrap();
    std::fs::write(export.at("sub/file"), &bytes).unwrap();
    for engine in [Engine::Auto, Engine::Copying, Engine::Pool, Engine::Cached] {
        harness::cool(&export.at("sub/file"));
        let (Some(mut command), Some((server, address))) = (program("diodcat"), tcp(&export, engine)) else {
            return;
        };
        let output = command.args(["-s", &address, "-a", "/", "sub/file"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == bytes, "{engine:?}: {}", server.statistics());
    }
}

#[test]
fn diodcat_reads_over_a_unix_socket() {
    let Some(served) = Served::new() else { return };
    let Some(mut command) = program("diodcat") else { return };
    std::fs::write(served.export.at("file"), "over a Unix socket").unwrap();
    let output = command.arg("-s").arg(&served.socket).args(["-a", "/", "file"]).output().unwrap();
    assert_eq!(output.stdout, b"over a Unix socket", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn diodls_lists_the_export_and_the_pool() {
    let export = Folder::new();
    for name in ["one", "two", "three"] {
        std::fs::write(export.at(name), name).unwrap();
    }
    let Some((_server, address)) = tcp(&export, Engine::Auto) else { return };
    for (attach, expected) in [("/", ["one", "two", "three"]), ("/pool", ["ctl", "statistics", "server"])] {
        let Some(mut command) = program("diodls") else { return };
        let output = command.args(["-s", &address, "-a", attach, "-l"]).output().unwrap();
        let listing = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && expected.iter().all(|name| listing.contains(name)), "{output:?}");
    }
}
