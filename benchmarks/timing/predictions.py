"""Predict times of published problems with the model, from traces of one workgroup, and with baselines.

A trace has a few steps of the loop, and is extended to a problem's number of steps by its period, as in
`aot_emulator.timing`. The loads that workgroups share are computed from their tiles; `aotbundle profile --time` runs
all workgroups instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import numpy as np
from published import BATCH_HEADS, HEADS, Key, groups_tried
from traces import NUM_CUS, NUM_XCDS, Attention, Config, Experts, Product, Scaled, Traced

from aot_emulator.timing.compute_unit import FEW, MANY, Conditions, Replayed, Workgroup, in_turn
from aot_emulator.timing.constants import Machine
from aot_emulator.timing.costs import Unit
from aot_emulator.timing.folding import Folded
from aot_emulator.timing.launch_time import Plan, conditions_of, time_launch
from aot_emulator.timing.sharing import Sharing

PER_XCD = NUM_CUS // NUM_XCDS
FLOPS_A_CLOCK = 2048
"""Peak rate of a compute unit in fp16."""
CAUSAL_PROGRAMS = 2
"""Persistent programs on a compute unit in the published causal attention."""
GROUPS = (1, 4, 8, 16)
"""Values of GROUP_M that are tried."""
MOST_WITH_FEW = 64
"""Largest experts' tile, in rows, for which blocks that are less than half full have a separate trace."""


@dataclass(eq=False)
class Steps:
    """Replays a trace with any number of steps of the loop."""

    traced: Traced
    machine: Machine
    number: int = 0
    _workgroups: dict[int, Workgroup] = field(default_factory=dict)
    _found: dict[tuple[Conditions, int, int, float], Replayed] = field(default_factory=dict)

    def of(self, steps: int, number: int = 0) -> _Sample:
        """Return the workgroup with `steps` steps.

        With fewer steps than the code has outside of its loop, the number of trips is negative: the time of the missing
        steps is subtracted.
        """
        return _Sample(self, (steps - self.traced.peeled) / self.traced.unroll, number)

    def replayed(self, conditions: Conditions, resident: int, count: int, trips: float) -> Replayed:
        key = conditions, resident, count, trips
        if key not in self._found:
            self._found[key] = self._of_trips(conditions, resident, count, trips)
        return self._found[key]

    def _of_trips(self, conditions: Conditions, resident: int, count: int, trips: float) -> Replayed:
        few, many = (max(1, most // self.traced.unroll) for most in (FEW, MANY))

        def at(trips: float) -> Replayed:
            return self.replayed(conditions, resident, count, trips)

        if trips < 0:
            return at(0.0).extended(at(many), at(few), trips / (many - few))
        if trips <= many:
            low, high = self._around(trips, few, many)
            if trips == low:
                return self._workgroup(low).replayed(conditions, resident, None, count=count)
            return at(low).extended(at(high), at(low), (trips - low) / (high - low))
        return at(many).extended(at(many), at(few), (trips - many) / (many - few))

    def _around(self, trips: float, few: int, many: int) -> tuple[int, int]:
        """Return the two trip counts between which the time is interpolated.

        Causal attention has many different counts, so only a few of them are replayed.
        """
        if not getattr(self.traced.config, "causal", False):
            return math.floor(trips), math.floor(trips) + 1
        known = sorted({0, 1, few // 2, few, many, many + 1})
        return next((low, high) for low, high in itertools.pairwise(known) if low <= trips < high)

    def _workgroup(self, trips: int) -> Workgroup:
        if trips not in self._workgroups:
            trace = self.traced.trace
            waves = tuple(
                Folded(tuple((part, trips if count > 1 else 1) for part, count in wave.parts if count == 1 or trips))
                for wave in trace.waves[0]
            )
            self._workgroups[trips] = Workgroup(replace(trace, waves=(waves,)), 0, self.machine)
        return self._workgroups[trips]


@dataclass(frozen=True, eq=False)
class _Sample:
    steps: Steps
    trips: float
    number: int = 0

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        def replay(some: int) -> Replayed:
            return self.steps.replayed(conditions, resident, some, self.trips)

        return in_turn(replay, resident, count or resident)


@lru_cache(400_000)
def tile_sharing(
    m: int, n: int, bm: int, bn: int, group: int, wave: int, resident: int = 1, split: int = 1, remapped: bool = True
) -> Sharing:
    """Return how the concurrent tiles of a product share loads.

    Args:
        wave: number of the wave of concurrent tiles.
        resident: concurrent tiles on a compute unit.
        split: programs for each tile; each has a part of K.
        remapped: the tiles of an XCD are neighbours. Otherwise tiles go to the XCDs in turn.
    """
    rows, columns = -(-m // bm), -(-n // bn)
    together = NUM_CUS * resident
    programs = np.arange(wave * together, min((wave + 1) * together, rows * columns * split))
    place = programs - wave * together
    xcd = place // (PER_XCD * resident) if remapped else place % NUM_XCDS
    part, tiles = programs // (rows * columns), programs % (rows * columns)
    row, column = (at * split + part for at in _grouped(tiles, rows, columns, group))

    def loaded(mask: np.ndarray) -> float:
        return (len(np.unique(row[mask])) * bm + len(np.unique(column[mask])) * bn) / (bm + bn)

    return _shared(xcd, loaded)


def _grouped(tiles: np.ndarray, rows: int, columns: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    width = group * columns
    first = tiles // width * group
    high = np.minimum(rows - first, group)
    return first + tiles % width % high, tiles % width // high


def _shared(xcd: np.ndarray, loaded: Callable[[np.ndarray], float]) -> Sharing:
    """Return how programs share loads.

    Args:
        xcd: the XCD of each program.
        loaded: function from a mask of programs to the bytes that they load together, shared bytes counted once,
            relative to those of one program.
    """
    units = min(len(xcd), NUM_CUS)
    each = len(xcd) / units
    by_xcd = [loaded(xcd == x) / each for x in range(NUM_XCDS)]
    fullest = min(float(np.bincount(xcd).max()), -(-units // NUM_XCDS))
    return Sharing(units, fullest, max(by_xcd), sum(by_xcd), loaded(xcd >= 0) / each)


@cache
def routed(tokens: int, experts: int, each: int) -> tuple[int, ...]:
    """Return the number of tokens of each expert if each token has `each` random experts. Results are reproducible."""
    chosen = np.argsort(np.random.default_rng(tokens).random((tokens, experts)), 1)[:, :each]
    return tuple(np.bincount(chosen.ravel(), minlength=experts).tolist())


@lru_cache(400_000)
def expert_sharing(of_each: tuple[int, ...], n: int, config: Experts, group: int, wave: int, resident: int) -> Sharing:
    """Return how concurrent tiles of experts' products share loads. Tiles go to the XCDs in turn.

    Args:
        of_each: number of tokens of each expert.
        config: configuration of the trace; a program loads its rows.
    """
    expert, filled = blocks_of(of_each, config.bm)
    columns = -(-n // config.bn)
    together = NUM_CUS * resident
    programs = np.arange(wave * together, min((wave + 1) * together, len(expert) * columns))
    row, column = _grouped(programs, len(expert), columns, group)

    def loaded(mask: np.ndarray) -> float:
        tokens = filled[np.unique(row[mask])].sum()
        matrices = len(np.unique(expert[row[mask]] * columns + column[mask])) * config.bn
        return float(tokens + matrices) / ((config.rows or config.bm) + config.bn)

    return _shared((programs - wave * together) % NUM_XCDS, loaded)


def blocks_of(of_each: tuple[int, ...], bm: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (expert, tokens) of each block of `bm` rows."""
    counts = np.array([-(-tokens // bm) for tokens in of_each])
    filled = [min(bm, tokens - first) for tokens in of_each for first in range(0, tokens, bm)]
    return np.repeat(np.arange(len(of_each)), counts), np.array(filled)


@cache
def head_sharing(programs: int, blocks: int, resident: int, causal: bool) -> Sharing:
    """Return how blocks of queries share loads of the keys of their heads. Programs go to the XCDs in turn.

    Programs are ordered by batch, block and head, or, in causal attention, by batch, head and block.
    """
    count = min(programs, NUM_CUS * resident)
    place, xcd = np.arange(count), np.arange(count) % NUM_XCDS
    head = place // blocks if causal else place // (HEADS * blocks) * HEADS + place % HEADS
    units = min(count, NUM_CUS)
    each = count / units
    by_xcd = [len(np.unique(head[xcd == x])) / each for x in range(NUM_XCDS)]
    return Sharing(units, -(-units // NUM_XCDS), max(by_xcd), sum(by_xcd), len(np.unique(head)) / each)


class Model:
    """Predicts times in microseconds. `traced` returns the trace of a configuration."""

    def __init__(self, machine: Machine, traced: Callable[[Config], Traced]):
        self.machine = machine
        self._steps = cache(lambda config: Steps(traced(config), machine))

    def predict(self, key: Key, config: Config, group: int | None = None) -> float:
        """Predict the time of a problem with a configuration.

        Args:
            group: GROUP_M of a product. Defaults to that of the configuration, or else to the best of `GROUPS`. For
                experts, the best is the one with the fastest loads, since replaying all would take long.
        """
        if isinstance(config, Attention):
            return self._attention(key, config)
        if isinstance(config, Scaled):
            return self._one_tile_each(key, config, group or config.group)
        if isinstance(config, Experts):
            return self._experts(key, config, groups_tried(key, config) if group is None else (group,))
        groups = GROUPS if group is None else (group,)
        if isinstance(config, Product) and not config.split:
            return min(self._persistent(key, config, g) for g in groups)
        return min(self._one_tile_each(key, config, g) for g in groups)

    def _persistent(self, key: Key, config: Product, group: int) -> float:
        m, n, k = key.shape
        plan = Plan(-(-m // config.bm) * -(-n // config.bn), 1, NUM_CUS, NUM_XCDS)
        full = plan.workgroups // NUM_CUS
        first, last = (tile_sharing(m, n, config.bm, config.bn, group, wave) for wave in (0, full if plan.last else 0))
        sample = self._steps(config).of(-(-k // config.bk))
        return time_launch(self.machine, plan, [sample], first, lambda _: last).seconds * 1e6

    def _one_tile_each(self, key: Key, config: Product | Scaled, group: int) -> float:
        m, n, k = key.shape
        split = config.split if isinstance(config, Product) else 1
        steps = self._steps(
            replace(config, split=min(split, 2)) if isinstance(config, Product) else replace(config, group=8)
        )
        plan = Plan(-(-m // config.bm) * -(-n // config.bn) * split, steps.traced.resident, NUM_CUS, NUM_XCDS)
        made = config.bm, config.bn, group
        place = {"resident": plan.resident, "split": split, "remapped": isinstance(config, Product)}
        full = plan.full // (NUM_CUS * plan.resident)
        first, last = (tile_sharing(m, n, *made, wave, **place) for wave in (0, full if plan.last else 0))
        sample = steps.of(-(-k // (config.bk * split)))
        return time_launch(self.machine, plan, [sample], first, lambda _: last).seconds * 1e6

    def _experts(self, key: Key, config: Experts, groups: Sequence[int]) -> float:
        tokens, _, _, experts, each = key.shape
        of_each = routed(tokens, experts, each)
        _, filled = blocks_of(of_each, config.bm)
        few = filled.mean() < config.bm / 2 and config.bm <= MOST_WITH_FEW
        config = replace(config, rows=config.few if few else 0)
        steps = self._steps(config)
        resident, both = steps.traced.resident, both_products(key)

        def sharing(n: int, group: int, wave: int = 0) -> Sharing:
            return expert_sharing(of_each, n, config, min(group, len(filled)), wave, resident)

        def loading(group: int) -> float:
            shared = [conditions_of(self.machine, sharing(n, group), self.machine.clock_ghz) for n, _ in both]
            return sum(of.per_loaded * n * k for of, (n, k) in zip(shared, both, strict=True))

        best, total = min(groups, key=loading), 0.0
        for n, k in both:
            plan = Plan(len(filled) * -(-n // config.bn), resident, NUM_CUS, NUM_XCDS)
            last = sharing(n, best, plan.full // (NUM_CUS * resident) if plan.last else 0)
            found = time_launch(
                self.machine, plan, [steps.of(-(-k // config.bk))], sharing(n, best), lambda _, last=last: last
            )
            total += found.seconds * 1e6
        return total

    def _attention(self, key: Key, config: Attention) -> float:
        sq, sk = key.shape
        steps = self._steps(config)
        blocks = -(-sq // config.bm)
        most = min(steps.traced.resident, CAUSAL_PROGRAMS) if config.causal else steps.traced.resident
        plan = Plan(blocks * BATCH_HEADS, most, NUM_CUS, NUM_XCDS)
        sharing = head_sharing(plan.workgroups, blocks, plan.resident, config.causal)
        if not config.causal:
            return time_launch(self.machine, plan, [steps.of(sk // config.bn)], sharing).seconds * 1e6
        # Programs take the next tile wherever they are, so that the XCDs make no difference.
        counts, kinds = np.unique([_unmasked(config, at, sk) for at in range(blocks)], return_inverse=True)
        samples = [steps.of(int(count)) for count in counts]
        kinds = np.tile(kinds, BATCH_HEADS)
        return time_launch(self.machine, replace(plan, XCDs=1), samples, sharing, kinds=kinds).seconds * 1e6


def _unmasked(config: Attention, block: int, sk: int) -> int:
    """Return the unmasked steps of a block of causal attention. The masked ones are outside the loop of its trace."""
    last = min(-(-sk // config.bn), -(-(block + 1) * config.bm // config.bn))
    return last - -(-config.bm // config.bn)


def both_products(key: Key) -> tuple[tuple[int, int], ...]:
    """Return (n, k) of the two products of a layer of experts."""
    _, between, hidden, *_ = key.shape
    return (2 * between, hidden), (hidden, between)


def matrix_waves(key: Key, config: Config, ghz: float, launch_us: float) -> float:
    """Predict by a baseline: matrix pipes at a fixed clock, with whole waves of tiles."""
    if isinstance(config, Experts):
        blocks = len(blocks_of(routed(key.shape[0], *key.shape[3:]), config.bm)[1])
        return sum(
            _waves(blocks * -(-n // config.bn), config.bm * config.bn * k * 2, ghz, launch_us)
            for n, k in both_products(key)
        )
    if isinstance(config, Attention):
        sq, sk = key.shape
        work, tiles = config.bm * config.d * sk * 4, -(-sq // config.bm) * BATCH_HEADS
    else:
        m, n, k = key.shape
        work = (
            config.bm * config.bn * (-(-k // config.bk) * config.bk) * 2
        )  # fp8 at twice the rate: the order is the same
        tiles = -(-m // config.bm) * -(-n // config.bn)
    return _waves(tiles, work, ghz, launch_us)


def _waves(tiles: int, work: float, ghz: float, launch_us: float) -> float:
    return launch_us + -(-tiles // NUM_CUS) * work / FLOPS_A_CLOCK / ghz / 1e3


def resources(key: Key, traced: Traced, machine: Machine, group: int) -> float:
    """Predict by a baseline for products: the slowest single resource, with the model's counts and shares."""
    config = traced.config
    assert isinstance(config, Product)
    m, n, k = key.shape
    total = -(-m // config.bm) * -(-n // config.bn)
    trips = -(-k // config.bk) / traced.unroll
    trace, clock, found = traced.trace, machine.clock_ghz - machine.throttle_ghz / 2, 0.0
    cycles = np.array([cost.cycles * (cost.unit is Unit.MATRIX) for cost in trace.costs])
    body = [part for wave in trace.waves[0] for part, count in wave.parts if count > 1]
    matrix = sum(float(cycles[part].sum()) for part in body) / 4
    lds, loaded = (sum(float(trace.amounts[part, column].sum()) for part in body) for column in (0, 1))
    for wave, count in ((0, total // NUM_CUS), (total // NUM_CUS, int(total % NUM_CUS > 0))):
        if count:
            shared = conditions_of(machine, tile_sharing(m, n, config.bm, config.bn, group, wave), clock)
            longest = max(matrix, lds * machine.lds_passes, loaded * max(shared.per_loaded, 1 / machine.missed_bytes))
            one = trips * longest + shared.memory_latency + config.bm * config.bn * 2 * shared.per_stored
            found += count * one / clock / 1e3
    return machine.launch_us + found
