"""Plan manifests of any content, as `aotbuild --dry-run` does. The result is a plan or `ManifestError`.

Kernel files are those of the seeds, unedited: they are Python code, which a build runs.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

from aot.errors import CompileError, described
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.source.kernel_source import KernelSource, inspect_kernel
from aot.targets import TARGETS
from aot_runtime.errors import AotError
from tests.support.building.projects import EVERYTHING, KERNELS, SCALE, tuning

from .edits import Edit, edit_bytes, edit_tree, places
from .random_edits import INJECTIONS, Draw, texts_of

_SUPPORT = Path(__file__).parents[1] / "support"
_SMALL = _SUPPORT / "small"
_ARCHS = ("gfx942", "gfx1100", "sm_90")
_TUNING = tuning("{scale_rows: [{name: tuned, when: cols > 4, options: {num_warps: 2}}]}")
_LAUGHS = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
_LINES = (
    "ops:", "  ops: *a", "a: &a [*a]", "x: &x {<<: *x}", "<<: {bundle: other}", "bundle: again", "? [1, 2]", "---",
    "...", "\t", "%YAML 1.1", "%TAG ! tag:x,2000:", "!!python/object/apply:os.system ['true']", "k: !!binary AAAA",
    "k: !!set {a, b}", "d: 2001-01-01", "n: .nan", "n: .inf", "n: 0o777", "n: 1_000", "n: 0x" + "f" * 40,
    "n: " + "9" * 5000, "x: |", "x: >", "'", '"', "#", "[" * 500, "{a: " * 500, "- " * 500,
    f"a0: &a0 [x, x]\n{_LAUGHS}",
    "\ufeff", "\0", "\x85", "\u2028", "\ud7ff",
    "root: /", "root: ..", "root: 3", "root: \"\\0\"",
    "include: {m.yaml: {scale: {BLOCK: [16]}}}", "include: {other.yaml: {scale: {BLOCK: [16]}}}",
    "include: {/dev/zero: {a: {b: [1]}}}",
)  # fmt: skip


@dataclass(frozen=True)
class ManifestInput:
    """A seed with edits, each of its `tree` (as JSON, which is YAML) or of its `text`,
    in bytes; and an architecture."""

    seed: str
    edits: tuple[Edit, ...]
    arch: str


@dataclass(frozen=True)
class ManifestSeed:
    """A manifest that can be planned."""

    text: str
    tree: Any = field(repr=False)

    @cached_property
    def places(self) -> list[tuple[tuple[str | int, ...], Any]]:
        return [*places(self.tree)]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return texts_of(self.tree)


def _seed(text: str) -> ManifestSeed:
    return ManifestSeed(text, YAML(typ="safe", pure=True).load(text))


def seeds() -> dict[str, ManifestSeed]:
    """Each op of small.yaml and foreign.yaml, two manifests of the builder's tests, and one that includes another."""
    found = {"scale": _seed(SCALE), "everything": _seed(EVERYTHING)}
    for path, kernels in ((_SMALL / "small.yaml", "kernels.py"), (_SUPPORT / "foreign/foreign.yaml", "foreign.py")):
        text = path.read_text().replace("root: ../../..\n", "")
        text = text.replace(f"tests/support/{path.stem}/kernels.py", kernels).replace("tests/support/small/", "")
        head, _, ops = text.partition("ops:\n")
        for part in ops.split("\n\n"):
            found[part.strip().partition(":")[0]] = _seed(f"{head}ops:\n{part}\n")
    found["including"] = _seed("bundle: more\ninclude:\n  other.yaml:\n    scale: {BLOCK: [16], T: [float16]}\n")
    return found


class Manifests:
    """Handles manifests, one after the other, in a folder of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed, self.seeds = folder, seed, seeds()
        self.readable = Path("/")  # a manifest names files to be read; what they may make of it is in docs/security.md
        self.path = folder / "m.yaml"
        for name in ("kernels.py", "reference.py"):
            shutil.copyfile(_SMALL / name, folder / name)
        shutil.copyfile(_SUPPORT / "foreign/kernels.py", folder / "foreign.py")
        (folder / "k.py").write_text(KERNELS)
        (folder / "other.yaml").write_text(SCALE)
        (folder / "tuning").mkdir()
        (folder / "tuning" / "scale.yaml").write_text(_TUNING)
        self._kernels: dict[tuple[str, str, str], KernelSource | AotError] = {}

    def warm_up(self) -> None:
        """Plan each seed as it is."""
        for name in self.seeds:
            given = ManifestInput(name, (), _ARCHS[0])
            outcome = self.handle(given, self.prepare(given))
            assert outcome == "planned" or name == "everything", (name, outcome)
        for arch in _ARCHS:  # each backend asks its tools for their versions, once
            self.handle(ManifestInput("including", (), arch), None)

    def draw(self, number: int) -> ManifestInput:
        """Draw the input of a number."""
        rng = random.Random(f"manifests:{self.seed}:{number}")
        name = rng.choice(list(self.seeds))
        draw = Draw(rng, self.seeds[name].texts)
        make: Callable[[ManifestSeed, Draw], Edit] = _tree_edit if rng.random() < 0.7 else _text_edit
        edits = tuple(make(self.seeds[name], draw) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        return ManifestInput(name, edits, rng.choice(_ARCHS))

    def prepare(self, given: ManifestInput) -> None:
        """Write an input's file."""
        self.path.write_bytes(content_of(given, self.seeds[given.seed]))

    def undo(self, given: ManifestInput, prepared: None) -> None:
        """Do nothing: the next input overwrites the file."""

    def handle(self, given: ManifestInput, prepared: None) -> str:
        """Return the outcome of an input; raise what is wrong with it."""
        try:
            manifest = load_manifest(self.path)
        except ManifestError as error:
            return _refused("refused when it is read", error)
        target = next(target for target in TARGETS if target.arch == given.arch)
        try:
            planned = plan_bundle(manifest, target, {}, False, self._inspect)
        except ManifestError as error:
            return _refused("refused when it is planned", error)
        assert planned.variants and planned.jobs
        return "planned"

    def _inspect(self, root: str, path: str, arch: str) -> KernelSource:
        """Read a kernel once, as a build does; exceptions of its file become `CompileError`s."""
        key = (root, path, arch)
        if key not in self._kernels:
            try:
                self._kernels[key] = inspect_kernel(root, path, arch)
            except AotError as error:
                self._kernels[key] = error
            except Exception as error:
                self._kernels[key] = CompileError(described(error))
        found = self._kernels[key]
        if isinstance(found, AotError):
            raise found
        return found


def _refused(what: str, error: ManifestError) -> str:
    assert error.messages and all(error.messages), "an error without words"
    return what


def content_of(given: ManifestInput, seed: ManifestSeed) -> bytes:
    """Return the bytes of an input's file."""
    trees = [edit for edit in given.edits if edit[0] == "tree"]
    content = seed.text.encode()
    if trees:
        tree = msgspec.json.decode(msgspec.json.encode(seed.tree))
        for edit in trees:
            edit_tree(tree, edit[1:])
        try:
            content = msgspec.json.encode(tree)
        except (ValueError, OverflowError, TypeError, RecursionError):
            content = repr(tree).encode(errors="replace")
    for edit in given.edits:
        if edit[0] == "text":
            content = edit_bytes(content, edit[1:])
    return content


def _tree_edit(seed: ManifestSeed, draw: Draw) -> Edit:
    return ["tree", *draw.tree_edit(seed.places)]


def _text_edit(seed: ManifestSeed, draw: Draw) -> Edit:
    rng, text = draw.rng, seed.text.encode()
    lines = [at for at in range(len(text)) if not at or text[at - 1] == 10]
    start = rng.choice(lines)
    match rng.randrange(6):
        case 0:
            return ["text", "insert", start, (rng.choice(_LINES) + "\n").encode().hex()]
        case 1:
            return [
                "text",
                "insert",
                rng.randrange(len(text)),
                rng.choice((*INJECTIONS, *_LINES, *draw.texts)).encode().hex(),
            ]
        case 2:
            return ["text", "cut", start, rng.choice(lines)]
        case 3:
            return ["text", "repeat", start, min(len(text), start + rng.randrange(200)), rng.choice((1, 2, 30))]
        case 4:
            return ["text", "insert", start, (b" " * rng.randrange(1, 9)).hex()]
    return ["text", *draw.bytes_edit(len(text))]
