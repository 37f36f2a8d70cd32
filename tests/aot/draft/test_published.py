"""Drafts for kernels in published styles: facts from their files are used, and everything else is marked."""

from functools import cache
from pathlib import Path

import pytest

from aot.draft.draft import OpDraft
from aot.draft.manifest_text import manifest_text
from aot.draft.proposal import propose
from aot.draft.texts import read_kernel
from aot.draft.validation import mark_faults
from aot.forked_process import ForkedProcess
from tests.support.building.published import PUBLISHED

# Kernel → lines of its op, and the entries that are marked.
EXPECTED: dict[str, tuple[str, set[tuple[str, str]]]] = {
    "select_rows": (
        """
        a: {shape: [rows, cols], dtype: T}
        b: {shape: [rows, cols], dtype: T}
        sel: {shape: [rows], dtype: int32}
        bind: {a_row: "stride(a, rows)", b_row: "stride(b, rows)", o_row: "stride(out, rows)"}
        grid: [rows, "cdiv(cols, 512)"]""",
        set(),
    ),
    "add_heads": (
        """
        x: {shape: [tokens, n_heads, 128], dtype: T, contiguous: [tokens, n_heads, 2]}
        bias: {shape: [n_heads, 128], dtype: T, contiguous: [n_heads, 1]}
        grid: [tokens, n_heads]""",
        set(),
    ),
    "bias_gelu": (
        """
        bias: {shape: [N], dtype: T, optional: true}
        residual: {shape: [M, N], dtype: T, optional: true}
        out: {shape: [M, N], dtype: T, role: output, contiguous: [M, N]}
        pre: {shape: [M, N], dtype: T, role: output, contiguous: [M, N], when: save_pre}
        constexprs: {KEEP: {values: [false, true], pick: save_pre}}""",
        set(),
    ),
    "softmax_kernel": ("require: [n_cols <= 2048]\n configs: [{blocks: {BLOCK: 2048}}]", set()),
    "moe_sum_kernel": (
        """
        inp: {shape: [n_tokens, topk_dim, hidden], dtype: T}
        w: {shape: [n_tokens, topk_dim], dtype: T, contiguous: [n_tokens, topk_dim], optional: true}
        out: {shape: [n_tokens, hidden], dtype: T, role: output}
        BLOCK_H: {values: [256, 1024], pick: "smallest >= min(hidden, 1024)"}
        grid: [n_tokens, "cdiv(hidden, BLOCK_H)"]""",
        {("constexprs", "topk")},
    ),
    "apply_freqs": (
        """
        freqs: {shape: [seq, d // 2], dtype: float32, contiguous: [seq, 1]}
        D: {values: [64, 128], pick: d}
        grid: [B * seq, h]""",
        {("constexprs", "H")},
    ),
    "unpack": (
        """
        packed: {shape: [rows, K // 2], dtype: uint8}
        out: {shape: [rows, 2 * (K // 2)], dtype: int8, role: output}
        constexprs: {HALF: {values: [256, 1024, 4096, 16384], pick: smallest >= K // 2}}""",
        {("kernel", ""), ("require", "K % 2 == 0")},
    ),
    "count_kernel": (
        """
        counts: {shape: [num_experts], dtype: int32, role: output, zero: true}
        scalars: {num_experts: {type: i32}}""",
        {("tensors", "ids")},
    ),
    "split_halves": (
        """
        x: {shape: [rows, cols], dtype: T}
        out: {shape: [rows, cols // 2], dtype: T, role: output}
        require: [cols // 2 <= 16384, cols % 2 == 0]
        constexprs: {BLOCK: {values: [256, 1024, 4096, 16384], pick: smallest >= cols // 2}}""",
        set(),
    ),
    "put_lines": (
        """
        a_new: {shape: [n, width], dtype: T}
        b_new: {shape: [n, width], dtype: T}
        sa: "stride(a_store, a_store_rows)", sb: "stride(b_store, b_store_rows)", na: "stride(a_new, n)",
        grid: [n, "cdiv(width, BLOCK)", 2]""",
        {("tensors", "a_store"), ("tensors", "b_store"), ("tensors", "lines"), ("constexprs", "WIDTH")},
    ),
    "mean_of_heads": (
        """
        x: {shape: [B, heads, L, d], dtype: T}
        y: {shape: [B, heads, d], dtype: float32, role: output, contiguous: [B, heads, d]}
        constexprs: {D: {values: [32, 64], pick: d}}
        bind: {stride_xh: "stride(x, heads)", stride_xl: "stride(x, L)"}
        grid: [B * heads]""",
        set(),
    ),
    "mirror": (
        """
        count: {shape: ["cdiv(n, 64)"], dtype: int32}  # decide: its dtype
        out: {shape: [n], dtype: T, role: output, zero: true}
        scalars: {most: {type: i32}}  # decide: its type""",
        {("tensors", "count"), ("scalars", "most")},
    ),
    "signs": (
        """
        x: {shape: [rows, cols], dtype: T}
        out: {shape: [rows, cols // 8], dtype: uint8, role: output, contiguous: [rows, 1]}
        grid: [rows, cols // 64]""",
        {("require", "cols % 8 == 0"), ("require", "cols % 64 == 0")},
    ),
}


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("published")
    (folder / "k.py").write_text(PUBLISHED)
    return cache(lambda kernel: propose(read_kernel(folder, f"k.py:{kernel}"), f"k.py:{kernel}"))


@pytest.mark.parametrize("kernel", EXPECTED)
def test_what_follows_is_written_and_what_does_not_is_marked(drafted, kernel: str):
    lines, marked = EXPECTED[kernel]
    op: OpDraft = drafted(kernel)
    text = [line.strip() for line in manifest_text("b", "", "s", [op], "c").splitlines()]
    missing = [line for line in map(str.strip, lines.strip().splitlines()) if not any(line in had for had in text)]
    assert not missing, "\n".join(text)
    assert set(op.notes) == marked
    assert not [name for name in op.scalars if "stride" in name], "strides are no scalars"


def test_no_draft_is_refused_by_a_build(drafted, tmp_path: Path):
    (tmp_path / "k.py").write_text(PUBLISHED)
    ops = [drafted(kernel) for kernel in EXPECTED]
    with ForkedProcess(60) as process:
        mark_faults(ops, tmp_path, process)
        assert not [op.notes["op", ""] for op in ops if ("op", "") in op.notes]
        wrong = OpDraft("wrong", "k.py:select_rows", tensors={"a": {"shape": ["rows"], "dtype": "T"}}, grid=["rows"])
        mark_faults([wrong], tmp_path, process)
    assert wrong.notes["op", ""].startswith("a build rejects it: ") and str(tmp_path) not in wrong.notes["op", ""]
