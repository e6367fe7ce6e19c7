"""The Python interface through a service in another process."""

import asyncio
import json
import subprocess
import threading
import time
import unittest

import memferry
import numpy
from support import PATIENCE, SERVICE, TOUR, Serving, awaits, example, move, noise, results_of_tour


class Served(Serving):
    """The same through a service in another process."""

    def test_the_tour_runs(self):
        self.assertEqual(results_of_tour(example("tour.py", self.path)), TOUR)

    def test_frames_go_to_the_service(self):
        with memferry.connect(self.path) as client:
            self.assertFalse(client.embedded)
            queue = client.queue(4)
            one, other = client.frame(1 << 20), client.frame(1 << 20)
            view = numpy.frombuffer(one, numpy.uint8)
            view[:] = noise(1 << 20)
            move(queue, memferry.copy(view, other))
            numpy.testing.assert_array_equal(numpy.frombuffer(other, numpy.uint8), view)
            array = numpy.zeros(1 << 20, numpy.uint8)
            move(queue, memferry.copy(other, array))
            numpy.testing.assert_array_equal(array, view)

    def test_a_picture_that_finds_no_room_harms_no_other(self):
        with memferry.connect(self.path) as client, client.queue(4) as queue:
            # Large enough that the first pass has not ended when the second finds no room.
            frames = (client.frame(400 * 400 * 3) for _ in range(2))
            one, other = (numpy.frombuffer(frame, numpy.uint8)[:480000].reshape(400, 400, 3) for frame in frames)
            failed = []

            def submits(transfer):
                for _ in range(1000):
                    try:
                        queue.submit(transfer).wait()
                    except memferry.QueueFullError:
                        continue
                    except memferry.TransferError as error:
                        failed.append(error)

            # Three passes and one: of two pictures only one has room.
            transfers = (memferry.turn(one, other, "rotate90"), memferry.turn(one, other, "rotate180"), memferry.nop())
            threads = [threading.Thread(target=submits, args=(transfer,)) for transfer in transfers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])

    def test_granted_frames_do_not_mix_with_buffers(self):
        with memferry.connect(self.path) as one, memferry.connect(self.path) as other:
            frame, own, queue = one.frame(4096), other.frame(4096), other.queue(4)
            memoryview(frame)[:3] = b"abc"
            granted = other.accept(one.grant(frame, "r", session=other.session).token)
            move(queue, memferry.copy(granted, own))
            self.assertEqual(bytes(memoryview(own)[:3]), b"abc")
            with self.assertRaises(ValueError):
                queue.submit(memferry.copy(granted, bytearray(4096)))

    def test_threads_run_while_a_service_is_slow(self):
        with memferry.connect(self.path) as one, memferry.connect(self.path) as other:
            frame = one.frame(4096)
            grant = one.grant(frame, "r", session=other.session)
            frames = [one.frame(4096)]

            def connects():
                memferry.connect(self.path).close()

            dropped, sums = [memferry.connect(self.path).queue(2)], bytearray(100)
            holders = [memferry.connect(self.path) for _ in range(5)]
            queues = [client.queue(4) for client in holders]
            # Frames that only an ended transfer holds: the first call that sees the end gives them back.
            tickets = [
                queue.submit(memferry.copy(client.frame(4096), client.frame(4096)))
                for client, queue in zip(holders, queues, strict=True)
            ]
            self.wait_until_served({client.session for client in holders})
            slow = [
                connects,
                lambda: one.grant(frame, "r", session=other.session),
                lambda: other.accept(grant.token),
                lambda: one.queue(2),
                frames.clear,
                dropped.clear,
                lambda: queues[0].submit(memferry.nop()),
                lambda: queues[1].submit(memferry.crc32c(sums)),
                tickets[2].done,
                tickets[3],
                lambda: (queues[4].poll(), "polled"),
            ]
            for call in slow:
                # If the interpreter's lock were held, this thread could not continue the service, and this would hang.
                with self.stopped() as go, self.in_another_thread(call) as ended:
                    self.assertEqual(ended, [])
                    go()
                # Releasing the result asks the service too, so not while it is stopped.
                ended.clear()

    def wait_until_served(self, sessions):
        """Waits until all requests of these sessions have ended. Asks the service, since a session that looked would release
        the memory of ended transfers."""
        until = time.monotonic() + PATIENCE
        status = [SERVICE, "status", "--json", "--socket", self.path]
        while True:
            output = subprocess.run(status, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
            known = json.loads(output)["sessions"]
            served = {each["session"] for each in known if each["requests"] > 0 and each["outstanding"] == 0}
            if sessions <= served:
                return
            self.assertLess(time.monotonic(), until)

    def test_threads_run_while_a_dropped_queue_waits(self):
        clients = [memferry.connect(self.path)]
        queues = [clients[0].queue(4)]
        one, other = clients[0].frame(4096), clients[0].frame(4096)
        with self.stopped() as go:
            queues[0].submit(memferry.copy(one, other))
            # They would keep the client. Their memory stays until the transfer has ended.
            del one, other
            clients.clear()
            with self.in_another_thread(queues.clear) as ended:
                self.assertEqual(ended, [])
                go()

    def test_a_fenced_nop_ends_frames_and_buffers(self):
        source, target = noise(1 << 20).repeat(64), numpy.zeros(64 << 20, numpy.uint8)
        with memferry.connect(self.path) as client:
            queue = client.queue()
            one, other = client.frame(64 << 20), client.frame(64 << 20)
            for run in (False, True):
                copies = [queue.submit(memferry.copy(source, target)) for _ in range(10)]
                copies += [queue.submit(memferry.copy(one, other)) for _ in range(3)]
                self.assertEqual(move(queue, memferry.nop(fenced=True), run).bytes_done, 0)
                self.assertTrue(all(copy.done() for copy in copies))
            asyncio.run(awaits(queue.submit(memferry.nop(fenced=True))))
            # It follows the last link of either side.
            queue.submit(memferry.fill(bytearray(7), 1, 4, linked=True))
            with self.assertRaises(memferry.TransferError) as caught:
                move(queue, memferry.nop(fenced=True))
            self.assertEqual(caught.exception.failure, "FillLength")
            move(queue, memferry.nop(fenced=True))

    def test_completions_have_frames_and_buffers(self):
        with memferry.connect(self.path) as client:
            queue = client.queue(8)
            one, other = client.frame(1 << 20), client.frame(1 << 20)
            tickets = [queue.submit(memferry.copy(one, other)) for _ in range(3)]
            tickets += [queue.submit(memferry.zero(bytearray(5 << 20))) for _ in range(3)]
            self.assertEqual({done.id for done in queue.completions()}, {ticket.id for ticket in tickets})

    def test_dropped_objects_let_transfers_finish(self):
        with memferry.connect(self.path) as other:
            frame = other.frame(64 << 20)

            def drops_all():
                client = memferry.connect(self.path)
                queue = client.queue(4)
                granted = client.accept(other.grant(frame, "rw", session=client.session).token)
                for value in (1, 2, 3):
                    queue.submit(memferry.fill(granted, value))

            drops_all()
            self.assertTrue((numpy.frombuffer(frame, numpy.uint8) == 3).all())

    def test_a_silent_service_is_an_exception(self):
        client = memferry.connect(self.path, timeout=0.5)
        with self.stopped():
            with self.assertRaisesRegex(memferry.NoAnswerError, "did not answer within 500ms"):
                client.frame(4096)
            with self.assertRaises(memferry.NoAnswerError):
                memferry.connect(self.path, timeout=0.1)
        with client, memferry.connect(self.path, timeout=None) as other:
            self.assertEqual(len(client.frame(4096)), len(other.frame(4096)))
        for wrong in (-1, float("nan")):
            self.assertRaises(ValueError, memferry.connect, self.path, timeout=wrong)

    def test_a_lost_service_is_an_exception(self):
        client = memferry.connect(self.path)
        queue = client.queue()
        one, other = client.frame(1 << 20), client.frame(1 << 20)
        self.service.kill()
        self.service.wait()
        with self.assertRaises((memferry.ServiceLostError, memferry.TransferError)):
            for _ in range(1000):
                queue.submit(memferry.copy(one, other)).wait(20)
        with self.assertRaises(memferry.ServiceLostError):
            client.frame(4096)
        client.close()


if __name__ == "__main__":
    unittest.main()
