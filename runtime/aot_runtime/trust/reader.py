"""Select how to read indexes: with the trust policy of a call or of the environment, or without any.

Without a policy, no other module of `trust` is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.source import Place
from aot_runtime.contract.records import Index
from aot_runtime.errors import TrustError

from . import VARIABLE

if TYPE_CHECKING:
    from .policy import TrustPolicy


def index_reader(trust: TrustPolicy | str | os.PathLike[str] | None = None) -> Callable[[Place], Index]:
    """Return a function that reads a bundle's index, after checking its signature if a policy is set.

    Raises `TrustError` if the policy file cannot be read.
    """
    named = named_policy(trust)
    if named is None:
        return read_index
    from .checking import read_trusted_index
    from .policy import find_policy

    return partial(read_trusted_index, policy=find_policy(named))


def named_policy(
    trust: TrustPolicy | str | os.PathLike[str] | None,
) -> TrustPolicy | str | os.PathLike[str] | None:
    """Return `trust`, or the policy file in the environment, or None.

    Raises `TrustError` if the variable is set but empty, since it was meant to enable a check.
    """
    if trust is not None:
        return trust
    named = os.environ.get(VARIABLE)
    if named == "":
        raise TrustError(f"{VARIABLE} is set and empty; set it to the path of a policy file, or not at all", "policy")
    return named
