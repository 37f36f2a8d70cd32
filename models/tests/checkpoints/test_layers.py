"""Linear layers of every published format on the device, against float64 products of their dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest

from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.linear import Linear, LinearShape
from aot_models.checkpoints.values import Values
from aot_models.decoders.linears import Beside, EightBits, Layer, place
from aot_models.decoders.rows import Rows
from aot_runtime import Bundle
from kernels.gemm import reference
from kernels.tolerance import assert_close
from models.tests.checkpoints.published import E4M3, FORMATS, Published, Stored
from tests.support.dtypes import BF16, eight_bits

pytestmark = pytest.mark.sampled(1)
Array = np.ndarray
SIZE = 256
"""The number of inputs of all layers."""


def read(published: Published, stored: Stored, biased: bool = False) -> Linear:
    """Return the layer as a checkpoint reads it, which has to ask for all of its tensors."""
    scheme = format_of(Values({"quantization_config": published.config}))("model.layers.0.mlp.up_proj")
    shape = LinearShape(*stored.dense.shape, biased)
    wanted = scheme.wanted(shape, stored.tensors)
    assert set(wanted) == set(stored.tensors)
    for end, found in wanted.items():
        assert not found.fault(stored.tensors[end].shape, stored.tensors[end].dtype.name), end
    return Linear(scheme.weight(stored.tensors))


def computed(layer: Layer, bundle: Bundle, x: Array, outputs: int) -> Array:
    out, rows = bundle.device.empty((len(x), outputs), x.dtype), Rows(bundle.device, len(x), layer.needs)
    layer(bundle.device.array(x), out, rows, None)
    return out.numpy()


def rounded(x: Array, published: Published, bundle: Bundle, input_scale: float | None) -> Array:
    """Activations as the format rounds them to 8 bits, in float64."""
    if not published.activations:
        return x.astype(np.float64)
    q = np.zeros(x.shape, eight_bits(bundle, published.kind))
    if input_scale is not None:
        factor = np.array([input_scale * (2 if q.dtype.name.endswith("fnuz") else 1)], np.float32)
        return reference.quantise_static_same_dtype(x, q, factor).astype(np.float64) * factor
    block = 128 if published.activations == "block" else x.shape[1]
    codes, scale = reference.quantise_same_dtype(x, q, block)
    return codes.astype(np.float64) * np.repeat(scale, block, 1)[:, : x.shape[1]]


def check(bundle: Bundle, published: Published, parts: list[Stored], m: int, bias: Array | None = None) -> Layer:
    """Upload parts with the same input as one layer, compare its results with the reference, and return it."""
    linears = [read(published, stored) for stored in parts]
    if bias is not None:
        ends = np.cumsum([len(stored.dense) for stored in parts])[:-1]
        linears = [Linear(one.weight, part) for one, part in zip(linears, np.split(bias, ends), strict=True)]
    layer = place(bundle, linears, np.dtype(BF16))
    x = np.random.default_rng(m).standard_normal((m, SIZE)).astype(BF16)
    x[0, :2] = [7, -9]  # beyond static scales
    inputs = [rounded(x, published, bundle, stored.input_scale) for stored in parts]
    exact = np.concatenate([inner @ part.dense.T for inner, part in zip(inputs, parts, strict=True)], 1)
    exact = exact if bias is None else exact + bias.astype(np.float64)
    assert_close(computed(layer, bundle, x, exact.shape[1]), exact, exact.astype(BF16), 2e-3)
    return layer


@pytest.mark.parametrize("m", (3, 1, 20))
@pytest.mark.parametrize("name", FORMATS)
def test_a_layer_is_what_its_weights_stand_for(llama: Bundle, name: str, m: int):
    stored = FORMATS[name].store(np.random.default_rng(0), 144, SIZE)
    check(llama, FORMATS[name], [stored], m)


@pytest.mark.parametrize("name", FORMATS)
def test_layers_of_one_input_are_one_product_where_they_can_be(llama: Bundle, name: str):
    """The parts have different numbers of outputs and different scales."""
    published, rng = FORMATS[name], np.random.default_rng(1)
    parts = [published.store(rng, outputs, SIZE) for outputs in (256, 128, 32)]
    bias = None if published.activations == "block" else rng.standard_normal(416).astype(BF16)
    layer = check(llama, published, parts, 2, bias)
    assert isinstance(layer, Beside) == ("act-order" in name), "each has an order of its own"


@pytest.mark.slow
def test_layers_that_no_one_product_computes_stay_apart(llama: Bundle):
    """Blocks that span two layers, or different scales of activations, keep layers apart."""
    rng, blocks, static = np.random.default_rng(2), FORMATS["fp8 of blocks"], FORMATS["fp8, static"]
    assert isinstance(check(llama, blocks, [blocks.store(rng, n, SIZE) for n in (48, 64)], 2), Beside)
    one, two = (static.store(rng, 32, SIZE) for _ in range(2))
    other = Stored({**two.tensors, "input_scale": np.array([0.02], np.float32)}, two.dense, 0.02)
    assert isinstance(check(llama, static, [one, other], 2), Beside)
    assert isinstance(check(llama, static, [one, two], 2), EightBits)


def test_every_code_of_float8_is_the_number_that_it_was(llama: Bundle):
    """Codes keep their values on hardware of the FNUZ flavour, with its doubled scales: -0 is 0 there, NaN stays
    NaN."""
    weight = np.zeros((256, SIZE), E4M3)
    weight[:, 5] = np.arange(256, dtype=np.uint8).view(E4M3)
    published = FORMATS["float-quantized, static"]
    tensors = {"weight": weight, "weight_scale": np.array([0.25], np.float32), "input_scale": np.ones(1, np.float32)}
    layer = place(llama, [read(published, Stored(tensors, weight))], np.dtype(BF16))
    x = np.zeros((1, SIZE), BF16)
    x[0, 5] = 4
    found = computed(layer, llama, x, 256)[0].astype(np.float64)
    np.testing.assert_array_equal(found, weight[:, 5].astype(np.float64))
