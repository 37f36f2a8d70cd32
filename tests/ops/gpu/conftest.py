"""Tests on a real GPU: they open bundles that were built for it, here or elsewhere.

`AOTBUILD_TEST_BUNDLES` names the folder of bundles (default: `dist`). Build them with
`aotbuild --arch <arch> manifests/*.yaml`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aot_runtime import Bundle, Device, get_device, open_bundle
from aot_runtime.errors import DeviceError


@pytest.fixture(scope="session")
def device() -> Device:
    try:
        return get_device()
    except DeviceError as error:
        pytest.skip(f"no GPU: {str(error).splitlines()[0]}")


def open_for(device: Device, name: str) -> Bundle:
    folder = Path(os.environ.get("AOTBUILD_TEST_BUNDLES", "dist")) / f"{name}-{device.arch}"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: aotbuild --arch {device.arch} manifests/{name}.yaml -o {folder.parent}")
    return open_bundle(folder, device)


@pytest.fixture(scope="session")
def attention(device: Device) -> Bundle:
    return open_for(device, "attention")


@pytest.fixture(scope="session")
def attention_mods(device: Device) -> Bundle:
    return open_for(device, "attention_mods")


@pytest.fixture(scope="session")
def attention_quantised(device: Device) -> Bundle:
    return open_for(device, "attention_quantised")


@pytest.fixture(scope="session")
def decode(device: Device) -> Bundle:
    return open_for(device, "decode")


@pytest.fixture(scope="session")
def gemm(device: Device) -> Bundle:
    return open_for(device, "gemm")


@pytest.fixture(scope="session")
def llama(device: Device) -> Bundle:
    return open_for(device, "llama")


@pytest.fixture(scope="session")
def memory(device: Device) -> Bundle:
    return open_for(device, "memory")


@pytest.fixture(scope="session")
def rows(device: Device) -> Bundle:
    return open_for(device, "rows")
