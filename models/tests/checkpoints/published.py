"""Random linear layers in the published formats, under the names of published checkpoints, and their dequantised
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.support.dtypes import BF16, FP32

Array = np.ndarray
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of eight neighbours, in each nibble of an AWQ word, the lowest first."""


@dataclass(frozen=True)
class Stored:
    """A layer as it is published.

    Attributes:
        tensors: by the ends of their names.
        dense: the dequantised weights, float64 [outputs, inputs].
        input_scale: of activations of 8 bits, where it is static.
    """

    tensors: dict[str, Array]
    dense: Array
    input_scale: float | None = None


Store = Callable[[np.random.Generator, int, int], Stored]
"""From the numbers of outputs and inputs."""


@dataclass(frozen=True)
class Published:
    """A format: its quantization_config, its layers, and how activations are rounded to 8 bits, if they are: by `row`,
    by `block` of 128 or `static`."""

    config: Mapping[str, object]
    store: Store
    activations: str = ""
    kind: str = "e4m3"


def pack(codes: Array, bits: int, order: Sequence[int] | None = None) -> Array:
    """Pack codes of the last dim into int32 words, the first of `order` lowest; a last word may have places to
    spare."""
    count = 32 // bits
    padded = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // count) * count), np.uint32)
    padded[..., : codes.shape[-1]] = codes
    grouped = padded.reshape(*codes.shape[:-1], -1, count)[..., list(order or range(count))]
    return np.bitwise_or.reduce(grouped << np.arange(0, 32, bits, dtype=np.uint32), -1).view(np.int32)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], k: int, bits: int, dtype: np.dtype = BF16) -> Array:
    return (rng.uniform(0.5, 1.5, shape) * 3.5 * k**-0.5 / 2**bits).astype(dtype)


def _integers(rng: np.random.Generator, n: int, k: int, size: int, bits: int, act_order: bool = False) -> tuple:
    """Return (codes [n, k], zeros [groups, n], scales [groups, n], the group of each input, dense)."""
    groups = k // size
    codes, zeros = rng.integers(0, 1 << bits, (n, k)), rng.integers(1, 1 << bits, (groups, n))
    scales, group_of = _scales(rng, (groups, n), k, bits), np.arange(k) // size
    group_of = rng.permutation(group_of) if act_order else group_of
    return codes, zeros, scales, group_of, _dense(codes, zeros, scales, group_of)


def _dense(codes: Array, zeros: Array, scales: Array, group_of: Array) -> Array:
    return (codes - zeros[group_of].T) * scales.astype(np.float64)[group_of].T


def gptq(bits: int, act_order: bool = False, less: int = 1, size: int = 64) -> Published:
    """Write a layer as GPTQ does. less: what is subtracted from stored zeros: 1 in version 1, 0 in version 2."""

    def store(rng: np.random.Generator, n: int, k: int) -> Stored:
        codes, zeros, scales, group_of, dense = _integers(rng, n, k, size, bits, act_order)
        words = {"qweight": pack(codes, bits).T, "qzeros": pack(zeros - less, bits), "scales": scales}
        return Stored({**words, "g_idx": group_of.astype(np.int32)}, dense)

    version = "gptq" if less else "gptq_v2"
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": act_order, "sym": False,
              "checkpoint_format": version}  # fmt: skip
    return Published(config, store)


def awq(size: int = 64) -> Published:
    def store(rng: np.random.Generator, n: int, k: int) -> Stored:
        codes, zeros, scales, _, dense = _integers(rng, n, k, size, 4)
        words = {"qweight": pack(codes.T, 4, AWQ_ORDER), "qzeros": pack(zeros, 4, AWQ_ORDER)}
        return Stored({**words, "scales": scales}, dense)

    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return Published(config, store)


def packed(bits: int, size: int | None = 64, symmetric: bool = True, act_order: bool = False) -> Published:
    """Write a layer as compressed-tensors' pack-quantized. size: of a group; None: one scale per channel."""

    def store(rng: np.random.Generator, n: int, k: int) -> Stored:
        codes, zeros, scales, group_of, dense = _integers(rng, n, k, size or k, bits, act_order)
        if symmetric:
            zeros = np.full_like(zeros, 1 << bits - 1)
            dense = _dense(codes, zeros, scales, group_of)
        tensors = {"weight_packed": pack(codes, bits), "weight_scale": scales.T, "weight_shape": np.array([n, k])}
        tensors |= {} if symmetric else {"weight_zero_point": pack(zeros, bits).T}
        return Stored(tensors | ({"weight_g_idx": group_of.astype(np.int32)} if act_order else {}), dense)

    weights = {"num_bits": bits, "type": "int", "strategy": "group" if size else "channel", "group_size": size,
               "symmetric": symmetric, "actorder": "group" if act_order else None, "dynamic": False}  # fmt: skip
    return Published(compressed("pack-quantized", weights, None), store)


def eight_bits(
    kind: str, strategy: str, activations: str, config: Mapping[str, object], names: tuple[str, str],
    scale_dtype: np.dtype = FP32, scalar: bool = False,
) -> Published:  # fmt: skip
    """names: of the scales and of the activations' scale. scalar: a scale of all is of no dim, and not of one."""

    def store(rng: np.random.Generator, n: int, k: int) -> Stored:
        if kind == "int8":
            codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
        else:
            codes = (rng.standard_normal((n, k)) * 100).clip(-448, 448).astype(E4M3)
            codes[0, :4] = [448, -448, -0.0, 2**-9]
        blocks = -(-n // 128), -(-k // 128)
        shape = {"tensor": () if scalar else (1,), "channel": (n, 1), "block": blocks}[strategy]
        scales = _scales(rng, shape, k, 8, scale_dtype)
        spread = scales.astype(np.float64).reshape(scales.shape or 1)
        if strategy == "block":
            spread = np.repeat(np.repeat(spread, 128, 0), 128, 1)[:n, :k]
        static = np.array(0.01, np.float32).reshape(() if scalar else 1) if activations == "static" else None
        tensors = {"weight": codes, names[0]: scales, **({} if static is None else {names[1]: static})}
        return Stored(tensors, codes.astype(np.float64) * spread, None if static is None else float(static.item()))

    return Published(config, store, activations, kind)


def compressed(kind: str, weights: Mapping[str, object], activations: Mapping[str, object] | None) -> dict[str, object]:
    """A config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None}  # fmt: skip


def _fp8(activations: str, blocks: bool) -> dict[str, object]:
    size = {"weight_block_size": [128, 128]} if blocks else {}
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": activations, **size}


def _arguments(kind: str, strategy: str, dynamic: bool, **more: object) -> dict[str, object]:
    return {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": dynamic, **more}


OURS = ("weight_scale", "input_scale")
INVERSE = ("weight_scale_inv", "activation_scale")
BLOCK = _arguments("float", "block", False, block_structure=[128, 128])
FORMATS: dict[str, Published] = {
    "gptq of 4 bits": gptq(4),
    "gptq of 4 bits, act-order, version 2": gptq(4, act_order=True, less=0),
    "gptq of 8 bits": gptq(8, size=128),
    "gptq of 8 bits, act-order": gptq(8, act_order=True, size=32),
    "awq": awq(),
    "fp8 of blocks": eight_bits("e4m3", "block", "block", _fp8("dynamic", True), INVERSE),
    "fp8 of blocks, scales bfloat16": eight_bits("e4m3", "block", "block", _fp8("dynamic", True), INVERSE, BF16),
    "fp8, dynamic": eight_bits("e4m3", "tensor", "row", _fp8("dynamic", False), OURS, scalar=True),
    "fp8, static": eight_bits("e4m3", "tensor", "static", _fp8("static", False), OURS),
    "fp8, static, inverse": eight_bits("e4m3", "tensor", "static", _fp8("static", False), INVERSE, BF16, scalar=True),
    "float-quantized by channel": eight_bits(
        "e4m3", "channel", "row", compressed("float-quantized", _arguments("float", "channel", False),
                                             _arguments("float", "token", True)), OURS, BF16,
    ),
    "float-quantized, static": eight_bits(
        "e4m3", "tensor", "static", compressed("float-quantized", _arguments("float", "tensor", False),
                                               _arguments("float", "tensor", False)), OURS,
    ),
    "float-quantized of blocks": eight_bits(
        "e4m3", "block", "block", compressed("float-quantized", BLOCK,
                                             _arguments("float", "group", True, group_size=128)), OURS, BF16,
    ),
    "int-quantized by token": eight_bits(
        "int8", "channel", "row", compressed("int-quantized", _arguments("int", "channel", False),
                                             _arguments("int", "token", True)), OURS, BF16,
    ),
    "int-quantized, static": eight_bits(
        "int8", "tensor", "static", compressed("int-quantized", _arguments("int", "tensor", False),
                                               _arguments("int", "tensor", False)), OURS,
    ),
    "int-quantized, weights alone": eight_bits(
        "int8", "channel", "", compressed("int-quantized", _arguments("int", "channel", False), None), OURS, BF16,
    ),
    "pack-quantized of 4 bits": packed(4),
    "pack-quantized of 4 bits, zeros": packed(4, symmetric=False),
    "pack-quantized of 4 bits by channel": packed(4, None),
    "pack-quantized of 4 bits, act-order": packed(4, act_order=True),
    "pack-quantized of 8 bits": packed(8, 32, symmetric=False),
}  # fmt: skip
"""The formats by a name for tests."""
