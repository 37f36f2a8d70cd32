"""The published model of the matrix units, one element at a time by exact fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from aot_emulator import Arithmetic
from tests.support.emulation.naive_matrix import FLOATS, Case, ops_of

# --- The hardware model, from its published description, one element and exact fractions


def nearest32(x):
    return np.float32(x.numerator / x.denominator)  # doubles suffice: the sums below have under 50 bits


def exponent_of(value, smallest):
    return -126 if value == 0 else max(math.frexp(value)[1] - 1, smallest)


def cut(x, exponent, bits, how):
    """Round x / 2**exponent to a number of binary places."""
    scaled = x / Fraction(2) ** exponent * 2**bits
    return Fraction(how(scaled)) / 2**bits


def fused(a, b, c, smallest, fp8):
    exponents = [exponent_of(x, smallest[0]) + exponent_of(y, smallest[1]) for x, y in zip(a, b, strict=True)]
    products = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
    parts = []
    for first in range(2 if fp8 else 1):
        chosen = list(zip(products, exponents, strict=True))[first :: 2 if fp8 else 1]
        top = max(e for _, e in chosen)
        parts.append((sum(cut(p, top, 24, math.trunc) for p, _ in chosen), top))
    top = max(e for _, e in parts)
    total = sum(cut(s * Fraction(2) ** e, top, 24, math.floor) for s, e in parts) if fp8 else parts[0][0]
    c_exponent = exponent_of(c, -126)
    largest = max(top, c_exponent)
    kept = Fraction(0) if fp8 and c_exponent < largest - 25 else Fraction(c)
    result = cut(total * Fraction(2) ** top, largest, 31, math.floor) + cut(kept, largest, 24, math.floor)
    return nearest32(result * Fraction(2) ** largest)


def flush(x):
    return np.float32(0 if abs(x) < 2.0**-126 else x)


def model(op, a, b, c):
    """Return an element of D; a and b are lists along k."""
    smallest = {"f16": -14, "bf16": -126, "xf32": -126, "fp8": -7, "bf8": -15}
    total = np.float32(c)
    if op.model == "fma":
        for x, y in zip(a, b, strict=True):
            total = nearest32(Fraction(x) * Fraction(y) + Fraction(float(total)))
        return total
    for first in range(0, op.k, op.group):
        x, y = a[first : first + op.group], b[first : first + op.group]
        if op.model == "fused":
            total = fused(x, y, float(total), (smallest[op.a.name], smallest[op.b.name]), op.a.bits == 8)
            continue
        sums = [flush(np.float32(p * q)) for p, q in zip(x, y, strict=True)]
        while len(sums) > 1:
            sums = [flush(p + q) for p, q in zip(sums[0::2], sums[1::2], strict=True)]
        total = flush(total + sums[0])
    return total


MODELLED = [(a, n) for a, n in FLOATS if ops_of(a)[n].model and ops_of(a)[n].d.name == "f32"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arch,name", MODELLED)
def test_hardware_arithmetic(arch, name):
    case = Case(arch, name, waves=1)
    op = case.op
    rng = np.random.default_rng(12)
    for values, (_, dtype) in ((case.a, case.a_type), (case.b, case.b_type), (case.c, (32, np.float32))):
        spread = rng.standard_normal(values.shape) * np.exp2(rng.integers(-4, 5, values.shape))
        values[...] = spread.astype(dtype).astype(np.float64)
    case.a[..., 0, :] *= 0
    if op.a.name == "xf32":
        case.a, case.b = (values.astype(np.float16).astype(np.float64) for values in (case.a, case.b))
    got = case.run(arithmetic=Arithmetic.HARDWARE)
    some = itertools.product(range(op.blocks), range(op.m), range(0, op.n, 3))
    differ = 0
    for block, i, j in itertools.islice(some, 0, None, max(1, op.m * op.n * op.blocks // 600)):
        want = model(op, case.a[0, block, i], case.b[0, block, j], case.c[0, block, i, j])
        assert got[0, block, i, j] == want
        differ += want != np.float32(case.want()[0, block, i, j]) if differ == 0 else 0
    if op.model == "fused":
        assert differ, "the inputs do not tell the model from one rounding"


# (name, A's first two columns, B, C, D)
SUMS = [
    # Each step of fp64 is rounded.
    ("f64_16x16x4_f64", (1, 1), 2.0**-53, 1, 1), ("f64_16x16x4_f64", (1, 1), 2.0**-53, 1 + 2.0**-52, 1 + 2.0**-51),
    # Rounding down makes a tiny negative C count as one unit of the last place; sums of 8 bits drop it.
    ("f32_16x16x16_f16", (1, 0), 1, -(2.0**-40), 1 - 2.0**-24), ("f32_16x16x32_fp8_fp8", (1, 0), 1, -(2.0**-40), 1),
    # 31 bits of a sum are kept.
    ("f32_16x16x16_f16", (1 + 2.0**-7, 0), 2.0**-24, 1, 1 + 2.0**-23), ("f32_16x16x16_f16", (1 + 2.0**-8, 0), 2.0**-24, 1, 1),
    # A product overflows.
    ("f32_16x16x16_bf16", (2.0**40, 0), 2.0**100, 0, np.inf), ("f32_16x16x16_bf16", (2.0**40, -(2.0**40)), 2.0**100, 0, np.nan),
]  # fmt: skip


@pytest.mark.parametrize(("name", "a", "b", "c", "d"), SUMS)
def test_sums_by_hand(name, a, b, c, d):
    case = Case("gfx942", "v_mfma_" + name, waves=1)
    case.a[...], case.b[...], case.c[...] = 0, b, c
    case.a[..., 0], case.a[..., 1] = a
    np.testing.assert_array_equal(case.run(arithmetic=Arithmetic.HARDWARE), np.full(case.c.shape, d))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("arch,name", FLOATS)
def test_other_sums_are_within_the_error_bound_of_their_type(arch, name):
    case = Case(arch, name, waves=2)
    rng = np.random.default_rng(11)
    for values, (_, dtype) in ((case.a, case.a_type), (case.b, case.b_type), (case.c, (0, case.d_type))):
        values[...] = rng.standard_normal(values.shape).astype(dtype).astype(np.float64)
    if case.op.a.name == "xf32":
        case.a, case.b = (values.astype(np.float16).astype(np.float64) for values in (case.a, case.b))
    want, size = case.want(), case.want(abs(case.a), abs(case.b), abs(case.c))
    eps = {16: 2.0**-10 if case.op.d.name == "f16" else 2.0**-7, 32: 2.0**-23, 64: 2.0**-52}[case.op.d.bits]
    assert (abs(case.run() - want) <= 0.5 * case.op.k * eps * size + eps * size).all()
    exact = case.run(arithmetic=Arithmetic.FLOAT64)
    assert (abs(exact - want) <= 0.5 * eps * abs(want) + case.op.k * 2.0**-52 * size).all()
