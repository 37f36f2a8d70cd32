"""A small Llama model of random weights, in llama.cpp's file format (GGUF, version 3).

The format is specified in docs/gguf.md of the repository ggml-org/ggml.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from .arrays import Array

EMBEDDING, FEED_FORWARD, HEADS, LAYERS = 128, 256, 2, 2
_EPSILON, _CONTEXT = 1e-5, 256
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_ALIGNMENT = 32
_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1
_SPECIAL = ("<unk>", "<s>", "</s>")
_TOKENS = (*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *(f"\u2581w{i}" for i in range(61)))
"""A token for each byte, so that any prompt can be read, and some words."""


def write_model(path: Path) -> None:
    """Write the model. It is the same each time."""
    settings = _settings()
    tensors = _tensors()
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    header += b"".join(_text(name) + _value(value) for name, value in settings.items())
    data = b""
    for name, tensor in tensors.items():
        header += _text(name) + struct.pack("<I", tensor.ndim)
        header += struct.pack(f"<{tensor.ndim}Q", *tensor.shape[::-1])
        header += struct.pack("<IQ", int(tensor.dtype == np.float16), len(data))
        data += _aligned(tensor.tobytes())
    path.write_bytes(_aligned(header) + data)


def _settings() -> dict[str, object]:
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256
    return {
        "general.architecture": "llama",
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": EMBEDDING,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": _EPSILON,
        "llama.rope.dimension_count": EMBEDDING // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(_TOKENS),
        "tokenizer.ggml.scores": [0.0] * len(_TOKENS),
        "tokenizer.ggml.token_type": kinds + [_NORMAL] * (len(_TOKENS) - len(kinds)),
    }


def _tensors() -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float16)

    ones = np.ones(EMBEDDING, np.float32)
    found = {"token_embd.weight": matrix(len(_TOKENS), EMBEDDING), "output_norm.weight": ones,
             "output.weight": matrix(len(_TOKENS), EMBEDDING)}  # fmt: skip
    for layer in range(LAYERS):
        for name, (rows, columns) in _SHAPES.items():
            found[f"blk.{layer}.{name}.weight"] = matrix(rows, columns)
        found |= {f"blk.{layer}.{name}_norm.weight": ones for name in ("attn", "ffn")}
    return found


_SHAPES = {
    **{f"attn_{name}": (EMBEDDING, EMBEDDING) for name in ("q", "k", "v", "output")},
    "ffn_gate": (FEED_FORWARD, EMBEDDING), "ffn_up": (FEED_FORWARD, EMBEDDING), "ffn_down": (EMBEDDING, FEED_FORWARD),
}  # fmt: skip


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: object) -> bytes:
    if isinstance(value, list):
        kind, _ = _element(value[0])
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_element(item)[1] for item in value)
    kind, content = _element(value)
    if kind == _INT32:
        kind = _UINT32
    return struct.pack("<I", kind) + content


def _element(value: object) -> tuple[int, bytes]:
    if isinstance(value, str):
        return _STRING, _text(value)
    return (_FLOAT32, struct.pack("<f", value)) if isinstance(value, float) else (_INT32, struct.pack("<i", value))


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
