"""Run chat templates that may be any Jinja program. The result is a text or `ChatError`, within limits of time and
memory.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from aot_models.generation.chat import ChatError, ChatTemplate

SECONDS = 0.3
"""Time of the processor for a template here."""
_VALUES = (
    "messages",
    "messages[0].content",
    "bos_token",
    "1",
    "'a'",
    "9**9**9",
    "'a' * 10**10",
    "[0] * 10**9",
    "range(99999)",
    "range(10**9)",
    "lipsum(n=10**6)",
    "x",
    "{}",
    "''.__class__",
    "cycler",
    "namespace(a=1)",
    "m(1)",
    "tools",
    "'%999999999d' % 1",
    "'{:>999999999}'.format(1)",
    "1 // 0",
    "none.x.y",
    "self",
    "loop",
    "caller()",
    "dict(a=[])",
)
_FILTERS = (
    "length",
    "tojson",
    "tojson(indent=10**9)",
    "center(10**10)",
    "indent(10**9)",
    "join('a' * 10**6)",
    "list",
    "upper",
    "batch(1, 'x')",
    "slice(10**9)",
    "replace('', 'aaaaaaaa')",
    "sort",
    "map('upper')",
    "wordwrap(1)",
    "format(1)",
    "int",
    "string",
    "reverse",
    "urlize",
    "attr('__class__')",
    "sum",
    "pprint",
    "groupby('role')",
    "safe",
)
_LOOP = "{{% for i in range(99999) %}}"
_PIECES = (
    "{{% for i in {0} %}}{1}{{% endfor %}}",
    _LOOP * 2 + "{1}" + "{{% endfor %}}" * 2,
    "{{% set x = {0} %}}",
    "{{% set x = [x, x] %}}",
    "{{% if {0} %}}{1}{{% else %}}{1}{{% endif %}}",
    "{{{{ {0} }}}}",
    "{{% macro m(a) %}}{1}{{{{ m(a) }}}}{{% endmacro %}}",
    "{{% generation %}}{1}{{% endgeneration %}}",
    "{{% break %}}",
    "{{{{ raise_exception({0}) }}}}",
    "{{{{ strftime_now({0}) }}}}",
    "{{% include 'x' %}}",
    "{{% extends 'x' %}}",
    "{{% for %}}",
    "{{% set ns = namespace(v='a') %}}" + _LOOP + "{{% set ns.v = ns.v ~ ns.v %}}{{% endfor %}}{{{{ ns.v }}}}",
    "{{% call m(1) %}}{1}{{% endcall %}}",
    "{{% filter upper %}}{1}{{% endfilter %}}",
    "{{% raw %}}{1}{{% endraw %}}",
    "text {1}",
)


@dataclass(frozen=True)
class TemplateInput:
    """A template. edits: none; a template is kept as it is."""

    source: str
    edits: tuple[()] = ()


class Templates:
    """Handles templates, one after the other, each in its own process."""

    def __init__(self, folder: Path, seed: int):
        self.readable, self.seed = folder, seed

    def warm_up(self) -> None:
        given = TemplateInput("{{ bos_token }}{{ messages[0].role }}")
        assert self.handle(given, self.prepare(given)) == "taken"

    def draw(self, number: int) -> TemplateInput:
        """Draw the input of a number."""
        rng = random.Random(f"templates:{self.seed}:{number}")
        if rng.random() < 0.02:
            opening, closing = rng.choice((("{{ (", ""), ("{{ [", ""), ("{% if 1 %}", "{% endif %}"), ("{{ -", "")))
            count = rng.choice((50, 1000, 100_000))
            return TemplateInput(opening * count + closing * count)
        return TemplateInput("".join(_piece(rng, 3) for _ in range(rng.randrange(1, 4))))

    def prepare(self, given: TemplateInput) -> str | None:
        """Start the process and ask it, which `handle` may not do; returns the error."""
        try:
            template = ChatTemplate(given.source, {"bos_token": "<s>"}, seconds=SECONDS)
            template.render([{"role": "user", "content": "Hi"}])
        except ChatError as error:
            return str(error)
        return None

    def handle(self, given: TemplateInput, prepared: str | None) -> str:
        """Return the outcome of an input."""
        if prepared is None:
            return "taken"
        assert prepared, "an error without words"
        for limit in ("takes more than 0.3 s", "MiB", "its process ended", "characters", "without end"):
            if limit in prepared:
                return f"refused: {limit}"
        return "refused by Jinja"

    def undo(self, given: TemplateInput, prepared: str | None) -> None:
        """Do nothing: the process ended with its template."""


def _piece(rng: random.Random, depth: int) -> str:
    value = rng.choice(_VALUES)
    for _ in range(rng.choice((0, 0, 1, 2))):
        value = f"({value}) | {rng.choice(_FILTERS)}"
    return rng.choice(_PIECES).format(value, _piece(rng, depth - 1) if depth else "")
