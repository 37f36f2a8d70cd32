"""The bundle's index: what builder and runtime share. The reader owns the format.

Ops are contracts as data: every expression is text (see `expressions`), every name an identifier. How the index is
written to `bundle.json`, where variants share what they have in common, is in `index_file`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from .provenance import Provenance

INDEX = "bundle.json"
SIGNATURE = f"{INDEX}.sig"
"""The file of a bundle that has the signature over its index, where it is signed with a key."""
SIGSTORE = f"{INDEX}.sigstore.json"
"""That of a signature made with sigstore, named as sigstore's tools name it."""
SIGNATURES = (SIGNATURE, SIGSTORE)
CODE_FOLDER, SELFTEST_FOLDER = "code", "selftest"
TEXT_FILES = (
    "include/{name}.h", "include/{name}_variants.h", "src/{name}.c", "lib/cmake/{name}/{name}Config.cmake",
    "lib/pkgconfig/{name}.pc", "stubs/{name}.pyi",
)  # fmt: skip
"""What is generated from an index for programs that call the bundle, by the bundle's name; each repeats the id."""
HASH_LENGTH = 16
"""Hex digits of the SHA-256 of a file in these folders that are its name."""
GLOBAL_SCRATCH, PROFILE_SCRATCH = ".global_scratch", ".profile_scratch"
"""Names of the two pointers that Triton appends to every kernel's arguments."""

POINTER = "*"
"""What the type of a kernarg that is a pointer begins with."""
TENSOR_MAP, TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = "tensormap", 128, 64
"""The type of a kernarg that is a tensor map of CUDA (`CUtensorMap`), which is passed by value; its size, and what its
address is a multiple of."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of an index: what 64 bits hold."""


class Infinity(msgspec.Struct, frozen=True):
    """How the index spells the float that it is the name of: JSON has no number for it."""

    float: Literal["inf", "-inf"]


Value = bool | Int | float | str
if TYPE_CHECKING:
    StoredValue = Value
    _Limit = float | None
else:  # what is in a file; `numbers` makes numbers of it
    StoredValue = Value | Infinity
    _Limit = float | None | Infinity


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of every record: immutable, and fields at their default are left out of the JSON."""


class Dim(Record, frozen=True):
    """One dim of a tensor: an expression, and whether an extent of 1 is broadcast to it."""

    extent: str
    broadcast: bool = False


class Offsets(Record, frozen=True):
    """An integer tensor's numbers, as far as the host has them, are 0 or more, none less than the one before, and at
    most the extent of the dim `into`; none is over the one before by more than the scalar `longest`, if that is named.
    """

    into: str
    longest: str = ""


class Tensor(Record, frozen=True):
    """A tensor argument.

    Attributes:
        dtype: a dtype's name, or a dtype variable of the op.
        role: `input`, `output` (allocated unless the caller gives it) or `inout` (updated in place).
        optional: the caller may leave it out.
        when: the output exists only where this holds; empty means always.
        contiguous: positions of the dims that are packed without gaps, innermost last.
        innermost: instead of `contiguous`, positions of the dims of which one has stride 1; new arrays take the first.
        align: whether the aligned specialisation asks for 16-byte alignment and strides divisible by 16 of it.
        large: the aligned specialisation takes it however far it reaches; its strides are 64 bits wide there too.
        offsets: what its numbers are, where they say where sequences begin and end.
        range: least and largest number that it may have, expressions of dims and scalars; empty: any.
        in_place: inputs that an output may be itself: the same address, shape and strides.
        zero: the output is zeroed, in stream order, before the first launch; it is packed, then.
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

    `default` is an expression; empty means that the caller must pass it.
    """

    name: str
    type: str
    default: str = ""
    choices: tuple[str, ...] = ()
    min: _Limit = None
    max: _Limit = None
    doc: str = ""


class DimLimit(Record, frozen=True):
    """The closed range of a dim's extent."""

    name: str
    min: Int = 1
    max: Int = 2**31 - 1
    doc: str = ""


class Axis(Record, frozen=True):
    """A compiled axis: the values that are built, and how a call picks one.

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
    """Scratch memory that the runtime provides for the duration of a call; its dtype may be a variable of the op."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    zero: bool = False


class Config(Record, frozen=True):
    """One tuned choice of a launch: constexprs and compiler options, and the calls that it serves."""

    name: str
    values: dict[str, StoredValue]
    options: dict[str, Value]
    when: str = ""


class Launch(Record, frozen=True):
    """One kernel launch of an op; `when` empty means always."""

    kernel: str
    grid: tuple[str, str, str]
    configs: tuple[Config, ...]
    when: str = ""


class Denied(Record, frozen=True):
    """Variants that were left out on purpose, with the reason that the manifest gives; empty where it gives none, as
    for those that it excludes or does not include."""

    when: str
    reason: str


class Op(Record, frozen=True):
    """An op's contract: all that a call is checked against and dispatched by.

    Attributes:
        divisible: dims whose extent the aligned specialisation asks to be a multiple of 16.
        wide_offsets: the kernel's offsets stay right beyond 2**31 elements.
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
    """How a tensor is cut into boxes that the hardware copies between global and shared memory.

    Attributes:
        dtype: of the elements.
        dims: positions of the tensor's dims, outermost first; the last has stride 1.
        box: extents of a box, in that order.
        swizzle: bytes of the pattern in which a box lies in shared memory; 0: none.
        nan: what lies beyond the tensor's ends is loaded as NaN, and else as 0.
    """

    dtype: str
    dims: tuple[Int, ...]
    box: tuple[Int, ...]
    swizzle: Int = 0
    nan: bool = False


class Kernarg(Record, frozen=True, array_like=True):
    """One field of the kernarg segment.

    Attributes:
        type: a scalar type, `*` and the pointee's dtype for a pointer, or `tensormap`.
        value: for a pointer the tensor's or workspace's name (`` for an unused scratch pointer), for a tensor map the
            tensor's name, else an expression.
        map: what a tensor map is made of besides the tensor's address, extents and strides.
    """

    name: str
    type: str
    offset: Int
    size: Int
    value: str = ""
    map: TensorMap | None = None

    @property
    def is_expression(self) -> bool:
        """Whether its value is computed, and is not a tensor, a workspace or scratch memory."""
        return self.map is None and not self.type.startswith(POINTER)


class Scratch(Record, frozen=True):
    """Scratch memory per workgroup that the compiled code itself asks for."""

    bytes: Int = 0
    alignment: Int = 1


class Resources(Record, frozen=True, array_like=True):
    """What the code object's own metadata says that a launch takes. A cubin does not record spills: None."""

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
    """One compiled kernel: where it stands on the op's axes, and everything that a launch of it needs.

    `axis_values` has the value of each dtype variable and axis. `early`: the kernel may begin before those that precede
    it on its stream have ended, for it waits for them itself (Triton's option `launch_pdl`).
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
    """One code object, or the vectors of a selftest case: its file in the bundle, its size and its sha256."""

    file: str
    size: Int
    sha256: str


class Case(Record, frozen=True):
    """A call of an op whose result is known.

    Attributes:
        vectors: the file with its inputs and expected outputs, see `bundle.vector_files`.
        bounds: tensor that the call writes to → the largest |result - expected| that passes.
        dtypes: dtype variable → dtype.
        scalars: those that the call passes; the others take their default.
        innermost: input → position of the dim that has stride 1, of those that may; by default the first of them.
    """

    op: str
    name: str
    vectors: Blob
    bounds: dict[str, float]
    dtypes: dict[str, str] = {}
    scalars: dict[str, StoredValue] = {}
    innermost: dict[str, Int] = {}


class Target(Record, frozen=True):
    """The architecture that every code object of the bundle is for."""

    arch: str
    backend: str
    warp_size: Int


class Index(Record, frozen=True):
    """What a bundle's index says, as a whole. `version` is what the manifest says; empty: nothing. `provenance` is what
    the build says of its inputs; None where it says nothing."""

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
    """The canonical JSON of records, or of plain data; infinite floats are as `Infinity` says."""
    plain = msgspec.json.encode(value, order="deterministic")  # where a float that is not finite is null
    return msgspec.json.encode(spelled(value), order="deterministic") if b"null" in plain else plain


def spelled(value: Any) -> Any:
    """Records, or plain data, with `Infinity` for each infinite float. Raises ValueError for NaN."""
    return _mapped(value, _spelled_float)


def _spelled_float(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise ValueError("NaN cannot be in an index")
    return Infinity("inf" if value > 0 else "-inf")


def numbers(value: Any) -> Any:
    """Records, or plain data, with the float for each `Infinity`."""
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
