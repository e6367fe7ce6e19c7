"""User-level DMA: hand memory transfers to an engine, keep computing, take their ends.

    import memferry, numpy

    with memferry.connect() as client:            # or memferry.connect("/run/memferry.sock")
        queue = client.queue(64)
        picture = numpy.zeros((480, 640), numpy.uint32)
        turned = numpy.empty((640, 480), numpy.uint32)
        ticket = queue.submit(memferry.turn(picture, turned, "rotate90"))
        ...                                       # computing meanwhile
        queue.wait(ticket)                        # or: await ticket

Operands are frames (`client.frame`), parts of them (`frame[a:b]`) and any object with the buffer protocol. Frames are moved by
the service; other memory by workers inside this process. Each transfer holds its memory until it has ended.
"""

from ._memferry import (
    Client,
    ConnectError,
    Done,
    Error,
    Exported,
    ForkedError,
    Frame,
    Grant,
    GrantToken,
    NoAnswerError,
    Queue,
    QueueFullError,
    RefusedError,
    Region,
    RemoteToken,
    ServiceLostError,
    Ticket,
    Transfer,
    TransferError,
    __version__,
    compare,
    connect,
    copy,
    copy_crc32c,
    crc32c,
    dual_copy,
    fill,
    nop,
    overlay,
    scatter_gather,
    turn,
    xor,
    zero,
)

__all__ = [
    "Client",
    "ConnectError",
    "Done",
    "Error",
    "Exported",
    "ForkedError",
    "Frame",
    "Grant",
    "GrantToken",
    "NoAnswerError",
    "Queue",
    "QueueFullError",
    "RefusedError",
    "Region",
    "RemoteToken",
    "ServiceLostError",
    "Ticket",
    "Transfer",
    "TransferError",
    "__version__",
    "compare",
    "connect",
    "copy",
    "copy_crc32c",
    "crc32c",
    "dual_copy",
    "fill",
    "nop",
    "overlay",
    "scatter_gather",
    "turn",
    "xor",
    "zero",
]
