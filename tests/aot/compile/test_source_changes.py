"""Files that change while a build runs: what is compiled and cached is what was hashed, or the build fails."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.compile.batch import look_up
from aot.compile.cache import CompileCache
from aot.compile.compiler import compile_job
from aot.compile.kernel_source import inspect_kernel
from aot.compile.keys import job_key, recipe_key
from aot.compile.project import KernelFileError, Project
from tests.support.building import jobs
from tests.support.building.builds import Project as Builds
from tests.support.building.builds import contents, figures
from tests.support.building.projects import KERNELS, SCALE, position

HELPED = KERNELS.replace("import triton\n", "import helper\nimport triton\n", 1).replace("* factor", "* helper.FACTOR")
HELPER = "import triton.language as tl\n\nFACTOR = tl.constexpr({})\n"
ONE = ("--filter", "dtype=float16,block=16")


def between_planning_and_compiling(monkeypatch, act: Callable[[], object]) -> None:
    def acting(*arguments):
        act()
        return look_up(*arguments)

    monkeypatch.setattr("aot.session.look_up", acting)


@pytest.mark.parametrize("changed", ["k.py", "helper.py"])
def test_a_file_edited_during_a_build_fails_it(tmp_path, monkeypatch, changed):
    project = Builds(tmp_path, SCALE, HELPED)
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    path = tmp_path / changed
    planned = path.read_text()
    with monkeypatch.context() as patch:
        between_planning_and_compiling(patch, lambda: path.write_text(planned.replace("2", "3") + "\n# edited\n"))
        result = project.build(*ONE)
    assert result.exit_code == 1
    assert f"file {changed} changed during the build" in result.stderr
    assert not (project.output / "tiny-gfx942").exists()
    path.write_text(planned)
    assert figures(project.build(*ONE)) == (2, 0), "nothing of the other text is in the cache"
    fresh = Builds(tmp_path / "fresh", SCALE, HELPED)
    (tmp_path / "fresh/helper.py").write_text(HELPER.format(2))
    fresh.build(*ONE)
    assert contents(fresh.output / "tiny-gfx942") == contents(project.output / "tiny-gfx942")


def test_a_reference_edited_during_a_build_fails_it(tmp_path, monkeypatch):
    selftest = "    reference: r.py:scale\n    selftest: [{call: {rows: 3, cols: 7, T: float16, factor: 0.1}}]\n"
    project = Builds(tmp_path, SCALE + selftest)
    text = "{}\n\ndef scale(x, factor):\n    return x * factor\n\n\nscale_same_dtype = scale\n"
    rewrites = "import pathlib\npathlib.Path(__file__).with_name('constants.py').write_text('FACTOR = 3\\n')\n"
    (tmp_path / "r.py").write_text(text.format(rewrites + "import constants"))
    (tmp_path / "constants.py").write_text("FACTOR = 2\n")
    result = project.build(*ONE)
    assert result.exit_code == 2
    place = position(project.manifest, "reference: r.py")
    assert result.stderr.startswith(f"aotbuild: error: {place}: op 'scale': file constants.py changed during the build")


@pytest.fixture
def copied(tmp_path):
    """A project that a test may edit, and a job of it that says what its sources are."""
    for name in ("softmax.py", "shared/activations.py"):
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((jobs.ROOT / "kernels" / name).read_bytes())
    found = inspect_kernel(tmp_path, f"{jobs.SOURCE}:softmax")
    return dataclasses.replace(
        jobs.softmax("gfx942", 64), root=str(tmp_path), digest=found.digest, sources=found.sources
    )


def test_sources_are_those_that_were_imported(copied):
    assert [file for file, _ in copied.sources] == ["kernels/shared/activations.py", "kernels/softmax.py"]


def test_what_a_process_has_imported_already_is_used_as_it_was(copied):
    compile_job(copied)
    path = Path(copied.root, "kernels/shared/activations.py")
    path.write_text(path.read_text().replace("1.4426950408889634", "2.4426950408889634"))
    assert recipe_key(compile_job(copied).recipe) == job_key(copied, copied.digest)
    changed = pytest.raises(KernelFileError, match=r"file kernels/shared/activations\.py changed during the build")
    with Project(Path(copied.root)).active(dict(copied.sources)) as modules, changed:
        modules.load(jobs.SOURCE, "softmax")


def test_a_change_that_no_file_shows_is_noticed_too(copied):
    """A module that the file imports only at times, say."""
    with pytest.raises(KernelFileError, match=r"kernels/softmax\.py, or what 'softmax' in it is made of, changed"):
        compile_job(dataclasses.replace(copied, digest="0" * 64))


def test_what_is_read_once_is_what_tracebacks_and_triton_see(tmp_path):
    """A file that changes as soon as it is read: Triton asks for the text of a kernel later."""
    text = KERNELS + "\n\nimport pathlib\npathlib.Path(__file__).write_text('')\n"
    late = text.replace("@triton.jit", "import pathlib\npathlib.Path(__file__).write_text('')\n\n\n@triton.jit")
    (tmp_path / "k.py").write_text(late)
    with Project(tmp_path).active() as modules:
        assert "tl.program_id(0)" in modules.load("k.py", "scale_rows").src


def test_an_entry_that_is_made_of_something_else_is_a_miss(copied, tmp_path):
    cache, key = CompileCache(tmp_path / "cache"), job_key(copied, copied.digest)
    kernel = compile_job(copied)
    cache.put(key, dataclasses.replace(kernel, recipe=kernel.recipe.replace(copied.digest, "0" * 64)))
    assert look_up({key: copied}, cache)[1] == {key: copied}
    cache.put(key, kernel)
    assert look_up({key: copied}, cache)[0].kernels == {key: kernel}


def test_a_kernel_that_is_made_of_something_else_is_a_failure(tmp_path):
    """A file that changes the environment of the process that compiles it: the key is of the build's."""
    project = Builds(tmp_path, SCALE, "import os\n\nos.environ['AMDGCN_USE_BUFFER_OPS'] = '0'\n" + KERNELS)
    result = project.build(*ONE)
    assert result.exit_code == 1
    assert "'scale_rows' in k.py was compiled with another environment than it was planned with" in result.stderr
    assert not list(project.cache.rglob("v2/*/*"))
