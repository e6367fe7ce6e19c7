//! Names of functions, from the symbol tables of programs and libraries.
//!
//! ```text
//! file ─ regular, not too long ─► ELF ─► .symtab and .dynsym: functions by address ─► name as in the source, and offset
//! ```
//!
//! File names come from the recording, which the profiled program can write, so a file may be anything. Source lines and
//! separate symbol files are not used.

use std::fmt::{self, Write};
use std::io::Read;
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

use crate::files;

/// Bytes of the longest file that is read.
const LONGEST: u64 = 512 << 20;
/// Bytes kept of each name in a file: in a broken one each name may be as long as the file.
const LONGEST_SYMBOL: usize = 2000;
/// Bytes shown of a name. Names of C++ templates grow when they are written as in the source, those of hostile files without end.
const LONGEST_NAME: usize = 200;

/// The functions of a file.
pub(super) struct Symbols(Vec<Function>);

struct Function {
    address: u64,
    bytes: u64,
    name: String,
}

impl Symbols {
    /// Reads a file; `None` if it cannot be read or is not a program or library.
    pub(super) fn of(path: &Path) -> Option<Self> {
        Self::of_bytes(&read(path)?)
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        let is_function = |symbol: &object::Symbol<'_, '_>| {
            symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0
        };
        // All symbols of a broken file may have the same long name. Those of others share few ends of names.
        let mut left = bytes.len().saturating_mul(4);
        let mut functions: Vec<_> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(is_function)
            .filter_map(|symbol| {
                let name = symbol.name_bytes().ok()?;
                let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST_SYMBOL)]).into_owned();
                left = left.checked_sub(name.len())?;
                Some(Function { address: symbol.address(), bytes: symbol.size(), name })
            })
            .collect();
        functions.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        Some(Self(functions))
    }

    /// The function that contains the call before this return address, and the address's offset in it.
    pub(super) fn name(&self, address: u64) -> Option<String> {
        let call = address.checked_sub(1)?;
        let before = self.0.partition_point(|function| function.address <= call);
        let function = self.0[..before].last()?;
        let offset = call - function.address;
        (offset < function.bytes).then(|| format!("{}+{:#x}", as_in_source(&function.name), offset + 1))
    }
}

/// A text of limited length. Writing fails when it is full.
struct Short(String);

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.0.len() + character.len_utf8() > LONGEST_NAME {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}

/// The name of a function of Rust or C++ as its source has it; other names as they are.
fn as_in_source(symbol: &str) -> String {
    let mut name = Short(String::new());
    let is_whole = match rustc_demangle::try_demangle(symbol) {
        Ok(rust) => write!(name, "{rust:#}"),
        Err(_) => match cpp_demangle::Symbol::new(symbol) {
            Ok(cpp) if symbol.starts_with("_Z") => {
                cpp.structured_demangle(&mut name, &cpp_demangle::DemangleOptions::default())
            }
            _ => name.write_str(symbol),
        },
    };
    if name.0.is_empty() {
        return symbol.chars().take(LONGEST_NAME).collect();
    }
    if is_whole.is_err() {
        name.0.push('…');
    }
    name.0
}

/// Whether a program needs no loader; `None` if the file is not a program.
pub(super) fn is_static(path: &Path) -> Option<bool> {
    let bytes = read(path)?;
    let header = FileHeader64::<Endianness>::parse(bytes.as_slice()).ok()?;
    let endian = header.endian().ok()?;
    let programs = header.program_headers(endian, bytes.as_slice()).ok()?;
    Some(!programs.iter().any(|program| program.p_type(endian) == elf::PT_INTERP))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let (file, about) = files::open_source(path).ok()?;
    if about.len() > LONGEST {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(address: u64, bytes: u64, name: &str) -> Function {
        Function { address, bytes, name: name.to_owned() }
    }

    #[test]
    fn return_addresses_belong_to_the_caller() {
        let symbols = Symbols(vec![function(0x100, 0x20, "first"), function(0x200, 0x10, "second")]);
        assert_eq!(symbols.name(0x101).as_deref(), Some("first+0x1"));
        assert_eq!(symbols.name(0x120).as_deref(), Some("first+0x20"), "the call is the last instruction");
        assert_eq!(symbols.name(0x208).as_deref(), Some("second+0x8"));
        for outside in [0, 0x100, 0x121, 0x200, 0x211, u64::MAX] {
            assert_eq!(symbols.name(outside), None, "{outside:#x}");
        }
    }

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN4core3fmt5Write9write_str17h0123456789abcdefE", "core::fmt::Write::write_str"),
            ("_RNvC5crate4main", "crate::main"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_Zgarbage", "_Zgarbage"),
            ("_R", "_R"),
        ] {
            assert_eq!(as_in_source(symbol), name);
        }
        // Each level of this type doubles it.
        let hostile = format!("_Z1f{}i{}", "St4pairI".repeat(30), "S_E".repeat(30));
        assert!(as_in_source(&hostile).len() <= LONGEST_NAME + 3);
        assert!(as_in_source(&"x".repeat(5000)).len() <= LONGEST_NAME + 3);
    }

    #[test]
    fn this_program_has_functions_and_a_loader() {
        let own = std::env::current_exe().unwrap();
        let symbols = Symbols::of(&own).unwrap();
        assert!(symbols.0.iter().any(|function| function.name == "main"));
        assert_eq!(is_static(&own), Some(false));
    }

    #[test]
    fn other_files_have_no_functions() {
        for path in ["/dev/zero", "/", "/nowhere", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
            assert!(Symbols::of(Path::new(path)).is_none() && is_static(Path::new(path)).is_none(), "{path}");
        }
    }

    #[test]
    fn broken_programs_do_not_panic() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let head = &bytes[..bytes.len().min(1 << 16)];
        let seed = 0x5eed_u64;
        println!("seed {seed:#x}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let mut broken = head.to_vec();
            for _ in 0..8 {
                broken[rng.usize(..1024)] = rng.u8(..);
            }
            let _ = Symbols::of_bytes(&broken);
        }
    }
}
