"""Batches of samples from data-loader workers of several users to one consumer, by memferry frames with grants.

    python data_loader.py --command target/release/memferry [--rounds 5]

Each worker makes batches in slots of a frame and grants the frame to the consumer's user, once. The consumer copies a slot into
memory of its own while it computes with the batch before. The program checks bytes, a worker that lies and one that dies; with
--rounds it measures that beside

* a ring of slots in multiprocessing.shared_memory, where the consumer computes in the workers' memory,
* a new shared_memory for each batch, as PyTorch's DataLoader makes one for each tensor,
* arrays pickled through a pipe, as multiprocessing.Queue does.

With PyTorch installed (Debian's python3-torch for the CPU will do) the consumer computes with tensors over the same memory. As root its processes belong to different users.
"""

import contextlib
import os
import struct
import time
from collections import deque
from multiprocessing import connection, shared_memory

import memferry
import numpy
from processes import MIB, SPAWN, Worker, cpu_of, ended, middle, parser, run, size_of, user

try:
    import torch
except ImportError:
    torch = None

# A picture of 64 x 64 pixels in four channels.
SAMPLE = 16 << 10
# Slots of each worker: one is filled, one is read, one waits.
SLOTS = 3
# From worker to consumer: slot and number of a batch.
MESSAGE = struct.Struct("<QQ")


def word(worker, number):
    return numpy.uint64((worker << 32 | number) * 0x9E3779B97F4A7C15 & (1 << 64) - 1)


def base(length):
    return numpy.arange(length // 8, dtype=numpy.uint64)


def attached(name, length):
    """Shared memory of another process: bytes of it, and what holds it."""
    memory = shared_memory.SharedMemory(name=name)
    return memory, numpy.frombuffer(memory.buf, numpy.uint64)[: length // 8]


def shared(length):
    """Shared memory for every user of the machine: SharedMemory maps to read and write, so a reader has to be allowed both."""
    memory = shared_memory.SharedMemory(create=True, size=length)
    os.chmod(f"/dev/shm/{memory.name}", 0o666)
    return memory


class FrameSender:
    def __init__(self, loader):
        self.client = memferry.connect(loader.path)
        frame = self.client.frame(SLOTS * loader.length)
        self.slots = numpy.frombuffer(frame, numpy.uint64)[: SLOTS * loader.length // 8].reshape(SLOTS, -1)
        self.address = str(self.client.grant(frame, "r", user=loader.consumer).token)

    def place(self, slot):
        return self.slots[slot]

    def send(self, pipe, slot, number, batch):
        pipe.send_bytes(MESSAGE.pack(slot, number))

    def close(self):
        self.client.close()


class RingSender(FrameSender):
    def __init__(self, loader):
        self.memory = shared(SLOTS * loader.length)
        self.slots = numpy.frombuffer(self.memory.buf, numpy.uint64)[: SLOTS * loader.length // 8].reshape(SLOTS, -1)
        self.address = self.memory.name

    def close(self):
        self.slots = None
        self.memory.close()
        self.memory.unlink()


class SegmentSender:
    address = None

    def __init__(self, loader):
        self.length, self.held = loader.length, [None] * SLOTS

    def place(self, slot):
        self.drop(slot)
        self.held[slot] = shared(self.length)
        return numpy.frombuffer(self.held[slot].buf, numpy.uint64)[: self.length // 8]

    def send(self, pipe, slot, number, batch):
        pipe.send_bytes(MESSAGE.pack(slot, number) + self.held[slot].name.encode())

    def drop(self, slot):
        # Not the consumer's to unlink: the folder lets only the owner.
        if self.held[slot] is not None:
            self.held[slot].close()
            self.held[slot].unlink()
            self.held[slot] = None

    def close(self):
        for slot in range(SLOTS):
            self.drop(slot)


class PickleSender:
    address = None

    def __init__(self, loader):
        self.length = loader.length

    def place(self, slot):
        return numpy.empty(self.length // 8, numpy.uint64)

    def send(self, pipe, slot, number, batch):
        pipe.send((number, batch))

    def close(self):
        pass


SENDERS = {"memferry": FrameSender, "ring": RingSender, "segments": SegmentSender, "pickles": PickleSender}


class Loader:
    """A worker: its samples are numbers, made by one operation on an array."""

    def __init__(self, path, index, length, consumer, pipe):
        if length <= 0 or length % SAMPLE:
            raise ValueError(f"a batch has whole samples of {SAMPLE} bytes, not {length} bytes")
        self.path, self.index, self.length, self.consumer, self.pipe = path, index, length, consumer, pipe
        self.base, self.senders = base(length), {}

    def prepare(self, side):
        if side not in self.senders:
            self.senders[side] = SENDERS[side](self)
        return self.senders[side].address

    def produce(self, side, count):
        sender = self.senders[side]
        for number in range(count):
            if number >= SLOTS:
                self.pipe.recv_bytes()  # The oldest slot was given back.
            slot = number % SLOTS
            place = sender.place(slot)
            numpy.bitwise_xor(self.base, word(self.index, number), out=place)
            sender.send(self.pipe, slot, number, place)
            place = None
        for _ in range(min(count, SLOTS)):
            self.pipe.recv_bytes()

    def lie(self, message):
        """Sends what no honest worker would."""
        self.pipe.send_bytes(message)

    def close(self):
        for sender in self.senders.values():
            sender.close()
        self.senders = {}


class FrameReceiver:
    """Copies are made by the service while the consumer computes. Afterwards no worker can change a batch."""

    def __init__(self, consumer, token):
        self.length, self.queue = consumer.length, consumer.queue
        self.granted = consumer.client.accept(memferry.GrantToken(token))
        self.own = consumer.client.frame(SLOTS * self.length)
        self.view = numpy.frombuffer(self.own, numpy.uint64)[: SLOTS * self.length // 8].reshape(SLOTS, -1)

    def start(self, pipe):
        slot, number = MESSAGE.unpack(pipe.recv_bytes(MESSAGE.size))
        source = self.granted[slot * self.length : (slot + 1) * self.length]
        target = self.own[slot * self.length : (slot + 1) * self.length]
        return number, slot, self.queue.submit(memferry.copy(source, target))

    def finish(self, pipe, started):
        _, slot, ticket = started
        ticket.wait()
        pipe.send_bytes(b"")  # The worker's slot is free, before this process computes.
        return self.view[slot]

    def done(self, pipe, started):
        pass

    def close(self):
        pass


class RingReceiver:
    def __init__(self, consumer, name):
        self.memory, numbers = attached(name, SLOTS * consumer.length)
        self.view = numbers.reshape(SLOTS, -1)

    def start(self, pipe):
        slot, number = MESSAGE.unpack(pipe.recv_bytes(MESSAGE.size))
        return number, slot

    def finish(self, pipe, started):
        return self.view[started[1]]

    def done(self, pipe, started):
        pipe.send_bytes(b"")

    def close(self):
        self.view = None
        self.memory.close()


class SegmentReceiver:
    def __init__(self, consumer, _):
        self.length = consumer.length

    def start(self, pipe):
        message = pipe.recv_bytes()
        _, number = MESSAGE.unpack(message[: MESSAGE.size])
        return number, message[MESSAGE.size :].decode()

    def finish(self, pipe, started):
        self.memory, view = attached(started[1], self.length)
        return view

    def done(self, pipe, started):
        self.memory.close()
        pipe.send_bytes(b"")

    def close(self):
        pass


class PickleReceiver:
    """A pickle of another user can run any code here: this is for users that trust each other."""

    def __init__(self, consumer, _):
        pass

    def start(self, pipe):
        return pipe.recv()

    def finish(self, pipe, started):
        return started[1]

    def done(self, pipe, started):
        pipe.send_bytes(b"")

    def close(self):
        pass


RECEIVERS = {"memferry": FrameReceiver, "ring": RingReceiver, "segments": SegmentReceiver, "pickles": PickleReceiver}


class Consumer:
    """Takes the batches of all workers as they come, and computes a sum of each."""

    def __init__(self, path, length, pipes):
        self.length, self.pipes, self.base = length, pipes, base(length)
        self.client = memferry.connect(path)
        self.queue = self.client.queue(64)
        self.receivers = {}

    def prepare(self, side, addresses):
        if side not in self.receivers:
            self.receivers[side] = [RECEIVERS[side](self, address) for address in addresses]

    def step(self, batch):
        return int(torch.from_numpy(batch.view(numpy.int64)).sum()) if torch else int(batch.sum())

    def consume(self, side, counts, fully):
        """Takes so many batches of each worker. Returns seconds, and for each worker the batches that came, those with wrong bytes, and why it was left out."""
        receivers, waiting = self.receivers[side], deque()
        came, wrong, why = ([value] * len(self.pipes) for value in (0, 0, None))
        start = time.perf_counter()

        def left_out(index, error):
            why[index] = f"{type(error).__name__}: {error}"

        def listening():
            begun = [came[index] + sum(each == index for each, _ in waiting) for index in range(len(self.pipes))]
            return [pipe for index, pipe in enumerate(self.pipes) if why[index] is None and begun[index] < counts[index]]

        while (pipes := listening()) or waiting:
            # One batch ahead for each worker.
            ready = connection.wait(pipes, 0 if waiting else None) if pipes and len(waiting) < SLOTS - 1 else []
            for pipe in ready:
                index = self.pipes.index(pipe)
                try:
                    waiting.append((index, receivers[index].start(pipe)))
                except (EOFError, OSError, ValueError, struct.error, memferry.Error) as error:
                    left_out(index, error)
            if waiting:
                index, started = waiting.popleft()
                try:
                    batch = receivers[index].finish(self.pipes[index], started)
                    self.step(batch)
                    wrong[index] += not self.is_right(index, started[0], batch, fully)
                    batch = None
                    receivers[index].done(self.pipes[index], started)
                    came[index] += 1
                except (OSError, ValueError, memferry.Error) as error:
                    left_out(index, error)
        return time.perf_counter() - start, list(zip(came, wrong, why, strict=True))

    def is_right(self, index, number, batch, fully):
        """Compares all bytes, or a few so that it costs a measurement nothing."""
        if not fully:
            places = (0, len(batch) // 2, len(batch) - 1)
            return all(batch[place] == self.base[place] ^ word(index, number) for place in places)
        return numpy.array_equal(batch, self.base ^ word(index, number))

    def close(self):
        for receiver in (each for some in self.receivers.values() for each in some):
            receiver.close()
        self.receivers = {}


@contextlib.contextmanager
def processes(service, length, count=2):
    """A consumer and workers, each of another user."""
    consumer, pipes = user(count), [SPAWN.Pipe() for _ in range(count)]
    workers = []
    with ended_of(workers):
        for index in range(count):
            workers.append(Worker(user(index), Loader, service.path, index, length, consumer, pipes[index][1]))
            pipes[index][1].close()  # So that the consumer sees the end of a worker.
        workers.append(Worker(consumer, Consumer, service.path, length, [near for near, _ in pipes]))
        for near, _ in pipes:
            near.close()
        yield workers[-1], workers[:-1]


@contextlib.contextmanager
def ended_of(workers):
    try:
        yield
    finally:
        with ended(*workers):
            pass


def prepare(consumer, loaders, side):
    consumer.call("prepare", side, [loader.call("prepare", side) for loader in loaders])


def hand_over(consumer, loaders, side, count, fully):
    """All loaders make batches, the consumer takes them. Returns what `consume` does."""
    for loader in loaders:
        loader.start("produce", side, count)
    result = consumer.call("consume", side, [count] * len(loaders), fully)
    for loader in loaders:
        loader.answer()
    return result


def checks(service):
    """Small batches by each way, and workers that lie or die."""
    length = 4 * SAMPLE
    with processes(service, length) as (consumer, loaders):
        for side in SENDERS:
            prepare(consumer, loaders, side)
            _, results = hand_over(consumer, loaders, side, 20, True)
            if results != [(20, 0, None)] * 2:
                raise ValueError(f"by {side}: {results}, WRONG")
            print(f"{side}: 40 batches, all bytes are right")
        # The other worker goes on in each case.
        for what, message in (("a slot out of bounds", MESSAGE.pack(SLOTS, 0)), ("a short message", b"x"), ("a long message", bytes(100))):
            loaders[0].call("lie", message)
            loaders[1].start("produce", "memferry", 5)
            _, results = consumer.call("consume", "memferry", [5, 5], True)
            loaders[1].answer()
            print(f"{what}: {said(results)} ({results[0][2].split(':')[0]})")
            if "long" in what:
                break  # That pipe is closed.
        consumer.call("close")
        for loader in loaders:
            loader.call("close")
    with processes(service, length) as (consumer, loaders):
        prepare(consumer, loaders, "memferry")
        counts = [1 << 30, 200]
        for loader, count in zip(loaders, counts, strict=True):
            loader.start("produce", "memferry", count)
        consumer.start("consume", "memferry", counts, True)
        loaders[0].kill()
        _, results = consumer.answer()
        loaders[1].answer()
        print(f"a worker killed: {said(results)}")


def said(results):
    """What came of two workers, of which the first is a bad one."""
    (_, bad, why), other = results
    if bad or other[1] or why is None:
        raise ValueError(f"{results}, WRONG")
    return f"left out, the other gave {other[0]} batches"


NAMES = {
    "memferry": "memferry",
    "ring": "ring in shared_memory, not copied",
    "segments": "shared_memory for each batch",
    "pickles": "pickles by pipe",
}
SIZES = (SAMPLE, 4 * SAMPLE, 64 * SAMPLE, 256 * SAMPLE, 1024 * SAMPLE)


def measure(service, rounds, most):
    kind = f"PyTorch {torch.__version__}" if torch else f"NumPy {numpy.__version__}"
    print(f"\n{os.cpu_count()} CPUs, {kind}, {rounds} rounds, 2 workers, samples of {size_of(SAMPLE)}: medians, with minimum and maximum\n")
    print("| batch | what | " + " | ".join(NAMES.values()) + " |\n| --- | --- |" + " --- |" * len(NAMES))
    for length in (length for length in SIZES if length <= most):
        count = max(8, min(256, 32 * MIB // length))
        samples = 2 * count * length // SAMPLE
        figures = {side: {"samples": [], "CPU": []} for side in NAMES}
        with processes(service, length) as (consumer, loaders):
            for side in NAMES:
                prepare(consumer, loaders, side)
            for number in range(rounds + 1):
                for side in NAMES:
                    before = cpu_of(service, (consumer, *loaders))
                    seconds, results = hand_over(consumer, loaders, side, count, False)
                    spent = cpu_of(service, (consumer, *loaders)) - before
                    if results != [(count, 0, None)] * 2:
                        raise ValueError(f"by {side}: {results}, WRONG")
                    if number:  # The first round makes the pages.
                        figures[side]["samples"].append(samples / seconds)
                        figures[side]["CPU"].append(1e6 * spent / samples)
            consumer.call("close")
            for loader in loaders:
                loader.call("close")
        for what, shown in (("samples", "samples/s"), ("CPU", "CPU time of a sample, us")):
            print(f"| {size_of(length)} | {shown} | " + " | ".join(middle(figures[side][what]) for side in NAMES) + " |", flush=True)


def main(service, options):
    checks(service)
    if options.rounds > 0:
        measure(service, options.rounds, options.most)


if __name__ == "__main__":
    run(main, parser(__doc__).parse_args())
