"""Compare the model of time with published winners and times of an MI300X.

    python benchmarks/timing/validate.py trace --data DATA --traces TRACES --seconds 1200
    python benchmarks/timing/validate.py fit --data DATA --traces TRACES
    python benchmarks/timing/validate.py times --data DATA --traces TRACES
    python benchmarks/timing/validate.py ranks --data DATA --traces TRACES

DATA is a folder with the tables `mi300x_timings.csv` and `mi300x_winners.csv`, TRACES one where traces are kept.
`trace` compiles and runs configurations for the given seconds, winners first. `fit` chooses the constants that are
marked as fitted in `aot_emulator/timing/constants.py`, by the keys that `held_out.txt` does not have, and prints them.
`times` and `ranks` report the keys of `held_out.txt`, which was written before anything was fitted, beside baselines.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from predictions import GROUPS, MOST_WITH_FEW, Model, matrix_waves, resources
from published import (
    Key,
    attention_space,
    attentions,
    experts,
    experts_space,
    plain_products,
    product_space,
    products,
    pruned,
    pruned_experts,
    scaled_products,
    scaled_space,
)
from scores import HEADINGS, Ranks, log_error, percentile, rank, spearman, spearman_within
from traces import ARCH, Attention, Config, Experts, Product, Traced, traced

from aot_bundle.text_table import table_lines
from aot_emulator.timing.constants import Machine, machine_of

HELD_OUT = Path(__file__).with_name("held_out.txt")
SMALL_US = 8
FORMS = ((64, False, "fp16"), (128, False, "fp16"), (64, True, "fp16"), (128, True, "fp16"), (64, False, "bf16"),
         (128, False, "bf16"), (16, False, "fp16"), (256, False, "fp16"))  # fmt: skip
"""Families of attention: head dim, causal, type."""
SPLITS = (1, 2, 4, 5, 6, 8, 10, 12, 16, 18, 24)
"""Numbers of parts of K that are tried for plain products."""
GRID = {"throttle_ghz": (1.0, 1.1, 1.2), "missed_bytes": (16, 18, 20, 22, 24), "written": (0, 64, 128)}


class Tables:
    """The published keys, and the existing traces."""

    def __init__(self, data: Path, traces: Path):
        self.data, self.folder = data, traces
        self.products = {layout: products(data, layout) for layout in ("TN", "TT")}
        self.plain = {layout: plain_products(data, layout) for layout in ("TN", "TT")}
        self.scaled = scaled_products(data)
        self.experts = experts(data)
        self.attentions = {form: attentions(data, *form) for form in FORMS}
        self.traced: Callable[[Config], Traced] = cache(lambda config: traced(config, traces))

    def has(self, config: Config) -> bool:
        return (self.folder / f"{config.name}.pickle").exists()


def held_out() -> frozenset[str]:
    return frozenset(HELD_OUT.read_text().splitlines())


def split(keys: Sequence[Key]) -> tuple[list[Key], list[Key]]:
    """Return (keys for fitting, held-out keys)."""
    held = held_out()
    return [key for key in keys if key.name not in held], [key for key in keys if key.name in held]


def trace(tables: Tables, seconds: float) -> None:
    start = time.monotonic()
    for config in _worth_tracing(tables):
        if time.monotonic() - start > seconds:
            break
        try:
            tables.traced(config)
        except Exception as error:  # a configuration that does not compile is in no space
            print(f"{config.name}: {type(error).__name__}: {str(error)[:100]}", flush=True)


def _worth_tracing(tables: Tables) -> Iterator[Config]:
    for keys in (*tables.products.values(), *tables.attentions.values()):
        yield from dict.fromkeys(key.winner for key in keys)
    for key in itertools.chain(*tables.plain.values()):
        if isinstance(key.winner, Product):
            yield replace(key.winner, split=0)
    yield from scaled_space()
    for config in experts_space(tables.experts):
        yield config
        if config.bm <= MOST_WITH_FEW:
            yield replace(config, rows=config.few)
    yield from product_space(tables.products["TN"])
    yield from itertools.chain(*(attention_space(*form) for form in FORMS))
    for layout in tables.plain:
        yield from (replace(config, split=2) for config in product_space(tables.products[layout]) if tables.has(config))


def fit(tables: Tables) -> Machine:
    """Return the constants of `GRID` that fit the times of products best. Held-out keys are not used."""
    keys = [key for key in split(tables.products["TN"])[0] if tables.has(key.winner) and (key.us or 0) >= SMALL_US]
    best, found = 1e9, machine_of(ARCH)
    for values in itertools.product(*GRID.values()):
        machine = replace(machine_of(ARCH), **dict(zip(GRID, values, strict=True)))
        model = Model(machine, tables.traced)
        loss = log_error([model.predict(key, key.winner, key.group) for key in keys], [key.us or 0 for key in keys])
        if loss < best:
            best, found = loss, machine
            print(f"{len(keys)} keys: {loss:.4f}", dict(zip(GRID, values, strict=True)), flush=True)
    return found


def times(tables: Tables, machine: Machine) -> None:
    """Return the errors of predicted times of held-out products: of the model, a fitted matrix pipe, and resources."""
    fitted, held = split(tables.products["TN"])
    tt = tables.products["TT"]
    ghz, launch_us = _fit_matrix([key for key in fitted if (key.us or 0) >= SMALL_US])
    rows = [("HELD-OUT PRODUCTS", "KEYS", "MODEL", "RATIO", "RESOURCES", "MATRIX", "SPEARMAN", "WITHIN FLOPS")]
    for name, keys in (
        ("TN, 8 us and more", [key for key in held if (key.us or 0) >= SMALL_US]),
        ("TN, below 8 us", [key for key in held if (key.us or 0) < SMALL_US]),
        ("of these, of one wavefront", [key for key in held if (key.us or 0) < SMALL_US and _waves(key) == 1]),
        ("of these, of several", [key for key in held if (key.us or 0) < SMALL_US and _waves(key) > 1]),
        ("TT, 8 us and more", [key for key in split(tt)[1] if (key.us or 0) >= SMALL_US]),
        ("TT, all", split(tt)[1]),
        ("all", [*held, *split(tt)[1]]),
        ("all, of several wavefronts", [key for key in (*held, *split(tt)[1]) if _waves(key) > 1]),
    ):
        known = [key for key in keys if tables.has(key.winner)]
        if known:
            rows.append((name, *_times_row(tables, machine, known, ghz, launch_us)))
    print("\n".join(table_lines(rows, range(1, 8))))


def _waves(key: Key) -> int:
    return key.winner.warps


def _times_row(tables: Tables, machine: Machine, keys: Sequence[Key], ghz: float, launch_us: float) -> tuple[str, ...]:
    us = [key.us or 0 for key in keys]
    model = Model(machine, tables.traced)
    found = [model.predict(key, key.winner, key.group) for key in keys]
    bound = [resources(key, tables.traced(key.winner), machine, key.group) for key in keys]
    plain = [matrix_waves(key, key.winner, ghz, launch_us) for key in keys]
    ratio = float(np.median(np.array(found) / np.array(us)))
    flops = [round(np.log2(np.prod([float(x) for x in key.shape])) * 2) for key in keys]
    within, count = spearman_within(flops, found, us)
    return (f"{len(keys)}", f"{log_error(found, us):.3f}", f"{ratio:.2f}", f"{log_error(bound, us):.3f}",
            f"{log_error(plain, us):.3f}", f"{spearman(found, us):.3f}", f"{within:.2f} of {count}")  # fmt: skip


def _fit_matrix(keys: Sequence[Key]) -> tuple[float, float]:
    us = [key.us or 0 for key in keys]
    return min(
        ((ghz, launch) for ghz in np.arange(0.2, 2.11, 0.1) for launch in np.arange(0, 8.1, 0.5)),
        key=lambda pair: log_error([matrix_waves(key, key.winner, *pair) for key in keys], us),
    )


def ranks(tables: Tables, machine: Machine, only: str, every: int, thin: int, verbose: bool) -> None:
    """Return the ranks of the winners of held-out keys: by the model, and by baselines.

    Args:
        only: prefix of the names of the families to rank.
        every: take one held-out key of a family in `every`.
        thin: take one configuration in `thin`, and the winner.
    """
    model = Model(machine, tables.traced)
    for name, keys, space in _families(tables):
        fitted, held = split(keys)
        pool = [config for config in space if tables.has(config)]
        if len(pool) > 10 and name.startswith(only):
            candidates = partial(_all, pool)
            if isinstance(pool[0], Product):
                candidates = partial(pruned, configs=pool)
            elif isinstance(pool[0], Experts):
                both = [c for c in pool if c.bm > MOST_WITH_FEW or tables.has(replace(c, rows=c.few))]
                candidates = partial(pruned_experts, configs=both)
            _rank(name, tables, model, machine, held[::every], fitted, partial(_thinned, candidates, thin), verbose)


def _families(tables: Tables) -> Iterator[tuple[str, list[Key], Sequence[Config]]]:
    for layout, keys in tables.products.items():
        yield f"products, {layout}", keys, product_space(keys)
    for layout, keys in tables.plain.items():
        whole = [replace(key.winner, split=0) for key in keys if isinstance(key.winner, Product)]
        made = dict.fromkeys([*product_space(tables.products[layout]), *whole])
        yield f"plain products, {layout}", keys, [replace(config, split=n) for n in SPLITS for config in made]
    yield "products of fp8 with scales", tables.scaled, scaled_space()
    yield "experts", tables.experts, experts_space(tables.experts)
    for (d, causal, dtype), keys in tables.attentions.items():
        space = attention_space(d, causal, dtype)
        yield f"attention, D {d}{', causal' if causal else ''}, {dtype}", keys, space


def _all(configs: Sequence[Config], key: Key) -> Sequence[Config]:
    return configs


def _thinned(candidates: Callable[[Key], Sequence[Config]], thin: int, key: Key) -> Sequence[Config]:
    found = candidates(key)
    return [config for at, config in enumerate(found) if at % thin == 0 or config == key.winner]


def _rank(
    name: str, tables: Tables, model: Model, machine: Machine, held: Sequence[Key], fitted: Sequence[Key],
    candidates: Callable[[Key], Sequence[Config]], verbose: bool,
) -> None:  # fmt: skip
    often = Counter(key.winner for key in fitted)
    similar = Counter(_shape(key.winner) for key in fitted)
    ghz, launch_us = (1.0, 1.0) if not held or held[0].us is None else _fit_matrix(fitted)
    orders: dict[str, list[tuple[float, float]]] = {}
    for key in held:
        pool = candidates(key)
        if key.winner not in pool:
            continue
        costs = {
            "model": {config: model.predict(key, config) for config in pool},
            "matrix and waves": {config: matrix_waves(key, config, ghz, launch_us) for config in pool},
            "most common": {config: -often[config] - 1e-3 * similar[_shape(config)] for config in pool},
        }
        if isinstance(key.winner, Product) and not key.winner.split:
            costs["resources"] = {
                config: min(resources(key, tables.traced(config), machine, group) for group in GROUPS)
                for config in pool
            }
        same = {config: cost for config, cost in costs["model"].items() if _tile(config) == _tile(key.winner)}
        if len(same) > 1:
            costs["model, on one tile"] = same
        alike = {config: cost for config, cost in same.items() if _kpack(config) == _kpack(key.winner)}
        if len(alike) < len(same) and len(alike) > 1:
            costs["model, on one tile and kpack"] = alike
        for order, found in costs.items():
            orders.setdefault(order, []).append((percentile(found, key.winner), rank(found, key.winner)))
        if verbose:
            best = min(costs["model"], key=costs["model"].__getitem__)
            mine, place = costs["model"], orders["model"][-1][0]
            print(f"{key.name}: {key.winner.name} {mine[key.winner]:.1f} us is at {place:.2f}; the model's best is "
                  f"{best.name} {mine[best]:.1f} us", flush=True)  # fmt: skip
    rows = [HEADINGS, *((order, *Ranks(*zip(*found, strict=True)).row()) for order, found in orders.items())]
    print(f"{name}, {len(candidates(held[0])) if held else 0} configurations at most")
    print("\n".join(f"  {line}" for line in table_lines(rows, range(1, 7))), flush=True)


def _tile(config: Config) -> tuple[int, ...]:
    return (config.bm, config.bn) if isinstance(config, Attention) else (config.bm, config.bn, config.bk)


def _kpack(config: Config) -> int:
    return config.kpack if isinstance(config, Product | Experts) else 0


def _shape(config: Config) -> tuple[int, ...]:
    return (*_tile(config), config.warps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("trace", "fit", "times", "ranks"))
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="folder of the published tables")
    parser.add_argument("--traces", type=Path, default=Path("traces"), help="folder of traces [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=600, help="that `trace` takes [default: %(default)s]")
    parser.add_argument("--only", default="", metavar="TEXT", help="of `ranks`: families whose name begins so")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of `ranks`: each N-th held-out key")
    parser.add_argument("--thin", type=int, default=1, metavar="N", help="of `ranks`: each N-th configuration")
    parser.add_argument("--verbose", action="store_true", help="a line for each key")
    given = parser.parse_args()
    try:
        tables = Tables(given.data, given.traces)
    except FileNotFoundError as error:
        sys.exit(f"{given.data} lacks a table: {error}")
    if given.what == "trace":
        trace(tables, given.seconds)
    elif given.what == "fit":
        fit(tables)
    else:
        machine = machine_of(ARCH)
        if given.what == "times":
            times(tables, machine)
        else:
            ranks(tables, machine, given.only, given.every, given.thin, given.verbose)


if __name__ == "__main__":
    main()
