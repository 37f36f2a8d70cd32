"""A file of kernels with the functions that launch them, in common published styles."""

PUBLISHED = """\
import torch
import triton
import triton.language as tl


@triton.jit
def select_rows(a_ptr, b_ptr, sel_ptr, out_ptr, cols, a_row, b_row, o_row, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(sel_ptr + r)
    src = tl.where(s != 0, a_ptr + r * a_row, b_ptr + r * b_row)
    tl.store(out_ptr + r * o_row + c, tl.load(src + c, mask=c < cols), mask=c < cols)


def select(a, b, sel):
    assert a.shape == b.shape
    rows, cols = a.shape
    assert sel.dtype == torch.int32 and sel.shape == (rows,)
    out = torch.empty_like(a)
    select_rows[(rows, triton.cdiv(cols, 512))](
        a, b, sel, out, cols, a.stride(0), b.stride(0), out.stride(0), BLOCK=512)
    return out


@triton.jit
def add_heads(x, bias, out, tokens, n_heads):
    t = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, 128)
    v = tl.load(x + t * n_heads * 128 + h * 128 + d) + tl.load(bias + h * 128 + d)
    tl.store(out + (t * n_heads + h) * 128 + d, v)


def add(x, bias):
    tokens, n_heads, head_dim = x.shape
    assert head_dim == 128
    out = torch.empty_like(x)
    add_heads[(tokens, n_heads)](x, bias, out, tokens, n_heads)
    return out


@triton.jit
def bias_gelu(x, bias, residual, out, M, N, sx, sr, so, BLOCK: tl.constexpr, KEEP: tl.constexpr, pre):
    m = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = n < N
    v = tl.load(x + m * sx + n, mask=ok).to(tl.float32)
    if bias is not None:
        v += tl.load(bias + n, mask=ok).to(tl.float32)
    if KEEP:
        tl.store(pre + m * so + n, v, mask=ok)
    v = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    if residual is not None:
        v += tl.load(residual + m * sr + n, mask=ok).to(tl.float32)
    tl.store(out + m * so + n, v, mask=ok)


def fused(x, bias=None, residual=None, save_pre=False):
    assert x.dim() == 2
    M, N = x.shape
    out = torch.empty_like(x)
    pre = torch.empty_like(x) if save_pre else None
    BLOCK = 512
    bias_gelu[(M, triton.cdiv(N, BLOCK))](
        x, bias, residual, out, M, N, x.stride(0), residual.stride(0) if residual is not None else 0, out.stride(0),
        BLOCK, save_pre, pre)
    return (out, pre) if save_pre else out


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(in_ptr + row * in_stride + c, mask=c < n_cols, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x.to(tl.float32))
    tl.store(out_ptr + row * out_stride + c, e / tl.sum(e, axis=0), mask=c < n_cols)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](y, x, x.stride(0), y.stride(0), n_cols, BLOCK=2048)
    return y


@triton.jit
def moe_sum_kernel(
        inp, out, w, n_tokens, hidden, stride_ib, stride_ik, stride_ih, stride_ob, stride_oh, topk: tl.constexpr,
        HAS_W: tl.constexpr, BLOCK_H: tl.constexpr):
    t = tl.program_id(0)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    acc = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for k in range(topk):
        v = tl.load(inp + t * stride_ib + k * stride_ik + h * stride_ih, mask=h < hidden, other=0.0).to(tl.float32)
        if HAS_W:
            v *= tl.load(w + t * topk + k)
        acc += v
    tl.store(out + t * stride_ob + h * stride_oh, acc.to(out.dtype.element_ty), mask=h < hidden)


def moe_sum(inp, weights=None):
    n, topk, hidden = inp.shape
    out = inp.new_empty((n, hidden))
    BLOCK_H = min(1024, triton.next_power_of_2(hidden))
    grid = (n, triton.cdiv(hidden, BLOCK_H))
    moe_sum_kernel[grid](
        inp, out, weights, n, hidden, *inp.stride(), *out.stride(), topk=topk, HAS_W=weights is not None,
        BLOCK_H=BLOCK_H)
    return out


@triton.jit
def apply_freqs(x_ptr, freqs_ptr, y_ptr, seq, stride_xb, stride_xs, stride_xh, H: tl.constexpr, D: tl.constexpr):
    pid = tl.program_id(0)
    b = pid // seq
    s = pid % seq
    h = tl.program_id(1)
    i = tl.arange(0, D // 2)
    f = tl.load(freqs_ptr + s * (D // 2) + i)
    base = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh
    a = tl.load(base + 2 * i).to(tl.float32)
    c = tl.load(base + 2 * i + 1).to(tl.float32)
    cos, sin = tl.cos(f), tl.sin(f)
    out = y_ptr + b * stride_xb + s * stride_xs + h * stride_xh
    tl.store(out + 2 * i, a * cos - c * sin)
    tl.store(out + 2 * i + 1, a * sin + c * cos)


def rope(x, freqs):
    B, S, H, D = x.shape
    assert D in (64, 128)
    assert freqs.shape == (S, D // 2)
    x = x.contiguous()
    y = torch.empty_like(x)
    apply_freqs[(B * S, H)](x, freqs, y, S, x.stride(0), x.stride(1), x.stride(2), H=H, D=D)
    return y


@triton.jit
def unpack(packed_ptr, out_ptr, K, stride_pk, stride_ok, HALF: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, HALF)
    tl.static_assert(packed_ptr.dtype.element_ty == tl.uint8)
    b = tl.load(packed_ptr + row * stride_pk + c, mask=c < K // 2, other=0)
    lo = (b & 0xF).to(tl.int8)
    hi = (b >> 4).to(tl.int8)
    tl.store(out_ptr + row * stride_ok + 2 * c, lo, mask=c < K // 2)
    tl.store(out_ptr + row * stride_ok + 2 * c + 1, hi, mask=c < K // 2)


@triton.jit
def count_kernel(ids_ptr, counts_ptr, num_ids, num_experts, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < num_ids
    e = tl.load(ids_ptr + i, mask=mask, other=-1)
    tl.atomic_add(counts_ptr + e, 1, mask=mask & (e >= 0))


def count(topk_ids, num_experts: int):
    counts = torch.zeros(num_experts, dtype=torch.int32, device=topk_ids.device)
    n = topk_ids.numel()
    count_kernel[(triton.cdiv(n, 1024),)](topk_ids, counts, n, num_experts, BLOCK=1024)
    return counts


@triton.jit
def split_halves(x, out, cols, x_row, out_row, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    half = cols // 2
    i = tl.arange(0, BLOCK)
    a = tl.load(x + r * x_row + i, mask=i < half)
    b = tl.load(x + r * x_row + half + i, mask=i < half)
    tl.store(out + r * out_row + i, a + b, mask=i < half)


def add_halves(x):
    rows, cols = x.shape
    assert cols % 2 == 0
    out = torch.empty((rows, cols // 2), dtype=x.dtype, device=x.device)
    split_halves[(rows,)](x, out, cols, x.stride(0), out.stride(0), BLOCK=triton.next_power_of_2(cols // 2))
    return out


@triton.jit
def put_lines(a_store, b_store, a_new, b_new, lines, sa, sb, na, nb, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(lines + t).to(tl.int64)
    if at < 0:
        return
    if tl.program_id(2) == 0:
        source, target = a_new + t * na, a_store + at * sa
    else:
        source = b_new + t * nb
        target = b_store + at * sb
    tl.store(target + c, tl.load(source + c, mask=c < WIDTH), mask=c < WIDTH)


def put(a_store, b_store, a_new, b_new, lines):
    n, width = a_new.shape
    assert b_new.shape == a_new.shape and lines.shape == (n,)
    grid = lambda meta: (n, triton.cdiv(width, meta["BLOCK"]), 2)
    put_lines[grid](a_store, b_store, a_new, b_new, lines, a_store.stride(0), b_store.stride(0), a_new.stride(0),
                    b_new.stride(0), WIDTH=width, BLOCK=128)


@triton.jit
def mean_of_heads(x, y, L, stride_x_0, stride_xh, stride_xl, heads, D: tl.constexpr, BL: tl.constexpr):
    pid = tl.program_id(0)
    base = x + (pid // heads) * stride_x_0 + (pid % heads) * stride_xh
    view = tl.make_tensor_descriptor(base, shape=[L, D], strides=[stride_xl, 1], block_shape=[BL, D])
    total = tl.zeros((D,), tl.float32)
    for first in range(0, L, BL):
        total += tl.sum(view.load([first, 0]).to(tl.float32), 0)
    tl.store(y + pid * D + tl.arange(0, D), total / L)


def mean(x):
    B, H, L, D = x.shape
    assert D in {32, 64}
    y = x.new_empty((B, H, D), dtype=torch.float32)
    mean_of_heads[(B * H,)](x, y, L, x.stride(0), x.stride(1), x.stride(2), H, D=D, BL=16)
    return y


@triton.jit
def mirror(x, out, count_ptr, n, most, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.load(count_ptr + tl.program_id(0))
    if c > most:
        return
    tl.store(out + n - 1 - i, tl.load(x + i, mask=i < n), mask=i < n)


def mirrored(x, counts, most):
    out = torch.zeros_like(x)
    n = x.numel()
    mirror[(triton.cdiv(n, 64),)](x, out, counts, n, most, BLOCK=64)
    return out


@triton.jit
def signs(x, out, groups, cols, stride_x_rows, stride_x_cols, W: tl.constexpr):
    r, g = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, W // 8)
    bits = tl.zeros((W // 8,), tl.int32)
    for b in tl.static_range(8):
        v = tl.load(x + r * stride_x_rows + (g * W + 8 * c + b) * stride_x_cols)
        bits |= (v > 0).to(tl.int32) << b
    tl.store(out + (r * groups + g) * (W // 8) + c, bits.to(tl.uint8))


def pack_signs(x):
    rows, cols = x.shape
    groups = cols // 64
    out = torch.empty((rows, cols // 8), dtype=torch.uint8, device=x.device)
    signs[(rows, groups)](x, out, groups, cols, x.stride(0), x.stride(1), W=64)
    return out
"""
"""Pointers that `tl.where` chooses; widths in literals; outputs and inputs that may be absent; rows in one block; a
sum over experts; interleaved pairs; bits; atomics; halves of rows; pointers of branches; a descriptor with an offset;
zeroed outputs; packed bits."""
