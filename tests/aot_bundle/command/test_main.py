"""The `aotbundle` command: its help, wrong usage, and errors as one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aot_runtime.bundle.reading import read_index
from tests.support.command import aotbundle


def test_the_command_imports_what_it_needs_when_it_runs():
    code = """if True:
        import sys, aot_runtime
        before = set(sys.modules)
        import aot_bundle.command.main
        print(*sorted(name for name in set(sys.modules) - before if name.startswith(("aot", "numpy", "hip"))))
    """
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if not name.startswith("aot_bundle.command")] == [
        "aot_bundle", "aot_bundle.terminal", "aot_runtime.errors", "aot_runtime.terminal", "aot_runtime.texts",
    ]  # fmt: skip
    assert not {"tables", "diagnosis", "bandwidth"} & {name.rpartition(".")[2] for name in names}


USAGE = ["", "frobnicate", "ls", "show", "explain x", "explain x op --dim rows", "explain x op --shape x=a"]
USAGE += ["explain x op --num-cus 0", "explain x op scalar", "show x --bogus", "selftest", "selftest x --device"]


@pytest.mark.parametrize("arguments", USAGE)
def test_wrong_usage_is_status_2(arguments: str):
    assert aotbundle(*arguments.split()).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ls {empty}/none", "none does not exist"),
        ("ls {empty}", "is not a bundle and contains none"),
        ("show {empty}", "is not a bundle: it has no bundle.json"),
        ("show {sample} --op redcue", "no op 'redcue'; did you mean 'reduce'?"),
        ("verify {empty}", "is not a bundle"),
        ("explain {sample} reduse", "no op 'reduse'; did you mean 'reduce'?"),
        ("explain {sample} reduce --dtype T=float16 --dim rows=1 seed=1", "(pass --dim cols=…)"),
        ("explain {sample} swap n=1", "swap has no scalar 'n'"),
        ("explain {sample} swap --dim n=0", "n is 0"),
        ("explain {sample} swap --dim n=64 --strides a=2", "argument 'a' has stride 2 in dim 0 (n); it must be 1"),
    ],
)
def test_errors_are_one_message_and_status_1(sample_folder: Path, arguments: str, message: str):
    (sample_folder / "empty").mkdir()
    result = aotbundle(*arguments.format(sample=sample_folder, empty=sample_folder / "empty").split())
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("aotbundle: error: ") and message in result.stderr


def test_a_call_to_explain_is_read_from_its_options(sample_folder: Path):
    common = ("explain", sample_folder, "reduce", "--dtype=T=float16", "--num-cus=304", "seed=3", "return_largest=true")
    by_dims = aotbundle(*common, "--dim=rows=8", "--dim=cols=128", "--given=weight")
    assert by_dims.exit_code == 0, by_dims.output
    assert by_dims.output == aotbundle(*common, "--shape=x=8,128", "--shape=weight=8,128").output
    assert "  seed            3\n" in by_dims.output and "  return_largest  True\n" in by_dims.output
    result = aotbundle("explain", sample_folder, "swap", "--shape", "a=64", "--shape", "b=64", "--unaligned", "b")
    assert "the address of 'b' is not a multiple of 16" in result.output


def test_what_is_done_is_logged(rows_bundles: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG", "aotbuild")
    bundle = rows_bundles / "rows-gfx942"
    result = aotbundle("-v", "selftest", bundle, "--device", "emulator", "--op", "softmax")
    assert result.exit_code == 0, result.output
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == f"opened {bundle}, id {read_index(bundle).id}, on emulator:0"
    assert "planned a call of softmax: softmax_rows" in said
    assert any(line.startswith("loaded softmax_rows of code object ") for line in said)


def test_verify_says_ok_or_each_fault(rows_bundles: Path, rows_copy: Path):
    result = aotbundle("verify", rows_bundles)
    good = f"{rows_bundles}/rows-sm_90: ok, not signed\n"
    assert (result.exit_code, result.output) == (0, f"{rows_bundles}/rows-gfx942: ok, not signed\n{good}")
    (rows_copy / "include/rows.h").unlink()
    (rows_copy / "stubs/rows.pyi").unlink()
    result = aotbundle("verify", rows_copy, rows_bundles / "rows-sm_90")
    assert result.exit_code == 1 and result.output.endswith(f"\n{rows_copy}: 2 fault(s)\n{good}")
    assert [line.split(": ")[0] for line in result.output.splitlines()[:2]] == [str(rows_copy)] * 2
