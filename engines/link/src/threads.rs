//! Threads of the link.

use std::io;
use std::sync::mpsc;

/// Starts a thread that goes on until the process ends, or what it serves.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Starts a thread for a value that must not be dropped here. Without the thread it comes back.
///
/// # Errors
/// Those of [`spawn`], and the value.
pub(crate) fn spawn_with<T: Send + 'static>(
    name: &str,
    value: T,
    run: impl FnOnce(T) + Send + 'static,
) -> Result<(), (T, io::Error)> {
    hand_over(value, run, |run| spawn(name, run))
}

fn hand_over<T: Send + 'static>(
    value: T,
    run: impl FnOnce(T) + Send + 'static,
    start: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> Result<(), (T, io::Error)> {
    let (give, taken) = mpsc::channel();
    let started = start(Box::new(move || {
        if let Ok(value) = taken.recv() {
            run(value);
        }
    }));
    match started {
        // The thread waits for it.
        Ok(()) => give.send(value).map_err(|back| (back.0, io::ErrorKind::BrokenPipe.into())),
        Err(error) => Err((value, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_comes_back_if_no_thread_starts() {
        let value = Arc::new(());
        let watched = Arc::downgrade(&value);
        let full = || io::Error::from(io::ErrorKind::WouldBlock);
        let back = hand_over(value, drop, |run| {
            drop(run);
            assert_eq!(watched.strong_count(), 1, "the thread that could not start another one dropped it");
            Err(full())
        });
        let (value, error) = back.unwrap_err();
        assert_eq!(error.kind(), full().kind());
        let (done, ended) = mpsc::channel();
        assert!(spawn_with("test", value, move |value| done.send(value).unwrap()).is_ok());
        assert!(ended.recv().is_ok());
    }
}
