"""A client of the soak in Python: random transfers of frames and of other buffers, each held to what it has to leave.

    connect ─► frames and what is in them ─ a few transfers at a time, waited for and awaited ─► the same bytes?

The runner reads its output (tests/soak/src/output.rs). Usage: client.py SOCKET SEED
"""

import asyncio
import random
import sys
import time

import memferry

BYTES = 50_000
PATIENCE = 60


class Found(Exception):
    """What must not be."""


def say(line):
    print(line.replace("\n", " "), flush=True)


class Progress:
    def __init__(self):
        self.ends = self.bytes = 0
        self.last = time.monotonic()

    def did(self, moved):
        self.ends += 1
        self.bytes += moved
        if time.monotonic() - self.last > 0.2:
            self.say()

    def say(self):
        self.last = time.monotonic()
        say(f"at {self.ends} {self.bytes}")


class Cell:
    """A frame, a buffer of this process, and what is in both."""

    def __init__(self, client, draw):
        self.frame = client.frame(BYTES)
        self.model = draw.randbytes(len(self.frame))
        memoryview(self.frame)[:] = self.model
        self.buffer = bytearray(draw.randbytes(BYTES))

    def start(self, queue, draw):
        """A ticket, and what the frame and the buffer are afterwards."""
        length = draw.randrange(BYTES // 2)
        at, to = draw.randrange(BYTES - length), draw.randrange(BYTES - length)
        part, model, buffer = self.frame[at : at + length], bytearray(self.model), bytearray(self.buffer)
        within = draw.choice([None] * 9 + [0.002])
        kind = draw.randrange(5)
        if kind == 0:
            transfer = memferry.fill(part, 7, within=within)
            model[at : at + length] = bytes([7]) * length
        elif kind == 1:
            model[at : at + length] = buffer[to : to + length]
            source = memoryview(self.buffer)[to : to + length]
            transfer = memferry.copy(source, part, within=within)
        elif kind == 2:
            buffer[to : to + length] = model[at : at + length]
            transfer = memferry.copy(part, memoryview(self.buffer)[to : to + length], within=within)
        elif kind == 3:
            model[to : to + length] = model[at : at + length]
            transfer = memferry.copy(part, self.frame[to : to + length], within=within)
        else:
            transfer = memferry.compare(part, memoryview(bytes(model[at : at + length])), within=within)
        return queue.submit(transfer), model, buffer, within is not None

    def check(self, model, buffer, early):
        found = bytes(memoryview(self.frame))
        if not early and (found != model or self.buffer != buffer):
            raise Found("memory is not what the transfer had to leave")
        self.model = found


async def work(client, draw, progress):
    queue = client.queue(16)
    cells = [Cell(client, draw) for _ in range(3)]
    for _ in range(draw.randrange(20, 400)):
        started = [cell.start(queue, draw) for cell in cells]
        for cell, (ticket, model, buffer, limited) in zip(cells, started, strict=True):
            cancelled = draw.randrange(12) == 0
            if cancelled:
                ticket.cancel()
            early = False
            try:
                if draw.randrange(2):
                    done = await asyncio.wait_for(ticket, PATIENCE)
                else:
                    done = queue.wait(ticket, PATIENCE)
                if done.output is not None:
                    raise Found(f"found a difference at {done.output}")
                progress.did(done.bytes_done)
            except memferry.TransferError as error:
                early = cancelled and error.failure == "Cancelled"
                early |= limited and error.failure in ("DeadlineExceeded", "DeadlineUnreachable")
                early |= error.failure == "WaitingQuota"
                if error.failure == "ServiceLost":
                    raise memferry.ServiceLostError(str(error)) from error
                if error.failure in ("ServiceStopping", "Cancelled") and not early:
                    raise memferry.RefusedError("the service is stopping") from error
                # Of the engines in this test only a lost engine process that does not exit ends a transfer so.
                if error.failure == "ChannelFaulted":
                    raise memferry.RefusedError("an engine process is lingering") from error
                if not early:
                    raise Found(f"a transfer ended with {error.failure}: {error}") from error
                progress.did(error.bytes_done)
            except TimeoutError as error:
                raise Found("a transfer never ends") from error
            if early:
                cell.buffer = bytearray(cell.buffer)
            cell.check(model, buffer, early)


def main():
    path, seed = sys.argv[1:]
    draw, progress = random.Random(int(seed)), Progress()
    sessions = draw.randrange(1, 5)
    for _ in range(1000):
        try:
            client = memferry.connect(path)
            asyncio.run(work(client, draw, progress))
            client.close()
            sessions -= 1
        except memferry.ServiceLostError:
            say("lost 0")
            sessions -= 1
        except memferry.ConnectError as error:
            if "ended the handshake" in str(error):
                say(f"ended 0 {error}")
        except memferry.RefusedError as error:
            kinds = (kind for kind in ("stopping", "lingering") if kind in str(error))
            kind = next(kinds, "system")
            say(f"refused 0 {kind} {error}")
        except Found as error:
            say(f"finding {error}")
            return 1
        except memferry.Error as error:
            what = "ended" if "ended this session" in str(error) else "finding"
            say(f"{what} 0 {type(error).__name__}: {error}")
            if what == "finding":
                return 1
        if sessions <= 0:
            break
        progress.say()
        time.sleep(0.02)
    progress.say()
    return 0


if __name__ == "__main__":
    sys.exit(main())
