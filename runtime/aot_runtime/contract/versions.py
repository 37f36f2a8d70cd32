"""The order of bundles' versions, which is that of Python packages (PEP 440). No package is needed for it."""

from __future__ import annotations

import math
import re

from .names import MAX_VERSION, VERSION

_STAGES = {"a": 0, "b": 1, "rc": 2}
_PARTS = re.compile(
    r"(?P<release>[0-9.]+?)(?:(?P<stage>a|b|rc)(?P<number>[0-9]+))?(?:\.post(?P<post>[0-9]+))?"
    r"(?:\.dev(?P<dev>[0-9]+))?(?:\+.*)?\Z"
)
_FINAL = (3, 0)


def is_version(text: str) -> bool:
    """Whether a bundle may have that version."""
    return len(text) <= MAX_VERSION and re.fullmatch(VERSION, text) is not None


def version_key(version: str) -> tuple[tuple[int, ...], tuple[float, int], float, float]:
    """What versions are compared by; a local part (`+rocm7`) makes no difference. Raises ValueError for no version."""
    found = _PARTS.match(version) if is_version(version) else None
    if found is None:
        raise ValueError(f"'{version}' is no version")
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    dev = math.inf if found["dev"] is None else int(found["dev"])
    post = -1 if found["post"] is None else int(found["post"])
    stage: tuple[float, int] = (_STAGES[found["stage"]], int(found["number"])) if found["stage"] else _FINAL
    if not found["stage"] and found["post"] is None and found["dev"] is not None:
        stage = (-math.inf, 0)  # 1.0.dev1 comes before 1.0a1
    return tuple(release), stage, post, dev
