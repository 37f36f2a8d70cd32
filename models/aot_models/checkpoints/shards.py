"""The tensors of a folder's safetensors files, memory-mapped: each tensor is a view of its file.

The library `safetensors` validates each file. It would copy the tensors, and has no float8 for numpy. So the offsets
of the tensors are read here, from the JSON header.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from aot_models.checkpoints.linear import Wanted
from aot_models.checkpoints.values import CheckpointError, check_regular, joined, read_json, said

Array = np.ndarray
INDEX = "model.safetensors.index.json"
MAX_INDEX = 1 << 26
"""Maximum size of an index, in bytes."""

DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    **{f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""The numpy dtype of each name in safetensors."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """A tensor in a mapped file. dtype: its name in safetensors."""

    file: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def array(self) -> Array:
        """A read-only view of the file; the operating system is asked to read it ahead."""
        if hasattr(self.file, "madvise") and self.nbytes:
            before = self.start % mmap.PAGESIZE
            self.file.madvise(mmap.MADV_WILLNEED, self.start - before, self.nbytes + before)
        return np.frombuffer(self.file, DTYPES[self.dtype], math.prod(self.shape), self.start).reshape(self.shape)


@dataclass(frozen=True)
class Held:
    """A tensor in memory, with the attributes of `Stored`."""

    tensor: Array

    @property
    def dtype(self) -> str:
        return NAMES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def array(self) -> Array:
        return self.tensor


def read_shards(folder: Path) -> dict[str, Stored]:
    """The tensors of a folder, by name. Reads the files that the index lists, or all files if there is no index.

    Raises:
        CheckpointError: files are missing or damaged, or lack tensors of the index. The error lists all of them.
    """
    found: dict[str, Stored] = {}
    faults: list[str] = []
    placed = _index(folder)
    for path in _files(folder, placed):
        try:
            found |= read_file(path)
        except CheckpointError as error:
            faults.append(str(error))
    if not faults:
        missing = {name: file for name, file in placed.items() if name not in found}
        faults = [f"{folder / file}: there is no tensor '{said(name)}'" for name, file in missing.items()]
    if faults:
        raise CheckpointError(joined(faults))
    return found


def read_file(path: Path) -> dict[str, Stored]:
    """The tensors of one file, by name. Raises `CheckpointError` if the file is missing or damaged."""
    try:
        check_regular(path, path.stat())
        with safe_open(path, "np"):
            pass  # opening validates the header: the file's length, tensors that overlap
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return dict(_tensors(mapped))
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def faults_of(wanted: Mapping[str, Wanted], stored: Mapping[str, Stored | Held]) -> list[str]:
    """Describe each tensor that is missing or has another shape or dtype."""
    return [fault for name, found in wanted.items() if (fault := _fault(name, found, stored.get(name)))]


def _fault(name: str, wanted: Wanted, stored: Stored | Held | None) -> str:
    if stored is None:
        return f"there is no tensor '{name}'"
    fault = wanted.fault(stored.shape, DTYPES[stored.dtype].name if stored.dtype in DTYPES else stored.dtype)
    return f"tensor '{name}' {fault}" if fault else ""


def _tensors(mapped: mmap.mmap) -> Iterator[tuple[str, Stored]]:
    data = 8 + int.from_bytes(mapped[:8], "little")
    for name, entry in json.loads(mapped[8:data]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, Stored(mapped, entry["dtype"], tuple(entry["shape"]), data + begin, end - begin)


def _index(folder: Path) -> Mapping[str, str]:
    path = folder / INDEX
    if not os.path.lexists(path):
        return {}
    placed = read_json(path, MAX_INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        raise CheckpointError(f"{path}: there is no 'weight_map' of tensors' files")
    if outside := sorted({file for file in placed.values() if Path(file).name != file}):
        raise CheckpointError(f"{path}: {', '.join(map(said, outside))}: files of the folder itself are allowed")
    return placed


def _files(folder: Path, placed: Mapping[str, str]) -> Iterable[Path]:
    if placed:
        return [folder / name for name in sorted(set(placed.values()))]
    files = [path for path in [folder / "model.safetensors"] if path.is_file()] or sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: there is no .safetensors file")
    return files
