"""Read calls files of any content: they are accepted and extended by another call, or refused with `CallsFileError`."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.call import calls_file
from aot_runtime.errors import CallsFileError

from .edits import Edit, edit_bytes
from .random_edits import INJECTIONS, NUMBERS, Draw

SEED = b"""\
# Calls that a program makes.
calls:
- bundle: small
  op: affine
  count: 40
  shapes: {x: [3, 20]}
  dtypes: {x: float32}
  scalars: {scale: 1.5, flag: true}
- {bundle: small, op: copy, count: 1, shapes: {x: [3, 20]}, strides: {x: [20, 1]}}
- &a {bundle: small, op: copy, shapes: {x: [1]}}
- {<<: *a, op: scale}
"""
_CHAIN = "".join(f"- &y{i} [*y{i - 1}]\n" if i else "- &y0 [1]\n" for i in range(400))
_LAUGHS = "".join(f"- &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" if i else "- &x0 [1]\n" for i in range(12))
_LINES = (
    _CHAIN,
    _LAUGHS,
    "- {op: !!int abc}",
    "- {op: !!float x}",
    "- {op: !!bool x}",
    "- {op: !!timestamp x}",
    "- {1: 2, op: a}",
    "- {~: 1}",
    "- {[1]: 2}",
    "- {{a: 1}: 2}",
    "- ? [1]",
    "- {true: 1}",
    "- {1.5: 1}",
    "- 2023-13-45",
    "- {op: 2001-01-01}",
    "- *a",
    "- &b [*a, *a, *a]",
    "- &c {<<: *c}",
    "- &d [*d]",
    "- {count: 0}",
    "- {count: .nan}",
    "- {<<: [*a, *a]}",
    "- {<<: 1}",
    "- !!set {a, b}",
    "- !!omap [a: 1]",
    "- !!binary AAAA",
    "- !x y",
    "- {op: " + "9" * 5000 + "}",
    "- {op: 0x" + "f" * 5000 + "}",
    "- {count: 1_0}",
    "- {count: 0o7}",
    "- {op: 1:20:30}",
    "- {op: =}",
    "calls: []",
    "other: 1",
    "---",
    "...",
    "%YAML 1.1",
    "\t",
    "\0",
    "\x85",
    "\u2028",
    "\ufeff",
    "- |",
    "- '",
    "[" * 500,
    "- " * 500,
    "- {a: " * 30,
    "- !!python/object/apply:os.system ['true']",
    "<<: *a",
    "- <<",
    "- {<<: *missing}",
    "# comment",
    "- {bundle: a, bundle: b}",
)
_ADDED = {"bundle": "small", "op": "copy", "count": 2, "shapes": {"x": [4, 4]}}


@dataclass(frozen=True)
class CallsFileInput:
    """Edits of the seed's bytes."""

    edits: tuple[Edit, ...]


class CallsFiles:
    """Handles calls files, one after the other, in a folder of its own."""

    def __init__(self, folder: Path, seed: int):
        self.readable, self.seed, self._path = folder, seed, folder / "calls.yaml"
        warnings.simplefilter("ignore")  # of ruamel.yaml, about anchors

    def warm_up(self) -> None:
        given = CallsFileInput(())
        assert self.handle(given, self.prepare(given)) == "taken"

    def draw(self, number: int) -> CallsFileInput:
        """Draw the input of a number."""
        rng = random.Random(f"calls files:{self.seed}:{number}")
        return CallsFileInput(tuple(_edit(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))))

    def prepare(self, given: CallsFileInput) -> None:
        content = SEED
        for edit in given.edits:
            content = edit_bytes(content, edit)
        self._path.write_bytes(content)

    def handle(self, given: CallsFileInput, prepared: None) -> str:
        """Do what `check` and `merge` do, without writing; return the outcome, or raise what is wrong with an input."""
        try:
            data = calls_file._read(self._path)
        except CallsFileError as error:
            assert str(error).startswith(str(self._path)) and len(str(error)) < 10_000, error
            return "refused"
        text = calls_file._merged(calls_file._yaml(self._path), data, [_ADDED])
        assert len(text) < 4 * calls_file.MAX_BYTES
        return "taken"

    def undo(self, given: CallsFileInput, prepared: None) -> None:
        """Do nothing: the next input overwrites the file."""


def _edit(rng: random.Random) -> Edit:
    lines = [at for at in range(len(SEED) + 1) if not at or SEED[at - 1] == 10]
    start = rng.choice(lines)
    match rng.randrange(6):
        case 0 | 1:
            return ["insert", start, (rng.choice(_LINES) + "\n").encode().hex()]
        case 2:
            text = rng.choice((*INJECTIONS, *_LINES, *map(str, NUMBERS)))
            return ["insert", rng.randrange(len(SEED)), text.encode(errors="replace").hex()]
        case 3:
            return ["cut", start, rng.choice(lines)]
        case 4:
            return ["repeat", start, min(len(SEED), start + rng.randrange(200)), rng.choice((1, 2, 30))]
    return Draw(rng, ()).bytes_edit(len(SEED))
