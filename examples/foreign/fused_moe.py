"""A fused mixture of experts: tokens sorted by expert, each block of them times its expert's weights."""

import functools
import json
import logging
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

logger = logging.getLogger(__name__)
DEVICE_NAME = torch.cuda.get_device_name().replace(" ", "_")


@triton.jit
def write_zeros(c_ptr, stride_cm, stride_cn, pid_n, N, offs_token, token_mask, BLOCK_N: tl.constexpr, dtype):
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    zeros = tl.zeros([offs_token.shape[0], BLOCK_N], dtype=dtype)
    tl.store(c_ptrs, zeros, mask=token_mask[:, None] & (offs_cn < N)[None, :])


@triton.jit
def fused_moe_kernel(
    a_ptr, b_ptr, c_ptr, topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr, num_tokens_post_padded_ptr,
    N, K, EM, num_valid_tokens, stride_am, stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    MUL_ROUTED_WEIGHT: tl.constexpr, top_k: tl.constexpr, compute_type: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(EM, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    width = GROUP_SIZE_M * num_pid_n
    first_pid_m = pid // width * GROUP_SIZE_M
    group_size = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + pid % width % group_size
    pid_n = pid % width // group_size

    # The number of blocks is known on the device alone: the grid has the most that there may be.
    if pid_m * BLOCK_SIZE_M >= tl.load(num_tokens_post_padded_ptr):
        return
    offs_token = tl.load(sorted_token_ids_ptr + pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)).to(tl.int64)
    token_mask = offs_token < num_valid_tokens
    expert = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    if expert == -1:  # on another device
        write_zeros(c_ptr, stride_cm, stride_cn, pid_n, N, offs_token, token_mask, BLOCK_SIZE_N, compute_type)
        return

    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N).to(tl.int64)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_token[:, None] // top_k * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + expert * stride_be + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        inside = offs_k < K - k * BLOCK_SIZE_K
        a = tl.load(a_ptrs, mask=token_mask[:, None] & inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=inside[:, None], other=0.0)
        accumulator += tl.dot(a, b)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if MUL_ROUTED_WEIGHT:
        accumulator *= tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)[:, None]

    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, accumulator.to(compute_type), mask=token_mask[:, None] & (offs_cn[None, :] < N))


@functools.lru_cache
def tuned_configs(E, N):
    path = Path(__file__).parent / "configs" / f"E={E},N={N},device_name={DEVICE_NAME}.json"
    if not path.exists():
        logger.warning("no tuned configs for %s", DEVICE_NAME)
        return {}
    return {int(tokens): config for tokens, config in json.loads(path.read_text()).items()}


def moe_align_block_size(topk_ids, block_size, num_experts):
    flat = topk_ids.flatten()
    order, experts = [], []
    for expert in range(num_experts):
        tokens = torch.nonzero(flat == expert).flatten()
        padding = -len(tokens) % block_size
        order.append(F.pad(tokens, (0, padding), value=flat.numel()))
        experts += [expert] * ((len(tokens) + padding) // block_size)
    ids = torch.cat(order).int()
    return ids, torch.tensor(experts, dtype=torch.int32, device=flat.device), torch.tensor([len(ids)]).int()


def fused_moe(a, w, topk_weights, topk_ids, mul_routed_weight=True):
    tokens, top_k = topk_ids.shape
    E, N, K = w.shape
    config = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    config |= tuned_configs(E, N).get(tokens, {})
    ids, experts, padded = moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], E)
    c = torch.empty((tokens * top_k, N), device=a.device, dtype=a.dtype)

    def grid(meta):
        return (triton.cdiv(len(ids), meta["BLOCK_SIZE_M"]) * triton.cdiv(N, meta["BLOCK_SIZE_N"]),)

    fused_moe_kernel[grid](
        a, w, c, topk_weights, ids, experts, padded.to(a.device), N, K, len(ids), tokens * top_k,
        a.stride(0), a.stride(1), w.stride(0), w.stride(2), w.stride(1), c.stride(0), c.stride(1),
        MUL_ROUTED_WEIGHT=mul_routed_weight, top_k=top_k, **config,
        compute_type={torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[a.dtype],
    )  # fmt: skip
    return c.view(tokens, top_k, N).sum(1)
