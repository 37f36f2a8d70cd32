"""GB/s of the row-wise ops on this GPU, beside torch eager and compiled, and a copy by the bundle of memory.yaml.

    aotbuild --arch sm_90 manifests/rows.yaml manifests/memory.yaml
    python benchmarks/rows.py dist/rows-sm_90 dist/memory-sm_90

All candidates use the same tensors in device memory; our outputs are preallocated. Device times are measured between
two events around about 20 ms of calls. All take turns, and medians are shown. Bytes are the minimum to read and write;
the copy moves as many. Matrices are larger than the caches. Geometric means over each op's widths and dtypes follow the
table. The difference is the largest between our results and torch's eager ones.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measure import table
from on_gpu import device_times, heading, max_difference, require_torch, working

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle

WIDTHS = (1024, 2048, 4096, 8192, 16384, 32768)
DTYPES = ("bfloat16", "float32")
EPS = 1e-5
Way = Callable[[], Any]


@dataclass(frozen=True)
class Inputs:
    """x, y: [rows, cols] and weight, bias: [cols], torch's tensors by name; the same as arrays; out is ours."""

    tensors: dict[str, Any]
    arrays: dict[str, DeviceArray]
    out: DeviceArray


@dataclass(frozen=True)
class Op:
    """matrices: how many of x's size are read and written. theirs: the op of torch and its tensors, for x's result."""

    matrices: int
    ours: Callable[[Bundle, Inputs], Way]
    theirs: Callable[[Any, dict[str, Any]], Any]


def _softmax(torch: Any, t: dict[str, Any]) -> Any:
    return torch.softmax(t["x"], -1)


def _rms_norm(torch: Any, t: dict[str, Any]) -> Any:
    return torch.nn.functional.rms_norm(t["x"], t["weight"].shape, t["weight"], EPS)


def _layer_norm(torch: Any, t: dict[str, Any]) -> Any:
    return torch.nn.functional.layer_norm(t["x"], t["weight"].shape, t["weight"], t["bias"], EPS)


def _add_rms_norm(torch: Any, t: dict[str, Any]) -> Any:
    total = t["x"] + t["y"]
    return torch.nn.functional.rms_norm(total, t["weight"].shape, t["weight"], EPS), total


def _silu_mul(torch: Any, t: dict[str, Any]) -> Any:
    return torch.nn.functional.silu(t["x"]) * t["y"]


def _our_norm(op: str, *names: str) -> Callable[[Bundle, Inputs], Way]:
    return lambda bundle, i: partial(getattr(bundle, op), *(i.arrays[name] for name in names), eps=EPS, out=i.out)


def _our_add_rms_norm(bundle: Bundle, i: Inputs) -> Way:
    return partial(_our_norm("rms_norm", "x", "weight")(bundle, i), residual=i.arrays["sum"])


OPS = {
    "softmax": Op(2, lambda bundle, i: partial(bundle.softmax, i.arrays["x"], out=i.out), _softmax),
    "rms_norm": Op(2, _our_norm("rms_norm", "x", "weight"), _rms_norm),
    "layer_norm": Op(2, _our_norm("layer_norm", "x", "weight", "bias"), _layer_norm),
    "add_rms_norm": Op(4, _our_add_rms_norm, _add_rms_norm),
    "silu_mul": Op(3, lambda bundle, i: partial(bundle.silu_mul, i.arrays["x"], i.arrays["y"], out=i.out), _silu_mul),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the bundle of manifests/rows.yaml for this GPU")
    parser.add_argument("memory", type=Path, help="the bundle of manifests/memory.yaml for this GPU")
    parser.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS), help="(default: all)")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS), help="(default: 1024 to 32768)")
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float16", *DTYPES), default=list(DTYPES), help="(default: bfloat16 float32)"
    )
    parser.add_argument("--mib", type=int, default=256, help="size of a matrix (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave out what torch compiles")
    options = parser.parse_args()
    torch = require_torch()
    try:
        rows, memory = open_bundle(options.rows), open_bundle(options.memory)
        print(f"{heading(rows.device)}\n")
        shapes = [(dtype, cols) for dtype in options.dtypes for cols in options.widths]
        print(
            report(rows, memory, torch, options.ops, shapes, options.mib << 20, options.rounds, not options.no_compile)
        )
    except AotError as error:
        sys.exit(f"rows.py: {error}")


def report(
    rows: Bundle, memory: Bundle, torch: Any, ops: Sequence[str], shapes: Sequence[tuple[str, int]], nbytes: int,
    rounds: int, compiled: bool,
) -> str:  # fmt: skip
    """Return the table of all ops and shapes (dtype, width), and the means below it."""
    peers = ["torch", "compiled"] if compiled else ["torch"]
    lines, shares = [], {name: [] for name in ops}
    for name in ops:
        for dtype, cols in shapes:
            inputs = make_inputs(rows, torch, dtype, cols, nbytes)
            moved = OPS[name].matrices * inputs.out.nbytes
            rate, difference = measure(rows, memory, torch, name, inputs, moved, rounds, compiled)
            shares[name].append(rate["ours"] / rate["copy"])
            cells = [f"{rate[way]:.0f}" if way in rate else "-" for way in ("ours", *peers, "copy")]
            lines.append(
                [f"{name} {dtype} {inputs.out.shape[0]}x{cols}", *cells, f"{shares[name][-1]:.2f}", difference]
            )
    means = [
        f"{name}: {math.exp(sum(map(math.log, values)) / len(values)):.3f} of a copy" for name, values in shares.items()
    ]
    return "\n".join([table(("GB/s", "ours", *peers, "copy", "ours / copy", "difference"), lines), "", *means])


def measure(
    rows: Bundle, memory: Bundle, torch: Any, name: str, inputs: Inputs, moved: int, rounds: int, compiled: bool
) -> tuple[dict[str, float], str]:
    """Return (GB/s of each way, the largest difference of our result from torch's)."""
    op = OPS[name]
    theirs = partial(op.theirs, torch)
    ways = {"ours": op.ours(rows, inputs), "torch": partial(theirs, inputs.tensors)}
    if compiled:
        torch.compiler.reset()
        ways["compiled"] = partial(torch.compile(theirs, dynamic=False), inputs.tensors)
    ways |= {"copy": copy_of(memory, moved)}
    ways = working(f"{name} {inputs.out.shape}", ways)
    reference = ways["torch"]()
    inputs.tensors["sum"].copy_(inputs.tensors["y"])
    torch.cuda.synchronize()
    ways["ours"]()
    difference = max_difference(inputs.out, reference[0] if isinstance(reference, tuple) else reference)
    times = device_times(rows, ways, rounds)
    return {way: moved / taken / 1e9 for way, taken in times.items()}, difference


def make_inputs(bundle: Bundle, torch: Any, dtype: str, cols: int, nbytes: int) -> Inputs:
    """Make the inputs. `sum` starts as y: ours adds x to it again and again."""
    generator = torch.Generator("cuda").manual_seed(0)
    kind = getattr(torch, dtype)
    new = partial(torch.randn, device="cuda", dtype=kind, generator=generator)
    shape = (nbytes // kind.itemsize // cols, cols)
    tensors = {"x": new(shape), "y": new(shape), "weight": new((cols,)), "bias": new((cols,))}
    tensors["sum"] = tensors["y"].clone()
    torch.cuda.synchronize()
    arrays = {name: bundle.device.wrap(tensor) for name, tensor in tensors.items()}
    return Inputs(tensors, arrays, bundle.device.wrap(torch.empty_like(tensors["x"])))


def copy_of(memory: Bundle, moved: int) -> Way:
    """Return a copy that moves `moved` bytes: it reads one half of them, and writes the other."""
    source, target = (memory.device.empty((moved // 8,), "int32") for _ in range(2))
    return partial(memory.copy, source, out=target)


if __name__ == "__main__":
    main()
