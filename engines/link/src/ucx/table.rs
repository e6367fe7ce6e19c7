//! Functions and structures of UCP, as its headers have them since version 1.11. Structures are passed with a mask of the fields that are
//! set, so that later versions can add fields.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why UCX cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum UcxError {
    #[error("cannot load {}: {reason}; install libucx0, or name the library", path.display())]
    Missing { path: PathBuf, reason: String },
    #[error("{} is not the library of UCP: it has no {symbol}", path.display())]
    Foreign { path: PathBuf, symbol: &'static str },
    #[error("{call}: {text}")]
    Call { call: &'static str, text: String },
}

/// `ucs_status_t`.
pub(super) type Status = i8;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;

/// `ucp_params_t`: only the first two fields are used.
#[repr(C)]
pub(super) struct Parameters {
    pub(super) mask: u64,
    pub(super) features: u64,
    pub(super) rest: [u64; 32],
}

/// `ucp_worker_params_t`: only the first two fields are used.
#[repr(C)]
pub(super) struct WorkerParameters {
    pub(super) mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) rest: [u64; 64],
}

pub(super) type OnError = unsafe extern "C" fn(*mut c_void, *mut c_void, Status);

/// `ucp_ep_params_t` up to its error handler.
#[repr(C)]
pub(super) struct EndpointParameters {
    pub(super) mask: u64,
    pub(super) address: *const u8,
    pub(super) error_mode: c_int,
    pub(super) on_error: Option<OnError>,
    pub(super) on_error_argument: *mut c_void,
    pub(super) rest: [u64; 32],
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(super) struct Arrival {
    pub(super) attributes: u64,
    pub(super) reply_endpoint: *mut c_void,
}

pub(super) type OnMessage =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *const Arrival) -> Status;

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(super) struct Handler {
    pub(super) mask: u64,
    pub(super) id: c_uint,
    pub(super) flags: u32,
    pub(super) on_message: Option<OnMessage>,
    pub(super) argument: *mut c_void,
    pub(super) rest: [u64; 8],
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(super) struct RequestParameters {
    pub(super) attributes: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    /// A function whose operands depend on the call.
    pub(super) callback: *const c_void,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_int,
    pub(super) received: *mut c_void,
    pub(super) rest: [u64; 8],
}

impl RequestParameters {
    pub(super) const fn new() -> Self {
        Self {
            attributes: 0,
            flags: 0,
            request: std::ptr::null_mut(),
            callback: std::ptr::null(),
            datatype: 0,
            user_data: std::ptr::null_mut(),
            reply_buffer: std::ptr::null_mut(),
            memory_type: 0,
            received: std::ptr::null_mut(),
            rest: [0; 8],
        }
    }
}

const _: () = assert!(
    std::mem::offset_of!(EndpointParameters, on_error) == 24
        && std::mem::offset_of!(EndpointParameters, rest) == 40
        && std::mem::offset_of!(Handler, on_message) == 16
        && std::mem::offset_of!(RequestParameters, datatype) == 24
        && std::mem::offset_of!(RequestParameters, user_data) == 32
        && std::mem::offset_of!(RequestParameters, memory_type) == 48
        && std::mem::offset_of!(RequestParameters, received) == 56
);

macro_rules! table {
    ($($field:ident: $symbol:literal ($($operand:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of UCP that are called.
        #[derive(Clone, Copy)]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($operand),*) $(-> $result)?,)*
        }

        impl Table {
            /// Opens the library, which stays loaded.
            pub(super) fn load(path: &Path) -> Result<Self, UcxError> {
                let library = open(path)?;
                // SAFETY: X: the library's functions of these names have these signatures.
                Ok(unsafe {
                    Self {
                        $($field: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($operand),*) $(-> $result)?,
                        >(find(library, path, $symbol)?),)*
                    }
                })
            }
        }
    };
}

fn open(path: &Path) -> Result<*mut c_void, UcxError> {
    let missing = |reason: String| UcxError::Missing { path: path.to_owned(), reason };
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| missing("its name has a NUL".to_owned()))?;
    // SAFETY: the name is a C string; what the library's constructors do is up to the administrator who installed it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: dlerror returns null or a C string that lives until the next call on this thread.
        let text = unsafe {
            let text = libc::dlerror();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(missing(text));
    }
    Ok(library)
}

fn find(library: *mut c_void, path: &Path, symbol: &'static str) -> Result<*mut c_void, UcxError> {
    let foreign = || UcxError::Foreign { path: path.to_owned(), symbol };
    let name = std::ffi::CString::new(symbol).map_err(|_| foreign())?;
    // SAFETY: the library is open, and the name is a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() { Err(foreign()) } else { Ok(address) }
}

table! {
    initialize: "ucp_init_version" (c_uint, c_uint, *const Parameters, *const c_void, *mut *mut c_void) -> Status;
    create_worker: "ucp_worker_create" (*mut c_void, *const WorkerParameters, *mut *mut c_void) -> Status;
    address: "ucp_worker_get_address" (*mut c_void, *mut *mut u8, *mut usize) -> Status;
    release_address: "ucp_worker_release_address" (*mut c_void, *mut u8);
    set_handler: "ucp_worker_set_am_recv_handler" (*mut c_void, *const Handler) -> Status;
    progress: "ucp_worker_progress" (*mut c_void) -> c_uint;
    create_endpoint: "ucp_ep_create" (*mut c_void, *const EndpointParameters, *mut *mut c_void) -> Status;
    close_endpoint: "ucp_ep_close_nbx" (*mut c_void, *const RequestParameters) -> *mut c_void;
    send: "ucp_am_send_nbx" (*mut c_void, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParameters) -> *mut c_void;
    receive: "ucp_am_recv_data_nbx" (*mut c_void, *mut c_void, *mut c_void, usize, *const RequestParameters) -> *mut c_void;
    free_request: "ucp_request_free" (*mut c_void);
    version: "ucp_get_version_string" () -> *const c_char;
}
