"""Users' files that fail in any way when they are run: the build fails and names file and line."""

import os
import sys
import time
from pathlib import Path

import pytest

from aot.errors import CompileError
from aot.forked_process import ForkedProcess, TimeLimitError, WorkerDiedError
from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS, SCALE, edit, unmarked
from tests.support.building.selftests import REFERENCE, SCALE_CASES, project
from tests.support.building.tasks import wait_for
from tests.support.processes import gone

SMALL = ("--filter", "dtype=float16,block=16")
NEEDS_TWO = KERNELS.replace("* factor", "* factor * TWO")


def test_what_a_function_does_ends_its_process_alone():
    with ForkedProcess(0.4) as process:
        first = process.run(os.getpid)
        assert first != os.getpid() and process.run(os.getpid) == first
        for error, said, function, *arguments in (
            (WorkerDiedError, "the process that ran it exited with code 3", os._exit, 3),
            (WorkerDiedError, "the process that ran it was killed by SIGKILL", os.kill, 0, 9),
            (TimeLimitError, "timed out after 0.4 s", time.sleep, 60),
            (TimeLimitError, "timed out after 0.4 s", sum, range(10**12)),
            (CompileError, "SystemExit: 0", sys.exit, 0),
            (CompileError, "ZeroDivisionError: integer division or modulo by zero", divmod, 1, 0),
        ):
            with pytest.raises(error) as caught:
                process.run(function, *arguments)
            assert str(caught.value) == said
        last = process.run(os.getpid)
    wait_for(lambda: gone(last))


def refused(made: Project, *options: str) -> str:
    """Return the one line that a build prints; it writes no bundle."""
    result = made.build(*SMALL, *options)
    assert result.exit_code == 2 and not made.folder_of().exists(), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix(f"aotbuild: error: {made.manifest}:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import sys; sys.exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit('no')", "GeneratorExit: no"),
    ],
)
def test_files_and_references_that_raise(tmp_path: Path, line: str, said: str):
    place, text = unmarked(edit(SCALE_CASES, ("kernel: k.py", "@kernel: k.py")))
    needed = f"{NEEDS_TWO}def stop():\n    {line}\n\n\nTWO = stop()\n"
    reads, number = needed[: needed.index("* TWO")].count("\n") + 1, needed.count("\n") - 3
    in_kernel = project(tmp_path / "kernel", text, kernels=needed)
    wrong = f"k.py:{reads}: 'scale_rows' reads 'TWO', which is not available: {said} (k.py:{number})"
    assert refused(in_kernel) == f"{place}: op 'scale': {wrong}"
    place, text = unmarked(edit(SCALE_CASES, ("reference: r.py", "@reference: r.py")))
    in_file = project(tmp_path / "file", text, f"{line}\n{REFERENCE}")
    assert refused(in_file) == f"{place}: op 'scale': file r.py cannot be imported: {said} (r.py:1)"
    called = REFERENCE.replace("    return x.astype(np.float64)", f"    {line}\n    return x")
    found = refused(project(tmp_path / "called", SCALE_CASES, called))
    assert found.endswith(f"op 'scale', case 'small': reference scale raised {said} (r.py:5)")


def test_files_and_references_that_end_their_process(tmp_path: Path):
    """Their kernels need more than the process's limit."""
    ending = NEEDS_TWO + "import os\nTWO = os._exit(0)\n"
    said = "op 'scale': file k.py: the process that ran it exited with code 0"
    assert refused(Project(tmp_path / "a", SCALE, ending)).endswith(said)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/helper.py").write_text("def stop():\n    raise SystemExit(3)\n")
    helped = Project(tmp_path / "b", SCALE, f"import helper\nTWO = helper.stop()\n{NEEDS_TWO}")
    assert refused(helped).endswith("'scale_rows' reads 'TWO', which is not available: SystemExit: 3 (helper.py:2)")
    made = project(tmp_path / "c")
    assert made.build(*SMALL).exit_code == 0
    (tmp_path / "c/r.py").write_text(REFERENCE.replace("    return", "    while True: pass\n    return"))
    made.output = tmp_path / "d"
    said = "op 'scale', case 'small': reference r.py:scale: timed out after 1 s"
    assert refused(made, "--timeout", "1").endswith(said)


def test_a_function_that_exits_while_a_kernel_is_compiled(tmp_path: Path):
    leaves = "\n\n@triton.constexpr_function\ndef leave(n):\n    raise SystemExit(n)\n"
    text = KERNELS.replace("* factor", "* factor * leave(2)") + leaves
    result = Project(tmp_path, SCALE, text).build(*SMALL)
    assert result.exit_code == 1
    assert f"    SystemExit: 2 (k.py:{text.count(chr(10))})" in result.stderr.splitlines()


def test_what_a_file_does_to_its_process_is_not_done_to_the_build(tmp_path: Path):
    limit = sys.getrecursionlimit()
    calls = "sys.setrecursionlimit(77777), print('printed'), sys.stdin.read(), sys.stdout.close()"
    meddling = f"import sys\nTWO = tl.constexpr(({calls}) and 2)\n"
    assert Project(tmp_path, SCALE, NEEDS_TWO + meddling).build("--dry-run").exit_code == 0
    assert sys.getrecursionlimit() == limit
