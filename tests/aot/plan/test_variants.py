from collections import Counter

import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.plan.contract import build_contract
from aot.plan.variants import Enumeration, VariantSpec, enumerate_variants
from aot.targets import Target
from aot_runtime.errors import ExpressionError
from tests.support.building.projects import EVERYTHING, OPTIONS, SCALE, edit, load


def enumerated(tmp_path, text: str, *changes: tuple[str, str], arch: str = "gfx942") -> Enumeration:
    manifest = load(tmp_path, edit(text, *changes))
    op = build_contract(manifest, "scale", arch, OPTIONS)
    return enumerate_variants(op, manifest.spec.ops["scale"], arch)


def points(found: Enumeration, *names: str) -> Counter:
    """How many variants there are with each combination of some axes' values."""
    return Counter(tuple(dict(variant.point)[name] for name in names) for variant in found.variants)


AXES = "      BLOCK: {values: [16, 32], pick: smallest >= cols}\n"


def axes(*lines: str, more: str = "") -> tuple[str, str]:
    return AXES, AXES + "".join(f"      {line}\n" for line in lines) + more


def test_every_combination_by_hand(tmp_path):
    found = enumerated(tmp_path, SCALE)
    assert [(variant.aligned, variant.point) for variant in found.variants] == [
        (aligned, (("T", dtype), ("BLOCK", block)))
        for aligned in (True, False)
        for dtype in ("float16", "float32")
        for block in (16, 32)
    ]
    assert found.unused == ()
    first = found.variants[0]
    assert (first.op, first.launch, first.config, first.options) == ("scale", 0, 0, (("num_warps", 1),))
    assert first.label == "scale[T=float16, BLOCK=16] aligned config 0"
    point = {"T": "float16", "BLOCK": 16, "aligned": True}
    sizes = {"_elsize__T": 2, "_elsize__x": 2, "_elsize__out": 2}
    hardware = {
        "arch": "gfx942", "fp8": "fnuz", "has_bf16_cvt": False, "has_tf32": True, "lds_bytes": 65536, "num_xcds": 8,
        "warp_size": 64,
    }  # fmt: skip
    assert dict(first.constants) == point | sizes | hardware


def test_everything_by_hand(tmp_path):
    """2 dtypes * 2 blocks * 3 of (BIASED, TOP) * 2 specialisations * 2 configs, as only a call knows `cols > 32`."""
    found = enumerated(tmp_path, EVERYTHING)
    assert len(found.variants) == 2 * 2 * 3 * 2 * 2
    assert points(found, "BIASED", "TOP") == {(False, False): 16, (False, True): 16, (True, False): 16}
    for variant in found.variants:
        known = dict(variant.constants)
        assert (known["_given__bias"], known["_given__top"]) == (known["BIASED"], known["TOP"])
        warps, width = (8, 4) if variant.config == 0 else (4, 2)
        assert known["WIDTH"] == width
        stages = {"num_stages": 1} if known["BLOCK"] == 64 else {}
        assert dict(variant.options) == {"num_warps": warps, **stages}


@pytest.mark.parametrize(
    "exclude, left",
    [
        ("T == 'float32'", {("float16", 16): 2, ("float16", 32): 2}),
        ("T == 'float32' and BLOCK > 16", {("float16", 16): 2, ("float16", 32): 2, ("float32", 16): 2}),
        ("elsize(T) == 4 and BLOCK > 16", {("float16", 16): 2, ("float16", 32): 2, ("float32", 16): 2}),
        ("aligned and BLOCK == 32", {("float16", 16): 2, ("float16", 32): 1, ("float32", 16): 2, ("float32", 32): 1}),
        ("not aligned", {("float16", 16): 1, ("float16", 32): 1, ("float32", 16): 1, ("float32", 32): 1}),
        ("false", {("float16", 16): 2, ("float16", 32): 2, ("float32", 16): 2, ("float32", 32): 2}),
    ],
)
def test_exclude(tmp_path, exclude, left):
    text = SCALE + f'    exclude: ["{exclude}"]\n'
    assert points(enumerated(tmp_path, text.replace("false", "1 > 2")), "T", "BLOCK") == left


def test_exclude_may_ask_for_an_optional_tensor(tmp_path):
    found = enumerated(
        tmp_path,
        EVERYTHING,
        ("[TOP and BIASED]", "[given(bias)]"),
        ("BIASED: {values: [false, true]", "BIASED: {values: [true, false]"),
    )
    assert points(found, "BIASED") == {(False,): 32}
    assert found.unused == (("BIASED", True),)


def test_what_an_exclude_leaves_out_everywhere_is_unused(tmp_path):
    found = enumerated(tmp_path, SCALE + "    exclude: [BLOCK == 32, T == 'float32' and BLOCK == 16]\n")
    assert points(found, "T", "BLOCK") == {("float16", 16): 2}
    assert found.unused == (("T", "float32"), ("BLOCK", 32))


def test_a_value_left_out_on_this_architecture_alone_is_not_unused(tmp_path):
    text = SCALE + "    exclude: [arch == 'gfx942' and BLOCK == 32]\n"
    here, elsewhere = (enumerated(tmp_path, text, arch=arch) for arch in ("gfx942", "sm_90"))
    assert points(here, "BLOCK") == {(16,): 4} and here.unused == ()
    assert points(elsewhere, "BLOCK") == {(16,): 4, (32,): 4} and elsewhere.unused == ()


def test_an_unused_value_is_a_fault_of_the_manifest(tmp_path):
    manifest = load(tmp_path, SCALE + "    exclude: [BLOCK == 32]\n")
    with pytest.raises(ManifestError) as caught:
        plan_bundle(manifest, Target("gfx942"), {}, False)
    assert caught.value.messages == (
        f"{tmp_path / 'm.yaml'}:11:7: op 'scale': no variant needs BLOCK = 32: every combination with it is excluded "
        "or never picked",
    )


@pytest.mark.parametrize(
    "line, left",
    [
        ("LARGE: {values: [false, true], pick: BLOCK >= 32}", {(16, False): 4, (32, True): 4}),
        (
            "LARGE: {values: [false, true], pick: cols > 8 and BLOCK >= 32}",
            {(16, False): 4, (32, False): 4, (32, True): 4},
        ),
        ("LARGE: {values: [1, 4], pick: smallest >= BLOCK // 8}", {(16, 4): 4, (32, 4): 4}),
        ("LARGE: {values: [1, 3], pick: largest <= BLOCK // 8}", {(16, 1): 4, (32, 3): 4}),
        ("LARGE: {values: [1, 3], pick: smallest > BLOCK // 8}", {(16, 3): 4}),
        (
            "LARGE: {values: [false, true], pick: not aligned}",
            {(16, False): 2, (16, True): 2, (32, False): 2, (32, True): 2},
        ),
        ("LARGE: {values: [16, 32], pick: BLOCK}", {(16, 16): 4, (32, 32): 4}),
        ("LARGE: {values: [2, 4], pick: elsize(x)}", {(16, 2): 2, (16, 4): 2, (32, 2): 2, (32, 4): 2}),
    ],
)
def test_a_pick_that_other_axes_decide_leaves_only_what_it_gives(tmp_path, line, left):
    assert points(enumerated(tmp_path, SCALE, axes(line)), "BLOCK", "LARGE") == left


def test_values_that_no_pick_gives_are_unused(tmp_path):
    found = enumerated(tmp_path, SCALE, axes("LARGE: {values: [1, 4, 8], pick: smallest >= BLOCK // 8}"))
    assert found.unused == (("LARGE", 1), ("LARGE", 8))


CONFIGS = "configs: [{options: {num_warps: 1}}]"


@pytest.mark.parametrize(
    "configs, left",
    [
        # a `when` that the point decides: one config a point
        ("[{when: BLOCK > 16, options: {num_warps: 2}}, {options: {num_warps: 1}}]", {(16, 1): 4, (32, 0): 4}),
        (
            "[{when: not aligned, options: {num_warps: 2}}, {options: {num_warps: 1}}]",
            {(16, 0): 2, (16, 1): 2, (32, 0): 2, (32, 1): 2},
        ),
        # one that only a call decides: both
        (
            "[{when: rows > 9, options: {num_warps: 2}}, {options: {num_warps: 1}}]",
            {(16, 0): 4, (16, 1): 4, (32, 0): 4, (32, 1): 4},
        ),
        # the point decides it in part
        (
            "[{when: rows > 9 and BLOCK > 16, options: {num_warps: 2}}, {options: {num_warps: 1}}]",
            {(16, 1): 4, (32, 0): 4, (32, 1): 4},
        ),
        (
            "[{when: rows > 9 or BLOCK > 16, options: {num_warps: 2}}, {options: {num_warps: 1}}]",
            {(16, 0): 4, (16, 1): 4, (32, 0): 4},
        ),
        ("[{when: arch == 'sm_90'}, {when: arch == 'gfx942'}, {options: {num_warps: 1}}]", {(16, 1): 4, (32, 1): 4}),
        (
            "[{when: num_cus > 9}, {when: BLOCK == 16}, {options: {num_warps: 1}}]",
            {(16, 0): 4, (16, 1): 4, (32, 0): 4, (32, 2): 4},
        ),
    ],
)
def test_configs_that_a_point_cannot_get_are_not_built(tmp_path, configs, left):
    found = enumerated(tmp_path, SCALE, (CONFIGS, f"configs: {configs}"))
    assert Counter((dict(variant.point)["BLOCK"], variant.config) for variant in found.variants) == left


def test_a_launch_that_a_point_does_not_have_is_not_built(tmp_path):
    second = "      - {kernel: k.py:scale_rows, name: again, when: BLOCK > 16 and rows > 3, grid: [rows]}\n"
    found = enumerated(tmp_path, SCALE + second)
    assert Counter((dict(variant.point)["BLOCK"], variant.launch) for variant in found.variants) == {
        (16, 0): 4,
        (32, 0): 4,
        (32, 1): 4,
    }


TWO = (
    CONFIGS,
    "configs: [{name: wide, when: rows > 9, blocks: {WIDTH: 4}, options: {num_warps: 2}}, "
    "{name: base, blocks: {WIDTH: 2}, options: {num_warps: 1}}]",
)


@pytest.mark.parametrize(
    "when, denied",
    [
        ("BLOCK == 32", {(32, 0), (32, 1)}),
        ("BLOCK == 32 and config == 'wide'", {(32, 0)}),
        pytest.param("WIDTH > 2", {(16, 0), (32, 0)}),
        pytest.param("WIDTH > 2 and arch == 'sm_90'", set()),
    ],
)
def test_denied_variants_are_left_out_and_recorded(tmp_path, when, denied):
    text = SCALE + f'    overrides: [{{when: "{when}", deny: miscompiles}}]\n'
    found = enumerated(tmp_path, text, TWO)
    built = {(dict(variant.point)["BLOCK"], variant.config) for variant in found.variants}
    assert built == {(16, 0), (16, 1), (32, 0), (32, 1)} - denied
    op = build_contract(load(tmp_path, edit(text, TWO)), "scale", "gfx942", OPTIONS)
    assert [item.reason for item in op.denied] == ["miscompiles"]


def test_overrides_change_options_in_their_order(tmp_path):
    text = SCALE + (
        "    overrides:\n"
        "      - {when: BLOCK == 32, options: {num_stages: 3, waves_per_eu: 2}}\n"
        "      - {when: config == 'wide' and T == 'float16', options: {num_stages: 1, num_warps: 8}}\n"
    )
    found = enumerated(tmp_path, text, TWO)
    options = {
        (known["T"], known["BLOCK"], variant.config): dict(variant.options)
        for variant in found.variants
        for known in [dict(variant.constants)]
    }
    assert options[("float32", 16, 0)] == {"num_warps": 2}
    assert options[("float32", 32, 1)] == {"num_warps": 1, "num_stages": 3, "waves_per_eu": 2}
    assert options[("float16", 16, 0)] == {"num_warps": 8, "num_stages": 1}
    assert options[("float16", 32, 0)] == {"num_warps": 8, "num_stages": 1, "waves_per_eu": 2}
    assert options[("float16", 32, 1)] == {"num_warps": 1, "num_stages": 3, "waves_per_eu": 2}


@pytest.mark.parametrize(
    "given, expected", [("[aligned]", [True]), ("[general]", [False]), ("[general, aligned]", [True, False])]
)
def test_specialisations(tmp_path, given, expected):
    found = enumerated(tmp_path, SCALE + f"    specialisations: {given}\n")
    assert sorted({variant.aligned for variant in found.variants}, reverse=True) == expected
    assert len(found.variants) == 4 * len(expected)


def test_an_op_without_axes_has_one_point(tmp_path):
    text = edit(SCALE, ("    dtypes: {T: [float16, float32]}\n    constexprs:\n" + AXES, "")).replace(
        "dtype: T", "dtype: int8"
    )
    found = enumerated(tmp_path, text)
    assert [(variant.aligned, variant.point) for variant in found.variants] == [(True, ()), (False, ())]


def test_an_expression_without_a_value_is_a_fault_of_the_manifest(tmp_path):
    text = SCALE + "    exclude: [1 // (BLOCK - 16) > 0]\n"
    message = r"'1 // \(BLOCK - 16\) > 0' cannot be evaluated: integer division or modulo by zero"
    with pytest.raises(ExpressionError, match=message):
        enumerated(tmp_path, text)
    with pytest.raises(ManifestError, match=rf"m.yaml:3:3: op 'scale': {message}"):
        plan_bundle(load(tmp_path, text), Target("gfx942"), {}, False)


def test_variants_are_hashable_and_stable(tmp_path):
    first, again = (enumerated(tmp_path, EVERYTHING).variants for _ in range(2))
    assert first == again and len(set(first)) == len(first)
    assert all(isinstance(variant, VariantSpec) for variant in first)
