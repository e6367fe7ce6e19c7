//! The way from C into Rust and back: panics stay here, pointers are checked before they are used.
//!
//! ```text
//! call(body) ─ catch_unwind ─► mf_error
//! Out::new(pointer)? ─ null, alignment ─► store          input, slice, text ─► values copied out of C's memory
//! ```
//!
//! Whether a pointer that is neither null nor misaligned is good nobody can check for less than a system call; that is C1.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Fault, mf_error};

/// Runs what a function of the interface does, and keeps its message.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> mf_error {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return mf_error::None,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let fault = Fault::new(mf_error::Panicked, format!("a mistake in the library: {text}"));
            // What was thrown might throw when it is dropped.
            std::mem::forget(panic);
            fault
        }
    };
    fault.remember();
    fault.number
}

fn checked<T>(what: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::new(mf_error::NullPointer, format!("{what} is null")));
    }
    if !pointer.is_aligned() {
        let message = format!("{what} is at {pointer:p}, which is no multiple of {}", align_of::<T>());
        return Err(Fault::new(mf_error::Unaligned, message));
    }
    Ok(())
}

/// Where a result goes.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn new(what: &str, pointer: *mut T) -> Result<Self, Fault> {
        checked(what, pointer)?;
        Ok(Self(pointer))
    }

    /// One that may be null: then nothing is stored.
    pub(crate) fn optional(what: &str, pointer: *mut T) -> Result<Option<Self>, Fault> {
        if pointer.is_null() { Ok(None) } else { Self::new(what, pointer).map(Some) }
    }

    pub(crate) fn store(self, value: T) {
        // SAFETY: C1: neither null nor misaligned, so good to be written during the call that made it.
        unsafe { self.0.write(value) }
    }
}

/// A structure that C passed by pointer.
pub(crate) fn input<T: Copy>(what: &str, pointer: *const T) -> Result<T, Fault> {
    checked(what, pointer)?;
    // SAFETY: C1: neither null nor misaligned; every field of these structures is an integer, so any bytes are a value.
    Ok(unsafe { pointer.read() })
}

/// An array that C passed; `most` bounds what a wrong count can do.
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
        let message = format!("{count} {what}; there may be {most} at most, split the transfer");
        return Err(Fault::new(mf_error::Argument, message));
    }
    checked(what, pointer)?;
    // SAFETY: C1: an array of `count`, of structures of integers.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec())
}

/// A string that C passed.
pub(crate) fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Fault> {
    checked(what, pointer)?;
    // SAFETY: C1: a string with its end, which stays as it is during the call; the reference does not outlive that.
    let string = unsafe { CStr::from_ptr(pointer) };
    string.to_str().map_err(|error| Fault::new(mf_error::Text, format!("{what} is not UTF-8: {error}")))
}

/// Bytes that a function reads or writes; an empty range may be null.
pub(crate) fn bytes(what: &str, pointer: *const u8, length: usize) -> Result<(), Fault> {
    if length == 0 {
        return Ok(());
    }
    checked(what, pointer)?;
    match (pointer as usize).checked_add(length) {
        Some(_) if isize::try_from(length).is_ok() => Ok(()),
        _ => Err(Fault::new(mf_error::Argument, format!("{what}: {length} bytes go beyond all addresses"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_number_and_its_message_is_kept() {
        assert_eq!(call(|| panic!("of {}", "some kind")), mf_error::Panicked);
        let message = text("the message", crate::mf_last_message()).unwrap();
        assert_eq!(message, "a mistake in the library: of some kind");
    }

    #[test]
    fn null_and_misaligned_pointers_are_refused() {
        let number =
            |result: Result<(), Fault>| result.map_or_else(|fault| fault.number, |()| mf_error::None);
        let mut words = [0_u64; 2];
        let askew = words.as_mut_ptr().wrapping_byte_add(1);
        assert_eq!(number(Out::new("it", askew).map(drop)), mf_error::Unaligned);
        assert_eq!(number(Out::<u64>::new("it", std::ptr::null_mut()).map(drop)), mf_error::NullPointer);
        assert_eq!(number(input("it", askew.cast_const()).map(drop)), mf_error::Unaligned);
        assert_eq!(number(array("them", words.as_ptr(), 2, 1).map(drop)), mf_error::Argument);
        assert_eq!(array("them", words.as_ptr(), 2, 2).unwrap(), [0, 0]);
        assert_eq!(number(bytes("it", words.as_ptr().cast(), usize::MAX)), mf_error::Argument);
    }
}
