"""Build bundles with only the variants of our products that are compared."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DTYPES = {"f16": "float16", "bf16": "bfloat16"}


def built(folder: Path, arch: str, kind: str, ops: str, sizes: Sequence[tuple[int, int, int]]) -> Path:
    """Build the bundle below a folder, for products of these sizes and of BLAS's operations, by columns."""
    innermost = {"a": 0 if ops[0] == "N" else 1, "b": 0 if ops[1] == "N" else 1}
    calls = [
        {"op": "matmul", "dims": dict(zip("mnk", size, strict=True)), "dtypes": {"T": _DTYPES[kind]},
         "innermost": innermost}
        for size in sizes
    ]  # fmt: skip
    text = json.dumps({"calls": calls})
    place = folder / hashlib.sha256(f"{arch} {text}".encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    (place / "calls.yaml").write_text(text)  # JSON is YAML
    command = [sys.executable, "-m", "aot", "--arch", arch, "--for", str(place / "calls.yaml"), "-o", str(place)]
    subprocess.run([*command, str(ROOT / "manifests/gemm.yaml")], check=True, stdout=subprocess.DEVNULL)
    return place / f"gemm-{arch}"
