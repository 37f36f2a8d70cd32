"""How indexes are read by what opens bundles: by a trust policy where one is named, and which lock holds. Where none
is named, no more of this is imported."""

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
    from .lock import Lock
    from .policy import TrustPolicy

VARIABLE = "AOTBUNDLE_TRUST"
"""It names the policy file that bundles are held to where a call names none."""
LOCK_VARIABLE = "AOTBUNDLE_LOCK"
"""It names the lock file, likewise."""


def index_reader(trust: TrustPolicy | str | os.PathLike[str] | None = None) -> Callable[[Place], Index]:
    """What reads the index of a bundle: by the policy `trust`, or the one that the environment names, or by none.

    Raises `TrustError` for a policy file that cannot be read.
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
    """`trust`, or the file that the environment names; None where neither names a policy.

    Raises `TrustError` where the variable is set and empty: whoever set it wanted a check.
    """
    if trust is not None:
        return trust
    named = os.environ.get(VARIABLE)
    if named == "":
        raise TrustError(f"{VARIABLE} is set and empty; set it to the path of a policy file, or not at all", "policy")
    return named


def named_lock(lock: Lock | str | os.PathLike[str] | None = None) -> Lock | None:
    """A lock, or the one in a file, or in the file that the environment names; None where neither is named.

    Raises `LockError` for a file that cannot be read.
    """
    named = os.environ.get(LOCK_VARIABLE) or None if lock is None else lock
    if named is None:
        return None
    from .lock import find_lock

    return find_lock(named)
