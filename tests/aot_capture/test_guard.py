"""`aotbuild run --no-compile` under real Triton without a GPU: hits of a moved cache, and explained misses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.aot_capture.conftest import ALL, Captured, Session

LAUNCH = "import kernels; from kernels import *; scale[(1,)](X, X, 1024, BLOCK=64)"


@pytest.fixture
def shipped(session: Session, captured: Captured) -> Session:
    """The program in another folder than it was captured in; commands read the captured cache."""
    return session


def options(captured: Captured, *more: object) -> tuple[object, ...]:
    return ("--cache", captured.cache, "--kernels", captured.file, *more)


def _contents(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_a_moved_cache_hits_and_is_not_written_to(shipped: Session, captured: Captured):
    """Its program lies elsewhere, too."""
    assert shipped.folder != captured.file.parent
    before = _contents(captured.cache)
    report, result = shipped.run(ALL, *options(captured))
    assert result.returncode == 0, result.stderr
    assert report["misses"] == [] and report["hits"]["kernel"] == 4 and report["processes"] == 1
    assert "0 would compile; from the cache: 4 kernels" in result.stderr
    assert _contents(captured.cache) == before


def test_a_cache_that_cannot_be_written_is_read(shipped: Session, captured: Captured):
    """Triton's own cache folder, below a file: to make a folder there fails as on a read-only disk."""
    script = "import os; os.environ['TRITON_CACHE_DIR'] = '/dev/null/cache'\n" + ALL
    report, result = shipped.run(script, *options(captured))
    assert result.returncode == 0 and report["hits"]["kernel"] == 4, result.stderr


def test_launches_that_miss_are_told_with_their_differences(shipped: Session, captured: Captured):
    script = """import kernels; from kernels import *
scale[(1,)](X, X, 1024, BLOCK=64, num_warps=8)
scale[(1,)](X, X, 1024, BLOCK=128)
scale[(1,)](X, X, 1023, BLOCK=64)
scale[(1,)](X, Tensor(pointer=4), 1024, BLOCK=64)
scale[(1,)](X, Tensor(tl.float16), 1024, BLOCK=64)
scale[(1,)](X, X, 1 << 40, BLOCK=64)
select[(1,)](Pair(X, 60), X, MODE=Mode.KEEP, DTYPE=tl.bfloat16, BLOCK=64)
apply(helpers.shifted, FACTOR)[(1,)](X, X, BLOCK=64)
tuned.fn[(1,)](X, 5, BLOCK=8)
"""
    report, result = shipped.run(script, *options(captured, "--warn"))
    assert result.returncode == 0, result.stderr
    told = [miss["differences"] for miss in report["misses"]]
    assert [differences[1:] for differences in told[:7]] == [
        ["  num_warps: captured 4, now 8"],
        ["  BLOCK: captured 64, now 128"],
        ["  argument n: captured divisible by 16, now no assumption"],
        ["  argument y: captured divisible by 16, a tensor within 32 bits of offset, "
         "now a tensor within 32 bits of offset"],
        ["  argument y: captured *fp32, now *fp16"],
        ["  argument n: captured i32, now i64"],
        ["  MODE: captured Mode.NEGATE, now Mode.KEEP", "  DTYPE: captured fp16, now bf16"],
    ]  # fmt: skip
    assert told[0][0] == "differs from the nearest of 1 captured:"
    assert told[7][1:] == ["  function, read by apply.<locals>.applied: captured double, now shifted"]
    assert told[8] == ["no kernel of the name tuned was captured"]
    first = report["misses"][0]
    assert (first["name"], first["target"], first["file"]) == ("kernels.scale", "hip gfx942", str(shipped.kernels))
    assert "9 would compile" in result.stderr


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_what_would_compile_is_listed_without_compiling(shipped: Session, arch: str):
    never = "import triton.compiler.code_generator; triton.compiler.code_generator.ast_to_ttir = None"
    script = f"{never}; import kernels; kernels.launch_all({64 if arch == 'gfx942' else 32}); import aggregates"
    command = ["run", "--no-compile", "--warn", "--arch", arch, "--", sys.executable, "-c"]
    result = shipped.aotbuild(*command, script)
    assert result.returncode == 0 and "5 would compile" in result.stderr, result.stderr
    assert not [path for path in (shipped.folder / "own-cache").rglob("*") if path.is_file()]


def test_a_miss_is_an_error_with_the_place_of_the_launch(shipped: Session, captured: Captured):
    (shipped.folder / "serve.py").write_text(
        "from kernels import *\n\nscale[(1,)](X, X, 1024, BLOCK=64, num_warps=8)\n"
    )
    _, result = shipped.run("import serve", *options(captured))
    assert result.returncode == 1
    line = shipped.kernels.read_text().splitlines().index("def scale(x, y, n, BLOCK: tl.constexpr):")
    assert f"WouldCompileError: aotbuild run --no-compile: kernels.scale ({shipped.kernels}:{line})" in result.stderr
    assert f"launched at {shipped.folder / 'serve.py'}:3" in result.stderr
    assert "num_warps: captured 4, now 8" in result.stderr


def test_an_error_that_the_program_swallows_is_in_the_exit_status(shipped: Session, captured: Captured):
    script = "from kernels import *\ntry: scale[(1,)](X, X, 1, BLOCK=8)\nexcept Exception: pass"
    report, result = shipped.run(script, *options(captured))
    assert report["status"] == 0 and result.returncode == 1 and len(report["misses"]) == 1


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([("FACTOR = tl", "\nFACTOR = tl", "kernels.py")], ["kernels.py:32): moved down by 1 line, from line 31; the"]),
        ([("* FACTOR + helpers", "+ FACTOR + helpers", "kernels.py")], ["its source has changed"]),
        ([("return x * 2", "return x * 4", "kernels.py"), ("return x + 1", "return x + 3", "helpers.py"),
          ("FACTOR = tl.constexpr(3)", "FACTOR = tl.constexpr(5)", "kernels.py")],
         ["double ({folder}/kernels.py:26): its source has changed",
          "shifted ({folder}/helpers.py:6): its source has changed", "FACTOR, read by scale: captured 3, now 5"]),
    ],
    ids=["lines", "the kernel", "what it reads"],
)  # fmt: skip
def test_a_changed_program_is_told(
    shipped: Session, captured: Captured, edits: list[tuple[str, str, str]], told: list[str]
):
    for edit in edits:
        shipped.edit(*edit)
    report, result = shipped.run(LAUNCH, *options(captured))
    assert result.returncode == 1
    differences = "\n".join(report["misses"][0]["differences"])
    assert all(text.format(folder=shipped.folder) in differences for text in told), differences


def test_a_changed_environment_is_told(shipped: Session, captured: Captured):
    report, result = shipped.run(LAUNCH, *options(captured), TRITON_DEFAULT_FP_FUSION="0")
    assert result.returncode == 1
    assert "  TRITON_DEFAULT_FP_FUSION: captured not set, now false" in report["misses"][0]["differences"]


def test_another_target_is_told(shipped: Session, captured: Captured):
    command = ["run", "--no-compile", "--arch", "gfx1201", *options(captured), "--", sys.executable, "-c", LAUNCH]
    result = shipped.aotbuild(*command)
    assert "target: captured hip gfx942 (64 lanes), now hip gfx1201 (32 lanes)" in result.stderr


def test_other_files_of_triton_are_told(shipped: Session, captured: Captured):
    lines = [json.loads(line) for line in captured.file.read_text().splitlines()]
    changed = [name for name in lines[0]["files"] if name in ("language/core.py", "_C/libtriton.so")]
    lines[0]["files"] |= dict.fromkeys(changed, "0" * 64)
    other = shipped.folder / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, _ = shipped.run(LAUNCH, "--cache", shipped.folder, "--kernels", other)
    told = f"  files of Triton {lines[0]['triton']}: {', '.join(changed)}"
    assert len(changed) == 2 and told in report["misses"][0]["differences"]


def test_a_captured_kernel_that_was_not_built_is_told(shipped: Session, captured: Captured):
    """Kernels that an earlier run left in Triton's own cache do not count."""
    empty = shipped.folder / "empty"
    empty.mkdir()
    shutil.copytree(captured.cache, shipped.folder / "own-cache")
    report, _ = shipped.run(LAUNCH, "--cache", empty, "--kernels", captured.file)
    assert report["misses"][0]["differences"] == [f"it was captured, and the cache lacks it: {empty}"]


def test_a_half_copied_cache_is_told(shipped: Session, captured: Captured):
    cache = shutil.copytree(captured.cache, shipped.folder / "copied")
    missing, torn = (next(cache.rglob(f"__grp__{name}.json")) for name in ("scale", "select"))
    (missing.parent / "scale.hsaco").unlink()
    torn.write_text(torn.read_text()[:40])
    report, _ = shipped.run(ALL, "--cache", cache, "--kernels", captured.file, "--warn")
    told = {miss["name"]: miss["differences"] for miss in report["misses"]}
    assert told.keys() == {"kernels.scale", "kernels.select"}
    assert told["kernels.scale"] == [f"{missing.parent} is incomplete: it lacks scale.hsaco"]
    assert len(told["kernels.select"]) == 1 and "cannot be read" in told["kernels.select"][0]


def test_worker_processes_are_guarded(shipped: Session, captured: Captured):
    script = """
import subprocess, sys
import kernels
def run(n):
    return subprocess.run([sys.executable, "-c", f"from kernels import *; scale[(1,)](X, X, {n}, BLOCK=64)"]).returncode
print(run(1024), run(1))
"""
    report, result = shipped.run(script, *options(captured))
    assert result.stdout == "0 1\n" and result.returncode == 1
    assert report["processes"] == 2 and report["hits"]["kernel"] == 1 and len(report["misses"]) == 1

    report, result = shipped.run(script + "run(1)", *options(captured, "--warn"))
    assert result.stdout == "0 0\n" and result.returncode == 0
    assert report["processes"] == 3 and report["hits"]["kernel"] == 1 and len(report["misses"]) == 1


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("import os; os.environ['TRITON_ALWAYS_COMPILE'] = '1'", "TRITON_ALWAYS_COMPILE is set"),
        ("import triton; triton.knobs.cache.manager_class = triton.runtime.cache.FileCacheManager",
         "the program has replaced Triton's cache manager"),
    ],
)  # fmt: skip
def test_ways_around_the_cache_are_told(shipped: Session, captured: Captured, before: str, told: str):
    report, result = shipped.run(f"{before}\n{LAUNCH}", *options(captured))
    assert result.returncode == 1 and told in report["misses"][0]["differences"][0]


def test_a_run_that_looks_nothing_up_proves_nothing(shipped: Session, captured: Captured):
    _, result = shipped.run("pass", *options(captured))
    assert result.returncode == 1 and "this run proves nothing" in result.stderr


def test_another_cache_manager_is_refused(shipped: Session):
    _, result = shipped.run("pass", TRITON_CACHE_MANAGER="theirs:Manager")
    assert result.returncode == 2 and "TRITON_CACHE_MANAGER is set" in result.stderr


STORE = """
import hashlib, json, os, sys
import triton, kernels
from aot_capture.autotuning import result_hash
from triton.runtime.cache import FileCacheManager, _base32
triton.knobs.cache.manager_class = None
for kernel, configs in ((kernels.tuned, kernels.CONFIGS), (kernels.tuned_with_hook, kernels.HOOKED)):
    manager = FileCacheManager(_base32(result_hash(kernel.fn, (100, "fp32"), configs)))
    stored = [[{**vars(config), "pre_hook": None}, [time] * 3] for config, time in zip(configs, (2.0, 1.0))]
    manager.put(json.dumps({"key": [100, "fp32"], "configs_timings": stored}), f"{kernel.fn.__name__}.autotune.json")
for n in (5, 100):
    for config in kernels.CONFIGS: kernels.tuned.fn[(1,)](kernels.X, n, **config.all_kwargs())
    for config in kernels.HOOKED: kernels.tuned_with_hook.fn[(1,)](kernels.X, n, **config.all_kwargs())
"""


def test_results_of_autotuners_are_read_and_nothing_is_measured(shipped: Session):
    """Also for configs with a pre_hook, which Triton itself neither stores nor looks up."""
    result = shipped.aotbuild("capture", "-o", "k.jsonl", "--arch", "gfx942", "--", sys.executable, "-c", STORE)
    assert result.returncode == 0, result.stderr
    script = """
from kernels import *
print("cache" in str(tuned.cache_results), tuned_with_hook.cache_results)
tuned[(1,)](X, {n}); tuned_with_hook[(1,)](X, {n})
print(tuned.best_config.kwargs, tuned_with_hook.best_config.kwargs, len(hooked), tuned.configs_timings[CONFIGS[0]][0])
"""
    cache = ["--cache", shipped.folder / "own-cache"]
    report, result = shipped.run(script.format(n=100), *cache)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1] == "{'BLOCK': 64} {'BLOCK': 64} 1 2.0"
    assert report["hits"] == {"kernel": 2, "C module": 0, "autotune result": 2} and report["measured"] == []

    (damaged, *_) = shipped.folder.glob("own-cache/*/tuned.autotune.json")
    damaged.write_text("[")
    report, result = shipped.run(script.format(n=100), *cache)
    assert result.stdout.splitlines()[1] == "{'BLOCK': 32} {'BLOCK': 64} 1 1.0", result.stderr

    report, result = shipped.run(script.format(n=5), *cache)
    assert result.stdout.splitlines()[1] == "{'BLOCK': 32} {'BLOCK': 32} 3 1.0"  # measured: two runs, then one
    assert result.returncode == 0 and [each["name"] for each in report["measured"]] == ["tuned", "tuned_with_hook"]
    assert "tuned is measured again" in result.stderr


def test_c_modules_are_seen(shipped: Session, captured: Captured):
    """Triton compiles them with the C compiler: the launchers up to 3.6, the drivers' utilities in all versions."""
    script = "from triton.runtime.cache import *; get_cache_manager('ab').get_file('cuda_utils.cpython-311.so')"
    report, result = shipped.run(script, *options(captured))
    assert result.returncode == 1
    assert "cuda_utils would be compiled by the C compiler" in result.stderr
    assert report["misses"][0]["what"] == "C module"


def test_a_damaged_capture_file_is_told_with_the_miss(shipped: Session, captured: Captured):
    (shipped.folder / "bad.jsonl").write_text("[]\n" * 2)
    report, _ = shipped.run(LAUNCH, "--cache", shipped.folder, "--kernels", shipped.folder / "bad.jsonl")
    assert "bad.jsonl:1" in report["misses"][0]["differences"][0]
