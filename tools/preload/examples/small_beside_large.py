"""What small requests to Redis or Valkey wait beside large replies, with and without the preloaded library.

    python3 small_beside_large.py --library target/release/libmemferry_preload.so [--large 10M] [--seconds 3] [--rounds 5]

A client gets a large value again and again, another one a value of 32 bytes, with a millisecond between two. The server has one thread,
so a small request waits while a large reply is copied. Two servers take turns, one of them with the library. Printed are the small
requests' p50, p99 and p99.9, the large replies in a second and the server's CPU time for each, and how many times as good the
library is. The first and the last large reply of a turn are compared, and all small ones.

The server is valkey-server or redis-server, or Debian's redis-check-rdb, which is the same program (package redis-tools). It is looked
for in PATH, or given by --server: one that is unpacked and not installed runs too.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SMALL = b"s" * 32
PAUSE_S = 0.001
UNITS = {"K": 10**3, "M": 10**6}
# Programs that are the server, and what they have to be called to be one.
SERVERS = {"valkey-server": "valkey-server", "redis-server": "redis-server", "redis-check-rdb": "redis-server"}


class Connection:
    """Enough of the protocol to set and get."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb", buffering=1 << 20)

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
        self.socket.sendall(b"".join(parts))

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise RuntimeError("the server closed the connection")
        if line.startswith(b"-"):
            raise RuntimeError(line.decode().strip())
        return line[:-2]

    def set(self, key, value):
        self.send(b"SET", key, value)
        if self.line() != b"+OK":
            raise RuntimeError("the value was not stored")

    def get(self, key, into):
        """Receives a value into a buffer of its length."""
        self.send(b"GET", key)
        length = int(self.line()[1:])
        if length != len(into):
            raise RuntimeError(f"{length} bytes instead of {len(into)}")
        got = 0
        while got < length:
            count = self.file.readinto(into[got:])
            if not count:
                raise RuntimeError("the server closed the connection")
            got += count
        if self.file.read(2) != b"\r\n":
            raise RuntimeError("a reply without its end")


class Server:
    def __init__(self, program, folder, name, library, large):
        self.path = os.path.join(folder, name + ".sock")
        environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "MEMFERRY_PRELOAD")}
        if library:
            environment["LD_PRELOAD"] = library
        words = [SERVERS[os.path.basename(program)], "--port", "0", "--unixsocket", self.path, "--save", "", "--dir", folder]
        self.process = subprocess.Popen(words, executable=program, env=environment, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while True:
            try:
                self.small, self.large = Connection(self.path), Connection(self.path)
                break
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise RuntimeError(f"{program} does not start") from None
                time.sleep(0.01)
        self.value = large
        self.small.set(b"small", SMALL)
        self.large.set(b"large", large)

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, seconds):
        """Latencies of small requests, large replies, the server's CPU time."""
        until = time.monotonic() + seconds
        replies, failures = [0], []

        def gets():
            received = memoryview(bytearray(len(self.value)))
            try:
                while time.monotonic() < until:
                    self.large.get(b"large", received)
                    if replies[0] == 0 and received != self.value:
                        raise RuntimeError("the first large reply is wrong")
                    replies[0] += 1
                if received != self.value:
                    raise RuntimeError("the last large reply is wrong")
            except (RuntimeError, OSError) as error:
                failures.append(error)

        before = self.cpu()
        thread = threading.Thread(target=gets)
        thread.start()
        latencies, received = [], memoryview(bytearray(len(SMALL)))
        while time.monotonic() < until:
            time.sleep(PAUSE_S)
            sent = time.perf_counter()
            self.small.get(b"small", received)
            latencies.append(time.perf_counter() - sent)
            if received != SMALL:
                raise RuntimeError("a small reply is wrong")
        thread.join()
        if failures:
            raise failures[0]
        return latencies, replies[0], self.cpu() - before

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(10) != 0:
            raise RuntimeError(f"the server ended with {self.process.returncode}")


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def size(text):
    factor = UNITS.get(text[-1:].upper(), 1)
    value = int(text[:-1] if factor > 1 else text) * factor
    if value < 1:
        raise argparse.ArgumentTypeError("a size is at least 1")
    return value


def figures(turn, seconds):
    latencies, replies, cpu = turn
    if not replies:
        raise RuntimeError("no large reply came; try a longer time")
    waits = [quantile(latencies, share) * 1e6 for share in (0.5, 0.99, 0.999)]
    return [*waits, replies / seconds, cpu / replies * 1e3]


ROWS = ["small, p50, us", "small, p99, us", "small, p99.9, us", "large replies in a second", "server's CPU for each, ms"]
HIGHER_IS_BETTER = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--server", help="the server's program, if not the first one in PATH")
    parser.add_argument("--large", type=size, default=size("10M"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, [options.server] if options.server else SERVERS)), None)
    if program is None or os.path.basename(program) not in SERVERS:
        sys.exit(f"{options.server or 'no server'} is not installed, or none of {', '.join(SERVERS)}: Debian's redis-tools has one")
    if not os.path.exists(options.library):
        sys.exit(f"{options.library} does not exist: cargo build --release -p memferry-preload builds it")
    large = random.Random(1).randbytes(options.large)
    with tempfile.TemporaryDirectory() as folder:
        servers = [Server(program, folder, "plain", None, large)]
        servers.append(Server(program, folder, "preloaded", os.path.abspath(options.library), large))
        rounds = []
        for number in range(options.rounds):
            order = [0, 1] if number % 2 == 0 else [1, 0]
            taken = {which: figures(servers[which].turn(options.seconds), options.seconds) for which in order}
            rounds.append((taken[0], taken[1]))
        for server in servers:
            server.end()
    # Debian's redis-check-rdb runs as the server that it is.
    name = options.server or SERVERS[os.path.basename(program)]
    print(f"{name}, large values of {options.large} bytes, {options.rounds} rounds")
    for index, row in enumerate(ROWS):
        plain, ours = ([one[side][index] for one in rounds] for side in (0, 1))
        ratios = [(b / a if index == HIGHER_IS_BETTER else a / b) if a and b else 1.0 for a, b in zip(plain, ours)]
        print(
            f"{row:27} plain {statistics.median(plain):10.2f}  preloaded {statistics.median(ours):10.2f}  "
            f"times as good {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
