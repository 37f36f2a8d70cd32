"""The schema of manifests and tuning files. `aot.plan.contract` interprets them.

`docs/manifest.md` describes every key.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import TypeAliasType

from aot.targets import TARGETS
from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.names import MAX_VERSION, VERSION


def _one_of(what: str, known: Iterable[str]) -> Any:
    values = tuple(known)

    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"unknown {what} '{value}'{nearest(value, values)}")
        return value

    return Annotated[str, AfterValidator(check), Field(json_schema_extra={"enum": list(values)})]


DATE = r"^\d{4}-\d\d-\d\d$"
NAME, KERNEL = r"^[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*$", r"^[^:]+\.py:[A-Za-z_]\w*$"
PATTERNS = {
    DATE: "is not a date: YYYY-MM-DD, in quotes",
    NAME: "is not a name: letters, digits and single underscores between them, a letter first",
    VERSION: "is not a version: numbers with dots between them, such as 1.2.0, 1.2.0rc1 or 1.2.0.dev3",
    KERNEL: "is not a kernel: path/from/the/root.py:function",
}
Name = Annotated[str, Field(pattern=NAME)]


def _no_keyword(value: str) -> str:
    if keyword.iskeyword(value):
        raise ValueError(f"'{value}' is a keyword of Python, so its stub could not be imported")
    return value


BundleName = Annotated[Name, AfterValidator(_no_keyword)]


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("NaN is not allowed here: it does not equal itself")
    return value


def _as_expression(value: float) -> float | str:
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return _number(value)


Number = Annotated[float, AfterValidator(_number)]
"""A float that may be infinite."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
if TYPE_CHECKING:
    Value = bool | int | float | str
    Option = bool | int | float | str
    Expr = str | int | float | bool
    DtypeName = str
    ScalarTypeName = str
    KernargTypeName = str
    ArchName = str
else:  # the JSON schemas define named types once
    Value = TypeAliasType("Value", bool | int | Number | str)
    Option = TypeAliasType("Option", bool | int | Finite | str)
    Expr = TypeAliasType("Expression", str | int | Annotated[float, AfterValidator(_as_expression)] | bool)
    """An expression; a bare number or boolean is one too."""
    DtypeName = TypeAliasType("Dtype", _one_of("dtype", DTYPES))
    ScalarTypeName = TypeAliasType("ScalarType", _one_of("scalar type", (*SCALAR_TYPES, "flag", "choice")))
    KernargTypeName = TypeAliasType("KernargType", _one_of("kernarg type", SCALAR_TYPES))
    ArchName = TypeAliasType("Architecture", _one_of("architecture", (target.arch for target in TARGETS)))


def is_function(value: Any) -> TypeGuard[str]:
    """Return True if a parameter is bound to a `path.py:function`."""
    return isinstance(value, str) and re.match(KERNEL, value) is not None


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OffsetsSpec(Spec):
    """Offsets in an integer tensor: the starts of several sequences, each the end of the one before."""

    into: Name = Field(description="The dim that the sequences lie along, one behind the other.")
    longest: Name | None = Field(None, description="The scalar that no sequence may be longer than.")


class TensorSpec(Spec):
    """A tensor argument of an op."""

    shape: list[str | int] = Field(
        [], description="Dims: a name, a constant, `dim|1` (broadcast) or an expression. Of a `pointer` there is none."
    )
    dtype: str = Field(description="A dtype, a dtype variable of `dtypes`, or `int32|int64`.")
    role: Literal["input", "output", "inout"] = "input"
    optional: bool = Field(False, description="An input that the caller may leave out; ask with given(name).")
    when: Expr = Field("", description="An output that exists only where this holds.")
    contiguous: list[str | int] | None = Field(
        None, description="Dims packed without gaps, innermost last, by name or position. Default: the last one."
    )
    innermost: list[str | int] = Field(
        [], description="Instead of `contiguous`: dims of which one has stride 1, by name or position."
    )
    nullable: bool = Field(False, description="Where it is absent the kernel gets a null pointer; no constexpr tells.")
    offsets: OffsetsSpec | None = Field(None, description="Its numbers are offsets, checked where the host has them.")
    range: list[Expr] = Field([], max_length=2, description="Least and largest of its numbers, checked likewise.")
    in_place: list[Name] = Field([], description="Inputs that an output may be itself, element by element.")
    zero: bool = Field(False, description="An output that is zeroed, in stream order, before the first launch.")
    align: bool | Literal["address"] = Field(
        True, description="The aligned specialisation needs its address and strides aligned, or its address only."
    )
    large: bool = Field(False, description="The aligned specialisation takes it beyond 2 GiB too: i64 strides.")
    pointer: bool = Field(
        False,
        description="An array of any shape, which may overlap others: the kernel's own arguments say how it lies.",
    )
    doc: str = ""

    @model_validator(mode="after")
    def _shape_or_pointer(self) -> TensorSpec:
        if not self.pointer and "shape" not in self.model_fields_set:
            raise ValueError("a tensor has a `shape`, unless it is a `pointer`")
        return self


class ScalarSpec(Spec):
    """A scalar argument of an op."""

    type: ScalarTypeName = Field(description="A kernarg type, `flag` (bool), or `choice` (one of `values`).")
    default: Expr | None = Field(None, description="An expression; without one the caller must pass the scalar.")
    values: list[str] | dict[str, int] = Field([], description="The choices of a `choice`; or choice → its number.")
    min: int | Number | None = None
    max: int | Number | None = None
    doc: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> ScalarSpec:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        return self


class DimSpec(Spec):
    """The range of a dim's extent."""

    min: int = Field(1, ge=0)
    max: int = Field(2**31 - 1, ge=1, le=2**31 - 1)
    doc: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> DimSpec:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        return self


class AxisSpec(Spec):
    """A compiled axis: a constexpr, the values that are built, and how a call picks among them."""

    values: list[Value] = Field(min_length=1)
    pick: Expr = Field(description="An expression, or `smallest >= EXPR`, `largest <= EXPR` (also > and <).")


class WorkspaceSpec(Spec):
    """Scratch memory for the duration of a call."""

    shape: list[Expr] = Field(min_length=1)
    dtype: str = Field(description="A dtype, or a dtype variable of `dtypes`.")
    zero: bool = Field(False, description="Zeroed in stream order before the first launch.")


class BindSpec(Spec):
    """The value of a kernel parameter: an expression or tensor, a dtype, a layout, or a function with its operands.

    An expression may have a `type`. A tensor that is bound to a tuple may have `dims`, whose strides the tuple has.
    """

    value: Expr | None = Field(None, description="Default where `dims` are given: the tensor of the parameter's name.")
    type: KernargTypeName | None = None
    dims: list[Name | int] | None = Field(
        None, description="Of a tuple: the dim of each of its strides, by name or position; `none`: the stride is 0."
    )
    block: list[Expr] = Field(
        [],
        max_length=5,
        description="Of a tensor that a kernel takes as a `TensorDescriptor`: the extents of a block. It may have the "
        "dims in another order, `dims`, and for a Gluon kernel a `layout`.",
    )
    padding: Literal["zero", "nan"] = Field("zero", description="What such a descriptor loads past the tensor's ends.")
    dtype: Expr | None = Field(None, description="Of a constexpr that is a dtype: a dtype, or text that is one's name.")
    layout: str | None = Field(
        None, description="Of a constexpr that is a layout of Gluon, or of a descriptor: a call of its class."
    )
    function: str | None = Field(None, pattern=KERNEL, description="path.py:function")
    operands: list[Expr] = Field([], description="Expressions, tensors, workspaces.")

    @model_validator(mode="after")
    def _one_kind(self) -> BindSpec:
        kinds = (self.dtype, None if self.block else self.layout, self.function)
        if (self.value is not None or self.dims is not None) + sum(kind is not None for kind in kinds) != 1:
            raise ValueError(
                "a mapping in `bind` needs exactly one of `value` (or `dims`), `dtype`, `layout` and `function`"
            )
        if self.block and self.value is None:
            raise ValueError("`block` and `padding` need a `value`, which is a tensor")
        if self.padding != "zero" and not self.block:
            raise ValueError("`padding` needs a `block`, which makes a descriptor")
        if self.operands and self.function is None:
            raise ValueError("`operands` need a `function`")
        if self.type is not None and (self.value is None or self.dims is not None):
            raise ValueError("`type` needs a `value` without `dims`")
        return self


class MeasuredSpec(Spec):
    """Configs that won a comparison on hardware."""

    device: str = Field(description="The device that they were timed on.")
    date: str = Field(pattern=DATE, description="The day, `YYYY-MM-DD`.")
    figure: str = Field(description="What was compared, on which calls, and by how much it won where that is known.")
    clocks: str = Field("", description="What the device's clocks and power were set to.")
    version: str = Field("", description="Of the compiler and the driver.")


class ModelledSpec(Spec):
    """Configs that were chosen by a model instead of measured times."""

    by: str = Field(description="What chose them: figures of the code objects, a model, or configs that they follow.")
    figure: str = Field("", description="What that said.")
    version: str = Field("", description="Of the model, and of the compiler.")


class ConfigSpec(Spec):
    """A configuration of a launch: block sizes and compiler options."""

    name: str = Field("", description="What tuning files, `overrides` and `explain` call it; default: by its position.")
    when: Expr = Field("", description="The calls that it serves; of those before it, none did.")
    fitted: dict[Name, int | Number] = Field(
        {}, description="Constants of the launch's `cost`. The cheapest of the configs that have them is used."
    )
    from_kernel: int | None = Field(
        None, ge=0, description="The config of the kernel's `@triton.autotune` that this one is, by position from 0."
    )
    blocks: dict[Name, Value] = Field({}, description="Constexpr parameters of the kernel: its blocks and the like.")
    signature: dict[str, str] = Field(
        {},
        description="Parameter → its type, and what the code takes for granted, as Triton writes it: `i32:16`, "
        "`*fp16:16:32bits`. The config serves calls whose arguments are so.",
    )
    constants: dict[str, Value | BindSpec | list[Value | BindSpec | None] | None] = Field(
        {}, description="Parameter → its value in the code. The config serves calls whose arguments are so."
    )
    options: dict[str, Option] = Field({}, description="Compiler options.")
    measured: MeasuredSpec | None = Field(None, description="Of this config, in place of what its entry says.")
    modelled: ModelledSpec | None = Field(None, description="Of this config, in place of what its entry says.")

    @model_validator(mode="after")
    def _one_origin(self) -> ConfigSpec:
        if self.measured is not None and self.modelled is not None:
            raise ValueError("a config cannot be both `measured` and `modelled`")
        return self


FROM_KERNEL = "from kernel"


def _spelled_out(value: Any) -> Any:
    return [{"from_kernel": 0}] if value == FROM_KERNEL else value


def _or_from_kernel(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"const": FROM_KERNEL}, {"type": schema.pop("type"), "items": schema.pop("items")}]


class LaunchSpec(Spec):
    """A kernel launch."""

    kernel: str = Field(pattern=KERNEL, description="path/from/the/root.py:function")
    name: Name | None = Field(None, description="What tuning files call it; default: the function's name.")
    grid: list[Expr] = Field(min_length=1, max_length=3)
    configs: Annotated[list[ConfigSpec], BeforeValidator(_spelled_out)] = Field(
        [],
        json_schema_extra=_or_from_kernel,
        description="The first whose `when` holds is used; default: one, empty. `from kernel`: the first of the "
        "kernel's `@triton.autotune`, as `[{from_kernel: 0}]`.",
    )
    cost: Expr = Field(
        "",
        description="Time in microseconds, by which a call chooses among configs with `fitted` constants. It reads "
        "these, constexprs of the config, and what its `when` may read.",
    )
    bind: dict[str, Expr | BindSpec | list[Expr | BindSpec | None] | None] = Field(
        {},
        description="Parameter, or parameter.member of a tuple → expression, where names differ; of a constexpr also "
        "path.py:function; of a tuple, a list of its elements; null: None.",
    )
    when: Expr = Field("", description="Launched only where this holds.")


class InputSpec(Spec):
    """Values of an input of a selftest case; by default normal random numbers."""

    std: Finite | int | None = Field(None, gt=0, description="Normal random numbers with this standard deviation.")
    range: list[int | Finite] | None = Field(
        None, min_length=2, max_length=2, description="Uniform random numbers from the first to the second, inclusive."
    )
    values: list[bool | int | float | str] | None = Field(
        None, description="The elements, the last dim running fastest."
    )

    @model_validator(mode="after")
    def _one_way(self) -> InputSpec:
        if sum(way is not None for way in (self.std, self.range, self.values)) != 1:
            raise ValueError("an input has one of `std`, `range` and `values`")
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range {self.range}: the first number is greater than the second")
        return self


class SelftestSpec(Spec):
    """A call whose result the bundle records."""

    name: Name | None = Field(None, description="What reports call it; default: `case<i>`, by its position.")
    call: dict[Name, Value] = Field(description="Dims, dtype variables and scalars; scalars may take their default.")
    given: list[Name] = Field([], description="Optional tensors that are passed.")
    inputs: dict[Name, InputSpec] = Field({}, description="How inputs are filled; of integers it must be said.")
    innermost: dict[Name, str | int] = Field({}, description="Input → the dim with stride 1, of those that may be.")
    floor: Finite | int = Field(1e-6, ge=0, description="Absolute error that each output may have in any case.")
    seed: int = Field(0, ge=0, description="For other random numbers.")


class OverrideSpec(Spec):
    """Changes to the variants that `when` selects."""

    when: Expr
    options: dict[str, Option] = Field({}, description="Compiler options on top of the config's.")
    deny: str = Field("", description="Leave these variants out, for this reason.")

    @model_validator(mode="after")
    def _one_effect(self) -> OverrideSpec:
        if bool(self.options) == bool(self.deny):
            raise ValueError("an override has one of `options` and `deny`")
        return self


class OpSpec(Spec):
    """An op: its contract, what is compiled for it, and how it is launched."""

    doc: str = ""
    tuning: Name | None = Field(None, description="The op whose tuning file it shares; default: its own.")
    reference: str = Field("", description="path.py:function of a numpy reference, exact; `selftest` needs it.")
    tensors: dict[Name, TensorSpec] = Field(min_length=1)
    scalars: dict[Name, ScalarSpec] = {}
    dims: dict[Name, DimSpec] = {}
    require: list[Expr] = []
    dtypes: dict[Name, Annotated[list[DtypeName], Field(min_length=1)]] = {}
    constexprs: dict[Name, AxisSpec] = Field({}, max_length=64)
    derived: dict[Name, Expr] = Field({}, description="Numbers that follow from dims and scalars.")
    alternatives: dict[Name, list[Expr]] = Field(
        {},
        description="Numbers that a call chooses by cost: each takes the value with which the launches cost the least.",
    )
    divisible: list[Name] | dict[Name, Literal["bytes"] | Annotated[int, Field(ge=1)]] = Field(
        [],
        description="Dims whose extents are multiples of 16 bytes (a list of them, or `bytes`) or of a number of "
        "elements in calls of the aligned specialisation.",
    )
    specialisations: list[Literal["aligned", "general"]] = ["aligned", "general"]
    exclude: list[Expr] = []
    overrides: list[OverrideSpec] = []
    workspace: dict[Name, WorkspaceSpec] = {}
    wide_offsets: bool = Field(False, description="The kernel's offsets stay right beyond 2**31 elements.")
    launches: list[LaunchSpec] = Field(min_length=1)
    selftest: list[SelftestSpec] = []


class ManifestSpec(Spec):
    """A manifest file."""

    bundle: BundleName = Field(description="The bundle's name; it is written to <output>/<bundle>-<arch>.")
    version: str | None = Field(
        None, pattern=VERSION, max_length=MAX_VERSION, description="The version that the bundle carries, text."
    )
    doc: str = ""
    root: str | None = Field(
        None, description="The project root, relative to this file; kernel paths start there and it is importable."
    )
    include: dict[str, dict[Name, dict[Name, Annotated[list[Value], Field(min_length=1)]]]] = Field(
        {}, description="Manifest, relative to this file → its op → axis or dtype variable → the values to build of it."
    )
    ops: dict[Name, OpSpec] = {}

    @model_validator(mode="after")
    def _some_ops(self) -> ManifestSpec:
        if not self.ops and not any(self.include.values()):
            raise ValueError("the manifest has no op: neither `ops` nor `include` has one")
        return self


class PublishedSpec(Spec):
    """Configs that others have published."""

    source: str = Field(description="Where, and what of it was taken.")


class ArchTuningSpec(Spec):
    """A tuning file's entry for some architectures: configs by launch, and their origin."""

    arch: list[ArchName] = Field(min_length=1, description="The architectures; each may be in one entry of a file.")
    measured: MeasuredSpec | None = None
    modelled: ModelledSpec | None = None
    published: PublishedSpec | None = None
    doc: str = ""
    derived: dict[Name, Expr] = Field({}, description="Derived numbers of the op that are computed otherwise there.")
    alternatives: dict[Name, list[Expr]] = Field({}, description="Alternatives of the op that have other values there.")
    launches: dict[Name, list[ConfigSpec]]

    @model_validator(mode="after")
    def _one_origin(self) -> ArchTuningSpec:
        if sum(origin is not None for origin in (self.measured, self.modelled, self.published)) != 1:
            raise ValueError("configs have one of `measured`, `modelled` and `published`")
        return self


class TuningSpec(Spec):
    """A tuning file, `tuning/<op>.yaml` beside the manifest."""

    doc: str = ""
    tuning: list[ArchTuningSpec] = Field(min_length=1)
