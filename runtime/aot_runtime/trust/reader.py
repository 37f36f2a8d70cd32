"""Reads indexes by the trust policy that a call or the environment names. Without one, no other module of `trust` is
imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aot_runtime.bundle.files import Place
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import Index
from aot_runtime.errors import TrustError

if TYPE_CHECKING:
    from .policy import TrustPolicy

VARIABLE = "AOTBUNDLE_TRUST"
"""Names the default policy file."""


def index_reader(trust: TrustPolicy | str | os.PathLike[str] | None = None) -> Callable[[Place], Index]:
    """Return a function that reads a bundle's index, and first checks its signature if a policy is named.

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
    """Return `trust`, or the policy file that the environment names, or None.

    Raises `TrustError` if the variable is set but empty: whoever set it wanted a check.
    """
    if trust is not None:
        return trust
    named = os.environ.get(VARIABLE)
    if named == "":
        raise TrustError(f"{VARIABLE} is set and empty; set it to the path of a policy file, or not at all", "policy")
    return named
