"""The code object of AITER's attention, from the public repository ROCm/aiter, kept in the user's cache."""

from __future__ import annotations

import hashlib
import urllib.request
from pathlib import Path

from tests.rocm.packages import Unavailable, cache_folder

_URL = (
    "https://raw.githubusercontent.com/ROCm/aiter/e4048607a535ace3a2b51ded31b1c8c2d45c0879/hsa/gfx942/fmha_v3_fwd/"
    "MI300/fwd_hd128_bf16_rtna.co"
)
_SHA256 = "5a82037e8a112bb47472f73e97b838779ea096a043a1fd6fa35220400e4511bc"


def attention_code(given: Path | None = None) -> Path:
    """Return the path of the code object: of a copy that is given, or in the cache. Raises `Unavailable`."""
    kept = cache_folder() / f"{_SHA256}.co"
    if given is None and kept.exists():
        return kept
    try:
        content = given.read_bytes() if given else urllib.request.urlopen(_URL, timeout=60).read()
    except OSError as error:
        raise Unavailable(f"cannot read {given or _URL}: {error}") from error
    if (digest := hashlib.sha256(content).hexdigest()) != _SHA256:
        raise Unavailable(f"{given or _URL} has the hash {digest}, not {_SHA256}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return kept
