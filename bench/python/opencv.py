"""OpenCV's side of the benchmark group twod: executes commands from its input and answers each line with one line.

    open KIND HEIGHT WIDTH PIXEL SOURCE DESTINATION   copies both pictures into its own memory              -> ready
    run WHAT COUNT                                    performs it COUNT times                               -> nanoseconds
    result FILE                                       writes the destination's bytes to the file            -> ready

KIND is `frames` for memfds, like the engine's frames, or `arrays` for numpy's own memory. One thread, other settings are
defaults. It accesses memferry's memory only through the named files.
"""

import mmap
import os
import sys
import time

import cv2
import numpy

KEY = (1, 2, 3)


def memory(kind, shape, dtype):
    if kind == "arrays":
        return numpy.empty(shape, dtype)
    length = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    descriptor = os.memfd_create("opencv")
    os.posix_fallocate(descriptor, 0, length)
    mapped = mmap.mmap(descriptor, length)
    os.close(descriptor)
    return numpy.frombuffer(mapped, dtype).reshape(shape)


class Pictures:
    def __init__(self, kind, height, width, pixel, source, destination):
        dtype = {"1": numpy.uint8, "2": numpy.uint16, "4": numpy.int32}[pixel]
        shape = (int(height), int(width))
        self.source, self.destination = memory(kind, shape, dtype), memory(kind, shape, dtype)
        for array, path in ((self.source, source), (self.destination, destination)):
            array[:] = numpy.fromfile(path, dtype, array.size).reshape(shape)
        # The same bytes as four 8-bit components, for colour comparison.
        if pixel == "4":
            self.components = [a.view(numpy.uint8).reshape(*shape, 4) for a in (self.source, self.destination)]
            self.mask = memory(kind, shape, numpy.uint8)
            self.mask[:] = 1

    def keyed(self):
        source, destination = self.components
        cv2.inRange(source, (*KEY, 0), (*KEY, 255), self.mask)
        cv2.bitwise_not(self.mask, self.mask)
        return cv2.copyTo(source, self.mask, destination), destination

    def operation(self, what):
        source, destination = self.source, self.destination
        return {
            "rotate90": lambda: (cv2.rotate(source, cv2.ROTATE_90_CLOCKWISE, destination), destination),
            "rotate180": lambda: (cv2.rotate(source, cv2.ROTATE_180, destination), destination),
            "rotate270": lambda: (cv2.rotate(source, cv2.ROTATE_90_COUNTERCLOCKWISE, destination), destination),
            "transpose": lambda: (cv2.transpose(source, destination), destination),
            "flip-horizontal": lambda: (cv2.flip(source, 1, destination), destination),
            "flip-vertical": lambda: (cv2.flip(source, 0, destination), destination),
            "keyed": self.keyed,
        }[what]

    def run(self, what, count):
        operation = self.operation(what)
        started = time.perf_counter_ns()
        for _ in range(int(count)):
            written, destination = operation()
        elapsed = time.perf_counter_ns() - started
        # OpenCV replaces an unsuitable destination by new memory, which would distort the time.
        if written.ctypes.data != destination.ctypes.data:
            raise SystemExit(f"{what} did not write to the destination it was given")
        return elapsed


def main():
    cv2.setNumThreads(1)
    print(f"OpenCV {cv2.__version__}, numpy {numpy.__version__}", flush=True)
    pictures = None
    for line in sys.stdin:
        command, *words = line.split()
        answer = "ready"
        if command == "open":
            pictures = None
            pictures = Pictures(*words)
        elif command == "run":
            answer = pictures.run(*words)
        elif command == "result":
            pictures.destination.tofile(words[0])
        print(answer, flush=True)


main()
