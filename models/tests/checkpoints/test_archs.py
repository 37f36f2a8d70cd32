"""Layers of float8 on hardware of the other flavour, and on hardware that has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.decoder import check_ops
from aot_models.decoders.families import config_of
from aot_models.random_checkpoint import write_checkpoint
from models.tests.checkpoints.published import FORMATS
from models.tests.checkpoints.test_layers import SIZE, check
from models.tests.random_models import quantised
from tests.support.emulation.bundling import on_demand

pytestmark = [pytest.mark.on("emulator"), pytest.mark.slow]
OPS = "op=quantise|quantise_static|scaled_matmul|block_scaled_matmul"


@pytest.mark.parametrize(
    "name", ("fp8 of blocks", "fp8, static", "float-quantized by channel", "int-quantized by token")
)
@pytest.mark.parametrize("arch", ("gfx950", "gfx1201"))
def test_float8_of_ocp_is_taken_as_it_is(arch: str, name: str):
    bundle = on_demand("llama", OPS, arch)
    check(bundle, FORMATS[name], [FORMATS[name].store(np.random.default_rng(0), 144, SIZE)], 3)


def test_hardware_without_float8_is_named(tmp_path: Path):
    found, stored, _ = quantised("fp8, dynamic")
    write_checkpoint(tmp_path, found, stored)
    checkpoint = Checkpoint(tmp_path)
    config = config_of(checkpoint)
    with pytest.raises(CheckpointError, match="weights are float8, which gfx90a does not multiply"):
        check_ops(on_demand("llama", "", "gfx90a"), config, checkpoint)
