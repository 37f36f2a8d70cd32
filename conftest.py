"""Options of the tests: the device for ops, samples of long lists of cases, and bundles that several suites use."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from aot_runtime.contract import records
from aot_runtime.contract.index_encoding import encode_index
from tests.rocm.packages import SUITES
from tests.rocm.session import inside_too, is_inside, run_inside
from tests.support.hip_double.double import hip_double  # noqa: F401  (a fixture)
from tests.support.hip_kernels import scale_code
from tests.support.op_bundles import DEVICES, OpBundles
from tests.support.sample_index import sample_index
from tests.support.session_builds import build_once


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--on", choices=DEVICES, default="emulator",
        help="what the tests of ops, and those over the double of libamdhip64, run on: the emulator and the double "
        "(default), AMD's own libamdhip64 over the emulated driver, or the GPU of this machine, with bundles from "
        "AOTBUILD_TEST_BUNDLES (default: dist)",
    )  # fmt: skip
    parser.addoption(
        "--rocm", choices=list(SUITES), default="6.4.3", help="the release of HIP that --on rocm fetches and runs on"
    )
    parser.addoption("--within", type=float, metavar="SECONDS", help="skip what has not begun by then")
    parser.addoption("--each", type=int, metavar="N", help="run N of each module's tests, evenly spread")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """With `--on rocm`, run the session in a process that has AMD's libraries and an emulated GPU."""
    if config.getoption("--on") != "rocm" or is_inside() or config.option.help:
        return None
    return run_inside(config.getoption("--rocm"), config.invocation_params.args)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("AOTBUILD_SHARED_CACHE", None)  # a developer's: tests have caches of their own
    if is_inside() and config.getoption("tx", None):
        config.option.tx = inside_too(config.option.tx)


_BEGAN = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    within = item.config.getoption("--within")
    if within is not None and time.monotonic() - _BEGAN > within:
        pytest.skip(f"the {within:g} s of --within are over")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection, which would traverse thousands of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        if session.testscollected > _MANY:
            with suppress(ImportError):
                importlib.import_module("hypothesis")  # which its plugin does at the end; it asks the collector then
            gc.freeze()
            gc.set_threshold(*_RARELY)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End a worker without a last garbage collection, which takes seconds while the session waits. Triton's binding
    would report the objects that this leaves, so standard error is closed."""
    if session.testscollected > _MANY and "PYTEST_XDIST_WORKER" in os.environ:
        gc.freeze()
        atexit.register(os.dup2, os.open(os.devnull, os.O_WRONLY), 2)
    else:
        gc.unfreeze()


_MANY = 1000
"""Tests that are worth it."""
_RARELY = 5000, 10, 20
"""Thresholds of the garbage collector: it takes a tenth of the time of tests by its own ones."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects what is slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _skip_other_devices(items, config.getoption("--on"))
    if config.getoption("--on") == "rocm":
        _keep(config, items, {item for item in items if _is_of_a_device(item)})
    if config.getoption("--on") != "gpu":
        _sample(items)
    if (count := config.getoption("--each")) is not None:
        _keep_of_each_module(config, items, count)


def _skip_other_devices(items: list[pytest.Item], device: str) -> None:
    """Tests marked `on(devices…)` run there only."""
    for item in items:
        marker = item.get_closest_marker("on")
        if marker is not None and device not in marker.args:
            reason = f"runs with --on {' or '.join(marker.args)}"
            item.add_marker(pytest.mark.skip(reason=reason))


def _is_of_a_device(item: pytest.Item) -> bool:
    """Tell if a test can run on different devices."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("on") is not None or "hip_double" in fixtures or "op_bundles" in fixtures


def _keep(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    """Deselect all other items."""
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _sample(items: list[pytest.Item]) -> None:
    """In a module marked `sampled(n)`, of each test's cases n run by default, evenly spread; the others are slow."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    for found in cases.values():
        marker = found[0].get_closest_marker("sampled")
        assert marker is not None
        (count,) = marker.args
        kept = _evenly_spread(found, count)
        for item in found:
            if item not in kept:
                item.add_marker(pytest.mark.slow)


def _evenly_spread(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Choose so many items, or all where there are not more."""
    if len(items) <= count:
        return items
    return [items[position * (len(items) - 1) // max(count - 1, 1)] for position in range(count)]


def _keep_of_each_module(config: pytest.Config, items: list[pytest.Item], count: int) -> None:
    """Deselect all but so many of each module's tests that would run here."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("skip"):
            modules.setdefault(item.path, []).append(item)
    _keep(config, items, {item for found in modules.values() for item in _evenly_spread(found, count)})


@pytest.fixture(scope="session")
def op_bundles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpBundles:
    """Bundles of the shipped manifests, on the device that `--on` names."""
    return OpBundles(request.config.getoption("--on"), tmp_path_factory)


@pytest.fixture(scope="session")
def sample() -> records.Index:
    """An index with some of everything; see `sample_index`."""
    return sample_index()


@pytest.fixture(scope="session")
def rows_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles of softmax (manifests/rows.yaml) for gfx942 and sm_90, built once a session. Read only."""
    blocks = "256|512|1024|2048|4096|8192"
    filters = {"gfx942": f"op=softmax,T=float16|float32,BLOCK={blocks}", "sm_90": "op=softmax,T=float16,BLOCK=512"}
    return build_once(tmp_path_factory, "manifests/rows.yaml", filters)


@pytest.fixture(scope="session")
def rows_bundle(rows_bundles: Path) -> Path:
    """The gfx942 bundle of `rows_bundles`."""
    return rows_bundles / "rows-gfx942"


@pytest.fixture(scope="session")
def maps_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for sm_90 with an op of a Gluon kernel that takes two tensor maps, built once a session. Read only."""
    folder = build_once(tmp_path_factory, "tests/support/gluon/manifest.yaml", "op=scale_columns,T=float16", "sm_90")
    return folder / "gluon-sm_90"


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gfx942 bundle of small.yaml: it has a bit of everything."""
    return build_once(tmp_path_factory, "tests/support/small/small.yaml") / "small-gfx942"


@pytest.fixture(scope="session")
def scale_image() -> bytes:
    """The code object of `scale_code` for gfx942."""
    return scale_code("gfx942")


@pytest.fixture
def sample_folder(sample: records.Index, tmp_path: Path) -> Path:
    """The sample index on its own, in a bundle's folder."""
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / records.INDEX).write_bytes(encode_index(sample))
    return tmp_path / "sample"


@pytest.fixture
def small_copy(small_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `small_bundle` that a test may damage."""
    return Path(shutil.copytree(small_bundle, tmp_path / "dist/small-gfx942"))


@pytest.fixture
def rows_copy(rows_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `rows_bundle` that a test may damage."""
    return Path(shutil.copytree(rows_bundle, tmp_path / "dist/rows-gfx942"))
