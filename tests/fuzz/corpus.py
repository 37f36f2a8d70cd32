"""The inputs that failed once, as small as they still failed, and one of each outcome: files of JSON, tried again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


def smaller(given: Any, fails: Callable[[Any], bool]) -> Any:
    """An input with as few of its `edits` as make it fail."""
    edits: Sequence[Any] = given.edits
    at = 0
    while at < len(edits):
        fewer = (*edits[:at], *edits[at + 1 :])
        if fails(replace(given, edits=fewer)):
            edits = fewer
        else:
            at += 1
    return replace(given, edits=tuple(edits))


def keep(folder: Path, name: str, given: Any, fault: str) -> Path:
    """Write an input to a file; `fault` says why it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{''.join(letter if letter.isalnum() else '_' for letter in name).strip('_')[:80]}.json"
    path.write_text(json.dumps({"fault": fault.strip().rpartition("\n")[2][:300], **asdict(given)}, indent=1) + "\n")
    return path


def kept(folder: Path, kind: type[Any]) -> list[tuple[str, Any]]:
    """(file name, input) of each file of a folder."""
    found = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        del data["fault"]
        data["edits"] = tuple(data["edits"])
        found.append((path.name, kind(**data)))
    return found
