"""Opening bundles: selection, checks, and loading of code objects."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import (
    ArchMismatchError,
    ArgumentError,
    Bundle,
    BundleError,
    DeviceError,
    DriverCallError,
    open_bundle,
)
from tests.support.command import aotbundle
from tests.support.forging import adopt_files, edit_index
from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double

X = np.ones((3, 5), np.float32)


@in_double()
def test_code_is_loaded_when_it_is_first_called(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, affine, again = small.device.array(X), small.affine, open_bundle(small_bundle, small.device)
    assert small.affine is affine and launches.double.calls("hipModuleLoadData") == 0
    for call, loads in (
        (lambda: small.affine(x, scale=1.0), 1),
        (lambda: (small.affine(x, scale=2.0), small.affine(x[1:], scale=2.0)), 1),
        (lambda: small.affine(small.device.array(X), x, scale=2.0), 2),
        (lambda: again.affine(x, scale=1.0), 3),  # another open bundle loads for itself
    ):
        call()
        assert launches.double.calls("hipModuleLoadData") == loads


@in_double()
def test_the_library_is_loaded_by_the_thread_that_opens(small_bundle: Path):
    """Some versions of AMD's library crash the process if another thread than the main one loads it."""
    started: list[threading.Thread] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", started.append)
        small = open_bundle(small_bundle)
    assert small.affine(X).shape == X.shape and started == []


@in_double()
def test_preload(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    double, codes = launches.double, {variant.code for variant in small.index.variants}
    assert small.preload() == len({(v.code, v.symbol, v.lds_bytes) for v in small.index.variants})
    assert double.calls("hipModuleLoadData") == double.alive("module") == len(codes)
    functions = double.calls("hipModuleGetFunction")
    small.affine(X), small.row_sums(X), small.preload()
    assert double.calls("hipModuleLoadData") == len(codes) and double.calls("hipModuleGetFunction") == functions


@in_double()
def test_a_load_that_fails_fails_again_until_it_does_not(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    double = launches.double
    for function in ("hipModuleLoadData", "hipModuleGetFunction"):
        double.fail(function, 209, 2)
        for _ in range(2):
            with pytest.raises(DriverCallError) as raised:
                small.affine(X)
            assert (raised.value.call, raised.value.code) == (function, "hipErrorNoBinaryForGpu")
            assert launches.count == 0
        if function == "hipModuleLoadData":
            assert "code/" in str(raised.value) and ".hsaco" in str(raised.value)
            assert double.alive("module") == 0
    small.affine(X)
    assert launches.count == 1 and double.alive("module") == 1


@in_double()
def test_altered_code(small_copy: Path):
    small, launches = open_over_double(small_copy)
    files = sorted((small_copy / "code").iterdir())
    images = {file: file.read_bytes() for file in files}
    for change in (lambda image: image[:-1] + bytes([image[-1] ^ 1]), lambda image: image[:-1]):
        for file, image in images.items():
            file.write_bytes(change(image))
        for _ in range(2):
            with pytest.raises(BundleError, match="was altered: its size or sha256"):
                small.affine(X)
    for file in files:
        file.unlink()
    for use in (lambda: small.affine(X), small.preload):
        with pytest.raises(BundleError, match=r"code object .*/code/[0-9a-f]+.hsaco cannot be read: No such file"):
            use()
    assert launches.count == 0 and launches.double.calls("hipModuleLoadData") == 0


@in_double()
def test_code_for_another_arch(small_copy: Path):
    """The ELF file itself says what it is for; the index may say otherwise."""
    for file in (small_copy / "code").iterdir():
        image = bytearray(file.read_bytes())
        assert image[48] == 0x4C, "e_flags of gfx942"
        image[48] = 0x4F
        file.write_bytes(image)
    adopt_files(small_copy)
    small, launches = open_over_double(small_copy)
    with pytest.raises(ArchMismatchError, match="is for gfx950, the bundle is for gfx942"):
        small.affine(X)
    assert launches.double.calls("hipModuleLoadData") == 0


def test_what_a_bundle_is(small_copy: Path):
    small = open_bundle(small_copy, "emulator")
    assert (small.name, small.version, small.arch, small.id) == ("small", None, "gfx942", small.index.id)
    edit_index(small_copy, lambda index: index.update(version="1.2.0rc1"))
    again = open_bundle(small_copy, "emulator")
    assert again.version == "1.2.0rc1" and again.id != small.id
    assert "<bundle small 1.2.0rc1 for gfx942 on emulator:0: " in repr(again)
    assert aotbundle("show", small_copy).stdout.startswith("bundle small 1.2.0rc1 for gfx942, id ")
    for version in ("1.2.0-rc1", "v1", "1.02", "1.0\n", "1" * 65):
        edit_index(small_copy, lambda index, version=version: index.update(version=version))
        with pytest.raises(BundleError, match="is not a valid bundle version"):
            open_bundle(small_copy, "emulator")


@pytest.mark.parametrize("name", ["name", "path", "load"])
def test_an_op_that_is_called_like_an_attribute_is_found_by_its_name(small_copy: Path, name: str):
    """Older bundles may have an op named like a later attribute: a property, one of the object, or a method."""

    def rename(index: dict[str, Any]) -> None:
        for record in (*index["ops"], *index["variants"], *index["selftest"]):
            key = "name" if "tensors" in record else "op"
            record[key] = name if record[key] == "affine" else record[key]

    edit_index(small_copy, rename)
    small = open_bundle(small_copy, "emulator")
    assert small[name](X, scale=2.0).shape == X.shape and small.path == small_copy and small.name == "small"
    assert small.preload() and "launch 0" in small.explain(name, X) and small.selftest(name).passed
    assert small[name] is small[name] and small["copy"] is small.copy


def test_a_bundle_opened_as_its_type(small_bundle: Path, rows_bundles: Path, tmp_path: Path):
    for bundle in (small_bundle, rows_bundles / "rows-gfx942"):
        (tmp_path / bundle.name).symlink_to(bundle)
    assert aotbundle("stubs", tmp_path, "-o", tmp_path / "types").exit_code == 0
    small_type, rows_type = (load_class(tmp_path / f"types/aot_bundles/{name}.py") for name in ("small", "rows"))
    for path in (small_bundle, tmp_path):  # of the folder's two bundles for the architecture, the one with its name
        small = open_bundle(path, "emulator:gfx942", type=small_type)
        assert isinstance(small, small_type) and isinstance(small, Bundle) and type(small).__name__ == "Small"
        assert small.affine(X, scale=1.0).shape == X.shape
    assert type(open_bundle(small_bundle, "emulator", type=Bundle)) is Bundle
    for kind, words in (
        (rows_type, "is bundle 'small', but <class '.*Rows'> is the type of bundle 'rows'"),
        (str, "type is <class 'str'>; allowed is a bundle's class"),
        (type("More", (small_type,), {"_bundle_ops": ("affine", "scale")}), "was built without scale, which"),
    ):
        with pytest.raises(ArgumentError, match=words):
            open_bundle(small_bundle, "emulator", type=kind)
    with pytest.raises(ArgumentError, match="several are for gfx942"):
        open_bundle(tmp_path, "emulator:gfx942")


def load_class(path: Path) -> Any:
    """Return the class of a module that `aotbundle stubs` wrote."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, path.stem.capitalize())


def test_a_missing_op(small_bundle: Path):
    small = open_bundle(small_bundle, "emulator")
    missing = "bundle 'small' has no op 'afine'; did you mean 'affine'"
    with pytest.raises(AttributeError, match=missing):
        _ = small.afine
    with pytest.raises(KeyError, match=missing):
        small["afine"]
    assert list(small) == list(small.ops) and "affine" in small and "afine" not in small
    assert not hasattr(small, "_affine") and "affine" in dir(small)
    assert small.ops == ("affine", "row_sums", "accumulate", "histogram", "ramp", "relay", "scale_segments", "copy")
    assert "small for gfx942 on emulator:0: affine, row_sums" in repr(small)


@in_double()
def test_the_bundle_for_the_device_is_chosen(small_copy: Path):
    dist = small_copy.parent
    other = Path(shutil.copytree(small_copy, dist / "small-gfx950"))
    edit_index(other, lambda index: index["target"].update(arch="gfx950"))
    (dist / "notes").mkdir()
    opened = open_bundle(dist)
    assert opened.path.name == "small-gfx942" and opened.affine(X).shape == (3, 5)
    assert open_bundle(dist, "hip:0").path == open_bundle(str(small_copy)).path == opened.path
    shutil.copytree(small_copy, dist / "another")
    assert open_bundle(dist).id == opened.id  # a copy makes no difference
    edit_index(dist / "another", lambda index: index.update(version="2.0"))
    with pytest.raises(ArgumentError, match=r"several are for gfx942: .*another \(version 2\.0\).*; open one"):
        open_bundle(dist)
    other = open_bundle(dist, version="==2.0")
    assert open_bundle(dist, id=other.id).path == open_bundle(dist / "another", id=other.id).path == other.path
    assert open_bundle(dist, id=opened.id).path == opened.path and other.id != opened.id
    for place in (dist, dist / "another"):
        with pytest.raises(BundleError, match=r"no bundle has id 0000000000.*: .* has id "):
            open_bundle(place, id="0" * 64)
    for malformed in (opened.id[:12], opened.id.upper(), 5):
        with pytest.raises(ArgumentError, match=r"id is .*; allowed are 64 hex digits"):
            open_bundle(dist, id=malformed)


@in_double()
def test_no_bundle(small_copy: Path):
    empty, taken = small_copy / "code/empty", small_copy / "code/taken"
    empty.mkdir()
    (taken / "bundle.json").mkdir(parents=True)
    for path, words in (
        (empty, "is not a bundle and contains none"),
        (small_copy / "nowhere", "is not a bundle: it has no bundle.json"),
        (small_copy / "bundle.json", f"is a file, not a bundle; a bundle is opened by its folder, {small_copy}"),
        (taken, "cannot be read: Is a directory"),
    ):
        with pytest.raises(BundleError) as raised:
            open_bundle(path)
        assert words in str(raised.value)


@pytest.mark.parametrize("device", ["hip:0", None])
def test_errors_of_the_index_come_before_those_of_the_device(small_copy: Path, device: str | None):
    (small_copy / "bundle.json").write_text("{}")
    with pytest.raises(BundleError, match="is not a bundle index"):
        open_bundle(small_copy, device)
    assert not issubclass(BundleError, DeviceError)
