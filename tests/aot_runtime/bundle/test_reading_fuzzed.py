"""Damaged and malicious indices give a `BundleError` or the same bundle, never anything else.

Planners are made of every accepted index: a bad expression is a `BundleError`, and nothing in an index is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from aot_runtime import BundleError
from aot_runtime.bundle.reading import bundle_id, read_index
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.index_file import Kernel, decode_index
from aot_runtime.contract.records import Index, Kernarg
from tests.support.fuzzing import fuzz
from tests.support.sample_index import sample_index

SAMPLE = encode_index(sample_index())


class Executed(BaseException):
    """Raised by `os.system`, which every injection here calls: no handler of the reader's takes it for its own."""


def read(folder: Path, data: bytes) -> Index | None:
    """Return the index with all of its planners made, or None where it was refused as it should be."""
    (folder / "bundle.json").write_bytes(data)
    with mock.patch("os.system", side_effect=Executed):
        try:
            index = read_index(folder)
            for op in index.ops:
                op_planner(index, op.name)
        except BundleError as error:
            assert str(error)
            return None
    return index


@fuzz(st.binary(max_size=300) | st.integers(0, len(SAMPLE) - 1).map(lambda length: SAMPLE[:length]))
def test_noise_and_truncated(tmp_path: Path, data: bytes):
    assert read(tmp_path, data) is None


NO_INDEX = [b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b'"' + b"x" * 100_000, b"\xff\xfe{}"]
NO_INDEX += [b"1e999", *(b'{"oldest_reader": %s}' % value for value in (b"1e999", b"9" * 20, b"true"))]
NO_INDEX += [SAMPLE + b"x", SAMPLE + SAMPLE, b"\xef\xbb\xbf" + SAMPLE, SAMPLE.decode().encode("utf-16")]
NO_INDEX += [SAMPLE.replace(b'"sample"', text) for text in (b'"\\ud800"', b'"\xff"')]


@pytest.mark.parametrize("data", NO_INDEX, ids=range(len(NO_INDEX)))
def test_what_is_no_index(tmp_path: Path, data: bytes):
    assert read(tmp_path, data) is None


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return every value in a tree by its path; the first variants stand for all."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        if path != ("variants",) or key <= 1:
            yield (*path, key), value
            yield from places(value, (*path, key))


def changed(path: tuple[Any, ...], value: Any, key: str | None = None) -> bytes:
    """Return the sample with another value or key at a place; its id fits, as a forger would make it."""
    tree = inner = json.loads(SAMPLE)
    for step in path[:-1]:
        inner = inner[step]
    if key is not None and isinstance(inner, dict):
        inner[key] = inner.pop(path[-1])
    else:
        inner[path[-1]] = value
    tree["id"] = "0" * 64
    tree["id"] = bundle_id(json.dumps(tree).encode())
    return json.dumps(tree).encode()


PLACES = dict(places(json.loads(SAMPLE)))
TEXTS = (path for path, value in PLACES.items() if isinstance(value, str) and path != ("id",))
# Of places that differ in their numbers alone, one.
TEXT_PLACES = {tuple("*" if isinstance(step, int) else step for step in path): path for path in TEXTS}.values()
RUN = "__import__('os').system('true')"
INJECTIONS = [f"x):\n import os\n {RUN}\ndef y(", "stride(x, os)", RUN, f"x.ptr, {RUN}", f"'); {RUN}; ('"]
INJECTIONS += [f'"""\n{RUN}\n"""', f"{{{RUN}}}", "open", f"x\n    {RUN}", "_rules", "__builtins__", "lambda: 0"]
INJECTIONS += [f"rows if {RUN} else 1", "[0 for x in ()]", "\\", "\0", "x" * 5000, "(" * 300, "9 ** 9 ** 9 ** 9"]
INJECTIONS += ["-" * 900 + "1", "\uff45\uff56\uff41\uff4c"]
WORDS = ("rows", "cols", "x", "T", "1", "float16", "input", "output", "*float16", "i32", ">=")
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=12) | st.sampled_from((*INJECTIONS, *WORDS))
values = st.none() | st.booleans() | numbers | texts | st.just({}) | st.lists(st.text(max_size=3), max_size=2)


@fuzz(st.sampled_from([*PLACES]), values, st.none() | texts)
def test_any_value_or_key_anywhere(tmp_path: Path, path: tuple[Any, ...], value: Any, key: str | None):
    read(tmp_path, changed(path, value, key))


MERE_WORDS = {"doc", "reference", "reason", "name", "arch", "backend"}
_WORDS_OF_KERNELS = [Kernel.__struct_fields__.index(name) for name in ("symbol", "compiler")]


def is_mere_words(path: tuple[Any, ...]) -> bool:
    """Tell whether a text may be anything: nobody reads it but people, or it is only compared."""
    if path[0] == "selftest":
        return path[-1] == "sha256" or path[-2] == "scalars"  # scalars are checked as a call's are
    if path[0] == "kernels":
        return path[2] in _WORDS_OF_KERNELS or len(path) > 3  # options
    if path[0] == "kernargs":
        return path[2] == Kernarg.__struct_fields__.index("name")
    if path[0] == "variants":
        return path[2] in (1, 6)  # a value of an axis, what limits the occupancy
    among_values = path[-2:-1] in (("values",), ("choices",))
    if {"tensors", "scalars", "axes", "derived", "workspace"} & set(path):
        return path[-1] == "doc" or among_values
    return path[-1] in MERE_WORDS or path[0] == "toolchain" or "options" in path or among_values


@pytest.mark.parametrize(
    "text",
    [*INJECTIONS[:2], *(pytest.param(text, marks=pytest.mark.slow) for text in INJECTIONS[2:])],
    ids=range(len(INJECTIONS)),
)
def test_code_in_every_text(tmp_path: Path, text: str):
    """Each text of the index in turn becomes code, and is refused unless it is mere documentation."""
    for path in TEXT_PLACES:
        assert read(tmp_path, changed(path, text)) is None or is_mere_words(path), path


def test_ordinary_changes_pass(tmp_path: Path):
    """The sweeps above would prove nothing if the reader refused everything."""
    assert read(tmp_path, SAMPLE) == decode_index(SAMPLE)
    for path, value in (
        (("ops", 0, "doc"), "Other words."),
        (("ops", 0, "launches", 0, "grid", 0), "rows * 2"),
        (("ops", 0, "dims", 0, "max"), 77),
        (("kernargs", 0, 0), "other"),
    ):
        assert read(tmp_path, changed(path, value)) is not None, path
