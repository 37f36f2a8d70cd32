"""Formats of linear layers on the host: decoding, the layers that use them, and refused ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.linear import LinearShape, Scaled, Weight
from aot_models.checkpoints.scheme import Plain
from aot_models.checkpoints.values import CheckpointError, Values
from aot_models.decoders.families import config_of
from aot_models.quantise import Packed, unpack_int4
from aot_models.random_checkpoint import QUANTISATIONS, random_tensors, settings, write_checkpoint
from models.tests.checkpoints.published import BLOCK, E4M3, FORMATS, Stored, compressed
from models.tests.random_models import quantised
from tests.support.dtypes import BF16

Array = np.ndarray
NAME = "model.layers.0.mlp.up_proj"


def dense_of(weight: Weight) -> Array:
    """Dequantise weights by the definition of the ops' layouts, float64 [outputs, inputs]."""
    if isinstance(weight, Packed):
        k = weight.group_size * len(weight.scales)
        codes = (unpack_int4(weight.w, k) if weight.w.dtype == np.uint8 else weight.w).astype(np.float64)
        zeros, scales = (np.repeat(x.T.astype(np.float64), weight.group_size, 1) for x in (weight.zeros, weight.scales))
        dense = np.empty_like(codes)
        dense[:, slice(None) if weight.order is None else weight.order] = (codes - zeros) * scales
        return dense
    if isinstance(weight, Scaled):
        scales = weight.scales.astype(np.float64)
        spread = np.repeat(np.repeat(scales, 128, 0), 128, 1) if weight.of_blocks else scales[:, None]
        outputs, inputs = weight.weight.shape
        return weight.weight.astype(np.float64) * spread[:outputs, : inputs if weight.of_blocks else None]
    return weight.astype(np.float64)


def weight_of(name: str, stored: Stored) -> Weight:
    return format_of(Values({"quantization_config": FORMATS[name].config}))(NAME).weight(stored.tensors)


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_stand_for_what_their_format_says(name: str):
    stored = FORMATS[name].store(np.random.default_rng(3), 72, 384)
    weight = weight_of(name, stored)
    np.testing.assert_array_equal(dense_of(weight), stored.dense)
    assert not isinstance(weight, Scaled) or weight.input_scale == stored.input_scale


@pytest.mark.parametrize("name", QUANTISATIONS)
def test_random_checkpoints_are_of_every_kind(name: str, tmp_path: Path):
    """And their weights are about as large as those of plain checkpoints."""
    found = settings("tiny", num_hidden_layers=1, quantization_config=QUANTISATIONS[name])
    write_checkpoint(tmp_path, found, random_tensors(found))
    checkpoint = Checkpoint(tmp_path)
    linears = config_of(checkpoint).linears()
    for layer, shape in linears.items():
        dense = dense_of(checkpoint.linear(layer, shape).weight)
        assert dense.shape == (shape.outputs, shape.inputs) and 0.1 < dense.std() * shape.inputs**0.5 < 10, layer


# Layers that are left out


SKIPPED = "modules_to_not_convert"
LISTS = {  # a list of a config, a name that it leaves out, and one that it does not
    "a name": ({SKIPPED: ["model.layers.0.mlp"]}, "model.layers.0.mlp.up_proj", "model.layers.0.mlp_2.up_proj"),
    "its beginning": ({SKIPPED: ["model.layers.1"]}, "model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"),
    "its end": ({SKIPPED: ["up_proj"]}, "model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj_2"),
    "an expression": ({"ignored_layers": [r"model.*\.mlp.gate"]}, "model.layers.7.mlp.gate", "model.mlp.gate_proj"),
}


@pytest.mark.parametrize("name", LISTS)
def test_modules_that_are_not_converted(name: str):
    change, left_out, kept = LISTS[name]
    scheme_of = format_of(Values({"quantization_config": {"quant_method": "fp8", **change}}))
    assert isinstance(scheme_of(left_out), Plain) and not isinstance(scheme_of(kept), Plain)
    assert isinstance(scheme_of("lm_head"), Plain)


def test_layers_that_gptq_leaves_out():
    config = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    for change, left_out, kept in (
        ({}, "lm_head", NAME),
        ({"lm_head": True}, None, "lm_head"),
        ({"dynamic": {r"-:.*\.up_proj": {}}}, NAME, "model.layers.0.mlp.down_proj"),
        (
            {"modules_in_block_to_quantize": [["mlp.up_proj"], ["mlp.down_proj"]]},
            "model.layers.0.self_attn.q_proj",
            NAME,
        ),
    ):
        scheme_of = format_of(Values({"quantization_config": {**config, **change}}))
        assert left_out is None or isinstance(scheme_of(left_out), Plain)
        assert not isinstance(scheme_of(kept), Plain)
    with pytest.raises(CheckpointError, match=r"'dynamic' with settings for \+:x, y is not supported"):
        format_of(Values({"quantization_config": {**config, "dynamic": {"+:x": {}, "-:z": {}, "y": {}}}}))


def test_groups_of_compressed_tensors_and_what_it_ignores():
    """A name goes before an expression, and that before a class; what no group names is not quantised."""
    config = dict(FORMATS["pack-quantized of 4 bits"].config)
    four = config["config_groups"]["group_0"]["weights"]
    groups = {
        "a": {"targets": ["Linear"], "weights": four},
        "b": {"targets": [r"re:.*down_proj$"], "weights": {**four, "num_bits": 8}},
        "c": {"targets": ["model.layers.1.mlp.down_proj"], "weights": {**four, "group_size": 32}},
    }
    left_out = ["lm_head", r"re:.*\.gate$"]
    scheme_of = format_of(Values({"quantization_config": {**config, "config_groups": groups, "ignore": left_out}}))
    found = [
        scheme_of(f"model.layers.{layer}.mlp.{name}")
        for layer, name in ((0, "up_proj"), (0, "down_proj"), (1, "down_proj"))
    ]
    assert [(scheme.bits, scheme.group_size) for scheme in found] == [(4, 64), (8, 64), (4, 32)]
    assert all(isinstance(scheme_of(name), Plain) for name in ("lm_head", "model.layers.0.mlp.gate"))
    del groups["a"]
    scheme_of = format_of(Values({"quantization_config": {**config, "config_groups": groups}}))
    assert isinstance(scheme_of(NAME), Plain)


# What is refused


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
FLOAT = {**INT8, "type": "float"}
COMPRESSED = "compressed-tensors"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
STATIC_BLOCKS = {"weight_block_size": [128, 128], "activation_scheme": "static"}
BY_GROUP = {**TOKEN, "strategy": "group", "group_size": 128}
REFUSED: dict[str, tuple[Mapping[str, object], str]] = {
    "an unknown method": ({"quant_method": "quark"}, "quantisation quark is not supported; supported: gptq, awq, fp8"),
    "bits of gptq": ({**GPTQ, "bits": 2}, "a weight of 2 bits is not supported; supported: 4 bits, 8 bits"),
    "a version of gptq": ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format marlin is not supported"),
    "bits of awq": ({**GPTQ, "quant_method": "awq", "bits": 8}, "AWQ's weight of 8 bits is not supported"),
    "a layout of awq": ({**GPTQ, "quant_method": "awq", "version": "GEMV"}, "AWQ's layout gemv is not supported"),
    "e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "float8 of the kind e5m2 is not supported; supported: e4m3"),
    "other blocks": ({"quant_method": "fp8", "weight_block_size": [1, 128]}, r"weight_block_size \[1, 128\] is not"),
    "static blocks": ({"quant_method": "fp8", **STATIC_BLOCKS}, "activation_scheme static with blocks is not"),
    "activations of 8 bits": (compressed("pack-quantized", {**INT8, "num_bits": 4}, TOKEN), "of format pack-quantized"),
    "asymmetric activations": (
        compressed("int-quantized", INT8, {**TOKEN, "symmetric": False}),
        r"group_0 of format int-quantized \(weights int8 by channel, static, symmetric; activations int8 by token, "
        r"dynamic, asymmetric\) is not supported; supported: pack-quantized",
    ),
    "asymmetric weights": (compressed("int-quantized", {**INT8, "symmetric": False}, TOKEN), "of format int-quantized"),
    "unlike activations": (compressed("float-quantized", FLOAT, TOKEN), "group_0 of format float-quantized"),
    "float8 weights alone": (compressed("float-quantized", FLOAT, None), "activations as they are"),
    "blocks of int8": (compressed("int-quantized", {**BLOCK, "type": "int"}, BY_GROUP), "of format int-quantized"),
    "4-bit floats": (compressed("nvfp4-pack-quantized", {**FLOAT, "num_bits": 4}, None), "group_0 of format nvfp4"),
    "3 bits": (compressed("pack-quantized", {**INT8, "num_bits": 3}, None), "weights int3 by channel"),
    "packed by tensor": (compressed("pack-quantized", {**INT8, "strategy": "tensor"}, None), "by tensor, static"),
    "no format": ({"quant_method": COMPRESSED, "config_groups": {"g": {"weights": INT8}}}, "g of format unknown"),
    "sparse weights": (
        {**compressed("int-quantized", INT8, TOKEN), "sparsity_config": {"format": "sparse-bitmask"}},
        "compressed-tensors' sparsity sparse-bitmask is not supported",
    ),
    "transforms": (
        {**compressed("int-quantized", INT8, TOKEN), "transform_config": {"config_groups": {"R1": {}}}},
        "compressed-tensors' transform R1 is not supported",
    ),
    "a group without weights": ({"quant_method": COMPRESSED, "config_groups": {"group_0": {}}}, "has no 'weights'"),
    "no groups": ({"quant_method": COMPRESSED}, "there is no 'config_groups'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_formats_that_are_refused(name: str):
    config, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        format_of(Values({"quantization_config": config}))


def test_results_that_are_quantised_are_refused():
    config = compressed("int-quantized", INT8, TOKEN)
    config["config_groups"]["group_0"]["output_activations"] = TOKEN
    with pytest.raises(CheckpointError, match="results quantised"):
        format_of(Values({"quantization_config": config}))


@pytest.mark.parametrize(
    "name, shape, message",
    (
        ("gptq of 4 bits", LinearShape(64, 96), "groups of 64 do not divide the 96 inputs"),
        ("gptq of 4 bits", LinearShape(60, 128), "60 outputs; a multiple of 8 is packed"),
        ("awq", LinearShape(60, 128), "60 outputs; a multiple of 8 is packed"),
        ("pack-quantized of 4 bits, zeros", LinearShape(60, 128), "60 outputs; a multiple of 8 is packed"),
        ("fp8 of blocks", LinearShape(64, 128, biased=True), "a bias beside scales of blocks is not supported"),
    ),
)
def test_layers_that_a_format_cannot_have(name: str, shape: LinearShape, message: str):
    scheme = format_of(Values({"quantization_config": FORMATS[name].config}))(NAME)
    with pytest.raises(ValueError, match=message):
        scheme.wanted(shape, ())


def test_groups_that_the_ops_do_not_take():
    scheme = format_of(Values({"quantization_config": {**GPTQ, "group_size": 16}}))(NAME)
    with pytest.raises(ValueError, match="groups of 16 are not supported; multiples of 32 and -1 are"):
        scheme.wanted(LinearShape(64, 128), ())


@pytest.mark.parametrize("scale", (0, -1, np.inf, np.nan))
def test_scales_that_are_none(scale: float):
    name = "float-quantized, static"
    stored = FORMATS[name].store(np.random.default_rng(0), 8, 128)
    for end in ("weight_scale", "input_scale"):
        stored.tensors[end] = np.array([scale], np.float32)
        with pytest.raises(ValueError, match=f"{end}: scales must be finite"):
            weight_of(name, stored)
        stored.tensors[end] = np.ones(1, np.float32)


# Against those who publish


def test_weights_are_those_of_compressed_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    compressors = pytest.importorskip("compressed_tensors.compressors", reason="compressed-tensors is not installed")
    from compressed_tensors.quantization import QuantizationScheme

    for name, published in FORMATS.items():
        if published.config["quant_method"] != "compressed-tensors" or "act-order" in name:
            continue  # which the library has given up
        stored = published.store(np.random.default_rng(4), 64, 256)
        group = {key: value for key, value in published.config["config_groups"]["group_0"].items() if key != "format"}
        arguments = {key: value for key, value in group["weights"].items() if value is not None}
        scheme = QuantizationScheme(**{**group, "weights": arguments})
        tensors = {end: _tensor(torch, array) for end, array in stored.tensors.items()}
        compressor = compressors.BaseCompressor.get_value_from_registry(published.config["format"])
        # In float32, where no product of a code and a scale is rounded.
        tensors = {end: x.float() if x.dtype == torch.bfloat16 else x for end, x in tensors.items()}
        found = compressor.decompress(tensors, scheme)["weight"].double().numpy()
        np.testing.assert_allclose(dense_of(weight_of(name, stored)), found, rtol=1e-6, atol=0, err_msg=name)


def test_weights_are_those_of_transformers(tmp_path: Path):
    """Compare fp8 in blocks with transformers, which makes it bfloat16."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    found, stored, dense = quantised("fp8 of blocks")
    write_checkpoint(tmp_path, found, stored)
    how = transformers.FineGrainedFP8Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=how, dtype=torch.bfloat16)
    theirs = dict(model.named_parameters())
    for name in stored:
        if name.endswith("_proj.weight"):
            np.testing.assert_array_equal(theirs[name].detach().float().numpy(), dense[name].astype(BF16), name)


def _tensor(torch: object, array: Array) -> object:
    if array.dtype == E4M3:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
