"""Test files of suites are read without running them."""

from __future__ import annotations

from pathlib import Path

from tests.peers.grids import Function
from tests.peers.read import differences, read, read_scripts

SUITE = """
import itertools, os, pytest, torch
from elsewhere import Kind, cases
OLD = os.getenv("OLD") == "TRUE"
SIZES = [16, 2 * 16]
raise SystemExit("run")

@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16] + ([] if not OLD else [torch.float]))
@pytest.mark.parametrize("m, n", [(m, n) for m, n in itertools.product(SIZES, range(2)) if n or m > 16])
@pytest.mark.parametrize("kind", [Kind.ONE, pytest.param(Kind.TWO, marks=pytest.mark.skip), None])
def test_product(dtype, m, n, kind): ...

@pytest.mark.parametrize("size", SIZES)
class TestMany:
    LOCAL = [*SIZES, 64]

    @pytest.mark.parametrize("width", LOCAL)
    @pytest.mark.parametrize("case", cases(3))
    def test_wide(self, size, width, case): ...
"""
FOUND = {
    "test_product": {
        "kind": ["Kind.ONE", "Kind.TWO", None],
        "m,n": [[16, 1], [32, 0], [32, 1]],
        "dtype": ["float16", "bfloat16"],
    },
    "TestMany.test_wide": {"size": [16, 32], "case": ["cases(3)"], "width": [16, 32, 64]},
}
SCRIPT = """
import argparse
l_dtype = ["bf16", "fp16"]
parser = argparse.ArgumentParser()
parser.add_argument("-d", "--dtype", nargs="*", default=l_dtype)
parser.add_argument("-m", type=int, default=[1, 2, 3])
parser.add_argument("--causal", action="store_true", default=False)
"""


def suite(folder: Path) -> Path:
    (folder / "tests").mkdir()
    (folder / "tests/test_made.py").write_text(SUITE)
    return folder


def test_parameters_are_read(tmp_path: Path):
    assert read(suite(tmp_path), ["tests"]) == {("tests/test_made.py", name): axes for name, axes in FOUND.items()}


def test_arguments_of_scripts_are_read(tmp_path: Path):
    (tmp_path / "test_script.py").write_text(SCRIPT)
    assert read_scripts(tmp_path, ".") == {("test_script.py", "main"): {"dtype": ["bf16", "fp16"], "m": [1, 2, 3]}}


def test_differences_are_told(tmp_path: Path):
    """A function that is new, one that is gone, and one of whose parameters the values differ, in any order."""
    known = [
        Function("made", "tests/test_made.py", "test_product", 9, axes={"kind": [None, "Kind.ONE", "Kind.TWO"],
                                                                        "dtype": ["float16"]}),
        Function("made", "tests/test_made.py", "test_gone", 1),
    ]  # fmt: skip
    told = list(differences(read(suite(tmp_path), ["tests"]), known))
    assert told == [
        "new: tests/test_made.py::TestMany.test_wide size:2 case:1 width:3",
        "gone: tests/test_made.py::test_gone",
        "changed: tests/test_made.py::test_product dtype: ['float16'] is ['float16', 'bfloat16']",
    ]
