"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from .failures import Failure


def write_whole(output: Path, text: str) -> None:
    """All of a text, or nothing where it cannot be written. Raises `Failure`."""
    aside = output.with_name(f".{output.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(output)
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)
