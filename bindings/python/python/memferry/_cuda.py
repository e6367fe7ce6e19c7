"""Memory of an NVIDIA GPU in this process: what `Frame.export` gives, mapped by the CUDA driver.

Only the driver, libcuda.so.1, is loaded, and only when a frame is used as GPU memory; MEMFERRY_CUDA_LIBRARY names another one. Memory is
mapped in the primary context of its GPU, which PyTorch and CuPy use, too.
"""

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

_LIBRARY = "MEMFERRY_CUDA_LIBRARY"
_POSIX_DESCRIPTOR = 1
_DEVICE = 1
_READ_WRITE = 3


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("kind", c_int), ("device", c_int), ("access", c_int)]


_CALLS = {
    "cuInit": [c_uint],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetUuid_v2": [c_char * 16, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuCtxSynchronize": [],
    # The descriptor takes the place of a pointer.
    "cuMemImportFromShareableHandle": [POINTER(c_ulonglong), c_void_p, c_int],
    "cuMemRelease": [c_ulonglong],
    "cuMemAddressReserve": [POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_ulonglong],
    "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_ulonglong, c_ulonglong],
    "cuMemUnmap": [c_uint64, c_size_t],
    "cuMemSetAccess": [c_uint64, c_size_t, POINTER(_Access), c_size_t],
}


class _Driver:
    """The driver's library, initialized."""

    def __init__(self, path):
        try:
            self._library = ctypes.CDLL(path)
            for name, types in _CALLS.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = types, c_int
        except (OSError, AttributeError) as error:
            raise BufferError(
                f"cannot use the CUDA driver {path}: {error}; install one for CUDA 12 or later, or name it in {_LIBRARY}"
            ) from error
        self.call("cuInit", 0)

    def call(self, name, *operands):
        code = getattr(self._library, name)(*operands)
        if code != 0:
            raise BufferError(f"{name} failed with {self._name_of(code)}")

    def _name_of(self, code):
        name = c_char_p()
        try:
            known = self._library.cuGetErrorName(code, byref(name)) == 0
        except AttributeError:
            known = False
        return f"{name.value.decode()} ({code})" if known and name.value else f"CUDA error {code}"

    def devices(self):
        """The GPUs that this process sees, by UUID: ordinal and handle."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        found = {}
        for ordinal in range(count.value):
            device, uuid = c_int(), (c_char * 16)()
            self.call("cuDeviceGet", byref(device), ordinal)
            self.call("cuDeviceGetUuid_v2", uuid, device)
            found[uuid.raw] = ordinal, device.value
        return found


_driver = None
_loading = threading.Lock()


def _load():
    global _driver
    with _loading:
        if _driver is None:
            _driver = _Driver(os.environ.get(_LIBRARY, "libcuda.so.1"))
        return _driver


class Memory:
    """Memory of a GPU that another process exported, mapped here until this object is gone.

    `pointer` is its address for the GPU, `ordinal` the GPU's number in this process.
    """

    def __init__(self, exported):
        self._undo = []
        self._process = os.getpid()
        self._driver = driver = _load()
        found = driver.devices().get(exported.device)
        if found is None:
            raise BufferError(
                f"the memory lies on GPU {exported.device.hex()}, which this process does not see; is it in CUDA_VISIBLE_DEVICES?"
            )
        self.ordinal, device = found
        self._context = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(self._context), device)
        self._on_end("cuDevicePrimaryCtxRelease_v2", device)
        try:
            self._in_context(self._map, exported, device)
        except BaseException:
            self._end()
            raise

    def _on_end(self, name, *operands):
        self._undo.append((name, operands))

    def _in_context(self, body, *operands):
        """The context of this thread, which is another library's, is the same afterwards."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            body(*operands)
        finally:
            self._driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _map(self, exported, device):
        driver, length = self._driver, exported.length
        handle, address = c_ulonglong(), c_uint64()
        driver.call("cuMemImportFromShareableHandle", byref(handle), exported.fileno(), _POSIX_DESCRIPTOR)
        try:
            driver.call("cuMemAddressReserve", byref(address), length, 0, 0, 0)
            self._on_end("cuMemAddressFree", address, length)
            driver.call("cuMemMap", address, length, 0, handle, 0)
            self._on_end("cuMemUnmap", address, length)
        finally:
            # The mapping keeps the memory.
            driver.call("cuMemRelease", handle)
        driver.call("cuMemSetAccess", address, length, byref(_Access(_DEVICE, device, _READ_WRITE)), 1)
        self.pointer = address.value

    def _unmap(self):
        # What was started on it may still run: its user drops the memory without waiting.
        self._driver.call("cuCtxSynchronize")
        while len(self._undo) > 1:
            name, operands = self._undo.pop()
            self._driver.call(name, *operands)

    def _end(self):
        # A forked child cannot use the driver, and the memory is its parent's.
        if self._process != os.getpid():
            return
        if len(self._undo) > 1:
            self._in_context(self._unmap)
        if self._undo:
            name, operands = self._undo.pop()
            self._driver.call(name, *operands)

    def __del__(self):
        try:
            self._end()
        except BufferError:
            # A GPU that has failed unmaps everything when the process ends.
            self._undo.clear()
