"""The manifest: what it may say, as a schema. What it means is `contract`'s business.

`docs/manifest.md` describes every key; `manifest.schema.json` beside this file is generated from here
(`python -m aot.manifest.schema`), for editors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES
from aot_runtime.contract.expressions import nearest

from .yamlfile import Key, ManifestError, YamlFile, read_yaml

SCHEMA_FILE = Path(__file__).with_name("manifest.schema.json")


def _one_of(what: str, known: Iterable[str]) -> Any:
    """A text type with a fixed list of values; the error names the nearest."""
    values = tuple(known)

    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"'{value}' is no {what}{nearest(value, values)}")
        return value

    return Annotated[str, AfterValidator(check), Field(json_schema_extra={"enum": list(values)})]


NAME, KERNEL = r"^[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*$", r"^[^:]+\.py:[A-Za-z_]\w*$"
_PATTERNS = {
    NAME: "is no name: letters, digits and single underscores between them, a letter first",
    KERNEL: "is no kernel: path/from/the/root.py:function",
}
Name = Annotated[str, Field(pattern=NAME)]
Value = bool | int | float | str
Expr = str | int | float | bool
"""An expression; a bare number or boolean is one too."""
if TYPE_CHECKING:
    DtypeName = str
    ScalarTypeName = str
    KernargTypeName = str
else:
    DtypeName = _one_of("dtype", DTYPES)
    ScalarTypeName = _one_of("scalar type", (*SCALAR_TYPES, "flag", "choice"))
    KernargTypeName = _one_of("kernarg type", SCALAR_TYPES)


def is_function(value: Any) -> TypeGuard[str]:
    """Whether what a parameter is bound to is a `path.py:function`."""
    return isinstance(value, str) and re.match(KERNEL, value) is not None


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OffsetsSpec(_Spec):
    """What the numbers of an integer tensor are: where each of several sequences begins and the one before it ends."""

    into: Name = Field(description="The dim that the sequences lie along, one behind the other.")
    longest: Name | None = Field(None, description="The scalar that no sequence may be longer than.")


class TensorSpec(_Spec):
    """A tensor argument of an op."""

    shape: list[str | int] = Field(description="Dims: a name, a constant, `dim|1` (broadcast) or an expression.")
    dtype: str = Field(description="A dtype, or a dtype variable of `dtypes`.")
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
    align: bool = Field(True, description="Whether the aligned specialisation assumes 16-divisible strides of it.")
    large: bool = Field(False, description="The aligned specialisation takes it beyond 2 GiB too: i64 strides.")
    doc: str = ""


class ScalarSpec(_Spec):
    """A scalar argument of an op."""

    type: ScalarTypeName = Field(description="A kernarg type, `flag` (bool), or `choice` (one of `values`).")
    default: Expr | None = Field(None, description="An expression; without one the caller must pass the scalar.")
    values: list[str] = Field([], description="The choices of a `choice`.")
    min: int | float | None = None
    max: int | float | None = None
    doc: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> ScalarSpec:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}")
        return self


class DimSpec(_Spec):
    """The range of a dim's extent."""

    min: int = Field(1, ge=0)
    max: int = Field(2**31 - 1, ge=1, le=2**31 - 1)
    doc: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> DimSpec:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}")
        return self


class AxisSpec(_Spec):
    """A compiled axis: a constexpr, the values that are built, and how a call picks among them."""

    values: list[Value] = Field(min_length=1)
    pick: Expr = Field(description="An expression, or `smallest >= EXPR`, `largest <= EXPR` (also > and <).")


class WorkspaceSpec(_Spec):
    """Scratch memory for the duration of a call."""

    shape: list[Expr] = Field(min_length=1)
    dtype: DtypeName
    zero: bool = Field(False, description="Zeroed in stream order before the first launch.")


class BindSpec(_Spec):
    """A kernel parameter's value, with its type where the default is not right; a tensor, with the dims whose strides a
    parameter that is a tuple has; or a function, with the operands that it is called with besides."""

    value: Expr | None = Field(None, description="Default where `dims` are given: the tensor of the parameter's name.")
    type: KernargTypeName | None = None
    dims: list[Name | int] | None = Field(
        None, description="Of a tuple: the dim of each of its strides, by name or position; `none`: the stride is 0."
    )
    function: str | None = Field(None, pattern=KERNEL, description="path.py:function")
    operands: list[Expr] = Field([], description="Expressions, tensors, workspaces.")

    @model_validator(mode="after")
    def _one_kind(self) -> BindSpec:
        if (self.function is not None) == (self.value is not None or self.dims is not None):
            raise ValueError("a mapping in `bind` has either `value` (or `dims`) or `function`")
        if self.operands and self.function is None:
            raise ValueError("`operands` are those of a `function`")
        if self.type is not None and (self.function is not None or self.dims is not None):
            raise ValueError("`type` is that of a `value` without `dims`")
        return self


class LaunchSpec(_Spec):
    """One kernel launch."""

    kernel: str = Field(pattern=KERNEL, description="path/from/the/root.py:function")
    name: Name | None = Field(None, description="What tuning files call it; default: the function's name.")
    grid: list[Expr] = Field(min_length=1, max_length=3)
    configs: list[dict[str, Value]] = Field(
        [{}], min_length=1, description="Constexprs and compiler options; the first whose `when` holds is used."
    )
    bind: dict[str, Expr | BindSpec] = Field(
        {},
        description="Parameter, or parameter.member of a tuple → expression, where names differ; of a constexpr also "
        "path.py:function.",
    )
    when: Expr = Field("", description="Launched only where this holds.")


class InputSpec(_Spec):
    """How an input of a selftest case is filled; without one, with normal random numbers."""

    std: float | int | None = Field(None, gt=0, description="Normal random numbers with this standard deviation.")
    range: list[int | float] | None = Field(
        None, min_length=2, max_length=2, description="Uniform random numbers from the first to the second, inclusive."
    )
    values: list[Value] | None = Field(None, description="The elements, the last dim running fastest.")

    @model_validator(mode="after")
    def _one_way(self) -> InputSpec:
        if sum(way is not None for way in (self.std, self.range, self.values)) != 1:
            raise ValueError("an input has either `std`, `range` or `values`")
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range {self.range}: the first is over the second")
        return self


class SelftestSpec(_Spec):
    """A call whose result the bundle records."""

    name: Name | None = Field(None, description="What reports call it; default: `case<i>`, by its position.")
    call: dict[Name, Value] = Field(description="Dims, dtype variables and scalars; scalars may take their default.")
    given: list[Name] = Field([], description="Optional tensors that are passed.")
    inputs: dict[Name, InputSpec] = Field({}, description="How inputs are filled; of integers it must be said.")
    innermost: dict[Name, str | int] = Field({}, description="Input → the dim with stride 1, of those that may be.")
    floor: float | int = Field(1e-6, ge=0, description="Absolute error that each output may have in any case.")
    seed: int = Field(0, ge=0, description="For other random numbers.")


class OverrideSpec(_Spec):
    """What is done about the variants that `when` selects."""

    when: Expr
    options: dict[str, Value] = Field({}, description="Compiler options on top of the config's.")
    deny: str = Field("", description="Leave these variants out, for this reason.")

    @model_validator(mode="after")
    def _one_effect(self) -> OverrideSpec:
        if bool(self.options) == bool(self.deny):
            raise ValueError("an override has either `options` or `deny`")
        return self


class OpSpec(_Spec):
    """An op: its contract, what is compiled for it, and how it is launched."""

    doc: str = ""
    tuning: Name | None = Field(None, description="The op whose tuning file it shares; default: its own.")
    reference: str = Field("", description="path.py:function of a numpy reference, exact; `selftest` needs it.")
    tensors: dict[Name, TensorSpec] = Field(min_length=1)
    scalars: dict[Name, ScalarSpec] = {}
    dims: dict[Name, DimSpec] = {}
    require: list[Expr] = []
    dtypes: dict[Name, Annotated[list[DtypeName], Field(min_length=1)]] = {}
    constexprs: dict[Name, AxisSpec] = {}
    let: dict[Name, Expr] = {}
    align: list[Name] = Field([], description="Dims that the aligned specialisation may assume divisible by 16.")
    specialisations: list[Literal["aligned", "general"]] = ["aligned", "general"]
    exclude: list[Expr] = []
    rare: list[Expr] = Field([], description="Points that only `aotbuild --full` compiles.")
    overrides: list[OverrideSpec] = []
    workspace: dict[Name, WorkspaceSpec] = {}
    large_tensors: bool = Field(False, description="The kernel's offsets stay right beyond 2**31 elements.")
    launches: list[LaunchSpec] = Field(min_length=1)
    selftest: list[SelftestSpec] = []


class ManifestSpec(_Spec):
    """A manifest file."""

    bundle: Name = Field(description="The bundle's name; it is written to <output>/<bundle>-<arch>.")
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
            raise ValueError("there is no op: neither in `ops` nor in `include`")
        return self


class TuningSpec(_Spec):
    """A tuning file, `tuning/<arch>/<op>.yaml` beside the manifest: configs by launch name, overlaid entry by entry."""

    doc: str = ""
    launches: dict[Name, list[dict[str, Value]]]


Spec = TypeVar("Spec", bound=_Spec)


@dataclass(frozen=True)
class OpSource:
    """An op of a bundle: where it is declared, and what is built of it.

    Attributes:
        manifest: the one that declares the op; of an included op not the one that includes it.
        only: axis or dtype variable → the values to build; of the others all.
    """

    manifest: Manifest
    name: str
    only: Mapping[str, tuple[Value, ...]]

    @property
    def spec(self) -> OpSpec:
        return self.manifest.spec.ops[self.name]


class Manifest:
    """A manifest that follows the schema, with its file for error positions.

    Attributes:
        spec: the validated content.
        root: absolute folder that kernel paths start from.
        sources: the bundle's ops: those that are included, then the manifest's own.
    """

    def __init__(self, file: YamlFile, spec: ManifestSpec, included: Iterable[OpSource] = ()):
        self.file, self.spec = file, spec
        self.root = self._find_root()
        self.sources = (*included, *(OpSource(self, name, {}) for name in spec.ops))

    def error(self, path: tuple[Key, ...], message: str) -> ManifestError:
        return self.file.error(path, message)

    def _find_root(self) -> Path:
        folder = self.file.path.resolve().parent
        if self.spec.root is not None:
            root = (folder / self.spec.root).resolve()
            if not root.is_dir():
                raise self.error(("root",), f"root '{self.spec.root}': there is no folder {root}")
            return root
        first_launch = next(((name, launch) for name, spec in self.spec.ops.items() for launch in spec.launches), None)
        if first_launch is None:
            return folder
        op, first = first_launch
        kernel = first.kernel.rpartition(":")[0]
        for candidate in (folder, *folder.parents):
            if (candidate / kernel).is_file():
                return candidate
        raise self.error(
            ("ops", op, "launches", 0, "kernel"),
            f"kernel file '{kernel}' is neither in {folder} nor in a folder above it; paths start at the project root",
        )


def load_manifest(path: Path) -> Manifest:
    """Read and validate a manifest. Raises `ManifestError` with every fault, each at its file:line:column."""
    file = read_yaml(path)
    spec = _validate(file, ManifestSpec)
    return Manifest(file, spec, _included(file, spec))


def _included(file: YamlFile, spec: ManifestSpec) -> Iterator[OpSource]:
    """The ops of other manifests, of those that they declare themselves."""
    owners = dict.fromkeys(spec.ops, "this manifest")
    for name, ops in spec.include.items():
        path = file.path.parent / name
        if not path.is_file():
            raise file.error(("include", name), f"there is no manifest {path}")
        other_file = read_yaml(path)
        other = Manifest(other_file, _validate(other_file, ManifestSpec))
        for op, only in ops.items():
            place = ("include", name, op)
            if op not in other.spec.ops:
                raise file.error(place, f"{name} has no op '{op}'{nearest(op, other.spec.ops)}")
            if op in owners:
                raise file.error(place, f"the op '{op}' is in {owners[op]} too")
            owners[op] = name
            _check_values(file, place, other.spec.ops[op], only)
            yield OpSource(other, op, {axis: tuple(values) for axis, values in only.items()})


def _check_values(file: YamlFile, place: tuple[Key, ...], op: OpSpec, only: Mapping[str, list[Value]]) -> None:
    axes: dict[str, list[Any]] = {**op.dtypes, **{name: axis.values for name, axis in op.constexprs.items()}}
    for axis, values in only.items():
        if axis not in axes:
            raise file.error((*place, axis), f"op '{place[-1]}' has no axis '{axis}'{nearest(axis, axes)}")
        for i, value in enumerate(values):
            # By type too: True equals 1.
            if (type(value), value) not in [(type(known), known) for known in axes[axis]]:
                raise file.error(
                    (*place, axis, i), f"{axis} has no value {value}; it has {', '.join(map(str, axes[axis]))}"
                )


def load_tuning(path: Path) -> tuple[YamlFile, TuningSpec]:
    """Read and validate a tuning file. Raises `ManifestError`."""
    file = read_yaml(path)
    return file, _validate(file, TuningSpec)


def json_schema() -> str:
    """The manifest's JSON schema, as text."""
    schema = ManifestSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1) + "\n"


def _validate(file: YamlFile, model: type[Spec]) -> Spec:
    if not isinstance(file.data, dict):
        raise file.error((), f"expected a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(file.data)
    except ValidationError as error:
        faults: dict[tuple[Key, ...], list[Any]] = {}
        for item in error.errors(include_url=False):
            faults.setdefault(_file_path(file, item["loc"]), []).append(item)
    described = sorted(
        (file.positions.get(path, (1, 1)), f"{file.locate(path)}: {text}")
        for path, items in faults.items()
        for text in _describe(model, path, items, deeper=any(other[: len(path)] == path != other for other in faults))
    )
    raise ManifestError(message for _, message in described)


def _file_path(file: YamlFile, keys: Iterable[Key]) -> tuple[Key, ...]:
    """The keys of pydantic's path that are the file's: it adds the members of unions."""
    path: tuple[Key, ...] = ()
    for key in keys:
        if (*path, key) in file.positions:
            path = (*path, key)
    return path


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def _describe(model: type[BaseModel], path: tuple[Key, ...], items: list[Any], deeper: bool) -> set[str]:
    """What is wrong at one place. A value that fits no member of a union has a fault for each: they become one."""
    name = ".".join(map(str, path))
    wrong = [item for item in items if item["type"] in _EXPECTED]
    texts = {_fault(model, path, name, item) for item in items if item not in wrong}
    if wrong and not texts and not deeper:
        expected = " or ".join(dict.fromkeys(_EXPECTED[item["type"]] for item in wrong))
        texts = {f"{name}: expected {expected}{_given(wrong[0])}"}
    return texts


def _fault(model: type[BaseModel], path: tuple[Key, ...], name: str, item: Any) -> str:
    match item["type"]:
        case "extra_forbidden":
            return f"unknown key '{path[-1]}'{nearest(str(path[-1]), _known_keys(model, path[:-1]))}"
        case "missing":
            return f"{name or 'the manifest'}: the key '{item['loc'][-1]}' is missing"
        case "string_pattern_mismatch":
            return f"{name}: '{item['input']}' {_PATTERNS[item['ctx']['pattern']]}"
        case "value_error":
            return f"{name or 'the manifest'}: {item['ctx']['error']}"
        case "too_short" | "too_long":
            limits = item["ctx"]
            limit = f"at least {limits['min_length']}" if "min_length" in limits else f"at most {limits['max_length']}"
            return f"{name}: {limit} allowed, {limits['actual_length']} given"
        case _:
            return f"{name}: {item['msg']}{_given(item)}"


def _given(item: Any) -> str:
    given = item["input"]
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return f" (given: {kinds.get(type(given), repr(given))})"


def _known_keys(model: type[BaseModel], path: tuple[Key, ...]) -> list[str]:
    """The keys that the model at `path` has; it is found by walking the annotations."""
    current: list[Any] = [model]
    for key in path:
        current = [inner for annotation in current for inner in _inside(annotation, key)]
    return [field for item in current for field in getattr(item, "model_fields", {})]


def _inside(annotation: Any, key: Key) -> list[Any]:
    """The annotations of what an annotated value has under `key`, each member of a union by itself."""
    if key in getattr(annotation, "model_fields", {}):
        return _members(annotation.model_fields[key].annotation)
    arguments = get_args(annotation)
    return _members(arguments[-1]) if get_origin(annotation) in (dict, list) else []


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for argument in get_args(annotation) for member in _members(argument)]
    return [annotation]


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json_schema(), encoding="utf-8")
