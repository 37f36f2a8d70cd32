"""The cache of torch's Inductor: kernels of the graphs in it do not pass through Triton again."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is not imported at every start of Python
if TYPE_CHECKING:
    from collections.abc import Mapping


def inductor_cache(environ: Mapping[str, str]) -> str:
    """Return the folder of Inductor's cache, as torch chooses it."""
    folder = environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder:
        return folder
    user = next((environ[name] for name in ("LOGNAME", "USER", "LNAME", "USERNAME") if environ.get(name)), None)
    if user is None:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return os.path.join(environ.get("TMPDIR") or "/tmp", f"torchinductor_{user}")


def inductor_is_warm(environ: Mapping[str, str]) -> bool:
    """Return True if Inductor's cache holds graphs: their kernels do not pass through Triton's compile() again."""
    try:
        return any(os.scandir(os.path.join(inductor_cache(environ), "fxgraph")))
    except OSError:
        return False
