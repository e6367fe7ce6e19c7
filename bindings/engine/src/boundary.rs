//! The boundary between C and Rust: catches panics, and checks pointers before they are used.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::types::mf_engine_error;

/// Why a call fails.
pub(crate) type Fault = mf_engine_error;

/// Runs the body of an exported function. Its failure becomes a negative number.
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(fault)) => fault as c_int,
        Err(panic) => {
            // The payload's own drop might panic.
            std::mem::forget(panic);
            mf_engine_error::Panicked as c_int
        }
    }
}

/// Refuses a pointer that cannot be one to a `T`.
pub(crate) fn check<T>(pointer: *const T) -> Result<(), Fault> {
    match pointer.is_null() || !pointer.is_aligned() {
        true => Err(Fault::BadPointer),
        false => Ok(()),
    }
}

/// A string that C passed.
pub(crate) fn text(pointer: *const c_char) -> Result<String, Fault> {
    check(pointer)?;
    // SAFETY: C1: a terminated string that does not change during the call.
    let string = unsafe { CStr::from_ptr(pointer) };
    string.to_str().map(str::to_owned).map_err(|_| Fault::Argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_number() {
        assert_eq!(call(|| panic!("of some kind")), mf_engine_error::Panicked as c_int);
        assert_eq!(call(|| Ok(1)), 1);
    }

    #[test]
    fn wrong_pointers_are_refused() {
        let words = [0_u64; 2];
        assert!(check(words.as_ptr()).is_ok());
        assert_eq!(check(words.as_ptr().wrapping_byte_add(1)), Err(Fault::BadPointer));
        assert_eq!(check::<u64>(std::ptr::null()), Err(Fault::BadPointer));
        assert_eq!(text(std::ptr::null()), Err(Fault::BadPointer));
        assert_eq!(text(c"\xff".as_ptr()), Err(Fault::Argument));
    }
}
