"""The emulated driver, used by its ioctls alone: a C program in ROCr's place, in the process that a shim is loaded to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot_emulator.kfd.running import emulated_machine
from aot_emulator.kfd.shim import build_shim
from aot_runtime.errors import DeviceError
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
    assert done.returncode == 0
    assert done.stderr.startswith("aotbuild emulator: true did not open /dev/kfd, so it used no GPU")


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


def test_programs_one_after_another_and_at_once(program: Path):
    """Each has GPUs of its own."""
    with emulated_machine(("mi210",), dict(os.environ)) as environment:
        several = [
            subprocess.Popen([program, "copy"], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        outputs = [running.communicate(timeout=60)[0] for running in several]
        outputs.append(subprocess.run([program, "copy"], env=environment, capture_output=True, text=True).stdout)
    assert len(set(outputs)) == 1 and "copied by the engine" in outputs[0]


def test_the_page_has_the_ioctls():
    """The table of docs/howto/emulate.md is the one that is served from."""
    source = (SHIM / "driver.c").read_text()
    served = {f"{int(number, 16):#04x}": name for number, name in re.findall(r"\sSERVED\((0x\w+), (\w+)", source)}
    rows = re.findall(
        r"^\| `(0x\w+)` \| `AMDKFD_IOC_(\w+)`", (ROOT / "docs/howto/emulate.md").read_text(), re.MULTILINE
    )
    assert dict(rows) == served and len(rows) == len(served)
    refused = set(re.findall(r"\sREFUSED\(0x\w+, (\w+)", source))
    assert refused and not refused & set(served.values())
