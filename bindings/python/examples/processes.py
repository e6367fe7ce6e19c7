"""What the examples with several processes share: a service, workers of other users, their CPU time, and rows of medians."""

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memferry

MIB = 1 << 20
# A forked child would have none of the service's workers, and the sessions of its parent.
SPAWN = multiprocessing.get_context("spawn")
# User ids that no account has. Only root can become other users: else all processes belong to the caller.
FIRST_USER = 61001
# Seconds that the service's workers may go on looking for requests; CPU time is read after it.
SETTLED = 0.05
# Seconds: an answer that takes longer never comes.
PATIENCE = 60


def user(number):
    return FIRST_USER + number if os.geteuid() == 0 else os.geteuid()


class WorkerLost(Exception):
    """The process has ended."""


class WorkerError(Exception):
    """A method of the object raised; the text of its exception."""


def _serve(pipe, uid, make, arguments):
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    try:
        target = make(*arguments)
        pipe.send((True, None))
        while True:
            name, given = pipe.recv()
            if name is None:
                break
            try:
                answer = True, time.process_time() if name == "cpu" else getattr(target, name)(*given)
            except Exception as error:
                answer = False, f"{type(error).__name__}: {error}"
            pipe.send(answer)
    except EOFError:
        pass  # The parent is gone.
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))


class Worker:
    """A process of a user, with an object whose methods are called from here."""

    def __init__(self, uid, make, *arguments):
        self.user = uid
        self._pipe, far = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(far, uid, make, arguments), daemon=True)
        self._process.start()
        far.close()
        try:
            self.answer()
        except BaseException:
            self.kill()
            raise

    def start(self, name, *arguments):
        """Calls a method without waiting for its answer."""
        try:
            self._pipe.send((name, arguments))
        except OSError as error:
            raise WorkerLost(f"the worker of user {self.user} has ended") from error

    def answer(self):
        try:
            if not self._pipe.poll(PATIENCE):
                raise WorkerLost(f"the worker of user {self.user} did not answer in {PATIENCE} seconds")
            right, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerLost(f"the worker of user {self.user} has ended") from error
        if not right:
            raise WorkerError(value)
        return value

    def call(self, name, *arguments):
        self.start(name, *arguments)
        return self.answer()

    def kill(self):
        self._process.kill()
        self._process.join()

    def end(self):
        with contextlib.suppress(WorkerLost):
            self.start(None)
        self._process.join(PATIENCE)
        self.kill()


@contextlib.contextmanager
def ended(*workers):
    """Ends the workers after the block."""
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


class Service:
    """A service that listens on a path."""

    def __init__(self, path):
        self.path = str(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.connect(self.path)
            self.process = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def cpu(self):
        """Seconds of CPU time of its threads."""
        tasks = Path(f"/proc/{self.process}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextlib.contextmanager
def served(options):
    """The service of the options: the one that listens on --socket, or one of --command for the time of the block."""
    if options.socket:
        yield Service(options.socket)
        return
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # The socket says who may connect.
        path = os.path.join(directory, "memferry.sock")
        quiet = os.environ | {"MEMFERRY_LOG": "off"}
        arguments = [options.command, "serve", "--socket", path, "--no-config"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=quiet)
        try:
            if "listening" not in process.stdout.readline():
                raise OSError(f"{options.command} serve did not start")
            yield Service(path)
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def parser(text):
    """The options that the examples have in common."""
    options = argparse.ArgumentParser(description=text.splitlines()[0])
    where = options.add_mutually_exclusive_group(required=True)
    where.add_argument("--command", help="the memferry command, to start a service")
    where.add_argument("--socket", help="the socket of a service that runs")
    options.add_argument("--rounds", type=int, default=0, help="measure, with so many rounds")
    options.add_argument("--most", type=int, default=1 << 62, metavar="BYTES", help="measure no longer blocks or batches")
    return options


def run(main, options):
    """Runs an example. What was to be expected, such as no service, is a line and status 1."""
    try:
        with served(options) as service:
            main(service, options)
    except (OSError, memferry.Error, WorkerLost, WorkerError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


def cpu_of(service, workers):
    """Seconds of CPU time of the service and all workers, once the service has settled."""
    time.sleep(SETTLED)
    return service.cpu() + sum(worker.call("cpu") for worker in workers)


def middle(values, digits=3):
    """The median, with minimum and maximum."""

    def short(value):
        return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"

    return f"{short(statistics.median(values))} ({short(min(values))} to {short(max(values))})"


def size_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size >> 10} KiB"
