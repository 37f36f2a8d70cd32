"""python triton_jit.py FOLDER KERNEL GRID SETTINGS: the same kernel through Triton's JIT, on torch tensors.

KERNEL is its file; SETTINGS is a Python dict of constexprs and launch options.
"""

import sys
import time

phases = {"start": time.monotonic()}
folder, kernel_path, grid, settings = sys.argv[1:]

import numpy as np  # noqa: E402

arrays = [np.load(f"{folder}/{name}.npy") for name in "qkv"]
phases["numpy, data"] = time.monotonic()

import ast  # noqa: E402
import importlib.util  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

sys.path.insert(0, str(Path(kernel_path).parents[2]))  # the kernel imports others
spec = importlib.util.spec_from_file_location("attention_kernel", kernel_path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
phases["import torch, triton"] = time.monotonic()

q, k, v = (torch.from_numpy(array).cuda() for array in arrays)
out = torch.empty_like(q)
phases["context, copies"] = time.monotonic()

heads, seqlen, head_dim = q.shape[1:]
launch_grid = tuple(map(int, grid.split(",")))
whole = [module.Heads(tensor, *tensor.stride()) for tensor in (q, k, v, out)]
module.attention_forward[launch_grid](
    *whole, module.Extents(heads, heads, seqlen, seqlen, head_dim, head_dim), module.Work(launch_grid[0]),
    head_dim**-0.5, lse=module.HeadRows(None, 0, 0, 0), window=module.Window(), score_mod=module.Closure(None, ()),
    mask_mod=module.Closure(None, ()), **ast.literal_eval(settings),
)  # fmt: skip
result = out.cpu().numpy()
phases["first call"] = time.monotonic()

np.save(f"{folder}/out.npy", result)
print(phases)
