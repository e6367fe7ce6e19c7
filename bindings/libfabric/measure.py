#!/usr/bin/python3
"""What the provider costs: its ways by themselves, and messages beside Open MPI's own shared memory and UCX, by mpi4py's OSU-like
programs, unchanged.

    measure.py --suite MPI4PY-SOURCE --provider FOLDER --memferry COMMAND [--rounds 5] [--json FILE] [--page PAGE]
    measure.py --from FILE --page PAGE

MPI4PY-SOURCE is the source of the installed mpi4py, FOLDER has libmemferry-fi.so and costs: `./x test --full libfabric` leaves both in
target/libfabric. Each layer runs once in each round, by turns. Prints the tables, and writes them into a page (docs/libfabric.md) in place
of what is between its two marks. With --from it measures nothing: the figures are those that an earlier run wrote by --json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import figures

PROGRAMS = {
    "latency": ("osu_latency", "Latency of messages one way, microseconds"),
    "bandwidth": ("osu_bw", "Bandwidth of messages one way, MB/s"),
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


def measure(arguments, environment):
    results = {test: {layer: {} for layer in LAYERS} for test in PROGRAMS}
    for number in range(arguments.rounds):
        for test, (program, _) in PROGRAMS.items():
            for layer in LAYERS:
                for size, value in run(layer, program, arguments, environment).items():
                    results[test][layer].setdefault(size, []).append(value)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return {
        test: {layer: {size: figures.median(values) for size, values in sizes.items()} for layer, sizes in layers.items()}
        for test, layers in results.items()
    }


def costs(arguments, socket):
    """The ways of the provider: rows of name, bytes, median, lowest, highest in microseconds."""
    line = [os.path.join(arguments.provider, "costs"), arguments.memferry, socket, str(arguments.repeats)]
    environment = dict(os.environ, FI_PROVIDER_PATH=os.path.abspath(arguments.provider))
    output = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
    rows = [text.split("\t") for text in output.splitlines() if "\t" in text]
    return [[row[0], int(row[1]), *map(float, row[2:])] for row in rows]


def rows_of(title, columns, sizes, cells):
    """A table with a line for each size that has all its cells."""
    lines = [f"{title}:", "", f"| bytes | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for size in sizes:
        found = [cells.get((column, size)) for column in columns]
        if all(found):
            lines.append(f"| {size:,} | {' | '.join(figures.cell(*one) for one in found)} |")
    return [*lines, ""]


def rows_of_ways(ways):
    """A table with a line for each way; not each has every size."""
    sizes = sorted({size for _, size in ways})
    lines = ["The ways by themselves, microseconds:", "", f"| way, bytes | {' | '.join(f'{size:,}' for size in sizes)} |"]
    lines.append("| --- |" + " --- |" * len(sizes))
    for name in dict.fromkeys(name for name, _ in ways):
        cells = (figures.cell(*ways[name, size]) if (name, size) in ways else "" for size in sizes)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def tables(document):
    """The tables of a run, after its machine and date."""
    lines = [
        f"{figures.sentence(document['machine'])}; {document['rounds']} rounds, {document['repeats']} repeats of each way.",
        "",
    ]
    ways = {(name, size): times for name, size, *times in document["ways"]}
    lines += rows_of_ways(ways)
    for test, layers in document["results"].items():
        # JSON has text for each size.
        cells = {
            (layer, int(size)): (one["median"], one["lowest"], one["highest"])
            for layer, found in layers.items()
            for size, one in found.items()
        }
        lines += rows_of(PROGRAMS[test][1], list(layers), SIZES, cells)
    return "\n".join(lines)


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite")
    parser.add_argument("--provider")
    parser.add_argument("--memferry")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1001)
    parser.add_argument("--json")
    parser.add_argument("--page")
    parser.add_argument("--from", dest="earlier", metavar="FILE")
    arguments = parser.parse_args(words)
    if not arguments.earlier and not (arguments.suite and arguments.provider and arguments.memferry):
        parser.error("--suite, --provider and --memferry are needed to measure; or --from, with figures of an earlier run")
    return arguments


def measured(arguments):
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "memferry.sock")
        ways = costs(arguments, socket)
        service = figures.serve(arguments.memferry, socket)
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
    return {
        "machine": figures.machine(),
        "rounds": arguments.rounds,
        "repeats": arguments.repeats,
        "ways": ways,
        "results": results,
    }


def main():
    arguments = arguments_of(sys.argv[1:])
    if arguments.earlier:
        with open(arguments.earlier, encoding="utf-8") as file:
            document = json.load(file)
    else:
        document = measured(arguments)
    figures.publish(document, tables(document), arguments.json, arguments.page)


if __name__ == "__main__":
    main()
