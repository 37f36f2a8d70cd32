"""Draw random edits of bytes, and of trees with numbers, names, expressions and similar values."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from .edits import Edit, places

RUN = "__import__('os').system('true')"
"""A command that no input may run: the watch ends a process that does."""
INJECTIONS = (
    RUN, f"x):\n import os\n {RUN}\ndef y(", f"x.ptr, {RUN}", f"'); {RUN}; ('", f'"""\n{RUN}\n"""', f"{{{RUN}}}",
    f"rows if {RUN} else 1", "__builtins__", "open", "lambda: 0", "[0 for x in ()]", "x" * 5000, "(" * 300,
    "-" * 900 + "1",
    "9 ** 9 ** 9 ** 9", "9" * 400, "1e999", "\\", "\0", "\n", "\u202e", "\uff45\uff56\uff41\uff4c", "²", "\uff11",
    "None",
    "True",
    "../../../etc/passwd", "/etc/passwd", "/dev/zero", "code/../bundle.json", "%s%s%n", "{0.__class__}", "",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 256, 1000, 1023, 1024, 4095, 4096, 65535, 65536,
    1 << 20, 1 << 28, 1 << 30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, -(2**31), -(2**63), 2**64,
    10**30,
    0.0, -0.0, 0.5, 1.5, 1e-300, 1e300, -1e300,
)  # fmt: skip
CONSTANTS = (None, True, False, {}, [], [[]], {"": {}}, {"float": "inf"}, {"float": "nan"}, [0, 0], ["", ""])
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "==", "<", "and", "or", "if 1 else")
_CALLS = ("cdiv({}, 0)", "next_pow2({})", "min({}, 1)", "max({}, 2**16, 0)", "-{}", "not {}", "abs({})", "given({})",
          "elsize({})", "stride({}, 0)", "stride({}, 99)", "innermost({}, 0)", "({}) ** 16", "({}) ** -1", "({}) % 0",
          "({}) // 0",
          "({}) / 3", "({}) ** 0.5", "'{}'", "{0} if {0} else {0}", "{0} * {0} * {0} * {0} * {0}",
          "-({}) - 1")  # fmt: skip
_TOKEN = re.compile(r"\w+|[^\w\s]+")


class Draw:
    """Draws for one input; `texts` are what trees of its kind have in them."""

    def __init__(self, rng: random.Random, texts: Sequence[str]):
        self.rng, self.texts = rng, texts

    def value(self, old: Any) -> Any:
        """Draw another value, mostly of the same kind."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.08:
            return rng.choice(CONSTANTS)
        if isinstance(old, bool) and kind < 0.7:
            return not old
        if isinstance(old, int | float) and kind < 0.85:
            return self.number(old)
        if isinstance(old, str) and kind < 0.85:
            return self.text(old)
        return rng.choice((self.number(1), self.text("x"), rng.choice(CONSTANTS)))

    def number(self, old: float) -> float:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                return old + rng.choice((-1, 1, 8, -8))
            case 1:
                return -old
            case 2 if isinstance(old, int):
                return old ^ 1 << rng.randrange(40)
        return rng.choice(NUMBERS)

    def text(self, old: str) -> str:
        """Draw another text: of the vocabulary, an attack, or an expression made of this one."""
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return rng.choice(INJECTIONS)
            case 1 | 2:
                return rng.choice(self.texts)
            case 3:
                return rng.choice(_CALLS).replace("{0}", old).replace("{}", old)
            case 4:
                return f"{old} {rng.choice(_OPERATORS)} {rng.choice((*self.texts[:200], str(rng.choice(NUMBERS))))}"
            case 5:
                tokens = _TOKEN.findall(old) or [""]
                tokens[rng.randrange(len(tokens))] = rng.choice((*self.texts, *_OPERATORS, str(rng.choice(NUMBERS))))
                return " ".join(tokens)
            case 6 if old:
                place = rng.randrange(len(old))
                return old[:place] + rng.choice((chr(rng.randrange(1, 128)), "é", "")) + old[place + rng.randrange(2) :]
        return old[: rng.randrange(len(old) + 1)] if rng.random() < 0.5 else old * rng.randrange(2, 40)

    def tree_edit(self, paths: Sequence[tuple[tuple[str | int, ...], Any]]) -> Edit:
        """Draw an edit of a tree whose `places` are known."""
        rng = self.rng
        path, old = rng.choice(paths)
        match rng.randrange(12):
            case 0:
                return ["drop", path]
            case 1:
                return ["rename", path, self.text(str(path[-1]))]
            case 2 | 3:
                return ["copy", path, rng.choice(paths)[0]]
            case 4:
                return ["copy", path, self._alike(path, paths)]
            case 5 if isinstance(path[-1], int):
                return ["repeat", path, rng.choice((1, 1, 2, 30, 1000))]
            case 5 if isinstance(old, dict):
                return ["set", (*path, self.text("x")), self.value(1)]
            case 5 if isinstance(old, list):
                return ["set", (*path, len(old)), self.value(old[0] if old else "x")]
        return ["set", path, self.value(old)]

    def _alike(
        self, path: tuple[str | int, ...], paths: Sequence[tuple[tuple[str | int, ...], Any]]
    ) -> tuple[str | int, ...]:
        for _ in range(20):
            other = self.rng.choice(paths)[0]
            if other[-1] == path[-1] and other != path:
                return other
        return path

    def bytes_edit(self, size: int) -> Edit:
        """Draw an edit of bytes anywhere."""
        rng = self.rng
        start = rng.randrange(size + 1)
        match rng.randrange(8):
            case 0:
                return ["cut", start, min(size, start + rng.choice((1, 2, 8, 100, size)))]
            case 1:
                return ["insert", start, rng.randbytes(rng.choice((1, 2, 4, 64))).hex()]
            case 2:
                return ["repeat", max(0, start - rng.choice((1, 8, 64))), start, rng.choice((1, 2, 500))]
        return ["put", start, rng.randbytes(rng.choice((1, 1, 1, 4, 8))).hex()]

    def number_edit(self, offset: int, size: int, old: int, image_size: int) -> Edit:
        """Draw an edit of a little-endian number in bytes."""
        rng = self.rng
        known = (*NUMBERS[:36], image_size, image_size - 1, image_size + 1, image_size // 2, 2**64 - 1, 2**64 - 64)
        match rng.randrange(4):
            case 0:
                new = old + rng.choice((-1, 1, 4, -4, 8, 64, 4096))
            case 1:
                new = old ^ 1 << rng.randrange(8 * size)
            case _:
                new = int(rng.choice(known))
        return ["put", offset, (new % (1 << 8 * size)).to_bytes(size, "little").hex()]


def texts_of(*trees: Any) -> tuple[str, ...]:
    """Return every text in trees, keys included, each once."""
    found: dict[str, None] = {}
    for tree in trees:
        for path, value in places(tree):
            found.update((text, None) for text in (path[-1], value) if isinstance(text, str) and len(text) < 200)
    return tuple(found)
