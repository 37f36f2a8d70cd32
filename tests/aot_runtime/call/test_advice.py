"""Advice in the error of a call is followed: the call is served then, be it by other arguments or by another build."""

from __future__ import annotations

import random
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.callspec import CallSpec, parse_scalar, plan_call
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.layout import ALIGNMENT, Layout
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op, Tensor
from aot_runtime.errors import AotError, NoVariantError

pytest.importorskip("triton", reason="planning needs the extra `build`")

from aot.manifest.calls import entries, load_calls
from aot.manifest.loading import load_manifest
from aot.manifest.shipped import find_manifest
from aot.plan.bundles import plan_bundle
from aot.plan.calls import WantedCalls
from aot.targets import parse_arch
from tests.support.building.builds import Project
from tests.support.building.projects import SCALE
from tests.support.c_interface.random_calls import RandomCalls
from tests.support.on_demand import index_of, key_of

ROOT = Path(__file__).parents[3]
CUS = 132


@dataclass
class _Arguments:
    """The arguments of a call as their caller would change them."""

    op: Op
    layouts: dict[str, Layout]
    names: dict[str, Any]
    scalars: dict[str, Any]
    innermost: dict[str, int] = field(default_factory=dict)
    aligned: bool = False

    def change(self, words: str) -> None:
        if words.startswith("aligned arguments"):
            self.align()
        elif match := re.fullmatch(r"(\w+) \(dim \d+ of \w+\) of (\d+)", words):
            self.names[match[1]] = int(match[2])
        elif match := re.fullmatch(r"stride 1 in dim (\d+) of (\w+)", words):
            self.innermost[match[2]] = int(match[1])
        elif match := re.fullmatch(r"(\w+)=(.+)", words):
            self.scalars[match[1]] = match[2]
        elif match := re.fullmatch(r"([\w, ]+) of (\w+)", words):
            (variable,) = {tensor.dtype for tensor in self.op.tensors if tensor.name in match[1].split(", ")}
            self.names[variable] = match[2]
        elif words.startswith("no "):
            del self.layouts[words.removeprefix("no ")]
        else:
            self.layouts[words] = None  # type: ignore[assignment]

    def align(self) -> None:
        self.aligned = True
        for name in self.op.divisible:
            if name in Scope.of(self.op).dims:
                self.names[name] = -(-self.names[name] // ALIGNMENT) * ALIGNMENT

    def spec(self) -> CallSpec:
        op, names = self.op, self.names
        kept = [t for t in op.tensors if t.name in self.layouts and t.role != "output"]
        dtypes = {variable: names[variable] for variable in op.dtypes}
        whole = CallSpec(
            dims={name: names[name] for name in Scope.of(op).dims if name in names},
            given=frozenset(tensor.name for tensor in kept if tensor.optional),
            dtypes=dtypes,
            scalars={name: str(value) for name, value in self.scalars.items() if value is not None},
            innermost=self.innermost,
        )
        env = {**names, **self._numbers()}
        for item in op.derived:
            env[item.name] = parse(item.value).evaluate(env)
        shapes, strides, unaligned = {}, {}, set()
        for tensor in kept:
            was = self.layouts[tensor.name]
            shape = shapes[tensor.name] = _shape(tensor, was, env)
            same = was is not None and was.shape == shape and was.dtype == dtypes.get(tensor.dtype, tensor.dtype)
            if self.aligned:
                strides[tensor.name] = _padded(tensor, shape, self._inner(tensor, was))
            elif same and tensor.name not in self.innermost:
                strides[tensor.name] = was.strides
            elif tensor.innermost and tensor.name not in self.innermost:
                self.innermost[tensor.name] = self._inner(tensor, was)
            if was is not None and not was.aligned and not self.aligned:
                unaligned.add(tensor.name)
        return replace(whole, shapes=shapes, strides=strides, unaligned=frozenset(unaligned), innermost=self.innermost)

    def _numbers(self) -> dict[str, Any]:
        given = {scalar.name: scalar for scalar in self.op.scalars if self.scalars.get(scalar.name) is not None}
        return {name: parse_scalar(self.op, item, str(self.scalars[name])) for name, item in given.items()}

    def _inner(self, tensor: Tensor, was: Layout | None) -> int:
        if tensor.innermost:
            if tensor.name in self.innermost or was is None:
                return self.innermost.get(tensor.name, tensor.innermost[0])
            return min(tensor.innermost, key=lambda dim: abs(was.strides[dim]))
        return tensor.contiguous[-1] if tensor.contiguous else len(tensor.shape) - 1


def _shape(tensor: Tensor, was: Layout | None, env: Mapping[str, Any]) -> tuple[int, ...]:
    extents = [parse(dim.extent).evaluate(env) for dim in tensor.shape]
    ones = [dim.broadcast and was is not None and was.shape[at] == 1 for at, dim in enumerate(tensor.shape)]
    return tuple(1 if one else extent for one, extent in zip(ones, extents, strict=True))


def _padded(tensor: Tensor, shape: tuple[int, ...], inner: int) -> tuple[int, ...]:
    """Packed strides, but rows are multiples of 16 apart where they need not be packed."""
    last = tensor.contiguous or (inner,)
    order = [*(dim for dim in range(len(shape)) if dim not in last), *last]
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        step = step if step == 1 or dim in tensor.contiguous else -(-step // ALIGNMENT) * ALIGNMENT
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def pieces(way: str) -> Iterator[list[str]]:
    """The changes of each combination of values that advice tells at once."""
    parts = re.split(r" and (?![^(]*\))", way)
    options = []
    for part in parts:
        match = re.fullmatch(r"((?:\w+=)|(?:[\w, ]+(?: \(dim \d+ of \w+\))? of ))(.+)", part)
        options.append([match[1] + value for value in match[2].split(" or ")] if match else [part])
    yield from map(list, product(*options))


def refused(index: Index, seed: int, tries: int) -> Iterator[tuple[Planner, Index, Any, NoVariantError]]:
    """Random calls that bundles with some of an index's variants have none for."""
    drawn = random.Random(seed)
    for op in index.ops:
        own = [variant for variant in index.variants if variant.op == op.name]
        some = drawn.sample(own, max(1, len(own) // drawn.choice((2, 5, 20))))
        few = Index(**{name: getattr(index, name) for name in Index.__struct_fields__} | {"variants": tuple(some)})
        planner, calls = op_planner(few, op.name), RandomCalls(op, index.target, drawn)
        where = (index.target.backend, 0)
        for _ in range(tries):
            call = calls.make(CUS)
            if call is None:
                continue
            try:
                planner.decide(call.layouts, call.scalars, where, CUS, index.target.arch)
            except NoVariantError as error:
                names = planner.lay_out(call.layouts, call.scalars, where, CUS, index.target.arch).names
                layouts = {name: layout for name, layout in call.layouts.items() if layout is not None}
                yield planner, few, _Arguments(op, layouts, dict(names), dict(call.scalars)), error
            except AotError:
                continue


def copied(arguments: _Arguments) -> _Arguments:
    own = (dict(arguments.layouts), dict(arguments.names), dict(arguments.scalars))
    return _Arguments(arguments.op, *own)


def changed(arguments: _Arguments, error: NoVariantError) -> Iterator[tuple[str, _Arguments]]:
    """(a line of advice, the call when its caller has done what it says), of each line that changes arguments."""
    for line in str(error).splitlines():
        _, found, advice = line.partition("advice: ")
        if not found:
            continue
        if advice.startswith("it is built for the same call with "):
            for words in pieces(advice.removeprefix("it is built for the same call with ")):
                new = copied(arguments)
                for piece in words:
                    new.change(piece)
                yield line, new
        elif advice.startswith("it is built for aligned calls only"):
            new = copied(arguments)
            new.align()
            yield line, new
        elif match := re.match(r"(\w+) is \w+: aot_runtime\.float8\.cast makes it (\w+)", advice):
            new = copied(arguments)
            new.names[match[1]] = match[2]
            yield line, new


@pytest.mark.parametrize(
    ("manifest", "arch", "seed"),
    [
        ("tests/support/small/small.yaml", "gfx942", 1),
        ("manifests/attention.yaml", "sm_90", 2),
        *(
            pytest.param(f"manifests/{name}.yaml", arch, 3, marks=pytest.mark.slow)
            for name in ("attention", "attention_quantised", "decode", "gemm", "moe", "rows")
            for arch in ("gfx942", "sm_90")
        ),
    ],
)
def test_arguments_that_advice_names_are_served(manifest: str, arch: str, seed: int):
    index = index_of(plan_bundle(load_manifest(ROOT / manifest), parse_arch(arch), {}, False))
    done = 0
    for planner, few, arguments, error in refused(index, seed, 60):
        for line, new in changed(arguments, error):
            try:
                plan_call(few, planner, new.spec(), CUS)
            except AotError as wrong:
                raise AssertionError(f"{planner.op.name}: {line}\n{arguments}\n{new.spec()}\n{error}") from wrong
            done += 1
    assert done > 10


# Another build


def remedy(error: NoVariantError) -> tuple[list[str], str]:
    """The command that the error prints, and the calls file."""
    match = re.search(r"`(aotbuild [^`]*)`, with this in calls\.yaml:\n(.*)\Z", str(error), re.DOTALL)
    assert match, str(error)
    return shlex.split(match[1]), textwrap.dedent(match[2]) + "\n"


@pytest.mark.parametrize(
    ("manifest", "arch"),
    [
        ("attention_mods", "sm_90"),
        *(
            pytest.param(name, arch, marks=pytest.mark.slow)
            for name in ("attention", "attention_quantised", "decode", "gemm", "moe", "rows")
            for arch in ("gfx942", "sm_90")
        ),
    ],
)
def test_what_an_error_has_built_serves_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str, arch: str
):
    """From a folder that has nothing: the manifest is one that is shipped. No build is advised where that, whole, would
    not serve the call either."""
    monkeypatch.chdir(tmp_path)
    whole = plan_bundle(load_manifest(find_manifest(Path(manifest))), parse_arch(arch), {}, False)
    index = index_of(whole)
    planners = {op.name: op_planner(index, op.name) for op in index.ops}
    found, texts = [], list[str]()
    for planner, _, arguments, error in refused(index, 5, 40):
        if error.remedy:
            whole_decision = decided(planners[planner.op.name], arguments, index)
            if any(launch.grid[0] > 2**22 for launch in whole_decision.launches):
                continue  # more than a device takes, with as many threads as the variant has
            words, text = remedy(error)
            assert shlex.join(words) == f"aotbuild --arch {arch} --for calls.yaml -o for-calls {manifest}"
            found.append((planner.op.name, arguments))
            texts.append(text.removeprefix("calls:\n"))
        else:
            with pytest.raises(AotError):
                decided(planners[planner.op.name], arguments, index)
    assert len(found) > 5
    Path("calls.yaml").write_text("calls:\n" + "".join(texts))
    wanted = WantedCalls(entries([load_calls(Path("calls.yaml"))]), False)
    built = index_of(plan_bundle(whole.manifest, whole.target, {}, False, wanted=wanted))
    for name, arguments in found:
        decided(op_planner(built, name), arguments, built)


def decided(planner: Planner, arguments: _Arguments, index: Index) -> Decision:
    target = index.target
    return planner.decide(arguments.layouts, arguments.scalars, (target.backend, 0), CUS, target.arch)


@pytest.mark.parametrize(
    ("working", "output", "command"),
    [
        (".", "dist", "aotbuild --arch gfx942 --for calls.yaml --add m.yaml"),
        (".", "out", "aotbuild --arch gfx942 --for calls.yaml --add -o out m.yaml"),
        ("dist", "dist", "aotbuild --arch gfx942 --for calls.yaml --add -o . ../m.yaml"),
    ],
)
def test_the_command_adds_to_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, working: str, output: str, command: str
):
    """As it is printed, with the entry in a file of its own. What was there stays, and serves what it served."""
    project = Project(tmp_path, SCALE)
    project.output = tmp_path / output
    project.build("--filter", "T=float16,BLOCK=32")
    folder = project.folder_of()
    before = read_index(folder)
    call = CallSpec(shapes={"x": (3, 16)}, dtypes={"T": "float32"}, scalars={"factor": "1"})
    monkeypatch.chdir(tmp_path / working)
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(project.cache))
    with pytest.raises(NoVariantError) as raised:
        plan_call(before, op_planner(before, "scale", folder), call, None)
    words, text = remedy(raised.value)
    assert shlex.join(words) == command
    Path("calls.yaml").write_text(text)
    result = project.invoke(words[1:])
    assert result.exit_code == 0, result.output
    after = read_index(folder)
    assert plan_call(after, op_planner(after, "scale", folder), call, None).launches
    assert {key_of(variant) for variant in before.variants} < {key_of(variant) for variant in after.variants}
    assert len(after.variants) == len(before.variants) + 1
