"""Calls of the attention ops, every feature with every other: their inputs, and what must come out.

The same cases run on the emulator and on GPUs. `pairwise` chooses them: each two values of two axes meet in some case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np

from aot_runtime.masks import parse_mask
from kernels.attention.reference import (
    attention,
    attention_same_dtype,
    attention_varlen,
    attention_varlen_same_dtype,
)

Array = np.ndarray[Any, Any]
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
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MARGIN = 16
"""Elements of NaN beside a tensor's last dim: as many as leave aligned rows aligned."""


@dataclass(frozen=True)
class Case:
    """One call.

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


EDGES = (
    Case("b", lengths=(0, 5)), Case("b", lengths=(5, 0)), Case("b", lengths=(200, 3), mode="varlen", heads=(2, 2)),
    Case("0", magnitude=8.0, scale=1.0), Case("b", scale=-0.7, magnitude=4.0), Case("t:-1,20", scale=0.0),
    Case("0", lengths=(8, 9), dtype="bfloat16", values=1.0), Case("0", lengths=(15, 18), mode="varlen"),
    Case("b", score="softcap", magnitude=30.0, scale=-1.0), Case("b:5,5", lengths=(300, 300), head_dims=(128, 128)),
)  # fmt: skip
"""Calls at the ends of what an axis may be."""

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


@dataclass(frozen=True)
class Placed:
    """A tensor in an array that is NaN around it: `place` finds it there, on the host and on a device."""

    whole: Array
    place: Callable[[Any], Any]

    @property
    def values(self) -> Array:
        return self.place(self.whole)

    def is_alone(self, whole: Array) -> bool:
        """Whether `whole`, of the same shape, is NaN but for the tensor."""
        beside = np.ones(whole.shape, bool)
        self.place(beside)[...] = False
        return bool(np.isnan(whole[beside].astype(np.float32)).all())


@dataclass(frozen=True)
class Call:
    """Arguments of an op. inputs and outputs: tensors by name; arrays that are not Placed stay on the host."""

    op: str
    inputs: dict[str, Placed | Array]
    outputs: dict[str, Placed]
    scalars: dict[str, Any]


def valid(case: Case) -> bool:
    """Whether an op takes such a call."""
    return case.mode == "batch" or not (case.mask.startswith("g") or case.score.startswith("bias"))


def pairwise(seed: int = 0) -> tuple[Case, ...]:
    """Cases in which every two values of two axes that a valid case may have meet."""
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
    """Random inputs of a case, and NaN where outputs are to be."""
    rng = np.random.default_rng(seed)
    return _varlen_call(case, rng) if case.mode == "varlen" else _batch_call(case, rng)


def expected(call: Call) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(out, lse) exactly, and as its dtype allows."""
    inputs = {name: item.values if isinstance(item, Placed) else item for name, item in call.inputs.items()}
    options = {"scale": inputs["q"].shape[-1] ** -0.5} | call.scalars | {"return_lse": True}
    exact, same = {
        "flash_attention": (attention, attention_same_dtype),
        "flash_attention_varlen": (attention_varlen, attention_varlen_same_dtype),
    }[call.op]
    return exact(**inputs, **options), same(**inputs, **options)  # type: ignore[return-value, operator]


def _batch_call(case: Case, rng: np.random.Generator) -> Call:
    batch, (seqlen_q, seqlen_k), heads = case.batch, case.lengths, case.heads[0]
    q, k, v, out = _tensors(case, rng, batch, seqlen_q, seqlen_k)
    inputs: dict[str, Placed | Array] = {"q": q, "k": k, "v": v}
    if case.score.startswith("bias"):
        shape = (1, heads, 1, seqlen_k) if case.score == "bias of keys" else (batch, 1, seqlen_q, seqlen_k)
        whole = np.full((*shape[:3], -(-seqlen_k // 16) * 16 + MARGIN), np.nan, DTYPES[case.dtype])
        inputs["bias"] = _filled(whole, lambda x: x[..., :seqlen_k], rng, hidden=0.2)
    outputs = {"out": out}
    if case.return_lse:
        whole = np.full((batch, heads, seqlen_q + 3), np.nan, np.float32)
        outputs["lse"] = Placed(whole, lambda x: x[..., 1 : 1 + seqlen_q])
    return Call("flash_attention", inputs | _slopes(case, batch), outputs, _scalars(case))


def _varlen_call(case: Case, rng: np.random.Generator) -> Call:
    """Four sequences, of which one has no queries and one no keys; rows before and behind them belong to none."""
    longest_q, longest_k = case.lengths
    lengths = ((longest_q, longest_k), (0, 5), (3, 0), (longest_q // 2 + 1, longest_k // 3 + 1))
    cu_q, cu_k = (np.cumsum([2, *(pair[i] for pair in lengths)], dtype=np.int32) for i in (0, 1))
    tokens_q, tokens_k = int(cu_q[-1]) + 1, int(cu_k[-1]) + 1
    q, k, v, out = (
        Placed(x.whole, lambda whole, place=x.place: place(whole)[0].transpose(1, 0, 2))
        for x in _tensors(case, rng, 1, tokens_q, tokens_k)
    )
    outputs = {"out": out}
    if case.return_lse:
        whole = np.full((case.heads[0], tokens_q + 3), np.nan, np.float32)
        outputs["lse"] = Placed(whole, lambda x: x[:, 1 : 1 + tokens_q])
    inputs: dict[str, Placed | Array] = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    scalars = _scalars(case) | {"max_seqlen_q": max(longest_q, 3)}
    return Call("flash_attention_varlen", inputs | _slopes(case, len(lengths)), outputs, scalars)


def _scalars(case: Case) -> dict[str, Any]:
    softcap = {"softcap": 1.5} if "softcap" in case.score else {}
    scale = {} if case.scale is None else {"scale": case.scale}
    schedule = {} if case.schedule == "auto" else {"schedule": case.schedule}
    return parse_mask(case.mask) | softcap | scale | schedule | {"return_lse": case.return_lse}


def _slopes(case: Case, batch: int) -> dict[str, Array]:
    if "alibi" not in case.score:
        return {}
    shape = (batch if "of batches" in case.score else 1, case.heads[0])
    return {"alibi_slopes": np.linspace(0.5, 0.01, shape[0] * shape[1]).astype(np.float32).reshape(shape)}


def _tensors(
    case: Case, rng: np.random.Generator, batch: int, rows_q: int, rows_k: int
) -> tuple[Placed, Placed, Placed, Placed]:
    """q, k, v and out as [batch, heads, rows, head_dim] in the layout of the case."""
    q, k, v, out = _random_tensors(case, rng, batch, rows_q, rows_k)
    q.values[...] *= DTYPES[case.dtype].type(case.magnitude)
    if case.values is not None:
        v.values[...] = case.values
    return q, k, v, out


def _random_tensors(
    case: Case, rng: np.random.Generator, batch: int, rows_q: int, rows_k: int
) -> tuple[Placed, Placed, Placed, Placed]:
    (heads, heads_kv), (dim, dim_v), dtype = case.heads, case.head_dims, DTYPES[case.dtype]
    out = _empty(case.layout, batch, heads, rows_q, dim_v, dtype)
    if case.layout == "packed":
        whole = np.full((batch, max(rows_q, rows_k), heads + 2 * heads_kv, max(dim, dim_v)), np.nan, dtype)

        def part(first: int, count: int, rows: int, columns: int) -> Placed:
            return _filled(whole, lambda x: x[:, :rows, first : first + count, :columns].transpose(0, 2, 1, 3), rng)

        q, k = part(0, heads, rows_q, dim), part(heads, heads_kv, rows_k, dim)
        v = part(heads + heads_kv, heads_kv, rows_k, dim_v)
    else:
        q, k, v = (
            _filled(empty.whole, empty.place, rng)
            for empty in (
                _empty(case.layout, batch, heads, rows_q, dim, dtype),
                _empty(case.layout, batch, heads_kv, rows_k, dim, dtype),
                _empty(case.layout, batch, heads_kv, rows_k, dim_v, dtype),
            )
        )
    if not case.v_rows:
        whole_v = np.full((batch, heads_kv, dim_v, -(-rows_k // 16) * 16 + MARGIN), np.nan, dtype)
        v = _filled(whole_v, lambda x: x[..., :rows_k].transpose(0, 1, 3, 2), rng)
    return q, k, v, out


def _empty(layout: str, batch: int, heads: int, rows: int, columns: int, dtype: np.dtype[Any]) -> Placed:
    if layout == "bhsd":
        whole = np.full((batch, heads, rows + 3, columns + MARGIN), np.nan, dtype)
        return Placed(whole, lambda x: x[:, :, 2 : 2 + rows, :columns])
    whole = np.full((batch, rows + 3, heads, columns + MARGIN), np.nan, dtype)
    return Placed(whole, lambda x: x[:, 2 : 2 + rows, :, :columns].transpose(0, 2, 1, 3))


def _filled(whole: Array, place: Callable[[Any], Any], rng: np.random.Generator, hidden: float = 0.0) -> Placed:
    """Normal random numbers in place; `hidden` is the share of -inf among them."""
    view = place(whole)
    view[...] = rng.standard_normal(view.shape)
    view[rng.random(view.shape) < hidden] = -np.inf
    return Placed(whole, place)
