"""What the Python interface costs and gains on this machine, against NumPy and multiprocessing.shared_memory.

    python measure.py [--rounds 25] [--command target/release/memferry]

Random data; every side of a row is timed once in each round; medians, with minimum and maximum. With --command, the path of the
memferry command, also between processes, through a service. The tables of docs/python.md are its output.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import shared_memory

import memferry
import numpy

KIB, MIB = 1 << 10, 1 << 20


def noise(size):
    return numpy.frombuffer(bytearray(numpy.random.default_rng(7).bytes(size)), numpy.uint8)


def timed(action):
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def interleaved(rounds, sides):
    """The times of each side in nanoseconds: all sides by turns, after a round that is not counted."""
    times = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, action in sides.items():
            took = timed(lambda: action(number))
            if number:
                times[name].append(took)
    return times


def shown(times):
    scale, unit = (1e6, "ms") if statistics.median(times) >= 1e6 else (1e3, "us")
    middle, lowest, highest = (value / scale for value in (statistics.median(times), min(times), max(times)))
    return f"{number(middle)} {unit} ({number(lowest)} to {number(highest)})"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def row(what, times, ours="memferry"):
    others = [name for name in times if name != ours]
    # Ratios to the other sides only, one for each row of ours.
    others_last = [name for name in others if not name.startswith(ours)]
    mine = [name for name in times if name.startswith(ours)]
    middle = {name: statistics.median(times[name]) for name in times}
    ratio = "; ".join(", ".join(f"{middle[name] / middle[own]:.2f}" for own in mine) for name in others_last)
    print(f"| {what} | {shown(times[ours])} | " + " | ".join(shown(times[name]) for name in others) + f" | {ratio} |")


def size_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def in_process(rounds):
    print("| what | memferry, `run` | submitted and waited for | NumPy | NumPy's time by memferry's |")
    print("| --- | --- | --- | --- | --- |")
    with memferry.connect() as client:
        queue = client.queue(64)
        for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB):
            pairs = [(noise(size), numpy.ones(size, numpy.uint8))]
            cold = [(noise(size), numpy.ones(size, numpy.uint8)) for _ in range(max(2, 1024 * MIB // size // 2))] if size >= MIB else []
            for kind, used in (("again and again", pairs), ("others each time", cold)):
                if used:
                    # Each side uses another pair in a round, so that none finds in caches what another left there.
                    def numpys(number):
                        numpy.copyto(used[-number % len(used)][1], used[-number % len(used)][0])

                    def submitted(number):
                        source, target = used[(len(used) // 3 - number) % len(used)]
                        queue.wait(queue.submit(memferry.copy(source, target)))

                    def here(number):
                        source, target = used[(2 * len(used) // 3 - number) % len(used)]
                        queue.run(memferry.copy(source, target))

                    sides = {"memferry": here, "memferry, submitted": submitted, "NumPy": numpys}
                    row(f"copy, {size_of(size)}, {kind}", interleaved(rounds, sides))
            pairs = cold = used = None
        frames = [numpy.frombuffer(client.frame(64 * KIB), numpy.uint8) for _ in range(2)]
        arrays = [noise(64 * KIB), noise(64 * KIB)]
        sides = {
            "memferry": lambda _: queue.run(memferry.copy(frames[0], frames[1])),
            "memferry, submitted": lambda _: queue.wait(queue.submit(memferry.copy(frames[0], frames[1]))),
            "NumPy": lambda _: numpy.copyto(arrays[1], arrays[0]),
        }
        row("copy between frames, 64 KiB", interleaved(20 * rounds, sides))
        for pixel in (numpy.uint8, numpy.uint32):
            side = 4096
            picture = noise(side * side * pixel().itemsize).view(pixel).reshape(side, side)
            turned, other = numpy.ones_like(picture), numpy.ones_like(picture)
            sides = {
                "memferry": lambda _: queue.run(memferry.turn(picture, turned, "rotate90")),
                "memferry, submitted": lambda _: queue.wait(queue.submit(memferry.turn(picture, turned, "rotate90"))),
                "NumPy": lambda _: numpy.copyto(other, numpy.rot90(picture, -1)),
            }
            row(f"quarter turn, {side} x {side}, {8 * pixel().itemsize} bits", interleaved(rounds, sides))
            assert (turned == other).all()
        sides = {"memferry": lambda _: queue.run(memferry.nop()), "memferry, submitted": lambda _: queue.wait(queue.submit(memferry.nop())), "NumPy": lambda _: numpy.copyto(turned[:1, :1], picture[:1, :1])}
        row("minimum: a transfer of nothing, a copy of one element", interleaved(20 * rounds, sides))


def producer(path, pipe, size):
    """Gives the same bytes by a grant, by shared memory, and through a pipe on request."""
    data = noise(size)
    shared = shared_memory.SharedMemory(create=True, size=size)
    numpy.frombuffer(shared.buf, numpy.uint8)[:size] = data
    with memferry.connect(path) as client:
        frame = client.frame(size)
        numpy.frombuffer(frame, numpy.uint8)[:size] = data
        pipe.send((client.grant(frame[:size], "r", user=os.geteuid()).token, shared.name))
        while pipe.recv():
            pipe.send_bytes(data)
    shared.close()
    shared.unlink()


def between_processes(rounds, path):
    print("\n| what | memferry | shared_memory, copied out | pipe | their time by memferry's |\n| --- | --- | --- | --- | --- |")
    # A forked child has no workers.
    spawning = multiprocessing.get_context("spawn")
    for size in (64 * KIB, MIB, 16 * MIB):
        near, far = spawning.Pipe()
        process = spawning.Process(target=producer, args=(path, far, size))
        process.start()
        token, name = near.recv()
        shared = shared_memory.SharedMemory(name=name)
        view, copied, received = numpy.frombuffer(shared.buf, numpy.uint8)[:size], noise(size), bytearray(size)
        with memferry.connect(path) as client:
            granted, own, queue = client.accept(token), client.frame(size), client.queue(64)

            def piped(_):
                near.send(True)
                near.recv_bytes_into(received)

            sides = {
                "memferry": lambda _: queue.wait(queue.submit(memferry.copy(granted, own))),
                "shared_memory": lambda _: numpy.copyto(copied, view),
                "pipe": piped,
            }
            row(f"{size_of(size)} of another process", interleaved(rounds, sides))
            assert bytes(memoryview(own)[:size]) == copied.tobytes() == bytes(received)
            near.send(False)
            process.join()
        view = None
        shared.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--command", help="the memferry command, for a service")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, NumPy {numpy.__version__}, {os.cpu_count()} CPUs, {options.rounds} rounds\n")
    in_process(options.rounds)
    if options.command:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "memferry.sock")
            arguments = [options.command, "serve", "--socket", path, "--no-config"]
            quiet = os.environ | {"MEMFERRY_LOG": "off"}
            service = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=quiet)
            try:
                service.stdout.readline()
                between_processes(options.rounds, path)
            finally:
                service.terminate()
                service.wait()


if __name__ == "__main__":
    main()
