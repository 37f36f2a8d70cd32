"""examples/fmha.py: every option, on the emulator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aot_models.masks import parse_mask
from kernels.attention.reference import visible_keys
from tests.docs.scripts import ROOT

Main = Callable[..., int]
SMALL = "-b=1 -h=2 -s=40 -s_k=60 -d=64"


@pytest.fixture(scope="module")
def fmha() -> ModuleType:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import fmha
    finally:
        sys.path.remove(str(ROOT / "examples"))
    return fmha


OPTIONS = (
    "", "-lse=1 -h_k=1", "-mask=g:12,-4 -lse=1", "-mask=t:7,3 -scale=0.3", "-mask=xb:16 -init=0", "-vlayout=c -iperm=0",
    "-iperm=0 -operm=0 -mask=b:30,-1", "-bias=e:0", "-bias=e:2 -v=1", "-bias=1 -init=2", "-bias=a:1 -lse=1", "-bias=2",
    "-d_v=40", "-mode=1 -b=3 -lse=1 -bias=e:1", "-mode=1 -operm=0 -iperm=1 -s=10",
    "-mode=1 -mask=b -h_k=1 -iperm=0 -bias=a",
)  # fmt: skip
FLOAT8 = "-prec=fp8 -s_k=64 -vlayout=c"
BF8 = "-prec=bf8 -mode=1 -bias=e:1 -mask=b"


@pytest.fixture
def run(fmha: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Run the program on the emulator, with shipped bundles whose variants are compiled when a call needs them."""
    from tests.support.emulation.bundling import on_demand

    bundles = {f"{manifest}-gfx942": manifest for manifest in ("attention", "attention_quantised")}
    monkeypatch.setattr(fmha, "open_bundle", lambda path, device: on_demand(bundles[path.name]))
    return lambda text: fmha.main([*text.split(), "-device=emulator"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", OPTIONS)
def test_valid(run: Main, capsys: pytest.CaptureFixture[str], options: str):
    assert run(f"{SMALL} {options}") == 0
    printed = capsys.readouterr().out
    assert printed.endswith("valid:y\n") and printed.startswith(
        "[fp16|group|" if "-mode=1" in options else "[fp16|batch|"
    )
    assert "TFlops" not in printed  # an emulator's time says nothing


def test_float8(run: Main, capsys: pytest.CaptureFixture[str]):
    assert run(f"{SMALL} {FLOAT8}") == 0
    assert capsys.readouterr().out.startswith("[fp8|batch|bhsd] b:1, h:2/2, s:40/64, d:64/64")


def test_bf8_of_sequences(run: Main, fmha: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert run(f"{SMALL} {BF8}") == 0
    assert capsys.readouterr().out.startswith("[bf8|group|bhsd]")
    kinds = [fmha.quantised_dtype("bf8", arch).name for arch in ("gfx942", "gfx950", "sm_90")]
    assert kinds == ["float8_e5m2fnuz", "float8_e5m2", "float8_e5m2"]


def test_what_is_not_valid(
    run: Main, fmha: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    check = fmha.check

    def check_shifted(bundle: Any, call: Any, results: dict[str, Any]) -> str:
        return check(bundle, call, results | {"out": results["out"] + np.float16(1e-2)})

    monkeypatch.setattr(fmha, "check", check_shifted)
    assert run(SMALL) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("valid:n\n") and "fmha.py: out: max error" in printed.err
    assert run(f"{SMALL} -v=0") == 0
    assert "valid" not in capsys.readouterr().out


@pytest.mark.parametrize(("options", "message"), (
    ("-mask=q", "unknown mask 'q'; allowed: 0, 1, 2, t, b"), ("-bias=x", "-bias=x; allowed: n, 0, 1, 2, e"),
    ("-mode=1 -mask=g:3,4", "allowed: t and b"),
    ("-prec=bf8 -d_v=64", "-prec=bf8 goes with -d_v of -d, 128; given: 64"), ("-prec=fp4", "invalid choice: 'fp4'"),
    ("-lse=2", "invalid choice"),
))  # fmt: skip
def test_options_that_make_no_sense(run: Main, capsys: pytest.CaptureFixture[str], options: str, message: str):
    with pytest.raises(SystemExit) as stopped:
        run(options)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_what_the_op_refuses(run: Main, capsys: pytest.CaptureFixture[str]):
    assert run(f"{SMALL} -h=3 -h_k=2") == 1
    assert "requires heads % heads_kv == 0; given: heads=3, heads_kv=2" in capsys.readouterr().err


def test_a_bundle_that_is_not_there(fmha: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert fmha.main([*SMALL.split(), "-device=emulator", f"-bundles={tmp_path}"]) == 1
    assert "attention-gfx942" in capsys.readouterr().err


@pytest.mark.parametrize("mask", ("0", "t", "b", "t:7,3", "b:5,2", "b:-1,2", "t:30,-1", "g:12,-4", "g:-3,70", "xb:16"))
@pytest.mark.parametrize("lengths", ((40, 60), (60, 40)), ids=str)
def test_a_rate_counts_visible_keys(fmha: ModuleType, mask: str, lengths: tuple[int, int]):
    seqlen_q, seqlen_k = lengths
    options = fmha.parse(["-b=2", "-h=3", f"-s={seqlen_q}", f"-s_k={seqlen_k}", "-d=16", "-d_v=8", f"-mask={mask}"])
    seen = visible_keys(seqlen_q, seqlen_k, **parse_mask(mask)).sum()
    assert fmha.operations(options, fmha.make_call(options, "gfx942")) == 2 * 3 * 24 * 2 * seen


def test_a_rate_of_sequences_counts_each_by_its_lengths(fmha: ModuleType):
    group = fmha.parse(["-mode=1", "-b=3", "-h=1", "-s=9", "-s_k=12", "-d=8"])
    call = fmha.make_call(group, "gfx942")
    lengths = [np.diff(call.inputs[f"cu_seqlens_{name}"].values) for name in "qk"]
    assert all((lengths[0] >= 5) & (lengths[0] <= 9))
    assert fmha.operations(group, call) == 32 * (lengths[0] * lengths[1]).sum()
