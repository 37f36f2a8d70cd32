"""Makers of calls of our ops for combinations of the peers' tests, with exact results and the suites' own tolerances.

Extents that a suite parametrises are those of the combination; others, such as the batch and the heads of
flash-attention's tests, are small. An argument that no contract has yet is passed all the same: the rules say which
combinations ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.peers.attention import cache, dense, latent, varlen
from tests.peers.draws import Call, Draw, Tolerance
from tests.peers.grids import Function
from tests.peers.products import batched, block_scaled, experts, product, scaled
from tests.peers.rows import gate, merge, norm, renormalise, rotary, softmax, static

FA, CACHE = "tests/test_flash_attn", "test_flash_attn_kvcache"
CALLS: dict[tuple[str, str], Callable[[Draw], Call]] = {
    **{("flash-attention 2", name): dense for name in (
        "test_flash_attn_qkvpacked", "test_flash_attn_output", "test_flash_attn_causal", "test_flash_attn_splitkv",
        "test_flash_attn_race_condition")},
    **{("flash-attention 2", name): varlen for name in (
        "test_flash_attn_varlen_qkvpacked", "test_flash_attn_varlen_output")},
    ("flash-attention 2", CACHE): cache,
    ("flash-attention 3", "test_flash_attn_output"): dense,
    ("flash-attention 3", "test_flash_attn_race_condition"): dense,
    ("flash-attention 3", "test_flash_attn_varlen_output"): varlen,
    ("flash-attention 3", CACHE): cache,
    ("flash-attention 4", "test_flash_attn.py::test_flash_attn_output"): dense,
    ("flash-attention 4", "test_flash_attn.py::test_flash_attn_varlen_output"): varlen,
    ("flash-attention 4", CACHE): cache,
    ("aiter", "test_mha.py::test_flash_attn_output"): dense,
    ("aiter", "test_flash_attn_varlen_func"): varlen,
    **{("aotriton", name): dense for name in (
        "test_op_fwd", "test_op_fwd_with_matrix_bias", "test_gqa", "test_irregulars")},
    ("composable_kernel", "fmha_fwd"): dense,
    ("composable_kernel", "gemm"): partial(product, allowed=Tolerance(1e-3, 1e-3)),
    ("aiter", "test_gemm_a16_w16"): partial(product, allowed=Tolerance(1e-1, 1e-2)),
    ("aiter", "test_gemm_a16_w16_layout"): partial(product, allowed=Tolerance(1e-1, 1e-2)),
    ("aiter", "test_batched_gemm_bf16"): batched,
    ("aiter", "test_batched_gemm_bf16_layout"): batched,
    ("aiter", "test_mha.py::test_mha_varlen"): varlen,
    ("aiter", "test_static_per_tensor_quant"): static,
    ("aiter", "test_softmax"): softmax,
    ("aiter", "test_batch_prefill"): cache,
    ("aiter", "test_rmsnorm"): norm,
    ("aiter", "test_fused_add_rmsnorm"): norm,
    ("flashinfer", "test_batch_prefill_with_paged_kv_cache"): cache,
    ("flashinfer", "test_batch_decode_sliding_window"): cache,
    ("flashinfer", "test_batch_paged_prefill_sliding_window"): cache,
    ("flashinfer", "test_batch_paged_prefill"): cache,
    ("flashinfer", "test_batch_prefill_kernels.py::test_batch_prefill_with_ragged_kv_cache"): varlen,
    ("flashinfer", "test_batch_ragged_prefill"): varlen,
    ("flashinfer", "test_single_prefill_logits_soft_cap"): dense,
    **{("flashinfer", name): cache for name in (
        "test_batch_attention_correctness", "test_batch_decode_tensor_cores", "test_batch_decode_with_paged_kv_cache",
        "test_batch_decode_with_tuple_paged_kv_cache", "test_batch_prefill_tensor_cores",
        "test_batch_prefill_with_paged_kv_cache_fp8_calibration_scale",
        "test_batch_prefill_with_tuple_paged_kv_cache", "test_single_decode_sliding_window",
        "test_batch_prefill_with_paged_kv_cache_custom_mask")},
    **{("flashinfer", name): latent for name in ("test_batch_mla_varlen_page_attention", "test_batch_mla_oob_kv_nan")},
    ("flashinfer", "test_batch_ragged_prefill_sliding_window"): varlen,
    ("flashinfer", "test_batch_ragged_prefill_packed_input"): varlen,
    ("flashinfer", "test_hopper.py::test_single_prefill"): dense,
    ("flashinfer", "test_fp8_groupwise_gemm"): block_scaled,
    ("flashinfer", "test_rope"): rotary,
    ("flashinfer", "test_rope_pos_ids"): rotary,
    ("flashinfer", "test_sampling.py::test_softmax"): softmax,
    ("flashinfer", "test_top_k_renorm_probs"): renormalise,
    ("flashinfer", "test_top_p_renorm_probs"): renormalise,
    ("flashinfer", "test_qknorm"): norm,
    ("flashinfer", "test_norm"): norm,
    ("flashinfer", "test_fused_add_rmsnorm"): norm,
    ("flashinfer", "test_gemma_norm"): partial(norm, zero_centred=True),
    ("flashinfer", "test_fused_silu_mul"): gate,
    ("flashinfer", "test_fused_gelu_mul"): gate,
    ("flashinfer", "test_fused_gelu_tanh_mul"): gate,
    ("vLLM", "test_flash_attn_with_paged_kv"): cache,
    ("vLLM", "test_varlen_with_paged_kv"): cache,
    ("vLLM", "test_triton_unified_attn"): cache,
    ("vLLM", "test_triton_unified_attn_diffkv_vs_reference"): cache,
    ("vLLM", "test_decode_attention"): cache,
    ("vLLM", "test_rocm_wvsplitk_kernel"): partial(product, allowed=Tolerance(1e-8, 1e-2), positive=True),
    ("vLLM", "test_rocm_llmm1_kernel"): partial(product, allowed=Tolerance(1e-8, 1e-2), positive=True),
    ("vLLM", "test_flashinfer_decode_with_paged_kv"): cache,
    ("vLLM", "test_rotary_embedding"): rotary,
    ("vLLM", "test_batched_rotary_embedding"): rotary,
    ("vLLM", "test_layernorm.py::test_rms_norm"): norm,
    ("vLLM", "test_static_scaled_int8_quant"): static,
    ("vLLM", "test_merge_attn_states"): merge,
    ("vLLM", "test_merge_kernel"): merge,
    ("vLLM", "test_scaled_mm"): scaled,
    ("vLLM", "test_fused_moe"): experts,
}  # fmt: skip
"""Functions that make a test's call, by suite and name, and by file if tests of one name make different calls."""


def maker(function: Function) -> Callable[[Draw], Call] | None:
    """Return what makes the calls of a test function, if the sample has them."""
    qualified = f"{function.file.rpartition('/')[2]}::{function.name}"
    return CALLS.get((function.suite, qualified)) or CALLS.get((function.suite, function.name))
