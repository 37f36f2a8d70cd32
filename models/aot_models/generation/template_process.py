"""Render chat templates in a separate process, with limits of time and memory.

A template is an untrusted program: Jinja's sandbox keeps it from files, but not from endless loops. `Renderer` starts
the process and sends it a template, then the variables of each chat, as lines of JSON. `serve` runs in the process and
answers each line. A system timer kills a template that takes too long, and allocations beyond the limit fail.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

SECONDS = 2.0
"""CPU time for a chat."""
MEMORY = 256 << 20
"""The largest allocation of a template, in bytes."""
LONGEST = 16 << 20
"""Maximum length of a rendered chat, in characters."""
ENDED = f"its process ended: it may take {MEMORY >> 20} MiB, and be nested as deeply as Python reads"


class RenderingError(ValueError):
    """A template failed or exceeded its limits."""


class Renderer:
    """A compiled template in a process that ends with this object.

    seconds: CPU time for a chat.

    Raises:
        RenderingError: the template is not valid Jinja, or exceeds its limits.
    """

    def __init__(self, source: str, seconds: float = SECONDS):
        self._seconds = seconds
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process)
        self._ask(source)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render a chat.

        variables: the template's variables, of JSON's types.

        Raises:
            RenderingError: the template failed or exceeded its limits.
        """
        return self._ask(variables)

    def _ask(self, message: object) -> str:
        process = self._process
        assert process.stdin and process.stdout
        line = json.dumps(message).encode() + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it ended before it read all
            answer = b""
        if not answer.endswith(b"\n"):
            late = process.wait() == -signal.SIGPROF
            raise RenderingError(f"it takes more than {self._seconds:g} s" if late else ENDED)
        text, error = json.loads(answer)
        if error:
            raise RenderingError(error)
        return text


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # of what was written and never read
            if stream:
                stream.close()


def serve(questions: IO[bytes], answers: IO[bytes], seconds: float) -> None:
    """Compile the template of the first line, and render it with the variables of each further line."""
    from jinja2 import TemplateSyntaxError

    environment, template = _environment(), None
    _limit_memory()
    for line in questions:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        text, error = "", ""
        try:
            if template is None:
                template = environment.from_string(json.loads(line))
            else:
                text = template.render(json.loads(line))
            if len(text) > LONGEST:
                text, error = "", f"its text has more than {LONGEST} characters"
        except TemplateSyntaxError as failure:
            error = f"line {failure.lineno}: {failure.message}"
        except MemoryError:
            error = f"it takes more than {MEMORY >> 20} MiB"
        except RecursionError:
            error = "it calls itself without end, or is nested too deeply"
        except Exception as failure:  # a template may raise whatever its functions do
            error = str(failure)[:LONGEST] or type(failure).__name__
        answers.write(json.dumps([text, error]).encode() + b"\n")
        answers.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
        if template is None:
            return


def _limit_memory() -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag `{% generation %}`, which marks the model's text for training. It has no effect here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda text: datetime.now().strftime(text)}
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Format JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
