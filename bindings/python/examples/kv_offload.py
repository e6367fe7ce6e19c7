"""KV-cache blocks of several inference workers, of several users, in memferry frames with grants. Needs no model and no GPU.

    python kv_offload.py --command target/release/memferry [--rounds 5]

`FrameStore` has the methods of an LMCache storage backend, `Scheduler` and `Connector` those of the two sides of vLLM's
KVConnectorBase_V1, as their documentation describes them. Blocks are arrays here; in an engine they are computed by the model.

    Scheduler: which blocks are stored, by hashes of tokens ──► Metadata ──► Connector: loads and saves of a step
    Connector ──► FrameStore: blocks in slabs of a frame, each slab granted to the readers, revoked before it is used again

A block that was evicted or whose owner died is reported as a load error and computed again; no reader sees other bytes under
its key. The program checks that, and with --rounds measures it beside multiprocessing.shared_memory and pickles through a pipe.
As root its processes belong to different users.
"""

import hashlib
import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from multiprocessing import shared_memory

import memferry
import numpy
from processes import MIB, PATIENCE, SPAWN, Worker, cpu_of, ended, middle, parser, run, size_of, user

# Operands that one transfer takes on each side.
OPERANDS = 1024


@dataclass
class Slab:
    """A part of a frame that is granted and revoked as a whole."""

    grants: dict = field(default_factory=dict)
    keys: list = field(default_factory=list)
    used: int = 0
    pins: int = 0


@dataclass(frozen=True)
class Location:
    """Where a block is: in its owner's slab, and under which tokens others accept that slab."""

    owner: int
    tokens: dict
    offset: int


class FrameStore:
    """Blocks by key, in slabs of one frame. The slab whose blocks were not used for longest is evicted first."""

    def __init__(self, client, block_bytes, slabs, slab_blocks, readers):
        if min(block_bytes, slabs, slab_blocks) <= 0:
            raise ValueError("a store needs blocks of at least one byte, in at least one slab")
        self.block_bytes, self.slab_blocks, self.readers = block_bytes, slab_blocks, readers
        self._client, self._queue = client, client.queue(64)
        self._frame = client.frame(block_bytes * slab_blocks * slabs)
        self._view = numpy.frombuffer(self._frame, numpy.uint8)
        self._empty = list(range(slabs))
        self._slabs = OrderedDict()  # in the order of their last use
        self._entries = {}  # key: (slab, offset in the frame)
        self._filling = None
        self.evicted = []  # keys, until the connector reports them

    def contains(self, key, pin=False):
        return key in self._entries and (not pin or self.pin(key))

    def pin(self, key):
        """Keeps a block until it is unpinned."""
        if key not in self._entries:
            return False
        self._slabs[self._entries[key][0]].pins += 1
        return True

    def unpin(self, key):
        if key not in self._entries:
            return False
        self._slabs[self._entries[key][0]].pins -= 1
        return True

    def remove(self, key):
        """Forgets a block. Its memory is used again with its slab."""
        return self._entries.pop(key, None) is not None

    def submit_put_task(self, key, block):
        """Stores the bytes of an array; false if there is no room. It has ended when this returns."""
        if memoryview(block).nbytes != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {memoryview(block).nbytes}")
        place = self.reserve()
        if place is None:
            return False
        try:
            self._queue.run(memferry.copy(block, self.region(place)))
        except BaseException:
            self.release(place)
            raise
        self.publish(key, place)
        return True

    def get_blocking(self, key):
        """The bytes of a block, an array of its own; `None` if there is none."""
        region = self.find(key)
        if region is None:
            return None
        block = numpy.empty(self.block_bytes, numpy.uint8)
        self._queue.run(memferry.copy(region, block))
        return block

    def close(self):
        for slab in list(self._slabs):
            self._evict(slab)
        self._queue.close()

    def find(self, key):
        """The part of the frame with a block, which now counts as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._slabs.move_to_end(entry[0])
        return self.region(entry)

    def region(self, place):
        return self._frame[place[1] : place[1] + self.block_bytes]

    def reserve(self):
        """A place for one more block, or `None` where all slabs are pinned."""
        slab = self._slabs.get(self._filling)
        if slab is None or slab.used == self.slab_blocks:
            self._filling = self._next_slab()
            if self._filling is None:
                return None
            slab = self._slabs[self._filling]
        slab.used += 1
        slab.pins += 1  # until its block is published
        return self._filling, (self._filling * self.slab_blocks + slab.used - 1) * self.block_bytes

    def publish(self, key, place):
        """Makes a block known that has been written to its place."""
        slab, offset = place
        self.release(place)
        self._slabs[slab].keys.append(key)
        self._entries[key] = place
        tokens = {uid: grant.token for uid, grant in self._slabs[slab].grants.items()}
        return Location(self._client.session, tokens, offset - slab * self.slab_blocks * self.block_bytes)

    def release(self, place):
        """Gives up a reserved place. It is used again with its slab."""
        self._slabs[place[0]].pins -= 1

    def _next_slab(self):
        while not self._empty:
            oldest = next((number for number, slab in self._slabs.items() if not slab.pins), None)
            if oldest is None:
                return None
            self._evict(oldest)
        number, length = self._empty.pop(), self.slab_blocks * self.block_bytes
        memory = self._frame[number * length : (number + 1) * length]
        grants = {uid: self._client.grant(memory, "r", user=uid) for uid in self.readers}
        self._slabs[number] = Slab(grants)
        return number

    def _evict(self, number):
        """Afterwards no transfer of a reader reads the slab: `revoke` cancels those that run."""
        slab = self._slabs.pop(number)
        for key in slab.keys:
            # Stored again since, it is elsewhere.
            if self._entries.get(key, (None,))[0] == number:
                del self._entries[key]
                self.evicted.append(key)
        for grant in slab.grants.values():
            grant.revoke()  # After NoAnswerError the slab is lost, since a reader may still use it.
        self._empty.append(number)


@dataclass
class Request:
    """What of an engine's request matters here."""

    request_id: str
    prompt_token_ids: list


@dataclass
class Metadata:
    """What a worker loads and saves in a step: keys, blocks of its cache, and where a block to be loaded is."""

    loads: list = field(default_factory=list)  # (key, block, Location)
    saves: list = field(default_factory=list)  # (key, block)


@dataclass
class Output:
    """What became of a step: new locations by key, keys of evicted blocks, and keys that could not be loaded."""

    stored: dict
    evicted: list
    invalid: list


class Scheduler:
    """The connector's side in a scheduler. Those of all engines share the dictionary `known`, from keys to locations."""

    def __init__(self, block_tokens, known):
        self._block_tokens, self._known = block_tokens, known
        self._waiting = Metadata()

    def keys_of(self, token_ids):
        """One key for each whole block; it depends on all tokens before, too."""
        keys, before = [], b""
        for start in range(0, len(token_ids) - self._block_tokens + 1, self._block_tokens):
            part = numpy.asarray(token_ids[start : start + self._block_tokens], numpy.int64).tobytes()
            before = hashlib.blake2b(before + part, digest_size=16).digest()
            keys.append(before)
        return keys

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """How many tokens beyond the computed ones can be loaded, and whether that goes on while others compute: it does not."""
        matched = num_computed_tokens // self._block_tokens
        keys = self.keys_of(request.prompt_token_ids)
        while matched < len(keys) and keys[matched] in self._known:
            matched += 1
        return max(0, matched * self._block_tokens - num_computed_tokens), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """The engine gave blocks of its cache to a request: the first are loaded, the others are computed and saved."""
        keys = self.keys_of(request.prompt_token_ids)
        loaded = num_external_tokens // self._block_tokens
        self._waiting.loads += [(key, block, self._known[key]) for key, block in zip(keys[:loaded], blocks)]
        self._waiting.saves += list(zip(keys[loaded:], blocks[loaded:]))

    def build_connector_meta(self, scheduler_output=None):
        built, self._waiting = self._waiting, Metadata()
        return built

    def update_connector_output(self, output):
        for key in [*output.evicted, *output.invalid]:
            self._known.pop(key, None)
        self._known.update(output.stored)

    def request_finished(self, request, block_ids):
        """Saves have ended by then, so the engine may use the blocks again."""
        return False, None


class Connector:
    """The connector's side in a worker."""

    def __init__(self, client, store, accepted=512):
        self._client, self._store = client, store
        self._queue = client.queue(64)
        self._caches, self._frames, self._meta = {}, [], Metadata()
        self._accepted, self._most_accepted = OrderedDict(), accepted
        self._running, self._saving, self._places = deque(), [], {}
        self._invalid = {}

    def allocate_kv_caches(self, names, shape, dtype):
        """Arrays in frames for the engine's cache: the service moves bytes between frames of users only."""
        arrays = {}
        for name in names:
            length = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
            frame = self._client.frame(length)
            arrays[name] = numpy.frombuffer(frame, dtype)[: int(numpy.prod(shape))].reshape(shape)
            self._frames.append((arrays[name].__array_interface__["data"][0], length))
        return arrays

    def register_kv_caches(self, kv_caches):
        """The engine's cache: for each layer an array of blocks. Their order is that of the parts of a stored block."""
        if not kv_caches:
            raise ValueError("there are no layers")
        for name, cache in kv_caches.items():
            place = cache.__array_interface__["data"][0], cache.nbytes
            if place not in self._frames or not cache.flags.c_contiguous:
                raise ValueError(f"{name} is no array of allocate_kv_caches")
        parts = {cache[0].nbytes for cache in kv_caches.values()}
        if len(parts) > 1 or sum(cache[0].nbytes for cache in kv_caches.values()) != self._store.block_bytes:
            raise ValueError(f"the layers' parts of a block are not {self._store.block_bytes} bytes in equal parts")
        self._caches, self._part = kv_caches, parts.pop()

    def bind_connector_metadata(self, connector_metadata):
        self._meta = connector_metadata

    def clear_connector_metadata(self):
        self._meta = Metadata()

    def start_load_kv(self, forward_context=None):
        """Each block is one transfer, so that one that fails costs only itself."""
        self._invalid = {}
        for key, block, location in self._meta.loads:
            try:
                source = self._source(key, location)
                if len(self._running) == self._queue.capacity:
                    self._end_load()
                parts = [cache[block] for cache in self._caches.values()]
                ticket = self._queue.submit(memferry.scatter_gather([source], parts))
                self._running.append((ticket, key, block, location))
            except (memferry.Error, LookupError):
                self._lost(key, block, location)

    def wait_for_layer_load(self, layer_name):
        """Blocks come whole, so the first layer waits for all."""
        while self._running:
            self._end_load()

    def get_block_ids_with_load_errors(self):
        """Blocks whose bytes are undefined: to be computed."""
        return set(self._invalid.values())

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata=None):
        """Starts saving a layer's part of the blocks; the next layer may be computed meanwhile."""
        if not self._places:
            places = {key: self._store.reserve() for key, _ in self._meta.saves}
            # A step may have more blocks than the store.
            self._places = {key: place for key, place in places.items() if place is not None}
        part = list(self._caches).index(layer_name) * self._part
        saves = [(kv_layer[block], self._places[key]) for key, block in self._meta.saves if key in self._places]
        for start in range(0, len(saves), OPERANDS):
            some = saves[start : start + OPERANDS]
            sources, regions = [source for source, _ in some], [self._store.region(place) for _, place in some]
            targets = [region[part : part + self._part] for region in regions]
            self._saving.append(self._queue.submit(memferry.scatter_gather(sources, targets)))

    def wait_for_save(self):
        """Waits for the saves and gives the step's output, for `Scheduler.update_connector_output`."""
        for ticket in self._saving:
            ticket.wait()
        stored = {key: self._store.publish(key, place) for key, place in self._places.items()}
        evicted, self._store.evicted = self._store.evicted, []
        self._saving, self._places = [], {}
        return Output(stored, evicted, list(self._invalid))

    def _source(self, key, location):
        if location.owner == self._client.session:
            region = self._store.find(key)
            if region is None:
                raise LookupError(key)
            return region
        token = location.tokens[os.geteuid()]
        if token in self._accepted:
            self._accepted.move_to_end(token)
        else:
            while len(self._accepted) >= self._most_accepted:
                self._accepted.popitem(last=False)
            self._accepted[token] = self._client.accept(token)
        return self._accepted[token][location.offset : location.offset + self._store.block_bytes]

    def _end_load(self):
        ticket, key, block, location = self._running.popleft()
        try:
            ticket.wait()
        except memferry.Error:
            self._lost(key, block, location)

    def _lost(self, key, block, location):
        self._invalid[key] = block
        self._accepted.pop(location.tokens.get(os.geteuid()), None)


@dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    layers: int = 8
    block_bytes: int = 64 << 10
    slabs: int = 8
    slab_blocks: int = 2
    blocks: int = 64  # of the engine's cache


def expected(plan, key):
    """The bytes of a block, which are others for every key: (layers, numbers)."""
    words = numpy.arange(plan.block_bytes // 8, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return (words ^ numpy.uint64(int.from_bytes(key[:8], "little"))).reshape(plan.layers, -1)


class Engine:
    """A worker of an inference engine, as a process: its model is `expected`. Also the two other ways, to compare with."""

    def __init__(self, path, plan, readers, pipe):
        self.plan, self.pipe, self.answers = plan, pipe, {}
        self.client = memferry.connect(path)
        self.store = FrameStore(self.client, plan.block_bytes, plan.slabs, plan.slab_blocks, readers)
        self.connector = Connector(self.client, self.store)
        names = [f"layer {number}" for number in range(plan.layers)]
        shape = plan.blocks, plan.block_bytes // 8 // plan.layers
        self.caches = self.connector.allocate_kv_caches(names, shape, numpy.uint64)
        self.connector.register_kv_caches(self.caches)
        # Ordinary memory for the other ways, with pages.
        self.plain = [numpy.ones(shape, numpy.uint64) for _ in names]
        self.pool, self.others = None, {}

    def compute(self, key, block, caches=None):
        for cache, values in zip(caches or self.caches.values(), expected(self.plan, key), strict=True):
            cache[block] = values

    def is_right(self, key, block, caches=None):
        layers = zip(caches or self.caches.values(), expected(self.plan, key), strict=True)
        return all(numpy.array_equal(cache[block], values) for cache, values in layers)

    def step(self, meta):
        """A forward pass. Returns the output, how many blocks were loaded, and how many have wrong bytes at its end."""
        connector = self.connector
        connector.bind_connector_metadata(meta)
        connector.start_load_kv()
        for name in self.caches:
            connector.wait_for_layer_load(name)
        wrong = connector.get_block_ids_with_load_errors()
        for key, block in [(key, block) for key, block, _ in meta.loads if block in wrong] + meta.saves:
            self.compute(key, block)
        for name, cache in self.caches.items():
            connector.save_kv_layer(name, cache)
        output = connector.wait_for_save()
        connector.clear_connector_metadata()
        blocks = [(key, block) for key, block, _ in meta.loads] + meta.saves
        return output, len(meta.loads) - len(wrong), sum(not self.is_right(*each) for each in blocks)

    def call_store(self, name, *arguments):
        return getattr(self.store, name)(*arguments)

    # By memferry, shared memory and pipe: `save` stores blocks and gives locations, `load` gets blocks, `check` counts wrong ones.

    def fill(self, keys):
        for block, key in enumerate(keys):
            self.compute(key, block)
            self.compute(key, block, self.plain)

    def save(self, side, keys):
        start = time.perf_counter()
        locations = getattr(self, f"save_by_{side}")(keys)
        return time.perf_counter() - start, locations

    def load(self, side, loads, singly=False):
        """Seconds for all, or a list with those of each."""
        get, times = getattr(self, f"load_by_{side}"), []
        for some in ([each] for each in loads) if singly else [loads]:
            start = time.perf_counter()
            get(some)
            times.append(time.perf_counter() - start)
        return times if singly else times[0]

    def missing(self):
        return len(self.connector.get_block_ids_with_load_errors())

    def check(self, side, loads):
        caches = None if side == "memferry" else self.plain
        failed = self.connector.get_block_ids_with_load_errors() if side == "memferry" else ()
        return sum(not self.is_right(key, block, caches) for key, block, _ in loads if block not in failed)

    def save_by_memferry(self, keys):
        self.connector.bind_connector_metadata(Metadata(saves=[(key, block) for block, key in enumerate(keys)]))
        for name, cache in self.caches.items():
            self.connector.save_kv_layer(name, cache)
        return self.connector.wait_for_save().stored

    def load_by_memferry(self, loads):
        self.connector.bind_connector_metadata(Metadata(loads=loads))
        self.connector.start_load_kv()
        self.connector.wait_for_layer_load("layer 0")

    def load_until_lost(self, loads):
        """Loads again and again until no block comes. Returns how many came with wrong bytes."""
        wrong, until = 0, time.monotonic() + PATIENCE / 2
        while True:
            self.load_by_memferry(loads)
            wrong += self.check("memferry", loads)
            if self.missing() == len(loads):
                return wrong
            if time.monotonic() > until:
                raise ValueError("blocks come that are gone, WRONG")

    def store_over(self, rounds):
        """Saves other blocks until each slab was used again so many times."""
        plan = self.plan
        for number in range(rounds * plan.slabs):
            keys = [hashlib.blake2b(b"other %d %d" % (number, each), digest_size=16).digest() for each in range(plan.slab_blocks)]
            self.fill(keys)
            self.save_by_memferry(keys)

    def save_by_shared_memory(self, keys):
        plan = self.plan
        if self.pool is None:
            length = plan.block_bytes * plan.slabs * plan.slab_blocks
            self.pool, self.next = shared_memory.SharedMemory(create=True, size=length), 0
            # SharedMemory maps to read and write, so a reader of another user has to be allowed both.
            os.chmod(f"/dev/shm/{self.pool.name}", 0o666)
            self.slots = numpy.frombuffer(self.pool.buf, numpy.uint64)[: length // 8].reshape(-1, plan.layers, self.plain[0].shape[1])
        locations = {}
        for block, key in enumerate(keys):
            slot, self.next = self.next, (self.next + 1) % len(self.slots)
            for layer, cache in enumerate(self.plain):
                numpy.copyto(self.slots[slot, layer], cache[block])
            locations[key] = self.pool.name, slot
        return locations

    def load_by_shared_memory(self, loads):
        for _, block, (name, slot) in loads:
            if name not in self.others:
                memory = shared_memory.SharedMemory(name=name)
                numbers = numpy.frombuffer(memory.buf, numpy.uint64)
                length = numbers.size // (self.plan.block_bytes // 8) * (self.plan.block_bytes // 8)
                self.others[name] = memory, numbers[:length].reshape(-1, self.plan.layers, self.plain[0].shape[1])
            for layer, cache in enumerate(self.plain):
                numpy.copyto(cache[block], self.others[name][1][slot, layer])

    def save_by_pipe(self, keys):
        self.answers = {key: [cache[block].copy() for cache in self.plain] for block, key in enumerate(keys)}
        return dict.fromkeys(keys)

    def serve_pipe(self):
        """Sends what is asked for, until nothing is."""
        while (key := self.pipe.recv()) is not None:
            self.pipe.send(self.answers[key])

    def load_by_pipe(self, loads):
        for key, block, _ in loads:
            self.pipe.send(key)
            for cache, layer in zip(self.plain, self.pipe.recv(), strict=True):
                numpy.copyto(cache[block], layer)

    def end_pipe(self):
        self.pipe.send(None)

    def close(self):
        """Gives shared memory back."""
        self.slots = None
        held = [memory for memory, _ in self.others.values()]
        self.others = {}
        for memory in held:
            memory.close()
        if self.pool is not None:
            self.pool.close()
            self.pool.unlink()
            self.pool = None


def engines(service, plan, count):
    """Workers of as many users; each lets the others read. A pipe joins the first and the last."""
    users = [user(number) for number in range(count)]
    one, other = SPAWN.Pipe()
    pipes = [one, *[None] * (count - 2), other]
    return [
        Worker(uid, Engine, service.path, plan, sorted({*users} - {uid} or {uid}), pipe)
        for uid, pipe in zip(users, pipes, strict=True)
    ]


def prompt(plan, name, blocks):
    """Tokens of a text, in blocks of 16."""
    return Request(name, list(numpy.random.default_rng(list(name.encode())).integers(0, 1 << 16, blocks * 16)))


def ask(worker, scheduler, request):
    """What an engine does for a request. Returns blocks loaded, blocks wrong, and whether it found a block where there was none."""
    tokens = len(request.prompt_token_ids)
    matched, _ = scheduler.get_num_new_matched_tokens(request, 0)
    blocks = list(range(tokens // 16))
    scheduler.update_state_after_alloc(request, blocks, matched)
    output, loaded, wrong = worker.call("step", scheduler.build_connector_meta())
    scheduler.update_connector_output(output)
    scheduler.request_finished(request, blocks)
    return loaded, wrong, matched // 16 - loaded


def checks(service):
    """Shows on small blocks what is stored, shared, evicted and lost. Each line is a result."""
    plan = Plan()
    wrong = 0

    def told(what, result):
        nonlocal wrong
        loaded, bad, missed = result
        wrong += bad
        print(f"{what}: {loaded} loaded, {missed} lost, {bad} wrong")

    with ended(*engines(service, plan, 3)) as (one, two, reader):
        known = {}
        schedulers = {worker: Scheduler(16, known) for worker in (one, two, reader)}

        def asks(what, worker, request):
            told(what, ask(worker, schedulers[worker], request))

        first, second = prompt(plan, "first", 6), prompt(plan, "second", 6)
        asks("nobody stored it", one, first)
        asks("its own blocks", one, first)
        asks("another user's blocks", two, first)
        asks("a second text", two, second)
        asks("a third user's", reader, first)
        longer = Request("longer", first.prompt_token_ids + second.prompt_token_ids)
        asks("a text that goes on", reader, longer)

        # Eviction, unseen by the reader's scheduler.
        keys = schedulers[one].keys_of(first.prompt_token_ids)
        pinned = one.call("call_store", "pin", keys[0])
        old = dict(known)
        for number in range(4):
            asks(f"text {number} of the first worker", one, prompt(plan, f"text {number}", 4))
        known.update(old)
        asks(f"blocks evicted meanwhile, a slab of {plan.slab_blocks} pinned" if pinned else "WRONG: not pinned", reader, first)
        one.call("call_store", "unpin", keys[0])

        # Both at once: the reader's transfers and the revocations, then its transfers and the owner's death.
        def locations(request):
            keys = schedulers[one].keys_of(request.prompt_token_ids)
            return [(key, block, known[key]) for block, key in enumerate(keys)]

        fresh, last = prompt(plan, "fresh", 8), prompt(plan, "last", 4)
        asks("a text before the race", one, fresh)
        asks("before the race, another user's", two, fresh)
        reader.start("load_until_lost", locations(fresh))
        one.call("store_over", 4)
        wrong += (bad := reader.answer())
        print(f"loaded while it is evicted: lost in the end, {bad} wrong")
        asks("a text of the dying worker", one, last)
        reader.start("load_until_lost", locations(last))
        one.kill()
        wrong += (bad := reader.answer())
        print(f"loaded while its owner is killed: lost in the end, {bad} wrong")
        asks("after that", reader, last)
        asks("once more", reader, last)
        asks("the other worker goes on", reader, second)
        stale = stale_by_shared_memory(two, reader)
        print(f"evicted blocks by shared memory: {stale} wrong, unnoticed")
    if wrong:
        raise ValueError(f"{wrong} blocks have WRONG bytes")
    print("all bytes are right")


def stale_by_shared_memory(owner, reader):
    """Wrong blocks where locations outlive an eviction and nothing revokes them."""
    keys = [bytes([number]) * 16 for number in range(16)]
    owner.call("fill", keys)
    _, locations = owner.call("save", "shared_memory", keys)
    loads = [(key, block, locations[key]) for block, key in enumerate(keys)]
    others = [bytes([100 + number]) * 16 for number in range(16)]
    owner.call("fill", others)
    owner.call("save", "shared_memory", others)
    reader.call("load", "shared_memory", loads)
    wrong = reader.call("check", "shared_memory", loads)
    reader.call("close")
    owner.call("close")
    return wrong


SIDES = ("memferry", "shared_memory", "pipe")
# Bytes of a block of 16 tokens in all layers: a small model, or few layers; 2 MiB is an 8-billion-parameter model with grouped queries.
SIZES = (64 << 10, 512 << 10, 2 * MIB, 8 * MIB)
# Rounds that make the pages of a store, which holds the blocks of two.
WARM = 2
# Bytes that are saved and loaded in a round, at most.
ROUND = 64 * MIB


def round_of(service, owner, reader, side, keys):
    """One round of one way: seconds of saving, of loading half of the blocks, of each other load, and of CPU in all processes."""
    owner.call("fill", keys)
    workers = owner, reader
    before = cpu_of(service, workers)
    saving, locations = owner.call("save", side, keys)
    loads = [(key, block, locations[key]) for block, key in enumerate(keys)]
    half = len(loads) // 2
    if side == "pipe":
        owner.start("serve_pipe")
    batch = reader.call("load", side, loads[:half])
    missing = reader.call("missing")
    each = reader.call("load", side, loads[half:], True)
    if side == "pipe":
        reader.call("end_pipe")
        owner.answer()
    spent = cpu_of(service, workers) - before
    wrong = reader.call("check", side, loads)
    if wrong or missing:
        raise ValueError(f"{wrong} blocks have WRONG bytes by {side}, {missing} are missing")
    return saving, batch, each, spent


def measure(service, rounds, most):
    print(f"\n{os.cpu_count()} CPUs, {rounds} rounds of up to {size_of(ROUND)}: medians, with minimum and maximum\n")
    print("| block | what | memferry | shared_memory and memcpy | pickles by pipe |\n| --- | --- | --- | --- | --- |")
    for size in (size for size in SIZES if size <= most):
        blocks = min(256, ROUND // size)
        mib = blocks * size / MIB
        slab = max(1, MIB // size)
        plan = Plan(block_bytes=size, blocks=blocks, slab_blocks=slab, slabs=2 * blocks // slab)
        figures = {side: {"save": [], "load": [], "p50": [], "p99": [], "CPU": []} for side in SIDES}
        with ended(*engines(service, plan, 2)) as (owner, reader):
            for number in range(WARM + rounds):
                for side in SIDES:
                    keys = [hashlib.blake2b(b"%d %d" % (number, each), digest_size=16).digest() for each in range(blocks)]
                    saving, batch, each, spent = round_of(service, owner, reader, side, keys)
                    if number >= WARM:
                        of = figures[side]
                        of["save"].append(mib / saving)
                        of["load"].append(mib / 2 / batch)
                        of["p50"].append(1e6 * float(numpy.quantile(each, 0.5)))
                        of["p99"].append(1e6 * float(numpy.quantile(each, 0.99)))
                        of["CPU"].append(1e6 * spent / mib)
            reader.call("close")
            owner.call("close")
        for what, shown in (("save", "saved, MiB/s"), ("load", "loaded together, MiB/s"), ("p50", "one loaded, p50, us"), ("p99", "one loaded, p99, us"), ("CPU", "CPU time of a MiB saved and loaded, us")):
            print(f"| {size_of(size)} | {shown} | " + " | ".join(middle(figures[side][what]) for side in SIDES) + " |", flush=True)


def main(service, options):
    checks(service)
    if options.rounds > 0:
        measure(service, options.rounds, options.most)


if __name__ == "__main__":
    run(main, parser(__doc__).parse_args())
