"""Reading checkpoints with missing or wrong files and tensors."""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.linear import Linear
from aot_models.checkpoints.progress import Progress
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.families import config_of
from aot_models.random_checkpoint import write_checkpoint
from models.tests.random_models import Tensors, quantised, tiny
from tests.support.dtypes import BF16


def refused(folder: Path, found: Mapping[str, object], tensors: Tensors) -> str:
    write_checkpoint(folder, found, tensors)
    with pytest.raises(CheckpointError) as caught:
        config_of(Checkpoint(folder))
    return str(caught.value).removeprefix(f"{folder}: ")


def test_tensors_that_are_missing_or_misshapen_are_all_named(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    assert refused(tmp_path, found, tensors) == (
        "tensor 'model.norm.weight' is [127], and should be [128]; "
        "there is no tensor 'model.layers.0.mlp.up_proj.weight'"
    )
    found, stored, _ = quantised("gptq of 4 bits")
    name = "model.layers.0.self_attn.k_proj.qzeros"
    stored[name] = stored[name][:1]
    assert refused(tmp_path, found, stored) == f"tensor '{name}' is [1, 16], and should be [2, 16]"


def test_files_that_are_missing_or_broken(tmp_path: Path):
    def fault() -> str:
        with pytest.raises(CheckpointError) as caught:
            Checkpoint(tmp_path)
        return str(caught.value)

    assert "config.json: No such file" in fault()
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert "model.safetensors: " in fault()
    weights.unlink()
    assert "there is no .safetensors file" in fault()
    index = {"weight_map": {"model.norm.weight": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "part-2.safetensors: " in fault()
    (tmp_path / "config.json").write_text("{")
    assert "config.json: invalid JSON: " in fault()


def test_all_shards_that_are_at_fault_are_named(tmp_path: Path):
    """Faults are named before any tensor is read: missing, cut short, no safetensors; then tensors of the index that no
    shard has."""
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, found, tensors)
    content, names = (tmp_path / "model.safetensors").read_bytes(), list(tensors)
    files = [f"model-0000{part}-of-00004.safetensors" for part in range(1, 5)]
    placed = dict.fromkeys(names, files[0]) | dict(zip(names, files[1:], strict=False))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    for file, part in zip(files[:3], (content, content[:-3], b"no safetensors"), strict=True):
        (tmp_path / file).write_bytes(part)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path)
    assert [text.split(": ")[0] for text in str(caught.value).split("; ")] == [str(tmp_path / x) for x in files[1:]]
    for file in files[1:]:
        (tmp_path / file).write_bytes(content)
    assert config_of(Checkpoint(tmp_path)).hidden == 128
    placed |= {"model.of_nothing.weight": files[1]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    with pytest.raises(CheckpointError, match=r"00002-of-00004.*: there is no tensor 'model\.of_nothing\.weight'"):
        Checkpoint(tmp_path)
    for wrong in ({"weight_map": {"a": "../a.safetensors"}}, {"weight_map": ["a"]}, {}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(wrong))
        with pytest.raises(
            CheckpointError, match=r"index\.json: (\.\./a\.safetensors: files of|there is no 'weight_map')"
        ):
            Checkpoint(tmp_path)


def test_tensors_are_views_of_their_file(tmp_path: Path):
    """Nothing is copied on the host, not even for the device: what is uploaded is the map's memory."""
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, found, tensors)
    checkpoint = Checkpoint(tmp_path)
    for name, wanted in tensors.items():
        array = checkpoint.tensor(name)
        assert array.dtype == wanted.dtype and np.array_equal(array, wanted)
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
        assert np.ascontiguousarray(array).ctypes.data == array.ctypes.data and not array.flags.writeable


def test_dtypes_that_a_tensor_may_not_have(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    wanted = "should be float16 or bfloat16 or float32"
    assert refused(tmp_path, found, tensors) == f"tensor 'model.norm.weight' is int8, and {wanted}"
    found, stored, _ = quantised("fp8 of blocks")
    name = "model.layers.0.mlp.up_proj.weight"
    stored[name] = stored[name].astype(BF16)
    assert refused(tmp_path, found, stored) == f"tensor '{name}' is bfloat16, and should be float8_e4m3fn"


def test_a_bar_goes_to_the_end_on_a_terminal_and_is_nowhere_else(tmp_path: Path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, found, tensors)
    for stream in (Terminal(), io.StringIO()):
        checkpoint = Checkpoint(tmp_path, Progress(stream))
        config_of(checkpoint)
        for name in tensors:
            checkpoint.tensor(name)
        text = stream.getvalue()
        size = sum(array.nbytes for array in tensors.values()) / 1e9
        wanted = f"\rweights [{'#' * 30}] {size:.2f} of {size:.2f} GB\n"
        assert text.endswith(wanted) and text.count("\r") < len(tensors) if stream.isatty() else not text


def test_weights_of_4_bits_that_are_not_as_the_config_says(tmp_path: Path):
    """An order that is no permutation is refused, and so are zeros of 8 stored plainly where they should be one
    less."""
    found, stored, _ = quantised("gptq of 4 bits, act-order, version 2")
    found["quantization_config"] = {**found["quantization_config"], "sym": True, "checkpoint_format": "gptq"}
    order, zeros = (f"model.layers.0.{name}" for name in ("self_attn.q_proj", "mlp.down_proj"))
    stored[f"{order}.g_idx"] = np.zeros(128, np.int32)
    stored[f"{order}.qzeros"] = np.full_like(stored[f"{order}.qzeros"], 0x77777777)
    stored[f"{zeros}.qzeros"] = np.full_like(stored[f"{zeros}.qzeros"], 0x88888888 - 2**32)
    write_checkpoint(tmp_path, found, stored)

    def linear(name: str) -> Linear:
        return Checkpoint(tmp_path).linear(name, config_of(Checkpoint(tmp_path)).linears()[name])

    with pytest.raises(CheckpointError, match=f"{order}: g_idx"):
        linear(order)
    with pytest.raises(CheckpointError, match=f"{zeros}: "):
        linear(zeros)
    found["quantization_config"] |= {"checkpoint_format": "gptq_v2"}
    write_checkpoint(tmp_path, found, stored)
    assert (linear(zeros).weight.zeros == 8).all()


# What comes from a stranger


def test_tensors_that_nothing_reads_are_named(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    layer = "model.layers.0.mlp.up_proj"
    bias = np.zeros(256, BF16)
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(32, np.float32), f"{layer}.bias": bias}
    write_checkpoint(tmp_path, found, {**tensors, **harmless})
    assert config_of(Checkpoint(tmp_path)).hidden == 128
    others = {f"{layer}.bias": bias + 1, "model.layers.7.input_layernorm.weight": bias, "x\x1b": bias}
    assert refused(tmp_path, found, {**tensors, **others}).split("; ") == [
        f"tensor '{layer}.bias' is read by nothing",
        "tensor 'model.layers.7.input_layernorm.weight' is read by nothing",
        "tensor ''x\\x1b'' is read by nothing",
    ]


def test_shared_experts_that_the_config_does_not_have(tmp_path: Path):
    found, tensors = tiny("deepseek_v2")
    message = refused(tmp_path, {**found, "n_shared_experts": 0}, tensors)
    assert message.count("mlp.shared_experts.") == message.count("is read by nothing") == 3


def test_a_last_layer_beside_tied_embeddings_is_the_table(tmp_path: Path):
    """transformers does not tie two layers that differ either."""
    found, tensors = tiny(num_hidden_layers=1, tie_word_embeddings=True)
    head = tensors["model.embed_tokens.weight"].copy()
    write_checkpoint(tmp_path, found, {**tensors, "lm_head.weight": head})
    assert config_of(Checkpoint(tmp_path)).tied
    head[0, 0] += 1
    assert refused(tmp_path, found, {**tensors, "lm_head.weight": head}) == "tensor 'lm_head.weight' is read by nothing"


def test_images_are_left_out(tmp_path: Path):
    found, tensors = tiny("gemma3")
    found = {"architectures": ["Gemma3ForConditionalGeneration"], "torch_dtype": "bfloat16", "text_config": {
        key: value for key, value in found.items() if key != "architectures"}}  # fmt: skip
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    write_checkpoint(tmp_path, {**found, "vocab_size": 320}, {})
    (tmp_path / "config.json").write_text(json.dumps(found))
    renamed["vision_tower.encoder.weight"] = np.ones(3, np.float32)
    save_file(renamed, tmp_path / "model.safetensors")
    assert len(config_of(Checkpoint(tmp_path)).attention) == 2


@pytest.mark.parametrize("name", ("config.json", "model.safetensors", "model.safetensors.index.json"))
def test_pipes_and_devices_are_no_files(name: str, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=rf"{name}: not a regular file"):
        Checkpoint(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=rf"{name}: not a regular file"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    (
        (b"[" * 100_000, "invalid JSON"),
        (b'{"a": ' * 100_000, "invalid JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "invalid JSON"),
        (b"\xff{}", "not UTF-8"),
        (b" " * ((1 << 24) + 1), "more than 16777216 bytes"),
    ),
)
def test_config_files_that_are_none(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        Checkpoint(tmp_path)
