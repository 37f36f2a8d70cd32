"""Read the parametrisations of a suite's test files, and compare them with those in `data`.

`python -m tests.peers read SUITE FOLDER` prints, for a checkout of the suite in FOLDER, the test functions that the
data do not have, those that are gone, and the parameters whose values differ. Nothing of the suite is run: files are
read by `ast`. Expressions of literals, of names of their module and of a few functions are evaluated; names of
libraries stand for themselves, and what else is called stays text.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.peers.grids import Function

FOLDERS = {
    "flash-attention 2": ("tests",), "flash-attention 3": ("hopper",), "flash-attention 4": ("tests/cute",),
    "flashinfer": ("tests",), "aotriton": ("modules/flash/tests",), "aiter": ("op_tests",), "vLLM": ("tests/kernels",),
    "PyTorch": ("test/inductor",),
}  # fmt: skip
"""Folders of the suites that have their tests."""

Parameters = dict[str, list[Any]]
Found = dict[tuple[str, str], Parameters]
"""Parameters by file and function; names that vary together are joined by commas."""


TORCH = {"half": "float16", "float": "float32"}


class Name(str):
    """A name of a library, such as aiter.dtypes.fp8: its text, but of torch.half float16.

    As a condition it is false: most of these tell whether a feature is disabled, or a GPU an old one.
    """

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Name:
        return Name(TORCH.get(name, name) if self == "torch" else f"{self}.{name}")


class Names(dict[str, Any]):
    """Names of a module and their values. Unknown ones stand for themselves."""

    def __missing__(self, name: str) -> Name:
        return Name(name)


FUNCTIONS = {function.__name__: function for function in (list, tuple, range, len, zip, sorted, set, str, int, float,
                                                          bool, max, min, enumerate)}  # fmt: skip
ITERTOOLS = SimpleNamespace(product=itertools.product, chain=itertools.chain)


def read_suite(suite: str, root: Path) -> Found:
    """Return the parameters of a suite's test functions and scripts in a checkout."""
    scripts = read_scripts(root, "op_tests") if suite == "aiter" else {}
    return read(root, FOLDERS[suite]) | scripts


def read(root: Path, folders: Iterable[str]) -> Found:
    """Return the parameters of all test functions below the folders of a checkout."""
    found: Found = {}
    for path in (path for folder in folders for path in sorted((root / folder).rglob("*test*.py"))):
        known = Names(FUNCTIONS, __builtins__={}, itertools=ITERTOOLS, product=itertools.product)
        for name, parameters in _functions(ast.parse(path.read_text()).body, known, {}, ""):
            found[str(path.relative_to(root)), name] = parameters
    return found


def _functions(body: list[ast.stmt], known: Names, shared: Parameters, prefix: str) -> Iterator[tuple[str, Parameters]]:
    """Yield the test functions of a module or a class. known: grows by what is assigned. shared: of the class."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if node.value:
                known[name] = _value(node.value, known)
            case ast.ClassDef(name=name) if name.startswith("Test"):
                found = shared | _parameters(node.decorator_list, known)
                yield from _functions(node.body, Names(known), found, f"{name}.")
            case ast.FunctionDef(name=name) if name.startswith("test"):
                yield prefix + name, shared | _parameters(node.decorator_list, known)


def _parameters(decorators: list[ast.expr], known: Names) -> Parameters:
    """Return the values of each parametrize decorator."""
    found: Parameters = {}
    for node in reversed(decorators):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize"):
            names, values = (_value(part, known) for part in (*node.args, *(word.value for word in node.keywords))[:2])
            names = names.split(",") if isinstance(names, str) else names
            found[",".join(name.strip() for name in names)] = values if isinstance(values, list) else [str(values)]
    return found


class _Unmarked(ast.NodeTransformer):
    """Replaces pytest.param(x, y, marks=...) by (x, y), and by x alone."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node.func) != "pytest.param":
            return node
        return node.args[0] if len(node.args) == 1 else ast.Tuple(node.args, ast.Load())


def _value(node: ast.expr, known: Names) -> Any:
    """Return the value of an expression as JSON has it, or its text; of a list, that of each element."""
    try:
        expression = ast.fix_missing_locations(ast.Expression(_Unmarked().visit(node)))
        return _plain(eval(compile(expression, "<suite>", "eval"), known))
    except Exception:
        if isinstance(node, ast.List | ast.Tuple) and not any(isinstance(part, ast.Starred) for part in node.elts):
            return [_value(part, known) for part in node.elts]
        return Name(ast.unparse(node))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | range | zip | itertools.product | itertools.chain):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return sorted(map(_plain, value), key=str)
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def differences(found: Found, functions: Iterable[Function]) -> Iterator[str]:
    """Yield a line for each function that is new or gone, and for each parameter of the data with other values."""
    known = {(function.file, function.name): function for function in functions}
    for place in sorted(found.keys() - known.keys()):
        sizes = " ".join(f"{name}:{len(values)}" for name, values in found[place].items())
        yield f"new: {'::'.join(place)} {sizes}"
    for file, name in sorted(known.keys() - found.keys()):
        if (file, name.partition(",")[0]) not in found:  # a part of a script is named behind a comma
            yield f"gone: {file}::{name}"
    for place in sorted(found.keys() & known.keys()):
        for name, values in found[place].items():
            before = known[place].axes.get(name)
            if before is not None and not _same(before, values):
                yield f"changed: {'::'.join(place)} {name}: {before} is {values}"


def _same(before: list[Any], after: list[Any]) -> bool:
    return sorted(map(str, before)) == sorted(map(str, after))


def read_scripts(root: Path, folder: str) -> Found:
    """Return the parameters of all scripts in a folder: the lists that are defaults of their command-line arguments."""
    found: Found = {}
    for path in sorted((root / folder).glob("test_*.py")):
        tree, known = ast.parse(path.read_text()), Names(FUNCTIONS, __builtins__={}, itertools=ITERTOOLS)
        parameters: Parameters = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.List()):
                    known[name] = _value(node.value, known)
                case ast.Call(func=ast.Attribute(attr="add_argument")):
                    parameters |= _argument(node, known)
        if parameters:
            found[str(path.relative_to(root)), "main"] = parameters
    return found


def _argument(node: ast.Call, known: Names) -> Parameters:
    """Return the name and the default of an argument that is a list."""
    names = [str(_value(name, known)).lstrip("-").replace("-", "_") for name in node.args]
    defaults = [_value(word.value, known) for word in node.keywords if word.arg == "default"]
    return {max(names, key=len): value for value in defaults if names and isinstance(value, list)}
