"""What the runtime logs: to the logger `aotbuild.runtime`, for those who follow what it does."""

from __future__ import annotations

import sys

LOGGER = "aotbuild.runtime"


def log(message: str, *values: object) -> None:
    """Log at the level DEBUG. Where nobody has imported `logging`, nobody listens, and it is not imported for this."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(LOGGER).debug(message, *values)
