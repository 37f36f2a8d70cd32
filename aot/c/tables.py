"""Write an op's contract and variants as the C tables that `support/tables.h` defines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES, FLAG_TYPES, SCALAR_TYPES, UINT64
from aot_runtime.contract.layout import allowed_dtypes
from aot_runtime.contract.names import axis_names, config_names
from aot_runtime.contract.records import GLOBAL_SCRATCH
from aot_runtime.contract.tensor_maps import SWIZZLES

from .c_names import argument_names
from .dtypes import DTYPE_NUMBERS, enumerator
from .expressions import Functions
from .slots import OpSlots, Slots
from .spelling import integer, string

_ROLES = {"input": "AOT_INPUT", "output": "AOT_OUTPUT", "inout": "AOT_INOUT"}
_RULES = {
    "equal": "AOT_EQUAL", ">=": "AOT_SMALLEST_GE", ">": "AOT_SMALLEST_GT", "<=": "AOT_LARGEST_LE",
    "<": "AOT_LARGEST_LT",
}  # fmt: skip
KEY_EXTRAS = 3
"""Bytes of a variant's key besides those of dtypes and axes: launch, specialisation, config."""


class OpTables:
    """Writer of the tables of one op.

    Args:
        variants: the op's variants, each with its name and the position of its code object.
        function: the name of its C function.
    """

    def __init__(
        self, op: records.Op, target: records.Target, variants: Sequence[tuple[str, records.Variant, int]],
        functions: Functions, slots: Slots, function: str, number: int, key_bytes: int,
    ):  # fmt: skip
        self.op, self.functions, self.function, self.key_bytes = op, functions, function, key_bytes
        self.prefix = f"aot_op{number}"
        self.scope = OpSlots(op, (variant for _, variant, _ in variants), target, slots)
        self.positions = {tensor.name: i for i, tensor in enumerate(op.tensors)}
        self.variables = {name: i for i, name in enumerate(op.dtypes)}
        self.spaces = {space.name: i for i, space in enumerate(op.workspace)}
        self.layouts: dict[tuple[records.Kernarg, ...], int] = {}
        for _, variant, _ in variants:
            self.layouts.setdefault(variant.kernargs, len(self.layouts))
        self.variants = sorted((self._key(variant), name, variant, code) for name, variant, code in variants)
        self.lines: list[str] = []

    def write(self, signature: str) -> str:
        """Append all tables to `lines`, and return the initialiser of the op."""
        op, scope = self.op, self.scope
        tables: dict[str, list[str]] = {
            "tensor_rule": self._tensors(),
            "dim_rule": self._dims(),
            "query": [f"{{{q.kind}, {q.slot}, {q.tensor}, {q.position}, {_bool(q.of_output)}}}" for q in scope.queries],
            "scalar_rule": self._scalars(),
            "requirement": self._requirements(),
            "derivation": [
                f"{{{string(item.name)}, {scope.slots[item.name]}, {self._function(item.value)}}}"
                for item in op.derived
            ],
            "alternative": self._alternatives(),
            "constant": [
                f"{{{scope.slots[name]}, {self.functions.constant(value)}}}" for name, value in scope.constants.items()
            ],
            "dtype_variable": self._variables(),
            "axis": self._axes(),
            "divisible": self._divisible(),
            "workspace": self._workspaces(),
            "launch": self._launches(),
            "layout": self._layouts(),
            "variant": self._variants(),
        }
        names = [self._array(f"aot_{kind}", f"{kind}s", rows) for kind, rows in tables.items()]
        counts = [len(rows) for kind, rows in tables.items() if kind != "layout"]
        numbers = [*counts, *(scope.slots[name] for name in ("extent", "aligned", "num_cus", "num_xcds"))]
        return (
            f"{{{string(op.name)}, {signature}, {', '.join(names)},\n     {', '.join(map(str, numbers))}, "
            f"{_bool(op.wide_offsets)},\n     {string(self._built())}}}"
        )

    def _array(self, kind: str, name: str, rows: Iterable[str]) -> str:
        listed = list(rows)
        if not listed:
            return "NULL"
        full = f"{self.prefix}_{name}"
        self.lines += [f"static const {kind} {full}[] = {{", *(f"    {row}," for row in listed), "};"]
        return full

    def _function(self, text: str) -> str:
        return self.functions.function(text, self.scope.code)

    def _optional(self, text: str) -> str:
        return self.functions.optional(text, self.scope.code)

    # Arguments

    def _tensors(self) -> list[str]:
        first = {tensor.dtype: i for i, tensor in reversed([*enumerate(self.op.tensors)])
                 if tensor.role != "output" and not tensor.optional}  # fmt: skip
        rows = []
        for i, tensor in enumerate(self.op.tensors):
            allowed = allowed_dtypes(self.op, tensor)
            bits = sum(1 << DTYPE_NUMBERS[dtype] for dtype in allowed)
            variable = self.variables.get(tensor.dtype, -1)
            like = first[tensor.dtype] if variable >= 0 and tensor.role == "output" else -1
            in_place = sum(1 << self.positions[name] for name in tensor.in_place)
            given = (tensor.optional, tensor.align, tensor.align_strides, tensor.large, tensor.zero, tensor.also_int64)
            flags = ", ".join(map(_bool, given))
            rows.append(
                f"{{{string(tensor.name)}, {string(shape_text(tensor))}, {string(', '.join(allowed))}, {bits}u, "
                f"{variable}, {like}, {_ROLES[tensor.role]}, {flags}, {-1 if tensor.pointer else len(tensor.shape)}, "
                f"{self._array('aot_extent', f'extents{i}', self._extents(tensor))}, "
                f"{self._ends(f'contiguous{i}', tensor.contiguous)}, {self._ends(f'innermost{i}', tensor.innermost)}, "
                f"UINT64_C({in_place}), {string(tensor.when)}, {self._optional(tensor.when)}}}"
            )
        return rows

    def _extents(self, tensor: records.Tensor) -> Iterable[str]:
        for position, dim in enumerate(tensor.shape):
            source = self.scope.dims.get(dim.extent)
            is_source = source is not None and (source.tensor, source.position) == (tensor.name, position)
            value = self._function(dim.extent)
            yield f"{{{string(dim.extent)}, {value}, {_bool(dim.broadcast)}, {_bool(is_source)}}}"

    def _ends(self, name: str, positions: Iterable[int]) -> str:
        return self._array("signed char", name, [", ".join(map(str, (*positions, -1)))])

    def _dims(self) -> list[str]:
        limits = {limit.name: (limit.min, limit.max) for limit in self.op.dims}
        rows = []
        for name, source in self.scope.dims.items():
            inverse = "NULL" if source.inverse == "extent" else self._function(source.inverse)
            low, high = limits.get(name, (1, 2**31 - 1))
            rows.append(
                f"{{{string(name)}, {self.scope.slots[name]}, {self.positions[source.tensor]}, {source.position}, "
                f"{inverse}, {integer(low)}, {integer(high)}}}"
            )
        return rows

    def _divisible(self) -> list[str]:
        return [
            f"{{{self.scope.slots[item.dim]}, {item.elements}, "
            f"{self._ends(f'sizes{i}', (self.positions[name] for name in item.tensors))}}}"
            for i, item in enumerate(self.op.divisible)
        ]

    def _scalars(self) -> list[str]:
        members = argument_names(self.op)
        rows = []
        for i, scalar in enumerate(self.op.scalars):
            low, high, allowed = scalar_range(scalar)
            limits = ", ".join(self.functions.constant(0 if limit is None else limit) for limit in (low, high))
            choices = [str(self.functions.texts.position(choice)) for choice in scalar.choices]
            rows.append(
                f"{{{string(scalar.name)}, {string(allowed)}, {enumerator(scalar.type)}, "
                f"{self.scope.slots[scalar.name]}, offsetof({self.function}_args, {members[scalar.name]}), "
                f"{_bool(low is not None)}, {_bool(high is not None)}, {limits}, {self._optional(scalar.default)}, "
                f"{self._array('int', f'choices{i}', choices)}, {len(choices)}}}"
            )
        return rows

    def _requirements(self) -> list[str]:
        rows = []
        for i, text in enumerate(self.op.require):
            names = self.scope.named(text)
            listed = self._array("aot_named", f"required{i}", (f"{{{string(n)}, {slot}}}" for n, slot in names))
            rows.append(f"{{{string(text)}, {self._function(text)}, {listed}, {len(names)}}}")
        return rows

    # Choices

    def _variables(self) -> list[str]:
        rows = []
        for name, i in self.variables.items():
            dtypes = [enumerator(dtype) for dtype in self.op.dtypes[name]]
            listed = self._array("aot_dtype", f"dtypes{i}", dtypes)
            rows.append(f"{{{string(name)}, {self.scope.slots[name]}, {listed}, {len(dtypes)}}}")
        return rows

    def _alternatives(self) -> list[str]:
        rows = []
        for i, item in enumerate(self.op.alternatives):
            values = self._array("aot_expression", f"alternative{i}", map(self._function, item.values))
            rows.append(f"{{{string(item.name)}, {self.scope.slots[item.name]}, {values}, {len(item.values)}}}")
        return rows

    def _axes(self) -> list[str]:
        rows = []
        for i, axis in enumerate(self.op.axes):
            wanted = axis.pick if axis.rule == "equal" else f"{axis.rule} {axis.pick}"
            values = self._array("aot_value", f"values{i}", map(self.functions.constant, axis.values))
            rows.append(
                f"{{{string(axis.name)}, {string(wanted)}, {string(', '.join(map(str, axis.values)))}, "
                f"{self.scope.slots[axis.name]}, {_RULES[axis.rule]}, {self._function(axis.pick)}, {values}, "
                f"{len(axis.values)}}}"
            )
        return rows

    def _workspaces(self) -> list[str]:
        rows = []
        for i, space in enumerate(self.op.workspace):
            shape = self._array("aot_expression", f"shape{i}", map(self._function, space.shape))
            size = DTYPES[space.dtype].size if space.dtype in DTYPES else 0
            variable = self.variables.get(space.dtype, -1)
            rows.append(
                f"{{{string(space.name)}, {shape}, {len(space.shape)}, {size}, {variable}, {_bool(space.zero)}}}"
            )
        return rows

    def _launches(self) -> list[str]:
        rows = []
        for i, launch in enumerate(self.op.launches):
            names = config_names(launch)
            configs = []
            for n, config in enumerate(launch.configs):
                values = (self.functions.constant(config.values[name]) for name in names)
                conditions = ", ".join(map(self._optional, (config.when, config.cost)))
                configs.append(f"{{{conditions}, {self._array('aot_value', f'config{i}_{n}', values)}}}")
            slots = self._array("int", f"slots{i}", (str(self.scope.slots[name]) for name in names))
            grid = ", ".join(map(self._function, launch.grid))
            rows.append(
                f"{{{string(launch.kernel)}, {self._optional(launch.when)}, {{{grid}}}, {slots}, {len(names)}, "
                f"{self._array('aot_config', f'configs{i}', configs)}, {len(configs)}}}"
            )
        return rows

    # Variants

    def _layouts(self) -> list[str]:
        rows = []
        for kernargs, i in self.layouts.items():
            args = [self._kernarg(arg, f"map{i}_{n}") for n, arg in enumerate(kernargs)]
            rows.append(f"{{{self._array('aot_kernarg', f'kernargs{i}', args)}, {len(kernargs)}}}")
        return rows

    def _kernarg(self, arg: records.Kernarg, map_name: str) -> str:
        source, index, kind, value, tensor_map = "AOT_OF_VALUE", 0, enumerator(UINT64.triton), "NULL", "NULL"
        if arg.map is not None:
            source, index = "AOT_OF_MAP", self.positions[arg.value]
            tensor_map = self._array("aot_map", map_name, [_map(arg.map)])
        elif arg.is_expression:
            kind, value = enumerator(arg.type), self._function(arg.value)
        elif arg.value in self.positions:
            source, index = "AOT_OF_TENSOR", self.positions[arg.value]
        elif arg.value in self.spaces:
            source, index = "AOT_OF_WORKSPACE", self.spaces[arg.value]
        else:
            source = "AOT_OF_GLOBAL" if arg.name == GLOBAL_SCRATCH else "AOT_OF_PROFILE"
        texts = f"{string(arg.name)}, {string(arg.value)}"
        return f"{{{texts}, {source}, {kind}, {index}, {value}, {tensor_map}, {arg.offset}u}}"

    def _key(self, variant: records.Variant) -> tuple[int, ...]:
        points = [values.index(variant.axis_values[name]) for name, values in self._point_values.items()]
        used = [variant.launch, *points]
        padding = [0] * (self.key_bytes - 2 - len(used))
        return (*used, *padding, int(variant.aligned), variant.config)

    @cached_property
    def _point_values(self) -> dict[str, tuple[records.Value, ...]]:
        return {**self.op.dtypes, **{axis.name: axis.values for axis in self.op.axes}}

    def _variants(self) -> list[str]:
        return [
            f"{{{{{', '.join(map(str, key))}}}, {string(name)}, {string(variant.symbol)}, {code}, "
            f"{self.layouts[variant.kernargs]}, {variant.num_warps * variant.warp_size}, {variant.lds_bytes}, "
            f"{variant.kernarg_bytes}, {variant.global_scratch.bytes}, {variant.profile_scratch.bytes}, "
            f"{max(variant.global_scratch.alignment, variant.profile_scratch.alignment)}}}"
            for key, name, variant, code in self.variants
        ]

    def _built(self) -> str:
        there = {
            name: sorted({variant.axis_values[name] for _, _, variant, _ in self.variants}, key=str)
            for name in axis_names(self.op)
        }
        listed = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in there.items())
        return listed + "".join(f"\n  left out: {item.when}: {item.reason}" for item in self.op.denied if item.reason)


def _map(tensor_map: records.TensorMap) -> str:
    swizzle, fill = SWIZZLES.index(tensor_map.swizzle), int(tensor_map.nan)
    dims, box = (", ".join(map(str, row)) for row in (tensor_map.dims, tensor_map.box))
    return f"{{{DTYPES[tensor_map.dtype].tensor_map}, {len(tensor_map.box)}, {swizzle}, {fill}, {{{dims}}}, {{{box}}}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def shape_text(tensor: records.Tensor) -> str:
    """Return a tensor's shape as shown in messages and comments."""
    if tensor.pointer:
        return "of any shape"
    return "[" + ", ".join(dim.extent + ("|1" if dim.broadcast else "") for dim in tensor.shape) + "]"


def scalar_range(scalar: records.Scalar) -> tuple[float | None, float | None, str]:
    """Return (smallest, largest) allowed value of a scalar, and a description of the allowed values."""
    if scalar.type in ("choice", *FLAG_TYPES):
        return None, None, ", ".join(scalar.choices)
    kind = SCALAR_TYPES[scalar.type]
    low = max((limit for limit in (kind.low, scalar.min) if limit is not None), default=None)
    high = min((limit for limit in (kind.high, scalar.max) if limit is not None), default=None)
    words = f"{'-inf' if low is None else low} to {'inf' if high is None else high} ({scalar.type})"
    return low, high, words
