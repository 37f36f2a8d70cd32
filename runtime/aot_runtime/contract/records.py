"""Records of the bundle's index, which the builder writes and the runtime reads.

An op's contract is data: expressions are text (see `expressions`) and names are identifiers. `index_file` encodes the
index as `bundle.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

INDEX = "bundle.json"


def signature_names(file: str) -> tuple[str, str]:
    """Return the names of the files with a file's signature by a key, and by sigstore, as its tools name it."""
    return f"{file}.sig", f"{file}.sigstore.json"


SIGNATURE, SIGSTORE = SIGNATURES = signature_names(INDEX)
"""Files in a bundle with the signatures of its index."""
CODE_FOLDER, SELFTEST_FOLDER = "code", "selftest"
TEXT_FILES = (
    "include/{name}.h", "include/{name}_variants.h", "src/{name}.c", "lib/cmake/{name}/{name}Config.cmake",
    "lib/pkgconfig/{name}.pc", "stubs/{name}.pyi",
)  # fmt: skip
"""Generated files for programs that call the bundle: C interface, build files, type stub. Each contains the id."""
HASH_LENGTH = 16
"""Length of the names of files in the two folders: the first hex digits of their SHA-256."""
GLOBAL_SCRATCH, PROFILE_SCRATCH = ".global_scratch", ".profile_scratch"
"""Names of the two pointers that Triton appends to every kernel's arguments."""

POINTER = "*"
"""Prefix of the types of pointer kernargs."""
TENSOR_MAP, TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = "tensormap", 128, 64
"""Kernarg type of a CUDA tensor map (`CUtensorMap`), which is passed by value; its size and its alignment in bytes."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A signed 64-bit integer."""


class Infinity(msgspec.Struct, frozen=True):
    """An infinite float in `bundle.json`: JSON has no number for it."""

    float: Literal["inf", "-inf"]


Value = bool | Int | float | str
if TYPE_CHECKING:
    StoredValue = Value
    _Limit = float | None
else:  # as in a file; `index_encoding.numbers` replaces each `Infinity` by its float
    StoredValue = Value | Infinity
    _Limit = float | None | Infinity


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. The JSON omits fields that have their default."""


class Dim(Record, frozen=True):
    """A dim of a tensor.

    Attributes:
        extent: an expression.
        broadcast: an argument may have extent 1 instead.
    """

    extent: str
    broadcast: bool = False


class Offsets(Record, frozen=True):
    """A constraint on the values of an integer tensor: offsets, non-decreasing from 0 or more.

    Calls check it if the values are in host memory.

    Attributes:
        into: the dim whose extent no offset exceeds.
        longest: the scalar that no difference of neighbours exceeds; empty if there is no such limit.
    """

    into: str
    longest: str = ""


class Tensor(Record, frozen=True):
    """A tensor argument.

    Attributes:
        dtype: a dtype's name, or a dtype variable of the op.
        also_int64: an input of int32 may be passed as int64. Kernels get the address and strides of its low halves.
        role: `input`, `output` (allocated unless the caller gives it) or `inout` (updated in place).
        optional: the caller may omit it.
        when: condition under which the output exists; empty: always.
        contiguous: positions of the dims that are packed without gaps, innermost last.
        innermost: alternative to `contiguous`: one of these dims has stride 1. New arrays take the first.
        align: aligned variants require that the address of this tensor is a multiple of 16 bytes.
        align_strides: they require the same of its strides.
        large: aligned variants accept this tensor at any size; its strides are 64 bits wide in them.
        offsets: constraint on the values of a tensor that holds where sequences begin and end.
        range: least and largest allowed value, expressions of dims and scalars; empty: no limit.
        in_place: inputs that may be passed as this output: same address, shape and strides.
        zero: the output is packed, and is zeroed in stream order before the first launch.
        pointer: an array of any shape, which may overlap others: the kernel's own arguments say how it lies.
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
    align_strides: bool = True
    large: bool = False
    offsets: Offsets | None = None
    range: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    zero: bool = False
    pointer: bool = False
    also_int64: bool = False
    doc: str = ""

    @property
    def is_required(self) -> bool:
        """True if every call has the tensor."""
        return not self.optional and not self.when


class Scalar(Record, frozen=True):
    """A scalar argument.

    Attributes:
        type: a kernarg type, `flag` (bool) or `choice` (one of `choices`).
        default: an expression; empty if the scalar is required.
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
    """A constexpr with a fixed set of compiled values, from which each call picks one.

    Attributes:
        pick: the expression that a call evaluates.
        rule: `equal` picks the value of `pick`; `>=` or `>` the smallest value that is >= or > it; `<=` or `<` the
            largest that is <= or < it.
    """

    name: str
    values: tuple[StoredValue, ...]
    pick: str
    rule: str = "equal"


class Derived(Record, frozen=True):
    """A named expression of a call's dims and scalars."""

    name: str
    value: str


class Alternatives(Record, frozen=True):
    """A named number that a call chooses by cost.

    Attributes:
        values: expressions. The call takes the one with which its launches cost the least; of equal ones, the first.
    """

    name: str
    values: tuple[str, ...]


class Workspace(Record, frozen=True):
    """Scratch memory that the runtime provides for the duration of a call.

    Attributes:
        dtype: a dtype's name, or a dtype variable of the op.
        zero: the memory is zeroed before the first launch.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    zero: bool = False


class Config(Record, frozen=True):
    """A tuned configuration of a launch.

    Attributes:
        values: the constexprs that it sets.
        options: compiler options.
        when: condition on the calls that it serves; empty: all.
        cost: expression of the launch's time in microseconds; empty: unknown. See `Launch`.
    """

    name: str
    values: dict[str, StoredValue]
    options: dict[str, Value]
    when: str = ""
    cost: str = ""


class Launch(Record, frozen=True):
    """A kernel launch of an op.

    A call takes the first config that serves it; if that has a cost, the cheapest of those that serve it and have one.

    Attributes:
        grid: expressions of the workgroups along x, y and z.
        when: condition under which calls make the launch; empty: always.
    """

    kernel: str
    grid: tuple[str, str, str]
    configs: tuple[Config, ...]
    when: str = ""


class Denied(Record, frozen=True):
    """Variants that the manifest leaves out.

    Attributes:
        when: condition that they meet.
        reason: the manifest's reason; empty if it gives none, as for `exclude`, `include` and `specialisations`.
    """

    when: str
    reason: str


class Divisible(Record, frozen=True):
    """A dim whose extent the aligned variants take to be a multiple of a number: see `layout.divisors`.

    Attributes:
        elements: the number; 0: the elements that 16 bytes hold of the tensor with the smallest ones in `tensors`.
        tensors: names of tensors with that dim that every call has.
    """

    dim: str
    elements: Int = 0
    tensors: tuple[str, ...] = ()


class Op(Record, frozen=True):
    """The contract of an op, by which calls are checked and dispatched.

    Attributes:
        dtypes: dtype variable → its dtypes.
        require: conditions on every call.
        divisible: dims whose extents must be multiples of a number for the aligned variants.
        wide_offsets: the kernel computes offsets in 64 bits, so tensors may exceed 2**31 elements.
    """

    name: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    launches: tuple[Launch, ...]
    dims: tuple[DimLimit, ...] = ()
    dtypes: dict[str, tuple[str, ...]] = {}
    axes: tuple[Axis, ...] = ()
    derived: tuple[Derived, ...] = ()
    alternatives: tuple[Alternatives, ...] = ()
    require: tuple[str, ...] = ()
    divisible: tuple[Divisible, ...] = ()
    workspace: tuple[Workspace, ...] = ()
    denied: tuple[Denied, ...] = ()
    wide_offsets: bool = False
    doc: str = ""
    reference: str = ""


class TensorMap(Record, frozen=True, array_like=True):
    """The boxes of a tensor that the hardware copies between global and shared memory.

    Attributes:
        dtype: dtype of the elements.
        dims: positions of the tensor's dims, outermost first; the last has stride 1.
        box: extents of a box, in the order of `dims`.
        swizzle: width in bytes of the swizzle pattern in shared memory; 0: none.
        nan: out-of-bounds elements load as NaN instead of 0.
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
        value: the name of a pointer's tensor or workspace (empty for an unused scratch pointer) or of a tensor map's
            tensor; an expression for any other type.
        map: the boxes of a tensor map; None for any other type.
    """

    name: str
    type: str
    offset: Int
    size: Int
    value: str = ""
    map: TensorMap | None = None

    @property
    def is_expression(self) -> bool:
        """True if the value is a computed scalar, not a tensor, workspace or scratch pointer."""
        return self.map is None and not self.type.startswith(POINTER)


class Scratch(Record, frozen=True):
    """Scratch memory per workgroup that the compiled kernel requires."""

    bytes: Int = 0
    alignment: Int = 1


class Resources(Record, frozen=True, array_like=True):
    """Registers, memory and occupancy of a kernel, from the code object's metadata.

    Spills are None for a cubin, which does not record them.
    """

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
    """A compiled kernel: its values of the op's axes, and everything that launching it needs.

    Attributes:
        launch: position in `Op.launches`.
        axis_values: the value of each dtype variable and axis.
        aligned: compiled for aligned arguments; see `Tensor.align`.
        config: position in `Launch.configs`.
        code: key of the code object in `Index.blobs`.
        early: the kernel may start before its predecessors on the stream have ended, as it waits for them itself
            (Triton's option `launch_pdl`).
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
    """A file of the bundle: a code object, or the vectors of a selftest case."""

    file: str
    size: Int
    sha256: str


class Case(Record, frozen=True):
    """A selftest case: a call of an op with its expected results.

    Attributes:
        vectors: file with the inputs and expected outputs; see `bundle.vector_files`.
        bounds: written tensor → largest |result - expected| that passes.
        dtypes: dtype variable → dtype.
        scalars: the scalars that the call passes.
        innermost: input → position of the dim with stride 1; defaults to the first of `Tensor.innermost`.
    """

    op: str
    name: str
    vectors: Blob
    bounds: dict[str, float]
    dtypes: dict[str, str] = {}
    scalars: dict[str, StoredValue] = {}
    innermost: dict[str, Int] = {}


class Target(Record, frozen=True):
    """The architecture of all code objects of the bundle."""

    arch: str
    backend: str
    warp_size: Int


NO_PROVENANCE = msgspec.Raw()


class Index(Record, frozen=True):
    """The index of a bundle.

    Attributes:
        format: version of the format that it was written in.
        oldest_reader: oldest version of the format whose readers understand it.
        toolchain: component → version.
        blobs: code objects by key.
        version: the manifest's version; empty if it has none.
        provenance: JSON of the inputs of the build, see `provenance`; empty if they were not recorded.
    """

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
    provenance: msgspec.Raw = NO_PROVENANCE
