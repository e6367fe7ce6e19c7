//! The boundary between C and Rust: catches panics, and checks pointers before they are used.
//!
//! ```text
//! call(body) ─ catch_unwind ─► mf_error
//! Out::new(pointer)? ─ null, alignment ─► store          input, array, text ─► values copied out of C's memory
//! ```
//!
//! More than null and alignment cannot be checked without a system call; C1 covers the rest.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Fault, mf_error};

/// Runs the body of an exported function, and keeps the message of its failure.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> mf_error {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return mf_error::None,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let fault =
                Fault::new(mf_error::Panicked, format!("the library panicked: {text}; please report this"));
            // The payload's own drop might panic.
            std::mem::forget(panic);
            fault
        }
    };
    let number = fault.number;
    fault.remember();
    number
}

fn checked<T>(what: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::new(mf_error::NullPointer, format!("{what} is null")));
    }
    if !pointer.is_aligned() {
        let message = format!("{what} is at {pointer:p}, which is not a multiple of {}", align_of::<T>());
        return Err(Fault::new(mf_error::Unaligned, message));
    }
    Ok(())
}

/// A pointer to a result.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn new(what: &str, pointer: *mut T) -> Result<Self, Fault> {
        checked(what, pointer)?;
        Ok(Self(pointer))
    }

    /// A pointer that may be null: then nothing is stored.
    pub(crate) fn optional(what: &str, pointer: *mut T) -> Result<Option<Self>, Fault> {
        if pointer.is_null() { Ok(None) } else { Self::new(what, pointer).map(Some) }
    }

    pub(crate) fn store(self, value: T) {
        // SAFETY: C1: neither null nor misaligned, so it may be written during this call.
        unsafe { self.0.write(value) }
    }
}

/// A structure that C passed by pointer.
pub(crate) fn input<T: Copy>(what: &str, pointer: *const T) -> Result<T, Fault> {
    checked(what, pointer)?;
    // SAFETY: C1: neither null nor misaligned; every field of these structures is an integer, so any bytes are a value.
    Ok(unsafe { pointer.read() })
}

/// An array that C passed; `most` limits the bytes that a wrong count makes this read.
pub(crate) fn array<T: Copy>(
    what: &str,
    pointer: *const T,
    count: usize,
    most: usize,
) -> Result<Vec<T>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > most {
        let message = format!("{count} {what}; at most {most} are allowed, split the transfer");
        return Err(Fault::new(mf_error::Argument, message));
    }
    checked(what, pointer)?;
    // SAFETY: C1: an array of `count` structures of integers.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec())
}

/// A string that C passed.
pub(crate) fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Fault> {
    checked(what, pointer)?;
    // SAFETY: C1: a terminated string that does not change during the call; the reference does not outlive the call.
    let string = unsafe { CStr::from_ptr(pointer) };
    string.to_str().map_err(|error| Fault::new(mf_error::Text, format!("{what} is not UTF-8: {error}")))
}

/// Checks bytes that a function reads or writes; an empty range may be null.
pub(crate) fn bytes(what: &str, pointer: *const u8, length: usize) -> Result<(), Fault> {
    if length == 0 {
        return Ok(());
    }
    checked(what, pointer)?;
    match (pointer as usize).checked_add(length) {
        Some(_) if isize::try_from(length).is_ok() => Ok(()),
        _ => {
            Err(Fault::new(mf_error::Argument, format!("{what}: {length} bytes reach past the last address")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_a_message() {
        assert_eq!(call(|| panic!("of {}", "some kind")), mf_error::Panicked);
        let message = text("the message", crate::mf_last_message()).unwrap();
        assert_eq!(message, "the library panicked: of some kind; please report this");
    }

    #[test]
    fn null_and_misaligned_pointers_are_refused() {
        let number =
            |result: Result<(), Fault>| result.map_or_else(|fault| fault.number, |()| mf_error::None);
        let mut words = [0_u64; 2];
        let misaligned = words.as_mut_ptr().wrapping_byte_add(1);
        assert_eq!(number(Out::new("it", misaligned).map(drop)), mf_error::Unaligned);
        assert_eq!(number(Out::<u64>::new("it", std::ptr::null_mut()).map(drop)), mf_error::NullPointer);
        assert_eq!(number(input("it", misaligned.cast_const()).map(drop)), mf_error::Unaligned);
        assert_eq!(number(array("them", words.as_ptr(), 2, 1).map(drop)), mf_error::Argument);
        assert_eq!(array("them", words.as_ptr(), 2, 2).unwrap(), [0, 0]);
        assert_eq!(number(bytes("it", words.as_ptr().cast(), usize::MAX)), mf_error::Argument);
    }
}
