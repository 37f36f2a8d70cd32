"""YAML with positions: plain data, and where in the file each part of it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

Key = str | int


class ManifestError(Exception):
    """A manifest (or a tuning file) is wrong. Each message starts with file:line:column.

    Attributes:
        messages: every fault that was found, in file order where known.
    """

    def __init__(self, messages: Iterable[str]):
        self.messages = tuple(messages)
        super().__init__("\n".join(self.messages))


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: `data` is plain dicts, lists and scalars; `locate` finds a path of keys in the text."""

    path: Path
    data: Any
    positions: dict[tuple[Key, ...], tuple[int, int]] = field(repr=False)

    def locate(self, path: Iterable[Key]) -> str:
        """`file:line:column` of the deepest part of `path` that the file has."""
        keys = tuple(path)
        while keys and keys not in self.positions:
            keys = keys[:-1]
        line, column = self.positions.get(keys, (1, 1))
        return f"{self.path}:{line}:{column}"

    def error(self, path: Iterable[Key], message: str) -> ManifestError:
        """A `ManifestError` about one part of the file."""
        return ManifestError([f"{self.locate(path)}: {message}"])


def read_yaml(path: Path) -> YamlFile:
    """Parse a YAML 1.2 file. Raises `ManifestError` (unreadable, not YAML, duplicate key)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ManifestError([f"{path}: cannot be read: {reason}"]) from None
    try:
        node = YAML(typ="rt", pure=True).load(text)
    except DuplicateKeyError as error:
        raise ManifestError([f"{_mark(path, error)}: {str(error.problem).splitlines()[0]}"]) from None
    except MarkedYAMLError as error:
        raise ManifestError([f"{_mark(path, error)}: not valid YAML: {error.problem}"]) from None
    except (YAMLError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise ManifestError([f"{path}: not valid YAML: {reason}"]) from None
    positions: dict[tuple[Key, ...], tuple[int, int]] = {}
    try:
        return YamlFile(path, _plain(path, node, (), positions), positions)
    except RecursionError:
        raise ManifestError([f"{path}: an alias stands for something that contains it"]) from None


def _mark(path: Path, error: MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)


def _plain(file: Path, node: Any, path: tuple[Key, ...], positions: dict[tuple[Key, ...], tuple[int, int]]) -> Any:
    if isinstance(node, CommentedMap):
        for key in node:
            # A key that `<<` merges in has no place of its own: it is where the mapping is.
            line, column, *_ = (node.lc.data or {}).get(key, (node.lc.line, node.lc.col))
            positions[(*path, key)] = (line + 1, column + 1)
            if not isinstance(key, str):
                raise ManifestError([f"{file}:{line + 1}:{column + 1}: a key must be text (given: {key!r})"])
        # What is merged in comes first, as `<<` does: the order of tensors is that of positional arguments.
        order = dict.fromkeys(key for merged in node.merge for key in merged) | dict.fromkeys(node)
        return {key: _plain(file, node[key], (*path, key), positions) for key in order}
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            line, column = node.lc.item(index)
            positions[(*path, index)] = (line + 1, column + 1)
        return [_plain(file, value, (*path, index), positions) for index, value in enumerate(node)]
    if isinstance(node, ScalarBoolean):  # a kind of int, where the boolean has an anchor
        return bool(node)
    for plain in (bool, int, float, str):  # ruamel's scalars are subclasses that remember their spelling
        if isinstance(node, plain):
            return plain(node)
    return node
