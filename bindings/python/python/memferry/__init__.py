"""User-level DMA: hand memory transfers to an engine, keep computing, be told when they are done.

    import memferry, numpy

    with memferry.connect() as client:            # or memferry.connect("/run/memferry.sock")
        picture = numpy.zeros((480, 640), numpy.uint32)
        turned = numpy.empty((640, 480), numpy.uint32)
        transfer = client.turn(picture, turned, "rotate90")
        ...                                       # computing meanwhile
        transfer.wait()                           # or: await transfer

Operands are frames (`client.allocate`) and any object with the buffer protocol. Frames are moved by the service; other memory
by workers inside this process. Each transfer holds its memory until it has ended.
"""

from ._memferry import (
    ChannelFullError,
    Client,
    Completion,
    ConnectError,
    Error,
    ForkedError,
    Frame,
    Range,
    RefusedError,
    ServiceLostError,
    Transfer,
    TransferError,
    connect,
)

__all__ = [
    "ChannelFullError",
    "Client",
    "Completion",
    "ConnectError",
    "Error",
    "ForkedError",
    "Frame",
    "Range",
    "RefusedError",
    "ServiceLostError",
    "Transfer",
    "TransferError",
    "connect",
]
