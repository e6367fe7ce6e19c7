"""What the tests share: a limit for each, transfers that are held back, other threads, services of other processes."""

import asyncio
import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import numpy

SERVICE = os.environ.get("MEMFERRY_TEST_COMMAND")
# Seconds after which what should have come long ago is given up; after which a test that hangs ends the run.
PATIENCE, LIMIT = 60, 180


def noise(*shape, dtype=numpy.uint8, seed=1):
    return numpy.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


async def awaits(transfer, before=lambda: None):
    before()
    return await transfer


@contextlib.contextmanager
def unhurried():
    """No thread is made to let others run here: whoever it wakes comes to run when it waits, not before."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2 * LIMIT)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def once_this_waits(call):
    """Has another thread call when this one, in the block, waits."""
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


def endless(client, **terms):
    """Has the service in this process do what outlasts every test unless it is cancelled. What the client asks
    for after that waits until it has ended."""
    one, other = (numpy.frombuffer(client.allocate(64 << 20), numpy.uint8) for _ in range(2))
    # Two pixels wide, so that each row is moved for itself: one worker takes about a second for each picture.
    turns = [client.turn(one.reshape(-1, 2), other.reshape(2, -1), "rotate90", **terms) for _ in range(100)]
    client.nop(fenced=True)
    return turns


@contextlib.contextmanager
def held_back(client):
    """What a client asks of the service in this process is not begun until the function given is called, or
    the block is left."""
    turns = endless(client)

    def go():
        for turn in turns:
            turn.cancel()

    try:
        yield go
    finally:
        go()


class Bounded(unittest.TestCase):
    """A test that hangs ends the run, and says where it hung."""

    def run(self, result=None):
        # It asks for no interpreter, whose lock may be what is waited for.
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def in_another_thread(self, call):
        """Has a thread call, or await a transfer. The block is entered when that thread first lets others
        run: while it waits within the call, or else when it is through, and the list given has what came of it."""
        ended, begun = [], threading.Event()

        def calls():
            if callable(call):
                begun.set()
                ended.append(call())
            else:
                ended.append(asyncio.run(awaits(call, begun.set)))

        thread = threading.Thread(target=calls)
        with unhurried():
            thread.start()
            begun.wait()
        yield ended
        thread.join()
        self.assertTrue(ended)


def output_of(*arguments):
    """What the interpreter says, which is killed when it hangs."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)


def example(name, *arguments):
    program = Path(__file__).parent.parent / "examples" / name
    return output_of(program, *arguments).stdout


def tour_of(said):
    """What the tour found, without numbers that depend on random data."""
    return [line.rsplit(": ", 1)[-1] for line in said.splitlines()]


TOUR = ["True", "True", "True, 1024 pixels of the badge", "True", "True", "Revoked"]

# Becomes the command that is named, which is killed when this process ends, however that comes.
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
        """The service neither moves nor answers anything until the function given is called, or the block is
        left."""

        def go():
            self.service.send_signal(signal.SIGCONT)

        self.service.send_signal(signal.SIGSTOP)
        try:
            # The kernel tells of it when the last thread has stopped.
            seen = os.waitid(os.P_PID, self.service.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.assertEqual(seen.si_code, os.CLD_STOPPED)
            yield go
        finally:
            go()
