//! The memory of frames by descriptor, and as what other libraries take: DLPack capsules and the CUDA array interface.
//!
//! ```text
//! Frame ─ export ─► Exported ─ fileno ─► mmap, or _cuda.Memory: mapped once, held by the frame and by each capsule
//!   ├─ __cuda_array_interface__ ─► dict with the address            its consumer keeps the frame
//!   └─ __dlpack__ ─► capsule ─► DLManagedTensor ─ deleter ─► lets go of _cuda.Memory, or of the frame in memory of the host
//! ```

use std::ffi::c_void;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry::{ExportError, ExportKind};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;

pub(crate) fn of_export(error: ExportError) -> PyErr {
    match error {
        ExportError::Call(error) => errors::of_call(error),
        ExportError::Memory(_) => errors::Error::new_err(error.to_string()),
    }
}

/// The memory of a frame at an engine, by descriptor. The memory stays until the descriptor and all mappings of it are gone, also when the
/// frame is.
#[pyclass(frozen, module = "memferry")]
pub struct Exported {
    descriptor: Mutex<Option<OwnedFd>>,
    kind: ExportKind,
    length: u64,
}

impl From<memferry::Exported> for Exported {
    fn from(exported: memferry::Exported) -> Self {
        let memferry::Exported { descriptor, kind, length } = exported;
        Self { descriptor: Mutex::new(Some(descriptor)), kind, length }
    }
}

impl Exported {
    fn descriptor(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.descriptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_cuda(&self) -> bool {
        matches!(self.kind, ExportKind::Cuda { .. })
    }
}

fn detached() -> PyErr {
    PyValueError::new_err("the descriptor was detached; export the frame again")
}

#[pymethods]
impl Exported {
    /// What the descriptor is: "memory" for a memfd, to be mapped with `mmap.mmap(exported.fileno(), exported.length)`; "cuda" for
    /// memory of an NVIDIA GPU, for `cuMemImportFromShareableHandle`.
    #[getter]
    fn kind(&self) -> &'static str {
        if self.is_cuda() { "cuda" } else { "memory" }
    }

    /// Bytes of the memory, rounded up as the engine or its device does. The frame begins with the first one.
    #[getter]
    fn length(&self) -> u64 {
        self.length
    }

    /// The UUID of the GPU, 16 bytes; `None` for other memory.
    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match self.kind {
            ExportKind::Cuda { device } => Some(PyBytes::new(py, &device)),
            ExportKind::Memory => None,
        }
    }

    /// The number of the descriptor, which this object closes.
    ///
    /// Raises ValueError after `detach`.
    fn fileno(&self) -> PyResult<i32> {
        self.descriptor().as_ref().map(AsRawFd::as_raw_fd).ok_or_else(detached)
    }

    /// Gives the descriptor away: the caller closes it.
    ///
    /// Raises ValueError after `detach`.
    fn detach(&self) -> PyResult<i32> {
        self.descriptor().take().map(IntoRawFd::into_raw_fd).ok_or_else(detached)
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Exported of {} bytes, {}>", self.length, self.kind())
    }
}

/// Device types of DLPack.
pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
const UNSIGNED: u8 = 1;
const NAME: &std::ffi::CStr = c"dltensor";

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    elements: u16,
}

/// `DLTensor` of DLPack 0.8, and of all later unversioned capsules.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, for which the consumer calls the deleter once.
#[repr(C)]
struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// What a capsule owns. C sees the first field.
#[repr(C)]
struct Owned {
    managed: ManagedTensor,
    shape: [i64; 1],
    strides: [i64; 1],
    /// What maps the bytes, for as long as it lives.
    owner: Py<PyAny>,
}

/// A capsule of `length` bytes at `data`, which `owner` keeps.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    (data, length): (usize, i64),
    (kind, number): (i32, i32),
    owner: Py<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut(data),
        device: Device { kind, number },
        dimensions: 1,
        data_type: DataType { code: UNSIGNED, bits: 8, elements: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = ManagedTensor { tensor, context: std::ptr::null_mut(), deleter: Some(delete) };
    let owned = Box::into_raw(Box::new(Owned { managed, shape: [length], strides: [1], owner }));
    // SAFETY: P1: the box was leaked above, and nobody else has it yet.
    unsafe {
        (*owned).managed.tensor.shape = (&raw mut (*owned).shape).cast();
        (*owned).managed.tensor.strides = (&raw mut (*owned).strides).cast();
    }
    // SAFETY: the interpreter's lock is held; the name lives as long as the program.
    let made = unsafe { ffi::PyCapsule_New(owned.cast(), NAME.as_ptr(), Some(destroy)) };
    // SAFETY: a new reference, or null with an exception.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) };
    made.inspect_err(|_| {
        // SAFETY: P1: no capsule has it.
        unsafe { delete(owned.cast()) }
    })
}

/// Is called by the consumer, on any thread, when it is done with the bytes.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    if managed.is_null() {
        return;
    }
    // SAFETY: P1: DLPack calls it once, for what `capsule` leaked, of which the managed tensor is the first field.
    let owned = unsafe { Box::from_raw(managed.cast::<Owned>()) };
    let Owned { owner, .. } = *owned;
    let mut owner = Some(owner);
    // An interpreter that ends takes no references back; then the process ends, too.
    let _ = Python::try_attach(|_| drop(owner.take()));
    std::mem::forget(owner);
}

/// Is called when the capsule is gone. A consumer has renamed it, and calls the deleter itself.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls it with the capsule, which still has its pointer, under its lock.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
