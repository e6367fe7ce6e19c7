"""The examples with several processes, and what they do with bad input."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import memferry
import numpy
from support import PATIENCE, SERVICE, Bounded, Serving, example

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import data_loader  # noqa: E402
import kv_offload  # noqa: E402
import processes  # noqa: E402

# Loaded, lost and wrong blocks of each step.
OFFLOADED = """\
nobody stored it: 0 loaded, 0 lost, 0 wrong
its own blocks: 6 loaded, 0 lost, 0 wrong
another user's blocks: 6 loaded, 0 lost, 0 wrong
a second text: 0 loaded, 0 lost, 0 wrong
a third user's: 6 loaded, 0 lost, 0 wrong
a text that goes on: 6 loaded, 0 lost, 0 wrong
text 0 of the first worker: 0 loaded, 0 lost, 0 wrong
text 1 of the first worker: 0 loaded, 0 lost, 0 wrong
text 2 of the first worker: 0 loaded, 0 lost, 0 wrong
text 3 of the first worker: 0 loaded, 0 lost, 0 wrong
blocks evicted meanwhile, a slab of 2 pinned: 2 loaded, 4 lost, 0 wrong
a text before the race: 0 loaded, 0 lost, 0 wrong
before the race, another user's: 8 loaded, 0 lost, 0 wrong
loaded while it is evicted: lost in the end, 0 wrong
a text of the dying worker: 0 loaded, 0 lost, 0 wrong
loaded while its owner is killed: lost in the end, 0 wrong
after that: 0 loaded, 4 lost, 0 wrong
once more: 0 loaded, 0 lost, 0 wrong
the other worker goes on: 6 loaded, 0 lost, 0 wrong
evicted blocks by shared memory: 16 wrong, unnoticed
all bytes are right
"""
HANDED_OVER = """\
memferry: 40 batches, all bytes are right
ring: 40 batches, all bytes are right
segments: 40 batches, all bytes are right
pickles: 40 batches, all bytes are right
a slot out of bounds: left out, the other gave 5 batches (ValueError)
a short message: left out, the other gave 5 batches (error)
a long message: left out, the other gave 5 batches (OSError)
a worker killed: left out, the other gave 200 batches
"""


def failing(name, *arguments):
    """Status and last line of an example that cannot run."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return ended.returncode, ended.stderr.strip().splitlines()[-1]


class Programs(Serving):
    """The examples with their shortest measurement: the first rows of their tables."""

    def parts(self, output, rows):
        """What an example shows, without its table, which is as long as it has to be."""
        shown, table = output.split("\n\n", 1)
        lines = [line for line in table.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), 2 + rows, table)
        self.assertNotIn("nan", table)
        return shown + "\n"

    def test_kv_blocks_are_offloaded(self):
        output = example("kv_offload.py", "--socket", self.path, "--rounds", "1", "--most", str(64 << 10))
        self.assertEqual(self.parts(output, 5), OFFLOADED)

    def test_batches_are_handed_over(self):
        # Through a service of its own.
        output = example("data_loader.py", "--command", SERVICE, "--rounds", "1", "--most", str(data_loader.SAMPLE))
        self.assertEqual(self.parts(output, 2), HANDED_OVER)

    def test_frames_are_turned(self):
        output = example("frames.py", "--socket", self.path, "--most", str(400 << 10))
        self.assertEqual(output.splitlines()[-1], "320 x 240: all pixels are right")


class BadInput(Bounded):
    def test_no_service(self):
        for name in ("kv_offload.py", "data_loader.py", "frames.py"):
            status, line = failing(name, "--socket", "/nonexistent/memferry.sock")
            self.assertEqual((status, line), (1, f"{name}: [Errno 2] No such file or directory"))
            status, line = failing(name, "--command", "/bin/false")
            self.assertEqual((status, line), (1, f"{name}: /bin/false serve did not start"))
            self.assertEqual(failing(name)[0], 2)

    def test_a_worker_that_cannot_start(self):
        with self.assertRaisesRegex(processes.WorkerError, "ConnectError"):
            processes.Worker(os.geteuid(), kv_offload.Engine, "/nonexistent", kv_offload.Plan(), [], None)

    def test_a_worker_that_is_killed(self):
        worker = processes.Worker(os.geteuid(), dict)
        self.assertEqual(worker.call("get", 1), None)
        with self.assertRaisesRegex(processes.WorkerError, "AttributeError"):
            worker.call("unknown")
        worker.kill()
        for call in (lambda: worker.call("get", 1), worker.answer):
            self.assertRaises(processes.WorkerLost, call)
        worker.end()


class Stores(Serving):
    def setUp(self):
        super().setUp()
        self.client = memferry.connect(self.path)
        self.addCleanup(self.client.close)

    def store(self, slabs=2, slab_blocks=2, block_bytes=4096):
        return kv_offload.FrameStore(self.client, block_bytes, slabs, slab_blocks, [os.geteuid()])

    def block(self, value, length=4096):
        return numpy.full(length, value, numpy.uint8)

    def test_the_slab_not_used_for_longest_goes_first(self):
        store = self.store()
        for key in range(4):
            self.assertTrue(store.submit_put_task(key, self.block(key)))
        self.assertTrue((store.get_blocking(0) == 0).all())
        self.assertTrue(store.submit_put_task(4, self.block(4)))
        self.assertEqual([store.contains(key) for key in range(5)], [True, True, False, False, True])
        self.assertEqual(store.evicted, [2, 3])
        for key in (0, 1, 4):
            self.assertTrue((store.get_blocking(key) == key).all())
        self.assertIsNone(store.get_blocking(2))

    def test_pinned_slabs_stay(self):
        store = self.store(slabs=1)
        self.assertTrue(store.submit_put_task(0, self.block(7)))
        self.assertTrue(store.contains(0, pin=True))
        self.assertTrue(store.submit_put_task(1, self.block(8)))
        self.assertFalse(store.submit_put_task(2, self.block(9)))
        self.assertTrue((store.get_blocking(0) == 7).all())
        self.assertTrue(store.unpin(0))
        self.assertTrue(store.submit_put_task(2, self.block(9)))
        self.assertFalse(store.pin(0) or store.unpin(0) or store.contains(0, pin=True))
        self.assertTrue(store.remove(2))
        self.assertFalse(store.remove(2))
        store.close()

    def test_sizes_that_do_not_fit(self):
        for wrong in ({"slabs": 0}, {"slab_blocks": -1}, {"block_bytes": 0}):
            self.assertRaises(ValueError, self.store, **wrong)
        store = self.store(slabs=1, slab_blocks=1)
        for length in (0, 4095, 4097):
            with self.assertRaisesRegex(ValueError, f"4096 bytes, not {length}"):
                store.submit_put_task(0, self.block(1, length))
        # A place that a failed task had is not lost.
        with self.assertRaises(BufferError):
            store.submit_put_task(0, numpy.full(512, None))
        self.assertTrue(store.submit_put_task(0, self.block(3)))

    def connector(self, **sizes):
        store = self.store(**sizes)
        connector = kv_offload.Connector(self.client, store)
        caches = connector.allocate_kv_caches(["one", "two"], (8, 256), numpy.uint64)
        connector.register_kv_caches(caches)
        return connector, caches

    def test_caches_that_do_not_fit(self):
        connector, caches = self.connector()
        foreign = numpy.zeros((8, 256), numpy.uint64)
        other = connector.allocate_kv_caches(["x"], (8, 128), numpy.uint64)["x"]
        wrongs = {}, {"one": foreign}, {"one": caches["one"]}, {"one": caches["one"], "two": other}, {"one": caches["one"][1:], "two": caches["two"]}
        for wrong in wrongs:
            self.assertRaises(ValueError, connector.register_kv_caches, wrong)

    def save(self, connector, caches, keys):
        connector.bind_connector_metadata(kv_offload.Metadata(saves=list(zip(keys, range(8)))))
        for name, cache in caches.items():
            connector.save_kv_layer(name, cache)
        return connector.wait_for_save()

    def test_a_step_larger_than_the_store(self):
        connector, caches = self.connector()
        for number in range(8):
            caches["one"][number], caches["two"][number] = number, 100 + number
        stored = self.save(connector, caches, range(8)).stored
        self.assertEqual(list(stored), [0, 1, 2, 3])
        for cache in caches.values():
            cache[:] = 0
        # To other blocks than they came from.
        connector.bind_connector_metadata(kv_offload.Metadata(loads=[(key, key + 4, stored[key]) for key in stored]))
        connector.start_load_kv()
        connector.wait_for_layer_load("one")
        self.assertEqual(connector.get_block_ids_with_load_errors(), set())
        for key in stored:
            self.assertTrue((caches["one"][key + 4] == key).all() and (caches["two"][key + 4] == 100 + key).all())

    def test_without_the_service_all_loads_are_errors(self):
        connector, caches = self.connector()
        other = kv_offload.Connector(memferry.connect(self.path), self.store())
        others = other.allocate_kv_caches(["one", "two"], (8, 256), numpy.uint64)
        other.register_kv_caches(others)
        stored = self.save(connector, caches, range(4)).stored
        self.service.kill()
        self.service.wait()
        other.bind_connector_metadata(kv_offload.Metadata(loads=[(key, key, stored[key]) for key in stored]))
        other.start_load_kv()
        other.wait_for_layer_load("one")
        self.assertEqual(other.get_block_ids_with_load_errors(), {0, 1, 2, 3})
        with self.assertRaises(memferry.Error):
            self.save(other, others, [9])


class Schedules(unittest.TestCase):
    def test_keys_depend_on_all_tokens_before(self):
        scheduler = kv_offload.Scheduler(4, {})
        keys = scheduler.keys_of([*range(11)])
        self.assertEqual(len(keys), 2)
        self.assertEqual(scheduler.keys_of([*range(8)]), keys)
        self.assertNotEqual(scheduler.keys_of([9, *range(1, 8)])[1], keys[1])
        self.assertEqual(scheduler.keys_of([1, 2, 3]), [])

    def test_only_the_stored_start_of_a_text_is_loaded(self):
        known = {}
        scheduler = kv_offload.Scheduler(4, known)
        request = kv_offload.Request("a", [*range(16)])
        keys = scheduler.keys_of(request.prompt_token_ids)
        known |= {keys[0]: "x", keys[1]: "y", keys[3]: "z"}
        self.assertEqual(scheduler.get_num_new_matched_tokens(request, 0), (8, False))
        self.assertEqual(scheduler.get_num_new_matched_tokens(request, 4), (4, False))
        self.assertEqual(scheduler.get_num_new_matched_tokens(request, 8), (0, False))
        scheduler.update_state_after_alloc(request, [5, 6, 7, 8], 8)
        meta = scheduler.build_connector_meta()
        self.assertEqual(meta.loads, [(keys[0], 5, "x"), (keys[1], 6, "y")])
        self.assertEqual(meta.saves, [(keys[2], 7), (keys[3], 8)])
        self.assertEqual(scheduler.build_connector_meta(), kv_offload.Metadata())
        scheduler.update_connector_output(kv_offload.Output({keys[2]: "w"}, [keys[0]], [keys[1]]))
        self.assertEqual(set(known), {keys[2], keys[3]})
        self.assertEqual(scheduler.request_finished(request, []), (False, None))


class Loaders(unittest.TestCase):
    def test_each_batch_has_bytes_of_its_own(self):
        words = {int(data_loader.word(worker, number)) for worker in range(4) for number in range(1000)}
        self.assertEqual(len(words), 4000)

    def test_batches_are_whole_samples(self):
        for wrong in (-data_loader.SAMPLE, 0, data_loader.SAMPLE + 1):
            with self.assertRaisesRegex(ValueError, f"not {wrong} bytes"):
                data_loader.Loader("/nonexistent", 0, wrong, 0, None)


if __name__ == "__main__":
    unittest.main()
