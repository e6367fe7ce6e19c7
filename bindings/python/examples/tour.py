"""A tour in cells: open it as a notebook (Jupytext, VS Code, Spyder, PyCharm know "# %%"), or run it as a program.

    python tour.py [SOCKET]

With a socket the service is that one, without it is in this process.
"""

# %% Connecting. The service may be in this process, or another one's behind a socket.
import sys

import memferry
import numpy

socket = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].endswith(".sock") else None  # a notebook has other arguments
client = memferry.connect(socket) if socket else memferry.connect()

# %% A copy that goes on while this thread computes. Any buffer is an operand.
numbers = numpy.random.default_rng(1).integers(0, 256, 8 << 20, numpy.uint8)
copied = numpy.empty_like(numbers)
transfer = client.copy(numbers, copied)
mean = numbers.mean()
done = transfer.wait()
print(f"{done.bytes_done} bytes copied by {done.engine}, mean {mean:.1f}, equal: {(numbers == copied).all()}")

# %% Memory of the service's: a frame, which NumPy sees without a copy.
frame = client.allocate(1 << 20)
pixels = numpy.frombuffer(frame, numpy.uint32).reshape(512, 512)
client.fill(frame, 0xFF2020A0, width=4).wait()
print(f"filled: {(pixels == 0xFF2020A0).all()}")

# %% Pictures: a quarter turn, and one picture onto another without the pixels of the key.
badge = numpy.full((64, 64), 0xFF00FF, numpy.uint32)
badge[16:48, 16:48] = 0xFFFFFFFF
client.overlay(badge, pixels, at=(8, 8), key=0xFF00FF).wait()
turned = numpy.empty_like(pixels)
client.turn(pixels, turned, "rotate90").wait()
print(f"turned as NumPy does: {(turned == numpy.rot90(pixels, -1)).all()}, {(turned == 0xFFFFFFFF).sum()} pixels of the badge")

# %% Scatter-gather: the bytes of one list, in order, to those of another.
parts = [numpy.full(length, value, numpy.uint8) for value, length in [(1, 1000), (2, 50), (3, 3000)]]
gathered = bytearray(4050)
client.scatter_gather(parts, [gathered]).wait()
print(f"gathered as bytes.join does: {gathered == b''.join(part.tobytes() for part in parts)}")

# %% A checksum made while copying, and transfers that start when the one before succeeded.
log = client.allocate(1 << 20)
first = client.copy_crc32c(frame, log, linked=True)
second = client.fill(frame)
second.wait()
print(f"CRC-32C {first.wait().value:08x}, and the source is zero again: {not pixels.any()}")

# %% Lending a part of a frame, for reading only, to one other client; and taking it back.
with (memferry.connect(socket) if socket else memferry.connect()) as other:
    token = client.grant(log.range(0, 4096), "r", session=other.session)
    granted, own = other.accept(token), other.allocate(4096)
    assert granted.grantor == client.session
    other.copy(granted, own).wait()
    client.revoke(token)
    try:
        other.copy(granted, own).wait()
    except memferry.TransferError as error:
        print(f"after it was revoked: {error.kind}")

# %% At the end, or `with memferry.connect() as client:`.
client.close()
