#!/usr/bin/python3
"""A client of an installed service: copies and compares until it is stopped, and connects again when it loses the service.

    client.py SOCKET READY STOP

It makes the file READY after its first round, and ends once STOP exists. Its last line says how many rounds it made and how often
it lost the service. Status 1: bytes were wrong, a new connection was refused, or a transfer failed by anything but the end of the
service.
"""

import os
import sys

import memferry

LENGTH = 1 << 20
# Failures of transfers that a stopping service reports, and that a lost one leaves.
ENDINGS = ("ServiceStopping", "ServiceLost")


def rounds(socket, ready, stop, done):
    """Copies until `stop` exists; returns the number of rounds."""
    with memferry.connect(socket) as client, client.queue() as queue:
        source, destination = client.frame(LENGTH), client.frame(LENGTH)
        while not os.path.exists(stop):
            pattern = bytes([done % 251]) * LENGTH
            memoryview(source)[:] = pattern
            queue.run(memferry.copy(source, destination))
            if bytes(memoryview(destination)) != pattern:
                sys.exit("client: wrong bytes")
            done += 1
            with open(ready, "a"):
                pass
            yield done


def main():
    socket, ready, stop = sys.argv[1:]
    done = lost = 0
    while not os.path.exists(stop):
        try:
            for done in rounds(socket, ready, stop, done):
                pass
        except (memferry.ServiceLostError, memferry.NoAnswerError, memferry.TransferError) as error:
            if isinstance(error, memferry.TransferError) and error.failure not in ENDINGS:
                raise
            lost += 1
            print(f"client: {error}", flush=True)
    print(f"client: {done} rounds, lost the service {lost} times")


main()
