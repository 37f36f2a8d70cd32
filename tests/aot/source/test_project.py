"""Files of a project are read once: the hashed source is the compiled and cached one, or the build fails."""

import dataclasses
from pathlib import Path
from unittest import mock

import pytest

from aot.cache.layered_cache import CompileCache
from aot.compile.compiler import compile_job
from aot.compile.jobs import CompileJob
from aot.compile.keys import recipe_changes, recipe_key
from aot.errors import KernelFileError
from aot.source.kernel_source import inspect_kernel
from aot.source.project import Project
from aot.workers.batch import look_up
from tests.support.building import builds, jobs, selftests
from tests.support.building.projects import KERNELS, SCALE, edit, unmarked

HELPED = KERNELS.replace("import triton\n", "import helper\nimport triton\n", 1).replace("* factor", "* helper.FACTOR")
HELPER = "import triton.language as tl\n\nFACTOR = tl.constexpr(2)\n"
SMALL = ("--filter", "dtype=float16,block=16")


@pytest.mark.parametrize("changed", ["k.py", "helper.py"])
def test_a_file_edited_during_a_build_fails_it(tmp_path: Path, changed: str):
    project = builds.Project(tmp_path, SCALE, HELPED)
    (tmp_path / "helper.py").write_text(HELPER)
    path = tmp_path / changed
    planned = path.read_text()

    def edit_before(*arguments):
        path.write_text(planned + "\n# edited\n")
        return look_up(*arguments)

    with mock.patch("aot.build.look_up", edit_before):
        result = project.build(*SMALL)
    assert result.exit_code == 1 and f"file {changed} changed during the build" in result.stderr
    assert not project.folder_of().exists()
    path.write_text(planned)
    assert builds.figures(project.build(*SMALL)) == (2, 0), "nothing of the other text is in the cache"


def test_a_reference_edited_during_a_build_fails_it(tmp_path: Path):
    place, text = unmarked(edit(selftests.SCALE_CASES, ("reference", "@reference")))
    rewrites = "import pathlib\npathlib.Path(__file__).with_name('constants.py').write_text('FACTOR = 3\\n')\n"
    project = selftests.project(tmp_path, text, f"{rewrites}import constants\n{selftests.REFERENCE}")
    (tmp_path / "constants.py").write_text("FACTOR = 2\n")
    result = project.build(*SMALL)
    assert result.exit_code == 2
    said = f"{project.manifest}:{place}: op 'scale': file constants.py changed during the build"
    assert result.stderr.startswith(f"aotbuild: error: {said}")


@pytest.fixture
def copied(tmp_path: Path) -> CompileJob:
    """Return a job, with its sources, of a copied project that a test may edit."""
    for name in ("softmax.py", "shared/activations.py"):
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((jobs.ROOT / "kernels" / name).read_bytes())
    found = inspect_kernel(tmp_path, f"{jobs.SOURCE}:softmax")
    return jobs.softmax("gfx942", 64, root=str(tmp_path), digest=found.digest, sources=found.sources)


def test_what_a_process_has_imported_already_is_used_as_it_was(copied: CompileJob):
    assert [file for file, _ in copied.sources] == ["kernels/shared/activations.py", "kernels/softmax.py"]
    compile_job(copied)
    path = Path(copied.root, "kernels/shared/activations.py")
    path.write_text(path.read_text().replace("1.4426950408889634", "2.4426950408889634"))
    assert recipe_key(compile_job(copied).recipe) == jobs.job_key(copied, copied.digest)
    changed = pytest.raises(KernelFileError, match=r"file kernels/shared/activations\.py changed during the build")
    with Project(Path(copied.root)).active(dict(copied.sources)) as modules, changed:
        modules.load(jobs.SOURCE, "softmax")


def test_a_change_that_no_file_shows_is_noticed_too(copied: CompileJob):
    """For example, a file may import a module only sometimes."""
    with pytest.raises(KernelFileError, match=r"kernels/softmax\.py, or code that 'softmax' uses, changed"):
        compile_job(dataclasses.replace(copied, digest="0" * 64))


def test_what_is_read_once_is_what_tracebacks_and_triton_see(tmp_path: Path):
    """The file changes as soon as it is read; Triton asks for the text of a kernel later."""
    gone = "import pathlib\npathlib.Path(__file__).write_text('')\n\n\n"
    (tmp_path / "k.py").write_text(KERNELS.replace("@triton.jit", f"{gone}@triton.jit"))
    with Project(tmp_path).active() as modules:
        assert "tl.program_id(0)" in modules.load("k.py", "scale_rows").src


def test_an_entry_that_is_made_of_something_else_is_a_miss(copied: CompileJob, tmp_path: Path):
    cache, key = CompileCache(tmp_path / "cache"), jobs.job_key(copied, copied.digest)
    kernel = compile_job(copied)
    cache.put(key, dataclasses.replace(kernel, recipe=kernel.recipe.replace(copied.digest, "0" * 64)))
    assert look_up({key: copied}, cache)[1] == {key: copied}
    cache.put(key, kernel)
    assert look_up({key: copied}, cache)[0].kernels == {key: kernel}


def test_a_kernel_that_is_made_of_something_else_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file may change the environment of the process that compiles it, but the key is of the build's."""
    monkeypatch.setenv("AMDGCN_USE_BUFFER_OPS", "1")
    changes = "import os\n\nTWO = tl.constexpr(os.environ.update(AMDGCN_USE_BUFFER_OPS='0') or 2)\n"
    project = builds.Project(tmp_path, SCALE, KERNELS.replace("* factor", "* factor * TWO") + changes)
    result = project.build(*SMALL)
    assert result.exit_code == 1
    assert "'scale_rows' in k.py was not compiled as planned; different: " in result.stderr
    assert recipe_changes('{"kernel": 1, "environment": 2}', '{"kernel": 1, "environment": 3}') == "environment"
    assert not list(project.cache.rglob("v2/*/*"))
