"""`aotbuild init` writes manifests that build unchanged and compute the right results."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from aot.cli import main
from aot.manifest.loading import load_manifest
from aot_emulator import EmulatorDriver, Options
from aot_runtime import Bundle, Device, open_bundle
from tests.support.building.wild import WILD
from tests.support.session_builds import build_here, session_cache


def init(*words: object) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, words)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / "ops.py"
    path.parent.mkdir()
    path.write_text(WILD)
    return path


@pytest.fixture
def opened(file: Path, tmp_path: Path) -> Callable[[str, str], Bundle]:
    """The bundle of one kernel as its manifest is written, in part."""

    def build(kernel: str, filters: str) -> Bundle:
        manifest = tmp_path / "lib" / "wild.yaml"
        said = init(f"{file}:{kernel}", "-o", manifest)
        assert said.output == f"{manifest}: nothing is left to decide\n", said.output
        lines = [line for line in manifest.read_text().splitlines() if line and not line.startswith("#")]
        assert len(lines) <= 20, manifest.read_text()
        options = ["--cache-dir", str(session_cache()), "--filter", filters, "-o", str(tmp_path)]
        built = build_here(["--arch", "gfx942", *options, str(manifest)])
        assert built.exit_code == 0, built.output
        return open_bundle(tmp_path / "wild-gfx942", device=Device(EmulatorDriver(Options(strict=True)), 0))

    return build


def test_a_row_kernel_is_built_and_run(opened: Callable[[str, str], Bundle]):
    bundle = opened("_norm_fwd_kernel", "T=float32,BLOCK_SIZE=256")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 100)).astype(np.float32), rng.standard_normal(100).astype(np.float32)
    rstd = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(1) + 1e-6)
    for weight, expected in ((None, x * rstd[:, None]), (w, x * rstd[:, None] * w)):
        got = bundle.norm_fwd(x, weight)
        assert np.allclose(got.Y, expected, atol=1e-5) and np.allclose(got.RSTD, rstd, atol=1e-5)


@pytest.mark.slow
def test_a_matmul_is_built_and_run(opened: Callable[[str, str], Bundle]):
    bundle = opened("matmul_kernel", "T=float16")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 50)).astype(np.float16), rng.standard_normal((50, 70)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(bundle.matmul(a, b), exact, atol=2e-2)
    assert np.allclose(bundle.matmul(a, b, activation="gelu"), np.where(exact >= 0, exact, exact / 2), atol=2e-2)


def test_standard_output_and_no_overwriting(file: Path, tmp_path: Path):
    shown = init(f"{file}:_scatter_add")
    assert shown.exit_code == 0 and "# decide: the kernel adds to it" in shown.stdout
    target = tmp_path / "deep" / "scatter.yaml"
    written = init(f"{file}:_scatter_add", "-o", target)
    undecided = target.read_text().count("# decide: ")
    assert undecided > 1 and written.output == f"{target}: {undecided} lines are marked `# decide:`\n"
    assert load_manifest(target).root == tmp_path / "lib"
    modeline = re.match(r"# yaml-language-server: \$schema=(\S+)\n", target.read_text())
    assert modeline and (target.parent / modeline[1]).is_file()
    target.write_text("mine")
    refused = init(f"{file}:_scatter_add", "-o", target)
    assert refused.exit_code == 2 and f"{target} already exists; --force overwrites it" in refused.output
    assert target.read_text() == "mine"
    assert init(f"{file}:_scatter_add", "-o", target, "--force").exit_code == 0
    assert target.read_text().startswith("# yaml-language-server")


def test_a_package_is_imported_from_above_it(file: Path, tmp_path: Path):
    (file.parent / "__init__.py").write_text("raise SystemExit\n")
    manifest = tmp_path / "lib" / "wild.yaml"
    assert init(f"{file}:_norm_fwd_kernel", f"{file}:_norm_fwd_kernel", "-o", manifest).exit_code == 0
    loaded = load_manifest(manifest)
    assert loaded.root == tmp_path and [*loaded.spec.ops] == ["norm_fwd", "norm_fwd_2"]
    assert loaded.spec.ops["norm_fwd"].launches[0].kernel == "lib/ops.py:_norm_fwd_kernel"


@pytest.mark.parametrize(
    ("text", "kernel", "status", "message"),
    [
        (WILD, "matmul_kernal", 1, "ops.py has no function 'matmul_kernal'; did you mean matmul_kernel?"),
        (WILD.replace("_scatter_add(", "gelu_like("), "gelu_like", 1, "has 2 functions named 'gelu_like'"),
        ("import torch\n", "f", 1, "ops.py has no function 'f', nor any @triton.jit function"),
        (WILD, "matmul kernel", 2, "is not FILE:KERNEL, such as kernels/add.py:add_kernel"),
    ],
)
def test_bad_input(file: Path, text: str, kernel: str, status: int, message: str):
    file.write_text(text)
    said = init(f"{file}:{kernel}")
    assert said.exit_code == status and message in said.output, said.output


def test_a_file_that_is_not_there(tmp_path: Path):
    said = init(f"{tmp_path}/none.py:f")
    assert said.exit_code == 2 and f"file {tmp_path}/none.py does not exist" in said.output
