"""The `aotbuild` command: what it takes, what it prints, how it exits."""

import importlib.metadata
import re

import pytest
from click.testing import CliRunner, Result

from aot.cli import main
from aot.targets import TARGETS
from tests.support.building.builds import Project, figures
from tests.support.building.projects import KERNELS, SCALE, edit, position


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def errors(result: Result) -> list[str]:
    """What was printed as an error; nothing else was, and the exit status is that of a wrong manifest."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    lines = result.stderr.splitlines()
    assert all(line.startswith("aotbuild: error: ") for line in lines), result.stderr
    return [line.removeprefix("aotbuild: error: ") for line in lines]


# Building


def test_a_build_and_one_that_has_nothing_to_do(project):
    first = project.build("--jobs", "2")
    assert first.exit_code == 0
    lines = first.stdout.splitlines()
    assert lines[0] == "compiling 8 variants with 2 workers"
    assert re.fullmatch(
        rf"{re.escape(str(project.output))}/tiny-gfx942: 8 variants, \d code objects, \d\.\d MB", lines[1]
    )
    assert figures(first) == (8, 0) and first.stderr == ""
    index = project.bundle()
    assert (index.name, index.target.arch, len(index.variants)) == ("tiny", "gfx942", 8)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.output.rglob("*") if path.is_file()}
    second = project.build()
    assert figures(second) == (0, 8)
    assert "compiling" not in second.stdout
    assert files == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_several_architectures_in_one_command(project):
    result = project.build("--filter", "BLOCK=16", archs=("gfx942", "sm_90", "gfx1100", "sm_90"))
    assert figures(result) == (12, 0), "an architecture that is named twice is built once"
    for arch, backend, warp in (("gfx942", "hip", 64), ("sm_90", "cuda", 32), ("gfx1100", "hip", 32)):
        index = project.bundle(arch)
        assert (index.target.backend, index.target.warp_size) == (backend, warp)
        assert {variant.warp_size for variant in index.variants} == {warp}
        suffix = "hsaco" if backend == "hip" else "cubin"
        assert {blob.file.rpartition(".")[2] for blob in index.blobs.values()} == {suffix}


def test_a_path_that_looks_like_markup_is_printed_as_it_is(tmp_path):
    project = Project(tmp_path / "[bold]:smile:")
    result = project.build("--filter", "BLOCK=16,dtype=float16")
    assert f"{project.output}/tiny-gfx942: 2 variants" in result.stdout


# Dry runs and filters


def test_a_dry_run_counts_and_writes_nothing(project):
    result = project.build("--dry-run", archs=("gfx942", "sm_90"))
    assert result.exit_code == 0
    op = f"  scale{' ' * 27}     8\n"
    assert result.stdout == (
        f"tiny-gfx942: 8 variants, 8 to compile at most\n{op}tiny-sm_90: 8 variants, 8 to compile at most\n{op}"
    )
    assert not project.output.exists() and not project.cache.exists()


@pytest.mark.parametrize(
    "filters, count",
    [
        (["block=16"], 4),
        (["BLOCK=16"], 4),
        (["block=16|32"], 8),
        (["block=16", "block=32"], 8),
        (["dtype=float16"], 4),
        (["t=FLOAT16"], 4),
        (["block=16,dtype=float16"], 2),
        (["block=16", " dtype = float16 "], 2),
        (["op=scale"], 8),
        (["dtype=float16|bfloat16"], 4),
    ],
)
def test_filters(project, filters, count):
    result = project.build("--dry-run", *(item for text in filters for item in ("--filter", text)))
    assert result.stdout.startswith(f"tiny-gfx942: {count} variants, ")


def test_a_filter_on_an_axis_that_one_op_lacks_leaves_that_op_whole(tmp_path):
    other = SCALE.partition("ops:\n")[2].replace("  scale:", "  other:").replace("BLOCK", "SIZE")
    kernel = KERNELS.partition("@triton.jit")[2].replace("scale_rows", "other_rows").replace("BLOCK", "SIZE")
    text = SCALE + other.replace("scale_rows", "other_rows")
    project = Project(tmp_path, text, f"{KERNELS}\n\n@triton.jit{kernel}")
    result = project.build("--dry-run", "--filter", "block=16")
    assert result.stdout == (
        f"tiny-gfx942: 12 variants, 12 to compile at most\n  scale{' ' * 27}     4\n  other{' ' * 27}     8\n"
    )
    assert "other" not in project.build("--dry-run", "--filter", "op=scale").stdout


def test_a_filter_that_leaves_nothing(project):
    (message,) = errors(project.build("--filter", "block=64"))
    assert message == f"{project.manifest}: no variant is left for gfx942 after --filter and exclude"


def test_a_filter_on_no_axis(project):
    (message,) = errors(project.build("--filter", "blok=16"))
    assert message == "--filter: no manifest has an axis 'blok'; there are block, dtype, op, t"


@pytest.mark.parametrize(
    "text, item", [("block", "block"), ("block=", "block="), ("=3", "=3"), ("block=16,", ""), ("a=1||2", "a=1||2")]
)
def test_a_filter_that_is_none(project, text, item):
    result = project.build("--filter", text)
    assert result.exit_code == 2
    assert f"'{item}' is not axis=value; write e.g. 'head_dim=64|128,dtype=float16'" in result.stderr


def test_a_filtered_build_has_the_filtered_variants(project):
    assert figures(project.build("--filter", "dtype=float16", "--filter", "block=32")) == (2, 0)
    assert [(v.axis_values, v.aligned) for v in project.bundle().variants] == [
        ({"T": "float16", "BLOCK": 32}, True), ({"T": "float16", "BLOCK": 32}, False),
    ]  # fmt: skip


# Usage


def test_the_architectures_are_listed():
    result = CliRunner().invoke(main, ["--list-archs"])
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [[target.arch, target.tier] for target in TARGETS]
    assert ["gfx942", "primary"] in lines


@pytest.mark.parametrize(
    "arch, message",
    [
        ("gfx943", "unknown architecture 'gfx943'; the nearest is 'gfx942'; allowed: gfx908, gfx90a, gfx942,"),
        ("gfx942:xnack+", "feature flags are not part of the name; use 'gfx942'"),
        ("gfx942,sm_90", "one name at a time; allowed: gfx908,"),
        ("", "allowed: gfx908, gfx90a, gfx942,"),
    ],
)
def test_unknown_architectures(project, arch, message):
    result = project.build(archs=("gfx942", arch))
    assert result.exit_code == 2
    assert message in result.stderr
    assert all(name in result.stderr for name in ("sm_90", "gfx1201")) or "use 'gfx942'" in result.stderr
    assert not project.output.exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--jobs", "0"], "'--jobs'"),
        (["--timeout", "0"], "'--timeout'"),
        (["--timeout", "soon"], "'--timeout'"),
        (["--archs", "gfx942"], "No such option"),
    ],
)
def test_wrong_options(project, options, message):
    result = project.build(*options)
    assert result.exit_code == 2 and message in result.stderr


def test_nothing_to_build_or_to_build_for(project):
    for command, missing in ((["--arch", "gfx942"], "MANIFESTS"), ([str(project.manifest)], "--arch")):
        result = CliRunner().invoke(main, command)
        assert (
            result.exit_code == 2
            and f"Missing {'argument' if missing.isupper() else 'option'} '{missing}" in result.stderr
        )


def test_the_version_and_the_help():
    version = CliRunner().invoke(main, ["--version"])
    assert version.exit_code == 0 and importlib.metadata.version("aotbuild") in version.stdout
    text = " ".join(CliRunner().invoke(main, ["-h"]).stdout.split())
    assert "Exit status: 0 all built; 1 something did not compile or could not be written; 2 wrong usage" in text


# Manifests that are wrong


def test_the_faults_of_all_manifests_come_together(project, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("bundle: [\n")
    missing = tmp_path / "missing.yaml"
    project.manifest.write_text(edit(SCALE, ("pick:", "pik:"), ("type: fp32", "type: fp3")))
    found = errors(project.build(str(other), str(missing)))
    assert found == [
        f"{project.manifest}:8:16: ops.scale.scalars.factor.type: 'fp3' is no scalar type; did you mean 'fp32'?",
        f"{project.manifest}:11:7: ops.scale.constexprs.BLOCK: the key 'pick' is missing",
        f"{project.manifest}:11:33: unknown key 'pik'; did you mean 'pick'?",
        f"{other}:2:1: not valid YAML: expected the node content, but found '<stream end>'",
        f"{missing}: cannot be read: No such file or directory",
    ]
    assert not project.output.exists()


def test_two_manifests_of_one_bundle(project, tmp_path):
    found = errors(project.build(str(project.manifest)))
    assert found == [f"{project.manifest}: bundle 'tiny' is in another of these manifests too"] * 2


@pytest.mark.parametrize(
    "change, message",
    [
        (("k.py:scale_rows", "k.py:scale_row"), "op 'scale': k.py has no function 'scale_row'"),
        (("k.py:scale_rows", "k.py:plain"), "op 'scale': 'plain' in k.py is a function, not a @triton.jit function"),
        (("k.py:scale_rows", "k.py:NUMBER"), "op 'scale': 'NUMBER' in k.py is a int, not a @triton.jit function"),
        (("k.py:scale_rows", "broken.py:scale_rows"),
         "op 'scale': file broken.py cannot be imported: ModuleNotFoundError: No module named 'nosuchmodule'"),
        (("type: fp32", "type: fp32}\n      other: {type: i32"), None),
    ],
)  # fmt: skip
def test_kernels_that_cannot_be_loaded(tmp_path, change, message):
    project = Project(tmp_path, edit(SCALE, change), KERNELS + "\n\ndef plain(x):\n    return x\n\n\nNUMBER = 3\n")
    (tmp_path / "broken.py").write_text("import nosuchmodule\n")
    if message is None:
        assert project.build("--dry-run").exit_code == 0, "a scalar that the kernel does not take is no fault"
    else:
        assert errors(project.build("--dry-run")) == [f"{position(project.manifest, 'kernel: ')}: {message}"]


def test_a_later_kernel_file_that_is_missing(tmp_path):
    second = "      - kernel: sub/other.py:f\n        grid: [rows]\n"
    project = Project(tmp_path, SCALE + second)
    assert errors(project.build()) == [
        f"{position(project.manifest, 'kernel: sub')}: op 'scale': file sub/other.py is not in {tmp_path}"
    ]


def test_a_parameter_that_nothing_binds(tmp_path):
    project = Project(tmp_path, SCALE, KERNELS.replace("factor", "fctor"))
    (message,) = errors(project.build())
    assert message.startswith(f"{position(project.manifest, 'kernel: ')}: op 'scale', kernel 'k.py:scale_rows': ")
    assert "kernel parameter 'fctor' is not bound" in message and message.endswith("did you mean 'factor'?")


@pytest.mark.parametrize(
    "config, reason",
    [("num_warps: 3", "num_warps must be a power of 2"), ("num_warps: 0", "num_warps must be a power of 2")],
)
def test_an_option_that_the_compiler_refuses_is_a_fault_of_the_manifest(tmp_path, config, reason):
    project = Project(tmp_path, edit(SCALE, ("num_warps: 1", config)))
    (message,) = errors(project.build())
    assert (
        message.startswith(f"{position(project.manifest, '{options')}: op 'scale': compiler options ")
        and reason in message
    )


def test_options_of_both_backends_stand_side_by_side(tmp_path):
    project = Project(tmp_path, edit(SCALE, ("num_warps: 1", "num_warps: 1, waves_per_eu: 2, maxnreg: 64")))
    assert figures(project.build("--filter", "block=16,dtype=float16", archs=("gfx942", "sm_90"))) == (4, 0)
    amd, nvidia = project.bundle().toolchain["options"], project.bundle("sm_90").toolchain["options"]
    assert '"waves_per_eu": 2' in amd and "maxnreg" not in amd
    assert '"maxnreg": 64' in nvidia and "waves_per_eu" not in nvidia


# Variants that do not compile

FAILING = KERNELS.replace(
    "    i = tl.arange", '    tl.static_assert(BLOCK != 32, "BLOCK is too large")\n    i = tl.arange'
)
LINE = 1 + FAILING[: FAILING.index("    tl.static_assert")].count("\n")


def test_what_fails_is_listed_and_the_rest_is_compiled(tmp_path):
    project = Project(tmp_path, SCALE, FAILING)
    result = project.build()
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "aotbuild: 4 variants did not compile; no bundle was written"
    assert lines[1:5] == [
        f"  tiny-gfx942: scale[T={dtype}, BLOCK=32] {special} config 0"
        for special in ("aligned", "general")
        for dtype in ("float16", "float32")
    ]
    assert lines[5].startswith(f"    k.py:{LINE}: ") and "BLOCK is too large" in result.stderr
    assert sum("BLOCK is too large" in line for line in lines) <= 2, "one reason is given once"
    assert "Traceback" not in result.stderr
    assert not (project.output / "tiny-gfx942").exists()
    assert figures(project.build("--filter", "block=16")) == (0, 4), "the others are in the cache"


def test_the_traceback_where_it_is_asked_for(tmp_path):
    project = Project(tmp_path, SCALE, FAILING)
    result = project.build("--verbose", "--filter", "block=32,dtype=float16")
    assert result.exit_code == 1 and "    Traceback (most recent call last):" in result.stderr


def test_an_older_bundle_stays_as_it_was(project):
    def build() -> Result:
        return project.build("--filter", "dtype=float16", archs=("gfx942", "gfx90a"))

    def files() -> dict:
        found = [path for path in project.output.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    assert figures(build()) == (8, 0)
    before = files()
    (project.folder / "k.py").write_text(FAILING)
    result = build()
    assert result.exit_code == 1
    assert result.stderr.startswith("aotbuild: 4 variants did not compile")
    assert all(f"  tiny-{arch}: scale[T=float16, BLOCK=32] aligned" in result.stderr for arch in ("gfx942", "gfx90a"))
    assert files() == before
    project.bundle()


PRODUCT = """\
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, k, stride_a_m, stride_b_k, stride_c_0, M: tl.constexpr, K: tl.constexpr):
    rows, inner = tl.arange(0, M), tl.arange(0, K)
    total = tl.zeros((M, M), tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + rows[:, None] * stride_a_m + start + inner[None, :])
        right = tl.load(b + (start + inner[:, None]) * stride_b_k + rows[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * stride_c_0 + rows[None, :], total)
"""
PRODUCT_MANIFEST = """\
bundle: tiny
ops:
  product:
    tensors:
      a: {shape: [m, k], dtype: float16}
      b: {shape: [k, m], dtype: float16}
      c: {shape: [m, m], dtype: float32, role: output}
    divisible: [k]
    specialisations: [aligned]
    launches:
      - kernel: k.py:product
        grid: [1]
        configs: [{blocks: {M: 128, K: 128}, options: {num_stages: 3, num_warps: 8}}]
"""


def test_more_lds_than_there_is(tmp_path):
    result = Project(tmp_path, PRODUCT_MANIFEST, PRODUCT).build()
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "aotbuild: 1 variant did not compile; no bundle was written",
        "  tiny-gfx942: product[] aligned config 0",
        "    kernel 'product' needs 131072 bytes of LDS per workgroup; gfx942 allows 65536: use smaller blocks or "
        "fewer num_stages",
    ]


def test_a_kernel_that_compiles_for_ever(tmp_path):
    slow = KERNELS.replace(
        "    i = tl.arange",
        "    if BLOCK == 32:\n        for n in tl.static_range(10000000):\n            factor += n\n    i = tl.arange",
    )
    project = Project(tmp_path, SCALE, slow)
    result = project.build("--filter", "dtype=float16", "--timeout", "6", "--jobs", "2")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "aotbuild: 2 variants did not compile; no bundle was written",
        "  tiny-gfx942: scale[T=float16, BLOCK=32] aligned config 0",
        "  tiny-gfx942: scale[T=float16, BLOCK=32] general config 0",
        "    timed out after 6 s",
    ]
    assert figures(project.build("--filter", "dtype=float16,block=16")) == (0, 2)


def test_constants_that_compare_equal_are_two_variants(tmp_path):
    """True == 1, so their jobs are equal; their code need not be."""
    other = SCALE.partition("ops:\n")[2].replace("  scale:", "  other:")
    text = (SCALE + other).replace(
        "BLOCK: {values: [16, 32], pick: smallest >= cols}", "FLAG: {values: [#], pick: cols}"
    )
    text = text.replace("#", "1", 1).replace("values: [#], pick: cols", "values: [true], pick: cols > 1")
    kernels = KERNELS.replace("BLOCK: tl.constexpr", "FLAG: tl.constexpr").replace(
        "tl.arange(0, BLOCK)", "tl.arange(0, 16)"
    )
    project = Project(tmp_path, text, kernels)
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    flags = [(v.op, v.axis_values["FLAG"]) for v in project.bundle().variants if v.aligned]
    assert flags == [("scale", 1), ("other", True)]


# Places that cannot be written


def test_an_output_that_cannot_be_written(project):
    result = project.build("-o", str(project.manifest / "sub"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr == f"aotbuild: error: output folder {project.manifest}/sub cannot be written: Not a directory\n"
    )


def test_an_output_that_is_a_file(project):
    result = project.build("-o", str(project.manifest))
    assert result.exit_code == 1
    assert result.stderr == f"aotbuild: error: output folder {project.manifest} cannot be written: File exists\n"


def test_a_cache_that_cannot_be_written(project):
    result = project.build("--cache-dir", str(project.manifest / "sub"))
    assert result.exit_code == 1
    assert (
        result.stderr == f"aotbuild: error: compile cache {project.manifest}/sub cannot be written: Not a directory\n"
    )
    assert not project.output.exists()


def test_a_cache_that_cannot_be_written_any_more(project):
    project.cache.mkdir()
    (project.cache / "v1").write_text("in the way")
    result = project.build("--filter", "block=16")
    assert result.exit_code == 1
    assert result.stderr == f"aotbuild: error: compile cache {project.cache} cannot be written: Not a directory\n"


def test_the_cache_is_where_the_environment_says(project, monkeypatch, tmp_path):
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(tmp_path / "elsewhere"))
    result = CliRunner().invoke(
        main, ["--arch", "gfx942", str(project.manifest), "-o", str(project.output), "--filter", "block=16"]
    )
    assert figures(result) == (4, 0) and (tmp_path / "elsewhere").is_dir()
