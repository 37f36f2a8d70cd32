"""A bundle for the calls of one model, recorded from a run and built by `aotbuild --for`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot_runtime
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle, open_bundle
from models.tests.decoders.tiny_families import TINY
from models.tests.random_models import generate, opened, prompts_of, tiny
from tests.support.session_builds import ROOT, build_here, session_cache


@pytest.mark.slow
@pytest.mark.on("emulator", "hip")
@pytest.mark.parametrize("name", TINY)
def test_it_gives_the_same_tokens(llama: Bundle, name: str, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(**TINY[name]))
    (prompt,) = prompts_of([9], 96)
    calls, arch = tmp_path / "calls.yaml", llama.device.arch
    with aot_runtime.record(calls):
        tokens, logits = generate(opened(llama, tmp_path), [prompt], 3)
    options = ("--arch", arch, "--for", str(calls), "--cache-dir", str(session_cache()))
    result = build_here([str(ROOT / "manifests/llama.yaml"), "-o", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    own = open_bundle(tmp_path / f"llama-{arch}", llama.device)
    assert len(own.index.variants) < 20 < len(llama.index.variants)
    again, same = generate(opened(own, tmp_path), [prompt], 3)
    assert np.array_equal(tokens, again) and np.array_equal(logits, same)
