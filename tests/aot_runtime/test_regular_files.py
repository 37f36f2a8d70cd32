"""Reading a pipe or device by its path fails at once, with an error that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot_runtime.regular_files import open_regular, read_regular


def test_a_regular_file(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abcdef")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "a", 6) == read_regular(str(tmp_path / "b"), 100) == b"abcdef"
    assert read_regular(tmp_path / "a", 3) == b"abcd", "so that it is seen to be longer"


def test_what_is_no_regular_file(tmp_path: Path):
    before = {*Path("/proc/self/fd").iterdir()}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for place in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"it is not a regular file|Is a directory"):
            open_regular(place)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    assert {*Path("/proc/self/fd").iterdir()} == before


READERS = {
    "a policy": "aot_runtime.open_bundle('.', device='emulator', trust='pipe')",
    "the policy of the environment": "os.environ['AOTBUNDLE_TRUST'] = 'pipe'; aot_runtime.open_bundle('.')",
    "a private key": "from aot_bundle.trust.signing import read_signer; read_signer(Path('pipe'))",
    "a trusted root": "from aot_runtime.trust.policy import *; from aot_runtime.trust import identities as i;"
    "one = TrustedIdentity('a', 'b', 'c', ('*',)); i._verifier(TrustPolicy((), {}, 'p', (one,), Path('pipe')))",
    "a configuration of sigstore": "from aot_bundle.trust.keyless import identity_signer;"
    "identity_signer(Path('pipe')).__enter__()",
    "a calls file": "aot_runtime.record('pipe')",
    "entry points": "os.mkdir('x-1.dist-info'); os.rename('pipe', 'x-1.dist-info/entry_points.txt');"
    "sys.path[:0] = [os.getcwd()]; aot_runtime.open_bundle('rows', device='emulator')",
    "an array of a profile": "from aot_bundle.profile.profile_call import _given;"
    "from unittest.mock import Mock; _given(Mock(), 'x', Mock(shape=(2,)), 'pipe', Mock())",
    "a report": "from aot_bundle.command.reporting.given import read_tested; read_tested(Path('pipe'), None)",
    "the key of a shared cache": "from aot.command.caches import KeyFile; KeyFile().convert('pipe', None, None)",
    "times of tuning": "from aot.tune.results import Results; Results(Path('pipe'))",
    "kpack": "from aot_bundle.kpack import open_kpack; open_kpack(Path('pipe')).__enter__()",
}


@pytest.mark.parametrize("statement", READERS.values(), ids=READERS)
def test_nothing_waits_for_a_pipe(tmp_path: Path, statement: str):
    os.mkfifo(tmp_path / "pipe")
    code = f"import os, sys, aot_runtime; from pathlib import Path\n{statement}"
    path = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    if "needs the package" in result.stderr or "No module named" in result.stderr:
        pytest.skip(result.stderr.splitlines()[-1])
    assert result.returncode == 1 and ("is not a regular file" in result.stderr or "'rows'" in result.stderr)
