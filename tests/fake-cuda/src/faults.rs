//! Faults that tests ask for, and settings of the fake.
//!
//! Text of words separated by spaces, in the variable `MEMFERRY_FAKE_CUDA` when the library is loaded or given to
//! `memferry_fake_cuda_set` later, which adds to what is set:
//!
//! | word | effect |
//! | --- | --- |
//! | `memory=BYTES` | VRAM of the device; more than that is out of memory |
//! | `driver=VERSION` | version of the driver, as `cuDriverGetVersion` writes it (12090) |
//! | `slow=MICROSECONDS` | each command of a stream takes so much longer |
//! | `hold` / `go` | streams stop before their next command; go on |
//! | `register=held` / `register=go` | registering memory does not end; it does |
//! | `lost=COMMANDS:CODE` | after so many more commands the context is lost: every later call answers CODE |
//! | `register=refused` | memory of shared mappings of memfds cannot be registered |
//! | `fail=CALL:CODE:TIMES` | the next so many calls of this function fail, without an effect |
//! | `without=CALL` | the driver does not have this function |
//! | `orders=PATH` | before each call and command, words are read from this file again if it has changed; tests of other processes replace it |

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codes::{Code, INVALID_VALUE, SUCCESS};

/// Variable with the faults that hold from the start.
pub const VARIABLE: &str = "MEMFERRY_FAKE_CUDA";

#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) memory_bytes: u64,
    pub(crate) driver_version: i32,
    pub(crate) refuses_memfds: bool,
    slow: Duration,
    holds: bool,
    holds_registering: bool,
    /// Commands until the context is lost, and the code of that.
    losing: Option<(u64, Code)>,
    lost: Option<Code>,
    failing: BTreeMap<String, (Code, u64)>,
    without: BTreeSet<String>,
    orders: Option<PathBuf>,
    /// What the file with orders had when it was last read.
    ordered: String,
}

static FAULTS: LazyLock<Mutex<Faults>> = LazyLock::new(|| {
    let mut faults = Faults {
        memory_bytes: 256 << 20,
        driver_version: 12090,
        refuses_memfds: false,
        slow: Duration::ZERO,
        holds: false,
        holds_registering: false,
        losing: None,
        lost: None,
        failing: BTreeMap::new(),
        without: BTreeSet::new(),
        orders: None,
        ordered: String::new(),
    };
    if let Ok(text) = std::env::var(VARIABLE) {
        assert!(faults.set(&text).is_some(), "{VARIABLE} has a word that the fake does not know: {text}");
    }
    Mutex::new(faults)
});
static GO: Condvar = Condvar::new();
/// Orders in a file are looked for so often by what holds.
const LOOK: Duration = Duration::from_millis(1);

pub(crate) fn faults() -> MutexGuard<'static, Faults> {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    faults.read_orders();
    faults
}

/// Waits as long as something is held, or until the context is lost.
fn wait_while(is_held: impl Fn(&Faults) -> bool) -> MutexGuard<'static, Faults> {
    let mut faults = faults();
    while is_held(&faults) && faults.lost.is_none() {
        faults = GO.wait_timeout(faults, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        faults.read_orders();
    }
    faults
}

/// Waits as long as the faults say before memory is registered.
pub(crate) fn before_registering() {
    drop(wait_while(|faults| faults.holds_registering));
}

/// Waits as long as the faults say before a command runs. An error: the context is lost, and the command does not run.
pub(crate) fn before_command() -> Result<(), Code> {
    let mut faults = wait_while(|faults| faults.holds);
    let slow = faults.slow;
    if let Some((left, code)) = faults.losing {
        faults.losing = left.checked_sub(1).map(|left| (left, code));
        if left == 0 {
            faults.lose(code);
        }
    }
    let lost = faults.lost;
    drop(faults);
    std::thread::sleep(slow);
    lost.map_or(Ok(()), Err)
}

impl Faults {
    /// The context is lost for good; the first reason stays.
    pub(crate) fn lose(&mut self, code: Code) {
        self.lost.get_or_insert(code);
        GO.notify_all();
    }

    pub(crate) fn lost(&self) -> Result<(), Code> {
        self.lost.map_or(Ok(()), Err)
    }

    pub(crate) fn lacks(&self, call: &str) -> bool {
        self.without.contains(call)
    }

    /// Whether this call is one of those that were to fail.
    pub(crate) fn take_failure(&mut self, call: &str) -> Result<(), Code> {
        match self.failing.get_mut(call) {
            Some((code, times)) if *times > 0 => {
                *times -= 1;
                Err(*code)
            }
            _ => Ok(()),
        }
    }

    fn read_orders(&mut self) {
        let text = self.orders.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        if let Some(text) = text.filter(|text| *text != self.ordered) {
            assert!(self.set(&text).is_some(), "an order that the fake does not know: {text}");
            self.ordered = text;
        }
    }

    fn set(&mut self, text: &str) -> Option<()> {
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "memory" => self.memory_bytes = value.parse().ok()?,
                "driver" => self.driver_version = value.parse().ok()?,
                "slow" => self.slow = Duration::from_micros(value.parse().ok()?),
                "hold" => self.holds = true,
                "go" => self.holds = false,
                "register" if value == "refused" => self.refuses_memfds = true,
                "register" if matches!(value, "held" | "go") => self.holds_registering = value == "held",
                "lost" => {
                    let (commands, code) = value.split_once(':')?;
                    self.losing = Some((commands.parse().ok()?, code.parse().ok()?));
                }
                "fail" => {
                    let mut parts = value.split(':');
                    let call = parts.next()?.to_owned();
                    self.failing.insert(call, (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?));
                }
                "orders" => self.orders = Some(value.into()),
                "without" => _ = self.without.insert(value.to_owned()),
                _ => return None,
            }
        }
        GO.notify_all();
        Some(())
    }
}

/// Adds faults. It is exported for tests, which find it by its name as they find the driver's calls.
///
/// # Safety
/// `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memferry_fake_cuda_set(text: *const c_char) -> u32 {
    if text.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes a C string, and it was checked for null.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str().ok().and_then(|text| faults().set(text)) {
        Some(()) => SUCCESS,
        None => INVALID_VALUE,
    }
}
