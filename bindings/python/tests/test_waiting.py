"""Waiting in every way: for running and for held-back transfers, here and by a service in another process."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time

import memferry
import numpy
from memferry._waiting import until_done
from support import PATIENCE, Bounded, Serving, awaits, endless, held_back, move, noise, once_this_waits


class Waits(Bounded):
    """Waiting, awaiting, cancelling, limits, and memory held meanwhile."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.empty(64 << 20, numpy.uint8)

    def test_transfers_are_awaited_side_by_side(self):
        async def main():
            source = self.source[: 5 << 20]
            targets = [numpy.empty_like(source) for _ in range(20)]
            copies = [self.queue.submit(memferry.copy(source, target)) for target in targets]
            ends = await asyncio.gather(*(awaits(copy) for copy in copies))
            self.assertEqual({end.bytes_done for end in ends}, {5 << 20})
            for target in targets:
                numpy.testing.assert_array_equal(target, source)
            self.assertEqual((await self.queue.submit(memferry.nop())).bytes_done, 0)

        for _ in range(3):
            asyncio.run(main())

    def test_a_ticket_becomes_a_task(self):
        async def tasks():
            tickets = [self.queue.submit(memferry.zero(bytearray(100_000))) for _ in range(3)]
            made = [asyncio.create_task(tickets[0].until_done()), asyncio.ensure_future(tickets[1])]
            async with asyncio.TaskGroup() as group:
                made.append(group.create_task(tickets[2].until_done()))
            return [(await task).bytes_done for task in made]

        self.assertEqual(asyncio.run(tasks()), [100_000] * 3)

    def test_closing_takes_no_time(self):
        times = []
        for _ in range(5):
            client = memferry.connect()
            queue = client.queue(64)
            target = bytearray(5 << 20)
            queue.wait(queue.submit(memferry.zero(target)))
            start = time.monotonic()
            client.close()
            times.append(time.monotonic() - start)
        # A service that is asked in vain answers after seconds; a busy machine delays one of the five.
        self.assertLess(sorted(times)[2], 1)

    @contextlib.contextmanager
    def last_place_taken(self):
        """One transfer of a queue was lent memory and is held back, and no more memory can be registered until the given function
        is called, or the block is left."""
        frames = []
        with held_back(self.client, self.queue) as go:
            with self.assertRaises(memferry.RefusedError):
                while True:
                    frames.append(self.client.frame(4096))
            frames.pop()
            self.queue.submit(memferry.zero(bytearray(9), hint="keep"))
            yield go

    def test_buffers_of_another_queue_make_room(self):
        other, target = self.client.queue(4), bytearray(b"123456789")
        with self.last_place_taken() as go, once_this_waits(go):
            done = other.submit(memferry.zero(target, hint="keep")).wait()
        self.assertEqual((done.bytes_done, target), (9, bytes(9)))

    def test_a_shape_changes_while_there_is_no_room(self):
        picture, target = noise(6, 4), numpy.zeros((4, 6), numpy.uint8)
        with self.last_place_taken() as go:

            def reshapes():
                picture.shape, target.shape = (4, 6), (6, 4)
                go()

            with once_this_waits(reshapes):
                self.queue.submit(memferry.turn(picture, target, "rotate90")).wait()
        self.assertEqual(picture.shape, (4, 6))
        numpy.testing.assert_array_equal(target, numpy.rot90(picture, -1))

    def test_two_loops_await_one_transfer(self):
        copies, ends = [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(20)], []

        async def main():
            ends.append((await asyncio.wait_for(awaits(copies[-1]), PATIENCE)).bytes_done)

        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(ends, [64 << 20] * 3)

    def test_a_timed_out_wait_releases_later(self):
        target = bytearray(64 << 20)
        with held_back(self.client, self.queue):
            copies = [self.queue.submit(memferry.copy(self.source, target)) for _ in range(20)]
            with self.assertRaises(TimeoutError):
                copies[-1].wait(0)
            del copies
        move(self.queue, memferry.nop(fenced=True))
        self.queue.submit(memferry.nop())
        target.extend(b"x")

    def test_threads_wait_for_one_transfer(self):
        copies, ends = [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(8)], []
        threads = [threading.Thread(target=lambda: ends.append(copies[-1].wait().bytes_done)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(ends, [64 << 20] * 3)

    def test_a_deadline_ends_a_transfer(self):
        copies = [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(20)]
        late = self.queue.submit(memferry.copy(self.source, self.target, within=0.0001))
        with self.assertRaises(memferry.TransferError) as caught:
            late.wait()
        self.assertEqual(caught.exception.failure, "DeadlineExceeded")
        self.assertLess(caught.exception.bytes_done, 64 << 20)
        del copies

    def test_an_export_is_held_until_the_end(self):
        target = bytearray(64 << 20)
        copies = [self.queue.submit(memferry.copy(self.source, target)) for _ in range(8)]
        with self.assertRaises(BufferError):
            target.extend(b"x")
        for copy in copies:
            copy.wait()
        target.extend(b"x")

    def test_dropped_tickets_are_released(self):
        target = bytearray(5 << 20)
        for _ in range(50):
            self.queue.submit(memferry.copy(self.source[: 5 << 20], target))
        move(self.queue, memferry.nop(fenced=True))
        self.assertEqual(target, self.source[: 5 << 20].tobytes())
        self.queue.submit(memferry.nop())
        target.extend(b"x")

    def test_a_with_block_waits_and_an_exception_cancels(self):
        with memferry.connect() as client:
            client.queue(2).submit(memferry.copy(self.source, self.target))
        numpy.testing.assert_array_equal(self.source, self.target)
        with self.assertRaises(KeyError), memferry.connect() as client:
            queue = client.queue(256)
            endless(client, queue)
            copies = [queue.submit(memferry.copy(self.source, self.target)) for _ in range(100)]
            raise KeyError
        self.assertTrue(copies[-1].done())
        with self.assertRaises(memferry.TransferError):
            copies[-1].wait()

    def test_a_queue_is_closed_by_its_block(self):
        with self.queue:
            copy = self.queue.submit(memferry.copy(self.source, self.target))
        self.assertTrue(copy.done())
        with self.assertRaises(ValueError):
            self.queue.submit(memferry.nop())
        queue = self.client.queue(256)
        with self.assertRaises(KeyError), queue:
            tickets = endless(self.client, queue)
            raise KeyError
        self.assertTrue(tickets[-1].done())

    def test_a_dropped_queue_releases_its_memory(self):
        queue, target = memferry.connect().queue(), bytearray(64 << 20)
        for _ in range(20):
            queue.submit(memferry.copy(self.source, target))
        del queue
        gc.collect()
        target.extend(b"x")

    def test_dropped_objects_let_transfers_finish(self):
        def drops_all():
            memferry.connect().queue().submit(memferry.copy(self.source, self.target))

        def keeps_the_ticket():
            return memferry.connect().queue().submit(memferry.copy(self.source, self.target))

        def drops_a_view_of_its_frame_too():
            client = memferry.connect()
            view = numpy.frombuffer(client.frame(self.source.nbytes), self.source.dtype)
            view[:] = self.source
            client.queue().submit(memferry.copy(view, self.target))

        for submits in (drops_all, keeps_the_ticket, drops_a_view_of_its_frame_too):
            self.target[:] = 0
            ticket = submits()
            del ticket
            numpy.testing.assert_array_equal(self.source, self.target)

    def test_threads_run_while_a_dropped_queue_waits(self):
        # Transfers without tickets cannot be cancelled, so deadlines end them. If this thread ran only after the deadlines, the
        # attempt shows nothing: the next has longer ones.
        for limit in (0.5, 2, 8, 32):
            queues = [self.client.queue(256)]
            endless(self.client, queues[0], within=limit)
            with self.in_another_thread(queues.clear) as ended:
                if not ended:
                    return
        self.fail("no other thread ran before the queue was dropped")


class Held:
    """Behaviour that shows only while transfers run: waiting, awaiting, cancelling and limits.

    Nothing is moved in `with self.held() as go` until `go` is called or the block is left."""

    LENGTH = 64 << 20

    def copies(self, count):
        return [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(count)]

    def test_a_loop_has_one_descriptor(self):
        def descriptors():
            return set(os.listdir("/proc/self/fd"))

        async def main():
            await self.queue.submit(memferry.nop())
            before = descriptors()
            with self.held():
                waiting = [asyncio.ensure_future(awaits(copy)) for copy in self.copies(40)]
                await asyncio.sleep(0)
                self.assertFalse(any(each.done() for each in waiting))
                # Some may have been closed with clients of other tests, which the service closes later.
                self.assertEqual(descriptors() - before, set())
            await asyncio.gather(*waiting)

        asyncio.run(main())

    def test_a_broken_awaitable_wakes_the_others(self):
        class Broken:
            looks = 0

            def _signal(self, _bell):
                self.looks += 1
                if self.looks > 1:
                    raise OSError("broken")
                return False

        async def main():
            with self.held():
                copy = self.copies(20)[-1]
                both = asyncio.gather(until_done(Broken()), awaits(copy), return_exceptions=True)
                # Both have looked then and wait.
                await asyncio.sleep(0)
            return await asyncio.wait_for(both, PATIENCE)

        broken, done = asyncio.run(main())
        self.assertEqual(str(broken), "broken")
        self.assertEqual(done.bytes_done, self.LENGTH)

    def test_the_loop_runs_while_one_is_awaited(self):
        async def main():
            with self.held():
                waiting = asyncio.ensure_future(awaits(self.copies(1)[0]))
                for _ in range(100):
                    await asyncio.sleep(0)
                    self.assertFalse(waiting.done())
            return await asyncio.wait_for(waiting, PATIENCE)

        self.assertEqual(asyncio.run(main()).bytes_done, self.LENGTH)

    def test_awaiting_is_woken_beside_other_waits(self):
        def looks(copy, _):
            self.assertFalse(copy.done())

        def looks_to_the_end(copy, go):
            while not copy.done():
                go()

        def waits_briefly(copy, _):
            with self.assertRaises(TimeoutError):
                copy.wait(0)

        def waits_to_the_end(copy, go):
            with once_this_waits(go):
                copy.wait()

        def next_end():
            try:
                done = self.queue.poll()
                return done and done.id
            except memferry.TransferError as error:
                return error.id

        def polls_to_the_end(copy, go):
            while next_end() != copy.id:
                go()

        def completes(copy, go):
            with once_this_waits(go):
                ends = set()
                while copy.id not in ends:
                    try:
                        for done in self.queue.completions():
                            ends.add(done.id)
                    except memferry.TransferError as error:
                        ends.add(error.id)

        def closes(_, go):
            with once_this_waits(go):
                self.client.close()

        async def main(meanwhile):
            with self.held() as go:
                copy = self.copies(20)[-1]
                waiting = asyncio.ensure_future(awaits(copy))
                await asyncio.sleep(0)
                self.assertFalse(waiting.done())
                meanwhile(copy, go)
            self.assertEqual((await asyncio.wait_for(waiting, PATIENCE)).bytes_done, self.LENGTH)

        looking = (looks, looks_to_the_end, waits_briefly, waits_to_the_end)
        for meanwhile in (*looking, polls_to_the_end, completes, closes):
            asyncio.run(main(meanwhile))

    def test_cancelling_the_wait_cancels_the_transfer(self):
        async def main():
            with self.held():
                copies = self.copies(30)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaits(copies[-1]), 0.001)
            with self.assertRaises(memferry.TransferError) as caught:
                await copies[-1]
            self.assertEqual(caught.exception.failure, "Cancelled")
            for copy in copies[:-1]:
                copy.cancel()

        asyncio.run(main())

    def test_a_cancelled_wait_leaves_no_end_in_the_queue(self):
        async def main():
            with self.held():
                copy = self.copies(1)[0]
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaits(copy), 0.001)
            while not copy.done():
                await asyncio.sleep(0)
            self.assertIsNone(self.queue.poll())

        asyncio.run(main())

    def test_other_threads_run_during_a_wait(self):
        with self.held() as go:
            with self.in_another_thread(self.copies(4)[-1].wait) as ended:
                self.assertEqual(ended, [])
                go()
        self.assertEqual(ended[0].bytes_done, self.LENGTH)

    def test_a_timeout_lets_the_transfer_go_on(self):
        with self.held():
            copy = self.copies(20)[-1]
            for wait in (copy.wait, lambda timeout: self.queue.wait(copy, timeout=timeout)):
                with self.assertRaises(TimeoutError):
                    wait(0.0001)
            self.assertFalse(copy.done())
            self.assertIsNone(self.queue.poll())
        self.assertEqual(copy.wait().bytes_done, self.LENGTH)
        self.assertTrue(copy.done())

    def test_an_interrupt_ends_the_wait(self):
        # A shell that starts this in the background has it ignore interrupts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def interrupts():
            os.kill(os.getpid(), signal.SIGINT)

        with self.held():
            copy = self.copies(1)[0]
            with self.assertRaises(KeyboardInterrupt), once_this_waits(interrupts):
                copy.wait(PATIENCE)
            with self.assertRaises(KeyboardInterrupt), once_this_waits(interrupts):
                next(self.queue.completions())
            copy.cancel()


class HeldHere(Held, Bounded):
    """With the service in this process, behind transfers that end only when they are cancelled."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.empty(self.LENGTH, numpy.uint8)

    def held(self):
        return held_back(self.client, self.queue)


class HeldByService(Held, Serving):
    """With a service in another process, while it is stopped."""

    def setUp(self):
        super().setUp()
        self.client = memferry.connect(self.path)
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)
        self.source, self.target = self.client.frame(self.LENGTH), self.client.frame(self.LENGTH)

    def held(self):
        return self.stopped()
