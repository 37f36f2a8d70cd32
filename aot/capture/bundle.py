"""A manifest from a capture file: an op for each kernel, which takes Triton's own arguments.

A pointer is an array of any shape; numbers and constexprs are scalars, which a call passes as a launch does. Constexprs
that an autotuner set are not among them. Each captured variant is a config whose signature and constants are those that
Triton compiled; a call gets the most specialised one that is right for it. The caller gives the grid.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aot.manifest.schema import NAME
from aot.manifest.yaml_text import flow
from aot.plan.specialisations import DIVISIBLE, RANGED
from aot.source.constants import LAYOUTS
from aot_capture.records import Capture, Function, Kernel, Launch, read_capture
from aot_runtime.contract.dtypes import DTYPES, FLOAT_TYPES, INTEGER_TYPES, SCALAR_TYPES
from aot_runtime.contract.manifest_rules import RESERVED_OPS
from aot_runtime.contract.names import RESERVED

from .kernel_files import PREFIX, KernelFiles, UnsupportedError
from .launch_functions import function_expressions
from .sources import with_sources

Json = Any
Path_ = tuple[int, ...]
MANIFEST = "manifest.yaml"
GRID = ("grid_x", "grid_y", "grid_z")
_HINTS = {"tt.divisibility": DIVISIBLE, "tt.pointer_range": RANGED}
_DTYPES = {dtype.triton: name for name, dtype in DTYPES.items()}
_LOWEST = {
    **{name: str(kind.low) for name, kind in SCALAR_TYPES.items() if kind.low is not None},
    **dict.fromkeys(FLOAT_TYPES, "-1e999"),
}
"""The value of a number that stands for None."""
_ALWAYS_OPTIONS = ("num_warps",)
_DEFAULT_OPTIONS = ("num_warps", "num_stages", "num_ctas")
"""Options that are kept where the capture does not know which the launch itself gave."""


@dataclass(frozen=True)
class CapturedManifest:
    """A manifest that was written, its ops, and the captured kernels that it leaves out, each with the reason."""

    path: Path
    ops: tuple[str, ...]
    left_out: tuple[str, ...]


def manifest_of(capture_file: Path | str, folder: Path, sources: Path | None = None) -> CapturedManifest:
    """Write the kernels of a capture, and a manifest of them, to a folder.

    Args:
        capture_file: what `aotbuild capture` wrote.
        folder: an empty folder, or one that this function wrote before.
        sources: where the program's files lie, for a capture without sources. Defaults to where they were captured.

    Raises:
        CaptureError: the file is not a capture.
    """
    capture = with_sources(read_capture(capture_file), sources)
    files = KernelFiles(capture)
    ops: dict[str, dict[str, Any]] = {}
    left_out = [f"{item.name}: {item.reason}" for item in capture.unrecorded]
    for name, function, kernels in _kernels(capture):
        try:
            ops[name] = _Op(capture, files, function, kernels).spec()
        except UnsupportedError as error:
            left_out.append(f"{name}: {error}")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PREFIX}*.py"):
        old.unlink()
    for file, text in files.texts().items():
        (folder / file).write_text(text)
    bundle = _name(Path(capture_file).stem, frozenset()) or "captured"
    lines = [f"bundle: {bundle}", "root: .", "ops:" if ops else "ops: {}"]
    for name, spec in ops.items():
        lines += _op_lines(name, spec)
    path = folder / MANIFEST
    path.write_text("\n".join(lines) + "\n")
    return CapturedManifest(path, tuple(ops), tuple(left_out))


def _kernels(capture: Capture) -> Iterator[tuple[str, Function, list[Kernel]]]:
    """Yield (name of its op, function, its kernels) of each captured kernel function."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in capture.kernels:
        groups.setdefault(kernel.function, []).append(kernel)
    taken: set[str] = set(RESERVED_OPS) | RESERVED
    counts = Counter(capture.functions[function].name for function in groups)
    for function, kernels in groups.items():
        record = capture.functions[function]
        module = record.module.rpartition(".")[2]
        name = _name(record.name if counts[record.name] == 1 else f"{module}_{record.name}", taken)
        taken.add(name)
        yield name, record, kernels


def _name(text: str, taken: Iterable[str]) -> str:
    """Return a name that manifests allow and that is not taken, like `text`."""
    name = re.sub(r"_+", "_", re.sub(r"\W", "_", text, flags=re.ASCII)).strip("_")
    name = name if re.match(NAME, name) else f"arg_{name}" if name else "arg"
    candidates = (name, f"{name}_arg", *(f"{name}_{number}" for number in range(2, 1000)))
    return next(item for item in candidates if item not in taken)


def _op_lines(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {name}:"
    for key, value in spec.items():
        if key == "launches":
            (launch,) = value
            yield "    launches:"
            for number, (part, item) in enumerate(launch.items()):
                head = "      - " if number == 0 else "        "
                if part == "configs":
                    yield f"{head}{part}:"
                    yield from (f"          - {flow(config)}" for config in item)
                else:
                    yield f"{head}{part}: {flow(item)}"
        elif isinstance(value, dict) and key in ("tensors", "scalars"):
            yield f"    {key}:"
            yield from (f"      {item}: {flow(content)}" for item, content in value.items())
        else:
            yield f"    {key}: {flow(value)}"


@dataclass(frozen=True)
class _Variant:
    """A captured specialisation: the type or constant of each parameter, or of each element of a tuple.

    Attributes:
        types: name of a run-time parameter → its type and hints: `*fp16:16`.
        constants: name of a parameter that is a constant → its value as recorded.
        options: the compiler options that the launch gave.
        when: condition on the calls that an autotuner chose it for; empty: none.
    """

    types: Mapping[str, str]
    constants: Mapping[str, Json]
    options: Mapping[str, Any]
    when: str = ""


def _variant(function: Function, kernel: Kernel) -> _Variant:
    constants = {tuple(path): value for path, value in kernel.constants}
    hints: dict[Path_, str] = {}
    for path, attributes in kernel.attributes:
        names = [_attribute(item) for item in _items(attributes)]
        hints[tuple(path)] = "".join(f":{_HINTS[name]}" for name in names if name in _HINTS)
    types, values = {}, {}
    for number, (name, kind) in enumerate(kernel.signature.items()):
        for path, leaf, type_name in _leaves((number,), name, kind):
            if path in constants:
                values[leaf] = constants[path]
            elif type_name == "constexpr":
                values[leaf] = _part(constants, path)
            else:
                types[leaf] = _type(function, leaf, type_name) + hints.get(path, "")
    given = kernel.given or {name: kernel.options[name] for name in _DEFAULT_OPTIONS if name in kernel.options}
    given = {**{name: kernel.options[name] for name in _ALWAYS_OPTIONS if name in kernel.options}, **given}
    options = {name: value for name, value in given.items() if name not in _NOT_OPTIONS and _is_option(value)}
    return _Variant(types, values, options)


_NOT_OPTIONS = frozenset(
    {"arch", "debug", "instrumentation_mode", "sanitize_overflow", "extern_libs", "launch_metadata"}
)


def _is_option(value: Json) -> bool:
    """Return True for the value of an option that is not merely switched off."""
    return isinstance(value, int | str) and value is not False and value != ""


def _items(value: Json) -> list[Json]:
    return next(iter(value.values())) if isinstance(value, dict) else value


def _attribute(value: Json) -> str:
    name, number = _items(value)
    expected = {"tt.divisibility": 16, "tt.pointer_range": 32}
    if expected.get(name) != number:
        raise UnsupportedError(f"the attribute {name} = {number} is not supported")
    return name


def _leaves(path: Path_, name: str, kind: Json) -> Iterator[tuple[Path_, str, str]]:
    """Yield (path, name, type) of a parameter, or of each element if it is a tuple."""
    if isinstance(kind, str):
        yield path, name, kind
        return
    elements = kind.get("tuple", kind.get("list")) if isinstance(kind, dict) else None
    if elements is None and isinstance(kind, dict) and "namedtuple" in kind:
        elements = kind["namedtuple"][3]
    if elements is None:
        raise UnsupportedError(f"the type of parameter '{name}' is not supported: {str(kind)[:60]}")
    for number, element in enumerate(elements):
        yield from _leaves((*path, number), f"{name}.{number}", element)


def _part(constants: Mapping[Path_, Json], path: Path_) -> Json:
    """Return a constant, which may lie in that of a tuple around it; None is not recorded by all versions of Triton."""
    for length in range(len(path) - 1, 0, -1):
        if path[:length] in constants:
            value = constants[path[:length]]
            for number in path[length:]:
                value = _items(value)[number]
            return value
    return None


def _type(function: Function, name: str, type_name: str) -> str:
    text = type_name.replace("*k", "*", 1) if type_name.startswith("*k") else type_name
    text = "i1" if text == "u1" else text
    known = _DTYPES if text.startswith("*") else dict.fromkeys((*INTEGER_TYPES, *FLOAT_TYPES, "i1"))
    if text.removeprefix("*") not in known:
        raise UnsupportedError(f"parameter '{name}' of '{function.name}' is {type_name}, which is not supported")
    return text


class _Op:
    """An op of one kernel function."""

    def __init__(self, capture: Capture, files: KernelFiles, function: Function, kernels: Sequence[Kernel]):
        self.capture, self.files, self.function = capture, files, function
        every = [_variant(function, kernel) for kernel in kernels]
        self.launches = _launches(capture, kernels)
        self.autotunes = [item for item in capture.autotunes if item.function == function.id]
        self.tuned = frozenset(name for item in self.launches for name in item.tuned)
        self.variants = self._winners(every)
        self.leaves = list(dict.fromkeys(leaf for item in every for leaf in (*item.types, *item.constants)))
        self.order = {name: number for number, name in enumerate(kernels[0].signature)}
        self.leaves.sort(key=lambda leaf: self.order[leaf.partition(".")[0]])
        if len(kernels[0].target) == 3 and not self.variants:
            raise UnsupportedError("no variant is left")

    # Autotuning

    def _winners(self, variants: Sequence[_Variant]) -> list[_Variant]:
        """Return the variants without those that an autotuner measured but never chose."""
        distinct = list({repr(item): item for item in variants}.values())
        if not self.tuned:
            return distinct
        groups: dict[str, list[_Variant]] = {}
        for item in distinct:
            call = {name: value for name, value in item.constants.items() if name not in self.tuned}
            groups.setdefault(repr((sorted(item.types.items()), sorted(call.items(), key=str))), []).append(item)
        return [item for group in groups.values() for item in self._chosen_of(group)]

    def _chosen_of(self, group: Sequence[_Variant]) -> Iterator[_Variant]:
        """Yield the variants that were chosen for single keys, then, for others, the one that was chosen most often.

        Without results, as of a capture without a GPU, it is the one that was captured first.
        """
        wins = Counter[int]()
        by_key: dict[str, int] = {}
        for item in self.autotunes:
            best = next((config for config in item.configs if config[2] == item.best), None)
            number = next((n for n, one in enumerate(group) if best is not None and _has_config(one, best)), None)
            if number is not None and _has_dtypes(group[0], item.key):
                wins[number] += 1
                if (when := self._key_condition(group[0], item.key)) is not None:
                    by_key[when] = number
        usual = wins.most_common(1)[0][0] if wins else 0
        for when, number in by_key.items():
            if number != usual:
                yield replace(group[number], when=when)
        yield group[usual]

    def _key_condition(self, variant: _Variant, key: Json) -> str | None:
        """Return the condition that a call has a key's numbers; None if the variant is not for such calls."""
        names = next((item.tuning_keys for item in self.launches if item.tuning_keys), [])
        parts = []
        for name, value in zip(names, _items(key), strict=False):
            text = variant.types.get(name, "")
            is_number = type(value) is int and text.startswith(INTEGER_TYPES)
            if is_number and text.endswith(f":{DIVISIBLE}") and value % int(DIVISIBLE):
                return None
            if name in variant.constants and variant.constants[name] != value:
                return None
            if is_number:
                parts.append(f"{_name(name, RESERVED)} == {value}")
        return " and ".join(parts) or None

    # The parts of the op

    @cached_property
    def declared(self) -> frozenset[str]:
        """The parameters annotated as constexprs."""
        source = self.function.source
        if source is None:
            raise UnsupportedError("its source was not recorded (--no-source)")
        arguments = ast.parse(source).body[0].args  # type: ignore[attr-defined]
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return frozenset(item.arg for item in every if item.annotation and "constexpr" in ast.unparse(item.annotation))

    def spec(self) -> dict[str, Any]:
        """Return the op as a manifest has it."""
        module, name = self.files.place(self.function.id)
        self._sort_leaves()
        self.grid = self._grid()
        variables = self._variables()
        tensors = {
            self.names[leaf]: {"pointer": True, "dtype": self._dtype(leaf, variables)}
            | ({"optional": True, "nullable": True} if self._may_be_absent(leaf) else {})
            for leaf in self.pointers
        }
        if not tensors:
            raise UnsupportedError("no parameter is a pointer")
        spec: dict[str, Any] = {"doc": self._doc(), "tensors": tensors, "scalars": self._scalars()}
        dtypes = {name: self._values_of(vector) for vector, name in variables.items()}
        if dtypes:
            spec["dtypes"] = dtypes
        launch = {
            "kernel": f"{module}.py:{name}",
            "grid": self.grid,
            "bind": self._bind(),
            "configs": self._configs(),
        }
        if not launch["bind"]:
            del launch["bind"]
        return spec | {"specialisations": ["general"], "wide_offsets": True, "launches": [launch]}

    def _doc(self) -> str:
        number = len(self.variants)
        return (
            f"The Triton kernel {self.function.qualname} of {self.function.module}, in {number} captured "
            f"variant{'s' * (number != 1)}. Its arguments are the kernel's own; how far it reads and writes behind a "
            "pointer is not checked."
        )

    def _sort_leaves(self) -> None:
        """Divide the parameters into pointers, numbers, choices, and constants of every variant."""
        self.pointers: list[str] = []
        self.numbers: dict[str, str] = {}
        self.choices: dict[str, list[Json]] = {}
        self.fixed: dict[str, Json] = {}
        self.computed: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        for leaf in self.leaves:
            types = {item.types[leaf].partition(":")[0] for item in self.variants if leaf in item.types}
            values = [item.constants[leaf] for item in self.variants if leaf in item.constants]
            distinct = list({repr(value): value for value in values}.values())
            is_declared = leaf.partition(".")[0] in self.declared
            if leaf in self.heuristics and not types:
                self.computed[leaf] = ""
            elif types and all(name.startswith("*") for name in types) and all(value is None for value in values):
                self.pointers.append(leaf)
            elif (types or 1 in distinct) and not is_declared and all(value in (1, None) for value in values):
                self.numbers[leaf] = self._widest(leaf, types or {"i32"})
                if None in values:
                    self.absent[leaf] = _LOWEST[self.numbers[leaf]]
            elif types:
                raise UnsupportedError(f"parameter '{leaf}' is a number, a pointer or a constant by turns")
            elif distinct == [None] or leaf in self.tuned:
                self.fixed[leaf] = distinct[0]
            else:
                self.choices[leaf] = distinct
        self.options = self._varied_options()
        for leaf in list(self.computed):
            if self._heuristic(leaf, self.variants[0]) is None:  # the caller has to give it
                values = [item.constants[leaf] for item in self.variants if leaf in item.constants]
                self.choices[leaf] = list({repr(value): value for value in values}.values())
                del self.computed[leaf]

    @cached_property
    def heuristics(self) -> frozenset[str]:
        return frozenset(name for launch in self.launches for name in launch.heuristics)

    def _heuristic(self, leaf: str, variant: _Variant) -> str | None:
        """Return a heuristic as an expression of the call's arguments; None if it cannot be one."""
        functions = [launch.heuristics.get(leaf) for launch in self.launches]
        blocks = {name: repr(self._constant(variant.constants[name])) for name in self.tuned & variant.constants.keys()}
        found = function_expressions(functions, [launch.arguments for launch in self.launches], self._meanings | blocks)
        return found[0] if len(found) == 1 else None

    @property
    def _meanings(self) -> dict[str, str]:
        """The arguments of the kernel that an expression may read → their names in the op."""
        numeric = (leaf for leaf, values in self.choices.items() if _kind(values))
        leaves = (*self.pointers, *self.numbers, *numeric)
        return {leaf: _name(leaf.replace(".", "_"), RESERVED) for leaf in leaves}

    def _grid(self) -> list[str]:
        """Return the grid: expressions of the call's arguments and of blocks, and additional arguments for the rest."""
        found: list[str | None] = []
        if self.launches:
            meanings = self._meanings | {name: name for name in self.tuned}
            grids = [launch.grid for launch in self.launches]
            found = function_expressions(grids, [launch.arguments for launch in self.launches], meanings)
        if len(found) > len(GRID) or not found:
            found = [None] * len(GRID)
        return [self.names[axis] if text is None else text for axis, text in zip(GRID, found, strict=False)]

    def _varied_options(self) -> dict[str, list[Any]]:
        """Return the options in which variants differ that are otherwise equal. They become arguments of the op."""
        varied: set[str] = set()
        for one, other in itertools.combinations(self.variants, 2):
            if (one.types, one.constants) == (other.types, other.constants):
                names = one.options.keys() | other.options.keys()
                varied |= {name for name in names if one.options.get(name) != other.options.get(name)}
        if any(name not in item.options for name in varied for item in self.variants):
            raise UnsupportedError("an option is given by some launches only, and nothing else tells these apart")
        return {name: sorted({item.options[name] for item in self.variants}, key=str) for name in sorted(varied)}

    def _widest(self, leaf: str, types: set[str]) -> str:
        for kinds in (INTEGER_TYPES, FLOAT_TYPES, ("i1",)):
            if types <= set(kinds):
                return max(types, key=kinds.index)
        raise UnsupportedError(f"parameter '{leaf}' has the types {', '.join(sorted(types))} by turns")

    @cached_property
    def names(self) -> dict[str, str]:
        """Parameter, option or axis of the grid → name of the op's argument."""
        taken, names = set(RESERVED), {}
        for leaf in (*self.pointers, *self.numbers, *self.choices, *self.options, *GRID):
            names[leaf] = _name(leaf.replace(".", "_"), taken)
            taken.add(names[leaf])
        return names

    def _may_be_absent(self, leaf: str) -> bool:
        return any(leaf in item.constants for item in self.variants)

    def _vector(self, leaf: str) -> tuple[str, ...]:
        """Return the dtype of a pointer in each variant; empty where it is absent."""
        pointees = (item.types.get(leaf, "").partition(":")[0].removeprefix("*") for item in self.variants)
        return tuple(_DTYPES.get(pointee, "") for pointee in pointees)

    @staticmethod
    def _values_of(vector: Sequence[str]) -> list[str]:
        return [name for name in dict.fromkeys(vector) if name]

    def _variables(self) -> dict[tuple[str, ...], str]:
        """Return the dtypes, by variant, of pointers that have several → name of their dtype variable."""
        vectors = [self._vector(leaf) for leaf in self.pointers if not self._may_be_absent(leaf)]
        found = [vector for vector in dict.fromkeys(vectors) if len(set(vector)) > 1]
        taken = set(RESERVED) | set(self.names.values())
        names = {}
        for number, vector in enumerate(found):
            names[vector] = _name("T" if number == 0 else f"T{number + 1}", taken)
            taken.add(names[vector])
        return names

    def _dtype(self, leaf: str, variables: Mapping[tuple[str, ...], str]) -> str:
        vector = self._vector(leaf)
        for known, name in variables.items():
            if all(dtype in ("", other) for dtype, other in zip(vector, known, strict=True)):
                return name
        values = self._values_of(vector)
        if len(values) > 1:
            raise UnsupportedError(f"'{leaf}' is optional, and has several dtypes: {', '.join(values)}")
        return values[0]

    def _scalars(self) -> dict[str, dict[str, Any]]:
        scalars: dict[str, dict[str, Any]] = {
            self.names[leaf]: {"type": type_name} for leaf, type_name in self.numbers.items()
        }
        for leaf, absent in self.absent.items():
            scalars[self.names[leaf]] |= {"default": absent, "doc": "Left out: None, as in some of the launches."}
        scalars |= {self.names[leaf]: self._choice(values) for leaf, values in self.choices.items()}
        scalars |= {self.names[name]: self._choice(values) for name, values in self.options.items()}
        for axis in (axis for axis in GRID if self.names[axis] in self.grid):
            scalars[self.names[axis]] = {"type": "i32", "min": 0} | ({} if axis == GRID[0] else {"default": 1})
        return scalars

    def _choice(self, values: Sequence[Json]) -> dict[str, Any]:
        """Return the scalar by which a call chooses a value. One that must be a function or a layout has a default."""
        if kind := _kind(values):
            return {"type": kind}
        texts = list(self._texts(values).values())
        is_plain = len(values) > 1 or isinstance(values[0], str)
        return {"type": "choice", "values": texts} | ({} if is_plain else {"default": texts[0]})

    def _texts(self, values: Sequence[Json]) -> dict[str, str]:
        """Return the `repr` of each value → the text by which a call chooses it."""
        texts: dict[str, str] = {}
        for value in values:
            text = value if isinstance(value, str) else self._text(value)
            number = 2
            while text in texts.values():
                text, number = f"{text}_{number}", number + 1
            texts[repr(value)] = text
        return texts

    def _text(self, value: Json) -> str:
        match value:
            case {"constexpr": inner} | {"enum": [_, _, _, inner, _]}:
                return inner if isinstance(inner, str) else self._text(inner)
            case {"function": str(function)}:
                return self.capture.functions[function].name
            case {"float": str(text)} | {"dtype": str(text)}:
                return text
            case {"import": [_, str(qualname)]} | {"dataclass": [_, str(qualname), _, _]}:
                return qualname.rpartition(".")[2]
            case {"tuple": list(items)} | {"list": list(items)}:
                return "_".join(map(self._text, items)) or "empty"
        return str(value).lower()

    # Configs

    def _bind(self) -> dict[str, Any]:
        bind: dict[str, Any] = {}
        for leaf in self.leaves:
            head, _, index = leaf.partition(".")
            value = self.names.get(leaf)  # of others each config has a constant, or it is None in all
            if index:
                bind.setdefault(head, []).append(None if leaf in self.choices else value)
            elif value != leaf and leaf not in self.choices and leaf not in self.tuned | self.computed.keys():
                bind[leaf] = value
        if any(leaf.count(".") > 1 for leaf in self.leaves):
            raise UnsupportedError("a parameter is a tuple of tuples")
        return bind

    def _constant(self, value: Json) -> Any:
        """Return a constant as a config spells it."""
        match value:
            case None | bool() | int() | str():
                return value
            case {"float": str(text)}:
                return float(text)
            case {"constexpr": inner} | {"enum": [_, _, _, inner, _]}:
                return self._constant(inner)
            case {"dtype": str(name)}:
                short = name.replace("uint", "u").replace("int", "i")
                if short not in _DTYPES:
                    raise UnsupportedError(f"the dtype {name} is not supported")
                return {"dtype": _DTYPES[short]}
            case {"function": str(function)}:
                module, found = self.files.place(function)
                return {"function": f"{module}.py:{found}"}
            case {"tuple": list(items)} | {"list": list(items)}:
                return [self._constant(item) for item in items]
            case {"dataclass": [_, str(qualname), dict(), _]} if qualname in LAYOUTS:
                return {"layout": self._layout(value)}
        tag = next(iter(value)) if isinstance(value, dict) and value else str(value)[:40]
        raise UnsupportedError(f"a constexpr of kind '{tag}' is not supported")

    def _layout(self, value: Json) -> str:
        match value:
            case {"dataclass": [_, str(qualname), dict(fields), _]} if qualname in LAYOUTS:
                return f"{qualname}({', '.join(f'{name}={self._layout(item)}' for name, item in fields.items())})"
            case {"list": list(items)} | {"tuple": list(items)}:
                return f"[{', '.join(map(self._layout, items))}]"
            case None | bool() | int():
                return repr(value)
        raise UnsupportedError("a layout holds values that are not supported")

    def _configs(self) -> list[dict[str, Any]]:
        configs = [self._config(item) for item in self.variants]
        configs.sort(key=_degree, reverse=True)
        return [{"name": f"v{number}", **config} for number, config in enumerate(configs)]

    def _config(self, item: _Variant) -> dict[str, Any]:
        constants, when = {}, [item.when] if item.when else []
        for leaf, value in item.constants.items():
            if leaf in self.choices:
                constants[leaf] = self._constant(value)
                when += self._chosen(leaf, self.choices[leaf], value)
            elif leaf in self.computed:
                constants[leaf] = self._constant(value)
                when.append(self._computed(leaf, item, constants[leaf]))
            elif leaf in self.tuned:
                pass
            elif leaf not in self.fixed:
                constants[leaf] = value
        for leaf, absent in self.absent.items():
            is_none = leaf in item.constants and item.constants[leaf] is None
            when.append(f"{self.names[leaf]} {'==' if is_none else '!='} {absent}")
        when += [
            part for name, values in self.options.items() for part in self._chosen(name, values, item.options[name])
        ]
        blocks = {leaf: self._constant(item.constants[leaf]) for leaf in sorted(self.tuned & item.constants.keys())}
        config = {"when": " and ".join(when), "blocks": blocks, "signature": dict(item.types), "constants": constants}
        return {key: value for key, value in config.items() if value} | {"options": dict(item.options)}

    def _computed(self, leaf: str, variant: _Variant, value: Any) -> str:
        text = self._heuristic(leaf, variant)
        if text is None or not isinstance(value, bool | int | float | str):
            raise UnsupportedError(f"the heuristic of '{leaf}' cannot be expressed")
        return f"({text}) == {value!r}"

    def _chosen(self, leaf: str, values: Sequence[Json], value: Json) -> list[str]:
        """Return the condition that a call chooses a value."""
        argument = self.names[leaf]
        if _kind(values):
            return [f"{argument} == {self._constant(value)!r}"]
        return [f"{argument} == {self._texts(values)[repr(value)]!r}"]


def _kind(values: Sequence[Json]) -> str:
    """Return the common scalar type of the values; empty if they are texts or have different types."""
    if all(isinstance(value, bool) for value in values):
        return "flag"
    if all(type(value) is int for value in values):
        return "i32" if all(-(2**31) <= value < 2**31 for value in values) else "i64"
    return "fp64" if all(isinstance(value, dict) and set(value) == {"float"} for value in values) else ""


def _launches(capture: Capture, kernels: Sequence[Kernel]) -> list[Launch]:
    hashes = {kernel.hash for kernel in kernels}
    return [launch for launch in capture.launches if launch.kernel in hashes]


def _has_dtypes(variant: _Variant, key: Json) -> bool:
    """Return True if an autotuner's key, which ends with the dtypes of tensors, fits these pointers."""
    told = [item.removeprefix("torch.") for item in _items(key) if isinstance(item, str)]
    pointees = [text.partition(":")[0].removeprefix("*") for text in variant.types.values() if text.startswith("*")]
    wanted = [(pointee, _DTYPES[pointee]) for pointee in pointees]
    return len(told) < len(wanted) or all(
        name in names for name, names in zip(told[-len(wanted) :], wanted, strict=True)
    )


def _degree(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return how specialised a config is, as a key for sorting. Calls get the most specialised that serves them."""
    known = sum(text.count(":") for text in config.get("signature", {}).values()) + len(config.get("constants", {}))
    return known, len(config.get("when", ""))


def _kwargs(config: Json) -> list[tuple[str, Json]]:
    """Return (name, value) of the constexprs that a config of an autotuner sets."""
    return [(name, value) for name, value in _items(config[0].get("kwargs", {"dict": []}))]


def _has_config(variant: _Variant, config: Json) -> bool:
    options = {name: config[0].get(name) for name in ("num_warps", "num_stages", "num_ctas", "maxnreg")}
    return all(variant.constants.get(name) == value for name, value in _kwargs(config)) and all(
        variant.options.get(name, value) == value for name, value in options.items() if value is not None
    )
