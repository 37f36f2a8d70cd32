"""Build bundles with only the variants that given calls get, ours and peers'."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import OURS, PEERS, Way
from .sources import HERE, root_of

ARCH = "gfx942"
SHIPPED = HERE.parents[1] / "manifests"


@dataclass(frozen=True, eq=False)
class Call:
    """A call of one way, as an entry of a calls file."""

    way: Way
    entry: dict[str, Any]


@dataclass(frozen=True)
class Built:
    """The bundle with a call's variant, or None and the reason why it could not be built."""

    folder: Path | None
    reason: str = ""


def build(calls: Sequence[Call], manifest: Path, work: Path) -> dict[Call, Built]:
    """Build one bundle for a manifest's calls. If that fails, halve them until the call at fault is alone."""
    text = json.dumps({"calls": [call.entry for call in calls]})
    folder = work / hashlib.sha256(f"{manifest.stem} {text}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calls.yaml").write_text(text)  # JSON is YAML
    command = [sys.executable, "-m", "aot", "--arch", ARCH, "-j", "1", "--for", str(folder / "calls.yaml")]
    done = subprocess.run([*command, str(manifest), "-o", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict.fromkeys(calls, Built(next(folder.glob(f"*-{ARCH}"))))
    if len(calls) == 1:
        return {calls[0]: Built(None, reason_of(done.stdout + done.stderr))}
    half = len(calls) // 2
    return build(calls[:half], manifest, work) | build(calls[half:], manifest, work)


def reason_of(output: str) -> str:
    """Return the line of a failed build's output that gives the reason."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line for line in lines if "out of resource" in line or "rror" in line]
    return (said or lines or ["no reason given"])[0][:200]


def manifest_of(way: Way, peers: Path, work: Path) -> Path:
    """Return the manifest with a way's op. A peer's manifest is written for the folder with its kernels."""
    if way.who == OURS:
        return SHIPPED / f"{way.manifest}.yaml"
    text = (HERE / f"{way.manifest}.yaml").read_text()
    root = root_of(peers, PEERS[way.manifest]).resolve()
    place = work / f"{way.manifest}.yaml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}root: {json.dumps(str(root))}\n")
    return place
