import dataclasses
import shutil
from pathlib import Path

import pytest

from aot.compile.compiler import compile_job
from aot.source.constants import Dtype
from tests.support.building import jobs
from tests.support.building.jobs import key


def test_the_key_covers_what_changes_the_code():
    works = [
        jobs.softmax("gfx942"),
        jobs.softmax("gfx90a"),
        jobs.softmax("sm_90"),
        jobs.softmax("gfx942", 512),
        jobs.softmax("gfx942", line_info=True),
        jobs.softmax("gfx942", divisible=()),
        jobs.softmax("gfx942", divisible=(("x", 16), ("y", 8))),
        jobs.softmax("gfx942", pointer_range_32=()),
        jobs.softmax("gfx942", options=(("num_warps", 8),)),
        jobs.softmax("gfx942", options=(("enable_fp_fusion", False),)),
        jobs.softmax("gfx942", signature=(("x", "*fp16"), *jobs.SOFTMAX[1:])),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": 64}),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": True}),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": 1}),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": "fp16"}),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": Dtype("fp16")}),
        jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": Dtype("bf16")}),
    ]
    keys = [key(work) for work in works]
    assert len(set(keys)) == len(keys)
    assert all(len(found) == 64 for found in keys)


def test_the_key_does_not_cover_what_does_not():
    plain = key(jobs.softmax("gfx942"))
    assert key(jobs.softmax("gfx942", options=(("num_warps", 4),))) == plain, "a default, given"
    assert key(jobs.softmax("gfx942", divisible=(("y", 16), ("x", 16)))) == plain, "another order"
    assert key(jobs.softmax("sm_90", pointer_range_32=())) == key(jobs.softmax("sm_90")), "no such hint on NVIDIA"


HELPERS, TUPLES = "kernels/shared/activations.py", "kernels/tuples.py"
SCALED = jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": 64})
NESTED = jobs.job("nested", "gfx942", (), {}, source=TUPLES, functions=(("mod.function", f"{TUPLES}:plus_table"),))


@pytest.mark.parametrize(
    ("work", "file", "old", "new"),
    [
        (jobs.softmax("gfx942"), HELPERS, "tl.exp2(x * LOG2E)", "tl.exp2(x * LOG2E * 1.0)"),
        (jobs.softmax("gfx942"), HELPERS, "1.4426950408889634", "1.5"),
        (jobs.softmax("gfx942"), HELPERS, "floor=0.0", "floor=1.0"),
        (SCALED, HELPERS, "1.4426950408889634", "1.5"),  # a constant that is reached through its module
        (NESTED, TUPLES, "value + tl.load", "value - tl.load"),  # a function that is bound to a parameter
        (
            NESTED,
            TUPLES,
            "    function: tl.constexpr\n    operands: tl.tuple\n",
            "    operands: tl.tuple\n    function: tl.constexpr\n",
        ),
    ],
    ids=["helper", "constant", "default", "module's constant", "function", "fields"],
)
def test_the_key_covers_what_the_kernel_reaches(tmp_path: Path, work, file: str, old: str, new: str):
    root = tmp_path / "project"
    shutil.copytree(jobs.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    work = dataclasses.replace(work, root=str(root))
    before, image = key(work), compile_job(work).image if work.function == "scaled" else b""
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))
    assert key(work) != before
    assert not image or compile_job(work).image != image


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AMDGCN_USE_BUFFER_OPS", "0"),
        ("TRITON_HIP_USE_BLOCK_PINGPONG", "1"),
        ("DISABLE_LLVM_OPT", "1"),
        ("TRITON_FORCE_DISABLE_FP_FUSION", "1"),
        ("TRITON_F32_DEFAULT", "ieee"),
    ],
)
def test_the_key_covers_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    before = key(jobs.softmax("gfx942"))
    for irrelevant in (
        "TRITON_CACHE_DIR",
        "TRITON_HOME",
        "TRITON_DISABLE_LINE_INFO",
        "TRITON_ALWAYS_COMPILE",
        "EDITOR",
    ):
        monkeypatch.setenv(irrelevant, "1")
    assert key(jobs.softmax("gfx942")) == before
    monkeypatch.setenv(name, value)
    assert key(jobs.softmax("gfx942")) != before
