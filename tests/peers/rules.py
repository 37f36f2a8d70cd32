"""The ops of ours that take what a combination of a peer's test asks for.

A rule asks the contracts of the shipped manifests: a request is taken directly as soon as an op has the argument, dtype
or extent that it needs. Until then, it is taken by a detour, if there is one, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from aot.manifest.loading import load_manifest
from aot.manifest.schema import OpSpec

MANIFESTS = Path(__file__).parents[2] / "manifests"
Contracts = Mapping[str, OpSpec]


def contracts() -> dict[str, OpSpec]:
    """Return the ops of all shipped manifests."""
    return {name: op for path in sorted(MANIFESTS.glob("*.yaml")) for name, op in load_manifest(path).spec.ops.items()}


class Verdict(IntEnum):
    """How a call is taken. Directly includes views, tables made on the host, and chains that the peer documents."""

    DIRECT, DETOUR, NOT = range(3)


@dataclass(frozen=True)
class Needs:
    """Requirements on a contract.

    argument: a tensor or a scalar. value: one that the scalar `argument` may have. dtype: one that the tensor
    `argument` may have. rank: how many dims it has.
    axis, extent: a compiled extent or a dim, and the smallest value that its largest one has to reach.
    """

    op: str
    argument: str = ""
    dtype: str = ""
    rank: int = 0
    axis: str = ""
    extent: int = 0
    value: str = ""

    def met(self, ops: Contracts) -> bool:
        if (op := ops.get(self.op)) is None:
            return False
        tensor = op.tensors.get(self.argument)
        if self.argument and tensor is None and self.argument not in op.scalars:
            return False
        if self.value and self.value not in op.scalars[self.argument].values:
            return False
        if self.dtype and (tensor is None or self.dtype not in op.dtypes.get(tensor.dtype, tensor.dtype.split("|"))):
            return False
        if self.rank and (tensor is None or len(tensor.shape) != self.rank):
            return False
        return not self.axis or largest(op, self.axis) >= max(self.extent, 1)

    def __str__(self) -> str:
        argument = f"{self.argument}={self.value}" if self.value else self.argument
        extent = f" of {self.extent}" if self.extent else ""
        parts = [f"`{argument}`" if argument else "", f"of {self.dtype}" if self.dtype else ""]
        parts += [f"of {self.rank} dims" if self.rank else "", f"`{self.axis}`{extent}" if self.axis else ""]
        described = " ".join(filter(None, parts))
        return f"`{self.op}` with {described}" if described else f"`{self.op}`"


def largest(op: OpSpec, axis: str) -> int:
    """Return the largest extent of a compiled axis or of a dim; 0 if there is none."""
    if axis in op.constexprs:
        return max(op.constexprs[axis].values)
    return (op.dims[axis].max or 0) if axis in op.dims else 0


@dataclass(frozen=True)
class Rule:
    """needs: what takes the request directly; none if nothing is planned. detour: how the ops that exist take it."""

    needs: Needs | None = None
    detour: str = ""

    def verdict(self, ops: Contracts) -> Verdict:
        if self.needs is not None and self.needs.met(ops):
            return Verdict.DIRECT
        return Verdict.DETOUR if self.detour else Verdict.NOT

    @property
    def taker(self) -> str:
        """The op that takes the request directly."""
        return self.needs.op if self.needs else ""


FLOAT8 = "float8_e4m3fnuz"
BIAS = "the mask as a `bias` of `flash_attention`"
OWN = "a function of one's own, compiled as those of `attention_mods`"
QUERY = "a call of one query a sequence"

RULES: dict[str, Rule] = {
    # Dense attention
    "attention: chunk": Rule(Needs("flash_attention", "attention_chunk"), BIAS),
    "float8 attention: chunk": Rule(Needs("flash_attention_fp8", "attention_chunk"), BIAS),
    "attention: custom mask": Rule(Needs("flash_attention_varlen", "mask"), BIAS),
    "attention: custom mask, rotated": Rule(Needs("flash_attention_varlen", "cos"), f"`rotary`, and {BIAS}"),
    "attention: multi-item mask": Rule(),
    "attention: block-sparse": Rule(Needs("flash_attention", "block_mask"), f"{BIAS}; nothing is skipped"),
    "attention: rotation": Rule(Needs("flash_attention_varlen", "cos"), "`rotary` before"),
    "attention: qv": Rule(Needs("flash_attention", "qv")),
    "attention: head dim of v 512": Rule(Needs("flash_attention", axis="HEAD_DIM_V", extent=512)),
    "attention: sinks": Rule(Needs("flash_attention", "sinks"), "a key more, and its logit as a `bias`"),
    "attention: signed ALiBi": Rule(detour=BIAS),
    "attention: float8 out": Rule(Needs("flash_attention_fp8", "out", FLOAT8), "`quantise_static` after"),
    "attention: float8 keys": Rule(Needs("flash_attention_fp8_kv_varlen"), "`cast` of the keys before"),
    "attention: block scales": Rule(),
    "attention: two buffers": Rule(detour="keys joined before"),
    "attention: padded keys": Rule(Needs("flash_attention_varlen", "seqused_k")),
    "attention: padded queries": Rule(Needs("flash_attention_varlen", "seqused_q")),
    # What sees no key, or is seen by no query, is a sequence of its own in the offsets.
    "attention: window off the diagonal": Rule(Needs("flash_attention_varlen", "cu_seqlens_q")),
    "score function: linear": Rule(Needs("alibi_attention"), BIAS),
    "score function: documents": Rule(Needs("document_attention"), BIAS),
    "score function: others": Rule(detour=OWN),
    "score function: linear, cache": Rule(Needs("flex_decode_alibi")),
    "score function: documents, cache": Rule(Needs("flex_decode_document")),
    "score function: others, cache": Rule(detour=OWN),
    # Attention over caches
    "cache: not causal": Rule(Needs("paged_attention", "causal"), QUERY),
    "contiguous cache: window right": Rule(Needs("paged_attention", "window_right"), BIAS),
    "paged cache: window right": Rule(Needs("paged_attention", "window_right")),
    "contiguous cache: ALiBi, not causal": Rule(Needs("paged_attention", "causal"), BIAS),
    "paged cache: ALiBi, not causal": Rule(Needs("paged_attention", "causal")),
    "cache: several ALiBi slopes": Rule(Needs("paged_attention", "alibi_slopes", rank=2), "a call a sequence"),
    "cache: left padding": Rule(Needs("paged_attention", "first_keys"), "tables of blocks of one key"),
    "contiguous cache: chunk": Rule(Needs("paged_attention", "attention_chunk"), BIAS),
    "paged cache: chunk": Rule(Needs("paged_attention", "attention_chunk")),
    "paged cache: custom mask": Rule(Needs("paged_attention_masked")),
    "paged cache: sinks": Rule(Needs("paged_attention", "sinks")),
    "cache: sink tokens": Rule(),
    "cache: sparse": Rule(),
    "cache: float8 queries": Rule(Needs("paged_attention_fp8", "q", FLOAT8), "`cast` of the queries before"),
    "cache: float8_e5m2": Rule(Needs("append_kv", "k", "float8_e5m2fnuz")),
    "cache: float8 out": Rule(Needs("paged_attention_fp8", "out", FLOAT8), "`quantise_static` after"),
    "cache: 3 and 4 bits": Rule(),
    "cache: float32": Rule(Needs("paged_attention", "k", "float32")),
    "cache: factor of v": Rule(Needs("paged_attention", "out_factor"), "the factor times the result"),
    "cache: scales by page": Rule(),
    "cache: head dim 512": Rule(Needs("paged_attention", axis="HEAD_DIM", extent=512)),
    "cache: head dim 576": Rule(),
    "decode: head dim of v": Rule(Needs("paged_attention", axis="head_dim_v", extent=512)),
    "cache: rotation": Rule(Needs("paged_attention_rotated")),
    "cache: rotation, head dim 512": Rule(Needs("paged_attention_rotated", axis="HEAD_DIM", extent=512)),
    "cache: layout of blocks": Rule(Needs("paged_attention_pieces")),
    "cache: layout of blocks, float8 queries": Rule(Needs("paged_attention_fp8_pieces"), "`cast` of the queries"),
    "cache: layout of blocks, pieces of 8 bytes": Rule(detour="`flash_attention_varlen`, keys gathered before"),
    "cache: layout of blocks, writes": Rule(Needs("append_kv_pieces")),
    "cache: layout of tiles": Rule(),
    "cache: small blocks of 8 bits": Rule(),
    "cache: float32, writes": Rule(Needs("append_kv", "k_new", "float32")),
    "cache: copies": Rule(Needs("copy_blocks")),
    "cache: copies to and from the host": Rule(detour="a copy by the runtime for each block"),
    "cascade": Rule(Needs("merge_states"), "one call over joined tables"),
    "states: merge": Rule(Needs("merge_states")),
    # Latent attention
    "latent cache: not causal": Rule(Needs("mla_decode", "causal"), QUERY),
    "latent cache: no rotated part": Rule(detour="a rotated part of zeros"),
    "latent cache: rotation": Rule(Needs("mla_decode", "cos"), "`rotary` before"),
    "latent cache: rope above 64": Rule(Needs("mla_decode", axis="ROPE", extent=128)),
    "latent cache: 8 and 4 bits": Rule(Needs("mla_decode", "cache", FLOAT8)),
    "latent cache: writes": Rule(Needs("append_latent"), "two calls of `append_kv` on views"),
    "latent cache: fused writes": Rule(Needs("append_latent", "cos")),
    "latent cache: sparse": Rule(),
    "latent cache: two tensors": Rule(detour="rows joined before"),
    "latent cache: parts of other devices": Rule(),
    "latent prompts: float8": Rule(),
    "latent cache: indexer": Rule(),
    "latent cache: gather": Rule(),
    # Rotation
    "rotary: int64 positions": Rule(Needs("rotary", "positions", "int64"), "positions cast on the host"),
    "rotary: angle by element": Rule(Needs("rotary_by_element")),
    "rotary: angle by element, writes": Rule(Needs("append_latent", "by_element")),
    "rotary: last elements": Rule(Needs("rotary", "first_rotated"), "`rotary` on a view, and a copy of the rest"),
    "rotary: split with a gate": Rule(detour="`rotary` on views, and a copy of the gate"),
    "rotary: float8 out": Rule(Needs("append_kv", "q_quantised"), "`rotary`, `quantise_static`, `append_kv`"),
    "rotary: float8 out, latent": Rule(Needs("append_latent", "cos")),
    "rotary: 2 and 3 dims": Rule(detour="`rotary` once a dim, on views"),
    # Norms, activations, quantising
    "norm: quantised": Rule(Needs("rms_norm_quantised", "scale"), "the norm, and `quantise_static`"),
    "norm: quantised by group": Rule(Needs("rms_norm_block_quantised"), "the norm, and `quantise`"),
    "norm: float8_e5m2": Rule(Needs("rms_norm_quantised", "out", "float8_e5m2fnuz"), "the norm, and `quantise_static`"),
    "activation: quantised": Rule(Needs("activate_quantised"), "the activation, and `quantise`"),
    "norm: quantised float32": Rule(Needs("rms_norm_quantised", "x", "float32"), "`rms_norm`, and `quantise`"),
    "norm: smooth scales": Rule(Needs("rms_norm_quantised", "smooth"), "scales folded into the weights"),
    "norm: weight dtype": Rule(detour="`cast` of the weights before"),
    "norm: gated, quantised": Rule(),
    "activation: no gate": Rule(Needs("activate"), "a gate of ones"),
    "activation: kinds": Rule(Needs("activate")),
    "activation: clamped": Rule(Needs("activate", "limit")),
    "activation: narrower result": Rule(detour="the activation, and `cast`"),
    "norm: groups of channels": Rule(),
    "norm: of two tensors": Rule(detour="a call each"),
    "norm: no weight": Rule(detour="a weight of ones"),
    "norm: gated": Rule(detour="`rms_norm`, and `silu_mul`"),
    "activation: sparse": Rule(),
    "activation: factors": Rule(detour="`activate`, and `multiply_add`"),
    "activation: scales of powers of two": Rule(detour="`activate`, and `quantise` with `powers_of_two`"),
    "activation: rows of experts": Rule(detour="`activate_quantised` of all rows"),
    "quantise: given scales": Rule(),
    "quantise: packed scales": Rule(),
    "Hadamard transforms": Rule(),
    "embedding: shards": Rule(detour="the rows of a shard's ids computed before"),
    "embedding: quantised": Rule(),
    "quantise: smooth scales": Rule(detour="`multiply_add`, and `quantise`"),
    "quantise: bound": Rule(Needs("quantise", "bound")),
    "quantise: powers of two": Rule(Needs("quantise", "powers_of_two")),
    "quantise: column-major scales": Rule(Needs("quantise", "scale")),
    "quantise: zero points": Rule(Needs("quantise_shifted")),
    "quantise: given zero point": Rule(Needs("quantise_static", "zero")),
    "softmax: temperatures": Rule(Needs("softmax", "temperature"), "a call a temperature"),
    "elementwise: sums": Rule(detour="`multiply_add` with a factor of one"),
    "elementwise: multiply-add": Rule(Needs("multiply_add")),
    "concatenation": Rule(Needs("append_latent", "q_pe"), "a call of `append_latent` each"),
    "concatenation: several key heads": Rule(detour="a call of `append_latent` each"),
    "rows: permutation": Rule(Needs("embedding")),
    "masks: packed bits": Rule(),
    "other fusions": Rule(),
    "linear attention": Rule(),
    "4-bit floats": Rule(),
    # Products
    "product: int4 weights, float8 scales": Rule(),
    "product: float32 out": Rule(Needs("matmul_float32"), "the product of tensors cast to float32"),
    "product: float8 weights": Rule(Needs("linear_fp8")),
    "product: batched, float8 weights": Rule(Needs("batched_linear_fp8"), "a call a matrix"),
    "product: fused with others": Rule(detour="a call each"),
    "product: gated": Rule(detour="`matmul`, and `silu_mul` or `gelu_mul`"),
    "product: gated, relu or none": Rule(),
    "product: parts": Rule(),
    "product: parts, norm": Rule(),
    "feed-forward": Rule(detour="a call of each product"),
    "scaled product: batched": Rule(Needs("batched_scaled_matmul"), "a call a matrix"),
    "scaled product: column-major a": Rule(Needs("scaled_matmul", axis="A_ROWS"), "`transpose` of a before"),
    "scaled product: int32 out": Rule(Needs("scaled_matmul", "e", "int32")),
    "scaled product: zero points": Rule(Needs("scaled_matmul", "zero_a")),
    "scaled product: zero point of all": Rule(Needs("scaled_matmul", "zero_a"), "folded into the bias on the host"),
    "block-scaled product: quantising": Rule(detour="`quantise` before"),
    "grouped product": Rule(Needs("grouped_matmul")),
    "grouped product: fused": Rule(detour="`moe_permute`, `grouped_matmul`, the activation, `moe_unpermute`"),
    "grouped product: 4-bit codes": Rule(),
    "weights: dequantise": Rule(),
    # Mixtures of experts
    "moe: aligned blocks": Rule(Needs("moe_align")),
    "moe: counts of tokens": Rule(Needs("moe_align", "counts")),
    "moe: permutation": Rule(Needs("moe_permute")),
    "moe: sum": Rule(Needs("moe_sum")),
    "moe: weighted sum": Rule(Needs("moe_unpermute", "weights")),
    "moe: shuffled scales": Rule(),
    "moe: static scale": Rule(Needs("moe_scaled", "scale_x"), "dynamic scales by token instead"),
    "moe: float8 weights": Rule(Needs("moe_fp8")),
    "moe: activations": Rule(),
    "moe: int4 weights, int8 activations": Rule(),
    "moe: float32": Rule(Needs("moe", "x", "float32")),
    "moe: int8 blocks": Rule(Needs("moe_block_scaled", "gate_up", "int8")),
    "moe: int8 zero points": Rule(Needs("moe_int8", "zeros_gate_up")),
    "moe: LoRA": Rule(),
    "moe: masks of experts": Rule(detour="-1 as the numbers of masked experts"),
    "moe: weights before the activation": Rule(),
    "route: 16-bit bias": Rule(Needs("moe_route", "bias_bfloat16"), "`cast` of the bias before"),
    "route: sorted experts": Rule(detour="`moe_route`, and the sort after"),
    "route: scores": Rule(),
    "route: NaN": Rule(),
    "route: root of softplus": Rule(Needs("moe_route", "scoring", value="sqrt_softplus")),
    "route: variants": Rule(),
    "route: many experts": Rule(),
    # Sampling
    "sample: probabilities": Rule(Needs("sample_probs"), "logarithms on the host"),
    "sample: NaN": Rule(),
    "verify: probabilities": Rule(Needs("verify_probs"), "logarithms on the host"),
    "probabilities: renormalise": Rule(Needs("renorm_probs")),
    "logits: mask": Rule(Needs("mask_logits")),
    "rows: top-k": Rule(Needs("top_k")),
    "rows: top-k, the last of equal ones": Rule(Needs("top_k", "ties")),
    "rows: top-k, int64 columns": Rule(detour="the columns cast after"),
}  # fmt: skip
"""Rules by request. A request names what is called, and what is asked of it beyond a plain call."""


def verdict(op: str, requests: Iterable[str], ops: Contracts) -> tuple[Verdict, str]:
    """Return how a call is taken, and the request that decides: the first of the worst, or "" if the call is plain."""
    plain = Verdict.DIRECT if not op or op in ops else Verdict.NOT
    return max(
        [(plain, ""), *((RULES[request].verdict(ops), request) for request in requests)], key=lambda found: found[0]
    )
