"""Plans in C against plans in Python: the same variant, grid, kernargs and workspaces, or the same error."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot_runtime.bundle.reading import read_index
from aot_runtime.call.choosing import Decision, LaunchDecision
from aot_runtime.call.launches import kernarg_image
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.records import Blob, Index, Op
from aot_runtime.contract.variant_names import variant_names
from aot_runtime.errors import AotError, NoVariantError
from tests.support.c_interface.calling import ARGUMENT, NO_VARIANT, PlannedInC, tensor
from tests.support.c_interface.random_calls import RandomCall, RandomCalls, damaged
from tests.support.on_demand import index_of
from tests.support.plans import plan_of
from tests.support.plans import planned as shipped

ROOT = Path(__file__).parents[3]
CUS, XCDS = (1, 38, 304), 8
ONLY_IN_C = ("reaches further than 2**53 elements", "more than 64 bits", "beyond 2**53")
"""Calls that C refuses, as its page says, and Python takes or refuses for another reason."""


_PYTHONS_ADVICE = re.compile(r"\n  advice: .*")


class Compared:
    """A bundle's planners in both languages."""

    def __init__(self, index: Index, folder: Path):
        self.index, self.c = index, PlannedInC(index, folder)
        self.names = dict(zip(map(id, index.variants), variant_names(index), strict=True))
        self.seen: Counter[str] = Counter()

    def compare(self, op: Op, planner: Planner, call: RandomCall, cus: int) -> None:
        tensors = {
            name: None if item is None else tensor(call.addresses[name], item.dtype, item.shape, item.strides)
            for name, item in call.layouts.items()
        }
        found = self.c.plan(op.name, tensors, call.scalars, cus, XCDS)
        if isinstance(found, tuple) and any(text in found[1] for text in ONLY_IN_C):
            self.seen["only in C"] += 1
            return
        wanted = self._in_python(op, planner, call, cus)
        if isinstance(wanted, tuple) and len(wanted[1]) > 500:  # it is cut off in C
            found, wanted = (found[0], found[1][:500]), (wanted[0], wanted[1][:500])
        assert found == wanted, (op.name, call)

    def _in_python(self, op: Op, planner: Planner, call: RandomCall, cus: int) -> Any:
        target = self.index.target
        try:
            decision = planner.decide(call.layouts, call.scalars, (target.backend, 0), cus, target.arch, XCDS)
            launches = [self._launch(op, item, call) for item in decision.launches]
        except AotError as error:
            none = isinstance(error, NoVariantError)
            self.seen["not built" if none else "refused"] += 1
            return NO_VARIANT if none else ARGUMENT, _PYTHONS_ADVICE.sub("", "\n  ".join(error.lines))
        self.seen["launched"] += 1
        return {"launches": [item for item in launches if 0 not in item[1]], "workspaces": self._spaces(decision)}

    def _launch(self, op: Op, item: LaunchDecision, call: RandomCall) -> list[Any]:
        image = bytearray(kernarg_image(op, item.variant, item.values, frozenset()))
        for arg in item.variant.kernargs:
            if arg.type.startswith("*") and arg.value in call.addresses:
                image[arg.offset : arg.offset + 8] = call.addresses[arg.value].to_bytes(8, "little")
        groups = item.grid[0] * item.grid[1] * item.grid[2]
        name, scratch = self.names[id(item.variant)], item.variant.global_scratch.bytes * groups
        return [name, list(item.grid), image.hex(), scratch]

    @staticmethod
    def _spaces(decision: Decision) -> list[int]:
        return [nbytes for _, nbytes, _ in decision.workspaces]


def compare_many(index: Index, folder: Path, count: int) -> Counter[str]:
    """Compare `count` calls of each op."""
    compared, drawn = Compared(index, folder), random.Random(5)
    for op in index.ops:
        planner, calls = op_planner(index, op.name), RandomCalls(op, index.target, drawn)
        made = ((cus, calls.make(cus)) for cus in (drawn.choice(CUS) for _ in range(20 * count)))
        for cus, call in itertools.islice(((cus, call) for cus, call in made if call is not None), count):
            compared.compare(op, planner, call, cus)
    return compared.seen


def with_segments(index: Index) -> Index:
    """Return the index with the figures of compiled code: a code object, and the size of each kernarg segment."""
    variants = tuple(
        msgspec.structs.replace(
            variant, code="none", symbol=variant.op,
            kernarg_bytes=max((arg.offset + arg.size for arg in variant.kernargs), default=0),
        )
        for variant in index.variants
    )  # fmt: skip
    return msgspec.structs.replace(index, variants=variants, blobs={"none": Blob("code/none.hsaco", 1, "0" * 64)})


def planned(manifest: str, arch: str) -> Index:
    """Return the index of a shipped manifest without compiling: the dispatcher needs no code to plan."""
    return with_segments(index_of(shipped(arch, manifest)))


def test_a_bundle_with_a_bit_of_everything(small_bundle: Path, tmp_path: Path):
    seen = compare_many(read_index(small_bundle), tmp_path, 400)
    assert seen["launched"] > 500 and seen["refused"] > 200 and seen["not built"] > 5


BY_COST = """\
bundle: by_cost
root: {root}
ops:
  relay:
    tensors:
      x: {{shape: [n], dtype: T}}
      lines: {{shape: [rows, n], dtype: T, optional: true, nullable: true, align: address}}
      out: {{shape: [n], dtype: T, role: output}}
    scalars: {{hops: {{type: i32, default: 0}}}}
    dtypes: {{T: [float16, float32]}}
    alternatives: {{by: [1, "2 if n > 9 else 1", "min(hops, 3)"], again: [0, n % 3]}}
    constexprs: {{RELAYED: {{values: [false, true], pick: by > 1}}}}
    exclude: [RELAYED and T == 'float32' and aligned]
    workspace: {{between: {{shape: [n if RELAYED else 0], dtype: T}}}}
    launches:
      - &launch
        name: whole
        when: not RELAYED
        kernel: tests/support/small/kernels.py:copy_values
        bind: {{source: x, target: out}}
        grid: ["cdiv(n, 64) + again"]
        cost: start + step * cdiv(n, size) + (n * 7 % 11) / (3 + again)
        configs:
          - {{name: first, when: n < 5}}
          - {{name: small, when: n % 5 > 0, options: {{num_warps: 1}}, fitted: {{start: 1, step: 0.1, size: 4}}}}
          - {{name: other, when: n > 30, options: {{num_warps: 8}}}}
          - {{name: large, options: {{num_warps: 2}}, fitted: {{start: 3, step: 0.25, size: 16}}}}
      - {{<<: *launch, name: there, when: RELAYED, bind: {{source: x, target: between}}}}
      - {{<<: *launch, name: back, when: RELAYED, bind: {{source: between, target: out}},
         cost: start * by - step * size * (n % 3)}}
"""


def test_costs_and_alternatives(tmp_path: Path):
    path = tmp_path / "by_cost.yaml"
    path.write_text(BY_COST.format(root=ROOT))
    index = with_segments(index_of(plan_of(path, "gfx942")))
    assert compare_many(index, tmp_path, 1500)["launched"] > 600


@pytest.mark.parametrize(
    ("manifest", "arch"),
    [
        ("rows", "gfx942"),
        *(
            pytest.param(manifest, arch, marks=pytest.mark.slow)
            for manifest, arch in [
                *itertools.product(("attention", "decode", "gemm", "attention_quantised"), ("gfx942", "sm_90")),
                ("rows", "sm_90"), ("llama", "gfx1100"), ("attention_mods", "gfx90a"), ("memory", "gfx950"),
            ]
        ),
    ],
)  # fmt: skip
def test_shipped_manifests(tmp_path: Path, manifest: str, arch: str):
    index = planned(manifest, arch)
    seen = compare_many(index, tmp_path, 60 if manifest == "rows" else 400)
    assert seen["launched"] > 5 * len(index.ops) and seen["only in C"] < 0.05 * sum(seen.values())


@pytest.mark.slow
@pytest.mark.parametrize("manifest", ["rows", "gemm", "decode"])
def test_nonsense_is_refused_or_planned_with_no_undefined_behaviour(tmp_path: Path, manifest: str):
    """A fault that the sanitizer finds would end the process."""
    index, drawn = planned(manifest, "gfx942"), random.Random(7)
    c = PlannedInC(index, tmp_path, "-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-Wno-conversion")
    outcomes: Counter[Any] = Counter()
    for op in index.ops:
        calls = RandomCalls(op, index.target, drawn)
        for call in filter(None, (calls.make(304) for _ in range(300))):
            tensors = {
                name: None if item is None else tensor(call.addresses[name], item.dtype, item.shape, item.strides)
                for name, item in call.layouts.items()
            }
            damaged(tensors, drawn)
            found = c.plan(op.name, tensors, call.scalars, 304, XCDS)
            outcomes[found[0] if isinstance(found, tuple) else "launched"] += 1
    assert {*outcomes} == {ARGUMENT, NO_VARIANT, "launched"}
