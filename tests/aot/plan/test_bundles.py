"""A manifest planned for an architecture: variants, bindings and faults."""

from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.plan.filters import parse_filters
from aot.targets import Target
from tests.support.building.projects import KERNELS, SCALE, check_row, edit, load, rows

BOTH = SCALE + SCALE.partition("ops:\n")[2].replace("  scale:", "  other:").replace("BLOCK", "SIZE").replace(
    "kernel: k.py:scale_rows", "kernel: k.py:scale_rows\n        bind: {BLOCK: SIZE}"
)  # fmt: skip


def planned(folder: Path, text: str, filters: str = "", arch: str = "gfx942") -> PlannedBundle:
    return plan_bundle(load(folder, text), Target(arch), parse_filters(tuple(filter(None, [filters]))), False)


@pytest.mark.parametrize(
    ("filters", "counts"),
    [
        ("", [8, 8]),
        ("block=16", [4, 8]),  # an op that lacks the axis is left whole
        ("size=32,BLOCK=16|32", [8, 4]),
        ("block=16,block=32", [8, 8]),
        ("dtype=float16", [4, 4]),
        ("t=FLOAT16, size = 16 ", [4, 2]),
        ("op=scale,dtype=float16|bfloat16", [4, 0]),
    ],
)
def test_filters(tmp_path: Path, filters: str, counts: list[int]):
    bundle = planned(tmp_path, BOTH, filters)
    assert [sum(v.spec.op == op for v in bundle.variants) for op in ("scale", "other")] == counts
    assert [op.name for op in bundle.ops] == [op for op, count in zip(("scale", "other"), counts, strict=True) if count]


def test_nothing_is_left(tmp_path: Path):
    with pytest.raises(ManifestError) as caught:
        planned(tmp_path, SCALE, "block=64")
    said = f"{tmp_path / 'm.yaml'}: no variant is left for gfx942 after --filter, --for and exclude"
    assert caught.value.messages == (said,)


def test_options_of_both_backends_stand_side_by_side(tmp_path: Path):
    text = edit(SCALE, ("num_warps: 1", "num_warps: 1, waves_per_eu: 2, maxnreg: 64"))
    amd, nvidia = (planned(tmp_path, text, arch=arch).variants[0] for arch in ("gfx942", "sm_90"))
    assert amd.job.options == amd.spec.options == (("num_warps", 1), ("waves_per_eu", 2))
    assert nvidia.job.options == (("maxnreg", 64), ("num_warps", 1))


@pytest.mark.parametrize("axis", [False, True])
def test_a_kernel_of_other_architectures_is_not_read(tmp_path: Path, axis: bool):
    """A launch may depend on the architecture itself, or through an axis that calls pick by it."""
    condition = "HOPPER" if axis else "has_wgmma"
    configs = "configs: [{options: {num_warps: 1}}]\n"
    launch = f"      - {{kernel: gone.py:scale_rows, name: hopper, when: {condition}, grid: [rows]}}\n"
    hopper = "cols}\n      HOPPER: {values: [false, true], pick: has_wgmma and cols > 16}\n" if axis else "cols}\n"
    text = edit(SCALE, (configs, configs + launch), ("cols}\n", hopper))
    assert planned(tmp_path, text).variants
    with pytest.raises(ManifestError, match=r"file gone\.py is not in"):
        planned(tmp_path, text, arch="sm_90")


# What is replaced in SCALE, by what, with an @ where the fault is; what is said. PLACE is the folder.
FAULTS = r"""
ops:\n  scale -> ops:\n  @scale -> launches: -> exclude: [1 // (BLOCK - 16) > 0]\n    launches:
 -> '1 // (BLOCK - 16) > 0' cannot be evaluated: integer division or modulo by zero
BLOCK: -> @BLOCK: -> launches: -> exclude: [BLOCK == 32]\n    launches:
 -> no variant needs BLOCK = 32: every combination with this value is excluded, or never picked
dtypes: {T -> dtypes: {@T -> launches: -> exclude: [elsize(T) == 4]\n    launches:
 -> no variant needs T = float32: every combination with this value is excluded, or never picked
kernel: k.py:scale_rows -> @kernel: k.py:scale_row -> k.py has no function 'scale_row'; did you mean scale_rows?
kernel: k.py:scale_rows -> @kernel: k.py:plain -> 'plain' in k.py is a function, not a @triton.jit function
kernel: k.py:scale_rows -> @kernel: k.py:NUMBER -> 'NUMBER' in k.py is a int, not a @triton.jit function
kernel: k.py:scale_rows -> @kernel: broken.py:scale_rows
 -> broken.py has no function 'scale_rows', nor any @triton.jit function
launches:\n -> launches:\n      - {kernel: k.py:scale_rows, name: first, grid: [rows]}\n -> kernel: k.py:scale_rows\n
 -> @kernel: sub/other.py:f\n -> file sub/other.py is not in PLACE
grid: [rows] -> bind: {@factor: {function: 'gone.py:f'}}\n        grid: [rows] -> file gone.py is not in PLACE
configs: [{options: {num_warps: 1 -> configs: [@{options: {num_warps: 3
 -> compiler options {'num_warps': 3} for gfx942: num_warps must be a power of 2
"""


@pytest.mark.parametrize("row", rows(FAULTS), ids=lambda row: row[-1])
def test_what_is_refused(tmp_path: Path, row: list[str]):
    (tmp_path / "broken.py").write_text("import nosuchmodule\n")

    def read(folder: Path, text: str) -> None:
        manifest = load(folder, text)
        (folder / "k.py").write_text(f"{KERNELS}\n\ndef plain(x):\n    return x\n\n\nNUMBER = 3\n")
        plan_bundle(manifest, Target("gfx942"), {}, False)

    *changes, message = row
    check_row(tmp_path, SCALE, [*changes, message.replace("PLACE", str(tmp_path))], "op 'scale': ", read)
