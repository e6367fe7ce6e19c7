//! Links the unwinder into the library. Rust's standard library asks for `libgcc_s.so`, which every program under the preload
//! library would load as well: a third of the time that the library adds to the start of a short program.
//!
//! A linker script of that name, found before the system's library, names the static unwinder of the same compiler instead. Where the
//! linker has none, the library is linked as usual.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    let found =
        found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let Some(folder) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return Ok(()) };
    if Path::new(&found).is_absolute() {
        std::fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n")?;
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    Ok(())
}
