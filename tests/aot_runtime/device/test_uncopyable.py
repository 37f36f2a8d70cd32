"""Objects that own device resources cannot be copied or pickled."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import Bundle, get_device
from tests.support.hip_double.double import Double, in_double
from tests.support.reference_launches import open_over_double

X = np.ones((3, 5), np.float32)


@in_double()
def test_handles_are_neither_copied_nor_pickled():
    double, device = Double(), get_device("hip:0")
    array, stream = device.array(X), device.stream()
    events = double.alive("event")
    things = (array, array[1:], stream, stream.record())
    for thing in things:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"a {type(thing).__name__} cannot be copied or pickled: it belongs"):
                attempt(thing)
    with pytest.raises(TypeError, match=r"copy its content with x\.numpy\(\)"):
        copy.deepcopy({"weights": [array]})
    assert (array.numpy() == X).all()
    del array, stream, things, thing
    gc.collect()
    assert (double.alive("stream"), double.alive("event")) == (0, events)


@in_double()
def test_a_device_is_its_own_copy():
    device = get_device("hip:0")
    assert copy.copy(device) is copy.deepcopy([device])[0] is device
    with pytest.raises(TypeError, match=r"a Device cannot be copied .*; pass its name on, as in get_device\('hip:0'\)"):
        pickle.dumps(device)


@in_double()
def test_a_bundle_is_its_own_copy(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    assert copy.copy(small) is copy.deepcopy((small,))[0] is small
    with pytest.raises(TypeError, match=r"a Bundle cannot be copied .*; open it again from its path"):
        pickle.dumps(small)
    small.affine(X)
    assert launches.count == 1


def test_a_bundle_that_is_not_open_has_no_attribute():
    """Copying and unpickling look for an object's methods before it is initialised."""
    with pytest.raises(AttributeError, match="has no 'affine'"):
        _ = Bundle.__new__(Bundle).affine
