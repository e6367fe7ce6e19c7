"""Awaiting tickets: one eventfd for each event loop, written to when a transfer has ended."""

import asyncio
import weakref

from ._memferry import _Bell


class _Waiting:
    """The bell of a loop, and the futures that wait for it."""

    def __init__(self, loop):
        self._loop = weakref.ref(loop)
        self._bell = _Bell()
        self._tickets = {}

    def future_of(self, ticket):
        """A future that is done when the transfer is, or None when it is already."""
        if ticket._signal(self._bell):
            return None
        loop = self._loop()
        if not self._tickets:
            loop.add_reader(self._bell.fileno(), self._rung)
        future = loop.create_future()
        self._tickets[future] = ticket
        return future

    def forget(self, future):
        if self._tickets.pop(future, None) is not None and not self._tickets:
            loop = self._loop()
            if loop is not None and not loop.is_closed():
                loop.remove_reader(self._bell.fileno())

    def _rung(self):
        self._bell.silence()
        for future, ticket in list(self._tickets.items()):
            error = None
            try:
                if not ticket._signal(self._bell):
                    continue
            except Exception as caught:
                # Raised where this ticket is awaited. The others are checked all the same: the bell does not ring again.
                error = caught
            self.forget(future)
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


_waiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = weakref.WeakKeyDictionary()


async def until_done(ticket):
    """Waits for a ticket in the running loop. Cancelling the wait cancels the transfer."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.get(loop)
    if waiting is None:
        waiting = _waiting[loop] = _Waiting(loop)
    future = waiting.future_of(ticket)
    if future is not None:
        try:
            await future
        except asyncio.CancelledError:
            ticket._abandon()
            raise
        finally:
            waiting.forget(future)
    return ticket.wait()
