"""`aotbuild --arch … kernels.jsonl` and a second start of the program, under real Triton without a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from aot.capture.environments import made_environment
from aot.errors import BuildError
from aot_bundle.terminal import Console
from tests.aot_capture.conftest import Session

from .conftest import Built, copied, script

KERNELS = 8
"""Kernels of the program: four, and two configs of two autotuned ones."""


def _codes(folder: Path) -> dict[str, bytes]:
    found = [*folder.glob("*/*.hsaco"), *folder.glob("*/*.cubin")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}


def test_a_second_start_compiles_nothing_and_has_the_code_of_the_first(built: Built, tmp_path: Path):
    cache = tmp_path / "cache"
    result = built.aotbuild("install-cache", built.shipped, "--to", cache)
    assert result.returncode == 0 and f"{KERNELS} kernels for {built.arch}" in result.stdout, result.stderr
    _, result = built.run(TRITON_CACHE_DIR=str(cache))
    assert result.returncode == 0, result.stderr
    assert "0 would compile; from the cache: 6 kernels, 0 C modules, 2 autotune" in result.stderr
    jit = _codes(built.session.folder / "own-cache")
    assert len(jit) == KERNELS and _codes(cache) == jit
    metadata = next(iter(cache.glob("*/scale.json")))
    assert (
        metadata.read_bytes() == (built.session.folder / "own-cache" / metadata.parent.name / "scale.json").read_bytes()
    )


def test_plain_triton_finds_the_kernels_where_they_were_installed(own: Built, tmp_path: Path):
    cache = tmp_path / "cache"
    own.aotbuild("install-cache", own.shipped, "--to", cache)
    _, result = own.session.capture(script("gfx942"), TRITON_CACHE_DIR=str(cache))  # a listener, no guard
    kernels = [record for record in own.records() if record["kind"] == "kernel"]
    assert kernels and all(record["cache_hit"] for record in kernels[KERNELS:]), result.stderr


def test_a_shipped_cache_is_used_where_it_lies(own: Built, tmp_path: Path):
    assert own.build("--pack").returncode == 0
    moved = tmp_path / "moved"
    own.shipped.rename(moved)
    for source in (moved, own.session.folder / "dist" / "kernels-gfx942-cache.aotc"):
        _, result = own.run("--cache", source)
        assert result.returncode == 0 and "0 would compile" in result.stderr, result.stderr


def test_a_second_build_compiles_nothing_and_makes_the_same_bytes(own: Built, tmp_path: Path):
    other = copied(own, tmp_path / "other")
    result = other.build("-o", "again")
    assert f"0 compiled, {KERNELS} from the cache" in result.stdout, result.stderr
    (other.session.folder / "our-cache").rename(tmp_path / "gone")
    result = other.build("-o", "new")
    assert f"{KERNELS} compiled, 0 from the cache" in result.stdout, result.stderr
    first = {path.relative_to(own.shipped): path.read_bytes() for path in own.shipped.rglob("*") if path.is_file()}
    for output in ("again", "new"):
        folder = other.session.folder / output / own.shipped.name
        assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first
    for name, content in first.items():  # a code object's line table names the sources, as the JIT's does
        assert name.suffix == ".hsaco" or str(own.session.folder).encode() not in content
        assert name.suffix == ".hsaco" or b"site-packages" not in content


def test_kernels_are_built_for_other_gpus_of_the_vendor(own: Built):
    result = own.build(arch="gfx950")
    assert result.returncode == 0 and "~ captured on gfx942, built for gfx950" in result.stdout, result.stderr
    assert "2 autotuned keys: the first start on gfx950 measures them" in result.stdout
    _, result = own.run("--cache", own.session.folder / "dist" / "kernels-gfx950-cache", arch="gfx950")
    assert result.returncode == 0 and "0 would compile" in result.stderr, result.stderr


def test_what_cannot_carry_over_is_named_by_kernel(own: Built):
    result = own.build(arch="gfx1100")
    assert result.returncode == 1 and "1 kernel cannot be rebuilt; nothing was written" in result.stderr
    assert "kernels.gluon_copy" in result.stderr
    folder = own.session.folder / "dist" / "kernels-gfx1100-cache"
    assert not folder.exists()
    result = own.build("--keep-going", arch="gfx1100")
    assert result.returncode == 1 and "1 kernel cannot be rebuilt; left out" in result.stderr
    built = {kernel["name"] for kernel in json.loads((folder / "captured.json").read_text())["kernels"]}
    assert built == {"scale", "applied", "select", "tuned", "tuned_with_hook"}


OTHER_ARGUMENTS = """
import kernels as k
k.scale[(1,)](k.Tensor(pointer=4), k.X, 1024, BLOCK=64)
k.scale[(1,)](k.X, k.X, 1000, BLOCK=64)
k.scale[(1,)](k.X, k.X, 1, BLOCK=64)
"""


def test_a_result_whose_key_has_a_tensor_is_left_out(own: Built):
    result = next(record for record in own.records() if record["kind"] == "autotune")
    result["key"] = {"tuple": [{"opaque": ["torch.Tensor", ""]}]}
    with own.file.open("a") as file:
        file.write(json.dumps(result) + "\n")
    result = own.build()
    assert result.returncode == 0, result.stderr
    assert f"{KERNELS} kernels" in result.stdout and "a result of autotuner tuned is not shipped" in result.stdout
    assert "a value of type torch.Tensor cannot be made without the program\n" in result.stdout


def test_neighbours_are_found_by_other_arguments(own: Built):
    _, result = own.session.run(OTHER_ARGUMENTS, "--cache", own.shipped)
    assert result.returncode == 1
    assert own.build("--neighbours").returncode == 0
    _, result = own.session.run(OTHER_ARGUMENTS, "--cache", own.shipped)
    assert result.returncode == 0 and "0 would compile" in result.stderr, result.stderr


def _changed(own: Built, kind: str, **values: object) -> None:
    records = [{**record, **values} if record["kind"] == kind else record for record in own.records()]
    own.file.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_captured_key_is_stated_only_for_the_same_files(own: Built):
    installation = next(record for record in own.records() if record["kind"] == "installation")
    files, root = installation["files"], installation["root"]
    own.file.write_text(own.file.read_text().replace(root, "/elsewhere/triton"))
    library = next(name for name in files if name.startswith("_C"))
    _changed(own, "installation", files={**files, library: "0" * 64})  # another ABI: the key is the captured one
    assert "differ" not in own.build().stdout
    assert own.manifest["ingredients"]["files"][library] == "0" * 64
    _changed(own, "installation", files={**files, "language/core.py": "1" * 64})
    result = own.build()
    assert result.returncode == 0 and "~ all kernels have keys of this Triton: files of Triton" in result.stdout
    assert "language/core.py" in result.stdout and own.manifest["ingredients"]["files"] == files
    result = own.aotbuild("install-cache", own.shipped, "--check")
    assert result.returncode == 0, result.stderr  # they are this environment's


def test_another_compiler_or_environment_makes_a_key_that_is_told(own: Built):
    kernel = next(record for record in own.records() if record["kind"] == "kernel")
    _changed(own, "kernel", key=[kernel["key"][0], "release 13.0, V13.0.88\nBuild x\n-90", *kernel["key"][2:]])
    result = own.build()
    assert result.returncode == 0 and "would not be found: backend: captured ptxas V13.0.88, here" in result.stdout


def test_a_function_whose_hash_comes_out_differently_is_told(own: Built):
    _changed(own, "function", key="0" * 64)
    result = own.build()
    assert result.returncode == 0 and "the hash of scale comes out differently" in result.stdout


def test_an_installed_triton_that_differs_is_refused(own: Built, tmp_path: Path):
    path = own.shipped / "captured.json"
    manifest = own.manifest
    manifest["ingredients"]["files"]["compiler/compiler.py"] = "0" * 64
    manifest["ingredients"]["environment"] = {"DISABLE_LLVM_OPT": "1"}
    path.write_text(json.dumps(manifest))
    result = own.aotbuild("install-cache", own.shipped, "--to", tmp_path / "cache")
    assert result.returncode == 1 and "would find none of the" in result.stderr
    assert "compiler/compiler.py" in result.stderr and "DISABLE_LLVM_OPT: 1 was captured" in result.stderr
    assert not (tmp_path / "cache").exists()


def test_another_version_is_asked_for(own: Built):
    _changed(own, "installation", triton="3.1.4")
    result = own.build()
    assert result.returncode == 1 and "--triton 3.1.4 makes an environment with it once" in result.stderr


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$2" = pip ] && echo "ERROR: No matching distribution" && exit 1\n'
        'mkdir -p "$3/bin" && cp "$0" "$3/bin/python"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    check_refused_environment(tmp_path)
    with pytest.raises(BuildError, match="is not a version"):
        made_environment("3.6.0; rm", tmp_path, Console(quiet=True))


@pytest.mark.slow
def test_an_environment_that_pip_cannot_fill_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    check_refused_environment(tmp_path)


def check_refused_environment(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"pip failed(.|\n)*No matching distribution(.|\n)*--python"):
        made_environment("3.6.0", folder, Console(quiet=True))


@pytest.mark.slow
@pytest.mark.skipif("AOT_TRITONS" not in os.environ, reason="AOT_TRITONS names Pythons with other Tritons")
@pytest.mark.parametrize("python", re.split("[:,]", os.environ.get("AOT_TRITONS", "")))
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_other_tritons(python: str, arch: str, own: Built, tmp_path: Path):
    own = Built(own.session, arch)
    own.file.unlink()
    result = own.capture(python)
    if "ROCm linker" in result.stderr:
        pytest.skip("Triton 3.4 links by ROCm's ld.lld, which is not here")
    assert result.returncode == 0, result.stderr
    result = own.build("--python", python)
    assert result.returncode == 0, result.stderr + result.stdout
    result = own.aotbuild("install-cache", own.shipped, "--to", tmp_path / "cache", "--python", python)
    assert result.returncode == 0, result.stderr
    result = own.aotbuild(
        "run",
        "--no-compile",
        "--arch",
        arch,
        "--",
        python,
        "-c",
        script(arch),
        TRITON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert result.returncode == 0 and "0 would compile" in result.stderr, result.stderr


def test_a_capture_without_sources_takes_those_that_are_there(own: Built, tmp_path: Path):
    records = [
        {**record, "source": None, "raw_source": None} if "source" in record else record for record in own.records()
    ]
    own.file.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = own.build("--sources", own.session.folder)
    assert result.returncode == 0 and f"0 compiled, {KERNELS} from the cache" in result.stdout, result.stderr
    own.session.edit("x * 2", "x * 4")
    result = own.build("--sources", own.session.folder)
    assert result.returncode == 1 and "the source of 'double' is not in the capture file" in result.stderr


def test_ingredients_are_compared_before_the_first_kernel(own: Built, tmp_path: Path):
    """Ingredients of folders, archives and installed caches are compared, also without a capture file."""
    manifest = own.shipped / "captured.json"
    content = own.manifest
    content["ingredients"]["files"]["language/core.py"] = "0" * 64
    content["ingredients"]["environment"]["TRITON_DEFAULT_FP_FUSION"] = "0"
    installed = tmp_path / "cache"
    assert own.aotbuild("install-cache", own.shipped, "--to", installed).returncode == 0
    for place in (manifest, next((installed / "aotbuild").glob("*.json"))):
        place.write_text(json.dumps(content))
    expected = [
        f"none of the {len(content['kernels'])} kernels of kernels can be found:",
        "files of Triton 3.9.0: language/core.py",
        "TRITON_DEFAULT_FP_FUSION: 0 was captured, not set is here",
    ]
    for options, environment in ((["--cache", own.shipped], {}), ([], {"TRITON_CACHE_DIR": str(installed)})):
        report, result = own.run("--warn", *options, **environment)
        assert report["ingredients"] == expected
        said, kernels = (result.stderr.index(text) for text in (f"aotbuild run: {expected[0]}", " would compile"))
        assert said < kernels


def test_nothing_is_said_of_ingredients_that_are_those_of_the_cache(own: Built, tmp_path: Path):
    for cache in (own.shipped, _archive(own, tmp_path)):
        report, _ = own.run("--cache", cache)
        assert report["ingredients"] == [] and not report["misses"]


def _archive(own: Built, folder: Path) -> Path:
    result = own.build("--pack", "-o", folder)
    assert result.returncode == 0, result.stderr
    return next(folder.glob("*.aotc"))


def test_kernels_of_servers_keep_their_keys(tmp_path: Path, python: str = sys.executable):
    shutil.copy(Path(__file__).parent / "program" / "servers.py", tmp_path)
    session = Session(tmp_path)
    ours = {"AOTBUILD_CACHE_DIR": str(tmp_path / "our-cache")}
    result = session.aotbuild("capture", "-o", "k.jsonl", "--arch", "sm_90", "--", python, "servers.py")
    assert "2 kernels" in result.stderr, result.stderr
    result = session.aotbuild("--arch", "sm_90", "--python", python, "k.jsonl", **ours)
    assert result.returncode == 0 and "would not be found" not in result.stdout, result.stdout + result.stderr
    result = session.aotbuild(
        "run", "--no-compile", "--arch", "sm_90", "--cache", "dist/k-sm_90-cache", "--", python, "servers.py"
    )
    assert "0 would compile; from the cache: 2 kernels" in result.stderr, result.stderr
