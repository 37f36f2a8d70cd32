import importlib
import sys
from pathlib import Path

import pytest

from aot.errors import CompileError
from aot.source.constants import Dtype
from aot.source.kernel_source import NotPlain, Parameter, kernel_parameters
from tests.support.building import jobs
from tests.support.building.jobs import load_kernel

STORE = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    tl.store(x, {})\n"


def test_interpreted_kernels_are_refused(monkeypatch: pytest.MonkeyPatch):
    importlib.import_module("triton")  # which is not to be interpreted for the tests that follow
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(CompileError, match="TRITON_INTERPRET is set"):
        load_kernel(jobs.ROOT, jobs.SOURCE, "softmax")


def test_parameters():
    """Parameters are read through an autotuner, and may be named tuples, annotated as text or as classes."""
    tuned = kernel_parameters(load_kernel(jobs.ROOT, jobs.SOURCE, "tuned"))
    assert tuned == (Parameter("x", False), Parameter("columns", False), Parameter("BLOCK", True, True, 64))
    a, mod = kernel_parameters(load_kernel(jobs.ROOT, "kernels/tuples.py", "postponed"))
    members = tuple(Parameter(f"a.{name}", False) for name in ("ptr", "stride_rows", "stride_columns"))
    assert a == Parameter("a", False, members=members)
    members = (Parameter("mod.function", True), Parameter("mod.operands", False))
    assert mod == Parameter("mod", False, True, None, members)
    assert [member.field for member in mod.members] == ["function", "operands"]


def test_defaults_that_are_dtypes(tmp_path: Path):
    """They get the names that signatures have for them; a type of pointers is no dtype."""
    defaults = "a=tl.float16, b=tl.constexpr(tl.uint8), c=tl.int1, d=tl.float8e4nv, e=tl.pointer_type(tl.int32)"
    (tmp_path / "k.py").write_text(STORE.format(1).replace("f(x)", f"f(x, {defaults})"))
    _, *found, pointer = (parameter.default for parameter in kernel_parameters(load_kernel(tmp_path, "k.py", "f")))
    assert found == [Dtype("fp16"), Dtype("u8"), Dtype("i1"), Dtype("fp8e4nv")]
    assert isinstance(pointer, NotPlain)


def test_a_kernel_is_loaded_once_until_a_file_changes(tmp_path: Path):
    """A changed file is read again even if it is as long as before, and if bytecode would have the same time stamp."""
    path = tmp_path / "06-fused.kernel.py"  # names of files need not be identifiers
    path.write_text(STORE.format(1))
    first = load_kernel(tmp_path, path.name, "f")
    assert load_kernel(tmp_path, path.name, "f") is first
    path.write_text(STORE.format(2))
    assert load_kernel(tmp_path, path.name, "f").src == first.src.replace("1", "2")


def test_files_of_one_name_do_not_collide(tmp_path: Path):
    """They collide neither with each other nor with a module of Python's."""
    places = [(root, folder) for root in ("one", "two") for folder in ("a", "b", ".")]
    for number, (root, folder) in enumerate(places):
        path = tmp_path / root / folder / "copy.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STORE.format(number))
    import copy

    kernels = {load_kernel(tmp_path / root, f"{folder}/copy.py", "f").src for root, folder in places}
    assert len(kernels) == 6
    assert sys.modules["copy"] is copy
