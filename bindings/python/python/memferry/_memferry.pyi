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
    "ForkedError",
    "Frame",
    "Grant",
    "GrantToken",
    "NoAnswerError",
    "Queue",
    "QueueFullError",
    "RefusedError",
    "Region",
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

class Error(Exception): ...
class ConnectError(Error): ...
class RefusedError(Error): ...
class ServiceLostError(Error): ...
class NoAnswerError(Error): ...
class ForkedError(Error): ...
class QueueFullError(Error): ...

class TransferError(Error):
    failure: str
    bytes_done: int
    id: int

@final
class Frame:
    @property
    def rights(self) -> str: ...
    @property
    def mapped(self) -> bool: ...
    @property
    def grantor(self) -> int | None: ...
    def __getitem__(self, part: slice) -> Region: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Region:
    @property
    def frame(self) -> Frame: ...
    @property
    def offset(self) -> int: ...
    def __getitem__(self, part: slice) -> Region: ...
    def __len__(self) -> int: ...

@final
class GrantToken:
    def __new__(cls, text: str) -> GrantToken: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __getnewargs__(self) -> tuple[str]: ...

@final
class Grant:
    @property
    def token(self) -> GrantToken: ...
    def revoke(self) -> None: ...

@final
class Transfer(Generic[_T_co]): ...

@final
class Done(Generic[_T_co]):
    @property
    def id(self) -> int: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def output(self) -> _T_co: ...
    @property
    def engine(self) -> str: ...

@final
class Ticket(Generic[_T_co]):
    @property
    def id(self) -> int: ...
    def wait(self, timeout: float | None = None) -> Done[_T_co]: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...
    def _signal(self, bell: _Bell) -> bool: ...
    def _abandon(self) -> None: ...
    def until_done(self) -> Coroutine[Any, Any, Done[_T_co]]: ...
    def __await__(self) -> Generator[Any, Any, Done[_T_co]]: ...

@final
class _Bell:
    def __new__(cls) -> _Bell: ...
    def fileno(self) -> int: ...
    def silence(self) -> None: ...

@final
class Queue:
    @property
    def capacity(self) -> int: ...
    def submit(self, transfer: Transfer[_T]) -> Ticket[_T]: ...
    def run(self, transfer: Transfer[_T]) -> Done[_T]: ...
    def wait(self, ticket: Ticket[_T], timeout: float | None = None) -> Done[_T]: ...
    def poll(self) -> Done[int | None] | None: ...
    def completions(self) -> Iterator[Done[int | None]]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Queue: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Literal[False]: ...

@final
class Client:
    @property
    def session(self) -> int: ...
    @property
    def embedded(self) -> bool: ...
    def frame(self, length: int, *, huge: bool = False, node: int | None = None) -> Frame: ...
    def queue(self, capacity: int = 64) -> Queue: ...
    def grant(
        self, memory: Frame | Region, rights: str = "r", *, session: int | None = None, user: int | None = None
    ) -> Grant: ...
    def accept(self, token: GrantToken) -> Frame: ...
    def revoke(self, token: GrantToken) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Literal[False]: ...

def connect(path: str | PathLike[str] | None = None, *, timeout: float | None = 5.0) -> Client: ...
def compare(
    first: _Operand,
    other: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int | None]: ...
def copy(
    source: _Operand,
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def copy_crc32c(
    source: _Operand,
    destination: _Operand,
    seed: int = 0,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int]: ...
def crc32c(
    source: _Operand,
    seed: int = 0,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[int]: ...
def dual_copy(
    source: _Operand,
    destinations: Sequence[_Operand],
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def fill(
    destination: _Operand,
    value: int,
    width: int = 1,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def nop(
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
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
) -> Transfer[None]: ...
def scatter_gather(
    sources: Sequence[_Operand],
    destinations: Sequence[_Operand],
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def turn(
    source: _Memory,
    destination: _Memory,
    turn: _Turn = "upright",
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def xor(
    sources: Sequence[_Operand],
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
def zero(
    destination: _Operand,
    *,
    within: float | None = None,
    hint: _Hint | None = None,
    linked: bool = False,
    fenced: bool = False,
) -> Transfer[None]: ...
