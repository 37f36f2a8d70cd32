"""A model's logits and tokens, on the device of a bundle, against the same model in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from kernels.tolerance import assert_close
from models.tests.decoders.reference import EXACT, logits, rounded_ops
from models.tests.random_models import Tensors, generate, opened, prompts_of
from tests.support.dtypes import BF16


def check(
    llama: Bundle, folder: Path, found: Mapping[str, object], stored: Tensors, dense: Tensors | None = None,
    lengths: Sequence[int] = (1, 5, 127), count: int = 3,
) -> None:  # fmt: skip
    """Check logits by the tolerance rule, and tokens against the exact model's, for prompts and the steps after them.

    stored: the checkpoint's tensors; dense: their values without quantisation. lengths: of prompts; one
    crosses the end of a cache block.
    """
    write_checkpoint(folder, found, stored)
    model = opened(llama, folder)
    config = model.config
    prompts = prompts_of(lengths, config.vocabulary)
    tokens, actual = generate(model, prompts, count)
    dtype = np.dtype({"float16": np.float16, "bfloat16": BF16}[config.dtype])
    exact, same = (
        np.stack([logits(ops, config, dense or stored, [*prompt, *row[:-1]])[-count:]
                  for prompt, row in zip(prompts, tokens, strict=True)])
        for ops in (EXACT, rounded_ops(dtype))
    )  # fmt: skip
    assert_close(actual, exact, same, 1e-3)
    ordered = np.sort(exact, -1)
    clear = ordered[..., -1] - ordered[..., -2] > 2 * np.abs(actual.astype(np.float64) - exact).max()
    assert clear.mean() > 0.5 and np.array_equal(tokens[clear], exact.argmax(-1)[clear])
    assert np.array_equal(tokens, actual.astype(np.float32).argmax(-1))
