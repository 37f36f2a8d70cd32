"""Calls of flash_attention and flash_attention_varlen, every feature with every other.

`pairwise` chooses them: each two values of two axes meet in some case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from aot_models.masks import parse_mask
from tests.ops.attention.calls import DTYPES, MARGIN, Array, Call, Placed, lse_room, placed, room

AXES: dict[str, tuple[Any, ...]] = {
    "mask": ("0", "b", "t", "t:7,3", "b:20,-1", "b:30,4", "g:12,-4"),
    "head_dims": ((64, 64), (128, 128), (32, 32), (40, 40), (33, 33), (192, 128), (96, 24)),
    "score": ("plain", "bias", "bias of keys", "alibi", "alibi of batches", "softcap", "bias alibi softcap"),
    "lengths": ((70, 100), (33, 33), (90, 50), (1, 65), (130, 64)),
    "layout": ("bhsd", "bshd", "packed"),
    "heads": ((2, 2), (4, 2), (3, 1)),
    "mode": ("batch", "varlen"),
    "dtype": ("float16", "bfloat16"),
    "v_rows": (True, False),
    "return_lse": (True, False),
}


@dataclass(frozen=True)
class Case:
    """A call.

    mask: as `parse_mask` reads it. lengths: queries and keys; in varlen mode of the longest sequence. scale: by default
    the op's. magnitude: standard deviation of the queries. values: what all of V is; by default random.
    """

    mask: str = "0"
    head_dims: tuple[int, int] = (64, 64)
    score: str = "plain"
    lengths: tuple[int, int] = (70, 100)
    layout: str = "bhsd"
    heads: tuple[int, int] = (2, 1)
    mode: str = "batch"
    dtype: str = "float16"
    v_rows: bool = True
    return_lse: bool = True
    scale: float | None = None
    magnitude: float = 1.0
    values: float | None = None
    schedule: str = "auto"
    batch: int = 2

    def __str__(self) -> str:
        return " ".join(str(getattr(self, field.name)).replace(" ", "") for field in fields(self)[: len(AXES)])

    @property
    def op(self) -> str:
        return "flash_attention_varlen" if self.mode == "varlen" else "flash_attention"


EDGES = (
    Case("b", lengths=(0, 5)), Case("b", lengths=(5, 0)), Case("b", lengths=(200, 3), mode="varlen", heads=(2, 2)),
    Case("0", magnitude=8.0, scale=1.0), Case("b", scale=-0.7, magnitude=4.0), Case("t:-1,20", scale=0.0),
    Case("0", lengths=(8, 9), dtype="bfloat16", values=1.0), Case("0", lengths=(15, 18), mode="varlen"),
    Case("b", score="softcap", magnitude=30.0, scale=-1.0), Case("b:5,5", lengths=(300, 300), head_dims=(128, 128)),
)  # fmt: skip
"""Calls at the ends of what an axis may be."""

FEW = (
    Case("b", (128, 128), lengths=(5, 700), heads=(4, 2)), Case("0", lengths=(1, 513), heads=(4, 1), dtype="bfloat16"),
    Case("b", (40, 40), lengths=(64, 300), heads=(2, 2), dtype="bfloat16"), Case("b", lengths=(1, 1000), layout="bshd"),
)  # fmt: skip
"""Calls of few queries, whose keys are shared by several programs."""

PACKED = (
    Case("0", (80, 80), lengths=(20, 600), heads=(4, 2), return_lse=False), Case("0", (256, 256), lengths=(3, 520)),
    Case("0", lengths=(64, 513), heads=(3, 3), dtype="bfloat16"),
)  # fmt: skip
"""The same without a mask, where each query counts as a head if nothing lies between heads."""

WIDE = (
    Case("b", (256, 256), lengths=(150, 120), dtype="bfloat16"), Case("0", (192, 192), lengths=(100, 130)),
    Case("t:30,10", (256, 256), lengths=(130, 200), mode="varlen"), Case("b", (255, 256), "softcap", (130, 90)),
    Case("b", (256, 128), lengths=(90, 100), dtype="bfloat16", v_rows=False),
)  # fmt: skip
"""Calls of head dims over 128, with several blocks of queries."""

LARGE = (
    Case("b", (64, 512), "qv", (40, 50), scale=0.05), Case("0", (64, 256), "qv", scale=-0.06, heads=(4, 2)),
    Case("b:20,-1", (64, 512), "softcap qv", (33, 90), mode="varlen", scale=0.05, dtype="bfloat16"),
    Case("t:7,3", (64, 512), lengths=(50, 70), layout="bshd"), Case("b", (50, 300), "alibi", dtype="bfloat16"),
    Case("0", (512, 512), lengths=(33, 40), dtype="bfloat16"), Case("b", (320, 64), "bias", (20, 48), v_rows=False),
    Case("b", (512, 512), lengths=(20, 70), mode="varlen"), Case("0", (33, 33), "qv", (20, 48), mode="varlen"),
)  # fmt: skip
"""Calls of head dims over 256, and with queries of the values."""

SINGLE = (    Case("b", (64, 64), "bias alibi softcap", (33, 50), mode="varlen", dtype="float32"),
    Case("0", (128, 128), dtype="float32", layout="bshd"), Case("t:7,3", (33, 33), "bias", (90, 50), dtype="float32"),
    Case("b:20,-1", (192, 128), lengths=(40, 100), dtype="float32", heads=(4, 2)),
    Case("g:12,-4", (96, 24), "alibi", dtype="float32", v_rows=False),
    Case("b", (64, 64), lengths=(20, 48), dtype="float32", magnitude=2.0, scale=-0.2),
)  # fmt: skip
"""Calls of float32, which has only the code that looks at run time for what there is."""

SCHEDULES = tuple(
    Case(mask, dims, lengths=lengths, heads=heads, mode=mode, dtype=dtype, schedule=schedule, batch=batch)
    for schedule in ("persistent", "dynamic")
    for mask, dims, lengths, heads, mode, dtype, batch in (
        ("b", (64, 64), (33, 40), (2, 1), "batch", "float16", 160),
        ("b", (64, 64), (33, 40), (80, 8), "varlen", "bfloat16", 1),
        ("t", (128, 128), (140, 70), (2, 2), "batch", "bfloat16", 2),
    )
)  # fmt: skip
"""Calls of persistent programs; in the first two there are more tiles than 608 programs, two for each compute unit."""


def valid(case: Case) -> bool:
    """Tell whether an op accepts such a call."""
    return case.mode == "batch" or not case.mask.startswith("g")


def pairwise(seed: int = 0) -> tuple[Case, ...]:
    """Return cases in which every two values of two axes that a valid case may have meet."""
    rng = np.random.default_rng(seed)
    wanted = {pair for pair in _all_pairs() if valid(Case(**dict(pair)))}
    cases = []
    while wanted:
        first = min(wanted, key=str)
        best = max((_random_case(rng, dict(first)) for _ in range(40)), key=lambda case: len(_pairs(case) & wanted))
        cases.append(best)
        wanted -= _pairs(best)
    return tuple(cases)


Pair = tuple[tuple[str, Any], tuple[str, Any]]


def _all_pairs() -> Iterator[Pair]:
    for a, b in itertools.combinations(AXES, 2):
        yield from (((a, x), (b, y)) for x, y in itertools.product(AXES[a], AXES[b]))


def _pairs(case: Case) -> set[Pair]:
    return set(itertools.combinations(((axis, getattr(case, axis)) for axis in AXES), 2))


def _random_case(rng: np.random.Generator, fixed: dict[str, Any]) -> Case:
    while True:
        drawn = {axis: values[rng.integers(len(values))] for axis, values in AXES.items()}
        if valid(case := Case(**(drawn | fixed))):
            return case


def make_call(case: Case, seed: int = 0) -> Call:
    """Make random inputs of a case, and NaN where outputs are to be."""
    rng = np.random.default_rng(seed)
    softcap = {"softcap": 1.5} if "softcap" in case.score else {}
    scale = {} if case.scale is None else {"scale": case.scale}
    schedule = {} if case.schedule == "auto" else {"schedule": case.schedule}
    scalars = parse_mask(case.mask) | softcap | scale | schedule | {"return_lse": case.return_lse}
    call = _varlen_call(case, rng) if case.mode == "varlen" else _batch_call(case, rng)
    return replace(call, scalars=call.scalars | scalars)


def _batch_call(case: Case, rng: np.random.Generator) -> Call:
    batch, (seqlen_q, seqlen_k), heads = case.batch, case.lengths, case.heads[0]
    inputs, outputs = _tensors(case, rng, batch, seqlen_q, seqlen_k)
    if case.return_lse:
        outputs["lse"] = lse_room(batch, heads, seqlen_q)
    return Call(case.op, inputs | score_inputs(case, rng, batch, seqlen_q, seqlen_k), outputs, {})


def _varlen_call(case: Case, rng: np.random.Generator) -> Call:
    """Make a call of four sequences, one without queries and one without keys; rows before and behind belong to
    none."""
    offsets = sequences(*case.lengths)
    tokens_q, tokens_k = (int(cu[-1]) + 1 for cu in offsets.values())
    inputs, outputs = (rows_first(found) for found in _tensors(case, rng, 1, tokens_q, tokens_k))
    if case.return_lse:
        outputs["lse"] = lse_room(case.heads[0], tokens_q)
    scalars = longest(offsets)
    features = score_inputs(case, rng, SEQUENCES, tokens_q, scalars["max_seqlen_k"])
    return Call(case.op, inputs | offsets | features, outputs, scalars)


SEQUENCES = 4


def sequences(longest_q: int, longest_k: int) -> dict[str, Array]:
    """Return the offsets of four sequences, one without queries and one without keys; the first begins at row 2."""
    lengths = ((longest_q, longest_k), (0, 5), (3, 0), (longest_q // 2 + 1, longest_k // 3 + 1))
    return {
        f"cu_seqlens_{name}": np.cumsum([2, *(pair[i] for pair in lengths)], dtype=np.int32)
        for i, name in enumerate("qk")
    }


def longest(offsets: dict[str, Array]) -> dict[str, int]:
    """Return the longest of the sequences as arguments."""
    return {f"max_seqlen_{name}": int(np.diff(offsets[f"cu_seqlens_{name}"]).max()) for name in "qk"}


def rows_first(tensors: Mapping[str, Placed]) -> dict[str, Any]:
    """Return tensors [1, heads, rows, columns] as [rows, heads, columns]."""
    return {
        name: Placed(x.whole, lambda whole, place=x.place: place(whole)[0].transpose(1, 0, 2))
        for name, x in tensors.items()
    }


def score_inputs(case: Any, rng: np.random.Generator, batch: int, rows: int, columns: int) -> dict[str, Any]:
    """Return the bias and the slopes that `score` of a case names, for all rows of q of a mode, and columns for
    keys."""
    found: dict[str, Placed | Array] = {}
    if case.score.startswith("bias"):
        heads, rows = (case.heads[0], 1) if case.score == "bias of keys" else (1, rows)
        batches = () if case.mode == "varlen" else (1 if case.score == "bias of keys" else batch,)
        shape = (*batches, heads, rows, columns)
        bias = rng.standard_normal(shape).astype(DTYPES[case.dtype])
        bias[rng.random(shape) < 0.2] = -np.inf
        whole = np.full((*shape[:-1], -(-columns // 16) * 16 + MARGIN), np.nan, bias.dtype)
        whole[..., :columns] = bias
        found["bias"] = Placed(whole, lambda x: x[..., :columns])
    if "alibi" in case.score:
        shape = (batch if "of batches" in case.score else 1, case.heads[0])
        found["alibi_slopes"] = np.linspace(0.5, 0.01, shape[0] * shape[1]).astype(np.float32).reshape(shape)
    return found


def _tensors(
    case: Case, rng: np.random.Generator, batch: int, rows_q: int, rows_k: int
) -> tuple[dict[str, Any], dict[str, Placed]]:
    """Return q, k, v and out as [batch, heads, rows, head_dim] in the layout of the case."""
    (heads, heads_kv), (dim, dim_v), dtype = case.heads, case.head_dims, DTYPES[case.dtype]
    q = (rng.standard_normal((batch, heads, rows_q, dim)) * case.magnitude).astype(dtype)
    k, v = (rng.standard_normal((batch, heads_kv, rows_k, width)).astype(dtype) for width in (dim, dim_v))
    if case.values is not None:
        v[...] = case.values
    items = _packed((q, k, v)) if case.layout == "packed" else [placed(x, case.layout) for x in (q, k, v)]
    if not case.v_rows:
        items[2] = placed(v, "columns")
    out = room((batch, heads, rows_q, dim_v), dtype, case.layout)
    inputs: dict[str, Any] = dict(zip("qkv", items, strict=True))
    if "qv" in case.score:
        inputs["qv"] = placed(rng.standard_normal((batch, heads, rows_q, dim_v)).astype(dtype), case.layout)
    return inputs, {"out": out}


def _packed(tensors: Sequence[Array]) -> list[Placed]:
    """Return tensors whose heads are side by side in one array [batch, rows, heads, columns]."""
    heads = [x.shape[1] for x in tensors]
    rows, columns = (max(x.shape[dim] for x in tensors) for dim in (2, 3))
    whole = np.full((len(tensors[0]), rows, sum(heads), columns), np.nan, tensors[0].dtype)
    items = []
    for x, first in zip(tensors, itertools.accumulate(heads, initial=0), strict=False):
        part = (slice(None), slice(x.shape[2]), slice(first, first + x.shape[1]), slice(x.shape[3]))
        items.append(Placed(whole, lambda array, part=part: array[part].transpose(0, 2, 1, 3)))
        items[-1].values[...] = x
    return items
