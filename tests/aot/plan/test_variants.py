from collections import Counter
from pathlib import Path

import pytest

from aot.plan.contract import build_contract
from aot.plan.variants import Enumeration, enumerate_variants
from aot_runtime.errors import ExpressionError
from tests.support.building.projects import EVERYTHING, OPTIONS, SCALE, contract, edit, load, rows


def enumerated(folder: Path, text: str, *changes: tuple[str, str], arch: str = "gfx942") -> Enumeration:
    manifest = load(folder, edit(text, *changes))
    return enumerate_variants(build_contract(manifest, "scale", arch, OPTIONS), manifest.spec.ops["scale"], arch)


def points(found: Enumeration, *names: str) -> Counter:
    """Return how many variants have each combination of values; `config` and `launch` are by position."""
    return Counter(
        tuple({**dict(item.constants), "config": item.config, "launch": item.launch}[name] for name in names)
        for item in found.variants
    )


def counts(text: str) -> Counter:
    """Return `points` as `16 True: 4, 32 False: 2`."""
    values = {"True": True, "False": False, "float16": "float16", "float32": "float32"}
    entries = (entry.split(": ") for entry in text.split(", "))
    return Counter({tuple(values.get(v) if v in values else int(v) for v in k.split()): int(n) for k, n in entries})


AXES = "      BLOCK: {values: [16, 32], pick: smallest >= cols}\n"
CONFIGS = "configs: [{options: {num_warps: 1}}]"


def test_every_combination_by_hand(tmp_path: Path):
    found = enumerated(tmp_path, SCALE)
    assert found == enumerated(tmp_path, SCALE) and len(set(found.variants)) == 8
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
    assert dict(first.constants) == {
        "T": "float16", "BLOCK": 16, "aligned": True, "_elsize__T": 2, "_elsize__x": 2, "_elsize__out": 2,
        "arch": "gfx942", "fp8": "fnuz", "has_bf16_cvt": False, "has_tf32": True, "has_wgmma": False,
        "lds_bytes": 65536, "num_xcds": 8, "warp_size": 64,
    }  # fmt: skip


def test_everything_by_hand(tmp_path: Path):
    """2 dtypes * 2 blocks * 3 of (BIASED, TOP) * 2 specialisations * 2 configs, since only a call knows `cols > 32`."""
    found = enumerated(tmp_path, EVERYTHING)
    assert points(found, "BIASED", "TOP") == counts("False False: 16, False True: 16, True False: 16")
    for variant in found.variants:
        known = dict(variant.constants)
        assert (known["_given__bias"], known["_given__top"]) == (known["BIASED"], known["TOP"])
        warps, width = (8, 4) if variant.config == 0 else (4, 2)
        assert known["WIDTH"] == width
        stages = {"num_stages": 1} if known["BLOCK"] == 64 else {}
        assert dict(variant.options) == {"num_warps": warps, **stages}


def test_an_op_without_axes_has_one_point(tmp_path: Path):
    axes = "    dtypes: {T: [float16, float32]}\n    constexprs:\n" + AXES
    found = enumerated(tmp_path, edit(SCALE, (axes, "")).replace("dtype: T", "dtype: int8"))
    assert [(variant.aligned, variant.point) for variant in found.variants] == [(True, ()), (False, ())]


# What is appended to SCALE, or replaced in it; the axes that are counted; how many variants there are of each point.
# `when` is that of a config before the only one.
POINTS = r"""
specialisations: [aligned] -> aligned -> True: 4
specialisations: [general] -> aligned -> False: 4
specialisations: [general, aligned] -> aligned -> True: 4, False: 4
exclude: ["T == 'float32' and BLOCK > 16"] -> T BLOCK -> float16 16: 2, float16 32: 2, float32 16: 2
exclude: [elsize(T) == 4 and BLOCK > 16] -> T BLOCK -> float16 16: 2, float16 32: 2, float32 16: 2
exclude: [aligned and BLOCK == 32] -> T BLOCK -> float16 16: 2, float16 32: 1, float32 16: 2, float32 32: 1
exclude: [1 > 2] -> BLOCK -> 16: 4, 32: 4
LARGE: {values: [false, true], pick: BLOCK >= 32} -> BLOCK LARGE -> 16 False: 4, 32 True: 4
LARGE: {values: [false, true], pick: cols > 8 and BLOCK >= 32} -> BLOCK LARGE
 -> 16 False: 4, 32 False: 4, 32 True: 4
LARGE: {values: [1, 3], pick: largest <= BLOCK // 8} -> BLOCK LARGE -> 16 1: 4, 32 3: 4
LARGE: {values: [1, 3], pick: smallest > BLOCK // 8} -> BLOCK LARGE -> 16 3: 4
LARGE: {values: [false, true], pick: not aligned} -> aligned LARGE -> True False: 4, False True: 4
LARGE: {values: [16, 32], pick: BLOCK} -> BLOCK LARGE -> 16 16: 4, 32 32: 4
LARGE: {values: [2, 4], pick: elsize(x)} -> T LARGE -> float16 2: 4, float32 4: 4
{when: BLOCK > 16} -> BLOCK config -> 16 1: 4, 32 0: 4
{when: not aligned} -> aligned config -> False 0: 4, True 1: 4
{when: rows > 9} -> BLOCK config -> 16 0: 4, 16 1: 4, 32 0: 4, 32 1: 4
{when: rows > 9 and BLOCK > 16} -> BLOCK config -> 16 1: 4, 32 0: 4, 32 1: 4
{when: rows > 9 or BLOCK > 16} -> BLOCK config -> 16 0: 4, 16 1: 4, 32 0: 4
{when: arch == 'sm_90'}, {when: arch == 'gfx942'} -> BLOCK config -> 16 1: 4, 32 1: 4
LARGE: {values: [false, true], pick: num_xcds > 1} -> BLOCK LARGE
 -> 16 False: 4, 16 True: 4, 32 False: 4, 32 True: 4
LARGE: {values: [false, true], pick: warp_size > 32} -> BLOCK LARGE -> 16 True: 4, 32 True: 4
{when: num_xcds > 1} -> BLOCK config -> 16 0: 4, 16 1: 4, 32 0: 4, 32 1: 4
{when: num_cus > 9}, {when: BLOCK == 16} -> BLOCK config -> 16 0: 4, 16 1: 4, 32 0: 4, 32 2: 4
- {kernel: k.py:scale_rows, name: again, when: BLOCK > 16 and rows > 3, grid: [rows]} -> BLOCK launch
 -> 16 1: 4, 32 0: 4, 32 1: 4
"""


@pytest.mark.parametrize(("text", "axes", "left"), rows(POINTS))
def test_points_that_no_call_can_reach_are_not_built(tmp_path: Path, text: str, axes: str, left: str):
    """A single value, config or launch remains where an axis decides it; all remain where only a call does."""
    match text.partition(":")[0]:
        case "LARGE":
            change = (AXES, f"{AXES}      {text}\n")
        case "{when":
            change = ("configs: [", f"configs: [{text}, ")
        case "- {kernel":
            change = ("    launches:\n", f"    launches:\n      {text}\n")
        case _:
            change = ("    launches:", f"    {text}\n    launches:")
    assert points(enumerated(tmp_path, SCALE, change), *axes.split()) == counts(left)


def test_an_architecture_of_one_die_has_no_partitions(tmp_path: Path):
    change = (AXES, f"{AXES}      LARGE: {{values: [false, true], pick: num_xcds > 1}}\n")
    assert points(enumerated(tmp_path, SCALE, change, arch="gfx90a"), "LARGE") == counts("False: 8")
    assert points(enumerated(tmp_path, SCALE, change), "LARGE") == counts("False: 8, True: 8")


def test_exclude_may_ask_for_an_optional_tensor(tmp_path: Path):
    found = enumerated(tmp_path, EVERYTHING, ("[TOP and BIASED]", "[given(bias)]"))
    assert points(found, "BIASED") == counts("False: 32")
    assert found.unused == (("BIASED", True),)


def test_what_is_left_out_everywhere_is_unused(tmp_path: Path):
    """Reasons are `exclude`, or that no pick gives the value; what is left out on this architecture alone is not
    reported."""
    found = enumerated(tmp_path, SCALE + "    exclude: [BLOCK == 32, T == 'float32' and BLOCK == 16]\n")
    assert points(found, "T", "BLOCK") == counts("float16 16: 2")
    assert found.unused == (("T", "float32"), ("BLOCK", 32))
    line = "      LARGE: {values: [1, 4, 8], pick: smallest >= BLOCK // 8}\n"
    assert enumerated(tmp_path, SCALE, (AXES, AXES + line)).unused == (("LARGE", 1), ("LARGE", 8))
    text = SCALE + "    exclude: [arch == 'gfx942' and BLOCK == 32]\n"
    for arch, left in (("gfx942", "16: 4"), ("sm_90", "16: 4, 32: 4")):
        found = enumerated(tmp_path, text, arch=arch)
        assert points(found, "BLOCK") == counts(left) and found.unused == ()


TWO = (
    CONFIGS,
    "configs: [{name: wide, when: rows > 9, blocks: {WIDTH: 4}, options: {num_warps: 2}}, "
    "{name: base, blocks: {WIDTH: 2}, options: {num_warps: 1}}]",
)


@pytest.mark.parametrize(
    ("when", "left"),
    [
        ("BLOCK == 32", "16 0: 4, 16 1: 4"),
        ("BLOCK == 32 and config == 'wide'", "16 0: 4, 16 1: 4, 32 1: 4"),
        ("WIDTH > 2", "16 1: 4, 32 1: 4"),
        ("WIDTH > 2 and arch == 'sm_90'", "16 0: 4, 16 1: 4, 32 0: 4, 32 1: 4"),
    ],
)
def test_denied_variants_are_left_out_and_recorded(tmp_path: Path, when: str, left: str):
    text = edit(SCALE + f'    overrides: [{{when: "{when}", deny: miscompiles}}]\n', TWO)
    assert points(enumerated(tmp_path, text), "BLOCK", "config") == counts(left)
    assert [item.reason for item in contract(tmp_path, text).denied] == ["miscompiles"]


def test_overrides_change_options_in_their_order(tmp_path: Path):
    text = SCALE + (
        "    overrides:\n"
        "      - {when: BLOCK == 32, options: {num_stages: 3, waves_per_eu: 2}}\n"
        "      - {when: config == 'wide' and T == 'float16', options: {num_stages: 1, num_warps: 8}}\n"
    )
    found = enumerated(tmp_path, text, TWO)
    options = {(*dict(item.point).values(), item.config): dict(item.options) for item in found.variants}
    assert options["float32", 16, 0] == {"num_warps": 2}
    assert options["float32", 32, 1] == {"num_warps": 1, "num_stages": 3, "waves_per_eu": 2}
    assert options["float16", 16, 0] == {"num_warps": 8, "num_stages": 1}
    assert options["float16", 32, 0] == {"num_warps": 8, "num_stages": 1, "waves_per_eu": 2}
    assert options["float16", 32, 1] == {"num_warps": 1, "num_stages": 3, "waves_per_eu": 2}


def test_every_config_with_a_cost_is_built_behind_one_that_always_holds(tmp_path: Path):
    configs = """configs: [{name: a, when: rows < 9, blocks: {WIDTH: 1}},
          {name: b, when: aligned, blocks: {WIDTH: 2}, fitted: {step: 1}},
          {name: c, when: rows < 7, blocks: {WIDTH: 3}},
          {name: d, blocks: {WIDTH: 4}, fitted: {step: 2}}]
        cost: step * rows"""
    found = enumerated(tmp_path, SCALE, (CONFIGS, configs))
    assert points(found, "config") == {(0,): 8, (1,): 4, (2,): 4, (3,): 8}


def test_an_expression_without_a_value(tmp_path: Path):
    with pytest.raises(ExpressionError, match=r"'1 // \(BLOCK - 16\) > 0' cannot be evaluated: integer division"):
        enumerated(tmp_path, SCALE + "    exclude: [1 // (BLOCK - 16) > 0]\n")
