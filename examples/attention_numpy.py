"""Causal attention from a bundle: python examples/attention_numpy.py dist/attention-gfx942"""

import sys

import numpy as np

from aot_runtime import open_bundle

attention = open_bundle(*sys.argv[1:])  # by default on the first GPU that the bundle fits
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((2, 8, 300, 64)).astype(np.float16) for _ in range(3))

out = attention.flash_attention(q, k, v, causal=True)  # numpy in, numpy out

scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) * 64**-0.5
scores[..., ~np.tri(300, dtype=bool)] = -np.inf
p = np.exp(scores - scores.max(-1, keepdims=True))
expected = p / p.sum(-1, keepdims=True) @ v.astype(np.float32)
print(f"{out.dtype}{list(out.shape)}, max error {np.abs(out - expected).max():.1e}")
