"""Encoded values: decoded to equals, and nothing but Triton's own is made of a hostile one."""

from __future__ import annotations

import collections
import enum
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.experimental.gluon.language import BlockedLayout

from aot_capture.values import Decoder, Encoder, ValueDecodeError

encode = Encoder(lambda fn: f"id of {fn.__name__}", lambda kind: kind.__qualname__).encode
decode = Decoder(lambda name: name, lambda name: name).decode
Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Settings:
    rows: int
    of: tuple[int, ...]


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    "value",
    [None, True, 5, -(1 << 70), "é\ud800", 0.1, -0.0, float("inf"), (), (1, (2.5, "x")), [1, [None]],
     {1: "a", (2,): [3]}, tl.float16, tl.int1, BlockedLayout([1], [64], [4], [0]), math, tl.math, tl.cdiv, tl.constexpr,
     int],
    ids=repr,
)  # fmt: skip
def test_values_come_back(value: Any):
    back = through_json(value)
    assert type(back) is type(value) and str(back) == str(value) and back == value


def test_numbers_of_numpy_come_back_as_they_read():
    assert through_json(np.int64(7)) == 7 and through_json(np.float64(0.1)) == 0.1
    assert math.isnan(through_json(float("nan")))
    assert "opaque" in encode(np.float32(0.1)) or str(through_json(np.float32(0.1))) == str(np.float32(0.1))


def test_values_of_the_programs_own_classes_are_made_alike():
    assert through_json(tl.constexpr(tl.constexpr(4))).value == 4
    point = through_json(Point(1, tl.float32))
    assert (point.x, point.y) == (1, tl.float32) and str(point) == str(Point(1, tl.float32))
    assert through_json(Level.HIGH) == 3 and str(through_json(Level.HIGH)) == str(Level.HIGH)
    assert through_json(Colour.RED).value == "r" and str(through_json(Colour.RED)) == "Colour.RED"
    assert through_json(Settings(2, (3,))).of == (3,)


def test_what_would_need_the_program_is_refused_by_name():
    with pytest.raises(ValueDecodeError, match=r"a value of type builtins.object cannot be made"):
        through_json(object())
    with pytest.raises(ValueDecodeError, match=r"os.system is neither Triton's nor math's"):
        decode({"import": ["os", "system"]})


@pytest.mark.parametrize(
    "hostile",
    [
        {"import": ["builtins", "eval"]},
        {"import": ["builtins", "__import__"]},
        {"import": ["triton.runtime.cache", "os.system"]},
        {"import": ["triton.runtime.cache", "os"]},
        {"import": ["triton.runtime.build", "subprocess.check_call"]},
        {"module": "os"},
        {"module": "triton.."},
        {"module": "tritonx"},
        {"dataclass": ["triton.runtime.build", "subprocess.Popen", {"args": "true"}, {}]},
        {"dataclass": ["triton.runtime.cache", "FileCacheManager", {"key": "x"}, {}]},
        {"dataclass": ["m", "x y", {"a b": 1}, {}]},
        {"enum": ["m", "E", "A", 1, "auto"]},
        {"enum": ["triton.runtime.build", "os.system", "x", 1, "Enum"]},
        {"namedtuple": ["m", "P", ["__class__"], [1]]},
        {"namedtuple": ["m", "P", ["a"], [1, 2]]},
        {"make_function": "x"},
        {"decode": 1},
        {"float": []},
        {"dtype": "fp17"},
        {"tuple": 3},
        {"a": 1, "b": 2},
        [1],
        1.5,
    ],
    ids=str,
)  # fmt: skip
def test_hostile_values_are_refused(hostile: Any):
    with pytest.raises(ValueDecodeError):
        decode(hostile)
