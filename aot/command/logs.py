"""Logging of `aotbuild`."""

from __future__ import annotations

import logging

from aot_bundle.terminal import log_to_stderr


def log_as_asked(verbose: int, quiet: bool) -> None:
    """Log to stderr at the level of `-v` (by how often it is given) or `-q`."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    log_to_stderr("aotbuild", level)
