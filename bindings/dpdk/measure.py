#!/usr/bin/python3
"""How many bits a second DPDK's devices copy: memferry's, in the process and behind a socket, beside memcpy and DPDK's dma_skeleton.

    measure.py --folder FOLDER --memferry COMMAND [--rounds 7] [--milliseconds 400] [--json FILE] [--page PAGE]

FOLDER has librte_dma_memferry.so and turns, built with an installed libmemferry; COMMAND is of the same build. The lcore that submits and polls is on the first
CPU; the other side is on the last. Each way runs once in each round, by turns. Prints the table, and writes it into a page (docs/dpdk.md) in
place of what is between its two marks.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import figures

SIZES = (256, 1024, 4096, 16384, 65536, 1048576)
# A ring of copies of this size is 1 GiB: their turns last longer.
LARGE = 1048576
# Three programs take 32 each, and the one behind a socket as many once more while they are moved into frames.
HUGE_PAGES = 128


def memory():
    """The arguments for DPDK's memory, and what the page calls it."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        values = dict(line.split(":", 1) for line in file)
    if values.get("Hugepagesize", "").split() == ["2048", "kB"] and int(values["HugePages_Free"]) >= HUGE_PAGES:
        return ["--in-memory", "--iova-mode=va"], "huge pages"
    return ["--no-huge"], "ordinary pages"


class Program:
    """A program of DPDK with one device, which copies on request."""

    def __init__(self, folder, number, pages, device):
        first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
        # A second lcore only sleeps: dma_skeleton's thread needs it for its CPU. A service in the process takes the CPUs without one.
        lcores = f"0@{first},1@{last}" if device.startswith("dma_skeleton") else f"0@{first}"
        line = [os.path.join(folder, "turns"), "--no-pci", "--lcores", lcores, "-m", "64", *pages]
        line += ["--log-level", "error", f"--file-prefix=turns-{os.getpid()}-{number}"]
        line += ["-d", os.path.join(folder, "librte_dma_memferry.so"), "--vdev", device]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, device, size, milliseconds):
        """One turn; gives Gbit/s."""
        self.process.stdin.write(f"{device} {size} {milliseconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise SystemExit(f"{self.process.args[0]} ended with status {self.process.returncode}")


def measure(arguments, ways):
    values = {way: {size: [] for size in SIZES} for way in ways}
    # The first round is not counted.
    for number in range(arguments.rounds + 1):
        for size in SIZES:
            for way, (program, device) in ways.items():
                milliseconds = arguments.milliseconds * (3 if size == LARGE else 1)
                rate = program.turn(device, size, milliseconds)
                if number:
                    values[way][size].append(rate)
        print(f"round {number} of {arguments.rounds}", file=sys.stderr)
    return {way: {size: figures.median(rates) for size, rates in sizes.items()} for way, sizes in values.items()}


def measured(arguments):
    last = max(os.sched_getaffinity(0))
    pages, called = memory()
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "memferry.sock")
        service = figures.serve(arguments.memferry, socket, ["taskset", "--cpu-list", str(last)])
        try:
            plain = Program(arguments.folder, 0, pages, "dma_skeleton,lcore=1")
            inside = Program(arguments.folder, 1, pages, "dma_memferry")
            behind = Program(arguments.folder, 2, pages, f"dma_memferry,socket={socket}")
            ways = {
                "`memcpy` by the lcore": (plain, "memcpy"),
                "`dma_skeleton`": (plain, "dma_skeleton"),
                "memferry in the process": (inside, "dma_memferry"),
                "memferry behind a socket": (behind, "dma_memferry"),
            }
            results = measure(arguments, ways)
            for program in (plain, inside, behind):
                program.end()
        finally:
            service.terminate()
            service.wait()
    return {"machine": figures.machine(), "rounds": arguments.rounds, "memory": called, "results": results}


def table(document):
    ways = document["results"]
    lines = [
        f"{figures.sentence(document['machine'])}; {document['memory']}, {document['rounds']} rounds. Gbit/s:",
        "",
        f"| bytes of a copy | {' | '.join(ways)} |",
        "| --- |" + " --- |" * len(ways),
    ]
    for size in SIZES:
        cells = (figures.cell(*sizes[size].values()) for sizes in ways.values())
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--memferry", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milliseconds", type=int, default=400)
    parser.add_argument("--json")
    parser.add_argument("--page")
    arguments = parser.parse_args()
    document = measured(arguments)
    figures.publish(document, table(document), arguments.json, arguments.page)


if __name__ == "__main__":
    main()
