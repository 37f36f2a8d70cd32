"""Proposals for a kernel from its body, its launch and its decorators."""

from functools import cache
from pathlib import Path

import pytest

from aot.draft.draft import OpDraft
from aot.draft.proposal import propose
from aot.draft.texts import read_kernel
from aot.draft.workbench import op_name
from tests.support.building.projects import edit, rows
from tests.support.building.wild import WILD

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def proposed(folder: Path, kernel: str, text: str = WILD) -> OpDraft:
    (folder / "k.py").write_text(text)
    return propose(read_kernel(folder, f"k.py:{kernel}"), f"k.py:{kernel}")


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("wild")
    return cache(lambda kernel: proposed(folder, kernel))


def test_a_matmul_by_its_pointers(wild):
    """Dims are the limits of remainders, loops and masks; strides are recognised by what they multiply."""
    op = wild("matmul_kernel")
    assert op.tensors == {
        "a": {"shape": ["M", "K"], "dtype": "T"},
        "b": {"shape": ["K", "N"], "dtype": "T"},
        "c": {"shape": ["M", "N"], "dtype": "T", "role": "output"},
    }
    assert op.bind["stride_bk"] == "stride(b, K)" and op.bind["stride_cn"] == "stride(c, N)"
    assert op.grid == ["cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)"]
    assert op.configs == [{"from_kernel": 0}] and not op.notes
    assert op.scalars == {"activation": {"type": "choice", "values": ["none", "gelu"], "default": "none"}}
    assert op.constexprs == {"ACTIVATION": {"values": ["none", "gelu"], "pick": "activation"}}


def test_a_row_kernel_by_its_launch(wild):
    """The number of rows is named as in the launch's grid; a tensor whose presence the launch tests is optional."""
    op = wild("_norm_fwd_kernel")
    assert op.name == "norm_fwd" and op.grid == ["n_rows"]
    assert op.tensors == {
        "X": {"shape": ["n_rows", "n_cols"], "dtype": "T"},
        "W": {"shape": ["n_cols"], "dtype": "T", "optional": True},
        "Y": {"shape": ["n_rows", "n_cols"], "dtype": "T", "role": "output"},
        "RSTD": {"shape": ["n_rows"], "dtype": "float32", "role": "output"},
    }
    assert op.scalars == {"eps": {"type": "fp32", "default": 1e-6}}
    assert op.constexprs["HAS_WEIGHT"] == {"values": [False, True], "pick": "given(W)"}
    assert op.constexprs["BLOCK_SIZE"]["pick"] == "smallest >= n_cols"


def test_an_index_an_atomic_and_no_launch(wild):
    op = wild("_scatter_add")
    assert op.tensors["index"] == {"shape": ["length"], "dtype": "int64"}
    assert op.tensors["src"]["shape"] == ["length", "width"] and op.tensors["src"]["contiguous"] == ["length", "width"]
    assert op.tensors["dst"]["shape"] == ["dst_rows", "width"]  # no mask says how many rows there are to add to
    assert op.tensors["dst"]["role"] == "inout" and ("tensors", "dst") in op.notes
    assert op.constexprs["WIDTH"]["pick"] == "width" and op.grid == ["cdiv(length, BLOCK)"]


# Parameters; the body, its lines separated by `;`; key of the op; what it is.
CASES = """
x, y, n, BLOCK: tl.constexpr -> i = tl.arange(0, BLOCK); tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
 -> constexprs -> {'BLOCK': {'values': [256, 1024, 4096, 16384], 'pick': 'smallest >= n'}}
x_ptr, y_ptr, stride, n, B: tl.constexpr -> r = tl.program_id(0) * stride; i = tl.arange(0, B);
 tl.store(y_ptr + r + i, tl.load(x_ptr + r + i, i < n), i < n) -> tensors
 -> {'x': {'shape': ['rows', 'n'], 'dtype': 'T', 'contiguous': ['rows', 'n']},
 'y': {'shape': ['rows', 'n'], 'dtype': 'T', 'role': 'output', 'contiguous': ['rows', 'n']}}
x, p, seed, n, B: tl.constexpr -> i = tl.program_id(0) * B + tl.arange(0, B); k = tl.rand(seed, i) > p;
 tl.store(x + i, tl.load(x + i, i < n) / (1 - p), i < n) -> scalars -> {'p': {'type': 'fp32'}, 'seed': {'type': 'i32'}}
x, y, LAST: tl.constexpr, n -> v = tl.load(x + n - 1); tl.store(y + tl.program_id(0), 2 * v if LAST else v)
 -> scalars -> {'last': {'type': 'flag', 'default': False}, 'n': {'type': 'i32'}}
x, y, b, n, B: tl.constexpr -> r = tl.program_id(0); i = tl.arange(0, B); v = tl.load(x + r * n + i, i < n);
 v = v + tl.load(b + i, i < n) if b is not None else v; tl.store(y + r * n + i, v, i < n)
 -> tensors -> {'x': {'shape': ['rows', 'n'], 'dtype': 'T', 'contiguous': ['rows', 'n']}, 'b': {'shape': ['n'], 'dtype':
 'T', 'optional': True}, 'y': {'shape': ['rows', 'n'], 'dtype': 'T', 'role': 'output', 'contiguous': ['rows', 'n']}}
x, y, stride, M, N, B: tl.constexpr -> m = tl.program_id(0) * B + tl.arange(0, B)[:, None];
 n = tl.program_id(1) * B + tl.arange(0, B)[None]; i = m * stride + n; ok = (m < M) & (n < N);
 tl.store(y + i, tl.load(x + i, ok), ok) -> grid -> ['cdiv(M, B)', 'cdiv(N, B)']
x, y, ends, n, B: tl.constexpr -> i = tl.program_id(0) * B + tl.arange(0, B); end = tl.load(ends);
 ok = i >= end; tl.store(y + i, tl.load(x + i, i < n), i < n) -> tensors -> {'x': {'shape': ['n'], 'dtype': 'T'},
 'ends': {'shape': ['ends_rows'], 'dtype': 'int64'}, 'y': {'shape': ['n'], 'dtype': 'T', 'role': 'output'}}
x_desc, y_desc, M, N, BM: tl.constexpr, BN: tl.constexpr -> i = tl.program_id(0) * BM; j = tl.program_id(1) * BN;
 k = tl.cdiv(M, BM) + tl.cdiv(N, BN); y_desc.store([i, j], x_desc.load([i, j])) -> bind
 -> {'x_desc': {'value': 'x', 'block': ['BM', 'BN']}, 'y_desc': {'value': 'y', 'block': ['BM', 'BN']}}
x, y, n, heads, dtype: tl.constexpr, D: tl.constexpr -> h = tl.program_id(1) % heads; b = tl.program_id(1) // heads;
 i = (b * heads + h) * D + tl.arange(0, D); tl.store(y + i, tl.load(x + i).to(dtype)) -> bind
 -> {'dtype': {'dtype': 'T'}}
"""


@pytest.mark.parametrize("row", rows(CASES), ids=lambda row: row[0])
def test_bodies(tmp_path: Path, row: list[str]):
    parameters, body, key, expected = row
    lines = "".join(f"    {line.strip()}\n" for line in body.split(";"))
    op = proposed(tmp_path, "f", f"{HEAD}def f({parameters}):\n{lines}")
    assert str(getattr(op, key)) == expected


def test_heuristics_are_left_to_the_kernel_where_they_can_be(tmp_path: Path):
    heuristics = """@triton.heuristics({
    "BLOCK_SIZE": lambda args: triton.next_power_of_2(args["n_cols"]),
    "HAS_WEIGHT": lambda args: args["W_ptr"] is not None,
})
@triton.jit
def _norm"""
    text = edit(WILD, ("@triton.jit\ndef _norm", heuristics))
    text = edit(text, ("HAS_WEIGHT=W is not None, BLOCK_SIZE=triton.next_power_of_2(n_cols)", ""))
    op = proposed(tmp_path, "_norm_fwd_kernel", text)
    assert [*op.constexprs] == ["BLOCK_SIZE"] and op.constexprs["BLOCK_SIZE"]["pick"] == "smallest >= n_cols"
    assert op.tensors["W"]["optional"]  # HAS_WEIGHT itself is the kernel's to say


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("_add_kernel", "add"),
        ("matmul_kernel_tma", "matmul_tma"),
        ("load", "load_op"),
        ("kernel_2", "n2"),
        ("_f__g", "f_g"),
    ],
)
def test_names_of_ops(kernel: str, name: str):
    assert op_name(kernel) == name


def test_configs_are_those_for_amd(tmp_path: Path):
    """A file that asks which GPU there is gets the first one that manifests are built for."""
    kernel = read_kernel(_written(tmp_path, WILD), "k.py:matmul_kernel")
    assert [dict(config.blocks)["BLOCK_M"] for config in kernel.autotuning.configs] == [64, 32]


def test_a_pointer_that_is_moved_is_there(tmp_path: Path):
    """A pointer that is incremented is required, even if a flag guards its use: None + 1 is an error."""
    text = edit(
        WILD, ("    Y_ptr += row", "    W_ptr += 0 * row\n    Y_ptr += row"), ("HAS_WEIGHT=W is not None, ", "")
    )
    op = proposed(tmp_path, "_norm_fwd_kernel", text)
    assert "optional" not in op.tensors["W"] and op.scalars["has_weight"]["type"] == "flag"


def _written(folder: Path, text: str) -> Path:
    (folder / "k.py").write_text(text)
    return folder


def test_what_a_branch_loads_is_data(tmp_path: Path):
    body = """
    if tl.program_id(1) == 0:
        p, v = out, tl.load(a + i, i < n)
    else:
        p, v = more, 2 * tl.load(b + i, i < n)
    tl.store(p + i, v, i < n)
"""
    head = f"{HEAD}def f(a, b, out, more, n, B: tl.constexpr):\n    i = tl.program_id(0) * B + tl.arange(0, B)"
    op = proposed(tmp_path, "f", head + body)
    assert {name: (item["shape"], item["dtype"]) for name, item in op.tensors.items()} == {
        name: (["n"], "T") for name in ("a", "b", "out", "more")
    }
    assert op.tensors["out"]["role"] == op.tensors["more"]["role"] == "output"
    assert not [key for key, _ in op.notes if key == "tensors"]
