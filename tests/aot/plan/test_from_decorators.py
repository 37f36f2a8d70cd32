"""Ops completed from a kernel's decorators: configs, and the results of heuristics."""

import re
from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.targets import Target
from tests.support.building.projects import edit, load, rows, tuning, unmarked

KERNELS = """\
import triton
import triton.language as tl

LANES = tl.constexpr(4)


def half(args):
    \"\"\"Not one lambda, but one return.\"\"\"
    return args["BLOCK"] // 2


def shapes():
    return [triton.Config({"BLOCK": b, "waves_per_eu": 2}, num_warps=w) for b in (64, 256) for w in (2, 8)]


@triton.autotune(configs=shapes(), key=["cols"])
@triton.heuristics({"EVEN": lambda args: args["cols"] % args["BLOCK"] == 0, "HALF": half})
@triton.heuristics(values={
    "BIASED": lambda args: args["bias_ptr"] is not None, "WIDE": lambda a: triton.cdiv(a["HALF"], LANES.value),
    "num_stages": lambda args: 1 if args["BLOCK"] in (64, 128) else min(2, 3),
})
@triton.jit
def scale(x_ptr, bias_ptr, out_ptr, cols: tl.int64, factor, stride_x: tl.int64, BLOCK: tl.constexpr,
          EVEN: tl.constexpr, HALF: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + row * stride_x + i, mask=None if EVEN else i < cols)
        if BIASED:
            value += tl.load(bias_ptr + i, mask=i < cols)
        tl.store(out_ptr + row * cols + i, value * factor * HALF * WIDE, mask=i < cols)
"""
MANIFEST = """\
bundle: tiny
ops:
  scale:
    tensors:
      x: {shape: [rows, cols], dtype: float32}
      bias: {shape: [cols], dtype: float32, optional: true}
      out: {shape: [rows, cols], dtype: float32, role: output, contiguous: [rows, cols]}
    scalars:
      factor: {type: fp32}
    launches:
      - kernel: k.py:scale
        grid: [rows]
        bind: {stride_x: "stride(x, rows)"}
        configs: from kernel
"""


def planned(folder: Path, text: str, kernels: str = KERNELS) -> PlannedBundle:
    manifest = load(folder, text)
    (folder / "k.py").write_text(kernels)
    return plan_bundle(manifest, Target("gfx942"), {}, False)


def test_the_first_config_and_every_heuristic_are_taken(tmp_path: Path):
    bundle = planned(tmp_path, MANIFEST)
    (config,) = bundle.ops[0].launches[0].configs
    assert (config.name, config.values) == ("config0", {"BLOCK": 64})
    assert config.options == {"waves_per_eu": 2, "num_warps": 2, "num_stages": 1}  # not triton.Config's 3
    assert [(axis.name, axis.values, axis.pick) for axis in bundle.ops[0].axes] == [
        ("EVEN", (False, True), "cols % 64 == 0"),
        ("HAS_BIAS", (False, True), "given(bias)"),
    ]
    assert len(bundle.variants) == 8
    bound = {item.name: item for item in bundle.variants[-1].bound}
    assert [bound[name].constant for name in ("EVEN", "BIASED")] == [True, True]
    assert (bound["HALF"].constant, bound["WIDE"].constant) == (32, 8)
    assert [(bound[name].type, bound[name].value) for name in ("cols", "stride_x", "factor", "x_ptr")] == [
        ("i64", "cols"), ("i64", "stride(x, 0)"), ("fp32", "factor"), ("*fp32", "x"),
    ]  # fmt: skip


def test_configs_are_named_by_position_and_changed(tmp_path: Path):
    written = "[{from_kernel: 3, when: cols > 99, options: {num_stages: 1}}, {from_kernel: 0, blocks: {BLOCK: 256}}]"
    text = edit(MANIFEST, ("configs: from kernel", f"configs: {written}"), ("bind: {", "bind: {EVEN: false, HALF: 2, "))
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning/scale.yaml").write_text(
        tuning("{scale: [{name: config0, from_kernel: 2}, {when: rows > 9, from_kernel: 1}]}")
    )
    bundle = planned(tmp_path, text, re.sub(' +"num_stages": .*\n', "", KERNELS))
    assert [(c.when, c.values["BLOCK"], c.options["num_warps"], c.options["num_stages"]) for c in _configs(bundle)] == [
        ("rows > 9", 64, 8, 3),
        ("cols > 99", 256, 2, 1),
        ("", 256, 2, 3),
    ]


def _configs(bundle: PlannedBundle):
    return bundle.ops[0].launches[0].configs


def test_a_heuristic_of_what_is_bound_to_a_block(tmp_path: Path):
    """`bind` may make one block as long as another whose length is in the configs."""
    changes = [("bind: {", "bind: {BLOCK: 2 * SIZE, "), ("from kernel", "[{blocks: {SIZE: 16, HALF: 1}}]")]
    kernels = edit(KERNELS, ("BLOCK: tl.constexpr,", "BLOCK: tl.constexpr, SIZE: tl.constexpr,"))
    bundle = planned(tmp_path, edit(MANIFEST, *changes), kernels)
    assert bundle.ops[0].axes[0].pick == "cols % (2 * 16) == 0"


def test_what_the_manifest_says_is_not_asked_of_the_kernel(tmp_path: Path):
    changes = [
        ("bind: {", "bind: {EVEN: false, WIDE: 7, "),
        ("    launches", "    constexprs: {HALF: {values: [8, 16], pick: largest <= cols}}\n    launches"),
        ("configs: from kernel", "configs: [{blocks: {BLOCK: 32, BIASED: false}, options: {num_stages: 2}}]"),
        (", optional: true", ""),
    ]
    bundle = planned(tmp_path, edit(MANIFEST, *changes))
    assert [axis.name for axis in bundle.ops[0].axes] == ["HALF"]
    assert _configs(bundle)[0].options == {"num_stages": 2}


def test_heuristics_know_of_pointers_that_are_null(tmp_path: Path):
    bias = "      bias: {shape: [cols], dtype: float32, optional: true}\n"
    in_manifest = planned(tmp_path, edit(MANIFEST, (bias, ""), ("bind: {", "bind: {bias_ptr: null, ")))
    last = ("WIDE: tl.constexpr):", "WIDE: tl.constexpr, bias_ptr=None):")
    by_default = edit(KERNELS, ("x_ptr, bias_ptr,", "x_ptr,"), last)
    for bundle in (in_manifest, planned(tmp_path, edit(MANIFEST, (bias, "")), by_default)):
        assert [axis.name for axis in bundle.ops[0].axes] == ["EVEN"]
        assert {item.name: item.constant for item in bundle.variants[0].bound}["BIASED"] is False


# What is replaced in KERNELS, by what; in MANIFEST, by what, with an @ where the fault is; what is said.
FAULTS = r"""
half} -> lambda args: triton.next_power_of_2(args["cols"])} -> kernel: k -> @kernel: k
 -> the heuristic HALF = `lambda args: triton.next_power_of_2(args["cols"])` (k.py:17) differs from call to call.
 List the values to compile: `constexprs: {HALF: {values: [...], pick: 'next_pow2(cols)'}}`
half} -> lambda args: [args["cols"]][0]} -> kernel: k -> @kernel: k
 -> the heuristic HALF = `lambda args: [args["cols"]][0]` (k.py:17) is not an expression: `[args['cols']][0]` is not
 part of the expression language. Bind it: `bind: {HALF: ...}`
return args["BLOCK"] // 2 -> x = 1\n    return args["BLOCK"] // x -> kernel: k -> @kernel: k
 -> the heuristic HALF = `def half(args): \"\"\"Not one lambda, but one return.\"\"\" x = 1 return args[\"BLOCK\"] // x`
 (k.py:7) is not an expression: it is more than a single `return`. Bind it: `bind: {HALF: ...}`
1 if args["BLOCK"] in (64, 128) else min(2, 3) -> args["cols"] // 64 -> kernel: k -> @kernel: k
 -> the heuristic num_stages = `lambda args: args["cols"] // 64` (k.py:20) is a compiler option that depends on the
 call. Write `configs: [{when: ..., options: {num_stages: ...}}, ...]`
_ -> _ -> configs: from kernel -> configs: [{when: cols > 9, from_kernel: 2}, {from_kernel: 0}]
 -> the heuristic EVEN = `lambda args: args["cols"] % args["BLOCK"] == 0` (k.py:17) depends on BLOCK, which differs by
 config. Bind it: `bind: {EVEN: ...}`
_ -> _ -> from kernel -> [{@from_kernel: 4, blocks: {BLOCK: 64}}]
 -> config 'config0': 'k.py:scale' has 4 configs, from 0 on; from_kernel is 4
@triton.autotune(configs=shapes(), key=["cols"])\n -> \n -> from kernel -> [{@from_kernel: 0, blocks: {BLOCK: 64}}]
 -> config 'config0': 'k.py:scale' has no configs: it has no @triton.autotune; from_kernel is 0
"waves_per_eu": 2 -> "BLOCK": tl.float32 -> configs: from -> @configs: from
 -> config 0 of 'k.py:scale' has BLOCK = triton.language.float32; a number, a boolean or text is allowed
"""


@pytest.mark.parametrize("row", rows(FAULTS), ids=lambda row: row[-1][:40])
def test_faults(tmp_path: Path, row: list[str]):
    old, new, written, instead, message = row
    kernels = KERNELS if old == "_" else edit(KERNELS, (old, new))
    text = edit(MANIFEST, (written, instead))
    place, text = unmarked(text) if "@" in text else ("", text)
    with pytest.raises(ManifestError) as caught:
        planned(tmp_path, text, kernels)
    (said,) = caught.value.messages
    assert said.endswith(f"op 'scale': {message}".replace(r"\"", '"'))
    assert f"m.yaml:{place}" in said
