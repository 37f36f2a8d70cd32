"""Print inputs with terminal control sequences.

They occur in everything that the commands print: indices, file names, arguments, kpack archives, manifests and compiler
output. Each command also runs on a clean input, with a letter in place of each control character. No raw character may
be printed, JSON must stay valid, and the number of lines must be the same.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from aot.build import _print_failures
from aot.cli import main as aotbuild
from aot.errors import CompileError
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot_bundle.command.main import main as aotbundle
from aot_bundle.kpack import ALIGNMENT, HEADER, MAGIC, VERSION
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import INDEX

from .bundle_inputs import BundleInput, Files, Seed, Special, files_of
from .bundles import Bundles, must
from .edits import Edit, edit_tree
from .manifests import seeds as manifest_seeds

CHARACTERS = [
    *map(chr, range(1, 32)), "\x7f", *map(chr, range(0x80, 0xA0)), *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029", "\u200b", "\ufeff", "\n", "\n", "\r", "\x1b",
]  # fmt: skip
SEQUENCES = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b[1A\x1b[2K", "\n\x1b[1Gok, signed by key 'release'\n", "\r\x1b[K", "\x9b2J",
    "\nsignature: signed by key 'release'", "\x1b]8;;http://example.org\x07x\x1b]8;;\x07", "\u202egnp.exe",
)  # fmt: skip
HARMLESS = "¤"
"""Replaces characters that a terminal would obey. It is not valid in names or expressions, either."""
_ESCAPE = re.compile(r"\\+(x[0-9a-f]{2}|u[0-9a-f]{4}|[nrt])")
ERASE = "\r\x1b[K"
"""Escapes that the commands themselves send to a terminal."""
COMMANDS = (
    "show {b}", "show {b}", "show {b} --variants", "show {b} --variants", "show {b} --json", "ls {b}", "ls {b} --json",
    "verify {b}", "verify {b} --json", "diff {o} {b}", "diff {o} {b} --variants", "diff {b} {o} --json",
    "explain {b} {call}", "explain {b} {call}", "explain {b} {call} --json", "sbom {b}", "isa {b}", "isa {b} --json",
    "isa {b} --require vgprs<1",
)  # fmt: skip
OF_NAMES = (
    "verify {b}", "verify {p}", "ls {p}", "show {p}", "show {b} --op {t}", "verify {b} --trust {t}", "{t}",
    "isa {b} --require {t}", "explain {b} {t}", "kpack ls {t}", "show --{t}", "pack {t}",
)  # fmt: skip
_NOT_TEXTS = (("id",), ("toolchain", "options"))
"""Texts of an index that are a number or JSON: with a harmless letter they are something else."""
KPACK_PARTS = ("name", "arch", "symbol", "group", "scheme", "family")
FAILURE_PARTS = ("reason", "label", "traceback")


@dataclass(frozen=True)
class TerminalInput:
    """Texts in the places of others, and the command that is run then.

    Attributes:
        kind: `bundle`, `name`, `kpack`, `manifest` or `failure`.
        seed: the bundle or the manifest that is edited.
        edits: of the index or manifest as trees; else a part, and its text.
    """

    kind: str
    seed: str
    edits: tuple[Edit, ...]
    command: str
    is_terminal: bool


class _Screen(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass(frozen=True)
class Shown:
    """The output of a command."""

    status: object
    out: str
    err: str

    @property
    def head(self) -> str:
        """Return the first line without folders, ids and widths; what is escaped becomes the harmless letter."""
        first = (self.out + self.err).partition("\n")[0]
        return re.sub(r"/(hostile|clean)/|\b[0-9a-f]{12}\b|\s+", " ", _ESCAPE.sub(HARMLESS, first))


class Terminals:
    """Handles inputs, one after the other, in a folder of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.hostile, self.clean = (Bundles(folder / name, seed) for name in ("hostile", "clean"))
        self.bundles = self.hostile.inputs.seeds
        self.manifests = manifest_seeds()
        self.calls = {name: _call(made) for name, made in self.bundles.items()}

    @property
    def readable(self) -> Path:
        """Return the folder that may be read."""
        return self.folder

    def warm_up(self) -> None:
        """Run each command once."""
        for command in dict.fromkeys(COMMANDS):
            given = TerminalInput("bundle", "accumulate", (), command, False)
            must(self.handle(given, self.prepare(given)).startswith("bundle, "), command)

    def draw(self, number: int) -> TerminalInput:
        """Draw the input of a number."""
        rng = random.Random(f"terminals:{self.seed}:{number}")
        kind = rng.choices(("bundle", "name", "kpack", "manifest", "failure"), (60, 14, 8, 10, 8))[0]
        seed = rng.choice([*(self.manifests if kind == "manifest" else self.bundles)])
        draw: dict[str, Callable[[], tuple[Sequence[Edit], str]]] = {
            "bundle": lambda: (_tree_edits(rng, self.bundles[seed].places), rng.choice(COMMANDS)),
            "name": lambda: (
                [[rng.choice(("code", "selftest", "")), _text(rng, "x").replace("/", "|")]], rng.choice(OF_NAMES)
            ),
            "kpack": lambda: ([[part, _text(rng, "x")] for part in rng.choices(KPACK_PARTS, k=2)],
                              rng.choice(("kpack ls {k}", "kpack ls {k} --json"))),
            "manifest": lambda: (_tree_edits(rng, self.manifests[seed].places), ""),
            "failure": lambda: ([[part, _text(rng, "a\nb")] for part in rng.choices(FAILURE_PARTS, k=2)], ""),
        }  # fmt: skip
        edits, command = draw[kind]()
        return TerminalInput(kind, seed, tuple(edits), command, rng.random() < 0.3)

    def prepare(self, given: TerminalInput) -> tuple[Files, Files]:
        """Lay out the files of an input and of its clean counterpart."""
        return self._lay_out(given, self.hostile), self._lay_out(cleaned(given), self.clean)

    def undo(self, given: TerminalInput, files: tuple[Files, Files]) -> None:
        made = self.bundles.get(given.seed)
        for handler, changed in zip((self.hostile, self.clean), files, strict=True):
            for name in changed:
                before = made.files.get(name, Special("nothing")) if made else Special("nothing")
                handler._write(handler.folder / given.seed, {name: before})

    def _lay_out(self, given: TerminalInput, handler: Bundles) -> Files:
        files: Files = {}
        match given.kind:
            case "bundle":
                made = self.bundles[given.seed]
                edits = tuple(["index", *edit] for edit in given.edits)
                files = files_of(BundleInput(given.seed, edits, True, 0, False), made) if edits else {}
            case "name":
                place, text = given.edits[0] if given.edits else ("", "x")
                files = {f"{place}/{text}".lstrip("/"): b"x"}
            case "kpack":
                files = {"x.kpack": _kpack(dict(given.edits))}
            case "manifest":
                tree = msgspec.json.decode(msgspec.json.encode(self.manifests[given.seed].tree))
                for edit in given.edits:
                    edit_tree(tree, edit)
                files = {"m.yaml": json.dumps(tree, indent=1).encode()}
        handler._write(handler.folder / given.seed, files)
        return files

    def handle(self, given: TerminalInput, files: tuple[Files, Files]) -> str:
        """Return the outcome of an input in a few words; raise what is wrong with it."""
        hostile, clean = self._shown(given, self.hostile), self._shown(cleaned(given), self.clean)
        for shown in (hostile, clean):
            for text in (shown.out, shown.err):
                raw = {c for c in text.replace(ERASE, "") if c != "\n" and not c.isprintable()}
                must(not raw, f"raw characters {raw}")
        if given.command.endswith("--json") and hostile.out:
            json.loads(hostile.out)
        # A line that ends too early begins as the clean one does.
        if hostile.status != clean.status or not clean.head.startswith(hostile.head.rstrip()):
            return f"{given.kind}, another outcome than the clean one"
        # Wrapped lines are more where letters are escaped, and a manifest may have other faults.
        if not (given.is_terminal or given.kind == "manifest" or given.command.endswith("--json")):
            lines = [(shown.out.count("\n"), shown.err.count("\n")) for shown in (hostile, clean)]
            must(lines[0] == lines[1], f"{lines[0]} lines and not {lines[1]}:\n{hostile.out}{hostile.err}")
        return f"{given.kind}, status {hostile.status}"

    def _shown(self, given: TerminalInput, handler: Bundles) -> Shown:
        folder = handler.folder / given.seed
        if given.kind == "failure":
            return shown_by(lambda: _fail(given.edits), given.is_terminal)
        if given.kind == "manifest":
            try:
                load_manifest(folder / "m.yaml")
            except ManifestError as error:
                words = ["--arch", "gfx942", "--dry-run", str(folder / "m.yaml")]
                shown = shown_by(lambda: aotbuild.main(words, "aotbuild"), given.is_terminal)
                must(shown.err.count("\n") == len(error.messages), f"lines of their own:\n{shown.err}")
                return shown
            return Shown("read", "", "")
        text = str(given.edits[0][1]) if given.kind == "name" and given.edits else ""
        places = {"{b}": folder, "{o}": handler.folder / "row_sums", "{p}": folder / text, "{t}": text,
                  "{k}": folder / "x.kpack"}  # fmt: skip
        words = [self.calls[given.seed] if word == "{call}" else [word] for word in given.command.split()]
        command = [_filled(word, places) for group in words for word in group]
        return shown_by(lambda: aotbundle.main(command, "aotbundle"), given.is_terminal)


def _filled(word: str, places: dict[str, Any]) -> str:
    for name, value in places.items():
        word = word.replace(name, str(value))
    return word


def shown_by(run: Callable[[], object], is_terminal: bool) -> Shown:
    """Return the output of a command, with progress printed to a terminal or not."""
    out, err = _Screen(is_terminal), _Screen(is_terminal)
    status: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            status = ended.code
    return Shown(status, out.getvalue(), err.getvalue())


def cleaned(given: TerminalInput) -> TerminalInput:
    """Return the same input with a harmless letter in the place of each character that must not be printed."""
    kept = "\n" if given.kind == "failure" else ""
    return replace(given, edits=tuple(_clean(edit, kept) for edit in given.edits))


def _clean(value: Any, kept: str) -> Any:
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter in kept else HARMLESS for letter in value)
    if isinstance(value, list):
        return [_clean(item, kept) for item in value]
    return value


def _text(rng: random.Random, old: str) -> str:
    found = old
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        found = found[:at] + (rng.choice(SEQUENCES) if rng.random() < 0.4 else rng.choice(CHARACTERS)) + found[at:]
    return found


def _tree_edits(rng: random.Random, places: Sequence[tuple[tuple[str | int, ...], Any]]) -> list[Edit]:
    texts = [(path, value) for path, value in places if isinstance(value, str) and path not in _NOT_TEXTS]
    keys = [path for path, _ in places if isinstance(path[-1], str)]
    edits: list[Edit] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.15:
            path = rng.choice(keys)
            edits.append(["rename", [*path], _text(rng, str(path[-1]))])
        else:
            path, value = rng.choice(texts)
            edits.append(["set", [*path], _text(rng, value)])
    return edits


def _call(seed: Seed) -> list[str]:
    from aot_runtime.contract.index_file import decode_index

    (op,) = decode_index(seed.files[INDEX]).ops
    dims = [word for name in Scope.of(op).dims for word in ("--dim", f"{name}=16")]
    dtypes = [word for name, values in op.dtypes.items() for word in ("--dtype", f"{name}={values[0]}")]
    return [op.name, *dims, *dtypes]


def _kpack(parts: dict[str, str]) -> bytes:
    arch = parts.get("arch", "gfx942")
    entry = {"type": "hsaco", "ordinal": 0, "metadata": {"symbol": parts.get("symbol", "s")}}
    table = msgspec.msgpack.encode({
        "toc": {parts.get("name", "n"): {arch: entry}}, "gfx_arches": [arch],
        "compression_scheme": parts.get("scheme", "none"), "group_name": parts.get("group", "g"),
        "gfx_arch_family": parts.get("family", "f"), "blobs": [{"offset": ALIGNMENT, "size": 1}],
    })  # fmt: skip
    return HEADER.pack(MAGIC, VERSION, ALIGNMENT + 1).ljust(ALIGNMENT, b"\0") + b"x" + table


def _fail(edits: Sequence[Edit]) -> None:
    said: dict[str, str] = {"reason": "r", "label": "l", "traceback": "t"} | dict(edits)
    error = CompileError(said["reason"], said["traceback"])
    variant: Any = SimpleNamespace(key="k", spec=SimpleNamespace(label=said["label"]))
    bundle: Any = SimpleNamespace(folder_name="b-gfx942", variants=[variant])
    outcome: Any = SimpleNamespace(failures={"k": error})
    _print_failures(SimpleNamespace(shard=None, tracebacks=True), [bundle], outcome)  # type: ignore[arg-type]
