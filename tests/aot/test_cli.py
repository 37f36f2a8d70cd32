"""The `aotbuild` command: arguments, output and exit status."""

import importlib.metadata
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from aot.cli import main
from aot.targets import TARGETS
from aot_runtime.contract.provenance import decode_provenance
from aot_runtime.trust.checking import read_trusted_index
from aot_runtime.trust.keys import generate_key
from aot_runtime.trust.policy import TrustedKey, TrustPolicy
from tests.support.building.builds import Project, figures
from tests.support.building.projects import KERNELS, SCALE, edit
from tests.support.session_builds import ROOT

SMALL = ("--filter", "dtype=float16,block=16")
MAX_DRY_RUN = 20
"""Maximum CPU time of a dry run of `attention`, as a multiple of a process that imports numpy: 1.2 s beside 60 ms."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def errors(result: Result) -> list[str]:
    """Return what was printed as errors. Nothing else was printed, and the exit status is that of a wrong manifest."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    lines = result.stderr.splitlines()
    assert all(line.startswith("aotbuild: error: ") for line in lines), result.stderr
    return [line.removeprefix("aotbuild: error: ") for line in lines]


def files(project: Project) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.output.rglob("*") if path.is_file()}


# Building


def test_a_build_and_one_that_has_nothing_to_do(tmp_path: Path):
    project = Project(tmp_path / "[bold]:smile:")  # what looks like markup is printed as it is
    first = project.build("--jobs", "2", workers=True)
    lines = first.stdout.splitlines()
    assert lines[0] == "compiling 8 variants with 2 workers"
    assert re.fullmatch(rf"{re.escape(str(project.folder_of()))}: 8 variants, \d code objects, \d+\.\d KiB", lines[-2])
    assert figures(first) == (8, 0) and first.stderr == ""
    index = project.bundle()
    assert (index.name, index.target.arch, len(index.variants)) == ("tiny", "gfx942", 8)
    before = files(project)
    second = project.build()
    assert figures(second) == (0, 8)
    assert "compiling" not in second.stdout and files(project) == before


def test_options_reach_the_pool_and_an_interrupt_ends_the_build(project: Project):
    with mock.patch("aot.build.WarmPool", side_effect=KeyboardInterrupt) as pool:
        assert project.build("--jobs", "3", "--timeout", "7", workers=True).exit_code == 130
    pool.assert_called_once_with(3, 7.0)


def test_a_dry_run_counts_and_writes_nothing(project: Project):
    """An architecture that is named twice is built once."""
    result = project.build("--dry-run", archs=("gfx942", "sm_90", "gfx942"))
    op = f"  scale{' ' * 27}     8\n"
    counts = [f"tiny-{arch}: 8 variants, 8 to compile at most\n{op}" for arch in ("gfx942", "sm_90")]
    assert (result.exit_code, result.stdout) == (0, "".join(counts))
    assert not project.output.exists() and not project.cache.exists()


def test_constants_that_compare_equal_are_two_variants(tmp_path: Path):
    """True == 1, so their jobs are equal; their code need not be."""
    axis = "BLOCK: {values: [16, 32], pick: smallest >= cols}"
    one, true = (edit(SCALE, (axis, f"FLAG: {{values: [{v}], pick: cols > 1}}")) for v in ("1", "true"))
    kernels = edit(KERNELS, ("BLOCK: tl.constexpr", "FLAG: tl.constexpr"), ("tl.arange(0, BLOCK)", "tl.arange(0, 16)"))
    project = Project(tmp_path, one + true.partition("ops:\n")[2].replace("  scale:", "  other:"), kernels)
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    flags = [(v.op, v.axis_values["FLAG"]) for v in project.bundle().variants if v.aligned]
    assert flags == [("scale", 1), ("other", True)]


# Usage


def test_what_is_listed():
    """The architectures, the version and the help are listed."""
    archs, version, text = (CliRunner().invoke(main, [option]) for option in ("--list-archs", "--version", "-h"))
    assert [result.exit_code for result in (archs, version, text)] == [0, 0, 0]
    assert [line.split()[:2] for line in archs.stdout.splitlines()] == [
        [target.arch, target.tier] for target in TARGETS
    ]
    assert "\ngfx942    primary       mi300a mi300x mi325x\n" in archs.stdout
    assert importlib.metadata.version("aotbuild") in version.stdout
    status = "Exit status: 0 all built; 1 something did not compile or could not be written; 2 wrong usage"
    assert status in " ".join(text.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--arch", "gfx943"],
            "unknown architecture 'gfx943'; did you mean 'gfx942'?; allowed: gfx908, gfx90a, gfx942,",
        ),
        (["--jobs", "0"], "'--jobs'"),
        (["--timeout", "0"], "'--timeout'"),
        (["--archs", "gfx942"], "No such option"),
        *(
            (["--filter", text], f"'{item}' is not axis=value; write, for example, 'head_dim=64|128,dtype=float16'")
            for text, item in {"block": "block", "block=": "block=", "=3": "=3", "b=1,": "", "a=1||2": "a=1||2"}.items()
        ),
    ],
)
def test_wrong_options(project: Project, options: list[str], message: str):
    result = project.build(*options)
    assert result.exit_code == 2 and message in result.stderr
    assert not project.output.exists()


def test_nothing_to_build_or_to_build_for(project: Project):
    for command, missing in ((["--arch=gfx942"], "argument 'MANIFESTS"), ([str(project.manifest)], "option '--arch")):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2 and f"Missing {missing}" in result.stderr


# Manifests that are wrong


def test_the_faults_of_all_manifests_come_together(project: Project, tmp_path: Path):
    other, missing = tmp_path / "other.yaml", tmp_path / "missing.yaml"
    other.write_text("bundle: [\n")
    project.manifest.write_text(edit(SCALE, ("pick:", "pik:"), ("type: fp32", "type: fp3")))
    found = [message.partition(": ")[0] for message in errors(project.build(str(other), str(missing)))]
    assert found == [*(f"{project.manifest}:{at}" for at in ("8:16", "11:7", "11:33")), f"{other}:2:1", str(missing)]
    assert not project.output.exists()


def test_two_manifests_of_one_bundle_and_a_filter_on_no_axis(project: Project):
    said = f"{project.manifest}: bundle 'tiny' is in another of these manifests too"
    no_axis = "--filter: no manifest has an axis 'blok'; did you mean 'BLOCK'?"
    assert errors(project.build(str(project.manifest), "--filter", "blok=16")) == [said, said, no_axis]


# Variants that do not compile

FAILING = KERNELS.replace(
    "    i = tl.arange", '    tl.static_assert(BLOCK != 32, "BLOCK is too large")\n    i = tl.arange'
)
LINE = 1 + FAILING[: FAILING.index("    tl.static_assert")].count("\n")


def test_what_fails_is_listed_and_the_rest_is_compiled(project: Project):
    """An older bundle stays as it was, also one for another architecture."""
    archs = ("gfx942", "gfx90a")
    assert figures(project.build(*SMALL, archs=archs)) == (4, 0)
    before = files(project)
    (project.folder / "k.py").write_text(FAILING)
    result = project.build(archs=archs)
    assert result.exit_code == 1 and files(project) == before
    lines = result.stderr.splitlines()
    assert lines[0] == "aotbuild: 8 variants did not compile; no bundle was written"
    assert lines[1:5] == [
        f"  tiny-gfx942: scale[T={dtype}, BLOCK=32] {special} config 0"
        for special in ("aligned", "general")
        for dtype in ("float16", "float32")
    ]
    assert lines[9].startswith(f"    k.py:{LINE}: ") and "BLOCK is too large" in result.stderr
    assert sum("BLOCK is too large" in line for line in lines) <= 2, "one reason is given once"
    assert "Traceback" not in result.stderr
    result = project.build("--verbose", "--filter", "block=32,dtype=float16")
    assert result.exit_code == 1 and "    Traceback (most recent call last):" in result.stderr
    assert figures(project.build("--filter", "block=16")) == (0, 4), "the others are in the cache"


ASM = r"""'.warning "slow"\nv_mov_b32 $0, $1', '=v,v'"""
WARNING = KERNELS.replace("value * factor", f"tl.inline_asm_elementwise({ASM}, [value * factor], tl.float32, True, 1)")


def test_what_the_compiler_warns_of_is_told_once(project: Project, caplog: pytest.LogCaptureFixture):
    """Four variants give one warning, which a build from the cache repeats."""
    (project.folder / "k.py").write_text(WARNING)
    for expected in ((4, 0), (0, 4)):
        caplog.clear()
        assert figures(project.build("--filter", "dtype=float32")) == expected
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            "k.py: kernel 'scale_rows': slow\n    .warning \"slow\""
        ]


# Additions


def test_what_cannot_be_added_to_is_left_as_it_is(project: Project):
    calls = project.folder / "calls.yaml"
    calls.write_text("calls: [{op: scale, shapes: {x: [2, 8]}, dtypes: {T: float32}}]")
    add = ("--for", str(calls), "--add")
    assert f"--add: there is no bundle in {project.folder_of()} to add to" in project.build(*add).stderr
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    before = files(project)
    project.manifest.write_text(edit(SCALE, ("values: [16, 32]", "values: [16, 64]")))
    result = project.build(*add)
    assert result.exit_code == 2 and files(project) == before
    gone = "scale[BLOCK=32, T=float16] aligned config 0; scale[BLOCK=32, T=float16] general config 0"
    assert f"--add: {project.folder_of()} has variants that the manifest no longer has: {gone}; build" in result.stderr
    assert "--add needs --for" in project.build("--add").stderr
    project.manifest.write_text(SCALE)
    result = project.build(*add)
    assert figures(result) == (1, 4)
    assert "tiny-gfx942: 1 call, for which, with what is there, 5 of 8 variants are built" in result.stdout
    provenance = decode_provenance(project.bundle())
    assert provenance and provenance.build_definition.external_parameters["add"] is True


# Requirements


def test_what_is_not_met_is_listed_and_nothing_is_written(project: Project):
    assert project.build(*SMALL).exit_code == 0
    before = files(project)
    result = project.build("--require", "spills == 0", "--require", "load_bits >= 64 or BLOCK == 16")
    assert result.exit_code == 1 and files(project) == before
    heading, requirement, *variants, count = result.stderr.splitlines()
    assert heading == "aotbuild: --require is not met; no bundle was written"
    assert requirement == "tiny-gfx942: load_bits >= 64 or BLOCK == 16: not met by"
    assert len(variants) == 4 and all("BLOCK=32" in line and "load_bits = " in line for line in variants)
    assert count == "tiny-gfx942: 4 of 8 variants fail"
    assert figures(project.build("--require", "load_bits <= 32 and matrix == ''")) == (0, 8), "all is in the cache"
    unknown = "--require: 'spils == 0' uses undefined name 'spils'; did you mean 'spills'?"
    assert errors(project.build("--require", "spils == 0")) == [unknown]


# Places


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [
        ("-o", "m.yaml/sub", "output folder {} cannot be written: Not a directory"),
        ("-o", "m.yaml", "output folder {} cannot be written: File exists"),
        ("--cache-dir", "m.yaml/sub", "compile cache {} cannot be written: Not a directory"),
    ],
)
def test_places_that_cannot_be_written(project: Project, option: str, place: str, message: str):
    path = project.folder / place
    result = project.build(option, str(path), *SMALL)
    assert result.exit_code == 1 and result.stderr.startswith(f"aotbuild: error: {message.format(path)}")
    assert not project.folder_of().exists()


def test_a_file_where_the_cache_keeps_entries_costs_no_bundle(project: Project, caplog: pytest.LogCaptureFixture):
    project.cache.mkdir()
    (project.cache / "v2").write_text("in the way")
    result = project.build(*SMALL)
    assert result.exit_code == 0
    assert any("cannot be read (a file is in its place); it is not used" in item.message for item in caplog.records)
    assert project.folder_of().exists() and (project.cache / "v2").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("what", ["output", "cache"])
def test_a_folder_without_permission(project: Project, what: str):
    folder: Path = getattr(project, what)
    folder.mkdir(0o555)
    result = project.build(*SMALL)
    assert result.exit_code == 1 and f"{folder} cannot be written: Permission denied" in result.stderr


def test_the_cache_is_where_the_environment_says(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(tmp_path / "elsewhere"))
    project.cache.mkdir()
    command = [word for word in project.command(*SMALL) if word not in ("--cache-dir", str(project.cache))]
    assert figures(project.invoke(command)) == (2, 0) and (tmp_path / "elsewhere/v2").is_dir()


# Signing


def test_bundles_are_signed_as_they_are_written(project: Project, tmp_path: Path):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    pem, public = generate_key()
    key = tmp_path / "release.key"
    key.write_bytes(pem)
    result = project.build(*SMALL, "--sign", str(key), archs=("gfx942", "sm_90"))
    assert result.exit_code == 0 and result.stdout.count(", signed\n") == 2
    policy = TrustPolicy((TrustedKey("release", public, ("tiny",)),))
    for arch in ("gfx942", "sm_90"):
        assert read_trusted_index(project.folder_of(arch), policy).target.arch == arch


@pytest.mark.parametrize("content", [None, b"no key"])
def test_a_key_that_cannot_sign_is_found_before_anything_is_built(
    project: Project, tmp_path: Path, content: bytes | None
):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    if content:
        (tmp_path / "release.key").write_bytes(content)
    result = project.build(*SMALL, "--sign", str(tmp_path / "release.key"))
    assert result.exit_code == 2 and "Invalid value for '--sign': key " in result.stderr and not files(project)


def test_a_dry_run_is_short_beside_numpys_import(tmp_path: Path):
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def cpu_time(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    numpy, dry_run = ("-c", "import numpy"), ("-m", "aot", "--arch", "gfx942", "--dry-run", "attention")
    cpu_time(*numpy), cpu_time(*dry_run)  # the first runs compile
    assert any(cpu_time(*dry_run) <= MAX_DRY_RUN * cpu_time(*numpy) for _ in range(3))  # other processes disturb
