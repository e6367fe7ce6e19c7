//! A lock whose waiters give up at a deadline.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};

use super::deadline::Deadline;

/// A value that one thread uses at a time.
pub(crate) struct Turn<T> {
    /// `None` while a thread uses it.
    free: Mutex<Option<T>>,
    returned: Condvar,
}

/// The value, until this is dropped.
pub(super) struct Taken<'a, T> {
    turn: &'a Turn<T>,
    value: Option<T>,
}

impl<T> Turn<T> {
    pub(super) fn new(value: T) -> Self {
        Self { free: Mutex::new(Some(value)), returned: Condvar::new() }
    }

    /// Takes the value. Returns `None` if another thread keeps it until the deadline.
    pub(super) fn take(&self, deadline: &Deadline) -> Option<Taken<'_, T>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.returned.wait_timeout_while(free, deadline.left(), |free| free.is_none());
        let value = waited.unwrap_or_else(PoisonError::into_inner).0.take()?;
        Some(Taken { turn: self, value: Some(value) })
    }

    /// Asks about the value; false while a thread uses it.
    pub(super) fn peek(&self, ask: impl FnOnce(&T) -> bool) -> bool {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(ask)
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until the drop")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until the drop")
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        *self.turn.free.lock().unwrap_or_else(PoisonError::into_inner) = self.value.take();
        self.turn.returned.notify_one();
    }
}
