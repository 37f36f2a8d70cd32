"""The attention kernel's arithmetic, on the CPU: every case against float64, and every planted fault noticed."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from kernel_interpreting import launch, poisoned

from kernels.attention.reference import attention, attention_same_dtype
from kernels.tolerance import assert_close

SOURCE = Path(__file__).parents[2] / "kernels/attention/forward.py"
LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}
FLOORS = {np.dtype(np.float16): 1e-5, np.dtype(ml_dtypes.bfloat16): 1e-4}


@dataclass(frozen=True)
class Case:
    seqlen_q: int
    seqlen_k: int
    causal: bool = False
    head_dim: int = 32
    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    dtype: type = np.float16
    scale: float = 0.2
    magnitude: float = 1.0
    layout: str = "bhsd"
    return_lse: bool = True
    blocks: tuple[int, int] = (16, 16)
    xcds: int = 1
    bf16_cvt: bool = True
    values: float | None = None  # of V; random unless given


CASES = {
    "whole blocks": Case(32, 64),
    "whole blocks, causal": Case(48, 48, causal=True),
    "ragged": Case(37, 53, batch=2, heads=2, heads_kv=2),
    "ragged, causal": Case(37, 53, causal=True, batch=2, heads=2, heads_kv=2),
    "wide query block": Case(70, 90, causal=True, blocks=(64, 16)),
    "wide key block": Case(40, 100, causal=True, blocks=(16, 64)),
    "one query": Case(1, 75, causal=True, heads=2, heads_kv=1),
    "one key": Case(19, 1),
    "one of each": Case(1, 1, causal=True),
    "fewer keys than queries": Case(40, 21, causal=True, heads=2, heads_kv=2),
    "far fewer keys than queries": Case(70, 3, causal=True),
    "grouped heads": Case(20, 33, batch=2, heads=6, heads_kv=2, causal=True),
    "one key head": Case(20, 33, heads=3, heads_kv=1),
    "padded head_dim": Case(21, 35, causal=True, head_dim=33),
    "padded head_dim, whole blocks": Case(32, 32, head_dim=40, heads=2, heads_kv=2),
    "head_dim 1": Case(17, 18, head_dim=1),
    "sequence before heads": Case(21, 35, heads=2, heads_kv=2, batch=2, layout="bshd", causal=True),
    "sequence outermost": Case(21, 35, heads=2, heads_kv=1, batch=2, layout="sbhd"),
    "bfloat16": Case(37, 53, causal=True, dtype=ml_dtypes.bfloat16, head_dim=64),
    "bfloat16 rounded by hand": Case(37, 53, causal=True, dtype=ml_dtypes.bfloat16, head_dim=64, bf16_cvt=False),
    "bfloat16 rounded by hand, large": Case(37, 90, dtype=ml_dtypes.bfloat16, magnitude=8.0, scale=1.0, bf16_cvt=False),
    # The result is the ratio of the rounded probabilities' sum to the sum: a bias of the rounding shows.
    "bfloat16 rounded by hand, equal values": Case(37, 90, dtype=ml_dtypes.bfloat16, bf16_cvt=False, values=1.0),
    "large scores": Case(37, 90, magnitude=8.0, scale=1.0),
    "large scores, causal": Case(37, 90, causal=True, magnitude=8.0, scale=1.0),
    "negative scale": Case(37, 53, causal=True, scale=-0.7, magnitude=4.0),
    "negative scale, whole blocks": Case(32, 64, scale=-0.7, magnitude=4.0),
    "zero scale": Case(37, 53, causal=True, scale=0.0),
    "no lse": Case(20, 33, return_lse=False),
    "eight dies": Case(40, 20, heads=5, heads_kv=5, batch=2, xcds=8),
    "eight dies, causal": Case(70, 70, heads=3, heads_kv=3, causal=True, xcds=8),
    "more dies than programs": Case(20, 20, heads=2, heads_kv=2, xcds=8),
}

FAULTS = {
    "acc not rescaled": ("acc * rescale[:, None])", "acc)"),
    "sum not rescaled": ("row_sum * rescale + ", "row_sum + "),
    "maximum not kept": ("row_max = new_max", "row_max = row_max"),
    "causal mask one key short": ("keys[None, :] >= 0", "keys[None, :] > 0"),
    "causal mask one key long": ("keys[None, :] >= 0", "keys[None, :] >= -1"),
    "causal mask top-left": ("last_key = queries + (seqlen_k - seqlen_q)", "last_key = queries"),
    "end mask one key long": ("left - keys[None, :] > 0", "left - keys[None, :] >= 0"),
    "end mask one key short": ("left - keys[None, :] > 0", "left - keys[None, :] > 1"),
    "diagonal block unmasked": ("first_query + 1 + seqlen_k", "first_query + BLOCK_M + seqlen_k"),
    "last causal block dropped": ("first_query + BLOCK_M + seqlen_k", "first_query + seqlen_k"),
    "tail block dropped": ("        end = seqlen_k\n", "        end = seqlen_k // BLOCK_N * BLOCK_N\n"),
    "row past the end read": ("mask=rows[:, None] < row_end,", "mask=rows[:, None] <= row_end,"),
    "padding of head_dim read": ("mask=columns[None, :] < column_end,", "mask=columns[None, :] <= column_end,"),
    "padding of head_dim written": ("    if PADDED:\n        stored", "    if False:\n        stored"),
    "queries past the end written": ("stored = queries[:, None] < seqlen_q", "stored = queries[:, None] <= seqlen_q"),
    "lse past the end written": ("mask=queries < seqlen_q)", "mask=queries <= seqlen_q)"),
    "heads not grouped": ("head_kv = head // (heads // heads_kv)", "head_kv = head % heads_kv"),
    "strides of K for V": ("v_block = v + start * stride_v_seqlen_k", "v_block = v + start * stride_k_seqlen_k"),
    "batch stride dropped": ("k += batch * stride_k_batch", "k += 0 * stride_k_batch"),
    "lse in base 2": (" * LN_2, mask", ", mask"),
    "exp for exp2": ("tl.abs(scale) * LOG2_E", "tl.abs(scale)"),
    "sign of scale lost": ("q_tile = tl.where(scale < 0, -q_tile, q_tile)", "q_tile = q_tile + 0.0"),
    "no sum in a row without keys": ("tl.where(row_sum == 0, 1.0, row_sum)", "row_sum"),
    "no origin in a row without keys": ('tl.where(new_max == float("-inf"), 0.0, new_max) if', "new_max if"),
    "dies overlap": (" + tl.minimum(die, programs % NUM_XCDS)", ""),
    "bfloat16 truncated": ("bitcast=True) + 0x8000)", "bitcast=True))"),
    "V of the wrong block": ("v_block = v + start", "v_block = v + begin"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matches_reference(interpreter: Executor, name: str):
    check(interpreter, SOURCE, CASES[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(interpreter: Executor, fault: str, tmp_path: Path):
    right, wrong = FAULTS[fault]
    text = SOURCE.read_text()
    assert text.count(right) == 1, f"the kernel changed: {right!r} occurs {text.count(right)} times"
    mutant = tmp_path / "forward.py"
    mutant.write_text(text.replace(right, wrong))
    for case in CASES.values():
        try:
            check(interpreter, mutant, case)
        except AssertionError:
            return
    pytest.fail(f"no case noticed: {fault}")


def test_one_hot_values_are_copied_exactly(interpreter: Executor):
    """A score that dwarfs the rest selects one row of V, bit for bit."""
    rng = np.random.default_rng(1)
    chosen = rng.permutation(48)
    k = np.zeros((1, 1, 48, 64), np.float16)
    k[0, 0, np.arange(48), np.arange(48)] = 1
    q = 200 * k[:, :, chosen]
    v = rng.standard_normal(k.shape).astype(np.float16)
    out, lse = run(interpreter, SOURCE, Case(48, 48, head_dim=64, scale=1.0), q, k, v)
    np.testing.assert_array_equal(out, v[:, :, chosen])
    np.testing.assert_allclose(lse, 200, rtol=1e-6)


def test_equal_scores_average_integers_exactly(interpreter: Executor):
    v = np.random.default_rng(2).integers(-8, 8, (1, 1, 64, 32)).astype(np.float16)
    q = np.zeros((1, 1, 5, 32), np.float16)
    out, lse = run(interpreter, SOURCE, Case(5, 64), q, v, v)
    np.testing.assert_array_equal(out, np.broadcast_to(v.mean(2, dtype=np.float64, keepdims=True), out.shape))
    np.testing.assert_allclose(lse, np.log(64), rtol=1e-6)


def check(interpreter: Executor, source: Path, case: Case) -> None:
    q, k, v = inputs(case)
    arguments = {"scale": case.scale, "causal": case.causal, "return_lse": True}
    actual = run(interpreter, source, case, q, k, v)
    exact = attention(q, k, v, **arguments)
    same_dtype = attention_same_dtype(q, k, v, **arguments)
    assert_close(actual[0], exact[0], same_dtype[0], FLOORS[q.dtype], "out")
    if case.return_lse:
        assert_close(actual[1], exact[1], same_dtype[1], 1e-5, "lse")


def inputs(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(case.heads, case.seqlen_q)] + 2 * [(case.heads_kv, case.seqlen_k)]
    arrays = [rng.standard_normal((case.batch, heads, seqlen, case.head_dim)) for heads, seqlen in shapes]
    arrays[0] *= case.magnitude
    if case.values is not None:
        arrays[2][...] = case.values
    return [array.astype(case.dtype) for array in arrays]


def run(
    interpreter: Executor, source: Path, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(out,) or (out, lse), after checking that nothing beside them was written."""
    order = LAYOUTS[case.layout]
    tensors = {"q": poisoned(q, order, 3), "k": poisoned(k, order, 4), "v": poisoned(v, order, 5)}
    tensors["out"] = poisoned(np.full_like(q, np.nan), order, 6)
    strides = {}
    for name, tensor in tensors.items():
        dims = ("heads_kv", "seqlen_k") if name in ("k", "v") else ("heads", "seqlen_q")
        for dim, stride in zip(("batch", *dims), tensor.strides[:3], strict=True):
            strides[f"stride_{name}_{dim}"] = stride
    if case.return_lse:
        tensors["lse"] = lse = poisoned(np.full(q.shape[:3], np.nan, np.float32), padding=2)
        strides |= {"stride_lse_batch": lse.strides[0], "stride_lse_heads": lse.strides[1]}
    else:
        strides |= {"stride_lse_batch": 0, "stride_lse_heads": 0, "lse": None}
    head_dim = max(16, 1 << (case.head_dim - 1).bit_length())
    arguments = {
        **tensors, **strides, "scale": case.scale, "heads": case.heads, "heads_kv": case.heads_kv,
        "seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k, "head_dim": case.head_dim, "HEAD_DIM": head_dim,
        "PADDED": case.head_dim < head_dim, "CAUSAL": case.causal, "RETURN_LSE": case.return_lse,
        "BLOCK_M": case.blocks[0], "BLOCK_N": case.blocks[1], "NUM_XCDS": case.xcds,
        "HAS_BF16_CVT": case.bf16_cvt,
    }  # fmt: skip
    grid = (-(-case.seqlen_q // case.blocks[0]), case.heads, case.batch)
    after = interpreter.submit(launch, source, "attention_forward", grid, arguments).result()
    for name, tensor in after.items():
        assert np.isnan(tensor.surroundings().astype(np.float32)).all(), f"written beside {name}"
    return tuple(after[name].view for name in ("out", "lse") if name in after)
