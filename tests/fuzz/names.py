"""Open and make archives whose file names may collide.

They are accepted exactly if the names can coexist in a folder on any file system, by an independent check.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.bundle.archive import Archive, in_order, parts
from aot_runtime.errors import BundleError

from .archive_inputs import laid_out
from .bundles import must
from .edits import Edit

_STEPS = ("a", "b", "A", "ab", "a-", "a.", "a_", "code", "Code", "x.zst", "X.zst", "x", "include", "INCLUDE")
_STRANGE = ("", ".", "..", ".a", "a\0", "\n", "a b", "é", "-", "a" * 256)
_ONE_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)


@dataclass(frozen=True)
class NamesInput:
    """An archive of empty files. edits: `name`, and a name, each; they are put in order unless `is_shuffled`."""

    edits: tuple[Edit, ...]
    is_shuffled: bool


class Names:
    """Handles inputs, one after the other, in a file of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.path = folder / "input.aotb"

    @property
    def readable(self) -> Path:
        """Return the folder that may be read."""
        return self.folder

    def warm_up(self) -> None:
        """Handle some names that collide and some that do not."""
        for names, wanted in ((("a/b", "a/b-c", "ab"), "opened"), (("a", "a/b"), "refused")):
            given = NamesInput(tuple(["name", name] for name in names), False)
            outcome = self.handle(given, self.prepare(given))
            assert outcome == wanted, (names, outcome)

    def draw(self, number: int) -> NamesInput:
        """Draw the input of a number."""
        rng = random.Random(f"names:{self.seed}:{number}")
        names = ["bundle.json"] if rng.random() < 0.8 else []
        for _ in range(rng.choice((1, 2, 2, 3, 4, 8))):
            names.append(_name(rng, names))
        return NamesInput(tuple(["name", name] for name in names), rng.random() < 0.05)

    def prepare(self, given: NamesInput) -> list[str]:
        """Write an input's file; return the names in it."""
        names = [str(edit[1]) for edit in given.edits]
        names = names if given.is_shuffled else in_order(names)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, laid_out([(name, b"") for name in names]))
        os.close(descriptor)
        return names

    def undo(self, given: NamesInput, names: list[str]) -> None:
        """Do nothing: the next input overwrites the file."""

    def handle(self, given: NamesInput, names: list[str]) -> str:
        """Return what became of an input; raise what is wrong with it."""
        are_names = all(len(name) <= 255 and _ONE_NAME.fullmatch(name) for name in names)
        plain = [re.sub(r"\A(code/[^/]+)\.zst\Z", r"\1", name) for name in names]
        is_sound = are_names and names == in_order({*names}) and can_be_files(plain)
        try:
            opened = Archive(self.path)
        except BundleError as error:
            must(bool(str(error)) and not is_sound, "names that a folder can have are refused")
        else:
            must(is_sound and sorted(opened.names()) == sorted(plain), "names that no folder can have are taken")
        if not given.is_shuffled and len({*names}) == len(names):
            must(
                _can_be_packed(names) == (are_names and can_be_files(names)), "what is packed is not what can be opened"
            )
        return "opened" if is_sound else "refused"


def _name(rng: random.Random, others: Sequence[str]) -> str:
    other = rng.choice(others) if others else "a"
    match rng.randrange(8):
        case 0:
            return f"{other}/{rng.choice(_STEPS)}"
        case 1:
            return other.rpartition("/")[0] or other
        case 2:
            return "".join(rng.choice((letter.upper(), letter.lower())) for letter in other)
        case 3:
            return f"{other}{rng.choice(('-', '.x', '.zst', 'x', '/'))}"
        case 4 if rng.random() < 0.2:
            return "/".join((other, rng.choice(_STRANGE))[:: rng.choice((1, -1))])
    return "/".join(rng.choice(_STEPS) for _ in range(rng.choice((1, 2, 2, 3))))


def _can_be_packed(names: Sequence[str]) -> bool:
    try:
        return bool(b"".join(parts(dict.fromkeys(names, b""))))
    except BundleError:
        return False


def can_be_files(names: Sequence[str]) -> bool:
    """Tell whether any file system can hold files of these names in one folder: no file is another's folder, and each
    path has one spelling."""
    spelled: dict[str, str] = {}
    for name in names:
        steps = name.split("/")
        for depth in range(1, len(steps)):
            way = "/".join(steps[:depth]) + "/"
            if spelled.setdefault(way.lower(), way) != way or way[:-1].lower() in spelled:
                return False
        if name.lower() in spelled or f"{name}/".lower() in spelled:
            return False
        spelled[name.lower()] = name
    return True
