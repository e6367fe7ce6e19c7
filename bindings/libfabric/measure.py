#!/usr/bin/python3
"""What the provider costs: its ways by themselves, and messages beside Open MPI's own shared memory and UCX, by mpi4py's OSU-like
programs, unchanged.

    measure.py --suite MPI4PY-SOURCE --provider FOLDER --memferry COMMAND [--rounds 5] [--json FILE]

MPI4PY-SOURCE is the source of the installed mpi4py, FOLDER has libmemferry-fi.so and costs. Each layer runs once in each round, by turns. Prints
a table with medians, and lowest and highest in brackets: the tables of docs/libfabric.md are its output. `./x test --full libfabric`
leaves both folders in target/libfabric.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAMS = {
    "latency": ("osu_latency", "us", "one way, microseconds"),
    "bandwidth": ("osu_bw", "MB/s", "one way, MB/s"),
}
SIZES = (0, 8, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
LAYERS = {
    "memferry": ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "memferry"],
    "Open MPI's shared memory": ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"],
    # By default Open MPI takes UCX only where it has a network.
    "UCX": ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"],
}


def run(layer, program, arguments, environment):
    """One run of a program; gives its results by size."""
    demo = os.path.join(arguments.suite, "demo")
    call = f"import runpy; runpy.run_path({os.path.join(demo, program + '.py')!r}, run_name='__main__')"
    line = ["mpirun.openmpi", "-np", "2", "--oversubscribe", *LAYERS[layer]]
    for name in ("FI_PROVIDER_PATH", "FI_MEMFERRY_SOCKET", "FI_MEMFERRY_CLAIM_REMOTE"):
        line += ["-x", name]
    output = subprocess.run(
        line + [sys.executable, "-c", call], env=environment, check=True, capture_output=True, text=True, timeout=600
    ).stdout
    rows = (text.split() for text in output.splitlines() if text and text[0].isdigit())
    return {int(row[0]): float(row[1]) for row in rows}


def median(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def measure(arguments, environment):
    results = {test: {layer: {} for layer in LAYERS} for test in PROGRAMS}
    for number in range(arguments.rounds):
        for test, (program, _, _) in PROGRAMS.items():
            for layer in LAYERS:
                for size, value in run(layer, program, arguments, environment).items():
                    results[test][layer].setdefault(size, []).append(value)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return {
        test: {layer: {size: median(values) for size, values in sizes.items()} for layer, sizes in layers.items()}
        for test, layers in results.items()
    }


def costs(arguments, socket):
    """The ways of the provider: rows of name, bytes, median, lowest, highest in microseconds."""
    line = [os.path.join(arguments.provider, "costs"), arguments.memferry, socket, str(arguments.repeats)]
    environment = dict(os.environ, FI_PROVIDER_PATH=os.path.abspath(arguments.provider))
    output = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
    rows = [text.split("\t") for text in output.splitlines() if "\t" in text]
    return [[row[0], int(row[1]), *map(float, row[2:])] for row in rows]


def costs_table(rows):
    print("| way | bytes | microseconds |\n| --- | --- | --- |")
    for name, size, middle, lowest, highest in rows:
        print(f"| {name} | {size} | {middle:.4g} ({lowest:.4g} to {highest:.4g}) |")


def table(results):
    for test, layers in results.items():
        print(f"\n| {test}, bytes | " + " | ".join(f"{layer}, {PROGRAMS[test][1]}" for layer in layers) + " |")
        print("| --- |" + " --- |" * len(layers))
        for size in SIZES:
            cells = [layers[layer].get(size) for layer in layers]
            if not all(cells):
                continue
            texts = [f"{cell['median']:.4g} ({cell['lowest']:.4g} to {cell['highest']:.4g})" for cell in cells]
            print(f"| {size} | " + " | ".join(texts) + " |")


def serve(command, socket):
    service = subprocess.Popen([command, "serve", "--socket", socket], stdout=subprocess.PIPE, text=True)
    for line in service.stdout:
        if line.startswith("listening on "):
            return service
    raise SystemExit("the service does not listen")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--memferry", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1001)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "memferry.sock")
        ways = costs(arguments, socket)
        service = serve(arguments.memferry, socket)
        environment = dict(
            os.environ,
            FI_PROVIDER_PATH=os.path.abspath(arguments.provider),
            FI_MEMFERRY_SOCKET=socket,
            FI_MEMFERRY_CLAIM_REMOTE="1",
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )
        try:
            results = measure(arguments, environment)
        finally:
            service.terminate()
            service.wait()
    costs_table(ways)
    table(results)
    if arguments.json:
        machine = {"system": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg(), "time": time.strftime("%F %T")}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "rounds": arguments.rounds, "ways": ways, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
