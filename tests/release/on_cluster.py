"""A command line on a cluster of this machine: python -m tests.release.on_cluster COMMAND…, where ADDRESS is its
scheduler's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.building.clusters import Cluster


def main(command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "cluster") as cluster:
        cluster.worker("--nthreads", "2")
        return subprocess.run([word.replace("ADDRESS", cluster.address) for word in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
