#!/usr/bin/env python3
"""An engine process in Python that copies with the CPU: a template for engines whose device has a library for Python.

usage: memferry_engine_example.py --socket PATH --name NAME [--shortest BYTES]

It calls libmemferry_engine by ctypes; memferry_engine.h describes each function and field. The service must be configured with an engine
of that name. MEMFERRY_ENGINE_LIBRARY names another library than the installed one.

run() makes this process the keeper, and calls serve() in a process that the library forks. So import and open before run() only what both
may share, and open the device in serve(). The keeper must have one thread: import nothing that starts others before run().
"""

# SPDX-License-Identifier: Apache-2.0 OR MIT

import argparse
import ctypes
import os
import sys
import traceback
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p

NOP, COPY, FILL, SCATTER_GATHER, COMPARE = 1, 2, 4, 32, 128
DONE, CANCELLED, UNSUPPORTED = 0, 1, 3
# Bytes between two looks at the request's cancel.
PIECE = 1 << 20


class Options(ctypes.Structure):
    """mf_engine_options"""

    _fields_ = [
        ("size", c_uint32),
        ("operations", c_uint32),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("longest_bytes", c_uint64),
        ("shortest_bytes", c_uint64),
        ("alignment_bytes", c_uint32),
        ("channels", c_uint32),
        ("memory_bytes", c_uint64),
    ]


class Segment(ctypes.Structure):
    """mf_engine_segment"""

    _fields_ = [("address", c_void_p), ("length", c_uint64)]


class Request(ctypes.Structure):
    """mf_engine_request"""

    _fields_ = [
        ("id", c_uint64),
        ("operation", c_uint32),
        ("hint", c_uint32),
        ("length", c_uint64),
        ("source", c_void_p),
        ("destination", c_void_p),
        ("second", c_void_p),
        ("source_segments", POINTER(Segment)),
        ("destination_segments", POINTER(Segment)),
        ("source_count", c_uint32),
        ("destination_count", c_uint32),
        ("pattern", c_uint8 * 4),
        ("pattern_bytes", c_uint32),
        ("seed", c_uint32),
        ("pixel_bytes", c_uint32),
        ("x_count", c_uint32),
        ("y_count", c_uint32),
        ("transparent", c_uint32),
        ("color", c_uint32),
        ("source_x_step", c_int64),
        ("source_y_step", c_int64),
        ("destination_x_step", c_int64),
        ("destination_y_step", c_int64),
    ]


SERVE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)


def load():
    """The library, with the types of its functions. Calls release Python's lock while they wait."""
    library = ctypes.CDLL(os.environ.get("MEMFERRY_ENGINE_LIBRARY", "libmemferry_engine.so.0"))
    library.mf_engine_run.argtypes = [POINTER(Options), SERVE, c_void_p]
    library.mf_engine_next.argtypes = [c_void_p, POINTER(Request), c_int64]
    library.mf_engine_complete.argtypes = [c_void_p, c_uint64, c_uint32, c_uint64, c_uint64]
    library.mf_engine_progress.argtypes = [c_void_p, c_uint64, c_uint64, c_bool]
    library.mf_engine_is_cancelled.argtypes = [c_void_p, c_uint64]
    library.mf_engine_take_cancels.argtypes = [c_void_p]
    return library


def memory(address, length):
    """Bytes of a request, to read and write in place."""
    return memoryview((c_uint8 * length).from_address(address)).cast("B")


class Engine:
    """Carries out requests. A device's engine replaces the methods that move bytes."""

    def __init__(self, library, process):
        self.library = library
        self.process = process

    def serve(self):
        """Takes requests until the service or the keeper ends this process."""
        request = Request()
        while True:
            got = self.library.mf_engine_next(self.process, request, -1)
            if got < 0:
                return got
            if got == 0:
                self.library.mf_engine_take_cancels(self.process)
                continue
            status, done, value = self.perform(request)
            self.library.mf_engine_complete(self.process, request.id, status, done, value)

    def perform(self, request):
        """Status, bytes done and value of a request."""
        value = 0
        if request.operation == NOP:
            return DONE, request.length, 0
        if request.operation == COPY:
            done = self.copy(request)
        elif request.operation == FILL:
            done = self.fill(request)
        elif request.operation == SCATTER_GATHER:
            done = self.scatter_gather(request)
        elif request.operation == COMPARE:
            done, value = self.compare(request)
        else:
            return UNSUPPORTED, 0, 0
        if done == request.length:
            return DONE, done, value
        return CANCELLED, done, 0

    def should_end(self, request, done, downward=False):
        """Reports progress, which keeps a long request from being taken for stalled."""
        if done == request.length:
            return False
        self.library.mf_engine_progress(self.process, request.id, done, downward)
        return self.library.mf_engine_is_cancelled(self.process, request.id) == 1

    def copy(self, request):
        """Copies as memmove does: a destination above the source is written from its end."""
        source, destination, length = request.source, request.destination, request.length
        downward = 0 < destination - source < length if length else False
        done = 0
        while done < length:
            piece = min(length - done, PIECE)
            at = length - done - piece if downward else done
            ctypes.memmove(destination + at, source + at, piece)
            done += piece
            if self.should_end(request, done, downward):
                break
        return done

    def fill(self, request):
        """Repeats the pattern, which the library has repeated to four bytes. A piece holds whole patterns."""
        pattern = bytes(request.pattern) * (PIECE // 4)
        done = 0
        while done < request.length:
            piece = min(request.length - done, PIECE)
            ctypes.memmove(request.destination + done, pattern, piece)
            done += piece
            if self.should_end(request, done):
                break
        return done

    def scatter_gather(self, request):
        """Moves pieces that end where a segment of either list ends."""
        sources = pieces(request.source_segments, request.source_count)
        destinations = pieces(request.destination_segments, request.destination_count)
        done = reported = 0
        while sources and destinations:
            source, left = sources.pop()
            destination, room = destinations.pop()
            piece = min(left, room, PIECE)
            ctypes.memmove(destination, source, piece)
            done += piece
            if piece < left:
                sources.append((source + piece, left - piece))
            if piece < room:
                destinations.append((destination + piece, room - piece))
            # Many short segments need no report each.
            if done - reported >= PIECE:
                reported = done
                if self.should_end(request, done):
                    break
        return done

    def compare(self, request):
        """Bytes compared, and the offset of the first difference or the length. One that finds a difference is done as a whole."""
        done = 0
        while done < request.length:
            piece = min(request.length - done, PIECE)
            # Copies: memory that its owner changes meanwhile would be equal at the second look.
            one = bytes(memory(request.source + done, piece))
            other = bytes(memory(request.second + done, piece))
            if one != other:
                at = next(index for index in range(piece) if one[index] != other[index])
                return request.length, done + at
            done += piece
            if self.should_end(request, done):
                break
        return done, request.length


def pieces(segments, count):
    """Addresses and lengths of a list's segments, the first one last. Empty ones are left out."""
    listed = [(segments[index].address, segments[index].length) for index in range(count)]
    return [piece for piece in reversed(listed) if piece[1] > 0]


def run(library, options):
    """Runs the engine until SIGTERM or SIGINT; returns whether it ended in order."""

    def serve(process, _context):
        # An exception must not leave a function that C calls: the keeper starts another process.
        try:
            return Engine(library, process).serve()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            return 1

    return library.mf_engine_run(options, SERVE(serve), None) == 0


def size(text):
    """A number of bytes. The library refuses one that is too large for the service."""
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise ValueError
    return number


def main():
    parser = argparse.ArgumentParser(description="an engine process of memferry that copies with the CPU")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--shortest", type=size, default=64 << 10, metavar="BYTES")
    arguments = parser.parse_args()
    options = Options(
        size=ctypes.sizeof(Options),
        operations=NOP | COPY | FILL | SCATTER_GATHER | COMPARE,
        socket=os.fsencode(arguments.socket),
        name=os.fsencode(arguments.name),
        longest_bytes=1 << 40,
        shortest_bytes=arguments.shortest,
        alignment_bytes=1,
        channels=8,
    )
    return 0 if run(load(), options) else 1


if __name__ == "__main__":
    sys.exit(main())
