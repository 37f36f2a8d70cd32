"""Calls of multi-head latent attention: their inputs, and what must come out; for the emulator and for GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_runtime import Bundle
from kernels.attention.mla_reference import mla_absorbed, mla_prefill, mla_prefill_same_dtype
from kernels.tolerance import assert_close
from tests.ops.attention.cases import DTYPES, Array, Call, Placed
from tests.ops.attention.quantised import placed, run


@dataclass(frozen=True)
class Latent:
    """One call. dims: head_dim, head_dim_v, rope and latent. lengths: queries and keys. gain: factor of the scale."""

    dims: tuple[int, int, int, int] = (64, 64, 64, 256)
    lengths: tuple[int, int] = (40, 70)
    heads: int = 2
    causal: bool = False
    dtype: str = "bfloat16"
    layout: str = "bhsd"
    gain: float = 1.0
    return_lse: bool = True


CASES = (
    Latent(), Latent(causal=True, layout="bshd"), Latent(lengths=(70, 33), causal=True, dtype="float16"),
    Latent((48, 32, 32, 200), causal=True, dtype="float16"), Latent(gain=-3.0, dtype="float16"), Latent(lengths=(5, 0)),
    Latent((128, 128, 64, 512), (70, 90), 1, True), Latent((48, 32, 32, 200), (70, 33)),
)  # fmt: skip


def make_call(case: Latent, seed: int = 0) -> Call:
    """Normal random inputs; projections of variance 1 / latent, so that keys and values have that of latent vectors."""
    rng = np.random.default_rng(seed)
    batch, (seqlen_q, seqlen_k), (head_dim, head_dim_v, rope, latent) = 2, case.lengths, case.dims

    def tensor(*shape: int, std: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * std).astype(DTYPES[case.dtype])

    inputs: dict[str, Placed | Array] = {
        "q_nope": placed(tensor(batch, case.heads, seqlen_q, head_dim), case.layout),
        "q_pe": placed(tensor(batch, case.heads, seqlen_q, rope), case.layout),
        "kv": _without(0, placed(tensor(1, batch, seqlen_k, latent), "bhsd")),
        "k_pe": _without(0, placed(tensor(1, batch, seqlen_k, rope), "bhsd")),
        "wkv_b": _without(0, placed(tensor(1, case.heads, head_dim + head_dim_v, latent, std=latent**-0.5), "bhsd")),
    }
    shape = (batch, case.heads, seqlen_q)
    outputs = {"out": placed(np.full((*shape, head_dim_v), np.nan, DTYPES[case.dtype]), case.layout)}
    if case.return_lse:
        outputs["lse"] = Placed(
            np.full((*shape[:2], seqlen_q + 3), np.nan, np.float32), lambda x: x[..., 1 : 1 + seqlen_q]
        )
    scale = case.gain * (head_dim + rope) ** -0.5
    return Call("mla_prefill", inputs, outputs, {"scale": scale, "causal": case.causal, "return_lse": case.return_lse})


def _without(index: int, item: Placed) -> Placed:
    """One entry of a tensor's first dim."""
    return Placed(item.whole, lambda whole: item.place(whole)[index])


def expected(call: Call) -> tuple[dict[str, Any], ...]:
    """out and lse by the naive formula, by the absorbed one, and as the dtype allows."""
    inputs = {name: item.values if isinstance(item, Placed) else item for name, item in call.inputs.items()}
    options = call.scalars | {"return_lse": True}
    references = (mla_prefill, mla_absorbed, mla_prefill_same_dtype)
    return tuple(dict(zip(("out", "lse"), reference(**inputs, **options), strict=True)) for reference in references)


def check(bundle: Bundle, call: Call) -> None:
    """Run a call; raise AssertionError where a result is wrong by either formula, or anything beside it was written."""
    naive, absorbed, same_dtype = expected(call)
    for name, result in run(bundle, call).items():
        for exact in (naive, absorbed):
            assert_close(result, exact[name], same_dtype[name], 1e-5 if name == "lse" else 1e-6, name)
