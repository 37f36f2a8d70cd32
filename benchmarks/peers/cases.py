"""Cases of the comparison: shapes, each with a call of our op and of each peer's op.

Calls have the keys of calls files. In those of a peer's op, each position in its list of configs replaces `config`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

OURS = "ours"
PEERS = {"perf_kernels": "ROCm/triton", "aiter": "ROCm/aiter", "tutorials": "lightseekorg/triton"}
"""Manifest of a peer → the repository that its kernels are from."""
FEW_ROWS = (1, 16, 128)
EIGHT_BITS = ("int8", "float8_e4m3fnuz")


@dataclass(frozen=True)
class Way:
    """A way to compute a case.

    Attributes:
        who: `OURS`, or the name of a peer's manifest.
        manifest: the name of its manifest.
        content: contents of tensors that cannot be random: `tables` or a number, see `modelling`.
        configs: positions of the configs to try; if empty, the op chooses.
    """

    who: str
    manifest: str
    op: str
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    innermost: Mapping[str, int] = field(default_factory=dict)
    content: Mapping[str, str] = field(default_factory=dict)
    configs: tuple[int, ...] = ()

    def calls(self) -> Iterator[dict[str, Any]]:
        """Return an entry of a calls file for each config."""
        for number in self.configs or (None,):
            scalars = dict(self.scalars) if number is None else {**self.scalars, "config": number}
            entry = {"op": self.op, "dims": dict(self.dims), "dtypes": dict(self.dtypes), "scalars": scalars,
                     "innermost": dict(self.innermost)}  # fmt: skip
            yield {key: value for key, value in entry.items() if value}


@dataclass(frozen=True)
class Case:
    """A computation of a shape.

    Attributes:
        group: `attention`, `products`, `few rows`, `decode` or `rows`.
        kind: common name of cases that differ only in sizes, and so are likely to have the same fastest config.
        flops: the required operations; 0 if the case is limited by memory.
        bytes: the size of its inputs and outputs together.
    """

    group: str
    kind: str
    name: str
    ways: tuple[Way, ...]
    flops: float
    bytes: float


def cases() -> Iterator[Case]:
    """Return all cases, the most informative for their time first. The first of a kind represents it."""
    yield from (
        _attention(dtype, head_dim, causal, seqlen)
        for seqlen in (4096, 1024, 2048, 8192, 16384)
        for dtype, head_dim, causal in itertools.product(("float16",), (128, 64), (False, True))
    )
    yield from (_product(dtype, size, size) for size in (4096, 8192, 2048, 1024) for dtype in _DTYPES)
    yield from (_product(dtype, m, size) for size in (4096, 8192) for m in FEW_ROWS for dtype in _DTYPES)
    yield from (_product(dtype, m, size) for size in (1024, 2048) for m in FEW_ROWS for dtype in _DTYPES)
    yield from (_decode(batch, keys) for batch, keys in ((16, 4096), (64, 4096), (1, 16384), (128, 1024), (16, 16384)))
    yield from (
        _rows(op, rows, cols)
        for op in ("rms_norm", "layer_norm", "softmax")
        for rows, cols in ((8192, 4096), (8192, 8192), (32768, 1024), (64, 8192))
    )


_DTYPES = ("float16", "bfloat16", *EIGHT_BITS)


def _attention(dtype: str, head_dim: int, causal: bool, seqlen: int) -> Case:
    batch, heads = max(1, 16384 // seqlen), 16
    theirs = {"batch": batch, "heads": heads, "seqlen": seqlen, "head_dim": head_dim}
    ours = {"batch": batch, "heads": heads, "heads_kv": heads, "seqlen_q": seqlen, "seqlen_k": seqlen,
            "head_dim": head_dim, "head_dim_v": head_dim}  # fmt: skip
    dtypes, scalars = {"T": dtype}, {"causal": causal}
    # Of the tutorial's twelve configs, those that its own pruning and assertion leave.
    tutorial = tuple(number for number in range(12) if head_dim == 128 or number % 6 < 4)
    if causal:
        tutorial = tuple(number for number in tutorial if number != 4 and number != 5)
    return Case(
        "attention", f"D {head_dim}, causal {causal}", f"{dtype}, D {head_dim}{', causal' if causal else ''}, {seqlen}",
        (
            # Programs that take tiles as they go cannot be sampled: one program for each tile is timed.
            Way(OURS, "attention", "flash_attention", ours, dtypes, {**scalars, "schedule": "tiles"}),
            Way("perf_kernels", "perf_kernels", "attention", theirs, dtypes, scalars, configs=tuple(range(5))),
            Way("aiter", "aiter", "attention", theirs, dtypes, scalars, configs=(0, 1)),
            Way("tutorials", "tutorials", "attention", theirs, dtypes, scalars, configs=tutorial),
        ),
        4.0 * batch * heads * seqlen**2 * head_dim / (2 if causal else 1), 8.0 * batch * heads * seqlen * head_dim,
    )  # fmt: skip


def _product(dtype: str, m: int, size: int) -> Case:
    dims = {"m": m, "n": size, "k": size}
    columns = {"b": 0}
    if dtype in EIGHT_BITS:
        mixed = {"T": dtype, "E": "float16"}
        ways = [
            Way(OURS, "gemm", "scaled_matmul", dims, {"T": dtype, "E": "bfloat16"}, innermost=columns),
            Way("aiter", "aiter", "scaled_matmul", dims, {"T": dtype}),
        ]
    else:
        mixed = {"T": dtype, "E": dtype}
        ways = [
            Way(OURS, "gemm", "matmul", dims, {"T": dtype}, innermost=columns),
            Way("aiter", "aiter", "matmul", dims, {"T": dtype}),
        ]
        if dtype == "float16":
            ways.append(Way("tutorials", "tutorials", "matmul", dims, {"T": dtype}, configs=tuple(range(8))))
    ways.append(Way("perf_kernels", "perf_kernels", "matmul", dims, mixed, configs=tuple(range(7))))
    width = 1 if dtype in EIGHT_BITS else 2
    bits = f"{8 * width} bits"
    square = "large" if size >= 4096 else "small"  # other tiles are fast where there are few of them
    group, rows = ("products", square) if m == size else ("few rows", f"{m} rows")
    return Case(
        group, f"{rows}, {bits}", f"{dtype}, {m} x {size} x {size}", tuple(ways),
        2.0 * m * size * size, width * (m * size + size * size) + 2.0 * m * size,
    )  # fmt: skip


def _decode(batch: int, keys: int) -> Case:
    heads, heads_kv, head_dim, block = 64, 8, 128, 64
    pages = keys // block
    shared = {"heads": heads, "heads_kv": heads_kv, "head_dim": head_dim, "blocks": batch * pages, "batch": batch,
              "block_size": block, "blocks_per_sequence": pages}  # fmt: skip
    content = {"block_tables": "tables", "seqlens_k": str(keys)}
    return Case(
        "decode", "paged", f"float16, 64 heads on 8, batch {batch}, {keys} keys",
        (
            Way(OURS, "decode", "paged_attention", {**shared, "head_dim_v": head_dim, "tokens": batch},
                {"T": "float16", "C": "float16"},
                content={**content, "cu_seqlens_q": "counting"}),
            Way("aiter", "aiter", "decode", shared, {"T": "float16"}, content=content),
        ),
        0.0, 4.0 * batch * keys * heads_kv * head_dim,
    )  # fmt: skip


def _rows(op: str, rows: int, cols: int) -> Case:
    dims, dtypes = {"rows": rows, "cols": cols}, {"T": "float16"}
    ways = [Way(OURS, "rows", op, dims, dtypes), Way("perf_kernels", "perf_kernels", op, dims, dtypes,
                                                     configs=tuple(range(12 if op == "rms_norm" else 9)))]  # fmt: skip
    if op == "rms_norm":
        ways.append(Way("aiter", "aiter", op, dims, dtypes))
    return Case("rows", op, f"{op}, float16, {rows} x {cols}", tuple(ways), 0.0, 4.0 * rows * cols)
