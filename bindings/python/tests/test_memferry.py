"""The Python interface: every operation against NumPy, order, ends, and everything a program can get wrong."""

import asyncio
import gc
import importlib.util
import inspect
import mmap
import os
import pickle
import random
import re
import signal
import sys
import threading
import unittest
from pathlib import Path

import memferry
import numpy
from numpy.lib.stride_tricks import as_strided
from support import PATIENCE, TOUR, Bounded, awaits, example, held_back, move, noise, output_of, python_of, results_of_tour

# What each turn makes of a picture.
TURNS = {
    "upright": lambda a: a,
    "flip-horizontal": lambda a: a[:, ::-1],
    "flip-vertical": lambda a: a[::-1],
    "rotate90": lambda a: numpy.rot90(a, -1),
    "rotate180": lambda a: numpy.rot90(a, 2),
    "rotate270": lambda a: numpy.rot90(a, 1),
    "transpose": lambda a: numpy.swapaxes(a, 0, 1),
}


# What `Grant.remote_token` gives, and what looks like it.
REMOTE_TOKEN = "alpha:0000000000000000000000000000000f/4294967303/4096/rw"
NO_REMOTE_TOKENS = ("", "alpha", "12345", REMOTE_TOKEN[1:].upper(), REMOTE_TOKEN + " ", REMOTE_TOKEN[:-2], REMOTE_TOKEN.replace("00f", "0f"))


class Moves(Bounded):
    """Each operation does what NumPy does, on arrays, on frames and on both."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)

    def test_copies_frames_arrays_and_bytes(self):
        source, frame, array = noise(70001), self.client.frame(70001), numpy.zeros(70001, numpy.uint8)
        done = move(self.queue, memferry.copy(source, frame))
        self.assertEqual((done.bytes_done, done.engine), (70001, "CPU"))
        move(self.queue, memferry.copy(frame[:70001], array))
        numpy.testing.assert_array_equal(array, source)
        target = bytearray(70001)
        move(self.queue, memferry.copy(bytes(source), target))
        self.assertEqual(target, source.tobytes())
        move(self.queue, memferry.copy(b"", target))

    def test_run_has_ended_when_it_returns(self):
        source, target = noise(5 << 20), numpy.zeros(5 << 20, numpy.uint8)
        self.assertEqual(self.queue.run(memferry.copy(source, target)).bytes_done, 5 << 20)
        numpy.testing.assert_array_equal(source, target)
        with self.assertRaises(memferry.TransferError):
            self.queue.run(memferry.fill(target[:7], 1, 4))
        self.assertIsNone(self.queue.poll())
        threads = [
            threading.Thread(target=lambda: [self.queue.run(memferry.copy(source, target)) for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_a_view_of_a_frame_is_that_frame(self):
        frame = self.client.frame(8192)
        view = numpy.frombuffer(frame, numpy.uint32)
        view[:] = 7
        move(self.queue, memferry.copy(view[:16], view[1024:1040]))
        move(self.queue, memferry.fill(view[100:200], 0x1020304, 4))
        self.assertEqual((view[1024], view[99], view[100], view[199], view[200]), (7, 7, 0x1020304, 0x1020304, 7))
        self.assertEqual(len(memoryview(frame)), len(frame))
        # The view keeps the memory without the frame and the client.
        del frame
        self.client.close()
        gc.collect()
        self.assertEqual(view[199], 0x1020304)

    def test_overlapping_copies_are_as_memmove(self):
        array = noise(100000)
        expected = array[:90000].copy()
        move(self.queue, memferry.copy(array[:90000], array[777:90777]))
        numpy.testing.assert_array_equal(array[777:90777], expected)

    def test_operands_of_one_buffer(self):
        for length in (90000, 5 << 20):
            array = noise(length + 777)
            expected = array[:length].copy()
            # With a hint the copy is not made by the call itself.
            move(self.queue, memferry.copy(array[:length], array[777:], hint="keep"))
            numpy.testing.assert_array_equal(array[777:], expected)
            self.assertIsNone(move(self.queue, memferry.compare(array[777:], memoryview(array)[777:])).output)
            expected = array.copy()
            parts = [array[at : at + 100] for at in range(0, 1000, 50)]
            gathered = bytearray(2000)
            move(self.queue, memferry.scatter_gather(parts[::-1], [gathered]))
            self.assertEqual(gathered, b"".join(part.tobytes() for part in parts[::-1]))
            fixed = memoryview(array)[:200].toreadonly()
            move(self.queue, memferry.dual_copy(fixed, (array[500:700], array[300:500])))
            expected[500:700] = expected[300:500] = expected[:200]
            numpy.testing.assert_array_equal(array, expected)

    def test_fills_compares_xors_and_crcs(self):
        first, second = noise(5000), noise(5000, seed=2)
        self.assertEqual(move(self.queue, memferry.compare(first, first.copy())).output, None)
        other = first.copy()
        other[1234] ^= 1
        self.assertEqual(move(self.queue, memferry.compare(first, other)).output, 1234)
        result = numpy.empty(5000, numpy.uint8)
        move(self.queue, memferry.xor([first, second], result))
        numpy.testing.assert_array_equal(result, first ^ second)
        self.assertEqual(move(self.queue, memferry.crc32c(b"123456789")).output, 0xE3069283)
        head = move(self.queue, memferry.crc32c(b"1234")).output
        target = bytearray(5)
        self.assertEqual(move(self.queue, memferry.copy_crc32c(b"56789", target, head)).output, 0xE3069283)
        move(self.queue, memferry.fill(result, 0xABCD, 2))
        self.assertTrue((result.view(numpy.uint16) == 0xABCD).all())
        done = self.queue.run(memferry.zero(result))
        self.assertEqual((done.output, result.any()), (None, False))
        other[:] = 1
        move(self.queue, memferry.dual_copy(first, (result, other)))
        numpy.testing.assert_array_equal(result, first)
        numpy.testing.assert_array_equal(other, first)

    def test_a_transfer_is_submitted_twice(self):
        source, target = noise(5 << 20), numpy.zeros(5 << 20, numpy.uint8)
        transfer = memferry.copy(source, target)
        for value in (1, 2):
            source[:] = value
            move(self.queue, transfer)
            self.assertTrue((target == value).all())
        # A transfer that was not submitted exports nothing.
        buffer = bytearray(5)
        transfer = memferry.zero(buffer)
        buffer.extend(b"x")
        self.assertEqual(self.queue.run(transfer).bytes_done, 6)

    def test_slices_of_frames(self):
        frame = self.client.frame(4096)
        memoryview(frame)[:] = bytes(range(256)) * 16
        for part, expected in (
            (frame[:], frame),
            (frame[10:20], slice(10, 20)),
            (frame[-16:], slice(4080, 4096)),
            (frame[:-4000], slice(0, 96)),
            (frame[100:200][10:-10], slice(110, 190)),
            (frame[4096:], slice(4096, 4096)),
            (frame[1:2:1], slice(1, 2)),
            (frame[numpy.int64(3) : numpy.uint8(7)], slice(3, 7)),
        ):
            bytes_of = memoryview(frame)[:] if expected is frame else memoryview(frame)[expected]
            self.assertEqual(len(part), len(bytes_of))
            target = bytearray(len(part))
            move(self.queue, memferry.copy(part, target))
            self.assertEqual(target, bytes_of)
        self.assertIs(frame[1:2].frame, frame)
        self.assertEqual((frame[100:200][10:].offset, len(frame[100:200][10:])), (110, 90))

    def test_an_xor_onto_one_of_its_sources(self):
        first, second = noise(5000), noise(5000, seed=2)
        expected = first ^ second
        move(self.queue, memferry.xor((first, second), first))
        numpy.testing.assert_array_equal(first, expected)
        move(self.queue, memferry.xor([first[:2500]], first[2500:]))
        numpy.testing.assert_array_equal(first[2500:], expected[:2500])

    def test_scatters_and_gathers(self):
        sources = [noise(size, seed=size) for size in (3, 1000, 17)]
        frame = self.client.frame(4096)
        destinations = [bytearray(500), frame[10:530]]
        move(self.queue, memferry.scatter_gather(sources, destinations))
        whole = b"".join(source.tobytes() for source in sources)
        self.assertEqual(bytes(destinations[0]) + bytes(memoryview(frame)[10:530]), whole)

    def test_turns_pictures_of_every_pixel_size(self):
        for picture in (noise(33, 70), noise(33, 70, dtype=numpy.uint16), noise(33, 70, 4), noise(33, 70, 2)):
            for name, turned in TURNS.items():
                expected = turned(picture)
                result = numpy.zeros(expected.shape, expected.dtype)
                move(self.queue, memferry.turn(picture, result, name))
                numpy.testing.assert_array_equal(result, expected, name)

    def test_moves_parts_of_pictures_with_their_pitch(self):
        picture, result = noise(40, 50, dtype=numpy.uint32), numpy.zeros((40, 50), numpy.uint32)
        move(self.queue, memferry.turn(picture[5:15, 7:20], result[1:14, 2:12], "rotate90"))
        expected = numpy.zeros((40, 50), numpy.uint32)
        expected[1:14, 2:12] = numpy.rot90(picture[5:15, 7:20], -1)
        numpy.testing.assert_array_equal(result, expected)

    def test_turns_pictures_of_any_channels_and_strides(self):
        pictures = [
            noise(13, 17, 3),
            noise(13, 17, 3, dtype=numpy.float32),
            noise(13, 17, dtype=numpy.float64),
            noise(13, 17, dtype=numpy.complex128),
            noise(13, 17)[::-1],
            noise(13, 17, 3)[:, ::-1],
            noise(26, 34, dtype=numpy.uint16)[::2, ::-2],
            noise(13, 17, 3)[:, :, 1],
            noise(17, 13, dtype=numpy.float64).T,
            numpy.broadcast_to(noise(17, dtype=numpy.uint32), (13, 17)),
            noise(1, 17, 3),
            noise(13, 1, dtype=numpy.float64),
        ]
        for picture in pictures:
            for name, turned in TURNS.items():
                expected = turned(picture)
                for run in (False, True):
                    target = numpy.zeros(expected.shape, picture.dtype)
                    done = move(self.queue, memferry.turn(picture, target, name), run)
                    numpy.testing.assert_array_equal(target, expected, name)
                    self.assertEqual(done.bytes_done, picture.nbytes)
                # Into a view with strides of its own.
                wide = numpy.zeros((2 * expected.shape[0], *expected.shape[1:]), picture.dtype)
                move(self.queue, memferry.turn(picture, wide[::-2], name))
                numpy.testing.assert_array_equal(wide[::-2], expected, name)
                self.assertFalse(wide[::2].any())
        base = numpy.zeros((40, 40, 3), numpy.uint8)
        move(self.queue, memferry.overlay(pictures[0], base, (5, 9)))
        numpy.testing.assert_array_equal(base[9:22, 5:22], pictures[0])

    def test_linked_passes_keep_their_order(self):
        first, second, third = noise(9, 9, 3), numpy.zeros((9, 9, 3), numpy.uint8), numpy.zeros((9, 9, 3), numpy.uint8)
        tickets = [
            self.queue.submit(memferry.turn(first, second, "rotate90", linked=True)),
            self.queue.submit(memferry.turn(second, third, "rotate270")),
        ]
        for ticket in tickets:
            ticket.wait()
        numpy.testing.assert_array_equal(third, first)

    def test_pictures_in_their_own_place(self):
        turns = ("flip-horizontal", "flip-vertical", "rotate90", "rotate180", "rotate270", "transpose")
        frame = numpy.frombuffer(self.client.frame(4096), numpy.uint8)[:64].reshape(8, 8)
        for picture in (noise(8, 8), noise(8, 8, 3), noise(8, 8, dtype=numpy.float64), frame):
            before = picture.copy()
            for name in turns:
                for run in (False, True):
                    with self.assertRaises(memferry.TransferError) as caught:
                        move(self.queue, memferry.turn(picture, picture, name), run)
                    self.assertEqual(caught.exception.failure, "Overlap")
                    numpy.testing.assert_array_equal(picture, before)
            move(self.queue, memferry.overlay(picture, picture))
            numpy.testing.assert_array_equal(picture, before)
            # A part of it over another part, in any direction, as with memmove.
            for y, x in ((1, 1), (1, 0), (0, 1), (0, 0)):
                part, other = picture[1 - y : 8 - y, 1 - x : 8 - x], picture[y : 7 + y, x : 7 + x]
                expected = part.copy()
                move(self.queue, memferry.overlay(part, picture, (x, y)))
                numpy.testing.assert_array_equal(other, expected)
            left, right = picture[:, :4], picture[:, 4:]
            expected = left[::-1].copy()
            move(self.queue, memferry.turn(left, right, "flip-vertical"))
            numpy.testing.assert_array_equal(right, expected)

    def test_no_pass_overwrites_what_a_later_one_reads(self):
        def moves(transfer, source, target, turned=TURNS["upright"]):
            expected = turned(source.copy())
            for run in (False, True):
                before = array.copy()
                move(self.queue, transfer, run)
                numpy.testing.assert_array_equal(target, expected)
                array[...] = before

        # Rows of 417 bytes, of which 400 are pixels.
        padded = numpy.lib.stride_tricks.as_strided(noise(50 * 417), (50, 100, 4), (417, 4, 1))
        for array in (noise(50, 100, 4), padded):
            for first, other in ((array[:, 1:, :3], array[:, :-1, 1:]), (array[1:, :, :3], array[:-1, :, 1:])):
                before = array.copy()
                for run in (False, True):
                    with self.assertRaisesRegex(ValueError, "share memory"):
                        move(self.queue, memferry.turn(first, other), run)
                    numpy.testing.assert_array_equal(array, before)
            # The other way, what is read is overwritten by later passes only.
            first, other = array[:, :-1, 1:], array[:, 1:, :3]
            moves(memferry.turn(first, other), first, other)
            for name in ("flip-horizontal", "flip-vertical", "rotate180"):
                left, right = array[:, :50, :3], array[:, 50:, :3]
                moves(memferry.turn(left, right, name), left, right, TURNS[name])
            # The two have other channels of the same pixels.
            moves(memferry.turn(array[..., :2], array[..., 2:]), array[..., :2], array[..., 2:])
            for y, x in ((0, 1), (1, 0), (7, 3)):
                top, place = array[y:, x:, :3], array[: 50 - y, : 100 - x, :3]
                moves(memferry.overlay(top, array[..., :3]), top, place)
                moves(memferry.overlay(place, array[..., :3], (x, y)), place, top)

    def test_many_buffers_wait_for_room(self):
        queue, pairs = self.client.queue(4096), [(noise(4096), numpy.zeros(4096, numpy.uint8)) for _ in range(1500)]
        tickets = [queue.submit(memferry.copy(*pair, hint="keep")) for pair in pairs]
        for ticket, (source, target) in zip(tickets, pairs):
            ticket.wait()
            numpy.testing.assert_array_equal(source, target)

    def test_overlays_leave_the_key_out(self):
        base, top = noise(60, 80, dtype=numpy.uint32), noise(20, 30, dtype=numpy.uint32)
        top[::2, ::3] = 0xFF00FF
        expected = base.copy()
        place = expected[10:30, 40:70]
        place[top != 0xFF00FF] = top[top != 0xFF00FF]
        move(self.queue, memferry.overlay(top, base, (40, 10), 0xFF00FF))
        numpy.testing.assert_array_equal(base, expected)

    def test_empty_pictures_fit_at_the_end_of_any_base(self):
        base = noise(13, 17)
        before = base.copy()
        # The place behind the last pixel of a base that is walked backward would be in front of all its bytes.
        for walked in (base, base[:, ::-1], base[::-1], base[::-1, ::-1]):
            for top, at in ((noise(13, 0), (17, 0)), (noise(0, 17), (0, 13)), (noise(0, 0), (17, 13))):
                self.assertEqual(move(self.queue, memferry.overlay(top, walked, at)).bytes_done, 0)
        numpy.testing.assert_array_equal(base, before)

    def test_random_copies_match_numpy(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        draw, array = random.Random(seed), noise(20000, seed=seed)
        expected = array.copy()
        for _ in range(200):
            length = draw.choice((0, 1, 37, 4096, 9000))
            start, to = draw.randrange(11000), draw.randrange(11000)
            expected[to : to + length] = expected[start : start + length].copy()
            # With a hint even a short copy goes to the workers.
            hint = draw.choice((None, "keep", "stream"))
            move(self.queue, memferry.copy(array[start : start + length], array[to : to + length], hint=hint))
        numpy.testing.assert_array_equal(array, expected)


class Order(Bounded):
    """Links and fences hold, also for transfers that could be done at once."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)
        self.source, self.target = noise(1 << 20).repeat(64), numpy.zeros(64 << 20, numpy.uint8)

    def test_a_linked_transfer_fails_with_the_first(self):
        for run in (False, True):
            for length in (4, 5 << 20):
                target = bytearray(length)
                self.queue.submit(memferry.fill(bytearray(7), 1, 4, linked=True))
                with self.assertRaises(memferry.TransferError) as caught:
                    move(self.queue, memferry.copy(b"x" * length, target), run)
                self.assertEqual(caught.exception.failure, "FillLength")
                self.assertEqual(target, bytes(length))
                # The link ends there.
                move(self.queue, memferry.copy(b"x" * length, target), run)
                self.assertEqual(target, b"x" * length)

    def test_a_link_holds_when_its_first_is_run(self):
        target = bytearray(4)
        with self.assertRaises(memferry.TransferError):
            self.queue.run(memferry.fill(bytearray(7), 1, 4, linked=True))
        with self.assertRaises(memferry.TransferError):
            move(self.queue, memferry.copy(b"abcd", target))
        self.assertEqual(target, bytes(4))

    def test_a_linked_copy_follows_the_first(self):
        small = numpy.zeros(4, numpy.uint8)
        for run in (False, True):
            self.target[-4:] = 0
            for _ in range(4):
                first = self.queue.submit(memferry.copy(self.source, self.target, linked=True))
            move(self.queue, memferry.copy(self.target[-4:], small), run)
            self.assertTrue(first.done())
            numpy.testing.assert_array_equal(small, self.source[-4:])

    def test_a_fence_waits_for_all_before_it(self):
        for length in (4, 5 << 20):
            copies = [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(10)]
            small = numpy.zeros(length, numpy.uint8)
            self.queue.run(memferry.copy(self.target[-length:], small, fenced=True))
            self.assertTrue(all(copy.done() for copy in copies))
            numpy.testing.assert_array_equal(small, self.source[-length:])
        copies = [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(10)]
        self.queue.run(memferry.nop(fenced=True))
        self.assertTrue(all(copy.done() for copy in copies))


class BadInput(Bounded):
    """Each mistake is an exception, and the program goes on."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(256)

    def test_operands_that_are_no_memory(self):
        for wrong in (None, 7, "text", object()):
            with self.assertRaises(TypeError):
                self.queue.submit(memferry.copy(wrong, bytearray(9)))
        for call in (
            lambda: memferry.copy(bytearray(9)),
            lambda: self.queue.submit(bytearray(9)),
            lambda: self.queue.wait(memferry.nop()),
            lambda: memferry.scatter_gather(7, [bytearray(9)]),
            lambda: self.client.accept(12345),
            lambda: self.client.revoke("12345"),
        ):
            with self.assertRaises(TypeError):
                call()

    def test_memory_that_was_released(self):
        view, mapped = memoryview(bytearray(9)), mmap.mmap(-1, 4096)
        view.release()
        mapped.close()
        for gone in (view, mapped, numpy.zeros(4, "datetime64[s]")):
            for call in (lambda: self.queue.submit(memferry.copy(gone, bytearray(4096))), lambda: self.queue.submit(memferry.zero(gone))):
                with self.assertRaises(ValueError):
                    call()

    def test_read_only_memory(self):
        fixed = noise(100)
        fixed.flags.writeable = False
        for target in (fixed, b"x" * 100, memoryview(b"x" * 100)):
            with self.assertRaises(BufferError):
                self.queue.submit(memferry.copy(noise(100), target))
        move(self.queue, memferry.copy(fixed, bytearray(100)))

    def test_references_to_objects(self):
        held = object()
        pair = numpy.dtype([("number", "u8"), ("thing", object)])
        for kind, item in ((object, held), (pair, (7, held)), ([("nested", pair, (2,))], ([(7, held), (8, held)],))):
            filled, empty = numpy.array([item] * 4, kind), numpy.zeros(4, kind)
            count = sys.getrefcount(held)
            for call in (
                lambda: self.queue.submit(memferry.copy(filled, empty)),
                lambda: self.queue.submit(memferry.copy(bytes(empty.nbytes), filled)),
                lambda: self.queue.submit(memferry.zero(filled)),
                lambda: self.queue.submit(memferry.crc32c(filled)),
            ):
                with self.assertRaises(BufferError):
                    call()
            self.assertEqual(sys.getrefcount(held), count)
        named = numpy.zeros(4, [("O", "u8"), ("xOx", "u1")])
        move(self.queue, memferry.copy(numpy.ones(4, named.dtype), named))
        self.assertEqual(named["O"].sum(), 4)

    def test_memory_with_gaps(self):
        array = noise(100, 100)
        for wrong in (array[:, ::2], array[::-1], array[:, :50], array.T, noise(100)[::2], noise(4, 4, 4)[..., ::2]):
            with self.assertRaises(BufferError):
                self.queue.submit(memferry.copy(wrong, numpy.empty(10000, numpy.uint8)))
        with self.assertRaises(BufferError):
            self.queue.submit(memferry.turn(noise(4, 4, 4)[..., ::2], noise(4, 4, 2)))

    def test_lengths_and_shapes(self):
        small, large = bytearray(9), bytearray(10)
        for call in (
            lambda: self.queue.submit(memferry.copy(large, small)),
            lambda: self.queue.submit(memferry.compare(large, small)),
            lambda: self.queue.submit(memferry.xor([large], small)),
            lambda: self.queue.submit(memferry.xor([], small)),
            lambda: self.queue.submit(memferry.dual_copy(large, [large, small])),
            lambda: memferry.dual_copy(large, [large]),
            lambda: self.queue.submit(memferry.scatter_gather([large], [small])),
            lambda: self.queue.submit(memferry.scatter_gather([small] * 1025, [bytearray(9225)])),
            lambda: self.queue.submit(memferry.xor([small] * 65, bytearray(9))),
            lambda: self.queue.submit(memferry.turn(noise(4, 5), noise(4, 5), "rotate90")),
            lambda: self.queue.submit(memferry.turn(noise(4, 5), noise(4, 5, dtype=numpy.uint16))),
            lambda: self.queue.submit(memferry.turn(noise(4, 5, 3), noise(4, 5, 4))),
            lambda: self.queue.submit(memferry.turn(noise(4, 5, 40, dtype=numpy.uint16), noise(5, 4, 40, dtype=numpy.uint16), "rotate90")),
            lambda: self.queue.submit(memferry.turn(small, small)),
            lambda: self.queue.submit(memferry.overlay(noise(4, 5), noise(4, 5), (1, 0))),
            lambda: self.queue.submit(memferry.overlay(noise(4, 5), noise(4, 5), (2**32 - 1, 2**32 - 1))),
            lambda: self.queue.run(memferry.copy(large, small)),
        ):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(memferry.TransferError) as caught:
            move(self.queue, memferry.fill(small, 1, 4))
        self.assertEqual(caught.exception.failure, "FillLength")

    def test_xor_refuses_partial_overlap(self):
        large, frame = bytearray(10), self.client.frame(4096)
        for sources, destination in (
            ([bytes(6), memoryview(large)[:6]], memoryview(large)[1:7]),
            ([memoryview(large)[1:7]], memoryview(large)[:6]),
            ([frame[:100]], frame[99:199]),
            ([frame[:100]], memoryview(frame)[99:199]),
        ):
            for run in (False, True):
                with self.assertRaises(memferry.TransferError) as caught:
                    move(self.queue, memferry.xor(sources, destination), run)
                self.assertEqual(caught.exception.failure, "Overlap")

    def test_values(self):
        target, frame = bytearray(8), self.client.frame(4096)
        for call in (
            lambda: self.queue.submit(memferry.fill(target, 256)),
            lambda: self.queue.submit(memferry.fill(target, 1, 3)),
            lambda: self.queue.submit(memferry.turn(noise(2, 2), noise(2, 2), "sideways")),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2), noise(2, 2), key=1 << 24)),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2), noise(2, 2), key=256)),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2, 2), noise(2, 2, 2), key=1 << 16)),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2, 3), noise(2, 2, 3), key=1)),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2), noise(2, 2), (-1, 0))),
            lambda: self.queue.submit(memferry.overlay(noise(2, 2), noise(2, 2), (0, 1 << 32))),
            lambda: self.queue.submit(memferry.copy(target, target, hint="please")),
            lambda: self.queue.submit(memferry.copy(target, target, within=-1.0)),
            lambda: self.client.grant(frame, "x", user=0),
            lambda: self.client.grant(frame, "r"),
            lambda: self.client.grant(b"bytes", "r", user=0),
            lambda: self.client.grant(frame, "r", user=0, session=0),
            lambda: self.client.grant(frame, "r", user=0, lasts=-1.0),
            lambda: self.client.grant(frame, "r", user=0, lasts=float("nan")),
            lambda: memferry.GrantToken("no number"),
            lambda: memferry.GrantToken("-1"),
            lambda: memferry.GrantToken(str(1 << 64)),
            lambda: self.client.grant(frame, "r", node="beta"),
            lambda: self.client.grant(frame, "r", session=0, node="beta"),
            lambda: self.client.grant(frame, "r", user=0, node="Beta"),
            lambda: self.client.grant(frame, "r", user=0, node=""),
            lambda: self.client.grant(frame, "r", user=0, node="beta").remote_token("a name too long"),
            *(lambda text=text: memferry.RemoteToken(text) for text in NO_REMOTE_TOKENS),
            lambda: self.queue.submit(memferry.nop()).wait(float("nan")),
        ):
            with self.assertRaises(ValueError):
                call()
        for call, number in (
            (lambda: memferry.fill(target, -1), "-1"),
            (lambda: memferry.crc32c(target, 1 << 32), "4294967296"),
            (lambda: memferry.overlay(target, target, (1 << 63, 0)), "9223372036854775808"),
            (lambda: memferry.overlay(target, target, key=-1), "-1"),
            (lambda: self.client.frame(-1), "-1"),
            (lambda: self.client.frame(1 << 64), "18446744073709551616"),
            (lambda: self.client.frame(1, node=1 << 32), "4294967296"),
            (lambda: self.client.queue(-1), "-1"),
            (lambda: self.client.grant(frame, user=-1), "-1"),
        ):
            with self.assertRaisesRegex(ValueError, f"^{number} is not from "):
                call()
        for call in (
            lambda: self.client.frame(0),
            lambda: self.client.frame((1 << 64) - 1),
            lambda: self.client.frame((1 << 63) - 1),
            lambda: self.client.frame((1 << 63) - 1, huge=True),
            lambda: self.client.frame(1, node=1023),
            lambda: self.client.frame(1, home="cuda-0"),
            lambda: self.client.queue(0),
            lambda: self.client.queue(3),
            lambda: self.client.queue((1 << 32) - 1),
            lambda: self.client.accept(memferry.GrantToken("12345")),
            lambda: self.client.accept(self.client.grant(frame, "r", user=os.geteuid(), node="beta").token),
            lambda: self.client.accept_remote(memferry.RemoteToken(REMOTE_TOKEN)),
            lambda: self.client.revoke(memferry.GrantToken(str((1 << 64) - 1))),
        ):
            with self.assertRaises(memferry.RefusedError):
                call()
        # Limits beyond the end of time are no limits.
        self.assertEqual(self.queue.submit(memferry.zero(target, within=1e19)).wait(1e19).bytes_done, 8)

    def test_slices_out_of_bounds(self):
        frame = self.client.frame(4096)
        for whole in (frame, frame[:]):
            for part in (
                slice(4000, 4097),
                slice(4097, None),
                slice(-4097, None),
                slice(None, -4097),
                slice(20, 10),
                slice(-10, -20),
                slice(0, 10, 2),
                slice(10, 0, -1),
                slice((1 << 63) - 1, None),
                slice(-(1 << 63), None),
                slice(0, 1 << 63),
                slice(1 << 64, (1 << 64) + 1),
                slice(-(1 << 70), 1 << 70),
            ):
                with self.assertRaises(ValueError):
                    whole[part]
            for wrong in (0, None, "a", slice("a", None), slice(None, 1.5), (slice(0, 1), slice(0, 1))):
                with self.assertRaises(TypeError):
                    whole[wrong]

    def test_shapes_beyond_all_memory(self):
        byte = numpy.zeros(1, numpy.uint8)
        for wrong in (
            as_strided(byte, (1 << 40, 1), (1 << 30, 1)),
            as_strided(byte, (3, 1), ((1 << 62), 1)),
            as_strided(byte, (2, 1), (-(1 << 62), 1)),
        ):
            for transfer in (
                memferry.copy(wrong, bytearray(9)),
                memferry.zero(wrong),
                memferry.turn(wrong, noise(2, 2)),
                memferry.overlay(wrong, noise(2, 2)),
            ):
                with self.assertRaises((ValueError, BufferError)):
                    self.queue.submit(transfer)

    def test_a_client_that_is_closed(self):
        frame = self.client.frame(4096)
        self.client.close()
        self.client.close()
        for call in (
            lambda: self.queue.submit(memferry.nop()),
            lambda: self.queue.run(memferry.nop()),
            lambda: self.queue.run(memferry.copy(b"a", bytearray(1))),
            lambda: self.client.frame(1),
            lambda: self.client.queue(2),
            lambda: self.client.session,
        ):
            with self.assertRaises(ValueError):
                call()
        memoryview(frame)[0] = 1

    def test_a_frame_of_another_client(self):
        with memferry.connect() as other:
            frame = other.frame(4096)
            with self.assertRaises(ValueError):
                self.queue.submit(memferry.copy(frame, self.client.frame(4096)))

    def test_a_full_queue_refuses(self):
        source, target = bytes(5 << 20), bytearray(5 << 20)
        queue = self.client.queue(128)
        with held_back(self.client, queue):
            with self.assertRaises(memferry.QueueFullError):
                for _ in range(100):
                    queue.submit(memferry.copy(source, target))

    def test_no_service(self):
        with self.assertRaises(memferry.ConnectError) as caught:
            memferry.connect("/nonexistent/memferry.sock")
        self.assertIn("memferry serve", str(caught.exception))

    def test_a_ticket_of_another_queue(self):
        ticket = self.client.queue(2).submit(memferry.nop())
        with self.assertRaises(memferry.TransferError) as caught:
            self.queue.wait(ticket)
        self.assertEqual((caught.exception.failure, caught.exception.id), ("UnknownTicket", ticket.id))
        ticket.wait()

    def test_rights_of_a_grant_and_its_end(self):
        with memferry.connect() as other:
            frame, own, queue = self.client.frame(4096), other.frame(4096), other.queue(4)
            memoryview(frame)[:6] = b"secret"
            grant = self.client.grant(frame[:6], "r", session=other.session)
            for token in (memferry.GrantToken(str(grant.token)), pickle.loads(pickle.dumps(grant.token))):
                self.assertEqual((token, hash(token)), (grant.token, hash(grant.token)))
            granted = other.accept(token)
            self.assertEqual((len(granted), granted.rights, granted.mapped), (6, "r", False))
            self.assertEqual((granted.grantor, frame.grantor), (self.client.session, None))
            with self.assertRaises(BufferError):
                memoryview(granted)
            move(queue, memferry.copy(granted, own))
            self.assertEqual(bytes(memoryview(own)[:6]), b"secret")
            with self.assertRaises(memferry.TransferError) as caught:
                move(queue, memferry.zero(granted))
            self.assertEqual(caught.exception.failure, "MissingRight")
            with self.assertRaises(ValueError):
                granted[:7]
            grant.revoke()
            with self.assertRaises(memferry.RefusedError):
                self.client.revoke(token)
            with self.assertRaises(memferry.TransferError) as caught:
                move(queue, memferry.copy(granted, own))
            self.assertEqual(caught.exception.failure, "Revoked")

    def test_a_grant_for_a_time_ends(self):
        with memferry.connect() as other:
            frame = self.client.frame(4096)
            over = self.client.grant(frame, "r", session=other.session, lasts=0)
            with self.assertRaisesRegex(memferry.RefusedError, "expired"):
                other.accept(over.token)
            over.revoke()
            hour = self.client.grant(frame, "r", session=other.session, lasts=3600.0)
            move(other.queue(4), memferry.copy(other.accept(hour.token), other.frame(4096)))
            hour.revoke()

    def test_a_forked_child_opens_its_own_client(self):
        frame, copies = self.client.frame(4096), [self.queue.submit(memferry.copy(bytes(5 << 20), bytearray(5 << 20)))]
        child = os.fork()
        if child == 0:
            wrong = 1
            # The limit of the test is not in the child.
            signal.alarm(PATIENCE)
            try:
                calls = (
                    lambda: self.queue.submit(memferry.nop()),
                    self.queue.poll,
                    lambda: next(self.queue.completions()),
                    self.queue.close,
                    lambda: self.queue.submit(memferry.copy(frame, bytearray(4096))),
                    lambda: self.client.frame(1),
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
                    move(own.queue(2), memferry.copy(b"abc", target))
                wrong = 0 if target == b"abc" else 3
            finally:
                os._exit(wrong)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        copies[0].wait()

    def test_a_forked_child_leaves_the_block(self):
        program = """if True:
            import os, signal, sys, memferry
            with memferry.connect() as client, client.queue() as queue:
                queue.submit(memferry.copy(bytes(5 << 20), bytearray(5 << 20)))
                if os.fork() == 0:
                    signal.alarm(60)
                    sys.exit(7)
                print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
        # From 3.12 on Python warns of every fork beside threads.
        process = output_of("-W", "ignore:This process", "-c", program)
        self.assertEqual((process.stdout, process.stderr), ("7\n", ""))


class Ends(Bounded):
    """Each end is given once by poll and completions, and is never lost."""

    def setUp(self):
        self.client = memferry.connect()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(16)
        self.source, self.target = noise(5 << 20), numpy.zeros(5 << 20, numpy.uint8)

    def submit(self, count):
        return [self.queue.submit(memferry.copy(self.source, self.target)) for _ in range(count)]

    def test_completions_take_all_ends(self):
        for _ in range(3):
            # A short one is done by the call that submits it.
            tickets = [*self.submit(8), self.queue.submit(memferry.copy(b"abc", bytearray(3)))]
            ends = {done.id: done.bytes_done for done in self.queue.completions()}
            self.assertEqual(ends, {ticket.id: 5 << 20 for ticket in tickets[:-1]} | {tickets[-1].id: 3})
            self.assertIsNone(self.queue.poll())

    def test_poll_takes_ends_of_dropped_tickets(self):
        self.submit(8)
        ends = []
        while len(ends) < 8:
            done = self.queue.poll()
            if done is not None:
                ends.append(done.id)
        self.assertEqual(len(set(ends)), 8)
        self.assertIsNone(self.queue.poll())

    def test_submitting_loses_no_end(self):
        first = self.submit(5)
        for ticket in first:
            while not ticket.done():
                pass
        # Each of these releases the memory of those that have ended.
        second = self.submit(5)
        ends = [done.id for done in self.queue.completions()]
        self.assertEqual(sorted(ends), [ticket.id for ticket in first + second])

    def test_a_waited_end_is_not_given_again(self):
        first, second, third = self.submit(3)
        self.queue.wait(second)
        self.assertEqual(asyncio.run(awaits(third)).id, third.id)
        self.assertEqual([done.id for done in self.queue.completions()], [first.id])
        # Its ticket keeps it.
        self.assertEqual(first.wait().id, first.id)

    def test_a_failed_transfer_raises_and_others_stay(self):
        tickets = [self.queue.submit(memferry.fill(bytearray(5 << 20), 7, 1)) for _ in range(2)]
        failed = self.queue.submit(memferry.fill(bytearray(7), 1, 4))
        tickets += [self.queue.submit(memferry.fill(bytearray(5 << 20), 7, 1)) for _ in range(2)]
        ends, errors = [], []
        for _ in range(2):
            try:
                for done in self.queue.completions():
                    ends.append(done.id)
            except memferry.TransferError as error:
                errors.append((error.id, error.failure, error.bytes_done))
        self.assertEqual(errors, [(failed.id, "FillLength", 0)])
        self.assertEqual(sorted(ends), [ticket.id for ticket in tickets])

    def test_ends_not_taken_fill_the_queue(self):
        for _ in range(16):
            self.queue.submit(memferry.copy(b"abc", bytearray(3)))
        with self.assertRaises(memferry.QueueFullError):
            self.queue.submit(memferry.nop())
        # A transfer that is run on this thread leaves no end to take.
        self.queue.run(memferry.copy(b"abc", bytearray(3)))
        self.assertEqual(self.queue.poll().bytes_done, 3)
        self.queue.submit(memferry.nop()).wait()
        # Nor does one that has to be submitted.
        self.queue.run(memferry.nop(fenced=True))
        self.assertEqual(len(list(self.queue.completions())), 15)

    def test_a_closed_queue_gives_its_ends(self):
        tickets = self.submit(4)
        self.queue.close()
        self.assertEqual([done.id for done in self.queue.completions()], [ticket.id for ticket in tickets])
        with self.assertRaises(ValueError):
            self.submit(1)

    def test_two_threads_take_each_end_once(self):
        ends = [[], []]
        self.submit(16)
        threads = [
            threading.Thread(target=lambda taken=taken: taken.extend(done.id for done in self.queue.completions()))
            for taken in ends
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(ends[0] + ends[1]), len({*ends[0], *ends[1]})), (16, 16))


class Shape(Bounded):
    """The stubs are complete, and examples run."""

    def test_the_package_has_a_version(self):
        self.assertRegex(memferry.__version__, r"^\d+\.\d+\.\d+$")

    def test_the_stubs_are_complete(self):
        stubs = (Path(memferry.__file__).parent / "_memferry.pyi").read_text()

        def check(name, value, text, drop):
            found = re.search(rf"def {name}\((.*?)\) ->", text, re.S)
            self.assertIsNotNone(found, name)
            if callable(value):
                arguments = list(inspect.signature(value).parameters)[drop:]
                written = re.findall(r"(\w+):", re.sub(r"\[[^\]]*\]", "", found[1]))
                self.assertEqual(written, arguments, name)

        for name in memferry.__all__:
            value = getattr(memferry, name)
            if name == "__version__":
                self.assertIn("__version__: str", stubs)
                continue
            if not isinstance(value, type):
                check(name, value, re.search(rf"^def {name}\(.*?\) -> .*?$", stubs, re.S | re.M)[0], 0)
                continue
            body = re.search(rf"^class {name}\b.*?(?=^(?:class|@final|def) |\Z)", stubs, re.S | re.M)
            self.assertIsNotNone(body, name)
            if not issubclass(value, BaseException):
                for method in (method for method in dir(value) if not method.startswith("_")):
                    check(method, getattr(value, method), body[0], 1)

    def test_the_example_of_the_readme_runs(self):
        output = output_of("-c", python_of("README.md")[0]).stdout
        self.assertEqual(output, "1228800 True True\n")

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_the_example_of_the_readme_type_checks(self):
        # The oldest version that is supported: its type checkers do not know NumPy's arrays as buffers.
        check = "--python-version=3.11", "--check-untyped-defs", "--cache-dir=/dev/null", "-c", python_of("README.md")[0]
        self.assertIn("no issues found", output_of("-m", "mypy", *check).stdout)

    def test_the_examples_of_the_guide_run(self):
        examples = python_of("docs/python.md")
        self.assertGreaterEqual(len(examples), 3)
        # Each goes on from the one before.
        output_of("-c", "\n".join(examples))

    def test_the_example_runs(self):
        self.assertIn("matches NumPy", example("pictures.py"))

    def test_the_tour_runs(self):
        self.assertEqual(results_of_tour(example("tour.py")), TOUR)
