"""A checkpoint's folder: config.json, and safetensors in one file or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.linear import Linear, LinearShape, Wanted
from aot_models.checkpoints.progress import SILENT, Progress
from aot_models.checkpoints.scheme import Format
from aot_models.checkpoints.shards import DTYPES, Held, Stored, faults_of, read_shards
from aot_models.checkpoints.values import CheckpointError, Values, joined, said

Array = np.ndarray
LEFT_OUT = (".rotary_emb.inv_freq", ".k_scale", ".v_scale")
"""Suffixes of tensors that are never read: tables that are computed here, scales of 8-bit caches."""
ADDED = ("bias", "weight_zero_point", "input_zero_point")
"""Tensors of a linear layer that have no effect if they are all zero."""


class Checkpoint:
    """A folder of a published checkpoint. Tensors are read on demand.

    Attributes:
        values: config.json.
        format: the scheme of each linear layer's weights.
        nbytes: the bytes of the tensors that the model reads; set by `check`, as are the next two.
        ops: the bundle's ops that the linear layers need.
        float8: some weights are float8.

    Raises:
        CheckpointError: a file is missing or damaged, or the weight format is not supported.
    """

    def __init__(self, folder: Path, progress: Progress = SILENT):
        self._hold(folder, progress, Values.read(folder / "config.json"))
        self._stored: Mapping[str, Stored | Held] = read_shards(folder)

    @classmethod
    def in_memory(cls, found: Mapping[str, Any], tensors: Mapping[str, Array]) -> Checkpoint:
        """Make a checkpoint of a config and of arrays, without files. Names may share arrays."""
        checkpoint = cls.__new__(cls)
        checkpoint._hold(Path("memory"), SILENT, Values(found))
        checkpoint._stored = {name: Held(tensor) for name, tensor in tensors.items()}
        return checkpoint

    def _hold(self, folder: Path, progress: Progress, values: Values) -> None:
        self.folder, self.progress, self.values = folder, progress, values
        self.nbytes, self.float8 = 0, False
        self.ops: frozenset[str] = frozenset()
        self.format: Format = format_of(values)

    def check(
        self, tensors: Mapping[str, tuple[int, ...]], linears: Mapping[str, LinearShape], unread: tuple[str, ...] = (),
        tied: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Compare the stored tensors with those that a model reads.

        Args:
            tensors: the shape of each tensor that the model reads outside of linear layers.
            linears: the shape of each linear layer.
            unread: prefixes of tensors that may be left unread.
            tied: linear layers that may be stored although they have the weights of another tensor.

        Raises:
            CheckpointError: tensors are missing, unread, or of another shape or dtype, or a layer cannot be stored in
                the format. The error lists all of them.
        """
        wanted = dict(wanted_tensors(self.format, tensors, linears, self.values.path, self._stored))
        faults = faults_of(wanted, self._stored)
        same = {f"{layer}.weight": name for layer, name in (tied or {}).items()}
        others = (name for name in self._stored if name not in wanted and not name.startswith(unread))
        others = (name for name in others if not self._adds_nothing(name, linears, same))
        faults += [f"tensor '{said(name)}' is read by nothing" for name in others]
        if faults:
            raise CheckpointError(f"{self.folder}: {joined(faults)}")
        schemes = [self.format(name) for name in linears]
        self.nbytes = sum(self._stored[name].nbytes for name in wanted)
        self.ops = frozenset(op for scheme in schemes for op in scheme.ops)
        self.float8 = any(scheme.float8 for scheme in schemes)

    def _adds_nothing(self, name: str, linears: Mapping[str, LinearShape], same: Mapping[str, str]) -> bool:
        """True if ignoring a tensor is safe: it is in `LEFT_OUT`, all zero and only added, or a copy of another."""
        layer, _, end = name.rpartition(".")
        if name.endswith(LEFT_OUT):
            return True
        if self._stored[name].dtype not in DTYPES:
            return False
        if end in ADDED and layer in linears:
            return not self._stored[name].array().any()
        return name in same and same[name] in self._stored and _equal(self._stored[name], self._stored[same[name]])

    def tensor(self, name: str) -> Array:
        """A tensor, as a read-only view of its file."""
        stored = self._stored[name]
        self.progress.add(stored.nbytes, self.nbytes)
        return stored.array()

    def linear(self, name: str, shape: LinearShape) -> Linear:
        """Read a linear layer, whose tensors are named `name`.weight and so on."""
        scheme = self.format(name)
        tensors = {end: self.tensor(f"{name}.{end}") for end in scheme.wanted(shape, _ends(name, self._stored))}
        bias = self.tensor(f"{name}.bias") if shape.biased else None
        try:
            return Linear(scheme.weight(tensors), bias)
        except ValueError as error:
            raise CheckpointError(f"{self.folder}: {name}: {error}") from None


def _equal(one: Stored | Held, other: Stored | Held) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(one.array(), other.array())


def wanted_tensors(
    format_: Format, tensors: Mapping[str, tuple[int, ...]], linears: Mapping[str, LinearShape], path: Path,
    stored: Mapping[str, Stored | Held] | None = None,
) -> Iterator[tuple[str, Wanted]]:  # fmt: skip
    """Every required tensor of a checkpoint, by name.

    Args:
        tensors: the shapes of the tensors outside of linear layers.
        stored: the tensors that the checkpoint has; they decide which optional tensors are expected.

    Raises:
        CheckpointError: a layer cannot be stored in this format.
    """
    yield from ((name, Wanted((shape,))) for name, shape in tensors.items())
    for name, shape in linears.items():
        try:
            found = format_(name).wanted(shape, _ends(name, stored or {}))
        except ValueError as error:
            raise CheckpointError(f"{path}: {name}: {error}") from None
        yield from ((f"{name}.{end}", wanted) for end, wanted in found.items())
        if shape.biased:
            yield f"{name}.bias", Wanted(((shape.outputs,),))


def _ends(name: str, stored: Mapping[str, Stored | Held]) -> list[str]:
    known = ("g_idx", "weight_g_idx", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale")
    return [end for end in known if f"{name}.{end}" in stored]
