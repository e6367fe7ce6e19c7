//! Tells the linker where the firmware's sections lie. Does nothing else.

fn main() {
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-link-arg-bins=-T{directory}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
}
