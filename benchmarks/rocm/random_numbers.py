"""Generate random numbers with rocRAND on a GPU, and compare them with those of its generator for the host.

    python random_numbers.py xorwow|philox COUNT

Integers and uniform numbers are the same bits; the host computes the logarithms and sines of normal ones otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import sys

import numpy as np
from arrays import Array, Hip, Pointer, check

GENERATORS = {"xorwow": 401, "philox": 404}
DISTRIBUTIONS = {
    "integers": ("rocrand_generate", (), np.uint32),
    "uniform": ("rocrand_generate_uniform", (), np.float32),
    "normal": ("rocrand_generate_normal", (0.0, 1.0), np.float32),
}
"""Functions, their parameters, and the type of the numbers."""
TOLERANCES = {"integers": 0.0, "uniform": 0.0, "normal": 1e-5}
SEED = 2026


def generated(library: ctypes.CDLL, create: str, kind: int, name: str, target: Pointer, count: int) -> None:
    function, parameters, _ = DISTRIBUTIONS[name]
    generator = Pointer()
    check(library[create](ctypes.byref(generator), kind), create)
    check(library.rocrand_set_seed(generator, ctypes.c_ulonglong(SEED)), "rocrand_set_seed")
    given = [ctypes.c_float(value) for value in parameters]
    check(library[function](generator, target, ctypes.c_size_t(count), *given), function)
    check(library.rocrand_destroy_generator(generator), "rocrand_destroy_generator")


def difference(hip: Hip, library: ctypes.CDLL, kind: int, name: str, count: int) -> tuple[int, float]:
    """Return how many numbers differ, and by how much at most."""
    on_host, on_gpu = (np.zeros(count, DISTRIBUTIONS[name][2]) for _ in range(2))
    target = hip.empty(on_gpu.nbytes)
    generated(library, "rocrand_create_generator", kind, name, target, count)
    hip.synchronize()
    hip.read(on_gpu, target)
    generated(library, "rocrand_create_generator_host", kind, name, on_host.ctypes.data_as(Pointer), count)
    hip.synchronize()
    assert len(np.unique(on_host)) > 0.9 * count, "rocRAND's own generator for the host gives no random numbers"
    return int((on_host != on_gpu).sum()), _largest(on_host, on_gpu)


def _largest(first: Array, second: Array) -> float:
    return float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", choices=GENERATORS)
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    hip, library = Hip(), ctypes.CDLL("librocrand.so.1")
    are_right = True
    for name in DISTRIBUTIONS:
        number, largest = difference(hip, library, GENERATORS[given.generator], name, given.count)
        print(f"{given.generator}, {name}: {number} of {given.count} differ from the host's, by at most {largest:.2g}")
        are_right &= largest <= TOLERANCES[name]
    sys.exit(not are_right)


if __name__ == "__main__":
    main()
