"""Spaces: the candidates that `aotbuild tune` compares for an op. A shortlist is a small space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from .calls import CallEntrySpec
from .faults import validated
from .schema import ArchName, DtypeName, Expr, ModelledSpec, Name, Number, Option, Spec, Value
from .yamlfile import YamlFile, read_yaml


class CandidatesSpec(Spec):
    """Configs. Lists of values stand for their Cartesian product."""

    blocks: dict[Name, Value | list[Value]] = Field({}, description="Constexpr parameters of the kernel.")
    options: dict[str, Option | list[Option]] = Field({}, description="Compiler options.")


class SpaceCallSpec(CallEntrySpec):
    """A call of the space's op on which candidates are compared, described as in calls files."""

    op: Name = Field("", description="Not given here: it is the space's.")
    count: int = Field(1, ge=1, description="How much the call counts among those of its group.")
    content: dict[Name, int | Number | str] = Field(
        {},
        description="Tensor → the number that fills it, LOW..HIGH for random whole numbers, or a .npy file. Default: "
        "N(0, 1) if it is of floats, else 0.",
    )


class GroupSpec(Spec):
    """Candidates for one config of a launch: the best of them becomes that config."""

    name: Name = Field(description="The config: one that the launch has, whose place it takes; or another, in front.")
    launch: Name | None = Field(None, description="The launch; by default the op's only one.")
    arch: list[ArchName] = Field([], description="Architectures that the group is for; by default all.")
    when: Expr = Field("", description="The calls that a config of a new name serves; of one that is there, the same.")
    doc: str = ""
    candidates: list[CandidatesSpec] = Field(min_length=1)
    constraints: list[Expr] = Field([], description="What a candidate's values have to meet to be compiled.")
    require: list[Expr] = Field([], description="What its code has to meet, as for `aotbuild --require`.")
    calls: list[SpaceCallSpec] = Field([], description="What it is compared on, unless the command says.")


class DrawsSpec(Spec):
    """Random calls, on which the constants of costs are fitted."""

    arch: list[ArchName] = Field([], description="Architectures that they are for; by default all.")
    dims: dict[Name, Annotated[list[int], Field(min_length=1, max_length=3)]] = Field(
        description="Dim → its extent; or least, largest, and a number that it is a multiple of: log-uniform."
    )
    dtypes: dict[Name, list[DtypeName]] = Field({}, description="Dtype variable → those of which it has one.")
    innermost: dict[Name, list[int]] = Field({}, description="Tensor → positions of dims of which one has stride 1.")
    given: list[list[Name]] = Field([[]], description="Optional inputs, one list of which is passed.")
    scalars: dict[Name, list[Value]] = Field({}, description="Scalar → values of which it has one.")
    require: list[Expr] = Field([], description="Conditions on the dims.")
    weight: int = Field(1, ge=1, description="How often calls are of this kind.")


class SpaceSpec(Spec):
    """A space file."""

    op: Name = Field(description="The op.")
    manifest: str = Field("", description="Of a shortlist: the manifest that has the op, by name or from this file.")
    doc: str = ""
    modelled: ModelledSpec | None = Field(None, description="Of a shortlist: what chose the candidates.")
    groups: list[GroupSpec] = Field([], description="The candidates, by the config that they are for.")
    draws: list[DrawsSpec] = Field([], description="Calls for `aotbuild tune --costs`.")


@dataclass(frozen=True)
class Space:
    """A space file that follows the schema, with its file for error positions."""

    file: YamlFile
    spec: SpaceSpec


def load_space(path: Path) -> Space:
    """Read and validate a space file. Raises `ManifestError` with every fault, each at its file:line:column."""
    file = read_yaml(path)
    return Space(file, validated(file, SpaceSpec))
