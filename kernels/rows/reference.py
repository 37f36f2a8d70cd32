"""Row operations in numpy: the exact results, and what their dtypes allow.

Each `f` computes in float64, and each `f_same_dtype` in float32, as the kernels do, with results in the dtype of the
inputs. Shapes are those of manifests/rows.yaml. Sums with a residual are rounded to its dtype in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

Array = np.ndarray
Results = Array | tuple[Array, ...]


def softmax(x: Array, mask: Array | None = None, temperature: Array | None = None, scale: float = 1.0) -> Array:
    """exp(scale * x / temperature) over its sum along the last dim. x: [rows, cols], any float dtype; mask: bool or
    None; temperature: [rows], [1] or None.

    A row that holds a NaN or +inf, or nothing but -inf, becomes NaN throughout.
    """
    return _softmax(np.float64, x, mask, temperature, scale)


def softmax_same_dtype(
    x: Array, mask: Array | None = None, temperature: Array | None = None, scale: float = 1.0
) -> Array:
    return _softmax(np.float32, x, mask, temperature, scale).astype(x.dtype)


def _softmax(compute: type, x: Array, mask: Array | None, temperature: Array | None, scale: float) -> Array:
    heat = compute(1) if temperature is None else temperature.astype(compute)[:, None]
    with np.errstate(invalid="ignore"):
        x = x.astype(compute) * (compute(scale) / heat)
        if mask is not None:
            x = np.where(mask.astype(bool), x, x.dtype.type(-np.inf))
        p = np.exp(x - x.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)


# Norms


def rms_norm(x: Array, weight: Array, residual: Array | None = None, **options: object) -> Results:
    """x / sqrt(mean(x ** 2) + eps) * weight; (the new residual, that) with a residual."""
    return _plain(np.float64, None, False, x, residual, weight, None, **options)


def rms_norm_same_dtype(x: Array, weight: Array, residual: Array | None = None, **options: object) -> Results:
    return _plain(np.float32, x.dtype, False, x, residual, weight, None, **options)


def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None, **options: object
) -> Results:
    """(x - mean) / sqrt(variance + eps) * weight + bias; (the new residual, that) with a residual."""
    return _plain(np.float64, None, True, x, residual, weight, bias, **options)


def layer_norm_same_dtype(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None, **options: object
) -> Results:
    return _plain(np.float32, x.dtype, True, x, residual, weight, bias, **options)


def rms_norm_quantised(
    x: Array, weight: Array, out: Array, residual: Array | None = None, **options: object
) -> Results:
    """(rms_norm / scale, [the new residual,] scale of each row); the first is exact, and not rounded to out's dtype."""
    return _quantised(np.float64, False, out, False, x, residual, weight, None, **options)


def rms_norm_quantised_same_dtype(
    x: Array, weight: Array, out: Array, residual: Array | None = None, **options: object
) -> Results:
    return _quantised(np.float32, True, out, False, x, residual, weight, None, **options)


def layer_norm_quantised(
    x: Array, weight: Array, out: Array, bias: Array, residual: Array | None = None, **options: object
) -> Results:
    """(layer_norm / scale, [the new residual,] scale of each row); the first is exact, as in `rms_norm_quantised`."""
    return _quantised(np.float64, False, out, True, x, residual, weight, bias, **options)


def layer_norm_quantised_same_dtype(
    x: Array, weight: Array, out: Array, bias: Array, residual: Array | None = None, **options: object
) -> Results:
    return _quantised(np.float32, True, out, True, x, residual, weight, bias, **options)


def rms_norm_block_quantised(
    x: Array, weight: Array, out: Array, residual: Array | None = None, block: int = 128, bound: float = 0.0,
    **options: object,
) -> Results:  # fmt: skip
    """(rms_norm / scale, [the new residual,] scales of each row and `block` columns); the first is exact."""
    values, total = _norm(np.float64, False, x, residual, weight, None, **options)
    values, scales = _by_block(values, out.dtype, block, bound)
    return tuple(result for result in (values, total, scales) if result is not None)


def rms_norm_block_quantised_same_dtype(
    x: Array, weight: Array, out: Array, residual: Array | None = None, block: int = 128, bound: float = 0.0,
    **options: object,
) -> Results:  # fmt: skip
    values, total = _norm(np.float32, False, x, residual, weight, None, **options)
    values, scales = _by_block(values, out.dtype, block, bound)
    values = rounded_to(values, out.dtype)
    return tuple(result for result in (values, total, scales) if result is not None)


def _plain(compute: type, storage: np.dtype | None, *arguments: object, **options: object) -> Results:
    values, total = _norm(compute, *arguments, **options)
    values = values.astype(storage or compute)
    return values if total is None else (total, values)


def _quantised(
    compute: type, rounded: bool, out: Array, *arguments: object, scale: Array | None = None, bound: float = 0,
    **options: object,
) -> Results:  # fmt: skip
    values, total = _norm(compute, *arguments, **options)
    largest_used = np.minimum(np.abs(values).max(-1), compute(bound or np.inf))
    scales = largest_used / compute(largest(out.dtype)) if scale is None else np.full(len(values), scale[0], compute)
    values = scaled(values, scales, out.dtype)
    values = rounded_to(values, out.dtype) if rounded else values
    return tuple(result for result in (values, total, scales) if result is not None)


def _norm(
    compute: type, subtract_mean: bool, x: Array, residual: Array | None, weight: Array, bias: Array | None,
    eps: float, zero_centred: bool = False, smooth: Array | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
    """(the result, the new residual if there is one)."""
    total = None
    if residual is not None:
        x = total = (residual.astype(np.float32) + x.astype(np.float32)).astype(x.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        x = x.astype(compute)
        if subtract_mean:
            x = x - x.mean(-1, keepdims=True, dtype=compute)
        variance = np.square(x).mean(-1, keepdims=True, dtype=compute)
        values = x / np.sqrt(variance + compute(eps)) * (weight.astype(compute) + compute(zero_centred))
        values = values if bias is None else values + bias.astype(compute)
        return (values if smooth is None else values * smooth.astype(compute)), total


# Quantising


def largest(dtype: np.dtype) -> float:
    """Return the largest magnitude of quantised values; -128 of int8 is not used."""
    return 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)


def row_scale(values: Array, dtype: np.dtype) -> Array:
    """Each row's largest magnitude over the largest of `dtype`, in the dtype of values."""
    return np.abs(values).max(-1) / values.dtype.type(largest(dtype))


def scaled(values: Array, scale: Array, dtype: np.dtype) -> Array:
    """values / scale between the limits of `dtype`, where a scale of 0 counts as 1. Not rounded."""
    divisor = np.where(scale == 0, scale.dtype.type(1), scale)[:, None]
    return np.clip(values / divisor, -largest(dtype), largest(dtype))


def _by_block(
    values: Array, dtype: np.dtype, block: int, bound: float = 0.0, scale: Array | None = None
) -> tuple[Array, Array]:
    """(values / scale, not rounded; scales) with a scale for each row and `block` columns."""
    rows, cols = values.shape
    count = -(-cols // block)
    tiles = np.zeros((rows, count * block), values.dtype)
    tiles[:, :cols] = values
    tiles = tiles.reshape(rows * count, block)
    limited = np.minimum(np.abs(tiles), values.dtype.type(bound or np.inf))
    scales = row_scale(limited, dtype) if scale is None else np.full(len(tiles), scale[0], values.dtype)
    return scaled(tiles, scales, dtype).reshape(rows, -1)[:, :cols], scales.reshape(rows, count)


def rounded_to(values: Array, dtype: np.dtype) -> Array:
    """Rounded half to even."""
    return (np.rint(values) if dtype == np.int8 else values).astype(dtype)


def cast(x: Array, out: Array) -> Array:
    """x, in float64, saturated if out's dtype is a float8: infinities too."""
    x = x.astype(np.float64)
    return np.clip(x, -largest(out.dtype), largest(out.dtype)) if out.dtype.itemsize == 1 else x


def cast_same_dtype(x: Array, out: Array) -> Array:
    with np.errstate(over="ignore"):
        return cast(x, out).astype(np.float32).astype(out.dtype)


# Positions, activations, tables


def rotary(
    x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool = False, compute: type = np.float64
) -> Array:
    """The first 2 * pairs elements of each head rotated by the angles of its token's position."""
    first, second = _halves(cos.shape[1], interleaved)
    by_element = [np.empty((len(table), 2 * table.shape[1]), table.dtype) for table in (cos, sin)]
    for angles, table in zip(by_element, (cos, sin), strict=True):
        angles[:, first] = angles[:, second] = table
    return rotary_by_element(x, *by_element, positions, interleaved, compute)


def rotary_same_dtype(x: Array, *arrays: Array, **named: object) -> Array:
    return rotary(x, *arrays, **named, compute=np.float32).astype(x.dtype)


def rotary_by_element(
    x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool = False, compute: type = np.float64
) -> Array:
    """`rotary` with an angle for each element: cos, sin: [max_position, 2 * pairs]."""
    first, second = _halves(cos.shape[1] // 2, interleaved)
    positions = positions.clip(0, len(cos) - 1)
    c, s = (table.astype(compute)[positions][:, None] for table in (cos, sin))
    out = x.astype(compute)
    turned = np.empty((*x.shape[:-1], cos.shape[1]), compute)
    turned[..., first], turned[..., second] = -out[..., second], out[..., first]
    out[..., : cos.shape[1]] = out[..., : cos.shape[1]] * c + turned * s
    return out


def rotary_by_element_same_dtype(x: Array, *arrays: Array, **named: object) -> Array:
    return rotary_by_element(x, *arrays, **named, compute=np.float32).astype(x.dtype)


def _halves(pairs: int, interleaved: bool) -> tuple[Array, Array]:
    """Return the indices of the first and of the second elements of pairs."""
    first = np.arange(pairs)
    return (2 * first, 2 * first + 1) if interleaved else (first, first + pairs)


def qk_norm_rotary(q: Array, k: Array, q_weight: Array, k_weight: Array, **options: object) -> tuple[Array, Array]:
    """(q, k), each with its heads normalised, and then rotated."""
    return _norm_rotary(np.float64, q, q_weight, **options), _norm_rotary(np.float64, k, k_weight, **options)


def qk_norm_rotary_same_dtype(
    q: Array, k: Array, q_weight: Array, k_weight: Array, **options: object
) -> tuple[Array, Array]:
    results = _norm_rotary(np.float32, q, q_weight, **options), _norm_rotary(np.float32, k, k_weight, **options)
    return results[0].astype(q.dtype), results[1].astype(k.dtype)


def _norm_rotary(
    compute: type, x: Array, weight: Array, cos: Array, sin: Array, positions: Array, eps: float,
    zero_centred: bool = False, interleaved: bool = False,
) -> Array:  # fmt: skip
    values, _ = _norm(compute, False, x, None, weight, None, eps, zero_centred)
    return rotary(values, cos, sin, positions, interleaved, compute)


def silu_mul(gate: Array, up: Array) -> Array:
    return _gated(np.float64, _silu, gate, up)


def silu_mul_same_dtype(gate: Array, up: Array) -> Array:
    return _gated(np.float32, _silu, gate, up).astype(gate.dtype)


def gelu_mul(gate: Array, up: Array, approximate: str = "none") -> Array:
    """approximate: none (the error function) or tanh."""
    return _gated(np.float64, _gelu(approximate), gate, up)


def gelu_mul_same_dtype(gate: Array, up: Array, approximate: str = "none") -> Array:
    return _gated(np.float32, _gelu(approximate), gate, up).astype(gate.dtype)


def _gated(compute: type, activation: Callable[[Array], Array], gate: Array, up: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return activation(gate.astype(compute)) * up.astype(compute)


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(approximate: str) -> Callable[[Array], Array]:
    return _gelu_tanh if approximate == "tanh" else _gelu_erf


def _gelu_tanh(x: Array) -> Array:
    real = x.dtype.type
    return x * (real(0.5) + real(0.5) * np.tanh(real(np.sqrt(2 / np.pi)) * (x + real(0.044715) * x**3)))


def _gelu_erf(x: Array) -> Array:
    real = x.dtype.type
    erf = np.vectorize(math.erf, otypes=[np.float64])(x * real(0.5**0.5)).astype(x.dtype)
    return x * (real(0.5) + real(0.5) * erf)


def _relu(threshold: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x <= x.dtype.type(np.float32(threshold)), x.dtype.type(0), x)


def activate(
    x: Array, up: Array | None = None, kind: str = "silu", threshold: float = 0.0, limit: float = 0.0,
    shift: float = 0.0, compute: type = np.float64,
) -> Array:  # fmt: skip
    """A function of x, times up. limit: if not 0, the bound of x and of the magnitude of up. shift: added to up."""
    functions: dict[str, Callable[[Array], Array]] = {
        "silu": _silu, "gelu": _gelu_erf, "gelu_tanh": _gelu_tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "gelu_quick": lambda x: x / (1 + np.exp(x.dtype.type(-1.702) * x)),
        "relu": _relu(threshold), "relu_squared": lambda x: np.square(_relu(threshold)(x)),
    }  # fmt: skip
    up, shift = (np.ones_like(x), 0.0) if up is None else (up, shift)
    if limit:
        bound = compute(np.float32(limit))
        x, up = np.minimum(x.astype(compute), bound), np.clip(up.astype(compute), -bound, bound)
    return _gated(compute, functions[kind], x, up.astype(compute) + compute(np.float32(shift)))


def activate_same_dtype(x: Array, up: Array | None = None, **options: object) -> Array:
    return activate(x, up, **options, compute=np.float32).astype(x.dtype)


def activate_quantised(
    x: Array, q: Array, up: Array | None = None, scale: Array | None = None, block: int | None = None,
    bound: float = 0.0, **options: object,
) -> tuple[Array, Array]:  # fmt: skip
    """(activate / scale, not rounded; scales of each row and `block` columns)."""
    return _by_block(activate(x, up, **options), q.dtype, block or x.shape[1], bound, scale)


def activate_quantised_same_dtype(
    x: Array, q: Array, up: Array | None = None, scale: Array | None = None, block: int | None = None,
    bound: float = 0.0, **options: object,
) -> tuple[Array, Array]:  # fmt: skip
    values = activate(x, up, **options, compute=np.float32)
    values, scales = _by_block(values, q.dtype, block or x.shape[1], bound, scale)
    return rounded_to(values, q.dtype), scales


def multiply_add(x: Array, a: Array, b: Array, compute: type = np.float64) -> Array:
    return x.astype(compute) * a.astype(compute) + b.astype(compute)


def multiply_add_same_dtype(x: Array, a: Array, b: Array) -> Array:
    return multiply_add(x, a, b, np.float32).astype(x.dtype)


def embedding(table: Array, ids: Array, scale: float = 1.0) -> Array:
    """Rows of the table times the scale, as the table's dtype has it; zeros for ids outside."""
    known = (ids >= 0) & (ids < len(table))
    factor = np.float64(table.dtype.type(scale))
    return np.where(known[:, None], table[np.where(known, ids, 0)].astype(np.float64) * factor, 0.0)


def embedding_same_dtype(table: Array, ids: Array, scale: float = 1.0) -> Array:
    return embedding(table, ids, scale).astype(table.dtype)


def transpose(x: Array) -> Array:
    return x.swapaxes(1, 2)


transpose_same_dtype = transpose


# Choosing tokens

COLD = 1e-20
"""At temperatures up to this, the largest logit is chosen."""


def argmax(logits: Array) -> Array:
    """The column of each row's largest logit, the first of equal ones; NaN counts as the largest. int32 [rows]."""
    return np.argmax(logits.astype(np.float64), -1).astype(np.int32)


argmax_same_dtype = argmax


def top_k(
    x: Array, k: int, lengths: Array | None = None, offsets: Array | None = None, table: Array | None = None,
    is_sorted: bool = True, ties: str = "first", page_size: int = 1,
) -> tuple[Array, Array]:  # fmt: skip
    """(values, int32 columns) of the k largest elements of each row, of equal ones the first or last; -inf and -1 past
    the row's length. NaN counts as the largest."""
    rows, cols = x.shape
    values, columns = np.full((rows, k), -np.inf, x.dtype), np.full((rows, k), -1, np.int32)
    for row in range(rows):
        end = cols if lengths is None else int(np.clip(lengths[row], 0, cols))
        each = x[row, :end].astype(np.float64)
        places = np.arange(end) if ties == "first" else -np.arange(end)
        chosen = np.lexsort((places, -each, ~np.isnan(each)))[:k]
        chosen = chosen if is_sorted else np.sort(chosen)
        values[row, : len(chosen)] = x[row, chosen]
        if table is not None:
            chosen = table[row, chosen // page_size] * page_size + chosen % page_size
        columns[row, : len(chosen)] = chosen + (0 if offsets is None else offsets[row])
    return values, columns


top_k_same_dtype = top_k


def sample(
    logits: Array, temperature: Array, seeds: Array, positions: Array, top_k: Array | None = None,
    top_p: Array | None = None, min_p: Array | None = None,
) -> Array:  # fmt: skip
    """A column of each row, at random. int32 [rows]."""
    return argmax(sample_scores(logits, temperature, seeds, positions, top_k, top_p, min_p))


sample_same_dtype = sample


def sample_scores(
    logits: Array, temperature: Array, seeds: Array, positions: Array, top_k: Array | None = None,
    top_p: Array | None = None, min_p: Array | None = None,
) -> Array:  # fmt: skip
    """Return the scores of which the sampled column has the largest: logit / temperature + noise if kept, else -inf."""
    rows, cols = logits.shape
    scores = np.empty((rows, cols))
    limits = (0 if top_k is None else top_k), (1 if top_p is None else top_p), (0 if min_p is None else min_p)
    parameters = np.broadcast(*(np.broadcast_to(x, rows) for x in (*limits, temperature)))
    for row, (*limit, heat) in enumerate(parameters):
        x = logits[row].astype(np.float64)
        if heat > COLD:
            noise = gumbel(int(seeds[row]), int(positions[row]), cols)
            x = np.where(kept(x, *limit, heat), x / float(heat) + noise, -np.inf)
        scores[row] = x
    return scores


def kept(x: Array, k: int, p: float, least: float, heat: float | None, joint: bool = False) -> Array:
    """Mark a row's logits that top_k, top_p and min_p keep, together with those equal to the last one kept.

    heat: the temperature, or None: x are probabilities. joint: p is a part of all, and not of the k largest.
    """
    k, p, least = int(k), float(p), float(least)
    every = ordered = np.sort(x)[::-1]
    bound = -np.inf
    if least > 0:
        bound = ordered[0] * least if heat is None else ordered[0] + float(heat) * np.log(least)
    if 0 < k < len(x):
        ordered = ordered[ordered >= ordered[k - 1]]
    last = ordered[-1]
    if p < 1:
        among = every if joint else ordered
        mass = (among if heat is None else np.exp((among - among[0]) / float(heat))).cumsum()
        last = max(last, among[: 1 + np.searchsorted(mass, max(p, 0) * mass[-1])][-1])
    return (x >= last) & (x >= bound)


def renorm_probs(probs: Array, **limits: Array | bool) -> Array:
    """Probabilities that the limits keep, divided by their sum; 0 for the others."""
    return _renormalised(np.float64, probs, **limits)


def renorm_probs_same_dtype(probs: Array, **limits: Array | bool) -> Array:
    return _renormalised(np.float32, probs, **limits).astype(probs.dtype)


def _renormalised(compute: type, probs: Array, **limits: Array | bool) -> Array:
    values = np.where(kept_rows(probs, None, **limits), probs.astype(compute), compute(0))
    total = values.sum(1, keepdims=True)
    return values / np.where(total == 0, 1, total)


def mask_logits(logits: Array, **limits: Array) -> Array:
    """Logits that the limits keep; -inf for the others."""
    return np.where(kept_rows(logits, 1.0, **limits), logits, -np.inf).astype(logits.dtype)


mask_logits_same_dtype = mask_logits


def kept_rows(
    x: Array, heat: float | None, top_k: Array | None = None, top_p: Array | None = None, min_p: Array | None = None,
    joint: bool = False,
) -> Array:  # fmt: skip
    """`kept` of each row."""
    rows = len(x)
    limits = (0 if top_k is None else top_k), (1 if top_p is None else top_p), (0 if min_p is None else min_p)
    each = zip(x.astype(np.float64), *(np.broadcast_to(limit, rows) for limit in limits), strict=True)
    return np.array([kept(row, *limit, heat, joint) for row, *limit in each], bool).reshape(x.shape)


def sample_probs(probs: Array, seeds: Array, positions: Array, **limits: Array | bool) -> Array:
    """A column of each row, at random. int32 [rows]."""
    return argmax(sample_probs_scores(probs, seeds, positions, **limits))


sample_probs_same_dtype = sample_probs


def sample_probs_scores(probs: Array, seeds: Array, positions: Array, **limits: Array | bool) -> Array:
    """Return the scores of which the sampled column has the largest: log(probability) + noise if kept, else -inf."""
    with np.errstate(divide="ignore"):
        scores = np.log(np.where(kept_rows(probs, None, **limits), probs.astype(np.float64), 0))
    noise = [gumbel(int(seed), int(position), probs.shape[1]) for seed, position in zip(seeds, positions, strict=True)]
    return scores + np.array(noise).reshape(scores.shape)


OF_TOKENS, OF_DRAFTS, OF_RESIDUALS = range(3)
"""Streams of random numbers: for choosing tokens, accepting drafts, and choosing tokens in place of refused drafts."""


def gumbel(seed: int, position: int, cols: int, use: int = OF_TOKENS) -> Array:
    """The noise of columns 0 to cols - 1."""
    return -np.log(-np.log(uniform(seed, position, cols, use)))


def uniform(seed: int, position: int, cols: int, use: int) -> Array:
    """A number for each column within (0, 1), from the first word of Philox 4x32 of ten rounds."""
    columns = np.arange(cols, dtype=np.uint64)
    words = philox((columns, columns * 0 + position % 2**32, columns * 0 + use, columns * 0), seed % 2**64)
    return ((words[0] >> np.uint64(9)) + 0.5) / 2**23


def philox(counter: tuple[Array, ...], key: int) -> tuple[Array, ...]:
    """Philox 4x32-10 of uint64 arrays that hold 32-bit words, and a key of 64 bits."""
    low, high, mask = key % 2**32, key >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = (
            (right >> np.uint64(32)) ^ counter[1] ^ np.uint64(low),
            right & mask,
            (left >> np.uint64(32)) ^ counter[3] ^ np.uint64(high),
            left & mask,
        )
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return counter
