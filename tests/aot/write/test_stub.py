"""The type stub of a bundle: its signatures are those of the ops, and a type checker accepts and uses it."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aot.write.stub import class_name, stub_text
from aot_runtime.call.op import call_source, docstring
from aot_runtime.contract import records
from aot_runtime.opened import Bundle

ROOT = Path(__file__).parents[3]

USES = """
from typing import assert_type
import numpy as np
from aot_runtime import DeviceArray
from sample import HostArray, Sample, reduce_result

def accepted(bundle: Sample, host: HostArray, device: DeviceArray, flag: bool) -> None:
    assert_type(bundle.reduce(host, seed=1), HostArray)
    assert_type(bundle.reduce(device, host, seed=1), DeviceArray)
    assert_type(bundle.reduce(host, host, seed=1, return_largest=True), reduce_result[HostArray])
    assert_type(bundle.reduce(x=device, seed=1, return_largest=True).largest, DeviceArray)
    assert_type(bundle.reduce(host, seed=1, return_largest=flag), HostArray | reduce_result[HostArray])
    assert_type(bundle.reduce(device, weight=None, seed=1, rounding="stochastic", scale=2, stream=5), DeviceArray)
    assert_type(bundle.reduce(host, seed=1, total=host, largest=device, return_largest=False), HostArray)
    bundle.swap(host, device)
    assert_type(bundle.ops, tuple[str, ...])
    assert_type(bundle.explain("reduce", device, seed=1), str)

def refused(bundle: Sample, host: HostArray) -> None:
    bundle.reduce(host)                             # E: seed is required
    bundle.reduce(host, seed=1, rounding="down")    # E: no such choice
    bundle.reduce(host, seed=1.5)                   # E: an integer
    bundle.reduce([1.0], seed=1)                    # E: no array
    bundle.reduce(host, None, host, seed=1)         # E: outputs go by name
    bundle.reduce(host, seed=1, out=host)           # E: two outputs, so there is no `out`
    bundle.redcue(host, seed=1)                     # E: no such op
    bundle.swap(host)                               # E: b is missing
"""

NUMPY = """
from typing import Any, Generic, TypeVar
S = TypeVar("S")
D = TypeVar("D")
class ndarray(Generic[S, D]): ...
def __getattr__(name: str) -> Any: ...
"""
"""What the stub needs of numpy's own types, which take seconds to read."""


def test_a_type_checker_accepts_right_calls_and_refuses_wrong_ones(sample: records.Index, tmp_path: Path):
    pytest.importorskip("mypy")
    for name, text in {"sample.pyi": stub_text(sample), "uses.py": USES, "numpy.pyi": NUMPY}.items():
        (tmp_path / name).write_text(text)
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "sample.pyi", "uses.py"]
    environment = os.environ | {"MYPYPATH": os.pathsep.join([str(tmp_path), str(ROOT / "runtime")])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    expected = {number for number, line in enumerate(USES.splitlines(), 1) if "# E:" in line}
    assert {int(error.split(":")[1]) for error in errors if error.startswith("uses.py:")} == expected, result.stdout
    assert not [error for error in errors if not error.startswith("uses.py:")]


def methods(text: str, name: str) -> dict[str, list[ast.FunctionDef]]:
    body = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name).body
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def test_signatures_and_docstrings_are_those_of_the_functions(sample: records.Index):
    found = methods(stub_text(sample), "Sample")
    for op in sample.ops:
        function = ast.parse(call_source(op, frozenset())).body[0]
        assert isinstance(function, ast.FunctionDef)
        for method in found[op.name]:
            assert [arg.arg for arg in method.args.args] == ["_self", *(arg.arg for arg in function.args.args)]
            assert [arg.arg for arg in method.args.kwonlyargs] == [arg.arg for arg in function.args.kwonlyargs]
            assert len(method.args.defaults) == len(function.args.defaults)
        assert inspect.cleandoc(ast.get_docstring(found[op.name][0]) or "") == docstring(op)
    defaults = [zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True) for method in found["reduce"]]
    required = {arg.arg for method in defaults for arg, default in method if default is None}
    assert required == {"seed", "return_largest"}, "the scalar with no default; the flag, in the overload of its True"


def test_text_of_the_contract_cannot_break_out_of_its_docstring(sample: records.Index):
    doc = 'Ends """ here\\'
    op = msgspec.structs.replace(sample.ops[1], doc=doc)
    found = methods(stub_text(msgspec.structs.replace(sample, ops=(op,))), "Sample")
    assert (ast.get_docstring(found["swap"][0]) or "").startswith(doc)


def test_members_of_the_protocol_are_those_of_a_bundle(sample: records.Index):
    text = stub_text(sample)
    for name in methods(text, "Sample").keys() - {op.name for op in sample.ops}:
        assert hasattr(Bundle, name), name
    assert sample.id in text


def test_class_names():
    names = ("rows", "flash_attention", "fp8_gemm")
    assert [class_name(name) for name in names] == ["Rows", "FlashAttention", "Fp8Gemm"]
