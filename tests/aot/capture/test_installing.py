"""Shipped caches: what is installed, when, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.capture.installing import differences, install
from aot.capture.shipped_cache import (
    Manifest,
    ShippedCacheError,
    listed_files,
    open_shipped,
    shipped_files,
    write_shipped,
)  # fmt: skip
from aot_bundle.trust.signing import Signer
from aot_capture.ingredients import MANIFEST, launcher_difference
from aot_runtime import open_bundle
from aot_runtime.errors import TrustError
from aot_runtime.folders import OpenFolder
from aot_runtime.trust.keys import SigningKey, encode_public, generate_key
from tests.docs.scripts import ROOT
from tests.support.signing import WHEN

from .conftest import Built

FOLDER = "A" * 52


def _shipped(path: Path, signer: Signer | None = None, name: str = "kernels", **more: bytes) -> Path:
    """A shipped cache with one kernel."""
    group = {"child_paths": {name: name for name in ("k.json", "k.hsaco")}}
    metadata = json.dumps({"extern_libs": [["ocml", "@TRITON@/backends/amd/lib/ocml.bc"]]}).encode()
    files = {"k.json": metadata, "k.hsaco": b"code", "__grp__k.json": json.dumps(group).encode()}
    listed = {f"cache/{FOLDER}/{file}": content for file, content in files.items()}
    ingredients = {"triton": "3.9.0", "files": {"a.py": "1"}, "backend": "b", "environment": {}}
    kernel = {"name": "k", "function": "k", "folder": FOLDER, "hash": "0" * 64}
    found = {file: {"size": one.size, "sha256": one.sha256} for file, one in listed_files(listed).items()}
    manifest = msgspec.convert(
        {
            "format": 1, "name": name, "arch": "gfx942", "target": ["hip", "gfx942", 64], "ingredients": ingredients,
            "kernels": [kernel], "files": found, "aotbuild": "0",
        },
        Manifest,
    )  # fmt: skip
    return write_shipped(path, "k-gfx942-cache", {**shipped_files(manifest, listed, signer), **more}, pack=False)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_paths_are_final_and_lists_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = tmp_path / "cache"
    written: list[str] = []
    write = OpenFolder.write
    monkeypatch.setattr(OpenFolder, "write", lambda self, name, *rest: (written.append(name), write(self, name, *rest)))
    install(open_shipped(_shipped(tmp_path)), cache, "/opt/triton")
    group = json.loads((cache / FOLDER / "__grp__k.json").read_text())["child_paths"]
    assert group == {name: str(cache / FOLDER / name) for name in ("k.json", "k.hsaco")}
    assert b"/opt/triton/backends/amd/lib/ocml.bc" in (cache / FOLDER / "k.json").read_bytes()
    assert written.index("__grp__k.json") > max(written.index("k.json"), written.index("k.hsaco"))


def test_what_is_there_stays_and_what_is_half_there_is_made_whole(tmp_path: Path):
    cache, shipped = tmp_path / "cache", open_shipped(_shipped(tmp_path))
    install(shipped, cache, "")
    own = {
        "k.ttir": str(cache / FOLDER / "k.ttir"),
        **json.loads((cache / FOLDER / "__grp__k.json").read_text())["child_paths"],
    }
    (cache / FOLDER / "k.ttir").write_text("more")
    (cache / FOLDER / "__grp__k.json").write_text(json.dumps({"child_paths": own}))  # the JIT's own list is longer
    before = _tree(cache)
    assert install(shipped, cache, "").kept == 1 and _tree(cache) == before
    (cache / FOLDER / "k.hsaco").write_bytes(b"co")  # half of it was copied
    assert install(shipped, cache, "").written == 1 and _tree(cache) == before
    (cache / FOLDER / "__grp__k.json").unlink()
    (cache / FOLDER / "k.json").unlink()
    install(shipped, cache, "")
    assert (cache / FOLDER / "k.json").exists() and (cache / FOLDER / "__grp__k.json").exists()


def test_many_may_install_at_once(on_amd: Built, tmp_path: Path):
    alone, together = tmp_path / "alone" / "cache", tmp_path / "cache"
    install(open_shipped(on_amd.shipped), alone, "")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: install(open_shipped(on_amd.shipped), together, ""), range(16)))
    expected = {
        name: content.replace(str(alone).encode(), str(together).encode()) for name, content in _tree(alone).items()
    }
    assert _tree(together) == expected


SLOW_INSTALLATION = """
import sys, time
from pathlib import Path
from aot.capture.installing import install
from aot.capture.shipped_cache import open_shipped
from aot_runtime.folders import OpenFolder
write = OpenFolder.write
OpenFolder.write = lambda self, *arguments: (write(self, *arguments), time.sleep(0.1))
install(open_shipped(Path(sys.argv[1])), Path(sys.argv[2]), "")
"""


def test_one_of_two_installations_is_killed(on_amd: Built, tmp_path: Path):
    cache, alone = tmp_path / "cache", tmp_path / "alone" / "cache"
    install(open_shipped(on_amd.shipped), alone, "")
    command = [sys.executable, "-c", SLOW_INSTALLATION, str(on_amd.shipped), str(cache)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))}
    with subprocess.Popen(command, env=environment) as one, subprocess.Popen(command, env=environment) as other:
        while not any(cache.glob("*/__grp__*")):
            assert one.poll() is None and other.poll() is None
            time.sleep(0.01)
        one.kill()
        for group in cache.glob("*/__grp__*"):  # what Triton finds is whole
            for name, path in json.loads(group.read_text())["child_paths"].items():
                assert Path(path).read_bytes() == (alone / group.parent.name / name).read_bytes()
        assert other.wait() == 0
    expected = {
        name: content.replace(str(alone).encode(), str(cache).encode()) for name, content in _tree(alone).items()
    }
    assert {name: content for name, content in _tree(cache).items() if name in expected} == expected


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        install(open_shipped(_shipped(tmp_path)), cache, "")


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def _rename(manifest: dict[str, Any], name: str) -> None:
    manifest["files"][name] = manifest["files"].pop(f"cache/{FOLDER}/k.hsaco")


HSACO = f"cache/{FOLDER}/k.hsaco"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed file": (lambda path: (path / HSACO).write_bytes(b"CODE"), "is not the file that"),
    "a longer file": (lambda path: (path / HSACO).write_bytes(b"code+"), "is not the file that"),
    "a file that is gone": (lambda path: (path / HSACO).unlink(), "cannot be read"),
    "a link": (lambda path: _linked(path / HSACO), "cannot be read|in its place"),
    "a pipe": (lambda path: _piped(path / HSACO), "cannot be read|in its place|regular"),
    "a path outside": (lambda path: _edit(path, lambda it: _rename(it, f"{HSACO}/../../x")), "no shipped cache has"),
    "an absolute path": (lambda path: _edit(path, lambda it: _rename(it, "/etc/passwd")), "no shipped cache has"),
    "another folder": (lambda path: _edit(path, lambda it: _rename(it, "cache/x/k.hsaco")), "no shipped cache has"),
    "a name with a path": (lambda path: _edit(path, lambda it: it.update(name="../x")), "is not a name"),
    "an unknown field": (lambda path: _edit(path, lambda it: it.update(hook="x")), "unknown field"),
    "another format": (lambda path: _edit(path, lambda it: it.update(format=2)), "has format 2"),
    "a gigantic size": (
        lambda path: _edit(path, lambda it: it["files"][HSACO].update(size=1 << 60)), "<= 1073741824"
    ),
    "deep nesting": (lambda path: (path / MANIFEST).write_text("[" * 100_000), MANIFEST),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "is not a shipped cache"),
}  # fmt: skip


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_is_refused_before_anything_is_written(fault: str, tmp_path: Path):
    path, cache = _shipped(tmp_path), tmp_path / "cache"
    change, message = FAULTS[fault]
    change(path)
    with pytest.raises(ShippedCacheError, match=message):
        install(open_shipped(path), cache, "")
    assert not cache.exists()


def test_signatures_are_verified_before_the_manifest_is_decoded(tmp_path: Path):
    key, other = (SigningKey(generate_key()[0]) for _ in range(2))
    policy = tmp_path / "policy.toml"
    policy.write_text(_policy(key, "kernels"))
    signed = _shipped(tmp_path / "signed", Signer(key, WHEN))
    assert "key 'us'" in open_shipped(signed, policy).signer
    for name, path, reason in (
        ("not signed", _shipped(tmp_path / "unsigned"), "unsigned"),
        ("by another", _shipped(tmp_path / "other", Signer(other, WHEN)), "key"),
        ("of another name", _shipped(tmp_path / "name", Signer(key, WHEN), name="others"), "name"),
    ):
        with pytest.raises(TrustError) as raised:
            open_shipped(path, policy)
        assert raised.value.reason == reason, name
    (signed / MANIFEST).write_bytes(b"{" + (signed / MANIFEST).read_bytes())
    with pytest.raises(TrustError, match=r"captured\.json was altered"):
        open_shipped(signed, policy)


def _policy(key: SigningKey, name: str) -> str:
    return f'[keys.us]\npublic = "{encode_public(key.public)}"\nbundles = ["{name}"]\n'


def test_a_signature_of_a_shipped_cache_is_none_of_a_bundle(tmp_path: Path, small_copy: Path):
    key = SigningKey(generate_key()[0])
    shipped = _shipped(tmp_path, Signer(key, WHEN), name="small")
    shutil.copy(shipped / f"{MANIFEST}.sig", small_copy / "bundle.json.sig")
    policy = tmp_path / "policy.toml"
    policy.write_text(_policy(key, "small"))
    with pytest.raises(TrustError, match=r"another bundle\.json"):
        open_bundle(small_copy, device="emulator", trust=policy)


def test_ingredients_that_differ_are_named(tmp_path: Path):
    there = open_shipped(_shipped(tmp_path))
    here = {"triton": "3.9.0", "files": {"a.py": "1"}, "backends": ["b"], "environment": {}, "root": "/x"}
    assert differences(there, here) == []
    for change, told in (
        ({"triton": "3.8.0"}, "Triton: 3.9.0 was captured, 3.8.0 is here"),
        ({"files": {"a.py": "2"}}, "files of Triton 3.9.0: a.py"),
        ({"backends": ["ptxas V12.9.1"]}, "compiler: b was captured, ptxas V12.9.1 is here"),
        ({"environment": {"X": "1"}}, "X: not set was captured, 1 is here"),
    ):
        assert differences(there, {**here, **change}) == [told]


TORCH = """
class compiler:
    def load_cache_artifacts(data):
        return open("loaded", "wb").write(data)
"""


def test_a_wheel_and_inductors_artefacts_are_installed(own: Built, tmp_path: Path):
    (tmp_path / "artefacts").write_bytes(b"artefacts")
    result = own.build("--wheel", "--inductor", tmp_path / "artefacts")
    (wheel,) = (own.session.folder / "dist").glob("kernels_gfx942_cache-1+*-py3-none-any.whl")
    assert str(wheel.name) in result.stdout, result.stderr
    site = tmp_path / "site"
    shutil.unpack_archive(wheel, site, "zip")
    (site / "torch.py").write_text(TORCH)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "runtime", site)))
    arguments = ("install-cache", "kernels-gfx942-cache", "--to", tmp_path / "cache", "--inductor")
    result = own.aotbuild(*arguments, PYTHONPATH=paths)
    assert result.returncode == 0 and "8 kernels for gfx942" in result.stdout, result.stderr
    assert (own.session.folder / "loaded").read_bytes() == b"artefacts"
    assert (tmp_path / "cache" / "aotbuild" / "kernels-gfx942.inductor.bin").read_bytes() == b"artefacts"
    result = own.aotbuild("install-cache", "others", PYTHONPATH=paths)
    assert result.returncode == 1 and "installed wheels have kernels-gfx942-cache" in result.stderr


WITHOUT_BUILDER = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rich", "filelock", "pebble", "pydantic", "ruamel", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from aot.__main__ import main
main()
"""


def test_an_installation_needs_no_packages_of_the_builder(own: Built, tmp_path: Path):
    """Beside the server's Triton there is no place for the builder's."""
    script = tmp_path / "without.py"
    script.write_text(WITHOUT_BUILDER)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))}
    for arguments in (
        ("install-cache", own.shipped, "--to", tmp_path / "cache", "--python", sys.executable),
        ("run", "--no-compile", "--cache", own.shipped, "--env"),
    ):
        result = subprocess.run([sys.executable, script, *arguments], env=variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def test_launchers_of_another_python_are_named():
    manifest = {"ingredients": {"extension_suffix": ".cpython-312.so"}, "files": {"cache/A/l.cpython-312.so": {}}}
    told = launcher_difference(manifest, ".cpython-311.so")
    assert told is not None and ".cpython-312.so" in told
    assert launcher_difference(manifest, ".cpython-312.so") is None
    assert launcher_difference({**manifest, "files": {}}, ".cpython-311.so") is None
