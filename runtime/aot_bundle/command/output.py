"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from .failures import Failure


def write_whole(output: Path, text: str) -> None:
    """All of a text, or nothing where it cannot be written. Raises `Failure`."""
    from aot_bundle.packing import write_aside

    try:
        write_aside(output, [text.encode()])
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror}") from None
