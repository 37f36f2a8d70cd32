"""Matrix products: 16-bit, integer, float8, block-scaled and batched ones, weights of 8 and 4 bits, and adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aot_bundle.callspec import CallSpec

from .family import (
    DTYPES_16,
    Asked,
    Call,
    Drawn,
    Family,
    Offer,
    Part,
    Rng,
    Tensors,
    Ways,
    above,
    extent,
    near,
    one_of,
    piece,
)

UNITS = {"by 64": 64, "by 8": 8, "odd": 1}
BY_COLUMN, BY_ROW = 0, 1
"""Dim of b with stride 1: k or n."""
BLOCK = 128
SCALES = (0.5, 1.5)
SMALL = (0.01, 0.02)
"""Scales of codes."""

Dims = Mapping[str, int]


def flops(dims: Dims) -> float:
    return 2.0 * dims.get("batch", 1) * dims["m"] * dims.get("n", 64 * dims.get("tiles", 0)) * dims["k"]


def draw_extents(rng: Rng, most: int = 16384) -> tuple[str, Dims]:
    """Draw m, n and k, and the kind of n and k."""
    name = one_of(rng, list(UNITS))
    unit = UNITS[name]
    m, n, k = extent(rng, 1, most), extent(rng, 16, most, unit), extent(rng, 16, most, unit)
    if unit == 8 and n % 64 == 0 == k % 64:
        k += 8
    if unit == 1 and n % 8 == 0 == k % 8:
        k += 1 + int(rng.integers(7))
    return name, {"m": m, "n": n, "k": k}


def variations(group: str, dims: Dims, make: Callable[[Dims, bool], Call], itemsize: int = 2) -> Drawn:
    """Return a call, its neighbour with aligned n and k, and the call at the next multiples of 128.

    make: the call of given extents; as torch wants its operands, if asked. itemsize: bytes of an element of a and b.
    """
    nearest = {**dims, **{name: near(dims[name], itemsize=itemsize) for name in ("n", "k")}}
    padded = {**dims, **{name: above(dims[name]) for name in ("m", "n", "k")}}
    return Drawn(group, make(dims, False), make(nearest, False), make(padded, True))


def product_part(call: Call, where: float) -> Part:
    """Cut some rows and some columns, or tiles, of one matrix."""
    dims = call.spec.dims
    cut = {"batch": 1, "m": 16, "n": BLOCK, "tiles": 2}
    units = {"n": BLOCK}
    return Part({name: piece(dims[name], cut[name], where, units.get(name, 1)) for name in cut if name in dims})


# 16 bits


def draw_matmul(rng: Rng, offer: Offer) -> Drawn:
    name, dims = draw_extents(rng)
    inner = one_of(rng, (BY_COLUMN, BY_ROW))
    given = frozenset({"bias"}) if rng.random() < 0.25 else frozenset()
    dtype = one_of(rng, DTYPES_16)

    def make(dims: Dims, _: bool) -> Call:
        return Call("matmul", CallSpec(dims=dims, dtypes={"T": dtype}, innermost={"b": inner}, given=given),
                    flops=flops(dims))  # fmt: skip

    return variations(f"{name}, b by {_layout(inner)}", dims, make)


def _layout(inner: int) -> str:
    return "rows" if inner == BY_ROW else "columns"


def matmul_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    function, tensors = (torch.addmm, (t["bias"], t["a"], t["b"])) if "bias" in t else (torch.mm, (t["a"], t["b"]))
    return {"torch": partial(function, *tensors)}


def draw_batched(rng: Rng, offer: Offer) -> Drawn:
    op = one_of(rng, offer.among("batched_matmul", "batched_matmul", "batched_matmul", "batched_scaled_matmul"))
    name, dims = draw_extents(rng, 4096)
    dims = {"batch": extent(rng, 1, 256), **dims}
    inner, dtype = one_of(rng, (1, 2)), one_of(rng, DTYPES_16)
    scaled = op == "batched_scaled_matmul"
    dtypes = {"T": offer.float8 or "int8", "E": dtype} if scaled else {"T": dtype}

    def make(dims: Dims, _: bool) -> Call:
        values = {"scale_a": SCALES, "scale_b": SCALES} if scaled else {}
        return Call(op, CallSpec(dims=dims, dtypes=dtypes, innermost={"b": inner}), values, flops(dims))

    return variations(f"{name}, {'8' if scaled else '16'} bits", dims, make, 1 if scaled else 2)


def batched_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    return {"torch": partial(torch.bmm, t["a"], t["b"])} if call.op == "batched_matmul" else {}


# 8 bits


def draw_integer(rng: Rng, offer: Offer) -> Drawn:
    name, dims = draw_extents(rng)
    inner = one_of(rng, (BY_COLUMN, BY_ROW))

    def make(dims: Dims, as_torch: bool) -> Call:
        innermost = {"b": BY_COLUMN if as_torch else inner}
        return Call("integer_matmul", CallSpec(dims=dims, dtypes={"T": "int8"}, innermost=innermost), flops=flops(dims))

    return variations(f"{name}, b by {_layout(inner)}", dims, make, itemsize=1)


def integer_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    return {"torch": partial(torch._int_mm, t["a"], t["b"])}


def draw_float8(rng: Rng, offer: Offer) -> Drawn:
    name, dims = draw_extents(rng)
    inner, by_row = one_of(rng, (BY_COLUMN, BY_COLUMN, BY_ROW)), bool(rng.random() < 0.5)
    scalars = {"use_fast_accum": "true"} if rng.random() < 0.5 else {}
    # torch scales rows in bfloat16 alone; fast sums are less exact than float16.
    dtypes = {"T": offer.float8, "E": "bfloat16" if by_row or scalars else one_of(rng, DTYPES_16)}
    shapes = {} if by_row else {"scale_a": (1,), "scale_b": (1,)}

    def make(dims: Dims, as_torch: bool) -> Call:
        innermost = {"b": BY_COLUMN if as_torch else inner}
        spec = CallSpec(dims=dims, dtypes=dtypes, innermost=innermost, scalars=scalars, shapes=shapes)
        return Call("scaled_matmul", spec, {"scale_a": SCALES, "scale_b": SCALES}, flops(dims))

    return variations(f"by {'row' if by_row else 'tensor'}, {name}", dims, make, itemsize=1)


def float8_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    scales = (t["scale_a"][:, None], t["scale_b"][None]) if not call.spec.shapes else (t["scale_a"], t["scale_b"])
    fast = "use_fast_accum" in call.spec.scalars
    way = partial(torch._scaled_mm, t["a"], t["b"], *scales, out_dtype=t["e"].dtype, use_fast_accum=fast)
    return {"torch": way}


def draw_blocks(rng: Rng, offer: Offer) -> Drawn:
    name, dims = draw_extents(rng)
    inner = one_of(rng, (BY_COLUMN, BY_COLUMN, BY_COLUMN, BY_ROW))

    def make(dims: Dims, as_torch: bool) -> Call:
        # Scales of rows of a are next to each other, those of b along k, as torch has them.
        strides = {"scale_a": (1, dims["m"]), "scale_b": (1, -(-dims["k"] // BLOCK))}
        innermost = {"b": BY_COLUMN if as_torch else inner}
        spec = CallSpec(dims=dims, dtypes={"T": offer.float8, "E": "bfloat16"}, innermost=innermost, strides=strides)
        return Call("block_scaled_matmul", spec, {"scale_a": SCALES, "scale_b": SCALES}, flops(dims))

    return variations(f"{name}, b by {_layout(inner)}", dims, make, itemsize=1)


def block_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    way = partial(torch._scaled_mm, t["a"], t["b"], t["scale_a"], t["scale_b"], out_dtype=t["e"].dtype)
    return {"torch": way}


# Weights of 8 and 4 bits

ZEROS = {"linear_int4": (0, 15), "linear_int4_prepacked": (0, 15), "linear_int8": (-9, 9),
         "linear_int8_prepacked": (100, 156)}  # fmt: skip
"""Range of the codes of 0, by op; an op without has none."""
LINEAR = (*ZEROS, "linear_fp8")


def draw_linear(rng: Rng, offer: Offer) -> Drawn:
    op = one_of(rng, offer.among(*LINEAR))
    m, group = extent(rng, 1, 16384), one_of(rng, (64, 128))
    k, dtypes = extent(rng, 256, 16384, group), {"T": one_of(rng, DTYPES_16)}
    prepacked, zeros = op.endswith("prepacked"), ZEROS.get(op)
    given = frozenset({"zeros"}) if zeros and rng.random() < 0.3 else frozenset()
    n = {"tiles": extent(rng, 4, 256)} if prepacked else {"n": extent(rng, 256, 16384, one_of(rng, (1, 8, 64)))}
    dims = {"m": m, **n, "k": k} | ({"groups": k // group} if zeros else {})
    if not zeros:
        dtypes["W"] = offer.float8
    values: dict[str, Any] = {"scales": SMALL} | ({"zeros": zeros} if given else {})

    def make(dims: Dims) -> Call:
        return Call(op, CallSpec(dims=dims, dtypes=dtypes, given=given), values, flops(dims))

    nearest = {**dims, **({"tiles": near(dims["tiles"], 2)} if prepacked else {"n": near(dims["n"], itemsize=1)})}
    rows = "1 to 16 rows" if m <= 16 else "17 to 128 rows" if m <= 128 else "more rows"
    bits = "W4A16" if "int4" in op else "W8A16"
    return Drawn(f"{bits}{' prepacked' * prepacked}, {rows}", make(dims), make(nearest))


def linear_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    """Multiply with weights of 16 bits. Their values do not matter for the time."""
    w = torch.randn((t["e"].shape[1], call.spec.dims["k"]), dtype=t["x"].dtype, device=t["x"].device)
    return {"torch": partial(torch.mm, t["x"], w.t())}


# Adapters


def draw_lora(rng: Rng, offer: Offer) -> Drawn:
    name, dims = draw_extents(rng)
    rank = one_of(rng, (8, 16, 32, 64, 128, extent(rng, 1, 128)))
    dims, dtype = {**dims, "adapters": 1, "rank": rank}, one_of(rng, DTYPES_16)

    def make(dims: Dims, _: bool) -> Call:
        work = flops(dims) + 2.0 * dims["m"] * rank * (dims["n"] + dims["k"])
        return Call("lora_linear", CallSpec(dims=dims, dtypes={"T": dtype}, scalars={"scale": "0.5"}), flops=work)

    return variations(f"{name}, {'few' if dims['m'] <= 128 else 'many'} rows", dims, make)


def lora_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    x, w, down, up = t["x"], t["w"].t(), t["down"][0].t(), t["up"][0].t()

    def products() -> Any:
        return torch.addmm(torch.mm(x, w), torch.mm(x, down), up, alpha=0.5)

    return {"torch": products}


PRODUCT = Asked(1.0, 0.85, 0.6)
FAMILIES = {
    "matmul": Family("matmul, fp16 and bf16", PRODUCT, ("matmul",), draw_matmul, "e", product_part, matmul_peers),
    "integer": Family("integer products", PRODUCT, ("integer_matmul",), draw_integer, "e", product_part, integer_peers),
    "fp8": Family("fp8 products", PRODUCT, ("scaled_matmul",), draw_float8, "e", product_part, float8_peers),
    "block_scaled": Family("block-scaled products", PRODUCT, ("block_scaled_matmul",), draw_blocks, "e", product_part,
                           block_peers),
    "batched": Family("batched products", PRODUCT, ("batched_matmul",), draw_batched, "e", product_part, batched_peers),
    "linear": Family("W4A16, W8A16", Asked(1.2, 0.9, 0.75), LINEAR, draw_linear, "e", product_part, linear_peers),
    "lora": Family("LoRA", Asked(1.05, 0.85, 0.7), ("lora_linear",), draw_lora, "e", product_part, lora_peers),
}  # fmt: skip
