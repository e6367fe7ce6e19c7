"""What the programs that measure bindings share: a service, the machine, cells of tables, and where the figures go.

This module measures nothing.
"""

import json
import os
import platform
import statistics
import subprocess
import time

MARKS = ("<!-- figures of measure.py -->", "<!-- end of the figures -->")


def serve(command, socket, before=()):
    """Starts a service, by a command line that begins with `before`; it listens when this returns."""
    line = [*before, command, "serve", "--socket", socket]
    service = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    for said in service.stdout:
        if said.startswith("listening on "):
            return service
    raise SystemExit("the service does not listen")


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "model": models[0] if models else "unknown model",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load": os.getloadavg()[0],
        "date": time.strftime("%F"),
    }


def sentence(at):
    """Where and when figures were measured: begins a sentence."""
    return f"Measured on {at['date']}, {at['cpus']} CPUs ({at['model']}), {at['system']}, load {at['load']:.1f} at the end"


def median(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def number(value):
    """Two digits at least; more only before the point."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def cell(middle, lowest, highest):
    return f"{number(middle)} ({number(lowest)} to {number(highest)})"


def fill(path, text):
    """Puts the text between the marks of a page."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if any(page.count(mark) != 1 for mark in MARKS) or page.index(MARKS[0]) > page.index(MARKS[1]):
        raise SystemExit(f"{path} has to have each of these lines once, in this order: {MARKS[0]} and {MARKS[1]}")
    before, after = page.split(MARKS[0])[0], page.split(MARKS[1])[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}")


def publish(document, text, json_path, page):
    """Prints the tables; writes the figures into a file, and the tables into a page, where there are such."""
    if json_path:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    if page:
        fill(page, text)
    print(text)
