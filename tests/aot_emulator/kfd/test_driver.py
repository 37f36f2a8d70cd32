"""The emulated driver, used by ioctls only: a C program in place of ROCr, with the shim loaded."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aot_emulator.kfd import emulated_program
from aot_emulator.kfd.emulated_program import emulated_machine
from aot_emulator.kfd.shim import build_shim
from aot_runtime.errors import DeviceError
from tests.support.processes import children, command_line, gone, kill
from tests.support.session_builds import ROOT

HERE = Path(__file__).parent
SHIM = ROOT / "runtime/aot_emulator/kfd/shim"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("driver") / "program"
    subprocess.run([compiler, "-o", made, HERE / "driver.c"], check=True)
    return made


def emulate(program: Path | str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aot_bundle", "emulate", *options, "--", str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_barrier_packet_counts_its_signal_down(program: Path):
    done = emulate(program, "barrier", options=("-d", "mi300x", "-d", "rx7900xtx"))
    assert done.returncode == 0, done.stderr
    first, left, waited = done.stdout.splitlines()
    assert first == "version 1.17, 2 GPUs" and left == f"left {(192 << 30) - (1 << 20)}"
    assert waited.startswith("waited 0, signal 0, ") and not done.stderr


def test_a_copy_by_an_engine(program: Path):
    done = emulate(program, "copy")
    assert done.stdout.splitlines()[-1] == "waited 0, signal 0, copied by the engine", done.stderr


def test_the_child_of_a_fork_has_a_driver_of_its_own(program: Path):
    done = emulate(program, "fork")
    assert done.stdout.splitlines()[-1] == "waited 0, signal 0, copied by the engine", done.stderr
    assert f"left {(192 << 30) - (1 << 20)}" in done.stdout and done.returncode == 0


def test_what_is_not_served_is_refused_by_name(program: Path):
    done = emulate(program, "refused")
    assert done.stdout.splitlines()[1:] == ["svm -1", "svm -1", "unknown -1"]
    assert done.stderr.splitlines() == [
        "aotbuild emulator: the ioctl AMDKFD_IOC_SVM (0x20) of /dev/kfd is not served",
        "aotbuild emulator: the ioctl 0x7f of /dev/kfd is not served",
    ]
    done = emulate(program, "agent")
    assert "queue 0, packet 0: unsupported packet type 4 (agent dispatch)" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("waited 0, signal 1")  # for the exception


def test_the_exit_status_is_the_programs():
    assert emulate("sh", "-c", "exit 7").returncode == 7
    assert emulate("sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_a_program_that_uses_no_gpu_is_told_of():
    done = emulate("true")
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("aotbuild emulator: true did not open /dev/kfd, so it used no GPU")


def test_no_library_of_amds(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emulated_program, "find_library", {}.get)
    assert emulated_program.run_program(["true"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "finds neither libamdhip64 nor libhsa-runtime64: install ROCm's user-mode libraries (Debian" in line


def test_another_c_library(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The dynamic loader says which library it leaves out, and why; a static program has no loader."""
    unusable = tmp_path / "shim.so"
    unusable.touch()
    monkeypatch.setattr(emulated_program, "build_shim", lambda: unusable)
    assert emulated_program.run_program(["true"]) == 0
    *loaders, line = capfd.readouterr().err.splitlines()
    assert line.startswith("aotbuild emulator: true did not load the library that emulates the driver")
    assert all("from LD_PRELOAD cannot be preloaded" in line for line in loaders)


def test_no_room_for_memory(program: Path):
    done = emulate("sh", "-c", f"ulimit -f 1000; exec {program} barrier")
    (line,) = done.stderr.splitlines()
    assert "1 TiB and sparse, cannot be made (memfd_create): File too large; is there a limit" in line
    assert done.returncode == 3, "the program's own: it has no driver"


def test_no_permission_for_the_programs_memory(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sitecustomize.py").write_text(DENIED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (line,) = emulate(program, "barrier", "3000").stderr.splitlines()
    assert re.search(
        r"cannot access the program's memory like a debugger \(ptrace\): .*Permission denied: '/proc/\d+/mem'", line
    )


DENIED = """
import os
def refuse(path, *arguments, open=os.open, **more):
    if str(path).endswith("/mem"): raise PermissionError(13, os.strerror(13), path)
    return open(path, *arguments, **more)
os.open = refuse
"""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("-d", "mi9", "true"), "unknown GPU 'mi9'; emulated GPUs: mi210, "),
        (("no-such-program",), "cannot run no-such-program: No such file or directory"),
        ((*("-d", "mi210") * 17, "true"), "17 GPUs requested; 1 to 16 can be emulated"),
    ],
)
def test_what_cannot_be_run(arguments: tuple[str, ...], error: str):
    command = [sys.executable, "-m", "aot_bundle", "emulate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"aotbundle: error: {error}"), done.stderr


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(DeviceError, match=r"a C compiler, none found \(no-such-compiler\): install gcc or clang"):
        build_shim(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match="cannot write the emulated driver"):
        build_shim(tmp_path / "file" / "cache")


def test_a_folder_that_is_too_deep_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    expected = r"cannot create the emulated machine in .* \(TMPDIR\): AF_UNIX path too long"
    with pytest.raises(DeviceError, match=expected), emulated_machine():
        pass


def test_it_is_built_once(tmp_path: Path):
    first = build_shim(tmp_path)
    before = first.stat().st_mtime_ns
    assert build_shim(tmp_path) == first and first.stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_it_compiles_without_a_warning(tmp_path: Path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([compiler, *flags, "-o", tmp_path / "shim.so", *sorted(SHIM.glob("*.c"))], check=True)


def test_the_server_is_in_the_programs_session_and_its_end_is_noticed():
    with emulated_machine() as variables, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as program:
        (server,) = (pid for pid in children(os.getpid()) if "aot_emulator.kfd.server" in command_line(pid))
        assert os.getsid(server) == os.getsid(0), "in another scheduling group it gets no time beside ROCr"
        kill(server)
        while not gone(server):
            time.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            program.connect(f"{variables['AOTBUILD_KFD']}/gpu")


def test_programs_one_after_another_and_at_once(program: Path):
    """Each program has GPUs of its own."""
    with emulated_machine(("mi210",), dict(os.environ)) as environment:
        several = [
            subprocess.Popen([program, "copy"], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        outputs = [running.communicate(timeout=60)[0] for running in several]
        outputs.append(subprocess.run([program, "copy"], env=environment, capture_output=True, text=True).stdout)
    assert len(set(outputs)) == 1 and "copied by the engine" in outputs[0]


def test_the_page_has_the_ioctls():
    """The table of docs/howto/emulate.md is compared with the one that is served from."""
    source = (SHIM / "driver.c").read_text()
    served = {f"{int(number, 16):#04x}": name for number, name in re.findall(r"\sSERVED\((0x\w+), (\w+)", source)}
    rows = re.findall(
        r"^\| `(0x\w+)` \| `AMDKFD_IOC_(\w+)`", (ROOT / "docs/howto/emulate.md").read_text(), re.MULTILINE
    )
    assert dict(rows) == served and len(rows) == len(served)
    refused = set(re.findall(r"\sREFUSED\(0x\w+, (\w+)", source))
    assert refused and not refused & set(served.values())
