"""What `aotbuild` logs, and where to."""

from __future__ import annotations

import logging
import sys


def log_to_stderr(verbose: int, quiet: bool) -> None:
    """Log on stderr what `-v`, given so many times, or `-q` ask for."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(format="aotbuild: %(message)s", stream=sys.stderr)
    logging.getLogger("aotbuild").setLevel(level)
