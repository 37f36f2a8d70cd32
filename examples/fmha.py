"""Fused attention from the command line, with the options of composable_kernel's example_fmha_fwd.

    python examples/fmha.py -b=1 -h=16 -s=4096 -d=128 -mask=2 -lse=1
    python examples/fmha.py -device=emulator -b=1 -h=2 -s=100 -d=64 -mask=b:30,4 -bias=a

Bundles of manifests/attention.yaml, and for 8 bits of manifests/attention_quantised.yaml, are searched in -bundles. One
line shows the call, its time and rate, and the check of the result. The exit status is 1 if the result is wrong. A rate
counts 2 (d + d_v) operations for each key that a query sees. Only the runtime is needed. Checks also need the numpy
references of this checkout's kernels, which the builder loads as in a build, without Triton.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from aot_models.kv_quantise import quantise_heads
from aot_models.masks import parse_mask
from aot_runtime import AotError, Bundle, get_device, open_bundle
from aot_runtime.contract.arch import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]
Array = np.ndarray[Any, Any]
PRECISIONS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp8": None, "bf8": None, "int8": np.int8}
QUANTISED = {"fp8": "flash_attention_fp8", "bf8": "flash_attention_fp8", "int8": "flash_attention_int8"}
"""The op of each precision of 8 bits."""
BIASES = {"0": "n", "1": "e:2", "2": "a:0", "e": "e:0", "a": "a:0"}
SHAPES = {"e:0": (False, False), "e:1": (False, True), "e:2": (True, True), "a:0": (False, True), "a:1": (True, True)}
"""Shape of a bias → True if it has batches, True if it has heads."""


@dataclass(frozen=True)
class Strided:
    """A tensor in memory of its own: `whole`, and the order of its dims that the op takes; index: of the first one."""

    whole: Array
    order: tuple[int, ...] | None = None
    index: int | None = None

    def of(self, whole: Any) -> Any:
        """The tensor in an array like `whole`, on the host or on a device."""
        view = whole if self.order is None else whole.transpose(*self.order)
        return view if self.index is None else view[self.index]

    @property
    def values(self) -> Array:
        return self.of(self.whole)


@dataclass(frozen=True)
class Call:
    """A call of an op of the bundle of a manifest. inputs, outputs: by the names of the op's tensors."""

    manifest: str
    op: str
    inputs: dict[str, Strided]
    outputs: dict[str, Strided]
    scalars: dict[str, Any]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options. Contradictory ones end the program with a message."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False, allow_abbrev=False
    )

    def option(name: str, default: Any, text: str, **rest: Any) -> None:
        shown = f"{text} (default: {default})"
        parser.add_argument(f"-{name}", type=type(default), default=default, help=shown, metavar="N", **rest)

    def switch(name: str, default: int, text: str) -> None:
        parser.add_argument(f"-{name}", type=int, choices=(0, 1), default=default, help=f"{text} (default: {default})")

    parser.add_argument("-?", "--help", action="help", help="show this and exit")
    switch("v", 1, "whether the result is checked against the references")
    parser.add_argument("-mode", type=int, choices=(0, 1), default=0,
                        help="0: batch; 1: group, of sequences from half of -s and -s_k to all of it")  # fmt: skip
    option("b", 2, "batch size")
    option("h", 8, "heads of q")
    option("h_k", 0, "heads of k and v; 0: those of q")
    option("s", 3328, "queries")
    option("s_k", -1, "keys; negative: as many as queries")
    option("d", 128, "head dim of q and k")
    option("d_v", 0, "head dim of v; 0: that of q")
    option("scale", 0.0, "factor of the scores; 0: 1 / sqrt(d)")
    switch("iperm", 1, "inputs in memory: 1: b*h*s*d, 0: b*s*h*d")
    switch("operm", 1, "out in memory, likewise")
    parser.add_argument("-bias", default="n", metavar="KIND",
                        help="n or 0: none; e:0, e:1, e:2: of 1*1, 1*h or b*h matrices s*s_k, 1: e:2; a:0, a:1: ALiBi "
                        "with slopes 1*h or b*h, 2: a:0 (default: n)")  # fmt: skip
    parser.add_argument("-prec", choices=PRECISIONS, default="fp16", help="data type; out of 8 bits is fp16")
    parser.add_argument(
        "-mask",
        default="0",
        help="0: none; 1 or t: causal, top-left; 2 or b: bottom-right; t:l,r and b:l,r: a window; "
        "g:y,x: generic coordinates; xt:w and xb:w: a window of w (default: 0)",
    )
    parser.add_argument("-vlayout", choices=("r", "c"), default="r", help="v row-major, s_k*d_v, or column-major")
    switch("lse", 0, "whether lse is stored too")
    parser.add_argument("-init", type=int, choices=(0, 1, 2), default=1,
                        help="0: random integers; 1: normal random numbers; 2: a sine (default: 1)")  # fmt: skip
    option("seed", 11939, "of the random numbers")
    option("repeat", 20, "calls that are timed; 0: none. On the emulator none are")
    parser.add_argument("-bundles", type=Path, default=Path("dist"), help="folder of the bundles (default: dist)")
    parser.add_argument("-device", help="hip, hip:1, cuda, emulator, … (default: the first GPU)")
    options = parser.parse_args(arguments)
    options.bias = BIASES.get(options.bias, options.bias)
    options.h_k, options.d_v = options.h_k or options.h, options.d_v or options.d
    options.s_k = options.s if options.s_k < 0 else options.s_k
    if fault := contradiction(options):
        parser.error(fault)
    return options


def contradiction(options: argparse.Namespace) -> str:
    """Return what is wrong with the options, in words; empty: nothing."""
    try:
        mask = parse_mask(options.mask)
    except ValueError as error:
        return str(error)
    if options.bias not in ("n", *SHAPES):
        return f"-bias={options.bias}; allowed: {', '.join(dict.fromkeys(('n', *BIASES, *SHAPES)))}"
    if options.mode and mask.get("mask_align") == "generic":
        return f"-mask={options.mask} with -mode=1: coordinates differ with the lengths; allowed: t and b"
    if options.prec in QUANTISED and options.d_v != options.d:
        return f"-prec={options.prec} goes with -d_v of -d, {options.d}; given: {options.d_v}"
    return ""


def make_call(options: argparse.Namespace, arch: str) -> Call:
    """Make inputs as the options say, and NaN where outputs are to be."""
    rng = np.random.default_rng(options.seed)
    lengths_q, lengths_k = (sequence_lengths(rng, options, longest) for longest in (options.s, options.s_k))
    batch = 1 if options.mode else options.b
    rows_q, rows_k = (sum(n) if options.mode else n[0] for n in (lengths_q, lengths_k))
    values = {
        "q": random(rng, (batch, options.h, rows_q, options.d), options.init),
        "k": random(rng, (batch, options.h_k, rows_k, options.d), options.init),
        "v": random(rng, (batch, options.h_k, rows_k, options.d_v), options.init),
    }
    scalars = parse_mask(options.mask) | {"scale": options.scale or options.d**-0.5, "return_lse": bool(options.lse)}
    dtype, inputs, op = np.dtype(PRECISIONS[options.prec] or np.float16), {}, "flash_attention"
    if options.prec in QUANTISED:
        op = QUANTISED[options.prec]
        narrow = quantised_dtype(options.prec, arch)
        for name, x in values.items():
            values[name], factors = quantise_heads(x, narrow)
            inputs[f"{name}_scale"] = Strided(factors)
        dtype = np.dtype(np.float16)
    else:
        values = {name: x.astype(dtype) for name, x in values.items()}
    if options.mode:
        op += "_varlen"
        for name, lengths in (("cu_seqlens_q", lengths_q), ("cu_seqlens_k", lengths_k)):
            inputs[name] = Strided(np.cumsum([0, *lengths], dtype=np.int32))
        scalars |= {"max_seqlen_q": max(lengths_q), "max_seqlen_k": max(lengths_k)}
    for name, x in values.items():
        inputs[name] = placed(x, options.iperm, options.mode, columns=name == "v" and options.vlayout == "c")
    if options.bias != "n":
        batches, heads = SHAPES[options.bias]
        shape = (options.b if batches else 1, options.h if heads else 1)
        if options.bias.startswith("e"):
            # In group mode each row of q has its own row of the matrix, so there are no batches.
            shape = (1, *shape[1:]) if options.mode else shape
            bias = random(rng, (*shape, rows_q, max(lengths_k)), 1).astype(dtype)
            inputs["bias"] = Strided(bias, None, 0 if options.mode else None)
        else:
            inputs["alibi_slopes"] = Strided(rng.uniform(0, 0.5, shape).astype(np.float32))
    out = np.full((batch, options.h, rows_q, options.d_v), np.nan, dtype)
    outputs = {"out": placed(out, options.operm, options.mode)}
    if options.lse:
        outputs["lse"] = Strided(np.full(out.shape[:3], np.nan, np.float32), None, 0 if options.mode else None)
    manifest = "attention_quantised" if options.prec in QUANTISED else "attention"
    return Call(manifest, op, inputs, outputs, scalars)


def quantised_dtype(precision: str, arch: str) -> np.dtype[Any]:
    """Return int8, or the float8 that an arch has: e4m3 for fp8, e5m2 for bf8."""
    if precision == "int8":
        return np.dtype(np.int8)
    kind = {"fp8": "float8_e4m3fn", "bf8": "float8_e5m2"}[precision]
    if ARCHITECTURES[arch].fp8 == "fnuz":
        kind = kind.removesuffix("fn") + "fnuz"
    return np.dtype(getattr(ml_dtypes, kind))


def sequence_lengths(rng: np.random.Generator, options: argparse.Namespace, longest: int) -> list[int]:
    """Return a batch's lengths: all the same, or in group mode from half of that to all of it."""
    if not options.mode:
        return [longest] * options.b
    return rng.integers((longest + 1) // 2, longest, options.b, endpoint=True).tolist()


def random(rng: np.random.Generator, shape: tuple[int, ...], init: int) -> Array:
    """Draw numbers as -init has them, float64."""
    if init == 0:
        return rng.integers(-2, 2, shape, endpoint=True).astype(np.float64)
    return np.sin(np.arange(np.prod(shape)) * 0.1).reshape(shape) if init == 2 else rng.standard_normal(shape)


def placed(values: Array, heads_first: int, group: int, columns: bool = False) -> Strided:
    """Return values [batch, heads, rows, columns] as they lie in memory; in group mode without a batch, and rows
    first."""
    layout = (
        ((0, 1, 3, 2) if heads_first else (0, 3, 1, 2)) if columns else ((0, 1, 2, 3) if heads_first else (0, 2, 1, 3))
    )
    whole = np.ascontiguousarray(values.transpose(layout))
    order = tuple(layout.index(dim) for dim in ((0, 2, 1, 3) if group else (0, 1, 2, 3)))
    return Strided(whole, order, 0 if group else None)


def run(bundle: Bundle, call: Call, repeat: int) -> tuple[dict[str, Array], float | None]:
    """Return (outputs, milliseconds of a call on the device, or None if it was not timed)."""
    device = bundle.device
    wholes = {name: device.array(item.whole) for name, item in (call.inputs | call.outputs).items()}
    tensors = {name: item.of(wholes[name]) for name, item in (call.inputs | call.outputs).items()}

    def once() -> None:
        getattr(bundle, call.op)(**tensors, **call.scalars)

    once()
    elapsed = None
    if repeat and device.driver.name != "emulator":
        start = device.event()
        for _ in range(repeat):
            once()
        elapsed = device.event().elapsed_ms(start) / repeat
    return {name: item.of(wholes[name].numpy()) for name, item in call.outputs.items()}, elapsed


def check(bundle: Bundle, call: Call, results: dict[str, Array]) -> str:
    """Return what is wrong with the outputs, by the numpy reference that the op names; empty: nothing."""
    from aot.source.project import project

    inputs = {name: item.values for name, item in call.inputs.items()}
    if call.manifest == "attention_quantised":
        inputs["out"] = call.outputs["out"].values
    options = call.scalars | {"return_lse": True}
    (file, _, reference) = next(op.reference for op in bundle.index.ops if op.name == call.op).partition(":")
    with project(ROOT).active() as modules:
        ways = (modules.attribute(file, reference), modules.attribute(file, f"{reference}_same_dtype"))
        assert_close = modules.attribute("kernels/tolerance.py", "assert_close")
    exact, same_dtype = (way(**inputs, **options) for way in ways)
    try:
        for name, wanted, honest in zip(("out", "lse"), exact, same_dtype, strict=True):
            if name in results:
                # Matrix units may keep few bits of a sum of float8 products.
                coarse = np.abs(wanted[np.isfinite(wanted)]).max(initial=0) if "fp8" in call.op else 0
                assert_close(results[name], wanted, honest, 1e-5 + 2**-11 * coarse, name)
    except AssertionError as error:
        return str(error)
    return ""


def operations(options: argparse.Namespace, call: Call) -> float:
    """Return the operations of both products, for the keys that queries see."""
    if options.mode:
        cu_q, cu_k = (call.inputs[f"cu_seqlens_{name}"].values for name in "qk")
        lengths = list(zip(np.diff(cu_q), np.diff(cu_k), strict=True))
    else:
        lengths = [(options.s, options.s_k)] * options.b
    mask = parse_mask(options.mask)
    seen = {pair: seen_keys(*pair, **mask) for pair in set(lengths)}
    return 2.0 * options.h * (options.d + options.d_v) * sum(seen[pair] for pair in lengths)


def seen_keys(
    seqlen_q: int, seqlen_k: int, *, causal: bool = False, window_left: int = -1, window_right: int = -1,
    mask_align: str = "bottom_right",
) -> int:  # fmt: skip
    """Return the number of pairs of a query and a key that it sees."""
    diagonal = np.arange(seqlen_q) + (seqlen_k - seqlen_q if mask_align == "bottom_right" else 0)
    window_right = 0 if causal else window_right
    first, last = np.zeros(seqlen_q, np.int64), np.full(seqlen_q, seqlen_k - 1)
    if window_left >= 0 or mask_align == "generic":
        first = np.maximum(first, diagonal - window_left)
    if window_right >= 0 or mask_align == "generic":
        last = np.minimum(last, diagonal + window_right)
    return int(np.maximum(last - first + 1, 0).sum())


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        device = get_device(options.device)
        call = make_call(options, device.arch)
        bundle = open_bundle(options.bundles / f"{call.manifest}-{device.arch}", device)
        results, elapsed = run(bundle, call, options.repeat)
    except AotError as error:
        print(f"fmha.py: {error}", file=sys.stderr)
        return 1
    mode, layout = "group" if options.mode else "batch", "bhsd" if options.iperm else "bshd"
    shape = f"b:{options.b}, h:{options.h}/{options.h_k}, s:{options.s}/{options.s_k}, d:{options.d}/{options.d_v}"
    said = [f"[{options.prec}|{mode}|{layout}] {shape}, mask:{options.mask}, bias:{options.bias}"]
    if elapsed:
        said.append(f"{elapsed:.3f} ms, {operations(options, call) / elapsed / 1e9:.2f} TFlops")
    fault = check(bundle, call, results) if options.v else ""
    if options.v:
        said.append("valid:n" if fault else "valid:y")
    print(", ".join(said))
    if fault:
        print(f"fmha.py: {fault}", file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
