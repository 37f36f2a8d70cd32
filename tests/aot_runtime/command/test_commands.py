"""The `aotbundle` command: what it prints, and its exit status."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aot_runtime.bundle.reading import read_index
from aot_runtime.command import diagnosis
from aot_runtime.command.main import main
from aot_runtime.command.tables import bundle_text, variant_rows
from aot_runtime.contract import records
from aot_runtime.device.drivers.base import DeviceProperties
from aot_runtime.errors import DeviceError

COMMANDS = ("ls", "show", "verify", "selftest", "explain", "profile", "bench", "doctor")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="session")
def sample_folder(sample: records.Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample index on its own, in a bundle's folder."""
    folder = tmp_path_factory.mktemp("sample") / "sample-gfx942"
    folder.mkdir()
    (folder / records.INDEX).write_bytes(records.encode_index(sample))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"aotbundle {command}" in result.output.split("Examples:")[1]


def test_the_command_imports_what_it_needs_when_it_runs():
    code = """if True:
        import sys, aot_runtime
        before = set(sys.modules)
        import aot_runtime.command.main
        print(*sorted(name for name in set(sys.modules) - before if name.startswith(("aot_runtime", "numpy", "hip"))))
    """
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = [name for name in output.split() if not name.startswith("aot_runtime.command")]
    assert names == ["aot_runtime.errors"]
    assert not {"tables", "diagnosis", "bandwidth"} & {name.rpartition(".")[2] for name in output.split()}


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("ls",), ("show",), ("explain", "x"), ("explain", "x", "op", "--dim", "rows"),
                  ("explain", "x", "op", "--shape", "x=a"), ("explain", "x", "op", "--num-cus", "0"),
                  ("explain", "x", "op", "scalar"), ("show", "x", "--bogus"), ("selftest",),
                  ("selftest", "x", "--device")],
)  # fmt: skip
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "{tmp}/none"), "none does not exist"),
        (("ls", "{tmp}"), "is no bundle, and has none in it"),
        (("show", "{tmp}"), "is no bundle: it has no bundle.json"),
        (("show", "{sample}", "--op", "redcue"), "no op 'redcue'; did you mean 'reduce'?"),
        (("verify", "{tmp}"), "is no bundle"),
        (("explain", "{sample}", "reduse"), "no op 'reduse'; did you mean 'reduce'?"),
        (("explain", "{sample}", "swap", "n=1"), "swap has no scalar 'n'"),
        (("explain", "{sample}", "swap", "--dim", "n=0"), "n is 0; allowed: 1 to"),
    ],
)
def test_errors_are_one_message_and_status_1(
    sample_folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    result = run(*(argument.format(tmp=tmp_path, sample=sample_folder) for argument in arguments))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("aotbundle: error: ") and message in result.stderr


# ls


def test_ls_counts_bundles_and_ops(rows_bundles: Path):
    result = run("ls", rows_bundles)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()][1:]
    folders = [str(rows_bundles / name) for name in ("rows-gfx942", "rows-sm_90")]
    assert [line[0] for line in lines] == [folders[0], "softmax", folders[1], "softmax"]
    index = read_index(rows_bundles / "rows-gfx942")
    size = sum(blob.size for blob in index.blobs.values())
    counts = [str(len(index.variants)), str(len(index.blobs)), f"{size / 1024:.1f}", "KiB"]
    assert lines[0][1:] == ["gfx942", *counts, index.id[:12]]
    assert lines[1][1:3] == lines[0][2:4]


def test_ls_goes_on_after_a_bundle_that_cannot_be_read(rows_bundle: Path, tmp_path: Path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    shutil.copytree(rows_bundle, good)
    bad.mkdir()
    (bad / records.INDEX).write_text("{}")
    result = run("ls", tmp_path)
    assert result.exit_code == 1
    assert "gfx942" in result.stdout and "unreadable" in result.stdout
    assert str(bad) in result.stderr


# show


def test_show_fits_the_terminal_and_has_every_variant(sample_folder: Path, sample: records.Index):
    lines = run("show", sample_folder).output.splitlines()
    assert max(map(len, lines)) <= 120
    assert sum(" yes " in line or " no " in line for line in lines) == len(sample.variants)
    assert [line for line in lines if ", launch " in line] == [
        "reduce, launch 0: reduce_rows", "reduce, launch 1: add_partial", "swap, launch 0: swap",
    ]  # fmt: skip
    assert f"reduce: {len(sample.variants) - 2} variants, 2 code objects, 4.0 KiB of code" in lines
    assert [line for line in lines if "selftest" in line] == ["reduce: selftest cases weighted"]


def test_show_row(sample_folder: Path):
    lines = run("show", sample_folder, "--op", "reduce").output.splitlines()
    heading = next(line for line in lines if "VARIANT" in line)
    row = next(line for line in lines if "float16 WEIGHTED WIDTH=4096" in line and " yes " in line)
    assert heading.split() == ["VARIANT", "ALIGNED", "CONFIG", "VGPR", "AGPR", "SGPR", "SPILLS", "SCRATCH", "LDS",
                               "THREADS", "WAVES", "CODE", "FILE"]  # fmt: skip
    assert row.split() == ["float16", "WEIGHTED", "WIDTH=4096", "yes", "wide", "256", "4", "30", "17+0", "68", "1024",
                           "256", "2", "vgprs", "4096", "bbbbbbbb"]  # fmt: skip
    assert not any("swap" in line for line in lines)


def test_show_wraps_a_long_point(sample: records.Index):
    point = {f"FLAG_{number}": True for number in range(20)}
    row = dataclasses.replace(variant_rows(sample)[0], axis_values=point)
    lines = bundle_text(sample, [row]).splitlines()
    assert max(map(len, lines)) <= 120
    shown = " ".join(lines[lines.index(next(line for line in lines if "VARIANT" in line)) + 1 :])
    assert all(name in shown.split() for name in point)


def test_show_warns_of_spills(sample_folder: Path, rows_bundle: Path):
    lines = run("show", sample_folder).output.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("warning: "))
    assert lines[start] == "warning: 6 of 74 variants spill registers:"
    assert lines[start + 1] == "  reduce[float16 WEIGHTED WIDTH=4096] aligned, wide: 17 VGPRs, 0 SGPRs"
    assert len(lines[start + 1 :]) == 6
    assert "warning" not in run("show", rows_bundle).output


def test_show_json_is_the_index(rows_bundle: Path):
    shown = json.loads(run("show", rows_bundle, "--json").output)
    index = read_index(rows_bundle)
    assert (shown["name"], shown["arch"], shown["id"]) == ("rows", "gfx942", index.id)
    assert [(case["op"], case["name"], case["bounds"]) for case in shown["selftest"]] == [
        (case.op, case.name, case.bounds) for case in index.selftest
    ]
    assert shown["selftest"]
    for row, variant in zip(shown["variants"], index.variants, strict=True):
        assert row["axis_values"] == variant.axis_values
        assert row["file"] == index.blobs[variant.code].file
        assert row["block_threads"] == variant.num_warps * variant.warp_size
        assert (row["vgprs"], row["sgprs"], row["lds_bytes"]) == (
            variant.resources.vgprs, variant.resources.sgprs, variant.lds_bytes,
        )  # fmt: skip
        assert (row["symbol"], row["aligned"], row["code_bytes"]) == (
            variant.symbol, variant.aligned, variant.resources.code_bytes,
        )  # fmt: skip


# verify


def test_verify_says_ok_or_each_fault(rows_bundles: Path, tmp_path: Path):
    result = run("verify", rows_bundles)
    assert (result.exit_code, result.output) == (
        0, f"{rows_bundles}/rows-gfx942: ok\n{rows_bundles}/rows-sm_90: ok\n",
    )  # fmt: skip
    damaged = tmp_path / "rows-gfx942"
    shutil.copytree(rows_bundles / "rows-gfx942", damaged)
    (damaged / "include/rows.h").unlink()
    (damaged / "stubs/rows.pyi").unlink()
    result = run("verify", damaged, rows_bundles / "rows-sm_90")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(damaged)] * 3 + [str(rows_bundles / "rows-sm_90")]
    assert lines[2:] == [f"{damaged}: 2 fault(s)", f"{rows_bundles}/rows-sm_90: ok"]


# explain


def test_explain_by_dims_and_by_shapes_is_the_same(sample_folder: Path):
    scalars = ("seed=3", "return_largest=true")
    common = ("explain", sample_folder, "reduce", "--dtype", "T=float16", "--num-cus", 304, *scalars)
    by_dims = run(*common, "--dim", "rows=8", "--dim", "cols=128", "--given", "weight")
    by_shapes = run(*common, "--shape", "x=8,128", "--shape", "weight=8,128")
    assert by_dims.exit_code == 0, by_dims.output
    assert by_dims.output == by_shapes.output
    assert "  seed            3\n" in by_dims.output and "  return_largest  True\n" in by_dims.output


def test_explain_passes_strides_and_alignment_on(sample_folder: Path):
    result = run("explain", sample_folder, "swap", "--shape", "a=64", "--shape", "b=64", "--unaligned", "b")
    assert "the address of 'b' is not a multiple of 16" in result.output
    result = run("explain", sample_folder, "swap", "--dim", "n=64", "--strides", "a=2")
    assert result.exit_code == 1
    assert "argument 'a' has stride 2 in dim 0 (n); it must be 1" in result.stderr


# doctor


class OneDevice:
    """A driver that shows one device."""

    def device_count(self) -> int:
        return 1

    def properties(self, device: int) -> DeviceProperties:
        return DeviceProperties("Instinct", "gfx942", 304, 64, 65536, 192 << 30, "7.0.1")


def no_driver(name: str) -> object:
    raise DeviceError(f"no library for {name}")


def broken_driver(name: str) -> object:
    raise ValueError("bad binding")


def only_hip(name: str) -> object:
    return OneDevice() if name == "hip" else no_driver(name)


@pytest.mark.parametrize(
    ("opener", "reason"), [(no_driver, "no library for hip"), (broken_driver, "ValueError: bad binding")]
)
def test_doctor_without_a_gpu(monkeypatch: pytest.MonkeyPatch, opener: object, reason: str):
    monkeypatch.setattr(diagnosis, "open_driver", opener)
    result = run("doctor")
    assert result.exit_code == 1
    assert f"  hip: {reason}" in result.output and "warning: no usable GPU" in result.output
    for title in ("python:", "packages:", "drivers:", "system:"):
        assert title in result.output.splitlines()


def test_doctor_with_a_gpu(monkeypatch: pytest.MonkeyPatch, rows_bundles: Path):
    monkeypatch.setattr(diagnosis, "open_driver", only_hip)
    monkeypatch.delenv("HIP_FORCE_DEV_KERNARG", raising=False)
    result = run("doctor", rows_bundles / "rows-gfx942")
    assert result.exit_code == 0
    assert "  hip: version 7.0.1\n  hip:0: Instinct, gfx942\n    304 compute units, 65536 bytes" in result.output
    assert "fits hip:0" in result.output and "warning: HIP_FORCE_DEV_KERNARG=1" in result.output
    monkeypatch.setenv("HIP_FORCE_DEV_KERNARG", "1")
    assert "warning: HIP_FORCE_DEV_KERNARG" not in run("doctor").output
    assert run("doctor", rows_bundles).exit_code == 0, "one bundle of the folder fits"


def test_doctor_with_a_bundle_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, rows_bundles: Path, tmp_path: Path):
    monkeypatch.setattr(diagnosis, "open_driver", only_hip)
    result = run("doctor", rows_bundles / "rows-sm_90")
    assert result.exit_code == 1 and "sm_90" in result.output and "fits no device here (gfx942)" in result.output
    result = run("doctor", tmp_path)
    assert result.exit_code == 1 and "is no bundle" in " ".join(result.output.split())


def test_doctor_finds_a_device_that_fails(monkeypatch: pytest.MonkeyPatch):
    class Failing(OneDevice):
        def properties(self, device: int) -> DeviceProperties:
            raise OSError("device lost")

    monkeypatch.setattr(diagnosis, "open_driver", lambda name: Failing())
    result = run("doctor")
    assert result.exit_code == 1 and "hip: OSError: device lost" in result.output
