//! NVIDIA's assembler takes the gather kernel for each kind of GPU.
//!
//! The assembler `ptxas` is the one that `MEMFERRY_PTXAS` names, or one on the path. It is in the Python package
//! `nvidia-cuda-nvcc`. Without it nothing is assembled, and the test says so. This test does not run the result.

use std::path::{Path, PathBuf};
use std::process::Command;

/// From Volta, which the PTX names, to Blackwell. Each version of `ptxas` knows a part of them.
const TARGETS: [&str; 7] = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"];

#[test]
fn the_kernel_assembles() {
    let ptxas = std::env::var_os("MEMFERRY_PTXAS").map_or_else(|| PathBuf::from("ptxas"), PathBuf::from);
    if Command::new(&ptxas).arg("--version").output().is_err() {
        assert!(std::env::var_os("MEMFERRY_PTXAS").is_none(), "MEMFERRY_PTXAS names no program");
        println!("not assembled: there is no ptxas");
        return;
    }
    let help = Command::new(&ptxas).arg("--help").output().expect("it starts");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gather.ptx");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gather.cubin");
    let known: Vec<&str> =
        TARGETS.into_iter().filter(|target| help.contains(&format!("'{target}'"))).collect();
    assert!(!known.is_empty(), "this ptxas knows none of {TARGETS:?}");
    for target in known {
        let mut assembler = Command::new(&ptxas);
        let arguments = [format!("-arch={target}"), "--warning-as-error".to_owned(), "-o".to_owned()];
        let result = assembler.args(arguments).arg(&output).arg(&source).output().expect("it starts");
        assert!(result.status.success(), "{target}: {}", String::from_utf8_lossy(&result.stderr));
        println!("assembled for {target}");
    }
}
