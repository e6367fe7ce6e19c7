//! Unsafe code stays in the permitted places, and each use of it says why it is sound.
//!
//! ```text
//! attribute that loosens `unsafe_code` ──► only in a place of PERMITTED, or in test code
//! unsafe { } and unsafe impl, anywhere ──► a comment with the word SAFETY directly above the statement
//! ```
//!
//! The workspaces deny the lint `unsafe_code`, and every crate inherits their lints (see the rule on dependencies), so a file
//! without such an attribute cannot contain unsafe code. The rule does not check that a reason is true.

use crate::syntax::Place;
use crate::tree::SourceFile;
use crate::violation::Violation;

/// Prefixes of permitted paths. The firmware needs one for device registers and the buffers of a DMA engine, which are raw
/// addresses. Bindings for other languages, and libraries for unmodified programs, receive pointers from their callers. The daemon's
/// spawner forks, and closes by number what the fork has inherited; an engine's keeper forks the engine. The CUDA driver and UCX are libraries
/// in C, loaded at run time. The crate of VFIO maps registers of devices, and makes its calls; the DSA engine
/// stores to portals by instructions without an intrinsic, and gives advice about pages.
const PERMITTED: [&str; 20] = [
    "crates/shm/",
    "crates/pool/",
    "crates/daemon/src/spawner.rs",
    "crates/engine/src/process.rs",
    "crates/kmod/src/device.rs",
    "crates/service/src/signal.rs",
    "crates/service/src/scheduling.rs",
    "tools/recording/src/lib.rs",
    "crates/cpu/src/kernels",
    "research/firmware/src/hardware.rs",
    "drivers/vfio/src/",
    "bindings/c/src/",
    "bindings/engine/src/",
    "bindings/python/src/",
    "tools/preload/src/",
    "tools/recorder/src/",
    "engines/cuda/src/driver",
    "engines/cuda/src/stream.rs",
    "engines/dsa/src/linux/",
    "engines/link/src/ucx",
];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Violation> {
    let Some(syntax) = file.rust() else { return Vec::new() };
    let lines: Vec<&str> = file.text.lines().collect();
    let strays = syntax.unsafe_permits.iter().filter(|place| !may_permit(file, place)).map(|place| {
        Violation::new(
            &file.path,
            place.line,
            "unsafe code is permitted outside the places for it",
            "use the safe interface of memory or of the copy kernels; a new place needs a row in \
             xtask/src/rules/unsafety.rs and a reason",
        )
    });
    let unexplained =
        syntax.unsafe_uses.iter().filter(|place| !is_explained(&lines, place.line)).map(|place| {
            Violation::new(
                &file.path,
                place.line,
                "a use of unsafe without a reason",
                "write `// SAFETY: ` directly above it and cite the invariant it rests on",
            )
        });
    strays.chain(unexplained).collect()
}

fn may_permit(file: &SourceFile, place: &Place) -> bool {
    place.in_test || file.is_test() || PERMITTED.iter().any(|start| file.path.starts_with(start))
}

/// Whether a comment with SAFETY is above the statement of this line, or before it on the line.
fn is_explained(lines: &[&str], line: usize) -> bool {
    let on_line = lines[line - 1].split("unsafe").next().unwrap_or_default();
    if on_line.contains("SAFETY:") {
        return true;
    }
    for above in lines[..line - 1].iter().rev().map(|text| text.trim()) {
        let is_comment = above.starts_with("//") || above.starts_with("/*") || above.starts_with('*');
        if is_comment && above.contains("SAFETY:") {
            return true;
        }
        let ends_statement = above.is_empty() || above.ends_with([';', '{', '}', ',']);
        if !is_comment && !above.starts_with("#[") && ends_statement {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[SourceFile::new(path, text)]).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn refuses_a_permission_outside_the_permitted_places() {
        for form in ["#![allow(unsafe_code)]", "#[expect(unsafe_code)]\nmod a {}"] {
            assert_eq!(lines("crates/service/src/lib.rs", form), [1], "{form}");
            assert_eq!(lines("crates/cpu/src/lanes.rs", form), [1], "{form}");
            assert_eq!(lines("crates/shm/src/lib.rs", form), NONE, "{form}");
            assert_eq!(lines("crates/cpu/src/kernels/stream.rs", form), NONE, "{form}");
        }
    }

    #[test]
    fn accepts_a_permission_in_test_code() {
        assert_eq!(
            lines("crates/service/src/lib.rs", "#[cfg(test)]\n#[allow(unsafe_code)]\nmod tests {}"),
            NONE
        );
        assert_eq!(lines("crates/service/tests/fork.rs", "#![allow(unsafe_code)]"), NONE);
        assert_eq!(lines("crates/service/src/session/tests.rs", "#![allow(unsafe_code)]"), NONE);
    }

    #[test]
    fn refuses_a_block_without_its_reason() {
        assert_eq!(lines("crates/shm/src/lib.rs", "fn f() {\n    unsafe { g() }\n}\n"), [2]);
        assert_eq!(
            lines("crates/shm/src/lib.rs", "// SAFETY: of another.\nlet a = 1;\nlet b = unsafe { g() };\n"),
            [3]
        );
        assert_eq!(
            lines("crates/shm/src/lib.rs", "// SAFETY: first.\nA => unsafe { a() },\nB => unsafe { b() },\n"),
            [3]
        );
        assert_eq!(lines("crates/shm/src/lib.rs", "\nunsafe impl Send for A {}\n"), [2]);
    }

    #[test]
    fn accepts_a_reason_above_the_statement() {
        let block = "// SAFETY: the range was checked above,\n// and nobody unmaps it.\nlet a =\n    unsafe { g() };\n";
        assert_eq!(lines("crates/shm/src/lib.rs", block), NONE);
        assert_eq!(
            lines(
                "crates/shm/src/lib.rs",
                "// SAFETY: no interior.\n#[rustfmt::skip]\nunsafe impl Send for A {}\n"
            ),
            NONE
        );
        assert_eq!(lines("crates/shm/src/lib.rs", "f(/* SAFETY: checked. */ unsafe { g() })\n"), NONE);
    }
}
