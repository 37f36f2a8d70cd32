"""`--for`: bundles for recorded calls, errors of wrong calls, and neighbouring variants."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from aot.manifest.calls import CallsFile, check_entries, entries, load_calls
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.plan.calls import WantedCalls, call_spec, plan_calls
from aot.plan.cases import planning_index
from aot.targets import Target
from aot_bundle.callspec import plan_call
from aot_runtime.call.entries import entry_lines
from aot_runtime.call.planner import op_planner
from aot_runtime.call.recording import lay_out
from aot_runtime.contract.arch import device_names
from aot_runtime.contract.gpu_names import usual_cus
from aot_runtime.errors import AotError
from tests.support.building.builds import Project
from tests.support.building.projects import EVERYTHING, SCALE, edit, load, unmarked, write_project
from tests.support.c_interface import random_calls
from tests.support.c_interface.random_calls import RandomCalls
from tests.support.on_demand import index_of, key_of

ROOT = Path(__file__).parents[3]
SMALL = ROOT / "tests/support/small/small.yaml"


def calls_file(folder: Path, *found: str) -> CallsFile:
    """Write a calls file with these entries, each in flow style."""
    (folder / "calls.yaml").write_text("calls:\n" + "".join(f"- {{{entry}}}\n" for entry in found))
    return load_calls(folder / "calls.yaml")


def planned(manifest: Path, file: CallsFile, neighbours: bool = False, arch: str = "gfx942") -> PlannedBundle:
    return plan_bundle(
        load_manifest(manifest), Target(arch), {}, False, wanted=WantedCalls(entries([file]), neighbours)
    )


def labels(bundle: PlannedBundle) -> list[str]:
    return [variant.spec.label.removeprefix("affine") for variant in bundle.variants]


def test_what_each_call_gets_is_built_and_nothing_else(tmp_path: Path):
    """Calls give shapes or dims. Strides and addresses decide the specialisation, and cols the config. An op without
    calls is left out; of one with two launches both are there."""
    file = calls_file(
        tmp_path,
        "op: affine, bundle: small, count: 3, shapes: {x: [2, 16]}, dtypes: {T: float16}",
        "op: affine, dims: {rows: 3, cols: 256}, given: [bias], dtypes: {T: float32}, scalars: {mode: negated}",
        "op: affine, shapes: {x: [8, 100], out: [8, 100]}, strides: {x: [112, 1], out: [112, 1]}, dtypes: {T: float32}",
        "op: affine, shapes: {x: [8, 128]}, unaligned: [x], dtypes: {T: float32}",
        "op: row_sums, shapes: {x: [3, 128]}, scalars: {return_largest: true}",
        "op: affine, shapes: {x: [2, 32]}, dtypes: {T: float16}",
        "op: affine, shapes: {x: [2, 16]}, dtypes: {x: float16}, arch: [sm_90]",
    )
    bundle = planned(SMALL, file)
    sums = "row_sums[RETURN_LARGEST=True] aligned config 0"
    assert labels(bundle) == [
        "[T=float16, HAS_BIAS=False, NEGATED=False] aligned config 1",
        "[T=float32, HAS_BIAS=False, NEGATED=False] aligned config 1",
        "[T=float32, HAS_BIAS=True, NEGATED=True] aligned config 0",
        "[T=float32, HAS_BIAS=False, NEGATED=False] general config 1",
        sums,
        sums,
    ]
    assert [op.name for op in bundle.ops] == ["affine", "row_sums"] and bundle.left_out == 51 - 6
    assert [len(call.variants) for call in bundle.calls] == [1, 1, 1, 1, 1, 2]
    assert [case.recipe.name for case in bundle.cases] == ["plain"]


def test_compute_units_are_those_of_a_whole_gpu_or_what_the_entry_says(tmp_path: Path):
    configs = "[{when: num_cus > 38, options: {num_warps: 2}}, {options: {num_warps: 1}}]"
    manifest = write_project(tmp_path, edit(SCALE, ("[{options: {num_warps: 1}}]", configs)))
    call = "op: scale, shapes: {x: [2, 16]}, dtypes: {T: float16}"
    whole, part = planned(manifest, calls_file(tmp_path, call, f"{call}, num_cus: 38")).calls
    assert [variant.config for variant in (*whole.variants, *part.variants)] == [0, 1]


VARLEN = (
    "op: flash_attention_varlen, dtypes: {{T: float16}}, scalars: {{max_seqlen_q: {q}, max_seqlen_k: {k}}}, shapes: "
    "{{q: [{q}, 1, 64], k: [{k}, 1, 64], v: [{k}, 1, 64], cu_seqlens_q: [2], cu_seqlens_k: [2]}}"
)


def test_what_one_call_gets_does_not_hinge_on_what_another_does(tmp_path: Path):
    """A tensor map over no keys does not exist, so the first call's variant takes one and the second's does not."""
    file = calls_file(tmp_path, VARLEN.format(q=100, k=100), VARLEN.format(q=33, k=0))
    bundle = planned(ROOT / "manifests/attention.yaml", file, arch="sm_90")
    index = index_of(bundle)
    planner = op_planner(index, "flash_attention_varlen")
    found = [plan_call(index, planner, call_spec(call.entry.spec, planner), 132).launches for call in bundle.calls]
    hopper = [launch.variant.axis_values["HOPPER"] for (launch,) in found]
    assert hopper == [True, False] and all(launch.variant.aligned for (launch,) in found)


@pytest.mark.parametrize(
    ("manifest", "arch"),
    [
        (SMALL, "gfx942"),
        (ROOT / "manifests/attention.yaml", "sm_90"),
        *(
            pytest.param(ROOT / f"manifests/{name}.yaml", arch, marks=pytest.mark.slow)
            for name in ("attention", "attention_mods", "attention_quantised", "decode", "gemm", "moe", "rows")
            for arch in ("gfx942", "gfx1201", "sm_90", "sm_100")
        ),
    ],
    ids=str,
)
def test_a_bundle_that_is_built_for_calls_serves_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Path, arch: str
):
    """Random calls that a bundle of all variants serves, some of them with no rows, get the same variants from a bundle
    built for them."""
    monkeypatch.setattr(random_calls, "EXTENTS", (0, *random_calls.EXTENTS))
    loaded, drawn, cus = load_manifest(manifest), random.Random(11), usual_cus(arch) or 132
    whole = index_of(plan_bundle(loaded, Target(arch), {}, False))
    where = (whole.target.backend, 0)
    made, texts = [], list[str]()
    for op in whole.ops:
        planner, calls = op_planner(whole, op.name), RandomCalls(op, whole.target, drawn)
        for _ in range(drawn.choice((20, 60))):
            call = calls.make(cus)
            if call is None:
                continue
            arguments = (call.layouts, call.scalars, where, cus, arch)
            try:
                decision = planner.decide(*arguments)
            except AotError:
                continue
            if any(math.prod(launch.grid[:1]) > 2**22 for launch in decision.launches):
                continue  # more than a device takes, with as many threads as the variant has
            made.append((op.name, arguments, [key_of(launch.variant) for launch in decision.launches]))
            laid_out = lay_out(planner, call.layouts, call.scalars, where, device_names(arch, cus))
            texts += entry_lines(planner.entry(call.layouts, call.scalars, laid_out.names))
    (tmp_path / "calls.yaml").write_text("calls:\n" + "\n".join(texts) + "\n")
    wanted = WantedCalls(entries([load_calls(tmp_path / "calls.yaml")]), False)
    small = index_of(plan_bundle(loaded, Target(arch), {}, False, wanted=wanted))
    planners = {op.name: op_planner(small, op.name) for op in small.ops}
    assert len(made) > 5
    for op_name, arguments, expected in made:
        found = planners[op_name].decide(*arguments).launches
        assert [key_of(launch.variant) for launch in found] == expected, op_name
    assert {key_of(variant) for variant in small.variants} == {key for *_, keys in made for key in keys}


@pytest.mark.parametrize(
    "manifest",
    [
        SMALL,
        *(
            pytest.param(ROOT / f"manifests/{name}.yaml", marks=pytest.mark.slow)
            for name in ("attention", "decode", "gemm", "rows")
        ),
    ],
    ids=lambda path: path.stem,
)
def test_the_words_of_a_call_say_all_that_decides(tmp_path: Path, manifest: Path):
    """Random calls are recorded; their entries get the variants that the calls themselves get."""
    bundle, drawn = plan_bundle(load_manifest(manifest), Target("gfx942"), {}, False), random.Random(7)
    called = 0
    for op in bundle.ops:
        specs = [variant.spec for variant in bundle.variants if variant.spec.op == op.name]
        index = planning_index(op, specs, bundle.target)
        planner, calls = op_planner(index, op.name), RandomCalls(op, index.target, drawn)
        texts: list[str] = []
        wanted = []
        for num_cus in 40 * (38, 304):
            call = calls.make(num_cus)
            if call is None:
                continue
            arguments = (call.layouts, call.scalars, ("hip", 0), num_cus, "gfx942")
            try:
                taken = {id(launch.variant) for launch in planner.decide(*arguments).launches}
            except AotError:
                continue
            hardware = device_names("gfx942", num_cus)
            laid_out = lay_out(planner, call.layouts, call.scalars, ("hip", 0), hardware)
            texts += entry_lines(planner.entry(call.layouts, call.scalars, laid_out.names))
            wanted.append({spec for stub, spec in zip(index.variants, specs, strict=True) if id(stub) in taken})
        if not wanted:
            continue  # what is drawn for this op is never a call that it takes
        called += 1
        (tmp_path / "calls.yaml").write_text("calls:\n" + "\n".join(texts) + "\n")
        planned = plan_calls(entries([load_calls(tmp_path / "calls.yaml")]), op, specs, bundle.target)
        assert [{*call.variants} for call in planned] == wanted, op.name
    assert called > len(bundle.ops) // 2


def test_neighbours_differ_in_one_thing(tmp_path: Path):
    file = calls_file(tmp_path, "op: affine, shapes: {x: [2, 16]}, dtypes: {T: float16}")
    near = labels(planned(SMALL, file, neighbours=True))
    points = {
        "[T=float16, HAS_BIAS=False, NEGATED=False]": ("aligned", "general"),
        "[T=float16, HAS_BIAS=True, NEGATED=False]": ("aligned",),
        "[T=float32, HAS_BIAS=False, NEGATED=False]": ("aligned",),
    }
    wanted = [f"{point} {kind} config {n}" for point, kinds in points.items() for kind in kinds for n in (0, 1)]
    assert sorted(near) == sorted(wanted), "T=float16 and NEGATED is denied"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{@op: scal}", "none of these manifests has an op 'scal'; did you mean 'scale'?"),
        ("{@op: scal, bundle: tiny}", "bundle 'tiny' has no op 'scal'; did you mean 'scale'?"),
        ("{op: scale, @shape: {x: [1, 2]}}", "unknown key 'shape'; did you mean 'shapes'?"),
        ("{op: scale, shapes: {@y: [1, 2]}}", "scale has no tensor 'y'"),
        ("{op: scale, dims: {rows: 1, @colls: 2}, dtypes: {T: float16}}", "no dim 'colls'; did you mean 'cols'?"),
        ("{op: scale, given: [@x], dims: {rows: 1}}", "scale has no optional tensor 'x'; known: bias"),
        ("{op: scale, dtypes: {@T: float15}}", "unknown dtype 'float15'; did you mean 'float16'?"),
        ("{op: scale, dtypes: {@U: float16}}", "scale has no dtype variable or tensor 'U'"),
        ("{op: scale, scalars: {@modus: fast}}", "scale has no scalar 'modus'; did you mean 'mode'?"),
        ("{op: scale, innermost: {@x: 0}}", "scale has no tensor with several dims that may be the innermost 'x'"),
        ("{op: scale, @count: 0}", "greater than or equal to 1 (given: 0)"),
        ("{op: scale, shapes: {x: [1, @-2]}}", "greater than or equal to 0 (given: -2)"),
        ("@{op: scale, dims: {rows: 1, cols: 2}}", "scale: the dtype of T is missing; allowed: float16, float32"),
        ("@{op: scale, dims: {rows: 1, cols: 3}, dtypes: {T: float16}}", "requires cols % 2 == 0; given: cols=3"),
        ("@{op: scale, dims: {rows: 1, cols: 66}, dtypes: {T: float16}}", "none of [16, 64] is picked by >= cols"),
        ("@{op: scale, dims: {rows: 1, cols: 6}, dtypes: {T: int8}}", "'x' is int8; allowed: float16, float32"),
        ("@{op: scale, dims: {rows: 1, cols: 6}, given: [bias], scalars: {return_top: true}, dtypes: {T: float16}}",
         "[T=float16, BLOCK=16, BIASED=True, TOP=True], aligned=False: not built"),
    ],
)  # fmt: skip
def test_a_call_that_is_wrong(tmp_path: Path, entry: str, said: str):
    """Each fault is reported at the mark."""
    kernels = "import triton\n\n\n@triton.jit\ndef scale_rows(x, out):\n    pass\n"
    write_project(tmp_path, EVERYTHING, kernels)
    place, text = unmarked(f"calls:\n- {entry}\n")
    (tmp_path / "calls.yaml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        file = load_calls(tmp_path / "calls.yaml")
        check_entries(entries([file]), [load_manifest(tmp_path / "m.yaml")])
        planned(tmp_path / "m.yaml", file)
    (message,) = [text for text in caught.value.messages if text.startswith(str(tmp_path / "calls.yaml"))]
    assert message.startswith(f"{tmp_path / 'calls.yaml'}:{place}: ") and said in message


def test_calls_of_other_bundles(tmp_path: Path):
    """A file may serve several builds, but a file without any call of the manifest's ops is a fault."""
    manifest = load(tmp_path, SCALE)
    theirs, ours = "bundle: theirs, op: any", "bundle: tiny, op: scale"
    check_entries(entries([calls_file(tmp_path, theirs, ours)]), [manifest])
    with pytest.raises(ManifestError) as caught:
        check_entries(entries([calls_file(tmp_path, theirs)]), [manifest])
    where = tmp_path / "calls.yaml"
    said = f"{tmp_path / 'm.yaml'}: --for: no call is for bundle 'tiny' in {where}; their calls are of theirs"
    assert caught.value.messages == (said,)


def test_the_command_says_what_each_call_gets(tmp_path: Path):
    project = Project(tmp_path)
    text = "op: scale, shapes: {x: [2, 7]}, dtypes: {T: float32}, count: 7"
    file = calls_file(tmp_path, text, "bundle: theirs, op: any").file.path
    result = project.build("--for", str(file), "--dry-run")
    assert result.output == (
        "tiny-gfx942: 1 call, for which 1 of 8 variants are built\n"
        f"  {file}:2:3: scale, 7 times: scale[T=float32, BLOCK=16] general config 0\n"
        "not built now: 1 call of bundle 'theirs'\n"
        "tiny-gfx942: 1 variants, 1 to compile at most\n"
        "  scale                                1\n"
    )
    result = project.build("--for", str(file), "--filter", "T=float16", "--dry-run")
    assert result.exit_code == 2 and f"{file}:2:3: for gfx942 nothing serves this call" in result.output
    result = project.build("--neighbours", "--dry-run")
    assert result.exit_code == 2 and "needs --for" in result.output
