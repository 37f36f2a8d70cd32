"""Recordings: entries of a program's calls, their cost, and a file shared by several processes."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import aot_runtime
from aot_runtime import ArgumentError, CallsFileError, NoVariantError
from aot_runtime.call import recording as recordings
from aot_runtime.call.calls_file import HEAD, MAX_BYTES, merge
from aot_runtime.call.planner import Planner
from aot_runtime.call.recording import lay_out
from aot_runtime.contract import records
from aot_runtime.contract.arch import device_names
from tests.support.contracts import HERE, layout, planner
from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double

pytest.importorskip("ruamel.yaml", reason="calls files need the extra `record`")
pytest.importorskip("filelock", reason="calls files need the extra `record`")

ONES = np.ones((3, 21), np.float32)


@in_double()
def test_a_distinct_call_is_noted_once(small_bundle: Path, tmp_path: Path):
    """Strides, addresses and scalars are noted where they decide something. Unbuilt calls are noted; refused ones are
    not."""
    small, _ = open_over_double(small_bundle)
    known = small.device.array(ONES)
    small.affine(known)
    with aot_runtime.record(tmp_path / "calls.yaml"):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda scale: small.affine(known, scale=scale), np.linspace(1, 2, 40)))
        for array in (known[:, :16], known[:1], known[:, 1:], small.device.array(np.ones((6, 32), np.float32))[::2]):
            small.affine(array, mode="plain")
        small.affine(known, ONES[:1], mode="negated", shift=2)
        with pytest.raises(NoVariantError):
            small.affine(ONES.astype(np.float16), mode="negated")
        with pytest.raises(ArgumentError):
            small.affine(ONES[0])
    small.affine(known)
    with aot_runtime.record(tmp_path / "calls.yaml", launch=False):
        small.copy(np.asfortranarray(ONES), out=np.empty((21, 3), np.float32).T)
        small.copy(ONES, out=np.empty((3, 21), np.float32))
    assert (
        (tmp_path / "calls.yaml").read_text()
        == HEAD
        + """\
calls:
- bundle: small
  op: affine
  count: 40
  shapes: {x: [3, 21]}
  dtypes: {T: float32}
- bundle: small
  op: affine
  count: 1
  shapes: {x: [3, 16]}
  dtypes: {T: float32}
  strides: {x: [21, 1]}
- bundle: small
  op: affine
  count: 1
  shapes: {x: [1, 21]}
  dtypes: {T: float32}
- bundle: small
  op: affine
  count: 1
  shapes: {x: [3, 20]}
  dtypes: {T: float32}
  unaligned: [x]
- bundle: small
  op: affine
  count: 1
  shapes: {x: [3, 32]}
  dtypes: {T: float32}
- bundle: small
  op: affine
  count: 1
  shapes: {x: [3, 21], bias: [1, 21]}
  dtypes: {T: float32}
  scalars: {mode: negated}
- bundle: small
  op: affine
  count: 1
  shapes: {x: [3, 21]}
  dtypes: {T: float16}
  scalars: {mode: negated}
- bundle: small
  op: copy
  count: 1
  shapes: {x: [3, 21]}
  innermost: {x: 0}
- bundle: small
  op: copy
  count: 1
  shapes: {x: [3, 21], out: [3, 21]}
  innermost: {out: 1}
"""
    )


@in_double()
def test_calls_that_are_not_launched_return_zeros(small_bundle: Path, tmp_path: Path):
    """Calls for which nothing is built do, too; the caller's arguments stay as they are."""
    small, launches = open_over_double(small_bundle)
    with aot_runtime.record(tmp_path / "calls.yaml", launch=False):
        out = small.device.array(ONES)
        assert small.affine(small.device.array(ONES), out=out) is out and (out.numpy() == 1).all()
        sums = small.row_sums(ONES, return_largest=True)
        assert sums.total.shape == (3,) and not sums.total.any() and not sums.largest.any()
        for _ in range(2):
            assert not small.affine(ONES.astype(np.float16), mode="negated").any()
        small.accumulate(ONES[0], state := np.ones(21, np.float32))
        assert (state == 1).all() and launches.count == 0
    assert (tmp_path / "calls.yaml").read_text().count("count: 2\n") == 1
    assert (small.affine(ONES, scale=1) == 1).all() and launches.count == 1


@in_double()
def test_a_recording_costs_nothing_before_and_after_it(small_bundle: Path, tmp_path: Path):
    """While none runs, plans are as before; while one runs, a known call is not planned again either."""
    small, _ = open_over_double(small_bundle)
    x = small.device.array(ONES)

    def planned(times: int) -> int:
        with mock.patch.object(Planner, "decide", autospec=True, side_effect=Planner.decide) as decide:
            for _ in range(times):
                small.affine(x)
        return decide.call_count

    plans = small.affine.__globals__["_plans"]
    assert planned(3) == 1
    (plain,) = plans.values()
    with aot_runtime.record(tmp_path / "calls.yaml") as recording:
        assert recordings.current() is recording and not plans, "plans of before count nothing"
        assert planned(3) == 1
        with pytest.raises(ArgumentError, match="runs already"):
            aot_runtime.record(tmp_path / "other.yaml")
    assert recordings.current() is None and not plans and planned(3) == 1
    (again,) = plans.values()
    assert again.__code__.co_code == plain.__code__.co_code, "a plan of afterwards counts nothing"
    recording.close()
    assert (tmp_path / "calls.yaml").read_text().count("count: 3\n") == 1


@in_double()
def test_a_plan_that_a_recording_ended_before_is_not_kept(small_bundle: Path, tmp_path: Path):
    small, _ = open_over_double(small_bundle)
    recording, decide = aot_runtime.record(tmp_path / "calls.yaml"), Planner.decide

    def late(*arguments: Any) -> Any:
        recording.close()
        return decide(*arguments)

    with mock.patch.object(Planner, "decide", late):
        small.affine(small.device.array(ONES))
    assert not small.affine.__globals__["_plans"]


def test_a_stride_that_something_is_picked_by():
    wide = records.Axis("WIDE", (False, True), "stride(x, n) > 64")
    made = planner("x: float32[n, m] loose", axes=(wide,), bundle="b")

    def words(*strides: int) -> dict[str, Any]:
        layouts = {"x": layout(4, 32, strides=strides)}
        return made.entry(layouts, {}, lay_out(made, layouts, {}, HERE, device_names("gfx942", 304)).names)

    assert words(32, 1) == {"bundle": "b", "op": "op", "shapes": {"x": [4, 32]}}
    assert words(128, 1) == {**words(32, 1), "strides": {"x": [128, 1]}}


@in_double()
def test_the_environment_begins_a_recording_once(small_bundle: Path, tmp_path: Path):
    with mock.patch.dict("os.environ", AOTBUILD_RECORD=str(tmp_path / "calls.yaml")):
        open_over_double(small_bundle)[0].affine(ONES)
        running = recordings.current()
        assert running is not None and open_over_double(small_bundle) and recordings.current() is running
        running.close()
        open_over_double(small_bundle)[0].affine(ONES)
    assert recordings.current() is None and "count: 1\n" in (tmp_path / "calls.yaml").read_text()


@in_double()
def test_a_recording_has_a_limit(small_bundle: Path, tmp_path: Path):
    small, _ = open_over_double(small_bundle)
    with (
        mock.patch.object(recordings, "MAX_CALLS", 2),
        pytest.warns(RuntimeWarning, match="the first 2 distinct"),
        aot_runtime.record(tmp_path / "calls.yaml"),
    ):
        for rows in (1, 2, 3, 4, 1):
            small.affine(small.device.array(np.ones((rows, 16), np.float32)))
    counts = [line for line in (tmp_path / "calls.yaml").read_text().splitlines() if "count" in line]
    assert counts == ["  count: 2", "  count: 1"]


# The file

CALL = {"bundle": "small", "op": "affine", "count": 2, "shapes": {"x": [3, 21]}}


def test_what_a_person_wrote_stays(tmp_path: Path):
    path = tmp_path / "calls.yaml"
    path.write_text("""\
# ours
calls:
# the prompt
- op: affine   # any bundle's
  dims: {rows: 0x10, cols: 21}
- shapes:
    x: [3, 21]
  op: 'affine'
  bundle: small
""")
    (tmp_path / "link.yaml").symlink_to(path)
    odd = {**CALL, "scalars": {"mode": "on", "bound": float("inf"), "text": "a: b", "flag": True, "f": 1e-5}}
    for _ in range(2):
        merge(tmp_path / "link.yaml", [CALL, odd])
    assert (
        path.read_text()
        == """\
# ours
calls:
# the prompt
- op: affine   # any bundle's
  dims: {rows: 0x10, cols: 21}
- shapes:
    x: [3, 21]
  op: 'affine'
  bundle: small
  count: 5
- bundle: small
  op: affine
  count: 4
  shapes: {x: [3, 21]}
  scalars: {mode: "on", bound: .inf, text: "a: b", flag: true, f: 1e-05}
"""
    )
    assert (tmp_path / "link.yaml").is_symlink()


def test_several_processes_write_one_file(tmp_path: Path):
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as pool:
        done = [pool.submit(merge, tmp_path / "calls.yaml", [{**CALL, "op": f"op{i % 3}"}]) for i in range(24)]
        assert [item.result() for item in done] == [None] * 24
    text = (tmp_path / "calls.yaml").read_text()
    assert text.count("count: 16\n") == text.count("- bundle") == 3
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["calls.yaml"]


LAUGHS = "calls:\n- &a0 {bundle: x, op: y}\n" + "".join(
    f"- &a{number} {{bundle: x, op: [{', '.join([f'*a{number - 1}'] * 9)}]}}\n" for number in range(1, 10)
)
CHAIN = "calls:\n- &a0 [1]\n" + "".join(f"- &a{number} [*a{number - 1}]\n" for number in range(1, 400))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("calls: [", ":1:9: not valid YAML"), ("calls: []\ncalls: []\n", ":2:1: not valid YAML"),
        ("bundle: rows\nops: {}\n", ": not a calls file"), ("calls: {}\n", ": not a calls file"),
        ("[1]\n", ": not a calls file"), ("calls:\n- op: a\n- 7\n", ":3: a call is a mapping (given: 7)"),
        ("calls:\n- {op: a, count: many}\n", ":2: `count` is a number from 1 on (given: 'many')"),
        (b"\xff", ": cannot be read: it is not UTF-8 text"),
        ("# " + MAX_BYTES * "x", f": it has more than {MAX_BYTES} bytes"),
        (LAUGHS, ":7:23: more than 262144 values, or 20 levels, with aliases expanded"),
        (CHAIN, ":21:3: more than 262144 values, or 20 levels"),
        ("calls:\n- op: 2023-01-01\n", ":2:7: '2023-01-01' is not a string, number, true, false or null"),
        *((f"calls:\n- {{op: {number}}}\n", ":2:8: a number of more than 100 digits")
          for number in ("9" * 5000, "0x" + "f" * 5000)),
        *((f"calls:\n- {{op: !!{tag} abc}}\n", ":2:8: 'abc' is not a string") for tag in ("int", "float", "bool")),
        ("calls:\n- op: 2023-13-45\n", ":2:7: '2023-13-45' is not a string"),
        ("calls:\n- {op: !x [a]}\n", ":2:8: the tag "),
        ("calls:\n- {op: !!set {a, b}}\n", ":2:8: the tag 'tag:yaml.org,2002:set' is not supported"),
        ("calls:\n- &a {<<: *a, op: a}\n", ":2:3: it is a part of itself"),
        ("calls:\n- &a [*a]\n", ":2:3: it is a part of itself"),
        *((f"calls:\n- {{{key}: 3}}\n", ":2:3: a key is not a string")
          for key in ("[1, 2]", "{a: 1}", "~", "1", "true", "2001-01-01")),
        ("calls:\n- {<<: 3}\n", ":2:8: not valid YAML: "),
    ],
)  # fmt: skip
def test_another_file_is_left_alone(tmp_path: Path, content: str | bytes, said: str):
    """It is refused when a recording begins, not at its end, where the calls would be lost."""
    path, content = tmp_path / "calls.yaml", content.encode() if isinstance(content, str) else content
    path.write_bytes(content)
    for use in (aot_runtime.record, lambda path: merge(path, [CALL])):
        with pytest.raises(CallsFileError) as caught:
            use(path)
        assert str(caught.value).startswith(f"{path}{said}") and path.read_bytes() == content
    assert recordings.current() is None


def test_aliases_and_merged_calls_stay_as_they_are(tmp_path: Path):
    path = tmp_path / "calls.yaml"
    path.write_text("calls:\n- &a {bundle: b, op: o, count: 2}\n- {<<: *a, op: p}  # mine\n- {<<: [*a], op: q}\n")
    merge(path, [CALL])
    assert path.read_text().startswith(
        "calls:\n- &a {bundle: b, op: o, count: 2}\n- {<<: *a, op: p}  # mine\n- {<<: [*a], op: q}\n"
    )


def test_a_pipe_is_no_calls_file(tmp_path: Path):
    os.mkfifo(tmp_path / "calls.yaml")
    with pytest.raises(CallsFileError, match=r"calls\.yaml: cannot be read: it is not a regular file"):
        aot_runtime.record(tmp_path / "calls.yaml")


def test_a_recording_that_could_not_be_written_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CallsFileError, match=r"folder .*nowhere does not exist or is not writable"):
        aot_runtime.record(tmp_path / "nowhere" / "calls.yaml")
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(CallsFileError, match=r"needs the extra `record`: pip install 'aot-runtime\[record\]'"):
        aot_runtime.record(tmp_path / "calls.yaml")
    assert recordings.current() is None
