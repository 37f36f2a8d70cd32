"""A checkpoint's folder: config.json and safetensors, in one file or several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from checkpoints.formats import format_of, stored_shapes
from checkpoints.linear import Linear, LinearShape
from checkpoints.values import CheckpointError, Values, read_json

Array = np.ndarray


class Checkpoint:
    """A folder of a published checkpoint. Tensors are read when they are asked for.

    Raises `CheckpointError`: a file that is not there or is broken, a format of weights that is not supported.

    Attributes:
        values: config.json.
        format: how the weights of linear layers are stored.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.values = Values.read(folder / "config.json")
        self.format = format_of(self.values)
        self._files = {name: path for path in _weight_files(folder) for name in _names(path)}

    def check(self, tensors: Mapping[str, tuple[int, ...]], linears: Mapping[str, LinearShape]) -> None:
        """Raises `CheckpointError`: tensors are not there or of another shape, all of which are named; layers cannot be
        stored as the format says."""
        try:
            shapes = stored_shapes(self.format, tensors, linears)
        except ValueError as error:
            raise CheckpointError(f"{self.values.path}: {error}") from None
        faults = [fault for name, shape in shapes.items() if (fault := self._fault(name, shape))]
        if faults:
            raise CheckpointError(f"{self.folder}: " + "; ".join(faults))

    def tensor(self, name: str) -> Array:
        with safe_open(self._files[name], "np") as file:
            return file.get_tensor(name)

    def linear(self, name: str, shape: LinearShape) -> Linear:
        """The linear layer whose tensors are called `name`.weight and so on."""
        ends = [found.removeprefix(f"{name}.") for found in self._files if found.startswith(f"{name}.")]
        tensors = {end: self.tensor(f"{name}.{end}") for end in ends}
        bias = tensors.pop("bias", None) if shape.biased else None
        try:
            return Linear(self.format.weight(tensors), bias)
        except ValueError as error:
            raise CheckpointError(f"{self.folder}: {name}: {error}") from None

    def _fault(self, name: str, shape: tuple[int, ...]) -> str:
        if name not in self._files:
            return f"there is no tensor '{name}'"
        with safe_open(self._files[name], "np") as file:
            found = tuple(file.get_slice(name).get_shape())
        return "" if found == shape else f"tensor '{name}' is {list(found)}, and should be {list(shape)}"


def _weight_files(folder: Path) -> list[Path]:
    """Those that the index names, or without an index all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: there is no .safetensors file")
    return files


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, "np") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from None
