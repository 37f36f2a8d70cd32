"""A server of S3 on this machine: moto's, over HTTP, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SERVE = """\
import signal
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0)
server.start()
print(server.get_host_and_port()[1], flush=True)
signal.pause()
"""


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket, `team`."""

    endpoint: str
    log: Path
    process: subprocess.Popen[str]

    @property
    def files(self) -> Any:
        """Return the file system of fsspec, with a client of its own."""
        import s3fs

        return s3fs.S3FileSystem(endpoint_url=self.endpoint, key="test", secret="test", skip_instance_cache=True)

    def requests(self, method: str) -> list[str]:
        """Return the paths of all requests by a method for entries of a cache, so far."""
        return re.findall(rf'"{method} (/team/\S+/[0-9a-f]{{64}}) HTTP', self.log.read_text())


@contextmanager
def s3_server(folder: Path, **environment: str) -> Iterator[S3Server]:
    """Start a server whose log is in a folder. environment: of its process."""
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, stderr=file, text=True,
            env=os.environ | environment,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        port = next(line for line in lines if line.strip().isdigit()).strip()
        server = S3Server(f"http://127.0.0.1:{port}", log, process)
        server.files.mkdir("team")
        yield server
    finally:
        process.kill()
        process.wait()


def point_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients of this process, and of those that it starts, speak to a server of S3."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
