"""Inputs of any size and kind end a build quickly with a clear error."""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from aot.cache.layered_cache import CompileCache
from aot.compile.compiler import compile_job
from aot.compile.keys import recipe_key
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import MAX_BYTES, ManifestError, read_yaml
from aot.plan.bundles import plan_bundle
from aot.targets import parse_arch
from aot.workers.pool import WarmPool, remove_leftovers
from aot_bundle.stub import stub_text
from tests.support.building import jobs
from tests.support.building.projects import KERNELS, SCALE, edit, write_project

# YAML


def laughs(open_: str, close: str, key: str = "") -> str:
    """Return a list, or mapping, of nine aliases to one of nine aliases, and so on: nine to the ninth in all."""
    lines = [f"a0: &a0 {open_}{key.format(0)}x{close}"]
    for i in range(1, 10):
        aliases = ", ".join(f"{key.format(k)}*a{i - 1}" for k in range(9))
        lines.append(f"a{i}: &a{i} {open_}{aliases}{close}")
    return "\n".join(lines) + "\n"


ALIASES = "with its aliases expanded, this file has more than 100000 values"
CONTAINED = "an alias refers to a value that contains it"

DOCUMENTS = {
    laughs("[", "]"): f"1:10: {ALIASES}",
    laughs("{", "}", "k{}: "): f"1:14: {ALIASES}",
    "a: &a [*a]\n": f"1:4: {CONTAINED}",
    "a: &a {b: [{c: *a}]}\n": f"1:4: {CONTAINED}",
    "a: &a\n  <<: *a\n  b: 1\n": f"1:4: {CONTAINED}",
    "a: &a {b: {<<: [*a, *a]}}\n": f"1:4: {CONTAINED}",
    "a: {<<: 3}\n": "1:9: `<<` takes a mapping, or a list of mappings",
    "a: {<<: [{}, 3]}\n": "1:14: `<<` takes a mapping, or a list of mappings",
    "a: {<<: {b: 1}, <<: {c: 1}}\n": "1:17: duplicate key '<<'",
    "? {a: b}\n: c\n": "1:3: a key must be text (given: a mapping)",
    "{[1, {a: 2}]: 3}\n": "1:2: a key must be text (given: a list)",
    "? &a [*a]\n: c\n": "1:3: a key must be text (given: a list)",
    ".nan: 1\n": "1:1: a key must be text (given: nan)",
    "[" * 5000 + "]" * 5000: "1:101: nested more than 100 deep",
    "{a: " * 5000 + "}" * 5000: "1:398: nested more than 100 deep",
    f"a: {'1' * 5000}\n": f"1:4: '{'1' * 30}…' is a number of more than 64 bits",
    f"a: 0x{'f' * 50000}\n": f"1:4: '0x{'f' * 28}…' is a number of more than 64 bits",
    f"a: -{1 << 64}\n": f"1:4: '-{1 << 64}' is a number of more than 64 bits",
    "a: !!int twelve\n": "1:4: 'twelve' does not match its tag",
    "a: !!float ''\n": "1:4: '' does not match its tag",
    "a: !!bool si\n": "1:4: 'si' does not match its tag",
    "!!set {a, b}\n": "1:1: the tag 'tag:yaml.org,2002:set' is not supported here",
    "a: !!binary aGVsbG8=\n": "1:4: the tag 'tag:yaml.org,2002:binary' is not supported here",
    "a: !!python/object/apply:os.abort []\n": "1:4: the tag 'tag:yaml.org,2002:python/objec…' is not supported here",
    "a: !mine [1]\n": "1:4: the tag '!mine' is not supported here",
    'a: "\\ud800"\n': "1:4: text with the character U+D800",
    'a: "x\\0y"\n': "1:4: text with the character U+0000",
}


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_documents_that_are_no_plain_data(tmp_path: Path, text: str):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        read_yaml(path)
    assert caught.value.messages == (f"{path}:{DOCUMENTS[text]}",)


def test_what_aliases_and_merges_may_do(tmp_path: Path):
    path = tmp_path / "m.yaml"
    path.write_text(
        "a: &a {x: 1, y: 2}\nb: &b {<<: *a, z: 3}\nc: {<<: [*b, {y: 9, w: 4}], x: 5}\nd: [*a, *a]\ne: 2024-01-31\n"
        f"f: {(1 << 64) - 1}\ng: -0o17\nh: 0b101\ni: 1_000\nj: +.INF\nk: 1e999\nl: ~\n"
    )
    data = read_yaml(path).data
    assert list(data["c"].items()) == [("x", 5), ("y", 2), ("z", 3), ("w", 4)]
    assert data["d"] == [{"x": 1, "y": 2}] * 2 and data["d"][0] is not data["d"][1]
    inf = float("inf")
    assert [data[key] for key in "efghijkl"] == ["2024-01-31", (1 << 64) - 1, -15, 5, 1000, inf, inf, None]


# Files that are none


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.py")
    return tmp_path / "pipe.py"


def test_manifests_that_are_no_files(tmp_path: Path, pipe: Path):
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path, reason in (
        (pipe, "it is not a regular file"),
        (Path("/dev/zero"), "it is not a regular file"),
        (tmp_path, "Is a directory"),
        (large, f"it has more than {MAX_BYTES} bytes"),
    ):
        with pytest.raises(ManifestError) as caught:
            load_manifest(path)
        assert caught.value.messages == (f"{path}: cannot be read: {reason}",)


def planning_fault(path: Path) -> str:
    """Return planning's error for a manifest, without its path."""
    with pytest.raises(ManifestError) as caught:
        plan_bundle(load_manifest(path), parse_arch("gfx942"), {}, False)
    (message,) = caught.value.messages
    return message.removeprefix(str(path))


def test_kernels_and_references_that_are_no_files(tmp_path: Path, pipe: Path):
    for name in ("folder.py", "zero.py", "large.py"):
        text = SCALE.replace("k.py:", f"{name}:").replace("bundle: tiny", "bundle: tiny\nroot: .")
        if name == "folder.py":
            (tmp_path / name).mkdir()
        elif name == "zero.py":
            (tmp_path / name).symlink_to("/dev/zero")
        else:
            with (tmp_path / name).open("wb") as file:
                file.truncate(1 << 40)
        assert name in planning_fault(write_project(tmp_path, text))
    at_pipe = SCALE.replace("k.py:", "pipe.py:")
    assert "kernel file 'pipe.py' is neither in" in planning_fault(write_project(tmp_path, at_pipe))
    selftest = "    reference: pipe.py:scale\n    selftest: [{call: {rows: 1, cols: 1, T: float16, factor: 1}}]\n"
    assert "file pipe.py is not in" in planning_fault(write_project(tmp_path, SCALE + selftest))
    (tmp_path / "pipe.yaml").symlink_to(pipe)
    included = "bundle: tiny\ninclude: {pipe.yaml: {scale: {}}}\n"
    assert "does not exist" in planning_fault(write_project(tmp_path, included))


# Combinations


def with_flags(count: int, **more: str) -> str:
    """`SCALE` with scalars `f0`, `f1`, …, and more lines for each below these keys."""
    flags = "".join(f"      f{i}: {{type: flag, default: false}}\n" for i in range(count))
    text = edit(SCALE, ("      factor: {type: fp32}\n", f"      factor: {{type: fp32}}\n{flags}"))
    for key, line in more.items():
        lines = "".join(f"      {line.format(i=i)}\n" for i in range(count))
        text = edit(text, (f"    {key}:\n", f"    {key}:\n{lines}"))
    return text


def test_axes_of_too_many_combinations(tmp_path: Path):
    text = with_flags(24, constexprs="A{i}: {{values: [false, true], pick: f{i}}}")
    said = planning_fault(write_project(tmp_path, text))
    assert said.endswith("op 'scale': its axes have more than 20000 combinations; use fewer values, or more `exclude`")
    assert said.startswith(":34:5: ")
    text = with_flags(24, constexprs="A{i}: {{values: [false, true], pick: f{i}}}").replace(
        "    launches:", "    exclude: [" + ", ".join(f"A{i}" for i in range(24)) + "]\n    launches:"
    )
    assert "no variant needs A" in planning_fault(write_project(tmp_path, text)), "what is excluded is not gone into"
    many = with_flags(200, constexprs="A{i}: {{values: [false], pick: f{i}}}")
    assert "ops.scale.constexprs: at most 64 allowed, 201 given" in planning_fault(write_project(tmp_path, many))


def test_outputs_of_many_conditions(tmp_path: Path):
    """No axis determines which outputs exist, and the stub does not list every combination."""
    line = "o{i}: {{shape: [rows, cols], dtype: T, role: output, when: f{i}, nullable: true}}"
    path = write_project(tmp_path, with_flags(24, tensors=line))
    bundle = plan_bundle(load_manifest(path), parse_arch("gfx942"), {}, False)
    assert len(bundle.variants) == 8
    from tests.support.on_demand import index_of

    text = stub_text(index_of(bundle))
    compile(text, "tiny.pyi", "exec")
    assert len(text) < 20_000 and "-> _Any" in text


# Numbers


LONG = "9" * 900
NUMBERS = {
    "grid: [rows]": f"grid: [rows + {LONG} * {LONG} * 0]",
    "smallest >= cols": f"smallest >= cols + {LONG}",
    "factor: {type: fp32}": f"factor: {{type: fp32, default: {LONG} ** 16}}",
    "shape: [rows, cols], dtype: T}\n": f"shape: [rows, 'cols + {LONG}'], dtype: T}}\n",
    "num_warps: 1": "num_warps: 9223372036854775808",
    "    launches:": f"    require: ['{LONG} ** 16 ** 1 > rows']\n    launches:",
    "BLOCK: {values: [16, 32], pick: smallest >= cols}": f"BLOCK: {{values: [16], pick: '{LONG} ** 16'}}",
    "        grid": f"        bind: {{factor: {{value: '{LONG} * {LONG}', type: i64}}}}\n        grid",
    "        grid: ": f"        bind: {{BLOCK: '{LONG} ** 16 ** 1'}}\n        grid: ",
    "bundle: tiny": f"bundle: {'tiny' * 5000}",
}


@pytest.mark.parametrize("old", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_of_many_digits(tmp_path: Path, old: str):
    """The outcome is never a traceback, nor a message of many pages."""
    path = write_project(tmp_path, SCALE.replace(old, NUMBERS[old], 1))
    try:
        bundle = plan_bundle(load_manifest(path), parse_arch("gfx942"), {}, False)
    except ManifestError as error:
        assert all(len(message) < 5000 for message in error.messages)
    else:
        assert bundle.variants


def test_a_kernel_with_a_default_of_many_digits(tmp_path: Path):
    for digits, fault in (
        (100, "the default of constexpr parameter 'HUGE' is a number of more than 64 bits"),
        (5000, "'scale_rows' in k.py cannot be read: ValueError: Exceeds the limit (4300 digits)"),
    ):
        huge = f"BLOCK: tl.constexpr, HUGE: tl.constexpr = 10**{digits})"
        kernel = KERNELS.replace("BLOCK: tl.constexpr)", huge)
        assert fault in planning_fault(write_project(tmp_path, SCALE, kernel))


# Caches and folders


def test_entries_that_are_no_files(tmp_path: Path):
    cache, kernel = CompileCache(tmp_path), compile_job(jobs.softmax("gfx942", 64))
    key = recipe_key(kernel.recipe)
    cache.put(key, kernel)
    (entry,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    links = [partial(Path.symlink_to, target=target) for target in ("/dev/zero", "nowhere")]
    for make in (os.mkfifo, *links, Path.mkdir):
        entry.unlink()
        make(entry)
        assert cache.get(key) is None
        cache.put(key, kernel)
        assert cache.get(key) == kernel and not entry.is_symlink()


POOL = """\
import os, signal, sys
from aot.workers.pool import WarmPool
pool = WarmPool(1)
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_killed_builds_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run([sys.executable, "-c", POOL], env=environment, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    (left,) = tmp_path.glob("aotbuild-pool-*")
    others = [tmp_path / name for name in ("aotbuild-pool-mine", "aotbuild-pool-abcdefgh", "aotbuild-pool-ABCDEFGH")]
    for folder in others:
        folder.mkdir()
        (folder / "file").touch()
    (others[2] / "lock").touch()
    (tmp_path / "aotbuild-pool-linked_1").symlink_to(others[2])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with WarmPool(1) as pool:
        assert not left.exists()
        (living,) = set(tmp_path.glob("aotbuild-pool-*")) - {*others, tmp_path / "aotbuild-pool-linked_1"}
        remove_leftovers(tmp_path)
        assert (living / "lifeline").exists() and pool.submit(os.getpid).result() != os.getpid()
    assert not living.exists() and all((folder / "file").exists() for folder in others)
