"""The pages of docs/reference are complete, and their code runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aot_emulator.errors
import aot_runtime
from aot_bundle.command import diagnosis
from aot_runtime import errors
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT
from tests.support.sources import PACKAGES, sources

REFERENCE = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")}
CODE = (*PACKAGES, "kernels", "examples", "benchmarks", "tests")
OWN = re.compile(r"_?AOT(?:BUILD|BUNDLE)_[A-Z][A-Z_]*[A-Z](?![A-Z_])")


def texts(*folders: str, suffix: str = ".py") -> Iterator[str]:
    for path in sorted(sources(ROOT, folders, suffix)):
        if path.parts[len(ROOT.parts) : -1] != ("tests", "docs"):
            yield path.read_text(encoding="utf-8")


def documented_variables() -> set[str]:
    lines = [line for line in REFERENCE["environment"].splitlines() if line.startswith("| `")]
    return {name for line in lines for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])}


def test_own_variables_are_those_of_the_code():
    documented = {name for row in table(REFERENCE["environment"]) for name in OWN.findall(row[0])}
    completion = {"_AOTBUILD_COMPLETE", "_AOTBUNDLE_COMPLETE"}  # which click makes of the commands' names
    code = [*texts(*CODE), *texts("aot/c/support", suffix=".h")]
    assert documented == completion | {name for text in code for name in OWN.findall(text)}


def test_variables_that_are_read_are_documented():
    reading = (text for text in texts(*PACKAGES) if "environ" in text)
    read = {name for text in reading for name in _read_variables(ast.parse(text))}
    assert {"XDG_CACHE_HOME", "ROCM_PATH", "LD_LIBRARY_PATH"} <= read
    ours = {"TMPDIR"}  # of a worker: set, never read
    assert (read | set(diagnosis._VARIABLES)) - ours <= documented_variables()


def _read_variables(tree: ast.Module) -> Iterator[str]:
    """Return names that code asks an environment for, and tuples of names that it iterates over."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(str(name)), *_]):
                asked = [name] if "environ" in ast.unparse(owner) else []
            case ast.Subscript(value=owner, slice=ast.Constant(str(name))):
                asked = [name] if "environ" in ast.unparse(owner) else []
            case ast.Compare(left=ast.Constant(str(name)), comparators=[owner]):
                asked = [name] if "environ" in ast.unparse(owner) else []
            case ast.For(target=ast.Name("variable"), iter=ast.Tuple(elts=names)):
                asked = [name.value for name in names if isinstance(name, ast.Constant)]
            case _:
                continue
        yield from asked


def test_every_error_has_a_cause_and_a_cure():
    everything = [*vars(errors).values(), *vars(aot_emulator.errors).values()]
    kinds = {kind.__name__: kind for kind in everything if isinstance(kind, type) and issubclass(kind, errors.AotError)}
    titles = re.findall(r"^### (\w+)$", REFERENCE["errors"], re.MULTILINE)
    assert set(titles) == kinds.keys()
    for title in titles:
        text = section(REFERENCE["errors"], title)
        cause, cure = (text.index(f"**{word}.** ") for word in ("Cause", "Cure"))
        assert cause < cure, title
        for base in re.findall(r"^\*\*Cause\.\*\* (?:An?) `(\w+)`", text, re.MULTILINE):
            assert base in [item.__name__ for item in kinds[title].__mro__[1:]]


def test_the_errors_are_raised(rows_bundle: Path, tmp_path: Path):
    source = "\n".join(block.text for block in blocks(REFERENCE["errors"], "python"))
    (tmp_path / "dist").symlink_to(rows_bundle.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))}
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=environment, check=True, timeout=120)


def test_the_api_page_has_every_public_name():
    shown = set(re.findall(r"^::: aot_runtime\.(\w+)$", REFERENCE["api"], re.MULTILINE))
    public = {name for name in aot_runtime.__all__ if callable(getattr(aot_runtime, name))}
    assert shown == public - set(vars(errors))
    helpers = {path.stem for path in (ROOT / "models/aot_models").glob("*.py")}
    commands = {"__init__", "generate", "perplexity", "random_checkpoint"}
    assert set(re.findall(r"^::: aot_models\.(\w+)$", REFERENCE["api"], re.MULTILINE)) == helpers - commands
