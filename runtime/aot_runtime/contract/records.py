"""The records of a bundle's index, which builder and runtime share. The reader owns the format.

An op is a contract as data: its expressions are text (see `expressions`), its names identifiers. `index_file` writes
the index to `bundle.json`, where variants share common parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from .provenance import Provenance

INDEX = "bundle.json"
SIGNATURE = f"{INDEX}.sig"
"""The file with the signature over the index, if the bundle is signed by key."""
SIGSTORE = f"{INDEX}.sigstore.json"
"""The file with a sigstore signature, named as sigstore's tools name it."""
SIGNATURES = (SIGNATURE, SIGSTORE)
CODE_FOLDER, SELFTEST_FOLDER = "code", "selftest"
TEXT_FILES = (
    "include/{name}.h", "include/{name}_variants.h", "src/{name}.c", "lib/cmake/{name}/{name}Config.cmake",
    "lib/pkgconfig/{name}.pc", "stubs/{name}.pyi",
)  # fmt: skip
"""Files that are generated from an index for programs that call the bundle. Each repeats the id."""
HASH_LENGTH = 16
"""Hex digits of a file's SHA-256 in its name, for files in these folders."""
GLOBAL_SCRATCH, PROFILE_SCRATCH = ".global_scratch", ".profile_scratch"
"""Names of the two pointers that Triton appends to every kernel's arguments."""

POINTER = "*"
"""The first character of a pointer kernarg's type."""
TENSOR_MAP, TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = "tensormap", 128, 64
"""The type of a CUDA tensor map (`CUtensorMap`, passed by value) as a kernarg, and its size and alignment in bytes."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of an index, of 64 bits."""


class Infinity(msgspec.Struct, frozen=True):
    """An infinite float as the index spells it, since JSON has no number for it."""

    float: Literal["inf", "-inf"]


Value = bool | Int | float | str
if TYPE_CHECKING:
    StoredValue = Value
    _Limit = float | None
else:  # what is in a file; `numbers` makes numbers of it
    StoredValue = Value | Infinity
    _Limit = float | None | Infinity


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. Records are immutable, and the JSON leaves out fields at their default."""


class Dim(Record, frozen=True):
    """A dim of a tensor: an expression for its extent, and whether an extent of 1 is broadcast."""

    extent: str
    broadcast: bool = False


class Offsets(Record, frozen=True):
    """A rule for an integer tensor whose values the host can read: they start at 0 or more, never decrease, and end at
    the extent of the dim `into` or below. If `longest` names a scalar, no step is larger than it.
    """

    into: str
    longest: str = ""


class Tensor(Record, frozen=True):
    """A tensor argument.

    Attributes:
        dtype: a dtype's name, or a dtype variable of the op.
        role: `input`, `output` (allocated unless the caller gives it) or `inout` (updated in place).
        optional: the caller may leave it out.
        when: the condition under which the output exists; empty means always.
        contiguous: positions of dims that are packed without gaps, innermost last.
        innermost: instead of `contiguous`, positions of dims of which one has stride 1. New arrays use the first.
        align: whether aligned variants require 16-byte alignment and strides divisible by 16.
        large: whether aligned variants have no limit on its reach; its strides then have 64 bits.
        offsets: the rule for its values if they are offsets of sequences.
        range: its least and largest allowed value, expressions of dims and scalars; empty means any.
        in_place: inputs that the output may be: the same address, shape and strides.
        zero: whether the output, which is then packed, is zeroed in stream order before the first launch.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    role: str = "input"
    optional: bool = False
    when: str = ""
    contiguous: tuple[Int, ...] = ()
    innermost: tuple[Int, ...] = ()
    align: bool = True
    large: bool = False
    offsets: Offsets | None = None
    range: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    zero: bool = False
    doc: str = ""


class Scalar(Record, frozen=True):
    """A scalar argument. `type` is a kernarg type, `flag` (bool) or `choice` (one of `choices`).

    `default` is an expression. If it is empty, the caller must pass the scalar.
    """

    name: str
    type: str
    default: str = ""
    choices: tuple[str, ...] = ()
    min: _Limit = None
    max: _Limit = None
    doc: str = ""


class DimLimit(Record, frozen=True):
    """The allowed extents of a dim, both ends included."""

    name: str
    min: Int = 1
    max: Int = 2**31 - 1
    doc: str = ""


class Axis(Record, frozen=True):
    """A compiled axis: the values that are built, and the rule by which a call picks one.

    `rule` is `equal` (the value of `pick`), or one of `>=`, `>`, `<=`, `<`: the smallest value that is >= (>)
    `pick`, the largest that is <= (<).
    """

    name: str
    values: tuple[StoredValue, ...]
    pick: str
    rule: str = "equal"


class Derived(Record, frozen=True):
    """A named value that a call derives from its dims and scalars."""

    name: str
    value: str


class Workspace(Record, frozen=True):
    """Scratch memory for the duration of a call. Its dtype may be a dtype variable of the op."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    zero: bool = False


class Config(Record, frozen=True):
    """A tuned choice for a launch: constexprs and compiler options, and the condition under which it is used."""

    name: str
    values: dict[str, StoredValue]
    options: dict[str, Value]
    when: str = ""


class Launch(Record, frozen=True):
    """A kernel launch of an op. An empty `when` means always."""

    kernel: str
    grid: tuple[str, str, str]
    configs: tuple[Config, ...]
    when: str = ""


class Denied(Record, frozen=True):
    """Variants that were left out on purpose, and the manifest's reason, which may be empty."""

    when: str
    reason: str


class Op(Record, frozen=True):
    """An op's contract: the rules by which calls are checked and dispatched.

    Attributes:
        divisible: dims whose extent must be a multiple of 16 for aligned variants.
        wide_offsets: whether the kernel's offsets stay correct beyond 2**31 elements.
    """

    name: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    launches: tuple[Launch, ...]
    dims: tuple[DimLimit, ...] = ()
    dtypes: dict[str, tuple[str, ...]] = {}
    axes: tuple[Axis, ...] = ()
    derived: tuple[Derived, ...] = ()
    require: tuple[str, ...] = ()
    divisible: tuple[str, ...] = ()
    workspace: tuple[Workspace, ...] = ()
    denied: tuple[Denied, ...] = ()
    wide_offsets: bool = False
    doc: str = ""
    reference: str = ""


class TensorMap(Record, frozen=True, array_like=True):
    """A division of a tensor into boxes that the hardware copies between global and shared memory.

    Attributes:
        dtype: of the elements.
        dims: positions of the tensor's dims, outermost first; the last has stride 1.
        box: extents of a box, in the same order.
        swizzle: bytes of the swizzle pattern of a box in shared memory; 0 means none.
        nan: whether loads beyond the tensor's ends give NaN instead of 0.
    """

    dtype: str
    dims: tuple[Int, ...]
    box: tuple[Int, ...]
    swizzle: Int = 0
    nan: bool = False


class Kernarg(Record, frozen=True, array_like=True):
    """A field of the kernarg segment.

    Attributes:
        type: a scalar type, `*` and the pointee's dtype for a pointer, or `tensormap`.
        value: for a pointer the tensor's or workspace's name (`` for an unused scratch pointer), for a tensor map the
            tensor's name, else an expression.
        map: the parts of a tensor map besides the tensor's address, extents and strides.
    """

    name: str
    type: str
    offset: Int
    size: Int
    value: str = ""
    map: TensorMap | None = None

    @property
    def is_expression(self) -> bool:
        """True if the value is an expression, and not a tensor, a workspace or scratch memory."""
        return self.map is None and not self.type.startswith(POINTER)


class Scratch(Record, frozen=True):
    """Scratch memory per workgroup that the compiled code requests."""

    bytes: Int = 0
    alignment: Int = 1


class Resources(Record, frozen=True, array_like=True):
    """Registers, spills and LDS of a launch, from the code object's metadata. Cubins do not record spills (None)."""

    vgprs: Int = 0
    agprs: Int = 0
    sgprs: Int = 0
    vgpr_spills: Int | None = None
    sgpr_spills: Int | None = None
    scratch_bytes: Int = 0
    waves_per_simd: float = 0
    occupancy_limit: str = ""
    code_bytes: Int = 0


class Variant(Record, frozen=True):
    """A compiled kernel: its place on the op's axes, and everything that is needed to launch it.

    `axis_values` has the value of each dtype variable and axis. If `early` is true, the kernel may begin before its
    predecessors on the stream have ended, since it waits for them itself (Triton's option `launch_pdl`).
    """

    op: str
    launch: Int
    axis_values: dict[str, StoredValue]
    aligned: bool
    config: Int
    code: str
    symbol: str
    kernargs: tuple[Kernarg, ...]
    kernarg_bytes: Int
    lds_bytes: Int
    num_warps: Int
    warp_size: Int
    resources: Resources
    options: dict[str, Value]
    compiler: str
    global_scratch: Scratch = Scratch()
    profile_scratch: Scratch = Scratch()
    cooperative: bool = False
    early: bool = False


class Blob(Record, frozen=True):
    """A code object, or the vectors of a selftest case: its file in the bundle, its size and its SHA-256."""

    file: str
    size: Int
    sha256: str


class Case(Record, frozen=True):
    """A recorded call of an op, with its result.

    Attributes:
        vectors: the file with its inputs and expected outputs, see `bundle.vector_files`.
        bounds: written tensor → the largest |result - expected| that passes.
        dtypes: dtype variable → dtype.
        scalars: the scalars that the call passes; the others have their default.
        innermost: input → position of the dim with stride 1; by default the first that the contract allows.
    """

    op: str
    name: str
    vectors: Blob
    bounds: dict[str, float]
    dtypes: dict[str, str] = {}
    scalars: dict[str, StoredValue] = {}
    innermost: dict[str, Int] = {}


class Target(Record, frozen=True):
    """The architecture of the bundle's code objects."""

    arch: str
    backend: str
    warp_size: Int


class Index(Record, frozen=True):
    """The index of a bundle. `version` is the manifest's, or empty. `provenance` describes the build's inputs, or is
    None."""

    format: Int
    oldest_reader: Int
    id: str
    name: str
    target: Target
    toolchain: dict[str, str]
    ops: tuple[Op, ...]
    variants: tuple[Variant, ...]
    blobs: dict[str, Blob]
    selftest: tuple[Case, ...] = ()
    version: str = ""
    provenance: Provenance | None = None


def encode_json(value: Any) -> bytes:
    """Return the canonical JSON of records or plain data. Infinite floats are spelled as `Infinity`."""
    plain = msgspec.json.encode(value, order="deterministic")  # where a float that is not finite is null
    return msgspec.json.encode(spelled(value), order="deterministic") if b"null" in plain else plain


def spelled(value: Any) -> Any:
    """Replace infinite floats by `Infinity` in records or plain data. Raises ValueError for NaN."""
    return _mapped(value, _spelled_float)


def _spelled_float(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise ValueError("NaN cannot be in an index")
    return Infinity("inf" if value > 0 else "-inf")


def numbers(value: Any) -> Any:
    """Replace each `Infinity` by its float in records or plain data."""
    return _mapped(value, _number)


def _number(value: Any) -> Any:
    return float(value.float) if isinstance(value, Infinity) else value


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value with `leaf` applied to all in it that is no container; what has nothing to change is the same object,
    so that fields at their default are known as such."""
    match value:
        case dict():
            items = {key: _mapped(item, leaf) for key, item in value.items()}
            return items if any(items[key] is not value[key] for key in items) else value
        case list() | tuple():
            members = tuple(_mapped(item, leaf) for item in value)
            return members if any(new is not old for new, old in zip(members, value, strict=True)) else value
        case Record():
            fields = tuple(getattr(value, name) for name in value.__struct_fields__)
            changed = _mapped(fields, leaf)
            return value if changed is fields else type(value)(*changed)
    return leaf(value)
