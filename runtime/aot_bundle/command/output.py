"""Write output files of commands."""

from __future__ import annotations

from pathlib import Path

from .failures import Failure


def write_whole(output: Path, text: str) -> None:
    """Write a text to a file atomically. Raises `Failure`."""
    from aot_bundle.packing import write_aside

    try:
        write_aside(output, [text.encode()])
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror}") from None
