"""Check which optional features are installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*([^;]*?)\s*;.*\bextra\s*==\s*['\"](\w+)['\"]")
_CLAUSE = re.compile(r"\(?\s*(==|>=)\s*([\w.+-]+)")


@dataclass(frozen=True)
class Requirement:
    """A package that an extra needs: its version bounds in pip's syntax, and its installed version, or None."""

    package: str
    bounds: str
    found: str | None

    @property
    def is_met(self) -> bool:
        return self.found is not None and all(
            self.found == version if operator == "==" else _numbers(self.found) >= _numbers(version)
            for operator, version in _CLAUSE.findall(self.bounds)
        )

    def __str__(self) -> str:
        if self.is_met:
            return f"{self.package} {self.found}"
        return f"{self.package}{self.bounds} ({f'{self.found} is' if self.found else 'not'} installed)"


def requirements(distribution: str, extra: str) -> list[Requirement]:
    """Return the packages of a distribution's extra. Raises `PackageNotFoundError` if it is not installed."""
    found = map(_REQUIREMENT.match, metadata.requires(distribution) or ())
    return [Requirement(m[1], m[2], _version(m[1])) for m in found if m and m[3] == extra and m[1] != distribution]


def extra_lines(part: str, distribution: str, extra: str) -> Iterator[str]:
    """Yield a line on whether a feature can be used, or what it lacks."""
    try:
        needed = requirements(distribution, extra)
    except metadata.PackageNotFoundError:
        yield f"{part}: unknown, because {distribution} is not installed as a package"
        return
    missing = [item for item in needed if not item.is_met]
    if missing:
        yield f"{part}: needs {', '.join(map(str, missing))}: pip install '{distribution}[{extra}]'"
    else:
        yield f"{part}: ready, with {', '.join(map(str, needed))}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
