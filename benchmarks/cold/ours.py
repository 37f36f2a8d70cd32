"""python ours.py FOLDER BUNDLE: attention through this runtime. Prints the end of each phase."""

import sys
import time

phases = {"start": time.monotonic()}
folder, bundle = sys.argv[1:]

import numpy as np  # noqa: E402

q, k, v = (np.load(f"{folder}/{name}.npy") for name in "qkv")
phases["numpy, data"] = time.monotonic()

from aot_runtime import open_bundle  # noqa: E402

phases["import"] = time.monotonic()
attention = open_bundle(bundle)
phases["open_bundle"] = time.monotonic()
out = attention.flash_attention(q, k, v, causal=True)
phases["first call"] = time.monotonic()

np.save(f"{folder}/out.npy", out)
print(phases)
