"""Malformed selftest vectors are typed errors, whatever their bytes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from aot_bundle.verification import verify_bundle
from aot_runtime import BundleError
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.vector_files import deviation, read_vectors
from aot_runtime.contract.records import Blob, Case, Op
from tests.support.forging import adopt_files, rewrite_vectors, vectors_of
from tests.support.fuzzing import fuzz


def case_of(folder: Path, name: str) -> tuple[Op, Case]:
    index = read_index(folder)
    case = next(case for case in index.selftest if case.name == name)
    return next(op for op in index.ops if op.name == case.op), case


def arrays(edit: Callable[[dict[str, Any]], Any], save: Callable[..., None] = np.savez) -> Callable[[Path], None]:
    return lambda path: rewrite_vectors(path, edit, save)


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def x(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return arrays(lambda a: a.update({"inputs/x": change(a["inputs/x"])}))


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zipped(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Return a file whose input is other bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("inputs/x.npy", change(npy(np.zeros((2, 16), np.float16))))
        archive.writestr("expected/out.npy", npy(np.zeros((2, 16), np.float32)))
    return lambda path: path.write_bytes(stream.getvalue())


def shared_entries(path: Path) -> None:
    """If many entries named one stretch of a file, they would take a thousand times its size."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(100_000)))
        first = archive.filelist[0]
        for number in range(1000):
            other = zipfile.ZipInfo(f"{number}.npy")
            other.header_offset, other.CRC = first.header_offset, first.CRC
            other.compress_size = other.file_size = first.file_size
            archive.filelist.append(other)
        archive._didModify = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (content(lambda data: data[:-100]), ""),
        (content(lambda data: data[: len(data) // 2]), "File is not a zip file"),
        (content(lambda data: b""), ""),
        (shared_entries, "its entries are larger than it is"),
        (arrays(lambda a: None, np.savez_compressed), "'inputs/x.npy' is compressed"),
        (x(lambda old: np.array([{"a": 1}], dtype=object)), "'inputs/x.npy' is not an array of numbers in C order"),
        (x(np.asfortranarray), "'inputs/x.npy' is not an array"),
        (x(lambda old: old.astype(np.longdouble)), "'inputs/x.npy' is not an array"),
        (x(lambda old: old.astype("f4")), "'inputs/x.npy' is float32[2, 16]; the op takes float16 of 2 dims"),
        (x(lambda old: old[0]), "'inputs/x.npy' is float16[16]"),
        (arrays(lambda a: a.pop("inputs/x")), "it lacks 'inputs/x.npy'"),
        (arrays(lambda a: a.pop("expected/out")), "it lacks 'expected/out.npy'"),
        (arrays(lambda a: a.update(more=np.zeros(3))), "it has 'more.npy', which the case does not use"),
        (arrays(lambda a: a.update({"inputs/out": np.zeros(3)})), "it has 'inputs/out.npy'"),
        (
            zipped(lambda data: data.replace(b"(2, 16)", b"(9, 99)")),
            "'inputs/x.npy' has 64 bytes, which is not float16[",
        ),
        (zipped(lambda data: data[:50]), "not an array of numbers"),
        (zipped(lambda data: data.replace(b"<f2", b"<b8")), ""),
    ],
    ids=range(17),
)
def test_malformed_vectors_are_typed_errors(small_copy: Path, damage: Callable[[Path], None], words: str):
    path = vectors_of(small_copy, "plain")
    damage(path)
    adopt_files(small_copy)
    with pytest.raises(BundleError) as found:
        read_vectors(small_copy, *case_of(small_copy, "plain"))
    assert str(found.value).startswith(f"selftest vectors {path} (case 'plain' of affine) are malformed: ")
    assert words in str(found.value)
    assert verify_bundle(small_copy) == [str(found.value)]


def test_an_inout_keeps_its_shape(small_copy: Path):
    arrays(lambda a: a.update({"expected/state": a["expected/state"][:1]}))(vectors_of(small_copy, "ragged"))
    adopt_files(small_copy)
    with pytest.raises(BundleError, match="'state' goes in with another shape than it comes out with"):
        read_vectors(small_copy, *case_of(small_copy, "ragged"))


@fuzz(st.data())
def test_fuzzed_vectors(small_bundle: Path, tmp_path: Path, data: st.DataObject):
    """Any bytes give vectors that fit the op, or a `BundleError`."""
    op, case = case_of(small_bundle, "an_empty_one")
    content = bytearray((small_bundle / case.vectors.file).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    (tmp_path / "fuzzed.npz").write_bytes(content)
    blob = Blob("fuzzed.npz", len(content), hashlib.sha256(content).hexdigest())
    try:
        vectors = read_vectors(tmp_path, op, msgspec.structs.replace(case, vectors=blob))
    except BundleError as error:
        assert "malformed" in str(error)
    else:
        assert vectors.inputs["starts"].dtype == np.int32 and vectors.inputs["x"].ndim == 2


def test_deviation():
    values = np.array([1.0, np.nan, np.nan, np.inf, np.inf, -np.inf, 0.0])
    expected = np.array([1.5, np.nan, 0.0, np.inf, 0.0, np.inf, np.nan])
    np.testing.assert_array_equal(deviation(values, expected), [0.5, 0, np.inf, 0, np.inf, np.inf, np.inf])
