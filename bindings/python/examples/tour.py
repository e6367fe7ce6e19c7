"""A tour in cells: open it as a notebook (Jupytext, VS Code, Spyder, PyCharm know "# %%"), or run it as a program.

    python tour.py [SOCKET]

With a socket it uses the service that listens there, without one a service in this process.
"""

# %% Connect to a service and open a queue.
import sys

import memferry
import numpy

socket = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].endswith(".sock") else None  # a notebook has other arguments
client = memferry.connect(socket)
queue = client.queue(64)

# %% A copy that goes on while this thread computes. Any buffer is an operand.
numbers = numpy.random.default_rng(1).integers(0, 256, 8 << 20, numpy.uint8)
copied = numpy.empty_like(numbers)
ticket = queue.submit(memferry.copy(numbers, copied))
mean = numbers.mean()
done = queue.wait(ticket)
print(f"{done.bytes_done} bytes copied by {done.engine}, mean {mean:.1f}, equal: {(numbers == copied).all()}")

# %% A frame is memory of the service that NumPy sees without a copy. `run` submits and waits.
frame = client.frame(1 << 20)
pixels = numpy.frombuffer(frame, numpy.uint32).reshape(512, 512)
queue.run(memferry.fill(frame, 0xFF2020A0, width=4))
print(f"filled: {(pixels == 0xFF2020A0).all()}")

# %% Pictures: a quarter turn, and one picture onto another without the pixels of the key.
badge = numpy.full((64, 64), 0xFF00FF, numpy.uint32)
badge[16:48, 16:48] = 0xFFFFFFFF
queue.run(memferry.overlay(badge, pixels, at=(8, 8), key=0xFF00FF))
turned = numpy.empty_like(pixels)
queue.run(memferry.turn(pixels, turned, "rotate90"))
print(f"turned as NumPy does: {(turned == numpy.rot90(pixels, -1)).all()}, {(turned == 0xFFFFFFFF).sum()} pixels of the badge")

# %% Scatter-gather: the bytes of one list, in order, to those of another.
parts = [numpy.full(length, value, numpy.uint8) for value, length in [(1, 1000), (2, 50), (3, 3000)]]
gathered = bytearray(4050)
queue.run(memferry.scatter_gather(parts, [gathered]))
print(f"gathered as bytes.join does: {gathered == b''.join(part.tobytes() for part in parts)}")

# %% A checksum made while copying, and a transfer that starts when the one before succeeded.
log = client.frame(1 << 20)
first = queue.submit(memferry.copy_crc32c(frame, log, linked=True))
second = queue.submit(memferry.zero(frame))
queue.wait(second)
print(f"CRC-32C {queue.wait(first).output:08x}, and the source is zero again: {not pixels.any()}")

# %% Grant a part of a frame to one other client, for reading only, and revoke it.
with memferry.connect(socket) as other:
    grant = client.grant(log[:4096], "r", session=other.session)
    granted, own, others = other.accept(grant.token), other.frame(4096), other.queue(2)
    assert granted.grantor == client.session
    others.run(memferry.copy(granted, own))
    grant.revoke()
    try:
        others.run(memferry.copy(granted, own))
    except memferry.TransferError as error:
        print(f"after it was revoked: {error.failure}")

# %% At the end, or `with memferry.connect() as client:`.
client.close()
