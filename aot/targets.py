"""The GPU architectures that code objects can be built for, and the limits of each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

Tier = Literal["primary", "supported", "experimental"]
"""`primary`: the shipped kernels are tuned for it first; the README says how far each was checked.
`supported`: Triton's own test suite covers it.
`experimental`: Triton compiles matrix products for it, and no more is claimed."""

# LDS (shared memory) that one workgroup may have, in KiB, and the tier.
# AMD: LLVM's "addressable local memory size" of each processor. NVIDIA: "maximum amount of shared memory per thread
# block" in the CUDA programming guide, the opt-in figure.
_ARCHITECTURES: dict[str, tuple[int, Tier]] = {
    "gfx908": (64, "experimental"),
    "gfx90a": (64, "supported"),
    "gfx942": (64, "primary"),
    "gfx950": (160, "supported"),
    "gfx1100": (64, "supported"),
    "gfx1101": (64, "supported"),
    "gfx1102": (64, "supported"),
    "gfx1103": (64, "experimental"),
    "gfx1150": (64, "experimental"),
    "gfx1151": (64, "experimental"),
    "gfx1152": (64, "experimental"),
    "gfx1153": (64, "experimental"),
    "gfx1200": (64, "supported"),
    "gfx1201": (64, "supported"),
    "gfx1250": (320, "experimental"),
    "sm_75": (64, "experimental"),
    "sm_80": (163, "supported"),
    "sm_86": (99, "supported"),
    "sm_87": (163, "experimental"),
    "sm_89": (99, "supported"),
    "sm_90": (227, "primary"),
    "sm_100": (227, "supported"),
    "sm_103": (227, "experimental"),
    "sm_110": (227, "experimental"),
    "sm_120": (99, "supported"),
    "sm_121": (99, "experimental"),
}


@dataclass(frozen=True)
class Target:
    """An architecture by its bare name, e.g. `gfx942` or `sm_90`. Raises ValueError for any other name."""

    arch: str

    def __post_init__(self) -> None:
        if self.arch not in _ARCHITECTURES:
            raise ValueError(_refusal(self.arch))

    @property
    def backend(self) -> Literal["hip", "cuda"]:
        return "hip" if self.arch.startswith("gfx") else "cuda"

    @property
    def warp_size(self) -> int:
        """Lanes of a wavefront or warp: 64 on gfx9, 32 elsewhere."""
        return 64 if self.arch.startswith("gfx9") else 32

    @property
    def lds_bytes(self) -> int:
        """The most LDS (shared memory) that one workgroup may use."""
        return _ARCHITECTURES[self.arch][0] * 1024

    @property
    def tier(self) -> Tier:
        return _ARCHITECTURES[self.arch][1]

    def gpu_target(self) -> GPUTarget:
        """The same architecture as Triton's compiler names it."""
        from triton.backends.compiler import GPUTarget

        arch = self.arch if self.backend == "hip" else int(self.arch.removeprefix("sm_"))
        return GPUTarget(self.backend, arch, self.warp_size)


TARGETS: tuple[Target, ...] = tuple(Target(arch) for arch in _ARCHITECTURES)


def parse_arch(text: str) -> Target:
    """The target that `text` names. Raises ValueError saying why it is refused, and listing what is allowed."""
    return Target(text.strip())


def _refusal(arch: str) -> str:
    bare = arch.split(":", 1)[0]
    if bare != arch and bare in _ARCHITECTURES:
        return f"architecture {arch!r}: feature flags are not part of the name; use {bare!r}"
    if "," in arch or ";" in arch:
        return f"architecture {arch!r}: one name at a time; allowed: {_allowed()}"
    if arch.endswith("-generic"):
        return f"architecture {arch!r}: generic targets are not compiled by Triton; allowed: {_allowed()}"
    if arch[-1:] in ("a", "f") and arch[:-1] in _ARCHITECTURES:
        return f"architecture {arch!r}: the accelerated features are always on; use {arch[:-1]!r}"
    nearest = difflib.get_close_matches(arch.lower(), _ARCHITECTURES, n=1)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return f"unknown architecture {arch!r}{hint}; allowed: {_allowed()}"


def _allowed() -> str:
    return ", ".join(_ARCHITECTURES)
