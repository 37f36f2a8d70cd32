"""Calls of multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.ops.attention.calls import DTYPES, Array, Call, Placed, lse_room, placed, room


@dataclass(frozen=True)
class Latent:
    """A call. dims: head_dim, head_dim_v, rope and latent. lengths: queries and keys. gain: factor of the scale."""

    dims: tuple[int, int, int, int] = (64, 64, 64, 256)
    lengths: tuple[int, int] = (40, 70)
    heads: int = 2
    causal: bool = False
    dtype: str = "bfloat16"
    layout: str = "bhsd"
    gain: float = 1.0


CASES = (
    Latent(), Latent(causal=True, layout="bshd"), Latent(lengths=(70, 33), causal=True, dtype="float16"),
    Latent((48, 32, 32, 200), causal=True, dtype="float16"), Latent(gain=-3.0, dtype="float16"), Latent(lengths=(5, 0)),
    Latent((128, 128, 64, 512), (70, 90), 1, True), Latent((48, 32, 32, 200), (70, 33)),
)  # fmt: skip
WHOLE = (128, 128, 64, 512)
LONG = (
    Latent(WHOLE, (64, 64), dtype="float16"), Latent(WHOLE, (130, 130), 3, True), Latent(WHOLE, (257, 500), 5),
    Latent(WHOLE, (200, 70), 2, True, "float16", "bshd"), Latent(WHOLE, (1, 129), 3, gain=-3.0),
    Latent(WHOLE, (300, 1000), 1, True, gain=8.0), Latent(WHOLE, (65, 63), 2), Latent(WHOLE, (70, 0)),
    Latent(WHOLE, (70, 100), gain=0.0),
)  # fmt: skip
"""Cases with several blocks of queries and keys, even and odd numbers of them, in dims that Hopper has a kernel for."""


def make_call(case: Latent) -> Call:
    """Make normal random inputs; projections have variance 1 / latent, so that keys and values vary like latent
    vectors."""
    rng = np.random.default_rng(0)
    batch, (seqlen_q, seqlen_k), (head_dim, head_dim_v, rope, latent) = 2, case.lengths, case.dims

    def tensor(*shape: int, std: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * std).astype(DTYPES[case.dtype])

    inputs: dict[str, Placed | Array] = {
        "q_nope": placed(tensor(batch, case.heads, seqlen_q, head_dim), case.layout),
        "q_pe": placed(tensor(batch, case.heads, seqlen_q, rope), case.layout),
        "kv": _entry(placed(tensor(1, batch, seqlen_k, latent))),
        "k_pe": _entry(placed(tensor(1, batch, seqlen_k, rope))),
        "wkv_b": _entry(placed(tensor(1, case.heads, head_dim + head_dim_v, latent, std=latent**-0.5))),
    }
    shape = (batch, case.heads, seqlen_q)
    outputs = {"out": room((*shape, head_dim_v), DTYPES[case.dtype], case.layout), "lse": lse_room(*shape)}
    scalars = {"scale": case.gain * (head_dim + rope) ** -0.5, "causal": case.causal, "return_lse": True}
    return Call("mla_prefill", inputs, outputs, scalars)


def _entry(item: Placed) -> Placed:
    return Placed(item.whole, lambda whole: item.place(whole)[0])
