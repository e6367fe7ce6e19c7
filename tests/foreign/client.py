"""A client of the memferry service in plain Python, written from docs/protocol.md.

usage: client.py SOCKET

It reads calls from standard input and writes answers to standard output, one JSON object a line (README.md).

The flow: connect and shake hands; register frames (memfds that the client maps), which gives handles; open a queue,
which gives the service's memory and a doorbell. Each `run` then stores the slots of its requests, each in the short
form if it fits, rings the doorbell, and polls the completion slots until each request has its completion.

What it does not do: sleep until a completion comes, look whether the worker needs the doorbell, cancel, read
progress, and grant memory. It has no fences: the order of its loads and stores is that of the processor, which is
enough on x86 and would not be on others.
"""

import fcntl
import json
import mmap
import os
import select
import socket
import struct
import sys
import time

VERSION, MAGIC, VIOLATION = 5, b"MEMFERRY", b"\xff\x62\x79\x65"
ANSWER_SECONDS, RUN_SECONDS = 5, 15
REGISTER, DERIVE, OPEN_QUEUE, ENGINES = 0, 1, 5, 8
ANSWERS = {REGISTER: (0, 0), DERIVE: (0, 0), OPEN_QUEUE: (3, 3), ENGINES: (6, 0)}  # Number and descriptors.
ALL_RIGHTS = 1 | 2 | 4
MOST_CAPACITY = 4096
PARKED_BYTES = 4096
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
LINKED, FENCED, LONG, TRANSPARENT = 1 << 25, 1 << 26, 1 << 31, 1 << 8  # Transparent is in word 1.
U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1

# Opcode, and the first word of each operand in the long form.
OPERATIONS = {
    "nop": (1, {}),
    "copy": (2, {"source": 3, "destination": 5, "length": 7}),
    "fill": (3, {"width": 1, "value": 3, "destination": 5, "length": 7}),
    "copy_2d": (4, {"pixel": 1, "source": 3, "destination": 5, "count": 7, "source_steps": 8, "destination_steps": 10,
                    "colour": 12}),
    "fill_2d": (5, {"pixel": 1, "destination": 5, "count": 7, "destination_steps": 10, "colour": 12}),
    "scatter_gather": (6, {}),
    "xor": (7, {"destination": 5, "length": 7}),
    "compare": (8, {"first": 3, "second": 5, "length": 7}),
    "crc": (9, {"source": 3, "seed": 5, "length": 7}),
    "copy_crc": (10, {"source": 3, "destination": 5, "length": 7, "seed": 8}),
    "dual_copy": (11, {"source": 3, "length": 7}),
    "repeat": (12, {"rounds": 3}),
}  # fmt: skip
HAVE_SHORT_FORM = 1, 2, 3, 8, 9


class Lost(Exception):
    """The service is gone, or did what a service must not do."""


class Refused(Exception):
    """The service refused a command. The arguments are the kind and the message."""


class Violation(Exception):
    """The service ended the session. The argument is the violation's number."""


def check(condition, otherwise):
    if not condition:
        raise Lost(otherwise)


def varints(*values):
    out = bytearray()
    for value in values:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


class Reader:
    """Takes fields from the front of a message."""

    def __init__(self, data):
        self.data = data

    def take(self, count):
        check(len(self.data) >= count, "a message is too short")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def u8(self):
        return self.take(1)[0]

    def u64(self, bits=64):
        value = 0
        for shift in range(0, bits, 7):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        check(byte < 0x80 and value < 1 << bits, "a number is too large")
        return value

    def u32(self):
        return self.u64(bits=32)

    def end(self):
        check(not self.data, "bytes are left over in a message")


class Session:
    """The socket: the handshake, then one command at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(path)
        self.socket.send(struct.pack("<8sHHQ", MAGIC, VERSION, VERSION, 0))
        welcome, descriptors = self.receive()
        check(len(welcome) == 28 and not descriptors, "the welcome has a wrong size")
        *same, self.id = struct.unpack("<8sHHQQ", welcome)
        check(same == [MAGIC, VERSION, 0, 0], "the welcome is wrong")
        self.serial = 0
        self.hang_up = select.poll()
        self.hang_up.register(self.socket, 0)

    def receive(self):
        arguments = 16384, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
        try:
            data, control, flags, _ = self.socket.recvmsg(*arguments)
        except ConnectionResetError:  # What the service sent before it closed the socket may still be there.
            data, control, flags, _ = self.socket.recvmsg(*arguments)
        check(not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "a packet is too long")
        check(data, "the service closed the connection")
        if data.startswith(VIOLATION):
            raise Violation(Reader(data[len(VIOLATION) :]).u32())
        rights = [content for _, kind, content in control if kind == socket.SCM_RIGHTS]
        return data, [fd for content in rights for (fd,) in struct.iter_unpack("i", content)]

    def command(self, command, fields=b"", descriptors=()):
        """Sends a command. Returns a reader of its answer's fields, and the answer's descriptors."""
        self.serial = (self.serial + 1) & U32
        socket.send_fds(self.socket, [varints(self.serial, len(descriptors), command) + fields], descriptors)
        data, received = self.receive()
        answer = Reader(data)
        check(answer.u32() == self.serial, "an answer to another command")
        check(answer.u8() == len(received), "other descriptors than announced")
        refused = answer.u32()
        if refused:
            kind, message = answer.u32(), answer.take(answer.u64()).decode()
            answer.end()
            check(refused == 1 and not received, "neither an answer nor a refusal")
            raise Refused(kind, message)
        check((answer.u32(), len(received)) == ANSWERS[command], "an answer of another kind")
        return answer, received

    def handle(self, command, fields, descriptors=()):
        answer, _ = self.command(command, fields, descriptors)
        handle = answer.u64()
        answer.end()
        check(handle != 0, "a handle of 0")
        return handle


def new_memory(length):
    """A memfd with all its pages, and its mapping."""
    fd = os.memfd_create("memferry-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.posix_fallocate(fd, 0, length)
    return fd, mapping


def check_memory(fd, size):
    """Without these seals and this size, reading the mapping could end the process."""
    check(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS, "the service's memory is not sealed")
    check(os.fstat(fd).st_size >= size, "the service's memory is too short")


class Queue:
    """The two memories and the doorbell. An item of a view is a word, loaded and stored as a whole."""

    def __init__(self, session, capacity):
        self.session, self.capacity = session, capacity
        self.slots = max(64, 48 + capacity)
        self.list_area = self.slots + 16 * capacity
        self.list_words = 1024 * min(max(capacity, 8), 32)
        # A capacity beyond the limit is refused whatever the memory's size. So it need not be huge.
        size = (self.list_area + self.list_words) * 8 if capacity <= MOST_CAPACITY else mmap.PAGESIZE
        fd, mapping = new_memory(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.ours = memoryview(mapping).cast("Q")
        try:
            answer, (memory, self.doorbell, workers) = session.command(OPEN_QUEUE, varints(capacity), [fd])
        finally:
            os.close(fd)
        answer.u32()  # The queue's number, which only commands that this client never sends need.
        check(answer.u32() == capacity, "a queue of another capacity")
        answer.end()
        size = (64 + 7 * capacity) * 8
        check_memory(memory, size)
        check_memory(workers, PARKED_BYTES)
        os.close(workers)  # Without fences its words are of no use.
        self.theirs = memoryview(mmap.mmap(memory, size, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
        os.close(memory)
        os.set_blocking(self.doorbell, False)
        self.submitted = self.taken = 0

    def run(self, requests):
        """Publishes requests, each as from `encode`, and returns their completions in the same order."""
        check(len(requests) <= self.capacity, "more requests than the queue has room for")
        outstanding, list_end = {}, 0
        for words, segments, size in requests:
            if segments is not None:
                check(list_end + len(segments) <= self.list_words, "the lists do not fit into the list area")
                words[3] = list_end
                for word in segments:
                    self.ours[self.list_area + list_end] = word
                    list_end += 1
            outstanding[self.submitted & U32] = size
            self.submit(words)
        try:
            os.eventfd_write(self.doorbell, 1)
        except BlockingIOError:
            pass  # The worker was woken already.
        limit = time.monotonic() + RUN_SECONDS
        tags = list(outstanding)
        completions = dict(self.take(limit, outstanding) for _ in requests)
        return [completions[tag] for tag in tags]

    def submit(self, words):
        """Publishes a request. Its tag is its position."""
        index = self.submitted % self.capacity
        slot, second = self.slots + 4 * index, self.slots + 4 * self.capacity + 12 * index
        header = words[0] | (self.submitted & U32) << 32
        self.submitted += 1
        for part in range(4, len(words)):
            self.ours[second + part - 4] = words[part]
        for part in range(1, 4):
            self.ours[slot + part] = words[part]
        self.ours[slot] = header | self.submitted & U16

    def take(self, limit, outstanding):
        """Waits for the next completion. Returns its tag and its contents, and removes the tag from `outstanding`."""
        slot = self.taken % (2 * self.capacity)
        while True:
            over = self.theirs[32] != 0 or self.session.hang_up.poll(0)
            head = self.theirs[64 + slot]
            if head & U16 == (self.taken + 1) & U16:
                break
            check(not over, "the service closed the queue")
            check(time.monotonic() < limit, "a completion did not come in time")
            time.sleep(0.0002)
        tag = head >> 32
        check(tag in outstanding, "a completion of no request")
        bytes_done, detail = outstanding.pop(tag), 0
        status, side, inherited = head >> 16 & 0xFF, head >> 28 & 1, head >> 29 & 1
        if head & LONG:
            second = 64 + 2 * self.capacity + 2 * slot
            bytes_done, detail = self.theirs[second], self.theirs[second + 1]
        else:
            check((status, side, inherited) == (0, 0, 0), "a short completion of a failure")
        check(not head & 1 << 30, "a completion with a reserved bit")
        self.taken += 1
        self.ours[16] = self.taken & U32
        completion = {"status": status, "detail": detail, "bytes_done": bytes_done}
        completion |= {"side": side, "engine": head >> 24 & 0xF, "inherited": bool(inherited)}
        return tag, completion


def encode(request, handles):
    """The words of a request, without tag and sequence; its list or None; and its number of bytes."""
    words, segments = [0] * 16, None
    opcode, operands = OPERATIONS[request["operation"]]
    words[0] = opcode << 16 | LONG
    words[0] |= (LINKED if request.get("linked") else 0) | (FENCED if request.get("fenced") else 0)
    if "deadline_ms" in request:
        words[2] = max(1, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + request["deadline_ms"] * 1_000_000)
    for operand, word in operands.items():
        value = request[operand]
        if operand in ("source", "destination", "first", "second"):
            words[word : word + 2] = handles[value[0]], value[1]
        elif operand in ("source_steps", "destination_steps"):
            words[word : word + 2] = value
        elif operand == "count":
            words[word] = value[0] | value[1] << 32
        else:
            words[word] = value or 0
    size = request.get("length", 0)
    if opcode in (4, 5):
        size = request["pixel"] * request["count"][0] * request["count"][1]
    if opcode == 4 and request["colour"] is not None:
        words[1] |= TRANSPARENT
    elif opcode == 6:
        both = request["sources"] + request["destinations"]
        segments = [word for frame, offset, length in both for word in (handles[frame], offset, length)]
        words[4] = len(request["sources"]) | len(request["destinations"]) << 32
        size = sum(length for _, _, length in request["destinations"])
    elif opcode == 7:
        segments = [word for frame, offset in request["sources"] for word in (handles[frame], offset)]
        words[4] = len(request["sources"])
    elif opcode == 11:
        words[5:7], words[8:10] = ((handles[frame], offset) for frame, offset in request["destinations"])
    words = [word & U64 for word in words]
    short = shorten(opcode, words) if opcode in HAVE_SHORT_FORM else None
    return short or words, segments, size


def shorten(opcode, words):
    """The short form of a request, or None if it does not fit."""
    header, width, deadline, first, first_offset, second, second_offset, length = words[:8]
    if opcode == 3:
        first_offset = width
    else:
        first = short_handle(first)
    if opcode != 9:
        second = short_handle(second)
    if deadline or max(first, second, length) > U32 or max(first_offset, second_offset) >= 1 << 48:
        return None
    offsets = first_offset | (length & U16) << 48, second_offset | length >> 16 << 48
    return [header & ~LONG, first | second << 32, *offsets]


def short_handle(handle):
    """A handle in 32 bits; more than 32 bits if it does not fit."""
    index, generation = handle & U32, handle >> 32
    return index | generation << 20 if index < 1 << 20 else U64


class Client:
    """One method for each call."""

    def __init__(self, path):
        self.path = path

    def open(self, frames, bytes, capacity):
        self.session = Session(self.path)
        self.frames, self.handles = [], []
        for _ in range(frames):
            fd, mapping = new_memory(bytes)
            self.frames.append(mapping)
            self.handles.append(self.session.handle(REGISTER, varints(bytes, ALL_RIGHTS), [fd]))
            os.close(fd)
        self.queue = Queue(self.session, capacity)
        return {"version": VERSION, "session": self.session.id}

    def write(self, frame, hex):
        data = bytes.fromhex(hex)
        self.frames[frame][: len(data)] = data
        return {}

    def read(self, frame):
        return {"hex": self.frames[frame][:].hex()}

    def run(self, requests):
        return {"completions": self.queue.run([encode(request, self.handles) for request in requests])}

    def derive(self, frame, offset, length, rights):
        fields = varints(self.handles[frame], offset, length) + bytes([rights])
        return {"handle": self.session.handle(DERIVE, fields)}

    def engines(self):
        answer, _ = self.session.command(ENGINES)
        engines = {"operations": answer.u32(), "longest_bytes": answer.u64(), "immediate_bytes": answer.u64()}
        some = answer.u8()
        engines["preemption_bytes"] = answer.u64() if some else None
        engines |= {"channels": answer.u32(), "engines": answer.u32(), "class": answer.u32()}
        answer.end()
        check(some <= 1 and engines["class"] <= 2, "an unknown number in an answer")
        return engines

    def refused(self, capacity):
        Queue(self.session, capacity)
        raise Lost(f"the service opened a queue of capacity {capacity}")

    def broken(self):
        self.session.serial += 1
        self.session.command(ENGINES)
        raise Lost("the service took a wrong serial")


def main():
    client = Client(sys.argv[1])
    for line in sys.stdin:
        members = json.loads(line)
        call = members.pop("call")
        try:
            answer = getattr(client, call)(**members)
        except Refused as refused:
            if call not in ("derive", "refused"):
                raise
            answer = {"kind": refused.args[0], "message": refused.args[1]}
        except Violation as violation:
            if call != "broken":
                raise
            answer = {"violation": violation.args[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (Lost, Refused, Violation, OSError, ValueError) as error:
        sys.exit(f"client.py: {error!r}")
