"""The kernels of examples/foreign: their files are unchanged, manifests make ops of them, and the emulator's results
agree with numpy in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aot_emulator import EmulatorDriver, Options
from aot_runtime import Device, open_bundle
from tests.support.session_builds import ROOT, build_once

FOREIGN = ROOT / "examples/foreign"
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Example:
    """A file of kernels, and the manifest beside it.

    Attributes:
        filters: of the build whose op is tried.
        kernels: the functions of the file that are launched.
    """

    name: str
    bundle: str
    filters: str
    kernels: tuple[str, ...]
    check: Callable[[Callable[..., Any]], None]
    lines: int = 35


def normal(*shape: int, dtype: type = np.float16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def check_matmul(op: Callable[..., Any]) -> None:
    for m, n, k in ((40, 70, 96), (33, 65, 40)):
        a, b = normal(m, k), normal(k, n)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        close(op(a, b), exact)
        close(op(a, b, activation="leaky_relu"), np.where(exact >= 0, exact, 0.01 * exact))


def check_flash_attention(op: Callable[..., Any]) -> None:
    q, k, v = normal(2, 70, 2, 64), normal(2, 100, 2, 64), normal(2, 100, 2, 64)
    bias = normal(1, 2, 70, 100)
    for causal, given in ((False, None), (True, None), (False, bias)):
        scores = np.einsum("bmhd,bnhd->bhmn", q.astype(np.float64), k.astype(np.float64)) / 8
        scores += 0 if given is None else given
        if causal:
            scores[..., ~np.tri(70, 100, dtype=bool)] = -np.inf
        lse = np.log(np.exp(scores).sum(-1, keepdims=True))
        out, found = op(q, k, v, given, causal=causal)
        close(out, np.einsum("bhmn,bnhd->bmhd", np.exp(scores - lse), v.astype(np.float64)))
        close(found, lse[..., 0], 1e-5)


def check_fused_moe(op: Callable[..., Any]) -> None:
    tokens, experts, top_k, n, k = 21, 4, 2, 70, 40
    a, w = normal(tokens, k), normal(experts, n, k)
    chosen = np.array([RNG.permutation(experts)[:top_k] for _ in range(tokens)])
    weights = RNG.random((tokens, top_k), np.float32)
    ids, block_experts = [], []
    for expert in range(experts):
        rows = np.flatnonzero(chosen == expert)
        blocks = -(-len(rows) // 32)
        ids += [*rows, *[tokens * top_k] * (blocks * 32 - len(rows))]
        block_experts += [-1 if expert == 3 else expert] * blocks
    used = len(ids)
    ids, block_experts = ids + [0] * 32, [*block_experts, 0]  # a block that is not used
    lists = (np.array(values, np.int32) for values in (ids, block_experts, [used]))
    exact = np.einsum("tk,tenk->ten", a.astype(np.float64), w.astype(np.float64)[chosen])
    exact[chosen == 3] = 0
    exact *= weights[..., None]
    close(op(a, w, weights, *lists), exact.reshape(-1, n))


def check_scan(op: Callable[..., Any]) -> None:
    x, a = normal(2, 150, 40, dtype=np.float32), RNG.random((2, 150, 40), np.float32)
    exact = np.zeros((2, 151, 40))
    for t in range(150):
        exact[:, t + 1] = a[:, t].astype(np.float64) * exact[:, t] + x[:, t]
    close(op(x, a), exact[:, 1:], 1e-5)


def check_softmax(op: Callable[..., Any]) -> None:
    x = normal(5, 781, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    close(op(x), exact / exact.sum(1, keepdims=True), 1e-6)


def close(found: np.ndarray, exact: np.ndarray, error: float = 2e-3) -> None:
    """Assert that results are within `error`, relative to the size of what is compared."""
    assert found.shape == exact.shape
    assert np.abs(found.astype(np.float64) - exact).max() < error * max(1, np.abs(exact).max())


EXAMPLES = [
    Example("gluon_softmax", "softmax", "T=float32,BLOCK=1024", ("softmax_kernel",), check_softmax, lines=20),
    Example("scan", "scan", "E=float32", ("chunk_scan_kernel", "carry_kernel", "add_carry_kernel"), check_scan),
    Example("matmul", "matmul", "", ("matmul_kernel",), check_matmul),
    Example("fused_moe", "moe", "TOP_K=2", ("fused_moe_kernel",), check_fused_moe),
    Example("flash_attention", "attention", "BLOCK_HEADDIM=64", ("_fwd_kernel",), check_flash_attention),
]
TRIED = [EXAMPLES[0], *(pytest.param(example, marks=pytest.mark.slow) for example in EXAMPLES[1:])]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_manifest_is_short_and_its_kernels_are_as_found(example: Example):
    """The file needs torch and a GPU to be imported, and every kernel of the manifest is in it."""
    manifest = (FOREIGN / f"{example.name}.yaml").read_text()
    assert manifest.count("\n") <= example.lines
    assert all(f"kernel: {example.name}.py:{kernel}\n" in manifest for kernel in example.kernels)
    with pytest.raises(ImportError, match="torch"):
        exec(compile((FOREIGN / f"{example.name}.py").read_text(), example.name, "exec"), {})


@pytest.mark.parametrize("example", TRIED, ids=lambda example: example.name)
def test_a_kernel_computes_what_it_should(example: Example, tmp_path_factory: pytest.TempPathFactory):
    """In strict mode no access is out of bounds, and none reads what was not written."""
    folder = build_once(tmp_path_factory, FOREIGN / f"{example.name}.yaml", example.filters)
    device = Device(EmulatorDriver(Options(strict=True)), 0)
    bundle = open_bundle(folder / f"foreign_{example.bundle}-gfx942", device=device)
    (op,) = bundle.ops
    example.check(getattr(bundle, op))
