"""Convert weights to the layouts of `linear_int4`, `linear_int4_a8`, `linear_int8` and their prepacked forms, in numpy.

Sources are the tensors of GPTQ, AWQ and compressed-tensors checkpoints, or floats. Conversion is done once, offline.

**Layout.** The weights of an output are contiguous along k; two codes of 4 bits share a byte, the even one low. Scales
and zeros are indexed by group, then output. A weight is (code - zero) * scale, or codebook[code] * scale.

**Sources.** GPTQ: `QuantLinear` of AutoGPTQ and of its successor GPTQModel, whose version 2 stores zeros unchanged.
AWQ: `WQLinear_GEMM` of AutoAWQ. compressed-tensors: its format `pack-quantized`. NF4: Dettmers et al., "QLoRA",
appendix E, and bitsandbytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray

PER_WORD = 8
"""Codes of 4 bits in an int32 word."""

BITS = (4, 8)
"""Supported sizes of the codes that checkpoints pack in int32."""

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of an AWQ word for each of eight neighbouring outputs."""

NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32,
)  # fmt: skip
"""The codebook of NF4: quantiles of the normal distribution, between -1 and 1."""


@dataclass(frozen=True)
class Packed:
    """4-bit or 8-bit weights for the ops `linear_int4` and `linear_int8`.

    Attributes:
        w: codes; 4 bits: uint8 [n, cdiv(k, 2)], the even one of k low; 8 bits: int8 [n, k].
        scales: [groups, n], any float dtype.
        zeros: the code of 0, [groups, n], of w's dtype; None: 8 for 4 bits, 0 for 8 bits.
        group_size: weights along k that share a scale.
        order: the column of the activations for each weight, int32 [k]; None: in order.
        codebook: the value of each code, float32 [16], instead of code - zero.
    """

    w: Array
    scales: Array
    zeros: Array | None
    group_size: int
    order: Array | None = None
    codebook: Array | None = None

    def arguments(self) -> dict[str, Array | int | None]:
        """The keyword arguments of the ops."""
        arguments = {"w": self.w, "scales": self.scales, "zeros": self.zeros, "group_size": self.group_size,
                     "order": self.order}  # fmt: skip
        return arguments if self.codebook is None else {**arguments, "codebook": self.codebook}


def from_gptq(
    qweight: Array, qzeros: Array, scales: Array, g_idx: Array | None = None, zeros_are_less_one: bool = True,
    symmetric: bool = False, bits: int = 4,
) -> Packed:  # fmt: skip
    """Convert GPTQ's weights of 4 or 8 bits.

    Args:
        qweight: int32 [k * bits / 32, n], each word packed along k, lowest bits first.
        qzeros: int32 [groups, n * bits / 32].
        scales: float [groups, n].
        g_idx: the group of each weight, int32 [k], if they are not in order (act-order).
        zeros_are_less_one: zeros are stored less one (version 1 of the format, the usual one), or unchanged (v2).
        symmetric: the config's `sym`. All zeros must then be 8 (4 bits) or 128 (8 bits), which detects a wrong version.

    Raises:
        ValueError: wrong shapes or dtypes, missing groups or groups of different sizes in g_idx, zeros of the other
            version.
    """
    per_word = _per_word(bits)
    _check("qweight", qweight, ("k / 8" if bits == 4 else "k / 4", "n"))
    k, n = per_word * qweight.shape[0], qweight.shape[1]
    _check("scales", scales, ("groups", n), FLOATS)
    groups = len(scales)
    _check("qzeros", qzeros, (groups, _words(n, per_word)))
    size = group_size(k, groups)
    order = None if g_idx is None else _act_order(g_idx, k, groups, size)
    codes = _codes(qweight, bits).transpose(0, 2, 1).reshape(k, n)
    zeros = _codes(qzeros, bits).reshape(groups, n).astype(np.int16) + zeros_are_less_one
    middle = 1 << bits - 1
    if symmetric and (zeros != middle).any():
        raise ValueError(
            f"qzeros of a symmetric checkpoint, with zeros_are_less_one={zeros_are_less_one}, are "
            f"{np.unique(zeros).tolist()}; {middle} is needed: are they of the other version?"
        )
    ordered = codes if order is None else codes[order]
    w, zeros = _in_layout(ordered.T, zeros, bits)
    return Packed(w, np.ascontiguousarray(scales), zeros, size, order)


def from_awq(qweight: Array, qzeros: Array, scales: Array) -> Packed:
    """Convert AWQ's weights of 4 bits.

    Args:
        qweight: int32 [k, n / 8], eight of n in a word, in AWQ's order.
        qzeros: int32 [groups, n / 8], packed likewise.
        scales: float [groups, n].

    Raises:
        ValueError: wrong shapes or dtypes.
    """
    _check("qweight", qweight, ("k", "n / 8"))
    k, n = qweight.shape[0], PER_WORD * qweight.shape[1]
    _check("scales", scales, ("groups", n), FLOATS)
    groups = len(scales)
    _check("qzeros", qzeros, (groups, _words(n, PER_WORD)))
    size = group_size(k, groups)
    codes, zeros = (_codes(x, 4)[..., AWQ_ORDER].reshape(len(x), n) for x in (qweight, qzeros))
    return Packed(pack_int4(codes.T), np.ascontiguousarray(scales), zeros, size)


def from_compressed_tensors(
    weight_packed: Array, weight_scale: Array, weight_shape: Array, weight_zero_point: Array | None = None,
    weight_g_idx: Array | None = None, bits: int = 4,
) -> Packed:  # fmt: skip
    """Convert compressed-tensors' packed weights of 4 or 8 bits.

    Args:
        weight_packed: int32 [n, cdiv(k * bits, 32)], 32 / bits of k in a word, the first lowest. Codes are stored plus
            8 (4 bits) or 128 (8 bits).
        weight_scale: float [n, groups].
        weight_shape: int [2]: n, k.
        weight_zero_point: int32 [cdiv(n * bits, 32), groups], packed likewise along n; None: all are 0.
        weight_g_idx: the group of each weight, int [k], if they are not in order.

    Raises:
        ValueError: wrong shapes or dtypes, missing groups or groups of different sizes in weight_g_idx.
    """
    per_word = _per_word(bits)
    _check("weight_shape", weight_shape, (2,), INTEGERS)
    n, k = (int(extent) for extent in weight_shape)
    _check("weight_packed", weight_packed, (n, -(-k // per_word)))
    _check("weight_scale", weight_scale, (n, "groups"), FLOATS)
    groups = weight_scale.shape[1]
    size = group_size(k, groups)
    order = None if weight_g_idx is None else _act_order(weight_g_idx, k, groups, size)
    if weight_zero_point is None:
        zeros = np.full((groups, n), 1 << bits - 1, np.int16)
    else:
        _check("weight_zero_point", weight_zero_point, (-(-n // per_word), groups))
        by_output = _codes(np.ascontiguousarray(weight_zero_point.T), bits).reshape(groups, -1)
        zeros = by_output[:, :n].astype(np.int16)
    codes = _codes(weight_packed, bits).reshape(n, -1)[:, :k]
    w, zeros = _in_layout(codes if order is None else codes[:, order], zeros, bits)
    return Packed(w, np.ascontiguousarray(weight_scale.T), zeros, size, order)


def to_nf4(weight: Array, size: int = 64, dtype: np.dtype | type = np.float16) -> Packed:
    """Quantise weights [n, k] to NF4: its nearest value times the largest magnitude of each group of `size`.

    Raises:
        ValueError: a wrong shape, groups that do not divide k, or numbers that are not finite or too large.
    """
    grouped = _grouped(weight, size)
    scales = _scales(np.abs(grouped).max(2), dtype)
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)[..., None]
    middles = (NF4[1:] + NF4[:-1]) / 2
    codes = np.searchsorted(middles, grouped / divisor).astype(np.uint8)
    return Packed(pack_int4(codes.reshape(weight.shape)), np.ascontiguousarray(scales.T), None, size, codebook=NF4)


def to_int4(weight: Array, size: int = 128, dtype: np.dtype | type = np.float16) -> Packed:
    """Round weights [n, k] to 16 steps between the least and the largest of each group of `size` and 0.

    Raises:
        ValueError: a wrong shape, groups that do not divide k, or numbers that are not finite or too large.
    """
    grouped = _grouped(weight, size)
    least, largest = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
    scales = _scales((largest - least) / 15, dtype)
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)
    zeros = np.clip(np.rint(-least / divisor), 0, 15)
    codes = np.clip(np.rint(grouped / divisor[..., None]) + zeros[..., None], 0, 15).astype(np.uint8)
    zeros = np.ascontiguousarray(zeros.astype(np.uint8).T)
    return Packed(pack_int4(codes.reshape(weight.shape)), np.ascontiguousarray(scales.T), zeros, size)


def to_int8(weight: Array, size: int | None = None, dtype: np.dtype | type = np.float16) -> Packed:
    """Round weights [n, k] to -127 .. 127 times a scale for each group of `size`, by default all of k.

    Raises:
        ValueError: a wrong shape, groups that do not divide k, or numbers that are not finite or too large.
    """
    size = size or weight.shape[1]
    grouped = _grouped(weight, size)
    scales = _scales(np.abs(grouped).max(2) / 127, dtype)
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)[..., None]
    codes = np.clip(np.rint(grouped / divisor), -127, 127).astype(np.int8)
    return Packed(np.ascontiguousarray(codes.reshape(weight.shape)), np.ascontiguousarray(scales.T), None, size)


TILE = 64
"""Outputs of a tile of prepacked weights, and its weights along k."""


@dataclass(frozen=True)
class Prepacked:
    """Weights in the order of matrix units, for the ops `linear_int4_prepacked` and `linear_int8_prepacked`.

    Attributes:
        w: int32 [n / 64, k / 4, 32] (4 bits) or [n / 64, k / 2, 32] (8 bits): tiles of 64 outputs by 64 of k, in 16 or
            32 rows of 32 words. Codes of 8 bits are stored plus 128.
        scales: [groups, n / 64, 64], any float dtype; the 64 outputs are sorted by output % 8, then output / 8.
        zeros: the stored code of 0, uint8, in the shape of the scales; None: 8 (4 bits) or 128 (8 bits).
        group_size: weights along k that share a scale.
        codebook: the value of each code of 4 bits, float32 [16], instead of code - zero.
    """

    w: Array
    scales: Array
    zeros: Array | None
    group_size: int
    codebook: Array | None = None

    def arguments(self) -> dict[str, Array | int | None]:
        """The keyword arguments of the ops."""
        arguments = {"w": self.w, "scales": self.scales, "zeros": self.zeros, "group_size": self.group_size}
        return arguments if self.codebook is None else {**arguments, "codebook": self.codebook}


def prepack(weights: Packed) -> Prepacked:
    """Convert weights to the layout of `linear_int4_prepacked` or `linear_int8_prepacked`.

    Raises:
        ValueError: the weights are in act-order; outputs, k or groups are not multiples of 64; arrays do not fit.
    """
    _check("scales", weights.scales, ("groups", "n"), FLOATS)
    if not isinstance(weights.group_size, int | np.integer) or weights.group_size < 1:
        raise ValueError(f"group_size is {weights.group_size}; an integer from 1 on is needed")
    groups, n = weights.scales.shape
    dtype = getattr(weights.w, "dtype", None)
    bits, k = 4 if dtype == np.uint8 else 8, int(weights.group_size) * groups
    if dtype not in (np.uint8, np.int8) or weights.w.shape != (n, k * bits // 8):
        found = f"w is {_described(weights.w)}"
        raise ValueError(
            f"{found}; it has to be uint8 [{n}, k / 2] for 4 bits or int8 [{n}, k] for 8, "
            f"where k = groups * group_size = {k}"
        )
    if weights.zeros is not None:
        _check("zeros", weights.zeros, (groups, n), weights.w.dtype.name)
    if weights.codebook is not None:
        _check("codebook", weights.codebook, (16,), "float32")
        if bits == 8:
            raise ValueError("codebook is given with codes of 8 bits; only codes of 4 bits have one")
    if weights.order is not None:
        raise ValueError(f"weights in act-order cannot be prepacked; linear_int{bits} takes them")
    if n % TILE or k % TILE or weights.group_size % TILE:
        raise ValueError(f"{n} outputs and k = {k} in groups of {weights.group_size}; multiples of {TILE} are needed")
    codes = unpack_int4(weights.w, k) if bits == 4 else _unsigned(weights.w)
    codes = codes.reshape(n // TILE, 4, 2, 8, k // TILE, 2, 2, 2, 4, 2).transpose(PREPACKED_ORDERS[bits])
    words = codes.reshape(-1, 32 // bits).astype(np.uint32) << np.arange(0, 32, bits, dtype=np.uint32)
    w = np.bitwise_or.reduce(words, axis=1).view(np.int32).reshape(n // TILE, k * bits // 16, 32)
    zeros = weights.zeros
    if zeros is not None:
        zeros = _by_lane(zeros if bits == 4 else _unsigned(zeros))
    return Prepacked(w, _by_lane(weights.scales), zeros, weights.group_size, weights.codebook)


PREPACKED_ORDERS = {4: (0, 4, 1, 3, 8, 5, 2, 9, 6, 7), 8: (0, 4, 1, 5, 3, 8, 2, 6, 7, 9)}
"""The transposition of codes to their stored order, by bits of a code.

The axes are (outputs: tile, slice, half of a slice, row; k: tile, half, sixteen, eight, pair, element of a pair). The
stored order is both tiles, then

- 4 bits: slice, row, pair (a lane); half of k, half of a slice (a word); element, sixteen, eight (bits of the word);
- 8 bits: slice, half of k, row, pair (a lane); half of a slice, sixteen (a word); eight, element (bits of the word).
"""


def _unsigned(codes: Array) -> Array:
    return codes.view(np.uint8) ^ 0x80


def _by_lane(by_output: Array) -> Array:
    """Reorder [groups, n] to [groups, n / 64, 64], sorted by output % 8, then output / 8."""
    groups, n = by_output.shape
    tiles = by_output.reshape(groups, n // TILE, TILE // 8, 8)
    return np.ascontiguousarray(tiles.swapaxes(2, 3)).reshape(groups, n // TILE, TILE)


def pack_int4(codes: Array) -> Array:
    """Pack codes 0 .. 15, uint8 [n, k], two in a byte, the even one low: uint8 [n, cdiv(k, 2)].

    Raises:
        ValueError: a wrong shape or dtype, or larger codes.
    """
    _check("codes", codes, ("n", "k"), "uint8")
    if codes.max(initial=0) > 15:
        raise ValueError(f"a code is {codes.max()}; 0 to 15 are allowed")
    even = np.zeros((codes.shape[0], -(-codes.shape[1] // 2) * 2), np.uint8)
    even[:, : codes.shape[1]] = codes
    return even[:, ::2] | even[:, 1::2] << 4


def unpack_int4(packed: Array, k: int) -> Array:
    """Unpack codes to uint8 [n, k]: the inverse of `pack_int4`. Raises `ValueError` for a wrong shape or dtype."""
    _check("packed", packed, ("n", -(-k // 2)), "uint8")
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), 2 * packed.shape[1])[:, :k]


def group_size(k: int, groups: int) -> int:
    """The number of weights in each of `groups` groups. Raises `ValueError` if they do not divide k."""
    if groups < 1 or k < 1 or k % groups:
        raise ValueError(f"scales for {groups} groups, which do not divide k = {k}")
    return k // groups


def _grouped(weight: Array, size: int) -> Array:
    """Reshape weights to fp32 [n, groups, size]. Raises ValueError for a wrong shape or groups that do not divide k."""
    _check("weight", weight, ("n", "k"), NUMBERS)
    n, k = weight.shape
    if not isinstance(size, int | np.integer) or size < 1 or k < 1 or k % size:
        raise ValueError(f"groups of {size} do not divide k = {k}")
    return weight.astype(np.float32).reshape(n, k // size, size)


def _scales(numbers: Array, dtype: np.dtype | type) -> Array:
    """Convert scales to their dtype. Raises ValueError if any is not finite, so weights are too large or not finite."""
    with np.errstate(over="ignore"):
        scales = numbers.astype(dtype)
    if not np.isfinite(scales).all():
        raise ValueError(f"weight has numbers that are not finite, or too large for scales of {scales.dtype}")
    return scales


def _codes(words: Array, bits: int) -> Array:
    if bits == 8:
        return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return (words[..., None] >> np.arange(0, 32, 4, dtype=np.int32) & 15).astype(np.uint8)


def _in_layout(codes: Array, zeros: Array, bits: int) -> tuple[Array, Array]:
    """Return (w, zeros) of `Packed` from codes uint8 [n, k] and zeros int16 [groups, n]. 8-bit codes become signed."""
    if bits == 4:
        return pack_int4(codes), zeros.astype(np.uint8)
    if zeros.max(initial=0) > 255:
        raise ValueError("a zero of 8-bit codes is 256; 0 to 255 are allowed")
    return np.ascontiguousarray(codes ^ 0x80).view(np.int8), (zeros - 128).astype(np.int8)


def _act_order(group_of: Array, k: int, groups: int, size: int) -> Array | None:
    """The column of each weight after sorting by group; None if they are sorted already."""
    _check("g_idx", group_of, (k,), INTEGERS)
    if np.array_equal(group_of, np.arange(k) // size):
        return None
    least, largest = int(group_of.min()), int(group_of.max())
    if least < 0 or largest >= groups:
        raise ValueError(f"g_idx has groups from {least} to {largest}; the scales have {groups}")
    counts = np.bincount(group_of.astype(np.intp), minlength=groups)
    if (counts != size).any():
        raise ValueError(
            f"g_idx {list(group_of.shape)} has groups of {np.unique(counts)[:8].tolist()} weights; "
            f"{groups} groups of {size} are needed"
        )
    return np.argsort(group_of, kind="stable").astype(np.int32)


def _per_word(bits: int) -> int:
    if bits not in BITS:
        raise ValueError(f"codes of {bits} bits; 4 and 8 are supported")
    return 32 // bits


def _words(n: int, per_word: int) -> int:
    if n % per_word:
        raise ValueError(f"n = {n} outputs; a multiple of {per_word} is packed in words")
    return n // per_word


FLOATS, INTEGERS, NUMBERS = "floats", "integers", "numbers"
"""Kinds of dtypes, in place of the name of a dtype."""


def _check(name: str, array: Array, shape: tuple[int | str, ...], kind: str = "int32") -> None:
    """Raise `ValueError` for an array of another dtype or shape. Dims that are strings match any extent."""
    fits = isinstance(array, np.ndarray) and array.ndim == len(shape) and _is_of(kind, array.dtype)
    if fits and all(isinstance(dim, str) or dim == extent for dim, extent in zip(shape, array.shape, strict=True)):
        return
    dims = ", ".join(map(str, shape))
    raise ValueError(f"{name} is {_described(array)}; {kind} [{dims}] {'are' if kind.endswith('s') else 'is'} needed")


def _is_of(kind: str, dtype: np.dtype) -> bool:
    is_float = dtype.name.startswith(("float", "bfloat"))  # numpy does not know those of ml_dtypes for floats
    is_integer = dtype.kind in "iu"
    return {FLOATS: is_float, INTEGERS: is_integer, NUMBERS: is_float or is_integer}.get(kind, dtype.name == kind)


def _described(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
