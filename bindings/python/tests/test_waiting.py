"""Waiting in every way: for what runs, for what is held back, here and by a service of another process."""

import asyncio
import gc
import os
import signal
import threading

import memferry
import numpy
from memferry._waiting import until_done
from support import PATIENCE, Bounded, Serving, awaits, endless, held_back, noise, once_this_waits


class Waits(Bounded):
    """Waiting, awaiting, cancelling, limits, and what is held meanwhile."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.empty(64 << 20, numpy.uint8)

    def test_transfers_are_awaited_side_by_side(self):
        async def main():
            source = self.source[: 5 << 20]
            targets = [numpy.empty_like(source) for _ in range(20)]
            copies = [self.client.copy(source, target) for target in targets]
            ends = await asyncio.gather(*(awaits(copy) for copy in copies))
            self.assertEqual({end.bytes_done for end in ends}, {5 << 20})
            for target in targets:
                numpy.testing.assert_array_equal(target, source)
            self.assertEqual((await self.client.nop()).bytes_done, 0)

        for _ in range(3):
            asyncio.run(main())

    def test_two_loops_await_one_transfer(self):
        copies, ends = [self.client.copy(self.source, self.target) for _ in range(20)], []

        async def main():
            ends.append((await asyncio.wait_for(awaits(copies[-1]), PATIENCE)).bytes_done)

        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(ends, [64 << 20] * 3)

    def test_what_was_waited_for_in_vain_and_dropped_is_let_go(self):
        target = bytearray(64 << 20)
        with held_back(self.client):
            copies = [self.client.copy(self.source, target) for _ in range(20)]
            with self.assertRaises(TimeoutError):
                copies[-1].wait(0)
            del copies
        self.client.nop(fenced=True).wait()
        self.client.nop()
        target.extend(b"x")

    def test_threads_wait_for_one_transfer(self):
        copies, ends = [self.client.copy(self.source, self.target) for _ in range(8)], []
        threads = [threading.Thread(target=lambda: ends.append(copies[-1].wait().bytes_done)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(ends, [64 << 20] * 3)

    def test_a_deadline_ends_it_with_what_was_done(self):
        copies = [self.client.copy(self.source, self.target) for _ in range(20)]
        late = self.client.copy(self.source, self.target, within=0.0001)
        with self.assertRaises(memferry.TransferError) as caught:
            late.wait()
        self.assertEqual(caught.exception.kind, "DeadlineExceeded")
        self.assertLess(caught.exception.bytes_done, 64 << 20)
        del copies

    def test_an_export_is_held_until_the_transfer_has_ended(self):
        target = bytearray(64 << 20)
        copies = [self.client.copy(self.source, target) for _ in range(8)]
        with self.assertRaises(BufferError):
            target.extend(b"x")
        for copy in copies:
            copy.wait()
        target.extend(b"x")

    def test_what_nobody_has_any_more_goes_on_and_is_let_go(self):
        target = bytearray(5 << 20)
        for _ in range(50):
            self.client.copy(self.source[: 5 << 20], target)
        self.client.nop(fenced=True).wait()
        self.assertEqual(target, self.source[: 5 << 20].tobytes())
        self.client.nop()
        target.extend(b"x")

    def test_a_with_block_waits_and_an_exception_cancels(self):
        with memferry.connect() as client:
            client.copy(self.source, self.target)
        numpy.testing.assert_array_equal(self.source, self.target)
        with self.assertRaises(KeyError), memferry.connect() as client:
            endless(client)
            copies = [client.copy(self.source, self.target) for _ in range(100)]
            raise KeyError
        self.assertTrue(copies[-1].done())
        with self.assertRaises(memferry.TransferError):
            copies[-1].wait()

    def test_a_dropped_client_lets_go_of_what_ran(self):
        client, target = memferry.connect(), bytearray(64 << 20)
        for _ in range(20):
            client.copy(self.source, target)
        del client
        gc.collect()
        target.extend(b"x")

    def test_what_was_asked_for_is_done_though_client_and_transfer_went(self):
        def lets_go_of_both():
            memferry.connect().copy(self.source, self.target)

        def lets_go_of_the_client():
            return memferry.connect().copy(self.source, self.target)

        def lets_go_of_a_view_of_its_frame_too():
            client = memferry.connect()
            view = numpy.frombuffer(client.allocate(self.source.nbytes), self.source.dtype)
            view[:] = self.source
            client.copy(view, self.target)

        for asks in (lets_go_of_both, lets_go_of_the_client, lets_go_of_a_view_of_its_frame_too):
            self.target[:] = 0
            transfer = asks()
            del transfer
            numpy.testing.assert_array_equal(self.source, self.target)

    def test_other_threads_run_while_a_client_that_goes_waits(self):
        # Nobody can cancel what nobody has any more, so deadlines end it. Where this thread came to run only
        # after them, that tells nothing: they are longer next time.
        for limit in (0.5, 2, 8, 32):
            clients = [memferry.connect()]
            endless(clients[0], within=limit)
            with self.in_another_thread(clients.clear) as ended:
                if not ended:
                    return
        self.fail("no other thread ran before the client was gone")


class Held:
    """What can be seen of transfers only while they run: waiting, awaiting, cancelling and limits.

    Nothing is moved in `with self.held() as go` until `go` is called or the block is left."""

    LENGTH = 64 << 20

    def copies(self, count):
        return [self.client.copy(self.source, self.target) for _ in range(count)]

    def test_a_loop_has_one_descriptor_however_many_it_awaits(self):
        def descriptors():
            return set(os.listdir("/proc/self/fd"))

        async def main():
            await self.client.nop()
            before = descriptors()
            with self.held():
                waiting = [asyncio.ensure_future(awaits(copy)) for copy in self.copies(40)]
                await asyncio.sleep(0)
                self.assertFalse(any(each.done() for each in waiting))
                # Some may have gone with clients of other tests, which the service lets go of in its own time.
                self.assertEqual(descriptors() - before, set())
            await asyncio.gather(*waiting)

        asyncio.run(main())

    def test_what_is_wrong_with_one_that_is_awaited_keeps_no_other_from_being_woken(self):
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
                # Both have looked then, and wait.
                await asyncio.sleep(0)
            return await asyncio.wait_for(both, PATIENCE)

        broken, done = asyncio.run(main())
        self.assertEqual(str(broken), "broken")
        self.assertEqual(done.bytes_done, self.LENGTH)

    def test_the_loop_runs_while_a_transfer_is_awaited(self):
        async def main():
            with self.held():
                waiting = asyncio.ensure_future(awaits(self.copies(1)[0]))
                for _ in range(100):
                    await asyncio.sleep(0)
                    self.assertFalse(waiting.done())
            return await asyncio.wait_for(waiting, PATIENCE)

        self.assertEqual(asyncio.run(main()).bytes_done, self.LENGTH)

    def test_who_awaits_is_woken_though_others_look_and_wait_too(self):
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

        for meanwhile in (looks, looks_to_the_end, waits_briefly, waits_to_the_end, closes):
            asyncio.run(main(meanwhile))

    def test_cancelling_the_wait_cancels_the_transfer(self):
        async def main():
            with self.held():
                copies = self.copies(30)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaits(copies[-1]), 0.001)
            with self.assertRaises(memferry.TransferError) as caught:
                await copies[-1]
            self.assertEqual(caught.exception.kind, "Cancelled")
            for copy in copies[:-1]:
                copy.cancel()

        asyncio.run(main())

    def test_other_threads_run_while_one_waits(self):
        with self.held() as go:
            with self.in_another_thread(self.copies(4)[-1].wait) as ended:
                self.assertEqual(ended, [])
                go()
        self.assertEqual(ended[0].bytes_done, self.LENGTH)

    def test_a_limit_passes_and_the_transfer_goes_on(self):
        with self.held():
            copy = self.copies(20)[-1]
            with self.assertRaises(TimeoutError):
                copy.wait(0.0001)
            self.assertFalse(copy.done())
        self.assertEqual(copy.wait().bytes_done, self.LENGTH)
        self.assertTrue(copy.done())

    def test_an_interrupt_ends_the_wait(self):
        # Who starts this in the background of a shell has interrupts ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def interrupts():
            os.kill(os.getpid(), signal.SIGINT)

        with self.held():
            copy = self.copies(1)[0]
            with self.assertRaises(KeyboardInterrupt), once_this_waits(interrupts):
                copy.wait(PATIENCE)
            copy.cancel()


class HeldHere(Held, Bounded):
    """With the service in this process, behind transfers that do not end until they are cancelled."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.empty(self.LENGTH, numpy.uint8)

    def held(self):
        return held_back(self.client)


class HeldByService(Held, Serving):
    """With a service in another process, while it is stopped."""

    def setUp(self):
        super().setUp()
        self.client = memferry.connect(self.path)
        self.addCleanup(self.client.close)
        self.source, self.target = self.client.allocate(self.LENGTH), self.client.allocate(self.LENGTH)

    def held(self):
        return self.stopped()
