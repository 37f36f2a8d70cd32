"""Part `packages`: from an empty environment to a result with packages only, without a checkout."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.support.hip_double.double import build

from .running import Findings, Result, environment, run
from .scratch import LEFT_OUT
from .setting import Setting, say

DISTRIBUTIONS = {"aot_runtime": "runtime", "aot_models": "models", "aotbuild": "."}
"""The distributions by the names of their wheels, and their folders. The runtime's comes first."""
ARCHS = "gfx942,sm_90"
FILTER = "op=flash_attention,T=float16,HEAD_DIM=64,BOUND_LEFT=false"
"""Part of attention that is built, in less than a minute."""
WHEN = "1763812800"
"""The time at which bundles are signed: with one key, the same signature each time."""
THIN = """\
import importlib.util, sys
from importlib import metadata
from aot_runtime import open_bundle

assert not [name for name in sys.argv[1].split(",") if importlib.util.find_spec(name)]
attention = open_bundle("attention", id=sys.argv[2])
print(f"{attention} by {metadata.version('aot-runtime')}: {attention.preload()} kernels loaded")
"""
"""Opens the bundle on the double of libamdhip64 and loads its code, with nothing else of ours installed."""
OTHERS = "aot,aot_bundle,aot_emulator,aot_models,triton,torch,click"
PROGRAM = """\
import sys
import numpy as np
from aot_runtime import TrustError, open_bundle

attention = open_bundle("attention", device="emulator", version=">=0.1", trust=sys.argv[1])
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 2, 40, 64)).astype(np.float16) for _ in range(3))
out = attention.flash_attention(q, k, v, causal=True)
scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * 64**-0.5
scores[..., ~np.tri(40, dtype=bool)] = -np.inf
p = np.exp(scores - scores.max(-1, keepdims=True))
error = np.abs(out - p / p.sum(-1, keepdims=True) @ v.astype(np.float64)).max()
assert error < 2e-3, error
try:
    open_bundle("attention", device="emulator", trust=sys.argv[2])
except TrustError as refused:
    assert refused.reason == "key", refused
else:
    raise AssertionError("a bundle that is signed with another key was opened")
print(f"{attention.name} {attention.version} for {attention.arch}: max error {error:.1e}")
"""


@dataclass(frozen=True)
class _Environment:
    """A virtual environment and a folder to work in, which nothing of the checkout reaches."""

    folder: Path
    work: Path
    variables: dict[str, str]

    def run(self, program: str, *words: str) -> Result:
        """Run a program. Raises RuntimeError if it fails."""
        command = [str(self.folder / "bin" / program), *words]
        result = run(command, self.work, self.variables)
        say(f"    {program} {' '.join(words).splitlines()[0][:100]}  {result.seconds:.1f} s")
        if result.status:
            raise RuntimeError(f"{program} {' '.join(words)}: exit status {result.status}\n{result.tail()}")
        return result


def packages(setting: Setting) -> Findings:
    """Build attention from a release's wheels as one signed file, and compare it with the checkout's byte for byte.

    A wheel of it is opened by name where only the runtime is installed, on the double of libamdhip64, and called on the
    emulator.
    """
    folder = setting.work / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    release = make_release(setting, folder)
    runtime, tools = release["aot_runtime"], release["aotbuild"]
    builder, user = _environment(setting, folder / "builder"), _environment(setting, folder / "user")
    builder.run("python", "-m", "pip", "install", "--quiet", f"{runtime}[trust]", f"{tools}[build]")
    builder.run("python", "-m", "pip", "check")
    for name in ("release", "other"):
        policy = builder.run("aotbundle", "keygen", f"{name}.key").output
        (folder / f"{name}.toml").write_text(policy)
    shutil.copy(builder.work / "release.key", folder)
    command = ["--arch", ARCHS, "--filter", FILTER, "--pack", "-j", str(setting.jobs), "--sign"]
    builder.run("aotbuild", *command, "release.key", "attention")
    builder.run("aotbundle", "verify", "dist/attention.aotb", "--trust", str(folder / "release.toml"))
    shown = builder.run("aotbundle", "show", "dist/attention.aotb/gfx942", "--json").output
    builder.run("aotbundle", "wheel", "dist/attention.aotb", "-o", str(folder / "wheels"))
    findings = Findings(f"attention for {ARCHS}, built and opened without a checkout")
    _compare(setting, folder, [*command, str(folder / "release.key")], builder.work / "dist/attention.aotb", findings)
    found = ["--find-links", str(folder / "release"), "--find-links", str(folder / "wheels")]
    user.run("python", "-m", "pip", "install", "--quiet", *found, "aotbundle-attention==0.1.0")
    user.run("python", "-m", "pip", "check")
    library = build(folder / "hip")
    user.variables.update(ROCM_PATH=str(library.parent.parent), LD_LIBRARY_PATH=str(library.parent))
    said = user.run("python", "-I", "-c", THIN, OTHERS, json.loads(shown)["id"]).output
    say(f"    {said.strip()}")
    user.run("python", "-m", "pip", "install", "--quiet", *found, "aot-runtime[trust]", "aotbuild[emulator]")
    policies = [str(folder / f"{name}.toml") for name in ("release", "other")]
    said = user.run("python", "-I", "-c", PROGRAM, *policies).output
    say(f"    {said.strip()}")
    user.run("aotbundle", "selftest", "attention", "--device", "emulator", "--op", "flash_attention")
    shutil.rmtree(folder)  # two environments are 2 GB
    return findings


def make_release(setting: Setting, folder: Path) -> dict[str, Path]:
    """Make the wheels from source distributions of a copy of the checkout. Returns them by distribution."""
    source = folder / "source"
    shutil.copytree(setting.checkout, source, ignore=LEFT_OUT)
    wheels = {}
    for name, project in DISTRIBUTIONS.items():
        made = setting.run(sys.executable, "-m", "build", "--outdir", str(folder / "release"), str(source / project))
        if made.status:
            raise RuntimeError(f"python -m build {project} failed:\n{made.tail()}")
        (wheels[name],) = (folder / "release").glob(f"{name}-*.whl")
        say(f"    {wheels[name].name}: {wheels[name].stat().st_size / 1000:.0f} kB")
    return wheels


def _environment(setting: Setting, folder: Path) -> _Environment:
    venv.create(folder / "venv", with_pip=True)
    (folder / "work").mkdir()
    whole = environment(setting.cache) | {"SOURCE_DATE_EPOCH": WHEN, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    own = {name: value for name, value in whole.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    own["PATH"] = f"{folder / 'venv/bin'}{os.pathsep}{os.defpath}"
    return _Environment(folder / "venv", folder / "work", own)


def _compare(setting: Setting, folder: Path, command: list[str], installed: Path, findings: Findings) -> None:
    """Compare what the wheel's aotbuild made with what the checkout's makes, byte for byte."""
    words = ["env", f"SOURCE_DATE_EPOCH={WHEN}", "aotbuild", *command, "-o", str(folder / "here")]
    made = setting.run(*words, "manifests/attention.yaml")
    if made.status:
        findings.failures.append(f"from the checkout: exit status {made.status}\n{made.tail()}")
    elif (folder / "here/attention.aotb").read_bytes() != installed.read_bytes():
        findings.failures.append("what is built of the shipped manifests is not what is built from the checkout")
