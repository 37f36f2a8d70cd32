"""`aotbundle verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot_runtime.errors import BundleError, TrustError

from .failures import EXIT_FAILED
from .parameters import PATHS, policy_of, trust_option

if TYPE_CHECKING:
    from aot_runtime.trust.policy import TrustPolicy


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@trust_option
@click.option("--json", "as_json", is_flag=True, help="The faults of each bundle, as JSON.")
def verify(paths: tuple[Path, ...], trust: Path | None, as_json: bool) -> None:
    """Check bundles: index, files and hashes, each variant against its code object, and the signature. Needs no device.

    A signature that the policy does not accept is a fault. Without a policy a bundle need not be signed, and whose
    signature it has is told but not verified.

    \b
    Examples:
      aotbundle verify dist/rows-gfx942
      aotbundle verify dist --json
    """
    import json

    from aot_runtime.bundle.verification import verify_bundle

    from .listing import find_bundles

    policy = policy_of(trust)
    faults: dict[str, list[str]] = {}
    for folder in find_bundles(paths):
        found = faults[str(folder)] = verify_bundle(folder)
        state = _signature(folder, policy, found)
        if not as_json:
            for fault in found:
                click.echo(f"{folder}: {fault}")
            click.echo(f"{folder}: {f'{len(found)} fault(s)' if found else f'ok, {state}'}")
    if as_json:
        click.echo(json.dumps(faults, indent=1))
    sys.exit(EXIT_FAILED if any(faults.values()) else 0)


def _signature(folder: Path, policy: TrustPolicy | None, faults: list[str]) -> str:
    """The state of a bundle's signature. What is wrong with it is added to the faults."""
    from aot_runtime.trust.checking import signature_state

    try:
        return signature_state(folder, policy).text
    except BundleError as error:
        if isinstance(error, TrustError) or not faults:
            faults.append(str(error))
        return ""
