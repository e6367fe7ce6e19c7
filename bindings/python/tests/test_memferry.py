"""The Python interface: every operation against NumPy, its order, and everything a program can get wrong."""

import gc
import inspect
import mmap
import os
import random
import re
import signal
import sys
import threading
from pathlib import Path

import memferry
import numpy
from support import PATIENCE, TOUR, Bounded, example, held_back, noise, output_of, tour_of


class Moves(Bounded):
    """Each operation does what NumPy does, on arrays, on frames and on both."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)

    def test_copies_between_frames_arrays_and_bytes(self):
        source, frame, array = noise(70001), self.client.allocate(70001), numpy.zeros(70001, numpy.uint8)
        done = self.client.copy(source, frame).wait()
        self.assertEqual((done.bytes_done, done.engine), (70001, "CPU"))
        self.client.copy(frame.range(0, 70001), array).wait()
        numpy.testing.assert_array_equal(array, source)
        target = bytearray(70001)
        self.client.copy(bytes(source), target).wait()
        self.assertEqual(target, source.tobytes())
        self.client.copy(b"", target).wait()

    def test_what_is_done_now_has_ended_when_the_call_returns(self):
        source, target = noise(5 << 20), numpy.zeros(5 << 20, numpy.uint8)
        done = self.client.copy(source, target, now=True)
        self.assertTrue(done.done())
        self.assertEqual(done.wait().bytes_done, 5 << 20)
        numpy.testing.assert_array_equal(source, target)
        with self.assertRaises(memferry.TransferError):
            self.client.fill(target[:7], 1, 4, now=True).wait()
        threads = [
            threading.Thread(target=lambda: [self.client.copy(source, target, now=True) for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_a_view_of_a_frame_is_that_frame(self):
        frame = self.client.allocate(8192)
        view = numpy.frombuffer(frame, numpy.uint32)
        view[:] = 7
        self.client.copy(view[:16], view[1024:1040]).wait()
        self.client.fill(view[100:200], 0x1020304, 4).wait()
        self.assertEqual((view[1024], view[99], view[100], view[199], view[200]), (7, 7, 0x1020304, 0x1020304, 7))
        self.assertEqual(len(memoryview(frame)), len(frame))
        # The view keeps the memory though the frame and the client went.
        del frame
        self.client.close()
        gc.collect()
        self.assertEqual(view[199], 0x1020304)

    def test_overlapping_copies_are_as_memmove(self):
        array = noise(100000)
        expected = array[:90000].copy()
        self.client.copy(array[:90000], array[777:90777]).wait()
        numpy.testing.assert_array_equal(array[777:90777], expected)

    def test_fills_compares_xors_and_crcs(self):
        first, second = noise(5000), noise(5000, seed=2)
        self.assertEqual(self.client.compare(first, first.copy()).wait().value, 5000)
        other = first.copy()
        other[1234] ^= 1
        self.assertEqual(self.client.compare(first, other).wait().value, 1234)
        result = numpy.empty(5000, numpy.uint8)
        self.client.xor([first, second], result).wait()
        numpy.testing.assert_array_equal(result, first ^ second)
        self.assertEqual(self.client.crc32c(b"123456789").wait().value, 0xE3069283)
        head = self.client.crc32c(b"1234").wait().value
        target = bytearray(5)
        self.assertEqual(self.client.copy_crc32c(b"56789", target, head).wait().value, 0xE3069283)
        self.client.fill(result, 0xABCD, 2).wait()
        self.assertTrue((result.view(numpy.uint16) == 0xABCD).all())

    def test_an_xor_onto_one_of_its_sources(self):
        first, second = noise(5000), noise(5000, seed=2)
        expected = first ^ second
        self.client.xor((first, second), first).wait()
        numpy.testing.assert_array_equal(first, expected)
        self.client.xor([first[:2500]], first[2500:]).wait()
        numpy.testing.assert_array_equal(first[2500:], expected[:2500])

    def test_scatters_and_gathers(self):
        sources = [noise(size, seed=size) for size in (3, 1000, 17)]
        frame = self.client.allocate(4096)
        destinations = [bytearray(500), frame.range(10, 520)]
        self.client.scatter_gather(sources, destinations).wait()
        whole = b"".join(source.tobytes() for source in sources)
        self.assertEqual(bytes(destinations[0]) + bytes(memoryview(frame)[10:530]), whole)

    def test_turns_pictures_of_every_pixel_size(self):
        turns = {
            "upright": lambda a: a,
            "flip-horizontal": lambda a: a[:, ::-1],
            "flip-vertical": lambda a: a[::-1],
            "rotate90": lambda a: numpy.rot90(a, -1),
            "rotate180": lambda a: numpy.rot90(a, 2),
            "rotate270": lambda a: numpy.rot90(a, 1),
            "transpose": lambda a: numpy.swapaxes(a, 0, 1),
        }
        for picture in (noise(33, 70), noise(33, 70, dtype=numpy.uint16), noise(33, 70, 4), noise(33, 70, 2)):
            for name, turned in turns.items():
                expected = turned(picture)
                result = numpy.zeros(expected.shape, expected.dtype)
                self.client.turn(picture, result, name).wait()
                numpy.testing.assert_array_equal(result, expected, name)

    def test_moves_parts_of_pictures_with_their_pitch(self):
        picture, result = noise(40, 50, dtype=numpy.uint32), numpy.zeros((40, 50), numpy.uint32)
        self.client.turn(picture[5:15, 7:20], result[1:14, 2:12], "rotate90").wait()
        expected = numpy.zeros((40, 50), numpy.uint32)
        expected[1:14, 2:12] = numpy.rot90(picture[5:15, 7:20], -1)
        numpy.testing.assert_array_equal(result, expected)

    def test_overlays_leave_the_key_out(self):
        base, top = noise(60, 80, dtype=numpy.uint32), noise(20, 30, dtype=numpy.uint32)
        top[::2, ::3] = 0xFF00FF
        expected = base.copy()
        place = expected[10:30, 40:70]
        place[top != 0xFF00FF] = top[top != 0xFF00FF]
        self.client.overlay(top, base, (40, 10), 0xFF00FF).wait()
        numpy.testing.assert_array_equal(base, expected)

    def test_many_at_random_are_as_numpy_has_them(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        draw, array = random.Random(seed), noise(20000, seed=seed)
        expected = array.copy()
        for _ in range(200):
            length = draw.choice((0, 1, 37, 4096, 9000))
            start, to = draw.randrange(11000), draw.randrange(11000)
            expected[to : to + length] = expected[start : start + length].copy()
            # With a hint it goes to the workers, short as it is.
            hint = draw.choice((None, "keep", "stream"))
            self.client.copy(array[start : start + length], array[to : to + length], hint=hint).wait()
        numpy.testing.assert_array_equal(array, expected)


class Order(Bounded):
    """Links and fences hold, however soon a transfer could be done."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.zeros(64 << 20, numpy.uint8)

    def test_what_is_linked_fails_with_its_forerunner(self):
        for now in (False, True):
            for length in (4, 5 << 20):
                target = bytearray(length)
                self.client.fill(bytearray(7), 1, 4, linked=True)
                with self.assertRaises(memferry.TransferError) as caught:
                    self.client.copy(b"x" * length, target, now=now).wait()
                self.assertEqual(caught.exception.kind, "FillLength")
                self.assertEqual(target, bytes(length))
                # The link ends there.
                self.client.copy(b"x" * length, target, now=now).wait()
                self.assertEqual(target, b"x" * length)

    def test_a_link_is_kept_when_its_first_is_done_now(self):
        target = bytearray(4)
        with self.assertRaises(memferry.TransferError):
            self.client.fill(bytearray(7), 1, 4, linked=True, now=True).wait()
        with self.assertRaises(memferry.TransferError):
            self.client.copy(b"abcd", target).wait()
        self.assertEqual(target, bytes(4))

    def test_a_linked_copy_comes_after_its_forerunner(self):
        small = numpy.zeros(4, numpy.uint8)
        for now in (False, True):
            self.target[-4:] = 0
            for _ in range(4):
                first = self.client.copy(self.source, self.target, linked=True)
            self.client.copy(self.target[-4:], small, now=now).wait()
            self.assertTrue(first.done())
            numpy.testing.assert_array_equal(small, self.source[-4:])

    def test_a_fence_waits_for_all_before_it(self):
        for length in (4, 5 << 20):
            copies = [self.client.copy(self.source, self.target) for _ in range(10)]
            small = numpy.zeros(length, numpy.uint8)
            self.client.copy(self.target[-length:], small, fenced=True, now=True)
            self.assertTrue(all(copy.done() for copy in copies))
            numpy.testing.assert_array_equal(small, self.source[-length:])
        copies = [self.client.copy(self.source, self.target) for _ in range(10)]
        self.client.nop(fenced=True, now=True)
        self.assertTrue(all(copy.done() for copy in copies))


class BadInput(Bounded):
    """Each mistake is an exception, and the program goes on."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)

    def test_operands_that_are_none(self):
        for wrong in (None, 7, "text", object()):
            with self.assertRaises(TypeError):
                self.client.copy(wrong, bytearray(9))
        with self.assertRaises(TypeError):
            self.client.copy(bytearray(9))

    def test_memory_that_was_given_back_says_so_itself(self):
        view, mapped = memoryview(bytearray(9)), mmap.mmap(-1, 4096)
        view.release()
        mapped.close()
        for gone in (view, mapped, numpy.zeros(4, "datetime64[s]")):
            for call in (lambda: self.client.copy(gone, bytearray(4096)), lambda: self.client.fill(gone)):
                with self.assertRaises(ValueError):
                    call()

    def test_read_only_memory(self):
        fixed = noise(100)
        fixed.flags.writeable = False
        for target in (fixed, b"x" * 100, memoryview(b"x" * 100)):
            with self.assertRaises(BufferError):
                self.client.copy(noise(100), target)
        self.client.copy(fixed, bytearray(100)).wait()

    def test_references_to_objects(self):
        held = object()
        pair = numpy.dtype([("number", "u8"), ("thing", object)])
        for kind, item in ((object, held), (pair, (7, held)), ([("nested", pair, (2,))], ([(7, held), (8, held)],))):
            filled, empty = numpy.array([item] * 4, kind), numpy.zeros(4, kind)
            count = sys.getrefcount(held)
            for call in (
                lambda: self.client.copy(filled, empty),
                lambda: self.client.copy(bytes(empty.nbytes), filled),
                lambda: self.client.fill(filled),
                lambda: self.client.crc32c(filled),
            ):
                with self.assertRaises(BufferError):
                    call()
            self.assertEqual(sys.getrefcount(held), count)
        named = numpy.zeros(4, [("O", "u8"), ("xOx", "u1")])
        self.client.copy(numpy.ones(4, named.dtype), named).wait()
        self.assertEqual(named["O"].sum(), 4)

    def test_memory_with_gaps(self):
        array = noise(100, 100)
        for wrong in (array[:, ::2], array[::-1], array[:, :50], array.T):
            with self.assertRaises(BufferError):
                self.client.copy(wrong, numpy.empty(10000, numpy.uint8))
        with self.assertRaises(BufferError):
            self.client.turn(array[::-1], array.copy())

    def test_lengths_and_shapes(self):
        small, large, frame = bytearray(9), bytearray(10), self.client.allocate(4096)
        for call in (
            lambda: self.client.copy(large, small),
            lambda: self.client.compare(large, small),
            lambda: self.client.xor([large], small),
            lambda: self.client.xor([], small),
            lambda: self.client.xor([noise(6), memoryview(large)[:6]], memoryview(large)[1:7]),
            lambda: self.client.xor([memoryview(large)[1:7]], memoryview(large)[:6]),
            lambda: self.client.xor([frame.range(0, 100)], frame.range(99, 100)),
            lambda: self.client.xor([frame.range(0, 100)], memoryview(frame)[99:199]),
            lambda: self.client.scatter_gather([large], [small]),
            lambda: self.client.scatter_gather([small] * 1025, [bytearray(9225)]),
            lambda: self.client.xor([small] * 65, bytearray(9)),
            lambda: self.client.turn(noise(4, 5), noise(4, 5), "rotate90"),
            lambda: self.client.turn(noise(4, 5), noise(4, 5, dtype=numpy.uint16)),
            lambda: self.client.turn(noise(4, 5, 3), noise(4, 5, 3)),
            lambda: self.client.turn(small, small),
            lambda: self.client.overlay(noise(4, 5), noise(4, 5), (1, 0)),
        ):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(memferry.TransferError) as caught:
            self.client.fill(small, 1, 4).wait()
        self.assertEqual(caught.exception.kind, "FillLength")

    def test_values(self):
        target, frame = bytearray(8), self.client.allocate(4096)
        for call in (
            lambda: self.client.fill(target, 256),
            lambda: self.client.fill(target, 1, 3),
            lambda: self.client.turn(noise(2, 2), noise(2, 2), "sideways"),
            lambda: self.client.overlay(noise(2, 2), noise(2, 2), key=1 << 24),
            lambda: self.client.copy(target, target, hint="please"),
            lambda: self.client.copy(target, target, within=-1.0),
            lambda: self.client.grant(frame, "x", user=0),
            lambda: self.client.grant(frame, "r"),
            lambda: self.client.grant(b"bytes", "r", user=0),
            lambda: frame.range(4000, 97),
            lambda: frame.range(1 << 63, 1 << 63),
            lambda: self.client.nop().wait(float("nan")),
        ):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(OverflowError):
            self.client.fill(target, -1)
        with self.assertRaises(memferry.RefusedError):
            self.client.allocate(0)
        with self.assertRaises(memferry.RefusedError):
            self.client.accept(12345)

    def test_a_client_that_is_closed(self):
        frame = self.client.allocate(4096)
        self.client.close()
        self.client.close()
        for call in (self.client.nop, lambda: self.client.allocate(1), lambda: self.client.session):
            with self.assertRaises(ValueError):
                call()
        memoryview(frame)[0] = 1

    def test_a_frame_of_another_client(self):
        with memferry.connect() as other:
            frame = other.allocate(4096)
            with self.assertRaises(ValueError):
                self.client.copy(frame, self.client.allocate(4096))

    def test_more_than_the_client_may_have_outstanding(self):
        source, target = bytes(5 << 20), bytearray(5 << 20)
        with memferry.connect(capacity=128) as client, held_back(client):
            with self.assertRaises(memferry.ChannelFullError):
                for _ in range(100):
                    client.copy(source, target)

    def test_no_service(self):
        with self.assertRaises(memferry.ConnectError) as caught:
            memferry.connect("/nonexistent/memferry.sock")
        self.assertIn("memferry serve", str(caught.exception))
        with self.assertRaises(memferry.RefusedError):
            memferry.connect(capacity=3)

    def test_rights_of_a_grant_and_its_end(self):
        with memferry.connect() as other:
            frame, own = self.client.allocate(4096), other.allocate(4096)
            memoryview(frame)[:6] = b"secret"
            token = self.client.grant(frame.range(0, 6), "r", session=other.session)
            granted = other.accept(token)
            self.assertEqual((len(granted), granted.rights, granted.mapped), (6, "r", False))
            self.assertEqual((granted.grantor, frame.grantor), (self.client.session, None))
            with self.assertRaises(BufferError):
                memoryview(granted)
            other.copy(granted, own).wait()
            self.assertEqual(bytes(memoryview(own)[:6]), b"secret")
            with self.assertRaises(memferry.TransferError) as caught:
                other.fill(granted).wait()
            self.assertEqual(caught.exception.kind, "MissingRight")
            for call in (
                lambda: granted.range(0, 7),
                lambda: other.xor([granted.range(0, 4)], granted.range(2, 4)),
            ):
                with self.assertRaises(ValueError):
                    call()
            self.client.revoke(token)
            with self.assertRaises(memferry.TransferError) as caught:
                other.copy(granted, own).wait()
            self.assertEqual(caught.exception.kind, "Revoked")

    def test_a_forked_child_is_told_and_opens_its_own(self):
        frame, copies = self.client.allocate(4096), [self.client.copy(bytes(5 << 20), bytearray(5 << 20))]
        child = os.fork()
        if child == 0:
            wrong = 1
            # What watches over the test is not in the child.
            signal.alarm(PATIENCE)
            try:
                calls = (
                    self.client.nop,
                    lambda: self.client.copy(frame, bytearray(4096)),
                    lambda: self.client.allocate(1),
                    self.client.close,
                    copies[0].wait,
                    copies[0].cancel,
                )
                for call in calls:
                    try:
                        call()
                        os._exit(2)
                    except memferry.ForkedError:
                        pass
                copies.clear()
                gc.collect()
                target = bytearray(3)
                with memferry.connect() as own:
                    own.copy(b"abc", target).wait()
                wrong = 0 if target == b"abc" else 3
            finally:
                os._exit(wrong)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        copies[0].wait()

    def test_a_forked_child_leaves_the_block_as_it_wanted_to(self):
        program = """if True:
            import os, signal, sys, memferry
            with memferry.connect() as client:
                client.copy(bytes(5 << 20), bytearray(5 << 20))
                if os.fork() == 0:
                    signal.alarm(60)
                    sys.exit(7)
                print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
        said = output_of("-c", program)
        self.assertEqual((said.stdout, said.stderr), ("7\n", ""))


class Shape(Bounded):
    """The stubs say what there is, and an example runs."""

    def test_the_stubs_name_every_method_and_argument(self):
        stubs = (Path(memferry.__file__).parent / "_memferry.pyi").read_text()
        for name in memferry.__all__:
            self.assertRegex(stubs, rf"(class|def) {name}\b")
        methods = [name for name in dir(memferry.Client) if not name.startswith("_")]
        for name in methods:
            found = re.search(rf"def {name}\(\s*self(.*?)\) ->", stubs, re.S)
            self.assertIsNotNone(found, name)
            value = getattr(memferry.Client, name)
            if callable(value):
                arguments = list(inspect.signature(value).parameters)[1:]
                written = re.findall(r"(\w+):", re.sub(r"\[[^\]]*\]", "", found[1]))
                self.assertEqual(written, arguments, name)

    def test_the_example_of_the_readme_runs(self):
        readme = (Path(__file__).parents[3] / "README.md").read_text()
        program = readme.split("```python\n")[1].split("```")[0]
        said = output_of("-c", program).stdout
        self.assertEqual(said, "1228800 True True\n")

    def test_the_example_runs(self):
        self.assertIn("as NumPy has it", example("pictures.py"))

    def test_the_tour_runs(self):
        self.assertEqual(tour_of(example("tour.py")), TOUR)
