"""docs/attention.md: its masks, calls and custom module work as shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from aot_models.masks import parse_mask
from aot_runtime import open_bundle
from kernels.attention.reference import attention, visible_keys
from kernels.tolerance import assert_close
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT, build
from tests.support.emulation.bundling import on_demand

PAGE = (ROOT / "docs/attention.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "manifests/attention.yaml"


def test_masks():
    """Arguments are those of the table, and visible keys those of its conditions."""
    for strings, arguments, condition in table(section(PAGE, "Masks")):
        for text in strings.replace("`", "").split(", "):
            parsed = parse_mask(text)
            words = [word.strip("`") for word in arguments.split(", ") if word]
            said = dict(word.split("=") for part in words for word in part.split(", ") if "=" in word)
            assert {name: str(parsed[name]) for name in said} == said
            if text[0] in "12tbg" and "as" not in condition:
                assert parsed.get("mask_align", "bottom_right") in words or parsed["mask_align"] == words[-1]
                assert_condition(parsed, condition)


def assert_condition(parsed: dict, condition: str) -> None:
    """Assert `i - 3 ≤ j ≤ i + 2` in Python."""
    python = condition.replace("≤", "<=")
    for seqlen_q, seqlen_k in ((9, 9), (6, 11), (11, 6)):
        env = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
        wanted = [[eval(python, env | {"i": i, "j": j}) for j in range(seqlen_k)] for i in range(seqlen_q)]
        np.testing.assert_array_equal(visible_keys(seqlen_q, seqlen_k, **parsed), wanted)


def test_calls():
    """The first block runs as it stands, over a bundle whose variants are compiled as the calls need them."""
    block = blocks(PAGE, "python")[0]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 2, 20, 48)).astype(np.float16) for _ in range(3))
    given = dict(zip(("q_thd", "k_thd", "v_thd"), (x[0].swapaxes(0, 1) for x in (q, k, v)), strict=True))
    given |= {
        "q": q,
        "k": k,
        "v": v,
        "slopes": np.ones((1, 2), np.float32),
        "cu_seqlens": np.array([0, 7, 20], np.int32),
        "on_demand": on_demand("attention"),
    }
    source = block.text.replace('open_bundle("dist/attention-gfx942")', "on_demand")
    exec(compile(source, "docs/attention.md", "exec"), given)
    assert given["attention"] is given["on_demand"]
    assert given["out"].shape == (20, 2, 48) and given["lse"].shape == (2, 2, 20)


def test_a_module_of_ones_own(tmp_path: Path):
    for family in ("attention", "common"):
        shutil.copytree(ROOT / "kernels" / family, tmp_path / "kernels" / family)
    files = {
        b.comment.removeprefix("file: "): b.text for b in (*blocks(PAGE, "python"), *blocks(PAGE, "yaml")) if b.comment
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    bundle = open_bundle(build(tmp_path / "my_attention.yaml", tmp_path / "dist", "HEAD_DIM=64"), device="emulator")
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 2, 40, 64)).astype(np.float16) for _ in range(3))
    strength = rng.uniform(0, 0.1, (2, 2)).astype(np.float32)
    out = bundle.parity_attention(q, k, v, strength)

    def score_mod(score, batch, head, query, key):
        return score - strength[batch, head] * (key - query).astype(score.dtype) ** 2

    def mask_mod(batch, head, query, key):
        return (query + key) % 2 == 0

    options = {"scale": 0.125, "score_mod": score_mod, "mask_mod": mask_mod}
    same = attention(q, k, v, **options, compute=np.float32, storage=np.float16)
    assert_close(out, attention(q, k, v, **options), same, 1e-6)


@pytest.mark.parametrize("op", ("flash_attention", "flash_attention_varlen"))
def test_every_argument_is_in_the_table(op: str):
    pytest.importorskip("triton", reason="manifests need the extra `build`")
    from aot.manifest.loading import load_manifest

    spec = load_manifest(MANIFEST).spec.ops[op]
    documented = [name.strip("` ") for row in table(PAGE) for name in row[0].split(",")]
    inputs = [name for name, tensor in spec.tensors.items() if tensor.role == "input" and name not in "qkv"]
    assert {*inputs, *spec.scalars} <= set(documented)
