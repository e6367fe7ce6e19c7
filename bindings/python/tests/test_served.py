"""The Python interface through a service in another process."""

import asyncio
import json
import subprocess
import time
import unittest

import memferry
import numpy
from support import PATIENCE, SERVICE, TOUR, Serving, awaits, example, noise, tour_of


class Served(Serving):
    """The same through a service in another process."""

    def test_the_tour_runs(self):
        self.assertEqual(tour_of(example("tour.py", self.path)), TOUR)

    def test_frames_are_moved_by_the_service_and_other_memory_here(self):
        with memferry.connect(self.path) as client:
            self.assertFalse(client.embedded)
            one, other = client.allocate(1 << 20), client.allocate(1 << 20)
            view = numpy.frombuffer(one, numpy.uint8)
            view[:] = noise(1 << 20)
            client.copy(view, other).wait()
            numpy.testing.assert_array_equal(numpy.frombuffer(other, numpy.uint8), view)
            array = numpy.zeros(1 << 20, numpy.uint8)
            client.copy(other, array).wait()
            numpy.testing.assert_array_equal(array, view)

    def test_a_granted_frame_and_plain_memory_do_not_mix(self):
        with memferry.connect(self.path) as one, memferry.connect(self.path) as other:
            frame, own = one.allocate(4096), other.allocate(4096)
            memoryview(frame)[:3] = b"abc"
            granted = other.accept(one.grant(frame, "r", session=other.session))
            other.copy(granted, own).wait()
            self.assertEqual(bytes(memoryview(own)[:3]), b"abc")
            with self.assertRaises(ValueError):
                other.copy(granted, bytearray(4096))

    def test_other_threads_run_while_a_service_is_slow_to_answer(self):
        with memferry.connect(self.path) as one, memferry.connect(self.path) as other:
            frame = one.allocate(4096)
            token = one.grant(frame, "r", session=other.session)
            frames = [one.allocate(4096)]

            def connects():
                memferry.connect(self.path).close()

            clients, sums = [memferry.connect(self.path)], bytearray(100)
            holders = [memferry.connect(self.path) for _ in range(4)]
            # Frames that only a transfer holds, which has ended: whoever sees that gives them back.
            ends = [client.copy(client.allocate(4096), client.allocate(4096)) for client in holders]
            self.wait_until_served({client.session for client in holders})
            slow = [
                connects,
                lambda: one.grant(frame, "r", session=other.session),
                lambda: other.accept(token),
                frames.clear,
                clients.clear,
                holders[0].nop,
                lambda: holders[1].crc32c(sums),
                ends[2].done,
                ends[3],
            ]
            for call in slow:
                # Were the interpreter's lock held, nobody would let the service go on, and this would hang.
                with self.stopped() as go, self.in_another_thread(call) as ended:
                    self.assertEqual(ended, [])
                    go()
                # Letting go of what came of it asks the service too, so not while it is stopped.
                ended.clear()

    def wait_until_served(self, sessions):
        """Until the service has told the end of what these sessions asked for. It is asked itself, for a session
        that looked would let go of what has ended."""
        until = time.monotonic() + PATIENCE
        status = [SERVICE, "status", "--json", "--socket", self.path]
        while True:
            said = subprocess.run(status, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
            known = json.loads(said)["sessions"]
            told = {each["session"] for each in known if each["requests"] > 0 and each["outstanding"] == 0}
            if sessions <= told:
                return
            self.assertLess(time.monotonic(), until)

    def test_other_threads_run_while_a_client_that_goes_waits(self):
        clients = [memferry.connect(self.path)]
        one, other = clients[0].allocate(4096), clients[0].allocate(4096)
        with self.stopped() as go:
            clients[0].copy(one, other)
            # They would keep the client. Their memory stays until the transfer has ended.
            del one, other
            with self.in_another_thread(clients.clear) as ended:
                self.assertEqual(ended, [])
                go()

    def test_a_fenced_nop_is_the_end_of_frames_and_of_other_memory(self):
        source, target = noise(1 << 20).repeat(64), numpy.zeros(64 << 20, numpy.uint8)
        with memferry.connect(self.path) as client:
            one, other = client.allocate(64 << 20), client.allocate(64 << 20)
            for now in (False, True):
                copies = [client.copy(source, target) for _ in range(10)]
                copies += [client.copy(one, other) for _ in range(3)]
                self.assertEqual(client.nop(fenced=True, now=now).wait().bytes_done, 0)
                self.assertTrue(all(copy.done() for copy in copies))
            asyncio.run(awaits(client.nop(fenced=True)))
            # It follows what is linked on either side.
            client.fill(bytearray(7), 1, 4, linked=True)
            with self.assertRaises(memferry.TransferError) as caught:
                client.nop(fenced=True).wait()
            self.assertEqual(caught.exception.kind, "FillLength")
            client.nop(fenced=True).wait()

    def test_what_was_asked_for_is_done_though_client_and_transfer_went(self):
        with memferry.connect(self.path) as other:
            frame = other.allocate(64 << 20)

            def lets_go():
                client = memferry.connect(self.path)
                granted = client.accept(other.grant(frame, "rw", session=client.session))
                for value in (1, 2, 3):
                    client.fill(granted, value)

            lets_go()
            self.assertTrue((numpy.frombuffer(frame, numpy.uint8) == 3).all())

    def test_a_lost_service_is_an_exception(self):
        client = memferry.connect(self.path)
        one, other = client.allocate(1 << 20), client.allocate(1 << 20)
        self.service.kill()
        self.service.wait()
        with self.assertRaises((memferry.ServiceLostError, memferry.TransferError)):
            for _ in range(1000):
                client.copy(one, other).wait(20)
        with self.assertRaises(memferry.ServiceLostError):
            client.allocate(4096)
        client.close()


if __name__ == "__main__":
    unittest.main()
