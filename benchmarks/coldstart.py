"""From the start of a process to its first result: causal attention of float16 [1, 8, 1024, 64], numpy in, numpy out.

    aotbuild --arch sm_90 manifests/attention.yaml && python benchmarks/coldstart.py dist/attention-sm_90

Each run is a separate process (scripts are in benchmarks/cold). The clock starts before the process does, and stops
when the result is in host memory. All candidates take turns, after a warm-up run of each that fills the page cache and
Triton's cache. Ratios are relative to the minimum: the driver's API through ctypes, with the same code object. Every
result is checked.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from kernargs import kernarg_segment
from measure import ROOT, machine, median, table, versions

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import AotError
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.choosing import LaunchDecision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.records import Index

SHAPE = (1, 8, 1024, 64)
SCRIPTS = Path(__file__).with_name("cold")
BASE, OURS = "raw ctypes", "aot_runtime"
PACKAGES = ("numpy", "torch", "triton", "cuda-bindings", "hip-python")


@dataclass(frozen=True)
class Way:
    """A script with its arguments; `fresh_cache`: Triton's cache is empty in each run, and else kept."""

    name: str
    arguments: tuple[str, ...]
    fresh_cache: bool = False


@dataclass(frozen=True)
class Run:
    """Seconds from before the process to its result, and of each phase."""

    total: float
    phases: dict[str, float]


class RunError(Exception):
    """A run failed, or gave a wrong result."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/attention.yaml for this GPU")
    parser.add_argument("-n", "--runs", type=int, default=5, help="measured runs of each way (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            ways = ways_of(options.bundle, folder)
        except AotError as error:
            sys.exit(f"coldstart.py: {error}")
        expected = write_data(folder)
        runs = {way.name: partial(run, way, folder, expected) for way in ways}
        try:
            runs[OURS]()  # what is measured beside it may be missing
        except RunError as error:
            sys.exit(f"coldstart.py: {error}")
        print(machine())
        print(f"{read_index(options.bundle).target.arch}; {versions(*PACKAGES)}\n")
        print(report(runs, options.runs))


def ways_of(bundle: Path, folder: Path) -> list[Way]:
    """Return every way, with the arguments of its script. Raises `AotError` if `bundle` is not a bundle."""
    index = read_index(bundle)
    batch, heads, seqlen, head_dim = SHAPE
    dims = {"batch": batch, "heads": heads, "heads_kv": heads, "seqlen_q": seqlen, "seqlen_k": seqlen,
            "head_dim": head_dim, "head_dim_v": head_dim}  # fmt: skip
    call = CallSpec(dims=dims, dtypes={"T": "float16"}, scalars={"causal": "true", "schedule": "tiles"})
    # Tiles are a program each: how many compute units there are changes nothing.
    (launch,) = plan_call(index, op_planner(index, "flash_attention"), call, num_cus=1).launches
    grid, data = ",".join(map(str, launch.grid)), str(folder)
    jit = (str(SCRIPTS / "triton_jit.py"), data, str(ROOT / "kernels/attention/forward.py"), grid,
           repr(jit_settings(index, launch)))  # fmt: skip
    return [
        Way(BASE, (str(SCRIPTS / "raw.py"), data, *raw_arguments(index, bundle, launch, grid))),
        Way(OURS, (str(SCRIPTS / "ours.py"), data, str(bundle))),
        Way("torch, Triton's JIT, full cache", jit),
        Way("torch, Triton's JIT, empty cache", jit, fresh_cache=True),
    ]


def raw_arguments(index: Index, bundle: Path, launch: LaunchDecision, grid: str) -> tuple[str, ...]:
    variant = launch.variant
    library = {"cuda": "libcuda.so.1", "hip": f"{os.environ.get('ROCM_PATH', '/opt/rocm')}/lib/libamdhip64.so"}
    names = ("q", "k", "v", "out")
    offsets = {arg.value: arg.offset for arg in variant.kernargs if arg.type.startswith("*")}
    return (
        index.target.backend, library[index.target.backend], str(bundle / index.blobs[variant.code].file),
        variant.symbol, grid, str(variant.num_warps * variant.warp_size), str(variant.lds_bytes),
        kernarg_segment(launch, dict.fromkeys(names, 0)).hex(), ",".join(str(offsets[name]) for name in names),
    )  # fmt: skip


def jit_settings(index: Index, launch: LaunchDecision) -> dict[str, object]:
    """Return the constexprs and options of the bundle's variant, as the JIT takes them."""
    (op,) = (op for op in index.ops if op.name == launch.variant.op)
    config = op.launches[launch.index].configs[launch.variant.config]
    read = ("HEAD_DIM", "HEAD_DIM_V", "PADDED", "BOUND_LEFT", "BOUND_RIGHT")  # by the kernel, of all axes
    axes = {name: launch.variant.axis_values[name] for name in read}
    portable = ("num_warps", "num_stages", *(["waves_per_eu"] if index.target.backend == "hip" else []))
    options = {name: value for name, value in config.options.items() if name in portable}
    row = ARCHITECTURES[index.target.arch]
    return {**axes, **config.values, **options, "NUM_XCDS": row.num_xcds, "HAS_BF16_CVT": row.has_bf16_cvt}


def write_data(folder: Path) -> np.ndarray:
    """Write q, k and v; return their attention."""
    rng = np.random.default_rng(0)
    q, k, v = arrays = [rng.standard_normal(SHAPE, np.float32).astype(np.float16) for _ in range(3)]
    for name, array in zip("qkv", arrays, strict=True):
        np.save(folder / f"{name}.npy", array)
    q, k, v = (array.astype(np.float32) for array in arrays)
    scores = q @ k.swapaxes(2, 3) * SHAPE[3] ** -0.5
    scores[..., ~np.tri(SHAPE[2], dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def run(way: Way, folder: Path, expected: np.ndarray) -> Run:
    """Time one run. Raises `RunError`."""
    result = folder / "out.npy"
    result.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"TRITON_CACHE_DIR": empty if way.fresh_cache else str(folder / "triton-cache")}
        start = time.monotonic()
        child = subprocess.run([sys.executable, *way.arguments], env=environment, capture_output=True, text=True)
    if child.returncode:
        raise RunError((child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1])
    if not np.allclose(np.load(result), expected, atol=5e-3):
        raise RunError("wrong result")
    ends = ast.literal_eval(child.stdout.strip().splitlines()[-1])
    times = [start, *ends.values()]
    phases = {name: end - begin for name, begin, end in zip(ends, times[:-1], times[1:], strict=True)}
    return Run(times[-1] - start, phases)


def report(ways: dict[str, Callable[[], Run]], runs: int) -> str:
    """Print medians of every way that works, and why others do not. All ways take turns."""
    found: dict[str, list[Run]] = {}
    for name, way in ways.items():
        try:
            way()
            found[name] = []
        except RunError as error:
            print(f"left out: {name}: {error}")
    for _ in range(runs):
        for name, taken in found.items():
            taken.append(ways[name]())
    totals = {name: median([one.total for one in taken]) for name, taken in found.items()}
    rows = [
        [name, f"{1e3 * total:.0f}", f"{total / totals[BASE]:.2f}" if BASE in totals else "-"]
        for name, total in totals.items()
    ]
    lines = [table(("ms to the first result", "median", f"ratio to {BASE}"), rows), ""]
    for name, taken in found.items():
        phases = {phase: median([one.phases[phase] for one in taken]) for phase in taken[0].phases}
        lines.append(f"{name}: " + ", ".join(f"{phase} {1e3 * value:.0f}" for phase, value in phases.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
