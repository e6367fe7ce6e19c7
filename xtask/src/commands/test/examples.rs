//! The examples of whole programs, each with its shortest measurement; every one checks the bytes it moved.
//!
//! ```text
//! product, debug ─┬─► libmemferry_preload.so ─► small_beside_large.py (redis-tools)
//!                 ├─► libmemferry ─► snapshot.c (userfaultfd)
//!                 └─► memferry, the wheel ─► frames.py (OpenCV), data_loader.py, kv_offload.py
//! ```
//!
//! The smaller examples are run by the ordinary tests.

use crate::failure::Failure;
use crate::layout::{PRODUCT_WORKSPACE, binary, programs};
use crate::line::Line;
use crate::packaging::build::install_c;
use crate::packaging::wheel;
use crate::setup::debian;
use crate::setup::environments::{OPENCV, PACKAGE};
use crate::stages;
use crate::work::Work;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::REDIS])?;
    work.stages.run("build of the product", &PRODUCT_WORKSPACE.cargo(&["build", "--workspace"]))?;
    let library = work.place.built("debug").join(binary::PRELOAD_LIBRARY);
    let line = Line::new("python3").arg(programs::SMALL_BESIDE_LARGE).arg("--library").arg(library);
    work.stages.run("small requests beside large ones", &line.args(["--seconds", "0.5", "--rounds", "1"]))?;
    snapshot(work)?;
    python(work)
}

fn snapshot(work: &Work) -> Result<(), Failure> {
    let prefix = work.place.built("examples");
    work.stages.run("C library", &install_c(&["--strip"], &work.place.built("debug"), &prefix))?;
    let program = prefix.join("snapshot");
    let compile = Line::new("cc").args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    let compile = compile.arg(prefix.join("include")).arg("-o").arg(&program).arg(programs::SNAPSHOT);
    let compile = compile.arg(prefix.join("lib/libmemferry.a")).args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]);
    work.stages.run("compile the snapshot", &compile)?;
    work.stages
        .run("a snapshot beside a writer", &Line::new("timeout").arg("120").arg(program).args(["32", "1"]))
}

fn python(work: &Work) -> Result<(), Failure> {
    if !work.setup.environment(&PACKAGE) {
        work.leave_out("the examples in Python were NOT RUN: Python is not available");
        return Ok(());
    }
    let target = &work.place.target;
    work.stages.step("wheel", "maturin build, pip install", || wheel::build(target, "dev"))?;
    let python = PACKAGE.program(target, "python3");
    let command = target.join("debug").join(binary::CLI);
    for (name, options) in programs::PYTHON {
        let line = Line::new(&python).arg(name).arg("--command").arg(&command).args(*options);
        let line = if *name == programs::FRAMES { with_opencv(work, line) } else { line };
        work.stages.run(name, &line)?;
    }
    Ok(())
}

/// The other environment has the same NumPy and OpenCV, and not memferry.
fn with_opencv(work: &Work, line: Line) -> Line {
    let python = OPENCV.program(&work.place.target, "python3");
    let ask = Line::new(python).args(["-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]);
    let packages = if work.setup.environment(&OPENCV) { stages::output(&ask) } else { None };
    match packages {
        Some(packages) => line.env("PYTHONPATH", packages.trim()),
        None => {
            work.leave_out("frames.py was run without OpenCV, which is not available");
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = programs::PYTHON.iter().map(|(name, _)| *name);
        for name in python.chain([programs::SMALL_BESIDE_LARGE, programs::SNAPSHOT, programs::FRAMES]) {
            assert!(root.join(name).is_file(), "{name}");
        }
    }
}
