"""A driver of Triton for a machine without a GPU: kernels are compiled or looked up, and launches do nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

from triton.backends.compiler import GPUTarget

SHARED_MEMORY = {"hip": 65536, "cuda": 232448}


class _Utils:
    def __init__(self, shared_memory: int) -> None:
        self._shared_memory = shared_memory

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024  # module, function, registers, spills, most threads of a block

    def unload_module(self, module: int) -> None: ...

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._shared_memory, "multiprocessor_count": 1, "warpSize": 32}


class _Launcher:
    def __init__(self, src: Any, metadata: Any) -> None: ...

    def __call__(self, *args: Any, **options: Any) -> None: ...


class NoGpuDriver:
    """Answers as a device of a target would: `backend:arch:lanes`, such as hip:gfx942:64 or cuda:90:32."""

    launcher_cls = _Launcher

    def __init__(self, target: str) -> None:
        backend, arch, lanes = target.split(":")
        self._target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(lanes))
        self.utils = _Utils(SHARED_MEMORY.get(backend, 65536))

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: Optional[int] = None) -> int:
        return 0

    def get_device_capability(self, device: Optional[int] = None) -> tuple[int, int]:
        arch = self._target.arch
        return divmod(arch, 10) if isinstance(arch, int) else (9, 4)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        def once(kernel_call: Callable[[], None], *, quantiles: Sequence[float] = (0.5,), **_: Any) -> list[float]:
            kernel_call()
            return [1.0] * len(quantiles)

        return once

    def get_empty_cache_for_benchmark(self) -> Any:
        return None

    def clear_cache(self, cache: Any) -> None: ...
