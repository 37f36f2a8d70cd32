"""YAML as plain data, with the position of each part in the file."""

from __future__ import annotations

import errno
import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from aot_runtime.regular_files import read_regular
from aot_runtime.texts import escaped

Key = str | int
Positions = Mapping[tuple[Key, ...], tuple[int, int]]
"""(line, column) of each key and each member of a list, by its path."""

MAX_BYTES = 1 << 20
"""Maximum size of a file."""
MAX_DEPTH = 100
"""Maximum nesting of mappings and lists."""
MAX_VALUES = 100_000
"""Maximum number of values of a file, with those of an alias counted at each use."""
MAX_DIGITS = 100
"""Maximum number of characters of an integer."""


class ManifestError(Exception):
    """A manifest (or a tuning file) is wrong. Each message starts with file:line:column.

    Attributes:
        messages: all faults, in file order if known.
    """

    def __init__(self, messages: Iterable[str]):
        self.messages = tuple(messages)
        super().__init__("\n".join(map(escaped, self.messages)))


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: `data` is plain dicts, lists and scalars; `locate` finds a path of keys in the text."""

    path: Path
    data: Any
    positions: Positions = field(repr=False)
    sha256: str

    def locate(self, path: Iterable[Key]) -> str:
        """`file:line:column` of the deepest part of `path` that the file has."""
        keys = tuple(path)
        while keys and keys not in self.positions:
            keys = keys[:-1]
        line, column = self.positions.get(keys, (1, 1))
        return f"{self.path}:{line}:{column}"

    def error(self, path: Iterable[Key], message: str) -> ManifestError:
        """Return a `ManifestError` about one part of the file."""
        return ManifestError([f"{self.locate(path)}: {message}"])


def read_yaml(path: Path) -> YamlFile:
    """Parse a YAML 1.2 file. Raises `ManifestError` (unreadable, not YAML, duplicate key)."""
    try:
        content = _content(path)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ManifestError([f"{path}: cannot be read: {reason}"]) from None
    return YamlFile(path, *_parsed(path, text), hashlib.sha256(content).hexdigest())


@lru_cache(maxsize=128)  # manifests include each other, and share tuning files
def _parsed(path: Path, text: str) -> tuple[Any, Positions]:
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    try:
        with warnings.catch_warnings(action="error", category=ReusedAnchorWarning):
            node = yaml.compose(text)
    except ReusedAnchorWarning as error:
        name, (first, second) = str(error).split("'")[1], re.findall(r"line (\d+), column \d+", str(error))
        raise ManifestError([f"{path}:{second}: duplicate anchor '{name}'; the first is in line {first}"]) from None
    except MarkedYAMLError as error:
        deep = "depth" in str(error.problem)
        reason = f"nested more than {MAX_DEPTH} deep" if deep else f"not valid YAML: {error.problem}"
        raise ManifestError([f"{_mark(path, error)}: {reason}"]) from None
    except (YAMLError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise ManifestError([f"{path}: not valid YAML: {reason}"]) from None
    plain = _Plain(path)
    return plain.value(node, ()) if node else None, plain.positions


def _content(path: Path) -> bytes:
    """Read a regular file. Raises OSError, also for pipes and devices."""
    content = read_regular(path, MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES} bytes")
    return content


def _mark(path: Path, error: MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)


class _Plain:
    """Converter of a parsed document to plain data.

    Attributes:
        positions: (line, column) of each key and each member of a list, by its path.
    """

    def __init__(self, file: Path):
        self.file = file
        self.positions: dict[tuple[Key, ...], tuple[int, int]] = {}
        self._count = 0
        self._open: set[int] = set()
        self._members: dict[int, dict[str, _Member]] = {}

    def value(self, node: Node, path: tuple[Key, ...]) -> Any:
        """Return the value of a node at a path of keys. Raises `ManifestError`."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(node, f"with its aliases expanded, this file has more than {MAX_VALUES} values")
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        with self._within(node):
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            self._check_tag(node, "seq")
            for index, item in enumerate(node.value):
                self.positions[(*path, index)] = _position(item)
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: MappingNode, path: tuple[Key, ...]) -> dict[str, Any]:
        members = self._members_of(node)
        for key, member in members.items():
            # A key merged by `<<` has the position of the mapping.
            self.positions[(*path, key)] = _position(node if member.merged else member.key)
        return {key: self.value(member.value, (*path, key)) for key, member in members.items()}

    def _members_of(self, node: MappingNode) -> dict[str, _Member]:
        """Return the members of a mapping, merged ones first. The order of tensors is that of positional arguments."""
        if id(node) not in self._members:
            self._check_tag(node, "map")
            own: dict[str, _Member] = {}
            merged: dict[str, _Member] = {}
            for key, value in node.value:
                name = "<<" if key.tag == _TAG + "merge" else self._key(key)
                if name in own or (name == "<<" and merged):
                    raise self._error(key, f"duplicate key {_short(name)}")
                if key.tag == _TAG + "merge":
                    merged = self._merged(value)
                else:
                    own[name] = _Member(key, value, False)
            self._members[id(node)] = {name: own.get(name) or merged[name] for name in merged | own}
        return self._members[id(node)]

    def _merged(self, node: Node) -> dict[str, _Member]:
        """Return the members that `<<` merges from one or more mappings, of which earlier ones take precedence."""
        with self._within(node):
            if isinstance(node, MappingNode):
                return {name: member._replace(merged=True) for name, member in self._members_of(node).items()}
            if not isinstance(node, SequenceNode):
                raise self._error(node, "`<<` takes a mapping, or a list of mappings")
            found: dict[str, _Member] = {}
            for item in node.value:
                found = {**found, **self._merged(item), **found}
            return found

    def _key(self, node: Node) -> str:
        key = self._scalar(node) if isinstance(node, ScalarNode) else None
        if isinstance(key, str):
            return key
        given = "a list" if isinstance(node, SequenceNode) else "a mapping" if isinstance(node, MappingNode) else key
        raise self._error(node, f"a key must be text (given: {given})")

    def _scalar(self, node: ScalarNode) -> Any:
        kind, text = str(node.tag).removeprefix(_TAG), node.value
        if kind not in _SCALARS:
            raise self._unknown_tag(node)
        try:
            value = _SCALARS[kind](text)
        except (ValueError, KeyError):
            raise self._error(node, f"{_short(text)} does not match its tag") from None
        if isinstance(value, int) and value.bit_length() > 64:
            raise self._error(node, f"{_short(text)} is a number of more than 64 bits")
        if isinstance(value, str) and (found := _UNPRINTABLE.search(value)):
            raise self._error(node, f"text with the character U+{ord(found[0]):04X}")
        return value

    def _check_tag(self, node: Node, kind: str) -> None:
        if node.tag != _TAG + kind:
            raise self._unknown_tag(node)

    @contextmanager
    def _within(self, node: Node) -> Iterator[None]:
        if id(node) in self._open:
            raise self._error(node, "an alias refers to a value that contains it")
        self._open.add(id(node))
        yield
        self._open.remove(id(node))

    def _unknown_tag(self, node: Node) -> ManifestError:
        return self._error(node, f"the tag {_short(str(node.tag))} is not supported here")

    def _error(self, node: Node, message: str) -> ManifestError:
        line, column = _position(node)
        return ManifestError([f"{self.file}:{line}:{column}: {message}"])


class _Member(NamedTuple):
    """A key of a mapping and its value, and a flag for keys merged by `<<`."""

    key: Node
    value: Node
    merged: bool


_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits.lstrip("+-")[:2], 10)
    if len(digits) > MAX_DIGITS:
        return 1 << 65  # whatever it is
    return int(digits, base)


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _integer,
    "float": _float,
    **dict.fromkeys(("str", "timestamp", "value"), str),
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]}…")


def _position(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
