//! Passes the firmware's linker script to the linker.

fn main() {
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rustc-link-arg-bins=-T{directory}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
}
