"""`aotbundle profile` on the shipped bundles: counts, output and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from aot_bundle.callspec import CallSpec
from aot_bundle.command.main import main
from aot_bundle.profile.profile_call import make_call, open_for, profile_call
from aot_emulator import EmulatorDriver
from aot_runtime.errors import ArgumentError

SOFTMAX = ("softmax", "--dtype", "T=float16")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments)], catch_exceptions=False)


def data(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_softmax_reads_and_writes_each_element_once(rows_bundle: Path):
    (launch,) = data(rows_bundle, *SOFTMAX, "--shape", "x=6,1000")["launches"]
    assert launch["tensors"]["x"] | {"read": 12000, "written": 0} == launch["tensors"]["x"]
    assert launch["tensors"]["out"] | {"read": 0, "written": 12000} == launch["tensors"]["out"]
    assert launch["other_memory"] == {"read": 0, "written": 0}
    assert launch["accesses"]["global_load"]["bytes"] == launch["accesses"]["global_store"]["bytes"] == 12000
    assert launch["workgroups"] == 6 and launch["matrix"] == {}
    assert launch["lower_bounds"]["memory"] == pytest.approx(2 * 12000 / 5.3e12)


def test_a_row_longer_than_a_block_is_read_again(rows_bundle: Path):
    """The first launch finds the maximum and sum of parts of the row; the second reads the row again."""
    launches = data(rows_bundle, "softmax", "--shape", "x=1,40000", "--dtype", "T=float16")["launches"]
    assert [launch["tensors"]["x"]["read"] for launch in launches] == [80000, 80000]


def test_strides_and_alignment_are_kept(rows_bundle: Path):
    packed, apart = (data(rows_bundle, *SOFTMAX, "--shape", "x=4,1024", *options)["launches"][0]
                     for options in ((), ("--strides", "x=5000,1", "--unaligned", "x")))  # fmt: skip
    assert packed["aligned"] and not apart["aligned"]
    assert apart["tensors"]["x"]["strides"] == [5000, 1]
    assert packed["tensors"]["x"]["read"] == apart["tensors"]["x"]["read"] == 8192
    efficiency = [launch["accesses"]["global_load"]["efficiency"] for launch in (packed, apart)]
    assert efficiency[0] == 1 > efficiency[1]


def test_content(rows_bundle: Path, tmp_path: Path):
    """The kernel gets the given values, and computes the same as on a device."""
    x = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    plain = data(rows_bundle, *SOFTMAX, "--shape", "x=3,100")["launches"][0]
    for content in (tmp_path / "x.npy", 2.5):
        given = data(rows_bundle, *SOFTMAX, "--shape", "x=3,100", "--content", f"x={content}")["launches"][0]
        assert given["classes"] == plain["classes"]


def test_content_of_random_whole_numbers(rows_bundle: Path):
    call = CallSpec({"x": (300, 100)}, dtypes={"T": "float32"})
    made = make_call(open_for(EmulatorDriver(), rows_bundle, "softmax"), "softmax", call, {"x": "-2..7"})
    assert set(np.unique(made.arrays["x"].numpy())) == set(range(-2, 8))


def test_the_text(rows_bundle: Path):
    call = (rows_bundle, *SOFTMAX, "--shape", "x=64,1024", "--by-instruction")
    text, total = run(*call).output, data(*call)["launches"][0]
    for part in ("softmax of bundle rows", "lower bounds", "none was measured", "VALU", "LDS", "100%", "waves a SIMD",
                 "OF CONFLICTS"):  # fmt: skip
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    listed = text.split("by instruction\n")[1].splitlines()[1:]
    assert len(listed) == len(total["by_instruction"])
    assert sum(row["executions"] for row in total["by_instruction"]) == total["instructions"]
    assert sum(int(line.split()[1].replace(",", "")) for line in listed) == total["instructions"]


REFUSED = (
    ("softmux --shape x=1,64", 1, "no op 'softmux'; did you mean 'softmax'?"),
    ("softmax --shape x=1,64", 1, "the dtype of T is missing; allowed: float16, bfloat16, float32"),
    ("softmax --dtype T=float16 --shape x=64", 1, "'x'"),
    ("softmax --dtype T=float16 --shape y=1,64", 1, "no tensor 'y'"),
    ("softmax --dtype T=float16 --shape x=1,64 --set causal=true", 1, "no scalar 'causal'"),
    ("softmax --dtype T=float16 --shape x=1,64 --content z=1", 1, "no tensor 'z'; known: out, x"),
    (
        "softmax --dtype T=float16 --shape x=1,64 --content x=nothing.npy",
        1,
        "is not a number, a range such as 0..7, or a .npy file",
    ),
    ("softmax --dtype T=float16 --shape x=1,64 --content x=3..2", 1, "invalid range '3..2' for 'x': 3 > 2"),
    ("softmax --dtype T=float16 --shape x=1,a", 2, "is not TENSOR=N,N"),
    ("softmax --bogus", 2, "No such option"),
)


@pytest.mark.parametrize("arguments, status, words", REFUSED)
def test_refusals(rows_bundle: Path, arguments: str, status: int, words: str):
    result = run(rows_bundle, *arguments.split())
    assert result.exit_code == status and words in result.stderr and "Traceback" not in result.output


def test_content_of_another_shape(rows_bundle: Path, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4)))
    spec, given = CallSpec({"x": (3, 100)}, dtypes={"T": "float16"}), {"x": f"{tmp_path}/x.npy"}
    with pytest.raises(ArgumentError, match=r"'x' has shape \(3, 100\), but the array in .* has \(3, 4\)"):
        profile_call(EmulatorDriver(), rows_bundle, "softmax", spec, given)


def test_no_bundle(tmp_path: Path):
    result = run(tmp_path, *SOFTMAX, "--shape", "x=1,64")
    assert result.exit_code == 1 and "is not a bundle" in result.stderr


def test_progress_by_batch(rows_bundle: Path):
    seen: list[tuple[str, int, int]] = []
    spec = CallSpec({"x": (200, 1024)}, dtypes={"T": "float16"})
    profile_call(EmulatorDriver(), rows_bundle, "softmax", spec, None, lambda *step: seen.append(step))
    assert seen == [("softmax_rows", done, 200) for done in (64, 128, 192, 200)]  # 256 wavefronts of four a workgroup
