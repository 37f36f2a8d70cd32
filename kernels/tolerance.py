"""The rule by which a kernel's result passes.

A kernel may be twice as far from the exact result as an honest computation in its own dtypes is, plus a floor for
results that the latter happens to hit exactly. So the bound follows from the data, not from a hand-picked constant.
"""

import numpy as np


def assert_close(
    actual: np.ndarray, exact: np.ndarray, same_dtype: np.ndarray, floor: float, name: str = "result"
) -> None:
    """Raise AssertionError unless max |actual - exact| <= 2 max |same_dtype - exact| + floor.

    actual: the kernel's result. exact: the float64 reference. same_dtype: the reference that rounds as the kernel
    does. All of one shape, any float dtype. Where `exact` is infinite or NaN, `actual` has to be the same; anywhere
    else an infinity or a NaN fails.
    """
    actual, exact, same_dtype = (np.asarray(array, np.float64) for array in (actual, exact, same_dtype))
    if not actual.shape == exact.shape == same_dtype.shape:
        raise AssertionError(f"{name}: shape {actual.shape}, exact {exact.shape}, same dtype {same_dtype.shape}")
    finite = np.isfinite(exact)
    wrong = ~finite & ~((actual == exact) | (np.isnan(actual) & np.isnan(exact)))
    if wrong.any():
        raise AssertionError(f"{name}: {_first(wrong, actual, exact)}, {_count(wrong)}")

    error = _error(actual, exact, finite)
    reference_error = np.max(_error(same_dtype, exact, finite), initial=0.0)
    limit = 2 * reference_error + floor
    if not limit < np.inf:
        raise AssertionError(f"{name}: the same-dtype reference is itself not finite where the exact one is")
    exceeds = ~(error <= limit)  # and not error > limit, which a NaN would pass
    if exceeds.any():
        raise AssertionError(
            f"{name}: max error {np.max(error):.3e} > {limit:.3e} = 2 * {reference_error:.3e} (same dtype) + "
            f"{floor:.3e} (floor); {_first(exceeds, actual, exact)}, {_count(exceeds)}"
        )


def _error(array: np.ndarray, exact: np.ndarray, finite: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(finite, np.abs(array - exact), 0.0)


def _first(wrong: np.ndarray, actual: np.ndarray, exact: np.ndarray) -> str:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"first at {index}: {actual[index]:.6g}, exact {exact[index]:.6g}"


def _count(wrong: np.ndarray) -> str:
    return f"{np.count_nonzero(wrong)} of {wrong.size} elements"
