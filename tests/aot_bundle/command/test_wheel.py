"""`aotbundle wheel`: bundles installed by pip and opened by name."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

import aot_runtime
from aot_bundle.packing import merge_bundles, pack_bundle
from aot_bundle.trust.signing import sign_bundle
from aot_runtime import (
    ArchMismatchError,
    ArgumentError,
    BundleError,
    TrustError,
    VersionMismatchError,
    open_bundle,
)
from aot_runtime.bundle import archive
from aot_runtime.contract.index_file import FIRST_READERS, FORMAT_VERSION, OLDEST_FORMAT
from aot_runtime.contract.versions import version_key
from aot_runtime.installed import GROUP, Installed, installed_bundles
from aot_runtime.trust.keys import SigningKey, generate_key
from aot_runtime.trust.policy import TrustedKey, TrustPolicy
from tests.support.command import aotbundle
from tests.support.forging import edit_index
from tests.support.signing import WHEN
from tests.support.wheels import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path / "site", monkeypatch)


def versioned(folder: Path, version: str) -> Path:
    edit_index(folder, lambda index: index.update(version=version))
    return folder


def test_what_is_in_a_wheel(rows_bundles: Path, tmp_path: Path):
    """Names, tags and the hashes of all files follow the rules of wheels; a folder and its one file give the same
    bytes."""
    pack_bundle(rows_bundles / "rows-sm_90", tmp_path / "rows.aotb")
    result = aotbundle("wheel", tmp_path / "rows.aotb", "-o", tmp_path / "one", "--license", "MIT OR Apache-2.0")
    wheel = tmp_path / "one/aotbundle_rows_sm_90-0.1.0-py3-none-any.whl"
    assert result.exit_code == 0 and result.stdout.startswith(f"{wheel}: "), result.output
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version), [*map(str, tags)]) == ("aotbundle-rows-sm-90", "0.1.0", ["py3-none-any"])
    aotbundle("wheel", rows_bundles / "rows-sm_90", "-o", tmp_path / "two", "--license", "MIT OR Apache-2.0")
    assert (tmp_path / "two" / wheel.name).read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as file:
        contents = {name: file.read(name) for name in file.namelist()}
        file.extractall(tmp_path)
    record = "aotbundle_rows_sm_90-0.1.0.dist-info/RECORD"
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(contents.pop(record).decode()))}
    assert listed.pop(record) == ["", ""]
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in contents.items()}
    assert listed == {n: [f"sha256={digests[n].decode().rstrip('=')}", str(len(d))] for n, d in contents.items()}
    assert contents["aotbundle_rows_sm_90/rows_sm_90.aotb"] == (tmp_path / "rows.aotb").read_bytes()
    (installed,) = metadata.distributions(path=[str(tmp_path)])
    assert installed.metadata["License-Expression"] == "MIT OR Apache-2.0"
    (needed,) = map(Requirement, installed.requires or ())
    assert (needed.name, needed.extras) == ("aot-runtime", {"cuda"}) and needed.specifier.contains(
        aot_runtime.__version__
    )
    result = aotbundle("wheel", rows_bundles / "rows-gfx942", "-o", tmp_path / "two")
    assert result.exit_code == 0 and "aot-runtime>=0.1.0" in metadata_of(tmp_path / "two", "rows_gfx942"), result.output
    assert set(FIRST_READERS) == {*range(OLDEST_FORMAT, FORMAT_VERSION + 1)}
    assert all(version_key(first) <= version_key(aot_runtime.__version__) for first in FIRST_READERS.values())


def metadata_of(folder: Path, package: str) -> str:
    (wheel,) = folder.glob(f"aotbundle_{package}-*.whl")
    with zipfile.ZipFile(wheel) as file:
        return file.read(next(name for name in file.namelist() if name.endswith("METADATA"))).decode()


def test_compressed_code_needs_the_extra_that_reads_it(rows_bundles: Path, tmp_path: Path):
    """This also holds if only one of several architectures in a file has it."""
    pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    pack_bundle(rows_bundles / "rows-gfx942", tmp_path / "rows-gfx942.aotb", compress=True)
    both = [rows_bundles / f"rows-{arch}" for arch in ("gfx942", "sm_90")]
    merge_bundles(both, tmp_path / "rows.aotb", compress=True)
    for file in ("rows-gfx942.aotb", "rows.aotb"):
        aotbundle("wheel", tmp_path / file, "-o", tmp_path)
    assert "Requires-Dist: aot-runtime[zstd]>=" in metadata_of(tmp_path, "rows_gfx942")
    assert "Requires-Dist: aot-runtime[zstd]>=" in metadata_of(tmp_path, "rows")


def test_an_installed_bundle_is_opened_by_its_name(rows_bundle: Path, site: Site):
    """A folder of that name without a bundle is ignored. A bundle of that name in the working folder goes first."""
    site.install(rows_bundle)
    Path("rows").mkdir()
    rows = open_bundle("rows", "emulator", version=">=0.1")
    path = site.folder / "aotbundle_rows_gfx942/rows_gfx942.aotb"
    assert rows.path == path
    y = rows.softmax(np.zeros((1, 512), np.float32))
    assert np.array_equal(y, np.full((1, 512), 1 / 512, np.float32))
    for place in (Path("rows"), "./rows"):
        with pytest.raises(BundleError, match=r"rows is not a bundle"):
            open_bundle(place, "emulator")
    for words in (["show"], ["verify"], ["explain", "softmax", "--shape", "x=2,512", "--dtype", "T=float32"]):
        result = aotbundle(words[0], "rows", *words[1:])
        assert result.exit_code == 0, result.output
    result = aotbundle("selftest", "rows", "--device", "emulator", "--op", "softmax")
    assert result.exit_code == 0, result.output
    assert str(path) in aotbundle("ls", "--installed").stdout and aotbundle("ls").exit_code == 2
    result = aotbundle("selftest", "row", "--device", "emulator")
    assert result.exit_code == 1 and "; installed: rows for gfx942 (aotbundle-rows-gfx942 0.1.0)" in result.stderr
    pack_bundle(rows_bundle, Path("rows/here.aotb"))
    assert open_bundle("rows", "emulator").path == Path("rows/here.aotb")


def test_of_several_architectures_the_devices_is_opened(rows_bundles: Path, site: Site):
    both = [rows_bundles / "rows-gfx942", rows_bundles / "rows-sm_90"]
    merge_bundles(both, Path("rows.aotb"))
    wheel = site.install(Path("rows.aotb"))
    assert wheel.name == "aotbundle_rows-0.1.0-py3-none-any.whl"
    rows = open_bundle("rows", "emulator:gfx942")
    assert rows.arch == "gfx942" and rows.path == site.folder / "aotbundle_rows/rows_gfx942_sm_90.aotb/gfx942"
    said = r"aotbundle-rows 0\.1\.0 \(gfx942\), .* \(sm_90\), but emulator.* is gfx90a; .* called aotbundle-rows-gfx90a"
    with pytest.raises(ArchMismatchError, match=said):
        open_bundle("rows", "emulator:gfx90a")
    again = site.install(*both, name="rows-again")  # the same bundles: it makes no difference which is opened
    assert open_bundle("rows", "emulator:gfx942").id == rows.id
    with pytest.raises(
        BundleError, match=r"no bundle is called 'row': .*; installed: rows for gfx942.*aotbundle-row-<architect"
    ):
        open_bundle("row")
    assert parse_wheel_filename(again.name)[0] == "rows-again"


def test_several_of_one_name_are_told_apart_by_their_versions(small_copy: Path, site: Site):
    for version in ("1.2", "1.10+rocm7"):
        site.install(versioned(small_copy, version), name=f"small-{version[:3].replace('.', '-')}")
    said = r"small-1-1 1\.10.rocm7 \(gfx942\), small-1-2 1\.2 \(gfx942\); several are for gfx942: .*; open one by"
    with pytest.raises(ArgumentError, match=said):
        open_bundle("small", "emulator")
    assert open_bundle("small", "emulator", version=">1.2").version == "1.10+rocm7"
    assert open_bundle("small", "emulator", version="==1.2").version == "1.2"
    for place in ("small", str(small_copy), small_copy.parent):
        with pytest.raises(VersionMismatchError, match=r"1\.10\+rocm7.*; requested is >=2,!=3\.\*"):
            open_bundle(place, "emulator", version=">=2, !=3.*")
    with pytest.raises(ArgumentError, match=r"version is '1\.2': invalid version specifier '1\.2'; valid: '>=1\.2'"):
        open_bundle("small", "emulator", version="1.2")


def test_a_signature_goes_along(small_copy: Path, site: Site):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    key, other = (SigningKey(generate_key()[0]) for _ in range(2))
    sign_bundle(small_copy, key, WHEN)
    site.install(small_copy, version="1.0")
    policies = [TrustPolicy((TrustedKey("release", signer.public, ("small",)),)) for signer in (key, other)]
    assert open_bundle("small", "emulator", trust=policies[0]).name == "small"
    with pytest.raises(TrustError, match=r"bundle small for gfx942 \(aotbundle-small-gfx942 1\.0\): .* is signed"):
        open_bundle("small", "emulator", trust=policies[1])


def test_a_wheel_that_says_what_it_does_not_have(rows_bundle: Path, small_bundle: Path, site: Site):
    site.install(rows_bundle)
    pack_bundle(small_bundle, site.folder / "aotbundle_rows_gfx942/rows_gfx942.aotb")
    with pytest.raises(BundleError, match=r"rows for gfx942 \(.*\): .* is bundle 'small' for gfx942"):
        open_bundle("rows", "emulator")
    shutil.rmtree(site.folder / "aotbundle_rows_gfx942")
    with pytest.raises(BundleError, match=r"rows for gfx942 \(aotbundle-rows-gfx942 0\.1\.0\): "):
        open_bundle("rows", "emulator")


def test_a_wheel_for_another_format(small_copy: Path, site: Site):
    site.install(small_copy, version="1.0")
    edit_index(small_copy, lambda index: index.update(format=99, oldest_reader=99))
    (packed,) = site.folder.glob("*/*.aotb")
    files = {path.relative_to(small_copy).as_posix(): path.read_bytes() for path in small_copy.rglob("*.*")}
    packed.write_bytes(b"".join(archive.parts(files)))
    said = rf"aotbundle-small-gfx942 1\.0.*needs a reader of format 99; this one reads up to {FORMAT_VERSION}"
    with pytest.raises(BundleError, match=said):
        open_bundle("small", "emulator")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), r"the bundles have different versions or none: 'small' \(none\); pass the distribution's with --version"),
        (("--version", "1.0-1"), "'1.0-1' is not a valid distribution version"),
        (("--version", "1", "--name", "a\nb"), "is not a valid distribution name"),
        (("--version", "1", "--license", "MIT\nX: y"), "is not a license"),
        (("--version", "1", "{small}"), "two of the bundles are 'small' for gfx942"),
        (("--version", "1", "{rows}"), r"the bundles are rows and small: .*--name"),
        (("--name", "x", "{rows}"), r"different versions or none: 'small' \(none\) and 'rows' 0\.1\.0"),
    ],
)
def test_wheels_that_cannot_be_called_so(
    options: tuple[str, ...], said: str, small_bundle: Path, rows_bundle: Path, tmp_path: Path
):
    given = [word.format(small=small_bundle, rows=rows_bundle) for word in options]
    result = aotbundle("wheel", small_bundle, "-o", tmp_path / "wheels", *given)
    assert result.exit_code == 1 and not (tmp_path / "wheels").exists(), result.output
    assert re.search(said, result.stderr), result.stderr


def test_a_wheels_version_is_the_bundles_or_has_a_local_part(rows_bundle: Path, small_copy: Path, tmp_path: Path):
    for bundle, version, allowed in (
        (rows_bundle, "0.1.0+team.2", True), (rows_bundle, "0.1.1", False), (rows_bundle, "0.1", False),
        (versioned(small_copy, "1+a"), "1+a.b", True), (small_copy, "1", False),
    ):  # fmt: skip
        result = aotbundle("wheel", bundle, "-o", tmp_path, "--version", version)
        assert (result.exit_code == 0) == allowed and allowed != ("is allowed" in result.output), result.output


def test_a_bundle_with_faults_goes_into_no_wheel(small_copy: Path, tmp_path: Path):
    pack_bundle(small_copy, tmp_path / "small.aotb")
    whole = (tmp_path / "small.aotb").read_bytes()
    (tmp_path / "small.aotb").write_bytes(whole.replace(b"\x7fELF", b"\x7fELG", 1))
    next(small_copy.glob("code/*")).write_bytes(b"")
    for bundle in (small_copy, tmp_path / "small.aotb", tmp_path / "none"):
        result = aotbundle("wheel", bundle, "-o", tmp_path / "wheels", "--version", "1")
        said = "none is not a bundle" if bundle.name == "none" else "was altered"
        assert result.exit_code == 1 and said in result.stderr, result.output
    assert not (tmp_path / "wheels").exists()


def test_entry_points_are_those_that_python_finds(tmp_path: Path):
    """The first of two copies of a distribution is used, and other entry points are skipped."""
    texts = {
        "one/Some_Rows-1.0": f"[console_scripts]\nx = a\n\n#\n[{GROUP}]\n rows.gfx942=a.b\nrows.sm_90 = a.b\n",
        "one/plain-1.0": "",
        "two/some.rows-2.0": f"[{GROUP}]\nrows.gfx90a = a.b\n",
        "two/plain-2.0": f"[{GROUP}]\nrows.gfx90a = a.b\n",
        "two/other-3": f"[{GROUP}]\nother.gfx942 = c\nother = c\nother.x = ../c\nother.y = c:d\n[x]\nother.z = c\n",
    }
    for name, text in texts.items():
        info = tmp_path / f"{name}.dist-info"
        info.mkdir(parents=True)
        title = name.partition("/")[2].rpartition("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title[0]}\nVersion: {title[2]}\n")
        if text:
            (info / "entry_points.txt").write_text(text)
    folders = [str(tmp_path / name) for name in ("one", "two", "none")]
    found = installed_bundles(folders=folders)
    assert found == [
        Installed("other", "gfx942", "other 3", f"{folders[1]}/c.aotb"),
        Installed("rows", "gfx942", "some-rows 1.0", f"{folders[0]}/a/b.aotb"),
        Installed("rows", "sm_90", "some-rows 1.0", f"{folders[0]}/a/b.aotb"),
    ]
    seen: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=folders):
        seen.setdefault(distribution.metadata["Name"].replace(".", "-").replace("_", "-").lower(), distribution)
    points = {entry.name for one in seen.values() for entry in one.entry_points if entry.group == GROUP}
    assert points - {"other", "other.x", "other.y"} == {f"{item.name}.{item.arch}" for item in found}
    assert [item.name for item in installed_bundles("other", folders)] == ["other"]


def test_names_are_looked_up_without_the_packages_of_importlib(rows_bundle: Path, site: Site):
    """Importing those takes longer than opening a bundle."""
    site.install(rows_bundle)
    script = (
        "import sys; from aot_runtime.installed import installed_bundles\n"
        f"sys.path.insert(0, {str(site.folder)!r})\n"
        "assert [item.arch for item in installed_bundles('rows')] == ['gfx942']\n"
        "assert not {'importlib.metadata', 'email', 'zipfile', 'numpy', 'msgspec'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
