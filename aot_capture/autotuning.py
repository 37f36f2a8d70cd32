"""Autotuners' results from the cache, without TRITON_CACHE_AUTOTUNING: also for configs with a `pre_hook`.

Triton looks a result up only if the variable is set when the autotuner is made, and never for configs with a pre_hook,
which a file cannot hold. A result is a file in Triton's format; its configs are matched with the program's own.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, Optional


def load_results(module: Any) -> None:
    """Let the class `Autotuner` of a module look up its results in the cache before it measures."""
    autotuner = module.Autotuner
    make, check = autotuner.__init__, autotuner.check_disk_cache

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._caches_itself = self.cache_results
        self.cache_results = not module.knobs.runtime.interpret

    @functools.wraps(check)
    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        timings = _stored_timings(self.fn, tuning_key, configs)
        if timings is not None:
            self.cache[tuning_key] = min(timings, key=timings.__getitem__)
            self.configs_timings = timings
            return True
        if getattr(self, "_caches_itself", False):
            return bool(check(self, tuning_key, configs, bench_fn))
        bench_fn()
        return False

    autotuner.__init__, autotuner.check_disk_cache = __init__, check_disk_cache


def _stored_timings(fn: Any, tuning_key: Any, configs: Any) -> Optional[dict[Any, Any]]:
    """Return the stored times of those configs; None if there are none, or the file is damaged."""
    from triton.runtime.cache import get_cache_manager
    from triton.runtime.jit import JITFunction

    while not isinstance(fn, JITFunction):
        fn = fn.fn
    path = get_cache_manager(result_hash(fn, tuning_key, configs)).get_file(f"{fn.__name__[:150]}.autotune.json")
    if path is None:
        return None
    from triton.runtime.autotuner import Config

    try:
        with open(path, encoding="utf-8") as file:
            stored = {str(Config(**config)): times for config, times in json.load(file)["configs_timings"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    timings = {config: stored[str(config)] for config in configs if str(config) in stored}
    return timings or None


def result_hash(fn: Any, tuning_key: Any, configs: Any) -> str:
    """Return the hash under which Triton stores an autotuner's result for the current device."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.driver import driver

    from .installation import triton_key

    parts = [
        triton_key(),
        make_backend(driver.active.get_current_target()).hash(),
        fn.cache_key,
        str(sorted(get_cache_invalidating_env_vars().items())),
        str(tuning_key),
        *map(str, configs),
    ]
    return hashlib.sha256("-".join(parts).encode()).hexdigest()
