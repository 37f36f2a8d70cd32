"""The kernels whose published winners and times the model is held to, in the structures that their publishers describe.

`product` is a persistent matrix product, each program taking every NUM_SMS-th tile (the published ones split the
remainder along K as well). `attention` is a FlashAttention-2 forward, one program for a block of queries of a head.
"""

import triton
import triton.language as tl


@triton.jit
def product(
    a, b, c, m, n, k, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    NUM_XCDS: tl.constexpr, B_ROWS: tl.constexpr,
):  # fmt: skip
    """c = a b in fp16, by fp32 sums. a: [m, k]; b: [n, k], or with B_ROWS [k, n]; k a multiple of BK."""
    pid = tl.program_id(0)
    pid = (pid % NUM_XCDS) * (NUM_SMS // NUM_XCDS) + pid // NUM_XCDS
    rows = tl.cdiv(m, BM)
    columns = tl.cdiv(n, BN)
    for tile in range(pid, rows * columns, NUM_SMS):
        width = GROUP_M * columns
        first = tile // width * GROUP_M
        group = min(rows - first, GROUP_M)
        row = first + tile % width % group
        column = tile % width // group
        rm = (row * BM + tl.arange(0, BM)) % m
        rn = (column * BN + tl.arange(0, BN)) % n
        rk = tl.arange(0, BK)
        at = a + rm[:, None] * stride_am + rk[None, :]
        if B_ROWS:  # noqa: SIM108
            bt = b + rk[:, None] * stride_bn + rn[None, :]
        else:
            bt = b + rk[:, None] + rn[None, :] * stride_bn
        acc = tl.zeros((BM, BN), tl.float32)
        for _ in range(tl.cdiv(k, BK)):
            acc += tl.dot(tl.load(at), tl.load(bt))
            at += BK
            bt += BK * stride_bn if B_ROWS else BK
        rm = row * BM + tl.arange(0, BM)
        rn = column * BN + tl.arange(0, BN)
        inside = (rm[:, None] < m) & (rn[None, :] < n)
        tl.store(c + rm[:, None] * stride_cm + rn[None, :], acc.to(c.dtype.element_ty), inside)


@triton.jit
def attention(
    q, k, v, out, lse, sq, sk, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRELOAD_V: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Of head program_id(1): q, out [sq, D], k, v [sk, D], lse [sq]. sk a multiple of BN; CAUSAL: sq = sk."""
    head = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    rows = block * BM + tl.arange(0, BM)
    columns, keys = tl.arange(0, D), tl.arange(0, BN)
    queries = tl.load(q + head * sq * D + rows[:, None] * D + columns[None, :], rows[:, None] < sq, 0.0)
    kt = k + head * sk * D + keys[None, :] * D + columns[:, None]
    vt = v + head * sk * D + keys[:, None] * D + columns[None, :]
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.full((BM,), 1.0, tl.float32)
    unmasked = block * BM // BN * BN if CAUSAL else sk
    for _ in range(0, unmasked, BN):
        acc, top, total = step(queries, kt, vt, acc, top, total, rows, keys, scale, PRELOAD_V, False)
        kt += BN * D
        vt += BN * D
    if CAUSAL:
        for start in range(unmasked, tl.minimum(unmasked + (BM + BN - 1) // BN * BN, sk), BN):
            acc, top, total = step(queries, kt, vt, acc, top, total, rows, start + keys, scale, PRELOAD_V, True)
            kt += BN * D
            vt += BN * D
    acc = acc / total[:, None]
    tl.store(lse + head * sq + rows, top + tl.log2(total), rows < sq)
    tl.store(
        out + head * sq * D + rows[:, None] * D + columns[None, :], acc.to(out.dtype.element_ty), rows[:, None] < sq
    )


@triton.jit
def step(queries, kt, vt, acc, top, total, rows, keys, scale, PRELOAD_V: tl.constexpr, MASKED: tl.constexpr):
    """One block of keys."""
    key = tl.load(kt)
    if PRELOAD_V:
        value = tl.load(vt)
    s = tl.dot(queries, key)
    if MASKED:
        s = tl.where(rows[:, None] >= keys[None, :], s, float("-inf"))
    new = tl.maximum(top, tl.max(s, 1) * scale)
    p = tl.exp2(s * scale - new[:, None])
    alpha = tl.exp2(top - new)
    acc = acc * alpha[:, None]
    if not PRELOAD_V:
        value = tl.load(vt)
    total = total * alpha + tl.sum(p, 1)
    acc += tl.dot(p.to(value.dtype), value)
    return acc, new, total
