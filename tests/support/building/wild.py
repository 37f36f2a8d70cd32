"""A file of kernels in a common style: it imports torch, launches from wrappers, and runs a launch at import."""

WILD = """\
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda")


def is_hip():
    return triton.runtime.driver.active.get_current_target().backend == "hip"


def shapes():
    sizes = (64, 32) if is_hip() else (128, 128)
    return [triton.Config({"BLOCK_M": m, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 4}, num_warps=2) for m in sizes]


@triton.jit
def gelu_like(x):
    return tl.where(x >= 0, x, 0.5 * x)


@triton.autotune(configs=shapes(), key=["M", "N", "K"])
@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                  ACTIVATION: tl.constexpr):
    pid = tl.program_id(axis=0)
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP * blocks_n)
    size = min(blocks_m - group * GROUP, GROUP)
    pid_m = group * GROUP + (pid % (GROUP * blocks_n)) % size
    pid_n = (pid % (GROUP * blocks_n)) // size
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "gelu":
        total = gelu_like(total)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_m[:, None] + stride_cn * offs_n[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def matmul(a, b, activation=""):
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)
    matmul_kernel[grid](a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0),
                        c.stride(1), ACTIVATION=activation)
    return c


@triton.jit
def _norm_fwd_kernel(Y_ptr, Y_row_stride, X_ptr, X_row_stride, W_ptr, RSTD_ptr, n_cols, eps,
                     HAS_WEIGHT: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    Y_ptr += row * Y_row_stride
    X_ptr += row * X_row_stride
    x = tl.load(X_ptr + cols, mask=mask, other=0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    tl.store(RSTD_ptr + row, rstd)
    y = x * rstd
    if HAS_WEIGHT:
        y = y * tl.load(W_ptr + cols, mask=mask, other=0).to(tl.float32)
    tl.store(Y_ptr + cols, y.to(Y_ptr.dtype.element_ty), mask=mask)


def norm_forward(X, W=None, eps=1e-6):
    X = X.view(-1, X.shape[-1])
    n_rows, n_cols = X.shape
    Y = torch.empty_like(X)
    RSTD = torch.empty(n_rows, dtype=torch.float32, device=X.device)
    _norm_fwd_kernel[(n_rows,)](Y, Y.stride(0), X, X.stride(0), W, RSTD, n_cols, eps,
                                HAS_WEIGHT=W is not None, BLOCK_SIZE=triton.next_power_of_2(n_cols))
    return Y, RSTD


@triton.jit
def _scatter_add(src, index, dst, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = tl.load(index + at, mask=at < length, other=0)
    cols = tl.arange(0, WIDTH)
    value = tl.load(src + at[:, None] * WIDTH + cols[None, :], mask=at[:, None] < length, other=0.0)
    tl.atomic_add(dst + where[:, None] * WIDTH + cols[None, :], value, mask=at[:, None] < length)


print(matmul(torch.randn((512, 512), device=DEVICE), torch.randn((512, 512), device=DEVICE)))
"""
"""`matmul_kernel` (swizzled, autotuned, a choice), `_norm_fwd_kernel` (a row, an optional weight), `_scatter_add` (an
index, an atomic, no launch)."""
