"""Ordering of bundle versions and version specifiers, after PEP 440 and without a dependency."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .names import is_version

_STAGES = {"a": 0, "b": 1, "rc": 2}
_PARTS = re.compile(
    r"(?P<release>[0-9.]+?)(?:(?P<stage>a|b|rc)(?P<number>[0-9]+))?(?:\.post(?P<post>[0-9]+))?"
    r"(?:\.dev(?P<dev>[0-9]+))?(?:\+.*)?\Z"
)
_FINAL = (3, 0)
_CLAUSE = re.compile(r"(?P<operator>~=|==|!=|<=|>=|<|>) *(?P<version>[^ *]*?)(?P<prefix>\.\*)?\Z")


def version_key(version: str) -> tuple[tuple[int, ...], tuple[float, int], float, float]:
    """Return the sort key of a version, which ignores a local part (`+rocm7`).

    Raises:
        ValueError: the text is not a version.
    """
    found = _PARTS.match(version) if is_version(version) else None
    if found is None:
        raise ValueError(f"'{version}' is not a version")
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    dev = math.inf if found["dev"] is None else int(found["dev"])
    post = -1 if found["post"] is None else int(found["post"])
    stage: tuple[float, int] = (_STAGES[found["stage"]], int(found["number"])) if found["stage"] else _FINAL
    if not found["stage"] and found["post"] is None and found["dev"] is not None:
        stage = (-math.inf, 0)  # 1.0.dev1 comes before 1.0a1
    return tuple(release), stage, post, dev


def local_part(version: str) -> str:
    """Return the part of a version after `+`; empty if there is none."""
    return version.partition("+")[2]


class Clause(NamedTuple):
    """A condition on a version, such as `>=1.2`. `prefix`: the version ends with `.*`."""

    operator: str
    version: str
    prefix: bool = False

    def __str__(self) -> str:
        return f"{self.operator}{self.version}{'.*' if self.prefix else ''}"

    def holds(self, version: str) -> bool:
        """Return True if `version` meets the condition."""
        match self.operator:
            case "==":
                return self._equals(version)
            case "!=":
                return not self._equals(version)
            case "~=":
                begins = _begins(version, _numbers(self.version)[:-1])
                return begins and version_key(version) >= version_key(self.version)
        key, own = version_key(version), version_key(self.version)
        match self.operator:
            case ">=":
                return key >= own
            case "<=":
                return key <= own
            case "<":  # <2.0 excludes 2.0rc1
                leads_up = key[0] == own[0] and (own[2] < 0 or key[:3] == own[:3]) and _is_early(key)
                return key < own and (_is_early(own) or not leads_up)
            case _:  # >2.0 excludes 2.0.post1
                return key > own and (key[:2] != own[:2] or key[2] < 0 or own[2:] != (-1, math.inf))

    def _equals(self, version: str) -> bool:
        if self.prefix:
            return _begins(version, _numbers(self.version))
        same = version_key(version) == version_key(self.version)
        return same and local_part(self.version) in ("", local_part(version))


def parse_clauses(text: str) -> tuple[Clause, ...]:
    """Parse conditions that must all hold, such as `>=1.2,<2`. Raises ValueError."""
    found = []
    for part in text.split(","):
        match = _CLAUSE.match(part.strip())
        if match is None:
            raise ValueError(f"invalid version specifier '{part.strip()}'; valid: '>=1.2', '==1.2', '==1.2.*', '~=1.2'")
        clause = Clause(match["operator"], match["version"], match["prefix"] is not None)
        if not is_version(clause.version):
            raise ValueError(f"'{part.strip()}': '{clause.version}' is not a version such as '1.2'")
        if clause.prefix and (clause.operator not in ("==", "!=") or not re.fullmatch(r"[0-9.]+", clause.version)):
            raise ValueError(f"'{part.strip()}': '.*' goes with '==' or '!=' and a version such as '1.2'")
        if local_part(clause.version) and clause.operator not in ("==", "!="):
            raise ValueError(f"'{part.strip()}': a local part, after '+', goes with '==' or '!=' only")
        if clause.operator == "~=" and len(_numbers(clause.version)) < 2:
            raise ValueError(f"'{part.strip()}': '~=' needs two numbers, such as '~=1.2'")
        found.append(clause)
    return tuple(found)


def meets(version: str, clauses: tuple[Clause, ...]) -> bool:
    """Return True if a bundle's version meets all conditions. Without a version, it meets none."""
    return not clauses or (is_version(version) and all(clause.holds(version) for clause in clauses))


def _numbers(version: str) -> list[int]:
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return [int(part) for part in found[0].split(".")] if found else []


def _begins(version: str, numbers: list[int]) -> bool:
    return [*_numbers(version), *[0] * len(numbers)][: len(numbers)] == numbers


def _is_early(key: tuple[tuple[int, ...], tuple[float, int], float, float]) -> bool:
    return key[1] != _FINAL or key[3] != math.inf
