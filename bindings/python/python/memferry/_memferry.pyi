"""The native part: its classes and functions are those of the package `memferry`."""

from collections.abc import Coroutine, Generator, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, final

from typing_extensions import Buffer

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
    "_Bell",
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

class _Array(Protocol):
    """A NumPy array, which type checkers do not know as a buffer before Python 3.12."""

    @property
    def __array_interface__(self) -> Any: ...

_Memory: TypeAlias = Buffer | _Array
_Operand: TypeAlias = Frame | Region | _Memory
_Hint: TypeAlias = Literal["auto", "keep", "stream"]
_Turn: TypeAlias = Literal[
    "upright", "flip-horizontal", "flip-vertical", "rotate90", "rotate180", "rotate270", "transpose"
]
# What a transfer's end says besides how far it came: a CRC, the offset of a difference, or nothing.
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

__version__: str

class Error(Exception):
    """The base of memferry's exceptions."""

class ConnectError(Error):
    """No service there, or it opened no session."""

class RefusedError(Error):
    """The service refused a call: by a quota, a right, or for lack of the machine's resources."""

class ServiceLostError(Error):
    """The service is gone; connect again."""

class NoAnswerError(Error):
    """The service did not answer within the time limit of `connect`; the session stays usable."""

class ForkedError(Error):
    """The client belongs to the process this one was forked from."""

class QueueFullError(Error):
    """The ends of as many transfers as the queue's capacity are outstanding or not yet taken."""

class TransferError(Error):
    """A transfer failed. `failure` names the reason, `bytes_done` are the bytes visited before, `id` is its ticket's."""

    failure: str
    bytes_done: int
    id: int

@final
class Frame:
    """Memory that the service may move bytes in. `frame[a:b]` is a part of it, in bytes; other steps and parts outside are a
    ValueError. It has the buffer protocol, of unsigned bytes (`numpy.frombuffer` gives it a dtype), unless it was accepted
    from another client or has a home: then BufferError. `numpy.from_dlpack`, and for memory of a GPU `torch.from_dlpack` and
    `cupy.asarray`, make arrays of it without a copy.
    """

    @property
    def rights(self) -> str:
        """The allowed uses, letters of "rwgd": to read, to write, to grant, and to grant for use in place by another node."""

    @property
    def mapped(self) -> bool:
        """Whether it is mapped in this process and so has a buffer."""

    @property
    def grantor(self) -> int | None:
        """The session that granted an accepted frame; else `None`. A token alone does not identify its grantor."""

    def export(self) -> Exported:
        """A descriptor of the memory of a frame with a home, for this process to map. It cannot be taken back: the memory stays until the
        descriptor and all mappings of it are gone, also when the frame is. Only the client that allocated the frame gets it. For
        memory of a GPU, `torch.from_dlpack(frame)` and `cupy.asarray(frame)` do the rest.

        Raises RefusedError for memory of the host, for a frame that was accepted, and if the engine does not export its memory, is gone
        or too late.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __getitem__(self, part: slice) -> Region: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Exported:
    """The memory of a frame at an engine, by descriptor. The memory stays until the descriptor and all mappings of it are gone, also when the
    frame is.
    """

    @property
    def kind(self) -> Literal["memory", "cuda"]:
        """What the descriptor is: "memory" for a memfd, to be mapped with `mmap.mmap(exported.fileno(), exported.length)`; "cuda" for
        memory of an NVIDIA GPU, for `cuMemImportFromShareableHandle`.
        """

    @property
    def length(self) -> int:
        """Bytes of the memory, rounded up as the engine or its device does. The frame begins with the first one."""

    @property
    def device(self) -> bytes | None:
        """The UUID of the GPU, 16 bytes; `None` for other memory."""

    def fileno(self) -> int:
        """The number of the descriptor, which this object closes.

        Raises ValueError after `detach`.
        """

    def detach(self) -> int:
        """Gives the descriptor away: the caller closes it.

        Raises ValueError after `detach`.
        """

@final
class Region:
    """A part of a frame, made by `frame[a:b]`; slices of it count from its first byte."""

    @property
    def frame(self) -> Frame:
        """The frame it is a part of."""

    @property
    def offset(self) -> int:
        """Its first byte, counted from the frame's start."""

    def __getitem__(self, part: slice) -> Region: ...
    def __len__(self) -> int: ...

@final
class GrantToken:
    """Names a grant. It is no secret: only the grantee can accept it. `str(token)` and `GrantToken(text)` carry it from
    process to process, and so does pickle.

    `GrantToken` raises ValueError for a text that is no token.
    """

    def __new__(cls, text: str) -> GrantToken: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __getnewargs__(self) -> tuple[str]: ...

@final
class RemoteToken:
    """Names a grant to a user of another machine, as `Grant.remote_token` makes it. It is no secret: only that user of that
    machine can use it. `str(token)` and `RemoteToken(text)` carry it there, and so does pickle.

    `RemoteToken` raises ValueError for a text that is no such token.
    """

    def __new__(cls, text: str) -> RemoteToken: ...
    @property
    def node(self) -> str:
        """The name of the machine that has the memory."""

    @property
    def length(self) -> int:
        """Bytes that were granted."""

    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __getnewargs__(self) -> tuple[str]: ...

@final
class Grant:
    """Rights granted to another client, until they are revoked or the frame is dropped. Dropping this object changes nothing."""

    @property
    def token(self) -> GrantToken:
        """The token for the grantee's `Client.accept`."""

    def remote_token(self, node: str) -> RemoteToken:
        """The token of a grant to a user of another machine, for `Client.accept_remote` there. `node` is the name of this machine in
        the configurations of the links. It is good until this machine's service ends.

        Raises ValueError for what is no node's name, and for a closed client; NoAnswerError, ServiceLostError, ForkedError.
        """

    def revoke(self) -> None:
        """Revokes the rights of the grantee and of everyone it passed them to. Running transfers that use the memory on their
        behalf are cancelled; this returns when they have ended.

        Raises RefusedError where nothing is granted any more, NoAnswerError while a transfer still uses the memory;
        ServiceLostError, ForkedError; ValueError for a closed client.
        """

@final
class Transfer(Generic[_T_co]):
    """What is to be moved, and on which terms. `Queue.submit` and `Queue.run` take it, more than once if you like.

    Operands are frames, regions and any contiguous buffers, whatever their shape and dtype: their bytes count. The pictures
    of `turn` and `overlay` are arrays of shape (height, width) or (height, width, channels), of any dtype and with any
    strides, except that the bytes of one pixel adjoin. Operands are checked when the transfer is submitted.

    Terms of every transfer: `within`, a limit in seconds from the submission; `hint` "keep" if the destination will be read
    soon, "stream" if not, "auto" to let the engine decide; `linked`: the next transfer of the queue starts only when this
    one has succeeded; `fenced`: it starts when all earlier ones have ended.
    """

@final
class Done(Generic[_T_co]):
    """The end of a transfer that succeeded."""

    @property
    def id(self) -> int:
        """The number of the transfer, as `Ticket.id`."""

    @property
    def bytes_done(self) -> int:
        """Bytes that the transfer visited."""

    @property
    def output(self) -> _T_co:
        """The CRC, the offset of the first difference (`None` when there is none), or `None` of what moves bytes."""

    @property
    def engine(self) -> str:
        """What moved the bytes: "CPU", "kernel module" (a DMA engine, or the kernel's own copy), "engine process" (a GPU, DSA, I/OAT,
        or another machine), "simulated engine" (a model in virtual time), or "no engine" when the transfer ended before it reached one.
        """

@final
class Ticket(Generic[_T_co]):
    """A submitted transfer: wait for it, or await it. Dropping a ticket lets the transfer go on; its end stays with the queue."""

    @property
    def id(self) -> int:
        """The number of the transfer, which no other of this process has; `Done.id` and `TransferError.id` have it too."""

    def wait(self, timeout: float | None = None) -> Done[_T_co]:
        """Waits until the transfer has ended, at most `timeout` seconds, while other threads run. It may be called again: the
        ticket keeps the end.

        Raises TransferError if it failed; TimeoutError, after which it goes on; ForkedError; ValueError for a negative
        timeout.
        """

    def done(self) -> bool:
        """Whether the transfer has ended.

        Raises ForkedError.
        """

    def cancel(self) -> None:
        """Requests that the transfer end early; `wait` says how it ended.

        Raises ForkedError.
        """

    def _signal(self, bell: _Bell) -> bool: ...
    def _abandon(self) -> None: ...
    def until_done(self) -> Coroutine[Any, Any, Done[_T_co]]:
        """The wait as a coroutine, for `asyncio.create_task` and task groups, which take no other object that can be awaited.
        Cancelling the task cancels the transfer.

        Raises TransferError if it failed; ForkedError.
        """

    def __await__(self) -> Generator[Any, Any, Done[_T_co]]: ...

@final
class _Bell:
    def __new__(cls) -> _Bell: ...
    def fileno(self) -> int: ...
    def silence(self) -> None: ...

@final
class Queue:
    """Where transfers are submitted and their ends are taken. Several threads may use one. `with` closes it."""

    @property
    def capacity(self) -> int:
        """Maximum number of transfers that are outstanding or whose ends were not taken."""

    def submit(self, transfer: Transfer[_T]) -> Ticket[_T]:
        """Starts a transfer, and returns its ticket. A transfer that fails raises where its end is taken, not here.

        Raises ValueError for operands that do not fit each other or a closed queue, TypeError for one that is no memory,
        BufferError for one with gaps or that may not be written; QueueFullError, RefusedError for memory that cannot be
        used, NoAnswerError, ServiceLostError, ForkedError.
        """

    def run(self, transfer: Transfer[_T]) -> Done[_T]:
        """Does a transfer before the call returns: on this thread if the service is in this process, while other threads run;
        otherwise, or if it is linked, fenced or has a deadline, by submitting it and waiting.

        Raises TransferError, and as `submit`.
        """

    def wait(self, ticket: Ticket[_T], timeout: float | None = None) -> Done[_T]:
        """Waits for a ticket of this queue, as `Ticket.wait`.

        Raises TransferError, TimeoutError, ForkedError; a ticket of another queue is a TransferError too.
        """

    def poll(self) -> Done[int | None] | None:
        """Takes the next end, `None` when there is none at the moment.

        Raises TransferError for a transfer that failed; ServiceLostError, ForkedError.
        """

    def completions(self) -> Iterator[Done[int | None]]:
        """Iterates over the ends that were not taken, waiting for each, until no transfer is outstanding. Iterate again after
        an exception for the others.

        Raises TransferError for a transfer that failed; ServiceLostError, ForkedError.
        """

    def close(self) -> None:
        """Waits until all transfers have ended, and closes the queue. Ends can still be taken.

        Raises ForkedError.
        """

    def __enter__(self) -> Queue: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Literal[False]: ...

@final
class Client:
    """A session with a service; `connect` opens one, and `with` closes it. When the last of the client's queues and tickets is
    dropped, that waits for running transfers, a minute at most.
    """

    @property
    def session(self) -> int:
        """The session's public name, an integer to which others grant."""

    @property
    def embedded(self) -> bool:
        """Whether the service is in this process."""

    def frame(
        self, length: int, *, huge: bool = False, node: int | None = None, home: str | None = None
    ) -> Frame:
        """Allocates at least `length` bytes, in whole pages, zeroed: with `huge` in huge pages of the machine's pool, with
        `node` on that NUMA node. With `home`, the name of an engine process: exactly `length` bytes of memory that only this
        engine reaches, not mapped here, and lost when its process ends.

        Raises RefusedError for a quota, a length of 0, or where the machine or the engine has no such memory; NoAnswerError,
        ServiceLostError, ForkedError; ValueError for a negative length, or a closed client.
        """

    def queue(self, capacity: int = 64) -> Queue:
        """Opens a queue for up to `capacity` transfers, a power of two from 2 to 4096.

        Raises RefusedError for another capacity or a quota, NoAnswerError, ServiceLostError, ForkedError; ValueError for a
        closed client.
        """

    def grant(
        self,
        memory: Frame | Region,
        rights: str = "r",
        *,
        session: int | None = None,
        user: int | None = None,
        node: str | None = None,
        lasts: float | None = None,
    ) -> Grant:
        """Grants rights on a frame or a region to one session, or to every session of a user (a user id); with `node`, to that user of
        another machine, which the links call so (`Grant.remote_token` gives the token then). `rights` are letters
        of "rwgd": to read, to write, to grant, and, for another machine, to be used in place by the link where its administrator allows
        that. With `lasts`, in seconds, the grant gives access for so long; a transfer that runs then is not
        interrupted, so revoke the grant before the memory is reused. The clock stops while the machine is suspended.

        Raises RefusedError where the client lacks these rights, NoAnswerError, ServiceLostError, ForkedError; ValueError
        for other memory, other letters, more or fewer than one grantee, what is no node's name, or a closed client.
        """

    def accept(self, token: GrantToken) -> Frame:
        """Accepts a grant, and returns its frame. That has no buffer in this process: the service moves bytes there.

        Raises RefusedError where the token names no grant to this client; NoAnswerError, ServiceLostError, ForkedError;
        ValueError for a closed client.
        """

    def accept_remote(self, token: RemoteToken) -> Frame:
        """Accepts a grant that another machine made to this user, through the link of this one (memferry-link(1)), and returns its frame.
        That machine is not asked yet: it checks each transfer, which raises TransferError if it does not allow it or cannot be reached.

        Raises RefusedError where this machine has no link, the user may not use it, or the link does not know the other machine;
        NoAnswerError, ServiceLostError, ForkedError; ValueError for a closed client.
        """

    def revoke(self, token: GrantToken) -> None:
        """Revokes the rights that were granted under a token, as `Grant.revoke`.

        Raises RefusedError where nothing is granted any more, NoAnswerError while a transfer still uses the memory;
        ServiceLostError, ForkedError; ValueError for a closed client.
        """

    def close(self) -> None:
        """Waits until all transfers have ended, and closes the client with all queues. Frames stay until their last object is
        dropped.

        Raises ForkedError.
        """

    def __enter__(self) -> Client: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Literal[False]: ...

def connect(path: str | PathLike[str] | None = None, *, timeout: float | None = 5.0) -> Client:
    """Opens a session with the service that listens on `path`, or without a path with the one inside this process. The service
    has `timeout` seconds to answer this and each later call, `None` for no limit.

    Raises ConnectError, NoAnswerError; ValueError for a negative timeout; OSError.
    """

def compare(
    first: _Operand,
    other: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int | None]:
    """Finds the offset in bytes of the first difference: the end's `output`, `None` where all bytes are equal. Both operands
    have one length.

    Raises ValueError for unusable terms.
    """

def copy(
    source: _Operand,
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Copies the whole source to the start of the destination, which may be longer; they may overlap. The end's `output` is
    `None`.

    Raises ValueError for unusable terms.
    """

def copy_crc32c(
    source: _Operand,
    destination: _Operand,
    seed: int = 0,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int]:
    """Copies as `copy` does, and computes the CRC-32C of the bytes as `crc32c` does: the end's `output`.

    Raises ValueError for unusable terms or a seed of more than 32 bits.
    """

def crc32c(
    source: _Operand,
    seed: int = 0,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int]:
    """Computes the CRC-32C of the source, continued from `seed`, the CRC of the bytes before: the end's `output`, an int.

    Raises ValueError for unusable terms or a seed of more than 32 bits.
    """

def dual_copy(
    source: _Operand,
    destinations: Sequence[_Operand],
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Copies one source to the start of two destinations; no two of the three may overlap in part, else the transfer fails.
    The end's `output` is `None`.

    Raises ValueError for unusable terms or another number of destinations.
    """

def fill(
    destination: _Operand,
    value: int,
    width: int = 1,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Repeats a value of `width` 1, 2 or 4 bytes, little-endian, over the destination, whose length is a multiple of that. The
    end's `output` is `None`.

    Raises ValueError for unusable terms, another width, or a value too large for it.
    """

def nop(
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Moves nothing; with `fenced` it ends when all transfers submitted before it have, of frames and of other memory. The
    end's `output` is `None`.

    Raises ValueError for unusable terms.
    """

def overlay(
    top: _Memory,
    base: _Memory,
    at: tuple[int, int] = (0, 0),
    key: int | None = None,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Copies a picture onto another of the same kind, its top left pixel to `at`, (x, y) in pixels, where it has to fit. With
    a `key`, pixels of that colour are left out: their bytes as a little-endian number, of which at most 24 bits are
    compared; pixels then have 1, 2 or 4 bytes. The end's `output` is `None`.

    Raises ValueError for unusable terms.
    """

def scatter_gather(
    sources: Sequence[_Operand],
    destinations: Sequence[_Operand],
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Moves the bytes of the sources, in order, to the destinations, in order. Both lists hold equally many bytes, in at most
    1024 operands each. The end's `output` is `None`.

    Raises ValueError for unusable terms.
    """

def turn(
    source: _Memory,
    destination: _Memory,
    turn: _Turn = "upright",
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Copies a picture turned: "upright", "flip-horizontal", "flip-vertical", "rotate90" (clockwise), "rotate180", "rotate270"
    or "transpose". Both pictures have pixels of as many bytes, and the destination has the shape that the turn gives. A
    picture cannot be turned in its own place. The end's `output` is `None`.

    Raises ValueError for unusable terms or another turn.
    """

def xor(
    sources: Sequence[_Operand],
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Computes, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination. That may be one of them;
    where it overlaps one in part, the transfer fails. The end's `output` is `None`.

    Raises ValueError for unusable terms.
    """

def zero(
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]:
    """Writes zeros over the destination. The end's `output` is `None`.

    Raises ValueError for unusable terms.
    """
