"""The reader of indices against damage and malice: a `BundleError` or the same bundle, never anything else.

What passes the reader also makes its planners: from there on a bad expression is a `BundleError`, and nothing that an
index says is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from aot_runtime import BundleError
from aot_runtime.bundle.reading import bundle_id, read_index
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Index, decode_index, encode_index
from tests.support.fuzzing import fuzz
from tests.support.sample_index import sample_index

SAMPLE = encode_index(sample_index())
TREE = json.loads(SAMPLE)


class Executed(BaseException):
    """Raised by whatever an index must never reach; no handler of the reader's takes it for one of its errors."""


@contextmanager
def nothing_is_executed() -> Iterator[None]:
    """Fail when text of the index is run: every injection here ends in a call of `os.system`."""

    def refuse(*arguments: Any, **_: Any) -> Any:
        raise Executed(arguments)

    original, os.system = os.system, refuse
    try:
        yield
    finally:
        os.system = original


def read(folder: Path, data: bytes) -> Index | None:
    """The index with all of its planners made; None where it was refused as it should be."""
    (folder / "bundle.json").write_bytes(data)
    with nothing_is_executed():
        try:
            index = read_index(folder)
            for op in index.ops:
                op_planner(index, op.name)
        except BundleError as error:
            assert str(error)
            return None
    return index


def with_id(tree: Any) -> bytes:
    """JSON of a changed index, its id made to fit as a forger would, so that the checks behind the id count."""
    tree["id"] = "0" * 64
    tree["id"] = bundle_id(json.dumps(tree).encode())
    return json.dumps(tree).encode()


def test_the_sample_is_read(tmp_path: Path):
    assert read(tmp_path, SAMPLE) == decode_index(SAMPLE)
    assert read(tmp_path, with_id(json.loads(SAMPLE))) is not None


# Damage.


@fuzz(st.integers(0, len(SAMPLE) - 1))
def test_truncated(tmp_path: Path, length: int):
    assert read(tmp_path, SAMPLE[:length]) is None


@fuzz(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_flipped_bits(tmp_path: Path, flips: list[tuple[int, int]]):
    data = bytearray(SAMPLE)
    for at, mask in flips:
        data[at] ^= mask
    found = read(tmp_path, bytes(data))
    assert found is None or found == decode_index(SAMPLE)  # flips may undo each other


@fuzz(st.binary(max_size=300))
def test_noise(tmp_path: Path, data: bytes):
    assert read(tmp_path, data) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b'"' + b"x" * 100_000, b"\xff\xfe{}", b"1e999",
     b'{"oldest_reader": 1e999}', b'{"oldest_reader": 99999999999999999999999}', b'{"oldest_reader": true}',
     SAMPLE + b"x", SAMPLE + SAMPLE, b"\xef\xbb\xbf" + SAMPLE, SAMPLE.replace(b'"sample"', b'"\\ud800"'),
     SAMPLE.replace(b'"sample"', b'"\xff"'), SAMPLE.decode().encode("utf-16")],
    ids=range(18),
)  # fmt: skip
def test_what_is_no_index(tmp_path: Path, data: bytes):
    assert read(tmp_path, data) is None


# Forgery: any value anywhere, with the id that then fits.


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree, a few variants standing for all."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        if path == ("variants",) and key % 11:
            continue
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(path: tuple[Any, ...], value: Any, key: str | None = None) -> bytes:
    tree = json.loads(SAMPLE)
    inner = tree
    for step in path[:-1]:
        inner = inner[step]
    if key is not None and isinstance(inner, dict):
        inner[key] = inner.pop(path[-1])
    else:
        inner[path[-1]] = value
    return with_id(tree)


PLACES = list(places(TREE))
INJECTIONS = (
    "x):\n import os\n os.system('true')\ndef y(",
    "__import__('os').system('true')",
    "x.ptr, __import__('os').system('true')",
    "'); __import__('os').system('true'); ('",
    '"""\n__import__("os").system("true")\n"""',
    "{__import__('os').system('true')}",
    "open",
    "x\n    import os; os.system('true')",
    "_rules",
    "__builtins__",
    "rows if __import__('os').system('true') else 1",
    "stride(x, os)",
    "[0 for x in ()]",
    "lambda: 0",
    "\\",
    "\0",
    "x" * 5000,
    "(" * 300,
    "9 ** 9 ** 9 ** 9",
    "-" * 900 + "1",
    "\uff45\uff56\uff41\uff4c",
)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12), st.sampled_from(INJECTIONS), st.just([]), st.just({}), st.lists(st.text(max_size=3),
    max_size=2),
    st.sampled_from(["rows", "cols", "x", "T", "1", "float16", "input", "output", "*float16", "i32", ">="]),
)  # fmt: skip


@fuzz(st.sampled_from(PLACES), values)
def test_any_value_anywhere(tmp_path: Path, path: tuple[Any, ...], value: Any):
    read(tmp_path, changed(path, value))


@fuzz(
    st.sampled_from([path for path in PLACES if isinstance(path[-1], str)]),
    st.sampled_from(INJECTIONS) | st.text(max_size=8),
)
def test_any_key_anywhere(tmp_path: Path, path: tuple[Any, ...], key: str):
    read(tmp_path, changed(path, None, key))


TEXT_PLACES = [path for path in PLACES if isinstance(eval("t" + "".join(f"[{p!r}]" for p in path), {"t": TREE}), str)]


@pytest.mark.parametrize(
    "text",
    [INJECTIONS[0], "stride(x, os)", *(pytest.param(text, marks=pytest.mark.slow) for text in INJECTIONS[1:])],
    ids=range(len(INJECTIONS) + 1),
)
def test_code_in_every_text(tmp_path: Path, text: str):
    """Each text of the index in turn becomes code: whatever is not mere documentation is refused."""
    for path in TEXT_PLACES:
        if path[0] == "id":
            continue
        found = read(tmp_path, changed(path, text))
        mere_words = (
            path[-1]
            in ("doc", "reference", "reason", "compiler", "name", "symbol", "arch", "backend", "occupancy_limit")
            or path[0] == "toolchain"
            or "options" in path
            or path[-2:-1] in (("axis_values",), ("values",), ("choices",))
            or path[-1] == "sha256"
        )
        if "tensors" in path or "scalars" in path or "axes" in path or "derived" in path or "workspace" in path:
            mere_words = path[-1] == "doc" or path[-2:-1] in (("values",), ("choices",))
        if path[0] == "selftest":
            mere_words = path[-1] == "sha256" or path[-2] == "scalars"  # scalars are checked as a call's are
        assert found is None or mere_words, path


def test_an_index_may_be_opened_under_the_names_of_its_own(tmp_path: Path):
    """The sweep above would prove nothing if the reader refused everything: ordinary changes pass."""
    for path, value in (
        (("ops", 0, "doc"), "Other words."),
        (("ops", 0, "launches", 0, "grid", 0), "rows * 2"),
        (("ops", 0, "dims", 0, "max"), 77),
        (("variants", 0, "kernargs", 0, "name"), "other"),
    ):
        assert read(tmp_path, changed(path, value)) is not None, path
