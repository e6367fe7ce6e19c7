"""Video frames turned and overlaid: by memferry, by OpenCV, and by GStreamer's elements, beside a program that computes.

    python frames.py --command target/release/memferry [--rounds 5]

Each frame of four bytes a pixel is turned by 90 degrees and gets a badge, of which one colour is left out. With memferry both are
linked transfers, and the program computes with the frame before meanwhile; OpenCV does them in the calling thread. Both use one thread
for pictures: OpenCV the program's own, memferry the service's worker. The program computes for as long as OpenCV takes, so that all of
the work can be hidden. Results are compared with NumPy's. For each size: frames per second, CPU time of program and service for a
frame, and how many times as good memferry is.

GStreamer's `videoflip` is measured, if gst-launch-1.0 is there, by a pipeline with it against the same without it.
"""

import shutil
import subprocess
import time

import memferry
import numpy
from processes import middle, parser, run, size_of

try:
    import cv2
except ImportError:
    cv2 = None

SIZES = [(320, 240), (640, 480), (1280, 720), (1920, 1080), (3840, 2160)]
KEY = 0xFF00FF
BADGE = 64
FRAMES = 60
# Frames in turn, so that one is computed with while the next is turned.
SLOTS = 2


class Scene:
    """Random frames of one size, a badge, and what NumPy makes of the first frame."""

    def __init__(self, width, height):
        random = numpy.random.default_rng(width)
        self.frames = [random.integers(0, 1 << 32, (height, width), numpy.uint32) for _ in range(SLOTS)]
        self.badge = random.integers(0, 1 << 24, (BADGE, BADGE), numpy.uint32)
        self.badge[random.random((BADGE, BADGE)) < 0.5] = KEY
        self.shape = (width, height)

    def expected(self, which):
        turned = numpy.rot90(self.frames[which], -1).copy()
        kept = self.badge & 0xFFFFFF != KEY
        turned[8 : 8 + BADGE, 8 : 8 + BADGE][kept] = self.badge[kept]
        return turned


class ByMemferry:
    def __init__(self, scene, client):
        self.queue = client.queue(16)
        self.sources = [client.frame(frame.nbytes) for frame in scene.frames]
        self.targets = [client.frame(frame.nbytes) for frame in scene.frames]
        self.badge = client.frame(scene.badge.nbytes)
        numpy.frombuffer(self.badge, numpy.uint32)[:] = scene.badge.ravel()
        for source, frame in zip(self.sources, scene.frames):
            numpy.frombuffer(source, numpy.uint32)[: frame.size] = frame.ravel()
        height, width = scene.frames[0].shape
        self.views = [numpy.frombuffer(s, numpy.uint32)[: width * height].reshape(height, width) for s in self.sources]
        self.results = [numpy.frombuffer(t, numpy.uint32)[: width * height].reshape(scene.shape) for t in self.targets]
        self.top = numpy.frombuffer(self.badge, numpy.uint32)[: BADGE * BADGE].reshape(BADGE, BADGE)

    def start(self, which):
        turn = memferry.turn(self.views[which], self.results[which], "rotate90", linked=True)
        badge = memferry.overlay(self.top, self.results[which], at=(8, 8), key=KEY)
        return [self.queue.submit(transfer) for transfer in (turn, badge)]

    def finish(self, tickets):
        for ticket in tickets:
            self.queue.wait(ticket)

    def take(self, which):
        self.finish(self.start(which))

    def frames_taken(self, count, compute):
        tickets = self.start(0)
        for number in range(count):
            self.finish(tickets)
            # The next frame is turned while this one is computed with.
            tickets = self.start((number + 1) % SLOTS)
            compute(self.results[number % SLOTS])
        self.finish(tickets)


class ByOpencv:
    def __init__(self, scene):
        self.scene = scene
        self.results = [numpy.empty(scene.shape, numpy.uint32) for _ in scene.frames]
        colours = scene.badge.view(numpy.uint8).reshape(BADGE, BADGE, 4)
        self.top = colours
        key = [KEY & 255, KEY >> 8 & 255, KEY >> 16 & 255]
        self.low, self.high = numpy.array([*key, 0]), numpy.array([*key, 255])

    def take(self, which):
        def four(picture):
            return picture.view(numpy.uint8).reshape(*picture.shape, 4)

        result = four(self.results[which])
        cv2.rotate(four(self.scene.frames[which]), cv2.ROTATE_90_CLOCKWISE, dst=result)
        mask = cv2.bitwise_not(cv2.inRange(self.top, self.low, self.high))
        cv2.copyTo(self.top, mask, result[8 : 8 + BADGE, 8 : 8 + BADGE])

    def frames_taken(self, count, compute):
        for number in range(count):
            which = number % SLOTS
            self.take(which)
            compute(self.results[which])


def computing(seconds):
    """Computes for a time, in registers, as it would with a frame that it has just got."""

    def compute(picture):
        until = time.perf_counter() + seconds
        total = int(picture[0, 0])
        while time.perf_counter() < until:
            total = total * 3 + 1 & 0xFFFFFFFF
        return total

    return compute


def timed(side, service, compute):
    """Frames per second, and milliseconds of CPU time for a frame of this process and the service."""
    before, started = service.cpu() + time.process_time(), time.perf_counter()
    side.frames_taken(FRAMES, compute)
    took = time.perf_counter() - started
    return FRAMES / took, (service.cpu() + time.process_time() - before) / FRAMES * 1e3


def check(side, scene):
    for which in range(SLOTS):
        side.take(which)
        if not (side.results[which] == scene.expected(which)).all():
            raise ValueError(f"{type(side).__name__} makes another picture than NumPy")


def taken(ours, theirs, service, rounds):
    """What both sides, or the only one, took in each round."""
    started = time.perf_counter()
    for number in range(5):
        (theirs or ours).take(number % SLOTS)
    compute = computing((time.perf_counter() - started) / 5)
    sides = [ours, theirs] if theirs else [ours]
    for number in range(rounds):
        order = sides if number % 2 else sides[::-1]
        figures = {side: timed(side, service, compute) for side in order}
        yield [figures[side] for side in sides]


def gstreamer(shape):
    """Milliseconds that videoflip takes for a frame, or None without GStreamer."""
    if not shutil.which("gst-launch-1.0"):
        return None

    def seconds(*elements):
        caps = f"video/x-raw,format=BGRx,width={shape[0]},height={shape[1]}"
        source = ["videotestsrc", "pattern=black", f"num-buffers={FRAMES}", "!", caps]
        started = time.perf_counter()
        command = ["gst-launch-1.0", "-q", *source, *elements, "!", "fakesink"]
        ended = subprocess.run(command, capture_output=True, check=False, timeout=120)
        return time.perf_counter() - started if ended.returncode == 0 else None

    with_it, without = seconds("!", "videoflip", "method=clockwise"), seconds()
    return None if None in (with_it, without) else (with_it - without) / FRAMES * 1e3


def row(shape, rounds, flip):
    cells = [f"{shape[0]} x {shape[1]}", size_of(shape[0] * shape[1] * 4)]
    for index, is_rate in ((0, True), (1, False)):
        sides = list(zip(*([side[index] for side in one] for one in rounds)))
        cells += [middle(side) for side in sides]
        if len(sides) == 2:
            cells.append(middle([a / b if is_rate else b / max(a, 1e-9) for a, b in zip(*sides)]))
        else:
            cells += ["-", "-"]
    cells.append("-" if flip is None else f"{flip:.2f}")
    return "| " + " | ".join(cells) + " |"


def main(service, options):
    if cv2:
        cv2.setNumThreads(1)
    else:
        print("OpenCV is not installed (PyPI: opencv-python-headless): memferry is alone")
    rows = []
    with memferry.connect(service.path) as client:
        for shape in SIZES:
            if shape[0] * shape[1] * 4 > options.most:
                break
            scene = Scene(*shape)
            ours, theirs = ByMemferry(scene, client), ByOpencv(scene) if cv2 else None
            for side in filter(None, (ours, theirs)):
                check(side, scene)
            if options.rounds:
                rounds = list(taken(ours, theirs, service, options.rounds))
                rows.append(row(shape, rounds, gstreamer(shape)))
            print(f"{shape[0]} x {shape[1]}: all pixels are right")
    if rows:
        print("\n| size | bytes | frames/s: memferry | OpenCV | times | CPU ms a frame: memferry | OpenCV | times | videoflip, ms |")
        print("| --- " * 9 + "|", *rows, sep="\n")


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    run(main, options)
