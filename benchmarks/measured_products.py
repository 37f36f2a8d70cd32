"""Our modelled times beside times that others measured on an MI300X or MI308X: products of 16 and 8 bits.

    python benchmarks/measured_products.py
    python benchmarks/measured_products.py --only bfloat16 --count 20

`measured/products.csv` has the best published time of a product, drawn at random (by type and op) from AITER's tables
for gfx942 (ROCm/aiter, aiter/configs): products of at most 2e8 elements that took at least 2.5 µs. Devices with 304
compute units are MI300X, those with 80 are MI308X. AITER's kernels for weights that were shuffled beforehand are among
them; ours have column-major weights. A call's variant is the one that a user's call gets. Ours are modelled, by the
emulator, and theirs measured, with a clock and a power limit that the model does not know: ratios have the model's
error, 10 % and more (docs/timing.md). Results are kept in a file.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec
from measure import ROOT, distribution, machine, versions

from aot.tune.model_timer import model_version
from aot_bundle.callspec import CallSpec
from aot_bundle.profile.profile_call import MadeCall, make_call, open_for
from aot_emulator import EmulatorDriver
from aot_emulator.timing.sampling import SamplingRunner
from aot_runtime import AotError
from aot_runtime.device.drivers import DeviceProperties

ARCH = "gfx942"
TABLE = Path(__file__).with_name("measured") / "products.csv"
XCDS = {304: 8, 80: 4}
"""Compute units of an MI300X and of an MI308X → XCDs."""
DTYPES = {
    "bfloat16": {"T": "bfloat16"},
    "int8": {"T": "int8", "E": "bfloat16"},
    "float8": {"T": "float8_e4m3fnuz", "E": "bfloat16"},
}


@dataclass(frozen=True)
class Row:
    """A product with its best measured time.

    Attributes:
        table: the file of AITER that has it.
    """

    op: str
    dtype: str
    num_cus: int
    batch: int
    m: int
    n: int
    k: int
    us: float
    table: str

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        return f"{self.op} {self.dtype}, {batch}{self.m} x {self.n} x {self.k}, {self.num_cus} CUs"

    def entry(self) -> dict[str, Any]:
        """Return the call as an entry of a calls file. Matrices are contiguous along k."""
        batched = self.op.startswith("batched")
        dims = {"m": self.m, "n": self.n, "k": self.k} | ({"batch": self.batch} if batched else {})
        return {"op": self.op, "dims": dims, "dtypes": DTYPES[self.dtype], "innermost": {"b": 1 if batched else 0},
                "num_cus": self.num_cus, "num_xcds": XCDS[self.num_cus]}  # fmt: skip


class Gpu(EmulatorDriver):
    """Emulated devices that have `num_cus` compute units."""

    def __init__(self, num_cus: int):
        super().__init__()
        self.units = num_cus, XCDS[num_cus]

    def properties(self, device: int) -> DeviceProperties:
        num_cus, num_xcds = self.units
        return msgspec.structs.replace(super().properties(device), num_cus=num_cus, num_xcds=num_xcds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="rows with all of these (default: all)")
    parser.add_argument("--count", type=int, help="rows of each type, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the rows that are drawn (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=ROOT / "build/measured", metavar="FOLDER",
                        help="for bundles and results (default: %(default)s)")  # fmt: skip
    given = parser.parse_args()
    rows = [row for row in rows_of(TABLE) if all(text in str(row) for text in given.only)]
    if given.count is not None:
        rows = drawn(rows, given.count, given.seed)
    print(f"{machine()}; {versions('triton', 'numpy', 'numba')}\nOurs is modelled; theirs was measured.", flush=True)
    ratios: dict[tuple[str, str], list[float]] = {}
    for row, config, seconds in modelled(rows, given.work):
        if seconds is None:
            print(f"{row}: {config}", flush=True)
            continue
        ratio = row.us * 1e-6 / seconds
        ratios.setdefault((row.dtype, row.op), []).append(ratio)
        ratios.setdefault((row.dtype, "all"), []).append(ratio)
        print(f"{row}: {config}, {seconds * 1e6:.1f} µs, measured {row.us:.1f} µs: {ratio:.2f}", flush=True)
    for (dtype, op), each in sorted(ratios.items()):
        figures = f"geometric mean {geometric_mean(each):.2f}, {sum(ratio < 0.9 for ratio in each)} under 0.9"
        print(f"their measured time over our modelled one, {dtype}, {op}: {distribution(each)}, {figures}")


def rows_of(table: Path) -> list[Row]:
    with table.open() as file:
        return [
            Row(row["op"], row["dtype"], *(int(row[name]) for name in ("num_cus", "batch", "m", "n", "k")),
                float(row["us"]), row["table"])
            for row in csv.DictReader(file)
        ]  # fmt: skip


def drawn(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Draw at most `count` rows of each type."""
    rng = random.Random(seed)
    by_type = [[row for row in rows if row.dtype == dtype] for dtype in DTYPES]
    return [row for each in by_type for row in rng.sample(each, min(count, len(each)))]


def modelled(rows: Sequence[Row], work: Path) -> Iterator[tuple[Row, str, float | None]]:
    """Yield each row with the configs of its launches and their seconds, or with an error and None."""
    bundle = build(rows, work)
    results = work / "results.jsonl"
    known = (
        {key: found for key, *found in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    )
    for row in sorted(rows, key=lambda row: (row.dtype, row.op, row.num_cus, row.batch, row.m, row.n, row.k)):
        gpu = Gpu(row.num_cus)
        try:
            opened = open_for(gpu, bundle, row.op)
            entry = row.entry()
            call = CallSpec(dims=entry["dims"], dtypes=entry["dtypes"], innermost=entry["innermost"])
            made = make_call(opened, row.op, call, {})
        except AotError as error:
            yield row, str(error).splitlines()[0], None
            continue
        key = key_of(made, row)
        if key not in known:
            runner = SamplingRunner(gpu.units)
            with gpu.run_by(runner):
                made.run()
            known[key] = [configs(made), sum(sampled.time.seconds for sampled in runner.found)]
            with results.open("a") as file:
                file.write(json.dumps([key, *known[key]]) + "\n")
        yield row, *known[key]


def build(rows: Sequence[Row], work: Path) -> Path:
    """Build a bundle with the variants of all rows. Compiled kernels come from the cache."""
    work.mkdir(parents=True, exist_ok=True)
    calls = work / "calls.yaml"
    calls.write_text(json.dumps({"calls": [row.entry() for row in rows]}))  # JSON is YAML
    command = [sys.executable, "-m", "aot", "--arch", ARCH, "--for", str(calls), "-o", str(work)]
    done = subprocess.run([*command, str(ROOT / "manifests/gemm.yaml")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"measured_products.py: {done.stdout}{done.stderr}"[-2000:])
    return work / f"gemm-{ARCH}"


def configs(made: MadeCall) -> str:
    found = []
    for launch in made.launched:
        declared = made.planner.op.launches[launch.index]
        found.append(f"{declared.kernel} {declared.configs[launch.variant.config].name}")
    return " + ".join(found)


def key_of(made: MadeCall, row: Row) -> str:
    """Identify a modelled time: by the call, the code objects and grids of its launches, and the model."""
    blobs = made.bundle.index.blobs
    launches = [(blobs[launch.variant.code].sha256, launch.variant.symbol, launch.grid) for launch in made.launched]
    text = json.dumps([row.entry(), launches, model_version()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
