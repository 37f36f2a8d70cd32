"""The GPU architectures that code objects can be built for, as the builder and Triton name them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot_runtime.contract.arch import ARCHITECTURES, HIP, Architecture, Tier
from aot_runtime.contract.gpu_names import GPU_NAMES, arch_of

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget


@dataclass(frozen=True)
class Target:
    """An architecture by its bare name, e.g. `gfx942` or `sm_90`. Raises ValueError for any other name."""

    arch: str

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise ValueError(_refusal(self.arch))

    @property
    def row(self) -> Architecture:
        """The architecture's row."""
        return ARCHITECTURES[self.arch]

    @property
    def backend(self) -> str:
        return self.row.backend

    @property
    def warp_size(self) -> int:
        """Lanes of a wavefront or warp."""
        return self.row.warp_size

    @property
    def lds_bytes(self) -> int:
        """The most LDS (shared memory) that one workgroup may use."""
        return self.row.lds_bytes

    @property
    def tier(self) -> Tier:
        return self.row.tier

    def gpu_target(self) -> GPUTarget:
        """The same architecture as Triton's compiler names it."""
        from triton.backends.compiler import GPUTarget

        arch = self.arch if self.backend == HIP.name else int(self.arch.removeprefix("sm_"))
        return GPUTarget(self.backend, arch, self.warp_size)


TARGETS: tuple[Target, ...] = tuple(Target(arch) for arch in ARCHITECTURES)


def parse_arch(text: str) -> Target:
    """Return the target that `text` names: an architecture, or a GPU (`MI300X`, `RX 7900 XTX`).

    Raises ValueError, with the reason and the allowed names.
    """
    return Target(arch_of(text.strip()))


def _refusal(arch: str) -> str:
    bare = arch.split(":", 1)[0]
    if bare != arch and bare in ARCHITECTURES:
        return f"architecture {arch!r}: feature flags are not part of the name; use {bare!r}"
    if arch.endswith("-generic"):
        return f"architecture {arch!r}: Triton does not compile for generic targets; allowed: {_allowed()}"
    if arch[-1:] in ("a", "f") and arch[:-1] in ARCHITECTURES:
        return f"architecture {arch!r}: the accelerated features are always on; use {arch[:-1]!r}"
    known = [*ARCHITECTURES, *GPU_NAMES]
    longer = [name for name in known if name.startswith(arch.lower())] if len(arch) > len("gfx") else []
    nearest = longer or difflib.get_close_matches(arch.lower(), known, n=1)
    hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return f"unknown architecture {arch!r}{hint}; allowed: {_allowed()}"


def _allowed() -> str:
    return f"{', '.join(ARCHITECTURES)}, and GPUs by name (--list-archs)"
