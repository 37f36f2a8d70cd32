"""What users' files may do when they are run: a build names file and line, and never ends as if all was well."""

from pathlib import Path

import pytest

from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS, SCALE, position

SELFTEST = "    reference: r.py:scale\n    selftest: [{call: {rows: 3, cols: 7, T: float16, factor: 0.1}}]\n"
REFERENCE = "import os\nimport signal\nimport sys\n\n\ndef scale(x, factor):\n    return x * factor\n\n\n"
REFERENCE += "scale_same_dtype = scale\n"

ENDS = {
    "import sys; sys.exit()": "SystemExit",
    "import sys; sys.exit(0)": "SystemExit: 0",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit('no')": "GeneratorExit: no",
    "1 / 0": "ZeroDivisionError: division by zero",
}
KILLS = {
    "import os; os._exit(0)": "the process that ran it exited with code 0",
    "import os; os.kill(0, 9)": "the process that ran it was killed by SIGKILL",
    "import os; os.kill(os.getpid(), 11)": "the process that ran it was killed by SIGSEGV",
    "while True: pass": "timed out after 3 s",
    "sum(range(10**12))": "timed out after 3 s",
}


def refused(project: Project) -> str:
    """The one line that a build says; there is no bundle."""
    result = project.build("--timeout", "3", "--filter", "dtype=float16,block=16")
    assert result.exit_code == 2, result.output
    assert not (project.output / "tiny-gfx942").exists()
    (line,) = result.stderr.splitlines()
    return line.removeprefix("aotbuild: error: ")


def at_kernel(project: Project) -> str:
    return f"{position(project.manifest, 'kernel: k.py')}: op 'scale': "


@pytest.mark.parametrize("line", ENDS)
def test_a_kernel_file_that_raises(tmp_path: Path, line: str):
    project = Project(tmp_path, SCALE, f"{KERNELS}\n\n{line}\n")
    number = KERNELS.count("\n") + 3
    reason = f"file k.py cannot be imported: {ENDS[line]} (k.py:{number})"
    assert refused(project) == at_kernel(project) + reason


@pytest.mark.parametrize("line", KILLS)
def test_a_kernel_file_that_takes_its_process_down(tmp_path: Path, line: str):
    project = Project(tmp_path, SCALE, f"{KERNELS}\n\n{line}\n")
    assert refused(project) == f"{at_kernel(project)}file k.py: {KILLS[line]}"


def test_a_line_of_a_helper_is_named(tmp_path: Path):
    (tmp_path / "helper.py").write_text("def stop():\n    raise SystemExit(3)\n")
    project = Project(tmp_path, SCALE, f"import helper\nhelper.stop()\n{KERNELS}")
    assert refused(project).endswith("file k.py cannot be imported: SystemExit: 3 (helper.py:2)")


def reference(folder: Path, text: str) -> Project:
    made = Project(folder, SCALE + SELFTEST)
    (folder / "r.py").write_text(text)
    return made


@pytest.mark.parametrize("line", ENDS)
def test_a_reference_file_that_raises(tmp_path: Path, line: str):
    made = reference(tmp_path, f"{REFERENCE}\n\n{line}\n")
    where = f"{position(made.manifest, 'reference: r.py')}: op 'scale': "
    number = REFERENCE.count("\n") + 3
    assert refused(made) == f"{where}file r.py cannot be imported: {ENDS[line]} (r.py:{number})"


@pytest.mark.parametrize("line", ENDS)
def test_a_reference_that_raises(tmp_path: Path, line: str):
    made = reference(tmp_path, REFERENCE.replace("    return", f"    {line}\n    return"))
    assert refused(made).endswith(f"op 'scale', case 'case0': reference scale raised {ENDS[line]} (r.py:7)")


@pytest.mark.parametrize("line", KILLS)
def test_a_reference_that_takes_its_process_down(tmp_path: Path, line: str):
    """Kernels need more than that limit."""
    made = reference(tmp_path, REFERENCE)
    assert made.build("--filter", "dtype=float16,block=16").exit_code == 0
    other = reference(tmp_path, REFERENCE.replace("    return", f"    {line}\n    return"))
    other.output = tmp_path / "other"
    assert refused(other).endswith(f"op 'scale', case 'case0': reference r.py:scale: {KILLS[line]}")


def test_a_function_that_exits_while_a_kernel_is_compiled(tmp_path: Path):
    leaves = "\n\n@triton.constexpr_function\ndef leave(n):\n    raise SystemExit(n)\n"
    project = Project(tmp_path, SCALE, KERNELS.replace("* factor", "* factor * leave(2)") + leaves)
    result = project.build("--filter", "dtype=float16,block=16")
    assert result.exit_code == 1
    number = (KERNELS + leaves).count("\n")
    assert f"    SystemExit: 2 (k.py:{number})" in result.stderr.splitlines()


def test_what_a_file_does_to_its_process_is_not_done_to_the_build(tmp_path: Path, capfd):
    import sys

    limit = sys.getrecursionlimit()
    meddling = "import sys\nsys.setrecursionlimit(77777)\nprint('printed')\nsys.stdin.read()\n"
    project = Project(tmp_path, SCALE, meddling + KERNELS)
    assert project.build("--dry-run").exit_code == 0
    assert sys.getrecursionlimit() == limit
