"""Shared by the tests: a time limit for each, transfers that are held back, other threads, services in other processes."""

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import memferry
import numpy

SERVICE = os.environ.get("MEMFERRY_TEST_COMMAND")
ROOT = Path(__file__).parents[3]
# Seconds: the limit of a single wait, and that of a test, after which the run ends.
PATIENCE, LIMIT = 60, 180


def noise(*shape, dtype=numpy.uint8, seed=1):
    return numpy.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def move(queue, transfer, run=False):
    """The end of a transfer that is submitted and waited for, or run."""
    return queue.run(transfer) if run else queue.wait(queue.submit(transfer))


async def awaits(ticket, before=lambda: None):
    before()
    return await ticket


@contextlib.contextmanager
def unhurried():
    """Threads that this one wakes run only when it waits: the interpreter switches at no other time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2 * LIMIT)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def once_this_waits(call):
    """Another thread calls `call` when this one waits in the block."""
    waits = threading.Event()

    def calls():
        waits.wait()
        call()

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        with unhurried():
            waits.set()
            yield
    finally:
        thread.join()


def endless(client, queue, **terms):
    """Submits transfers that outlast every test unless they are cancelled, and a fence: later transfers of the queue wait for
    all of them. Needs a service in this process."""
    one, other = (numpy.frombuffer(client.frame(64 << 20), numpy.uint8) for _ in range(2))
    # Two pixels wide, so that each row is moved for itself: one worker takes about a second for each picture.
    turn = memferry.turn(one.reshape(-1, 2), other.reshape(2, -1), "rotate90", **terms)
    return [queue.submit(turn) for _ in range(100)] + [queue.submit(memferry.nop(fenced=True))]


@contextlib.contextmanager
def held_back(client, queue):
    """Transfers of a queue to the service in this process do not start until the given function is called, or the block is
    left."""
    before = endless(client, queue)

    def go():
        for ticket in before[:-1]:
            ticket.cancel()

    try:
        yield go
    finally:
        go()
        for ticket in before:
            with contextlib.suppress(memferry.TransferError):
                ticket.wait()


class Bounded(unittest.TestCase):
    """A test that hangs ends the run and shows where it hung."""

    def run(self, result=None):
        # A dump needs no interpreter's lock, which may be what the test hangs on.
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def in_another_thread(self, call):
        """A thread calls `call`, or awaits a ticket. The block is entered when that thread first lets others run: while it
        waits within the call, or after it. The given list has the result then."""
        ended, started = [], threading.Event()

        def calls():
            if callable(call):
                started.set()
                ended.append(call())
            else:
                ended.append(asyncio.run(awaits(call, started.set)))

        thread = threading.Thread(target=calls)
        with unhurried():
            thread.start()
            started.wait()
        yield ended
        thread.join()
        self.assertTrue(ended)


def output_of(*arguments):
    """The interpreter's output; it is killed when it hangs."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)


def example(name, *arguments):
    program = Path(__file__).parent.parent / "examples" / name
    return output_of(program, *arguments).stdout


def python_of(page):
    """The Python examples of a page, each a program."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def results_of_tour(output):
    """The tour's results, without numbers that depend on random data."""
    return [line.rsplit(": ", 1)[-1] for line in output.splitlines()]


TOUR = ["True", "True", "True, 1024 pixels of the badge", "True", "True", "Revoked"]

# Becomes the given command, which is killed when this process ends, by whatever cause.
LEASHED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


@unittest.skipUnless(SERVICE, "MEMFERRY_TEST_COMMAND names no memferry command")
class Serving(Bounded):
    """A service in another process."""

    def setUp(self):
        self.path = f"/tmp/memferry-python-{os.getpid()}.sock"
        leashed = [sys.executable, "-I", "-S", "-c", LEASHED]
        arguments = [*leashed, SERVICE, "serve", "--socket", self.path, "--no-config"]
        quiet = os.environ | {"MEMFERRY_LOG": "off"}
        self.service = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=quiet)
        self.addCleanup(self.end_service)
        self.assertIn("listening", self.service.stdout.readline())

    def end_service(self):
        self.service.kill()
        self.service.wait()
        self.service.stdout.close()

    @contextlib.contextmanager
    def stopped(self):
        """The service neither moves nor answers anything until the given function is called, or the block is left."""

        def go():
            self.service.send_signal(signal.SIGCONT)

        self.service.send_signal(signal.SIGSTOP)
        try:
            # The kernel reports it when the last thread has stopped.
            seen = os.waitid(os.P_PID, self.service.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.assertEqual(seen.si_code, os.CLD_STOPPED)
            yield go
        finally:
            go()
