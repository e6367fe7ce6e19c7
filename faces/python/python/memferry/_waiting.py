"""How transfers are awaited: one eventfd for each event loop, written to when a transfer has ended."""

import asyncio
import os
import weakref


class _Bell:
    """The eventfd of a loop, and the futures that wait for it to be rung."""

    def __init__(self, loop):
        self._loop = weakref.ref(loop)
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiting = {}
        weakref.finalize(self, os.close, self._descriptor)

    def future_of(self, transfer):
        """A future that is done when the transfer is, or None when it is already."""
        if transfer._signal(self._descriptor):
            return None
        loop = self._loop()
        if not self._waiting:
            loop.add_reader(self._descriptor, self._rung)
        future = loop.create_future()
        self._waiting[future] = transfer
        return future

    def forget(self, future):
        if self._waiting.pop(future, None) is not None and not self._waiting:
            loop = self._loop()
            if loop is not None and not loop.is_closed():
                loop.remove_reader(self._descriptor)

    def _rung(self):
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return
        for future, transfer in list(self._waiting.items()):
            if transfer._signal(self._descriptor):
                self.forget(future)
                if not future.done():
                    future.set_result(None)


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()


async def until_done(transfer):
    """Waits for a transfer in the running loop. Cancelling the wait cancels the transfer."""
    loop = asyncio.get_running_loop()
    bell = _bells.get(loop)
    if bell is None:
        bell = _bells[loop] = _Bell(loop)
    future = bell.future_of(transfer)
    if future is not None:
        try:
            await future
        except asyncio.CancelledError:
            transfer.cancel()
            raise
        finally:
            bell.forget(future)
    return transfer.wait()
