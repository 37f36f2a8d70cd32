"""Minimum, maximum and median of floats, with what the instructions do about NaN and the sign of zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.state.arrays import Array

from .formats import is_signalling, quiet, quietly


def _select(a: Array, b: Array, take_a: Array, ieee: bool) -> Array:
    """a or b; a NaN loses to a number, and a signalling one wins, made quiet, in IEEE mode."""
    result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(take_a, a, b)))
    if ieee:
        result = np.where(is_signalling(a), quiet(a), np.where(is_signalling(b), quiet(b), result))
    return result


def _below(a: Array, b: Array) -> Array:
    return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def _with_care(result: Array, careful: Callable[..., Array], *operands: Array) -> Array:
    """The result, computed again by `careful` where it is NaN or zero: numpy's minimum and maximum do the rest right,
    and quickly.
    """
    doubtful = np.isnan(result) | (result == 0)
    if doubtful.any():
        result[doubtful] = careful(*(operand[doubtful] for operand in np.broadcast_arrays(*operands)))
    return result


@quietly
def min_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """v_min_f32, v_min_f64, v_min_f16: -0 is below +0; of a NaN and a number the number. `ieee` is MODE.IEEE: then a
    signalling NaN operand is the result, made quiet (gfx12's v_min_num has no such mode: pass False).
    """
    return _with_care(np.minimum(a, b), lambda x, y: _select(x, y, _below(x, y), ieee), a, b)


@quietly
def max_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """v_max_f32, v_max_f64, v_max_f16; see `min_num`."""
    return _with_care(np.maximum(a, b), lambda x, y: _select(x, y, ~_below(x, y), ieee), a, b)


@quietly
def minimum(a: Array, b: Array) -> Array:
    """v_minimum_f32 and kin (gfx12, gfx950): a NaN operand is the result, made quiet; -0 is below +0."""
    return _propagate(a, b, min_num(a, b, ieee=False))


@quietly
def maximum(a: Array, b: Array) -> Array:
    """v_maximum_f32 and kin (gfx12, gfx950); see `minimum`."""
    return _propagate(a, b, max_num(a, b, ieee=False))


def _propagate(a: Array, b: Array, number: Array) -> Array:
    chosen = np.where(np.isnan(a), a, np.where(np.isnan(b), b, number))
    return quiet(np.where(~is_signalling(a) & is_signalling(b), b, chosen))


@quietly
def med3(a: Array, b: Array, c: Array, *, ieee: bool = True) -> Array:
    """v_med3_f32 and kin: the middle of three; with a NaN among them, their minimum."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return _with_care(np.maximum(low, np.minimum(high, c)), lambda *three: _careful_med3(*three, ieee=ieee), a, b, c)


def _careful_med3(a: Array, b: Array, c: Array, *, ieee: bool) -> Array:
    """By the ISA documents' comparisons with the largest, in which zeros are equal."""
    largest = max_num(max_num(a, b, ieee=ieee), c, ieee=ieee)
    others = [max_num(x, y, ieee=ieee) for x, y in ((b, c), (a, c), (a, b))]
    middle = np.where(largest == a, others[0], np.where(largest == b, others[1], others[2]))
    smallest = min_num(min_num(a, b, ieee=ieee), c, ieee=ieee)
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), smallest, middle)
