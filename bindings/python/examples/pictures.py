"""Pictures through NumPy and Pillow: turned and overlaid while this thread computes. The example of README.md, longer.

    python pictures.py [PICTURE [RESULT.png]]
"""

import asyncio
import sys

import memferry
import numpy


def load(path):
    """A picture as an array of height, width and four channels: from a file, or computed here."""
    if path is None:
        y, x = numpy.mgrid[0:480, 0:640]
        return numpy.stack([x % 256, y % 256, (x ^ y) % 256, numpy.full_like(x, 255)], axis=2).astype(numpy.uint8)
    from PIL import Image

    return numpy.asarray(Image.open(path).convert("RGBA"))


async def main(path=None, result=None):
    picture = load(path)
    height, width, _ = picture.shape
    badge = numpy.full((64, 64), 0xFF00FF, numpy.uint32)  # the key: pixels of this colour are left out
    badge[16:48, 16:48] = 0xFF2020A0

    with memferry.connect() as client:
        queue = client.queue(64)
        frame = client.frame(picture.nbytes)  # memory that could be granted to others
        turned = numpy.frombuffer(frame, numpy.uint8)[: picture.nbytes].reshape(width, height, 4)
        ticket = queue.submit(memferry.turn(picture, turned, "rotate90"))
        brightness = picture[..., :3].mean()  # computing meanwhile
        await ticket
        expected = numpy.rot90(picture, -1)
        print(f"{width} x {height}, brightness {brightness:.1f}, turned:", end=" ")
        print("matches NumPy" if (turned == expected).all() else "WRONG")

        pixels = turned.view(numpy.uint32)[:, :, 0]
        done = await queue.submit(memferry.overlay(badge, pixels, at=(8, 8), key=0xFF00FF))
        checksum = await queue.submit(memferry.crc32c(turned))
        print(f"badge of {done.bytes_done} bytes put on, CRC-32C {checksum.output:08x}")
        if result is not None:
            from PIL import Image

            Image.fromarray(turned).save(result)


asyncio.run(main(*sys.argv[1:]))
