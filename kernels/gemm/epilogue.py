"""Epilogues: scales, bias, addend, activation and conversion of a tile before it is stored."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.rounding import half_to_even
from kernels.common.softmax import LOG2_E
from kernels.common.tensors import given

RSQRT_2: tl.constexpr = tl.constexpr(0.7071067811865476)
LEAK: tl.constexpr = tl.constexpr(0.01)
"""Slope of leaky_relu below 0."""

# Values of `activation`; 0: none.
RELU: tl.constexpr = tl.constexpr(1)
LEAKY_RELU: tl.constexpr = tl.constexpr(2)
GELU: tl.constexpr = tl.constexpr(3)
GELU_TANH: tl.constexpr = tl.constexpr(4)
SILU: tl.constexpr = tl.constexpr(5)


class Epilogue(NamedTuple):
    """Operands of act(alpha * scale_a * (product - zero_a colsum) * scale_b + bias + beta * d).

    The product is [batch, m, n].

    bias: [batch, n]; d: the addend, [batch, m, n]; scale_a: fp32 [batch, m]; scale_b: fp32 [batch, n]; strides are 0
    where one is broadcast. zero_a: int32 [m], colsum: int32 [n], of products of int8; both are given, or neither.
    Fields that are None or null pointers are left out. EPILOGUE lists what may be given besides scales: `none`; `bias`;
    `any` of bias, d, zero_a and activation. ROWS_OF_E says how wide rows of e may be stored: `hinted`, as hints of n
    and of e's stride say; `aligned`: both are multiples of 16 bytes, which no hint says; `any`: that is tested at run
    time; `elements`, of `matmul_cdna3`: as single elements.
    """

    bias: tl.tensor = None
    d: tl.tensor = None
    stride_d_batch: tl.tensor = 0
    stride_d_m: tl.tensor = 0
    stride_d_n: tl.tensor = 0
    scale_a: tl.tensor = None
    stride_scale_a_m: tl.tensor = 0
    scale_b: tl.tensor = None
    stride_scale_b_n: tl.tensor = 0
    alpha: tl.tensor = 1
    beta: tl.tensor = 1
    activation: tl.tensor = 0
    EPILOGUE: tl.constexpr = "any"
    stride_bias_batch: tl.tensor = 0
    stride_scale_a_batch: tl.tensor = 0
    stride_scale_b_batch: tl.tensor = 0
    zero_a: tl.tensor = None
    stride_zero_a_m: tl.tensor = 0
    colsum: tl.tensor = None
    ROWS_OF_E: tl.constexpr = "hinted"


class Vectors(NamedTuple):
    """Operands of an `Epilogue` for a tile, loaded beforehand: scale_a: ([rows],); scale_b, bias: ([columns],).

    Those that the epilogue does not have are ().
    """

    scale_a: tl.tuple = ()
    scale_b: tl.tuple = ()
    bias: tl.tuple = ()


@triton.jit
def row_scales(rows, m, epilogue, batch=None):
    at = of_batch(epilogue.scale_a, batch, epilogue.stride_scale_a_batch)
    return tl.load(at + rows * epilogue.stride_scale_a_m, rows < m, 0.0)


@triton.jit
def column_scales(columns, n, epilogue, batch=None):
    at = of_batch(epilogue.scale_b, batch, epilogue.stride_scale_b_batch)
    return tl.load(at + columns * epilogue.stride_scale_b_n, columns < n, 0.0)


@triton.jit
def column_bias(columns, n, epilogue, batch=None):
    at = of_batch(epilogue.bias, batch, epilogue.stride_bias_batch)
    return tl.load(at + columns, (columns < n) & given(epilogue.bias), 0.0)


@triton.jit
def of_batch(pointer, batch, stride):
    """Return the address of an operand of one batch; of the first without one."""
    return pointer if batch is None else pointer + batch.to(tl.int64) * stride


@triton.jit
def finish(acc, rows, columns, batch, m, n, e, epilogue):
    """Apply the epilogue to a product, and store it in the dtype of e.

    acc: [rows, columns], of one batch; e: its `Matrix`. int8 results are rounded half to even and saturate.
    """
    dtype: tl.constexpr = e.ptr.dtype.element_ty
    value = finished(acc, rows, columns, batch, m, n, dtype, epilogue)
    result = convert(value, dtype)
    if epilogue.ROWS_OF_E == "hinted":
        _store(result, rows, columns, m, n, e.ptr, e.stride_rows, e.stride_columns)
    else:
        whole_n, whole_stride = aligned_part(n, dtype), aligned_part(e.stride_rows, dtype)
        if epilogue.ROWS_OF_E == "aligned":  # noqa: SIM114 - the other one is tested at run time
            _store(result, rows, columns, m, whole_n, e.ptr, whole_stride, e.stride_columns)
        elif (n == whole_n) & (e.stride_rows == whole_stride):
            _store(result, rows, columns, m, whole_n, e.ptr, whole_stride, e.stride_columns)
        else:
            _store(result, rows, columns, m, n, e.ptr, e.stride_rows, e.stride_columns)


@triton.jit
def _store(x, rows, columns, m, n, at, stride_rows, stride_columns):
    stored = (rows < m)[:, None] & (columns < n)[None, :]
    at += (rows[:, None] * stride_rows).to(tl.int64) + columns[None, :] * stride_columns
    tl.store(at, x, stored)


@triton.jit
def aligned_part(extent, dtype: tl.constexpr):
    """Round a number of elements down to a multiple of 16 bytes, and so tell the compiler that it is one."""
    UNIT: tl.constexpr = 128 // dtype.primitive_bitwidth
    return extent // UNIT * UNIT


@triton.jit
def finished(acc, rows, columns, batch, m, n, dtype: tl.constexpr, epilogue, vectors: Vectors = None):
    """Apply the epilogue to a product [rows, columns] whose result will be converted to `dtype`.

    Computed in fp32, or, where both dtypes are int32, in int32; then it wraps. vectors: operands that were loaded
    beforehand.
    """
    known_rows, known_columns = rows < m, columns < n
    known = known_rows[:, None] & known_columns[None, :]
    has_zeros: tl.constexpr = epilogue.EPILOGUE == "any" and epilogue.zero_a is not None and acc.dtype == tl.int32
    if has_zeros and given(epilogue.zero_a):
        zero = tl.load(epilogue.zero_a + rows * epilogue.stride_zero_a_m, known_rows, 0)
        acc -= zero[:, None] * tl.load(epilogue.colsum + columns, known_columns, 0)[None, :]
    value = acc * epilogue.alpha if acc.dtype == dtype else acc.to(tl.float32) * epilogue.alpha
    if epilogue.scale_a is not None:
        scales = row_scales(rows, m, epilogue, batch) if vectors is None else vectors.scale_a[0]
        value *= scales[:, None]
    if epilogue.scale_b is not None:
        scales = column_scales(columns, n, epilogue, batch) if vectors is None else vectors.scale_b[0]
        value *= scales[None, :]
    if epilogue.EPILOGUE != "none" and epilogue.bias is not None:
        bias = column_bias(columns, n, epilogue, batch) if vectors is None else vectors.bias[0]
        value += bias[None, :].to(value.dtype)
    if epilogue.EPILOGUE == "any" and epilogue.d is not None:
        at = batch.to(tl.int64) * epilogue.stride_d_batch + rows[:, None] * epilogue.stride_d_m
        at += columns[None, :] * epilogue.stride_d_n
        if given(epilogue.d):
            value += tl.load(epilogue.d + at, known, 0.0).to(value.dtype) * epilogue.beta
    if epilogue.EPILOGUE == "any" and epilogue.activation != 0:
        value = activate(value, epilogue.activation)
    return value


@triton.jit
def activate(value, activation):
    """Apply an activation to fp32 values. NaN stays NaN."""
    if activation == RELU:
        value = tl.where(value < 0, 0.0, value)
    elif activation == LEAKY_RELU:
        value = tl.where(value < 0, LEAK * value, value)
    elif activation == GELU:
        value = 0.5 * value * (1 + tl.erf(value * RSQRT_2))
    elif activation == GELU_TANH:
        value = _gated(value, value * (1.5957691216057308 + 0.07135481627159907 * value * value))
    elif activation == SILU:
        value = _gated(value, value)
    return value


@triton.jit
def _gated(value, gate):
    """value * sigmoid(gate)."""
    return value / (1 + tl.exp2(-LOG2_E * gate))


@triton.jit
def convert(value, dtype: tl.constexpr):
    """Convert to a dtype. From fp32 to int8: rounded half to even, saturating; NaN becomes 0."""
    if dtype == tl.int8 and value.dtype == tl.float32:
        value = half_to_even(tl.where(value == value, tl.minimum(tl.maximum(value, -128.0), 127.0), 0.0))
    return value.to(dtype)
