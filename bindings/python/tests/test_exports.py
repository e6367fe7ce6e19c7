"""Frames in memory of a GPU as arrays of other libraries, over a fake CUDA driver: what they are given, and when it is gone."""

import ctypes
import gc
import mmap
import os
import re
import subprocess
import sys
import time
import unittest
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from pathlib import Path

import memferry
import numpy
from support import LEASHED, PATIENCE, SERVICE, Bounded, move, noise

BUILT = Path(SERVICE or "/nonexistent").parent
ENGINE, FAKE = BUILT / "memferry-engine-cuda", BUILT / "libmemferry_fake_cuda.so"
# The fake marks addresses of the device by this bit. Without it they are addresses of this process.
VRAM = 1 << 48
LENGTH = (3 << 20) + 5


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("number", c_int32)]


class Tensor(ctypes.Structure):
    """DLTensor"""

    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor"""

    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


GET = ctypes.pythonapi.PyCapsule_GetPointer
GET.argtypes, GET.restype = [py_object, c_char_p], c_void_p
RENAME = ctypes.pythonapi.PyCapsule_SetName
RENAME.argtypes = [py_object, c_char_p]
USED = b"used_dltensor"


def tensor_of(capsule):
    return ManagedTensor.from_address(GET(capsule, b"dltensor"))


def consume(capsule):
    """What a library does with a capsule: afterwards it calls the deleter."""
    managed = tensor_of(capsule)
    RENAME(capsule, USED)
    return managed


def delete(managed):
    managed.deleter(ctypes.addressof(managed))


def on_device(pointer, length):
    """The bytes at an address of the fake device."""
    return numpy.ctypeslib.as_array((c_uint8 * length).from_address(pointer & ~VRAM))


def is_mapped(pointer):
    """Whether the fake device has memory at this address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in re.match(r"(\w+)-(\w+)", line).groups())
        if start <= pointer & ~VRAM < end:
            return "/memfd:vram" in line
    return False


@unittest.skipUnless(ENGINE.exists() and FAKE.exists(), "no CUDA engine or fake driver beside the memferry command")
class OnTheFake(Bounded):
    """A service with the CUDA engine over the fake driver, which this process loads too."""

    @classmethod
    def setUpClass(cls):
        os.environ["MEMFERRY_CUDA_LIBRARY"] = str(FAKE)
        cls.addClassCleanup(os.environ.pop, "MEMFERRY_CUDA_LIBRARY")
        cls.path = f"/tmp/memferry-python-exports-{os.getpid()}.sock"
        leashed = [sys.executable, "-I", "-S", "-c", LEASHED]
        serve = [SERVICE, "serve", "--socket", cls.path, "--no-config", "--engine", f"cuda-0 user={os.getuid()} frames=all exports=all"]
        quiet = os.environ | {"MEMFERRY_LOG": "off"}
        service = subprocess.Popen([*leashed, *serve], stdout=subprocess.PIPE, text=True, env=quiet)
        cls.addClassCleanup(cls.end, service)
        assert "listening" in service.stdout.readline()
        engine = [ENGINE, "--socket", cls.path, "--name", "cuda-0", "--memory", str(64 << 20), "--library", FAKE]
        cls.addClassCleanup(cls.end, subprocess.Popen([*leashed, *engine], stderr=subprocess.DEVNULL))

    @staticmethod
    def end(process):
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()

    def setUp(self):
        self.client = memferry.connect(self.path)
        self.queue = self.client.queue(8)

    def far(self, length=LENGTH):
        """A frame in memory of the fake GPU, once the engine gives some."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.client.frame(length, home="cuda-0")
            except memferry.RefusedError:
                if time.monotonic() > end:
                    raise

    def moved(self, make, length=LENGTH):
        """Runs a transfer between a frame of the host and a far one, again if the engine was late for the former."""
        end = time.monotonic() + PATIENCE
        while True:
            near = self.client.frame(length)
            view = numpy.frombuffer(near, numpy.uint8)[:length]
            try:
                move(self.queue, make(near[:length], view))
                return view
            except memferry.TransferError as error:
                if error.failure != "Unsupported" or time.monotonic() > end:
                    raise

    def put(self, far, data):
        def make(near, view):
            view[:] = data
            return memferry.copy(near, far)

        self.moved(make, len(far))

    def get(self, far):
        return self.moved(lambda near, _: memferry.copy(far, near), len(far)).copy()

    def test_a_descriptor_is_given(self):
        far = self.far()
        exported = far.export()
        self.assertEqual((exported.kind, exported.device), ("cuda", b"memferry-fake-00"))
        self.assertEqual(exported.length, 4 << 20)
        self.put(far, noise(LENGTH))
        with mmap.mmap(exported.fileno(), exported.length) as mapped:
            numpy.testing.assert_array_equal(numpy.frombuffer(mapped[:LENGTH], numpy.uint8), noise(LENGTH))
        descriptor = exported.detach()
        self.assertFalse(os.get_inheritable(descriptor))
        os.close(descriptor)
        self.assertRaises(ValueError, exported.fileno)
        self.assertRaises(ValueError, exported.detach)

    def test_a_descriptor_is_closed_with_its_object(self):
        exported = self.far(1).export()
        number = exported.fileno()
        os.fstat(number)
        del exported
        self.assertRaises(OSError, os.fstat, number)

    def test_the_array_interface_shares_the_bytes(self):
        far = self.far()
        interface = far.__cuda_array_interface__
        pointer, read_only = interface.pop("data")
        expected = {"version": 3, "typestr": "|u1", "shape": (LENGTH,), "strides": None, "stream": None}
        self.assertEqual(interface, expected)
        self.assertIs(read_only, False)
        self.assertTrue(pointer & VRAM)
        bytes_there = on_device(pointer, LENGTH)
        self.put(far, noise(LENGTH, seed=2))
        numpy.testing.assert_array_equal(bytes_there, noise(LENGTH, seed=2))
        bytes_there[:] = noise(LENGTH, seed=3)
        numpy.testing.assert_array_equal(self.get(far), noise(LENGTH, seed=3))
        self.assertEqual(far.__cuda_array_interface__["data"], (pointer, False), "it is mapped once")

    def test_a_capsule_describes_the_bytes(self):
        far = self.far()
        self.assertEqual(far.__dlpack_device__(), (2, 0))
        for terms in ({}, {"stream": 1}, {"stream": None, "max_version": (1, 0), "dl_device": (2, 0), "copy": False}):
            capsule = far.__dlpack__(**terms)
            tensor = tensor_of(capsule).tensor
            self.assertEqual((tensor.device.kind, tensor.device.number, tensor.ndim), (2, 0, 1))
            self.assertEqual((tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset), (1, 8, 1, 0))
            self.assertEqual((tensor.shape[0], tensor.strides[0]), (LENGTH, 1))
            self.assertEqual(tensor.data, far.__cuda_array_interface__["data"][0])
        self.put(far, noise(LENGTH, seed=4))
        numpy.testing.assert_array_equal(on_device(tensor.data, LENGTH), noise(LENGTH, seed=4))
        for wrong in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}):
            self.assertRaises(BufferError, far.__dlpack__, **wrong)

    def test_the_last_user_unmaps(self):
        far = self.far()
        pointer = far.__cuda_array_interface__["data"][0]
        never, consumed = far.__dlpack__(), consume(far.__dlpack__())
        del far
        gc.collect()
        self.assertTrue(is_mapped(pointer), "two capsules have it")
        on_device(pointer, LENGTH)[:] = 7
        del never
        gc.collect()
        self.assertTrue(is_mapped(pointer), "a consumer has it")
        self.assertEqual(on_device(consumed.tensor.data, LENGTH)[-1], 7)
        delete(consumed)
        gc.collect()
        self.assertFalse(is_mapped(pointer))

    def test_a_frame_outlives_its_capsules(self):
        far = self.far()
        pointer = far.__cuda_array_interface__["data"][0]
        delete(consume(far.__dlpack__()))
        gc.collect()
        self.assertTrue(is_mapped(pointer))
        del far
        gc.collect()
        self.assertFalse(is_mapped(pointer))

    def test_released_memory_is_not_given_again(self):
        far = self.far(2 << 20)
        capsule = far.__dlpack__()
        there = on_device(tensor_of(capsule).tensor.data, 2 << 20)
        there[:] = 9
        del far
        others = [self.far(2 << 20) for _ in range(32)]
        for other in others:
            self.moved(lambda near, view, other=other: memferry.fill(other, 1), 1)
        self.assertTrue((there == 9).all())

    def test_memory_of_the_host_is_a_tensor_too(self):
        near = self.client.frame(4096)
        self.assertEqual(near.__dlpack_device__(), (1, 0))
        array = numpy.from_dlpack(near)
        self.assertEqual((array.dtype, array.shape), (numpy.uint8, (4096,)))
        numpy.frombuffer(near, numpy.uint8)[:] = 5
        self.assertTrue((array == 5).all())
        del near
        gc.collect()
        self.assertTrue((array == 5).all())
        self.assertFalse(hasattr(self.client.frame(1), "__cuda_array_interface__"))
        self.assertRaises(memferry.RefusedError, self.client.frame(1).export)

    def test_only_the_owner_exports(self):
        far = self.far()
        with memferry.connect(self.path) as other:
            grant = self.client.grant(far, "rwg", session=other.session)
            granted = other.accept(grant.token)
            self.assertRaises(memferry.RefusedError, granted.export)
            self.assertRaises(memferry.RefusedError, granted.__dlpack__)
            self.assertRaises(memferry.RefusedError, granted.__dlpack_device__)
            self.assertFalse(hasattr(granted, "__cuda_array_interface__"))
            grant.revoke()

    def in_another_process(self, library):
        """What a process says that uses a frame with another driver."""
        program = (
            "import memferry, sys\n"
            "frame = memferry.connect(sys.argv[1]).frame(1, home='cuda-0')\n"
            "try:\n    frame.__dlpack__()\n"
            "except BufferError as error:\n    print(error)\n"
        )
        self.far(1)
        command = [sys.executable, "-c", program, self.path]
        environment = os.environ | {"MEMFERRY_CUDA_LIBRARY": library[0], **library[1]}
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment).stdout

    def test_a_process_without_the_driver_is_told(self):
        said = self.in_another_process(("/nonexistent/libcuda.so.1", {}))
        self.assertIn("cannot use the CUDA driver /nonexistent/libcuda.so.1", said)
        self.assertIn("MEMFERRY_CUDA_LIBRARY", said)
        said = self.in_another_process(("libc.so.6", {}))
        self.assertIn("cannot use the CUDA driver libc.so.6", said)

    def test_failed_calls_are_named_and_leave_nothing(self):
        for call in ("cuInit", "cuDevicePrimaryCtxRetain", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"):
            with self.subTest(call):
                said = self.in_another_process((str(FAKE), {"MEMFERRY_FAKE_CUDA": f"fail={call}:2:1"}))
                self.assertRegex(said, rf"{call}(_v2)? failed with CUDA error 2")

    def test_an_export_that_failed_works_again(self):
        """The driver's calls are undone, so that the next try finds nothing in its way."""
        program = (
            "import memferry, sys\n"
            "client = memferry.connect(sys.argv[1])\n"
            "frame = client.frame(1, home='cuda-0')\n"
            "try:\n    frame.__dlpack__()\n"
            "except BufferError as error:\n    print(error)\n"
            "frame.__dlpack__()\n"
            "print(frame.__dlpack_device__())\n"
        )
        self.far(1)
        environment = os.environ | {"MEMFERRY_FAKE_CUDA": "fail=cuMemSetAccess:2:1"}
        command = [sys.executable, "-c", program, self.path]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment)
        self.assertEqual(said.stdout.splitlines()[-1], "(2, 0)")

    def test_a_forked_child_leaves_the_memory_alone(self):
        far = self.far()
        pointer = far.__cuda_array_interface__["data"][0]
        child = os.fork()
        if child == 0:
            try:
                refused = False
                try:
                    far.__dlpack__()
                except memferry.ForkedError:
                    refused = True
                del far
                gc.collect()
                os._exit(0 if refused and is_mapped(pointer) else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.put(far, noise(LENGTH))
        numpy.testing.assert_array_equal(on_device(pointer, LENGTH), noise(LENGTH))


if __name__ == "__main__":
    unittest.main()
