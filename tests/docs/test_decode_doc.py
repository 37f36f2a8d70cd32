"""docs/decode.md: its calls work, and its table has every argument."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot_models.masks import create_block_mask
from aot_runtime import open_bundle
from kernels.attention.reference import attention
from kernels.tolerance import assert_close
from tests.docs.markdown import blocks, table
from tests.docs.scripts import ROOT, build
from tests.support.emulation.bundling import on_demand

PAGE = (ROOT / "docs/decode.md").read_text(encoding="utf-8")
FNUZ = ml_dtypes.float8_e4m3fnuz
MANIFEST = ROOT / "manifests/decode.yaml"


def test_calls():
    """The blocks run as they stand, over a bundle whose variants are compiled as the calls need them."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("k", "v"), (2, 2, 100, 64)) | dict.fromkeys(("k_cache", "v_cache"), (8, 64, 2, 64))
    shapes |= dict.fromkeys(("k_new", "v_new"), (2, 2, 64)) | dict.fromkeys(("k2048", "v2048"), (1, 1, 2048, 64))
    shapes |= {"q": (2, 4, 1, 64), "q_tokens": (2, 4, 64), "q1": (1, 2, 1, 64)}
    names = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    names |= {f"{name}8": names[source].astype(FNUZ) for name, source in
              (("q", "q_tokens"), ("k", "k_cache"), ("v", "v_cache"))}  # fmt: skip
    names |= {f"{name}_scale": np.ones((2, 2), np.float32) for name in "qkv"} | {
        "out8": np.empty((2, 4, 64), np.float16)
    }
    names["shown"] = rng.random((2, 100)) < 0.5
    names |= {name: rng.uniform(-1, 1, (200, 32)).astype(np.float32) for name in ("cos", "sin")}
    integers = {"lengths": [100, 70], "slots": [99, 64 * 3 + 5], "positions": [99, 69], "cu_seqlens_q": [0, 1, 2],
                "block_tables": [[0, 1, -1], [2, 3, -1]]}  # fmt: skip
    names |= {name: np.array(values, np.int32) for name, values in integers.items()}
    source = "\n".join(block.text for block in blocks(PAGE, "python"))
    source = source.replace('open_bundle("dist/decode-gfx942")', "on_demand")
    names["on_demand"] = on_demand("decode")
    before = names["v_cache"].copy()
    exec(compile(source, "docs/decode.md", "exec"), names)
    assert names["decode"] is names["on_demand"]
    assert names["lse"].shape == (2, 4, 1) and names["out"].shape == (1, 2, 1, 64)
    changed = (names["v_cache"] != before).any((2, 3))
    assert np.argwhere(changed).tolist() == [[1, 35], [3, 5]]
    lists = names["lists"]
    assert (lists.full_kv_num_blocks.item(), lists.kv_num_blocks.item()) == (15, 1)


@pytest.mark.slow
def test_functions_of_ones_own(tmp_path: Path):
    """The manifest is built as it stands, with the module of docs/attention.md."""
    attention_page = (ROOT / "docs/attention.md").read_text(encoding="utf-8")
    for block in (*blocks(attention_page, "python"), *blocks(PAGE, "yaml")):
        if block.comment in ("file: my_mods.py", "file: my_decode.yaml"):
            (tmp_path / block.comment.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels")
    bundle = open_bundle(build(tmp_path / "my_decode.yaml", tmp_path / "dist", "HEAD_DIM=64"), device="emulator")
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, heads, n, 64)).astype(np.float16) for heads, n in ((4, 2), (2, 300), (2, 300)))
    strength, place = rng.uniform(0, 0.001, (2, 4)).astype(np.float32), 200
    lists = create_block_mask(lambda b, h, q, k: (q + place + k) % 2 == 0, 1, 1, 2, 300, 64)
    out = bundle.parity_decode(q, k, v, strength, first_query=place, **lists.arguments())

    def score_mod(score, batch, head, query, key):
        return score - strength[batch, head] * (key - query - place).astype(score.dtype) ** 2

    def mask_mod(batch, head, query, key):
        return (query + place + key) % 2 == 0

    options = {"scale": 0.125, "score_mod": score_mod, "mask_mod": mask_mod}
    same = attention(q, k, v, **options, compute=np.float32, storage=np.float16)
    assert_close(out, attention(q, k, v, **options), same, 1e-6)


def test_every_argument_is_in_the_table():
    pytest.importorskip("triton", reason="manifests need the extra `build`")
    from aot.manifest.loading import load_manifest

    ops = load_manifest(MANIFEST).spec.ops
    listed, documented = (
        {name.strip("` ") for row in table(text) for name in row[0].split(",")} for text in PAGE.split("A score is")
    )
    assert {op for op in ops if not op.startswith("flex_decode_")} <= listed
    for op in ("flash_decode", "flash_decode_int4", "paged_attention", "paged_attention_fp8", "paged_attention_int4",
               "mla_decode"):  # fmt: skip
        spec = ops[op]
        inputs = {name for name, tensor in spec.tensors.items() if tensor.role == "input"}
        assert {*inputs, *spec.scalars} - {"q", "k", "v", "cache"} <= documented, op
