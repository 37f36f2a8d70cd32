"""Random steps of many threads on one device over the double of libamdhip64.

A step makes calls, arrays, views, streams, events, exports, graphs or another open bundle, drops them, or gives memory
back. No step may raise an exception, and no resource may be left once everything is dropped.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aot_runtime import Bundle, open_bundle
from tests.support.hip_double.double import Double

from .calls import KINDS, unpack_seed

KEPT = 16
"""Objects that a thread keeps for some steps."""
LARGEST = 3 << 20


class _Turns:
    """A lock by which captures and everything else take turns: no work of a default stream may overlap a capture."""

    def __init__(self) -> None:
        self._changed, self._sharing, self._is_alone = threading.Condition(), 0, False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._changed.wait_for(lambda: not self._sharing)
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()


class Steps:
    """The random steps of one thread."""

    def __init__(self, bundle: Bundle, seed: int):
        self.bundle, self.device, self.affine = bundle, bundle.device, bundle.affine
        self.random = random.Random(seed)
        self.x, self.bias, self.out = (self.device.array(np.ones((4, 96), np.float32)) for _ in range(3))
        self.kept: list[Any] = []
        self.shared: list[Callable[[], object]] = [
            self.call, self.call_on_stream, self.array, self.stream, self.use, self.event, self.export, self.drop,
            self.drop, self.trim, self.cycle, self.open, self.from_host,
        ]  # fmt: skip

    def any_stream(self) -> Any:
        """Return a stream that is kept, or a new one."""
        streams = [item for item in self.kept if type(item).__name__ == "Stream"]
        return self.random.choice(streams) if streams else self.stream()

    def keep(self, item: Any) -> Any:
        self.kept.append(item)
        if len(self.kept) > KEPT:
            self.drop()
        return item

    def drop(self) -> None:
        if self.kept:
            del self.kept[self.random.randrange(len(self.kept))]

    def call(self) -> None:
        self.keep(self.affine(self.x, self.bias, mode="negated", scale=self.random.random()))
        self.affine(self.x, self.bias, mode="negated", out=self.out, scale=2.0)

    def call_on_stream(self) -> None:
        stream = self.any_stream()
        self.keep(self.affine(self.x[1:], self.bias[:1], mode="negated", stream=stream))

    def array(self) -> None:
        stream = self.any_stream() if self.random.random() < 0.5 else None
        array = self.keep(self.device.empty(self.random.choice((1, 700, LARGEST)), np.uint8, stream=stream))
        self.keep(array[: self.random.randrange(1, 700)])

    def stream(self) -> Any:
        return self.keep(self.device.stream())

    def use(self) -> None:
        array = self.device.empty(self.random.choice((100, LARGEST)), np.uint8)
        stream = self.any_stream()
        array.owner.used_on(stream.handle)
        self.keep(array)

    def event(self) -> None:
        stream = self.any_stream()
        self.any_stream().wait(self.keep(stream.record()))
        self.keep(self.device.event())

    def export(self) -> None:
        stream = self.any_stream()
        self.keep(self.x.__dlpack__(stream=self.random.choice((None, -1, stream.handle))))

    def trim(self) -> None:
        if self.random.random() < 0.3:
            self.device.trim()
        else:
            self.device.memory.trim()
        self.device.memory_stats()

    def cycle(self) -> None:
        cycle: list[Any] = [self.device.stream(), self.device.empty(2000, np.uint8)]
        cycle.append(self.device.empty(100, np.uint8, stream=cycle[0]))
        cycle.append(cycle)
        if self.random.random() < 0.1:
            del cycle
            gc.collect()

    def open(self) -> None:
        if self.random.random() < 0.2:
            other = open_bundle(self.bundle.path, self.device)
            other.affine(self.x, self.bias, mode="negated", out=self.out)

    def from_host(self) -> None:
        small = np.ones((2, 20), np.float32)
        assert (self.affine(small, small, mode="negated", scale=1.0)).shape == (2, 20)

    def graph(self) -> None:
        stream = self.any_stream()
        with self.device.capture(stream) as graph:
            self.affine(self.x, self.bias, mode="negated", out=self.out, stream=stream)
            self.device.memory.workspace(1000, stream.handle)
            self.drop()
        graph.launch(stream)
        self.keep(graph)


def run_threads(folder: Path, threads: int, seed: int, steps: int) -> list[str]:
    """Run random steps in threads of this process, over the double; return what they raised, leaked or freed twice."""
    bundle, turns, faults = _opened(folder), _Turns(), list[str]()
    before = _there(bundle)

    def work(number: int) -> None:
        with turns.shared():
            own = Steps(bundle, seed * 1000 + number)
        for _ in range(steps // threads):
            is_alone = own.random.random() < 0.02
            try:
                with turns.alone() if is_alone else turns.shared():
                    (own.graph if is_alone else own.random.choice(own.shared))()
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}")

    with _switching_often():
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    del workers, work
    after = _there(bundle)
    left = {what: (before[what], after[what]) for what in before if before[what] != after[what]}
    return [*faults, *(f"{what}: {was} before, {now} after" for what, (was, now) in left.items())]


def _opened(folder: Path) -> Bundle:
    bundle = open_bundle(unpack_seed("affine", folder), "hip")
    own = Steps(bundle, 0)
    own.call(), own.from_host()  # what these load stays
    return bundle


def _there(bundle: Bundle) -> dict[str, int]:
    double, device = Double(), bundle.device
    gc.collect()
    device.trim()
    found = {kind: double.alive(kind) for kind in KINDS if kind not in ("pool", "host_memory", "function")}
    return found | {"bytes": double.allocated(), "in_use": device.memory_stats().in_use}


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
