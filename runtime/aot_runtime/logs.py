"""Debug logging of the runtime, to the logger `aotbuild.runtime`."""

from __future__ import annotations

import sys

LOGGER = "aotbuild.runtime"


def log(message: str, *values: object) -> None:
    """Log at level DEBUG. Does nothing if `logging` was never imported, since then nobody listens."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(LOGGER).debug(message, *values)
