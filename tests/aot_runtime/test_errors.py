"""Errors keep their attributes across processes."""

from __future__ import annotations

import copy
import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import aot_emulator.errors
from aot_emulator.errors import EmulationError, MemoryAccessError, SanitizerError, Thread
from aot_runtime import errors
from aot_runtime.errors import AotError, DriverCallError

CLASSES = sorted(
    {
        kind
        for module in (errors, aot_emulator.errors)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, AotError)
    },
    key=lambda kind: kind.__name__,
)


def example(kind: type[AotError]) -> AotError:
    """Make an error of a class, with something in each attribute."""
    thread = Thread((1, 2, 3), 4, 5)
    if issubclass(kind, DriverCallError):
        return kind("hipMalloc", 2, "hipErrorOutOfMemory", "out of memory")
    if issubclass(kind, MemoryAccessError):
        error = kind("no allocation there", 0x1234, 8)
        error.member = (0, 63)
    elif issubclass(kind, SanitizerError):
        error = kind("race", "written twice", thread)
        error.address, error.nbytes = 16, 4
    else:
        error = kind("what happened")
    if isinstance(error, EmulationError):
        error.thread = thread
        error.locate("softmax_rows", 64, "v_add_f32", "v_add_f32_e32 v0, v1, v2", "0123456789abcdef")
    return error


def raise_it(kind: type[AotError]) -> None:
    raise example(kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_pickled_and_copied_with_its_attributes(kind: type[AotError]):
    error = example(kind)
    error.add_note("seen in a test") if hasattr(error, "add_note") else None
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(found) is kind and found is not error
        assert (str(found), found.args, found.__dict__) == (str(error), error.args, error.__dict__)


def test_an_error_whose_text_was_changed():
    error = example(errors.DeviceMemoryError)
    error.args = (f"{error} (code object x)",)
    assert str(pickle.loads(pickle.dumps(error))).endswith("(code object x)")


def test_errors_cross_processes():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for kind in (errors.DeviceMemoryError, MemoryAccessError, SanitizerError, errors.NoVariantError):
            with pytest.raises(kind) as raised:
                pool.submit(raise_it, kind).result()
            assert str(raised.value) == str(example(kind))
