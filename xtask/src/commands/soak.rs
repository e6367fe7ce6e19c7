//! Builds what the soak runs, and passes it the paths.
//!
//! ```text
//! cargo build, C library installed, cc, wheel ──► options ──► memferry-soak OPTIONS ARGS
//! ```

use std::ffi::OsString;
use std::path::Path;

use super::programs::build;
use crate::failure::Failure;
use crate::layout::{binary, package, soak};
use crate::line::Line;
use crate::packaging::build::install_c;
use crate::packaging::wheel;
use crate::setup::environments::PACKAGE;
use crate::stages::execute;
use crate::work::Work;

pub(super) fn run(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    build(&cargo())?;
    let has_python = work.setup.environment(&PACKAGE) && wheel::build(&work.place.target, "dev") == 0;
    let line = prepare(work, has_python)?;
    Err(execute(&line.args(arguments).within(&work.place.caller)))
}

/// Builds the clients in C and Python and returns the soak's command line. A client that cannot be built is left out, and the
/// soak's report says so.
pub(super) fn prepare(work: &Work, has_python: bool) -> Result<Line, Failure> {
    let target = &work.place.target;
    for line in clients(target) {
        build(&line)?;
    }
    Ok(line(target, has_python.then(|| work.place.at(soak::PYTHON_CLIENT)).as_deref()))
}

fn cargo() -> Line {
    let packages = [package::SOAK, package::CLI, package::C, package::PRELOAD];
    Line::new("cargo").arg("build").args(packages.iter().flat_map(|name| ["-p", name]))
}

fn clients(target: &Path) -> [Line; 3] {
    let folder = target.join("soak");
    let strict = ["-O1", "-Wall", "-Wextra", "-Werror"];
    let path = |option: &str, folder: &Path| format!("{option}{}", folder.display());
    let libraries = folder.join("lib");
    let client = Line::new("cc").args(["-std=c11", "-D_GNU_SOURCE"]).args(strict);
    let client = client.arg(path("-I", &folder.join("include"))).args([soak::C_CLIENT, "-o"]);
    let client = client.arg(folder.join("client")).arg(path("-L", &libraries));
    let client = client.arg("-lmemferry").arg(path("-Wl,-rpath,", &libraries));
    let clock = Line::new("cc").args(strict).args(["-shared", "-fPIC", soak::CLOCK, "-o"]);
    [install_c(&[], &target.join("debug"), &folder), client, clock.arg(folder.join("libclock.so"))]
}

fn line(target: &Path, python_client: Option<&Path>) -> Line {
    let folder = target.join("soak");
    let debug = target.join("debug");
    let line = Line::new(debug.join(binary::SOAK)).arg("--c-client").arg(folder.join("client"));
    let line = line.arg("--preload").arg(debug.join(binary::PRELOAD_LIBRARY));
    let line = line.arg("--clock").arg(folder.join("libclock.so"));
    match python_client {
        None => line,
        Some(client) => {
            let python = PACKAGE.program(target, "python3");
            line.arg("--python").arg(python).arg("--python-client").arg(client)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_in_c_are_linked_with_the_installed_library() {
        let [install, client, clock] = clients(Path::new("/t")).map(|line| line.to_string());
        assert!(install.ends_with("/t/debug/libmemferry_c.a /t/soak"), "{install}");
        assert!(
            client.contains("-I/t/soak/include") && client.contains("-Wl,-rpath,/t/soak/lib"),
            "{client}"
        );
        assert!(clock.ends_with("-o /t/soak/libclock.so"), "{clock}");
    }

    #[test]
    fn only_what_the_soak_runs_is_built() {
        let line = cargo().to_string();
        assert_eq!(line, "cargo build -p memferry-soak -p memferry-cli -p memferry-c -p memferry-preload");
    }

    #[test]
    fn python_is_left_out_if_unavailable() {
        let without = line(Path::new("/t"), None).to_string();
        assert!(!without.contains("python"), "{without}");
        let with = line(Path::new("/t"), Some(Path::new("/tree/client.py"))).to_string();
        assert!(with.starts_with(&without), "{with}");
        assert!(with.ends_with("--python /t/python/bin/python3 --python-client /tree/client.py"), "{with}");
    }
}
