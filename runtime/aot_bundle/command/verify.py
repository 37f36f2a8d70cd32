"""`aotbundle verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot_bundle.terminal import write, write_json
from aot_runtime.errors import BundleError, TrustError

from .failures import EXIT_FAILED
from .parameters import BUNDLE, policy_of, trust_option

if TYPE_CHECKING:
    from aot_runtime.trust.policy import TrustPolicy


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=BUNDLE)
@trust_option
@click.option("--json", "as_json", is_flag=True, help="The faults of each bundle, as JSON.")
def verify(paths: tuple[Path, ...], trust: Path | None, as_json: bool) -> None:
    """Verify bundles: index, files, hashes, variants against code objects, and signatures. Needs no device.

    A signature that the policy does not accept is a fault. Without a policy, signatures are optional, and the claimed
    signer is shown but not verified. For a file for several architectures, each bundle is checked, and that they belong
    together.

    \b
    Examples:
      aotbundle verify dist/rows-gfx942
      aotbundle verify dist --json
    """
    from aot_bundle.verification import verify_bundle, verify_together
    from aot_runtime.bundle.files import open_place
    from aot_runtime.bundle.multi_archive import MultiArchive

    from .listing import find_bundles

    policy = policy_of(trust)
    faults: dict[str, list[str]] = {}
    bundles = find_bundles(paths)
    for folder in bundles:
        found = faults[str(folder)] = verify_bundle(folder)
        state = _signature(folder, policy, found)
        _tell(folder, found, state, as_json)
    for path in dict.fromkeys(folder.parent for folder in bundles if folder.parent.is_file()):
        together = open_place(path)
        if isinstance(together, MultiArchive):
            found = faults[str(path)] = verify_together(together)
            _tell(path, found, f"for {', '.join(together.archs)}", as_json)
    if as_json:
        write_json(faults)
    sys.exit(EXIT_FAILED if any(faults.values()) else 0)


def _tell(path: Path, faults: list[str], state: str, as_json: bool) -> None:
    if not as_json:
        for fault in faults:
            write(f"{path}: {fault}")
        write(f"{path}: {f'{len(faults)} fault(s)' if faults else f'ok, {state}'}")


def _signature(folder: Path, policy: TrustPolicy | None, faults: list[str]) -> str:
    """Return the state of a bundle's signature. Adds its faults to `faults`."""
    from aot_bundle.trust.state import signature_state

    try:
        return signature_state(folder, policy).text
    except BundleError as error:
        if isinstance(error, TrustError) or not faults:
            faults.append(str(error))
        return ""
