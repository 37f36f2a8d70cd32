"""Files of a signed bundle that its signature does not cover are reported by every command that checks or copies it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.coverage import MAX_DETACHED_BYTES, MAX_TEXT_BYTES, generated_files
from aot_bundle.packing import merge_bundles, pack_bundle
from aot_bundle.trust.signing import sign_bundle
from aot_bundle.trust.statement import make_statement
from aot_runtime import open_bundle
from aot_runtime.bundle.archive import Archive, parts
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import INDEX, SIGNATURE
from aot_runtime.trust.keys import SigningKey, encode_public, generate_key
from aot_runtime.trust.policy import TrustPolicy
from tests.support.command import aotbundle
from tests.support.signing import WHEN, sign_statement


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return (a private key, a policy that accepts it)."""
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    pem, public = generate_key()
    key, policy = tmp_path / "release.key", tmp_path / "trust.toml"
    key.write_bytes(pem)
    policy.write_text(f'[keys.release]\npublic = "{encode_public(public)}"\nbundles = ["*"]\n')
    return key, policy


def passed_on(place: Path, folder: Path) -> dict[str, Any]:
    """Run the commands that pass a bundle on, and return their results by name."""
    wheel = aotbundle("wheel", place, "-o", folder / "wheels", "--version", "1.0")
    merged = aotbundle("merge", place, "-o", folder / "merged.aotb")
    if place.is_dir():
        return {"pack": aotbundle("pack", place, "-o", folder / "p.aotb"), "merge": merged, "wheel": wheel}
    return {"unpack": aotbundle("unpack", place, "-o", folder / "unpacked"), "merge": merged, "wheel": wheel}


def outputs(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} & {"wheels", "merged.aotb", "p.aotb", "unpacked"}


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


def link_to_folder(path: Path) -> None:
    (path.parents[2] / "elsewhere").mkdir()
    (path.parents[2] / "elsewhere/id_rsa").touch()
    path.symlink_to(path.parents[2] / "elsewhere")


STRAYS: dict[str, Callable[[Path], Any]] = {
    "include/assert.h": text("#include_next <assert.h>\n"),
    "include/sys/deep/er.h": text(""),
    "include/Small.h": text(""),
    "include/.h": text(""),
    "lib/cmake/small/smallConfigVersion.cmake": text("message(STATUS ran)\n"),
    "lib/pkgconfig/other.pc": text(""),
    "lib/libsmall.so": text(""),
    "src/other.c": text(""),
    "stubs/numpy.pyi": text(""),
    "stubs/small.pyi.py": text(""),
    "code/extra.hsaco": text("x"),
    "selftest/0123456789abcdef.npz": text("x"),
    "selftest/more": link_to_folder,
    "include/link.h": lambda path: path.symlink_to("small.h"),
    "src/pipe": os.mkfifo,
}
OUTSIDE = {"sitecustomize.py": text(""), "notes/read.me": text(""), ".hidden": text("")}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "put"), STRAYS.items(), ids=STRAYS)
def test_what_lies_in_a_bundles_folders(
    small_copy: Path, files: tuple[Path, Path], tmp_path: Path, name: str, put: Callable[[Path], Any]
):
    """Signed or not, folders that compilers and CMake look into have the bundle's files alone."""
    key, policy = files
    assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    (small_copy / name).parent.mkdir(parents=True, exist_ok=True)
    put(small_copy / name)
    verified = aotbundle("verify", small_copy, "--trust", policy)
    assert verified.exit_code == 1 and f"{name} is not in the index" in verified.stdout
    assert f"{name} is covered neither by the index nor by {SIGNATURE}" in verified.stdout
    assert "id_rsa" not in verified.stdout, "no link is followed"
    for command, result in passed_on(small_copy, tmp_path).items():
        assert result.exit_code == 1 and name in result.output, (command, result.output)
    (small_copy / SIGNATURE).unlink()
    for words in (("verify", small_copy), ("sign", small_copy, "--key", key)):
        unsigned = aotbundle(*words)
        assert unsigned.exit_code == 1 and f"{name} is not in the index" in unsigned.output
    assert not outputs(tmp_path) and not (small_copy / SIGNATURE).exists()


def test_names_that_cannot_be_printed(small_copy: Path, files: tuple[Path, Path]):
    """They are escaped, so they have no effect on a terminal."""
    for name in (b"include/x\x1b]0;PWNED\x07.h", b"src/\xff", b"a\nb: ok, signed", b"bundle.json.\xff\x1b"):
        path = os.fsencode(small_copy) + b"/" + name
        os.mkfifo(path)
        words = (
            ("verify", small_copy)
            if b"/" in name or name.startswith(b"bundle")
            else ("sign", small_copy, "--key", files[0])
        )
        result = aotbundle(*words)
        assert result.exit_code == 1 and ascii(os.fsdecode(name)) in result.output
        assert "\x1b" not in result.output and "\nb: ok" not in result.output
        Path(os.fsdecode(path)).unlink()


@pytest.mark.parametrize(("name", "put"), OUTSIDE.items(), ids=OUTSIDE)
def test_what_lies_beside_a_bundles_folders(
    small_copy: Path, files: tuple[Path, Path], tmp_path: Path, name: str, put: Callable[[Path], Any]
):
    """In an unsigned bundle, such files are left out of archives; in a signed one, they are refused."""
    key, policy = files
    (small_copy / name).parent.mkdir(parents=True, exist_ok=True)
    put(small_copy / name)
    assert aotbundle("verify", small_copy).exit_code == 0
    assert aotbundle("pack", small_copy, "-o", tmp_path / "small.aotb").exit_code == 0
    assert name not in Archive(tmp_path / "small.aotb").names()
    refused = aotbundle("sign", small_copy, "--key", key)
    assert refused.exit_code == 1 and f"its signature would not cover {name}" in refused.output
    (small_copy / name).rename(tmp_path / "kept")
    assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    (tmp_path / "kept").rename(small_copy / name)
    for words in (("verify", small_copy), ("verify", small_copy, "--trust", policy)):
        verified = aotbundle(*words)
        assert verified.exit_code == 1 and f"{name} is covered neither by" in verified.stdout
    for command, result in passed_on(small_copy, tmp_path).items():
        assert result.exit_code == 1 and name in result.output, (command, result.output)


@pytest.mark.parametrize("name", ["include/assert.h", "sitecustomize.py", "code/extra.hsaco", "zz"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_archives_have_the_bundles_files_alone(
    small_copy: Path, files: tuple[Path, Path], tmp_path: Path, name: str, is_signed: bool
):
    key, policy = files
    if is_signed:
        assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    pack_bundle(small_copy, tmp_path / "whole.aotb")
    path = tmp_path / "small.aotb"
    path.write_bytes(b"".join(parts({**Archive(tmp_path / "whole.aotb").stored(), name: b"x"})))
    options = ("--trust", policy) if is_signed else ()
    before = path.read_bytes()
    for words in (("verify", path, *options), ("sign", path, "--key", key)):
        result = aotbundle(*words)
        assert result.exit_code == 1 and f"{name} is not in the index" in result.output, result.output
    for command, result in passed_on(path, tmp_path).items():
        assert result.exit_code == 1 and name in result.output, (command, result.output)
    assert path.read_bytes() == before and not outputs(tmp_path)


@pytest.mark.parametrize("file", ["include/small.h", "lib/cmake/small/smallConfig.cmake", "stubs/small.pyi"])
def test_generated_files_that_were_altered_are_not_passed_on(
    small_copy: Path, files: tuple[Path, Path], tmp_path: Path, file: str
):
    """They are refused in a folder, in an archive, and in one for several architectures; signing anew covers them."""
    key, policy = files
    assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    pack_bundle(small_copy, tmp_path / "whole.aotb")
    changed = (small_copy / file).read_bytes() + b"\n"
    (small_copy / file).write_bytes(changed)
    archive = tmp_path / "small.aotb"
    archive.write_bytes(b"".join(parts({**Archive(tmp_path / "whole.aotb").stored(), file: changed})))
    several = tmp_path / "several.aotb"
    several.write_bytes(b"".join(parts({"gfx942.aotb": archive.read_bytes()})))
    for place in (small_copy, archive, several):
        result = aotbundle("verify", place, "--trust", policy)
        assert result.exit_code == 1 and f"{file} was altered: its sha256 is not what {SIGNATURE} says" in result.output
        for command, result in passed_on(place, tmp_path).items():
            assert result.exit_code == 1 and f"{file} was altered" in result.output, (command, result.output)
    result = aotbundle("split", several, "-o", tmp_path / "split")
    assert result.exit_code == 1 and f"{file} was altered" in result.output
    assert not outputs(tmp_path)
    assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    assert aotbundle("verify", small_copy, "--trust", policy).exit_code == 0


def test_a_statement_about_the_index_alone(
    small_copy: Path, key: SigningKey, policy: TrustPolicy, files: tuple[Path, Path], tmp_path: Path
):
    """Another tool signed it with a trusted key: the bundle opens, and unsigned files are reported."""
    digest = hashlib.sha256((small_copy / INDEX).read_bytes()).hexdigest()
    sign_statement(small_copy, key, make_statement("small", "", {INDEX: digest}, WHEN))
    (tmp_path / "t.toml").write_text(f'[keys.a]\npublic = "{encode_public(key.public)}"\nbundles = ["*"]\n')
    assert open_bundle(small_copy, device="emulator", trust=policy).name == "small"
    verified = aotbundle("verify", small_copy, "--trust", tmp_path / "t.toml")
    assert verified.exit_code == 1
    for file in generated_files(read_index(small_copy)):
        assert f"{file} is covered neither by the index nor by {SIGNATURE}" in verified.stdout
    for command, result in passed_on(small_copy, tmp_path).items():
        assert result.exit_code == 1 and "include/small.h is covered neither" in result.output, command


def test_a_statement_may_cover_more(small_copy: Path, key: SigningKey, policy: TrustPolicy, tmp_path: Path):
    """Any file that the signer signed is accepted."""
    (small_copy / "LICENSE").write_text("MIT")
    index = read_index(small_copy)
    covered = (INDEX, "LICENSE", *generated_files(index))
    digests = {file: hashlib.sha256((small_copy / file).read_bytes()).hexdigest() for file in covered}
    sign_statement(small_copy, key, make_statement("small", "", digests, WHEN))
    (tmp_path / "t.toml").write_text(f'[keys.a]\npublic = "{encode_public(key.public)}"\nbundles = ["*"]\n')
    assert aotbundle("verify", small_copy, "--trust", tmp_path / "t.toml").exit_code == 0
    (small_copy / "LICENSE").write_text("other")
    result = aotbundle("verify", small_copy, "--trust", tmp_path / "t.toml")
    assert result.exit_code == 1 and "LICENSE was altered" in result.stdout


def test_each_signature_covers_by_itself(small_copy: Path, key: SigningKey, policy: TrustPolicy):
    """Without a policy, either of two signatures may count."""
    sign_bundle(small_copy, key, WHEN)
    shutil.copy(small_copy / "include/small.h", small_copy / "include/more.h")
    result = aotbundle("verify", small_copy)
    assert result.exit_code == 1 and "include/more.h is covered neither" in result.stdout


def test_what_is_beside_the_index_goes_along_within_bounds(small_copy: Path, tmp_path: Path):
    """Files beside the index are copied within bounds; a hole of 2 GiB is not read."""
    (small_copy / "bundle.json.cdx.json").write_text("{}")
    assert aotbundle("pack", small_copy, "-o", tmp_path / "a.aotb").exit_code == 0
    assert "bundle.json.cdx.json" in Archive(tmp_path / "a.aotb").names()
    for name, most in (("bundle.json.x", MAX_DETACHED_BYTES), ("include/small.h", MAX_TEXT_BYTES)):
        before = (small_copy / name).read_bytes() if (small_copy / name).exists() else None
        with (small_copy / name).open("ab") as file:
            file.truncate(2 << 30)
        tracemalloc.start()
        verified = aotbundle("verify", small_copy)
        assert verified.exit_code == 1 and f"{name} is over {most} bytes" in verified.stdout
        for command, result in passed_on(small_copy, tmp_path).items():
            assert result.exit_code == 1 and f"{name} is over {most} bytes" in result.output, command
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_TEXT_BYTES
        tracemalloc.stop()
        (small_copy / name).unlink()
        if before is not None:
            (small_copy / name).write_bytes(before)
    with (small_copy / SIGNATURE).open("ab") as file:
        file.truncate(2 << 30)
    result = aotbundle("pack", small_copy, "-o", tmp_path / "b.aotb")
    assert result.exit_code == 1 and f"{SIGNATURE} is over 65536 bytes" in result.output


def test_bundles_of_one_architecture_are_compared_by_their_files(small_copy: Path, tmp_path: Path):
    same = shutil.copytree(small_copy, tmp_path / "same")
    assert merge_bundles([small_copy, same], tmp_path / "a.aotb") == {"gfx942": small_copy}
    (Path(same) / "include/small.h").write_bytes((Path(same) / "include/small.h").read_bytes() + b"\n")
    result = aotbundle("merge", small_copy, same, "-o", tmp_path / "b.aotb")
    assert result.exit_code == 1 and "are both for gfx942, but differ" in result.output
