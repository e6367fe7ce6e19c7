//! Streams: threads that run commands in order.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::codes::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::commands::{Command, WORD_BYTES};
use crate::context::{call_in_context, put};
use crate::faults::{before_command, faults};
use crate::space::space;

/// Commands given to a stream, and commands that it has done with.
#[derive(Debug, Default)]
struct Counts {
    given: u64,
    done: u64,
}

#[derive(Debug, Default)]
struct Progress {
    counts: Mutex<Counts>,
    advanced: Condvar,
}

#[derive(Debug)]
struct Stream {
    commands: Sender<Command>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct Streams {
    last_handle: usize,
    open: BTreeMap<usize, Stream>,
}

static STREAMS: Mutex<Streams> = Mutex::new(Streams { last_handle: 0x5000, open: BTreeMap::new() });

fn streams() -> MutexGuard<'static, Streams> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: u64) {
        let is_behind = |counts: &mut Counts| counts.done < until;
        drop(self.advanced.wait_while(self.lock(), is_behind));
    }
}

/// The thread: after the loss of the context it goes through the rest without running it.
fn run(commands: &Receiver<Command>, progress: &Progress) {
    for command in commands {
        if before_command().is_ok()
            && let Err(code) = command.run()
        {
            faults().lose(code);
        }
        progress.lock().done += 1;
        progress.advanced.notify_all();
    }
}

fn with_stream<T>(handle: usize, body: impl FnOnce(&Stream) -> T) -> Result<T, Code> {
    streams().open.get(&handle).map(body).ok_or(INVALID_HANDLE)
}

/// A call that gives a stream a command.
pub(crate) fn enqueue(name: &str, stream: usize, command: impl FnOnce() -> Result<Command, Code>) -> Code {
    call_in_context(name, || give(stream, command()?).map(|_| ()))
}

/// A call that gives a stream a command and waits until it has run.
pub(crate) fn enqueue_and_wait(name: &str, stream: usize, command: Command) -> Code {
    call_in_context(name, || {
        let (progress, number) = give(stream, command)?;
        progress.wait(number);
        faults().lost()
    })
}

fn give(stream: usize, command: Command) -> Result<(Arc<Progress>, u64), Code> {
    with_stream(stream, |stream| {
        let mut counts = stream.progress.lock();
        counts.given += 1;
        stream.commands.send(command).expect("the thread lives as long as its sender");
        (Arc::clone(&stream.progress), counts.given)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreateWithPriority(
    stream: Option<&mut usize>,
    flags: u32,
    _priority: i32,
) -> Code {
    call_in_context("cuStreamCreateWithPriority", || {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let progress = Arc::new(Progress::default());
        let (commands, received) = channel();
        let of_thread = Arc::clone(&progress);
        std::thread::spawn(move || run(&received, &of_thread));
        let mut streams = streams();
        streams.last_handle += 1;
        let handle = streams.last_handle;
        streams.open.insert(handle, Stream { commands, progress });
        put(stream, handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    call_in_context("cuStreamDestroy", || streams().open.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamQuery(stream: usize) -> Code {
    call_in_context("cuStreamQuery", || {
        let is_idle = with_stream(stream, |stream| {
            let counts = stream.progress.lock();
            counts.given == counts.done
        })?;
        if is_idle { faults().lost() } else { Err(NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamSynchronize(stream: usize) -> Code {
    call_in_context("cuStreamSynchronize", || {
        let (progress, given) =
            with_stream(stream, |stream| (Arc::clone(&stream.progress), stream.progress.lock().given))?;
        progress.wait(given);
        faults().lost()
    })
}

/// Waits for all streams.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSynchronize() -> Code {
    call_in_context("cuCtxSynchronize", || {
        let all: Vec<_> = streams()
            .open
            .values()
            .map(|stream| (Arc::clone(&stream.progress), stream.progress.lock().given))
            .collect();
        all.iter().for_each(|(progress, given)| progress.wait(*given));
        faults().lost()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamWriteValue32_v2(stream: usize, to: u64, value: u32, flags: u32) -> Code {
    enqueue("cuStreamWriteValue32", stream, || {
        check_word(to, flags)?;
        Ok(Command::Write32 { to, value })
    })
}

fn check_word(to: u64, flags: u32) -> Result<(), Code> {
    if flags != 0 || !to.is_multiple_of(WORD_BYTES) {
        return Err(INVALID_VALUE);
    }
    space().read().find_by_device(to, WORD_BYTES, true).map(|_| ())
}
