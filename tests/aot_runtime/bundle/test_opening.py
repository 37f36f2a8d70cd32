"""Opening bundles: which one, what is checked when, and how code objects are loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArchMismatchError, ArgumentError, BundleError, DeviceError, DriverCallError, open_bundle
from aot_runtime.bundle.reading import read_blob, read_index
from tests.support.forging import adopt_files, edit_index
from tests.support.hip_double.double import DoubleLibrary
from tests.support.reference_launches import open_over_double, with_bundles

X = np.ones((3, 5), np.float32)


def over_copy(body: Callable[[str], None], **environment: object) -> Callable[..., None]:
    """A test over the double whose body gets a copy of small-gfx942 that it may damage."""

    def test(hip_double: DoubleLibrary, small_copy: Path) -> None:
        hip_double.run(body, str(small_copy), **environment)

    test.body, test.__name__, test.__doc__ = body, body.__name__, body.__doc__
    return test


# Loading.


@with_bundles()
def test_code_is_loaded_when_it_is_first_called(folder: str):
    small, launches = open_over_double(folder)
    loads = lambda: launches.double.calls("hipModuleLoadData")  # noqa: E731
    assert loads() == 0 and small.ops == ("affine", "row_sums", "accumulate", "scale_segments")
    affine = small.affine
    assert small.affine is affine and loads() == 0
    x = small.device.array(X)
    small.affine(x, scale=1.0)
    assert loads() == 1
    small.affine(x, scale=2.0), small.affine(x[1:], scale=2.0)
    assert loads() == 1
    small.affine(small.device.array(X), x, scale=2.0)
    assert loads() == 2
    again = open_bundle(small.path, small.device)
    again.affine(x, scale=1.0)
    assert loads() == 3  # another open bundle loads for itself


@with_bundles()
def test_preload(folder: str):
    small, launches = open_over_double(folder)
    double, codes = launches.double, {variant.code for variant in small.index.variants}
    assert small.preload() == len({(v.code, v.symbol, v.lds_bytes) for v in small.index.variants})
    assert double.calls("hipModuleLoadData") == double.alive("module") == len(codes)
    functions = double.calls("hipModuleGetFunction")
    small.affine(X), small.row_sums(X), small.preload()
    assert double.calls("hipModuleLoadData") == len(codes) and double.calls("hipModuleGetFunction") == functions


@with_bundles()
def test_a_load_that_fails_fails_again_until_it_does_not(folder: str):
    small, launches = open_over_double(folder)
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


@with_bundles()
def test_a_missing_op(folder: str):
    small, _ = open_over_double(folder)
    with pytest.raises(AttributeError, match="bundle 'small' has no op 'afine'; did you mean 'affine'"):
        _ = small.afine
    assert not hasattr(small, "_affine") and "affine" in dir(small)
    assert "small for gfx942 on hip:0: affine, row_sums" in repr(small)


# Damaged code objects.


@over_copy
def test_altered_code(folder: str):
    small, launches = open_over_double(Path(folder).parent)
    files = sorted(Path(folder, "code").iterdir())
    for file in files:
        image = bytearray(file.read_bytes())
        image[len(image) // 2] ^= 1
        file.write_bytes(image)
    for _ in range(2):
        with pytest.raises(BundleError, match="was altered: its size or sha256"):
            small.affine(X)
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleError, match="was altered"):
        small.affine(X)
    for file in files:
        file.unlink()
    with pytest.raises(BundleError, match=r"code object .*/code/[0-9a-f]+.hsaco cannot be read: No such file"):
        small.affine(X)
    with pytest.raises(BundleError, match="cannot be read"):
        small.preload()
    assert launches.count == 0 and launches.double.calls("hipModuleLoadData") == 0


@over_copy
def test_code_for_another_arch(folder: str):
    """The ELF file itself says what it is for, whatever the index says."""
    for file in Path(folder, "code").iterdir():
        image = bytearray(file.read_bytes())
        assert image[48] == 0x4C  # e_flags: gfx942
        image[48] = 0x4F
        file.write_bytes(image)

    adopt_files(folder)
    small, launches = open_over_double(Path(folder).parent)
    with pytest.raises(ArchMismatchError, match="is for gfx950, the bundle is for gfx942"):
        small.affine(X)
    assert launches.double.calls("hipModuleLoadData") == 0


def test_read_blob(small_copy: Path):
    index = read_index(small_copy)
    blob = next(iter(index.blobs.values()))
    assert read_blob(small_copy, blob, "gfx942")[:4] == b"\x7fELF"
    with pytest.raises(ArchMismatchError, match="is for gfx942, the bundle is for gfx90a"):
        read_blob(small_copy, blob, "gfx90a")


# Which bundle.


@with_bundles(HIP_DOUBLE_ARCH="gfx950:sramecc+:xnack-")
def test_a_bundle_for_another_arch(folder: str):
    with pytest.raises(ArchMismatchError) as raised:
        open_bundle(Path(folder) / "small-gfx942", "hip:0")
    assert "small-gfx942 is for gfx942, but hip:0 (Double of an AMD GPU) is gfx950" in str(raised.value)
    with pytest.raises(ArchMismatchError) as raised:
        open_bundle(folder, "hip:0")
    assert "has no bundle for gfx950 (hip:0); there: attention-gfx942 (gfx942), " in str(raised.value)


@over_copy
def test_the_bundle_for_the_device_is_chosen(folder: str):
    dist = Path(folder).parent
    other = Path(shutil.copytree(folder, dist / "small-gfx950"))
    edit_index(other, lambda index: index["target"].update(arch="gfx950"))
    (dist / "notes").mkdir()
    opened = open_bundle(dist)
    assert opened.path.name == "small-gfx942" and opened.affine(X).shape == (3, 5)
    assert open_bundle(dist, "hip:0").path == open_bundle(str(dist / "small-gfx942")).path == opened.path
    shutil.copytree(folder, dist / "another")
    with pytest.raises(ArgumentError, match="has several bundles for gfx942; open one of them by name; there: another"):
        open_bundle(dist)
    assert open_bundle(dist / "another").index.id == opened.index.id


@over_copy
def test_no_bundle(folder: str):
    dist = Path(folder).parent
    empty = dist / "empty"
    empty.mkdir()
    for path, words in (
        (empty, "has no bundle for gfx942 (hip:0); there: none"),
        (dist / "nowhere", "is no bundle: it has no bundle.json"),
        (Path(folder) / "bundle.json", "cannot be read: Not a directory"),
    ):
        with pytest.raises(BundleError) as raised:
            open_bundle(path)
        assert words in str(raised.value)
    (empty / "bundle.json").mkdir()
    with pytest.raises(BundleError, match="cannot be read: Is a directory"):
        open_bundle(empty)


def test_no_gpu(hip_double: DoubleLibrary, bundles: Path, tmp_path: Path):
    """Bundles open where there is a GPU of their kind; elsewhere the error says what is missing."""
    script = f"""
import sys
from aot_runtime import DeviceError, open_bundle
for path in ({str(bundles / "small-gfx942")!r}, {str(bundles)!r}):
    try: open_bundle(path)
    except DeviceError as error: print(error)
"""
    empty = hip_double.run(script, HIP_DOUBLE_DEVICES=0)
    assert empty.count("there is no usable GPU\n  hip: the driver is installed and sees no GPU\n  cuda: ") == 2
    missing = hip_double.run(script, ROCM_PATH=tmp_path, LD_LIBRARY_PATH=tmp_path)
    assert missing.count("AMD GPUs need ROCm's HIP runtime") == 2
    without = hip_double.run("import sys; sys.modules['hip'] = None\n" + script)
    assert without.count("AMD GPUs need hip-python, which cannot be imported") == 2


# The index.


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda index: index.update(oldest_reader=2),
         "needs a reader of format 2; this one reads up to 1: install a newer"),
        (lambda index: index.update(oldest_reader=None), "is not a bundle index"),
        (lambda index: index.pop("variants"), "missing required field `variants`"),
        (lambda index: index["ops"].append(index["ops"][0]), "an op is there twice"),
        (lambda index: index["variants"][0].update(op="nothing"),
         "points at an op, launch or code object that is not there"),
        (lambda index: index["variants"][0].update(launch=7), "points at an op, launch or code object"),
        (lambda index: index["variants"][0].update(launch=-1), "points at an op, launch or code object"),
        (lambda index: index["variants"][0].update(code="f" * 16), "points at an op, launch or code object"),
        (lambda index: index["variants"][0].update(config=9), "is not on the op's axes"),
        (lambda index: index["variants"][0]["axis_values"].pop("T"), "is not on the op's axes"),
        (lambda index: index["variants"][0].update(num_warps=65),
         "launch parameters of 'affine_rows' are out of range"),
        (lambda index: index["variants"][0].update(num_warps=0), "out of range"),
        (lambda index: index["variants"][0].update(warp_size=16), "out of range"),
        (lambda index: index["variants"][0].update(lds_bytes=-1), "out of range"),
        (lambda index: index["variants"][0].update(cooperative=True), "needs a cooperative launch"),
        (lambda index: index["variants"][0].update(kernarg_bytes=8), "kernargs of 'affine_rows' need "),
        (lambda index: index["variants"][0].update(kernarg_bytes=1 << 20), "the segment has 1048576"),
        (lambda index: index["variants"][0]["kernargs"][1].update(offset=4), "overlaps another"),
        (lambda index: index["variants"][0]["kernargs"][0].update(offset=-8), "overlaps another"),
        (lambda index: index["variants"][0]["kernargs"][0].update(size=4), "is '*float16' of 4 bytes"),
        (lambda index: index["variants"][0]["kernargs"][0].update(type=""), "is '' of 8 bytes"),
        (lambda index: index["variants"][0]["kernargs"][0].update(type="i33"), "is 'i33' of 8 bytes"),
        (lambda index: index["variants"][0]["kernargs"][0].update(type="i32"), "is 'i32' of 8 bytes"),
        (lambda index: index["variants"][0]["kernargs"][0].update(value="y"), "points at 'y'"),
        (lambda index: index["variants"][0]["kernargs"][0].update(value=""), "points at ''"),
        (lambda index: index["variants"][0]["kernargs"][0].update(value="x.ptr or __import__('os')"), "points at "),
        (lambda index: index["ops"][0].update(name="load"), "an op cannot be called 'load'"),
    ],
)  # fmt: skip
def test_an_index_that_is_not_sound(small_copy: Path, edit: Callable[[dict[str, Any]], Any], words: str):
    edit_index(small_copy, edit)
    with pytest.raises(BundleError) as raised:
        read_index(small_copy)
    assert words in str(raised.value) and str(small_copy / "bundle.json") in str(raised.value)


@pytest.mark.parametrize(
    "file",
    ["../../secret.hsaco", "/etc/passwd", "code/../../x.hsaco", "code/x.hsaco", "code/0123456789abcdef.so",
     "code//etc.cubin",
     "code/0123456789abcdef.hsaco\n", "CODE/0123456789abcdef.hsaco", "code/0123456789abcdef.hsaco/../../x", ""],
)  # fmt: skip
def test_files_of_a_bundle_stay_in_it(small_copy: Path, file: str):
    edit_index(small_copy, lambda index: next(iter(index["blobs"].values())).update(file=file))
    with pytest.raises(BundleError, match=r"code/<hash>\.hsaco or \.cubin is allowed"):
        read_index(small_copy)


def test_an_altered_id(small_copy: Path):
    path = small_copy / "bundle.json"
    text = path.read_text()
    given = json.loads(text)["id"]
    path.write_text(text.replace(given, "f" * 64))
    with pytest.raises(BundleError, match=f"the index says id {'f' * 12}, but its content has {given[:12]}: altered"):
        read_index(small_copy)
    path.write_text(text.replace('"doc": "Sum', '"doc": "sum'))
    with pytest.raises(BundleError, match=f"says id {given[:12]}, but its content has .*: altered"):
        read_index(small_copy)


def test_fields_of_a_later_format_are_ignored(small_copy: Path):
    before = read_index(small_copy)

    def extend(index: dict[str, Any]) -> None:
        index["format"] = 7
        index["signature"] = {"by": "nobody"}
        index["ops"][0]["colour"] = "red"
        index["ops"][0]["tensors"][0]["shape"][0]["unit"] = "m"
        index["variants"][0]["resources"]["watts"] = 3

    edit_index(small_copy, extend)
    after = read_index(small_copy)
    assert (after.ops, after.variants, after.blobs) == (before.ops, before.variants, before.blobs)


def test_an_index_that_is_too_large(small_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aot_runtime.bundle.reading.MAX_INDEX_BYTES", 1000)
    with pytest.raises(BundleError, match="is over 1000 bytes: not a bundle index"):
        read_index(small_copy)


@pytest.mark.parametrize("device", ["hip:0", None])
def test_errors_of_the_index_come_before_those_of_the_device(small_copy: Path, device: str | None):
    (small_copy / "bundle.json").write_text("{}")
    with pytest.raises(BundleError, match="is not a bundle index"):
        open_bundle(small_copy, device)
    assert not issubclass(BundleError, DeviceError)
