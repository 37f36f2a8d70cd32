"""Bounds on reading a bundle: the files, their sizes, and the work that an image can cause."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.verification import MAX_FAULTS, verify_bundle
from aot_runtime import BundleError, open_bundle
from aot_runtime.bundle import files, reading
from aot_runtime.bundle.codeobject import read_code_object, read_loaded_image
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_checked, read_index
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.records import Blob
from tests.support.forging import adopt_files, edit_index
from tests.support.made_elf import FUNC, KERNEL, NOTE, STRTAB, MadeElf, hsaco, metadata_note
from tests.support.sample_index import sample_index

KEY, OTHER_KEY = (hashlib.sha256(content).hexdigest()[:16] for content in (b"first", b"second"))
CODE, OTHER_CODE = f"code/{KEY}.hsaco", f"code/{OTHER_KEY}.hsaco"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return the sample's index with files in place of its code objects and vectors."""
    folder = tmp_path / "sample-gfx942"
    for name, content in (
        (f"code/{'a' * 16}.hsaco", "first"), (f"code/{'b' * 16}.hsaco", "second"),
        (f"selftest/{'c' * 16}.npz", "vectors"), ("include/sample.h", sample_index().id),
        ("stubs/sample.pyi", sample_index().id),
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "bundle.json").write_bytes(encode_index(sample_index()))
    adopt_files(folder)
    return folder


def code_of(folder: Path) -> bytes:
    return read_checked(folder, read_index(folder).blobs[KEY], "code object")


def test_the_bundle_as_it_is(bundle: Path):
    assert code_of(bundle) == b"first"


# Files.


def link_to_outside(path: Path) -> None:
    outside = path.parents[2] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def link_folder(path: Path) -> None:
    shutil.move(path.parent, path.parents[2] / "elsewhere")
    path.parent.symlink_to(path.parents[2] / "elsewhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


REPLACEMENTS = [
    (link_to_outside, "is a symbolic link"),
    (link_folder, "'code' is a symbolic link"),
    (fifo, "is not a regular file"),
    (unix_socket, "is not a regular file"),
]


@pytest.mark.parametrize("system", ["posix", "windows"])
@pytest.mark.parametrize(("replace", "words"), REPLACEMENTS)
def test_a_code_object_is_a_regular_file_of_the_bundle(
    bundle: Path, replace: Callable[[Path], None], words: str, system: str, monkeypatch: pytest.MonkeyPatch
):
    """Opening a FIFO would wait for its writer, and a link leads out of the bundle. Windows opens no folders."""
    if system == "windows":
        monkeypatch.setattr(files, "_HAS_FOLDERS", False)
        monkeypatch.setattr(files, "_FLAGS", 0)
    assert code_of(bundle) == b"first"
    replace(bundle / CODE)
    with pytest.raises(BundleError, match=f"code object .*{CODE} cannot be read: .*{words}"):
        code_of(bundle)
    assert any(words in fault for fault in verify_bundle(bundle))


@pytest.mark.parametrize("replace", [link_to_outside, fifo])
def test_so_is_the_index(bundle: Path, replace: Callable[[Path], None]):
    replace(bundle / "bundle.json")
    for read in (read_index, open_bundle):
        with pytest.raises(BundleError, match=r"bundle\.json cannot be read: 'bundle\.json' is"):
            read(bundle)


def test_the_folder_itself_may_be_reached_through_a_link(bundle: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(bundle)
    assert code_of(tmp_path / "link") == code_of(bundle)


def test_no_more_is_read_than_was_asked_for(bundle: Path):
    file = bundle / CODE
    with file.open("r+b") as opened:
        opened.truncate(1 << 35)  # takes no room: a hole
    assert len(source_of(bundle).read(CODE, 10)) == 11
    with pytest.raises(BundleError, match="was altered"):
        code_of(bundle)


@pytest.mark.parametrize("name", ["../outside", "code/../../outside", "code//x", "", ".", "/etc/passwd"])
def test_paths_stay_in_the_bundle(bundle: Path, name: str):
    (bundle.parent / "outside").write_text("x")
    with pytest.raises(OSError, match="not a path in the bundle"):
        source_of(bundle).read(name, 10)


def test_a_long_index(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "MAX_INDEX_BYTES", 100)
    with pytest.raises(BundleError, match="is over 100 bytes: not a bundle index"):
        read_index(bundle)


def blob(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["blobs"][KEY].update(fields)


def more_blobs(count: int) -> dict[str, dict[str, Any]]:
    """Return code objects of the largest size; compressed, all of them may be a file of some kilobytes."""
    hashes = [f"{number:016x}{'0' * 48}" for number in range(count)]
    return {sha[:16]: {"file": f"code/{sha[:16]}.hsaco", "size": 1 << 28, "sha256": sha} for sha in hashes}


def variant(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["variants"][0].update(fields)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (blob(size=1 << 40), f"code object '{KEY}' has 1099511627776 bytes; 0 to 268435456 are allowed"),
        (blob(size=-1), "has -1 bytes"),
        (lambda index: index["blobs"].update(more_blobs(17)), "bytes together; 4294967296 are allowed"),
        (variant(global_scratch={"bytes": -1}), "scratch memory of 'reduce_rows' is out of range: Scratch"),
        (variant(profile_scratch={"bytes": 1 << 40}), "scratch memory of 'reduce_rows' is out of range"),
        (variant(global_scratch={"bytes": 8, "alignment": 0}), "scratch memory of 'reduce_rows' is out of range"),
        (variant(lds_bytes=-8), "launch parameters of 'reduce_rows' are out of range"),
        (variant(kernarg_bytes=-8), "the segment has -8"),
        (variant(num_warps=10**30), "Expected `int` <= 9223372036854775807"),
        (lambda index: index.update(name="../../etc/x"), "'../../etc/x' is not a valid bundle name"),
        (lambda index: index["ops"][1]["tensors"][1].update(shape=[{"extent": f"n{i}"} for i in range(65)]),
         "a tensor has at most 64 dims, not 65"),
        (lambda index: index["ops"][0]["tensors"][0].update(name="x" * 257), "is not a valid name"),
    ],
)  # fmt: skip
def test_sizes_are_in_range(bundle: Path, edit: Callable[[dict[str, Any]], None], words: str):
    edit_index(bundle, edit)
    with pytest.raises(BundleError) as raised:
        read_index(bundle)
    assert words in str(raised.value)


# verify


def faults_of(bundle: Path, words: str) -> list[str]:
    return [fault for fault in verify_bundle(bundle) if words in fault]


@pytest.mark.parametrize("name", ["", "code", CODE, "bundle.json", "include/sample.h"])
def test_verify_tells_what_anyone_may_write_to(bundle: Path, name: str):
    assert faults_of(bundle, "writable") == []
    path = bundle / name
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert faults_of(bundle, "writable") == [f"{name or bundle} is writable by every user: chmod o-w"]


def test_verify_lists_no_folder_through_a_link(bundle: Path, tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/secret_of_mine").write_text("x")
    shutil.rmtree(bundle / "selftest")
    (bundle / "selftest").symlink_to(tmp_path / "home")
    faults = verify_bundle(bundle)
    assert any("'selftest' is a symbolic link" in fault for fault in faults)
    assert not any("secret" in fault for fault in faults)


def test_verify_reads_the_header_through_no_link(bundle: Path):
    link_to_outside(bundle / "include/sample.h")
    assert len(faults_of(bundle, "include/sample.h cannot be read: 'sample.h' is a symbolic link")) == 1


def test_verify_ends_where_there_are_many_faults(bundle: Path):
    for number in range(2 * MAX_FAULTS):
        (bundle / f"code/{number}").touch()
    faults = verify_bundle(bundle)
    assert len(faults) == MAX_FAULTS + 1 and faults[-1] == "more faults are not listed"


# Images.


def with_segments(*segments: tuple[int, ...]) -> bytes:
    elf = MadeElf()
    elf.symbols([], b"\0")
    for segment in segments:
        elf.segment(*segment)
    return elf.image()


def overlapping_sections() -> bytes:
    elf = MadeElf()
    at = elf.put(bytes(4096))
    for _ in range(1000):
        elf.section(0, NOTE, at, 4096)
    return elf.image()


def overlapping_names(length: int, count: int) -> bytes:
    """Return symbols that all have the one long name of a table without an end."""
    elf = MadeElf()
    elf.symbols([(0, FUNC, 0, 0, 0)] * count, b"x" * length)
    return elf.image()


def overlapping_section_names() -> bytes:
    elf = MadeElf()
    name = elf.name("x" * 4000)
    for _ in range(5000):
        elf.section(name, STRTAB, 0, 0)
    return elf.image()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (with_segments(*[(0, 1 << 20)] * 60_000), "a code object has 60000 segments; at most 64 are loaded"),
        (with_segments((0, 4096), (2048, 4096)), "segment of a code object at 0x800 has"),
        (with_segments((4096, 64), (0, 64)), "segment of a code object at 0x0 has"),
        (with_segments((0, 400, 0, 400), (400, 400, 0, 400)), "segments of a code object overlap: 800 bytes of "),
        (with_segments((0, 1 << 29)), "segment of a code object at 0x0 has 0 of 536870912 bytes"),
        (overlapping_sections(), "sections of a code object overlap"),
        (overlapping_names(5000, 1), "a name in a code object has over 4096 bytes"),
        (overlapping_names(4096, 12_000), "or all together have over 16777216"),
        (overlapping_section_names(), "or all together have over 16777216"),
    ],
    ids=range(9),
)
def test_an_image_is_bounded_as_a_whole(image: bytes, words: str):
    with pytest.raises(BundleError, match=words):
        read_loaded_image(image)


def test_segments_as_they_should_be():
    loaded = read_loaded_image(with_segments((0, 64, 0, 64), (4096, 128, 64, 0)))
    assert [(s.address, s.size, len(s.data)) for s in loaded.segments] == [(0, 64, 64), (4096, 128, 0)]


def argument(**fields: int) -> dict[str, Any]:
    return {".args": [KERNEL[".args"][0] | {f".{name}": value for name, value in fields.items()}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({".private_segment_fixed_size": 1 << 31}, ".private_segment_fixed_size of a code object is out of range"),
        ({".group_segment_fixed_size": 1 << 31}, ".group_segment_fixed_size of a code object is out of range"),
        ({".kernarg_segment_size": 1 << 31}, ".kernarg_segment_size of a code object is out of range"),
        ({".private_segment_fixed_size": -1}, "is out of range: -1"),
        (argument(offset=4), "an argument of a code object ends at 12 of 8 kernarg bytes"),
        (argument(size=1 << 30), "an argument of a code object ends at 1073741824 of 8 kernarg bytes"),
    ],
)
def test_what_a_kernel_takes_is_in_range(change: dict[str, Any], words: str):
    assert read_code_object(hsaco(KERNEL)).kernel("scale").kernarg_bytes == 8
    with pytest.raises(BundleError, match=words):
        read_code_object(hsaco(KERNEL | change))


def test_a_kernel_is_there_once():
    with pytest.raises(BundleError, match="code object has kernel 'scale' twice"):
        read_code_object(hsaco(KERNEL, KERNEL))


def test_deep_metadata():
    """A list nested 1020 deep can be decoded, but its text would take more of Python's stack than there is."""
    deep = b"\x91" * 1020 + b"\xc0"
    note = metadata_note(b"\x81\xae" + b"amdhsa.kernels" + b"\x91" + deep)
    with pytest.raises(BundleError, match=r"is not MessagePack: maximum recursion depth|expected, .* found"):
        read_code_object(hsaco(note=note))


def test_a_missing_kernel_of_many():
    image = hsaco(*(KERNEL | {".name": f"kernel_{number}"} for number in range(1000)))
    with pytest.raises(BundleError, match=r"no kernel 'x'; it has: kernel_0, .*, …$") as raised:
        read_code_object(image).kernel("x")
    assert len(str(raised.value)) < 200


def test_blobs_are_read_to_their_size(tmp_path: Path):
    """The size comes from the index; what the file says of itself allocates nothing."""
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(BundleError, match="was altered"):
        read_checked(tmp_path, Blob("x", 1 << 60, "0" * 64), "code object")
