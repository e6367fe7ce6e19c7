"""One end of a transfer between two processes by another project's transfer engine, controlled by lines of JSON.

    target ENGINE BYTES      random bytes that others may read; prints where they are, then answers questions
    initiator ENGINE BYTES   reads the target's line, connects, answers {"ready": ...}

A question to an initiator is {"bytes": N, "count": N, "depth": N}: so many reads of N bytes, so many of them outstanding. The answer has
the nanoseconds of all, those of each read, and the CPU time of this process. A question to a target is any line; the answer is
its CPU time. ENGINE is mooncake-tcp, nixl-ucx or nixl-libfabric.
"""

import base64
import json
import os
import sys
import time

import numpy

# How long a read may take before it counts as one that never ends.
PATIENCE_S = 8.0


# The engines print to the standard output too, which is the benchmark's line to this program.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.stdout = sys.stderr


def say(**answer):
    print(json.dumps(answer), file=ANSWERS, flush=True)


class Mooncake:
    def __init__(self, protocol, memory):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") != 0:
            raise RuntimeError("the engine does not start")
        self.memory = memory
        if self.engine.register_memory(memory.ctypes.data, memory.nbytes) != 0:
            raise RuntimeError("the engine refuses the memory")

    def place(self):
        return {"name": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": self.memory.ctypes.data}

    def connect(self, place):
        self.place_of_peer = place

    def read(self, size, depth):
        """Reads `depth` blocks of `size` bytes; returns when all have arrived."""
        place, local = self.place_of_peer, self.memory.ctypes.data
        offsets = [index * size for index in range(depth)]
        status = self.engine.batch_transfer_sync_read(
            place["name"],
            [local + offset for offset in offsets],
            [place["address"] + offset for offset in offsets],
            [size] * depth,
        )
        if status != 0:
            raise RuntimeError(f"status {status}")


class Nixl:
    def __init__(self, backend, memory, name):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=[backend]))
        self.memory = memory
        self.registered = self.agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        self.handles = {}

    def place(self):
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self.memory.ctypes.data}

    def connect(self, place):
        self.peer = self.agent.add_remote_agent(base64.b64decode(place["metadata"]))
        self.address = place["address"]

    def handle(self, size, depth):
        """A prepared read: preparing it once is what its documentation advises."""
        if (size, depth) not in self.handles:
            def blocks(start):
                return self.agent.get_xfer_descs([(start + index * size, size, 0) for index in range(depth)], "DRAM")

            self.handles[size, depth] = self.agent.initialize_xfer(
                "READ", blocks(self.memory.ctypes.data), blocks(self.address), self.peer
            )
        return self.handles[size, depth]

    def read(self, size, depth):
        handle = self.handle(size, depth)
        state = self.agent.transfer(handle)
        until = time.monotonic() + PATIENCE_S
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
            if time.monotonic() > until:
                raise TimeoutError("no end")
        if state != "DONE":
            raise RuntimeError(state)


def engine(name, memory, role):
    project, variant = name.split("-")
    if project == "mooncake":
        return Mooncake(variant, memory)
    return Nixl(variant.upper(), memory, f"{role}-{os.getpid()}")


def measure(engine, question):
    size, depth = question["bytes"], question["depth"]
    engine.read(size, depth)
    before, started = time.process_time_ns(), time.perf_counter_ns()
    times = []
    last = started
    for _ in range(question["count"]):
        engine.read(size, depth)
        now = time.perf_counter_ns()
        times.append(now - last)
        last = now
    say(ns=last - started, each=times, cpu_ns=time.process_time_ns() - before)


def main():
    role, name, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    memory = numpy.random.default_rng(os.getpid()).integers(0, 256, size, numpy.uint8)
    try:
        end = engine(name, memory, role)
    except Exception as error:  # It is the answer.
        return say(error=f"{type(error).__name__}: {error}")
    if role == "target":
        say(user=os.getuid(), sum=int(memory[:4096].sum()), **end.place())
        for _ in sys.stdin:
            say(cpu_ns=time.process_time_ns())
        os._exit(0)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "address" in question:
                end.connect(question)
                end.read(4096, 1)
                say(ready=True, equal=int(memory[:4096].sum()) == question["sum"])
            else:
                measure(end, question)
        except Exception as error:  # It is the answer.
            say(error=f"{type(error).__name__}: {error}")
    os._exit(0)


if __name__ == "__main__":
    main()
