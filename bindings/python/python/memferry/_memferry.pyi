"""The native part: its classes are those of the package `memferry`."""

from collections.abc import Generator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

from typing_extensions import Buffer

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
    "_Bell",
    "connect",
]

_Operand: TypeAlias = Frame | Range | Buffer
_Hint: TypeAlias = Literal["auto", "keep", "stream"]
_Turn: TypeAlias = Literal[
    "upright", "flip-horizontal", "flip-vertical", "rotate90", "rotate180", "rotate270", "transpose"
]

class Error(Exception): ...
class ConnectError(Error): ...
class RefusedError(Error): ...
class ServiceLostError(Error): ...
class ForkedError(Error): ...
class ChannelFullError(Error): ...

class TransferError(Error):
    kind: str
    bytes_done: int

@final
class Frame:
    @property
    def rights(self) -> str: ...
    @property
    def mapped(self) -> bool: ...
    @property
    def grantor(self) -> int | None: ...
    def range(self, offset: int, length: int) -> Range: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Range:
    def __len__(self) -> int: ...

@final
class Completion:
    @property
    def bytes_done(self) -> int: ...
    @property
    def value(self) -> int: ...
    @property
    def engine(self) -> str: ...

@final
class Transfer:
    def wait(self, timeout: float | None = None) -> Completion: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...
    def _signal(self, bell: _Bell) -> bool: ...
    def __await__(self) -> Generator[Any, Any, Completion]: ...

@final
class _Bell:
    def __new__(cls) -> _Bell: ...
    def fileno(self) -> int: ...
    def silence(self) -> None: ...

@final
class Client:
    @property
    def session(self) -> int: ...
    @property
    def embedded(self) -> bool: ...
    def allocate(self, length: int) -> Frame: ...
    def grant(
        self, memory: Frame | Range, rights: str = "r", *, session: int | None = None, user: int | None = None
    ) -> int: ...
    def accept(self, token: int) -> Frame: ...
    def revoke(self, token: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> Literal[False]: ...
    def nop(
        self,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def copy(
        self,
        source: _Operand,
        destination: _Operand,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def copy_crc32c(
        self,
        source: _Operand,
        destination: _Operand,
        seed: int = 0,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def crc32c(
        self,
        source: _Operand,
        seed: int = 0,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def compare(
        self,
        one: _Operand,
        other: _Operand,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def fill(
        self,
        destination: _Operand,
        value: int = 0,
        width: int = 1,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def scatter_gather(
        self,
        sources: Sequence[_Operand],
        destinations: Sequence[_Operand],
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def xor(
        self,
        sources: Sequence[_Operand],
        destination: _Operand,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def turn(
        self,
        source: Buffer,
        destination: Buffer,
        turn: _Turn = "upright",
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...
    def overlay(
        self,
        top: Buffer,
        base: Buffer,
        at: tuple[int, int] = (0, 0),
        key: int | None = None,
        *,
        within: float | None = None,
        hint: _Hint | None = None,
        linked: bool = False,
        fenced: bool = False,
        now: bool = False,
    ) -> Transfer: ...

def connect(path: str | PathLike[str] | None = None, *, capacity: int = 256) -> Client: ...
