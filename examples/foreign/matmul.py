"""Matrix product with an activation, autotuned, as such files are found in the wild: it computes and times when it is
imported."""

import os

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
assert torch.cuda.is_available(), "this file needs a GPU"
torch.backends.cuda.matmul.allow_tf32 = os.environ.get("ALLOW_TF32", "1") == "1"
LEAKINESS = tl.constexpr(0.01)


def configs():
    for m, n, k, stages, warps in ((64, 64, 32, 2, 4), (128, 128, 32, 2, 8), (128, 64, 64, 3, 4)):
        sizes = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8}
        yield triton.Config(sizes, num_stages=stages, num_warps=warps)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, LEAKINESS * x)


@triton.autotune(configs=list(configs()), key=["M", "N", "K"])
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_SIZE_K"] == 0})
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    ACTIVATION: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    width = GROUP_SIZE_M * num_pid_n
    first_pid_m = pid // width * GROUP_SIZE_M
    group_size = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + pid % width % group_size
    pid_n = pid % width // group_size

    offs_m = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_n = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(c_ptr.dtype.element_ty)

    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "incompatible dimensions"
    assert a.is_contiguous(), "matrix A must be contiguous"
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(M, meta["BLOCK_SIZE_M"]) * triton.cdiv(N, meta["BLOCK_SIZE_N"]),)

    strides = (*a.stride(), *b.stride(), *c.stride())
    matmul_kernel[grid](a, b, c, M, N, K, *strides, ACTIVATION=activation)
    return c


torch.manual_seed(0)
a = torch.rand((512, 512), device=DEVICE, dtype=torch.float16) - 0.5
b = torch.rand((512, 512), device=DEVICE, dtype=torch.float16) - 0.5
assert torch.allclose(matmul(a, b), torch.matmul(a, b), atol=1e-2)
print("triton and torch match")


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["M", "N", "K"], x_vals=[128 * i for i in range(2, 33)], line_arg="provider",
        line_vals=["cublas", "triton"], line_names=["cuBLAS", "Triton"], plot_name="matmul", args={},
    )
)  # fmt: skip
def benchmark(M, N, K, provider):
    x, y = (torch.randn(shape, device=DEVICE, dtype=torch.float16) for shape in ((M, K), (K, N)))
    run = matmul if provider == "triton" else torch.matmul
    milliseconds = triton.testing.do_bench(lambda: run(x, y))
    return 2e-9 * M * N * K / milliseconds


benchmark.run(show_plots=True, print_data=True)
