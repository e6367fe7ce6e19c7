//! The soak: what it runs is built, and it is told where that is.
//!
//! ```text
//! cargo build, C library installed, cc, wheel ──► options ──► memferry-soak OPTIONS ARGS
//! ```

use std::ffi::OsString;
use std::path::Path;

use super::bindings::{install_c, wheel};
use super::programs::build;
use crate::failure::Failure;
use crate::layout::{binary, package, soak};
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::stages::become_program;
use crate::work::Work;

pub(super) fn run(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    let line = prepare(work)?;
    Err(become_program(&line.args(arguments).within(&work.place.caller)))
}

/// Builds what the soak runs and gives its command line. A client that cannot be built here is left out, which the report says.
pub(super) fn prepare(work: &Work) -> Result<Line, Failure> {
    let target = &work.place.target;
    for line in builds(target) {
        build(&line)?;
    }
    let has_python = work.setup.environment(&PACKAGE) && wheel(target, "dev") == 0;
    Ok(line(target, has_python.then(|| work.place.at(soak::PYTHON_CLIENT)).as_deref()))
}

fn builds(target: &Path) -> [Line; 4] {
    let folder = target.join("soak");
    let packages = [package::SOAK, package::CLI, package::C, package::PRELOAD];
    let cargo = packages.iter().fold(Line::new("cargo").arg("build"), |line, name| line.arg("-p").arg(name));
    let strict = ["-O1", "-Wall", "-Wextra", "-Werror"];
    let path = |option: &str, folder: &Path| format!("{option}{}", folder.display());
    let libraries = folder.join("lib");
    let client = Line::new("cc").args(["-std=c11", "-D_GNU_SOURCE"]).args(strict);
    let client = client.arg(path("-I", &folder.join("include"))).args([soak::C_CLIENT, "-o"]);
    let client = client.arg(folder.join("client")).arg(path("-L", &libraries));
    let client = client.arg("-lmemferry").arg(path("-Wl,-rpath,", &libraries));
    let clock = Line::new("cc").args(strict).args(["-shared", "-fPIC", soak::CLOCK, "-o"]);
    [cargo, install_c(&target.join("debug"), &folder), client, clock.arg(folder.join("libclock.so"))]
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
        let [cargo, install, client, clock] = builds(Path::new("/t")).map(|line| line.to_string());
        assert_eq!(cargo, "cargo build -p memferry-soak -p memferry-cli -p memferry-c -p memferry-preload");
        assert!(install.ends_with("/t/debug/libmemferry_c.a /t/soak"), "{install}");
        assert!(
            client.contains("-I/t/soak/include") && client.contains("-Wl,-rpath,/t/soak/lib"),
            "{client}"
        );
        assert!(clock.ends_with("-o /t/soak/libclock.so"), "{clock}");
    }

    #[test]
    fn python_is_left_out_where_it_cannot_be_had() {
        let without = line(Path::new("/t"), None).to_string();
        assert!(!without.contains("python"), "{without}");
        let with = line(Path::new("/t"), Some(Path::new("/tree/client.py"))).to_string();
        assert!(with.starts_with(&without), "{with}");
        assert!(with.ends_with("--python /t/python/bin/python3 --python-client /tree/client.py"), "{with}");
    }
}
