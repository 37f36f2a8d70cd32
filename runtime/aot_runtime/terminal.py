"""Write to standard output and standard error. The emulator and both commands print through this module.

Output may contain untrusted text: from a bundle, a file name, a compiler or a server. Each line is escaped as a whole,
so text cannot start another line or control the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice

from aot_runtime.texts import escaped

_AT_ONCE = 1000
"""Pieces of text per write."""
_ERASE = "\r\x1b[K"


def write_lines(lines: Iterable[str], err: bool = False) -> None:
    """Write lines to standard output or standard error, as they are produced."""
    write_pieces((f"{escaped(line)}\n" for line in lines), err)


def write_status(text: str) -> None:
    """Overwrite the last line of the terminal on standard error. An empty text erases it."""
    write_pieces([_ERASE, escaped(text)], True)


def write_pieces(pieces: Iterable[str], err: bool) -> None:
    """Write pieces of escaped text. Characters that the stream cannot encode are escaped, too."""
    stream, rest = sys.stderr if err else sys.stdout, iter(pieces)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    while some := "".join(islice(rest, _AT_ONCE)):
        stream.write(some.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
