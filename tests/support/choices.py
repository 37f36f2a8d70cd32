"""Configs that a call uses, and devices on which small calls use the configs of large ones."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from aot_runtime import Bundle


def with_few_units(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, num_cus: int = 2) -> None:
    """Pretend that there are few compute units, which small products fill, so that they get the tiles of large ones."""
    few = msgspec.structs.replace(bundle.device.properties, num_cus=num_cus)
    monkeypatch.setattr(type(bundle.device), "properties", property(lambda device: few))


def configs(bundle: Bundle, op: str, *tensors: Any, **more: Any) -> list[str]:
    """Return the configs of the launches that a call makes."""
    return re.findall(r"^  config \d+ '(\w+)'", bundle.explain(op, *tensors, **more), re.MULTILINE)
