//! The structures have the same layout in C and in Rust.
//!
//! ```text
//! size_of, offset_of ─► _Static_assert lines after the header ─► gcc, clang -fsyntax-only
//! ```
//!
//! Compilers that are not installed are reported and left out.

use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use memferry_c::*;

fn assertion(expression: &str, value: usize) -> String {
    format!("_Static_assert({expression} == {value}, \"{expression} is not {value}\");\n")
}

macro_rules! assertions {
    ($($structure:ident: $($field:ident),+;)+) => {
        [$(
            // No `..`: a field that is missing here does not compile.
            {
                let _ = |$structure { $($field: _),+ }: $structure| ();
                assertion(concat!("sizeof(", stringify!($structure), ")"), size_of::<$structure>())
            },
            assertion(concat!("_Alignof(", stringify!($structure), ")"), align_of::<$structure>()),
            $(assertion(
                concat!("offsetof(", stringify!($structure), ", ", stringify!($field), ")"),
                offset_of!($structure, $field),
            ),)+
        )+]
        .concat()
    };
}

fn program() -> String {
    let structures = assertions! {
        mf_client: id;
        mf_frame: id;
        mf_queue: id;
        mf_exported: descriptor, kind, length, device;
        mf_copier: id;
        mf_ticket: tag, queue;
        mf_grant_token: value;
        mf_range: frame, offset, length;
        mf_terms: size, flags, hint, priority, within_ns;
        mf_plane: start, x_step, y_step;
        mf_shape_2d: pixel_bytes, x_count, y_count, transparent, color, reserved, source, destination;
        mf_image: origin, pitch_bytes, width, height, pixel_bytes, reserved;
        mf_completion: ticket, error, side, engine, inherited, bytes_done, value, detail;
    };
    let enumerations = [
        assertion("sizeof(mf_error)", size_of::<mf_error>()),
        assertion("sizeof(mf_side)", size_of::<mf_side>()),
        assertion("sizeof(mf_engine)", size_of::<mf_engine>()),
    ];
    format!("#include \"memferry.h\"\n{structures}{}", enumerations.concat())
}

#[test]
fn layouts_agree_in_c_and_rust() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layouts.c");
    std::fs::write(&source, program()).unwrap();
    for compiler in ["gcc", "clang"] {
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        match command.arg(env!("CARGO_MANIFEST_DIR")).arg(&source).output() {
            Ok(output) => {
                assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Err(error) => println!("left out: {compiler}: {error}"),
        }
    }
}

#[test]
fn every_structure_is_compared() {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("memferry.h")).unwrap();
    let structures =
        header.lines().filter_map(|line| line.strip_prefix("typedef struct ")?.strip_suffix(" {"));
    let program = program();
    let mut count = 0;
    for structure in structures {
        assert!(program.contains(&format!("sizeof({structure})")), "{structure}");
        count += 1;
    }
    assert!(count > 0, "memferry.h has no structure");
}
