"""Names with a meaning in Python or in generated code: each is refused in the manifest, or works in a call.

The names are those of Python and of the runtime's own functions and generated sources. Every op of one bundle has some
of them in its roles, so that each name is in each role once; all ops share one kernel.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.contract import build_contract
from aot_runtime import Bundle, open_bundle
from aot_runtime.contract.manifest_rules import RESERVED_OPS
from aot_runtime.contract.names import IDENTIFIER, RESERVED
from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS, OPTIONS, SCALE, edit, load
from tests.support.session_builds import ROOT

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def work(x, y, space, n, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(space + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)
    tl.debug_barrier()
    tl.store(y + i, tl.load(space + i, mask=i < n), mask=i < n)
"""
ROLES = ("op", "tensor", "output", "scalar", "flag", "dtype", "dim", "axis", "derived", "workspace", "config")
OP = """\
  "{op}":
    tensors:
      "{tensor}": {{shape: ["{dim}"], dtype: "{dtype}"}}
      "{output}": {{shape: ["{dim}"], dtype: "{dtype}", role: output}}
    scalars: {{"{scalar}": {{type: fp32, min: -1000}}, "{flag}": {{type: flag, default: false}}}}
    dtypes: {{"{dtype}": [float32]}}
    constexprs: {{"{axis}": {{values: [16], pick: "smallest >= {dim}"}}}}
    derived: {{"{derived}": "{dim} + 0 * elsize({tensor})"}}
    workspace: {{"{workspace}": {{shape: ["{derived}"], dtype: float32}}}}
    require: ["{dim} > 0 and {scalar} != 77"]
    specialisations: [general]
    launches:
      - kernel: k.py:work
        grid: [1]
        bind:
          {{x: "{tensor}", y: "{output}", space: "{workspace}", n: "{derived}", factor: "{scalar}", BLOCK: "{axis}"}}
        configs: [{{name: "{config}", options: {{num_warps: 1}}}}]
"""


def identifiers(source: str) -> set[str]:
    """Return every name in Python code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        found |= {getattr(node, field, None) for field in ("arg", "id", "attr", "name", "asname", "module")}
    return {name for name in found if isinstance(name, str)}


def names_of_the_runtime() -> set[str]:
    """Return the parameters of the runtime's functions."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "runtime/aot_runtime").rglob("*.py")]
    return {node.arg for tree in trees for node in ast.walk(tree) if isinstance(node, ast.arg)}


GENERATED = {
    *("alias", "run", "ptr", "layout", "result", "make", "plans", "slow", "misfit", "unfit", "stream", "out", "count"),
    *("Any", "Array", "Device", "DeviceArray", "Generic", "HostArray", "Literal", "NamedTuple", "Path", "Protocol"),
    *("Stream", "SupportsDLPack", "TypeAlias", "TypeVar", "overload", "np", "numpy", "typing", "aot_runtime"),
    *("NULL", "uint8_t", "uint64_t", "int32_t", "offsetof", "static_assert", "assert", "linux", "unix", "main"),
    *("scale_result", "pathlib", "builtins", "index", "size", "function", "kernel", "grid_x", "kernargs", "padding_4"),
}
EVERY = sorted(
    {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, *dir(object), *names_of_the_runtime(), *GENERATED}
)
ALLOWED = [name for name in EVERY if IDENTIFIER.match(name) and name not in RESERVED | RESERVED_OPS]
WORST = {"KeyError", "TypeError", "self", "variable", "op", "match", "type", "print", "len"} & {*ALLOWED}
REFUSED = [name for name in EVERY if not IDENTIFIER.match(name) or name in RESERVED]


def manifest(names: list[str]) -> str:
    """Return a manifest with an op for each name, which uses other names in its other roles."""
    steps = {role: 7 * position for position, role in enumerate(ROLES)}
    ops = [
        OP.format(**{role: names[(start + step) % len(names)] for role, step in steps.items()})
        for start in range(len(names))
    ]
    return "bundle: names\nops:\n" + "".join(ops)


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle with an op for each allowed name, or for some, `self` and `KeyError` among them."""
    names = sorted({*ALLOWED[:: request.param], *WORST})
    project = Project(tmp_path_factory.mktemp("names"), manifest(names), KERNEL)
    result = project.build()
    assert result.exit_code == 0, result.output
    return open_bundle(project.output / "names-gfx942", "emulator")


def test_every_allowed_name_can_be_called_by(bundle: Bundle):
    assert len(WORST) == 9
    x = np.arange(10, dtype=np.float32)
    for op in bundle.index.ops:
        tensor, output = (item.name for item in op.tensors)
        scalar, flag = (item.name for item in op.scalars)
        call = getattr(bundle, op.name)
        np.testing.assert_array_equal(call(**{tensor: x, scalar: 2.0, flag: False}), 2 * x, err_msg=op.name)
        result = np.zeros_like(x)
        call(x, **{output: result, scalar: 3.0})
        np.testing.assert_array_equal(result, 3 * x)
        assert scalar in bundle.explain(op.name, **{tensor: x, scalar: 2.0, flag: True})
        with pytest.raises(Exception, match=f"{op.name}: argument '{scalar}' is missing"):
            call(**{tensor: x})


def test_names_of_generated_code_are_among_those(bundle: Bundle):
    """Every name of generated code's own is one that manifests may not have."""
    op = bundle.index.ops[0]
    getattr(bundle, op.name)(np.zeros(4, np.float32), **{op.scalars[0].name: 1.0})
    sources = [
        lines for name, (_, _, lines, _) in linecache.cache.items() if name.startswith(f"<aot_runtime: {op.name} ")
    ]
    own = {name for lines in sources for name in identifiers("".join(lines))} - {*ALLOWED}
    attributes = {"stream", "ptr", "run", "settle", "layout", "kernargs"}
    assert {name for name in own - attributes if IDENTIFIER.match(name)} == set()


def test_the_stub_of_every_allowed_name(bundle: Bundle):
    text = (bundle.path / "stubs/names.pyi").read_text()
    (protocol,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Names"]
    methods = {node.name for node in protocol.body if isinstance(node, ast.FunctionDef)}
    assert {op.name for op in bundle.index.ops} <= methods
    own = {node.id for node in ast.walk(protocol) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert all(name.startswith("_") for name in own), own


@pytest.mark.slow
def test_a_type_checker_takes_the_stub_of_every_allowed_name(bundle: Bundle, tmp_path: Path):
    pytest.importorskip("mypy")
    (tmp_path / "names.pyi").write_text((bundle.path / "stubs/names.pyi").read_text())
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "runtime")])
    command = [sys.executable, "-m", "mypy", *options, "names.pyi"]
    result = subprocess.run(command, cwd=tmp_path, env=os.environ | {"MYPYPATH": paths}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def check_header(path: Path) -> None:
    for language in ("c", "c++"):
        command = ["cc", "-fsyntax-only", f"-x{language}", str(path)]
        assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_the_header_of_every_allowed_name(bundle: Bundle):
    for file in ("include/names_variants.h", "src/names.c"):  # which includes the header of the ops
        check_header(bundle.path / file)


def test_the_header_of_a_kernel_whose_parameters_are_named_as_macros_and_types_are(tmp_path: Path):
    """Its structs have members of these names."""
    named = dict(zip(("x", "out", "cols", "factor"), ("NULL", "uint64_t", "linux", "uint8_t"), strict=True))
    bind = ", ".join(f"'{parameter}': {value}" for value, parameter in named.items())
    kernel = re.sub(rf"\b({'|'.join(named)})\b", lambda found: named[found[0]], KERNELS)
    text = edit(SCALE, ("        grid: [rows]\n", f"        grid: [rows]\n        bind: {{{bind}}}\n"))
    project = Project(tmp_path, text, kernel)
    result = project.build("--filter", "dtype=float16,block=16")
    assert result.exit_code == 0, result.output
    check_header(project.output / "tiny-gfx942/include/tiny_variants.h")


@pytest.mark.parametrize("role", ["op", "tensor", "scalar", "dtype", "dim", "axis", "derived", "workspace"])
def test_every_other_name_is_refused_where_it_is_written(tmp_path: Path, role: str):
    ordinary = {item: f"{item}_0" for item in ROLES}
    names = [*REFUSED, *sorted(RESERVED_OPS)] if role == "op" else REFUSED
    for name in names:
        text = "bundle: names\nops:\n" + OP.format(**{**ordinary, role: name})
        with pytest.raises(ManifestError) as caught:
            built = load(tmp_path, text)
            (op,) = built.spec.ops
            build_contract(built, op, "gfx942", OPTIONS)
        assert all(re.match(r".*m\.yaml:\d+:\d+: ", message) for message in caught.value.messages), name


@pytest.mark.parametrize("name", ["class", "None", "async"])
def test_a_bundle_may_not_be_called_what_no_module_can_be(tmp_path: Path, name: str):
    project = Project(tmp_path, edit(SCALE, ("bundle: tiny", f'bundle: "{name}"')))
    result = project.build("--dry-run")
    assert result.exit_code == 2
    assert re.match(rf"aotbuild: error: {re.escape(str(project.manifest))}:1:\d+: bundle: '{name}' ", result.stderr)


def test_bundles_have_no_attribute_that_an_op_may_be_called(bundle: Bundle):
    attributes = {name for name in {*dir(Bundle), *vars(bundle)} if not name.startswith("_")}
    assert attributes - {op.name for op in bundle.index.ops} == RESERVED_OPS
