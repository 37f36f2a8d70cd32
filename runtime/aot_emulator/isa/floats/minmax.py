"""Minimum, maximum and median of floats, with the instructions' handling of NaN and signed zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.state.arrays import Array

from .formats import is_signalling, quiet, quietly


def _select(a: Array, b: Array, take_a: Array, ieee: bool) -> Array:
    """Select a or b. Numbers win over NaNs; in IEEE mode, a signalling NaN wins and is quieted."""
    result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(take_a, a, b)))
    if ieee:
        result = np.where(is_signalling(a), quiet(a), np.where(is_signalling(b), quiet(b), result))
    return result


def _below(a: Array, b: Array) -> Array:
    return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def _with_care(result: Array, careful: Callable[..., Array], *operands: Array) -> Array:
    """Recompute NaN and zero results by `careful`. numpy's fast minimum and maximum are correct otherwise."""
    doubtful = np.isnan(result) | (result == 0)
    if doubtful.any():
        result[doubtful] = careful(*(operand[doubtful] for operand in np.broadcast_arrays(*operands)))
    return result


@quietly
def min_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """Compute v_min_f32, v_min_f64, v_min_f16: numbers win over NaNs, and -0 is less than +0.

    Args:
        ieee: MODE.IEEE: return a signalling NaN operand, quieted. False for gfx12's v_min_num, which has no such mode.
    """
    return _with_care(np.minimum(a, b), lambda x, y: _select(x, y, _below(x, y), ieee), a, b)


@quietly
def max_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """Compute v_max_f32, v_max_f64, v_max_f16; see `min_num`."""
    return _with_care(np.maximum(a, b), lambda x, y: _select(x, y, ~_below(x, y), ieee), a, b)


@quietly
def minimum(a: Array, b: Array) -> Array:
    """Compute v_minimum_f32 and similar (gfx12, gfx950): NaNs propagate, quieted; -0 is less than +0."""
    return _propagate(a, b, min_num(a, b, ieee=False))


@quietly
def maximum(a: Array, b: Array) -> Array:
    """Compute v_maximum_f32 and similar (gfx12, gfx950); see `minimum`."""
    return _propagate(a, b, max_num(a, b, ieee=False))


def _propagate(a: Array, b: Array, number: Array) -> Array:
    chosen = np.where(np.isnan(a), a, np.where(np.isnan(b), b, number))
    return quiet(np.where(~is_signalling(a) & is_signalling(b), b, chosen))


@quietly
def med3(a: Array, b: Array, c: Array, *, ieee: bool = True) -> Array:
    """Compute v_med3_f32 and similar: the median of three, or the minimum if any is NaN."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return _with_care(np.maximum(low, np.minimum(high, c)), lambda *three: _careful_med3(*three, ieee=ieee), a, b, c)


def _careful_med3(a: Array, b: Array, c: Array, *, ieee: bool) -> Array:
    """Compute the median as the ISA documents define it, by comparisons with the maximum; -0 equals +0."""
    largest = max_num(max_num(a, b, ieee=ieee), c, ieee=ieee)
    others = [max_num(x, y, ieee=ieee) for x, y in ((b, c), (a, c), (a, b))]
    middle = np.where(largest == a, others[0], np.where(largest == b, others[1], others[2]))
    smallest = min_num(min_num(a, b, ieee=ieee), c, ieee=ieee)
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), smallest, middle)
