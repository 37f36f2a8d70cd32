"""Kernels with the structure of those whose published winners and times validate the model.

`product` is a persistent matrix product: each program takes every NUM_SMS-th tile. (The published ones also split the
remainder along K.) `attention` is a FlashAttention-2 forward pass with a program for each block of queries of a head;
the causal one is persistent. `scaled_product` is a product of fp8 with a scale for each block, and a program for each
tile. `experts` multiplies the tokens of each expert with its matrix, with a program for each tile.
"""

import triton
import triton.language as tl


@triton.jit
def product(
    a, b, c, m, n, k, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    NUM_XCDS: tl.constexpr, B_ROWS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Compute c = a b in fp16, with fp32 sums. a: [m, k]; b: [n, k], or [k, n] with B_ROWS; k is a multiple of BK.

    ADDED: the program has a part of K, and adds its result to c atomically.
    """
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
        to = c + rm[:, None] * stride_cm + rn[None, :]
        if ADDED:
            tl.atomic_add(to, acc.to(c.dtype.element_ty), inside)
        else:
            tl.store(to, acc.to(c.dtype.element_ty), inside)


@triton.jit
def attention(
    q, k, v, out, lse, counter, scale, qz, qh, qm, kz, kh, kn, vz, vh, vk, oz, oh, om, heads, batch, sq, sk, right,
    first, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRELOAD_V: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute attention. q, out: [batch, heads, sq, D]; k, v: [batch, heads, sk, D]; lse: [batch, heads, sq].

    Strides are named by their tensor and dim: z (batch), h (heads), and m or n. Without CAUSAL, there is a program for
    each (head, block of queries, batch). With it, programs take the tiles after `first` from `counter`, and row i sees
    the keys up to i + `right`.
    """
    blocks = tl.cdiv(sq, BM)
    tile = 0
    total = 1
    if CAUSAL:
        total = blocks * heads * batch
        tile = tl.atomic_add(counter, 1) + first
    while tile < total:
        if CAUSAL:
            z = tile // (blocks * heads)
            head = tile % (blocks * heads) // blocks
            block = tile % (blocks * heads) % blocks
        else:
            head = tl.program_id(0)
            block = tl.program_id(1)
            z = tl.program_id(2)
        rows = block * BM + tl.arange(0, BM)
        keys = tl.arange(0, BN)
        columns = tl.arange(0, D)
        full = sk // BN
        last = tl.cdiv(sk, BN)
        if CAUSAL:
            full = tl.minimum(full, block * BM // BN)
            last = tl.minimum(last, tl.cdiv(block * BM + BM, BN))
        queries = tl.load(q + z * qz + head * qh + rows[:, None] * qm + columns[None, :], rows[:, None] < sq, 0.0)
        kt = k + z * kz + head * kh + columns[:, None] + keys[None, :] * kn
        vt = v + z * vz + head * vh + keys[:, None] * vk + columns[None, :]
        acc = tl.zeros((BM, D), tl.float32)
        top = tl.full((BM,), -3.40282e38, tl.float32)
        sums = tl.full((BM,), 1.0, tl.float32)
        by = scale * 1.44269504089
        for at in range(full):
            acc, top, sums = step(
                queries, kt, vt, kn, vk, acc, top, sums, rows, at * BN, keys, by, sq, sk, right,
                PRELOAD_V, False, CAUSAL,
            )  # fmt: skip
        tl.debug_barrier()
        if full < last:
            for at in range(full, last):
                acc, top, sums = step(
                    queries, kt, vt, kn, vk, acc, top, sums, rows, at * BN, keys, by, sq, sk, right,
                    PRELOAD_V, True, CAUSAL,
                )  # fmt: skip
        acc = acc * (1 / sums[:, None])
        to = lse + (z * heads + head).to(tl.int64) * sq + rows
        tl.store(to, (top + tl.log2(sums)) * 0.6931471824645996, rows < sq)
        to = out + z * oz + head * oh + rows[:, None] * om + columns[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), rows[:, None] < sq)
        tile = tl.atomic_add(counter, 1) + first if CAUSAL else total


@triton.jit
def step(
    queries, kt, vt, kn, vk, acc, top, total, rows, start, keys, by, sq, sk, right,
    PRELOAD_V: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Add the block of keys that begins at `start`."""
    kt = kt + start * kn
    vt = vt + start * vk
    inside = start + keys < sk
    key = tl.load(kt, inside[None, :], 0.0) if MASKED else tl.load(kt)
    if PRELOAD_V:
        value = tl.load(vt, inside[:, None], 0.0) if MASKED else tl.load(vt)
    s = tl.zeros((queries.shape[0], keys.shape[0]), tl.float32)
    if MASKED:
        if CAUSAL:
            seen = tl.full(s.shape, True, tl.int1) & (rows[:, None] < sq)
            if start + keys.shape[0] > sk:
                seen = seen & inside[None, :]
            seen = seen & (rows[:, None] + right >= start + keys[None, :])
            seen = seen & (rows[:, None] - sq <= start + keys[None, :])
        else:
            seen = (rows[:, None] < sq) & inside[None, :]
        s = tl.where(seen, s, float("-inf"))
    s += by * tl.dot(queries, key)
    new = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - new[:, None])
    if MASKED and CAUSAL:  # noqa: SIM102
        if by == 0.0:
            p = tl.where(p != p, 0.0, p)
    rowsum = tl.sum(p, 1)
    alpha = tl.exp2(top - new)
    acc = acc * alpha[:, None]
    if not PRELOAD_V:
        value = tl.load(vt, inside[:, None], 0.0) if MASKED else tl.load(vt)
    acc += tl.dot(p.to(value.dtype), value)
    return acc, new, total * alpha + rowsum


@triton.jit
def scaled_product(
    a, b, c, a_scales, b_scales, m, n, k, stride_am, stride_bn, stride_cm, stride_as, stride_bs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute c = a b from fp8 to bf16.

    a: [m, k], a scale for each row of BK elements; b: [n, k], a scale for each block of 128 by BK.
    """
    pid = tl.program_id(0)
    rows = tl.cdiv(m, BM)
    columns = tl.cdiv(n, BN)
    width = GROUP_M * columns
    first = pid // width * GROUP_M
    group = min(rows - first, GROUP_M)
    row = first + pid % group
    column = pid % width // group
    rm = (row * BM + tl.arange(0, BM)) % m
    rn = (column * BN + tl.arange(0, BN)) % n
    rk = tl.arange(0, BK)
    at = a + rm[:, None] * stride_am + rk[None, :]
    bt = b + rk[:, None] + rn[None, :] * stride_bn
    a_scale = a_scales + rm * stride_as
    b_scale = b_scales + rn // 128 * stride_bs
    acc = tl.zeros((BM, BN), tl.float32)
    for step_ in range(tl.cdiv(k, BK)):
        x = tl.load(at, rk[None, :] < k - step_ * BK, 0.0)
        y = tl.load(bt, rk[:, None] < k - step_ * BK, 0.0)
        by_row = tl.load(a_scale + step_)
        by_column = tl.load(b_scale + step_)
        acc += tl.dot(x, y) * by_row[:, None] * by_column[None, :]
        at += BK
        bt += BK
    rm = row * BM + tl.arange(0, BM)
    rn = column * BN + tl.arange(0, BN)
    inside = (rm[:, None] < m) & (rn[None, :] < n)
    tl.store(c + rm[:, None] * stride_cm + rn[None, :], acc.to(c.dtype.element_ty), inside)


@triton.jit
def experts(
    a, b, c, weights, tokens, expert_of, padded, n, k, em, valid, stride_am, stride_be, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """Compute c[t] = weights[t] a[t // TOP_K] b[expert] in fp16. a: [tokens, k]; b: [experts, n, k]; c: [valid, n].

    tokens: the values of t, sorted by expert. Those of an expert are padded to blocks of BM by numbers >= `valid`.
    expert_of: the expert of each block. padded: the length of `tokens`; em: its maximum. Loads are masked along K.
    """
    pid = tl.program_id(0)
    rows = tl.cdiv(em, BM)
    columns = tl.cdiv(n, BN)
    width = GROUP_M * columns
    first = pid // width * GROUP_M
    group = min(rows - first, GROUP_M)
    row = first + pid % width % group
    column = pid % width // group
    if row * BM >= tl.load(padded):
        return
    token = tl.load(tokens + row * BM + tl.arange(0, BM).to(tl.int64))
    inside = token < valid
    expert = tl.load(expert_of + row)
    rn = (column * BN + tl.arange(0, BN).to(tl.int64)) % n
    rk = tl.arange(0, BK)
    at = a + token[:, None] // TOP_K * stride_am + rk[None, :]
    bt = b + expert * stride_be + rk[:, None] + rn[None, :] * stride_bn
    acc = tl.zeros((BM, BN), tl.float32)
    for step_ in range(tl.cdiv(k, BK)):
        x = tl.load(at, inside[:, None] & (rk[None, :] < k - step_ * BK), 0.0)
        y = tl.load(bt, rk[:, None] < k - step_ * BK, 0.0)
        acc += tl.dot(x, y)
        at += BK
        bt += BK
    acc = acc * tl.load(weights + token, inside, 0.0)[:, None]
    rn = column * BN + tl.arange(0, BN)
    within = inside[:, None] & (rn < n)[None, :]
    tl.store(c + token[:, None] * stride_cm + rn[None, :], acc.to(c.dtype.element_ty), within)
